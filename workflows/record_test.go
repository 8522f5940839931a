//go:build record

package workflows_test

import (
	"context"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/temporalproto"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"

	"gpupool/activities/health"
	"gpupool/activities/install"
	"gpupool/activities/job"
	"gpupool/activities/meter"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
	"gpupool/worker/embedded"
	"gpupool/worker/namespace"
	"gpupool/workflows"
)

// recording says that this build records histories.
const recording = true

var update = flag.Bool("update", false, "write the recorded histories to testdata; TestHistoriesReplay reads them")

// TestRecordHistories runs servers' and jobs' processes on a real Temporal server and keeps their histories:
//
//	go test -tags record -run TestRecordHistories ./workflows/ -update
//
// A change of a workflow that replays what is in testdata is safe for processes that run; one that doesn't needs
// workflow.GetVersion, and a new recording beside the old ones, never in their place.
func TestRecordHistories(t *testing.T) {
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	srv, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { must(t, srv.Stop()) }()
	c, err := client.Dial(client.Options{HostPort: srv.HostPort(), Namespace: namespace.Default, Identity: "recorder", Logger: sdklog.NewStructuredLogger(log)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	stories := map[string]func(*testing.T, *story){
		"onboard-good":             onboardGood,
		"onboard-retry-skip-abort": onboardVerbs,
		"onboard-paused-accepted":  onboardPaused,
		"repair-returned-twice":    repairTwice,
		"repair-self-cured":        repairSelfCured,
		"repair-suspect-reset":     repairSuspect,
		"retire-drive-frozen":      retireFrozen,
	}
	for name, tell := range stories {
		t.Run(name, func(t *testing.T) {
			s := newStory(t, c)
			tell(t, s)
			s.keep(t, name)
		})
	}
	t.Run("meter-round", func(t *testing.T) { meterRound(t, c) })
	jobs := map[string]struct {
		limit time.Duration
		tell  func(*jobStory)
	}{
		"job-plain":     {0, jobPlain},
		"job-requeued":  {0, jobRequeued},
		"job-cancelled": {0, jobCancelled},
		"job-preempted": {0, jobPreempted},
		"job-timed-out": {time.Second, jobTimedOut},
	}
	for name, j := range jobs {
		t.Run(name, func(t *testing.T) {
			s := newJobStory(t, c, j.limit)
			j.tell(s)
			if err := s.run.Get(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			(&story{client: c, run: s.run}).keep(t, name)
		})
	}
}

// meterRound is the first round of the books, up to the wait for the next.
func meterRound(t *testing.T, c client.Client) {
	core := worker.New(c, workflows.CoreQueue, worker.Options{Identity: "recorder"})
	core.RegisterWorkflow(workflows.Meter)
	core.RegisterActivity(&meter.Activities{Store: storetest.Open(t)})
	must(t, core.Start())
	defer core.Stop()
	run, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "meter", TaskQueue: workflows.CoreQueue}, workflows.Meter)
	if err != nil {
		t.Fatal(err)
	}
	(&story{client: c, run: run}).keepUntil(t, "meter-round", enumspb.EVENT_TYPE_TIMER_STARTED)
	must(t, c.TerminateWorkflow(t.Context(), run.GetID(), run.GetRunID(), "recorded"))
}

// jobStory is a job's process on a real Temporal server, in real time, from its first allocation.
type jobStory struct {
	*jobWorld
	run client.WorkflowRun
}

func newJobStory(t *testing.T, c client.Client, limit time.Duration) *jobStory {
	w := &jobWorld{t: t, db: storetest.Open(t)}
	w.submit(limit)
	core := worker.New(c, workflows.CoreQueue, worker.Options{Identity: "recorder"})
	core.RegisterWorkflow(workflows.RunJob)
	core.RegisterActivity(&job.Activities{Store: w.db})
	must(t, core.Start())
	t.Cleanup(core.Stop)
	s := &jobStory{jobWorld: w}
	w.tell = func(n workflows.JobNews) { // the first news: as the delivery starts the process
		run, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: workflows.JobID(w.job.ID), TaskQueue: workflows.CoreQueue}, workflows.RunJob, workflows.RunJobInput{Job: w.job.ID, Attempt: n.Attempt})
		if err != nil {
			t.Fatal(err)
		}
		s.run = run
		w.tell = func(n workflows.JobNews) {
			must(t, c.SignalWorkflow(t.Context(), run.GetID(), "", workflows.JobSignal, n))
		}
	}
	w.allocate(1)
	return s
}

