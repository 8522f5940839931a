// Package worker builds a gpupool process from its roles: the record, Temporal (embedded or outside), the workers that
// run workflows and activities, the API, the boot service.
//
// Invariant: what is started is stopped in the reverse order, and every goroutine is waited for. Not here: what the
// parts do.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	sdkworker "go.temporal.io/sdk/worker"

	"gpupool/activities/allocator"
	"gpupool/activities/deliver"
	"gpupool/activities/job"
	"gpupool/schema/store"
	"gpupool/worker/config"
	"gpupool/workflows"
)

// Process is a running gpupool process.
type Process struct {
	Config *config.Config
	Store  *store.Store
	Client client.Client
	log    *slog.Logger
	stops  []func() // newest last
}

// Start builds the process's record, Temporal and workers. ctx bounds the start only.
func Start(ctx context.Context, c *config.Config, log *slog.Logger) (_ *Process, err error) {
	p := &Process{Config: c, log: log}
	defer func() {
		if err != nil {
			p.Stop()
		}
	}()
	if p.Store, err = store.Open(ctx, store.Config{Driver: string(c.Database.Driver), DSN: c.Database.DSN, Sync: string(c.Durability), Log: log.With("part", "store")}); err != nil {
		return nil, err
	}
	p.onStop(func() {
		if err := p.Store.Close(); err != nil {
			log.Error("closing the database", "error", err)
		}
	})
	var stop func()
	if p.Client, stop, err = connect(ctx, c, log); err != nil {
		return nil, err
	}
	p.onStop(stop)
	if c.Has(config.RoleWorker) {
		if err := p.core(ctx); err != nil {
			return nil, err
		}
	}
	if c.Has(config.RoleAllocator) {
		if err := p.allocators(ctx); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *Process) onStop(f func()) { p.stops = append(p.stops, f) }

// Stop ends the parts, newest first. What was in flight is taken up by another process, or by this one's next start.
func (p *Process) Stop() {
	for len(p.stops) > 0 {
		last := len(p.stops) - 1
		f := p.stops[last]
		p.stops = p.stops[:last]
		f()
	}
}

// core runs all workflows, and the activities that need only the database and Temporal.
func (p *Process) core(ctx context.Context) error {
	w := sdkworker.New(p.Client, workflows.CoreQueue, sdkworker.Options{
		MaxConcurrentWorkflowTaskPollers: 8, MaxConcurrentActivityTaskPollers: 2, WorkerStopTimeout: 5 * time.Second,
		// A workflow whose code changed under it waits for a person; its record is not lost.
		WorkflowPanicPolicy: sdkworker.BlockWorkflow,
	})
	w.RegisterWorkflow(workflows.RunJob)
	w.RegisterWorkflow(workflows.Allocator)
	w.RegisterWorkflow(workflows.Deliver)
	w.RegisterActivity(&job.Activities{Store: p.Store})
	routes := workflows.Routes{}
	w.RegisterActivity(&deliver.Activities{Store: p.Store, Client: p.Client, Route: routes.Route, Log: p.log.With("part", "deliver")})
	if err := w.Start(); err != nil {
		return fmt.Errorf("starting the core worker: %w", err)
	}
	p.onStop(w.Stop)
	return p.host(ctx, "deliver", workflows.Deliver)
}

// allocators offers to run the configured regions' allocators.
func (p *Process) allocators(ctx context.Context) error {
	for _, region := range p.Config.Regions {
		w := sdkworker.New(p.Client, workflows.AllocatorQueue(region), sdkworker.Options{DisableWorkflowWorker: true, MaxConcurrentActivityTaskPollers: 1, WorkerStopTimeout: 5 * time.Second})
		w.RegisterActivity(&allocator.Activities{Store: p.Store, Holder: identity(), Log: p.log.With("part", "allocator")})
		if err := w.Start(); err != nil {
			return fmt.Errorf("starting the allocator of region %s: %w", region, err)
		}
		p.onStop(w.Stop)
		if err := p.host(ctx, "allocator/"+region, workflows.Allocator, region); err != nil {
			return err
		}
	}
	return nil
}

// host starts one of the endless workflows where it does not run yet.
func (p *Process) host(ctx context.Context, id string, wf any, args ...any) error {
	_, err := p.Client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: id, TaskQueue: workflows.CoreQueue,
		WorkflowIDConflictPolicy: enumspb.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING, WorkflowIDReusePolicy: enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE}, wf, args...)
	if err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("starting %s: %w", id, err)
	}
	return err
}
