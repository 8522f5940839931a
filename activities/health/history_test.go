package health

import (
	"fmt"
	"math"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

func TestHoursAddUpOverProcessesAndAreForgottenInTime(t *testing.T) {
	t.Parallel()
	c := newClock()
	s := storetest.OpenAt(t, c.now)
	v := storetest.Available(t, s, 1, model, 2)
	all, err := s.Accelerators(t.Context(), store.AcceleratorFilter{Server: v.ID})
	ok(t, err)
	read := func(temperature ...float64) []agentproto.Device {
		var list []agentproto.Device
		for i, a := range all {
			d := agentproto.Device{Vendor: a.Vendor, Serial: a.Serial, UUID: a.UUID, PCI: a.PCI, Samples: map[string]float64{"temperature_celsius": temperature[i], "no good name": 1, "bad": math.NaN()}}
			if temperature[i] == 0 {
				d.Samples, d.Error = nil, "no answer"
			}
			list = append(list, d)
		}
		return list
	}
	first, second := &History{Store: s}, &History{Store: s}
	first.Seen(v.ID, read(40, 50))
	c.pass(time.Minute)
	second.Seen(v.ID, read(60, 0)) // another API heard this heartbeat; the second device gave no answer
	c.pass(time.Minute)
	first.Seen(v.ID, read(20, 0))
	for range 2 { // twice is once
		first.Flush(t.Context())
		second.Flush(t.Context())
	}
	got, err := s.DeviceHistory(t.Context(), store.HistoryFilter{Server: v.ID})
	ok(t, err)
	if len(got) != 2 {
		t.Fatalf("%+v", got)
	}
	for i, want := range []schema.MetricHour{{Min: 20, Mean: 40, Max: 60, Last: 20, Samples: 3}, {Min: 50, Mean: 50, Max: 50, Last: 50, Samples: 1}} {
		g := got[i]
		if g.Min != want.Min || g.Mean != want.Mean || g.Max != want.Max || g.Last != want.Last || g.Samples != want.Samples || g.Metric != "temperature_celsius" || g.Serial != all[i].Serial || g.Device != all[i].ID {
			t.Errorf("device %d: %+v, want %+v", i, g, want)
		}
	}
	c.pass(time.Hour)
	first.Seen(v.ID, read(41, 51))
	first.Flush(t.Context())
	if got, err = s.DeviceHistory(t.Context(), store.HistoryFilter{Server: v.ID, Device: all[1].Serial, Metric: "temperature_celsius"}); err != nil || len(got) != 2 || got[1].Last != 51 || got[0].Hour >= got[1].Hour {
		t.Fatalf("%+v %v", got, err)
	}
	if _, err = s.DeviceHistory(t.Context(), store.HistoryFilter{Server: v.ID, Device: "nothing"}); !schema.Is(err, schema.CodeNotFound) {
		t.Fatalf("a device that is not there: %v", err)
	}
	c.pass(91 * 24 * time.Hour)
	first.Flush(t.Context())
	if got, err = s.DeviceHistory(t.Context(), store.HistoryFilter{Server: v.ID}); err != nil || len(got) != 0 {
		t.Fatalf("after 91 days: %+v %v", got, err)
	}
	first.mu.Lock()
	defer first.mu.Unlock()
	if len(first.hours) != 0 {
		t.Errorf("%d hours are still held in memory", len(first.hours))
	}
}

// BenchmarkHistory is one heartbeat of eight devices with twenty metrics each.
func BenchmarkHistory(b *testing.B) {
	h := &History{Store: storetest.Open(b)}
	var list []agentproto.Device
	for i := range 8 {
		d := agentproto.Device{Vendor: schema.VendorNVIDIA, Serial: fmt.Sprint("S", i), Samples: map[string]float64{}}
		for m := range 20 {
			d.Samples[fmt.Sprint("metric_", m)] = float64(m)
		}
		list = append(list, d)
	}
	b.ReportAllocs()
	for b.Loop() {
		h.Seen("srv", list)
	}
	b.ReportMetric(160*float64(b.N)/b.Elapsed().Seconds(), "samples/s")
}
