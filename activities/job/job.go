// Package job is what a job's workflow asks of the record: dispatch an attempt, follow it to its end, settle it.
//
// Invariant: every function is idempotent, keyed by job and attempt, and decides from the record, never from what a
// signal said. They run as local activities: they touch the database only. Not here: running (worker/agent and the
// backends), placing (activities/allocator).
package job

import (
	"context"
	"time"

	"gpupool/activities/temporalerr"
	"gpupool/schema"
	"gpupool/schema/store"
)

// Activities is registered with the core task queue.
type Activities struct{ Store *store.Store }

// Dispatch hands an attempt to the servers it was given, and says when to look at it first. That it runs is not told
// to the process, which would cost each job a signal: so a limit shorter than the launch may take ends the first wait.
func (a *Activities) Dispatch(ctx context.Context, in FollowInput) (Status, error) {
	if err := a.Store.DispatchAttempt(ctx, in.Job, in.Attempt); err != nil {
		return Status{}, temporalerr.Wrap(err)
	}
	j, err := a.Store.Job(ctx, in.Job)
	if err != nil {
		return Status{}, temporalerr.Wrap(err)
	}
	return Status{Next: launchWait(j, in.LaunchTimeout)}, nil
}

// shortestWait keeps a limit of a few milliseconds from being a busy loop while the attempt launches. Temporal's timers
// are no finer.
const shortestWait = time.Second

// awayWait is how long to wait before looking again at an attempt whose cluster does not answer.
const awayWait = time.Minute

// launchWait is when to look again at an attempt that is not known to run and has left before its launch is late.
func launchWait(j schema.Job, left time.Duration) time.Duration {
	if j.TimeLimit > 0 {
		return min(left, max(j.Limit(), shortestWait))
	}
	return left
}

// Position is where a job stands.
type Position struct {
	Attempt int  `json:"attempt"` // the live one; 0 = none is
	Settled int  `json:"settled"` // attempts that are over
	Ended   bool `json:"ended"`
}

// Locate reads it, for a process that begins in the middle.
func (a *Activities) Locate(ctx context.Context, job string) (Position, error) {
	j, err := a.Store.Job(ctx, job)
	if err != nil {
		return Position{}, temporalerr.Wrap(err)
	}
	p := Position{Ended: j.State.Ended(), Settled: j.Attempt}
	if !p.Ended && j.State != schema.JobQueued {
		p.Attempt, p.Settled = j.Attempt, j.Attempt-1
	}
	return p, nil
}

// FollowInput names an attempt and how long its waits may last.
type FollowInput struct {
	Job           string        `json:"job"`
	Attempt       int           `json:"attempt"`
	LaunchTimeout time.Duration `json:"launch_timeout"`
	ReleaseMargin time.Duration `json:"release_margin"`
}

// Status is how far an attempt has come.
type Status struct {
	Settled schema.JobState `json:"settled,omitempty"` // the job's state after settling; empty = the attempt is live
	Next    time.Duration   `json:"next,omitempty"`    // when to look again if no news comes; 0 = only news matters
}

// Follow does what is due for an attempt: settles it when its last process is gone, asks it to stop when its time
// limit has passed or it never started, and gives up on confirmation when a stop stays unanswered too long: then its
// servers are cordoned as they are released.
func (a *Activities) Follow(ctx context.Context, in FollowInput) (Status, error) {
	st, err := a.Store.AttemptStatus(ctx, in.Job, in.Attempt)
	if err != nil {
		return Status{}, temporalerr.Wrap(err)
	}
	now := a.Store.Now()
	at := st.Attempt
	switch {
	case at.ReleasedAt != 0 || st.Job.State.Ended():
		return Status{Settled: st.Job.State}, nil
	case st.Open == 0 && st.Tasks > 0, st.Tasks == 0 && at.StopWhy != "":
		return a.settle(ctx, in, st.Unsure)
	case at.StopWhy != "":
		due := max(at.StoppingAt, st.BackAt).Add(time.Duration(st.Job.Grace)*time.Millisecond + in.ReleaseMargin)
		if now >= due && st.Away {
			return Status{Next: awayWait}, nil // what it holds may be in use; it stays held
		}
		if now >= due {
			return a.settle(ctx, in, append(st.Unsure, st.OpenOn...))
		}
		return Status{Next: due.Sub(now)}, nil
	case at.RunningAt == 0:
		due := max(at.AllocatedAt, st.BackAt).Add(in.LaunchTimeout)
		if now >= due && st.Away {
			return Status{Next: awayWait}, nil // it may have been started, and is neither lost nor anybody's fault
		}
		if now >= due {
			return a.stop(ctx, in, schema.AttemptUnstarted, "it was not running on all its servers within "+in.LaunchTimeout.String())
		}
		return Status{Next: launchWait(st.Job, due.Sub(now))}, nil
	case st.Job.TimeLimit > 0:
		due := at.RunningAt.Add(st.Job.Limit())
		if now >= due {
			return a.stop(ctx, in, schema.AttemptTimeout, "ran past its time limit of "+st.Job.Limit().String())
		}
		return Status{Next: due.Sub(now)}, nil
	}
	return Status{}, nil
}

func (a *Activities) settle(ctx context.Context, in FollowInput, unconfirmed []string) (Status, error) {
	s, err := a.Store.SettleAttempt(ctx, in.Job, in.Attempt, unconfirmed)
	if err != nil {
		return Status{}, temporalerr.Wrap(err)
	}
	return Status{Settled: s.State}, nil
}

func (a *Activities) stop(ctx context.Context, in FollowInput, why schema.AttemptOutcome, cause string) (Status, error) {
	if err := a.Store.RequestStop(ctx, in.Job, in.Attempt, why, "job/"+in.Job, cause); err != nil && !schema.Is(err, schema.CodeStale) {
		return Status{}, temporalerr.Wrap(err)
	}
	return a.Follow(ctx, in)
}
