package workflows_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.temporal.io/sdk/workflow"

	"gpupool/activities/health"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/workflows"
)

func (e *env) retire(t *testing.T) {
	t.Helper()
	e.ExecuteWorkflow(workflows.RetireServer, workflows.RetireInput{Server: e.server.ID})
	if !e.IsWorkflowCompleted() {
		t.Fatal("the retirement did not end")
	}
	if err := e.GetWorkflowError(); err != nil {
		t.Fatal(err)
	}
}

func drive(name, serial string, outcome schema.DriveOutcome, trouble schema.DriveTrouble, words string) schema.DriveResult {
	return schema.DriveResult{Name: name, Serial: serial, Model: "M", Bus: "nvme", Bytes: 1 << 40, Method: "nvme sanitize, block erase", Outcome: outcome, Trouble: trouble, Words: words, Started: 1, Ended: 2}
}

func (e *env) outcome(t *testing.T) string {
	t.Helper()
	r, ok, err := e.db.Retirement(t.Context(), e.server.ID)
	if err != nil || !ok {
		t.Fatalf("no retirement: %v", err)
	}
	return r.Outcome
}

// TestAServerIsRetiredOnceItsJobsHaveEnded: it drains, and nothing of it is touched while a job is on it; then its disks are
// emptied under a token of their own, each has its certificate, its power is cut, and its row stays.
func TestAServerIsRetiredOnceItsJobsHaveEnded(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.inPool(t)
	j := e.runJob(t)
	e.drives = []schema.DriveResult{drive("nvme0n1", "D1", schema.DriveSanitised, "", "done"), drive("nvme1n1", "D2", schema.DriveOverwritten, "", "done")}
	v, err := e.db.BeginRetirement(t.Context(), e.server.ID, true, "too old", "ann")
	if err != nil || v.Phase != schema.PhaseDraining {
		t.Fatalf("it is %s, %v", v.Phase, err)
	}
	if _, err := e.db.BeginRetirement(t.Context(), e.server.ID, true, "again", "bob"); !schema.Is(err, schema.CodeConflict) {
		t.Errorf("a second time: %v", err)
	}
	e.at(3*time.Hour, func() {
		if v := e.now(t); v.Phase != schema.PhaseDraining || e.sanitised != 0 || v.Attempt != 1 {
			t.Errorf("with a job on it, it is %s at attempt %d, sanitised %d times", v.Phase, v.Attempt, e.sanitised)
		}
		for _, r := range e.bmc.Requests() {
			if strings.Contains(r.Path, "ComputerSystem.Reset") {
				t.Error("its power was touched under a job")
			}
		}
		if err := e.db.ArmSanitise(t.Context(), e.server.ID, 1, time.Hour); !schema.Is(err, schema.CodeStale) {
			t.Errorf("a server with a job is armed to be sanitised: %v", err)
		}
	})
	e.at(4*time.Hour, func() { e.endJob(t, j) })
	e.retire(t)
	v = e.now(t)
	if v.Phase != schema.PhaseRetired || v.Attempt != 2 || e.on || e.installs != 0 || e.sanitised != 1 || !e.order.Overwrite || e.order.Serial != "SN-1" {
		t.Fatalf("it is %s at attempt %d, on %v, installed %d and sanitised %d times by %+v: %s", v.Phase, v.Attempt, e.on, e.installs, e.sanitised, e.order, v.FailureText)
	}
	for _, s := range schema.RetireSteps {
		if r := e.stepOf(t, s); r.State != schema.StepDone {
			t.Errorf("step %s is %q: %s", s, r.State, r.Detail)
		}
	}
	all, err := e.db.DriveCertificates(t.Context(), v.ID, 0)
	if err != nil || len(all) != 2 || all[0].ServerSerial != "SN-1" || all[0].Attempt != 2 {
		t.Fatalf("certificates %+v, %v", all, err)
	}
	if got := e.outcome(t); got != "sanitised" {
		t.Errorf("the outcome is %q", got)
	}
	// Nothing is left that lets anyone in, or it out again.
	if m, _, err := e.boots.ByID(t.Context(), v.ID); err != nil || m.Armed != nil || m.Runs != nil {
		t.Errorf("it boots %+v %+v, %v", m.Armed, m.Runs, err)
	}
	if _, err := e.db.BeginOnboarding(t.Context(), v.ID, "ann"); err == nil {
		t.Error("a retired server is onboarded")
	}
}

