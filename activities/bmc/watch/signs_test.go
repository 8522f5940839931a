package watch

import (
	"fmt"
	"testing"
	"time"

	"gpupool/activities/bmc"
	"gpupool/schema"
)

func f(v float64) *float64 { return &v }
func b(v bool) *bool       { return &v }

// A scenario is a row of snapshots and what each is told as. The clock moves a minute a step.
func TestWhatIsNewsAndWhatIsNot(t *testing.T) {
	t.Parallel()
	on := bmc.Vitals{Power: bmc.PowerOn}
	id := func(ready bool, gpus ...bmc.GPU) *bmc.Identity {
		return &bmc.Identity{BaseboardsReady: ready, GPUs: gpus}
	}
	good := bmc.GPU{Slot: "SXM1", Serial: "A", State: "Enabled", Health: "OK"}
	absent := bmc.GPU{Slot: "SXM1", Serial: "A", State: "Absent", Health: "Critical"}
	ecc := func(serial string, v *float64) []bmc.GPUMetrics {
		return []bmc.GPUMetrics{{GPU: bmc.GPU{Slot: "SXM1", Serial: serial}, UncorrectableECC: v}}
	}
	leak := func(states ...string) *bmc.Plant {
		p := &bmc.Plant{}
		for i, state := range states {
			p.Leaks = append(p.Leaks, bmc.Leak{URI: fmt.Sprint("/l", i), Name: "cold plate", State: state})
		}
		return p
	}
	// units are power supplies: OK, Critical, "" unknown, - not fitted; spare is the BMC's word on their redundancy.
	units := func(kind bmc.UnitKind, spare string, healths ...string) *bmc.Plant {
		p := &bmc.Plant{}
		if spare != "" {
			p.Spare = []bmc.Redundancy{{Kind: kind, State: "Enabled", Health: spare}}
		}
		for i, health := range healths {
			u := bmc.Unit{Kind: kind, Name: fmt.Sprint(i), State: "Enabled", Health: health}
			if health == "-" {
				u.State, u.Health = "Absent", "Critical"
			}
			p.Units = append(p.Units, u)
		}
		return p
	}
	off := bmc.Vitals{Power: bmc.PowerOff}
	xid := func(n int, history bool, text string) []bmc.LogEntry {
		return []bmc.LogEntry{{Service: "/s", ID: fmt.Sprint(n), History: history, Message: text, Origin: "/redfish/v1/Chassis/HGX_GPU_SXM_1"}}
	}
	for name, steps := range map[string][]struct {
		s    Snapshot
		want string
	}{
		"a counter's first value is history, a rise is news, a fall is a new baseline": {
			{Snapshot{Vitals: on, GPUs: ecc("A", f(7))}, ""}, {Snapshot{Vitals: on, GPUs: ecc("A", f(9))}, "ecc-uncorrectable SXM1 A"},
			{Snapshot{Vitals: on, GPUs: ecc("A", f(0))}, ""}, {Snapshot{Vitals: on, GPUs: ecc("A", f(1))}, "ecc-uncorrectable SXM1 A"},
		},
		"a rise over a round of unknown is seen": {
			{Snapshot{Vitals: on, GPUs: ecc("A", f(1))}, ""}, {Snapshot{Vitals: on, GPUs: ecc("", nil)}, ""}, {Snapshot{Vitals: on, GPUs: ecc("A", f(2))}, "ecc-uncorrectable SXM1 A"},
		},
		"a swapped device brings its own history": {
			{Snapshot{Vitals: on, GPUs: ecc("A", f(1))}, ""}, {Snapshot{Vitals: on, GPUs: ecc("B", f(50))}, ""}, {Snapshot{Vitals: on, GPUs: ecc("B", f(51))}, "ecc-uncorrectable SXM1 B"},
		},
		"absent counts after it settled, once": {
			{Snapshot{Vitals: on, Identity: id(true, good)}, ""}, {Snapshot{Vitals: on, Identity: id(true, absent)}, ""},
			{Snapshot{Vitals: on, Identity: id(true, absent)}, ""}, {Snapshot{Vitals: on, Identity: id(true, absent)}, "absent SXM1 A"}, {Snapshot{Vitals: on, Identity: id(true, absent)}, ""},
			{Snapshot{Vitals: on, Identity: id(true, good)}, ""}, {Snapshot{Vitals: on, Identity: id(true, absent)}, ""},
		},
		"absent while the baseboard starts, the power is off, or the bmc is silent is unknown; that it does not come up is told once": {
			{Snapshot{Vitals: on, Identity: id(false, absent)}, ""}, {Snapshot{Vitals: on, Identity: id(false, absent)}, ""}, {Snapshot{Vitals: on, Identity: id(false, absent)}, "baseboard-starting  "},
			{Snapshot{Vitals: on, Identity: id(false, absent)}, ""},
			{Snapshot{Vitals: bmc.Vitals{Power: bmc.PowerOff}, Identity: id(true, absent)}, "baseboard-starting over  "}, {Snapshot{Err: bmc.ErrUnreachable}, ""}, {Snapshot{Vitals: on, Identity: id(true, absent)}, ""},
		},
		"a leak is told once, and again when it comes back": {
			{Snapshot{Vitals: on, Plant: leak("Critical")}, "leak  "}, {Snapshot{Vitals: on, Plant: leak("Critical")}, ""}, {Snapshot{Vitals: on}, ""}, {Snapshot{Vitals: on, Plant: leak()}, ""},
			{Snapshot{Vitals: on, Plant: leak("")}, ""}, {Snapshot{Vitals: on, Plant: leak("Critical")}, ""}, {Snapshot{Vitals: on, Plant: leak("OK")}, ""}, {Snapshot{Vitals: on, Plant: leak("Critical")}, "leak  "},
		},
		"moisture is told, and the leak that comes of it; the other detector is one of its own": {
			{Snapshot{Vitals: on, Plant: leak("Warning", "OK")}, "leak warning  "}, {Snapshot{Vitals: on, Plant: leak("Critical", "Warning")}, "leak  leak warning  "}, {Snapshot{Vitals: on, Plant: leak("Warning", "Warning")}, ""},
		},
		"a failed power supply is told at the second look, once, and when it is in order again": {
			{Snapshot{Vitals: on, Plant: units(bmc.PowerSupply, "", "OK", "OK", "Critical", "-", "")}, ""}, {Snapshot{Vitals: on, Plant: units(bmc.PowerSupply, "", "OK", "OK", "Critical")}, "power-supply 2 warning  "},
			{Snapshot{Vitals: off, Plant: units(bmc.PowerSupply, "", "OK", "OK", "Critical")}, ""}, {Snapshot{Vitals: on}, ""}, {Snapshot{Vitals: on, Plant: units(bmc.PowerSupply, "", "OK", "OK", "-")}, ""},
			{Snapshot{Vitals: on, Plant: units(bmc.PowerSupply, "", "OK", "OK", "")}, ""}, {Snapshot{Vitals: on, Plant: units(bmc.PowerSupply, "", "OK", "OK", "OK")}, "power-supply 2 over  "},
		},
		"one that shows for a moment is not told": {
			{Snapshot{Vitals: on, Plant: units(bmc.PowerSupply, "", "OK", "OK", "Critical")}, ""}, {Snapshot{Vitals: on, Plant: units(bmc.PowerSupply, "", "OK", "OK", "OK")}, ""},
			{Snapshot{Vitals: on, Plant: units(bmc.PowerSupply, "", "OK", "OK", "Critical")}, ""},
		},
		"half of them are the redundancy, unless the bmc judges otherwise": {
			{Snapshot{Vitals: on, Plant: units(bmc.PowerSupply, "", "OK", "Critical")}, ""}, {Snapshot{Vitals: on, Plant: units(bmc.PowerSupply, "", "OK", "Critical")}, "power-supply 1 warning  power-supply power supplies  "},
			{Snapshot{Vitals: on, Plant: units(bmc.PowerSupply, "Warning", "OK", "Critical")}, "power-supply power supplies over  "}, {Snapshot{Vitals: on, Plant: units(bmc.PowerSupply, "Critical", "OK", "Critical")}, ""},
			{Snapshot{Vitals: on, Plant: units(bmc.PowerSupply, "Critical", "OK", "Critical")}, "power-supply power supplies  "},
		},
		"fans stand still without power": {
			{Snapshot{Vitals: off, Plant: units(bmc.Fan, "Critical", "Critical", "Critical")}, ""}, {Snapshot{Vitals: off, Plant: units(bmc.Fan, "Critical", "Critical", "Critical")}, ""},
			{Snapshot{Vitals: on, Plant: units(bmc.Fan, "OK", "Critical", "OK")}, ""}, {Snapshot{Vitals: on, Plant: units(bmc.Fan, "OK", "Critical", "OK")}, "fan 0 warning  "},
		},
		"an xid in the log is news unless it is history, and an sxid is none": {
			{Snapshot{Vitals: on, Entries: xid(1, true, "[00] XID 62 badf")}, ""}, {Snapshot{Vitals: on, Entries: xid(2, false, "type '[00] XID 79 GPU'")}, "xid 79 GPU_SXM_1 "},
			{Snapshot{Vitals: on, Entries: xid(3, false, "SXID 0 dNVSWITCH SMBPBI server is online")}, ""},
		},
		"one lane that is worse than its port's others is told once, though no total shows it": {
			{Snapshot{Vitals: on, GPUs: []bmc.GPUMetrics{{GPU: good, PCIeLanes: []float64{0, 1, 2, 2, 0, 0, 0, 0, 16, 1, 0, 0, 4, 395, 10, 9}}}}, "pcie-lane warning SXM1 A"},
			{Snapshot{Vitals: on, GPUs: []bmc.GPUMetrics{{GPU: good, PCIeLanes: []float64{0, 1, 2, 2, 0, 0, 0, 0, 16, 1, 0, 0, 4, 396, 10, 9}}}}, ""},
			{Snapshot{Vitals: on, GPUs: []bmc.GPUMetrics{{GPU: good}}}, ""}, {Snapshot{Vitals: on, GPUs: []bmc.GPUMetrics{{GPU: good, PCIeLanes: []float64{0, 400, 1, 1}}}}, ""},
		},
		"lanes that are alike are none the worse": {
			{Snapshot{Vitals: on, GPUs: []bmc.GPUMetrics{{GPU: good, PCIeLanes: []float64{900, 1000, 800, 950}}}}, ""}, {Snapshot{Vitals: on, GPUs: []bmc.GPUMetrics{{GPU: good, PCIeLanes: []float64{0, 99, 0, 0}}}}, ""},
		},
		"a failed remap is evidence at first sight, once": {
			{Snapshot{Vitals: on, GPUs: []bmc.GPUMetrics{{GPU: good, RemapFailed: b(true)}}}, "remap-failed SXM1 A"}, {Snapshot{Vitals: on, GPUs: []bmc.GPUMetrics{{GPU: good, RemapFailed: b(true)}}}, ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var m Memory
			keys := map[string]bool{}
			at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			for i, step := range steps {
				step.s.At = at.Add(time.Duration(i) * time.Minute)
				got := ""
				for _, x := range m.signs(step.s, 2*time.Minute) {
					got += x.Kind + " "
					if x.Code != "" {
						got += x.Code + " "
					}
					if x.Part != "" && x.Kind != "leak" {
						got += x.Part + " "
					}
					if x.Over {
						got += "over "
					} else if x.Severity == schema.SeverityWarning && x.Kind != "xid" && x.Kind != "baseboard-starting" {
						got += "warning "
					}
					got += x.Slot + " " + x.Serial
					if keys[x.Key] || !x.Over && x.Key == "" {
						t.Fatalf("step %d: key %q again", i, x.Key)
					}
					keys[x.Key] = !x.Over
				}
				if got != step.want {
					t.Fatalf("step %d: told %q, want %q", i, got, step.want)
				}
			}
		})
	}
}

