package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"gpupool/activities/job"
	"gpupool/schema"
)

// JobSignal is the one signal of RunJob: something was stored about the job, and the process is to look.
const JobSignal = "job"

// JobNews is what JobSignal carries. It is a hint: what is true stands in the record.
type JobNews struct {
	Kind    schema.EventKind `json:"kind"`
	Attempt int              `json:"attempt"`
	Ended   bool             `json:"ended,omitempty"` // the job ended while it was queued
}

// RunJobInput is a job's process.
type RunJobInput struct {
	Job string `json:"job"`
	// Attempt is the allocated one that the process begins with; 0 where it is to wait for one.
	Attempt int `json:"attempt,omitempty"`
	// LaunchTimeout is how long an allocated attempt may take to run on all its servers. 0 = 5 min.
	LaunchTimeout time.Duration `json:"launch_timeout,omitempty"`
	// ReleaseMargin is how long after the grace a stop may stay unconfirmed before its servers are cordoned. 0 = 30 s.
	ReleaseMargin time.Duration `json:"release_margin,omitempty"`
	// Resumed says that the process begins in the middle, and is to ask the record where the job stands.
	Resumed bool `json:"resumed,omitempty"`
}

// RunJob is a job from its first allocation to settled, over all its attempts, under the workflow id job/<id>. Before it
// the job waits in the record alone.
//
// It waits for the allocator's word, dispatches, waits for the end, releases and settles; a preempted or lost attempt
// goes around again. Each wait is a select of news and a timer. A person's cancel, the allocator's preemption and a
// fault of the hardware all arrive as the record's word that the attempt is to stop.
func RunJob(ctx workflow.Context, in RunJobInput) error {
	r := jobRun{in: in, news: workflow.GetSignalChannel(ctx, JobSignal)}
	if r.in.LaunchTimeout == 0 {
		r.in.LaunchTimeout = 5 * time.Minute
	}
	if r.in.ReleaseMargin == 0 {
		r.in.ReleaseMargin = 30 * time.Second
	}
	ctx = workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
		StartToCloseTimeout: 15 * time.Second, ScheduleToCloseTimeout: 24 * time.Hour,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: 100 * time.Millisecond, MaximumInterval: 10 * time.Second},
	})
	err := r.run(ctx)
	for n := (JobNews{}); r.news.ReceiveAsync(&n); { // told after the end, as when a whole array is cancelled
	}
	return err
}

func (r *jobRun) run(ctx workflow.Context) error {
	var record *job.Activities
	for {
		attempt, ended, err := r.awaitAllocation(ctx)
		if err != nil || ended {
			return err
		}
		var first job.Status
		if err := workflow.ExecuteLocalActivity(ctx, record.Dispatch, r.follow(attempt)).Get(ctx, &first); err != nil {
			return err
		}
		state, err := r.awaitEnd(ctx, attempt, first.Next)
		if err != nil || state.Ended() {
			return err
		}
		r.settled = attempt
		if workflow.GetInfo(ctx).GetContinueAsNewSuggested() {
			r.in.Attempt, r.in.Resumed = 0, true
			return workflow.NewContinueAsNewError(ctx, RunJob, r.in)
		}
	}
}

type jobRun struct {
	in      RunJobInput
	news    workflow.ReceiveChannel
	settled int  // attempts up to this one are over: news of them is old
	look    bool // more than the allocation has happened: look before waiting
}

// awaitAllocation waits until the allocator has placed an attempt, or the job has ended in the queue.
func (r *jobRun) awaitAllocation(ctx workflow.Context) (attempt int, ended bool, err error) {
	if first := r.in.Attempt; first > 0 {
		r.in.Attempt = 0
		return first, false, nil
	}
	if r.in.Resumed {
		r.in.Resumed = false
		var record *job.Activities
		var p job.Position
		if err := workflow.ExecuteLocalActivity(ctx, record.Locate, r.in.Job).Get(ctx, &p); err != nil {
			return 0, false, err
		}
		r.settled = p.Settled
		if p.Ended || p.Attempt > 0 {
			r.look = true
			return p.Attempt, p.Ended, nil
		}
	}
	for {
		var n JobNews
		r.news.Receive(ctx, &n)
		if n.Ended {
			return 0, true, nil
		}
		if n.Attempt > r.settled {
			r.look = n.Kind != schema.EventJobAllocated
			return n.Attempt, false, nil
		}
	}
}

// awaitEnd waits until the attempt is over and settled. Its timer stands for the next moment that something is due:
// the launch, the time limit, the confirmation of a stop.
func (r *jobRun) awaitEnd(ctx workflow.Context, attempt int, wait time.Duration) (schema.JobState, error) {
	var record *job.Activities
	for {
		if !r.look {
			r.awaitNews(ctx, attempt, wait)
		}
		r.look = false
		var st job.Status
		if err := workflow.ExecuteLocalActivity(ctx, record.Follow, r.follow(attempt)).Get(ctx, &st); err != nil {
			return "", err
		}
		if st.Settled != "" {
			return st.Settled, nil
		}
		wait = st.Next
	}
}

func (r *jobRun) follow(attempt int) job.FollowInput {
	return job.FollowInput{Job: r.in.Job, Attempt: attempt, LaunchTimeout: r.in.LaunchTimeout, ReleaseMargin: r.in.ReleaseMargin}
}

// awaitNews returns when there is news of this attempt, or when wait (if any) has passed.
func (r *jobRun) awaitNews(ctx workflow.Context, attempt int, wait time.Duration) {
	timerCtx, cancel := workflow.WithCancel(ctx)
	defer cancel()
	look := false
	sel := workflow.NewSelector(ctx)
	sel.AddReceive(r.news, func(c workflow.ReceiveChannel, _ bool) {
		var n JobNews
		c.Receive(ctx, &n)
		look = n.Attempt >= attempt && n.Kind != schema.EventJobAllocated || n.Kind == schema.EventJobLimit
	})
	if wait > 0 {
		sel.AddFuture(workflow.NewTimer(timerCtx, wait), func(workflow.Future) { look = true })
	}
	for !look {
		sel.Select(ctx)
	}
}