// TestADriveThatMayHoldDataStopsTheRetirement until a person has it tried again, which leaves alone what is done, or lets it go by
// name: then the server's row says so for ever.
func TestADriveThatMayHoldDataStopsTheRetirement(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"retry", "skip"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.drives = []schema.DriveResult{drive("nvme0n1", "D1", schema.DriveSanitised, "", "done"), drive("sda", "D2", schema.DriveFailed, schema.DriveFrozen, "its security is frozen until its next power cycle")}
			_, err := e.db.BeginRetirement(t.Context(), e.server.ID, false, "sold", "ann")
			must(t, err)
			abort := e.say(4*time.Hour, workflows.UpdateAbort, workflows.Abort{By: "ann", Reason: "no"})
			e.at(5*time.Hour, func() {
				v := e.now(t)
				if v.Phase != schema.PhaseRetiring || v.Step != schema.StepSanitise || v.FailureCode != string(schema.FailSanitise) || !strings.Contains(v.FailureText, "sda (serial D2): failed frozen") || !strings.Contains(v.FailureText, "1 sanitised, 1 failed") {
					t.Errorf("%s at %s, %s: %s", v.Phase, v.Step, v.FailureCode, v.FailureText)
				}
				e.mu.Lock()
				e.drives[1] = drive("sda", "D2", schema.DriveSanitised, "", "done")
				e.mu.Unlock()
			})
			want, runs := "sanitised", 2
			if end == "retry" {
				e.say(6*time.Hour, workflows.UpdateRetry, workflows.Retry{By: "ann"})
			} else {
				want, runs = "NOT sanitised: skipped by ann: sda was shredded", 1
				e.say(6*time.Hour, workflows.UpdateSkip, workflows.Skip{Step: schema.StepSanitise, Reason: "sda was shredded", By: "ann"})
			}
			e.retire(t)
			refusedAs(t, "an abort", abort, schema.CodeUnsafe)
			if v := e.now(t); v.Phase != schema.PhaseRetired || e.sanitised != runs || e.on {
				t.Fatalf("it is %s after %d runs, on %v: %s", v.Phase, e.sanitised, e.on, v.FailureText)
			}
			if end == "retry" && (len(e.order.Done) != 1 || e.order.Done[0] != "D1") {
				t.Errorf("the second run was told to leave alone %v", e.order.Done)
			}
			if got := e.outcome(t); !strings.HasPrefix(got, want) {
				t.Errorf("the outcome is %q, want %q", got, want)
			}
		})
	}
}

// TestADriveThatOnlyTheBMCShowsIsMissing, and has a certificate that says so.
func TestADriveThatOnlyTheBMCShowsIsMissing(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.drives = []schema.DriveResult{drive("nvme0n1", "D1", schema.DriveSanitised, "", "done")}
	e.shown = []schema.DriveResult{{Serial: "D1"}, {Serial: "D7", Model: "PM1743", Name: "Bay 7"}}
	_, err := e.db.BeginRetirement(t.Context(), e.server.ID, false, "sold", "ann")
	must(t, err)
	e.at(5*time.Hour, func() {
		if v := e.now(t); v.FailureCode != string(schema.FailSanitise) || !strings.Contains(v.FailureText, "serial D7): missing") {
			t.Errorf("%s: %s", v.FailureCode, v.FailureText)
		}
	})
	e.say(6*time.Hour, workflows.UpdateSkip, workflows.Skip{Step: schema.StepSanitise, Reason: "bay 7 is empty", By: "ann"})
	e.retire(t)
	all, err := e.db.DriveCertificates(t.Context(), e.server.ID, 0)
	if err != nil || len(all) != 2 {
		t.Fatalf("%d certificates, %v", len(all), err)
	}
	for _, c := range all {
		if c.Serial == "D7" && (c.Outcome != schema.DriveMissing || c.Verified != "" || c.Name != "Bay 7") {
			t.Errorf("the missing drive's certificate is %+v", c)
		}
	}
}

