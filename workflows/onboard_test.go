package workflows_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"go.temporal.io/sdk/interceptor"

	"gpupool/activities/temporalerr"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/workflows"
)

func (e *env) onboard(t *testing.T) {
	t.Helper()
	e.ExecuteWorkflow(workflows.OnboardServer, workflows.OnboardInput{Server: e.server.ID, By: "ann"})
	if !e.IsWorkflowCompleted() {
		t.Fatal("the onboarding did not end")
	}
}

func TestAGoodServerGoesThroughEveryStepIntoThePool(t *testing.T) {
	t.Parallel()
	andWithLostAnswers(t, everyStepIntoThePool)
}

func everyStepIntoThePool(t *testing.T, with ...interceptor.WorkerInterceptor) {
	e := newEnv(t, with...)
	e.onboard(t)
	if err := e.GetWorkflowError(); err != nil {
		t.Fatal(err)
	}
	v := e.now(t)
	if v.Phase != schema.PhaseAvailable || v.Step != "" || v.FailureCode != "" {
		t.Fatalf("the server is %s at step %q with failure %q, want available", v.Phase, v.Step, v.FailureCode)
	}
	for _, s := range schema.Steps {
		if r := e.stepOf(t, s); r.State != schema.StepDone || r.Try != 1 && s != schema.StepRegister {
			t.Errorf("step %s is %q after %d tries", s, r.State, r.Try)
		}
	}
	if e.installs != 1 {
		t.Fatalf("it was installed %d times", e.installs)
	}
	if _, armed, err := e.db.Armed(t.Context(), v.ID); err != nil || armed {
		t.Fatalf("still armed: %v, %v", armed, err)
	}
	for _, r := range e.bmc.Requests() {
		if r.Status >= 400 && r.Status != 401 {
			t.Errorf("the BMC refused %s %s: %d", r.Method, r.Path, r.Status)
		}
	}
}

func TestABMCOfAnotherServerStopsBeforeAnythingIsChanged(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	must(t, e.bmc.Patch(e.bmc.SystemPath(), map[string]any{"SerialNumber": "SN-OTHER"}))
	e.say(time.Hour, workflows.UpdateAbort, workflows.Abort{By: "ann", Reason: "wrong cable"})
	e.at(30*time.Minute, func() {
		v := e.now(t)
		if v.FailureCode != string(schema.FailIdentity) || !strings.Contains(v.FailureText, "SN-OTHER") || !strings.Contains(v.FailureText, "SN-1") {
			t.Errorf("failure %q: %q names not both serials", v.FailureCode, v.FailureText)
		}
	})
	e.onboard(t)
	if v := e.now(t); v.Phase != schema.PhaseEnrolled || v.FailureCode != "" {
		t.Fatalf("after the abort the server is %s, failure %q", v.Phase, v.FailureCode)
	}
	for _, r := range e.bmc.Requests() {
		if strings.Contains(r.Path, "Actions/ComputerSystem.Reset") {
			t.Fatalf("the power of a server that was not identified was touched: %s %s", r.Method, r.Path)
		}
	}
}

func TestAServerThatDoesNotBootIsDiagnosedAndRetried(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.dead = true
	e.evidence = []schema.BootEvidence{{Kind: "dhcp-discover", MAC: e.server.MACs, Attempt: 1, Result: "ok"}}
	e.at(2*time.Hour, func() {
		v := e.now(t)
		if v.FailureCode != string(schema.FailNoBoot) || v.Step != schema.StepProvision {
			t.Errorf("failure %q at %s", v.FailureCode, v.Step)
		}
		for _, words := range []string{"Proven: the server asked for an address", "Not proven: that an answer reached it", "another DHCP server", "power on"} {
			if !strings.Contains(v.FailureText, words) {
				t.Errorf("the failure does not say %q: %s", words, v.FailureText)
			}
		}
		e.mu.Lock()
		e.dead, e.evidence = false, nil
		e.mu.Unlock()
	})
	early := e.say(10*time.Minute, workflows.UpdateRetry, workflows.Retry{By: "ann"}) // while it still waits
	retry := e.say(3*time.Hour, workflows.UpdateRetry, workflows.Retry{By: "ann"})
	e.onboard(t)
	if early.rejected == nil || !schema.Is(temporalerr.Unwrap(early.rejected), schema.CodeConflict) {
		t.Fatalf("a retry of a step that runs was answered %v, want a conflict", early.rejected)
	}
	if !retry.done || retry.err != nil {
		t.Fatalf("the retry: %+v", retry)
	}
	if v := e.now(t); v.Phase != schema.PhaseAvailable {
		t.Fatalf("the server is %s: %s", v.Phase, v.FailureText)
	}
	if r := e.stepOf(t, schema.StepProvision); r.Try != 2 || e.installs != 1 {
		t.Fatalf("provision has %d tries and %d installs, want 2 and 1", r.Try, e.installs)
	}
}

