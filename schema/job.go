package schema

import (
	"fmt"
	"time"
)

// JobState is where a job is; see JobStates for what may follow what.
type JobState string

const (
	JobQueued    JobState = "queued"
	JobStarting  JobState = "starting"
	JobRunning   JobState = "running"
	JobStopping  JobState = "stopping"
	JobCompleted JobState = "completed"
	JobFailed    JobState = "failed"
	JobCancelled JobState = "cancelled"
	JobTimeout   JobState = "timeout"
	JobExpired   JobState = "expired"
)

// Ended reports whether nothing follows s.
func (s JobState) Ended() bool { return JobStates.Final(s) }

// JobKind says whether a job is to come to an end.
type JobKind string

const (
	JobBatch   JobKind = "batch"   // it runs until its command ends
	JobService JobKind = "service" // one replica of a service: it is kept running until it is cancelled
)

// Valid reports whether k is known.
func (k JobKind) Valid() bool { return k == JobBatch || k == JobService }

// Job is a tenant's request for nodes x spec and what became of it.
type Job struct {
	ID            string       `gorm:"primaryKey" json:"id"`
	Seq           int64        `json:"seq"` // submit order over all tenants, kept over requeues
	Tenant        string       `json:"tenant"`
	Project       string       `json:"project"`
	Name          string       `json:"name"`
	Kind          JobKind      `json:"kind"`
	Spec          string       `json:"spec"`
	Model         string       `json:"model"` // of the spec at submit
	Nodes         int          `json:"nodes"`
	PerNode       int          `json:"per_node"`       // accelerators a node, of the spec at submit
	Priority      int          `json:"priority"`       // after the caps of its tenant and project; what has started keeps it
	AskedPriority int          `json:"asked_priority"` // before them
	Preemptible   bool         `json:"preemptible"`
	Same          string       `json:"same,omitempty"`          // keep the gang within: nvlink, rack, site, region
	SameRequired  bool         `json:"same_required,omitempty"` // else preferred
	Region        string       `json:"region"`
	Command       string       `json:"command"` // JSON array of argv
	Env           string       `json:"env"`     // JSON object
	WorkDir       string       `json:"work_dir,omitempty"`
	Image         string       `json:"image,omitempty"`   // container image that the command runs in; empty = none of its own
	Network       string       `json:"network,omitempty"` // none, or empty for the server's
	Mounts        []Mount      `gorm:"serializer:json" json:"mounts,omitempty"`
	Needs         Ability      `json:"-"`             // what its servers must not lack
	TimeLimit     int64        `json:"time_limit_ms"` // ms from running to timeout; 0 = none
	MaxQueue      int64        `json:"max_queue_ms"`  // ms from submit to expired; 0 = none
	Grace         int64        `json:"grace_ms"`      // ms between the stop signal and the kill
	NotBefore     Instant      `json:"not_before"`
	Held          bool         `json:"held"`
	HeldBy        string       `json:"held_by,omitempty"`
	DependsOn     []Dependency `gorm:"serializer:json" json:"depends_on"`
	Array         string       `gorm:"column:array_name" json:"array"` // jobs of one array share it, within a project
	ArrayLimit    int          `json:"array_limit"`                    // at most so many of the array hold accelerators at once; 0 = no limit
	ArrayIndex    *int         `json:"array_index,omitempty"`          // which of the array it is; nil = none
	RequeueLimit  int          `json:"requeue_limit"`                  // hardware losses after which it fails; preemptions don't count

	State       JobState `json:"state"`
	Attempt     int      `json:"attempt"`         // the live or last one; 0 before the first allocation
	Requeues    int      `json:"requeues"`        // attempts lost to hardware
	Restarts    int      `json:"restarts"`        // of a service: how often it was begun again where it ran, within its attempts
	Cause       string   `json:"cause,omitempty"` // why it ended, in words
	ExitCode    *int     `json:"exit_code"`       // of the last attempt; nil = none was read
	Reason      string   `json:"-"`               // JSON of why it waits; see reason.go
	SubmittedBy string   `json:"submitted_by"`
	SubmittedAt Instant  `json:"submitted_at"`
	StartedAt   Instant  `json:"started_at"` // first time running
	EndedAt     Instant  `json:"ended_at"`
	Version     int64    `json:"version"`
}

// Dependency is another job of the same tenant that a job starts after.
type Dependency struct {
	Job       string              `json:"job"`
	Condition DependencyCondition `json:"condition"`
}

// DependencyCondition is how the other job must have ended.
type DependencyCondition string

const (
	AfterOK    DependencyCondition = "afterok"    // completed
	AfterNotOK DependencyCondition = "afternotok" // ended, and not completed
	AfterAny   DependencyCondition = "afterany"   // ended
)

// Valid reports whether c is known.
func (c DependencyCondition) Valid() bool { return c == AfterOK || c == AfterNotOK || c == AfterAny }

// Accelerators is nodes x accelerators a node.
func (j Job) Accelerators() int { return j.Nodes * j.PerNode }

