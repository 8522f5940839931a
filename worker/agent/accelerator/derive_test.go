package accelerator

import (
	"encoding/json"
	"testing"

	"gpupool/schema"
	"gpupool/schema/agentproto"
)

func dev(serial string, samples map[string]float64) agentproto.Device {
	return agentproto.Device{Vendor: schema.VendorNVIDIA, Model: "m", Serial: serial, Slot: "SXM1", Samples: samples}
}

// TestWhatReadingsShow steps through readings; each step says which faults it must show.
func TestWhatReadingsShow(t *testing.T) {
	t.Parallel()
	ecc := func(v float64) map[string]float64 { return map[string]float64{ECCUncorrected: v} }
	life := func(v, l float64) map[string]float64 {
		return map[string]float64{ECCUncorrected: v, ECCLifeUncorrect: l}
	}
	hot := func(v float64) map[string]float64 { return map[string]float64{Temperature: v, TemperatureLimit: 90} }
	type step struct {
		boot string
		list []agentproto.Device
		want string
	}
	for name, steps := range map[string][]step{
		"history at first sight is a baseline":   {{"b", []agentproto.Device{dev("a", ecc(500))}, ""}, {"b", []agentproto.Device{dev("a", ecc(500))}, ""}},
		"each growth is told once":               {{"b", []agentproto.Device{dev("a", ecc(0))}, ""}, {"b", []agentproto.Device{dev("a", ecc(2))}, "ecc-uncorrectable"}, {"b", []agentproto.Device{dev("a", ecc(2))}, ""}, {"b", []agentproto.Device{dev("a", ecc(3))}, "ecc-uncorrectable"}},
		"a counter that fell begins anew":        {{"b", []agentproto.Device{dev("a", ecc(9))}, ""}, {"b", []agentproto.Device{dev("a", ecc(0))}, ""}, {"b", []agentproto.Device{dev("a", ecc(1))}, "ecc-uncorrectable"}},
		"a counter not known for once":           {{"b", []agentproto.Device{dev("a", ecc(1))}, ""}, {"b", []agentproto.Device{dev("a", nil)}, ""}, {"b", []agentproto.Device{dev("a", ecc(1))}, ""}},
		"one error in two counters is one fault": {{"b", []agentproto.Device{dev("a", life(0, 5))}, ""}, {"b", []agentproto.Device{dev("a", life(1, 6))}, "ecc-uncorrectable"}},
		"an error while nobody looked":           {{"b", []agentproto.Device{dev("a", life(0, 5))}, ""}, {"c", []agentproto.Device{dev("a", life(0, 6))}, "ecc-uncorrectable"}},
		"gone is gone at the second look":        {{"b", []agentproto.Device{dev("a", nil), dev("z", nil)}, ""}, {"b", []agentproto.Device{dev("z", nil)}, ""}, {"b", []agentproto.Device{dev("z", nil)}, "absent"}, {"b", []agentproto.Device{dev("z", nil)}, ""}},
		"back before the second look":            {{"b", []agentproto.Device{dev("a", nil)}, ""}, {"b", nil, ""}, {"b", []agentproto.Device{dev("a", nil)}, ""}, {"b", nil, ""}},
		"what a reboot took out is no fault":     {{"b", []agentproto.Device{dev("a", life(0, 0))}, ""}, {"c", nil, ""}, {"c", nil, ""}, {"c", nil, ""}},
		"hot twice is hot, and once":             {{"b", []agentproto.Device{dev("a", hot(91))}, ""}, {"b", []agentproto.Device{dev("a", hot(90))}, "thermal"}, {"b", []agentproto.Device{dev("a", hot(92))}, ""}, {"b", []agentproto.Device{dev("a", hot(88))}, ""}, {"b", []agentproto.Device{dev("a", hot(92))}, ""}},
		"hot, cool, and hot again":               {{"b", []agentproto.Device{dev("a", hot(91))}, ""}, {"b", []agentproto.Device{dev("a", hot(91))}, "thermal"}, {"b", []agentproto.Device{dev("a", hot(60))}, ""}, {"b", []agentproto.Device{dev("a", hot(91))}, ""}, {"b", []agentproto.Device{dev("a", hot(91))}, "thermal"}},
	} {
		var m Memory
		for i, s := range steps {
			// Between any two readings the agent may have died.
			b, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			m = Memory{}
			if err := json.Unmarshal(b, &m); err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, sign := range m.Step(s.boot, schema.Instant(1_700_000_000_000+10_000*i), s.list) {
				got += sign.Kind
			}
			if got != s.want {
				t.Errorf("%s: reading %d shows %q, want %q", name, i+1, got, s.want)
			}
		}
	}
}

func TestWhatAJobIsShown(t *testing.T) {
	t.Parallel()
	n := func(i int) agentproto.Device {
		return agentproto.Device{Vendor: schema.VendorNVIDIA, UUID: "GPU-" + string(rune('a'+i)), Index: i}
	}
	a := func(i int) agentproto.Device {
		return agentproto.Device{Vendor: schema.VendorAMD, UUID: "0x1", Index: i}
	}
	gaudi := agentproto.Device{Vendor: schema.VendorIntel, Model: "intel-gaudi3-128gb", Index: 2}
	for name, c := range map[string]struct {
		given, all []agentproto.Device
		want       map[string]string
	}{
		"NVIDIA by UUID, in the driver's order":   {[]agentproto.Device{n(3), n(1)}, []agentproto.Device{n(0), n(1), n(2), n(3)}, map[string]string{"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-d", "NVIDIA_VISIBLE_DEVICES": "GPU-b,GPU-d"}},
		"HIP counts among what ROCR leaves":       {[]agentproto.Device{a(5), a(4)}, []agentproto.Device{a(4), a(5)}, map[string]string{"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "0,1"}},
		"a job without devices sees none":         {nil, []agentproto.Device{n(0), a(0)}, map[string]string{"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void", "ROCR_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"}},
		"Gaudi has variables of its own":          {[]agentproto.Device{gaudi}, []agentproto.Device{gaudi}, map[string]string{"HABANA_VISIBLE_DEVICES": "2", "HABANA_VISIBLE_MODULES": "2"}},
		"a server without accelerators sets none": {nil, nil, map[string]string{}},
	} {
		got := Visible(c.given, c.all, false)
		if len(got) != len(c.want) {
			t.Errorf("%s: %v", name, got)
		}
		for k, v := range c.want {
			if g, ok := got[k]; !ok || g != v {
				t.Errorf("%s: %s=%q (set: %v), want %q", name, k, g, ok, v)
			}
		}
	}
	if got := Visible([]agentproto.Device{a(5), a(4)}, []agentproto.Device{a(4), a(5), a(6)}, true); got["ROCR_VISIBLE_DEVICES"] != "0,1" {
		t.Errorf("with the nodes of no other device it is told %q", got["ROCR_VISIBLE_DEVICES"])
	}
}
