// Package infiniband counts what InfiniBand ports tell of their links: errors, and whether they are up. RoCE ports are left
// out: the kernel's network drivers tell of those (package kmsg).
package infiniband

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
	"gpupool/worker/agent/accelerator/sysfs"
)

// Reader is an accelerator.Reader of no device, and an accelerator.PartReader of a server's ports.
type Reader struct{ root string }

// New reads under root, which stands for /sys; "" is /sys.
func New(root string) *Reader {
	if root == "" {
		root = "/sys"
	}
	return &Reader{root}
}

// Vendor implements accelerator.Reader.
func (r *Reader) Vendor() schema.Vendor { return "infiniband" }

// Read implements accelerator.Reader: a port is no accelerator.
func (r *Reader) Read(context.Context) ([]agentproto.Device, error) {
	return []agentproto.Device{}, nil
}

// Driver implements accelerator.Reader.
func (r *Reader) Driver(context.Context) (string, error) { return "", accelerator.ErrNoDriver }

// Watch implements accelerator.Reader: the ports tell no events, they are counted.
func (r *Reader) Watch(context.Context, func(accelerator.Sign)) error { return nil }

// Parts implements accelerator.PartReader. A counter that can't be read, or isn't a number, is not known.
func (r *Reader) Parts(ctx context.Context) ([]accelerator.Part, error) {
	dirs, err := filepath.Glob(filepath.Join(r.root, "class/infiniband/*/ports/*"))
	if err != nil {
		return nil, err
	}
	var parts []accelerator.Part
	for _, dir := range dirs {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if layer, _ := sysfs.Text(dir, "link_layer"); layer != "" && layer != "InfiniBand" {
			continue
		}
		p := accelerator.Part{Kind: "ib", Name: filepath.Base(filepath.Dir(filepath.Dir(dir))) + "/" + filepath.Base(dir), Samples: map[string]float64{}, State: state(dir)}
		for _, name := range []string{accelerator.IBSymbolErrors, accelerator.IBLinkDowned, accelerator.IBIntegrity, accelerator.IBOverrun} {
			if v, ok := counter(filepath.Join(dir, "counters", name)); ok {
				p.Samples[name] = v
			}
		}
		if text, ok := sysfs.Text(dir, "rate"); ok {
			if v, ok := rate(text); ok {
				p.Samples[accelerator.IBRate] = v
			}
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// counter reads an unsigned 64-bit counter. "N/A (no PMA)" is what the kernel shows where it can't be had.
func counter(path string) (float64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return float64(n), err == nil
}

// rate reads "400 Gb/sec (4X NDR)".
func rate(text string) (bits float64, ok bool) {
	n, unit, _ := strings.Cut(text, " ")
	v, err := strconv.ParseFloat(n, 64)
	if err != nil || !(v > 0) || !strings.HasPrefix(unit, "Gb/sec") {
		return 0, false
	}
	return v * 1e9, true
}

// state reads "4: ACTIVE". A port that is being brought up, or that waits for a subnet manager, is neither.
func state(dir string) accelerator.PartState {
	s, ok := sysfs.Text(dir, "state")
	if !ok {
		return accelerator.PartUnknown
	}
	switch _, name, _ := strings.Cut(s, ": "); name {
	case "ACTIVE", "ACTIVE_DEFER":
		return accelerator.PartActive
	case "DOWN":
		return accelerator.PartDown
	}
	return accelerator.PartUnknown
}
