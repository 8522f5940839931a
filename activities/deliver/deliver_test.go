package deliver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// temporal is a Temporal that writes down what it is told.
type temporal struct {
	client.Client // what is not below must not be called

	mu     sync.Mutex
	told   map[string][]string // workflow -> what it was told, in order
	fails  map[string]error    // workflow -> what its calls answer
	news   chan struct{}       // something was told, or failed
	failed int
}

func newTemporal() *temporal {
	return &temporal{told: map[string][]string{}, fails: map[string]error{}, news: make(chan struct{}, 1)}
}

func (f *temporal) tell(workflow, what string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() {
		select {
		case f.news <- struct{}{}:
		default:
		}
	}()
	if err := f.fails[workflow]; err != nil {
		f.failed++
		return err
	}
	f.told[workflow] = append(f.told[workflow], what)
	return nil
}

func (f *temporal) ExecuteWorkflow(_ context.Context, o client.StartWorkflowOptions, _ any, args ...any) (client.WorkflowRun, error) {
	return nil, f.tell(o.ID, fmt.Sprint("start ", args[0]))
}

func (f *temporal) SignalWorkflow(_ context.Context, id, _, _ string, arg any) error {
	return f.tell(id, fmt.Sprint(arg))
}

func (f *temporal) SignalWithStartWorkflow(_ context.Context, id, _ string, arg any, _ client.StartWorkflowOptions, _ any, args ...any) (client.WorkflowRun, error) {
	f.mu.Lock()
	delete(f.fails, id) // it runs again
	f.mu.Unlock()
	return nil, f.tell(id, fmt.Sprint("revive ", args[0], " ", arg))
}

func (f *temporal) fail(workflow string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.fails, workflow)
	} else {
		f.fails[workflow] = err
	}
}

func (f *temporal) of(workflow string) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.told[workflow])
}

// delivery is a record, a Temporal and the delivery between them.
type delivery struct {
	t  *testing.T
	db *store.Store
	to *temporal
}

func newDelivery(t *testing.T) *delivery {
	t.Parallel()
	return &delivery{t, storetest.Open(t), newTemporal()}
}

// route sends each event about a job to its workflow, named as it is numbered.
func route(e schema.Event) (Delivery, bool) {
	v := Delivery{Workflow: e.Job}
	switch e.Kind {
	case schema.EventJobAllocated:
		v.Start, v.StartArg = "RunJob", e.Seq
	case schema.EventJobStop:
		v.Signal, v.Arg, v.Revive, v.ReviveArg = "job", e.Seq, "RunJob", "again"
	default:
		v.Signal, v.Arg = "job", e.Seq
	}
	return v, e.Job != ""
}

// start begins to deliver; the returned function ends it as a worker's stop does.
func (d *delivery) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	a := &Activities{Store: d.db, Client: d.to, Route: route, Log: slog.New(slog.DiscardHandler)}
	go func() { done <- a.run(ctx, func() {}) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			d.t.Errorf("the delivery ended with %v", err)
		}
	})
	d.t.Cleanup(stop)
	return stop
}

