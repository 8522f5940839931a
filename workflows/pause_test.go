package workflows_test

import (
	"strings"
	"testing"
	"time"

	"gpupool/activities/temporalerr"
	lab "gpupool/deploy/lab/bmc"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/workflows"
)

// refusedAs fails the test unless the verb was refused with the code.
func refusedAs(t *testing.T, what string, v *verb, code schema.ErrorCode) {
	t.Helper()
	err := v.rejected
	if err == nil {
		err = v.err
	}
	if !schema.Is(temporalerr.Unwrap(err), code) {
		t.Errorf("%s was answered %+v, want %s", what, v, code)
	}
}

// TestADifferenceIsAcceptedForItsSerialAndAnyOtherStopsItAgain: a server that lacks a DIMM and a device is taken as it is, in two
// words, since two witnesses tell of it; what it lacks is not asked of it any more, and no more than that.
func TestADifferenceIsAcceptedForItsSerialAndAnyOtherStopsItAgain(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	must(t, e.bmc.Patch(e.bmc.SystemPath(), map[string]any{"MemorySummary": map[string]any{"TotalSystemMemoryGiB": 1920}}))
	e.devices = append(e.devices[:4:4], e.devices[5:]...)
	mute := e.say(time.Hour, workflows.UpdateAccept, workflows.Accept{By: "ann"})
	blind := e.say(2*time.Hour, workflows.UpdateAccept, workflows.Accept{By: "ann", Reason: "fine", Differences: []string{"dif_other"}})
	e.at(3*time.Hour, func() {
		if v := e.now(t); v.Step != schema.StepInspect || v.FailureCode != string(schema.FailHardware) || !strings.Contains(v.FailureText, "1920 GiB of the 2048 GiB") {
			t.Errorf("at %s: %s", v.Step, v.FailureText)
		}
	})
	first := e.sayAtOnce(4*time.Hour, 3, workflows.UpdateAccept, workflows.Accept{By: "ann", Reason: "DIMM on order"})
	e.at(10*time.Hour, func() {
		if v := e.now(t); v.Step != schema.StepBurnIn || !strings.Contains(v.FailureText, "missing: SXM5") {
			t.Errorf("at %s: %s", v.Step, v.FailureText)
		}
	})
	e.say(11*time.Hour, workflows.UpdateAccept, workflows.Accept{By: "bob", Reason: "seven are enough"})
	e.onboard(t)
	refusedAs(t, "an accept without a reason", mute, schema.CodeInvalid)
	refusedAs(t, "an accept of what does not stand there", blind, schema.CodeConflict)
	oneTaken(t, "accept", first)
	v := e.now(t)
	if v.Phase != schema.PhaseAvailable || e.installs != 1 {
		t.Fatalf("the server is %s after %d installs: %s", v.Phase, e.installs, v.FailureText)
	}
	if d := e.stepOf(t, schema.StepInspect).Detail; !strings.Contains(d, "accepted by ann") || !strings.Contains(d, "DIMM on order") {
		t.Errorf("inspect says %q", d)
	}
	if n, err := e.db.Expected(t.Context(), v); err != nil || n != 7 {
		t.Errorf("it is to have %d accelerators, %v", n, err)
	}
	all, err := e.db.Differences(t.Context(), v.ID)
	must(t, err)
	for _, d := range all {
		if d.AcceptedAt == 0 || d.Serial != "SN-1" || d.AcceptedBy == "" || !d.There {
			t.Errorf("a difference is %+v", d)
		}
	}
	if len(all) != 2 {
		t.Errorf("%d differences, want 2", len(all))
	}

	// It comes again: what was accepted stops it no more, anything else does.
	v, err = e.db.BeginReinstall(t.Context(), v.ID, "", "again", "ann")
	must(t, err)
	same := schema.Difference{Item: all[0].Item, Ordered: all[0].Ordered, Found: all[0].Found, Missing: all[0].Missing, Words: all[0].Words}
	other := same
	other.Found = "6; missing: SXM1, SXM5"
	open, accepted, err := e.db.WeighDifferences(t.Context(), v.ID, v.Attempt, all[0].Step, []schema.Difference{same})
	if err != nil || len(open) != 0 || len(accepted) != 1 || accepted[0].AcceptedBy != all[0].AcceptedBy {
		t.Fatalf("what was accepted is weighed as %+v %+v, %v", open, accepted, err)
	}
	open, _, err = e.db.WeighDifferences(t.Context(), v.ID, v.Attempt, all[0].Step, []schema.Difference{other})
	if err != nil || len(open) != 1 {
		t.Fatalf("another difference is weighed as %+v, %v", open, err)
	}
}