func TestAPhoneHomeThatComesAfterTheTimeoutIsTakenByTheRetryWithoutAnotherInstall(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.hung = true // installed, and its agent says nothing
	e.at(40*time.Minute, func() {
		e.mu.Lock()
		e.hung = false
		e.mu.Unlock()
		token, err := e.boots.Mint(t.Context(), e.server.ID, 1, schema.PurposePhoneHome)
		must(t, err)
		must(t, e.phoneHome(t.Context(), token, 1))
	})
	e.say(50*time.Minute, workflows.UpdateRetry, workflows.Retry{By: "ann"})
	e.onboard(t)
	if v := e.now(t); v.Phase != schema.PhaseAvailable || e.installs != 1 {
		t.Fatalf("the server is %s after %d installs: %s", v.Phase, e.installs, v.FailureText)
	}
}

func TestBurnInHasThreeOutcomesAndOnlyPassedOpensTheGate(t *testing.T) {
	t.Parallel()
	burnIn := func(res agentproto.BurnInResult, state schema.TaskState) *agentproto.TaskReport {
		return &agentproto.TaskReport{State: state, Result: marshal(res), NoneLeft: true, Text: "as told"}
	}
	all := []string{"GPU-1", "GPU-2", "GPU-3", "GPU-4", "GPU-5", "GPU-6", "GPU-7", "GPU-8"}
	cases := map[string]struct {
		answer func(run int) *agentproto.TaskReport
		code   schema.FailureCode
		words  []string
		runs   int
	}{
		"a device that fails a test is named with the test": {func(int) *agentproto.TaskReport {
			return burnIn(agentproto.BurnInResult{Outcome: "failed", Failed: []agentproto.BurnInFailure{{Device: "GPU-3", Slot: "SXM3", Test: "memory", Text: "bad pattern"}}, Tests: []string{"memory"}, Devices: all}, schema.TaskDone)
		}, schema.FailBurnIn, []string{"SXM3", "GPU-3", "memory"}, 1},
		"a result that was cut off is inconclusive, run once more, then stopped": {func(int) *agentproto.TaskReport {
			return &agentproto.TaskReport{State: schema.TaskDone, Result: json.RawMessage(`"{\"outcome\":\"pas"`)}
		}, schema.FailInconclusive, []string{"can't be read"}, 2},
		"skipped tests are inconclusive": {func(int) *agentproto.TaskReport {
			return burnIn(agentproto.BurnInResult{Outcome: "passed", Devices: all}, schema.TaskDone)
		}, schema.FailInconclusive, []string{"no test was run"}, 2},
		"an agent that reports done without an outcome has not passed": {func(int) *agentproto.TaskReport {
			return burnIn(agentproto.BurnInResult{Tests: []string{"memory"}, Devices: all}, schema.TaskDone)
		}, schema.FailInconclusive, nil, 2},
		"a tool that is missing is inconclusive": {func(int) *agentproto.TaskReport {
			return burnIn(agentproto.BurnInResult{Outcome: "inconclusive", Tests: []string{"memory"}, Devices: all}, schema.TaskFailed)
		}, schema.FailInconclusive, nil, 2},
		"seven of eight that pass are a missing device": {func(int) *agentproto.TaskReport {
			return burnIn(agentproto.BurnInResult{Outcome: "passed", Tests: []string{"memory"}, Devices: all[:7]}, schema.TaskDone)
		}, schema.FailHardware, []string{"7 of the 8"}, 1},
		"a device counted twice does not stand for another": {func(int) *agentproto.TaskReport {
			return burnIn(agentproto.BurnInResult{Outcome: "passed", Tests: []string{"memory"}, Devices: append(all[:7:7], "GPU-1")}, schema.TaskDone)
		}, schema.FailHardware, []string{"7 of the 8"}, 1},
		"one inconclusive run is made up for by one that passes": {func(run int) *agentproto.TaskReport {
			if run == 1 {
				return burnIn(agentproto.BurnInResult{Outcome: "inconclusive", Devices: all}, schema.TaskDone)
			}
			return burnIn(agentproto.BurnInResult{Outcome: "passed", Tests: []string{"memory"}, Devices: all}, schema.TaskDone)
		}, "", nil, 2},
		"a burn-in that hangs ends with its time": {func(int) *agentproto.TaskReport { return nil }, schema.FailInconclusive, []string{"did not end it"}, 2},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			runs := 0
			e.answer = func(task agentproto.Task) *agentproto.TaskReport {
				if task.Stop {
					return &agentproto.TaskReport{State: schema.TaskCancelled, NoneLeft: true}
				}
				if task.Kind != schema.TaskBurnIn {
					return e.goodAnswer(task)
				}
				runs++
				return c.answer(runs)
			}
			if c.code != "" {
				e.at(30*time.Hour, func() {
					v := e.now(t)
					if v.FailureCode != string(c.code) || v.Step != schema.StepBurnIn || v.Phase != schema.PhaseOnboarding {
						t.Errorf("%s at %s, failure %q: %s; want %s", v.Phase, v.Step, v.FailureCode, v.FailureText, c.code)
					}
					for _, words := range c.words {
						if !strings.Contains(v.FailureText, words) {
							t.Errorf("the failure does not say %q: %s", words, v.FailureText)
						}
					}
				})
				e.say(31*time.Hour, workflows.UpdateAbort, workflows.Abort{By: "ann", Reason: "not let in"})
			}
			e.onboard(t)
			want := schema.PhaseEnrolled
			if c.code == "" {
				want = schema.PhaseAvailable
			}
			if v := e.now(t); v.Phase != want || runs != c.runs {
				t.Fatalf("the server is %s after %d burn-ins, want %s after %d: %s", v.Phase, runs, want, c.runs, v.FailureText)
			}
		})
	}
}

