package amd

import (
	"encoding/binary"

	"gpupool/worker/agent/accelerator"
)

// field is one number of a gpu_metrics table.
type field struct {
	metric string
	at     int // offset in bytes
	scale  float64
}

// layouts by format and content revision. Source: Linux, drivers/gpu/drm/amd/include/kgd_pp_interface.h,
// struct gpu_metrics_v1_3 and gpu_metrics_v2_1. Any other version says nothing: MI300's (1.4 and later) put other
// numbers in the same places, and hwmon tells them too.
var layouts = map[[2]byte][]field{
	{1, 3}: {
		{accelerator.Temperature, 6, 1}, {accelerator.TemperatureMemory, 8, 1}, {accelerator.Utilization, 16, 0.01}, {accelerator.UtilizationMemory, 18, 0.01},
		{accelerator.Power, 22, 1}, {accelerator.ClockCore, 54, 1e6}, {accelerator.PCIeWidth, 74, 1},
	},
	{2, 1}: {{accelerator.Temperature, 4, 0.01}, {accelerator.Utilization, 28, 0.01}, {accelerator.Power, 40, 1}},
}

// parseMetrics reads a gpu_metrics table. Its header tells its length (u16), format and content (u8 each); the file may
// be longer. All ones means that the hardware can't say. ok is false for a table that is torn: nothing of it can be relied upon.
func parseMetrics(b []byte) (m map[string]float64, ok bool) {
	m = map[string]float64{}
	if len(b) < 4 {
		return m, false
	}
	size := int(binary.LittleEndian.Uint16(b))
	if size > len(b) || size < 4 {
		return m, false
	}
	for _, f := range layouts[[2]byte{b[2], b[3]}] {
		if f.at+2 > size {
			continue
		}
		if v := binary.LittleEndian.Uint16(b[f.at:]); v != 0xffff {
			m[f.metric] = float64(v) * f.scale
		}
	}
	return m, true
}
