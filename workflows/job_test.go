package workflows_test

import (
	"context"
	"testing"
	"time"

	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"

	"gpupool/activities/job"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
	"gpupool/workflows"
)

// jobWorld is a job's process over a real record, with the allocator's and the agent's parts played by the test. Time
// is the workflow's.
type jobWorld struct {
	t      *testing.T
	env    *testsuite.TestWorkflowEnvironment
	db     *store.Store
	job    schema.Job
	server schema.Server
	epoch  int64
	seq    int64 // of the agent's reports
	tell   func(workflows.JobNews)
}

func newJobWorld(t *testing.T, limit time.Duration, with ...interceptor.WorkerInterceptor) *jobWorld {
	t.Helper()
	var s testsuite.WorkflowTestSuite
	w := &jobWorld{t: t, env: s.NewTestWorkflowEnvironment()}
	w.env.SetWorkerOptions(worker.Options{Interceptors: with})
	w.env.SetTestTimeout(20 * time.Second)
	w.db = storetest.OpenAt(t, w.env.Now)
	w.env.RegisterActivity(&job.Activities{Store: w.db})
	w.env.RegisterWorkflow(workflows.RunJob)
	w.tell = func(n workflows.JobNews) { w.env.SignalWorkflow(workflows.JobSignal, n) }
	w.submit(limit)
	return w
}

