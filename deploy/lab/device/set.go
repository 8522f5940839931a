package device

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent"
	"gpupool/worker/agent/accelerator"
	"gpupool/worker/agent/accelerator/kmsg"
)

// Set is the devices of one server, under one boot of its operating system. It is an accelerator.Reader and an
// agent.Tester.
//
// mu guards all below it. Part's owner changes parts through Change only.
type Set struct {
	model  Model
	boot   string
	load   func(uuid string, index int) float64 // 0..1: what processes do with a device now
	now    func() time.Time
	events chan accelerator.Sign
	fixed  chan struct{} // closed and made anew when a fault ends: readings that hang look again

	mu     sync.Mutex
	parts  []Part
	heat   []heat
	tested []int // burn-in tests that run on a device
}

// heat is a device's temperature when it was last computed.
type heat struct {
	celsius float64
	at      time.Time
}

var (
	_ accelerator.Reader = (*Set)(nil)
	_ agent.Tester       = (*Set)(nil)

	_ accelerator.Resetter = (*Set)(nil)
)

// NewSet is the devices as the driver finds them at boot. load may be nil: no process uses them.
func NewSet(m Model, parts []Part, boot string, now func() time.Time, load func(uuid string, index int) float64) *Set {
	if load == nil {
		load = func(string, int) float64 { return 0 }
	}
	s := &Set{model: m, boot: boot, load: load, now: now, events: make(chan accelerator.Sign, 64), fixed: make(chan struct{}),
		parts: slices.Clone(parts), heat: make([]heat, len(parts)), tested: make([]int, len(parts))}
	for i := range s.parts {
		if p := &s.parts[i]; p.Since != boot { // the driver counts from here
			p.Since, p.Boot = boot, p.ECC
			Cure(p, schema.CurePower)
		}
	}
	return s
}

// Parts is what the owner keeps.
func (s *Set) Parts() []Part {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.parts)
}

// Fail gives the device in slot i (from 0) a fault, and has the driver tell what it would.
func (s *Set) Fail(i int, k Kind) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &s.parts[i]
	sign, err := fail(s.model, p, k)
	if err != nil {
		return err
	}
	if sign != nil {
		sign.At = schema.At(s.now())
		select {
		case s.events <- *sign:
		default: // a driver's own buffer is finite too
		}
	}
	return nil
}

// Fail gives a part a fault while no operating system is up to see it.
func Fail(m Model, p *Part, k Kind) error {
	_, err := fail(m, p, k)
	return err
}

func fail(m Model, p *Part, k Kind) (*accelerator.Sign, error) {
	if !slices.Contains(Kinds, k) {
		return nil, fmt.Errorf("fault %q: want one of %v", k, Kinds)
	}
	nvidia := k == XID79 || k == Lost || strings.HasPrefix(string(k), "xid")
	if nvidia && m.Vendor != schema.VendorNVIDIA || k == RAS && m.Vendor != schema.VendorAMD {
		return nil, fmt.Errorf("fault %q: a %s doesn't have it", k, m.Name)
	}
	if !p.Has(k) && k != XID31 && k != XID94 {
		p.Faults = append(p.Faults, k)
	}
	sign := &accelerator.Sign{Device: p.Serial, Severity: schema.SeverityCritical}
	switch k {
	case XID31, XID94, XID63, XID95, XID119, XID74:
		sign.Kind, sign.Code = "xid", strings.TrimPrefix(string(k), "xid")
		sign.Severity = kmsg.Severity(sign.Code)
		sign.Text = fmt.Sprintf("NVRM: Xid (PCI:%s): %s, pid=1, in the lab", p.PCI, sign.Code)
	case XID79, Lost:
		sign.Kind, sign.Code = "xid", "79"
		sign.Text = fmt.Sprintf("NVRM: Xid (PCI:%s): 79, GPU has fallen off the bus.", p.PCI)
	case XID48:
		p.ECC++
		sign.Kind, sign.Code = "xid", "48"
		sign.Text = fmt.Sprintf("NVRM: Xid (PCI:%s): 48, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer", p.PCI)
	case RAS:
		p.ECC++
		sign.Kind, sign.Code = "ras", "umc"
		sign.Text = fmt.Sprintf("amdgpu %s: 1 uncorrectable hardware errors detected in umc block", p.PCI)
	case ECC:
		p.ECC += 2
		return nil, nil
	default:
		return nil, nil
	}
	return sign, nil
}

// Clear takes a fault away; an empty kind takes all.
func (s *Set) Clear(i int, k Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	Clear(&s.parts[i], k)
	close(s.fixed)
	s.fixed = make(chan struct{})
}

// Clear takes a fault off a part; an empty kind takes all.
func Clear(p *Part, k Kind) {
	p.Faults = slices.DeleteFunc(p.Faults, func(f Kind) bool { return k == "" || f == k })
}

