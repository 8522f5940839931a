package nvidia

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"gpupool/schema/shared"
)

func TestModelNames(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for name, c := range map[string]struct {
		memory int64
		want   string
	}{
		"NVIDIA H100 80GB HBM3":       {81559 * mib, "nvidia-h100-80gb"},
		"NVIDIA H100 PCIe":            {81559 * mib, "nvidia-h100-pcie-80gb"},
		"NVIDIA H100 NVL":             {95830 * mib, "nvidia-h100-nvl-94gb"},
		"NVIDIA H200":                 {143771 * mib, "nvidia-h200-141gb"},
		"NVIDIA A100-SXM4-40GB":       {40960 * mib, "nvidia-a100-40gb"},
		"NVIDIA A100 80GB PCIe":       {81920 * mib, "nvidia-a100-pcie-80gb"},
		"Tesla V100-SXM2-32GB":        {32768 * mib, "nvidia-v100-32gb"},
		"NVIDIA L40S":                 {46068 * mib, "nvidia-l40s-48gb"},
		"NVIDIA GeForce RTX 4090":     {24564 * mib, "nvidia-geforce-rtx-4090-24gb"},
		"a name that says no size":    {0, "nvidia-a-name-that-says-no-size"},
		"NVIDIA B200 whatever is new": {0, "nvidia-b200-whatever-is-new"},
	} {
		if got := ModelName(name, c.memory); got != c.want {
			t.Errorf("%s is %q, want %q", name, got, c.want)
		}
	}
}

func TestTheNameOfARealDevice(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(shared.Path(t, "data", "kmsg", "nvidia-smi-a100-mig.xml"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`<product_name>([^<]+)</product_name>`).FindSubmatch(b)
	if m == nil {
		t.Fatal("the dump names no product")
	}
	if got := ModelName(string(m[1]), 0); got != "nvidia-a100-80gb" && got != "nvidia-a100-40gb" {
		t.Errorf("%s is %q", m[1], got)
	}
}

func FuzzModelName(f *testing.F) {
	f.Add("NVIDIA H100 80GB HBM3", int64(80<<30))
	f.Add("99999999999999999999GB", int64(-1))
	f.Fuzz(func(t *testing.T, name string, memory int64) {
		if got := ModelName(name, memory); !strings.HasPrefix(got, "nvidia-") {
			t.Errorf("%q is called %q", name, got)
		}
	})
}
