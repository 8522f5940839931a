package engine

import (
	"time"

	"gpupool/schema"
)

// Server is a bare-metal server and its accelerators, as last known. An upsert replaces it whole.
type Server struct {
	ID           string
	Region       string
	Site         string
	Rack         string         // unique within the region; "" = in no rack
	NVLinkDomain string         // servers that share one NVLink domain (GB200 NVL72: the rack); "" = the server alone
	Cluster      string         // the backend cluster that runs jobs on it; "" = the pool's own agent
	Lacks        schema.Ability // what jobs on it can't have
	CPU          int64          // cores (any unit, if specs use the same one)
	MemoryBytes  int64
	OneTenant    bool   // its jobs are not kept apart: while one tenant's run there, no other's start
	Schedulable  bool   // available and without cordons
	WhyNot       string // the cause in words when not schedulable, such as "repairing: XID 79"
	// Stuck is what a person has to decide before it can be schedulable again, in words; "" = it comes back without.
	Stuck string
	// Back is when it is expected to be schedulable again (its median), by whoever repairs it; zero = nobody says.
	Back time.Time
	// BackLate is when it is expected 9 times in 10, zero = as Back; BackBasis is what both rest on, in words.
	BackLate     time.Time
	BackBasis    string
	Accelerators []Accelerator
}

// Accelerator is one device. ID is its identity across servers (serial), never an index.
type Accelerator struct {
	ID          string
	Model       string
	Index       int // where the server shows it; only used to keep choices in order
	Schedulable bool
	WhyNot      string
	Stuck       string    // see Server
	Back        time.Time // when it is expected to be schedulable again; zero = nobody says
	BackLate    time.Time // see Server
	BackBasis   string
}

// Spec is what one node of a job is given.
type Spec struct {
	Name         string
	Model        string   // accelerator model; "" = any model
	OtherModels  []string // accepted instead of Model
	Accelerators int      // per node; 0 only in simulations of CPU-only work
	Milli        int64    // share of one accelerator in thousandths, with Accelerators = 1; 0 or 1000 = whole
	CPU          int64    // per node
	MemoryBytes  int64    // per node
	MaxTime      time.Duration
	RetiredAt    time.Time // zero = in use
}

// NoLimit is the value of a limit that is not set.
const NoLimit = -1

// Quota bounds what a tenant (Project "") or a project may hold of an accelerator model (Model "" = of all models
// together). Guaranteed capacity that is idle is lent to others and reclaimed. As soon as any quota of a model has
// a guarantee, non-preemptible jobs of that model run only inside their tenant's and project's guarantees.
type Quota struct {
	Tenant     string
	Project    string
	Model      string
	Guaranteed int64 // accelerators; 0 = none
	Limit      int64 // accelerators; NoLimit = none
}

// Account is what holds for a tenant (Project "") or a project whatever the model.
type Account struct {
	Tenant         string
	Project        string
	Weight         float64 // in fair share; 0 = 1
	MaxRunningJobs int     // live jobs at once; 0 = no limit
	// MaxPriority caps the priority of waiting jobs; nil = no cap. What runs keeps the priority it started with.
	MaxPriority *int
}

// Budget is a ceiling of accelerator time per calendar month. At start, limit x accelerators is committed; at the
// end the actual is settled. It is never decayed.
type Budget struct {
	ID      string
	Tenant  string
	Project string         // "" = the whole tenant
	Model   string         // "" = all models
	Amount  time.Duration  // accelerator-time per month: 100 GPU-hours = 100 * time.Hour
	Spent   time.Duration  // settled so far in the month that holds At
	At      time.Time      // when Spent was true
	Zone    *time.Location // the tenant's months; nil = UTC
}

// Level is how close together the nodes of a gang must be.
type Level string

// Levels, from the closest to the widest.
const (
	AnyLevel    Level = ""
	LevelNVLink Level = "nvlink"
	LevelRack   Level = "rack"
	LevelSite   Level = "site"
	LevelRegion Level = "region"
)

// Job is a job that waits. Seq is its place by submit order and is kept when it is requeued.
type Job struct {
	Seq         int64
	ID          string
	Tenant      string
	Project     string
	Spec        string
	Nodes       int // servers, each given one Spec; 0 = 1
	Priority    int // higher first; see Account.MaxPriority
	Submitted   time.Time
	Attempt     int // the number its next attempt will have
	Preemptible bool
	TimeLimit   time.Duration // 0 = the spec's MaxTime, else unlimited
	Grace       time.Duration // given when it must end for another; 0 = Config.Grace
	NotBefore   time.Time
	// NotBeforeWhy is "asked" (default), "retry" or "cool-down".
	NotBeforeWhy string
	MaxQueue     time.Duration // expires when not started so long after Submitted; 0 = never

	Same         Level // keep the gang within one domain of this level
	SameRequired bool  // false = preferred

	Servers []string // only these servers
	Cluster string   // only servers of this cluster
	Site    string
	Region  string

	Service bool // it does not come to an end by itself
	// Needs is what its servers must not lack.
	Needs schema.Ability

	Held      *Hold
	DependsOn []Dependency

	Array      string // jobs of one array share it
	ArrayLimit int    // at most so many of the array run at once; 0 = no limit
}

// Hold is why a job is not to start for now.
type Hold struct {
	By   string // user, admin or system
	Why  string
	Note string
}

// Condition is what a dependency waits for.
type Condition string

// Conditions of a dependency. The zero value is AfterOK.
const (
	AfterOK    Condition = "afterok"
	AfterNotOK Condition = "afternotok"
	AfterAny   Condition = "afterany"
)

// Dependency is another job this one starts after. State is the other's state when it is already terminal
// (completed, failed, cancelled, timeout, expired); later ends come through Ended.
type Dependency struct {
	Job       string
	Condition Condition
	State     string
}

// Allocation is a set of accelerators that one attempt holds.
type Allocation struct {
	Job         string
	Attempt     int
	Tenant      string
	Project     string
	Spec        string
	Priority    int
	Preemptible bool
	Array       string
	Started     time.Time     // when the allocation was committed
	TimeLimit   time.Duration // 0 = unknown
	Service     bool          // it does not come to an end by itself: nothing is planned on its end
	Grace       time.Duration // given when it must end for another; 0 = Config.Grace
	Checkpoint  time.Time     // last checkpoint the job reported; zero = none
	GraceUntil  time.Time     // set when it was already told to end, by a preemption decided before a restart
	For         string        // the job it was told to end for
	Places      []Place
}

// Place is one node of an allocation.
type Place struct {
	Server       string
	Accelerators []string
}

// Window is a time when servers are not for everybody: maintenance (Tenant "") or a reservation for a tenant or
// project. Jobs that would run into it don't start there; those it is for do.
type Window struct {
	ID      string
	Kind    string // maintenance or reservation
	Servers []string
	From    time.Time
	Until   time.Time
	Tenant  string
	Project string
}

// Stop closes a queue: nothing of the scope starts. Zero fields match everything.
type Stop struct {
	ID      string
	Tenant  string
	Project string
	Spec    string
	Scope   string // what is stopped, in words; "" = made of the fields above
	By      string
	Note    string
	Since   time.Time
	Until   time.Time // zero = until it is removed
}
