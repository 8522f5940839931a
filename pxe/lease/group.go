package lease

import (
	"context"
	"sync"
)

// group makes one call of the store out of those that arrive while the last one runs: with many clients at once one
// transaction and one fsync serve them all, and so does one query. The first caller leads; when its batch is done it
// hands the lead to the first of those that came meanwhile, so no caller waits for more than two calls. What is
// answered to a caller was read or written after it asked.
type group[Q, A any] struct {
	// call answers a batch: one answer for each question, or an error for all.
	call func(ctx context.Context, batch []Q) ([]A, error)

	mu    sync.Mutex
	busy  bool
	queue []*waiter[Q, A]
}

type waiter[Q, A any] struct {
	question Q
	answer   A
	err      error
	done     chan bool // true = answered, false = take the lead
}

func (g *group[Q, A]) do(ctx context.Context, q Q) (A, error) {
	w := &waiter[Q, A]{question: q, done: make(chan bool, 1)}
	g.mu.Lock()
	g.queue = append(g.queue, w)
	if g.busy {
		g.mu.Unlock()
		if <-w.done {
			return w.answer, w.err
		}
		g.mu.Lock()
	}
	g.busy = true
	batch := g.queue
	g.queue = nil
	g.mu.Unlock()

	questions := make([]Q, len(batch))
	for i, w := range batch {
		questions[i] = w.question
	}
	// One caller's cancelled context must not fail the others.
	answers, err := g.call(context.WithoutCancel(ctx), questions)

	g.mu.Lock()
	if len(g.queue) > 0 {
		g.queue[0].done <- false
	} else {
		g.busy = false
	}
	g.mu.Unlock()
	for i, other := range batch {
		if other.err = err; err == nil {
			other.answer = answers[i]
		}
		if other != w {
			other.done <- true
		}
	}
	return w.answer, w.err
}
