package schema

import (
	"slices"
	"strings"
)

// Severity is how fast a fault must take its hardware out of scheduling.
type Severity string

const (
	SeverityInfo     Severity = "info"     // kept, nothing done
	SeverityWarning  Severity = "warning"  // suspect: cordon, let jobs end
	SeverityCritical Severity = "critical" // cordon and drain now: jobs on it are lost anyway
)

// Valid reports whether s is one of them.
func (s Severity) Valid() bool {
	return s == SeverityInfo || s == SeverityWarning || s == SeverityCritical
}

// Fault is evidence that hardware is failing, as one source reported it.
type Fault struct {
	ID          string   `gorm:"primaryKey" json:"id"`
	Server      string   `json:"server"`
	Accelerator string   `json:"accelerator,omitempty"` // empty: about the server
	Source      string   `json:"source"`                // agent, redfish, operator, job
	Kind        string   `json:"kind"`                  // xid, ecc-uncorrectable, absent, thermal, ras, job-failures, ...
	Code        string   `json:"code,omitempty"`        // e.g. 79
	Part        string   `json:"part,omitempty"`        // of the device or server, where there are several: a port, a slot
	Value       float64  `json:"value,omitempty"`       // what was measured, in the kind's unit; 0 = nothing was
	Severity    Severity `json:"severity"`
	Text        string   `json:"text"`
	Dedupe      string   `json:"-"`     // unique: the same event through two paths, or twice, is one row
	Epoch       int64    `json:"epoch"` // the server's epoch when it happened; older than the server's = history
	At          Instant  `json:"at"`    // when it happened, by the source's clock
	SeenAt      Instant  `json:"seen_at"`
	Verdict     string   `json:"verdict"` // "" until judged; an Action that was taken, or a Held
	Rule        string   `json:"rule,omitempty"`
	Cure        Cure     `json:"cure,omitempty"` // the mildest that may help, by the rule
	Repair      string   `json:"repair,omitempty"`
	Breaker     string   `json:"breaker,omitempty"` // that holds it back, where the verdict is HeldLimited
	ClearedAt   Instant  `json:"cleared_at"`
}

// What a verdict may be beside an Action: why the rule's action was not taken.
const (
	HeldStale    = "stale"    // of the hardware as it was before a repair
	HeldLimited  = "limited"  // too much is out already: a person resets the breaker
	HeldSilenced = "silenced" // by an operator, until a moment
)

// Owners of a repair's next step beside a person's name.
const (
	OwnerPlatform    = "gpupool"
	OwnerTechnicians = "technicians"
	OwnerOperators   = "operators" // who look at it could not fix it
)

// Action is what is done about evidence, from the weakest to the strongest.
type Action string

const (
	ActionObserve Action = "observe" // keep it, do nothing
	ActionCordon  Action = "cordon"  // the device takes no new work; what runs may end
	ActionReset   Action = "reset"   // out of the pool now, and tried to be cured by a reset
	ActionRepair  Action = "repair"  // out of the pool now, to a technician
)

// Actions are all of them, the weakest first.
var Actions = []Action{ActionObserve, ActionCordon, ActionReset, ActionRepair}

// Valid reports whether a is known.
func (a Action) Valid() bool { return slices.Contains(Actions, a) }

// Stronger reports whether a takes more than o.
func (a Action) Stronger(o Action) bool { return slices.Index(Actions, a) > slices.Index(Actions, o) }

// Cure is what may mend hardware, from the mildest to the last.
type Cure string

const (
	CureBurnIn     Cure = "burn-in"     // nothing: it is only proven again
	CureDevice     Cure = "device"      // a reset of the device
	CureBaseboard  Cure = "baseboard"   // of all devices of the server, and what links them
	CureReboot     Cure = "reboot"      // of the operating system
	CurePower      Cure = "power-cycle" // power off through the BMC, a pause, power on
	CureTechnician Cure = "technician"
)

// Cures are all of them, the mildest first. Each step of the ladder cures what those before it do.
var Cures = []Cure{"", CureBurnIn, CureDevice, CureBaseboard, CureReboot, CurePower, CureTechnician}

// Valid reports whether c is known; "" is.
func (c Cure) Valid() bool { return slices.Contains(Cures, c) }

