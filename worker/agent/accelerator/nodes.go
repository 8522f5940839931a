package accelerator

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gpupool/schema/agentproto"
)

// Nodes are the device nodes through which a program uses a device, as paths of the server; root is "/", or where a test has
// a server's files. Some belong to the device, some to its driver: those are each user's. A node that the driver has not made
// is left out; a device without one of its own is an error.
//
// Sources: NVIDIA driver README "Device nodes" and /proc/driver/nvidia; amdgpu, i915 and xe: sysfs drm; habanalabs: sysfs accel;
// Ascend: CANN "mapping devices into a container".
func Nodes(root string, d agentproto.Device) ([]string, error) {
	n := nodes{root: root}
	bdf := strings.ToLower(d.PCI)
	switch familyOf(d) {
	case "nvidia":
		n.own("/dev/nvidia" + n.minor(bdf))
		n.shared("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
	case "amd":
		n.own(n.class(bdf, "drm", "/dev/dri", "renderD", "card")...)
		n.shared("/dev/kfd")
	case "intel":
		n.own(n.class(bdf, "drm", "/dev/dri", "renderD", "card")...)
	case "gaudi":
		n.own(n.class(bdf, "accel", "/dev/accel", "accel")...)
	case "huawei":
		n.own(fmt.Sprintf("/dev/davinci%d", d.Index))
		n.shared("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
	default:
		return nil, fmt.Errorf("device %s: it is not known by which nodes a program uses a device of vendor %q", Identity(d), d.Vendor)
	}
	if len(n.mine) == 0 {
		return nil, fmt.Errorf("device %s (%s, PCI %s) has no device node: is its driver loaded?", Identity(d), d.Vendor, d.PCI)
	}
	return append(n.mine, n.others...), nil
}

// Fabric are the nodes through which programs of several servers reach each other: RDMA devices and NVIDIA's IMEX channels.
func Fabric(root string) []string {
	n := nodes{root: root}
	for _, pattern := range []string{"/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm", "/dev/nvidia-caps-imex-channels/channel*"} {
		found, _ := filepath.Glob(filepath.Join(root, pattern)) // the patterns are right
		for _, path := range found {
			rel, err := filepath.Rel(root, path)
			if err == nil {
				n.shared("/" + rel)
			}
		}
	}
	return n.others
}

// Libraries are the files of NVIDIA's driver that a program in a container image finds on the server, since they must be of the
// kernel module's own version (NVIDIA driver README, "Installed components").
func Libraries(root string) []string {
	var out []string
	seen := map[string]bool{}
	for _, dir := range []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"} {
		for _, name := range []string{"libcuda.so*", "libcudadebugger.so*", "libnvidia-ml.so*", "libnvidia-ptxjitcompiler.so*", "libnvidia-nvvm*.so*", "libnvidia-opencl.so*", "libnvidia-cfg.so*", "libnvidia-gpucomp.so*", "libnvidia-encode.so*", "libnvcuvid.so*"} {
			found, _ := filepath.Glob(filepath.Join(root, dir, name)) // the patterns are right
			for _, path := range found {
				if base := filepath.Base(path); !seen[base] {
					seen[base] = true
					out = append(out, path)
				}
			}
		}
	}
	return out
}

type nodes struct {
	root         string
	mine, others []string
}

func (n *nodes) there(path string) bool {
	_, err := os.Stat(filepath.Join(n.root, path))
	return err == nil
}

func (n *nodes) own(paths ...string) {
	for _, p := range paths {
		if n.there(p) {
			n.mine = append(n.mine, p)
		}
	}
}

func (n *nodes) shared(paths ...string) {
	for _, p := range paths {
		if n.there(p) {
			n.others = append(n.others, p)
		}
	}
}

// minor is the number in an NVIDIA device's node, which is not its index: "Device Minor: 3".
func (n *nodes) minor(bdf string) string {
	f, err := os.Open(filepath.Join(n.root, "/proc/driver/nvidia/gpus", bdf, "information"))
	if err != nil {
		return "-unknown"
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if name, value, ok := strings.Cut(sc.Text(), ":"); ok && strings.TrimSpace(name) == "Device Minor" {
			return strings.TrimSpace(value)
		}
	}
	return "-unknown"
}

// class lists the nodes that the kernel made for a PCI device in a class, by their names' beginnings.
func (n *nodes) class(bdf, class, dev string, prefixes ...string) (paths []string) {
	entries, err := os.ReadDir(filepath.Join(n.root, "/sys/bus/pci/devices", bdf, class))
	if err != nil {
		return nil
	}
	for _, e := range entries {
		name := strings.TrimPrefix(e.Name(), "accel!")
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			paths = append(paths, dev+"/"+name)
		}
	}
	return paths
}
