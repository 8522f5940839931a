package bmc_test

import (
	"context"
	"errors"
	"testing"

	"gpupool/activities/bmc"
	lab "gpupool/deploy/lab/bmc"
)

// Case 11, the failing upgrade: its task climbs to 98 %, then is Exception with TaskStatus OK. It has failed, and whether
// its effect shows is not even asked: what the old firmware still says must not pass for success.
func TestATaskThatEndsInExceptionWithStatusOKHasFailedWhateverItsEffectSays(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.Dell), lab.Hooks{})
	var steps []lab.Doc
	for _, percent := range []int{0, 45, 98} {
		steps = append(steps, lab.Doc{"TaskState": "Running", "TaskStatus": "OK", "PercentComplete": percent})
	}
	steps = append(steps, lab.Doc{"TaskState": "Exception", "TaskStatus": "OK", "PercentComplete": 98})
	asked := 0
	err := dial(t, s).WaitTask(t.Context(), bmc.Task{URI: s.AddTask(steps...)}, func(context.Context) (bool, error) { asked++; return true, nil })
	if !errors.Is(err, bmc.ErrTaskFailed) || asked != 0 {
		t.Fatalf("error %v after the effect was asked for %d times", err, asked)
	}
	if got := sent(s); len(got) != 0 {
		t.Fatalf("something was started beside it: %v", got)
	}
}
