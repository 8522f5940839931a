package accelerator

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpupool/schema"
	"gpupool/schema/agentproto"
)

func TestDeviceNodes(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for path, content := range map[string]string{
		"dev/nvidia0": "", "dev/nvidia3": "", "dev/nvidiactl": "", "dev/nvidia-uvm": "",
		"proc/driver/nvidia/gpus/0000:1b:00.0/information": "Model: \t\t NVIDIA H100\nIRQ:   \t\t 57\nDevice Minor: \t 3\nGPU Excluded:\t No\n",
		"dev/kfd": "", "dev/dri/renderD129": "", "dev/dri/card1": "", "dev/dri/renderD128": "",
		"sys/bus/pci/devices/0000:0c:00.0/drm/card1/dev": "", "sys/bus/pci/devices/0000:0c:00.0/drm/renderD129/dev": "", "sys/bus/pci/devices/0000:0c:00.0/drm/controlD65/dev": "",
		"dev/accel/accel2": "", "dev/accel/accel_controlD2": "", "sys/bus/pci/devices/0000:33:00.0/accel/accel2/dev": "", "sys/bus/pci/devices/0000:33:00.0/accel/accel_controlD2/dev": "",
		"dev/davinci5": "", "dev/davinci_manager": "", "dev/hisi_hdc": "",
		"dev/infiniband/uverbs0": "", "dev/infiniband/uverbs1": "", "dev/infiniband/rdma_cm": "", "dev/infiniband/umad0": "",
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		device agentproto.Device
		want   []string
		err    string
	}{
		"NVIDIA, by its minor number and not its index": {agentproto.Device{Vendor: schema.VendorNVIDIA, PCI: "0000:1B:00.0", Index: 0}, []string{"/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm"}, ""},
		"AMD":                                  {agentproto.Device{Vendor: schema.VendorAMD, PCI: "0000:0c:00.0"}, []string{"/dev/dri/card1", "/dev/dri/renderD129", "/dev/kfd"}, ""},
		"Intel":                                {agentproto.Device{Vendor: schema.VendorIntel, Model: "intel-max-1550", PCI: "0000:0c:00.0"}, []string{"/dev/dri/card1", "/dev/dri/renderD129"}, ""},
		"Gaudi":                                {agentproto.Device{Vendor: schema.VendorIntel, Model: "intel-gaudi3-128gb", PCI: "0000:33:00.0"}, []string{"/dev/accel/accel2", "/dev/accel/accel_controlD2"}, ""},
		"Ascend":                               {agentproto.Device{Vendor: schema.VendorHuawei, Index: 5}, []string{"/dev/davinci5", "/dev/davinci_manager", "/dev/hisi_hdc"}, ""},
		"NVIDIA whose driver does not know it": {agentproto.Device{Vendor: schema.VendorNVIDIA, PCI: "0000:99:00.0", Serial: "S1"}, nil, "device S1 (nvidia, PCI 0000:99:00.0) has no device node"},
		"one of which nothing is known":        {agentproto.Device{Vendor: "acme", Serial: "S2"}, nil, `device of vendor "acme"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Nodes(root, c.device)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("the error is %v, not %q", err, c.err)
			}
		})
	}
	if diff := cmp.Diff([]string{"/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1", "/dev/infiniband/rdma_cm"}, Fabric(root)); diff != "" {
		t.Error(diff)
	}
}
