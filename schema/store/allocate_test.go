package store_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

const h100 = "nvidia-h100-80gb"

// bench is a store with servers of 4 H100, a tenant, and an allocator's epoch.
type bench struct {
	*store.Store
	t       *testing.T
	epoch   int64
	servers []schema.Server
	cycle   int64
}

func newBench(t *testing.T, servers int) *bench {
	t.Helper()
	return benchOn(t, storetest.Open(t), servers)
}

func benchOn(t *testing.T, s *store.Store, servers int) *bench {
	t.Helper()
	b := &bench{Store: s, t: t}
	for i := range servers {
		b.servers = append(b.servers, storetest.Available(t, b.Store, i+1, h100, 4))
	}
	_, err := b.CreateSpec(t.Context(), "test", store.NewSpec{Name: "h100x2", Model: h100, Accelerators: 2})
	b.must(err)
	_, err = b.CreateTenant(t.Context(), "test", "blue", 50)
	b.must(err)
	_, err = b.CreateProject(t.Context(), "test", "blue", "main")
	b.must(err)
	b.epoch, err = b.TakeEpoch(t.Context(), "eu", "test")
	b.must(err)
	return b
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) submit(nodes int) schema.Job {
	b.t.Helper()
	j, created, err := b.SubmitJob(b.t.Context(), "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "h100x2", Nodes: nodes, Priority: 90, Command: []string{"true"}})
	b.must(err)
	if !created || j.State != schema.JobQueued || j.Priority != 50 {
		b.t.Fatalf("submitted job is %s with priority %d, created %v; the tenant's cap is 50", j.State, j.Priority, created)
	}
	return j
}

// place is the server's accelerators from and from+1.
func (b *bench) place(server, from int) store.Place {
	b.t.Helper()
	accs, err := b.Accelerators(b.t.Context(), store.AcceleratorFilter{Server: b.servers[server].ID})
	b.must(err)
	return store.Place{Server: b.servers[server].ID, Accelerators: []string{accs[from].ID, accs[from+1].ID}}
}

func (b *bench) commit(starts ...store.Start) []store.Refusal {
	b.t.Helper()
	b.cycle++
	no, err := b.CommitCycle(b.t.Context(), "eu", b.epoch, store.Cycle{Number: b.cycle, Starts: starts})
	b.must(err)
	return no
}

func (b *bench) start(j schema.Job, places ...store.Place) store.Start {
	return store.Start{Job: j.ID, Attempt: j.Attempt + 1, Places: places}
}

func (b *bench) live() int {
	b.t.Helper()
	all, err := b.LiveAttempts(b.t.Context(), "eu")
	b.must(err)
	n := 0
	for _, a := range all {
		for _, p := range a.Places {
			n += len(p.Accelerators)
		}
	}
	return n
}

func TestAStartIsRefusedForWhatHasChangedSinceTheCycle(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*bench, schema.Job) error{
		"the server was cordoned": func(b *bench, _ schema.Job) error {
			_, err := b.Cordon(context.Background(), b.servers[0].ID, "", schema.CordonOperator, "test", "looks odd")
			return err
		},
		"one accelerator was cordoned": func(b *bench, _ schema.Job) error {
			_, err := b.Cordon(context.Background(), b.servers[0].ID, b.place(0, 0).Accelerators[1], schema.CordonOperator, "test", "looks odd")
			return err
		},
		"the server drains": func(b *bench, _ schema.Job) error {
			return b.Drain(context.Background(), b.servers[0].ID, "test", "maintenance")
		},
		"the job was held": func(b *bench, j schema.Job) error { return b.HoldJob(context.Background(), j.ID, "test") },
		"the job was cancelled": func(b *bench, j schema.Job) error {
			return b.RequestStop(context.Background(), j.ID, 0, schema.AttemptCancelled, "test", "")
		},
		"an accelerator is gone": func(b *bench, _ schema.Job) error {
			_, err := b.Heartbeat(context.Background(), b.servers[0].ID, agentproto.Heartbeat{Apart: true, BootID: "boot-1", Devices: storetest.Devices(b.servers[0].Name, h100, 4)[1:]})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1)
			j := b.submit(1)
			b.must(change(b, j))
			no := b.commit(b.start(j, b.place(0, 0)))
			if len(no) != 1 || no[0].Why == "" {
				t.Fatalf("refusals %+v, want one with its reason", no)
			}
			if n := b.live(); n != 0 {
				t.Fatalf("%d accelerators are held after a refused start", n)
			}
		})
	}
}

