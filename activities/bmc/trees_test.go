package bmc_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"gpupool/activities/bmc"
	lab "gpupool/deploy/lab/bmc"
)

// fast lifts the request rate: a lab BMC stands it.
var fast = bmc.WithRate(1e6, 1000)

// Every captured tree, served statefully and with Members in both orders, is identified, powered, booted and read with no
// request that the firmware refuses.
func TestEveryCapturedTreeIsDrivenWithNothingRefused(t *testing.T) {
	t.Parallel()
	gpus := map[string]int{"dell": 1, "gb300_hgx": 4, "hpe": 0, "lenovo": 8, "nvidia_gb200": 4, "nvidia_viking": 8, "supermicro": 8}
	var mu sync.Mutex
	ids := map[string]string{}
	for _, name := range capturedNames {
		for _, reversed := range []bool{false, true} {
			t.Run(name+map[bool]string{false: " as captured", true: " reversed"}[reversed], func(t *testing.T) {
				t.Parallel()
				var opts []lab.Option
				if reversed {
					opts = append(opts, lab.WithMembersReversed())
				}
				boots := make(chan lab.Boot, 2)
				s := serve(t, captured(t, name), lab.Hooks{PowerOn: func(b lab.Boot) { boots <- b }}, opts...)
				c := dial(t, s, fast)
				ctx := t.Context()
				id, err := c.Identify(ctx)
				if err != nil {
					t.Fatal(err)
				}
				if id.Serial == "" || id.UUID == "" || id.Model == "" || id.Manufacturer == "" || len(id.GPUs) != gpus[name] {
					t.Fatalf("identity %+v", id)
				}
				mu.Lock()
				if other := ids[name]; other != "" && other != fmt.Sprintf("%+v", id) {
					t.Errorf("it is %+v, and with its members in another order %s", id, other)
				}
				ids[name] = fmt.Sprintf("%+v", id)
				mu.Unlock()
				if _, err := c.BootOnceFromNetwork(ctx, bmc.PXE); err != nil {
					t.Fatal(err)
				}
				if err := c.SetPower(ctx, bmc.Cycle); err != nil {
					t.Fatal(err)
				}
				if b := <-boots; b.Target != "Pxe" || b.Mode == "Legacy" {
					t.Fatalf("booted %+v", b)
				}
				// The Dell, HPE and Lenovo captures show only IndicatorLED.
				for _, on := range []bool{true, false} {
					if err := c.LocateLED(ctx, on); err != nil {
						t.Fatal(err)
					}
				}
				metrics, err := c.GPUMetrics(ctx, id)
				if err != nil || len(metrics) != len(id.GPUs) {
					t.Fatalf("metrics of %d of %d gpus: %v", len(metrics), len(id.GPUs), err)
				}
				checkMetrics(t, name, metrics)
				if !reversed { // the long reads, once
					readEverything(t, name, c)
				}
				if bad := refusals(s); bad != nil {
					t.Errorf("refused: %v", bad)
				}
				for _, r := range s.Requests() {
					if r.Method != "GET" && strings.Contains(r.Path, "HGX_Baseboard_0") {
						t.Errorf("%s %s", r.Method, r.Path)
					}
				}
			})
		}
	}
}

// checkMetrics holds what the captures show, and that what they don't show stays unknown.
func checkMetrics(t *testing.T, name string, metrics []bmc.GPUMetrics) {
	t.Helper()
	for _, m := range metrics {
		switch name {
		case "nvidia_viking", "gb300_hgx":
			if m.CorrectableECC == nil || name == "nvidia_viking" && *m.CorrectableECC != 0 || m.RemapUncorrectable == nil || m.PCIeReplays == nil {
				t.Fatalf("%s %s: %+v", name, m.Slot, m)
			}
		case "nvidia_gb200": // its HGX BMC is still starting
			if m.CorrectableECC != nil || m.TemperatureC != nil {
				t.Fatalf("%s %s: a counter that the capture doesn't have: %+v", name, m.Slot, m)
			}
		case "dell":
			if m.TemperatureC == nil || *m.TemperatureC != 34 || m.PowerW != nil {
				t.Fatalf("%s: %+v", name, m)
			}
		}
	}
}

