package store_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// together runs fs at the same moment and waits for all.
func together(t *testing.T, fs ...func() error) {
	t.Helper()
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for _, f := range fs {
		wg.Go(func() {
			<-begin
			if err := f(); err != nil {
				t.Error(err)
			}
		})
	}
	close(begin)
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// count is how many events of a kind there are about a job or a server.
func (b *bench) count(kind schema.EventKind, f store.EventFilter) int {
	b.t.Helper()
	f.Kinds = []schema.EventKind{kind}
	ev, _, err := b.Events(b.t.Context(), 0, 10_000, f)
	b.must(err)
	return len(ev)
}

// rounds is how often a race is run: a lost one shows in a few.
const rounds = 15

// part reports on the rank's part of the job's attempt, as its server's agent does.
func (b *bench) part(job string, attempt, rank int, r agentproto.TaskReport) func() error {
	b.t.Helper()
	task, err := b.Task(b.t.Context(), store.RunTaskID(job, attempt, rank))
	b.must(err)
	r.Task = task.ID
	return func() error {
		_, err := b.Report(context.Background(), task.Server, agentproto.Report{Tasks: []agentproto.TaskReport{r}})
		return err
	}
}

func TestPartsOfAGangThatReportAtOnceAreSeenTogether(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2)
	ctx, zero := t.Context(), 0
	for range rounds {
		j := b.submit(2)
		if no := b.commit(b.start(j, b.place(0, 0), b.place(1, 0))); len(no) != 0 {
			t.Fatalf("refused: %+v", no)
		}
		b.must(b.DispatchAttempt(ctx, j.ID, 1))
		claim := func(server string) func() error {
			return func() error { _, err := b.ClaimTasks(ctx, server); return err }
		}
		together(t, claim(b.servers[0].ID), claim(b.servers[1].ID))
		running := agentproto.TaskReport{Seq: 1, State: schema.TaskRunning}
		together(t, b.part(j.ID, 1, 0, running), b.part(j.ID, 1, 1, running))
		if got, n := b.job(j.ID), b.count(schema.EventJobRunning, store.EventFilter{Job: j.ID}); got.State != schema.JobRunning || n != 1 {
			t.Fatalf("both parts run, the job is %s, and was told to run %d times", got.State, n)
		}
		done := agentproto.TaskReport{Seq: 2, State: schema.TaskDone, ExitCode: &zero, NoneLeft: true}
		together(t, b.part(j.ID, 1, 0, done), b.part(j.ID, 1, 1, done))
		if n := b.count(schema.EventJobAttemptEnded, store.EventFilter{Job: j.ID}); n != 1 {
			t.Fatalf("both parts have ended, and the end was told %d times", n)
		}
		_, err := b.SettleAttempt(ctx, j.ID, 1, nil)
		b.must(err)
	}
}

func TestAPartThatWasHandedOutIsNotTakenForOneThatWasNot(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	ctx := t.Context()
	for range rounds {
		j := b.submit(1)
		b.commit(b.start(j, b.place(0, 0)))
		b.must(b.DispatchAttempt(ctx, j.ID, 1))
		var got []agentproto.Task
		together(t,
			func() (err error) { got, err = b.ClaimTasks(ctx, b.servers[0].ID); return err },
			func() error { return b.RequestStop(ctx, j.ID, 1, schema.AttemptCancelled, "test", "") })
		task, err := b.Task(ctx, store.RunTaskID(j.ID, 1, 0))
		b.must(err)
		if len(got) > 0 && task.State.Ended() {
			t.Fatalf("the agent was handed the part, which is %s: %s", task.State, task.Text)
		}
		if len(got) > 0 {
			zero := 0
			b.must(b.part(j.ID, 1, 0, agentproto.TaskReport{Seq: 1, State: schema.TaskCancelled, ExitCode: &zero, NoneLeft: true})())
		}
		_, err = b.SettleAttempt(ctx, j.ID, 1, nil)
		b.must(err)
	}
}

