package bmc_test

import (
	"strings"
	"testing"

	lab "gpupool/deploy/lab/bmc"
)

// Case 18 of the cases on health: of a captured GB300 baseboard four GPUs are read, and not the processors beside them in the same
// collection, each with the serial by which the agent's word is joined to it. A row that was remapped is seen though no memory
// error is counted, and the health that the BMC gives is not overruled by it.
func TestACapturedGB300TellsItsRemapsBySerial(t *testing.T) {
	t.Parallel()
	c := dial(t, serve(t, captured(t, "gb300_hgx"), lab.Hooks{}), fast)
	id, err := c.Identify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := c.GPUMetrics(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if len(metrics) != 4 {
		t.Fatalf("%d devices", len(metrics))
	}
	serials, remapped := map[string]bool{}, 0
	for _, m := range metrics {
		if m.Serial == "" || serials[m.Serial] || !strings.Contains(m.Model, "GB300") {
			t.Errorf("%+v", m.GPU)
		}
		serials[m.Serial] = true
		if m.UncorrectableECC == nil || *m.UncorrectableECC != 0 || m.RemapUncorrectable == nil {
			t.Fatalf("%s: errors %v, remaps %v", m.Slot, m.UncorrectableECC, m.RemapUncorrectable)
		}
		if *m.RemapUncorrectable == 1 {
			remapped++
			if !strings.Contains(m.URI, "GPU_0") || m.Health != "OK" {
				t.Errorf("the remap is of %s, whose health is %s", m.URI, m.Health)
			}
		}
		if m.PCIeReplays == nil || *m.PCIeReplays != 0 || len(m.Throttle) != 0 {
			t.Errorf("%s: replays %v, throttle %v", m.Slot, m.PCIeReplays, m.Throttle)
		}
		if m.PowerThrottled == nil || *m.PowerThrottled != 0 || m.ThermalThrottled == nil || m.HardwareThrottled == nil {
			t.Errorf("%s: held back for %v s for power, %v s for heat, %v s by its hardware", m.Slot, m.PowerThrottled, m.ThermalThrottled, m.HardwareThrottled)
		}
	}
	if remapped != 1 {
		t.Errorf("%d devices have a remapped row, want one", remapped)
	}
}