// So many starts and reasons that both databases are given them in several ways at once.
func TestALargeCycleIsWrittenWhole(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	b := newBench(t, 0)
	const per, jobs = 64, 300
	for i := range (jobs + per - 1) / per {
		b.servers = append(b.servers, storetest.Available(t, b.Store, i+1, h100, per))
	}
	_, err := b.CreateSpec(ctx, "test", store.NewSpec{Name: "x1", Model: h100, Accelerators: 1})
	b.must(err)
	c := store.Cycle{Number: 1, Reasons: map[string]schema.ReasonDoc{}}
	var started, waiting []string
	var accs []schema.Accelerator
	for i := range jobs {
		j, _, err := b.SubmitJob(ctx, "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "x1", Nodes: 1, Command: []string{"true"}})
		b.must(err)
		started = append(started, j.ID)
		server := b.servers[i/per].ID
		if i%per == 0 {
			accs, err = b.Accelerators(ctx, store.AcceleratorFilter{Server: server})
			b.must(err)
		}
		c.Starts = append(c.Starts, store.Start{Job: j.ID, Attempt: 1, Places: []store.Place{{Server: server, Accelerators: []string{accs[i%per].ID}}}})
	}
	for range jobs {
		j, _, err := b.SubmitJob(ctx, "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "x1", Nodes: 1, Command: []string{"true"}})
		b.must(err)
		waiting = append(waiting, j.ID)
		c.Reasons[j.ID] = schema.ReasonDoc{Code: schema.ReasonCapacity, Since: 7, ClearsWhen: "soon"}
	}
	c.Reasons[started[0]] = schema.ReasonDoc{Code: schema.ReasonCapacity} // it does not wait: it starts in the same cycle
	b.must(b.HoldJob(ctx, started[1], "test"))
	before, err := b.Head(ctx)
	b.must(err)
	refused, err := b.CommitCycle(ctx, "eu", b.epoch, c)
	b.must(err)
	if len(refused) != 1 || refused[0].Job != started[1] {
		t.Fatalf("refused are %+v, want the job that is held", refused)
	}
	events, _, err := b.Events(ctx, before, 5000, store.EventFilter{})
	b.must(err)
	told := map[schema.EventKind]int{}
	for i, e := range events {
		told[e.Kind]++
		if e.Seq != before+1+int64(i) {
			t.Fatalf("event %d is the %d. after %d", e.Seq, i+1, before)
		}
	}
	if told[schema.EventJobAllocated] != jobs-1 || told[schema.EventJobState] != jobs-1 || told[schema.EventJobReason] != jobs {
		t.Fatalf("told is %v", told)
	}
	if n := b.live(); n != jobs-1 {
		t.Fatalf("%d accelerators are held, want %d", n, jobs-1)
	}
	for i, id := range started {
		want, attempt := schema.JobStarting, 1
		if i == 1 {
			want, attempt = schema.JobQueued, 0
		}
		if j, err := b.Job(ctx, id); err != nil || j.State != want || j.Attempt != attempt {
			t.Fatalf("job %d is %s at attempt %d (%v), want %s at %d", i, j.State, j.Attempt, err, want, attempt)
		}
	}
	again := store.Cycle{Number: 2, Reasons: map[string]schema.ReasonDoc{}}
	for i, id := range waiting {
		code := schema.ReasonCapacity
		if i%2 == 1 {
			code = schema.ReasonWindow
		}
		again.Reasons[id] = schema.ReasonDoc{Code: code, Since: 9, ClearsWhen: "later"}
	}
	_, err = b.CommitCycle(ctx, "eu", b.epoch, again)
	b.must(err)
	for i, id := range waiting {
		j, err := b.Job(ctx, id)
		b.must(err)
		r, ok := store.Reason(j.Reason)
		if want := schema.Instant(7 + 2*(i%2)); !ok || r.Since != want || r.ClearsWhen != "later" {
			t.Fatalf("job %d waits since %d, %q; want since %d, and the newer words", i, r.Since, r.ClearsWhen, want)
		}
	}
}

func TestAnAcceleratorIsNeverInTwoLiveAllocations(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	one, two := b.submit(1), b.submit(1)
	// In one cycle, and in the next.
	no := b.commit(b.start(one, b.place(0, 0)), b.start(two, b.place(0, 1)))
	if len(no) != 1 || no[0].Job != two.ID {
		t.Fatalf("refusals %+v, want the second job's", no)
	}
	if no := b.commit(b.start(two, b.place(0, 1))); len(no) != 1 {
		t.Fatalf("refusals %+v, want one", no)
	}
	if n := b.live(); n != 2 {
		t.Fatalf("%d accelerators are held, want 2", n)
	}
	if no := b.commit(b.start(two, b.place(0, 2))); len(no) != 0 {
		t.Fatalf("the free ones were refused: %+v", no)
	}
}

func TestAHolderWhoseEpochHasPassedCommitsNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	j := b.submit(1)
	_, err := b.TakeEpoch(t.Context(), "eu", "another")
	b.must(err)
	_, err = b.CommitCycle(t.Context(), "eu", b.epoch, store.Cycle{Number: 1, Starts: []store.Start{b.start(j, b.place(0, 0))}})
	if !schema.Is(err, schema.CodeStale) {
		t.Fatalf("got %v, want stale", err)
	}
	if n := b.live(); n != 0 {
		t.Fatalf("%d accelerators are held", n)
	}
}

func (b *bench) end(j schema.Job, rank int, r agentproto.TaskReport) {
	b.t.Helper()
	task, err := b.Task(b.t.Context(), store.RunTaskID(j.ID, j.Attempt, rank))
	b.must(err)
	r.Task = task.ID
	if r.Seq == 0 {
		r.Seq = 9
	}
	_, err = b.Report(b.t.Context(), task.Server, agentproto.Report{Tasks: []agentproto.TaskReport{r}})
	b.must(err)
}

func (b *bench) job(id string) schema.Job {
	b.t.Helper()
	j, err := b.Job(b.t.Context(), id)
	b.must(err)
	return j
}

func TestAGangIsReleasedOnceAndOnlyWhenNothingOfItIsLeft(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2)
	ctx, zero := t.Context(), 0
	j := b.submit(2)
	if no := b.commit(b.start(j, b.place(0, 0), b.place(1, 0))); len(no) != 0 {
		t.Fatalf("refused: %+v", no)
	}
	j = b.job(j.ID)
	b.must(b.DispatchAttempt(ctx, j.ID, 1))
	b.must(b.DispatchAttempt(ctx, j.ID, 1)) // an activity that is tried again
	tasks, err := b.JobTasks(ctx, j.ID, 1)
	b.must(err)
	if len(tasks) != 2 {
		t.Fatalf("%d tasks for 2 servers", len(tasks))
	}
	for _, v := range b.servers {
		got, err := b.ClaimTasks(ctx, v.ID)
		b.must(err)
		if len(got) != 1 {
			t.Fatalf("server %s was given %d tasks", v.Name, len(got))
		}
		if again, err := b.ClaimTasks(ctx, v.ID); err != nil || len(again) != 0 {
			t.Fatalf("server %s was given %d tasks again at once (%v)", v.Name, len(again), err)
		}
	}
	b.end(j, 0, agentproto.TaskReport{State: schema.TaskDone, ExitCode: &zero, NoneLeft: true})
	if _, err := b.SettleAttempt(ctx, j.ID, 1, nil); !schema.Is(err, schema.CodeUnsafe) {
		t.Fatalf("got %v, want unsafe: one part runs", err)
	}
	b.end(j, 1, agentproto.TaskReport{State: schema.TaskDone, ExitCode: &zero, NoneLeft: true})
	for range 2 {
		s, err := b.SettleAttempt(ctx, j.ID, 1, nil)
		b.must(err)
		if s.State != schema.JobCompleted || s.Outcome != schema.AttemptCompleted {
			t.Fatalf("settled as %+v", s)
		}
	}
	rows, err := b.Ledger(ctx, j.ID)
	b.must(err)
	held, err := b.JobAllocations(ctx, j.ID)
	b.must(err)
	var ledger, allocated int64
	for _, r := range rows {
		ledger += r.Milliseconds()
	}
	for _, a := range held {
		allocated += int64(a.ReleasedAt - a.AllocatedAt)
	}
	if len(rows) != 4 || len(held) != 4 || ledger != allocated {
		t.Fatalf("%d rows of %d ms for %d allocations of %d ms", len(rows), ledger, len(held), allocated)
	}
}