// until waits for the record to show something of the job.
func (s *jobStory) until(what string, ok func(schema.Job) bool) {
	s.t.Helper()
	waitFor(s.t, func() error {
		j, err := s.db.Job(s.t.Context(), s.job.ID)
		if err == nil && !ok(j) {
			err = schema.Conflict("the job is "+string(j.State)+", waited for "+what, "")
		}
		return err
	})
}

// runs waits until an attempt is dispatched, and says for its agent that it runs.
func (s *jobStory) runs(attempt int) {
	s.t.Helper()
	waitFor(s.t, func() error {
		_, err := s.db.Task(s.t.Context(), store.RunTaskID(s.job.ID, attempt, 0))
		return err
	})
	s.report(attempt, running)
	s.until("the attempt's run", func(j schema.Job) bool { return j.State == schema.JobRunning })
}

// stop is somebody's word that an attempt is to end, and its agent's that it has.
func (s *jobStory) stop(attempt int, why schema.AttemptOutcome, cause string) {
	s.t.Helper()
	must(s.t, s.db.RequestStop(s.t.Context(), s.job.ID, attempt, why, "test", cause))
	s.news(schema.EventJobStop, attempt)
	s.report(attempt, stopped)
}

func (s *jobStory) again() {
	s.t.Helper()
	s.until("the queue", func(j schema.Job) bool { return j.State == schema.JobQueued })
	s.allocate(2)
	s.runs(2)
	s.report(2, done)
}

func jobPlain(s *jobStory) { s.runs(1); s.report(1, done) }

func jobRequeued(s *jobStory) {
	s.runs(1)
	s.stop(1, schema.AttemptLost, "Xid 79")
	s.again()
}

func jobPreempted(s *jobStory) {
	s.runs(1)
	s.stop(1, schema.AttemptPreempted, "for another")
	s.again()
}

func jobCancelled(s *jobStory) {
	s.runs(1)
	s.stop(1, schema.AttemptCancelled, "")
}

func jobTimedOut(s *jobStory) {
	s.runs(1)
	s.until("the stop", func(j schema.Job) bool { return j.State == schema.JobStopping })
	s.report(1, stopped)
}

// story is a world on a real Temporal server, in real time.
type story struct {
	*world
	client client.Client
	run    client.WorkflowRun
}

func newStory(t *testing.T, c client.Client) *story {
	w := newWorld(t, nil,
		install.Timing{PhoneHome: 3 * time.Second, BMC: 10 * time.Second, Setup: 5 * time.Second, Inventory: 5 * time.Second, BurnIn: 3 * time.Second, AgentSilent: time.Minute, AgentBack: 5 * time.Second, Undo: 5 * time.Second},
		health.Timing{Off: time.Second, Reset: 5 * time.Second, Drain: 5 * time.Second, Silent: time.Second, Technician: time.Hour, BMC: 10 * time.Second, AgentBack: 5 * time.Second, Inventory: 5 * time.Second, BurnIn: 3 * time.Second})
	s := &story{world: w, client: c}
	w.signal = func(name string, arg any) {
		_ = c.SignalWorkflow(context.Background(), workflows.ServerID(w.server.ID), "", name, arg) // before its start there is nobody to tell
	}
	core := worker.New(c, workflows.CoreQueue, worker.Options{Identity: "recorder"})
	site := worker.New(c, workflows.SiteQueue("hall-1"), worker.Options{Identity: "recorder", DisableWorkflowWorker: true})
	w.register(core, site)
	must(t, core.Start())
	must(t, site.Start())
	t.Cleanup(func() { site.Stop(); core.Stop() })
	return s
}

func (s *story) start(t *testing.T, wf any, arg any) {
	t.Helper()
	run, err := s.client.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: workflows.ServerID(s.server.ID), TaskQueue: workflows.CoreQueue, WorkflowExecutionErrorWhenAlreadyStarted: true}, wf, arg)
	if err != nil {
		t.Fatal(err)
	}
	s.run = run
}

func (s *story) update(t *testing.T, name string, arg any) error {
	t.Helper()
	h, err := s.client.UpdateWorkflow(t.Context(), client.UpdateWorkflowOptions{WorkflowID: s.run.GetID(), UpdateName: name, WaitForStage: client.WorkflowUpdateStageCompleted, Args: []any{arg}})
	if err != nil {
		return err
	}
	return h.Get(t.Context(), nil)
}

