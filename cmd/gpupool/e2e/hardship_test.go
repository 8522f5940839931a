package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpupool/api/contract"
	"gpupool/deploy/qemu"
	"gpupool/pxe/boot"
	"gpupool/schema"
)

// long skips what only `make e2e` has the time for.
func long(t *testing.T) {
	t.Helper()
	if os.Getenv(allVar) != "all" {
		t.Skip("takes minutes: make e2e runs it")
	}
}

// TestAKilledPlatformLosesNoInstall: gpupool is killed with SIGKILL in each step of an onboarding, and within the install at
// several points, and started again. The machine arrives, installed once and switched on once.
func TestAKilledPlatformLosesNoInstall(t *testing.T) {
	long(t)
	w := newWorld(t)
	m := w.machine(1, qemu.Config{Name: "vm-kill", Firmware: qemu.BIOS})
	w.must(http.MethodPost, "/v1/servers/vm-kill/actions/onboard", map[string]any{})
	killed := map[string]bool{}
	w.watch(20*time.Minute, func(v contract.Server) bool {
		at := string(v.Step)
		if v.Step == schema.StepProvision {
			doing := w.doing(v)
			for _, point := range []string{"powering off", "setting the network boot", "powering on", "waits for the phone-home", "installer runs", "writing", "reading back", "restarts"} {
				if strings.Contains(doing, point) {
					at = point
				}
			}
		}
		if v.Phase == schema.PhaseOnboarding && at != "" && !killed[at] {
			killed[at] = true
			t.Logf("killed at %s", at)
			w.kill()
			must(t, w.start())
		}
		return v.Phase == schema.PhaseAvailable
	}, "vm-kill")
	for _, must := range []string{"writing", "reading back", "drivers", "burn-in"} {
		if !killed[must] {
			t.Errorf("the platform was never killed at %s: the test proves less than it says", must)
		}
	}
	if n := w.installs("vm-kill"); n != 1 || m.Boots() != 1 {
		t.Errorf("it was installed %d times and switched on %d times, want once each; killed at %v", n, m.Boots(), killed)
	}
}

// TestAPowerCutInTheMiddleOfTheInstall: the machine loses its power while its disk is written. It comes back by its own boot
// order, which has the disk first, finds nothing to boot there, and is installed from the beginning.
func TestAPowerCutInTheMiddleOfTheInstall(t *testing.T) {
	long(t)
	w := newWorld(t)
	m := w.machine(1, qemu.Config{Name: "vm-cut", Firmware: qemu.BIOS})
	w.must(http.MethodPost, "/v1/servers/vm-cut/actions/onboard", map[string]any{})
	cuts := map[string]bool{}
	w.watch(20*time.Minute, func(v contract.Server) bool {
		doing := w.doing(v)
		for _, point := range []string{"writing", "reading back"} {
			if strings.Contains(doing, point) && !cuts[point] {
				cuts[point] = true
				t.Logf("power cut: %s", doing)
				must(t, m.Cut())
			}
		}
		return v.Phase == schema.PhaseAvailable
	}, "vm-cut")
	if n := w.installs("vm-cut"); n != 1 || m.Boots() != 3 || len(cuts) != 2 {
		t.Errorf("%d installs to the end, %d times power, cut at %v; want 1, 3, and both", n, m.Boots(), cuts)
	}
	if v := w.server("vm-cut"); v.Attempt != 1 {
		t.Errorf("it took %d attempts, want the first", v.Attempt)
	}
}

// cut takes a machine's power n times, and waits each time until its system is up again.
func (w *world) cut(m *qemu.Machine, n int, name string) {
	w.t.Helper()
	seen := w.server(name).BootId
	for i := range n {
		must(w.t, m.Cut())
		w.watch(10*time.Minute, func(v contract.Server) bool {
			if v.BootId == seen || v.BootId == "" {
				return false
			}
			seen = v.BootId
			return true
		}, name)
		w.t.Logf("boot %d: %s", i+1, seen)
	}
}

