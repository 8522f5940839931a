package workflows_test

import (
	"strings"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/workflows"
)

func TestABurnInThatAPersonAsksForProvesTheServerOrSendsForATechnician(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]bool{"good": false, "bad": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			e.inPool(t)
			if bad {
				e.answer = func(task agentproto.Task) *agentproto.TaskReport {
					if task.Kind != schema.TaskBurnIn {
						return e.goodAnswer(task)
					}
					return &agentproto.TaskReport{State: schema.TaskDone, NoneLeft: true, Result: marshal(agentproto.BurnInResult{Outcome: "failed", Failed: []agentproto.BurnInFailure{{Device: "GPU-5", Slot: "SXM5", Test: "link", Text: "lane down"}}})}
				}
			}
			r, err := e.db.BeginBurnIn(t.Context(), e.server.ID, "ann")
			must(t, err)
			e.at(20*time.Hour, func() {
				got := e.repairNow(t, r.ID)
				if !bad {
					t.Errorf("the repair is still %s", got.State)
					return
				}
				if got.State != schema.RepairWaiting || got.Returns != 1 || !strings.Contains(got.WaitingWhy, "SXM5 (GPU-5) failed link") {
					t.Errorf("after a burn-in that failed the repair is %+v", got)
				}
				e.mu.Lock()
				e.answer = e.goodAnswer
				e.mu.Unlock()
				e.swap("SXM5", "GPU-99")
			})
			if bad {
				e.say(21*time.Hour, workflows.UpdateDone, workflows.Done{NewSerial: "GPU-99", By: "tom"})
			}
			e.repair(t, r)
			must(t, e.GetWorkflowError())
			if got, v := e.repairNow(t, r.ID), e.now(t); got.State != schema.RepairReturned || v.Phase != schema.PhaseAvailable {
				t.Fatalf("the repair is %s and the server %s", got.State, v.Phase)
			}
		})
	}
}