func TestWhatCanNotBeConfirmedIsCordonedAsItIsReleased(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	j := b.submit(1)
	b.commit(b.start(j, b.place(0, 0)))
	j = b.job(j.ID)
	b.must(b.DispatchAttempt(t.Context(), j.ID, 1))
	_, err := b.ClaimTasks(t.Context(), b.servers[0].ID)
	b.must(err)
	b.must(b.RequestStop(t.Context(), j.ID, 1, schema.AttemptLost, "health", "the agent is silent"))
	s, err := b.SettleAttempt(t.Context(), j.ID, 1, []string{b.servers[0].ID})
	b.must(err)
	if s.State != schema.JobQueued {
		t.Fatalf("a job that lost its server is %s", s.State)
	}
	// What is said of an attempt that has passed, as by a cluster once more, says nothing of the job that waits for its next.
	for _, why := range []schema.AttemptOutcome{schema.AttemptLost, schema.AttemptCancelled, schema.AttemptTimeout, schema.AttemptUnstarted} {
		if err := b.RequestStop(t.Context(), j.ID, 1, why, "cluster/prod", "the node is gone"); !schema.Is(err, schema.CodeStale) || b.job(j.ID).State != schema.JobQueued {
			t.Fatalf("told afterwards that attempt 1 is %s: %v, and the job is %s", why, err, b.job(j.ID).State)
		}
	}
	cordons, err := b.Cordons(t.Context(), b.servers[0].ID)
	b.must(err)
	if len(cordons) != 1 || cordons[0].Owner != schema.CordonRelease {
		t.Fatalf("cordons %+v, want one for the release", cordons)
	}
	if no := b.commit(store.Start{Job: j.ID, Attempt: 2, Places: []store.Place{b.place(0, 2)}}); len(no) != 1 {
		t.Fatal("a server whose release is unconfirmed was given out")
	}
}

