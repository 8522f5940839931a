package api

import (
	"context"

	"gpupool/schema"
)

// OnboardOptions say how a server is to be onboarded.
type OnboardOptions struct {
	Profile string // install profile; empty = the server's own
}

// RepairDone is a technician's word that a repair's work is done.
type RepairDone struct {
	OldSerial, NewSerial string            // of the part taken out and put in; empty = not told
	Did                  schema.RepairWork // empty: replaced, where a new serial is told, else other
	Note                 string
	By                   string
}

// Processes are the durable processes behind people's verbs. A refusal is a *schema.Error (CodeConflict, CodeUnsafe,
// CodeInvalid) that says why, and comes before anything has changed. Methods return once the verb is taken, not done.
type Processes interface {
	// StartOnboarding starts OnboardServer under the id server/<id>; CodeConflict where a process of the server runs.
	StartOnboarding(ctx context.Context, server schema.Server, by string, o OnboardOptions) error
	// Reinstall takes a server that holds no job out of the pool and onboards it again; see store.BeginReinstall.
	Reinstall(ctx context.Context, server schema.Server, by, reason string, o OnboardOptions) error
	RetryStep(ctx context.Context, server schema.Server, by string) error
	SkipStep(ctx context.Context, server schema.Server, step schema.Step, reason, by string) error
	AbortOnboarding(ctx context.Context, server schema.Server, by string) error
	// AcceptDifferences takes a server as it is; ids are the differences that the person saw, empty = all. The step looks again.
	AcceptDifferences(ctx context.Context, server schema.Server, ids []string, reason, by string) error
	// PauseOnboarding stops before a step; empty = the next.
	PauseOnboarding(ctx context.Context, server schema.Server, before schema.Step, reason, by string) error
	ContinueOnboarding(ctx context.Context, server schema.Server, by string) error
	RepairDone(ctx context.Context, repair schema.Repair, done RepairDone) error
	// CouldNotFix takes a technician's word that a repair can't be done; note says what was tried.
	CouldNotFix(ctx context.Context, repair schema.Repair, note, by string) error
	// BurnIn takes a server that holds no job out of the pool and proves its accelerators; see store.BeginBurnIn.
	BurnIn(ctx context.Context, server schema.Server, by string) (schema.Repair, error)
}

// noProcesses answers where this process has no way to the workflows.
type noProcesses struct{}

var errNoProcesses = &schema.Error{Code: schema.CodeUnavailable, Message: "this API has no connection to the workflows", Hint: "ask an operator to look at the API's configuration"}

func (noProcesses) StartOnboarding(context.Context, schema.Server, string, OnboardOptions) error {
	return errNoProcesses
}
func (noProcesses) Reinstall(context.Context, schema.Server, string, string, OnboardOptions) error {
	return errNoProcesses
}
func (noProcesses) RetryStep(context.Context, schema.Server, string) error { return errNoProcesses }
func (noProcesses) SkipStep(context.Context, schema.Server, schema.Step, string, string) error {
	return errNoProcesses
}
func (noProcesses) AbortOnboarding(context.Context, schema.Server, string) error {
	return errNoProcesses
}
func (noProcesses) AcceptDifferences(context.Context, schema.Server, []string, string, string) error {
	return errNoProcesses
}
func (noProcesses) PauseOnboarding(context.Context, schema.Server, schema.Step, string, string) error {
	return errNoProcesses
}
func (noProcesses) ContinueOnboarding(context.Context, schema.Server, string) error {
	return errNoProcesses
}
func (noProcesses) RepairDone(context.Context, schema.Repair, RepairDone) error {
	return errNoProcesses
}
func (noProcesses) CouldNotFix(context.Context, schema.Repair, string, string) error {
	return errNoProcesses
}
func (noProcesses) BurnIn(context.Context, schema.Server, string) (schema.Repair, error) {
	return schema.Repair{}, errNoProcesses
}
