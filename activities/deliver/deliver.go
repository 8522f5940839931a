// Package deliver carries stored events to the workflows that wait for them: one reader, in the order of commit, with a
// durable cursor.
//
// Invariant: an edge from a machine or the allocator is stored first and delivered at least once afterwards, in order for
// each workflow; the cursor moves only when everything before it has been taken by Temporal. A signal that comes twice
// is harmless: it only says that it is time to look. Not here: which event goes where (workflows.Route).
package deliver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"golang.org/x/sync/errgroup"

	"gpupool/schema"
	"gpupool/schema/store"
)

// Delivery is what an event means to a workflow.
type Delivery struct {
	Workflow string // workflow id
	Queue    string // task queue to start it on

	// Start, if not nil, is the workflow to start with StartArg, once for ever.
	Start    any
	StartArg any

	// Signal, if not empty, is sent with Arg.
	Signal string
	Arg    any
	// Revive, if not nil, starts the workflow with ReviveArg together with the signal where none runs; where it is nil
	// a signal to a workflow that is gone is dropped.
	Revive    any
	ReviveArg any
}

// Activities is registered with the core task queue.
type Activities struct {
	Store  *store.Store
	Client client.Client
	Route  func(schema.Event) (Delivery, bool)
	// Judge decides what a fault means before anything else is told of it.
	Judge func(ctx context.Context, fault string) error
	Log   *slog.Logger
}

const (
	cursor      = "deliver"
	batch       = 1000
	parallel    = 16
	beatEvery   = time.Second
	longestWait = 5 * time.Second
)

// Deliver reads and delivers until its context ends or its worker stops.
func (d *Activities) Deliver(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	beating := make(chan struct{})
	go func() {
		defer close(beating)
		for {
			select {
			case <-activity.GetWorkerStopChannel(ctx):
				cancel()
			case <-ctx.Done():
				return
			case <-beat.C:
				activity.RecordHeartbeat(ctx)
			}
		}
	}()
	defer func() { cancel(); <-beating }()
	return d.run(ctx)
}

func (d *Activities) run(ctx context.Context) error {
	at, err := d.Store.Cursor(ctx, cursor)
	if err != nil {
		return fmt.Errorf("reading the delivery's cursor: %w", err)
	}
	kept := at
	watch := d.Store.Watch(store.TopicAll)
	defer watch.Close()
	keep := time.NewTicker(beatEvery)
	defer keep.Stop()
	for {
		events, next, err := d.Store.Events(ctx, at, batch, store.EventFilter{})
		if err != nil {
			return fmt.Errorf("reading events: %w", err)
		}
		sent, err := d.deliver(ctx, events)
		if err != nil {
			return err
		}
		at = next
		// What needed no delivery moves the durable cursor only now and then: reading it again costs nothing.
		if sent > 0 || at-kept >= batch {
			if err := d.Store.SetCursor(ctx, cursor, at); err != nil {
				return fmt.Errorf("moving the delivery's cursor: %w", err)
			}
			kept = at
		}
		if len(events) == batch {
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-watch.C:
		case <-keep.C:
		}
	}
}

// deliver sends a batch: events of one workflow one after the other, workflows beside each other.
func (d *Activities) deliver(ctx context.Context, events []schema.Event) (sent int, err error) {
	lanes := map[string][]func(context.Context) error{}
	for _, e := range events {
		if e.Kind == schema.EventFault && d.Judge != nil {
			lane := "server/" + e.Server
			lanes[lane] = append(lanes[lane], func(ctx context.Context) error { return d.Judge(ctx, e.Subject) })
			sent++
		}
		if v, ok := d.Route(e); ok {
			lanes[v.Workflow] = append(lanes[v.Workflow], func(ctx context.Context) error { return d.send(ctx, v) })
			sent++
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for lane, acts := range lanes {
		g.Go(func() error {
			for _, act := range acts {
				if err := d.insist(ctx, lane, act); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return sent, g.Wait()
}

// insist repeats an act until it is done: an event is never skipped. What stands in the way is logged.
func (d *Activities) insist(ctx context.Context, lane string, act func(context.Context) error) error {
	wait := 50 * time.Millisecond
	for {
		err := act(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		d.Log.Warn("delivery waits", "to", lane, "error", err, "again_in", wait)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		wait = min(wait*2, longestWait)
	}
}

func (d *Activities) send(ctx context.Context, v Delivery) error {
	if v.Start != nil {
		_, err := d.Client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: v.Workflow, TaskQueue: v.Queue, EnableEagerStart: true,
			WorkflowIDReusePolicy: enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE, WorkflowIDConflictPolicy: enumspb.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING}, v.Start, v.StartArg)
		var started *serviceerror.WorkflowExecutionAlreadyStarted
		if err != nil && !errors.As(err, &started) {
			return err
		}
	}
	if v.Signal == "" {
		return nil
	}
	err := d.Client.SignalWorkflow(ctx, v.Workflow, "", v.Signal, v.Arg)
	var gone *serviceerror.NotFound
	if !errors.As(err, &gone) {
		return err
	}
	if v.Revive == nil {
		return nil
	}
	_, err = d.Client.SignalWithStartWorkflow(ctx, v.Workflow, v.Signal, v.Arg, client.StartWorkflowOptions{TaskQueue: v.Queue, WorkflowIDReusePolicy: enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE}, v.Revive, v.ReviveArg)
	return err
}
