// Package accelerator is how the node agent sees the devices of a server: one Reader for each vendor, the metric
// names that all of them speak, and what makes a job see only the devices it was given.
//
// Invariant: a metric is a value, not applicable, or unknown. A reader puts in Samples only what it read just now,
// names in NotApplicable what the hardware cannot say, and leaves out what it asked and got no fresh answer to; it
// never writes 0 for either.
//
// Not here: what a value means for scheduling (activities/health), how a vendor is read (the packages below).
package accelerator

import (
	"context"
	"errors"

	"gpupool/schema"
	"gpupool/schema/agentproto"
)

var (
	// ErrNoDriver says that this server has no driver of the vendor: its devices, if any, are seen by PCI only.
	ErrNoDriver = errors.New("no driver of this vendor is loaded")
	// ErrNotBuilt says that this binary was built without the vendor's library.
	ErrNotBuilt = errors.New("this binary was built without support for the vendor")
)

// Reader reads the devices of one vendor. Its methods may be called at once from several goroutines.
type Reader interface {
	Vendor() schema.Vendor

	// Read lists the devices with what they say now. A device that is there and can't be read is listed with Error
	// set. No device is an empty list; ErrNoDriver where nothing can be said. It obeys ctx as far as the driver
	// lets it: the agent puts a deadline of its own around it.
	Read(ctx context.Context) ([]agentproto.Device, error)

	// Driver is the driver's version, read from the driver.
	Driver(ctx context.Context) (string, error)

	// Watch calls emit for each fault that the driver tells, until ctx ends. It returns early, with nil, where the
	// vendor has no events to wait for, and with an error where waiting failed: the agent calls it again later.
	Watch(ctx context.Context, emit func(Sign)) error
}

// Sign is a fault as a reader saw it; the agent makes an agentproto.Evidence of it.
type Sign struct {
	Device   string // serial, else UUID, else PCI address; empty = the server
	UUID     string // of the device, where the source told it beside the address
	Serial   string // the same
	Kind     string // xid, ras, ecc-uncorrectable, absent, thermal
	Code     string
	Part     string  // of the device or server, where there are several: a port, a fan
	Value    float64 // what was measured, in the kind's unit; 0 = nothing was
	Severity schema.Severity
	Text     string
	At       schema.Instant // 0 = now
	Clear    bool           // it is over: the same kind, code and part of this device are well again
	// Key is unique among this server's signs of one boot, and the same when the same sign is read again (a record's
	// number in the kernel log). Empty where the source has none: the agent numbers it, and a repeat is another sign.
	Key string
}

// Identity is how tasks and evidence name a device: its serial, else its UUID, else its PCI address.
func Identity(d agentproto.Device) string {
	switch {
	case d.Serial != "":
		return d.Serial
	case d.UUID != "":
		return d.UUID
	default:
		return d.PCI
	}
}

// Resolve names the device of a sign as the agent names devices: a kernel log knows them by their PCI address. One that no
// reader lists keeps the best name that its source told.
func (s Sign) Resolve(devices []agentproto.Device) Sign {
	for _, name := range []string{s.Serial, s.UUID, s.Device} {
		if d, ok := Find(devices, name); ok {
			s.Device = Identity(d)
			return s
		}
	}
	switch {
	case s.Serial != "":
		s.Device = s.Serial
	case s.UUID != "":
		s.Device = s.UUID
	}
	return s
}

// Find is the device that answers to id by any of its three names.
func Find(devices []agentproto.Device, id string) (agentproto.Device, bool) {
	for _, d := range devices {
		if id != "" && (d.Serial == id || d.UUID == id || d.PCI == id) {
			return d, true
		}
	}
	return agentproto.Device{}, false
}
