package amd

import (
	"encoding/binary"
	"fmt"
	"slices"

	"gpupool/worker/agent/accelerator"
)

// field is one number of a gpu_metrics table.
type field struct {
	metric string
	at     int // offset in bytes
	scale  float64
}

// Three families of layouts, each with its first numbers where all its revisions have them.
var (
	// discrete, from 1.1 on.
	discrete = []field{
		{accelerator.Temperature, 6, 1}, {accelerator.TemperatureMemory, 8, 1}, {accelerator.Utilization, 16, 0.01}, {accelerator.UtilizationMemory, 18, 0.01},
		{accelerator.Power, 22, 1}, {accelerator.ClockCore, 54, 1e6}, {accelerator.PCIeWidth, 74, 1},
	}
	// module is MI300's, and of those after it: no edge, and the power before the utilization.
	module = []field{
		{accelerator.Temperature, 4, 1}, {accelerator.TemperatureMemory, 6, 1}, {accelerator.Power, 10, 1}, {accelerator.Utilization, 12, 0.01}, {accelerator.UtilizationMemory, 14, 0.01},
	}
	// apu is of processors with graphics. In which unit they tell utilization and power differs by chip: hwmon tells both.
	apu = []field{{accelerator.Temperature, 4, 0.01}}
)

func with(fields []field, more ...field) []field { return slices.Concat(fields, more) }

// layouts by format and content revision. Source: Linux, drivers/gpu/drm/amd/include/kgd_pp_interface.h, struct
// gpu_metrics_v1_0 to v3_0. A revision that isn't here is read by no other's layout: it says nothing, and is counted.
var layouts = map[[2]byte][]field{
	// 1.0 has a clock of 8 bytes, aligned, before all else.
	{1, 0}: {
		{accelerator.Temperature, 18, 1}, {accelerator.TemperatureMemory, 20, 1}, {accelerator.Utilization, 28, 0.01}, {accelerator.UtilizationMemory, 30, 0.01}, {accelerator.Power, 34, 1},
	},
	{1, 1}: discrete, {1, 2}: discrete, {1, 3}: discrete,
	{1, 4}: with(module, field{accelerator.PCIeWidth, 48, 1}), {1, 5}: with(module, field{accelerator.PCIeWidth, 112, 1}), {1, 6}: with(module, field{accelerator.PCIeWidth, 136, 1}),
	{1, 7}: module, {1, 8}: module,
	{2, 0}: {{accelerator.Temperature, 16, 0.01}}, {2, 1}: apu, {2, 2}: apu, {2, 3}: apu, {2, 4}: apu,
	{3, 0}: apu,
}

// parseMetrics reads a gpu_metrics table. Its header tells its length (u16), format and content (u8 each); the file may
// be longer. All ones means that the hardware can't say. wrong says why nothing of a table can be relied upon: it is torn, or of
// a version that isn't known; "" = nothing is wrong.
func parseMetrics(b []byte) (m map[string]float64, wrong string) {
	m = map[string]float64{}
	if len(b) < 4 {
		return m, "shorter than its header"
	}
	size := int(binary.LittleEndian.Uint16(b))
	if size > len(b) || size < 4 {
		return m, fmt.Sprintf("%d bytes of the %d that its header tells", len(b), size)
	}
	layout, known := layouts[[2]byte{b[2], b[3]}]
	if !known {
		return m, fmt.Sprintf("version %d.%d is not known", b[2], b[3])
	}
	for _, f := range layout {
		if f.at+2 > size {
			continue
		}
		if v := binary.LittleEndian.Uint16(b[f.at:]); v != 0xffff {
			m[f.metric] = float64(v) * f.scale
		}
	}
	return m, ""
}