// TestAnotherMachineIsNeverEmptiedInItsPlace: where the BMC is not proven to be the server's own, no skip leads to its power or disks.
func TestAnotherMachineIsNeverEmptiedInItsPlace(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	serialIs("SN-OTHER")(e)
	_, err := e.db.BeginRetirement(t.Context(), e.server.ID, false, "lost", "ann")
	must(t, err)
	e.at(time.Hour, func() {
		if v := e.now(t); v.FailureCode != string(schema.FailIdentity) || v.Phase != schema.PhaseRetiring {
			t.Errorf("%s, %s: %s", v.Phase, v.FailureCode, v.FailureText)
		}
	})
	e.say(2*time.Hour, workflows.UpdateSkip, workflows.Skip{Step: schema.StepVerifyBMC, Reason: "it is gone", By: "ann"})
	e.at(5*time.Hour, func() {
		if v := e.now(t); v.Step != schema.StepSanitise || v.FailureCode != string(schema.FailUnsafe) {
			t.Errorf("at %s, %s: %s", v.Step, v.FailureCode, v.FailureText)
		}
	})
	e.say(6*time.Hour, workflows.UpdateSkip, workflows.Skip{Step: schema.StepSanitise, Reason: "it is gone", By: "ann"})
	e.say(9*time.Hour, workflows.UpdateSkip, workflows.Skip{Step: schema.StepPowerOff, Reason: "it is gone", By: "ann"})
	e.retire(t)
	if v := e.now(t); v.Phase != schema.PhaseRetired || e.sanitised != 0 {
		t.Fatalf("it is %s after %d runs: %s", v.Phase, e.sanitised, v.FailureText)
	}
	for _, r := range e.bmc.Requests() {
		if r.Method == "POST" && strings.Contains(r.Path, "ComputerSystem.Reset") || r.Method == "PATCH" && strings.Contains(r.Path, "/Systems/") {
			if !strings.Contains(string(r.Body), "Disabled") {
				t.Fatalf("another machine was touched: %s %s %s", r.Method, r.Path, r.Body)
			}
		}
	}
}

// TestARetirementIsTakenBackOnlyBeforeItsJobsHaveEnded.
func TestARetirementIsTakenBackOnlyBeforeItsJobsHaveEnded(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.inPool(t)
	e.runJob(t)
	_, err := e.db.BeginRetirement(t.Context(), e.server.ID, false, "sold", "ann")
	must(t, err)
	e.at(time.Hour, func() {
		must(t, e.db.Undrain(t.Context(), e.server.ID, "bob"))
		e.signal(workflows.SignalRetire, workflows.RetireInput{Server: e.server.ID})
	})
	e.retire(t)
	if v := e.now(t); v.Phase != schema.PhaseAvailable || e.sanitised != 0 || e.outcome(t) != "taken back by bob" {
		t.Fatalf("it is %s, %q", v.Phase, e.outcome(t))
	}
}

// TestAProtectedServerIsNotRetiredNorSanitisedOnceTheFlagIsSet.
func TestAProtectedServerIsNotRetiredNorSanitisedOnceTheFlagIsSet(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	must(t, e.db.Protect(t.Context(), e.server.ID, true, "ann"))
	if _, err := e.db.BeginRetirement(t.Context(), e.server.ID, false, "sold", "ann"); !schema.Is(err, schema.CodeUnsafe) {
		t.Fatalf("a protected server: %v", err)
	}
	must(t, e.db.Protect(t.Context(), e.server.ID, false, "ann"))
	_, err := e.db.BeginRetirement(t.Context(), e.server.ID, false, "sold", "ann")
	must(t, err)
	e.hung = true // the run begins and says nothing more
	e.at(time.Hour, func() {
		m, _, err := e.boots.ByID(t.Context(), e.server.ID)
		if armed, _ := m.InstallAt(e.Now()); err != nil || armed == nil || !armed.Sanitise {
			t.Errorf("it is not armed: %+v %v", m, err)
		}
		must(t, e.db.Protect(t.Context(), e.server.ID, true, "ann"))
		m, _, err = e.boots.ByID(t.Context(), e.server.ID)
		if armed, _ := m.InstallAt(e.Now()); err != nil || armed != nil {
			t.Errorf("a protected server may be sanitised: %+v %v", armed, err)
		}
		if err := e.db.MayDestroy(t.Context(), e.server.ID, 1); !schema.Is(err, schema.CodeUnsafe) {
			t.Errorf("its power may be cut: %v", err)
		}
	})
	e.at(60*time.Hour, func() {
		if v := e.now(t); v.FailureCode != string(schema.FailSanitise) || !strings.Contains(v.FailureText, "not over within 2d") {
			t.Errorf("%s: %s", v.FailureCode, v.FailureText)
		}
		must(t, e.db.Protect(t.Context(), e.server.ID, false, "ann"))
	})
	e.say(61*time.Hour, workflows.UpdateSkip, workflows.Skip{Step: schema.StepSanitise, Reason: "shredded", By: "ann"})
	e.retire(t)
}

