// Package install is what a server's onboarding asks of the record: begin, steps, arming, the phone-home, the end; the
// diagnosis of an install that did not come through; and what an armed server boots (Profiles).
//
// Invariant: every function is idempotent, keyed by server, attempt and step, and decides from the record in the
// transaction that writes. Not here: the order of the steps (workflows), the BMC (activities/bmc), the wire (pxe).
package install

import (
	"context"
	"fmt"
	"time"

	"go.temporal.io/sdk/worker"

	"gpupool/activities/temporalerr"
	"gpupool/schema"
	"gpupool/schema/store"
)

// Timing is how long an onboarding waits. Zero fields take DefaultTiming's.
type Timing struct {
	PhoneHome   time.Duration `json:"phone_home"`   // from power on to the installed system's phone-home
	BMC         time.Duration `json:"bmc"`          // one act at the BMC, all tries together
	Setup       time.Duration `json:"setup"`        // drivers, and runtime, each
	Inventory   time.Duration `json:"inventory"`    // reading the devices
	BurnIn      time.Duration `json:"burn_in"`      // the whole suite
	AgentSilent time.Duration `json:"agent_silent"` // an agent that was heard of within this is up
	AgentBack   time.Duration `json:"agent_back"`   // for an agent to come back after the power was on again
	Undo        time.Duration `json:"undo"`         // one act of undoing, all tries together
	Sanitise    time.Duration `json:"sanitise"`     // a run that empties all disks of a server
	Leave       time.Duration `json:"leave"`        // for a cluster to let a node go
}

// DefaultTiming is for machines of metal: POST of an eight-GPU server takes up to 15 minutes, an image of some tens of
// GB as long again; a soak of new hardware takes four hours (facts on burn-in stages).
var DefaultTiming = Timing{PhoneHome: 30 * time.Minute, BMC: 15 * time.Minute, Setup: 30 * time.Minute, Inventory: 5 * time.Minute,
	BurnIn: 6 * time.Hour, AgentSilent: time.Minute, AgentBack: 20 * time.Minute, Undo: 10 * time.Minute, Sanitise: 48 * time.Hour, Leave: time.Hour}

// WithDefaults fills in what is zero.
func (t Timing) WithDefaults() Timing {
	for _, f := range []struct{ have, def *time.Duration }{
		{&t.PhoneHome, &DefaultTiming.PhoneHome}, {&t.BMC, &DefaultTiming.BMC}, {&t.Setup, &DefaultTiming.Setup}, {&t.Inventory, &DefaultTiming.Inventory},
		{&t.BurnIn, &DefaultTiming.BurnIn}, {&t.AgentSilent, &DefaultTiming.AgentSilent}, {&t.AgentBack, &DefaultTiming.AgentBack}, {&t.Undo, &DefaultTiming.Undo},
		{&t.Sanitise, &DefaultTiming.Sanitise}, {&t.Leave, &DefaultTiming.Leave},
	} {
		if *f.have == 0 {
			*f.have = *f.def
		}
	}
	return t
}

// power is how long it may take from an arming until the power is on: the power is switched off, the boot set, the power
// switched on, each within BMC. The waits for a boot begin behind it.
func (t Timing) power() time.Duration { return 3 * t.BMC }

// SiteLimit is how many servers of a site are installed at a time where nothing else is configured: what a boot server
// with a 25 Gbit/s port feeds with images without anyone starving.
const SiteLimit = 64

// Activities is registered with the core task queue. All but ArmServer and DiagnoseBoot run as local activities.
type Activities struct {
	Store     *store.Store
	Timing    Timing // zero fields are DefaultTiming's
	SiteLimit int    // 0 = SiteLimit
}

// Register adds the activities to a core worker.
func Register(w worker.ActivityRegistry, a *Activities) { w.RegisterActivity(a) }

// BeginInput asks for an onboarding.
type BeginInput struct {
	Server string `json:"server"`
	By     string `json:"by"`
	// Attempt is one that was begun already (the API does so, to refuse at once); 0 = begin the next.
	Attempt int `json:"attempt,omitempty"`
}

// Plan is what an onboarding works by: the server as it was when the attempt began, small.
type Plan struct {
	Server  string           `json:"server"`
	Name    string           `json:"name"`
	Site    string           `json:"site"`
	Model   string           `json:"model"`
	Vendor  string           `json:"vendor"`
	Attempt int              `json:"attempt"`
	Began   schema.Instant   `json:"began"`
	Steps   []schema.StepRun `json:"steps,omitempty"` // what an earlier run of this attempt did: a process that was terminated goes on
	Timing  Timing           `json:"timing"`
	Backend string           `json:"backend"`
	// Pause is one that was asked for in an earlier run of this attempt.
	Pause schema.Pause `json:"pause,omitzero"`
}

