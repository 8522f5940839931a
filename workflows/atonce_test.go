package workflows_test

import (
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/workflows"
)

// TestOfSeveralWordsAtOnceOneIsTaken: two technicians, or one who presses twice, or a page that sends again.
func TestOfSeveralWordsAtOnceOneIsTaken(t *testing.T) {
	t.Parallel()
	const n = 6
	t.Run("done of a repair", func(t *testing.T) {
		t.Parallel()
		e := newEnv(t)
		e.inPool(t)
		r := e.fail(t)
		e.at(time.Minute, func() { e.swap("SXM3", "GPU-9") })
		verbs := e.sayAtOnce(2*time.Minute, n, workflows.UpdateDone, workflows.Done{OldSerial: "GPU-3", NewSerial: "GPU-9", By: "tom"})
		e.repair(t, r)
		oneTaken(t, "done", verbs)
		if got := e.repairNow(t, r.ID); got.State != schema.RepairReturned {
			t.Errorf("the repair is %s", got.State)
		}
	})
	for verb, arg := range map[string]any{
		workflows.UpdateRetry: workflows.Retry{By: "ann"},
		workflows.UpdateSkip:  workflows.Skip{Step: schema.StepProvision, Reason: "we know it", By: "ann"},
		workflows.UpdateAbort: workflows.Abort{Reason: "wrong server", By: "ann"},
	} {
		t.Run(verb+" of a stopped step", func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.dead = true
			e.at(2*time.Hour, func() {
				if v := e.now(t); v.FailureCode == "" {
					t.Errorf("the onboarding has not stopped: it is at %s", v.Step)
				}
				e.mu.Lock()
				e.dead = false
				e.mu.Unlock()
			})
			verbs := e.sayAtOnce(3*time.Hour, n, verb, arg)
			if verb != workflows.UpdateAbort { // so that it ends, whatever comes of it
				e.say(100*time.Hour, workflows.UpdateAbort, workflows.Abort{Reason: "the test is over", By: "ann"})
			}
			e.onboard(t)
			oneTaken(t, verb, verbs)
		})
	}
}
