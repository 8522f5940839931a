package watch

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpupool/activities/bmc"
	"gpupool/activities/health"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

func TestWhatABMCReadsIsJoinedBySerialThenBySlotAndNothingIsMadeUp(t *testing.T) {
	t.Parallel()
	known := []schema.Accelerator{{Serial: "A1", Slot: "SXM1", Vendor: schema.VendorNVIDIA}, {Serial: "B2", Slot: "SXM2"}, {Slot: "SXM3", PCI: "0000:3b:00.0"}}
	n := func(v float64) *float64 { return &v }
	yes, no := true, false
	for name, c := range map[string]struct {
		shown bmc.GPUMetrics
		want  map[string]float64 // nil = it is nobody's, or says nothing
		slot  string
	}{
		"by serial, whatever slot it says":            {bmc.GPUMetrics{GPU: bmc.GPU{Serial: "a1", Slot: "SXM2"}, TemperatureC: n(41), RemapPending: &yes, RemapFailed: &no}, map[string]float64{"temperature_celsius": 41, "remap_pending": 1, "remap_failed": 0}, "SXM1"},
		"by slot, where the BMC says no serial":       {bmc.GPUMetrics{GPU: bmc.GPU{Slot: "sxm2"}, PowerW: n(0)}, map[string]float64{"power_watts": 0}, "SXM2"},
		"by slot, where the driver says none":         {bmc.GPUMetrics{GPU: bmc.GPU{Serial: "C3", Slot: "SXM3"}, Utilization: n(0.25)}, map[string]float64{"utilization_ratio": 0.25}, "SXM3"},
		"another serial in a slot is another part":    {bmc.GPUMetrics{GPU: bmc.GPU{Serial: "NEW", Slot: "SXM1"}, PowerW: n(90)}, nil, ""},
		"one that says nothing has no reading":        {bmc.GPUMetrics{GPU: bmc.GPU{Serial: "A1"}}, nil, ""},
		"a sum of which a part is unknown is unknown": {bmc.GPUMetrics{GPU: bmc.GPU{Serial: "A1"}, RemapCorrectable: n(1), UncorrectableECC: n(2), CacheUncorrectableECC: n(3)}, map[string]float64{"ecc_uncorrected_life_total": 5}, "SXM1"},
	} {
		got := readings(known, []bmc.GPUMetrics{c.shown})
		if c.want == nil {
			if len(got) != 0 {
				t.Errorf("%s: %+v", name, got)
			}
			continue
		}
		if len(got) != 1 || got[0].Slot != c.slot || !cmp.Equal(got[0].Samples, c.want) {
			t.Errorf("%s: %+v, want %v in %s", name, got, c.want, c.slot)
		}
	}
}

// The BMC's values stand beside the agent's, say so where the two can't both be right, and go on while the system is down
// (cases 18 and 20: a BMC that calls a GPU idle which its driver sees at work).
func TestOutOfBandValuesStandBesideInBandOnesAndGoOnAlone(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)
	s := storetest.OpenAt(t, func() time.Time { return now })
	v := storetest.Available(t, s, 1, "nvidia-h100-80gb", 2)
	all, err := s.Accelerators(t.Context(), store.AcceleratorFilter{Server: v.ID})
	if err != nil {
		t.Fatal(err)
	}
	in, out := &health.History{Store: s}, &health.History{Store: s, Source: schema.SourceRedfish}
	k := newKeeper(s)
	k.values = out.Seen
	look := func() {
		t.Helper()
		temperature, idle, remaps, none := 62.0, 0.0, 1.0, 0.0
		shown := bmc.GPUMetrics{GPU: bmc.GPU{Serial: all[0].Serial, Slot: "GPU_0"}, TemperatureC: &temperature, Utilization: &idle, RemapUncorrectable: &remaps, RemapCorrectable: &none}
		if err := k.sink(t.Context(), Snapshot{Server: v.ID, At: now, Vitals: bmc.Vitals{Power: bmc.PowerOn}, GPUs: []bmc.GPUMetrics{shown}}, nil, nil); err != nil {
			t.Fatal(err)
		}
		out.Flush(t.Context())
	}
	driver := agentproto.Device{Vendor: all[0].Vendor, Serial: all[0].Serial, UUID: all[0].UUID, PCI: all[0].PCI, Samples: map[string]float64{"temperature_celsius": 70, "utilization_ratio": 1, "remapped_rows_total": 1}}
	in.Seen(v.ID, []agentproto.Device{driver})
	in.Flush(t.Context())
	look()
	type line struct {
		metric, source string
		last           float64
		differs        bool
	}
	lines := func(ctx context.Context) (got []line) {
		t.Helper()
		list, err := s.DeviceHistory(ctx, store.HistoryFilter{Server: v.ID, Device: all[0].Serial, Since: schema.At(now).Add(-time.Minute * 30)})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range list {
			got = append(got, line{m.Metric, m.Source, m.Last, m.Differs})
		}
		return got
	}
	want := []line{{"remapped_rows_total", "agent", 1, false}, {"remapped_rows_total", "redfish", 1, false}, {"temperature_celsius", "agent", 70, false}, {"temperature_celsius", "redfish", 62, false},
		{"utilization_ratio", "agent", 1, true}, {"utilization_ratio", "redfish", 0, true}}
	if d := cmp.Diff(want, lines(t.Context()), cmp.AllowUnexported(line{})); d != "" {
		t.Fatal(d)
	}
	now = now.Add(2 * time.Hour) // the system is down: its agent says nothing
	look()
	want = []line{{"remapped_rows_total", "redfish", 1, false}, {"temperature_celsius", "redfish", 62, false}, {"utilization_ratio", "redfish", 0, false}}
	if d := cmp.Diff(want, lines(t.Context()), cmp.AllowUnexported(line{})); d != "" {
		t.Fatal(d)
	}
}