func TestAStartAndACordonAtOnceComeInOneOrder(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	ctx := t.Context()
	for range rounds {
		j := b.submit(1)
		var no []store.Refusal
		together(t,
			func() error {
				_, err := b.Cordon(ctx, b.servers[0].ID, "", schema.CordonOperator, "test", "looks odd")
				return err
			},
			func() (err error) {
				no, err = b.CommitCycle(ctx, "eu", b.epoch, store.Cycle{Number: 1, Starts: []store.Start{b.start(j, b.place(0, 0))}})
				return err
			})
		var cordoned, allocated int64
		ev, _, err := b.Events(ctx, 0, 10_000, store.EventFilter{Kinds: []schema.EventKind{schema.EventServerCordoned, schema.EventJobAllocated}})
		b.must(err)
		for _, e := range ev {
			if e.Kind == schema.EventServerCordoned {
				cordoned = e.Seq
			} else if e.Job == j.ID {
				allocated = e.Seq
			}
		}
		if len(no) == 0 && allocated > cordoned {
			t.Fatalf("the job was started (event %d) on a server that was cordoned (event %d)", allocated, cordoned)
		}
		b.must(b.Uncordon(ctx, b.servers[0].ID, "", schema.CordonOperator, "test"))
		if len(no) == 0 {
			b.must(b.RequestStop(ctx, j.ID, 1, schema.AttemptCancelled, "test", ""))
			_, err = b.SettleAttempt(ctx, j.ID, 1, nil)
			b.must(err)
		} else {
			b.must(b.RequestStop(ctx, j.ID, 0, schema.AttemptCancelled, "test", ""))
		}
	}
}

func TestOneKeySubmittedAtOnceIsOneJob(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	for n := range rounds {
		var made atomic.Int64
		ids := make([]string, 4)
		var all []func() error
		for i := range ids {
			all = append(all, func() error {
				j, created, err := b.SubmitJob(context.Background(), "test", fmt.Sprint("key ", n), "hash", store.NewJob{Tenant: "blue", Project: "main", Spec: "h100x2", Nodes: 1, Command: []string{"true"}})
				if created {
					made.Add(1)
				}
				ids[i] = j.ID
				return err
			})
		}
		together(t, all...)
		if slices.Sort(ids); made.Load() != 1 || ids[0] == "" || ids[0] != ids[3] {
			t.Fatalf("%d were made of one key, told as %v", made.Load(), ids)
		}
	}
}