// TestOnlyADifferenceIsAcceptedNeverAFault: a device that can't be read, another machine, a device that fails its burn-in.
func TestOnlyADifferenceIsAcceptedNeverAFault(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*env){
		"unreadable":      func(e *env) { e.devices[3].Error = "lost" },
		"nothing there":   func(e *env) { e.devices = nil },
		"another machine": func(e *env) { serialIs("SN-OTHER")(e) },
		"fails a test": func(e *env) {
			answers(schema.TaskBurnIn, ended(agentproto.BurnInResult{Outcome: "failed", Tests: []string{"memory"}, Devices: allSerials, Failed: []agentproto.BurnInFailure{{Device: "GPU-3", Slot: "SXM3", Test: "memory", Text: "bad"}}}))(e)
		},
		"the BMC is away": func(e *env) { atBMC(lab.Fault{Drop: true})(e) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			set(e)
			word := e.say(stopsWithin, workflows.UpdateAccept, workflows.Accept{By: "ann", Reason: "hurry"})
			e.at(stopsWithin+time.Hour, func() { healed(e) })
			e.say(stopsWithin+2*time.Hour, workflows.UpdateAbort, workflows.Abort{By: "ann", Reason: "enough"})
			e.onboard(t)
			refusedAs(t, "an accept", word, schema.CodeConflict)
			if v := e.now(t); v.Phase != schema.PhaseEnrolled {
				t.Errorf("it is %s", v.Phase)
			}
		})
	}
}

// TestAPausedOnboardingStandsBeforeItsStepUntilItIsToldToGoOn: the step before is done first, nothing of the next begins, and
// neither another pause nor a reinstall is taken meanwhile.
func TestAPausedOnboardingStandsBeforeItsStepUntilItIsToldToGoOn(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]schema.Step{"the one named": schema.StepRuntime, "the next": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.dead = true // so that it stops at provision for a while
			mute := e.say(2*time.Hour, workflows.UpdatePause, workflows.Pause{By: "ann"})
			odd := e.say(2*time.Hour+time.Minute, workflows.UpdatePause, workflows.Pause{By: "ann", Reason: "r", Before: "paint"})
			behind := e.say(3*time.Hour, workflows.UpdatePause, workflows.Pause{By: "ann", Reason: "r", Before: schema.StepInspect})
			early := e.say(4*time.Hour, workflows.UpdateContinue, workflows.Continue{By: "ann"})
			pause := e.say(5*time.Hour, workflows.UpdatePause, workflows.Pause{By: "ann", Reason: "cables come on Monday", Before: before})
			again := e.say(6*time.Hour, workflows.UpdatePause, workflows.Pause{By: "bob", Reason: "me too"})
			e.at(6*time.Hour+time.Minute, func() { healed(e) })
			e.say(7*time.Hour, workflows.UpdateRetry, workflows.Retry{By: "ann"})
			e.at(30*time.Hour, func() {
				v := e.now(t)
				if v.Phase != schema.PhaseOnboarding || v.Pause.HeldAt == 0 || v.Pause.By != "ann" || v.Pause.Reason != "cables come on Monday" {
					t.Errorf("it is %s at %s, paused as %+v", v.Phase, v.Step, v.Pause)
				}
				if before != "" && e.stepOf(t, before).State != "" {
					t.Errorf("step %s has begun", before)
				}
				if before == "" && e.installs != 0 {
					t.Error("it was installed while it was to stand")
				}
				if _, err := e.db.BeginReinstall(t.Context(), v.ID, "", "r", "ann"); !schema.Is(err, schema.CodeConflict) {
					t.Errorf("a reinstall of a paused server: %v", err)
				}
			})
			on := e.sayAtOnce(31*time.Hour, 3, workflows.UpdateContinue, workflows.Continue{By: "bob"})
			e.onboard(t)
			refusedAs(t, "a pause without a reason", mute, schema.CodeInvalid)
			refusedAs(t, "a pause before a step that is none", odd, schema.CodeInvalid)
			refusedAs(t, "a pause before a step that is behind", behind, schema.CodeConflict)
			refusedAs(t, "a continue of what is not paused", early, schema.CodeConflict)
			refusedAs(t, "a second pause", again, schema.CodeConflict)
			oneTaken(t, "continue", on)
			if !pause.done || pause.err != nil {
				t.Fatalf("the pause: %+v", pause)
			}
			if v := e.now(t); v.Phase != schema.PhaseAvailable || v.Pause.At != 0 || e.installs != 1 {
				t.Fatalf("the server is %s, paused %+v, after %d installs: %s", v.Phase, v.Pause, e.installs, v.FailureText)
			}
		})
	}
}

