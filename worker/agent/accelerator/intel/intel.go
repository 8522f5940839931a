// Package intel reads Intel's accelerators: GPUs by the sysfs and hwmon of i915 and xe, Gaudi by that of habanalabs and by hl-smi.
package intel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
	"gpupool/worker/agent/accelerator/sysfs"
)

// Reader is Intel's accelerator.Reader. mu guards what follows it.
type Reader struct {
	root string
	tool string // hl-smi, or a path
	now  func() time.Time

	mu    sync.Mutex
	gauge map[string]joules // by PCI address
	smi   map[string]smiRow // what hl-smi said last, by PCI address
	smiAt time.Time
	none  bool // hl-smi is not installed
}

// joules is an energy counter's last reading: the drivers tell energy, and no power.
type joules struct {
	v  float64
	at time.Time
}

// New reads under root, which stands for /sys; "" is /sys.
func New(root string) *Reader {
	if root == "" {
		root = "/sys"
	}
	return &Reader{root: root, tool: "hl-smi", now: time.Now, gauge: map[string]joules{}, smi: map[string]smiRow{}}
}

// Vendor implements accelerator.Reader.
func (r *Reader) Vendor() schema.Vendor { return schema.VendorIntel }

// drivers are the kernel's modules, the first that is loaded names the version.
var drivers = []string{"habanalabs", "xe", "i915"}

// Driver implements accelerator.Reader: an out-of-tree driver has a version, the kernel's own has the kernel's.
func (r *Reader) Driver(context.Context) (string, error) {
	for _, name := range drivers {
		if _, err := os.Stat(filepath.Join(r.root, "module", name)); err != nil {
			continue
		}
		if v, ok := sysfs.Text(r.root, "module", name, "version"); ok && v != "" {
			return name + " " + v, nil
		}
		v, _ := sysfs.Text("/proc/sys/kernel/osrelease")
		return name + " in-kernel " + v, nil
	}
	return "", accelerator.ErrNoDriver
}

// Watch implements accelerator.Reader: the drivers' own words in the kernel's log are read with those of PCIe (package kmsg).
func (r *Reader) Watch(context.Context, func(accelerator.Sign)) error { return nil }

// Read implements accelerator.Reader.
func (r *Reader) Read(ctx context.Context) ([]agentproto.Device, error) {
	list, gpuErr := r.gpus(ctx)
	cards, gaudiErr := r.gaudis(ctx)
	switch list = append(list, cards...); {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case gpuErr != nil && gaudiErr != nil:
		return nil, errors.Join(gpuErr, gaudiErr)
	}
	if list == nil {
		list = []agentproto.Device{}
	}
	return list, nil
}

// power derives a device's power from its energy counter, in joules.
func (r *Reader) power(d *agentproto.Device, energy float64) {
	d.Samples[accelerator.Energy] = energy
	now := r.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	was, known := r.gauge[d.PCI]
	r.gauge[d.PCI] = joules{energy, now}
	if s := now.Sub(was.at).Seconds(); known && s > 0 && energy >= was.v {
		d.Samples[accelerator.Power] = (energy - was.v) / s
	}
}
