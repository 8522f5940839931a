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

	"gpupool/activities/allocator/engine"
	"gpupool/activities/hosted"
	"gpupool/schema"
	"gpupool/schema/store"
)

// Activities is registered with a region's allocator task queue.
type Activities struct {
	Store  *store.Store
	Policy engine.Config
	Mixed  bool   // jobs of several tenants may meet on a server that does not keep them apart
	Holder string // who takes the epoch: host and process
	Log    *slog.Logger
}

// GCPercent is the garbage collector's target in a process that does nothing but allocate. What it holds is large and lasts, what a
// cycle leaves behind is small: collecting a third as often keeps a collection, which costs the cycles that it meets half as much
// again, to fewer than one cycle in a hundred. The price is memory: 4 times what is held (GOGC's meaning), 0.5 GiB at
// 80,000 accelerators and 100,000 queued jobs.
const GCPercent = 300

// gather is how long after a cycle the next one waits for more to decide: a cycle costs a transaction, and what comes
// together is decided together. The first news after a quiet moment is acted upon at once.
const gather = 10 * time.Millisecond

// Allocate runs a region's allocator until its context ends, its worker stops or its epoch has passed.
func (a *Activities) Allocate(ctx context.Context, region string) error {
	return hosted.Run(ctx, func(ctx context.Context, turn func()) error { return a.run(ctx, region, turn) })
}

// Serve is Allocate without Temporal around it, for who hosts it by other means.
func (a *Activities) Serve(ctx context.Context, region string) error {
	return a.run(ctx, region, func() {})
}

// look is how often events are looked for where no wake-up came: another process's may have been missed.
const look = time.Second

func (a *Activities) run(ctx context.Context, region string, turn func()) error {
	l, err := load(ctx, a.Store, region, a.Holder, a.Policy, a.Mixed)
	if err != nil {
		return err
	}
	a.Log.Info("allocator serves", "region", region, "epoch", l.epoch, "servers", l.servers, "queued", l.queued)
	watch, asked := a.Store.Watch(store.TopicAll), a.Store.Watch(store.TopicDryRuns(region))
	defer watch.Close()
	defer asked.Close()
	tick := time.NewTicker(look)
	defer tick.Stop()
	wake := time.NewTimer(0)
	defer wake.Stop()
	var last time.Time
	due := true // the first cycle sees what was loaded
	for {
		turn()
		questions := false
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			questions = true
		case <-asked.C:
			questions = true
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
		if changed || due {
			next, more, err := l.cycle(ctx)
			if err != nil {
				if schema.Is(err, schema.CodeStale) {
					a.Log.Warn("allocator stops: another has taken over", "region", region, "epoch", l.epoch)
				}
				return err
			}
			due, last = false, time.Now()
			if more {
				next = a.Store.Now().Time()
			}
			if !next.IsZero() {
				wake.Reset(max(0, next.Sub(a.Store.Now().Time())))
			}
		}
		if questions { // after the cycle: the answer is of what is decided already
			if err := l.answer(ctx); err != nil {
				return err
			}
		}
	}
}
