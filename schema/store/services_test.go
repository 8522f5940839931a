package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// served is a bench on a clock of its own with a service of one replica that runs on the first server.
type served struct {
	*bench
	now *atomic.Int64
	job schema.Job
}

func newServed(t *testing.T, change func(*store.NewJob)) *served {
	t.Helper()
	var now atomic.Int64
	now.Store(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC).UnixMilli())
	b := &bench{Store: storetest.OpenAt(t, func() time.Time { return time.UnixMilli(now.Load()) }), t: t}
	for n := range 2 {
		b.servers = append(b.servers, storetest.Available(t, b.Store, n+1, h100, 4))
	}
	_, err := b.CreateSpec(t.Context(), "test", store.NewSpec{Name: "h100x2", Model: h100, Accelerators: 2})
	b.must(err)
	_, err = b.CreateTenant(t.Context(), "test", "blue", 50)
	b.must(err)
	_, err = b.CreateProject(t.Context(), "test", "blue", "main")
	b.must(err)
	b.epoch, err = b.TakeEpoch(t.Context(), "eu", "test")
	b.must(err)
	in := store.NewJob{Tenant: "blue", Project: "main", Spec: "h100x2", Nodes: 1, Kind: schema.JobService, Command: []string{"serve"}}
	if change != nil {
		change(&in)
	}
	s := &served{bench: b, now: &now}
	s.job, _, err = b.SubmitJob(t.Context(), "test", "", "", in)
	b.must(err)
	s.begin(0)
	return s
}

// begin places the replica on a server and dispatches it.
func (s *served) begin(server int) {
	s.t.Helper()
	if no := s.commit(s.start(s.job, s.place(server, 0))); len(no) > 0 {
		s.t.Fatal(no)
	}
	s.job = s.bench.job(s.job.ID)
	s.must(s.DispatchAttempt(s.t.Context(), s.job.ID, s.job.Attempt))
}

func (s *served) wait(d time.Duration) { s.now.Add(d.Milliseconds()) }

// claim is what the agent of a server is handed now, which has to be n tasks.
func (s *served) claim(server, n int) []agentproto.Task {
	s.t.Helper()
	got, err := s.ClaimTasks(s.t.Context(), s.servers[server].ID)
	s.must(err)
	if len(got) != n {
		s.t.Fatalf("the agent is handed %d tasks, want %d: %+v", len(got), n, got)
	}
	return got
}

func (s *served) tell(server int, r agentproto.TaskReport) {
	s.t.Helper()
	_, err := s.Report(s.t.Context(), s.servers[server].ID, agentproto.Report{Tasks: []agentproto.TaskReport{r}})
	s.must(err)
}

// runOnce takes what is due, runs it for d and ends it with a code.
func (s *served) runOnce(d time.Duration, code int, says string) {
	s.t.Helper()
	id := s.claim(0, 1)[0].ID
	s.tell(0, agentproto.TaskReport{Task: id, Seq: 1, State: schema.TaskRunning, Output: says})
	s.wait(d)
	state := schema.TaskDone
	if code != 0 {
		state = schema.TaskFailed
	}
	s.tell(0, agentproto.TaskReport{Task: id, Seq: 2, State: state, ExitCode: &code, NoneLeft: true})
}

