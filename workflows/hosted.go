package workflows

import (
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"gpupool/activities/allocator"
	"gpupool/activities/cluster"
	"gpupool/activities/deliver"
	"gpupool/activities/hosted"
	"gpupool/activities/webhook"
)

// hosting is how Temporal keeps one execution of an endless activity alive in the cluster: when its process dies, its
// heartbeats stop and another worker is given it. Three of them must be missed, so that a process that is slow for a moment
// is not taken for dead: what is hosted is fenced and would survive it, but loads all it knows anew. A failure is tried again
// within a second however often there was one: the retries of an execution that lasts for years are never counted anew.
func hosting(ctx workflow.Context, queue string) workflow.Context {
	return workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		TaskQueue: queue, StartToCloseTimeout: 365 * 24 * time.Hour, HeartbeatTimeout: 3 * hosted.Every,
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: 200 * time.Millisecond, BackoffCoefficient: 1.5, MaximumInterval: time.Second},
	})
}

// AllocatorQueue is where a region's allocator is hosted.
func AllocatorQueue(region string) string { return "region." + region + ".allocator" }

// CoreQueue is where what needs only the database runs.
const CoreQueue = "core"

// SiteQueue is where what needs a site's BMC network and boot service runs.
func SiteQueue(site string) string { return "site." + site }

// Allocator hosts a region's hot allocator, under the workflow id allocator/<region>.
func Allocator(ctx workflow.Context, region string) error {
	var a *allocator.Activities
	err := workflow.ExecuteActivity(hosting(ctx, AllocatorQueue(region)), a.Allocate, region).Get(ctx, nil)
	if temporal.IsCanceledError(err) {
		return err
	}
	return workflow.NewContinueAsNewError(ctx, Allocator, region)
}

// ClusterQueue is where a cluster's connector is hosted.
func ClusterQueue(cluster string) string { return "cluster." + cluster }

// Cluster hosts a cluster's connector, under the workflow id cluster/<name>.
func Cluster(ctx workflow.Context, name string) error {
	var c *cluster.Activities
	err := workflow.ExecuteActivity(hosting(ctx, ClusterQueue(name)), c.Connect, name).Get(ctx, nil)
	if temporal.IsCanceledError(err) {
		return err
	}
	return workflow.NewContinueAsNewError(ctx, Cluster, name)
}

// Deliver hosts the delivery of stored events to the workflows that wait for them, under the workflow id deliver.
func Deliver(ctx workflow.Context) error {
	var d *deliver.Activities
	err := workflow.ExecuteActivity(hosting(ctx, CoreQueue), d.Deliver).Get(ctx, nil)
	if temporal.IsCanceledError(err) {
		return err
	}
	return workflow.NewContinueAsNewError(ctx, Deliver)
}

// Webhooks hosts the telling of webhooks, under the workflow id webhooks.
func Webhooks(ctx workflow.Context) error {
	var w *webhook.Activities
	err := workflow.ExecuteActivity(hosting(ctx, CoreQueue), w.Tell).Get(ctx, nil)
	if temporal.IsCanceledError(err) {
		return err
	}
	return workflow.NewContinueAsNewError(ctx, Webhooks)
}