// A part that fails has the others stopped: what they answer to the stop is not why the attempt ended.
func TestAGangEndsAsThePartThatFailed(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2)
	j := b.submit(2)
	b.commit(b.start(j, b.place(0, 0), b.place(1, 0)))
	j = b.job(j.ID)
	b.must(b.DispatchAttempt(t.Context(), j.ID, 1))
	for _, v := range b.servers {
		_, err := b.ClaimTasks(t.Context(), v.ID)
		b.must(err)
	}
	seven, term := 7, 143
	b.end(j, 1, agentproto.TaskReport{State: schema.TaskFailed, ExitCode: &seven, NoneLeft: true, Text: "exited with code 7"})
	b.end(j, 0, agentproto.TaskReport{State: schema.TaskCancelled, ExitCode: &term, Signal: "TERM", NoneLeft: true, Text: "ended by SIGTERM"})
	_, err := b.SettleAttempt(t.Context(), j.ID, 1, nil)
	b.must(err)
	if got := b.job(j.ID); got.State != schema.JobFailed || got.ExitCode == nil || *got.ExitCode != 7 || got.Cause != "exited with code 7" {
		t.Fatalf("the job is %s with exit code %v: %q", got.State, got.ExitCode, got.Cause)
	}
}

func TestHowAnAttemptEnds(t *testing.T) {
	t.Parallel()
	zero, seven := 0, 7
	ok := agentproto.TaskReport{State: schema.TaskDone, ExitCode: &zero, NoneLeft: true}
	for name, c := range map[string]struct {
		stop    schema.AttemptOutcome
		report  agentproto.TaskReport
		outcome schema.AttemptOutcome
		state   schema.JobState
	}{
		"exit code 0":                         {"", ok, schema.AttemptCompleted, schema.JobCompleted},
		"another exit code":                   {"", agentproto.TaskReport{State: schema.TaskFailed, ExitCode: &seven, NoneLeft: true}, schema.AttemptFailed, schema.JobFailed},
		"the server would not start it":       {"", agentproto.TaskReport{State: schema.TaskFailed, NoneLeft: true, Text: "refused"}, schema.AttemptUnstarted, schema.JobQueued},
		"cancelled, though it ended well":     {schema.AttemptCancelled, ok, schema.AttemptCancelled, schema.JobCancelled},
		"ran past its limit":                  {schema.AttemptTimeout, agentproto.TaskReport{State: schema.TaskFailed, Signal: "KILL", NoneLeft: true}, schema.AttemptTimeout, schema.JobTimeout},
		"preempted":                           {schema.AttemptPreempted, agentproto.TaskReport{State: schema.TaskFailed, Signal: "TERM", NoneLeft: true}, schema.AttemptPreempted, schema.JobQueued},
		"preempted, but it had done its work": {schema.AttemptPreempted, ok, schema.AttemptCompleted, schema.JobCompleted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1)
			j := b.submit(1)
			b.commit(b.start(j, b.place(0, 0)))
			j = b.job(j.ID)
			b.must(b.DispatchAttempt(t.Context(), j.ID, 1))
			_, err := b.ClaimTasks(t.Context(), b.servers[0].ID)
			b.must(err)
			if c.stop != "" {
				b.must(b.RequestStop(t.Context(), j.ID, 1, c.stop, "test", "because"))
				b.must(b.RequestStop(t.Context(), j.ID, 1, schema.AttemptCancelled, "test", "a later word")) // the first stands
			}
			b.end(j, 0, c.report)
			s, err := b.SettleAttempt(t.Context(), j.ID, 1, nil)
			b.must(err)
			if s.Outcome != c.outcome || s.State != c.state {
				t.Fatalf("got %+v, want %s and %s", s, c.outcome, c.state)
			}
			// A report that comes late, or again, touches nothing.
			b.end(j, 0, agentproto.TaskReport{Seq: 99, State: schema.TaskFailed, ExitCode: &seven, NoneLeft: true})
			if got := b.job(j.ID); got.State != c.state {
				t.Fatalf("a late report made the job %s", got.State)
			}
		})
	}
}