func TestAServiceIsBegunAgainWhereItRanWithWhatItHolds(t *testing.T) {
	t.Parallel()
	s := newServed(t, nil)
	// The waits are those of the kubelet: none, 10 s, 20 s, 40 s ... 5 min, and none again after a run that lasted.
	for i, wait := range []time.Duration{0, 10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 5 * time.Minute, 5 * time.Minute} {
		s.runOnce(time.Second, i%2, fmt.Sprintf("run %d\n", i)) // the end of a service is the same whatever its code
		if wait > 0 {
			s.claim(0, 0)
			s.wait(wait - time.Millisecond)
			s.claim(0, 0)
			s.wait(time.Millisecond)
		}
	}
	s.runOnce(11*time.Minute, 1, "long\n")
	id := s.claim(0, 1)[0].ID
	s.tell(0, agentproto.TaskReport{Task: id, Seq: 1, State: schema.TaskRunning, Output: "last\n"})
	j := s.bench.job(s.job.ID)
	if j.State != schema.JobRunning || j.Attempt != 1 || j.Restarts != 9 || s.live() != 2 {
		t.Errorf("it is %s in attempt %d after %d restarts and holds %d, want running, 1, 9, 2", j.State, j.Attempt, j.Restarts, s.live())
	}
	if n := s.count(schema.EventJobRestarted, store.EventFilter{Job: j.ID}); n != 9 {
		t.Errorf("%d restarts were told, want 9", n)
	}
	pieces, err := s.JobOutput(t.Context(), j.ID, 1, 0, 0)
	s.must(err)
	var out strings.Builder
	for _, p := range pieces {
		out.WriteString(p.Output)
	}
	if want := "run 0\nrun 1\nrun 2\nrun 3\nrun 4\nrun 5\nrun 6\nrun 7\nlong\nlast\n"; out.String() != want {
		t.Errorf("its output is %q, want %q", out.String(), want)
	}

	s.wait(time.Minute)
	s.must(s.RequestStop(t.Context(), j.ID, 0, schema.AttemptCancelled, "test", ""))
	s.wait(store.RedeliverAfter + time.Second)
	stop := s.claim(0, 1)[0]
	if !stop.Stop || stop.ID != id {
		t.Fatalf("the agent is handed %+v, want the stop of %s", stop, id)
	}
	s.tell(0, agentproto.TaskReport{Task: id, Seq: 2, State: schema.TaskCancelled, NoneLeft: true})
	got, err := s.SettleAttempt(t.Context(), j.ID, 1, nil)
	s.must(err)
	if got.State != schema.JobCancelled || s.live() != 0 {
		t.Errorf("after a cancel it is %s and holds %d", got.State, s.live())
	}
	rows, err := s.Ledger(t.Context(), j.ID)
	s.must(err)
	if len(rows) != 2 || rows[0].Start != j.StartedAt || rows[0].End.Sub(rows[0].Start) < 22*time.Minute {
		t.Errorf("its ledger rows are %+v: want one for each accelerator over all its runs", rows)
	}
}

func TestAServiceThatIsToRunKeepsOnlyItsLatestRuns(t *testing.T) {
	t.Parallel()
	s := newServed(t, nil)
	for i := range 40 {
		s.runOnce(10*time.Minute, 1, fmt.Sprintf("run %d\n", i))
	}
	tasks, err := s.JobTasks(t.Context(), s.job.ID, 1)
	s.must(err)
	pieces, err := s.JobOutput(t.Context(), s.job.ID, 1, 0, 0)
	s.must(err)
	if len(tasks) != 12 || len(pieces) != 11 || pieces[0].Output != "run 0\n" || pieces[1].Output != "run 30\n" {
		t.Errorf("%d runs and %d pieces of output are kept: %+v; want the first and the last ten, and what comes next", len(tasks), len(pieces), pieces)
	}
}