// until waits for the record to show something.
func (s *story) until(t *testing.T, what string, ok func(schema.Server) bool) {
	t.Helper()
	watch := s.db.Watch("all")
	defer watch.Close()
	deadline := time.After(30 * time.Second)
	for {
		v, err := s.db.Server(t.Context(), s.server.ID)
		if err != nil {
			t.Fatal(err)
		}
		if ok(v) {
			return
		}
		select {
		case <-watch.C:
		case <-deadline:
			t.Fatalf("waited for %s; the server is %s at %q: %s", what, v.Phase, v.Step, v.FailureText)
		}
	}
}

func (s *story) keep(t *testing.T, name string) {
	t.Helper()
	s.keepUntil(t, name, enumspb.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED)
}

// keepUntil keeps a process's history up to the first event of a type, for which it waits.
func (s *story) keepUntil(t *testing.T, name string, last enumspb.EventType) {
	t.Helper()
	h := &historypb.History{}
	it := s.client.GetWorkflowHistory(t.Context(), s.run.GetID(), s.run.GetRunID(), true, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for it.HasNext() {
		e, err := it.Next()
		if err != nil {
			t.Fatal(err)
		}
		if h.Events = append(h.Events, e); e.EventType == last {
			break
		}
	}
	if e := h.Events[len(h.Events)-1]; e.EventType != last {
		t.Fatalf("the process ended with %s", e)
	}
	b, err := temporalproto.CustomJSONMarshalOptions{Indent: " "}.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		must(t, os.MkdirAll("testdata", 0o755))
		must(t, os.WriteFile(filepath.Join("testdata", name+".json"), append(b, '\n'), 0o644))
	}
}

func onboardGood(t *testing.T, s *story) {
	s.start(t, workflows.OnboardServer, workflows.OnboardInput{Server: s.server.ID, By: "ann"})
	s.until(t, "the pool", func(v schema.Server) bool { return v.Phase == schema.PhaseAvailable })
}

func onboardVerbs(t *testing.T, s *story) {
	s.dead = true
	s.answer = func(task agentproto.Task) *agentproto.TaskReport {
		switch task.Kind {
		case schema.TaskDrivers:
			return &agentproto.TaskReport{State: schema.TaskFailed, Text: "no module for this kernel", NoneLeft: true}
		case schema.TaskBurnIn:
			return &agentproto.TaskReport{State: schema.TaskFailed, Text: "tool missing", NoneLeft: true}
		}
		return s.goodAnswer(task)
	}
	s.start(t, workflows.OnboardServer, workflows.OnboardInput{Server: s.server.ID, By: "ann"})
	s.until(t, "a failed provision", func(v schema.Server) bool { return v.FailureCode != "" })
	s.mu.Lock()
	s.dead = false
	s.mu.Unlock()
	must(t, s.update(t, workflows.UpdateRetry, workflows.Retry{By: "ann"}))
	s.until(t, "failed drivers", func(v schema.Server) bool { return v.FailureCode != "" && v.Step == schema.StepDrivers })
	must(t, s.update(t, workflows.UpdateSkip, workflows.Skip{Step: schema.StepDrivers, Reason: "built in", By: "ann"}))
	s.until(t, "an inconclusive burn-in", func(v schema.Server) bool { return v.FailureCode == string(schema.FailInconclusive) })
	must(t, s.update(t, workflows.UpdateAbort, workflows.Abort{Reason: "enough", By: "ann"}))
	s.until(t, "the undo", func(v schema.Server) bool { return v.Phase == schema.PhaseEnrolled })
}

// onboardPaused stops for what it lacks, is to be held before its burn-in, is taken as it is, stands there, and goes on.
func onboardPaused(t *testing.T, s *story) {
	must(t, s.bmc.Patch(s.bmc.SystemPath(), map[string]any{"MemorySummary": map[string]any{"TotalSystemMemoryGiB": 1920}}))
	s.start(t, workflows.OnboardServer, workflows.OnboardInput{Server: s.server.ID, By: "ann"})
	s.until(t, "the difference", func(v schema.Server) bool { return v.FailureCode == string(schema.FailHardware) })
	must(t, s.update(t, workflows.UpdatePause, workflows.Pause{Before: schema.StepBurnIn, Reason: "cables", By: "ann"}))
	must(t, s.update(t, workflows.UpdateAccept, workflows.Accept{Reason: "on order", By: "ann"}))
	s.until(t, "the pause", func(v schema.Server) bool { return v.Pause.HeldAt != 0 })
	must(t, s.update(t, workflows.UpdateContinue, workflows.Continue{By: "bob"}))
	s.until(t, "the pool", func(v schema.Server) bool { return v.Phase == schema.PhaseAvailable })
}

