package workflows

import (
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"gpupool/activities/bmc"
	"gpupool/activities/health"
	"gpupool/activities/node"
	"gpupool/schema"
)

// RepairServer takes a server out, to a technician, and back in when it is proven, under the workflow id server/<id>.
//
// The cordon stands already: it was set in the transaction that opened the repair. Here the server is drained, power-cycled
// where that may cure it, and handed to a technician, whose word is followed by a proof: the devices are read and
// tested. What is not proven goes back to the technician, with the reason. A fault that comes meanwhile is evidence for
// this repair, never a second process.
func RepairServer(ctx workflow.Context, in RepairInput) error {
	r := repairing{wakes: serverWakes(ctx)}
	if err := r.listen(ctx); err != nil {
		return err
	}
	var record *health.Activities
	lctx := local(ctx)
	if err := workflow.ExecuteLocalActivity(lctx, record.BeginRepair, in.Repair).Get(lctx, &r.plan); err != nil {
		return answered(ctx, err)
	}
	r.state = r.plan.State
	err := r.run(ctx)
	r.over = true
	aside, done := workflow.NewDisconnectedContext(ctx)
	defer done()
	r.locate(aside, false)
	if err != nil {
		return answered(aside, err)
	}
	return r.handOver(aside, r.plan.Server)
}

// repairing is one repair.
type repairing struct {
	*wakes
	plan  health.Plan
	state schema.RepairState // as this process knows it; the record's is what counts
	over  bool
	// said is set while a technician's word is being recorded: of several at once one is taken.
	said bool
}

func (r *repairing) run(ctx workflow.Context) error {
	if r.state == schema.RepairDraining {
		if err := r.drain(ctx); err != nil {
			return err
		}
		r.state = schema.RepairWaiting
		if r.plan.Hung {
			if err := r.powerCycle(ctx); err != nil {
				return err
			}
		}
	}
	for !schema.RepairStates.Final(r.state) {
		if r.state == schema.RepairWaiting {
			r.locate(ctx, true)
			if err := r.waitForTechnician(ctx); err != nil {
				return err
			}
		}
		if err := r.prove(ctx); err != nil {
			return err
		}
	}
	return nil
}

// drain waits until no job is left. The jobs were asked to stop when the repair was opened, and their own processes
// release them. A server whose agent is silent can't prove that they ended: then its power is cut, which proves it.
func (r *repairing) drain(ctx workflow.Context) error {
	var record *health.Activities
	limit := r.plan.Timing.Drain
	if r.plan.Hung {
		limit = min(limit, r.plan.Timing.Silent)
	}
	for cut := false; ; {
		var d health.DrainState
		drained, err := r.await(ctx, limit, func(ctx workflow.Context) (bool, error) {
			ctx = local(ctx)
			err := workflow.ExecuteLocalActivity(ctx, record.RepairDrained, r.plan.Repair).Get(ctx, &d)
			return d.Drained, err
		})
		if err != nil || drained {
			return err
		}
		if cut || d.Silent < r.plan.Timing.Silent {
			if err := r.callPerson(ctx, schema.FailDrainOverdue, fmt.Sprintf("jobs still hold accelerators of %s, %s after they were asked to end: see its jobs", r.plan.Name, limit)); err != nil {
				return err
			}
			continue
		}
		if cut, err = r.cutPower(ctx); err != nil {
			return err
		}
	}
}

// cutPower reports whether the power is proven to be off, and then ends what ran there.
func (r *repairing) cutPower(ctx workflow.Context) (cut bool, err error) {
	var site *bmc.Activities
	var record *health.Activities
	at := atSite(ctx, r.plan.Site, r.plan.Timing.BMC)
	err = workflow.ExecuteActivity(at, site.PowerOff, bmc.Act{Server: r.plan.Server, SilentFor: r.plan.Timing.Silent}).Get(at, nil)
	switch {
	case ctx.Err() != nil:
		return false, ctx.Err()
	case err != nil:
		f := failureOf(err)
		return false, r.callPerson(ctx, f.Code, fmt.Sprintf("%s is silent, holds jobs, and its power could not be cut: %s. Switch it off by hand", r.plan.Name, f.Text))
	}
	lctx := local(ctx)
	return true, workflow.ExecuteLocalActivity(lctx, record.EndTasks, r.plan.Server, "the server's agent was silent; its power was cut").Get(lctx, nil)
}

