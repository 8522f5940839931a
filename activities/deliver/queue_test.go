package deliver

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
)

// gorm's cache of prepared statements has a goroutine that nothing can end.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}

// receiver is where a queue's tasks go: it writes down what comes, and holds up the lanes it is told to.
type receiver struct {
	mu   sync.Mutex
	got  map[string][]string
	held map[string]chan struct{}
}

func (r *receiver) do(ctx context.Context, lane string, t task) error {
	r.mu.Lock()
	hold := r.held[lane]
	r.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got[lane] = append(r.got[lane], t.judge+t.Signal)
	return nil
}

func signal(lane, name string) task { return task{Delivery: Delivery{Workflow: lane, Signal: name}} }

// begin is a queue at 10, its receiver, and what adds to it the next event's task.
func begin(ctx context.Context, t *testing.T) (*queue, *receiver, func(lane string, v task)) {
	r := &receiver{got: map[string][]string{}, held: map[string]chan struct{}{}}
	q := newQueue(10, r.do)
	seq := int64(10)
	return q, r, func(lane string, v task) {
		t.Helper()
		seq++
		if err := q.add(ctx, lane, seq, v); err != nil {
			t.Fatal(err)
		}
	}
}

func TestALaneThatIsHeldUpHoldsUpTheCursorAndNoOtherLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, r, add := begin(t.Context(), t)
		r.held["a"] = make(chan struct{})
		add("b", signal("b", "1"))
		add("a", signal("a", "2"))
		add("b", signal("b", "3"))
		q.read(13)
		synctest.Wait()
		if got := r.got["b"]; !slices.Equal(got, []string{"1", "3"}) {
			t.Fatalf("lane b was told %v while a is held up", got)
		}
		if got := q.done(); got != 11 {
			t.Fatalf("the cursor may move to %d while event 12 is open, want 11", got)
		}
		close(r.held["a"])
		synctest.Wait()
		if got := q.done(); got != 13 || len(r.got["a"]) != 1 {
			t.Fatalf("at the end the cursor may move to %d and a was told %v", got, r.got["a"])
		}
		q.wait()
	})
}

func TestALaneIsServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, r, add := begin(t.Context(), t)
		want := map[string][]string{}
		for i := range 300 {
			lane := fmt.Sprint("lane", i%40) // more than are at work at once
			add(lane, signal(lane, fmt.Sprint(i)))
			want[lane] = append(want[lane], fmt.Sprint(i))
		}
		q.read(310)
		q.wait()
		for lane := range want {
			if !slices.Equal(r.got[lane], want[lane]) {
				t.Fatalf("%s was told %v, want %v", lane, r.got[lane], want[lane])
			}
		}
		if got := q.done(); got != 310 {
			t.Fatalf("all is done up to %d, want 310", got)
		}
	})
}

func TestWhatIsOpenWhenTheQueueEndsIsBehindTheCursor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		q, r, add := begin(ctx, t)
		r.held["a"] = make(chan struct{})
		add("a", signal("a", "1"))
		add("a", task{judge: "flt_1"})
		q.read(12)
		synctest.Wait()
		cancel()
		q.wait()
		if got := q.done(); got != 10 || len(r.got) != 0 {
			t.Fatalf("the cursor may move to %d, told %v: the next reader would miss it", got, r.got)
		}
		for range ahead { // the room was never given back: whoever adds more is told that it has ended
			if q.add(ctx, "b", 13, signal("b", "2")) != nil {
				q.wait()
				return
			}
		}
		t.Fatal("a queue that has ended took more than it has room for")
	})
}
