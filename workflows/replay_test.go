package workflows_test

import (
	"path/filepath"
	"testing"

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
			r.RegisterWorkflow(workflows.RunJob)
			r.RegisterWorkflow(workflows.Meter)
			if err := r.ReplayWorkflowHistoryFromJSONFile(nil, file); err != nil {
				t.Fatal(err)
			}
		})
	}
}