// submit fills the record: a server, a tenant, a job that waits.
func (w *jobWorld) submit(limit time.Duration) {
	t, ctx := w.t, w.t.Context()
	t.Helper()
	w.server = storetest.Available(t, w.db, 1, model, 2)
	_, err := w.db.CreateSpec(ctx, "test", store.NewSpec{Name: "x2", Model: model, Accelerators: 2})
	must(t, err)
	_, err = w.db.CreateTenant(ctx, "test", "blue", 1)
	must(t, err)
	_, err = w.db.CreateProject(ctx, "test", "blue", "main")
	must(t, err)
	w.epoch, err = w.db.TakeEpoch(ctx, "eu", "test")
	must(t, err)
	w.job, _, err = w.db.SubmitJob(ctx, "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "x2", Nodes: 1, Command: []string{"true"}, TimeLimit: limit, Grace: 10 * time.Second})
	must(t, err)
}

// after plays act once the process has waited so long.
func (w *jobWorld) after(d time.Duration, act func()) { w.env.RegisterDelayedCallback(act, d) }

func (w *jobWorld) news(kind schema.EventKind, attempt int) {
	w.tell(workflows.JobNews{Kind: kind, Attempt: attempt})
}

// allocate is the allocator's decision and its news.
func (w *jobWorld) allocate(attempt int) {
	w.t.Helper()
	accs, err := w.db.Accelerators(context.Background(), store.AcceleratorFilter{Server: w.server.ID})
	must(w.t, err)
	no, err := w.db.CommitCycle(context.Background(), "eu", w.epoch, store.Cycle{Starts: []store.Start{{Job: w.job.ID, Attempt: attempt, Places: []store.Place{{Server: w.server.ID, Accelerators: []string{accs[0].ID, accs[1].ID}}}}}})
	must(w.t, err)
	if len(no) > 0 {
		w.t.Fatalf("refused: %+v", no)
	}
	w.news(schema.EventJobAllocated, attempt)
}

// report is the agent's word on an attempt, and its news where it is the end.
func (w *jobWorld) report(attempt int, r agentproto.TaskReport) {
	w.t.Helper()
	_, err := w.db.ClaimTasks(context.Background(), w.server.ID)
	must(w.t, err)
	r.Task = store.RunTaskID(w.job.ID, attempt, 0)
	w.seq++
	r.Seq = w.seq
	_, err = w.db.Report(context.Background(), w.server.ID, agentproto.Report{Tasks: []agentproto.TaskReport{r}})
	must(w.t, err)
	if r.State.Ended() {
		w.news(schema.EventJobAttemptEnded, attempt)
	}
}

// run runs the process to its end and gives the job as the record has it then.
func (w *jobWorld) run() schema.Job {
	w.t.Helper()
	return w.runWith(workflows.RunJobInput{Job: w.job.ID})
}

func (w *jobWorld) runWith(in workflows.RunJobInput) schema.Job {
	w.t.Helper()
	w.env.ExecuteWorkflow(workflows.RunJob, in)
	if !w.env.IsWorkflowCompleted() {
		w.t.Fatal("the process did not end")
	}
	must(w.t, w.env.GetWorkflowError())
	j, err := w.db.Job(context.Background(), w.job.ID)
	must(w.t, err)
	return j
}

var (
	exit0   = 0
	exit9   = 9
	running = agentproto.TaskReport{State: schema.TaskRunning}
	done    = agentproto.TaskReport{State: schema.TaskDone, ExitCode: &exit0, NoneLeft: true}
	stopped = agentproto.TaskReport{State: schema.TaskFailed, ExitCode: &exit9, Signal: "TERM", NoneLeft: true}
)

func TestAJobRunsStraightThrough(t *testing.T) {
	andWithLostAnswers(t, jobRunsStraightThrough)
}

func jobRunsStraightThrough(t *testing.T, with ...interceptor.WorkerInterceptor) {
	w := newJobWorld(t, 0, with...)
	w.after(time.Minute, func() { w.allocate(1) })
	w.after(2*time.Minute, func() { w.report(1, running) })
	w.after(72*time.Hour, func() { w.report(1, done) }) // no limit was asked for: nothing ends it
	if j := w.run(); j.State != schema.JobCompleted || j.Attempt != 1 {
		t.Fatalf("the job is %s after attempt %d: %s", j.State, j.Attempt, j.Cause)
	}
}

// As the delivery starts it: with the attempt that was allocated, and no news of it.
func TestAProcessBeginsWithAnAllocatedAttempt(t *testing.T) {
	w := newJobWorld(t, 0)
	w.tell = func(workflows.JobNews) {}
	w.allocate(1)
	w.tell = func(n workflows.JobNews) { w.env.SignalWorkflow(workflows.JobSignal, n) }
	w.after(2*time.Minute, func() { w.report(1, running) })
	w.after(3*time.Minute, func() { w.report(1, done) })
	if j := w.runWith(workflows.RunJobInput{Job: w.job.ID, Attempt: 1}); j.State != schema.JobCompleted || j.Attempt != 1 {
		t.Fatalf("the job is %s after attempt %d: %s", j.State, j.Attempt, j.Cause)
	}
}

func TestAJobPastItsTimeLimitIsStopped(t *testing.T) {
	andWithLostAnswers(t, jobPastItsTimeLimit)
}

func jobPastItsTimeLimit(t *testing.T, with ...interceptor.WorkerInterceptor) {
	w := newJobWorld(t, 10*time.Minute)
	w.after(time.Minute, func() { w.allocate(1) })
	w.after(3*time.Minute, func() { w.report(1, running) })
	w.after(13*time.Minute+2*time.Second, func() {
		j, err := w.db.Job(context.Background(), w.job.ID)
		must(t, err)
		if j.State != schema.JobStopping {
			t.Errorf("ten minutes after it ran the job is %s", j.State)
		}
		w.report(1, stopped)
	})
	if j := w.run(); j.State != schema.JobTimeout || j.Cause == "" {
		t.Fatalf("the job is %s: %q", j.State, j.Cause)
	}
}

// Its limit is shorter than the time that launching may take, and nobody tells the process that the attempt runs.
func TestAShortTimeLimitIsKept(t *testing.T) {
	w := newJobWorld(t, 3*time.Second)
	w.after(time.Minute, func() { w.allocate(1) })
	w.after(time.Minute+20*time.Second, func() { w.report(1, running) })
	w.after(time.Minute+25*time.Second, func() {
		j, err := w.db.Job(context.Background(), w.job.ID)
		must(t, err)
		if j.State != schema.JobStopping {
			t.Errorf("five seconds after it ran a job limited to three is %s", j.State)
		}
		w.report(1, stopped)
	})
	if j := w.run(); j.State != schema.JobTimeout {
		t.Fatalf("the job is %s: %q", j.State, j.Cause)
	}
}

func TestAJobThatIsNeverStartedGoesBackToTheQueue(t *testing.T) {
	w := newJobWorld(t, 0)
	w.after(time.Second, func() { w.allocate(1) })
	// Nobody takes the task: after the launch timeout it is withdrawn.
	w.after(6*time.Minute, func() {
		j, err := w.db.Job(context.Background(), w.job.ID)
		must(t, err)
		if j.State != schema.JobQueued || j.Requeues != 1 {
			t.Errorf("after the launch timeout the job is %s with %d requeues", j.State, j.Requeues)
		}
		w.allocate(2)
	})
	w.after(7*time.Minute, func() { w.report(2, running); w.report(2, done) })
	if j := w.run(); j.State != schema.JobCompleted || j.Attempt != 2 {
		t.Fatalf("the job is %s after attempt %d: %s", j.State, j.Attempt, j.Cause)
	}
}

func TestAStopThatIsNotConfirmedCordonsTheServer(t *testing.T) {
	w := newJobWorld(t, 0)
	w.after(time.Second, func() { w.allocate(1) })
	w.after(2*time.Second, func() { w.report(1, running) })
	w.after(time.Minute, func() {
		must(t, w.db.RequestStop(context.Background(), w.job.ID, 0, schema.AttemptCancelled, "somebody", ""))
		w.news(schema.EventJobStop, 1)
	})
	if j := w.run(); j.State != schema.JobCancelled {
		t.Fatalf("the job is %s", j.State)
	}
	if past := w.env.Now().Sub(w.job.SubmittedAt.Time()); past < time.Minute+40*time.Second {
		t.Fatalf("released %s after submit: the agent had 10 s of grace and 30 s to confirm", past)
	}
	cordons, err := w.db.Cordons(context.Background(), w.server.ID)
	must(t, err)
	if len(cordons) != 1 || cordons[0].Owner != schema.CordonRelease {
		t.Fatalf("cordons %+v", cordons)
	}
}

func TestACancelInTheQueueEndsTheProcess(t *testing.T) {
	w := newJobWorld(t, 0)
	w.after(time.Hour, func() {
		must(t, w.db.RequestStop(context.Background(), w.job.ID, 0, schema.AttemptCancelled, "somebody", ""))
		w.env.SignalWorkflow(workflows.JobSignal, workflows.JobNews{Kind: schema.EventJobStop, Ended: true})
	})
	if j := w.run(); j.State != schema.JobCancelled {
		t.Fatalf("the job is %s", j.State)
	}
}

func TestNewsOfAnEarlierAttemptDoesNotTouchTheNext(t *testing.T) {
	w := newJobWorld(t, 0)
	w.after(time.Second, func() { w.allocate(1) })
	w.after(2*time.Second, func() { w.report(1, running) })
	w.after(time.Minute, func() {
		must(t, w.db.RequestStop(context.Background(), w.job.ID, 1, schema.AttemptPreempted, "allocator", "for another"))
		w.news(schema.EventJobStop, 1)
		w.report(1, stopped)
	})
	w.after(2*time.Minute, func() { w.allocate(2) })
	w.after(3*time.Minute, func() { w.report(2, running) })
	w.after(4*time.Minute, func() { // the first attempt's end again, and its stop
		w.report(1, stopped)
		w.news(schema.EventJobStop, 1)
	})
	w.after(5*time.Minute, func() {
		j, err := w.db.Job(context.Background(), w.job.ID)
		must(t, err)
		if j.State != schema.JobRunning || j.Requeues != 0 {
			t.Errorf("after old news the job is %s with %d requeues; a preemption counts none", j.State, j.Requeues)
		}
		w.report(2, done)
	})
	if j := w.run(); j.State != schema.JobCompleted || j.Attempt != 2 {
		t.Fatalf("the job is %s after attempt %d: %s", j.State, j.Attempt, j.Cause)
	}
	rows, err := w.db.Ledger(context.Background(), w.job.ID)
	must(t, err)
	if len(rows) != 4 {
		t.Fatalf("%d ledger rows for two attempts of two accelerators", len(rows))
	}
}
