package bmc_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"gpupool/activities/bmc"
	lab "gpupool/deploy/lab/bmc"
)

// Case 11: the ways a task ends, and the ways it can't be followed.
func TestATaskIsJudgedByItsStateAndALostOneByItsEffect(t *testing.T) {
	t.Parallel()
	running := lab.Doc{"TaskState": "Running", "TaskStatus": "OK", "PercentComplete": 40}
	for name, tc := range map[string]struct {
		steps  []lab.Doc
		effect bool
		want   error
		says   string
	}{
		"completed":                             {steps: []lab.Doc{running, {"TaskState": "Completed", "TaskStatus": "OK"}}},
		"completed with a warning":              {steps: []lab.Doc{running, {"TaskState": "Completed", "TaskStatus": "Warning"}}},
		"exception though its status is ok":     {steps: []lab.Doc{running, {"TaskState": "Exception", "TaskStatus": "OK", "PercentComplete": 98, "Messages": []any{lab.Doc{"Message": "the image is not for this board"}}}}, want: bmc.ErrTaskFailed, says: "not for this board (at 98 %)"},
		"completed though its status is not":    {steps: []lab.Doc{{"TaskState": "Completed", "TaskStatus": "Critical"}}, want: bmc.ErrTaskFailed},
		"killed":                                {steps: []lab.Doc{{"TaskState": "Killed"}}, want: bmc.ErrTaskFailed},
		"vanished and its effect shows":         {steps: []lab.Doc{running, nil}, effect: true},
		"vanished and its effect does not show": {steps: []lab.Doc{running, nil}, want: bmc.ErrNotProven},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, profile(t, lab.Dell), lab.Hooks{})
			c := dial(t, s)
			uri := s.AddTask(tc.steps...)
			err := c.WaitTask(t.Context(), bmc.Task{URI: uri}, func(context.Context) (bool, error) { return tc.effect, nil })
			if !errors.Is(err, tc.want) || tc.want != nil && !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("error %v, want %v %q", err, tc.want, tc.says)
			}
		})
	}
}

func TestAnAnswerWithoutALocationIsDecidedByTheEffect(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.Dell), lab.Hooks{})
	var reads atomic.Int32
	err := dial(t, s).WaitTask(t.Context(), bmc.Task{}, func(context.Context) (bool, error) { return reads.Add(1) > 3, nil })
	if err != nil || reads.Load() != 4 {
		t.Fatalf("%v after %d reads", err, reads.Load())
	}
}