func TestOneIdempotencyKeyIsOneJobForEver(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	in := store.NewJob{Tenant: "blue", Project: "main", Spec: "h100x2", Nodes: 1, Command: []string{"true"}}
	ids := make([]string, 20)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			j, _, err := b.SubmitJob(context.Background(), "test", "K", "body-1", in)
			if err != nil {
				t.Error(err)
			}
			ids[i] = j.ID
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("one key made %s and %s", ids[0], id)
		}
	}
	if _, _, err := b.SubmitJob(t.Context(), "test", "K", "body-2", in); !schema.Is(err, schema.CodeReused) {
		t.Fatalf("got %v, want idempotency-reused", err)
	}
}

func TestEventNumbersBecomeVisibleInOrder(t *testing.T) {
	t.Parallel()
	s := storetest.Open(t)
	const writers, each = 8, 50
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range each {
				if err := s.CreateOne(context.Background(), ""); err != nil {
					t.Error(err)
				}
			}
		})
	}
	go func() { wg.Wait(); close(done) }()
	var at int64
	deadline := time.After(30 * time.Second)
	for at < writers*each {
		ev, next, err := s.WaitEvents(t.Context(), at, 7, store.EventFilter{}, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range ev {
			if e.Seq != at+1 {
				t.Fatalf("after %d comes %d", at, e.Seq)
			}
			at = e.Seq
		}
		at = next
		select {
		case <-deadline:
			t.Fatalf("only %d events came", at)
		default:
		}
	}
	<-done
}

