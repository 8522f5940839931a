package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"gpupool/activities/meter"
)

const (
	meterEvery  = 5 * time.Minute
	meterRounds = 288 // a day's; then it continues as new
)

// Meter keeps the books of accelerator time, under the workflow id meter: every few minutes it folds what has ended and
// warns, and once an hour is over it checks that hour. What was missed while no process ran is made up for.
func Meter(ctx workflow.Context) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue: CoreQueue, StartToCloseTimeout: 10 * time.Minute,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: time.Second, MaximumInterval: time.Minute, MaximumAttempts: 5},
	})
	log := workflow.GetLogger(ctx)
	var a *meter.Activities
	for range meterRounds {
		if err := workflow.ExecuteActivity(ctx, a.Settle).Get(ctx, nil); err != nil {
			if temporal.IsCanceledError(err) {
				return err
			}
			log.Error("settling usage", "error", err) // the next round begins where this one stopped
		}
		var done meter.Checked
		if err := workflow.ExecuteActivity(ctx, a.Check).Get(ctx, &done); err != nil {
			if temporal.IsCanceledError(err) {
				return err
			}
			log.Error("checking hours", "error", err)
		}
		if err := workflow.Sleep(ctx, meterEvery); err != nil {
			return err
		}
	}
	return workflow.NewContinueAsNewError(ctx, Meter)
}
