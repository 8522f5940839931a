package amd

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/shared"
	"gpupool/worker/agent/accelerator"
)

// captured makes a /sys of captured devices: class/drm holds them.
func captured(t *testing.T, archive, folder string) string {
	t.Helper()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "class"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(shared.Unpack(t, "data", "sysfs", archive), folder), filepath.Join(root, "class", "drm")); err != nil {
		t.Fatal(err)
	}
	return root
}

func only(t *testing.T, root string) agentproto.Device {
	t.Helper()
	list, err := New(root, "", zero).Read(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("%d devices, %v", len(list), err)
	}
	return list[0]
}

func TestCapturedDevicesSayWhatTheirFilesSay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		archive, folder, pci, model string
		samples                     map[string]float64
		absent                      []string
	}{
		"a card with gpu_metrics 1.3": {"amd_rx7800xt.tar.xz", "rx7800xt", "0000:03:00.0", "amd-747e", map[string]float64{
			accelerator.Temperature: 31, accelerator.TemperatureLimit: 110, accelerator.TemperatureMemory: 48, accelerator.Power: 32, accelerator.PowerLimit: 236,
			accelerator.ClockCore: 2011e6, accelerator.PCIeWidth: 16,
		}, []string{accelerator.MemoryUsed, accelerator.PCIeReplays, accelerator.ECCUncorrected}},
		"a processor with gpu_metrics 2.1": {"amd_phoenix.tar.xz", "phoenix", "0000:64:00.0", "amd-15bf-1gb", map[string]float64{
			accelerator.Temperature: 25,
		}, []string{accelerator.ECCUncorrected, accelerator.TemperatureLimit}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := only(t, captured(t, c.archive, c.folder))
			if d.Vendor != schema.VendorAMD || d.PCI != c.pci || d.Error != "" {
				t.Errorf("the device is %+v", d)
			}
			if d.Model != c.model && name != "a processor with gpu_metrics 2.1" {
				t.Errorf("its model is %q", d.Model)
			}
			for m, want := range c.samples {
				if got, ok := d.Samples[m]; !ok || math.Abs(got-want) > 1e-6*want {
					t.Errorf("%s is %v (known: %v), want %v", m, got, ok, want)
				}
			}
			for _, m := range c.absent {
				if v, ok := d.Samples[m]; ok {
					t.Errorf("%s is %v; it is not known", m, v)
				}
			}
			if !slices.Contains(d.NotApplicable, accelerator.ECCUncorrected) {
				t.Error("it has no RAS, and doesn't say so")
			}
		})
	}
}

// write makes a /sys of small files.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestAnAcceleratorWithRAS(t *testing.T) {
	t.Parallel()
	const d = "class/drm/card12/device/" // the 12th card counts like the first
	dev := only(t, write(t, map[string]string{
		d + "uevent": "DRIVER=amdgpu\nPCI_ID=1002:74A1\nPCI_SLOT_NAME=0000:0C:00.0\n", d + "mem_info_vram_total": "206141652992\n",
		d + "serial_number": "692401000123\n", d + "unique_id": "f4a3b2c1d0e9f8a7\n", d + "gpu_busy_percent": "97\n",
		d + "ras/umc_err_count": "ue: 2\nce: 7\n", d + "ras/aca_gfx": "ue: 1\nce: 0\nde: 4\n", d + "ras/xgmi_wafl_err_count": "", d + "ras/features": "feature mask: 0x3fff\n",
		d + "ras/gpu_vram_bad_pages": "0x00000001 : 0x00001000 : R \n0x00000002 : 0x00001000 : P \n",
		d + "current_link_speed":     "32.0 GT/s PCIe\n", d + "max_link_speed": "32.0 GT/s PCIe\n", d + "current_link_width": "16\n", d + "max_link_width": "16\n",
		d + "hwmon/hwmon3/temp2_label": "junction\n", d + "hwmon/hwmon3/temp2_input": "71000\n", d + "hwmon/hwmon3/temp2_crit": "100000\n",
		"class/drm/card12-DP-1/device/uevent": "DRIVER=amdgpu\n", "class/drm/card0/device/uevent": "DRIVER=ast\n", "class/drm/renderD128/device/uevent": "DRIVER=amdgpu\n",
	}))
	if dev.Model != "amd-mi300x-192gb" || dev.Serial != "692401000123" || dev.PCI != "0000:0c:00.0" || dev.Index != 0 {
		t.Errorf("the device is %+v", dev)
	}
	for m, want := range map[string]float64{accelerator.ECCUncorrected: 3, accelerator.ECCCorrected: 7, accelerator.RemappedRows: 1, accelerator.Utilization: 0.97,
		accelerator.PCIeGen: 5, accelerator.PCIeWidthMax: 16, accelerator.Temperature: 71, accelerator.TemperatureLimit: 100} {
		if got, ok := dev.Samples[m]; !ok || got != want {
			t.Errorf("%s is %v (known: %v), want %v", m, got, ok, want)
		}
	}
}

func TestAServerWithoutTheDriverSaysSo(t *testing.T) {
	t.Parallel()
	r := New(t.TempDir(), "", zero)
	if _, err := r.Read(context.Background()); !errors.Is(err, accelerator.ErrNoDriver) {
		t.Errorf("Read: %v", err)
	}
	if _, err := r.Driver(context.Background()); !errors.Is(err, accelerator.ErrNoDriver) {
		t.Errorf("Driver: %v", err)
	}
}

func FuzzMetrics(f *testing.F) {
	f.Add([]byte{120, 0, 1, 3, 24, 0, 31, 0})
	f.Add([]byte{4, 0, 2, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		for k, v := range parseMetrics(b) {
			if math.IsNaN(v) || v < 0 {
				t.Errorf("%s is %v", k, v)
			}
		}
	})
}
