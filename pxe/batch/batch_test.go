package batch_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"gpupool/pxe/batch"
)

// TestManyQuestionsAreFewCalls: whoever asks while a call runs shares the next one, and is answered by what was so after it
// asked.
func TestManyQuestionsAreFewCalls(t *testing.T) {
	t.Parallel()
	const callers = 200
	var calls, written atomic.Int64
	began, hold := make(chan struct{}), make(chan struct{})
	type answer struct {
		question int
		seen     int64
	}
	g := batch.Group[int, answer]{Call: func(_ context.Context, qs []int) ([]answer, error) {
		if calls.Add(1) == 1 {
			close(began)
			<-hold
		}
		var as []answer
		for _, q := range qs {
			as = append(as, answer{q, written.Load()})
		}
		return as, nil
	}}
	var wg sync.WaitGroup
	ask := func(q int) {
		wg.Go(func() {
			at := written.Load()
			if a, err := g.Do(t.Context(), q); err != nil || a.question != q || a.seen < at {
				t.Errorf("question %d, asked at %d, is answered %+v, %v", q, at, a, err)
			}
		})
	}
	ask(0)
	<-began
	written.Add(1) // the call that runs may have read before this
	for q := 1; q < callers; q++ {
		ask(q)
	}
	close(hold)
	wg.Wait()
	if n := calls.Load(); n > callers/4 {
		t.Errorf("%d questions made %d calls", callers, n)
	}
}

// TestOnesFailureIsNotTheOthers: a caller that has gone fails nobody, a failed call is told to those that were in it, and the
// next one goes on.
func TestOnesFailureIsNotTheOthers(t *testing.T) {
	t.Parallel()
	broken := errors.New("no database")
	var down atomic.Bool
	g := batch.Group[int, string]{Call: func(ctx context.Context, qs []int) ([]string, error) {
		if down.Load() {
			return nil, broken
		}
		var as []string
		for _, q := range qs {
			as = append(as, strconv.Itoa(q))
		}
		return as, ctx.Err()
	}}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if a, err := g.Do(gone, 7); err != nil || a != "7" {
		t.Errorf("the call of one that has gone: %q, %v", a, err)
	}
	down.Store(true)
	if a, err := g.Do(t.Context(), 8); !errors.Is(err, broken) || a != "" {
		t.Errorf("while the store is away: %q, %v", a, err)
	}
	down.Store(false)
	if a, err := g.Do(t.Context(), 9); err != nil || a != "9" {
		t.Errorf("after it: %q, %v", a, err)
	}
}
