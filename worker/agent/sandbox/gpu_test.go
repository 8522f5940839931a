package sandbox_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpupool/worker/agent/accelerator"
	"gpupool/worker/agent/accelerator/kmsg"
	"gpupool/worker/agent/accelerator/nvidia"
	"gpupool/worker/agent/sandbox"
)

// TestARealGPU: on a server with an NVIDIA device, a job that was given its nodes uses it, and one that was not can't.
func TestARealGPU(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	list, err := nvidia.New(kmsg.Path, time.Time{}).Read(ctx)
	if err != nil || len(list) == 0 {
		t.Skipf("no NVIDIA device: %v", err)
	}
	nodes, err := accelerator.Nodes("/", list[0])
	if err != nil {
		t.Fatal(err)
	}
	h, err := sandbox.Open(ctx, filepath.Join(t.TempDir(), "state"), sandbox.Users{First: 1_960_000_000, Count: 10})
	if err != nil {
		t.Skipf("jobs can't be kept apart here: %v", err)
	}
	for name, c := range map[string]struct {
		nodes []string
		sees  bool
	}{"given": {nodes, true}, "not given": {nil, false}} {
		b := sandbox.Box{ID: t.Name() + name, Dir: t.TempDir(), User: 1_960_000_001, Command: []string{"nvidia-smi", "-L"}, Env: []string{"PATH=" + os.Getenv("PATH")}, Devices: c.nodes}
		pid, err := h.Start(b)
		if err != nil {
			t.Fatal(err)
		}
		var ws syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Sweep(ctx, b.ID, 10*time.Second); err != nil {
			t.Error(err)
		}
		out, err := os.ReadFile(filepath.Join(b.Dir, sandbox.OutFile))
		if e, _ := sandbox.ReadExit(b.Dir); strings.Contains(string(out), list[0].UUID) != c.sees || err != nil {
			t.Errorf("%s %v, nvidia-smi says %q (%+v)", name, c.nodes, out, e)
		}
	}
}
