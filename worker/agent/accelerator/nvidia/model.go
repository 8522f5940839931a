// Package nvidia reads NVIDIA accelerators through NVML, the driver's own library. The library is found when the agent
// runs: one binary serves servers with and without it. Built without cgo the reader says so, and reads nothing.
package nvidia

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
)

var size = regexp.MustCompile(`^(\d+)GB$`)

// sizes are what a model is sold with, where its name doesn't say and its driver shows less (ECC, reserved memory).
var sizes = map[string]int{"h200": 141, "h200-nvl": 141, "l40s": 48, "l40": 48, "l4": 24, "a40": 48, "a10": 24, "gb200": 186, "b200": 180, "h100-nvl": 94, "h20": 96}

// ModelName is the platform's name of a device: "NVIDIA H100 80GB HBM3" is nvidia-h100-80gb, "NVIDIA A100-SXM4-40GB" is
// nvidia-a100-40gb, "NVIDIA H100 PCIe" with 80 GiB is nvidia-h100-pcie-80gb.
func ModelName(name string, memory int64) string {
	var words []string
	gb := 0
	for _, w := range strings.FieldsFunc(name, func(r rune) bool { return r == ' ' || r == '-' || r == '/' }) {
		if m := size.FindStringSubmatch(w); m != nil {
			if _, err := fmt.Sscan(m[1], &gb); err != nil {
				gb = 0
			}
			continue
		}
		w = strings.ToLower(w)
		// The socket and the kind of memory go with the model; PCIe and NVL are other models.
		if slices.Contains([]string{"nvidia", "tesla", "hbm2", "hbm2e", "hbm3", "hbm3e"}, w) || strings.HasPrefix(w, "sxm") {
			continue
		}
		words = append(words, w)
	}
	model := strings.Join(words, "-")
	if gb == 0 {
		gb = sizes[model]
	}
	if gb == 0 {
		gb = int(math.Ceil(float64(memory) / (1 << 30)))
	}
	if gb == 0 {
		return "nvidia-" + model
	}
	return fmt.Sprintf("nvidia-%s-%dgb", model, gb)
}
