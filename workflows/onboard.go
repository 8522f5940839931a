package workflows

import (
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"gpupool/activities/bmc"
	"gpupool/activities/install"
	"gpupool/activities/node"
	"gpupool/schema"
)

// OnboardServer brings an enrolled server into the pool, under the workflow id server/<id>.
//
// It goes through the steps in order. A step that fails waits for a person: retry it, skip it, or abort, which undoes
// what was done, newest first. A cancel of the workflow is an abort.
func OnboardServer(ctx workflow.Context, in OnboardInput) error {
	o := onboarding{wakes: serverWakes(ctx), list: theSteps}
	if err := o.listen(ctx); err != nil {
		return err
	}
	if err := o.begin(ctx, in); err != nil {
		return answered(ctx, err)
	}
	err := o.steps(ctx)
	if temporal.IsCanceledError(err) {
		err = o.undo(ctx)
	}
	o.ended = true
	aside, done := workflow.NewDisconnectedContext(ctx)
	defer done()
	if err != nil {
		return answered(aside, err)
	}
	return o.handOver(aside, o.plan.Server)
}

// onboarding is one attempt; a retirement is one too, with steps of its own.
type onboarding struct {
	*wakes
	plan    install.Plan
	list    []step
	retires bool

	step    schema.Step                     // the one that runs or stopped
	failure *schema.StepFailure             // set while it waits for a person
	retry   *Retry                          // the person's decision
	skip    *Skip                           //
	aborted *Abort                          //
	saying  bool                            // a decision is being recorded: of several at once one is taken
	pause   *schema.Pause                   // set from the word on until it goes on
	held    bool                            // it stands where it was to stop
	ended   bool                            // the process is over: no verb is taken any more
	cancel  workflow.CancelFunc             // ends the step that runs
	tries   map[schema.Step]int             // of this attempt
	undos   []func(workflow.Context) string // newest last; each says what it could not undo, or ""
}

// step is one line of the process.
type step struct {
	name schema.Step
	// doing is what it says while nothing else has been told.
	doing string
	run   func(*onboarding, workflow.Context) (schema.StepOutcome, error)
	undo  func(*onboarding, workflow.Context) string // nil = it leaves nothing behind
}

// theSteps is the process.
var theSteps = []step{
	{schema.StepVerifyBMC, "asks the BMC which machine it is", (*onboarding).verifyBMC, nil},
	{schema.StepInspect, "reads what the BMC shows of the hardware", (*onboarding).inspect, nil},
	{schema.StepProvision, "waits for a place among the site's installs", (*onboarding).provision, (*onboarding).undoProvision},
	{schema.StepDrivers, "waits for the server's agent to take it up", (*onboarding).drivers, nil}, // an agent's task that is not awaited any more is dropped by work itself
	{schema.StepRuntime, "waits for the server's agent to take it up", (*onboarding).runtime, nil},
	{schema.StepBurnIn, "waits for the server's agent to read the devices", (*onboarding).burnIn, nil},
	{schema.StepRegister, "lets the server in", (*onboarding).register, nil},
}

func (o *onboarding) begin(ctx workflow.Context, in OnboardInput) error {
	var record *install.Activities
	ctx = local(ctx)
	if in.Attempt == 0 {
		if err := workflow.ExecuteLocalActivity(ctx, record.NextAttempt, in.Server).Get(ctx, &in.Attempt); err != nil {
			return err
		}
	}
	if err := workflow.ExecuteLocalActivity(ctx, record.BeginOnboarding, in).Get(ctx, &o.plan); err != nil {
		return err
	}
	if in := o.plan.Pause; in.At != 0 {
		o.pause = &in
	}
	o.tries = map[schema.Step]int{}
	for _, r := range o.plan.Steps {
		o.tries[r.Step] = r.Try
	}
	return nil
}

