package workflows_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/workflow"

	"gpupool/activities/health"
	"gpupool/activities/temporalerr"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/workflows"
)

func (e *env) repair(t *testing.T, r schema.Repair) {
	t.Helper()
	e.runs = true
	e.ExecuteWorkflow(workflows.RepairServer, workflows.RepairInput{Repair: r.ID})
	if !e.IsWorkflowCompleted() {
		t.Fatal("the repair did not end")
	}
}

func (e *env) repairNow(t testing.TB, id string) schema.Repair {
	t.Helper()
	r, err := e.db.Repair(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestAFailedAcceleratorIsDrainedReplacedProvenAndReturned(t *testing.T) {
	t.Parallel()
	andWithLostAnswers(t, drainedReplacedProvenAndReturned)
}

func drainedReplacedProvenAndReturned(t *testing.T, with ...interceptor.WorkerInterceptor) {
	e := newEnv(t, with...)
	e.inPool(t)
	job := e.runJob(t)
	r := e.fail(t)
	if r.Part != "accelerator SXM3" || !strings.HasSuffix(r.Location, "r1 / U4 / r1s1 / SXM3") || r.OldSerial != "GPU-3" {
		t.Fatalf("the ticket names part %q, location %q, serial %q", r.Part, r.Location, r.OldSerial)
	}
	early := e.say(time.Minute, workflows.UpdateDone, workflows.Done{NewSerial: "GPU-9", By: "tom"}) // the job is still there
	e.at(2*time.Minute, func() { e.endJob(t, job) })
	e.at(3*time.Minute, func() {
		if v := e.now(t); v.Phase != schema.PhaseRepairing || e.repairNow(t, r.ID).State != schema.RepairWaiting {
			t.Errorf("after the drain the server is %s", v.Phase)
		}
		if sys := e.bmc.Resource(e.bmc.SystemPath()); sys["IndicatorLED"] != "Blinking" {
			t.Errorf("the light is %v", sys["IndicatorLED"])
		}
	})
	wrong := e.say(4*time.Minute, workflows.UpdateDone, workflows.Done{OldSerial: "GPU-1", NewSerial: "GPU-9", By: "tom"})
	same := e.say(5*time.Minute, workflows.UpdateDone, workflows.Done{NewSerial: "GPU-3", By: "tom"})
	neighbour := e.say(5*time.Minute+30*time.Second, workflows.UpdateDone, workflows.Done{NewSerial: "GPU-4", By: "tom"})
	e.at(6*time.Minute, func() { e.swap("SXM3", "GPU-9") })
	done := e.say(7*time.Minute, workflows.UpdateDone, workflows.Done{OldSerial: "GPU-3", NewSerial: "GPU-9", Note: "reseated and swapped", By: "tom"})
	e.repair(t, r)
	if err := e.GetWorkflowError(); err != nil {
		t.Fatal(err)
	}
	if !schema.Is(temporalerr.Unwrap(early.rejected), schema.CodeConflict) {
		t.Errorf("a word before the drain was answered %v, want a conflict", early.rejected)
	}
	for name, v := range map[string]*verb{"another part's serial": wrong, "the failed part's own serial as the new one": same, "the serial of the part beside it": neighbour} {
		if !schema.Is(temporalerr.Unwrap(v.err), schema.CodeInvalid) {
			t.Errorf("%s was answered %v, want invalid", name, v.err)
		}
	}
	if !done.done || done.err != nil {
		t.Fatalf("done was answered %+v", done)
	}
	got := e.repairNow(t, r.ID)
	if got.State != schema.RepairReturned || got.NewSerial != "GPU-9" || got.DoneBy != "tom" || got.Returns != 0 {
		t.Fatalf("the repair is %+v", got)
	}
	if v := e.now(t); v.Phase != schema.PhaseAvailable {
		t.Fatalf("the server is %s", v.Phase)
	}
	cordons, err := e.db.Cordons(t.Context(), e.server.ID)
	if err != nil || len(cordons) != 0 {
		t.Fatalf("cordons are left: %+v %v", cordons, err)
	}
	all, err := e.db.Accelerators(t.Context(), store.AcceleratorFilter{Server: e.server.ID})
	if err != nil || len(all) != 8 {
		t.Fatalf("%d accelerators are in, %v", len(all), err)
	}
	for _, a := range all {
		if a.Health != schema.HealthHealthy || a.Serial == "GPU-3" || a.InstalledAt == 0 {
			t.Errorf("%s %s is %s", a.Slot, a.Serial, a.Health)
		}
	}
	if sys := e.bmc.Resource(e.bmc.SystemPath()); sys["IndicatorLED"] == "Blinking" {
		t.Error("the light still blinks")
	}
}

func TestWhatIsNotProvenGoesBackToTheTechnicianWithTheReason(t *testing.T) {
	t.Parallel()
	burnIn := func(e *env, res agentproto.BurnInResult) func(agentproto.Task) *agentproto.TaskReport {
		return func(task agentproto.Task) *agentproto.TaskReport {
			if task.Kind != schema.TaskBurnIn {
				return e.goodAnswer(task)
			}
			return &agentproto.TaskReport{State: schema.TaskDone, Result: marshal(res), NoneLeft: true}
		}
	}
	cases := map[string]struct {
		broken func(*env)
		done   workflows.Done
		words  string
	}{
		"the new serial is not seen": {func(*env) {}, workflows.Done{NewSerial: "GPU-9", By: "tom"}, "the new part GPU-9 is not seen"},
		"the wrong part was replaced": {func(e *env) { e.swap("SXM4", "GPU-9") }, workflows.Done{NewSerial: "GPU-9", By: "tom"},
			"the failed part GPU-3 is still in"},
		"a device is missing": {func(e *env) { e.mu.Lock(); e.devices = e.devices[:7]; e.mu.Unlock() }, workflows.Done{By: "tom"}, "missing: SXM8"},
		"the burn-in fails": {func(e *env) {
			e.answer = burnIn(e, agentproto.BurnInResult{Outcome: "failed", Failed: []agentproto.BurnInFailure{{Device: "GPU-3", Slot: "SXM3", Test: "link", Text: "lane down"}}})
		}, workflows.Done{By: "tom"}, "SXM3 (GPU-3) failed link"},
		"the burn-in proves nothing": {func(e *env) {
			e.answer = burnIn(e, agentproto.BurnInResult{Outcome: "inconclusive", Tests: []string{"memory"}})
		}, workflows.Done{By: "tom"}, "proved nothing"},
		"the agent is not heard of": {func(e *env) { e.hung = true }, workflows.Done{By: "tom"}, "did not take it"},
		"a fault comes during the proof": {func(e *env) {
			e.answer = func(task agentproto.Task) *agentproto.TaskReport {
				if task.Kind == schema.TaskBurnIn {
					e.beat(e.t.Context(), agentproto.Evidence{Device: "GPU-5", Kind: "xid", Code: "48", Severity: schema.SeverityCritical, Text: "double bit", At: e.db.Now(), ID: "boot-1/kmsg/" + task.ID})
				}
				return e.goodAnswer(task)
			}
		}, workflows.Done{By: "tom"}, "a fault came since the repair: double bit"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.inPool(t)
			r := e.fail(t)
			e.at(time.Minute, func() { c.broken(e) })
			first := e.say(2*time.Minute, workflows.UpdateDone, c.done)
			e.at(48*time.Hour, func() {
				got := e.repairNow(t, r.ID)
				if got.State != schema.RepairWaiting || got.Returns != 1 || !strings.Contains(got.WaitingWhy, c.words) {
					t.Errorf("the repair is %s, returned %d times: %s; want it waiting because %q", got.State, got.Returns, got.WaitingWhy, c.words)
				}
				if v := e.now(t); v.Phase != schema.PhaseRepairing {
					t.Errorf("the server is %s", v.Phase)
				}
				e.mu.Lock()
				defer e.mu.Unlock()
				e.hung, e.answer = false, nil
				e.devices = newDevices()
			})
			second := e.say(50*time.Hour, workflows.UpdateDone, workflows.Done{By: "tom", Note: "again"})
			e.repair(t, r)
			if first.err != nil || first.rejected != nil || second.err != nil || second.rejected != nil {
				t.Fatalf("the technician's words: %+v %+v", first, second)
			}
			if v := e.now(t); v.Phase != schema.PhaseAvailable {
				t.Fatalf("after the second repair the server is %s: %+v", v.Phase, e.repairNow(t, r.ID))
			}
		})
	}
}

func TestASecondWordWhileTheFirstIsBeingProvenIsRefused(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.inPool(t)
	r := e.fail(t)
	e.answer = func(task agentproto.Task) *agentproto.TaskReport {
		if task.Kind == schema.TaskBurnIn && !task.Stop {
			return nil // still testing
		}
		return e.goodAnswer(task)
	}
	e.say(time.Minute, workflows.UpdateDone, workflows.Done{By: "tom"})
	twice := e.say(2*time.Minute, workflows.UpdateDone, workflows.Done{By: "tom"})
	e.at(3*time.Minute, e.CancelWorkflow)
	e.repair(t, r)
	if !schema.Is(temporalerr.Unwrap(twice.rejected), schema.CodeConflict) {
		t.Fatalf("the second word was answered %+v, want a conflict", twice)
	}
	if v := e.now(t); v.Phase != schema.PhaseRepairing {
		t.Fatalf("the server is %s", v.Phase)
	}
}

func TestASilentServerIsPowerCycledBeforeATechnicianWalks(t *testing.T) {
	t.Parallel()
	andWithLostAnswers(t, silentServerIsPowerCycled)
}

func silentServerIsPowerCycled(t *testing.T, with ...interceptor.WorkerInterceptor) {
	e := newEnv(t, with...)
	e.inPool(t)
	must(t, e.db.ReportFault(t.Context(), e.server.ID, schema.Fault{Source: "platform", Kind: "agent-silent", Severity: schema.SeverityCritical, At: e.db.Now(), Text: "silent", Dedupe: "silent/1"}))
	r := e.judged(t)
	e.repair(t, r)
	if err := e.GetWorkflowError(); err != nil {
		t.Fatal(err)
	}
	got := e.repairNow(t, r.ID)
	if got.State != schema.RepairReturned || got.DoneBy != "gpupool" || e.now(t).Phase != schema.PhaseAvailable {
		t.Fatalf("the repair is %s by %s, the server %s", got.State, got.DoneBy, e.now(t).Phase)
	}
	if e.starts != 2 || e.installs != 0 {
		t.Fatalf("it was started %d times and installed %d times", e.starts, e.installs)
	}
}

func TestTheJobsOfADeadServerAreFreedByCuttingItsPower(t *testing.T) {
	t.Parallel()
	andWithLostAnswers(t, jobsOfADeadServerAreFreed)
}

func jobsOfADeadServerAreFreed(t *testing.T, with ...interceptor.WorkerInterceptor) {
	e := newEnv(t, with...)
	e.inPool(t)
	job := e.runJob(t)
	e.hung, e.agentUp = true, false
	must(t, e.db.ReportFault(t.Context(), e.server.ID, schema.Fault{Source: "platform", Kind: "agent-silent", Severity: schema.SeverityCritical, At: e.db.Now(), Text: "silent", Dedupe: "silent/1"}))
	r := e.judged(t)
	e.at(time.Hour, func() { // its process sees that no process is left
		tasks, err := e.db.JobTasks(t.Context(), job.ID, 1)
		if err != nil || len(tasks) != 1 || !tasks[0].State.Ended() || !tasks[0].NoneLeft {
			t.Errorf("the job's task: %+v %v", tasks, err)
		}
		e.endJob(t, job)
	})
	e.say(30*time.Hour, workflows.UpdateCouldNotFix, workflows.CouldNotFix{By: "tom", Note: "the board is dead"})
	e.at(31*time.Hour, func() {
		v := e.now(t)
		if v.FailureCode != string(schema.FailCouldNotFix) || !strings.Contains(v.FailureText, "the board is dead") || v.Phase != schema.PhaseRepairing {
			t.Errorf("the server is %s, failure %q: %s", v.Phase, v.FailureCode, v.FailureText)
		}
		e.CancelWorkflow()
	})
	e.repair(t, r)
}

func TestARepairThatWaitsTooLongCallsAPersonOnceEachTime(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.inPool(t)
	r := e.fail(t)
	e.at(60*time.Hour, e.CancelWorkflow)
	e.repair(t, r)
	events, _, err := e.db.Events(t.Context(), 0, 10000, store.EventFilter{Kinds: []schema.EventKind{schema.EventServerFailure}, Server: e.server.ID})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, ev := range events {
		if strings.Contains(string(ev.Data), string(schema.FailRepairOverdue)) {
			n++
		}
	}
	if n != 2 {
		t.Fatalf("a person was called %d times in 60 hours, want 2", n)
	}
}

func TestAFaultDuringARepairIsMoreEvidenceForItNotASecondOne(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.inPool(t)
	r := e.fail(t)
	e.at(time.Minute, func() {
		e.beat(t.Context(), agentproto.Evidence{Device: "GPU-4", Kind: "xid", Code: "79", Severity: schema.SeverityCritical, Text: "another", At: e.db.Now(), ID: "boot-1/kmsg/2"})
		if again := e.judged(t); again.ID != r.ID {
			t.Errorf("a second repair %s was opened", again.ID)
		}
		e.SignalWorkflow(workflows.SignalRepairOpened, workflows.RepairOpened{Repair: r.ID})
	})
	e.say(2*time.Minute, workflows.UpdateDone, workflows.Done{By: "tom"})
	e.repair(t, r)
	if v := e.now(t); v.Phase != schema.PhaseAvailable {
		t.Fatalf("the server is %s", v.Phase)
	}
	// The same evidence again, as after a restart of the agent, is the same fault: it opens nothing.
	e.beat(t.Context(), agentproto.Evidence{Device: "GPU-3", Kind: "xid", Code: "64", Severity: schema.SeverityCritical, Text: "row remapper: no spare is left", At: e.db.Now(), ID: "boot-1/kmsg/1"})
	faults, err := e.db.Faults(t.Context(), e.server.ID)
	must(t, err)
	for _, f := range faults {
		must(t, health.Judge(t.Context(), e.db, f.ID))
	}
	if _, open, err := e.db.OpenRepair(t.Context(), e.server.ID); err != nil || open || len(faults) != 2 {
		t.Fatalf("a replayed event opened a repair (%v) or a fault (%d): %v", open, len(faults), err)
	}
}

func TestAnOnboardingThatEndsGoesOnAsTheRepairThatWasOpenedMeanwhile(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.onceIn = func() { e.fail(t) } // between the phase's change and the process's end
	e.onboard(t)
	var next *workflow.ContinueAsNewError
	if err := e.GetWorkflowError(); !errors.As(err, &next) || next.WorkflowType.Name != "RepairServer" {
		t.Fatalf("the onboarding ended with %v, want it to go on as RepairServer", err)
	}
}
