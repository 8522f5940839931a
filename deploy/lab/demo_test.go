package lab_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"

	"gpupool/activities/bmc"
	"gpupool/deploy/lab"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/agenttest"
)

// TestTheDemosServersAreInstalledByTheRealBMCClient: every maker's manners lead to the same end, whether its resources
// are generated or were captured from a real BMC, and the one server that is built to fail its burn-in does.
func TestTheDemosServersAreInstalledByTheRealBMCClient(t *testing.T) {
	t.Run("generated trees", func(t *testing.T) { testInstall(newPlatform(t, 88, lab.Demo()...)) })
	t.Run("captured trees", func(t *testing.T) {
		servers, err := lab.WithTrees(lab.Demo(), sharedTrees(t))
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []string{"nvidia_viking.tar.xz", "nvidia_viking.tar.xz", "supermicro.tar.xz", "supermicro.tar.xz", ".", "."} {
			if got := filepath.Base(servers[i].Tree); got != want {
				t.Errorf("%s serves %s, not %s", servers[i].Name, got, want)
			}
		}
		testInstall(newPlatform(t, 89, servers...))
	})
}

func testInstall(p *platform) {
	w, t := p.start(), p.t
	pool := bmc.NewPool(bmc.Config{Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() {
		if err := pool.Close(context.Background()); err != nil {
			t.Log(err)
		}
	})
	var wg sync.WaitGroup
	for _, s := range w.State() {
		wg.Go(func() {
			w.Arm(w.id(s.Name), 1)
			c, err := pool.Client(bmc.Endpoint{Address: s.BMC, Credential: bmc.Static(s.User, s.Password)})
			if err != nil {
				t.Errorf("%s: %v", s.Name, err)
				return
			}
			id, err := c.Identify(t.Context())
			if err != nil || id.Serial != s.Serial {
				t.Errorf("%s is serial %q, not %q: %v", s.Name, id.Serial, s.Serial, err)
			}
			if _, err := c.BootOnceFromNetwork(t.Context(), bmc.PXE); err != nil {
				t.Errorf("%s: %v", s.Name, err)
			}
			if err := c.SetPower(t.Context(), bmc.On); err != nil {
				t.Errorf("%s: %v", s.Name, err)
			}
		})
	}
	wg.Wait()
	for _, s := range w.State() {
		until(t, s.Name+" is installed and its agent is up", func() bool {
			return w.at(s.Name).Installs == 1 && w.at(s.Name).Stage == lab.StageOS && len(w.api.Heartbeats(w.id(s.Name))) > 0
		})
		w.Disarm(w.id(s.Name))
		var r agentproto.BurnInResult
		rep := w.task(t, agenttest.Look("burn/"+s.Name, schema.TaskBurnIn, agentproto.BurnIn{Model: s.Model, Devices: 8}), s.Name)
		if err := json.Unmarshal(rep.Result, &r); err != nil {
			t.Fatal(err)
		}
		want := "passed"
		if s.Name == "r2s1" {
			want = "failed"
		}
		if r.Outcome != want {
			t.Errorf("%s: %s", s.Name, rep.Text)
		}
	}
}
