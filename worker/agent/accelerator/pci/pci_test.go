package pci_test

import (
	"os"
	"path/filepath"
	"testing"

	"gpupool/schema"
	"gpupool/worker/agent/accelerator/pci"
	"gpupool/worker/agent/accelerator/sysfs/sysfstest"
)

func TestWhatComputesIsListedByItsIDs(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for addr, f := range map[string][3]string{
		"0000:1b:00.0": {"0x10de", "0x2330", "0x030200"}, "0000:2b:00.0": {"0x1002", "0x74a1", "0x120000"}, "0000:3b:00.0": {"0x1da3", "0x1020", "0x120000"},
		"0000:03:00.0": {"0x1a03", "0x2000", "0x030000"}, // the BMC's own VGA
		"0000:00:02.0": {"0x8086", "0x46a6", "0x030000"}, // a processor's graphics
		"0000:4b:00.0": {"0x10de", "0x22a3", "0x068000"}, // an NVSwitch
	} {
		dir := filepath.Join(root, "bus/pci/devices", addr)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for i, n := range []string{"vendor", "device", "class"} {
			if err := os.WriteFile(filepath.Join(dir, n), []byte(f[i]+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	list, err := pci.New(root).Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]schema.Vendor{}
	for _, d := range list {
		got[d.PCI+" "+d.Model] = d.Vendor
		if d.Error == "" {
			t.Errorf("%s is listed as if it were read", d.PCI)
		}
	}
	if len(got) != 3 || got["0000:1b:00.0 pci-10de-2330"] != schema.VendorNVIDIA || got["0000:2b:00.0 pci-1002-74a1"] != schema.VendorAMD || got["0000:3b:00.0 pci-1da3-1020"] != schema.VendorIntel {
		t.Errorf("listed are %v", got)
	}
}

func FuzzDevice(f *testing.F) {
	f.Add("0x10de", "0x030200", "32.0 GT/s PCIe", "16", "TOTAL_ERR_COR 4")
	f.Add("0x1002", "0x120000", "Unknown", "-1", "TOTAL_ERR_COR NaN")
	f.Fuzz(func(t *testing.T, vendor, class, speed, width, errors string) {
		const d = "bus/pci/devices/0000:1b:00.0/"
		list, err := pci.New(sysfstest.Tree(t, map[string]string{d + "vendor": vendor, d + "class": class, d + "device": "0x2330", d + "current_link_speed": speed, d + "current_link_width": width,
			d + "max_link_speed": speed, d + "aer_dev_correctable": errors})).Read(t.Context())
		if err != nil || len(list) > 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		for _, dev := range list {
			if dev.Error == "" {
				t.Errorf("a device that no driver speaks for is well: %+v", dev)
			}
			for k, v := range dev.Samples {
				if v < 0 || v != v {
					t.Errorf("%s is %v", k, v)
				}
			}
		}
	})
}
