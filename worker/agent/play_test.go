package agent_test

import (
	"context"
	"testing"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent"
)

func TestAPlayedJobEndsAsItsPlayerSaysOrIsStopped(t *testing.T) {
	w := newWorld(t, func(c *agent.Config) {
		c.Play = func(command []string) func(context.Context) int {
			switch command[0] {
			case "three":
				return func(context.Context) int { return 3 }
			case "forever":
				return func(ctx context.Context) int { <-ctx.Done(); return 0 }
			}
			return nil
		}
	})
	w.start()
	w.run("job/a/1/s", 1, []string{"S1"}, "three")
	if r := w.end("job/a/1/s"); r.State != schema.TaskFailed || r.ExitCode == nil || *r.ExitCode != 3 || !r.NoneLeft {
		t.Errorf("a played job that gave 3 ended as %+v", r)
	}
	w.run("job/b/1/s", 2, []string{"S1"}, "forever")
	w.api.Give(w.server, agentproto.Task{ID: "job/b/1/s", Kind: schema.TaskRun, Epoch: 2, Stop: true, Signal: "TERM", GraceMS: 1000})
	if r := w.end("job/b/1/s"); r.State != schema.TaskCancelled || r.ExitCode != nil || !r.NoneLeft {
		t.Errorf("a played job that was stopped ended as %+v", r)
	}
	w.run("job/c/1/s", 3, []string{"S1"}, "true") // any other command is a process
	if r := w.end("job/c/1/s"); r.State != schema.TaskDone || !r.NoneLeft {
		t.Errorf("a job that is a process ended as %+v", r)
	}
}