func TestAServiceThatCantBeBegunWhereItRanGoesBackToTheQueue(t *testing.T) {
	t.Parallel()
	one := 1
	ended := func(s *served) string {
		id := s.claim(0, 1)[0].ID
		s.tell(0, agentproto.TaskReport{Task: id, Seq: 1, State: schema.TaskRunning})
		return id
	}
	for name, c := range map[string]struct {
		happens func(s *served)
		outcome schema.AttemptOutcome
	}{
		"its server was cordoned": {func(s *served) {
			id := ended(s)
			_, err := s.Cordon(context.Background(), s.servers[0].ID, "", schema.CordonOperator, "test", "smoke")
			s.must(err)
			s.tell(0, agentproto.TaskReport{Task: id, Seq: 2, State: schema.TaskFailed, ExitCode: &one, NoneLeft: true})
		}, schema.AttemptFailed},
		"a device of it was cordoned": {func(s *served) {
			id := ended(s)
			_, err := s.Cordon(context.Background(), s.servers[0].ID, s.place(0, 0).Accelerators[1], schema.CordonFault, "health", "XID 79")
			s.must(err)
			s.tell(0, agentproto.TaskReport{Task: id, Seq: 2, State: schema.TaskDone, NoneLeft: true})
		}, schema.AttemptFailed},
		"its server was lost": {func(s *served) {
			id := ended(s)
			s.must(s.RequestStop(context.Background(), s.job.ID, 1, schema.AttemptLost, "health", "the server is gone"))
			s.tell(0, agentproto.TaskReport{Task: id, Seq: 2, State: schema.TaskCancelled, NoneLeft: true})
		}, schema.AttemptLost},
		"it ended well as it was preempted": {func(s *served) {
			id := ended(s)
			s.must(s.RequestStop(context.Background(), s.job.ID, 1, schema.AttemptPreempted, "allocator", "for another"))
			zero := 0
			s.tell(0, agentproto.TaskReport{Task: id, Seq: 2, State: schema.TaskDone, ExitCode: &zero, NoneLeft: true})
		}, schema.AttemptPreempted},
		"the server could not begin it": {func(s *served) {
			s.tell(0, agentproto.TaskReport{Task: s.claim(0, 1)[0].ID, Seq: 1, State: schema.TaskFailed, Text: "no such image", NoneLeft: true})
		}, schema.AttemptUnstarted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServed(t, nil)
			c.happens(s)
			got, err := s.SettleAttempt(t.Context(), s.job.ID, 1, nil)
			s.must(err)
			if got.State != schema.JobQueued || got.Outcome != c.outcome || s.live() != 0 {
				t.Fatalf("it is %s, attempt 1 %s, and holds %d; want queued, %s, 0", got.State, got.Outcome, s.live(), c.outcome)
			}
			s.job = s.bench.job(s.job.ID)
			s.begin(1) // elsewhere
			s.tell(1, agentproto.TaskReport{Task: s.claim(1, 1)[0].ID, Seq: 1, State: schema.TaskRunning})
			if j := s.bench.job(s.job.ID); j.State != schema.JobRunning || j.Attempt != 2 {
				t.Errorf("it is %s in attempt %d elsewhere", j.State, j.Attempt)
			}
		})
	}
}

func TestAServiceWhoseEndIsNotProvenIsNotBegunBesideIt(t *testing.T) {
	t.Parallel()
	s := newServed(t, nil)
	id, code := s.claim(0, 1)[0].ID, 1
	s.tell(0, agentproto.TaskReport{Task: id, Seq: 1, State: schema.TaskRunning})
	s.tell(0, agentproto.TaskReport{Task: id, Seq: 2, State: schema.TaskFailed, ExitCode: &code}) // something of it is left
	s.claim(0, 0)
	if _, err := s.SettleAttempt(t.Context(), s.job.ID, 1, nil); !schema.Is(err, schema.CodeUnsafe) {
		t.Fatalf("its devices were given back: %v", err)
	}
	got, err := s.SettleAttempt(t.Context(), s.job.ID, 1, []string{s.servers[0].ID})
	s.must(err)
	if got.State != schema.JobQueued {
		t.Errorf("it is %s, want queued for another server", got.State)
	}
}