// TestALiveServerIsNeverInstalledAgain: the network is first in the boot order, for good, whatever the BMC is told for one
// boot. The installer's own restart and five power cycles come by the boot service; each is handed to the disk.
func TestALiveServerIsNeverInstalledAgain(t *testing.T) {
	long(t)
	for _, firmware := range []qemu.Firmware{qemu.BIOS, qemu.UEFI} {
		t.Run(string(firmware), func(t *testing.T) {
			w := newWorld(t)
			m := w.machine(1, qemu.Config{Name: "vm-live", Firmware: firmware, NetworkFirst: true})
			w.must(http.MethodPost, "/v1/servers/vm-live/actions/onboard", map[string]any{})
			w.arrives(15*time.Minute, "vm-live")
			w.cut(m, 5, "vm-live")
			handed := 0
			for _, e := range w.events(schema.EventBoot, w.server("vm-live").Id) {
				if s := string(e.Data); strings.Contains(s, fmt.Sprintf("%q", boot.KindScript)) && strings.Contains(s, "boot from disk") {
					handed++
				}
			}
			// More, where the platform itself switched a server on again that it had seen without power.
			if n := w.installs("vm-live"); n != 1 || handed < 6 {
				t.Errorf("it was installed %d times and handed to its disk %d times, want 1 and at least 6", n, handed)
			}
		})
	}
}

// TestOtherWaysToBoot: UEFI that knows HTTP and no PXE; Secure Boot, where firmware, Microsoft, Debian and the kernel trust each
// other from the network card to the installed disk; and Secure Boot with the keys of one owner, who has signed iPXE, the
// installer's kernel and the disk's first program, and trusts nobody else.
func TestOtherWaysToBoot(t *testing.T) {
	long(t)
	for name, c := range map[string]struct {
		settings []string
		machine  qemu.Config
	}{
		"uefi-http":   {nil, qemu.Config{Firmware: qemu.UEFI, HTTPBoot: true}},
		"secure-boot": {[]string{"pxe.secure_boot=true"}, qemu.Config{Firmware: qemu.SecureBoot}},
		"own-keys":    {[]string{"pxe.stages={x64: own/snponly.efi}"}, qemu.Config{Firmware: qemu.OwnKeys}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.settings...)
			c.machine.Name = "vm-" + name
			w.machine(1, c.machine)
			w.must(http.MethodPost, "/v1/servers/"+c.machine.Name+"/actions/onboard", map[string]any{})
			w.arrives(20*time.Minute, c.machine.Name)
			if n := w.installs(c.machine.Name); n != 1 {
				t.Errorf("it was installed %d times, want once", n)
			}
		})
	}
}

// TestSecureBootRefusesWhatNobodySigned: the boot service is not told that the server has Secure Boot, and gives it iPXE, which
// is not signed. The firmware does not start it, the disk stays as it was, and the failure says where the boot ended.
func TestSecureBootRefusesWhatNobodySigned(t *testing.T) {
	long(t)
	w := newWorld(t, "timing.phone_home=4m")
	m := w.machine(1, qemu.Config{Name: "vm-unsigned", Firmware: qemu.SecureBoot})
	w.must(http.MethodPost, "/v1/servers/vm-unsigned/actions/onboard", map[string]any{})
	f := w.stops("vm-unsigned", 15*time.Minute)
	if f.Step != schema.StepProvision || !strings.Contains(f.Text, "the firmware fetched snponly.efi") || !strings.Contains(f.Text, "never asked for its script") {
		t.Errorf("it stopped at %s: %s", f.Step, f.Text)
	}
	if _, console, ok := strings.Cut(f.Text, "The console said last: "); !ok || console == "" {
		t.Errorf("the console's last words are not in it: %s", f.Text)
	}
	w.untouched(m)
}

// untouched fails the test where something was written to the machine's disk.
func (w *world) untouched(m *qemu.Machine) {
	w.t.Helper()
	disk, err := os.Open(m.Disk())
	must(w.t, err)
	defer disk.Close()
	first := make([]byte, 1<<20)
	if _, err := disk.ReadAt(first, 0); err != nil || len(strings.Trim(string(first), "\x00")) != 0 {
		w.t.Errorf("something was written to its disk (%v)", err)
	}
}

// TestAnARM64ServerBootsToTheInstaller: firmware, GRUB, kernel and installer of arm64, from the product's services. There is no
// image for it: the installer says so, and names what it looked for.
func TestAnARM64ServerBootsToTheInstaller(t *testing.T) {
	long(t)
	w := newWorld(t)
	w.machine(1, qemu.Config{Name: "vm-arm64", Firmware: qemu.ARM64})
	w.must(http.MethodPost, "/v1/servers/vm-arm64/actions/onboard", map[string]any{})
	f := w.stops("vm-arm64", 15*time.Minute)
	if f.Step != schema.StepProvision || !strings.Contains(f.Text, "the installer ran and gave up") || !strings.Contains(f.Text, "image/arm64/image.json") || !strings.Contains(f.Text, "404") {
		t.Errorf("it stopped at %s: %s", f.Step, f.Text)
	}
}