func readEverything(t *testing.T, name string, c *bmc.Client) {
	t.Helper()
	ctx := t.Context()
	services, err := c.LogServices(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if name != "gb300_hgx" && len(services) == 0 {
		t.Fatal("no logs")
	}
	for _, svc := range services {
		entries, cursor, err := c.LogEntries(ctx, svc, nil)
		if errors.Is(err, bmc.ErrNotFound) {
			continue // linked, not captured
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if !e.History {
				t.Fatalf("%s %s: the first sight is a baseline", svc, e.ID)
			}
		}
		if again, _, err := c.LogEntries(ctx, svc, cursor); err != nil || len(again) != 0 {
			t.Fatalf("%s: %d entries came twice, %v", svc, len(again), err)
		}
	}
	if name == "gb300_hgx" {
		return // the capture has neither chassis nor firmware
	}
	changeEverything(t, name, c)
	sensors, err := c.Sensors(ctx)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, s := range sensors {
		if seen[s.URI] && s.URI != "" {
			t.Fatalf("sensor %s twice", s.URI)
		}
		seen[s.URI] = true
	}
	if len(sensors) == 0 {
		t.Fatal("no sensors")
	}
	if name == "nvidia_viking" && len(sensors) < 264 {
		t.Fatalf("%d sensors, the chassis DGX alone has 264", len(sensors))
	}
	fw, err := c.Firmware(ctx)
	if err != nil || len(fw) == 0 {
		t.Fatalf("firmware: %d, %v", len(fw), err)
	}
	t.Logf("%s: %d logs, %d sensors, %d firmwares", name, len(services), len(sensors), len(fw))
}

// changeEverything drives the settings that outlast a boot.
func changeEverything(t *testing.T, name string, c *bmc.Client) {
	t.Helper()
	ctx := t.Context()
	entries, err := c.BootEntries(ctx)
	if err != nil || len(entries) == 0 {
		t.Fatalf("boot entries %v, %v", entries, err)
	}
	if !slices.ContainsFunc(entries, bmc.BootEntry.Network) {
		t.Errorf("%s: no entry boots from the network: %v", name, entries)
	}
	attributes := map[string]any{"dell": "AcPwrRcvry", "hpe": "AcpiHpet", "lenovo": "DevicesandIOPorts_SerialPortAccessMode",
		"supermicro": "AES_NI_3C75", "nvidia_viking": "AcpiSpcrBaudRate", "nvidia_gb200": "ActiveCores"}
	if k, ok := attributes[name].(string); ok {
		reboot, err := c.SetBIOS(ctx, map[string]any{k: "lab"})
		if err != nil || !reboot {
			t.Fatalf("bios %s: reboot %v, %v", k, reboot, err)
		}
		if reboot, err = c.SetBIOS(ctx, map[string]any{k: "lab"}); err != nil || !reboot {
			t.Fatalf("bios %s again: reboot %v, %v", k, reboot, err)
		}
	}
	if len(entries) > 1 && name != "lenovo" { // what Lenovo lists are classes, some of them not in the order
		last := entries[len(entries)-1].Ref
		if err := c.BootFirst(ctx, []string{last}); err != nil {
			t.Fatal(err)
		}
		if entries, err = c.BootEntries(ctx); err != nil || entries[0].Ref != last {
			t.Fatalf("%s is not first in %v, %v", last, entries, err)
		}
		if err := c.BootFirst(ctx, []string{"Boot7777"}); !errors.Is(err, bmc.ErrUnsupported) {
			t.Fatalf("a boot option that there is not: %v", err)
		}
	}
	shown, err := c.BIOS(ctx)
	if err != nil || len(shown) == 0 {
		t.Fatalf("%d bios attributes, %v", len(shown), err)
	}
	wordsOf := 0
	for _, a := range shown { // a number and a boolean, in words
		var word string
		switch v := a.Value.(type) {
		case float64:
			word = fmt.Sprint(v + 1)
		case bool:
			word = fmt.Sprint(!v)
		default:
			continue
		}
		if _, err := c.SetBIOSWords(ctx, map[string]string{a.Name: "a word"}); !errors.Is(err, bmc.ErrUnsupported) {
			t.Fatalf("%s is %v, and a word for it: %v", a.Name, a.Value, err)
		}
		if reboot, err := c.SetBIOSWords(ctx, map[string]string{a.Name: word}); err != nil || !reboot {
			t.Fatalf("%s to %s: reboot %v, %v", a.Name, word, reboot, err)
		}
		if wordsOf++; wordsOf == 3 {
			break
		}
	}
	if _, err := c.SetBIOS(ctx, map[string]any{"NoSuchAttribute": 1}); !errors.Is(err, bmc.ErrUnsupported) {
		t.Fatalf("unknown bios attribute: %v", err)
	}
	if name == "hpe" || name == "nvidia_viking" {
		return // the captures have no virtual drive
	}
	if err := c.InsertMedia(ctx, "http://10.0.0.1/installer.iso"); err != nil {
		t.Fatal(err)
	}
	if set, err := c.Boot(ctx); err != nil || set.Target != "Cd" {
		t.Fatalf("boot %+v, %v", set, err)
	}
	if err := c.EjectMedia(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.ClearBootOverride(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestTheBootOrderIsPermutedAndReadBack(t *testing.T) {
	t.Parallel()
	for _, name := range lab.ProfileNames() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, profile(t, name), lab.Hooks{}, lab.WithIdentity(lab.Identity{MACs: []string{"52:54:00:AA:BB:01"}}))
			c := dial(t, s, fast)
			entries, err := c.BootEntries(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if name != lab.GB200 && !entries[0].On("52:54:00:aa:bb:01") {
				t.Fatalf("first entry %+v", entries[0])
			}
			var refs []string
			for _, e := range entries {
				refs = append([]string{e.Ref}, refs...)
			}
			for range 2 { // the second has nothing to send
				if err := c.SetBootOrder(t.Context(), refs); err != nil {
					t.Fatal(err)
				}
			}
			if n := len(sent(s)); n != 1 {
				t.Fatalf("%d requests: %v", n, sent(s))
			}
			if err := c.SetBootOrder(t.Context(), refs[:1]); !errors.Is(err, bmc.ErrUnsupported) {
				t.Fatalf("half an order: %v", err)
			}
		})
	}
}

// Case 5, as far as reading goes: one leak, absent sensors that are no alarm, a baseboard that isn't ready.
func TestAGB200ShowsOneLeakAndABaseboardThatIsNotReady(t *testing.T) {
	t.Parallel()
	s := serve(t, captured(t, "nvidia_gb200"), lab.Hooks{})
	c := dial(t, s, fast)
	id, err := c.Identify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if id.BaseboardsReady {
		t.Fatal("HGX_BMC_0 is Starting: its GPUs can't be judged")
	}
	plant, err := c.Plant(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var leaking []string
	for _, l := range plant.Leaks {
		if l.Leaking() {
			leaking = append(leaking, l.Name)
		}
	}
	if len(leaking) != 1 || leaking[0] != "Chassis 0 LeakDetector 1 ColdPlate" {
		t.Fatalf("leaking %v of %d detectors", leaking, len(plant.Leaks))
	}
	sensors, err := c.Sensors(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	absent := 0
	for _, x := range sensors {
		if x.Health == "Critical" && x.State == "Absent" {
			absent++
		}
		if x.Alarms() {
			t.Errorf("%s alarms: %+v", x.Name, x)
		}
	}
	if absent == 0 {
		t.Fatal("the capture has absent sensors with health Critical")
	}
	if err := s.Patch("/redfish/v1/Managers/HGX_BMC_0", lab.Doc{"Status": lab.Doc{"State": "Enabled", "Health": "OK"}}); err != nil {
		t.Fatal(err)
	}
	if id, err = c.Identify(t.Context()); err != nil || !id.BaseboardsReady {
		t.Fatalf("ready %v, %v", id.BaseboardsReady, err)
	}
}

// What the captured machines show of their power and cooling: all of it is in order, but what says nothing of itself (the power
// supplies of the DGX H100 have a null status) and the leak of case 5.
func TestPowerAndCoolingOfCapturedMachines(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"dell": "2 PS1 Status, 6 System Board Fan1A, 0 detectors", "hpe": "2 HpeServerPowerSupply 1, 6 Fan 1, 0 detectors", "lenovo": "4 PSU1, 10 Fan 1A Tach, 0 detectors",
		"supermicro": "8 Power Supply Bay 1, 6 FAN9, 0 detectors", "nvidia_viking": "6 PSU0, 36 SPD_FAN_SYS10_F, 0 detectors", "nvidia_gb200": "0 , 0 , 4 detectors",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := dial(t, serve(t, captured(t, name), lab.Hooks{}), fast)
			p, err := c.Plant(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			first, n, names := map[bmc.UnitKind]string{}, map[bmc.UnitKind]int{}, map[string]bool{}
			for _, u := range p.Units {
				if n[u.Kind]++; n[u.Kind] == 1 {
					first[u.Kind] = u.Name
				}
				if names[string(u.Kind)+u.Name] || u.Failed() || u.Health != "OK" && !(name == "nvidia_viking" && u.Kind == bmc.PowerSupply && u.Health == "") {
					t.Errorf("%+v", u)
				}
				names[string(u.Kind)+u.Name] = true
			}
			for _, r := range p.Spare {
				if r.Lost() || r.Health == "" {
					t.Errorf("%+v", r)
				}
			}
			if got := fmt.Sprintf("%d %s, %d %s, %d detectors", n[bmc.PowerSupply], first[bmc.PowerSupply], n[bmc.Fan], first[bmc.Fan], len(p.Leaks)); got != want {
				t.Errorf("%s, want %s", got, want)
			}
		})
	}
}

// A place that can't be read is unknown, and looking for it again is not what every read does.
func TestPowerAndCoolingAreFoundOnce(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.GB200), lab.Hooks{})
	c := dial(t, s, fast)
	read := func() (p bmc.Plant, requests int) {
		t.Helper()
		before := len(s.Requests())
		p, err := c.Plant(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return p, len(s.Requests()) - before
	}
	all, found := read()
	again, kept := read()
	if len(all.Units) != 8 || len(again.Units) != 8 || len(all.Leaks) != 2 || kept != len(all.Units)+len(all.Leaks)+3 || kept >= found {
		t.Fatalf("%d units, %d detectors; %d requests, then %d", len(all.Units), len(all.Leaks), found, kept)
	}
	rule := s.AddFault(lab.Fault{Path: "/redfish/v1/Chassis/Chassis_0/ThermalSubsystem/Fans", Status: 500})
	if p, _ := read(); len(p.Units) != 0 || len(p.Leaks) != 2 || len(p.Spare) != 1 {
		t.Fatalf("%+v", p)
	}
	s.RemoveFault(rule)
	if p, _ := read(); len(p.Units) != 8 {
		t.Fatalf("%+v", p)
	}
}