func TestTheLedgerAndTheEventsAreOnlyEverAddedTo(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	for _, q := range []string{"UPDATE events SET kind = 'x'", "DELETE FROM events"} {
		if err := b.Exec(t.Context(), q); err == nil {
			t.Fatalf("%s was allowed", q)
		}
	}
}

func TestASkippedBurnInProvesNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	ctx := t.Context()
	in, err := b.EnrollServers(ctx, "test", storetest.Ring(t), []store.NewServer{storetest.NewServer(2, h100, 4)})
	b.must(err)
	v, err := b.BeginOnboarding(ctx, in[0].ID, "test")
	b.must(err)
	beat := agentproto.Heartbeat{Apart: true, BootID: "boot-1", Devices: storetest.Devices(v.Name, h100, 4)}
	_, err = b.Heartbeat(ctx, v.ID, beat)
	b.must(err)
	b.must(b.SetStep(ctx, v.ID, v.Attempt, schema.StepBurnIn, schema.StepFailed, "SXM1 failed compute"))
	b.must(b.SetStep(ctx, v.ID, v.Attempt, schema.StepBurnIn, schema.StepSkipped, "by an operator"))
	b.must(b.FinishOnboarding(ctx, v.ID, v.Attempt))
	for range 2 {
		_, err = b.Heartbeat(ctx, v.ID, beat)
		b.must(err)
	}
	b.servers = append(b.servers, v)
	j := b.submit(1)
	if no := b.commit(b.start(j, b.place(1, 0))); len(no) != 1 {
		t.Fatal("hardware that never passed its burn-in was given out")
	}

	// It can be proven later: out of the pool at once, and back by its proof only.
	r, err := b.BeginBurnIn(ctx, v.ID, "ann")
	b.must(err)
	if v, err = b.Server(ctx, v.ID); err != nil || v.Phase != schema.PhaseRepairing || r.State != schema.RepairVerifying || r.Part != schema.PartNone {
		t.Fatalf("the server is %s, the repair %+v, %v", v.Phase, r, err)
	}
	_, err = b.BeginBurnIn(ctx, v.ID, "bob")
	wantCode(t, err, schema.CodeConflict, r.ID)
	wantCode(t, b.RepairReturn(ctx, r.ID, "no such task"), schema.CodeNotFound, "burn-in")
}

func TestAServerWithJobsOrProtectedIsNotBurntIn(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2)
	ctx := t.Context()
	j := b.submit(1)
	if no := b.commit(b.start(j, b.place(0, 0))); len(no) != 0 {
		t.Fatal(no)
	}
	b.must(b.Protect(ctx, b.servers[1].ID, true, "ann"))
	for i, says := range []string{"holds 2 accelerators of live jobs", "is protected"} {
		_, err := b.BeginBurnIn(ctx, b.servers[i].ID, "ann")
		wantCode(t, err, schema.CodeUnsafe, says)
		if v, err := b.Server(ctx, b.servers[i].ID); err != nil || v.Phase != schema.PhaseAvailable {
			t.Fatalf("a refused burn-in left the server %s, %v", v.Phase, err)
		}
	}
	in, err := b.EnrollServers(ctx, "test", storetest.Ring(t), []store.NewServer{storetest.NewServer(9, h100, 4)})
	b.must(err)
	_, err = b.BeginBurnIn(ctx, in[0].ID, "ann")
	wantCode(t, err, schema.CodeConflict, "enrolled")
}

func TestJobsAndAcceleratorsAreKept(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	j := b.submit(1)
	if no := b.commit(b.start(j, b.place(0, 0))); len(no) != 0 {
		t.Fatalf("refused: %+v", no)
	}
	for _, table := range []string{"jobs", "accelerators"} {
		if err := b.Exec(t.Context(), "DELETE FROM "+table); err == nil || !strings.Contains(err.Error(), table+" are never deleted") {
			t.Errorf("rows of %s that allocations name were deleted: %v", table, err)
		}
	}
}