func TestAServiceIsKeptHoweverOftenItIsLost(t *testing.T) {
	t.Parallel()
	s := newServed(t, nil)
	for attempt := 1; attempt <= store.DefaultRequeueLimit+3; attempt++ {
		id := s.claim(0, 1)[0].ID
		s.tell(0, agentproto.TaskReport{Task: id, Seq: 1, State: schema.TaskFailed, Text: "no such image", NoneLeft: true})
		got, err := s.SettleAttempt(t.Context(), s.job.ID, attempt, nil)
		s.must(err)
		s.job = s.bench.job(s.job.ID)
		var want time.Duration
		if attempt > 1 {
			want = min(10*time.Second<<(attempt-2), 5*time.Minute)
		}
		if got.State != schema.JobQueued || s.job.NotBefore.Sub(s.Now()) != want {
			t.Fatalf("after attempt %d it is %s and waits for %s, want queued and %s", attempt, got.State, s.job.NotBefore.Sub(s.Now()), want)
		}
		s.begin(0)
	}
}

func TestATimeLimitThatWasAskedForEndsAService(t *testing.T) {
	t.Parallel()
	s := newServed(t, func(n *store.NewJob) { n.TimeLimit = time.Hour })
	id := s.claim(0, 1)[0].ID
	s.tell(0, agentproto.TaskReport{Task: id, Seq: 1, State: schema.TaskRunning})
	s.must(s.RequestStop(t.Context(), s.job.ID, 1, schema.AttemptTimeout, "job", "its limit"))
	s.tell(0, agentproto.TaskReport{Task: id, Seq: 2, State: schema.TaskCancelled, NoneLeft: true})
	if got, err := s.SettleAttempt(t.Context(), s.job.ID, 1, nil); err != nil || got.State != schema.JobTimeout {
		t.Errorf("it is %s (%v), want timeout", got.State, err)
	}
}

