package workflows_test

import (
	"strings"
	"testing"

	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/worker"

	"gpupool/activities/progress"
	lab "gpupool/deploy/lab/bmc"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/workflows"
)

func TestAStepSaysWhatItWaitsForWhileTheBMCIsDown(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{&progress.Interceptor{Store: e.db}}})
	e.SetStartWorkflowOptions(client.StartWorkflowOptions{ID: workflows.ServerID(e.server.ID), TaskQueue: workflows.CoreQueue})
	e.bmc.AddFault(lab.Fault{Path: "/**", Drop: true, Count: 2})
	e.onboard(t)
	if v := e.now(t); v.Phase != schema.PhaseAvailable {
		t.Fatalf("once the BMC answers the server is %s: %s", v.Phase, v.FailureText)
	}
	if r := e.stepOf(t, schema.StepVerifyBMC); r.State != schema.StepDone || r.Try != 1 || strings.Contains(r.Detail, "waits") {
		t.Errorf("then the step is %+v", r)
	}
	events, _, err := e.db.Events(t.Context(), 0, 1000, store.EventFilter{Kinds: []schema.EventKind{schema.EventServerStep}})
	must(t, err)
	said := map[string]string{}
	for _, ev := range events {
		text := string(ev.Data)
		for _, s := range schema.Steps {
			if strings.Contains(text, `"step":"`+string(s)+`"`) && strings.Contains(text, `"state":"running"`) {
				said[string(s)] += text
			}
		}
	}
	for _, words := range []string{"waits: ", "bmc unreachable", "; tried once, for "} {
		if !strings.Contains(said["verify-bmc"], words) {
			t.Errorf("while the BMC was down the step said %s, not %q", said["verify-bmc"], words)
		}
	}
	for _, s := range schema.Steps { // no step runs without a word
		if said[string(s)] == "" || strings.Contains(said[string(s)], `"detail":""`) {
			t.Errorf("step %s ran with %q", s, said[string(s)])
		}
	}
	if !strings.Contains(said["burn-in"], "testing them") || !strings.Contains(said["drivers"], "agent") {
		t.Errorf("burn-in said %s, drivers %s", said["burn-in"], said["drivers"])
	}
}
