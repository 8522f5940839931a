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

// TestFailedUnitsOutliveTheProcess: a power supply, a fan and a leak that were there at first or came later are shown by the
// BMC, are there after a restart, and are gone when they are mended.
func TestFailedUnitsOutliveTheProcess(t *testing.T) {
	t.Parallel()
	c := Config{Dir: filepath.Join(t.TempDir(), "lab"), BMCNet: "127.193.0.0/16", Log: slog.New(slog.DiscardHandler),
		Servers: []ServerConfig{{Name: "s", Profile: bmc.GB200, Devices: Devices{"nvidia-h100-80gb", 4}, Faults: []string{"fan FAN3"}}}}
	const leak = "Chassis_0_LeakDetector_1_ColdPlate"
	shown := func(l *Lab) [2]any {
		thermal := "/redfish/v1/Chassis/Chassis_0/ThermalSubsystem"
		fan := l.machines[0].bmc.Resource(thermal + "/Fans/FAN3")["Status"].(bmc.Doc)["Health"]
		return [2]any{fan, l.machines[0].bmc.Resource(thermal + "/LeakDetection/LeakDetectors/" + leak)["DetectorState"]}
	}
	l, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if got := shown(l); got != [2]any{"Critical", "OK"} {
		t.Fatalf("at first %v", got)
	}
	if err := l.Fault("s", leak, "leak"); err != nil {
		t.Fatal(err)
	}
	if err := l.Fault("s", "PSU1", "psu"); err == nil {
		t.Error("a tray that is fed by its rack lost a power supply")
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	if l, err = New(c); err != nil {
		t.Fatal(err)
	}
	if got := shown(l); got != [2]any{"Critical", "Critical"} {
		t.Fatalf("after a restart %v", got)
	}
	if err := l.Clear("s", "-", "fan"); err != nil {
		t.Fatal(err)
	}
	if got := shown(l); got != [2]any{"OK", "Critical"} {
		t.Fatalf("with its fans mended %v", got)
	}
	if err := l.Clear("s", leak, ""); err != nil {
		t.Fatal(err)
	}
	if got := shown(l); got != [2]any{"OK", "OK"} || len(l.machines[0].st.Faults) != 0 {
		t.Fatalf("with all mended %v, %v", got, l.machines[0].st.Faults)
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
}
