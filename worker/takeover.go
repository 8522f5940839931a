package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
)

// takeOver ends what an earlier life of this process had begun of a workflow's activities, so that they begin again at
// once and not when their heartbeats are found missing. It is for the embedded server alone: one process at a time holds
// its folder, so whoever else began an activity there is dead. In a cluster only the missing heartbeat tells.
func takeOver(ctx context.Context, c client.Client, namespace, workflow string) error {
	d, err := c.DescribeWorkflowExecution(ctx, workflow, "")
	if err != nil {
		return err
	}
	for _, a := range d.PendingActivities {
		if a.State != enumspb.PENDING_ACTIVITY_STATE_STARTED || a.LastWorkerIdentity == identity() {
			continue
		}
		err := c.CompleteActivityByID(ctx, namespace, workflow, d.WorkflowExecutionInfo.Execution.RunId, a.ActivityId, nil,
			temporal.NewApplicationErrorWithOptions("the process that ran it, "+a.LastWorkerIdentity+", has ended", "ProcessEnded", temporal.ApplicationErrorOptions{NextRetryDelay: time.Millisecond}))
		var gone *serviceerror.NotFound
		if err != nil && !errors.As(err, &gone) { // gone: its time was up meanwhile
			return fmt.Errorf("taking over activity %s: %w", a.ActivityId, err)
		}
	}
	return nil
}
