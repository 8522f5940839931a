package store_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// TestNewsOfAPreemptedRunDoesNotTouchTheNext is case 17 of the cases on the queue: a job is preempted more often than it may
// lose its hardware and starts again on the same server; what its earlier runs report, late, twice and out of order, changes
// nothing of the run that is live.
func TestNewsOfAPreemptedRunDoesNotTouchTheNext(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	var clock sync.Mutex
	s := storetest.OpenAt(t, func() time.Time { clock.Lock(); defer clock.Unlock(); return now })
	pass := func(d time.Duration) { clock.Lock(); now = now.Add(d); clock.Unlock() }
	b := benchOn(t, s, 1)
	ctx := t.Context()
	j := b.submit(1)
	run := func() {
		t.Helper()
		if no := b.commit(b.start(j, b.place(0, 0))); len(no) != 0 {
			t.Fatalf("attempt %d is refused: %+v", j.Attempt+1, no)
		}
		j = b.job(j.ID)
		b.must(b.DispatchAttempt(ctx, j.ID, j.Attempt))
		tasks, err := b.ClaimTasks(ctx, b.servers[0].ID)
		b.must(err)
		if len(tasks) != 1 {
			t.Fatalf("attempt %d: the server is given %d tasks", j.Attempt, len(tasks))
		}
		b.end(j, 0, agentproto.TaskReport{Seq: 1, State: schema.TaskRunning})
	}
	killed := agentproto.TaskReport{State: schema.TaskFailed, Signal: "KILL", NoneLeft: true, Text: "ended by SIGKILL"}
	rounds := store.DefaultRequeueLimit + 2
	for n := 1; n < rounds; n++ {
		run()
		pass(time.Minute)
		b.must(b.RequestStop(ctx, j.ID, n, schema.AttemptPreempted, "allocator", "preempted for another"))
		b.end(j, 0, killed)
		for range 2 {
			got, err := b.SettleAttempt(ctx, j.ID, n, nil)
			b.must(err)
			if got.State != schema.JobQueued || got.Outcome != schema.AttemptPreempted {
				t.Fatalf("attempt %d ends as %+v", n, got)
			}
		}
		pass(5 * time.Second)
		j = b.job(j.ID)
	}
	run()
	if j.Requeues != 0 || j.Held || j.Attempt != rounds {
		t.Fatalf("after %d preemptions attempt %d has %d requeues, held %v", rounds-1, j.Attempt, j.Requeues, j.Held)
	}
	for n := rounds - 1; n >= 1; n-- { // the latest first
		for _, seq := range []int64{9, 12, 3} {
			late := j
			late.Attempt = n
			r := killed
			r.Seq = seq
			b.end(late, 0, r)
		}
		if got, err := b.SettleAttempt(ctx, j.ID, n, nil); err != nil || got.Outcome != schema.AttemptPreempted {
			t.Fatalf("attempt %d again: %+v, %v", n, got, err)
		}
	}
	if got := b.job(j.ID); got.State != schema.JobRunning || got.Attempt != rounds || b.live() != 2 {
		t.Fatalf("the live run: %s, attempt %d, holding %d accelerators", got.State, got.Attempt, b.live())
	}
	pass(time.Minute)
	zero := 0
	b.end(j, 0, agentproto.TaskReport{State: schema.TaskDone, ExitCode: &zero, NoneLeft: true})
	if _, err := b.SettleAttempt(ctx, j.ID, rounds, nil); err != nil {
		t.Fatal(err)
	}
	rows, err := b.Ledger(ctx, j.ID)
	b.must(err)
	byAttempt := map[int]int64{}
	for _, r := range rows {
		byAttempt[r.Attempt] += r.Milliseconds()
	}
	if len(byAttempt) != rounds || len(rows) != 2*rounds {
		t.Fatalf("%d ledger rows of %d attempts, want 2 accelerators for %d", len(rows), len(byAttempt), rounds)
	}
	for n, ms := range byAttempt {
		if ms != 2*time.Minute.Milliseconds() {
			t.Errorf("attempt %d is metered %d ms, want 2 accelerators for a minute", n, ms)
		}
	}
}

// TestASubmitIsStoredOnceWhateverBecomesOfItsAnswer is case 24 of the cases on the queue, as far as it is the record's: answers
// are lost and the submit is tried again, at once and after a restart; another body under its key is refused; and what is to
// start its process is stored with it. That processes start and end over kills is told by the tests that kill (make chaos).
func TestASubmitIsStoredOnceWhateverBecomesOfItsAnswer(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	in := store.NewJob{Tenant: "blue", Project: "main", Spec: "h100x2", Nodes: 1, Command: []string{"true"}}
	for tries := 1; tries <= 20; tries++ {
		key := fmt.Sprint("K", tries)
		head, err := b.Head(t.Context())
		b.must(err)
		ids, made := make([]string, tries), make([]bool, tries)
		var wg sync.WaitGroup
		for i := range tries {
			wg.Go(func() {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				if i%3 == 2 { // who asked has gone before the answer
					cancel()
				}
				if j, created, err := b.SubmitJob(ctx, "test", key, "body", in); err == nil {
					ids[i], made[i] = j.ID, created
				} else if ctx.Err() == nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		j, _, err := b.SubmitJob(t.Context(), "test", key, "body", in)
		b.must(err)
		creators := 0
		for i, id := range ids {
			if id != "" && id != j.ID {
				t.Fatalf("%d tries of one submit made %s and %s", tries, id, j.ID)
			}
			if made[i] {
				creators++
			}
		}
		if creators != 1 {
			t.Fatalf("%d of %d tries say that they made the job", creators, tries)
		}
		events, _, err := b.Events(t.Context(), head, 100, store.EventFilter{})
		b.must(err)
		told := 0
		for _, e := range events {
			if e.Kind == schema.EventJobSubmitted && e.Subject == j.ID {
				told++
			}
		}
		if told != 1 || b.job(j.ID).State != schema.JobQueued {
			t.Fatalf("the job is told %d times and %s", told, b.job(j.ID).State)
		}
		if _, _, err := b.SubmitJob(t.Context(), "test", key, "another body", in); !schema.Is(err, schema.CodeReused) {
			t.Fatalf("another body under the key: %v", err)
		}
	}
}
