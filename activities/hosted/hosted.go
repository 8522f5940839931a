// Package hosted is how an endless activity shows Temporal that it lives: the allocator and the delivery are each one
// execution in the cluster, and Temporal gives it to another worker when its word does not come.
//
// Invariant: the word is given beside the work, not between its turns: a long turn is no death, and one that hangs is.
// A second execution that begins while the first still lives is the work's own to fence. Not here: how long Temporal waits
// (workflows).
package hosted

import (
	"context"
	"sync/atomic"
	"time"

	"go.temporal.io/sdk/activity"
)

const (
	// Every is how often the word is given.
	Every = time.Second
	// HangsAfter is how long one turn may take. The longest there is, the allocator's load of a large region from a slow
	// database, takes seconds.
	HangsAfter = 2 * time.Minute
)

// Run does the work until it returns, ctx ends or the activity's worker stops. The work calls turn whenever it gets on.
func Run(ctx context.Context, work func(ctx context.Context, turn func()) error) error {
	return run(ctx, activity.GetWorkerStopChannel(ctx), func() { activity.RecordHeartbeat(ctx) }, work)
}

func run(ctx context.Context, stop <-chan struct{}, beat func(), work func(ctx context.Context, turn func()) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var last atomic.Pointer[time.Time]
	turn := func() { now := time.Now(); last.Store(&now) }
	turn()
	beating := make(chan struct{})
	go func() {
		defer close(beating)
		t := time.NewTicker(Every)
		defer t.Stop()
		for {
			select {
			case <-stop:
				cancel()
				return
			case <-ctx.Done():
				return
			case <-t.C:
				if time.Since(*last.Load()) < HangsAfter {
					beat()
				}
			}
		}
	}()
	defer func() { cancel(); <-beating }()
	return work(ctx, turn)
}
