package engine

import "time"

// Result is what one cycle decided. The caller commits it; what the database refuses is taken back with Revert.
type Result struct {
	Cycle   int64
	At      time.Time
	Starts  []Start
	Victims []Victim
	Expired []Expiry
	// Reasons are those that changed (see Config.ReasonsPerCycle); More says that some wait for the next cycle.
	Reasons []Reason
	More    bool
	// Reservations are the planned starts that are new, moved or gone.
	Reservations []Reservation
	// NextWake is when time alone may change a decision; zero = only a new fact can.
	NextWake time.Time
	// Decisions counts placements tried, for the speed figures.
	Decisions int
}

// Start gives a job its accelerators. The cycle has already applied it to the state.
type Start struct {
	Job        string
	Attempt    int
	Tenant     string
	Project    string
	Spec       string
	Model      string
	Places     []Place
	TimeLimit  time.Duration // 0 = none
	Waited     time.Duration // since the job was submitted
	Backfilled bool          // it started past an earlier job, without delaying it
}

// Victim is a running attempt that must end so that For can start. It is told once.
type Victim struct {
	Job        string
	Attempt    int
	For        string
	Why        string // priority or reclaim
	GraceUntil time.Time
	LostWork   time.Duration // accelerator time since its last checkpoint, or since its start
}

// Expiry is a job that has waited longer than its max queue time. It has left the queue.
type Expiry struct {
	Job      string
	Attempt  int
	MaxQueue time.Duration
}

// Reservation is the planned start of a waiting job, by the limits of what runs.
type Reservation struct {
	Job    string
	Start  time.Time // zero = the plan is gone
	Places []string  // servers
	// Cause says why the start moved later or is gone; "" when it is new or earlier.
	Cause string
}
