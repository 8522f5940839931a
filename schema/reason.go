package schema

import "encoding/json"

// ReasonCode is why a job waits. The order of ReasonCodes is the order in which the first that applies is chosen.
type ReasonCode string

const (
	ReasonSpecUnavailable  ReasonCode = "SPEC_UNAVAILABLE"
	ReasonNeverFits        ReasonCode = "NEVER_FITS"
	ReasonDependencyFailed ReasonCode = "DEPENDENCY_FAILED"
	ReasonHeld             ReasonCode = "HELD"
	ReasonQueueStopped     ReasonCode = "QUEUE_STOPPED"
	ReasonNotBefore        ReasonCode = "NOT_BEFORE"
	ReasonDependency       ReasonCode = "DEPENDENCY"
	ReasonJobLimit         ReasonCode = "JOB_LIMIT"
	ReasonQuota            ReasonCode = "QUOTA"
	ReasonGuaranteeOnly    ReasonCode = "GUARANTEE_ONLY"
	ReasonBudget           ReasonCode = "BUDGET"
	ReasonWindow           ReasonCode = "WINDOW"
	ReasonBehind           ReasonCode = "BEHIND"
	ReasonUnhealthy        ReasonCode = "UNHEALTHY"
	ReasonFragmented       ReasonCode = "FRAGMENTED"
	ReasonCapacity         ReasonCode = "CAPACITY"
	ReasonPreempting       ReasonCode = "PREEMPTING"
	ReasonDispatching      ReasonCode = "DISPATCHING"
	ReasonNotEvaluated     ReasonCode = "NOT_EVALUATED"
)

// ReasonCodes is the fixed list, in order of choice.
var ReasonCodes = []ReasonCode{ReasonSpecUnavailable, ReasonNeverFits, ReasonDependencyFailed, ReasonHeld, ReasonQueueStopped, ReasonNotBefore, ReasonDependency, ReasonJobLimit,
	ReasonQuota, ReasonGuaranteeOnly, ReasonBudget, ReasonWindow, ReasonBehind, ReasonUnhealthy, ReasonFragmented, ReasonCapacity, ReasonPreempting, ReasonDispatching, ReasonNotEvaluated}

// Valid reports whether c is on the list.
func (c ReasonCode) Valid() bool {
	for _, k := range ReasonCodes {
		if k == c {
			return true
		}
	}
	return false
}

// ReasonDoc is a reason as it is kept on the job and shown: the envelope of the design, kept as JSON.
type ReasonDoc struct {
	Code        ReasonCode      `json:"code"`
	Class       string          `json:"class"`
	Since       Instant         `json:"since"`
	EvaluatedAt Instant         `json:"evaluated_at"`
	Cycle       int64           `json:"cycle"`
	Scope       json.RawMessage `json:"scope,omitempty"`
	Detail      json.RawMessage `json:"detail,omitempty"`
	Blockers    json.RawMessage `json:"blockers,omitempty"`
	ClearsWhen  string          `json:"clears_when"`
	Position    json.RawMessage `json:"position,omitempty"`
	ETA         json.RawMessage `json:"eta,omitempty"`
	Also        json.RawMessage `json:"also,omitempty"`
}
