package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"gpupool/activities/bmc"
	"gpupool/activities/install"
	"gpupool/schema"
)

// RetireServer takes a server out for good, under the workflow id server/<id>: once its jobs have ended its BMC is proven to be its
// own, its cluster lets it go, its disks are made to forget, and its power is cut. Its row stays, with a certificate for each drive.
//
// A step that fails waits for a person, who has it tried again or skips it by name. Until its jobs have ended it is taken back by an
// undrain; after that it goes on.
func RetireServer(ctx workflow.Context, in RetireInput) error {
	o := onboarding{wakes: serverWakes(ctx), list: retireSteps, retires: true}
	if err := o.listen(ctx); err != nil {
		return err
	}
	going, err := o.untilIdle(ctx, in.Server)
	if err != nil {
		return answered(ctx, err)
	}
	o.plan = going.Plan
	o.plan.Server = in.Server
	if !going.Over {
		o.tries = map[schema.Step]int{}
		for _, r := range o.plan.Steps {
			o.tries[r.Step] = r.Try
		}
		if err = o.steps(ctx); err == nil {
			var record *install.Activities
			lctx := local(ctx)
			err = workflow.ExecuteLocalActivity(lctx, record.FinishRetirement, o.end()).Get(lctx, nil)
		}
	}
	o.ended = true
	aside, done := workflow.NewDisconnectedContext(ctx)
	defer done()
	if temporal.IsCanceledError(err) { // by an admin: what was armed is disarmed, and the record says where it stands
		o.undoProvision(aside)
	}
	if err != nil {
		return answered(aside, err)
	}
	return o.handOver(aside, in.Server)
}

var retireSteps = []step{
	{schema.StepVerifyBMC, "asks the BMC which machine it is", (*onboarding).verifyBMC, nil},
	{schema.StepDeregister, "waits for its cluster to let it go", (*onboarding).deregister, nil},
	{schema.StepSanitise, "powers it off", (*onboarding).sanitise, nil},
	{schema.StepPowerOff, "cuts its power", (*onboarding).powerOff, nil},
}

// untilIdle waits for the server's jobs to end. It has no timeout: jobs have their own, and an operator cancels what is not to be
// waited for.
func (o *onboarding) untilIdle(ctx workflow.Context, server string) (going install.Going, err error) {
	var record *install.Activities
	for {
		idle, err := o.await(ctx, 24*time.Hour, func(ctx workflow.Context) (bool, error) {
			ctx = local(ctx)
			err := workflow.ExecuteLocalActivity(ctx, record.BeginRetiring, server).Get(ctx, &going)
			return going.Over || going.Plan.Attempt > 0, err
		})
		if err != nil || idle {
			return going, err
		}
	}
}

// deregister waits for the connector of the server's cluster, which takes out what retires. With the backend "node" there is none.
func (o *onboarding) deregister(ctx workflow.Context) (schema.StepOutcome, error) {
	if o.plan.Backend == "node" {
		return schema.StepOutcome{Detail: "it is no node of a cluster"}, nil
	}
	var record *install.Activities
	left, err := o.await(ctx, o.plan.Timing.Leave, func(ctx workflow.Context) (left bool, err error) {
		ctx = local(ctx)
		err = workflow.ExecuteLocalActivity(ctx, record.NodeLeft, o.end()).Get(ctx, &left)
		return left, err
	})
	if err != nil || left {
		return schema.StepOutcome{Detail: "its cluster has let it go"}, err
	}
	return failedAs(schema.FailDeregister, true, "its cluster has not let it go within %s. Proven: no job of the pool is on it. Not proven: that the cluster drained it and took it out. "+
		"To do: does the cluster's connector run (gpupool cluster list)? Does work that is not the pool's hold the node? Take it out there, then retry", schema.Setting(o.plan.Timing.Leave)), nil
}

// sanitise boots the run that empties the disks, and waits for what it says of each.
func (o *onboarding) sanitise(ctx workflow.Context) (schema.StepOutcome, error) {
	var record *install.Activities
	var site *bmc.Activities
	var shown []schema.DriveResult
	at := atSite(ctx, o.plan.Site, o.plan.Timing.BMC)
	if err := workflow.ExecuteActivity(at, site.Drives, o.plan.Server).Get(at, &shown); err != nil {
		return schema.StepOutcome{}, err
	}
	var armed install.Armed
	lctx := local(ctx)
	if err := workflow.ExecuteLocalActivity(lctx, record.ArmSanitise, o.end()).Get(lctx, &armed); err != nil {
		return schema.StepOutcome{}, err
	}
	if err := o.bootFromNetwork(ctx); err != nil {
		return schema.StepOutcome{}, err
	}
	if err := o.record(ctx, schema.StepRunning, "waits for the sanitise run"); err != nil {
		return schema.StepOutcome{}, err
	}
	var state install.Sanitised
	look := func(done func() bool) func(workflow.Context) (bool, error) {
		return func(ctx workflow.Context) (bool, error) {
			ctx = local(ctx)
			err := workflow.ExecuteLocalActivity(ctx, record.SanitiseState, o.end()).Get(ctx, &state)
			return done(), err
		}
	}
	begun, err := o.await(ctx, o.plan.Timing.PhoneHome, look(func() bool { return state.Begun || state.Over }))
	if err != nil {
		return schema.StepOutcome{}, err
	}
	if !begun {
		return o.diagnose(ctx, armed)
	}
	over, err := o.await(ctx, o.plan.Timing.Sanitise, look(func() bool { return state.Over }))
	if err != nil {
		return schema.StepOutcome{}, err
	}
	if !over {
		return failedAs(schema.FailSanitise, true, "the sanitise run was not over within %s. Proven: it began. Not proven: that any drive is empty. To do: read its console; then retry", schema.Setting(o.plan.Timing.Sanitise)), nil
	}
	out := state.Outcome
	if err := workflow.ExecuteLocalActivity(lctx, record.MissingDrives, o.end(), shown).Get(lctx, &out); err != nil {
		return schema.StepOutcome{}, err
	}
	if out.Failure == nil && len(shown) == 0 {
		out.Detail += fmt.Sprintf("; the BMC of %s lists no drives: whether one was missing is not known", o.plan.Name)
	}
	return out, nil
}

// powerOff cuts the power, proven by a read.
func (o *onboarding) powerOff(ctx workflow.Context) (schema.StepOutcome, error) {
	var site *bmc.Activities
	at := atSite(ctx, o.plan.Site, o.plan.Timing.BMC)
	err := workflow.ExecuteActivity(at, site.PowerOff, bmc.Act{Server: o.plan.Server, Attempt: o.plan.Attempt}).Get(at, nil)
	return schema.StepOutcome{Detail: "off"}, err
}
