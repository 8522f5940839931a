package workflows

import (
	"gpupool/activities/install"
	"gpupool/schema"
)

// Signals to server/<id>. They say that it is time to look; what is true stands in the record. A process that doesn't
// wait for one ignores it.
const (
	SignalPhonedHome   = "phoned-home"   // PhonedHome
	SignalAgentUp      = "agent-up"      // AgentUp
	SignalTaskEnded    = "task-ended"    // TaskEnded
	SignalDrained      = "drained"       // Drained
	SignalRepairOpened = "repair-opened" // RepairOpened, by signal-with-start
	SignalRetire       = "retire"        // RetireInput, by signal-with-start: the record says that the server is to go
	SignalOnboard      = "onboard"       // OnboardInput, by signal-with-start: the record says that an onboarding began
)

// PhonedHome says that an attempt's installed system registered.
type PhonedHome struct {
	Attempt int `json:"attempt"`
}

// AgentUp says that the agent of a freshly booted system was heard of.
type AgentUp struct {
	BootID string `json:"boot_id"`
}

// TaskEnded says that work which the server's agent was given has ended.
type TaskEnded struct {
	Task  string           `json:"task"`
	Kind  schema.TaskKind  `json:"kind"`
	State schema.TaskState `json:"state"`
}

// Drained says that no job is left on the server.
type Drained struct{}

// RepairOpened says that a fault opened a repair.
type RepairOpened struct {
	Repair string `json:"repair"`
}

// Updates of OnboardServer: a refusal is synchronous and says why.
const (
	UpdateRetry = "retry" // Retry: runs the failed step again
	UpdateSkip  = "skip"  // Skip: goes on without it
	UpdateAbort = "abort" // Abort: undoes what was done

	UpdateAccept   = "accept"   // Accept: takes the server as it is, and runs the step again
	UpdatePause    = "pause"    // Pause: stops before a step
	UpdateContinue = "continue" // Continue: goes on
)

// Retry runs the failed step again.
type Retry struct {
	By string `json:"by"`
}

// Skip goes on without the failed step, by name and with a reason.
type Skip struct {
	Step   schema.Step `json:"step"`
	Reason string      `json:"reason"`
	By     string      `json:"by"`
}

// Abort stops an onboarding and undoes what it did.
type Abort struct {
	Reason string `json:"reason"`
	By     string `json:"by"`
}

// Accept takes the server as it is where it differs from its order, and runs the step again, which sees whether that is all.
type Accept struct {
	Differences []string `json:"differences,omitempty"` // those that the person has seen; empty = all that stopped the step
	Reason      string   `json:"reason"`
	By          string   `json:"by"`
}

// Pause stops an onboarding before a step, where nothing is half done.
type Pause struct {
	Before schema.Step `json:"before,omitempty"` // empty = the next
	Reason string      `json:"reason"`
	By     string      `json:"by"`
}

// Continue takes a pause back.
type Continue struct {
	By string `json:"by"`
}

// Updates of RepairServer.
const (
	UpdateDone        = "done"          // Done
	UpdateCouldNotFix = "could-not-fix" // CouldNotFix
)

// Done is the technician's word that the work is done. It returns nothing to the pool: the proof follows.
type Done struct {
	OldSerial string `json:"old_serial,omitempty"`
	NewSerial string `json:"new_serial,omitempty"`
	// Did says what was done; see schema.RepairWork. Empty: replaced, where a new serial is told, else other.
	Did  schema.RepairWork `json:"did,omitempty"`
	Note string            `json:"note,omitempty"`
	By   string            `json:"by"`
}

// CouldNotFix is the technician's word that it can't be done here.
type CouldNotFix struct {
	Note string `json:"note"`
	By   string `json:"by"`
}

// OnboardInput starts OnboardServer.
type OnboardInput = install.BeginInput

// RetireInput starts RetireServer.
type RetireInput struct {
	Server string `json:"server"`
}

// RepairInput starts RepairServer.
type RepairInput struct {
	Repair string `json:"repair"`
}
