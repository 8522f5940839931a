package worker

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	sdkworker "go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"gpupool/worker/embedded"
	"gpupool/worker/namespace"
)

// TestWhatADeadProcessHadBegunBeginsAgainAtOnce: a process takes a hosted activity and dies; its heartbeats would be
// missed after an hour.
func TestWhatADeadProcessHadBegunBeginsAgainAtOnce(t *testing.T) {
	t.Parallel()
	quiet := slog.New(slog.DiscardHandler)
	srv, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), Logger: quiet, Sync: embedded.SyncNormal})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.Stop(); err != nil {
			t.Error(err)
		}
	})
	c, err := client.Dial(client.Options{HostPort: srv.HostPort(), Namespace: namespace.Default, Identity: identity(), Logger: sdklog.NewStructuredLogger(quiet)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	served := make(chan struct{}, 2)
	end := make(chan struct{})
	serve := func(context.Context) error { served <- struct{}{}; <-end; return nil }
	host := func(ctx workflow.Context) error {
		ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{TaskQueue: "hosted", StartToCloseTimeout: 24 * time.Hour, HeartbeatTimeout: time.Hour})
		return workflow.ExecuteActivity(ctx, "serve").Get(ctx, nil)
	}
	core := sdkworker.New(c, "core", sdkworker.Options{})
	core.RegisterWorkflowWithOptions(host, workflow.RegisterOptions{Name: "host"})
	if err := core.Start(); err != nil {
		t.Fatal(err)
	}
	defer core.Stop()
	run, err := c.ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "allocator/eu", TaskQueue: "core"}, host)
	if err != nil {
		t.Fatal(err)
	}
	// The dead process: it took the activity, and will never say a word.
	poll, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		got, err := c.WorkflowService().PollActivityTaskQueue(poll, &workflowservice.PollActivityTaskQueueRequest{
			Namespace: namespace.Default, TaskQueue: &taskqueuepb.TaskQueue{Name: "hosted", Kind: enumspb.TASK_QUEUE_KIND_NORMAL}, Identity: "host/1/old"})
		if err != nil {
			t.Fatal(err)
		}
		if len(got.TaskToken) > 0 {
			break
		}
	}
	next := sdkworker.New(c, "hosted", sdkworker.Options{DisableWorkflowWorker: true})
	next.RegisterActivityWithOptions(serve, activity.RegisterOptions{Name: "serve"})
	if err := next.Start(); err != nil {
		t.Fatal(err)
	}
	defer next.Stop()
	if err := takeOver(t.Context(), c, namespace.Default, "allocator/eu"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 30*time.Second, errors.New("the activity did not begin again"))
	defer cancel()
	select {
	case <-served:
	case <-ctx.Done():
		t.Fatal(context.Cause(ctx))
	}
	// What this process has begun is left alone: its worker may be quicker than its start.
	if err := takeOver(ctx, c, namespace.Default, "allocator/eu"); err != nil {
		t.Fatal(err)
	}
	close(end)
	if err := run.Get(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if len(served) > 0 {
		t.Fatal("this process's own activity was begun twice")
	}
}