// retireFrozen is taken out of the pool; a drive is frozen the first time, which stops it, and is emptied at the retry.
func retireFrozen(t *testing.T, s *story) {
	s.inPool(t)
	frozen, done := drive("sda", "D2", schema.DriveFailed, schema.DriveFrozen, "its security is frozen until its next power cycle"), drive("sda", "D2", schema.DriveSanitised, "", "done")
	s.drives = []schema.DriveResult{drive("nvme0n1", "D1", schema.DriveSanitised, "", "done"), frozen}
	_, err := s.db.BeginRetirement(t.Context(), s.server.ID, true, "too old", "ann")
	must(t, err)
	s.start(t, workflows.RetireServer, workflows.RetireInput{Server: s.server.ID})
	s.until(t, "the frozen drive", func(v schema.Server) bool { return v.FailureCode == string(schema.FailSanitise) })
	s.mu.Lock()
	s.drives[1] = done
	s.mu.Unlock()
	must(t, s.update(t, workflows.UpdateRetry, workflows.Retry{By: "ann"}))
	s.until(t, "the end", func(v schema.Server) bool { return v.Phase == schema.PhaseRetired })
}

func repairTwice(t *testing.T, s *story) {
	s.inPool(t)
	held := s.runJob(t)
	r := s.fail(t)
	s.start(t, workflows.RepairServer, workflows.RepairInput{Repair: r.ID})
	s.endJob(t, held)
	s.until(t, "the drain", func(v schema.Server) bool { return v.Phase == schema.PhaseRepairing })
	// The record is a moment ahead of the process: a word that comes too early is refused, and said again.
	waitFor(t, func() error {
		return s.update(t, workflows.UpdateDone, workflows.Done{NewSerial: "GPU-9", By: "tom"})
	})
	waitFor(t, func() error {
		got, err := s.db.Repair(t.Context(), r.ID)
		if err == nil && got.Returns == 0 {
			err = schema.Conflict("not yet returned", "")
		}
		return err
	})
	s.swap("SXM3", "GPU-9")
	waitFor(t, func() error {
		return s.update(t, workflows.UpdateDone, workflows.Done{OldSerial: "GPU-3", NewSerial: "GPU-9", By: "tom"})
	})
	s.until(t, "the return", func(v schema.Server) bool { return v.Phase == schema.PhaseAvailable })
}

func repairSelfCured(t *testing.T, s *story) {
	s.inPool(t)
	must(t, s.db.ReportFault(t.Context(), s.server.ID, schema.Fault{Source: "platform", Kind: "agent-silent", Severity: schema.SeverityCritical, At: s.db.Now(), Text: "silent", Dedupe: "silent/1"}))
	r := s.judged(t)
	s.start(t, workflows.RepairServer, workflows.RepairInput{Repair: r.ID})
	s.until(t, "the return", func(v schema.Server) bool { return v.Phase == schema.PhaseAvailable })
}

// repairSuspect is a device that is suspected, waits until its server is idle, is reset, and comes back.
func repairSuspect(t *testing.T, s *story) {
	s.inPool(t)
	held := s.runJob(t)
	s.beat(t.Context(), agentproto.Evidence{Device: "GPU-3", Kind: "xid", Code: "63", Severity: schema.SeverityWarning, Text: "a row is to be remapped", At: s.db.Now(), ID: "boot-1/kmsg/1"})
	r := s.judged(t)
	s.start(t, workflows.RepairServer, workflows.RepairInput{Repair: r.ID})
	s.endJob(t, held)
	s.until(t, "the return", func(v schema.Server) bool {
		got, err := s.db.Repair(t.Context(), r.ID)
		return err == nil && got.State == schema.RepairReturned && v.Phase == schema.PhaseAvailable
	})
}

// waitFor repeats f until it succeeds.
func waitFor(t *testing.T, f func() error) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal(err)
		}
	}
}
