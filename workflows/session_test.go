package workflows_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"gpupool/activities/health"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/workflows"
)

// tell has the agent report evidence, or that it is over, and it judged: delivered at least once, so here it is twice.
func (e *env) tell(t testing.TB, ev agentproto.Evidence) {
	t.Helper()
	ev.At = e.db.Now()
	if ev.Text == "" {
		ev.Text = ev.Kind + " " + ev.Code
	}
	for range 2 {
		e.beat(t.Context(), ev)
		faults, err := e.db.Faults(t.Context(), e.server.ID)
		must(t, err)
		for _, f := range faults {
			must(t, health.Judge(t.Context(), e.db, f.ID))
		}
		if e.runs {
			e.SignalWorkflow(workflows.SignalRepairOpened, workflows.RepairOpened{})
		}
	}
}

func xid(device, code, id string) agentproto.Evidence {
	return agentproto.Evidence{Device: device, Kind: "xid", Code: code, Severity: schema.SeverityWarning, ID: id}
}

func (e *env) open(t testing.TB) schema.Repair {
	t.Helper()
	r, ok, err := e.db.OpenRepair(t.Context(), e.server.ID)
	if err != nil || !ok {
		t.Fatalf("no repair is open: %v", err)
	}
	return r
}

// owned fails the test unless an open repair has an owner, a next step and a deadline to come: a cordon never dead-ends.
func (e *env) owned(t testing.TB, r schema.Repair) {
	t.Helper()
	if r.Owner == "" || r.NextStep == "" || r.Deadline < e.db.Now() {
		t.Errorf("%s is %s with owner %q, next %q, deadline %s", r.ID, r.State, r.Owner, r.NextStep, r.Deadline)
	}
}

