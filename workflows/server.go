package workflows

import (
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"gpupool/activities/health"
	"gpupool/activities/node"
	"gpupool/activities/temporalerr"
	"gpupool/schema"
)

// wakes counts what may have changed the record. Waits look at the record when it rises, so a signal that came early,
// late or twice does no harm.
type wakes struct {
	n int
	// retire: the record says that the server is to go.
	retire bool
}

// serverWakes listens to the signals of server/<id> for as long as the workflow runs.
func serverWakes(ctx workflow.Context) *wakes {
	w := &wakes{}
	for _, name := range []string{SignalPhonedHome, SignalAgentUp, SignalTaskEnded, SignalDrained, SignalRepairOpened, SignalOnboard, SignalRetire} {
		c := workflow.GetSignalChannel(ctx, name)
		workflow.Go(ctx, func(ctx workflow.Context) {
			for c.Receive(ctx, nil) {
				w.n++
				w.retire = w.retire || name == SignalRetire
			}
		})
	}
	return w
}

// lookAgain is how often a wait looks at the record though nothing woke it: a lost wake-up costs minutes, not the
// process.
const lookAgain = 10 * time.Minute

// await reads the record until ready says so, looking at each wake-up, for at most limit. It is false when the time was
// up. A cancelled ctx ends it with that error.
func (w *wakes) await(ctx workflow.Context, limit time.Duration, ready func(workflow.Context) (bool, error)) (bool, error) {
	deadline := workflow.Now(ctx).Add(limit)
	for {
		seen := w.n
		ok, err := ready(ctx)
		left := deadline.Sub(workflow.Now(ctx))
		if err != nil || ok || left <= 0 {
			return ok, err
		}
		if _, err := workflow.AwaitWithTimeout(ctx, min(left, lookAgain), func() bool { return w.n != seen }); err != nil {
			return false, err
		}
	}
}

// local is for what touches the database only. It is tried until it succeeds or is refused: the record may be away for
// a while, and the process waits for it.
func local(ctx workflow.Context) workflow.Context {
	return workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
		StartToCloseTimeout: 15 * time.Second, ScheduleToCloseTimeout: 24 * time.Hour,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: 100 * time.Millisecond, MaximumInterval: 10 * time.Second},
	})
}

// atSite is for an act at a BMC: limit bounds all tries together. It waits for a cancelled act to end, so that nothing
// is undone while it is still being done.
func atSite(ctx workflow.Context, site string, limit time.Duration) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue: SiteQueue(site), ScheduleToCloseTimeout: limit, StartToCloseTimeout: limit, HeartbeatTimeout: 30 * time.Second, WaitForCancellation: true,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Second, MaximumInterval: time.Minute},
	})
}

// atCore is for what may wait outside the workflow, with tries that cost no history.
func atCore(ctx workflow.Context, every time.Duration) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue: CoreQueue, StartToCloseTimeout: time.Minute,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: every, BackoffCoefficient: 1.2, MaximumInterval: 15 * time.Second},
	})
}

// failureOf makes a step's failure of an error that an activity ended with, after all its tries.
func failureOf(err error) schema.StepFailure {
	f := schema.StepFailure{Code: schema.FailInternal, Text: err.Error(), Retryable: true}
	var e *schema.Error
	if errors.As(temporalerr.Unwrap(err), &e) {
		f.Text = e.Error()
		f.Retryable = schema.Outcomes[e.Code].Retryable
		if e.Code == schema.CodeUnsafe {
			f.Code = schema.FailUnsafe
		}
	}
	if reason := temporalerr.Reason(err); reason != "" {
		f.Code = schema.FailureCode(reason)
		f.Retryable = f.Retryable || f.Code == schema.FailInstaller // by a person, who has put right what it named
	}
	var late *temporal.TimeoutError
	if errors.As(err, &late) {
		if cause := late.Unwrap(); cause != nil {
			inner := failureOf(cause)
			inner.Text += " (tried until the time was up)"
			return inner
		}
		f.Text = "no answer in time: does a worker for the server's site run?"
	}
	return f
}

