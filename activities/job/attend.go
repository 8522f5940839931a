package job

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"gpupool/schema"
	"gpupool/schema/store"
)

// Attend compares the record with Temporal, over and over: a live job whose process is gone is given another, and a process
// whose job is over is told so. Temporal's list is behind by moments, and so may the delivery of events be: what is wrong at
// two looks in a row is wrong.
//
// A process is only lost when somebody terminates it, or Temporal's data is older than the record's.
func Attend(ctx context.Context, db *store.Store, tc client.Client, every time.Duration) error {
	before := map[string]bool{}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		odd, err := compare(ctx, db, tc)
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			continue // one of the two is away, which others tell of
		}
		for job := range odd {
			if !before[job] {
				continue
			}
			if err := db.Unattended(ctx, job); err != nil && ctx.Err() == nil {
				return fmt.Errorf("telling of the process of job %s: %w", job, err)
			}
			delete(odd, job)
		}
		before = odd
	}
}

// compare gives the jobs of which the two say different things.
func compare(ctx context.Context, db *store.Store, tc client.Client) (map[string]bool, error) {
	// The record first: what is allocated after it was read is in neither.
	held, err := db.HeldJobs(ctx)
	if err != nil {
		return nil, err
	}
	odd := make(map[string]bool, len(held))
	for _, id := range held {
		odd[id] = true
	}
	var over []string
	var page []byte
	for {
		r, err := tc.ListWorkflow(ctx, &workflowservice.ListWorkflowExecutionsRequest{Query: "WorkflowType = 'RunJob' AND ExecutionStatus = 'Running'", PageSize: 1000, NextPageToken: page})
		if err != nil {
			return nil, err
		}
		for _, e := range r.Executions {
			id, ok := strings.CutPrefix(e.GetExecution().GetWorkflowId(), "job/")
			switch {
			case !ok:
			case odd[id]:
				delete(odd, id)
			default:
				over = append(over, id) // queued again, or ended
			}
		}
		if page = r.NextPageToken; len(page) == 0 {
			break
		}
	}
	for _, id := range over {
		j, err := db.Job(ctx, id)
		if err != nil && !schema.Is(err, schema.CodeNotFound) {
			return nil, err
		}
		if err == nil && j.State.Ended() {
			odd[id] = true
		}
	}
	return odd, nil
}