// powerCycle tries the one thing that may cure a server that hangs, before a technician walks. If its agent comes back,
// the proof decides.
func (r *repairing) powerCycle(ctx workflow.Context) error {
	var site *bmc.Activities
	var agent *node.Activities
	var record *health.Activities
	lctx := local(ctx)
	var before node.Heard
	if err := workflow.ExecuteLocalActivity(lctx, agent.AgentHeard, r.plan.Server).Get(lctx, &before); err != nil {
		return err
	}
	for _, f := range []any{site.PowerOff, site.PowerOn} {
		at := atSite(ctx, r.plan.Site, r.plan.Timing.BMC)
		if err := workflow.ExecuteActivity(at, f, bmc.Act{Server: r.plan.Server}).Get(at, nil); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			f := failureOf(err)
			return r.callPerson(ctx, f.Code, "the power cycle that might have cured it failed: "+f.Text)
		}
	}
	back, err := r.await(ctx, r.plan.Timing.AgentBack, func(ctx workflow.Context) (bool, error) {
		var now node.Heard
		ctx = local(ctx)
		err := workflow.ExecuteLocalActivity(ctx, agent.AgentHeard, r.plan.Server).Get(ctx, &now)
		return now.BootID != before.BootID, err
	})
	if err != nil {
		return err
	}
	if !back {
		return r.callPerson(ctx, schema.FailAgent, fmt.Sprintf("%s was power-cycled and its agent was not heard of within %s: look at its console", r.plan.Name, r.plan.Timing.AgentBack))
	}
	if err := workflow.ExecuteLocalActivity(lctx, record.RepairSelfCured, r.plan.Repair, "a power cycle brought its agent back").Get(lctx, nil); err != nil {
		return err
	}
	r.state = schema.RepairVerifying
	return nil
}

// waitForTechnician has no end; each time that the agreed time has passed it calls a person.
func (r *repairing) waitForTechnician(ctx workflow.Context) error {
	began := workflow.Now(ctx)
	for {
		said, err := workflow.AwaitWithTimeout(ctx, r.plan.Timing.Technician, func() bool { return r.state != schema.RepairWaiting })
		if err != nil || said {
			return err
		}
		if err := r.callPerson(ctx, schema.FailRepairOverdue, fmt.Sprintf("repair %s (%s at %s) has waited %s for a technician", r.plan.Repair, r.plan.Part, r.plan.Location, workflow.Now(ctx).Sub(began).Round(time.Minute))); err != nil {
			return err
		}
	}
}

// prove reads and tests the server's devices. Only a store that finds the proof good lets it back in.
func (r *repairing) prove(ctx workflow.Context) error {
	var record *health.Activities
	lctx := local(ctx)
	var p health.Proof
	if err := workflow.ExecuteLocalActivity(lctx, record.BeginProof, r.plan.Repair).Get(lctx, &p); err != nil {
		return err
	}
	out, err := r.verify(ctx, p)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		out = failed(failureOf(err))
	}
	if out.Failure == nil {
		r.state = schema.RepairReturned
		return nil
	}
	if err := workflow.ExecuteLocalActivity(lctx, record.RepairUnproven, r.plan.Repair, out.Failure.Text).Get(lctx, nil); err != nil {
		return err
	}
	r.state = schema.RepairWaiting
	if p.Try >= returnsBeforeRMA {
		return r.callPerson(ctx, schema.FailCouldNotFix, fmt.Sprintf("repair %s came back unproven %d times, the last: %s. Send the part back to its maker, or retire the server", r.plan.Repair, p.Try, out.Failure.Text))
	}
	return nil
}

// returnsBeforeRMA is after how many proofs that failed a person is asked for another way (facts on health: 3 returns).
const returnsBeforeRMA = 3

// verify is the proof itself: the power is on, what was ordered is there with the new part in it, every device passes.
func (r *repairing) verify(ctx workflow.Context, p health.Proof) (schema.StepOutcome, error) {
	var site *bmc.Activities
	var record *health.Activities
	at := atSite(ctx, r.plan.Site, r.plan.Timing.BMC)
	if err := workflow.ExecuteActivity(at, site.PowerOn, bmc.Act{Server: r.plan.Server}).Get(at, nil); err != nil {
		return schema.StepOutcome{}, err
	}
	look := r.ask(schema.TaskInventory, p.Try)
	look.NewSerial, look.OldSerial = p.NewSerial, p.OldSerial
	state, err := r.work(ctx, look, r.plan.Timing.AgentBack+r.plan.Timing.Inventory)
	if err != nil || state.Outcome.Failure != nil {
		return outcome(state), err
	}
	for run := 2*p.Try - 1; ; run++ { // two runs for each proof: an inconclusive one is run once more
		test := r.ask(schema.TaskBurnIn, run)
		state, err := r.work(ctx, test, r.plan.Timing.BurnIn)
		if err != nil {
			return schema.StepOutcome{}, err
		}
		if state.Inconclusive && run < 2*p.Try {
			continue
		}
		if state.Outcome.Failure != nil {
			return outcome(state), nil
		}
		var out schema.StepOutcome
		lctx := local(ctx)
		err = workflow.ExecuteLocalActivity(lctx, record.RepairReturn, r.plan.Repair, test.ID).Get(lctx, &out)
		return out, err
	}
}