// NextAttempt is the attempt that an onboarding of the server takes: the one that was begun, else the next. Begin is asked with
// it, so that Begin can be tried again.
func (a *Activities) NextAttempt(ctx context.Context, server string) (int, error) {
	v, err := a.Store.Server(ctx, server)
	if v.Phase == schema.PhaseOnboarding {
		return v.Attempt, nil
	}
	return v.Attempt + 1, temporalerr.Wrap(err)
}

// BeginOnboarding begins the attempt, or takes up one that was begun.
func (a *Activities) BeginOnboarding(ctx context.Context, in BeginInput) (Plan, error) {
	v, err := a.Store.BeginAttempt(ctx, in.Server, in.Attempt, in.By)
	if err != nil {
		return Plan{}, temporalerr.Wrap(err)
	}
	steps, err := a.Store.StepRuns(ctx, v.ID, v.Attempt)
	if err != nil {
		return Plan{}, temporalerr.Wrap(err)
	}
	for i := range steps {
		steps[i].Detail = "" // read again from the record where it matters
	}
	return Plan{Server: v.ID, Name: v.Name, Site: v.Site, Model: v.Model, Vendor: VendorOf(v.Model), Attempt: v.Attempt, Began: a.Store.Now(), Steps: steps,
		Timing: a.Timing.WithDefaults(), Backend: v.Backend, Pause: v.Pause}, nil
}

// VendorOf is the vendor's word in front of a model's name: nvidia-h100-80gb is nvidia.
func VendorOf(model string) string {
	for i, c := range model {
		if c == '-' {
			return model[:i]
		}
	}
	return model
}

// StepInput records how far a step has come.
type StepInput struct {
	Server  string           `json:"server"`
	Attempt int              `json:"attempt"`
	Step    schema.Step      `json:"step"`
	State   schema.StepState `json:"state"`
	Detail  string           `json:"detail"`
}

// RecordStep records it.
func (a *Activities) RecordStep(ctx context.Context, in StepInput) error {
	return temporalerr.Wrap(a.Store.SetStep(ctx, in.Server, in.Attempt, in.Step, in.State, in.Detail))
}

// FailInput stops an onboarding at a step.
type FailInput struct {
	Server  string             `json:"server"`
	Attempt int                `json:"attempt"`
	Step    schema.Step        `json:"step"`
	Failure schema.StepFailure `json:"failure"`
}

// FailStep records it; a person decides what happens next.
func (a *Activities) FailStep(ctx context.Context, in FailInput) error {
	return temporalerr.Wrap(a.Store.FailStep(ctx, in.Server, in.Attempt, in.Step, string(in.Failure.Code), in.Failure.Text, in.Failure.Retryable))
}

// AcceptInput accepts what stopped a step.
type AcceptInput struct {
	Server      string   `json:"server"`
	Attempt     int      `json:"attempt"`
	Differences []string `json:"differences,omitempty"` // those that the person saw; empty = all
	Reason      string   `json:"reason"`
	By          string   `json:"by"`
}

// AcceptDifferences records it; see store.AcceptDifferences.
func (a *Activities) AcceptDifferences(ctx context.Context, in AcceptInput) error {
	return temporalerr.Wrap(a.Store.AcceptDifferences(ctx, in.Server, in.Attempt, in.Differences, in.Reason, in.By))
}

// PauseInput asks for a stop before a step.
type PauseInput struct {
	Server  string       `json:"server"`
	Attempt int          `json:"attempt"`
	Pause   schema.Pause `json:"pause"`
}

// PauseOnboarding records that a stop was asked for.
func (a *Activities) PauseOnboarding(ctx context.Context, in PauseInput) error {
	return temporalerr.Wrap(a.Store.PauseOnboarding(ctx, in.Server, in.Attempt, in.Pause))
}

// HoldOnboarding records that the onboarding stands where it was asked to.
func (a *Activities) HoldOnboarding(ctx context.Context, in EndInput) error {
	return temporalerr.Wrap(a.Store.HoldOnboarding(ctx, in.Server, in.Attempt))
}

// ContinueOnboarding records that it goes on.
func (a *Activities) ContinueOnboarding(ctx context.Context, in EndInput) error {
	return temporalerr.Wrap(a.Store.ContinueOnboarding(ctx, in.Server, in.Attempt, in.By))
}

