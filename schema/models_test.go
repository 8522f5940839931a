package schema_test

import (
	"strings"
	"testing"

	"gpupool/schema"
)

func TestAMistypedModelIsRefusedWithTheNearest(t *testing.T) {
	t.Parallel()
	for model, want := range map[string]string{
		"nvidia-h100-8gb": "nvidia-h100-80gb", "h100": "nvidia-h100-80gb", "nvidia-h100": "nvidia-h100-80gb", "amd-mi300x": "amd-mi300x-192gb",
		"nvidia-h200-141g": "nvidia-h200-141gb", "nvidia_h100_80gb": "nvidia-h100-80gb", "mi355x": "amd-mi355x-288gb", "acme-x2-9gb": "acme-x1-9gb",
	} {
		err := schema.CheckModel("model", model, []string{"acme-x1-9gb"})
		if !schema.Is(err, schema.CodeInvalid) || !strings.Contains(err.Error(), "did you mean") {
			t.Fatalf("%s: %v", model, err)
		}
		if _, names, _ := strings.Cut(err.Error(), "did you mean "); !strings.Contains(strings.SplitN(names, "?", 2)[0], want) {
			t.Errorf("%s: %v does not name %s", model, err, want)
		}
	}
	for _, model := range []string{"nvidia-h100-80gb", "acme-x1-9gb"} {
		if err := schema.CheckModel("model", model, []string{"acme-x1-9gb"}); err != nil {
			t.Errorf("%s: %v", model, err)
		}
	}
}

func TestEveryKnownModelHasAVendorAndAGeneration(t *testing.T) {
	t.Parallel()
	for _, m := range schema.Models {
		if v := schema.ModelVendor(m); v != "nvidia" && v != "amd" {
			t.Errorf("%s: vendor %q", m, v)
		}
		if schema.ModelGeneration(m) == "unknown" {
			t.Errorf("%s: no generation", m)
		}
	}
	for m, want := range map[string]string{"nvidia-h200-nvl-141gb": "hopper", "nvidia-l40-48gb": "ada-lovelace", "nvidia-a10-24gb": "ampere", "amd-mi308x-192gb": "cdna3", "amd-mi355x-288gb": "cdna4", "acme-x1-9gb": "unknown"} {
		if got := schema.ModelGeneration(m); got != want {
			t.Errorf("%s: generation %q, want %q", m, got, want)
		}
	}
}