func TestAMissingDeviceIsNamedByItsSlotBeforeBurnIn(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.devices = append(e.devices[:4:4], e.devices[5:]...) // SXM5 is not there
	burnt := false
	e.answer = func(task agentproto.Task) *agentproto.TaskReport {
		burnt = burnt || task.Kind == schema.TaskBurnIn
		return e.goodAnswer(task)
	}
	e.at(10*time.Hour, func() {
		if v := e.now(t); v.FailureCode != string(schema.FailHardware) || !strings.Contains(v.FailureText, "missing: SXM5") {
			t.Errorf("failure %q: %s", v.FailureCode, v.FailureText)
		}
	})
	e.say(11*time.Hour, workflows.UpdateAbort, workflows.Abort{By: "ann", Reason: "reseat SXM5"})
	e.onboard(t)
	if burnt {
		t.Fatal("a server that lacks a device was tested")
	}
}

func TestVerbsThatCanNotBeTakenAreRefusedWithAReason(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.answer = func(task agentproto.Task) *agentproto.TaskReport {
		if task.Kind == schema.TaskDrivers {
			return &agentproto.TaskReport{State: schema.TaskFailed, Text: "no module for this kernel"}
		}
		return e.goodAnswer(task)
	}
	other := e.say(2*time.Hour, workflows.UpdateSkip, workflows.Skip{Step: schema.StepBurnIn, Reason: "hurry", By: "ann"})
	silent := e.say(3*time.Hour, workflows.UpdateSkip, workflows.Skip{Step: schema.StepDrivers, By: "ann"})
	mute := e.say(4*time.Hour, workflows.UpdateAbort, workflows.Abort{By: "ann"})
	skip := e.say(5*time.Hour, workflows.UpdateSkip, workflows.Skip{Step: schema.StepDrivers, Reason: "built into the image", By: "ann"})
	e.onboard(t)
	for name, c := range map[string]struct {
		v    *verb
		code schema.ErrorCode
	}{"a skip of another step": {other, schema.CodeConflict}, "a skip without a reason": {silent, schema.CodeInvalid}, "an abort without a reason": {mute, schema.CodeInvalid}} {
		if !schema.Is(temporalerr.Unwrap(c.v.rejected), c.code) {
			t.Errorf("%s was answered %v, want %s", name, c.v.rejected, c.code)
		}
	}
	if !skip.done || skip.err != nil {
		t.Fatalf("the skip: %+v", skip)
	}
	r := e.stepOf(t, schema.StepDrivers)
	if r.State != schema.StepSkipped || !strings.Contains(r.Detail, "built into the image") || !strings.Contains(r.Detail, "ann") {
		t.Fatalf("drivers is %s: %s", r.State, r.Detail)
	}
	if v := e.now(t); v.Phase != schema.PhaseAvailable {
		t.Fatalf("the server is %s: %s", v.Phase, v.FailureText)
	}
}

