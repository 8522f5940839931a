package schema

import (
	"fmt"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
)

// Models are the accelerator models known before any of them is in the pool, by the names that the agents' readers give
// them: vendor, model, and memory in GB as it is sold.
var Models = []string{
	"nvidia-a10-24gb", "nvidia-a100-40gb", "nvidia-a100-80gb", "nvidia-a100-pcie-40gb", "nvidia-a100-pcie-80gb", "nvidia-a30-24gb", "nvidia-a40-48gb", "nvidia-a800-80gb",
	"nvidia-b200-180gb", "nvidia-gb200-186gb",
	"nvidia-h100-80gb", "nvidia-h100-nvl-94gb", "nvidia-h100-pcie-80gb", "nvidia-h20-96gb", "nvidia-h200-141gb", "nvidia-h200-nvl-141gb", "nvidia-h800-80gb",
	"nvidia-l4-24gb", "nvidia-l40-48gb", "nvidia-l40s-48gb", "nvidia-v100-16gb", "nvidia-v100-32gb",
	"amd-mi100-32gb", "amd-mi210-64gb", "amd-mi250x-64gb", "amd-mi300a-128gb", "amd-mi300x-192gb", "amd-mi308x-192gb", "amd-mi325x-256gb", "amd-mi350x-288gb", "amd-mi355x-288gb",
}

// generations are the makers' names of the architectures that a model's name begins with.
var generations = map[string][]string{
	"volta": {"nvidia-v100"}, "ampere": {"nvidia-a10", "nvidia-a100", "nvidia-a30", "nvidia-a40", "nvidia-a800"}, "ada-lovelace": {"nvidia-l4", "nvidia-l40", "nvidia-l40s"},
	"hopper": {"nvidia-h100", "nvidia-h20", "nvidia-h200", "nvidia-h800", "nvidia-gh200"}, "blackwell": {"nvidia-b200", "nvidia-b300", "nvidia-gb200", "nvidia-gb300"},
	"cdna": {"amd-mi100"}, "cdna2": {"amd-mi210", "amd-mi250", "amd-mi250x"}, "cdna3": {"amd-mi300a", "amd-mi300x", "amd-mi308x", "amd-mi325x"}, "cdna4": {"amd-mi350x", "amd-mi355x"},
}

// ModelVendor is who makes a model: what its name begins with.
func ModelVendor(model string) string {
	vendor, _, _ := strings.Cut(model, "-")
	return vendor
}

// ModelGeneration is the architecture of a model: hopper, cdna3. Of a model that is not known here it is "unknown".
func ModelGeneration(model string) string {
	for name, begins := range generations {
		for _, b := range begins {
			if model == b || strings.HasPrefix(model, b+"-") {
				return name
			}
		}
	}
	return "unknown"
}

// CheckModel refuses a model that is neither one of Models nor of known, which are those that the pool has: a quota or a
// spec for a mistyped model would bind nothing, and nobody would notice. The error names the nearest.
func CheckModel(field, model string, known []string) error {
	if slices.Contains(Models, model) || slices.Contains(known, model) {
		return nil
	}
	all := slices.Compact(slices.Sorted(slices.Values(slices.Concat(Models, known))))
	return &Error{Code: CodeInvalid, Field: field, Message: fmt.Sprintf("no accelerator model %q is known", model),
		Hint: "did you mean " + strings.Join(nearest(model, all), ", ") + "? A model that is really new is taken with allow_unknown_model"}
}

// nearest are the up to three names that differ least from name: those of which it is a part first.
func nearest(name string, all []string) []string {
	distance := func(s string) int {
		d := 4 * levenshtein.ComputeDistance(name, s)
		if name != "" && strings.Contains(s, name) { // "h100" is nearer to nvidia-h100-80gb than to nvidia-l4-24gb
			d -= 4*len(s) - 1
		}
		return d
	}
	out := slices.Clone(all)
	slices.SortStableFunc(out, func(a, b string) int { return distance(a) - distance(b) })
	return out[:min(3, len(out))]
}
