package workflows

import (
	"fmt"
	"slices"
	"strings"

	"go.temporal.io/sdk/workflow"

	"gpupool/activities/install"
	"gpupool/schema"
)

// listen takes the verbs of people. A validator refuses what the process can't take now, and says why.
func (o *onboarding) listen(ctx workflow.Context) error {
	if err := workflow.SetUpdateHandlerWithOptions(ctx, UpdateRetry, func(_ workflow.Context, v Retry) error {
		o.retry = &v
		return nil
	}, workflow.UpdateHandlerOptions{Validator: func(_ workflow.Context, _ Retry) error { return o.stopped("retried") }}); err != nil {
		return err
	}
	if err := workflow.SetUpdateHandlerWithOptions(ctx, UpdateSkip, func(_ workflow.Context, v Skip) error {
		o.skip = &v
		return nil
	}, workflow.UpdateHandlerOptions{Validator: func(_ workflow.Context, v Skip) error { return o.skippable(v) }}); err != nil {
		return err
	}
	if err := o.listenAccept(ctx); err != nil {
		return err
	}
	if err := o.listenPause(ctx); err != nil {
		return err
	}
	return workflow.SetUpdateHandlerWithOptions(ctx, UpdateAbort, func(_ workflow.Context, v Abort) error {
		o.aborted = &v
		if o.cancel != nil {
			o.cancel()
		}
		return nil
	}, workflow.UpdateHandlerOptions{Validator: func(_ workflow.Context, v Abort) error {
		if err := o.open(); err != nil {
			return err
		}
		switch {
		case o.retires:
			return refuse(schema.Unsafe("a retirement that has begun is not taken back", "skip what can't be done, with a reason; before its jobs have ended a server is undrained"))
		case strings.TrimSpace(v.Reason) == "":
			return refuse(schema.Invalid("reason", v.Reason, "why, in words: the next person reads it"))
		case o.step == schema.StepRegister && o.failure == nil:
			return refuse(schema.Conflict("the server is being let into the pool at this moment", "drain it, if it is not wanted there"))
		}
		return nil
	}})
}

// listenAccept takes a server as it is. The record decides what that is, at the moment of the word; the step then looks again.
func (o *onboarding) listenAccept(ctx workflow.Context) error {
	var record *install.Activities
	return workflow.SetUpdateHandlerWithOptions(ctx, UpdateAccept, func(ctx workflow.Context, v Accept) error {
		ctx = once(ctx)
		o.saying = true
		defer func() { o.saying = false }()
		in := install.AcceptInput{Server: o.plan.Server, Attempt: o.plan.Attempt, Differences: v.Differences, Reason: v.Reason, By: v.By}
		if err := workflow.ExecuteLocalActivity(ctx, record.AcceptDifferences, in).Get(ctx, nil); err != nil {
			return refuse(err)
		}
		o.retry = &Retry{By: v.By}
		return nil
	}, workflow.UpdateHandlerOptions{Validator: func(_ workflow.Context, v Accept) error {
		if err := o.stopped("accepted"); err != nil {
			return err
		}
		switch {
		case strings.TrimSpace(v.Reason) == "":
			return refuse(schema.Invalid("reason", v.Reason, "why, in words: the next person reads it"))
		case o.failure.Code != schema.FailHardware || o.retires:
			return refuse(schema.Conflict(fmt.Sprintf("step %s has not stopped for a difference from the order", o.step), "put right what it names, then retry"))
		}
		return nil
	}})
}