func TestAnAbortInTheMiddleOfTheInstallUndoesIt(t *testing.T) {
	t.Parallel()
	andWithLostAnswers(t, abortInTheMiddleOfTheInstall)
}

func abortInTheMiddleOfTheInstall(t *testing.T, with ...interceptor.WorkerInterceptor) {
	e := newEnv(t, with...)
	e.dead = true
	abort := e.say(10*time.Minute, workflows.UpdateAbort, workflows.Abort{By: "ann", Reason: "wrong rack"})
	again := e.say(10*time.Minute+time.Millisecond, workflows.UpdateAbort, workflows.Abort{By: "bob", Reason: "me too"})
	e.onboard(t)
	if err := e.GetWorkflowError(); err != nil || abort.err != nil {
		t.Fatal(err, abort.err)
	}
	v := e.now(t)
	if v.Phase != schema.PhaseEnrolled {
		t.Fatalf("the server is %s", v.Phase)
	}
	var armed int
	if a, ok, err := e.db.Armed(t.Context(), v.ID); err != nil || ok {
		t.Fatalf("still armed: %+v %d %v", a, armed, err)
	}
	if sys := e.bmc.Resource(e.bmc.SystemPath() + "/SD"); sys["Boot"].(map[string]any)["BootSourceOverrideEnabled"] != "Disabled" {
		t.Fatalf("the boot override still stands: %v", sys["Boot"])
	}
	if again.rejected == nil && !again.done {
		t.Log("the second abort came after the end")
	}
	if _, err := e.boots.Mint(t.Context(), v.ID, 1, schema.PurposeScript); !schema.Is(err, schema.CodeStale) {
		t.Fatalf("an aborted attempt still gets tokens: %v", err)
	}
}

func TestACancelIsAnAbort(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.dead = true
	e.at(10*time.Minute, e.CancelWorkflow)
	e.onboard(t)
	if v := e.now(t); v.Phase != schema.PhaseEnrolled {
		t.Fatalf("the server is %s after a cancel", v.Phase)
	}
}

func TestAProtectedServerIsNeverBegunNorWipedOnceTheFlagIsSet(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	must(t, e.db.Protect(t.Context(), e.server.ID, true, "ann"))
	e.onboard(t)
	if err := e.GetWorkflowError(); !schema.Is(temporalerr.Unwrap(err), schema.CodeUnsafe) {
		t.Fatalf("the onboarding of a protected server ended with %v", err)
	}
	if v := e.now(t); v.Phase != schema.PhaseEnrolled || e.installs != 0 {
		t.Fatalf("the server is %s after %d installs", v.Phase, e.installs)
	}
}

func TestAServerOfThePoolIsInstalledAgainOnlyWhileNothingIsOnIt(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.inPool(t)
	e.installs = 0
	j := e.runJob(t)
	again := func() (schema.Server, error) {
		return e.db.BeginReinstall(t.Context(), e.server.ID, "live", "new image", "ann")
	}
	if _, err := again(); !schema.Is(err, schema.CodeUnsafe) {
		t.Fatalf("with a job on it: %v", err)
	}
	if v := e.now(t); v.Phase != schema.PhaseAvailable || v.Profile != "" {
		t.Fatalf("after the refusal it is %s with profile %q", v.Phase, v.Profile)
	}
	signal := e.signal // no process runs yet
	e.signal = func(string, any) {}
	e.endJob(t, j)
	e.signal = signal
	must(t, e.db.Protect(t.Context(), e.server.ID, true, "ann"))
	if _, err := again(); !schema.Is(err, schema.CodeUnsafe) {
		t.Fatalf("while it is protected: %v", err)
	}
	must(t, e.db.Protect(t.Context(), e.server.ID, false, "ann"))
	v, err := again()
	if err != nil || v.Phase != schema.PhaseOnboarding || v.Attempt != 2 || v.Profile != "live" {
		t.Fatalf("it is %s at attempt %d with %s, %v", v.Phase, v.Attempt, v.Profile, err)
	}
	if _, err := again(); !schema.Is(err, schema.CodeConflict) {
		t.Fatalf("a second time: %v", err)
	}
	e.ExecuteWorkflow(workflows.OnboardServer, workflows.OnboardInput{Server: e.server.ID, By: "ann", Attempt: 2})
	if err := e.GetWorkflowError(); err != nil {
		t.Fatal(err)
	}
	if v := e.now(t); v.Phase != schema.PhaseAvailable || e.installs != 1 {
		t.Fatalf("it is %s after %d installs: %s", v.Phase, e.installs, v.FailureText)
	}
}
