package lease

import (
	"context"
	"sync"
	"time"
)

// spacing is how far apart a group's calls begin at least. A call costs far more than one more row in it, so where many
// come at once each waits this long for others. Whoever comes alone waits for nothing, and no client notices: it waits
// seconds for its answer.
const spacing = 4 * time.Millisecond

// callWithin is how long a call of the store may take: a client has asked again by then. A database that is out of reach
// may else hold a connection for a quarter of an hour, and all who wait with it.
const callWithin = 4 * time.Second

// group makes one call of the store out of those that arrive while the last one runs, or shortly after it: with many
// clients at once one transaction and one fsync serve them all, and so does one query. The first caller leads; when its
// batch is done it hands the lead to the first of those that came meanwhile, so no caller waits for more than two calls.
// What is answered to a caller was read or written after it asked.
type group[Q, A any] struct {
	// call answers a batch: one answer for each question, or an error for all.
	call func(ctx context.Context, batch []Q) ([]A, error)

	mu    sync.Mutex
	busy  bool
	queue []*waiter[Q, A]
	began time.Time // of the last call; the leader's
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
	if d := spacing - time.Since(g.began); d > 0 {
		g.mu.Unlock()
		<-time.After(d)
		g.mu.Lock()
	}
	batch := g.queue
	g.queue = nil
	g.began = time.Now()
	g.mu.Unlock()

	questions := make([]Q, len(batch))
	for i, w := range batch {
		questions[i] = w.question
	}
	// One caller's cancelled context must not fail the others.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callWithin)
	answers, err := g.call(ctx, questions)
	cancel()

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
