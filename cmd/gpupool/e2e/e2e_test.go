package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"gpupool/api/contract"
	"gpupool/deploy/qemu"
	"gpupool/schema"
)

// TestAMachineArrivesAndRunsAJob is the main promise on real firmware: two servers, one with BIOS and one with UEFI, are
// onboarded at once, each is installed exactly once, and a job runs on all accelerators of each.
func TestAMachineArrivesAndRunsAJob(t *testing.T) {
	w := newWorld(t)
	bios := w.machine(1, qemu.Config{Name: "vm-bios", Firmware: qemu.BIOS})
	uefi := w.machine(2, qemu.Config{Name: "vm-uefi", Firmware: qemu.UEFI})
	for _, name := range []string{"vm-bios", "vm-uefi"} {
		w.must(http.MethodPost, "/v1/servers/"+name+"/actions/onboard", map[string]any{})
	}
	w.arrives(15*time.Minute, "vm-bios", "vm-uefi")
	for name, m := range map[string]*qemu.Machine{"vm-bios": bios, "vm-uefi": uefi} {
		if n := w.installs(name); n != 1 || m.Boots() != 1 {
			t.Errorf("%s was installed %d times and switched on %d times, want once each", name, n, m.Boots())
		}
		if text, err := m.Console(1 << 20); err != nil || !strings.Contains(text, "msg=installed") {
			t.Errorf("%s: its console does not show the install (%v)", name, err)
		}
	}

	w.must(http.MethodPost, "/v1/specs", contract.NewSpec{Name: "h100x8", Model: model, Accelerators: 8, Cpus: 1, MemoryBytes: 512 << 20})
	w.must(http.MethodPost, "/v1/tenants", contract.NewTenant{Name: "acme", MaxPriority: 100})
	w.must(http.MethodPost, "/v1/tenants/acme/projects", contract.NewProject{Name: "main"})
	job, err := do[contract.Job](t.Context(), w, http.MethodPost, "/v1/jobs", map[string]any{
		"tenant": "acme", "project": "main", "name": "hello", "spec": "h100x8", "nodes": 2, "time_limit_ms": 120_000,
		"command": []string{"sh", "-c", "echo on $(cat /etc/hostname), devices $CUDA_VISIBLE_DEVICES; uname -sr"},
	})
	must(t, err)
	for end := time.Now().Add(3 * time.Minute); !job.State.Ended(); {
		if time.Now().After(end) {
			t.Fatalf("the job is %s after three minutes: %+v", job.State, job.Reason)
		}
		job, err = do[contract.Job](t.Context(), w, http.MethodGet, "/v1/jobs/"+job.Id+"?wait=20s", nil)
		must(t, err)
	}
	if job.State != schema.JobCompleted {
		t.Fatalf("the job is %s (%s), want completed", job.State, job.Cause)
	}
}

// installs is how often an installer told that it had written the server's disk.
func (w *world) installs(name string) int {
	n := 0
	for _, e := range w.events(schema.EventServerInstall, w.server(name).Id) {
		if strings.Contains(string(e.Data), `"installed"`) {
			n++
		}
	}
	return n
}