// Case 5 at its own timing, a look a minute with the settle time that is the default: GPUs absent behind a baseboard that is
// up after five minutes are told at no look, and one that never comes up is told once, when ten minutes are over.
func TestABaseboardThatIsUpAfterFiveMinutesIsNoNews(t *testing.T) {
	t.Parallel()
	settle := New(nil, Config{}).cfg.Settle
	begun := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	gpu := bmc.GPU{Slot: "SXM1", Serial: "A", State: "Absent", Health: "Critical"}
	for _, up := range []int{5, 1000} { // the minute in which it is up
		var m Memory
		for minute := range 30 {
			id := &bmc.Identity{BaseboardsReady: minute >= up, GPUs: []bmc.GPU{gpu}}
			if id.BaseboardsReady {
				id.GPUs[0].State, id.GPUs[0].Health = "Enabled", "OK"
			}
			told := ""
			for _, x := range m.signs(Snapshot{At: begun.Add(time.Duration(minute) * time.Minute), Vitals: bmc.Vitals{Power: bmc.PowerOn}, Identity: id}, settle) {
				told += x.Kind + " "
			}
			want := ""
			if up == 1000 && minute == 10 {
				want = "baseboard-starting "
			}
			if told != want {
				t.Errorf("up at minute %d: minute %d told %q, want %q", up, minute, told, want)
			}
		}
	}
}