// unreached says in words what a BMC's failure is, after all tries within limit.
func unreached(f schema.StepFailure, limit time.Duration) schema.StepFailure {
	if f.Code == schema.FailBMC {
		f.Text = fmt.Sprintf("no success at the BMC within %s. Proven: nothing but the last answer: %s. Not proven: that the BMC works and is reached. "+
			"To do: has it power, is it cabled to the BMC network, does the site's worker reach its address, is its Redfish service on? Reset it where it hangs; then retry.", schema.Setting(limit), f.Text)
	}
	return f
}

func failed(f schema.StepFailure) schema.StepOutcome { return schema.StepOutcome{Failure: &f} }

func failedAs(code schema.FailureCode, retryable bool, format string, args ...any) schema.StepOutcome {
	return failed(schema.StepFailure{Code: code, Text: fmt.Sprintf(format, args...), Retryable: retryable})
}

// work gives the server's agent a task and waits for its end. Work that isn't done in time is dropped.
func (w *wakes) work(ctx workflow.Context, ask node.Ask, limit time.Duration) (node.State, error) {
	var agent *node.Activities
	var state node.State
	done, err := w.await(ctx, limit, func(ctx workflow.Context) (bool, error) {
		err := workflow.ExecuteLocalActivity(local(ctx), agent.AskAgent, ask).Get(ctx, &state)
		return state.Ended, err
	})
	if err != nil || !done {
		aside, cancel := workflow.NewDisconnectedContext(ctx)
		defer cancel()
		_ = workflow.ExecuteLocalActivity(local(aside), agent.DropTask, ask.ID).Get(aside, nil) // it ends with its process at the latest
	}
	if err != nil {
		return state, err
	}
	if !done {
		proven, not := "it was given out for the agent", "that the agent is up: it did not take it"
		if state.Claimed {
			proven, not = "the agent took it", "that the agent works on it still: it did not end it"
		}
		out := failedAs(schema.FailTask, true, "%s was not done within %s. Proven: %s. Not proven: %s. To do: does the server run, and gpupool-agent on it? Does it reach the API? Does a driver hang (read the console)? Then retry.", ask.Kind, schema.Setting(limit), proven, not)
		if ask.Kind == schema.TaskBurnIn {
			out.Failure.Code, state.Inconclusive = schema.FailInconclusive, true
		}
		state.Outcome = &out
	}
	return state, nil
}

// handOver ends a process of a server: well, or by going on as the next one. What opens a repair or begins an onboarding
// signals whatever process of the server runs, so the last thing that each does is to look.
func (w *wakes) handOver(ctx workflow.Context, server string) error {
	var record *health.Activities
	for {
		if err := settle(ctx); err != nil {
			return err
		}
		seen := w.n
		var next health.Next
		lctx := local(ctx)
		if err := workflow.ExecuteLocalActivity(lctx, record.NextProcess, server).Get(lctx, &next); err != nil {
			return err
		}
		switch {
		case next.Repair != "":
			return workflow.NewContinueAsNewError(ctx, RepairServer, RepairInput{Repair: next.Repair})
		case next.Attempt > 0:
			return workflow.NewContinueAsNewError(ctx, OnboardServer, OnboardInput{Server: server, Attempt: next.Attempt})
		case next.Retire:
			return workflow.NewContinueAsNewError(ctx, RetireServer, RetireInput{Server: server})
		case w.n == seen:
			return nil
		}
	}
}

// answered ends a workflow with err once every update's handler has answered.
func answered(ctx workflow.Context, err error) error {
	if serr := settle(ctx); serr != nil && err == nil {
		return serr
	}
	return err
}

// settle waits until every update's handler has answered, so that no caller is left without one.
func settle(ctx workflow.Context) error {
	return workflow.Await(ctx, func() bool { return workflow.AllHandlersFinished(ctx) })
}

// refuse is a validator's refusal.
func refuse(err error) error { return temporalerr.Wrap(err) }
