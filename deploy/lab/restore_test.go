package lab

import (
	"log/slog"
	"os/exec"
	"path/filepath"
	"testing"

	"gpupool/deploy/lab/bmc"
)

// TestAnOverrideOutlivesTheProcessOnEveryMachine: whichever resource a maker keeps it in.
func TestAnOverrideOutlivesTheProcessOnEveryMachine(t *testing.T) {
	t.Parallel()
	h100 := Devices{"nvidia-h100-80gb", 4}
	var servers []ServerConfig
	for _, profile := range bmc.ProfileNames() {
		servers = append(servers, ServerConfig{Name: "s", Profile: profile, Devices: h100})
	}
	captured, _ := filepath.Glob(filepath.Join("..", "..", "..", "shared", "data", "redfish", "*.tar.xz")) // none where there are none
	if _, err := exec.LookPath("xz"); err != nil {
		captured = nil
	}
	for _, tree := range captured {
		servers = append(servers, ServerConfig{Name: "s", Tree: tree, Devices: h100})
	}
	for i, server := range servers {
		c := Config{Dir: filepath.Join(t.TempDir(), "lab"), BMCNet: "127.192.0.0/16", Log: slog.New(slog.DiscardHandler), Servers: []ServerConfig{server}}
		l, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		want := bmc.Boot{Target: "Pxe", Mode: "UEFI", Once: i%2 == 0}
		l.machines[0].change(func(s *state) { s.Override = want })
		if err := l.close(); err != nil {
			t.Fatal(err)
		}
		if l, err = New(c); err != nil {
			t.Fatal(err)
		}
		if got := l.machines[0].bmc.BootOverride(); got != want {
			t.Errorf("%s%s: it is %+v, was %+v", server.Profile, server.Tree, got, want)
		}
		if err := l.close(); err != nil {
			t.Fatal(err)
		}
	}
}
