package schema

import "slices"

// Lifecycle lists every allowed change of a state; what is not listed is refused.
type Lifecycle[S ~string] struct {
	Name string
	next map[S][]S
}

// Allows reports whether from -> to is listed. Staying in a state is not a change and is not listed.
func (l Lifecycle[S]) Allows(from, to S) bool { return slices.Contains(l.next[from], to) }

// Valid reports whether s is a state of this lifecycle.
func (l Lifecycle[S]) Valid(s S) bool { _, ok := l.next[s]; return ok }

// Final reports whether nothing follows s.
func (l Lifecycle[S]) Final(s S) bool { n, ok := l.next[s]; return ok && len(n) == 0 }

// States are all states in no particular order.
func (l Lifecycle[S]) States() []S {
	out := make([]S, 0, len(l.next))
	for s := range l.next {
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

// Next are the states that may follow s.
func (l Lifecycle[S]) Next(s S) []S { return slices.Clone(l.next[s]) }

// Check returns a CodeConflict error that names both states where from -> to is not listed.
func (l Lifecycle[S]) Check(subject string, from, to S) error {
	if l.Allows(from, to) {
		return nil
	}
	return Conflict(subject+" is "+string(from)+" and can't become "+string(to), "from "+string(from)+" it may become: "+joinStates(l.next[from]))
}

func joinStates[S ~string](ss []S) string {
	if len(ss) == 0 {
		return "nothing"
	}
	out := string(ss[0])
	for _, s := range ss[1:] {
		out += ", " + string(s)
	}
	return out
}

// Phases is a server's life.
var Phases = Lifecycle[Phase]{"server phase", map[Phase][]Phase{
	PhaseEnrolled:   {PhaseOnboarding, PhaseRetiring},
	PhaseOnboarding: {PhaseAvailable, PhaseEnrolled}, // arrives, or aborted and undone
	PhaseAvailable:  {PhaseDraining},
	PhaseDraining:   {PhaseAvailable, PhaseRepairing, PhaseRetiring, PhaseEnrolled}, // enrolled: to be installed again
	PhaseRepairing:  {PhaseAvailable, PhaseRetiring},
	PhaseRetiring:   {PhaseRetired},
	PhaseRetired:    {},
}}

// Healths is an accelerator's health. Nothing goes from failed to healthy but through suspect, which only a
// passed burn-in clears; unknown is neither healthy nor failed.
var Healths = Lifecycle[Health]{"accelerator health", map[Health][]Health{
	HealthUnknown: {HealthHealthy, HealthSuspect, HealthFailed, HealthAbsent},
	HealthHealthy: {HealthSuspect, HealthFailed, HealthAbsent, HealthUnknown},
	HealthSuspect: {HealthHealthy, HealthFailed, HealthAbsent},
	HealthFailed:  {HealthSuspect, HealthAbsent},
	HealthAbsent:  {HealthSuspect, HealthFailed, HealthUnknown},
}}

// JobStates is a job's life. A preempted or hardware-lost attempt goes stopping -> queued.
var JobStates = Lifecycle[JobState]{"job state", map[JobState][]JobState{
	JobQueued:    {JobStarting, JobCancelled, JobExpired, JobFailed},
	JobStarting:  {JobRunning, JobStopping, JobQueued, JobFailed, JobCompleted, JobCancelled},
	JobRunning:   {JobStopping, JobCompleted, JobFailed, JobQueued},
	JobStopping:  {JobQueued, JobCompleted, JobFailed, JobCancelled, JobTimeout},
	JobCompleted: {}, JobFailed: {}, JobCancelled: {}, JobTimeout: {}, JobExpired: {},
}}

// RepairStates is a repair's life.
var RepairStates = Lifecycle[RepairState]{"repair state", map[RepairState][]RepairState{
	RepairCordoned:  {RepairDraining, RepairCancelled},
	RepairDraining:  {RepairResetting, RepairWaiting, RepairVerifying, RepairCancelled},
	RepairResetting: {RepairVerifying, RepairWaiting},
	RepairWaiting:   {RepairVerifying, RepairCancelled},
	RepairVerifying: {RepairReturned, RepairResetting, RepairWaiting},
	RepairReturned:  {},
	RepairCancelled: {},
}}

// TaskStates is the life of one piece of work given to a server's agent.
var TaskStates = Lifecycle[TaskState]{"task state", map[TaskState][]TaskState{
	TaskPending: {TaskClaimed, TaskCancelled},
	TaskClaimed: {TaskRunning, TaskDone, TaskFailed, TaskCancelled},
	TaskRunning: {TaskDone, TaskFailed, TaskCancelled},
	TaskDone:    {}, TaskFailed: {}, TaskCancelled: {},
}}
