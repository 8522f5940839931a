package engine

import "time"

// Code says why a job waits. The order of this list is the order of precedence: the first that applies is the
// primary reason, the others are listed in Also.
type Code string

// The reason codes.
const (
	SpecUnavailable  Code = "SPEC_UNAVAILABLE"
	NeverFits        Code = "NEVER_FITS"
	DependencyFailed Code = "DEPENDENCY_FAILED"
	Held             Code = "HELD"
	QueueStopped     Code = "QUEUE_STOPPED"
	NotBefore        Code = "NOT_BEFORE"
	DependencyWait   Code = "DEPENDENCY"
	JobLimit         Code = "JOB_LIMIT"
	QuotaReached     Code = "QUOTA"
	GuaranteeOnly    Code = "GUARANTEE_ONLY"
	BudgetSpent      Code = "BUDGET"
	WindowAhead      Code = "WINDOW"
	Behind           Code = "BEHIND"
	Unhealthy        Code = "UNHEALTHY"
	Fragmented       Code = "FRAGMENTED"
	Capacity         Code = "CAPACITY"
	Preempting       Code = "PREEMPTING"
	Dispatching      Code = "DISPATCHING"
	NotEvaluated     Code = "NOT_EVALUATED"
)

// Class says who can do something about a reason.
type Class string

// The classes of reasons.
const (
	FixRequest Class = "fix the request"
	AskAdmin   Class = "ask an admin"
	Wait       Class = "wait"
	InProgress Class = "in progress"
)

// Class of the code. UNHEALTHY is AskAdmin where too little comes back before a person has decided something: see toDecide.
func (c Code) Class() Class {
	switch c {
	case SpecUnavailable, NeverFits, DependencyFailed:
		return FixRequest
	case Held, QueueStopped:
		return AskAdmin
	case Preempting, Dispatching, NotEvaluated:
		return InProgress
	default:
		return Wait
	}
}

// Detail is the numbers a reason rests on, by the names of the reference.
type Detail map[string]any

// Reason is why one job waits, as of one cycle.
type Reason struct {
	Job         string    `json:"job"`
	Code        Code      `json:"code"`
	Class       Class     `json:"class"`
	Since       time.Time `json:"since"`
	EvaluatedAt time.Time `json:"evaluated_at"`
	Cycle       int64     `json:"cycle"`
	Scope       Scope     `json:"scope"`
	Detail      Detail    `json:"detail"`
	Blockers    []Blocker `json:"blockers"`
	ClearsWhen  string    `json:"clears_when"`
	Position    Position  `json:"position"`
	ETA         *ETA      `json:"eta"`
	// NoETA says why there is no estimate.
	NoETA string `json:"eta_why,omitempty"`
	Also  []Also `json:"also"`
}

// Scope is whom the reason concerns.
type Scope struct {
	Tenant  string `json:"tenant"`
	Project string `json:"project"`
	Region  string `json:"region"`
	Spec    string `json:"spec"`
}

// Blocker is something that stands in the way. Tenant is whose it is, so that the API can redact the name for others.
type Blocker struct {
	Kind   string  `json:"kind"` // job, server, quota, budget, window, stop
	ID     string  `json:"id"`
	GPUs   float64 `json:"gpus"`
	Tenant string  `json:"tenant,omitempty"`
}

// Position is how many waiting jobs are ahead: in the project, for the spec's accelerators, and what those ask for.
type Position struct {
	Project   int     `json:"project"`
	Spec      int     `json:"spec"`
	AheadGPUs float64 `json:"ahead_gpus"`
}

// ETA is an estimated start. P50 and P90 are moments; Basis says what they rest on and how far off such estimates were.
type ETA struct {
	P50   time.Time `json:"p50"`
	P90   time.Time `json:"p90"`
	Basis string    `json:"basis"`
	At    time.Time `json:"at"`
}

// Also is a further reason that applies beside the primary one.
type Also struct {
	Code   Code   `json:"code"`
	Detail Detail `json:"detail"`
}