// Limit is the time limit; 0 = none.
func (j Job) Limit() time.Duration { return time.Duration(j.TimeLimit) * time.Millisecond }

// Outcome is how an attempt ended.
type AttemptOutcome string

const (
	AttemptLive      AttemptOutcome = ""          // not yet ended
	AttemptCompleted AttemptOutcome = "completed" // exit code 0
	AttemptFailed    AttemptOutcome = "failed"    // another exit code
	AttemptCancelled AttemptOutcome = "cancelled"
	AttemptTimeout   AttemptOutcome = "timeout"
	AttemptPreempted AttemptOutcome = "preempted"
	AttemptLost      AttemptOutcome = "lost"      // to hardware
	AttemptUnstarted AttemptOutcome = "unstarted" // the backend never started it
)

// Attempt is one allocation's worth of running a job.
type Attempt struct {
	Job          string         `gorm:"primaryKey" json:"job"`
	Attempt      int            `gorm:"primaryKey" json:"attempt"`
	Outcome      AttemptOutcome `json:"outcome"`
	Cause        string         `json:"cause,omitempty"`
	ExitCode     *int           `json:"exit_code"`
	Epoch        int64          `json:"epoch"` // of the allocator that placed it
	AllocatedAt  Instant        `json:"allocated_at"`
	RunningAt    Instant        `json:"running_at"`
	StoppingAt   Instant        `json:"stopping_at"`
	StopWhy      AttemptOutcome `json:"stop_why,omitempty"` // why it was asked to stop; the first asker wins
	CheckpointAt Instant        `json:"checkpoint_at"`      // it last told that it has saved its work
	StopFor      string         `json:"-"`                  // the job that it was preempted for: the allocator's memory
	ReleasedAt   Instant        `json:"released_at"`
}

// Allocation is one accelerator held by one attempt for the interval [AllocatedAt, ReleasedAt).
// The database refuses a second row of the same accelerator whose ReleasedAt is 0.
type Allocation struct {
	Job         string  `gorm:"primaryKey" json:"job"`
	Attempt     int     `gorm:"primaryKey" json:"attempt"`
	Accelerator string  `gorm:"primaryKey" json:"accelerator"`
	Server      string  `json:"server"`
	Region      string  `json:"region"`
	AllocatedAt Instant `json:"allocated_at"`
	ReleasedAt  Instant `json:"released_at"`
}

// ID is the allocation's name, job/attempt/accelerator.
func (a Allocation) ID() string { return fmt.Sprintf("%s/%d/%s", a.Job, a.Attempt, a.Accelerator) }

// LedgerKind says what an interval's time was.
type LedgerKind string

const (
	LedgerUsage      LedgerKind = "usage"      // an accelerator held by an attempt
	LedgerCredit     LedgerKind = "credit"     // taken back from a usage row (hardware failure, failed launch)
	LedgerAdjustment LedgerKind = "adjustment" // a person's correction
)

// LedgerRow is one accelerator of one attempt for [Start, End): GPU-milliseconds are End - Start. Rows are only
// ever added; ID repeats for a repeated write, which the database then ignores. A correction is a row of its own: a credit
// of an interval, or an adjustment of an amount at a moment.
type LedgerRow struct {
	ID          string         `gorm:"primaryKey" json:"id"` // job/attempt/accelerator/seq
	Kind        LedgerKind     `json:"kind"`
	Job         string         `json:"job"`
	Attempt     int            `json:"attempt"`
	Accelerator string         `json:"accelerator"`
	Server      string         `json:"server"`
	Tenant      string         `json:"tenant"`
	Project     string         `json:"project"`
	Spec        string         `json:"spec"`
	Model       string         `json:"model"`
	Region      string         `json:"region"`
	Queued      Instant        `gorm:"column:queued_at" json:"queued"` // the attempt waited over [Queued, Start): no accelerator's time. 0 = not told
	Start       Instant        `gorm:"column:start_at" json:"start"`
	Running     Instant        `gorm:"column:running_at" json:"running"`   // launch time is [Start, Running)
	Stopping    Instant        `gorm:"column:stopping_at" json:"stopping"` // drain time is [Stopping, End); 0 = none
	End         Instant        `gorm:"column:end_at" json:"end"`
	Outcome     AttemptOutcome `json:"outcome"`
	Amount      int64          `json:"amount,omitempty"` // of an adjustment: GPU-milliseconds, signed, booked at Start = End
	Note        string         `json:"note,omitempty"`
}

// Milliseconds is the row's GPU-milliseconds: negative for a credit.
func (r LedgerRow) Milliseconds() int64 {
	switch r.Kind {
	case LedgerCredit:
		return -int64(r.End - r.Start)
	case LedgerAdjustment:
		return r.Amount
	case LedgerUsage:
	}
	return int64(r.End - r.Start)
}

// TableName is where it is kept: the plural that would be guessed is wrong.
func (LedgerRow) TableName() string { return "ledger" }
