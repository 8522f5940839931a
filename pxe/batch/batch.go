// Package batch makes one call of a store out of the questions that many callers have at the same time: with a whole site
// booting at once one query answers dozens of packets, and one transaction and one fsync keep dozens of leases.
//
// Invariant: what a caller is answered was read or written after it asked. So unlike a cache it is never stale, and what is
// decided by the answer (may this disk be overwritten, whose is this address) is decided by what is so at that moment.
package batch

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

// Group makes one call out of those that arrive while the last one runs, or shortly after it. The first caller leads; when
// its batch is done it hands the lead to the first of those that came meanwhile, so no caller waits for more than two calls.
type Group[Q, A any] struct {
	// Call answers a batch: one answer for each question, in their order, or an error for all.
	Call func(ctx context.Context, batch []Q) ([]A, error)

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

// Do asks one question. The call goes on where ctx ends: others wait for it too.
func (g *Group[Q, A]) Do(ctx context.Context, q Q) (A, error) {
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
	asked := g.queue
	g.queue = nil
	g.began = time.Now()
	g.mu.Unlock()

	questions := make([]Q, len(asked))
	for i, w := range asked {
		questions[i] = w.question
	}
	// One caller's cancelled context must not fail the others.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callWithin)
	answers, err := g.Call(ctx, questions)
	cancel()

	g.mu.Lock()
	if len(g.queue) > 0 {
		g.queue[0].done <- false
	} else {
		g.busy = false
	}
	g.mu.Unlock()
	for i, other := range asked {
		if other.err = err; err == nil {
			other.answer = answers[i]
		}
		if other != w {
			other.done <- true
		}
	}
	return w.answer, w.err
}
