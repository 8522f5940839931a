package lease

import (
	"context"
	"sync"
	"time"

	"gpupool/schema"
)

// group makes one commit out of the leases that arrive while the last commit runs: with many clients at once one
// fsync serves them all. The first caller leads; when its batch is done it hands the lead to the first of those
// that came meanwhile, so no caller waits for more than two commits.
type group struct {
	store Store
	now   func() time.Time

	mu    sync.Mutex
	busy  bool
	queue []*waiter
}

type waiter struct {
	lease schema.Lease
	done  chan error
	lead  chan struct{}
}

func (g *group) commit(ctx context.Context, l schema.Lease) error {
	w := &waiter{l, make(chan error, 1), make(chan struct{}, 1)}
	g.mu.Lock()
	g.queue = append(g.queue, w)
	if g.busy {
		g.mu.Unlock()
		select {
		case err := <-w.done:
			return err
		case <-w.lead:
		}
		g.mu.Lock()
	}
	g.busy = true
	batch := g.queue
	g.queue = nil
	g.mu.Unlock()

	leases := make([]schema.Lease, len(batch))
	for i, w := range batch {
		leases[i] = w.lease
	}
	// One caller's cancelled context must not fail the others' leases.
	errs, err := g.store.Commit(context.WithoutCancel(ctx), g.now(), leases)

	g.mu.Lock()
	if len(g.queue) > 0 {
		g.queue[0].lead <- struct{}{}
	} else {
		g.busy = false
	}
	g.mu.Unlock()
	for i, w := range batch {
		if err != nil {
			w.done <- err
		} else {
			w.done <- errs[i]
		}
	}
	return <-w.done
}