// listenPause takes the words that stop an onboarding before a step and let it go on.
func (o *onboarding) listenPause(ctx workflow.Context) error {
	var record *install.Activities
	if err := workflow.SetUpdateHandlerWithOptions(ctx, UpdatePause, func(ctx workflow.Context, v Pause) error {
		ctx = once(ctx)
		before := o.pause
		o.pause = &schema.Pause{Before: v.Before, By: v.By, Reason: v.Reason}                   // from now on, so that no step begins meanwhile
		if err := workflow.Await(ctx, func() bool { return o.plan.Server != "" }); err != nil { // it may come before the attempt has begun
			return err
		}
		if err := workflow.ExecuteLocalActivity(ctx, record.PauseOnboarding, install.PauseInput{Server: o.plan.Server, Attempt: o.plan.Attempt, Pause: *o.pause}).Get(ctx, nil); err != nil {
			o.pause = before
			return refuse(err)
		}
		return nil
	}, workflow.UpdateHandlerOptions{Validator: func(_ workflow.Context, v Pause) error { return o.pausable(v) }}); err != nil {
		return err
	}
	return workflow.SetUpdateHandlerWithOptions(ctx, UpdateContinue, func(ctx workflow.Context, v Continue) error {
		ctx = once(ctx)
		o.saying = true
		defer func() { o.saying = false }()
		in := o.end()
		in.By = v.By
		if err := workflow.ExecuteLocalActivity(ctx, record.ContinueOnboarding, in).Get(ctx, nil); err != nil {
			return refuse(err)
		}
		o.pause = nil
		return nil
	}, workflow.UpdateHandlerOptions{Validator: func(workflow.Context, Continue) error {
		if err := o.open(); err != nil {
			return err
		}
		if o.pause == nil || o.saying {
			return refuse(schema.Conflict("the onboarding is not paused", "see the server's steps"))
		}
		return nil
	}})
}

func (o *onboarding) pausable(v Pause) error {
	if err := o.open(); err != nil {
		return err
	}
	at, to := slices.Index(schema.Steps, o.step), slices.Index(schema.Steps, v.Before)
	switch {
	case o.retires:
		return refuse(schema.Conflict("only an onboarding is paused", "a retirement goes through its steps"))
	case strings.TrimSpace(v.Reason) == "":
		return refuse(schema.Invalid("reason", v.Reason, "why, in words: the next person reads it"))
	case v.Before != "" && to < 0:
		return refuse(schema.Invalid("before", string(v.Before), fmt.Sprintf("one of %v, or nothing for the next", schema.Steps)))
	case o.pause != nil:
		return refuse(schema.Conflict("the onboarding is paused already, by "+o.pause.By+": "+o.pause.Reason, "let it go on first, or leave it there"))
	case o.saying:
		return refuse(schema.Conflict("the onboarding is being told to go on at this moment", "see the server's steps"))
	case o.step == schema.StepRegister && o.failure == nil:
		return refuse(schema.Conflict("the server is being let into the pool at this moment", "drain it, if it is not wanted there"))
	case v.Before != "" && (to < at || to == at && o.failure == nil):
		return refuse(schema.Conflict(fmt.Sprintf("step %s has begun already: the onboarding is at %s", v.Before, o.step), "name a step that is to come, or nothing for the next"))
	}
	return nil
}

// open refuses a verb where the process is over, or on its way out.
func (o *onboarding) open() error {
	switch {
	case o.ended:
		return refuse(schema.Conflict("the process is over", "see the server's phase"))
	case o.aborted != nil:
		return refuse(schema.Conflict("the onboarding is being undone, aborted by "+o.aborted.By, "start it again once the server is enrolled"))
	}
	return nil
}

// stopped refuses a verb where no step waits for a person, or one has decided already.
func (o *onboarding) stopped(verb string) error {
	if err := o.open(); err != nil {
		return err
	}
	switch {
	case o.failure == nil:
		return refuse(schema.Conflict(fmt.Sprintf("step %s runs and has not failed", o.step), "a step is "+verb+" once it has stopped"))
	case o.retry != nil || o.skip != nil || o.saying:
		return refuse(schema.Conflict(fmt.Sprintf("step %s goes on already by another's word", o.step), "see the server's steps"))
	}
	return nil
}

func (o *onboarding) skippable(v Skip) error {
	if err := o.stopped("skipped"); err != nil {
		return err
	}
	switch {
	case v.Step != o.step:
		return refuse(schema.Conflict(fmt.Sprintf("step %s has stopped, not %s", o.step, v.Step), "name the step that is to be skipped"))
	case strings.TrimSpace(v.Reason) == "":
		return refuse(schema.Invalid("reason", v.Reason, "why, in words: a skipped step is on the server's record"))
	case o.step == schema.StepRegister:
		return refuse(schema.Unsafe("step register can't be skipped", "without it the server is not in the pool"))
	}
	return nil
}
