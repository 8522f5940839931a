package amd

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/shared"
	"gpupool/worker/agent/accelerator"
	"gpupool/worker/agent/accelerator/sysfs/sysfstest"
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
			accelerator.ClockCore: 2011e6, accelerator.PCIeWidth: 16, accelerator.Utilization: 0.02,
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

func TestAnAcceleratorWithRAS(t *testing.T) {
	t.Parallel()
	const d = "class/drm/card12/device/" // the 12th card counts like the first
	dev := only(t, sysfstest.Tree(t, map[string]string{
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

// v13 is a gpu_metrics table of version 1.3, as case 13 of the cases on health quotes its beginning.
func v13(size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = 0xff
	}
	copy(b, []byte{0x78, 0, 1, 3, 0x18, 0, 0x1f, 0, 0x30, 0, 0x22, 0, 0x20, 0, 0x22, 0, 0x18, 0, 0, 0, 0, 0, 0x20, 0})
	return b
}

// table is a gpu_metrics table of a version in which all is not known but pairs of an offset and a number of two bytes.
func table(size int, format, content byte, pairs ...uint16) []byte {
	b := bytes.Repeat([]byte{0xff}, size)
	binary.LittleEndian.PutUint16(b, uint16(size))
	b[2], b[3] = format, content
	for i := 0; i < len(pairs); i += 2 {
		binary.LittleEndian.PutUint16(b[pairs[i]:], pairs[i+1])
	}
	return b
}

// Case 13 of the cases on health: each table is read by its own layout and length, or not at all.
func TestTablesAreReadByTheirOwnVersion(t *testing.T) {
	t.Parallel()
	quoted := map[string]float64{accelerator.Temperature: 31, accelerator.TemperatureMemory: 48, accelerator.Utilization: 0.24, accelerator.UtilizationMemory: 0, accelerator.Power: 32}
	module := map[string]float64{accelerator.Temperature: 61, accelerator.TemperatureMemory: 70, accelerator.Utilization: 0.97, accelerator.UtilizationMemory: 0.33, accelerator.Power: 290}
	wide, heat := maps.Clone(module), map[string]float64{accelerator.Temperature: 61}
	wide[accelerator.PCIeWidth] = 16
	head := func(size int, header ...byte) []byte { return append(header, v13(size)[4:]...) }
	for name, c := range map[string]struct {
		b    []byte
		want map[string]float64
		ok   bool
	}{
		"1.3":                         {v13(0x78), quoted, true},
		"1.3 in a file of 4096 bytes": {v13(4096), quoted, true}, // the clock at 54 is all ones: not known
		"1.3, cut at 60 bytes":        {v13(60), nil, false},
		"3.0, of which only the heat is the same on each chip": {head(264, 0x08, 0x01, 3, 0), map[string]float64{accelerator.Temperature: 0.24}, true},
		"1.0, behind a clock":                 {table(96, 1, 0, 18, 61, 20, 70, 28, 97, 30, 33, 34, 290), module, true},
		"1.1":                                 {table(96, 1, 1, 6, 61, 8, 70, 16, 97, 18, 33, 22, 290), module, true},
		"1.2":                                 {table(104, 1, 2, 6, 61, 8, 70, 16, 97, 18, 33, 22, 290, 74, 16), wide, true},
		"1.4, with MI300's numbers":           {table(272, 1, 4, 4, 61, 6, 70, 10, 290, 12, 97, 14, 33, 48, 16), wide, true},
		"1.5":                                 {table(344, 1, 5, 4, 61, 6, 70, 10, 290, 12, 97, 14, 33, 112, 16), wide, true},
		"1.6":                                 {table(368, 1, 6, 4, 61, 6, 70, 10, 290, 12, 97, 14, 33, 136, 16), wide, true},
		"1.7":                                 {table(1100, 1, 7, 4, 61, 6, 70, 10, 290, 12, 97, 14, 33), module, true},
		"1.8":                                 {table(1100, 1, 8, 4, 61, 6, 70, 10, 290, 12, 97, 14, 33), module, true},
		"1.9, which is another kind of table": {table(1100, 1, 9, 4, 61, 6, 70), nil, false},
		"2.0, behind a clock":                 {table(120, 2, 0, 16, 6100), heat, true},
		"2.1":                                 {table(120, 2, 1, 4, 6100, 40, 30000), heat, true},
		"2.4":                                 {table(160, 2, 4, 4, 6100, 28, 9700), heat, true},
		"4.0, which there is not":             {table(160, 4, 0, 4, 6100), nil, false},
		"a length of nothing":                 {head(0x78, 0, 0, 1, 3), nil, false},
		"nothing":                             {nil, nil, false},
	} {
		got, wrong := parseMetrics(c.b)
		if ok := wrong == ""; ok != c.ok || len(got) != len(c.want) {
			t.Errorf("%s: %v, %q", name, got, wrong)
		}
		for k, v := range c.want {
			if g, known := got[k]; !known || math.Abs(g-v) > 1e-9 {
				t.Errorf("%s: %s is %v (known: %v), want %v", name, k, g, known, v)
			}
		}
	}
}

func TestATornTableIsCountedAndTheDeviceStillRead(t *testing.T) {
	t.Parallel()
	before := accelerator.UnreadableCounts()["amd"]
	const d = "class/drm/card0/device/"
	dev := only(t, sysfstest.Tree(t, map[string]string{d + "uevent": "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:03:00.0\n", d + "gpu_metrics": string(v13(60)), d + "mem_info_vram_used": "7\n"}))
	if dev.Error != "" || len(dev.Samples) != 1 || accelerator.UnreadableCounts()["amd"] <= before {
		t.Errorf("%+v, counted %v", dev, accelerator.UnreadableCounts())
	}
}

// Case 14 of the cases on health: sixteen cards as node_exporter's fixtures show one, with render nodes and connectors among them.
func TestAllOfSixteenCardsAreFoundAndNoneIsTwice(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for i := range 16 {
		d := fmt.Sprintf("class/drm/card%d/device/", i)
		for name, text := range map[string]string{"uevent": fmt.Sprintf("DRIVER=amdgpu\nPCI_ID=1002:687F\nPCI_SLOT_NAME=0000:%02x:00.0\n", i+1), "gpu_busy_percent": "4\n", "mem_info_vram_total": "8573157376\n",
			"mem_info_vram_used": "1490378752\n", "pcie_replay_count": "0\n", "serial_number": "\n", "product_name": "\n", "unique_id": "\n",
			"aer_dev_fatal": "Undefined 0\nDLP 0\nTOTAL_ERR_FATAL 2\n", "aer_dev_correctable": "RxErr 0\nTOTAL_ERR_COR many\n"} {
			files[d+name] = text
		}
		files[fmt.Sprintf("class/drm/card%d-DP-1/status", i)] = "connected\n"
		files[fmt.Sprintf("class/drm/renderD%d/device/uevent", 128+i)] = "DRIVER=amdgpu\n"
	}
	root := sysfstest.Tree(t, files)
	// It never ends for one that reads it.
	if err := syscall.Mkfifo(filepath.Join(root, "class/drm/card3/device/pcie_bw"), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := New(root, "", zero).Read(t.Context())
	if err != nil || len(list) != 16 {
		t.Fatalf("%d cards, %v", len(list), err)
	}
	seen := map[string]bool{}
	for i, d := range list {
		id := schema.IdentityOf(d.Vendor, d.Serial, d.UUID, d.PCI, "srv")
		if seen[id] || d.Serial != "" || d.UUID != "" || d.PCI != fmt.Sprintf("0000:%02x:00.0", i+1) {
			t.Errorf("card %d is %s: %+v", i, id, d)
		}
		seen[id] = true
		for m, want := range map[string]float64{accelerator.Utilization: 0.04, accelerator.MemoryUsed: 1490378752, accelerator.PCIeReplays: 0, accelerator.PCIeFatal: 2} {
			if got, ok := d.Samples[m]; !ok || got != want {
				t.Errorf("card %d: %s is %v (known: %v), want %v", i, m, got, ok, want)
			}
		}
		if v, ok := d.Samples[accelerator.PCIeCorrected]; ok {
			t.Errorf("card %d: a count that is no number is %v", i, v)
		}
	}
}

func FuzzMetrics(f *testing.F) {
	f.Add([]byte{120, 0, 1, 3, 24, 0, 31, 0})
	f.Add([]byte{4, 0, 2, 1})
	f.Add(v13(0x78))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, wrong := parseMetrics(b)
		if wrong != "" && len(m) > 0 {
			t.Errorf("%s, and it says %v", wrong, m)
		}
		for k, v := range m {
			if math.IsNaN(v) || v < 0 {
				t.Errorf("%s is %v", k, v)
			}
		}
	})
}
