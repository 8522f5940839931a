// Package deliver carries stored events to the workflows that wait for them: one reader, in the order of commit, with a
// durable cursor.
//
// Invariant: an edge from a machine or the allocator is stored first and delivered at least once afterwards, in order for
// each workflow; the cursor moves only when everything before it has been taken by Temporal. A signal that comes twice
// is harmless: it only says that it is time to look. A workflow that is slow to reach holds up its own events only. Not here: which event goes where (workflows.Route).
package deliver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"gpupool/activities/hosted"
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

	// Signal, where there is no Start, is sent with Arg.
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
	ahead       = 4 * batch // deliveries that may be open while more are read
	keepEvery   = time.Second
	longestWait = 5 * time.Second
)

// Deliver reads and delivers until its context ends or its worker stops.
func (d *Activities) Deliver(ctx context.Context) error {
	return hosted.Run(ctx, func(ctx context.Context, turn func()) error { return d.run(ctx, turn) })
}

func (d *Activities) run(ctx context.Context, turn func()) (err error) {
	at, err := d.Store.Cursor(ctx, cursor)
	if err != nil {
		return fmt.Errorf("reading the delivery's cursor: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	q := newQueue(at, d.insist)
	defer func() { cancel(); q.wait() }()
	kept := at
	watch := d.Store.Watch(store.TopicAll)
	defer watch.Close()
	keep := time.NewTicker(keepEvery)
	defer keep.Stop()
	for {
		turn()
		events, next, err := d.Store.Events(ctx, at, batch, store.EventFilter{})
		if err != nil {
			return fmt.Errorf("reading events: %w", err)
		}
		for _, e := range events {
			if err := d.add(ctx, q, e); err != nil {
				return err
			}
			turn() // where too much is open, adding waits
		}
		at = next
		q.read(at)
		more := len(events) == batch
		for !more {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-watch.C:
				more = true
			case <-keep.C:
				// The durable cursor follows once a second and not with each event: what is told again after a death is
				// harmless, a write for each delivery is not free.
				if done := q.done(); done > kept {
					if err := d.Store.SetCursor(ctx, cursor, done); err != nil {
						return fmt.Errorf("moving the delivery's cursor: %w", err)
					}
					kept = done
				}
				more = true // another process's event may have come without a wake-up
			}
		}
	}
}

// add queues what an event means.
func (d *Activities) add(ctx context.Context, q *queue, e schema.Event) error {
	if e.Kind == schema.EventFault && d.Judge != nil {
		if err := q.add(ctx, "server/"+e.Server, e.Seq, task{judge: e.Subject}); err != nil {
			return err
		}
	}
	if v, ok := d.Route(e); ok {
		return q.add(ctx, v.Workflow, e.Seq, task{Delivery: v})
	}
	return nil
}

// insist repeats a task until it is done: an event is never skipped. What stands in the way is logged.
func (d *Activities) insist(ctx context.Context, lane string, t task) error {
	wait := 50 * time.Millisecond
	for {
		err := d.do(ctx, t)
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

func (d *Activities) do(ctx context.Context, t task) error {
	if t.judge != "" {
		return d.Judge(ctx, t.judge)
	}
	return d.send(ctx, t.Delivery)
}

// send starts or signals.
func (d *Activities) send(ctx context.Context, v Delivery) error {
	o := client.StartWorkflowOptions{ID: v.Workflow, TaskQueue: v.Queue}
	if v.Start != nil {
		// Eager: its first task comes with the answer, where a worker of this process has room.
		o.EnableEagerStart, o.WorkflowIDReusePolicy = true, enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE
		o.WorkflowIDConflictPolicy = enumspb.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING
		_, err := d.Client.ExecuteWorkflow(ctx, o, v.Start, v.StartArg)
		var ended *serviceerror.WorkflowExecutionAlreadyStarted
		if errors.As(err, &ended) {
			return nil // it was told already
		}
		return err
	}
	err := d.Client.SignalWorkflow(ctx, v.Workflow, "", v.Signal, v.Arg)
	var gone *serviceerror.NotFound
	if !errors.As(err, &gone) {
		return err
	}
	if v.Revive == nil {
		return nil
	}
	o.WorkflowIDReusePolicy = enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE
	_, err = d.Client.SignalWithStartWorkflow(ctx, v.Workflow, v.Signal, v.Arg, o, v.Revive, v.ReviveArg)
	return err
}
