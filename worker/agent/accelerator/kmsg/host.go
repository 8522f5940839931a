package kmsg

import (
	"context"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
)

// Host is an accelerator.Reader of no device: it tells the faults of the server around them, by the kernel's log.
type Host struct {
	path string
	boot time.Time
}

// NewHost reads path, which is Path but in tests; boot is when the kernel's clock began.
func NewHost(path string, boot time.Time) *Host { return &Host{path, boot} }

// Vendor implements accelerator.Reader.
func (h *Host) Vendor() schema.Vendor { return "kernel" }

// Read implements accelerator.Reader: there is no device of the kernel's own.
func (h *Host) Read(context.Context) ([]agentproto.Device, error) { return []agentproto.Device{}, nil }

// Driver implements accelerator.Reader.
func (h *Host) Driver(context.Context) (string, error) { return "", accelerator.ErrNoDriver }

// hostKinds are the signs of no vendor's driver.
var hostKinds = map[string]bool{"pcie": true, "mce": true, "panic": true, "nic": true}

// Watch implements accelerator.Reader.
func (h *Host) Watch(ctx context.Context, emit func(accelerator.Sign)) error {
	return Watch(ctx, h.path, h.boot, func(s accelerator.Sign) bool { return hostKinds[s.Kind] }, emit)
}
