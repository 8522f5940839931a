package workflows

import (
	"fmt"
	"strings"

	"go.temporal.io/sdk/workflow"

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
		case strings.TrimSpace(v.Reason) == "":
			return refuse(schema.Invalid("reason", v.Reason, "why, in words: the next person reads it"))
		case o.step == schema.StepRegister && o.failure == nil:
			return refuse(schema.Conflict("the server is being let into the pool at this moment", "drain it, if it is not wanted there"))
		}
		return nil
	}})
}

// open refuses a verb where the process is over, or on its way out.
func (o *onboarding) open() error {
	switch {
	case o.ended:
		return refuse(schema.Conflict("the onboarding is over", "see the server's phase"))
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
	case o.retry != nil || o.skip != nil:
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
