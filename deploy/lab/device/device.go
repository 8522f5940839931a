// Package device is the lab's accelerators: each heats under load, draws power, counts errors, and fails on demand
// the way its kind does. It is the vendor's driver as far as the node agent can tell: an accelerator.Reader, and a
// Tester for the burn-in.
//
// Invariant: what a device is (serial, faults, counters that last its life) is in Part, which its owner keeps on the
// disk; what it does now (heat, load) is computed from the clock and from which processes see it, and kept nowhere.
//
// Not here: who decides that a device fails (deploy/lab), what it looks like to the BMC (deploy/lab/bmc).
package device

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"gpupool/schema"
)

// Kind is a fault that a device can have.
type Kind string

const (
	XID79   Kind = "xid79"   // NVIDIA: fell off the bus; no longer answers
	XID48   Kind = "xid48"   // NVIDIA: double-bit error, counted
	ECC     Kind = "ecc"     // uncorrectable memory errors, counted and told by no event
	RAS     Kind = "ras"     // AMD: an uncorrectable error by its RAS block
	Thermal Kind = "thermal" // over its limit, whatever it does
	Absent  Kind = "absent"  // no longer there
	BurnIn  Kind = "burnin"  // answers, and computes wrong results under load
	Hang    Kind = "hang"    // readings of it never come back
	Idle    Kind = "idle"    // is well, and whoever holds it does nothing with it: a job that hangs, a notebook nobody sits at
	Link    Kind = "link"    // a fabric link is down and the slot trained at half its lanes

	// These pass, or are cured without a technician; see Cures.
	XID31  Kind = "xid31"  // NVIDIA: an application's memory page fault
	XID94  Kind = "xid94"  // NVIDIA: a contained memory error
	XID63  Kind = "xid63"  // NVIDIA: a row waits to be remapped by the next reset
	XID95  Kind = "xid95"  // NVIDIA: an uncontained memory error
	XID119 Kind = "xid119" // NVIDIA: the GPU's system processor does not answer
	XID74  Kind = "xid74"  // NVIDIA: its NVLinks have to be trained anew
	Lost   Kind = "lost"   // NVIDIA: fell off the bus (XID 79) for a link that a power cycle trains anew
)

// Cures are the faults that end by a reset, and the mildest that ends them. XID31 and XID94 are events: nothing is left of them.
var Cures = map[Kind]schema.Cure{XID63: schema.CureDevice, XID95: schema.CureDevice, XID119: schema.CureDevice, XID74: schema.CureBaseboard, Lost: schema.CurePower}

// Cure takes off a part what a reset of this strength ends.
func Cure(p *Part, by schema.Cure) {
	p.Faults = slices.DeleteFunc(p.Faults, func(k Kind) bool { c, ok := Cures[k]; return ok && !c.Stronger(by) })
}

// Kinds lists them all.
var Kinds = []Kind{XID79, XID48, ECC, RAS, Thermal, Absent, BurnIn, Hang, Idle, Link, XID31, XID94, XID63, XID95, XID119, XID74, Lost}

// Part is one accelerator, as it lies in its slot.
type Part struct {
	Serial string  `json:"serial"`
	UUID   string  `json:"uuid"`
	Slot   string  `json:"slot"`
	PCI    string  `json:"pci"`
	Faults []Kind  `json:"faults,omitempty"`
	ECC    float64 `json:"ecc,omitempty"`   // uncorrectable errors over its life
	Boot   float64 `json:"boot,omitempty"`  // of those, before this boot's driver was loaded
	Since  string  `json:"since,omitempty"` // boot id under which Boot was taken
}

// Has reports whether the part has a fault.
func (p *Part) Has(k Kind) bool { return slices.Contains(p.Faults, k) }

// Model is what all devices of one kind share.
type Model struct {
	Name     string // as schema has it
	Vendor   schema.Vendor
	Title    string // as a BMC and a driver print it
	Memory   int64
	Firmware string
	Driver   string
	Slot     string // the slots' common name
	First    int    // number of the first slot
	Idle     float64
	Load     float64 // watts
	Limit    float64 // degrees at which it slows itself down
	Links    float64
	PCIeGen  float64
}

// Models are those that the lab can build, by name.
var Models = map[string]Model{
	"nvidia-h100-80gb": {Name: "nvidia-h100-80gb", Vendor: schema.VendorNVIDIA, Title: "NVIDIA H100 80GB HBM3", Memory: 80 << 30,
		Firmware: "96.00.89.00.01", Driver: "570.124.06", Slot: "SXM", First: 1, Idle: 70, Load: 680, Limit: 87, Links: 18, PCIeGen: 5},
	"nvidia-h200-141gb": {Name: "nvidia-h200-141gb", Vendor: schema.VendorNVIDIA, Title: "NVIDIA H200", Memory: 141 << 30,
		Firmware: "96.00.BC.00.01", Driver: "570.124.06", Slot: "SXM", First: 1, Idle: 75, Load: 690, Limit: 87, Links: 18, PCIeGen: 5},
	"nvidia-gb200-186gb": {Name: "nvidia-gb200-186gb", Vendor: schema.VendorNVIDIA, Title: "NVIDIA GB200", Memory: 186 << 30,
		Firmware: "97.00.82.00.0F", Driver: "570.124.06", Slot: "GPU", First: 0, Idle: 140, Load: 1150, Limit: 90, Links: 18, PCIeGen: 5},
	"nvidia-l40s-48gb": {Name: "nvidia-l40s-48gb", Vendor: schema.VendorNVIDIA, Title: "NVIDIA L40S", Memory: 48 << 30,
		Firmware: "95.02.66.00.02", Driver: "570.124.06", Slot: "PCIe", First: 1, Idle: 35, Load: 340, Limit: 92, PCIeGen: 4},
	"amd-mi300x-192gb": {Name: "amd-mi300x-192gb", Vendor: schema.VendorAMD, Title: "AMD Instinct MI300X OAM", Memory: 192 << 30,
		Firmware: "113-M3000100-102", Driver: "6.10.5", Slot: "OAM", First: 0, Idle: 140, Load: 740, Limit: 100, Links: 7, PCIeGen: 5},
}

// New makes the part that a factory put in slot i (from 0) of the server with this serial.
func (m Model) New(server string, i int) Part {
	return m.Make(fmt.Sprintf("%s-%s%d", server, strings.ToLower(m.Slot), m.First+i), i)
}

// Make is the part with this serial, for slot i (from 0).
func (m Model) Make(serial string, i int) Part {
	h := sha256.Sum256([]byte(serial))
	x := hex.EncodeToString(h[:])
	uuid := "0x" + x[:16] // AMD's unique_id
	if m.Vendor == schema.VendorNVIDIA {
		uuid = fmt.Sprintf("GPU-%s-%s-%s-%s-%s", x[:8], x[8:12], x[12:16], x[16:20], x[20:32])
	}
	return Part{Serial: serial, UUID: uuid, Slot: fmt.Sprintf("%s%d", m.Slot, m.First+i), PCI: fmt.Sprintf("0000:%02x:00.0", 0x1b+0x14*i)}
}