// steps runs the process from its first step that is not behind it.
func (o *onboarding) steps(ctx workflow.Context) error {
	for _, s := range o.list {
		if s.undo != nil {
			o.undos = append(o.undos, func(ctx workflow.Context) string { return s.undo(o, ctx) })
		}
		if o.behind(s.name) {
			continue
		}
		for passed := false; !passed; {
			if err := o.hold(ctx, s.name); err != nil {
				return err
			}
			var err error
			if passed, err = o.try(ctx, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// hold stops before a step for as long as a person wants it to. Between two steps, and before another try of one, nothing is half
// done: no power is switched, nothing is armed but what an earlier try armed.
func (o *onboarding) hold(ctx workflow.Context, before schema.Step) error {
	if o.pause == nil || o.pause.Before != "" && o.pause.Before != before {
		return nil
	}
	var record *install.Activities
	lctx := local(ctx)
	if err := workflow.ExecuteLocalActivity(lctx, record.HoldOnboarding, o.end()).Get(lctx, nil); err != nil {
		return err
	}
	o.held = true
	err := workflow.Await(ctx, func() bool { return o.pause == nil || o.aborted != nil })
	o.held = false
	if err == nil && o.aborted != nil {
		err = temporal.NewCanceledError()
	}
	return err
}

// behind reports whether an earlier run of this attempt has been through the step.
func (o *onboarding) behind(name schema.Step) bool {
	for _, r := range o.plan.Steps {
		if r.Step == name {
			return r.State == schema.StepDone || r.State == schema.StepSkipped
		}
	}
	return false
}

// try runs a step once; if it fails, it waits for a person and reports whether the process goes on behind the step.
func (o *onboarding) try(ctx workflow.Context, s step) (passed bool, err error) {
	o.step = s.name
	o.tries[s.name]++
	if err := o.record(ctx, schema.StepRunning, s.doing); err != nil {
		return false, err
	}
	running, cancel := workflow.WithCancel(ctx)
	o.cancel = cancel
	out, err := s.run(o, running)
	o.cancel = nil
	cancel()
	if s.name == schema.StepRegister && err == nil && out.Failure == nil {
		return true, nil // it is in the pool: the store recorded that with the phase, and nothing is undone any more
	}
	switch {
	case o.aborted != nil || ctx.Err() != nil:
		return false, temporal.NewCanceledError()
	case err != nil:
		out = failed(unreached(failureOf(err), o.plan.Timing.BMC))
	}
	if out.Failure == nil {
		return true, o.record(ctx, schema.StepDone, out.Detail)
	}
	return o.waitForPerson(ctx, *out.Failure)
}

// waitForPerson stops at the failed step until someone decides. It has no timeout: a failure stands on everyone's
// screen, and nothing gets worse by waiting.
func (o *onboarding) waitForPerson(ctx workflow.Context, f schema.StepFailure) (passed bool, err error) {
	var record *install.Activities
	lctx := local(ctx)
	fail := install.FailInput{Server: o.plan.Server, Attempt: o.plan.Attempt, Step: o.step, Failure: f}
	if err := workflow.ExecuteLocalActivity(lctx, record.FailStep, fail).Get(lctx, nil); err != nil {
		return false, err
	}
	o.retry, o.skip, o.failure = nil, nil, &f
	if err := workflow.Await(ctx, func() bool { return o.retry != nil || o.skip != nil || o.aborted != nil }); err != nil {
		return false, err
	}
	o.failure = nil
	switch {
	case o.aborted != nil:
		return false, temporal.NewCanceledError()
	case o.skip != nil:
		detail := fmt.Sprintf("skipped by %s: %s (it had failed: %s)", o.skip.By, o.skip.Reason, f.Text)
		if o.step == schema.StepProvision || o.step == schema.StepSanitise { // nothing may install it behind the person's back
			if left := o.undoProvision(ctx); left != "" {
				detail += "; NOT undone: " + left
			}
		}
		return true, o.record(ctx, schema.StepSkipped, detail)
	}
	return false, nil
}

func (o *onboarding) record(ctx workflow.Context, state schema.StepState, detail string) error {
	var record *install.Activities
	ctx = local(ctx)
	return workflow.ExecuteLocalActivity(ctx, record.RecordStep, install.StepInput{Server: o.plan.Server, Attempt: o.plan.Attempt, Step: o.step, State: state, Detail: detail}).Get(ctx, nil)
}

func (o *onboarding) end() install.EndInput {
	return install.EndInput{Server: o.plan.Server, Attempt: o.plan.Attempt}
}

func (o *onboarding) verifyBMC(ctx workflow.Context) (out schema.StepOutcome, err error) {
	var site *bmc.Activities
	ctx = atSite(ctx, o.plan.Site, o.plan.Timing.BMC)
	err = workflow.ExecuteActivity(ctx, site.VerifyIdentity, o.plan.Server).Get(ctx, &out)
	return out, err
}

func (o *onboarding) inspect(ctx workflow.Context) (out schema.StepOutcome, err error) {
	var site *bmc.Activities
	ctx = atSite(ctx, o.plan.Site, o.plan.Timing.BMC)
	err = workflow.ExecuteActivity(ctx, site.Inspect, o.plan.Server).Get(ctx, &out)
	return out, err
}

// provision installs the server: armed, off, told to boot from the network, on; then it waits for the phone-home. Each
// act is idempotent and the machine is off while its boot is changed, so that a try which is repeated after a crash
// never cuts the power of an install that runs.
func (o *onboarding) provision(ctx workflow.Context) (schema.StepOutcome, error) {
	var record *install.Activities
	var armed install.Armed
	core := atCore(ctx, time.Second)
	if err := workflow.ExecuteActivity(core, record.ArmServer, o.end()).Get(core, &armed); err != nil {
		return schema.StepOutcome{}, err
	}
	if armed.Installed {
		return schema.StepOutcome{Detail: "installed and phoned home, before it was asked for again"}, nil
	}
	if err := o.bootFromNetwork(ctx); err != nil {
		return schema.StepOutcome{}, err
	}
	if err := o.record(ctx, schema.StepRunning, "installing: waits for the phone-home"); err != nil {
		return schema.StepOutcome{}, err
	}
	home, err := o.await(ctx, o.plan.Timing.PhoneHome, func(ctx workflow.Context) (home bool, err error) {
		ctx = local(ctx)
		err = workflow.ExecuteLocalActivity(ctx, record.PhonedHome, o.end()).Get(ctx, &home)
		return home, err
	})
	if err != nil || home {
		return schema.StepOutcome{Detail: "installed and phoned home"}, err
	}
	return o.diagnose(ctx, armed)
}

// bootFromNetwork switches the server off and has it boot from the network, each act proven by a read.
func (o *onboarding) bootFromNetwork(ctx workflow.Context) error {
	var site *bmc.Activities
	act := bmc.Act{Server: o.plan.Server, Attempt: o.plan.Attempt}
	for _, do := range []struct {
		words string
		f     any
	}{{"powering off", site.PowerOff}, {"setting the network boot", site.BootFromNetwork}, {"powering on", site.PowerOn}} {
		if err := o.record(ctx, schema.StepRunning, do.words); err != nil {
			return err
		}
		at := atSite(ctx, o.plan.Site, o.plan.Timing.BMC)
		if err := workflow.ExecuteActivity(at, do.f, act).Get(at, nil); err != nil {
			return err
		}
	}
	return nil
}

// diagnose says how far the boot came, while it can still be seen.
func (o *onboarding) diagnose(ctx workflow.Context, armed install.Armed) (schema.StepOutcome, error) {
	var site *bmc.Activities
	var record *install.Activities
	var look bmc.Look
	at := atSite(ctx, o.plan.Site, o.plan.Timing.BMC)
	if err := workflow.ExecuteActivity(at, site.LookAtServer, o.plan.Server).Get(at, &look); err != nil {
		if ctx.Err() != nil {
			return schema.StepOutcome{}, err
		}
		look = bmc.Look{Power: bmc.PowerUnknown, Error: failureOf(err).Text}
	}
	var f schema.StepFailure
	core := atCore(ctx, time.Second)
	err := workflow.ExecuteActivity(core, record.DiagnoseBoot, install.DiagnoseInput{Server: o.plan.Server, Attempt: o.plan.Attempt, Since: armed.At, Waited: o.plan.Timing.PhoneHome,
		Power: string(look.Power), Progress: look.Progress, Health: look.Health, Override: look.Override, BMCError: look.Error, Console: look.Console}).Get(core, &f)
	return failed(f), err
}

// undoProvision takes the arming, the tokens and the boot override back.
func (o *onboarding) undoProvision(ctx workflow.Context) string {
	var record *install.Activities
	var site *bmc.Activities
	var left []string
	lctx := local(ctx)
	if err := workflow.ExecuteLocalActivity(lctx, record.DisarmServer, o.end()).Get(lctx, nil); err != nil {
		left = append(left, "it may still be armed: "+failureOf(err).Text)
	}
	at := atSite(ctx, o.plan.Site, o.plan.Timing.Undo)
	if err := workflow.ExecuteActivity(at, site.ClearBootOverride, o.plan.Server).Get(at, nil); err != nil {
		left = append(left, "its boot override may still stand: "+failureOf(err).Text)
	}
	return strings.Join(left, "; ")
}

// ask names a piece of work for the agent: server/<id>/<attempt>/<what>/<try>.
func (o *onboarding) ask(kind schema.TaskKind, try int) node.Ask {
	id := ServerID(o.plan.Server)
	return node.Ask{ID: fmt.Sprintf("%s/%d/%s/%d", id, o.plan.Attempt, kind, try), Workflow: id, Server: o.plan.Server, Attempt: o.plan.Attempt, Kind: kind}
}

func (o *onboarding) drivers(ctx workflow.Context) (schema.StepOutcome, error) {
	return o.setup(ctx, schema.TaskDrivers)
}

func (o *onboarding) runtime(ctx workflow.Context) (schema.StepOutcome, error) {
	return o.setup(ctx, schema.TaskRuntime)
}

func (o *onboarding) setup(ctx workflow.Context, kind schema.TaskKind) (schema.StepOutcome, error) {
	state, err := o.work(ctx, o.ask(kind, o.tries[o.step]), o.plan.Timing.Setup)
	if err != nil {
		return schema.StepOutcome{}, err
	}
	return *state.Outcome, nil
}

// burnIn is the gate: what was ordered is there, and each device passes each test. A burn-in that proves neither is run
// once more by itself; then a person looks.
func (o *onboarding) burnIn(ctx workflow.Context) (schema.StepOutcome, error) {
	try := o.tries[o.step]
	state, err := o.work(ctx, o.ask(schema.TaskInventory, try), o.plan.Timing.Inventory)
	if err != nil {
		return schema.StepOutcome{}, err
	}
	if state.Outcome.Failure != nil {
		return *state.Outcome, nil
	}
	if err := o.record(ctx, schema.StepRunning, state.Outcome.Detail+" as ordered; testing them"); err != nil {
		return schema.StepOutcome{}, err
	}
	for run := 2*try - 1; ; run++ { // two runs for each try: 1, 2, then 3, 4
		state, err := o.work(ctx, o.ask(schema.TaskBurnIn, run), o.plan.Timing.BurnIn)
		if err != nil {
			return schema.StepOutcome{}, err
		}
		if !state.Inconclusive || run == 2*try {
			return *state.Outcome, nil
		}
		if err := o.record(ctx, schema.StepRunning, "once more: "+state.Outcome.Failure.Text); err != nil {
			return schema.StepOutcome{}, err
		}
	}
}

// register lets the server in. With the backend "node" there is no cluster to join: its agent is its node.
func (o *onboarding) register(ctx workflow.Context) (out schema.StepOutcome, err error) {
	var record *install.Activities
	ctx = local(ctx)
	err = workflow.ExecuteLocalActivity(ctx, record.FinishOnboarding, o.end()).Get(ctx, &out)
	return out, err
}

// undo takes back what was done, newest first, and makes the server enrolled again. What could not be undone is said.
func (o *onboarding) undo(ctx workflow.Context) error {
	ctx, done := workflow.NewDisconnectedContext(ctx)
	defer done()
	by, why := "cancel", "cancelled"
	if o.aborted != nil {
		by, why = o.aborted.By, "aborted: "+o.aborted.Reason
	}
	for i := len(o.undos) - 1; i >= 0; i-- {
		if left := o.undos[i](ctx); left != "" {
			why += "; NOT undone: " + left
		}
	}
	var record *install.Activities
	ctx = local(ctx)
	in := o.end()
	in.By, in.Why = by, why
	return workflow.ExecuteLocalActivity(ctx, record.AbortOnboarding, in).Get(ctx, nil)
}
