package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.temporal.io/sdk/activity"

	"gpupool/schema"
	"gpupool/schema/store"
)

// Activities is registered with a cluster's task queue.
type Activities struct {
	Store  *store.Store
	Kind   schema.ClusterKind
	Open   func(ctx context.Context) (Backend, error) // reaches the cluster; it need not answer yet
	Can    schema.Ability                             // what its jobs can have beside what is usual for its kind
	Timing Timing
	Holder string // who takes the cluster: host and process
	Log    *slog.Logger
}

// Connect serves a cluster until its context ends, its worker stops, or another connector has taken it.
func (a *Activities) Connect(ctx context.Context, cluster string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		tick := time.NewTicker(time.Second) // a look at a cluster that doesn't answer takes longer than a heartbeat may
		defer tick.Stop()
		for {
			select {
			case <-activity.GetWorkerStopChannel(ctx):
				cancel()
				return
			case <-ctx.Done():
				return
			case <-tick.C:
				activity.RecordHeartbeat(ctx)
			}
		}
	}()
	// Not wrapped as an error of the domain: whatever it is, it is tried again, more and more slowly.
	err := a.Run(ctx, cluster)
	if err != nil && ctx.Err() == nil {
		a.Log.Error("the connector stopped", "cluster", cluster, "error", err)
	}
	return err
}

// Run is Connect outside Temporal.
func (a *Activities) Run(ctx context.Context, cluster string) error {
	epoch, err := a.Store.TakeCluster(ctx, cluster, a.Kind, a.Can, a.Holder)
	if err != nil {
		return fmt.Errorf("taking cluster %s: %w", cluster, err)
	}
	b, err := a.Open(ctx)
	if err != nil {
		// What waits for the cluster is told why.
		return errors.Join(fmt.Errorf("reaching cluster %s: %w", cluster, err), a.Store.Connector(cluster, epoch).Seen(ctx, true, err.Error()))
	}
	defer b.Close()
	a.Log.Info("connector serves", "cluster", cluster, "kind", a.Kind, "epoch", epoch)
	return newConnector(cluster, a.Store, a.Store.Connector(cluster, epoch), b, a.Timing, a.Log).run(ctx)
}
