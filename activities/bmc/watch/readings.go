package watch

import (
	"strings"

	"gpupool/activities/bmc"
	"gpupool/schema"
	"gpupool/schema/agentproto"
)

// readings are what a BMC shows of the accelerators that the inventory knows, under the names of the metrics' schema
// (worker/agent/accelerator). It is joined by serial, then by slot. What the BMC counts from another moment than the driver
// (corrected errors, for life) has no name there and is left out, and so is a sum of which a part is unknown.
func readings(known []schema.Accelerator, shown []bmc.GPUMetrics) []agentproto.Device {
	var out []agentproto.Device
	for _, g := range shown {
		a, ok := joined(known, g.GPU)
		if !ok {
			continue
		}
		samples := map[string]float64{}
		put := func(name string, parts ...*float64) {
			var sum float64
			for _, v := range parts {
				if v == nil {
					return
				}
				sum += *v
			}
			samples[name] = sum
		}
		flag := func(name string, v *bool) {
			switch {
			case v == nil:
			case *v:
				samples[name] = 1
			default:
				samples[name] = 0
			}
		}
		put("temperature_celsius", g.TemperatureC)
		put("power_watts", g.PowerW)
		put("utilization_ratio", g.Utilization)
		put("ecc_uncorrected_life_total", g.UncorrectableECC, g.CacheUncorrectableECC)
		put("remapped_rows_total", g.RemapCorrectable, g.RemapUncorrectable)
		flag("remap_pending", g.RemapPending)
		flag("remap_failed", g.RemapFailed)
		flag("sram_threshold_exceeded", g.SRAMThreshold)
		put("pcie_replay_total", g.PCIeReplays)
		put("pcie_corrected_total", g.PCIeCorrectable)
		put("pcie_nonfatal_total", g.PCIeNonFatal)
		put("pcie_fatal_total", g.PCIeFatal)
		if len(samples) > 0 {
			out = append(out, agentproto.Device{Vendor: a.Vendor, Model: a.Model, Serial: a.Serial, UUID: a.UUID, PCI: a.PCI, Slot: a.Slot, Index: a.Index, Samples: samples})
		}
	}
	return out
}

// joined finds the accelerator that a BMC shows: the one of its serial; where it says none, or none is known, of its slot.
func joined(known []schema.Accelerator, g bmc.GPU) (schema.Accelerator, bool) {
	for _, is := range []func(a schema.Accelerator) bool{
		func(a schema.Accelerator) bool { return g.Serial != "" && strings.EqualFold(a.Serial, g.Serial) },
		func(a schema.Accelerator) bool {
			return g.Slot != "" && strings.EqualFold(a.Slot, g.Slot) && (g.Serial == "" || a.Serial == "")
		},
	} {
		var found []schema.Accelerator
		for _, a := range known {
			if is(a) {
				found = append(found, a)
			}
		}
		if len(found) == 1 {
			return found[0], true
		}
	}
	return schema.Accelerator{}, false
}
