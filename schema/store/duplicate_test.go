package store_test

import (
	"strings"
	"testing"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// TestAnAgentTakesNoDeviceFromAServerThatHasIt: two devices with one serial exist, and an agent may lie.
func TestAnAgentTakesNoDeviceFromAServerThatHasIt(t *testing.T) {
	t.Parallel()
	s := storetest.Open(t)
	a, b := storetest.Available(t, s, 1, "nvidia-h100-80gb", 2), storetest.Available(t, s, 2, "nvidia-h100-80gb", 2)
	ctx := t.Context()
	list := func(v schema.Server) []schema.Accelerator {
		t.Helper()
		all, err := s.Accelerators(ctx, store.AcceleratorFilter{Server: v.ID})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	before := list(a)
	beat := func(v schema.Server, devices []agentproto.Device) {
		t.Helper()
		if _, err := s.Heartbeat(ctx, v.ID, agentproto.Heartbeat{Apart: true, BootID: "boot-1", Devices: devices}); err != nil {
			t.Fatal(err)
		}
	}
	own := storetest.Devices(b.Name, "nvidia-h100-80gb", 2)
	beat(b, append(own, storetest.Devices(a.Name, "nvidia-h100-80gb", 2)...))
	twice := own[0]
	twice.Slot = "other"
	beat(b, append(own, twice))
	beat(a, storetest.Devices(a.Name, "nvidia-h100-80gb", 2))
	for i, x := range list(a) {
		if x.ID != before[i].ID || x.Health != schema.HealthHealthy {
			t.Errorf("%s is %s: %s", x.Slot, x.Health, x.HealthWhy)
		}
	}
	if l := list(b); len(l) != 2 || l[0].Health != schema.HealthHealthy || l[1].Health != schema.HealthHealthy {
		t.Errorf("the other server holds %+v", l)
	}
	faults, err := s.Faults(ctx, b.ID)
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	for _, f := range faults {
		if f.Kind == "duplicate" && (strings.Contains(f.Text, "in server "+a.Name) || strings.Contains(f.Text, "listed twice")) {
			told++
		}
	}
	if told != 3 {
		t.Errorf("%d of 3 are told of: %+v", told, faults)
	}
}