func TestServicesThatCantBe(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	_, err := b.CreateSpec(t.Context(), "test", store.NewSpec{Name: "short", Model: h100, Accelerators: 2, MaxTime: time.Hour})
	b.must(err)
	_, err = b.CreateSpec(t.Context(), "test", store.NewSpec{Name: "mi300", Model: "amd-mi300x-192gb", Accelerators: 2})
	b.must(err)
	slurm := storetest.NewServer(9, "amd-mi300x-192gb", 4)
	slurm.Backend, slurm.Cluster = "slurm", "prod"
	onSlurm := storetest.AvailableAs(t, b.Store, slurm)
	two := 2
	for name, c := range map[string]struct {
		change func(*store.NewJob)
		field  string
	}{
		"a gang":                             {func(n *store.NewJob) { n.Nodes = 2 }, "nodes"},
		"a requeue limit":                    {func(n *store.NewJob) { n.RequeueLimit = &two }, "requeue_limit"},
		"another kind":                       {func(n *store.NewJob) { n.Kind = "daemon" }, "kind"},
		"a spec whose jobs end":              {func(n *store.NewJob) { n.Spec = "short" }, "spec"},
		"servers that are all a Slurm's own": {func(n *store.NewJob) { n.Spec = "mi300" }, "kind"},
	} {
		in := store.NewJob{Tenant: "blue", Project: "main", Spec: "h100x2", Nodes: 1, Kind: schema.JobService, Command: []string{"serve"}}
		c.change(&in)
		var e *schema.Error
		if _, _, err := b.SubmitJob(t.Context(), "test", "", "", in); !errors.As(err, &e) || e.Field != c.field {
			t.Errorf("%s: %v, want an error of field %s", name, err, c.field)
		}
	}
	in := store.NewJob{Tenant: "blue", Project: "main", Spec: "h100x2", Nodes: 1, Kind: schema.JobService, Command: []string{"serve"}, Array: "chat", ArrayLimit: 1}
	var e *schema.Error
	if _, _, err := b.SubmitArray(t.Context(), "test", "", "", in, []int{0, 1}); !errors.As(err, &e) || e.Field != "array_limit" {
		t.Errorf("a limit of replicas: %v", err)
	}
	if _, _, err := b.SubmitJob(t.Context(), "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "short", Nodes: 1, Kind: schema.JobService, Command: []string{"serve"}, TimeLimit: time.Minute}); err != nil {
		t.Errorf("a service with a time limit on a spec that has one: %v", err)
	}
	// One that is placed on a Slurm cluster all the same is refused as it would begin.
	b.servers = append(b.servers, onSlurm)
	storetest.Available(t, b.Store, 10, "amd-mi300x-192gb", 4)
	j, _, err := b.SubmitJob(t.Context(), "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "mi300", Nodes: 1, Kind: schema.JobService, Command: []string{"serve"}})
	b.must(err)
	if no := b.commit(b.start(j, b.place(1, 0))); len(no) != 1 || !strings.Contains(no[0].Why, "slurm, does not have services") {
		t.Errorf("refusals %+v, want one that names Slurm", no)
	}
}

func TestAServiceIsScaled(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2)
	in := store.NewJob{Tenant: "blue", Project: "main", Spec: "h100x2", Nodes: 1, Kind: schema.JobService, Command: []string{"serve", "it"}, Array: "chat", Env: map[string]string{"A": "b"}, Priority: 7}
	a, _, err := b.SubmitArray(t.Context(), "test", "", "", in, []int{0, 1, 2})
	b.must(err)
	replicas := func() map[int]schema.Job {
		jobs, err := b.Jobs(t.Context(), store.JobFilter{Array: "chat", Live: true})
		b.must(err)
		out := map[int]schema.Job{}
		for _, j := range jobs {
			out[*j.ArrayIndex] = j
		}
		if len(out) != len(jobs) {
			t.Errorf("%d replicas with %d indices", len(jobs), len(out))
		}
		return out
	}
	first := replicas()
	b.must(b.Scale(t.Context(), a, 1, "test"))
	if now := replicas(); len(now) != 1 || now[0].ID != first[0].ID {
		t.Fatalf("after scaling to one there are %+v, want the first", now)
	}
	b.must(b.Scale(t.Context(), a, 4, "test"))
	b.must(b.Scale(t.Context(), a, 4, "test")) // again is no error and changes nothing
	now := replicas()
	if len(now) != 4 || now[0].ID != first[0].ID || now[1].ID == first[1].ID {
		t.Fatalf("after scaling to four there are %+v", now)
	}
	j := now[3]
	if j.Kind != schema.JobService || j.Name != "chat-3" || j.Command != first[0].Command || j.Priority != 7 || !strings.Contains(j.Env, `"GPUPOOL_ARRAY_INDEX":"3"`) || !strings.Contains(j.Env, `"A":"b"`) {
		t.Errorf("the new replica is %+v", j)
	}
	got, err := b.Array(t.Context(), "blue", "main", "chat")
	b.must(err)
	if got.Kind != schema.JobService || got.Jobs != 6 {
		t.Errorf("the service is %+v", got)
	}
	b.must(b.CancelArray(t.Context(), got, "test"))
	if err := b.Scale(t.Context(), a, 2, "test"); !schema.Is(err, schema.CodeConflict) {
		t.Errorf("scaling what has ended: %v", err)
	}
	if _, _, err := b.SubmitJob(t.Context(), "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "h100x2", Nodes: 1, Command: []string{"x"}, Array: "batch"}); err != nil {
		t.Fatal(err)
	}
	batch, err := b.Array(t.Context(), "blue", "main", "batch")
	b.must(err)
	if err := b.Scale(t.Context(), batch, 2, "test"); !schema.Is(err, schema.CodeConflict) {
		t.Errorf("scaling batch jobs: %v", err)
	}
	if _, _, err := b.SubmitJob(t.Context(), "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "h100x2", Nodes: 1, Kind: schema.JobService, Command: []string{"x"}, Array: "batch"}); !schema.Is(err, schema.CodeConflict) {
		t.Errorf("a service that joins an array of batch jobs: %v", err)
	}
}
