package embedded

import (
	"context"
	"time"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
)

const queue = "test"

// process is the shape of a job as Temporal sees it: an activity, a wait for news, an activity.
func process(ctx workflow.Context) error {
	ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: 5 * time.Second})
	if err := workflow.ExecuteActivity(ctx, step, "first").Get(ctx, nil); err != nil {
		return err
	}
	workflow.GetSignalChannel(ctx, "go").Receive(ctx, nil)
	return workflow.ExecuteActivity(ctx, step, "second").Get(ctx, nil)
}

func step(context.Context, string) error { return nil }

// startWorker runs process for c until the returned function is called.
func startWorker(c client.Client) (stop func(), err error) {
	w := worker.New(c, queue, worker.Options{MaxConcurrentWorkflowTaskPollers: 8, MaxConcurrentActivityTaskPollers: 8})
	w.RegisterWorkflowWithOptions(process, workflow.RegisterOptions{Name: "process"})
	w.RegisterActivity(step)
	return w.Stop, w.Start()
}