func (e *env) cordonedDevices(t testing.TB) []string {
	t.Helper()
	all, err := e.db.Cordons(t.Context(), e.server.ID)
	must(t, err)
	accs, err := e.db.Accelerators(t.Context(), store.AcceleratorFilter{Server: e.server.ID})
	must(t, err)
	out := []string{}
	for _, c := range all {
		name := "server"
		for _, a := range accs {
			if a.ID == c.Accelerator {
				name = a.Slot
			}
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// resets collects the resets that the agent was asked for.
func (e *env) resets() *[]string {
	var got []string
	e.answer = func(task agentproto.Task) *agentproto.TaskReport {
		if task.Kind == schema.TaskReset {
			got = append(got, string(task.Payload))
			return &agentproto.TaskReport{State: schema.TaskDone, Text: "reset", NoneLeft: true}
		}
		return e.goodAnswer(task)
	}
	return &got
}

func TestARowToBeRemappedStopsNoJobAndTheDeviceIsResetWhenItIsIdle(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.inPool(t)
	job := e.runJob(t)
	resets := e.resets()
	e.tell(t, xid("GPU-3", "63", "b/1"))
	r := e.open(t)
	if r.State != schema.RepairCordoned || r.Action != schema.ActionCordon || r.Cure != schema.CureDevice {
		t.Fatalf("the repair is %+v", r)
	}
	e.owned(t, r)
	e.at(5*time.Hour, func() {
		j, err := e.db.Job(t.Context(), job.ID)
		must(t, err)
		if v := e.now(t); j.State.Ended() || j.State == schema.JobStopping || v.Phase != schema.PhaseAvailable {
			t.Errorf("the job is %s on a server that is %s", j.State, v.Phase)
		}
		if got := e.cordonedDevices(t); !slices.Equal(got, []string{"SXM3"}) {
			t.Errorf("cordoned are %v, want the suspect alone", got)
		}
	})
	e.at(6*time.Hour, func() { e.beat(t.Context()); e.endJob(t, job); must(t, e.db.NudgeIdle(t.Context())) })
	e.repair(t, r)
	got := e.repairNow(t, r.ID)
	if got.State != schema.RepairReturned || got.Tried != "device" || got.DoneBy != schema.OwnerPlatform || got.ProbationUntil == 0 {
		t.Fatalf("the repair: %+v", got)
	}
	if len(*resets) != 1 || !strings.Contains((*resets)[0], "GPU-3") || e.starts != 1 {
		t.Fatalf("resets %v, starts %d: want one of the device alone, and no reboot", *resets, e.starts)
	}
	if v := e.now(t); v.Phase != schema.PhaseAvailable || len(e.cordonedDevices(t)) != 0 {
		t.Fatalf("the server is %s, cordoned %v", v.Phase, e.cordonedDevices(t))
	}
}

func TestAServerThatIsNotIdleInTimeTakesNoMoreWorkAndAPersonMayDrainIt(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.inPool(t)
	job := e.runJob(t)
	e.resets()
	e.tell(t, xid("GPU-3", "63", "b/1"))
	r := e.open(t)
	e.at(25*time.Hour, func() {
		got := e.repairNow(t, r.ID)
		if v := e.now(t); v.Phase != schema.PhaseDraining || got.State != schema.RepairDraining || v.FailureCode != string(schema.FailDrainOverdue) {
			t.Errorf("after a day the server is %s, the repair %s, failure %q", v.Phase, got.State, v.FailureCode)
		}
		e.owned(t, got)
		if j, err := e.db.Job(t.Context(), job.ID); err != nil || j.State == schema.JobStopping {
			t.Errorf("the job is %s, %v: it may end by itself", j.State, err)
		}
		_, err := e.db.RepairDrainNow(t.Context(), r.ID, "the tenant agrees", "ann")
		must(t, err)
		if j, err := e.db.Job(t.Context(), job.ID); err != nil || j.State != schema.JobStopping {
			t.Errorf("after drain-now the job is %s, %v", j.State, err)
		}
	})
	e.at(26*time.Hour, func() { e.endJob(t, job) })
	e.repair(t, r)
	if got := e.repairNow(t, r.ID); got.State != schema.RepairReturned {
		t.Fatalf("the repair is %s", got.State)
	}
}

// Case 24a: what is over before the drain has ended is not reset or rebooted; it is proven, and returns.
func TestWhatIsOverIsNotResetButStillProven(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.inPool(t)
	job := e.runJob(t)
	resets := e.resets()
	e.tell(t, agentproto.Evidence{Device: "GPU-3", Kind: "link", Severity: schema.SeverityCritical, ID: "b/1"})
	r := e.open(t)
	if r.State != schema.RepairDraining || r.Cure != schema.CureBaseboard {
		t.Fatalf("the repair: %+v", r)
	}
	e.at(time.Minute, func() {
		e.tell(t, agentproto.Evidence{Device: "GPU-3", Kind: "link", Clear: true, ID: "b/2", Severity: schema.SeverityCritical})
		if got := e.repairNow(t, r.ID); got.Cure != schema.CureBurnIn {
			t.Errorf("after the clear the cure is %s", got.Cure)
		}
	})
	e.at(2*time.Minute, func() { e.endJob(t, job) })
	e.repair(t, r)
	got := e.repairNow(t, r.ID)
	if got.State != schema.RepairReturned || got.Tried != "" || len(*resets) != 0 || e.starts != 1 {
		t.Fatalf("the repair is %s, tried %q, resets %v, starts %d", got.State, got.Tried, *resets, e.starts)
	}
	if tasks, err := e.db.Task(t.Context(), "server/"+e.server.ID+"/repair/"+r.ID+"/burn-in/1/1"); err != nil || tasks.State != schema.TaskDone {
		t.Fatalf("its burn-in: %+v %v", tasks, err)
	}
}

// Case 24b: a session that is closed is not opened by events that are told again.
func TestOldEventsOpenNothing(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.inPool(t)
	e.resets()
	e.tell(t, xid("GPU-3", "119", "b/1"))
	r := e.open(t)
	e.repair(t, r)
	if got := e.repairNow(t, r.ID); got.State != schema.RepairReturned {
		t.Fatalf("the repair is %s", got.State)
	}
	old := e.db.Now().Add(-24 * time.Hour)
	for _, ev := range []agentproto.Evidence{ // the same again, the same under another number, and older ones never told
		{Device: "GPU-3", Kind: "xid", Code: "119", Severity: schema.SeverityCritical, At: old, ID: "b/1", Text: "again"},
		{Device: "GPU-3", Kind: "xid", Code: "119", Severity: schema.SeverityCritical, At: old, ID: "b/77", Text: "renumbered"},
		{Device: "GPU-3", Kind: "xid", Code: "64", Severity: schema.SeverityCritical, At: old, ID: "b/78", Text: "late"},
	} {
		e.beat(t.Context(), ev)
	}
	faults, err := e.db.Faults(t.Context(), e.server.ID)
	must(t, err)
	for _, f := range faults {
		must(t, health.Judge(t.Context(), e.db, f.ID))
	}
	if _, open, err := e.db.OpenRepair(t.Context(), e.server.ID); err != nil || open || e.now(t).Phase != schema.PhaseAvailable || len(e.cordonedDevices(t)) != 0 {
		t.Fatalf("open %v, phase %s, cordons %v, %v", open, e.now(t).Phase, e.cordonedDevices(t), err)
	}
}

// Case 24c and d: a second fault is handled though the first is over; each clear takes only its own.
func TestAClearTakesOnlyItsOwn(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.inPool(t)
	job := e.runJob(t)
	resets := e.resets()
	e.tell(t, agentproto.Evidence{Device: "GPU-3", Kind: "thermal", Severity: schema.SeverityWarning, ID: "b/1"})
	r := e.open(t)
	e.at(time.Minute, func() {
		e.tell(t, agentproto.Evidence{Device: "GPU-3", Kind: "thermal", Clear: true, ID: "b/2", Severity: schema.SeverityWarning})
		e.tell(t, xid("GPU-5", "63", "b/3"))
		got := e.repairNow(t, r.ID)
		if got.State != schema.RepairCordoned || got.Cure != schema.CureDevice {
			t.Errorf("with B in force the repair is %s, cure %s", got.State, got.Cure)
		}
		e.tell(t, agentproto.Evidence{Device: "GPU-5", Kind: "thermal", Clear: true, ID: "b/4", Severity: schema.SeverityWarning}) // not B's
		if got := e.repairNow(t, r.ID); got.Cure != schema.CureDevice {
			t.Errorf("another kind's clear took B: cure %s", got.Cure)
		}
		if faults, err := e.db.RepairFaults(t.Context(), r.ID); err != nil || len(faults) != 2 || faults[0].ClearedAt == 0 || faults[1].ClearedAt != 0 {
			t.Errorf("its evidence: %+v %v", faults, err)
		}
	})
	e.at(2*time.Minute, func() { e.endJob(t, job); must(t, e.db.NudgeIdle(t.Context())) })
	e.repair(t, r)
	if got := e.repairNow(t, r.ID); got.State != schema.RepairReturned || len(*resets) != 1 {
		t.Fatalf("the repair is %s, resets %v", got.State, *resets)
	}
}

// Case 5 and 24c: the stronger of two wins, in one session.
func TestTheStrongerOfTwoFaultsWinsInOneSession(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.inPool(t)
	job := e.runJob(t)
	e.tell(t, xid("GPU-3", "63", "b/1"))
	r := e.open(t)
	e.at(3*time.Second, func() {
		e.tell(t, xid("GPU-3", "64", "b/2"))
		got := e.open(t)
		if got.ID != r.ID || got.State != schema.RepairDraining || got.Action != schema.ActionRepair || got.Cure != schema.CureTechnician {
			t.Errorf("the session: %+v", got)
		}
		if j, err := e.db.Job(t.Context(), job.ID); err != nil || j.State != schema.JobStopping {
			t.Errorf("the job is %s, %v", j.State, err)
		}
	})
	e.at(time.Minute, func() { e.endJob(t, job) })
	e.at(2*time.Minute, func() { e.owned(t, e.repairNow(t, r.ID)) })
	e.say(time.Hour, workflows.UpdateDone, workflows.Done{By: "tom", Did: schema.WorkReseated})
	e.repair(t, r)
	if got := e.repairNow(t, r.ID); got.State != schema.RepairReturned || got.Tried != "" {
		t.Fatalf("the repair is %s, tried %q", got.State, got.Tried)
	}
}

func TestTheLadderClimbsWhereAResetCannotBeCarriedOut(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.inPool(t)
	e.answer = func(task agentproto.Task) *agentproto.TaskReport {
		if task.Kind == schema.TaskReset {
			return &agentproto.TaskReport{State: schema.TaskFailed, Text: "nvidia-smi: GPU is busy", NoneLeft: true}
		}
		return e.goodAnswer(task)
	}
	e.tell(t, xid("GPU-3", "119", "b/1"))
	r := e.open(t)
	e.repair(t, r)
	got := e.repairNow(t, r.ID)
	if got.State != schema.RepairReturned || got.Tried != "device,baseboard,reboot" || e.starts != 2 {
		t.Fatalf("the repair is %s, tried %q, starts %d", got.State, got.Tried, e.starts)
	}
}

// Case 24f: a reset that looks good is followed by a burn-in, and one that fails goes to a technician.
func TestAfterAResetTheBurnInDecides(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.inPool(t)
	bad := true
	e.answer = func(task agentproto.Task) *agentproto.TaskReport {
		r := e.goodAnswer(task)
		if task.Kind == schema.TaskBurnIn && bad {
			r.Result = marshal(agentproto.BurnInResult{Outcome: "failed", Tests: []string{"memory"}, Failed: []agentproto.BurnInFailure{{Device: "GPU-3", Slot: "SXM3", Test: "memory", Text: "a bit flipped"}}})
		}
		return r
	}
	e.tell(t, xid("GPU-3", "119", "b/1"))
	r := e.open(t)
	e.at(time.Hour, func() {
		got := e.repairNow(t, r.ID)
		if got.State != schema.RepairWaiting || got.Tried != "device" || !strings.Contains(got.WaitingWhy, "a bit flipped") || e.now(t).Phase != schema.PhaseRepairing {
			t.Errorf("the repair: %+v", got)
		}
		e.owned(t, got)
		bad = false
	})
	e.say(2*time.Hour, workflows.UpdateDone, workflows.Done{By: "tom", Did: schema.WorkReseated, Note: "reseated"})
	e.repair(t, r)
	if got := e.repairNow(t, r.ID); got.State != schema.RepairReturned || got.Did != schema.WorkReseated {
		t.Fatalf("the repair: %+v", got)
	}
}

// What comes back within its probation, or again after resets alone, goes to a technician.
func TestWhatComesBackAfterAResetGoesToATechnician(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.inPool(t)
	e.resets()
	e.tell(t, xid("GPU-3", "119", "b/1"))
	e.repair(t, e.open(t))
	e.beat(t.Context(), agentproto.Evidence{Device: "GPU-3", Kind: "xid", Code: "119", Severity: schema.SeverityCritical, Text: "again", At: e.db.Now().Add(30 * time.Minute), ID: "b/2"})
	r := e.judged(t)
	if r.Action != schema.ActionRepair || r.Cure != schema.CureTechnician {
		t.Fatalf("the second repair: %+v", r)
	}
}

// Case 24g and h: a new serial puts the old part on the list of those that go back; only the name of the work is free.
func TestAReplacedPartGoesBackToItsMaker(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.inPool(t)
	r := e.fail(t)
	e.at(time.Minute, func() { e.swap("SXM3", "GPU-9") })
	wrong := e.say(2*time.Minute, workflows.UpdateDone, workflows.Done{NewSerial: "GPU-9", Did: schema.WorkCleaned, By: "tom"})
	unknown := e.say(3*time.Minute, workflows.UpdateDone, workflows.Done{Did: "prayed", By: "tom"})
	e.say(4*time.Minute, workflows.UpdateDone, workflows.Done{OldSerial: "GPU-3", NewSerial: "GPU-9", By: "tom"})
	e.repair(t, r)
	if wrong.err == nil || unknown.err == nil {
		t.Fatalf("a new part that was cleaned %+v, unknown work %+v", wrong, unknown)
	}
	got := e.repairNow(t, r.ID)
	if got.State != schema.RepairReturned || got.Did != schema.WorkReplaced || got.ClaimedBy != "tom" {
		t.Fatalf("the repair: %+v", got)
	}
	if deep, err := e.db.Task(t.Context(), "server/"+e.server.ID+"/repair/"+r.ID+"/burn-in/1/touched/1"); err != nil || deep.State != schema.TaskDone || !strings.Contains(deep.Payload, `"only":["GPU-9"]`) {
		t.Fatalf("what was touched was tested by %+v, %v", deep, err)
	}
	back, err := e.db.RMAs(t.Context(), true)
	if err != nil || len(back) != 1 || back[0].SerialOut != "GPU-3" || back[0].Repair != r.ID || back[0].State != schema.RMAOpen {
		t.Fatalf("parts that go back: %+v %v", back, err)
	}
	for _, c := range []struct {
		change store.RMAChange
		good   bool
	}{
		{store.RMAChange{State: schema.RMAReplaced}, false}, // not sent yet
		{store.RMAChange{State: schema.RMAShipped}, false},  // no case
		{store.RMAChange{State: schema.RMAShipped, VendorCase: "C-1"}, true},
		{store.RMAChange{State: schema.RMAReplaced}, false}, // no serial
		{store.RMAChange{State: schema.RMAReplaced, SerialIn: "GPU-3"}, false},
		{store.RMAChange{State: schema.RMAReplaced, SerialIn: "GPU-11"}, true},
	} {
		if _, err := e.db.ChangeRMA(t.Context(), back[0].ID, c.change, "ann"); (err == nil) != c.good {
			t.Errorf("%+v was answered %v", c.change, err)
		}
	}
}