// Reset implements accelerator.Resetter.
func (s *Set) Reset(_ context.Context, list []agentproto.Device, all bool) error {
	by := schema.CureDevice
	if all {
		by = schema.CureBaseboard
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.parts {
		p := &s.parts[i]
		if slices.ContainsFunc(list, func(d agentproto.Device) bool { return d.Serial == p.Serial }) {
			if p.Has(XID79) || p.Has(Lost) {
				return fmt.Errorf("GPU %s is not responding: it can't be reset", p.UUID)
			}
			Cure(p, by)
		}
	}
	return nil
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Vendor implements accelerator.Reader.
func (s *Set) Vendor() schema.Vendor { return s.model.Vendor }

// Driver implements accelerator.Reader.
func (s *Set) Driver(context.Context) (string, error) { return s.model.Driver, nil }

// Watch implements accelerator.Reader.
func (s *Set) Watch(ctx context.Context, emit func(accelerator.Sign)) error {
	for {
		select {
		case e := <-s.events:
			emit(e)
		case <-ctx.Done():
			return nil
		}
	}
}

// Read implements accelerator.Reader. A device that hangs keeps the whole reading, as a driver's lock would.
func (s *Set) Read(ctx context.Context) ([]agentproto.Device, error) {
	for {
		s.mu.Lock()
		hangs := slices.ContainsFunc(s.parts, func(p Part) bool { return p.Has(Hang) })
		fixed := s.fixed
		s.mu.Unlock()
		if !hangs {
			break
		}
		select {
		case <-fixed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]agentproto.Device, 0, len(s.parts))
	for i := range s.parts {
		if p := &s.parts[i]; !p.Has(Absent) {
			list = append(list, s.device(i, p))
		}
	}
	return list, nil
}

func (s *Set) device(i int, p *Part) agentproto.Device {
	m := s.model
	d := agentproto.Device{Vendor: m.Vendor, Model: m.Name, Serial: p.Serial, UUID: p.UUID, PCI: p.PCI, Slot: p.Slot, Index: i, MemoryBytes: m.Memory, Firmware: m.Firmware}
	if p.Has(XID79) || p.Has(Lost) {
		d.Error = "GPU is lost: it has fallen off the bus"
		return d
	}
	load := s.load(p.UUID, i)
	if p.Has(Idle) {
		load = 0
	}
	if s.tested[i] > 0 {
		load = 1
	}
	// Each device is a little different from the next, and always by the same.
	own := float64(hash(p.Serial)%600)/100 - 3
	t := s.temperature(i, 34+own+load*32)
	throttled := 0.0
	if p.Has(Thermal) {
		t, throttled = m.Limit+4, 1
	}
	width, links := 16.0, m.Links
	if p.Has(Link) {
		width, links = 8, max(links-1, 0)
	}
	gen := m.PCIeGen
	if load == 0 {
		gen = 1 // an idle link saves power
	}
	d.Samples = map[string]float64{
		accelerator.Temperature: math.Round(t), accelerator.TemperatureLimit: m.Limit,
		accelerator.Power: math.Round(m.Idle + load*(m.Load-m.Idle)), accelerator.PowerLimit: m.Load + 20,
		accelerator.Utilization: load, accelerator.MemoryUsed: load * 0.8 * float64(m.Memory), accelerator.Throttled: throttled,
		accelerator.ECCUncorrected: p.ECC - p.Boot, accelerator.ECCLifeUncorrect: p.ECC, accelerator.RemappedRows: 0, accelerator.RemapFailed: 0, accelerator.RemapPending: one(p.Has(XID63)),
		accelerator.PCIeWidth: width, accelerator.PCIeWidthMax: 16, accelerator.PCIeGen: gen, accelerator.PCIeGenMax: m.PCIeGen, accelerator.PCIeReplays: 0,
	}
	if m.Links > 0 {
		d.Samples[accelerator.LinksUp], d.Samples[accelerator.LinksTotal], d.Samples[accelerator.LinkErrors] = links, m.Links, 0
	} else {
		d.NotApplicable = append(d.NotApplicable, accelerator.LinksUp, accelerator.LinksTotal, accelerator.LinkErrors)
	}
	return d
}

// warmUp is how fast a device nears the temperature of what it does: by two thirds in so long.
const warmUp = 3 * time.Second

func (s *Set) temperature(i int, target float64) float64 {
	h, now := &s.heat[i], s.now()
	if h.at.IsZero() {
		h.celsius = target
	} else {
		h.celsius += (target - h.celsius) * (1 - math.Exp(-now.Sub(h.at).Seconds()/warmUp.Seconds()))
	}
	h.at = now
	return h.celsius
}

// Test implements agent.Tester: memory and compute, for so long, on one device.
func (s *Set) Test(ctx context.Context, name string, dev agentproto.Device, d time.Duration) (map[string]float64, error) {
	i, err := s.test(dev.Serial, +1)
	if err != nil {
		return nil, err
	}
	defer func() { _, _ = s.test(dev.Serial, -1) }() // it may have been pulled meanwhile
	select {
	case <-time.After(d):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.parts[i]
	switch {
	case p.Has(XID79), p.Has(Lost), p.Has(XID119), p.Has(Absent):
		return nil, &agent.TestFailure{Text: "the device was lost during the test"}
	case p.Has(BurnIn) && name == "compute":
		return nil, &agent.TestFailure{Text: "3 of 4096 matrix products differ from the reference"}
	case p.Has(XID48) || p.Has(XID95) || p.Has(ECC) || p.Has(RAS):
		if name == "memory" {
			s.parts[i].ECC++
			return nil, &agent.TestFailure{Text: "1 bit pattern read back differs from what was written"}
		}
	}
	return map[string]float64{"watts": math.Round(s.model.Load)}, nil
}

func (s *Set) test(serial string, by int) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.parts, func(p Part) bool { return p.Serial == serial })
	if i < 0 {
		return 0, errors.New("the device is not in this server")
	}
	s.tested[i] += by
	return i, nil
}

// ModelNames lists what the lab can build.
func ModelNames() []string { return slices.Sorted(maps.Keys(Models)) }

func hash(s string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(s)) // never fails
	return h.Sum32()
}