func outcome(s node.State) schema.StepOutcome {
	if s.Outcome == nil {
		return schema.StepOutcome{}
	}
	return *s.Outcome
}

// ask names a piece of work for the agent: server/<id>/repair/<repair>/<what>/<try>.
func (r *repairing) ask(kind schema.TaskKind, try int) node.Ask {
	id := ServerID(r.plan.Server)
	return node.Ask{ID: fmt.Sprintf("%s/repair/%s/%s/%d", id, r.plan.Repair, kind, try), Workflow: id, Server: r.plan.Server, Kind: kind}
}

// locate turns the light on or off. It helps to find the server; without it the repair goes on.
func (r *repairing) locate(ctx workflow.Context, on bool) {
	var site *bmc.Activities
	at := atSite(ctx, r.plan.Site, time.Minute)
	if err := workflow.ExecuteActivity(at, site.LocateLight, r.plan.Server, on).Get(at, nil); err != nil && !temporal.IsCanceledError(err) {
		workflow.GetLogger(ctx).Warn("the locator light could not be set", "server", r.plan.Server, "on", on, "error", err)
	}
}

func (r *repairing) callPerson(ctx workflow.Context, code schema.FailureCode, text string) error {
	var record *health.Activities
	ctx = local(ctx)
	return workflow.ExecuteLocalActivity(ctx, record.CallPerson, r.plan.Repair, code, text).Get(ctx, nil)
}

// listen takes the technician's words.
func (r *repairing) listen(ctx workflow.Context) error {
	var record *health.Activities
	waiting := workflow.UpdateHandlerOptions{Validator: func(workflow.Context, Done) error { return r.waiting("done") }}
	err := workflow.SetUpdateHandlerWithOptions(ctx, UpdateDone, func(ctx workflow.Context, v Done) error {
		ctx = once(ctx)
		r.said = true
		defer func() { r.said = false }()
		in := health.DoneInput{Repair: r.plan.Repair, OldSerial: v.OldSerial, NewSerial: v.NewSerial, Note: v.Note, By: v.By}
		if err := workflow.ExecuteLocalActivity(ctx, record.RepairDone, in).Get(ctx, nil); err != nil {
			return refuse(err)
		}
		r.state = schema.RepairVerifying
		return nil
	}, waiting)
	if err != nil {
		return err
	}
	return workflow.SetUpdateHandlerWithOptions(ctx, UpdateCouldNotFix, func(ctx workflow.Context, v CouldNotFix) error {
		ctx = once(ctx)
		r.said = true
		defer func() { r.said = false }()
		in := health.DoneInput{Repair: r.plan.Repair, Note: v.Note, By: v.By}
		return refuse(workflow.ExecuteLocalActivity(ctx, record.RepairCouldNotFix, in).Get(ctx, nil))
	}, workflow.UpdateHandlerOptions{Validator: func(workflow.Context, CouldNotFix) error { return r.waiting("could-not-fix") }})
}

// once is for a verb whose caller waits: it is tried for as long as a person would.
func once(ctx workflow.Context) workflow.Context {
	return workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{StartToCloseTimeout: 15 * time.Second, ScheduleToCloseTimeout: 45 * time.Second,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: 100 * time.Millisecond, MaximumInterval: 5 * time.Second}})
}

// waiting refuses a technician's word that comes early, twice or late.
func (r *repairing) waiting(verb string) error {
	switch {
	case r.said:
		return refuse(schema.Conflict("another word on this repair is being taken at this moment", "see what has become of the repair"))
	case r.state == schema.RepairWaiting && !r.over:
		return nil
	case r.state == "" || r.state == schema.RepairDraining:
		return refuse(schema.Conflict("jobs are still being taken off the server", verb+" is taken once the repair waits for the technician"))
	case r.state == schema.RepairVerifying:
		return refuse(schema.Conflict("the repair was reported done already and is being proven", "it comes back, with the reason, if the proof fails"))
	}
	return refuse(schema.Conflict("the repair is "+string(r.state), "there is nothing left to do"))
}