// Stronger reports whether c is further up the ladder than o.
func (c Cure) Stronger(o Cure) bool { return slices.Index(Cures, c) > slices.Index(Cures, o) }

// Next is the step after c.
func (c Cure) Next() Cure { return Cures[min(slices.Index(Cures, c)+1, len(Cures)-1)] }

// RepairState is where a repair is; see RepairStates.
type RepairState string

const (
	RepairCordoned  RepairState = "cordoned" // the suspect takes no new work; what runs on the server may end
	RepairDraining  RepairState = "draining"
	RepairResetting RepairState = "resetting" // tried to be cured without a technician
	RepairWaiting   RepairState = "waiting"   // for the technician
	RepairVerifying RepairState = "verifying"
	RepairReturned  RepairState = "returned"
	RepairCancelled RepairState = "cancelled"
)

// PartNone is the part of a repair in which nothing is replaced: the server is only to be proven. It waits for a
// technician where the proof fails.
const PartNone = "none: burn-in only"

// Repair is one visit of a server to repair: what is wrong, where it is, what was done, and whether it was proven.
type Repair struct {
	ID          string      `gorm:"primaryKey" json:"id"`
	Server      string      `json:"server"`
	Accelerator string      `json:"accelerator,omitempty"`
	State       RepairState `json:"state"`
	Cause       string      `json:"cause"`    // in words, from the first fault
	Part        string      `json:"part"`     // what to look at: "accelerator SXM3"
	Location    string      `json:"location"` // site/rack/unit/slot
	OldSerial   string      `json:"old_serial,omitempty"`
	NewSerial   string      `json:"new_serial,omitempty"`
	Did         RepairWork  `json:"did,omitempty"` // what the technician did
	Note        string      `json:"note,omitempty"`
	DoneBy      string      `json:"done_by,omitempty"`
	Returns     int         `json:"returns"` // how often the proof failed and it went back to waiting
	WaitingWhy  string      `json:"waiting_why,omitempty"`

	Action    Action  `json:"action,omitempty"` // the strongest that its evidence asks for, of what is not cleared
	Cure      Cure    `json:"cure,omitempty"`   // and the cure
	Tried     string  `json:"tried,omitempty"`  // cures that were tried, comma-separated, in order
	Owner     string  `json:"owner"`            // whose the next step is: gpupool, technicians, operators, or a person
	NextStep  string  `json:"next_step"`        // in words
	Deadline  Instant `json:"deadline"`         // when a person is called, if the step is not done; 0 = closed
	ClaimedBy string  `json:"claimed_by,omitempty"`

	FirstSignAt Instant `json:"first_sign_at"` // of its evidence, by the source's clock
	OpenedAt    Instant `json:"opened_at"`     // and cordoned
	DrainedAt   Instant `json:"drained_at"`
	WaitingAt   Instant `json:"waiting_at"` // for the technician, the first time
	ClaimedAt   Instant `json:"claimed_at"`
	DoneAt      Instant `json:"done_at"`
	ClosedAt    Instant `json:"closed_at"`
	// ProbationUntil is when a returned server counts as well: a fault before then skips the resets.
	ProbationUntil Instant `json:"probation_until"`
	Version        int64   `json:"version"`
}

// HasTried reports whether a cure was tried in this repair.
func (r Repair) HasTried(c Cure) bool { return slices.Contains(strings.Split(r.Tried, ","), string(c)) }

// RepairWork is what a technician did.
type RepairWork string

const (
	WorkReplaced RepairWork = "replaced" // the part: its new serial is told
	WorkReseated RepairWork = "reseated"
	WorkCleaned  RepairWork = "cleaned"  // connectors, filters, airflow
	WorkFirmware RepairWork = "firmware" // flashed
	WorkCabling  RepairWork = "cabling"
	WorkNothing  RepairWork = "nothing-found"
	WorkOther    RepairWork = "other" // the note tells
)

// RepairWorks are all of them.
var RepairWorks = []RepairWork{WorkReplaced, WorkReseated, WorkCleaned, WorkFirmware, WorkCabling, WorkNothing, WorkOther}

// Valid reports whether w is known.
func (w RepairWork) Valid() bool { return slices.Contains(RepairWorks, w) }