func TestAPausedOnboardingIsAbortedAndUndone(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"abort", "cancel"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.dead = true
			e.say(2*time.Hour, workflows.UpdatePause, workflows.Pause{By: "ann", Reason: "wait", Before: schema.StepDrivers})
			e.at(3*time.Hour, func() { healed(e) })
			e.say(4*time.Hour, workflows.UpdateRetry, workflows.Retry{By: "ann"})
			e.at(9*time.Hour, func() {
				if v := e.now(t); v.Pause.HeldAt == 0 {
					t.Errorf("it is not held: %s at %s", v.Phase, v.Step)
				}
			})
			if end == "abort" {
				e.say(10*time.Hour, workflows.UpdateAbort, workflows.Abort{By: "ann", Reason: "not this one"})
			} else {
				e.at(10*time.Hour, e.CancelWorkflow)
			}
			e.onboard(t)
			v := e.now(t)
			_, armed, err := e.db.Armed(t.Context(), v.ID)
			if v.Phase != schema.PhaseEnrolled || v.Pause.At != 0 || armed || err != nil {
				t.Fatalf("it is %s, paused %+v, armed %v, %v", v.Phase, v.Pause, armed, err)
			}
		})
	}
}

// TestAPauseOutlivesItsProcess: one that was terminated goes on where it was, and stands where it was to stand.
func TestAPauseOutlivesItsProcess(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	v, err := e.db.BeginOnboarding(t.Context(), e.server.ID, "ann")
	must(t, err)
	must(t, e.db.PauseOnboarding(t.Context(), v.ID, v.Attempt, schema.Pause{Before: schema.StepInspect, By: "ann", Reason: "wait"}))
	e.at(5*time.Hour, func() {
		if v := e.now(t); v.Pause.HeldAt == 0 || e.stepOf(t, schema.StepInspect).State != "" {
			t.Errorf("it is not held before inspect: %+v", v.Pause)
		}
	})
	e.say(6*time.Hour, workflows.UpdateContinue, workflows.Continue{By: "ann"})
	e.ExecuteWorkflow(workflows.OnboardServer, workflows.OnboardInput{Server: e.server.ID, By: "ann", Attempt: v.Attempt})
	if v := e.now(t); v.Phase != schema.PhaseAvailable {
		t.Fatalf("the server is %s: %s", v.Phase, v.FailureText)
	}
}