// TestAServerThatCantBeRepairedIsRetired: its repair is given up while it waits for a technician and at no other time, its process
// goes on as the retirement, and a fault that comes in between opens no other repair.
func TestAServerThatCantBeRepairedIsRetired(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.inPool(t)
	j := e.runJob(t)
	r := e.fail(t)
	retire := func() error {
		_, err := e.db.BeginRetirement(t.Context(), e.server.ID, true, "no spare is made any more", "ann")
		return err
	}
	e.at(time.Minute, func() {
		if err := retire(); err == nil || e.repairNow(t, r.ID).ClosedAt != 0 {
			t.Errorf("with a job on it: %v", err)
		}
	})
	e.at(2*time.Minute, func() { e.endJob(t, j) })
	e.at(time.Hour, func() {
		if got := e.repairNow(t, r.ID); got.State != schema.RepairWaiting {
			t.Errorf("the repair is %s", got.State)
		}
		must(t, retire())
		e.SignalWorkflow(workflows.SignalRetire, workflows.RetireInput{Server: e.server.ID})
		e.beat(t.Context(), agentproto.Evidence{Device: "GPU-4", Kind: "xid", Code: "79", Severity: schema.SeverityCritical, Text: "another is gone", At: e.db.Now(), ID: "boot-1/kmsg/9"})
		faults, err := e.db.Faults(t.Context(), e.server.ID)
		must(t, err)
		for _, f := range faults {
			must(t, health.Judge(t.Context(), e.db, f.ID))
		}
	})
	late := e.say(2*time.Hour, workflows.UpdateDone, workflows.Done{NewSerial: "GPU-9", By: "tom"})
	e.repair(t, r)
	var next *workflow.ContinueAsNewError
	if err := e.GetWorkflowError(); !errors.As(err, &next) || next.WorkflowType.Name != "RetireServer" {
		t.Fatalf("the repair ended with %v, want it to go on as RetireServer", err)
	}
	if late.done {
		t.Error("a word of the technician was taken after the repair was given up")
	}
	if got := e.repairNow(t, r.ID); got.State != schema.RepairCancelled || got.ClosedAt == 0 || got.Owner != "" {
		t.Errorf("the repair is %+v", got)
	}
	if _, open, err := e.db.OpenRepair(t.Context(), e.server.ID); err != nil || open {
		t.Errorf("a repair was opened on a server that goes: %v", err)
	}
	if err := retire(); !schema.Is(err, schema.CodeConflict) {
		t.Errorf("a second time: %v", err)
	}
	going, err := e.db.Retiring(t.Context(), e.server.ID)
	if v := e.now(t); err != nil || going.Attempt == 0 || v.Phase != schema.PhaseRetiring {
		t.Errorf("it is %s, %+v, %v", v.Phase, going, err)
	}
}

// TestAFaultBeforeAServerGoesIsRepairedFirst: the process of a retirement that waits for jobs makes way, and a server that comes
// back proven goes then.
func TestAFaultBeforeAServerGoesIsRepairedFirst(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.inPool(t)
	e.runJob(t)
	_, err := e.db.BeginRetirement(t.Context(), e.server.ID, true, "too old", "ann")
	must(t, err)
	e.at(time.Hour, func() {
		e.fail(t)
		e.SignalWorkflow(workflows.SignalRepairOpened, nil)
	})
	e.ExecuteWorkflow(workflows.RetireServer, workflows.RetireInput{Server: e.server.ID})
	var next *workflow.ContinueAsNewError
	if err := e.GetWorkflowError(); !errors.As(err, &next) || next.WorkflowType.Name != "RepairServer" {
		t.Fatalf("the retirement went on as %v, want RepairServer", err)
	}
}