func TestALeakOfALabMachineIsSeen(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.GB200), lab.Hooks{})
	c := dial(t, s, fast)
	leaking := func() (n int) {
		t.Helper()
		plant, err := c.Plant(t.Context())
		if err != nil || len(plant.Leaks) != 2 {
			t.Fatalf("leaks %+v, %v", plant.Leaks, err)
		}
		for _, l := range plant.Leaks {
			if l.Leaking() {
				n++
			}
		}
		return n
	}
	if n := leaking(); n != 0 {
		t.Fatalf("%d leaks of a dry machine", n)
	}
	if err := s.Patch("/redfish/v1/Chassis/Chassis_0/ThermalSubsystem/LeakDetection/LeakDetectors/Chassis_0_LeakDetector_1_ColdPlate",
		lab.Doc{"DetectorState": "Critical", "Status": lab.Doc{"Health": "Critical", "State": "Degraded"}}); err != nil {
		t.Fatal(err)
	}
	if n := leaking(); n != 1 {
		t.Fatalf("%d leaks", n)
	}
}

func TestAnAcceleratorThatCouldNotBeReadIsNotMissing(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.DGXH100), lab.Hooks{})
	const gpu = "/redfish/v1/Systems/HGX_Baseboard_0/Processors/GPU_SXM_3"
	s.AddFault(lab.Fault{Path: gpu, Status: 500})
	id, err := dial(t, s, fast).Identify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(id.GPUs) != 7 || len(id.Unread) != 1 || id.Unread[0] != gpu {
		t.Fatalf("%d gpus, unread %v", len(id.GPUs), id.Unread)
	}
}

func TestAHostThatCouldNotBeReadIsThatErrorAndNotThatThereIsNone(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.DGXH100), lab.Hooks{})
	s.AddFault(lab.Fault{Path: s.SystemPath(), Status: 500})
	if _, err := dial(t, s, fast).Power(t.Context()); errors.Is(err, bmc.ErrNoHost) || err == nil || !strings.Contains(err.Error(), s.SystemPath()) {
		t.Fatalf("error %v", err)
	}
}