// EndInput ends an attempt.
type EndInput struct {
	Server  string `json:"server"`
	Attempt int    `json:"attempt"`
	By      string `json:"by,omitempty"`
	Why     string `json:"why,omitempty"`
}

// AbortOnboarding makes the server enrolled again, after the undo.
func (a *Activities) AbortOnboarding(ctx context.Context, in EndInput) error {
	return temporalerr.Wrap(a.Store.AbortOnboarding(ctx, in.Server, in.Attempt, in.By, in.Why))
}

// FinishOnboarding lets the server into the pool. The agent must be up at this moment: a server that can't be told of a job must
// not be given one. The gate itself is in the store's transaction.
func (a *Activities) FinishOnboarding(ctx context.Context, in EndInput) (schema.StepOutcome, error) {
	v, err := a.Store.Server(ctx, in.Server)
	if err != nil {
		return schema.StepOutcome{}, temporalerr.Wrap(err)
	}
	silent, limit := a.Store.Now().Sub(v.AgentSeen), a.Timing.WithDefaults().AgentSilent
	if v.Phase != schema.PhaseAvailable && silent > limit {
		return schema.StepOutcome{Failure: &schema.StepFailure{Code: schema.FailAgent, Retryable: true,
			Text: fmt.Sprintf("the agent of %s was last heard of %s ago (at most %s is taken): it passed every step and is not let in while it is silent", v.Name, silent.Round(time.Second), limit)}}, nil
	}
	err = a.Store.FinishOnboarding(ctx, in.Server, in.Attempt)
	if schema.Is(err, schema.CodeUnsafe) {
		return schema.StepOutcome{Failure: &schema.StepFailure{Code: schema.FailHardware, Text: err.Error(), Retryable: true}}, nil
	}
	return schema.StepOutcome{Detail: "in the pool"}, temporalerr.Wrap(err)
}

// Armed says when the install was allowed to begin.
type Armed struct {
	At schema.Instant `json:"at"`
	// Installed says that the attempt has phoned home already: nothing is to be done.
	Installed bool `json:"installed"`
}

// ArmServer lets the server's next network boot install it. Where the site's slots are taken the error is one that Temporal
// tries again; the step says that it waits.
func (a *Activities) ArmServer(ctx context.Context, in EndInput) (Armed, error) {
	home, err := a.Store.PhonedHome(ctx, in.Server, in.Attempt)
	if err != nil || home {
		return Armed{At: a.Store.Now(), Installed: home}, temporalerr.Wrap(err)
	}
	limit := a.SiteLimit
	if limit == 0 {
		limit = SiteLimit
	}
	// Twice the wait: the arming must outlive a machine that boots late, and its slot must not stay taken for ever.
	t := a.Timing.WithDefaults()
	err = a.Store.Arm(ctx, in.Server, in.Attempt, t.power()+2*t.PhoneHome, limit)
	if schema.Is(err, schema.CodeLimited) {
		var e error = err
		if serr := a.Store.SetStep(ctx, in.Server, in.Attempt, schema.StepProvision, schema.StepRunning, "waits: "+err.Error()); serr != nil {
			e = serr
		}
		return Armed{}, temporalerr.Wrap(e)
	}
	return Armed{At: a.Store.Now()}, temporalerr.Wrap(err)
}

// DisarmServer takes Arm back and revokes the attempt's tokens.
func (a *Activities) DisarmServer(ctx context.Context, in EndInput) error {
	return temporalerr.Wrap(a.Store.Disarm(ctx, in.Server, in.Attempt))
}

// PhonedHome reports whether the attempt's installed system has. An installer that gave up is an error with reason
// FailInstaller: there is nothing left to wait for.
func (a *Activities) PhonedHome(ctx context.Context, in EndInput) (bool, error) {
	home, err := a.Store.PhonedHome(ctx, in.Server, in.Attempt)
	if err != nil || home {
		return home, temporalerr.Wrap(err)
	}
	armed, ok, err := a.Store.Armed(ctx, in.Server)
	if err == nil && ok && armed.Attempt == in.Attempt && armed.Failure != "" {
		gaveUp := schema.Conflict("the installer ran and gave up: "+armed.Failure, "put right what it names, then retry: the server is switched off and installed again")
		return false, temporalerr.WithReason(gaveUp, string(schema.FailInstaller))
	}
	return false, temporalerr.Wrap(err)
}
