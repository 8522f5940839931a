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

// RepairServer takes a server out, tries to cure it, hands it to a technician where that fails, and lets it back in when it is
// proven, under the workflow id server/<id>.
//
// The cordon stands already: it was set in the transaction that opened the repair. A suspect waits until its server is idle; a
// failed device's server is drained now. Then comes what the evidence asks for: nothing but a proof, a reset (of the device, of
// all of them, of the system, of the power, the mildest first), or a technician, whose word is followed by a proof: the devices
// are read and tested. What is not proven goes to the technician, with the reason. A fault that comes meanwhile is evidence for
// this repair, never a second process; what is told to be over is weighed again at each step.
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
	if r.lit {
		r.locate(aside, false)
	}
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
	lit   bool // the locator light was turned on
	// said is set while a technician's word is being recorded: of several at once one is taken.
	said bool
	// why is what stood in the way of the last reset, in words for a technician.
	why string
}

func (r *repairing) run(ctx workflow.Context) error {
	for !schema.RepairStates.Final(r.state) {
		var err error
		switch r.state {
		case schema.RepairCordoned:
			err = r.holdUntilIdle(ctx)
		case schema.RepairDraining:
			err = r.drain(ctx)
		case schema.RepairResetting:
			err = r.reset(ctx)
		case schema.RepairWaiting:
			r.locate(ctx, true)
			err = r.waitForTechnician(ctx)
		default:
			err = r.prove(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// holdUntilIdle waits while a suspect is cordoned and work on the server goes on. When the time for that is over the server takes
// no new work at all.
func (r *repairing) holdUntilIdle(ctx workflow.Context) error {
	var record *health.Activities
	look := func(over bool) func(workflow.Context) (bool, error) {
		return func(ctx workflow.Context) (bool, error) {
			ctx = local(ctx)
			err := workflow.ExecuteLocalActivity(ctx, record.RepairIdle, r.plan.Repair, over).Get(ctx, &r.state)
			return r.state != schema.RepairCordoned, err
		}
	}
	idle, err := r.await(ctx, r.plan.Timing.Idle, look(false))
	if err != nil || idle {
		return err
	}
	_, err = look(true)(ctx)
	return err
}

// drain waits until no job is left. Jobs were asked to stop when the evidence asked for that, and their own processes release
// them. A server whose agent is silent can't prove that they ended: then its power is cut, which proves it.
func (r *repairing) drain(ctx workflow.Context) error {
	var record *health.Activities
	for cut := false; ; {
		var d health.DrainState
		look := func(ctx workflow.Context) (bool, error) {
			ctx = local(ctx)
			err := workflow.ExecuteLocalActivity(ctx, record.RepairDrained, r.plan.Repair).Get(ctx, &d)
			return d.State != schema.RepairDraining, err
		}
		drained, err := look(ctx)
		if err == nil && !drained {
			limit := r.plan.Timing.Drain
			if d.Dead {
				limit = min(limit, r.plan.Timing.Silent)
			}
			drained, err = r.await(ctx, limit, look)
			if err == nil && !drained && (cut || d.Silent < r.plan.Timing.Silent) {
				err = r.callPerson(ctx, schema.FailDrainOverdue, fmt.Sprintf("jobs still hold accelerators of %s after %s: see its jobs, and `repair drain-now` where they are not to be waited for", r.plan.Name, schema.Setting(limit)))
				if err == nil {
					continue
				}
			}
		}
		if err != nil {
			return err
		}
		if drained {
			r.state = d.State
			return nil
		}
		if cut, err = r.cutPower(ctx); err != nil {
			return err
		}
	}
}

// reset tries what may cure the server without a technician, the mildest first. One that was carried out is followed by the proof.
func (r *repairing) reset(ctx workflow.Context) error {
	var record *health.Activities
	lctx := local(ctx)
	var next health.Reset
	if err := workflow.ExecuteLocalActivity(lctx, record.NextReset, r.plan.Repair, r.why).Get(lctx, &next); err != nil {
		return err
	}
	var how string
	var failure *schema.StepFailure
	var err error
	switch next.Cure {
	case schema.CureBurnIn:
		r.state = schema.RepairVerifying
		return nil
	case schema.CureTechnician, "":
		r.state = schema.RepairWaiting
		if r.why != "" {
			return r.callPerson(ctx, schema.FailHardware, fmt.Sprintf("%s was not cured by a reset: %s", r.plan.Name, r.why))
		}
		return nil
	case schema.CureDevice, schema.CureBaseboard:
		how, failure, err = r.resetDevices(ctx, next)
	case schema.CureReboot, schema.CurePower:
		how, failure, err = r.powerCycle(ctx, next.Cure)
	}
	if err != nil {
		return err
	}
	if failure != nil {
		how, r.why = failure.Text, failure.Text
	}
	if err := workflow.ExecuteLocalActivity(lctx, record.ResetTried, r.plan.Repair, next.Cure, failure == nil, how).Get(lctx, nil); err != nil {
		return err
	}
	if failure == nil {
		r.state = schema.RepairVerifying
	}
	return nil
}

// resetDevices asks the server's agent.
func (r *repairing) resetDevices(ctx workflow.Context, next health.Reset) (string, *schema.StepFailure, error) {
	if next.Silent {
		return "", &schema.StepFailure{Code: schema.FailAgent, Text: "its agent is not heard of: it can't reset a device"}, nil
	}
	ask := r.ask(schema.TaskReset, r.plan.Returns+1)
	ask.ID, ask.Only = ask.ID+"/"+string(next.Cure), next.Devices
	state, err := r.work(ctx, ask, r.plan.Timing.Reset)
	if err != nil {
		return "", nil, err
	}
	out := outcome(state)
	return out.Detail, out.Failure, nil
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

// powerCycle switches the server off and on, and waits for its agent. After a cold one it stays off for a while, so that nothing
// in it keeps its charge, and its state.
func (r *repairing) powerCycle(ctx workflow.Context, cure schema.Cure) (string, *schema.StepFailure, error) {
	var site *bmc.Activities
	var agent *node.Activities
	lctx := local(ctx)
	var before node.Heard
	if err := workflow.ExecuteLocalActivity(lctx, agent.AgentHeard, r.plan.Server).Get(lctx, &before); err != nil {
		return "", nil, err
	}
	for i, f := range []any{site.PowerOff, site.PowerOn} {
		if i > 0 && cure == schema.CurePower {
			if err := workflow.Sleep(ctx, r.plan.Timing.Off); err != nil {
				return "", nil, err
			}
		}
		at := atSite(ctx, r.plan.Site, r.plan.Timing.BMC)
		if err := workflow.ExecuteActivity(at, f, bmc.Act{Server: r.plan.Server}).Get(at, nil); err != nil {
			if ctx.Err() != nil {
				return "", nil, ctx.Err()
			}
			f := failureOf(err)
			f.Text = "the " + string(cure) + " that might have cured it failed: " + f.Text
			return "", &f, nil
		}
	}
	back, err := r.await(ctx, r.plan.Timing.AgentBack, func(ctx workflow.Context) (bool, error) {
		var now node.Heard
		ctx = local(ctx)
		err := workflow.ExecuteLocalActivity(ctx, agent.AgentHeard, r.plan.Server).Get(ctx, &now)
		return now.BootID != before.BootID, err
	})
	if err != nil {
		return "", nil, err
	}
	if !back {
		return "", &schema.StepFailure{Code: schema.FailAgent, Text: fmt.Sprintf("after a %s the agent of %s was not heard of within %s: look at its console", cure, r.plan.Name, schema.Setting(r.plan.Timing.AgentBack))}, nil
	}
	return "a " + string(cure) + " brought its agent back", nil, nil
}

// waitForTechnician has no end; each time that the agreed time has passed it calls a person. A server that is retired instead is
// waited for no longer: the record has closed the repair then.
func (r *repairing) waitForTechnician(ctx workflow.Context) error {
	began := workflow.Now(ctx)
	for {
		said, err := workflow.AwaitWithTimeout(ctx, r.plan.Timing.Technician, func() bool { return r.state != schema.RepairWaiting || r.retire && !r.said })
		if err != nil {
			return err
		}
		if r.state == schema.RepairWaiting && r.retire {
			var record *health.Activities
			lctx := local(ctx)
			r.retire = false
			err = workflow.ExecuteLocalActivity(lctx, record.RepairState, r.plan.Repair).Get(lctx, &r.state)
			said = r.state != schema.RepairWaiting
			if err == nil && !said {
				continue
			}
		}
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
	out, seen, err := r.verify(ctx, p)
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
	r.plan.Returns, r.why = p.Try, out.Failure.Text
	// A stronger reset may bring back a device that is not seen. One that is seen and fails its test is a technician's.
	if err := workflow.ExecuteLocalActivity(lctx, record.RepairUnproven, r.plan.Repair, out.Failure.Text, !seen).Get(lctx, &r.state); err != nil {
		return err
	}
	if p.Try >= returnsBeforeRMA && r.state == schema.RepairWaiting {
		return r.callPerson(ctx, schema.FailCouldNotFix, fmt.Sprintf("repair %s came back unproven %d times, the last: %s. Send the part back to its maker, or retire the server", r.plan.Repair, p.Try, out.Failure.Text))
	}
	return nil
}

// returnsBeforeRMA is after how many proofs that failed a person is asked for another way (facts on health: 3 returns).
const returnsBeforeRMA = 3

// verify is the proof itself: the power is on, what was ordered is there with the new part in it, what was touched passes in
// depth and every device in short. seen says that the devices were all read.
func (r *repairing) verify(ctx workflow.Context, p health.Proof) (out schema.StepOutcome, seen bool, err error) {
	var site *bmc.Activities
	var record *health.Activities
	at := atSite(ctx, r.plan.Site, r.plan.Timing.BMC)
	if err := workflow.ExecuteActivity(at, site.PowerOn, bmc.Act{Server: r.plan.Server}).Get(at, nil); err != nil {
		return schema.StepOutcome{}, false, err
	}
	look := r.ask(schema.TaskInventory, p.Try)
	look.NewSerial, look.OldSerial = p.NewSerial, p.OldSerial
	state, err := r.work(ctx, look, r.plan.Timing.AgentBack+r.plan.Timing.Inventory)
	if err != nil || state.Outcome.Failure != nil {
		return outcome(state), false, err
	}
	if len(p.Only) > 0 {
		deep := r.ask(schema.TaskBurnIn, p.Try)
		deep.ID, deep.Suite, deep.Only = deep.ID+"/touched", "standard", p.Only
		if out, _, err := r.burnIn(ctx, deep); err != nil || out.Failure != nil {
			return out, true, err
		}
	}
	out, test, err := r.burnIn(ctx, r.ask(schema.TaskBurnIn, p.Try))
	if err != nil || out.Failure != nil {
		return out, true, err
	}
	lctx := local(ctx)
	err = workflow.ExecuteLocalActivity(lctx, record.RepairReturn, r.plan.Repair, test).Get(lctx, &out)
	return out, true, err
}

// burnIn runs a burn-in, and one that was inconclusive once more. It returns the id of the run that counts.
func (r *repairing) burnIn(ctx workflow.Context, ask node.Ask) (schema.StepOutcome, string, error) {
	id := ask.ID
	for run := 1; ; run++ {
		ask.ID = fmt.Sprintf("%s/%d", id, run)
		state, err := r.work(ctx, ask, r.plan.Timing.BurnIn)
		if err != nil {
			return schema.StepOutcome{}, ask.ID, err
		}
		if state.Inconclusive && run == 1 {
			continue
		}
		return outcome(state), ask.ID, nil
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
	r.lit = on
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
		in := health.DoneInput{Repair: r.plan.Repair, OldSerial: v.OldSerial, NewSerial: v.NewSerial, Did: v.Did, Note: v.Note, By: v.By}
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
	case r.state == "" || r.state == schema.RepairCordoned || r.state == schema.RepairDraining:
		return refuse(schema.Conflict("jobs are still being taken off the server", verb+" is taken once the repair waits for the technician"))
	case r.state == schema.RepairResetting:
		return refuse(schema.Conflict("a reset that may cure the server is being tried", verb+" is taken once the repair waits for the technician"))
	case r.state == schema.RepairVerifying:
		return refuse(schema.Conflict("the repair was reported done already and is being proven", "it comes back, with the reason, if the proof fails"))
	}
	return refuse(schema.Conflict("the repair is "+string(r.state), "there is nothing left to do"))
}
