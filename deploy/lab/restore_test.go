package lab

import (
	"log/slog"
	"path/filepath"
	"testing"

	"gpupool/deploy/lab/bmc"
)

// TestAnOverrideOutlivesTheProcessOnEveryMachine: whichever resource a maker keeps it in.
func TestAnOverrideOutlivesTheProcessOnEveryMachine(t *testing.T) {
	t.Parallel()
	for i, profile := range bmc.ProfileNames() {
		c := Config{Dir: filepath.Join(t.TempDir(), "lab"), BMCNet: "127.192.0.0/16", Log: slog.New(slog.DiscardHandler),
			Servers: []ServerConfig{{Name: "s", Profile: profile, Devices: Devices{"nvidia-h100-80gb", 4}}}}
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
			t.Errorf("%s: it is %+v, was %+v", profile, got, want)
		}
		if err := l.close(); err != nil {
			t.Fatal(err)
		}
	}
}
