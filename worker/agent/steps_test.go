package agent_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent"
	"gpupool/worker/agent/agenttest"
	"gpupool/worker/agent/image/imagetest"
)

func (w *world) setup(task string) agentproto.SetupResult {
	w.t.Helper()
	var r agentproto.SetupResult
	if err := json.Unmarshal(w.end(task).Result, &r); err != nil {
		w.t.Fatalf("the result of %s: %v", task, err)
	}
	return r
}

// TestASetupGoesOnAfterTheRestartThatItAskedFor: the steps are taken once each and in order, the server restarts between them,
// and what each printed is kept with the boot in which it ran.
func TestASetupGoesOnAfterTheRestartThatItAskedFor(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	ordered := make(chan struct{}, 1)
	w := newWorld(t, func(c *agent.Config) {
		c.Reboot = func(context.Context) error { ordered <- struct{}{}; return nil }
	})
	stop := w.start()
	w.api.Give(w.server, agenttest.Look("drv", schema.TaskDrivers, agentproto.Setup{Profile: "own/3", Vendor: "nvidia", Steps: []agentproto.SetupStep{
		{Name: "is there", Unless: "true", Run: "echo there >>" + log},
		{Name: "module", Unless: "grep -q module " + log, Run: "echo module >>" + log + "; echo it is built >&2", Reboot: true},
		{Name: "service", Run: "echo service >>" + log, Reboot: true},
		{Name: "last", Run: "echo last >>" + log},
	}}))
	for _, boot := range []string{"boot-2", "boot-3"} {
		select {
		case <-ordered:
		case <-w.ctx().Done():
			t.Fatal("no restart was ordered")
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		w.cfg.Machine = func() agent.Machine { return agent.Machine{BootID: boot, Serial: "CH1", UUID: "u-1"} }
		stop = w.start()
	}
	end, r := w.end("drv"), w.setup("drv")
	if end.State != schema.TaskDone || !strings.Contains(end.Text, "8 devices answer; setup own/3, 4 steps") || !strings.Contains(r.Proof, "8 devices answer") {
		t.Errorf("it ended as %s: %s; proof %q", end.State, end.Text, r.Proof)
	}
	if b, err := os.ReadFile(log); err != nil || string(b) != "module\nservice\nlast\n" {
		t.Errorf("the steps left %q (%v): each is taken once", b, err)
	}
	var boots []string
	for _, s := range r.Steps {
		boots = append(boots, s.Boot)
	}
	if strings.Join(boots, " ") != "boot-1 boot-1 boot-2 boot-3" || !r.Steps[0].Skipped || r.Steps[1].Output != "it is built\n" || len(r.Steps[1].SHA256) != 64 || !r.Steps[1].Reboot {
		t.Errorf("it is kept as %+v", r.Steps)
	}
}

// TestAStepThatFailsIsNamedWithWhatItPrinted: what is proven afterwards is not asked for, and a later try begins anew.
func TestAStepThatFailsIsNamedWithWhatItPrinted(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	w := newWorld(t, nil)
	w.start()
	s := agentproto.Setup{Profile: "own/1", Vendor: "nvidia", Steps: []agentproto.SetupStep{
		{Name: "one", Run: "true"}, {Name: "two", Run: "echo before; ls " + gate, LimitMS: 60_000}, {Name: "three", Run: "true"},
	}}
	w.api.Give(w.server, agenttest.Look("try1", schema.TaskDrivers, s))
	end, r := w.end("try1"), w.setup("try1")
	if end.State != schema.TaskFailed || !strings.HasPrefix(end.Text, "step 2 of 3 of setup own/1: two ended with exit code 2: ") || !strings.Contains(end.Text, gate) {
		t.Errorf("it ended as %s: %s", end.State, end.Text)
	}
	if len(r.Steps) != 2 || r.Steps[1].ExitCode != 2 || !strings.HasPrefix(r.Steps[1].Output, "before\n") || r.Proof != "" {
		t.Errorf("it is kept as %+v", r)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.api.Give(w.server, agenttest.Look("try2", schema.TaskDrivers, s))
	if end, r := w.end("try2"), w.setup("try2"); end.State != schema.TaskDone || len(r.Steps) != 3 {
		t.Errorf("the next try ended as %s: %s, %+v", end.State, end.Text, r.Steps)
	}
	s.Steps = []agentproto.SetupStep{{Name: "slow", Run: "sleep 60", LimitMS: 200}}
	w.api.Give(w.server, agenttest.Look("late", schema.TaskDrivers, s))
	if end := w.end("late"); end.State != schema.TaskFailed || !strings.Contains(end.Text, "slow was not done within 200ms") {
		t.Errorf("a step that takes too long: %s: %s", end.State, end.Text)
	}
}

// TestNoSetupRestartsAServerWithAJob: the rule is asked at the moment of the act.
func TestNoSetupRestartsAServerWithAJob(t *testing.T) {
	w := newWorld(t, func(c *agent.Config) {
		c.Reboot = func(context.Context) error { t.Error("it was restarted"); return nil }
	})
	w.start()
	w.run("job", 1, []string{"S0"}, "sleep", "60")
	w.until("the job runs", func() bool { return len(w.api.Reports("job")) > 0 })
	w.api.Give(w.server, agenttest.Look("drv", schema.TaskDrivers, agentproto.Setup{Profile: "own/1", Vendor: "nvidia", Steps: []agentproto.SetupStep{{Name: "module", Run: "true", Reboot: true}}}))
	if end := w.end("drv"); end.State != schema.TaskFailed || !strings.Contains(end.Text, "job task job runs on this server") {
		t.Errorf("it ended as %s: %s", end.State, end.Text)
	}
	w.api.Unknown("job")
	w.end("job")
}

// TestARuntimeIsProvenByAContainer: a real containerd runs one that sees the nodes, and one that is missing a node is no proof.
func TestARuntimeIsProvenByAContainer(t *testing.T) {
	t.Setenv("CONTAINERD_ADDRESS", imagetest.Daemon(t))
	said, err := agent.RunContainer(t.Context(), t.TempDir(), "containerd 1.6", []string{"/dev/null", "/dev/zero"})
	if err != nil || said != "runs a container, which sees 2 device nodes" {
		t.Errorf("%q, %v", said, err)
	}
	if _, err := agent.RunContainer(t.Context(), t.TempDir(), "containerd 1.6", []string{"/dev/gpupool-none"}); err == nil || !strings.Contains(err.Error(), "gpupool-none") {
		t.Errorf("with a node that is not there: %v", err)
	}
	dir := t.TempDir()
	if _, err := agent.RunContainer(t.Context(), dir, "containerd 1.6", nil); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%d files are left (%v)", len(left), err)
	}
}

// TestADriverThatComesUpLateIsWaitedFor: after a restart devices answer one after the other.
func TestADriverThatComesUpLateIsWaitedFor(t *testing.T) {
	w := newWorld(t, func(c *agent.Config) { c.Settle = 20 * time.Second })
	w.reader.change(func(d []agentproto.Device) []agentproto.Device { d[3].Error = "no answer yet"; return d })
	w.start()
	up := filepath.Join(t.TempDir(), "up")
	w.api.Give(w.server, agenttest.Look("drv", schema.TaskDrivers, agentproto.Setup{Profile: "own/1", Vendor: "nvidia", Steps: []agentproto.SetupStep{{Name: "driver", Run: "touch " + up}}}))
	w.until("the step is done", func() bool { _, err := os.Stat(up); return err == nil })
	w.reader.change(func(d []agentproto.Device) []agentproto.Device { d[3].Error = ""; return d })
	if end := w.end("drv"); end.State != schema.TaskDone || !strings.Contains(end.Text, "8 devices answer") {
		t.Errorf("it ended as %s: %s", end.State, end.Text)
	}
}
