// Package pci lists accelerators by their PCI ids alone, so that a device is never invisible because its driver is
// missing or unknown. It is asked last: what another reader lists is not listed twice.
package pci

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
	"gpupool/worker/agent/accelerator/sysfs"
)

// Reader reads sysfs. It is an accelerator.Reader of schema.VendorOther; its devices carry their own vendor.
type Reader struct{ root string }

// New reads under root, which stands for /sys; "" is /sys.
func New(root string) *Reader {
	if root == "" {
		root = "/sys"
	}
	return &Reader{root}
}

// makers are those whose display and processing devices compute. A baseboard's VGA (ASPEED, Matrox) is not among them.
var makers = map[string]schema.Vendor{
	"0x10de": schema.VendorNVIDIA, "0x1002": schema.VendorAMD, "0x8086": schema.VendorIntel, "0x1da3": schema.VendorIntel, // Habana
	"0x19e5": schema.VendorHuawei,
}

// classes: VGA, 3D, other display, and processing accelerators (PCI Code and ID Assignment Specification 1.11).
var classes = []string{"0x0300", "0x0302", "0x0380", "0x1200"}

// Vendor implements accelerator.Reader.
func (r *Reader) Vendor() schema.Vendor { return schema.VendorOther }

// Driver implements accelerator.Reader: there is none.
func (r *Reader) Driver(context.Context) (string, error) { return "", accelerator.ErrNoDriver }

// Watch implements accelerator.Reader: PCI alone tells no events.
func (r *Reader) Watch(context.Context, func(accelerator.Sign)) error { return nil }

// Read implements accelerator.Reader.
func (r *Reader) Read(context.Context) ([]agentproto.Device, error) {
	dirs, err := filepath.Glob(filepath.Join(r.root, "bus/pci/devices/*"))
	if err != nil {
		return nil, err
	}
	list := []agentproto.Device{}
	for _, dir := range dirs {
		vendorID, _ := sysfs.Text(dir, "vendor")
		class, _ := sysfs.Text(dir, "class")
		vendor, ok := makers[vendorID]
		if !ok || !compute(class, vendor) {
			continue
		}
		id, _ := sysfs.Text(dir, "device")
		d := agentproto.Device{
			Vendor: vendor, PCI: filepath.Base(dir), Index: len(list), Samples: map[string]float64{},
			Model: fmt.Sprintf("pci-%s-%s", strings.TrimPrefix(vendorID, "0x"), strings.TrimPrefix(id, "0x")),
			Error: "no driver of its vendor answers: it is known by its PCI address alone",
		}
		sysfs.Link(&d, dir)
		list = append(list, d)
	}
	return list, nil
}

func compute(class string, v schema.Vendor) bool {
	for _, c := range classes {
		// A VGA controller of Intel's is the processor's own graphics.
		if strings.HasPrefix(class, c) && !(v == schema.VendorIntel && c == "0x0300") {
			return true
		}
	}
	return false
}
