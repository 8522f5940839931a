package workflows_test

import (
	"os"
	"path/filepath"
	"testing"

	"go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/temporalproto"
	"go.temporal.io/sdk/worker"

	"gpupool/workflows"
)

// TestHistoriesReplay replays what servers', jobs' and the books' processes did on a real Temporal server: a workflow that was changed must
// still take the same path, or processes that run when it is installed stop. See record_test.go for how to add one.
func TestHistoriesReplay(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("testdata", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no recorded history is there: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			r := worker.NewWorkflowReplayer()
			r.RegisterWorkflow(workflows.OnboardServer)
			r.RegisterWorkflow(workflows.RepairServer)
			r.RegisterWorkflow(workflows.RetireServer)
			r.RegisterWorkflow(workflows.RunJob)
			r.RegisterWorkflow(workflows.Meter)
			if err := r.ReplayWorkflowHistoryFromJSONFile(nil, file); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestHistoriesReplayFromWhereverAWorkerDied replays each history up to each of its workflow tasks, as the worker does that takes a
// process up after another has died there: it must come to the same point, whichever it was.
func TestHistoriesReplayFromWhereverAWorkerDied(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join("testdata", "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no recorded history is there: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var whole historypb.History
			if err := (temporalproto.CustomJSONUnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, &whole); err != nil {
				t.Fatal(err)
			}
			points := 0
			for i, e := range whole.Events {
				if e.EventType != enums.EVENT_TYPE_WORKFLOW_TASK_STARTED {
					continue
				}
				points++
				r := worker.NewWorkflowReplayer()
				r.RegisterWorkflow(workflows.OnboardServer)
				r.RegisterWorkflow(workflows.RepairServer)
				r.RegisterWorkflow(workflows.RetireServer)
				r.RegisterWorkflow(workflows.RunJob)
				r.RegisterWorkflow(workflows.Meter)
				if err := r.ReplayWorkflowHistory(nil, &historypb.History{Events: whole.Events[:i+1]}); err != nil {
					t.Fatalf("up to event %d: %v", e.EventId, err)
				}
			}
			if points < 2 && filepath.Base(file) != "meter-round.json" {
				t.Fatalf("it has %d workflow tasks", points)
			}
		})
	}
}
