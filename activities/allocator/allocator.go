// Package allocator hosts the hot allocator: one long-running, heartbeating activity per region that keeps the pool's
// free state and queue in memory, decides in cycles and commits each cycle in one fenced transaction.
//
// Invariant: nothing it decided is acted on before it is committed under its epoch; when the epoch has moved on it
// stops at once. The database checks every start again, so a wrong memory can refuse work but never give an
// accelerator twice. Not here: the policy (engine), telling the job workflows (activities/deliver reads the events that
// a commit writes).
package allocator

import (
	"context"
	"log/slog"
	"time"

	"go.temporal.io/sdk/activity"

	"gpupool/activities/allocator/engine"
	"gpupool/schema"
	"gpupool/schema/store"
)

// Activities is registered with a region's allocator task queue.
type Activities struct {
	Store  *store.Store
	Policy engine.Config
	Holder string // who takes the epoch: host and process
	Log    *slog.Logger
}

// gather is how long after a cycle the next one waits for more to decide: a cycle costs a transaction, and what comes
// together is decided together. The first news after a quiet moment is acted upon at once.
const gather = 10 * time.Millisecond

// HeartbeatEvery is how often the activity tells Temporal that it lives.
const HeartbeatEvery = time.Second

// Allocate runs a region's allocator until its context ends, its worker stops or its epoch has passed.
func (a *Activities) Allocate(ctx context.Context, region string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-activity.GetWorkerStopChannel(ctx):
			cancel()
		case <-ctx.Done():
		}
	}()
	return a.run(ctx, region, func(cycle int64) { activity.RecordHeartbeat(ctx, cycle) })
}

func (a *Activities) run(ctx context.Context, region string, beat func(cycle int64)) error {
	l, err := load(ctx, a.Store, region, a.Holder, a.Policy)
	if err != nil {
		return err
	}
	a.Log.Info("allocator serves", "region", region, "epoch", l.epoch, "servers", l.servers, "queued", l.queued)
	watch := a.Store.Watch(store.TopicAll)
	defer watch.Close()
	tick := time.NewTicker(HeartbeatEvery)
	defer tick.Stop()
	wake := time.NewTimer(0)
	defer wake.Stop()
	var cycle int64
	var last time.Time
	due := true // the first cycle sees what was loaded
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			beat(cycle)
		case <-wake.C:
			due = true
		case <-watch.C:
			if left := gather - time.Since(last); left > 0 {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(left):
				}
			}
		}
		changed, err := l.catchUp(ctx)
		if err != nil {
			return err
		}
		if !changed && !due {
			continue
		}
		next, more, err := l.cycle(ctx)
		if err != nil {
			if schema.Is(err, schema.CodeStale) {
				a.Log.Warn("allocator stops: another has taken over", "region", region, "epoch", l.epoch)
			}
			return err
		}
		cycle, due, last = l.number, false, time.Now()
		if more {
			next = a.Store.Now().Time()
		}
		if !next.IsZero() {
			wake.Reset(max(0, next.Sub(a.Store.Now().Time())))
		}
	}
}