// emit stores an event about each job, and gives the last one's number.
func (d *delivery) emit(kind schema.EventKind, jobs ...string) int64 {
	d.t.Helper()
	if err := d.db.Write(d.t.Context(), func(tx *store.Tx) error {
		for _, j := range jobs {
			tx.Emit(schema.Event{Kind: kind, Subject: j, Job: j}, nil)
		}
		return nil
	}); err != nil {
		d.t.Fatal(err)
	}
	n, err := d.db.Head(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	return n
}

// until waits for what deliveries bring about.
func (d *delivery) until(what string, ok func() bool) {
	d.t.Helper()
	again := time.NewTicker(20 * time.Millisecond) // the cursor moves without news
	defer again.Stop()
	deadline := time.After(30 * time.Second)
	for !ok() {
		select {
		case <-d.to.news:
		case <-again.C:
		case <-deadline:
			d.t.Fatalf("waited for %s", what)
		}
	}
}

func (d *delivery) cursor() int64 {
	n, err := d.db.Cursor(d.t.Context(), cursor)
	if err != nil {
		d.t.Error(err)
	}
	return n
}

func TestManyWorkflowsAreToldInOrderAndTheCursorFollows(t *testing.T) {
	d := newDelivery(t)
	want := map[string][]string{}
	emit := func(rounds int) (last int64) {
		for range rounds {
			var jobs []string
			for j := range 40 { // more than are served at once
				jobs = append(jobs, fmt.Sprint("j", j))
			}
			last = d.emit(schema.EventJobAttemptEnded, jobs...)
			for i, j := range jobs {
				want[j] = append(want[j], fmt.Sprint(last-int64(len(jobs)-1-i)))
			}
		}
		return last
	}
	emit(30) // more than one batch waits for it
	d.start()
	last := emit(5)
	d.until("the cursor at the newest event", func() bool { return d.cursor() == last })
	for j := range want {
		if got := d.to.of(j); !slices.Equal(got, want[j]) {
			t.Fatalf("%s was told %v, want %v", j, got, want[j])
		}
	}
}

func TestAnEventThatCanNotBeDeliveredIsNeverSkippedAndHoldsUpItsOwnOnly(t *testing.T) {
	d := newDelivery(t)
	before := d.emit(schema.EventJobAttemptEnded, "good")
	d.to.fail("bad", serviceerror.NewUnavailable("no"))
	d.start()
	stuck := d.emit(schema.EventJobAttemptEnded, "bad")
	d.emit(schema.EventJobAttemptEnded, "bad")
	last := d.emit(schema.EventJobAttemptEnded, "good")
	d.until("the good one's events, and the bad one's tries", func() bool {
		d.to.mu.Lock()
		defer d.to.mu.Unlock()
		return len(d.to.told["good"]) == 2 && d.to.failed > 2
	})
	d.until("the cursor before what is stuck", func() bool { return d.cursor() == before })
	d.to.fail("bad", nil)
	d.until("the cursor at the newest event", func() bool { return d.cursor() == last })
	if got, want := d.to.of("bad"), []string{fmt.Sprint(stuck), fmt.Sprint(stuck + 1)}; !slices.Equal(got, want) {
		t.Fatalf("it was told %v, want %v", got, want)
	}
}

func TestTheNextLifeBeginsAtTheCursorAndTellsAgainWhatWasOpen(t *testing.T) {
	d := newDelivery(t)
	stop := d.start()
	told := d.emit(schema.EventJobAttemptEnded, "a", "a", "b")
	d.until("the cursor at what was told", func() bool { return d.cursor() == told })
	d.to.fail("b", serviceerror.NewUnavailable("no"))
	open := d.emit(schema.EventJobAttemptEnded, "b")
	last := d.emit(schema.EventJobAttemptEnded, "a")
	d.until("the last event of a", func() bool { return len(d.to.of("a")) == 3 })
	stop()
	if at := d.cursor(); at != told {
		t.Fatalf("the cursor is at %d while event %d is open, want %d", at, open, told)
	}
	d.to.fail("b", nil)
	d.start()
	d.until("the cursor at the newest event", func() bool { return d.cursor() == last })
	if got, want := d.to.of("b"), []string{fmt.Sprint(told), fmt.Sprint(open)}; !slices.Equal(got, want) {
		t.Fatalf("b was told %v, want %v", got, want)
	}
	if got := d.to.of("a"); len(got) != 4 || got[3] != got[2] {
		t.Fatalf("a was told %v; what came after the open event comes once more, what came before does not", got)
	}
}

func TestWhatHasStartedOrIsGone(t *testing.T) {
	d := newDelivery(t)
	d.to.fail("started", serviceerror.NewWorkflowExecutionAlreadyStarted("", "", ""))
	d.to.fail("gone", serviceerror.NewNotFound(""))
	d.to.fail("needed", serviceerror.NewNotFound(""))
	d.start()
	first := d.emit(schema.EventJobAllocated, "new", "started")
	d.emit(schema.EventJobAttemptEnded, "gone") // nobody is there to tell, and nobody is to be started
	last := d.emit(schema.EventJobStop, "needed")
	d.until("the cursor at the newest event", func() bool { return d.cursor() == last })
	for workflow, want := range map[string][]string{"new": {fmt.Sprint("start ", first-1)}, "started": nil, "gone": nil, "needed": {fmt.Sprint("revive again ", last)}} {
		if got := d.to.of(workflow); !slices.Equal(got, want) {
			t.Errorf("%s was told %v, want %v", workflow, got, want)
		}
	}
}

func TestAFaultIsJudgedBeforeItsServerIsTold(t *testing.T) {
	d := newDelivery(t)
	a := &Activities{Store: d.db, Client: d.to, Log: slog.New(slog.DiscardHandler),
		Route: func(e schema.Event) (Delivery, bool) {
			return Delivery{Workflow: "server/" + e.Server, Signal: "fault", Arg: e.Subject}, true
		},
		Judge: func(_ context.Context, fault string) error { return d.to.tell("server/s1", "judged "+fault) }}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.run(ctx, func() {}) }()
	if err := d.db.Write(ctx, func(tx *store.Tx) error {
		tx.Emit(schema.Event{Kind: schema.EventFault, Subject: "flt_1", Server: "s1"}, nil)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	d.until("both words", func() bool { return len(d.to.of("server/s1")) == 2 })
	cancel()
	<-done
	if got, want := d.to.of("server/s1"), []string{"judged flt_1", "flt_1"}; !slices.Equal(got, want) {
		t.Fatalf("told %v, want %v", got, want)
	}
}