// TestASystemThatLivesInMemory: a server is given a system that touches no disk, arrives with it, and is given it again at every
// boot, by the order that the network has first and by its BMC alike. Each time its agent is another, and nobody takes the
// place of one that lives.
func TestASystemThatLivesInMemory(t *testing.T) {
	long(t)
	w := newWorld(t)
	m := w.machine(1, qemu.Config{Name: "vm-memory", Firmware: qemu.BIOS, NetworkFirst: true})
	w.must(http.MethodPut, "/v1/install-choices", contract.NewInstallChoice{Scope: "server", Name: "vm-memory", Profile: "live", Values: map[string]string{"kernel_arg": "no_timer_check"}})
	w.must(http.MethodPost, "/v1/servers/vm-memory/actions/onboard", map[string]any{})
	w.arrives(15*time.Minute, "vm-memory")
	first := w.server("vm-memory")
	w.cut(m, 2, "vm-memory")
	w.arrives(10*time.Minute, "vm-memory") // it had lost its power, which is a fault until it is proven again
	v := w.server("vm-memory")
	if v.Phase != schema.PhaseAvailable || v.Attempt != first.Attempt {
		t.Errorf("it is %s, at attempt %d; want available, at %d", v.Phase, v.Attempt, first.Attempt)
	}
	again := 0
	for _, e := range w.events(schema.EventBoot, v.Id) {
		if strings.Contains(string(e.Data), "lives in memory, again") {
			again++
		}
	}
	// Each boot but the first. There may be more than were cut: a server that was silent is switched on again by the platform.
	if want := m.Boots() - 1; again != want || want < 2 {
		t.Errorf("it was given its system again %d times, and was switched on %d times", again, m.Boots())
	}
	w.untouched(m)
}

// TestASetupRestartsTheServerAndGoesOn: an owner's setup is taken step by step on a real machine, which restarts between two
// steps; then its devices answer, and containerd really runs a container that sees their nodes.
func TestASetupRestartsTheServerAndGoesOn(t *testing.T) {
	long(t)
	own := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(own, "setups"), 0o755))
	must(t, os.WriteFile(filepath.Join(own, "setups", "vm.yaml"), []byte(`
title: What a driver's setup does, without a driver
version: 2
drivers:
  - name: before
    unless: test -e /etc/before
    run: cat /proc/sys/kernel/random/boot_id >/etc/before
    reboot: true
  - name: after
    run: test "$(cat /etc/before)" != "$(cat /proc/sys/kernel/random/boot_id)"
runtime:
  - name: containerd
    run: systemctl start containerd
`), 0o600))
	w := newWorld(t, "install.profiles_dir="+own)
	m := w.machine(1, qemu.Config{Name: "vm-setup", Firmware: qemu.BIOS})
	w.must(http.MethodPut, "/v1/install-choices", contract.NewInstallChoice{Scope: "server", Name: "vm-setup", Profile: "image", Values: map[string]string{"kernel_arg": "no_timer_check", "setup": "vm"}})
	w.must(http.MethodPost, "/v1/servers/vm-setup/actions/onboard", map[string]any{})
	w.arrives(20*time.Minute, "vm-setup")
	steps, err := do[contract.StepList](t.Context(), w, http.MethodGet, "/v1/servers/vm-setup/steps", nil)
	must(t, err)
	said := map[schema.Step]string{}
	for _, s := range steps.Items {
		said[s.Step] = s.Detail
	}
	if !strings.Contains(said[schema.StepDrivers], "8 devices answer; setup vm/2, 2 steps") || !strings.Contains(said[schema.StepRuntime], "runs a container, which sees ") {
		t.Errorf("drivers: %s; runtime: %s", said[schema.StepDrivers], said[schema.StepRuntime])
	}
	if n := w.installs("vm-setup"); n != 1 || m.Boots() != 1 {
		t.Errorf("it was installed %d times and switched on %d times, want once each: the restarts are its own", n, m.Boots())
	}
}
