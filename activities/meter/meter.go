// Package meter keeps the books of accelerator time while the pool runs: it folds what has ended into the hourly sums,
// checks every hour that the states of all accelerators sum to what was installed, warns of budgets and of idle
// allocations, keeps what agents tell of utilization, and notices when the clock is set.
//
// Invariant: each activity can be repeated, run twice at once or die anywhere: the same is kept once. Not here: the
// arithmetic (schema/usage), what is kept and how (schema/store).
package meter

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"gpupool/activities/temporalerr"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/usage"
)

// Activities are what the workflow Meter runs.
type Activities struct {
	Store *store.Store
	Log   *slog.Logger // nil = slog.Default
}

func (a *Activities) log() *slog.Logger {
	if a.Log == nil {
		return slog.Default()
	}
	return a.Log
}

// Settled is what one round has done.
type Settled struct {
	Warned    int // of budgets
	Idle      int // jobs told that they do nothing
	Reclaimed int // jobs stopped for it
	Closed    int // tenants told that a month is closed
}

// notice is what is left at least to who is told that a job is idle before it is stopped, however short its limit.
const notice = 4 * time.Minute

// Settle folds what has ended since, then warns of budgets and idle allocations, and reclaims where the policy says so.
func (a *Activities) Settle(ctx context.Context) (Settled, error) {
	var out Settled
	if err := a.Store.CatchUpUsage(ctx); err != nil {
		return out, temporalerr.Wrap(err)
	}
	var err error
	if out.Warned, err = a.Store.WarnBudgets(ctx); err != nil {
		return out, temporalerr.Wrap(err)
	}
	if out.Closed, err = a.Store.TellClosedMonths(ctx); err != nil {
		return out, temporalerr.Wrap(err)
	}
	p, err := a.Store.ChargePolicy(ctx)
	if err != nil {
		return out, temporalerr.Wrap(err)
	}
	idle, err := a.Store.IdleJobs(ctx, p)
	if err != nil {
		return out, temporalerr.Wrap(err)
	}
	for _, j := range idle {
		now := a.Store.Now()
		var reclaim schema.Instant
		if j.Reclaim > 0 {
			reclaim = max(j.IdleSince+schema.Instant(j.Reclaim), now.Add(notice))
		}
		told, err := a.Store.TellIdle(ctx, j, reclaim)
		if err != nil {
			return out, temporalerr.Wrap(err)
		}
		out.Idle++
		if j.Reclaim == 0 || j.For < j.Reclaim || now < told.Add(notice) {
			continue
		}
		why := fmt.Sprintf("its accelerators did nothing for %s; the idle limit of project %s/%s is %s",
			schema.Setting((time.Duration(j.For) * time.Millisecond).Round(time.Second)), j.Tenant, j.Project, schema.Setting(time.Duration(j.Reclaim)*time.Millisecond))
		if err := a.Store.RequestStop(ctx, j.Job, j.Attempt, schema.AttemptCancelled, "idle policy", why); err != nil {
			if schema.Is(err, schema.CodeStale) {
				continue // the attempt that was idle has passed: the next has done nothing wrong
			}
			return out, temporalerr.Wrap(err)
		}
		out.Reclaimed++
	}
	return out, nil
}

// hoursAtOnce is how many hours one activity checks: after a long stop the workflow runs it again and again.
const hoursAtOnce = 48

// Checked is how many hours were checked, and how many findings they had.
type Checked struct{ Hours, Findings int }

// Check checks the hours that are over and not checked yet. More are left where Hours is what one round does.
func (a *Activities) Check(ctx context.Context) (Checked, error) {
	hours, found, err := a.Store.CheckHours(ctx, hoursAtOnce)
	for _, f := range found {
		a.log().ErrorContext(ctx, "accelerator time does not balance", "kind", f.Kind, "accelerator", f.Accelerator, "at", f.At.String(), "gpu_ms", f.Milliseconds, "text", f.Text)
	}
	return Checked{hours, len(found)}, temporalerr.Wrap(err)
}

// clockTolerance is how far the clock may jump before it counts as set: a slewing NTP client stays far below.
const clockTolerance = time.Second

// Clock reads the time as people set it, and how much of it has really passed since some moment.
type Clock func() (wall time.Time, passed time.Duration)

// SystemClock is the machine's: what has passed is told by its monotonic clock, which nobody sets.
func SystemClock() Clock {
	began := time.Now()
	return func() (time.Time, time.Duration) { return time.Now().Round(0), time.Since(began) }
}

// WatchClock compares the clock with the time that has really passed, until ctx ends, and keeps an alarm for each time
// that it was set. The ledger's own clock never goes back; see store.
func WatchClock(ctx context.Context, st *store.Store, every time.Duration, clock Clock) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	wall, passed := clock()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		w, p := clock()
		if by := w.Sub(wall) - (p - passed); by.Abs() > clockTolerance {
			f := usage.Finding{Kind: usage.FoundClock, At: schema.At(w), Text: fmt.Sprintf("the clock was set by %s, from about %s", schema.Setting(by.Round(time.Millisecond)), schema.At(w.Add(-by)))}
			if err := st.UsageAlarm(ctx, f); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
		}
		wall, passed = w, p
	}
}
