package intel

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
	"gpupool/worker/agent/accelerator/sysfs/sysfstest"
	"gpupool/worker/agent/standin"
)

// smi makes an hl-smi that prints a table, for those who ask as the reader does.
func smi(t testing.TB, r *Reader, table string) {
	t.Helper()
	r.tool = filepath.Join(t.TempDir(), "hl-smi")
	standin.Program(t, r.tool, "[ \"$1 $3 $4\" = '-Q -f csv,noheader,nounits' ] || exit 2\ncat <<'END'\n"+table+"\nEND\n")
}

func want(t *testing.T, d agentproto.Device, samples map[string]float64) {
	t.Helper()
	for m, w := range samples {
		if got, ok := d.Samples[m]; !ok || got < w-1e-9*w-1e-9 || got > w+1e-9*w+1e-9 {
			t.Errorf("%s of %s is %v (known: %v), want %v", m, d.PCI, got, ok, w)
		}
	}
}

func TestGPUsOfBothDriversAreRead(t *testing.T) {
	t.Parallel()
	const i915, xe = "class/drm/card1/", "class/drm/card10/"
	files := map[string]string{
		"class/drm/card0/device/uevent": "DRIVER=i915\nPCI_ID=8086:A780\nPCI_SLOT_NAME=0000:00:02.0\n", // the processor's own
		i915 + "device/uevent":          "DRIVER=i915\nPCI_ID=8086:0BD5\nPCI_SLOT_NAME=0000:3A:00.0\n", i915 + "lmem_total_bytes": "137438953472\n",
		i915 + "device/hwmon/hwmon4/energy1_input": "5000000\n", i915 + "device/hwmon/hwmon4/power1_max": "600000000\n",
		i915 + "gt/gt0/rps_act_freq_mhz": "1550\n", i915 + "gt/gt1/rps_act_freq_mhz": "900\n", i915 + "gt/gt0/throttle_reason_pl1": "1\n", i915 + "gt/gt0/throttle_reason_thermal": "0\n",
		i915 + "gt/gt0/error_counter/correctable_eu_grf": "7\n", i915 + "gt/gt1/error_counter/fatal_guc": "1\n", i915 + "gt/gt1/error_counter/fatal_tlb": "2\n", i915 + "gt/gt0/error_counter/driver_ggtt": "99\n",
		i915 + "device/current_link_speed": "32.0 GT/s PCIe\n", i915 + "device/max_link_speed": "32.0 GT/s PCIe\n", i915 + "device/current_link_width": "8\n", i915 + "device/max_link_width": "16\n",
		i915 + "device/aer_dev_correctable": "RxErr 4\nTOTAL_ERR_COR 4\n",
		xe + "device/uevent":                "DRIVER=xe\nPCI_ID=8086:E211\nPCI_SLOT_NAME=0000:4b:00.0\n", xe + "device/tile0/physical_vram_size_bytes": "25769803776\n",
		xe + "device/hwmon/hwmon7/temp2_label": "pkg\n", xe + "device/hwmon/hwmon7/temp2_input": "61000\n", xe + "device/hwmon/hwmon7/temp2_crit": "105000\n", xe + "device/hwmon/hwmon7/temp3_label": "vram\n", xe + "device/hwmon/hwmon7/temp3_input": "70000\n",
		xe + "device/tile0/gt0/freq0/act_freq": "2400\n", xe + "device/tile0/gt0/freq0/throttle/reason_thermal": "1\n",
		"class/drm/card2/device/uevent": "DRIVER=ast\n", "class/drm/renderD128/device/uevent": "DRIVER=i915\n", "class/drm/card1-DP-1/status": "",
	}
	r := New(sysfstest.Tree(t, files))
	at := time.Unix(1000, 0)
	r.now = func() time.Time { return at }
	list, err := r.Read(t.Context())
	if err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	if d := list[0]; d.Model != "intel-max-1550-128gb" || d.PCI != "0000:3a:00.0" || d.Error != "" || d.MemoryBytes != 128<<30 {
		t.Errorf("%+v", d)
	}
	if d := list[1]; d.Model != "intel-arc-pro-b60-24gb" || d.Index != 1 || !slices.Contains(d.NotApplicable, accelerator.ECCUncorrected) {
		t.Errorf("%+v", d)
	}
	want(t, list[0], map[string]float64{accelerator.PowerLimit: 600, accelerator.Energy: 5, accelerator.ClockCore: 1550e6, accelerator.Throttled: 0, accelerator.ECCCorrected: 7, accelerator.ECCUncorrected: 3,
		accelerator.PCIeGen: 5, accelerator.PCIeWidth: 8, accelerator.PCIeCorrected: 4})
	want(t, list[1], map[string]float64{accelerator.Temperature: 61, accelerator.TemperatureLimit: 105, accelerator.TemperatureMemory: 70, accelerator.ClockCore: 2400e6, accelerator.Throttled: 1})
	if _, ok := list[0].Samples[accelerator.Power]; ok {
		t.Error("power was made up from one reading of the energy")
	}
	// Ten seconds and 4,500 joules later.
	at = at.Add(10 * time.Second)
	if err := os.WriteFile(filepath.Join(r.root, i915+"device/hwmon/hwmon4/energy1_input"), []byte("4505000000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if list, err = r.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(t, list[0], map[string]float64{accelerator.Power: 450})
}

// gaudis are n devices of a driver in class accel.
func gaudis(n int, status string) map[string]string {
	files := map[string]string{}
	for i := range n {
		dir := fmt.Sprintf("class/accel/accel%d/device/", i)
		maps.Copy(files, map[string]string{dir + "device_type": "GAUDI2\n", dir + "pci_addr": fmt.Sprintf("0000:%02x:00.0\n", 0x19+i), dir + "status": status + "\n",
			dir + "clk_cur_freq_mhz": "1650\n", dir + "max_power": "600000\n", dir + "fuse_ver": "01P0-HL2080A0-14-T46G42\n"})
	}
	return files
}

const gaudiRow = "0000:%02x:00.0, HL-225, AM%08d, 01P0-HL2080A0-%d, 98304, 768, 42, 31, 95, 1, 12, N/A\n"

func TestGaudisAreReadByTheirFilesAndTool(t *testing.T) {
	t.Parallel()
	files := gaudis(12, "Operational")
	files["class/accel/accel_controlD0/x"] = ""
	files["class/accel/accel99/device/uevent"] = "DRIVER=intel_vpu\n" // an accelerator of another kind
	files["bus/pci/devices/0000:1a:00.0/hwmon/hwmon3/temp1_input"] = "55000\n"
	files["bus/pci/devices/0000:1a:00.0/hwmon/hwmon3/temp2_input"] = "67000\n"
	r := New(sysfstest.Tree(t, files))
	var table strings.Builder
	for i := range 12 {
		fmt.Fprintf(&table, gaudiRow, 0x19+i, i, i)
	}
	before := accelerator.UnreadableCounts()["gaudi"]
	smi(t, r, table.String()+"driver warning: something else\n")
	list, err := r.Read(t.Context())
	if err != nil || len(list) != 12 {
		t.Fatalf("%d devices, %v", len(list), err)
	}
	for i, d := range list {
		if d.Serial != fmt.Sprintf("AM%08d", i) || d.Index != i || d.Model != "intel-gaudi2-96gb" || d.Error != "" || !slices.Contains(d.NotApplicable, accelerator.ECCLifeUncorrect) {
			t.Errorf("device %d: %+v", i, d)
		}
		want(t, d, map[string]float64{accelerator.Utilization: 0.42, accelerator.Power: 95, accelerator.ECCUncorrected: 1, accelerator.ECCCorrected: 12, accelerator.MemoryUsed: 768 << 20,
			accelerator.ClockCore: 1650e6, accelerator.PowerLimit: 600, accelerator.VendorHealth: accelerator.VendorWell})
	}
	want(t, list[1], map[string]float64{accelerator.Temperature: 67})
	want(t, list[2], map[string]float64{accelerator.Temperature: 31})
	if accelerator.UnreadableCounts()["gaudi"] != before+1 {
		t.Error("a line that is no row was not counted")
	}
}

func TestAGaudiThatIsNotWell(t *testing.T) {
	t.Parallel()
	for status, c := range map[string]struct {
		health float64
		err    string
	}{"Malfunction": {accelerator.VendorFailed, ""}, "Needs Reset": {accelerator.VendorFailed, ""}, "In reset": {0, "In reset"}, "Something new": {0, "Something new"}} {
		r := New(sysfstest.Tree(t, gaudis(1, status)))
		r.tool = "/nonexistent/hl-smi"
		list, err := r.Read(t.Context())
		if err != nil || len(list) != 1 {
			t.Fatalf("%s: %+v, %v", status, list, err)
		}
		health, known := list[0].Samples[accelerator.VendorHealth]
		if known != (c.err == "") || health != c.health || !strings.Contains(list[0].Error, c.err) {
			t.Errorf("%s: %+v", status, list[0])
		}
	}
}

func TestAToolThatIsMissingOrBrokenMakesNothingUp(t *testing.T) {
	t.Parallel()
	r := New(sysfstest.Tree(t, gaudis(1, "Operational")))
	at := time.Unix(1000, 0)
	r.now = func() time.Time { return at }
	smi(t, r, fmt.Sprintf(gaudiRow, 0x19, 1, 1))
	if list, err := r.Read(t.Context()); err != nil || list[0].Samples[accelerator.ECCCorrected] != 12 {
		t.Fatalf("%+v, %v", list, err)
	}
	standin.Program(t, r.tool, "exit 1\n")
	at = at.Add(2 * smiEvery)
	list, err := r.Read(t.Context())
	if err != nil || list[0].Serial != "AM00000001" || list[0].MemoryBytes != 98304<<20 {
		t.Fatalf("who it is was forgotten: %+v, %v", list, err)
	}
	for _, m := range []string{accelerator.ECCCorrected, accelerator.Utilization, accelerator.MemoryUsed} {
		if v, ok := list[0].Samples[m]; ok {
			t.Errorf("%s is %v of an old table", m, v)
		}
	}
}

func TestAServerWithoutTheDrivers(t *testing.T) {
	t.Parallel()
	r := New(t.TempDir())
	if _, err := r.Read(t.Context()); !errors.Is(err, accelerator.ErrNoDriver) {
		t.Errorf("Read: %v", err)
	}
	if _, err := r.Driver(t.Context()); !errors.Is(err, accelerator.ErrNoDriver) {
		t.Errorf("Driver: %v", err)
	}
	r = New(sysfstest.Tree(t, map[string]string{"module/habanalabs/version": "1.18.0-abc\n"}))
	if v, err := r.Driver(t.Context()); err != nil || v != "habanalabs 1.18.0-abc" || r.Vendor() != schema.VendorIntel {
		t.Errorf("Driver: %q, %v", v, err)
	}
}

func FuzzSMI(f *testing.F) {
	f.Add(fmt.Sprintf(gaudiRow, 0x19, 1, 1))
	f.Add("0000:19:00.0,,,,,,,,,,,\nno table\n")
	f.Add("0000:19:00.0, x, N/A, N/A, 1e99, -1, NaN, Inf, 0x10, 1, 1, 1")
	f.Fuzz(func(t *testing.T, table string) {
		rows, _ := parseSMI(table)
		d := gaudi("/nonexistent", "/nonexistent", 0, rows)
		if d.Error == "" {
			t.Errorf("a device without files is well: %+v", d)
		}
		root := sysfstest.Tree(t, gaudis(1, "Operational"))
		for k, v := range gaudi(filepath.Join(root, "class/accel/accel0/device"), "/nonexistent", 0, rows).Samples {
			if v < 0 || v != v {
				t.Errorf("%s is %v", k, v)
			}
		}
	})
}

func FuzzGPU(f *testing.F) {
	f.Add("DRIVER=i915\nPCI_ID=8086:0BD5\nPCI_SLOT_NAME=0000:3A:00.0\n", "137438953472\n", "7\n")
	f.Add("DRIVER=xe\nPCI_ID=:\n", "-1", "NaN")
	f.Fuzz(func(t *testing.T, uevent, memory, number string) {
		const d = "class/drm/card1/"
		list, err := New(sysfstest.Tree(t, map[string]string{d + "device/uevent": uevent, d + "lmem_total_bytes": memory, d + "device/hwmon/hwmon4/energy1_input": number, d + "device/hwmon/hwmon4/temp1_input": number,
			d + "gt/gt0/rps_act_freq_mhz": number, d + "gt/gt0/error_counter/fatal_guc": number, d + "device/tile0/gt0/freq0/act_freq": number})).Read(t.Context())
		if err == nil && len(list) > 1 {
			t.Fatalf("%+v", list)
		}
		for _, dev := range list {
			for k, v := range dev.Samples {
				if v != v {
					t.Errorf("%s is %v", k, v)
				}
			}
		}
	})
}
