package allocator

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

const h100 = "nvidia-h100-80gb"

// region is a record with one server of two accelerators, and a tenant whose jobs want both.
type region struct {
	t      *testing.T
	db     *store.Store
	server schema.Server
}

func newRegion(t *testing.T, db *store.Store) *region {
	t.Helper()
	ctx := t.Context()
	r := &region{t, db, storetest.Available(t, db, 1, h100, 2)}
	_, err := db.CreateSpec(ctx, "test", store.NewSpec{Name: "x2", Model: h100, Accelerators: 2})
	must(t, err)
	_, err = db.CreateTenant(ctx, "test", "blue", 1)
	must(t, err)
	_, err = db.CreateProject(ctx, "test", "blue", "main")
	must(t, err)
	return r
}

// serve runs an allocator on the record; ended gives its error, stop ends it as its worker's stop does.
func (r *region) serve(holder string) (ended <-chan error, stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error, 1)
	a := &Activities{Store: r.db, Holder: holder, Log: slog.New(slog.DiscardHandler)}
	var turns atomic.Int64
	begun := make(chan struct{})
	go func() {
		done <- a.run(ctx, "eu", func() {
			if turns.Add(1) == 1 {
				close(begun)
			}
		})
	}()
	select {
	case <-begun: // it has its epoch and has loaded
	case err := <-done:
		r.t.Fatalf("the allocator ended as it began: %v", err)
	}
	return done, cancel
}

func (r *region) submit() string {
	r.t.Helper()
	j, _, err := r.db.SubmitJob(r.t.Context(), "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "x2", Nodes: 1, Command: []string{"true"}})
	must(r.t, err)
	return j.ID
}

// until waits for the record to show something of a job.
func (r *region) until(job, what string, ok func(schema.Job, schema.ReasonDoc) bool) {
	r.t.Helper()
	w := r.db.Watch(store.TopicJob(job))
	defer w.Close()
	deadline := time.After(30 * time.Second)
	for {
		j, err := r.db.Job(r.t.Context(), job)
		must(r.t, err)
		if ok(j, reasonOf(r.t, j)) {
			return
		}
		select {
		case <-w.C:
		case <-deadline:
			r.t.Fatalf("waited for %s of job %s: it is %s, %s", what, job, j.State, j.Reason)
		}
	}
}

func (r *region) untilStarted(job string) {
	r.t.Helper()
	r.until(job, "the start", func(j schema.Job, _ schema.ReasonDoc) bool { return j.State == schema.JobStarting })
}

func (r *region) untilWaits(job string) {
	r.t.Helper()
	r.until(job, "the reason", func(j schema.Job, why schema.ReasonDoc) bool {
		return j.State == schema.JobQueued && why.Code == schema.ReasonCapacity
	})
}

// finish plays the job's process and the server's agent to the end of the first attempt.
func (r *region) finish(job string) {
	r.t.Helper()
	ctx := r.t.Context()
	must(r.t, r.db.DispatchAttempt(ctx, job, 1))
	_, err := r.db.ClaimTasks(ctx, r.server.ID)
	must(r.t, err)
	zero := 0
	_, err = r.db.Report(ctx, r.server.ID, agentproto.Report{Tasks: []agentproto.TaskReport{{Task: store.RunTaskID(job, 1, 0), Seq: 1, State: schema.TaskDone, ExitCode: &zero, NoneLeft: true}}})
	must(r.t, err)
	_, err = r.db.SettleAttempt(ctx, job, 1, nil)
	must(r.t, err)
}

func canceled(t *testing.T, ended <-chan error) {
	t.Helper()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("the allocator ended with %v", err)
	}
}

func TestWhatIsSubmittedStartsAndWhatIsFreedIsGivenOn(t *testing.T) {
	t.Parallel()
	r := newRegion(t, storetest.Open(t))
	ended, stop := r.serve("a")
	first := r.submit()
	r.untilStarted(first)
	second := r.submit()
	r.untilWaits(second)
	r.finish(first)
	r.untilStarted(second)
	stop()
	canceled(t, ended)
}

func TestTheNextHolderKnowsWhatIsHeldAndWhoWaits(t *testing.T) {
	t.Parallel()
	r := newRegion(t, storetest.Open(t))
	ended, stop := r.serve("a")
	first := r.submit()
	r.untilStarted(first)
	stop()
	canceled(t, ended)
	second := r.submit() // while nobody serves
	ended, stop = r.serve("b")
	r.untilWaits(second)
	r.finish(first)
	r.untilStarted(second)
	stop()
	canceled(t, ended)
}

func TestAnAllocatorWhoseEpochHasPassedStopsAndGivesNothing(t *testing.T) {
	t.Parallel()
	r := newRegion(t, storetest.Open(t))
	ended, stop := r.serve("a")
	defer stop()
	_, err := r.db.TakeEpoch(t.Context(), "eu", "b")
	must(t, err)
	job := r.submit()
	if err := <-ended; !schema.Is(err, schema.CodeStale) {
		t.Fatalf("the allocator that was overtaken ended with %v, want a stale epoch", err)
	}
	j, err := r.db.Job(t.Context(), job)
	must(t, err)
	held, err := r.db.JobAllocations(t.Context(), job)
	must(t, err)
	if j.State != schema.JobQueued || len(held) > 0 {
		t.Fatalf("under a passed epoch the job is %s and holds %d accelerators", j.State, len(held))
	}
	if why := reasonOf(t, j); why.Code != schema.ReasonNotEvaluated {
		t.Fatalf("under a passed epoch the job was given the reason %s", why.Code)
	}
}

func TestARecordThatFailsEndsTheAllocatorAndTheNextTakesUp(t *testing.T) {
	t.Parallel()
	c := store.Config{Driver: "sqlite", DSN: filepath.Join(t.TempDir(), "gpupool.db"), Log: slog.New(slog.DiscardHandler)}
	db, err := store.Open(t.Context(), c)
	must(t, err)
	r := newRegion(t, db)
	ended, stop := r.serve("a")
	defer stop()
	job := r.submit()
	r.untilStarted(job)
	must(t, db.Close())
	if err := <-ended; err == nil || errors.Is(err, context.Canceled) || schema.Is(err, schema.CodeStale) {
		t.Fatalf("without its record the allocator ended with %v", err)
	}
	if r.db, err = store.Open(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	defer func() { must(t, r.db.Close()) }()
	ended, stop = r.serve("b")
	second := r.submit()
	r.untilWaits(second)
	r.finish(job)
	r.untilStarted(second)
	stop()
	canceled(t, ended)
}

func reasonOf(t *testing.T, j schema.Job) schema.ReasonDoc {
	t.Helper()
	var d schema.ReasonDoc
	if j.Reason == "" {
		return d
	}
	must(t, json.Unmarshal([]byte(j.Reason), &d))
	return d
}