// A start meets what its owner does to the job at the same moment: either the start is refused, or what was done is done to a
// job that has started.
func TestAStartAndItsOwnersVerbsAtOnceComeInOneOrder(t *testing.T) {
	t.Parallel()
	for name, verb := range map[string]struct {
		do   func(b *bench, job string) error
		then func(t *testing.T, j schema.Job, started bool, err error)
	}{
		"hold": {func(b *bench, job string) error { return b.HoldJob(context.Background(), job, "test") }, func(t *testing.T, j schema.Job, started bool, err error) {
			if started != schema.Is(err, schema.CodeConflict) || started == (err == nil) || started == j.Held {
				t.Fatalf("started: %v, held: %v, %v", started, j.Held, err)
			}
		}},
		"cancel": {func(b *bench, job string) error {
			return b.RequestStop(context.Background(), job, 0, schema.AttemptCancelled, "test", "")
		}, func(t *testing.T, j schema.Job, started bool, err error) {
			if err != nil || started == (j.State == schema.JobCancelled) {
				t.Fatalf("started: %v, and the job is %s, %v", started, j.State, err)
			}
		}},
		"time limit": {func(b *bench, job string) error { return b.SetTimeLimit(context.Background(), job, time.Hour, "test") }, func(t *testing.T, j schema.Job, started bool, err error) {
			if again := schema.Is(err, schema.CodeConflict); !started || err != nil && !again || (j.Limit() == time.Hour) == again { // who covered a queued job asks again
				t.Fatalf("started: %v, with a limit of %s, %v", started, j.Limit(), err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 1)
			ctx := t.Context()
			for range rounds {
				j := b.submit(1)
				var no []store.Refusal
				var said error
				together(t,
					func() error { said = verb.do(b, j.ID); return nil },
					func() (err error) {
						no, err = b.CommitCycle(context.Background(), "eu", b.epoch, store.Cycle{Number: 1, Starts: []store.Start{b.start(j, b.place(0, 0))}})
						return err
					})
				started := len(no) == 0
				live, err := b.LiveAttempt(ctx, j.ID)
				b.must(err)
				if started != (live != nil) {
					t.Fatalf("refused: %+v, and it holds %+v", no, live)
				}
				verb.then(t, b.job(j.ID), started, said)
				if j := b.job(j.ID); !j.State.Ended() {
					b.must(b.RequestStop(ctx, j.ID, 0, schema.AttemptCancelled, "test", ""))
				}
				if started {
					_, err = b.SettleAttempt(ctx, j.ID, 1, nil)
					b.must(err)
				}
			}
		})
	}
}

func TestADrainThatMeetsTheEndsOfItsJobsIsToldToBeDone(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	ctx := t.Context()
	for range rounds {
		one, two := b.submit(1), b.submit(1)
		if no := b.commit(b.start(one, b.place(0, 0)), b.start(two, b.place(0, 2))); len(no) != 0 {
			t.Fatalf("refused: %+v", no)
		}
		before := b.count(schema.EventServerDrained, store.EventFilter{Server: b.servers[0].ID})
		settle := func(j schema.Job) func() error {
			b.must(b.RequestStop(ctx, j.ID, 1, schema.AttemptCancelled, "test", ""))
			return func() error { _, err := b.SettleAttempt(ctx, j.ID, 1, nil); return err }
		}
		together(t, settle(one), settle(two), func() error { return b.Drain(ctx, b.servers[0].ID, "test", "maintenance") })
		if n := b.count(schema.EventServerDrained, store.EventFilter{Server: b.servers[0].ID}) - before; n == 0 {
			t.Fatal("no job is left on the draining server, and nobody was told")
		}
		b.must(b.Undrain(ctx, b.servers[0].ID, "test"))
	}
}

func TestFaultsAtOnceStayWithinTheBlastRadius(t *testing.T) {
	t.Parallel()
	b := newBench(t, 6) // a third of six is two
	var judge []func() error
	for i, v := range b.servers {
		b.must(b.ReportFault(t.Context(), v.ID, schema.Fault{Source: "test", Kind: "xid", Severity: schema.SeverityCritical, Text: "off the bus", Dedupe: fmt.Sprint(i)}))
		f, err := b.Faults(t.Context(), v.ID)
		b.must(err)
		judge = append(judge, func() error {
			_, err := b.Judge(context.Background(), f[0].ID, store.Verdict{Action: schema.ActionRepair, Why: "off the bus"})
			return err
		})
	}
	together(t, judge...)
	out, err := b.Cordons(t.Context(), "")
	b.must(err)
	if len(out) != 2 {
		t.Fatalf("%d of 6 servers were taken out at once, want 2", len(out))
	}
}

func TestOneTaskIsQueuedOnceHoweverManyAsk(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	queue := func() error {
		return b.QueueTask(context.Background(), schema.Task{ID: "task", Server: b.servers[0].ID, Workflow: "w", Kind: schema.TaskBurnIn, Payload: "{}"})
	}
	together(t, queue, queue, queue, queue)
	if n := b.count(schema.EventTaskQueued, store.EventFilter{Server: b.servers[0].ID}); n != 1 {
		t.Fatalf("the task was told of %d times", n)
	}
}

func TestProcessesThatStartAtOnceMigrateOnce(t *testing.T) {
	t.Parallel()
	server := os.Getenv(storetest.PostgresEnv)
	if server == "" {
		t.Skip("one process has a SQLite file; TestTheSameHoldsOnPostgreSQL runs this")
	}
	c := store.Config{Driver: "postgres", DSN: storetest.Database(t, server), MaxConnections: 2}
	open := func() error {
		s, err := store.Open(context.Background(), c)
		if err != nil {
			return err
		}
		return s.Close()
	}
	together(t, open, open, open, open)
}

// Two processes on one database: each hears of what the other commits, also between commits of its own.
func TestAProcessHearsOfWhatAnotherCommits(t *testing.T) {
	t.Parallel()
	server := os.Getenv(storetest.PostgresEnv)
	if server == "" {
		t.Skip("one process has a SQLite file; TestTheSameHoldsOnPostgreSQL runs this")
	}
	c := store.Config{Driver: "postgres", DSN: storetest.Database(t, server), MaxConnections: 4}
	open := func() *store.Store {
		s, err := store.Open(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	here, there := open(), open()
	commit := func(s *store.Store, job string) {
		t.Helper()
		if err := s.CreateOne(t.Context(), job); err != nil {
			t.Fatal(err)
		}
	}
	mine, other := here.Watch(store.TopicJob("mine")), here.Watch(store.TopicJob("other"))
	defer mine.Close()
	defer other.Close()
	heard := func(w *store.Watch, what string) {
		t.Helper()
		select {
		case <-w.C:
		case <-time.After(30 * time.Second):
			t.Fatalf("%s was not heard of", what)
		}
	}
	for range rounds {
		commit(here, "mine")
		heard(mine, "its own event")
		commit(there, "other")
		commit(here, "")
		commit(here, "")
		heard(other, "the other process's event")
	}
}

func TestAListenerPassesOverItsOwnCommits(t *testing.T) {
	t.Parallel()
	own := map[int64]int64{3: 3, 4: 9, 11: 12, 2: 2}
	for _, step := range []struct{ at, want, left int64 }{
		{2, 9, 1},   // 3 and 4 to 9 are its own, 2 is behind it, 10 is another's
		{10, 12, 0}, // once that is read
		{12, 12, 0},
	} {
		if got := store.Pass(own, step.at); got != step.want || int64(len(own)) != step.left {
			t.Fatalf("after %d it goes on after %d with %v, want %d and %d left", step.at, got, own, step.want, step.left)
		}
	}
}
