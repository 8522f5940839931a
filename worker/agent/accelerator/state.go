package accelerator

import (
	"fmt"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
)

// Stated is what is remembered of a bad state.
type Stated struct {
	Seen   int            `json:"seen"` // readings in a row
	ToldAt schema.Instant `json:"told_at,omitempty"`
}

// stateAgain is how often a bad state that lasts is told again: what came back from a repair with it is not well.
const stateAgain = 6 * time.Hour

// state is a bad state of a device, as a reading shows it. Unlike a counter it is a sign at first sight too.
type state struct {
	kind, code string
	severity   schema.Severity
	readings   int // so many in a row; 0 = 1
	// is reports whether the reading shows it, and in which words; known is false where it can't tell.
	is func(s *Sighted, now schema.Instant, d agentproto.Device) (words string, bad, known bool)
}

// flag is a metric that is 1 where the state is bad.
func flag(metric, words string) func(*Sighted, schema.Instant, agentproto.Device) (string, bool, bool) {
	return func(_ *Sighted, _ schema.Instant, d agentproto.Device) (string, bool, bool) {
		v, ok := d.Samples[metric]
		return words, v == 1, ok
	}
}

// called is what the driver calls the device.
func called(health float64, words string) func(*Sighted, schema.Instant, agentproto.Device) (string, bool, bool) {
	return func(_ *Sighted, _ schema.Instant, d agentproto.Device) (string, bool, bool) {
		v, ok := d.Samples[VendorHealth]
		return words, v == health, ok
	}
}

// Sources: NVIDIA RMA policy (remap failure, SRAM threshold) and NVML documentation (pending remap); gpud (0.6 slow-downs a
// minute over ten minutes); DCGM (links). Of a PCIe link only a working one is judged: idle ones lower their speed.
var states = []state{
	{kind: "remap-pending", severity: schema.SeverityWarning, is: flag(RemapPending, "a row remap waits for a reset")},
	{kind: "remap-failed", severity: schema.SeverityCritical, is: flag(RemapFailed, "a row could not be remapped: no spare was left")},
	{kind: "sram-threshold", severity: schema.SeverityCritical, is: flag(SRAMThreshold, "the device's own limit of SRAM errors is exceeded")},
	{kind: "link", code: "down", severity: schema.SeverityCritical, readings: 2, is: linksDown},
	{kind: "pcie-narrow", severity: schema.SeverityWarning, readings: 2, is: narrow},
	{kind: "vendor-health", code: "failed", severity: schema.SeverityCritical, readings: 2, is: called(VendorFailed, "its driver calls it failed")},
	{kind: "vendor-health", code: "warning", severity: schema.SeverityWarning, readings: 2, is: called(VendorWarns, "its driver warns of it")},
	{kind: "hw-slowdown", severity: schema.SeverityWarning, is: slowed},
}

func (s *Sighted) states(id string, now schema.Instant, d agentproto.Device) []Sign {
	var signs []Sign
	for _, st := range states {
		words, bad, known := st.is(s, now, d)
		if !known {
			continue
		}
		key := st.kind + "/" + st.code
		seen := s.States[key]
		if !bad {
			delete(s.States, key)
			continue
		}
		if seen == nil {
			if s.States == nil {
				s.States = map[string]*Stated{}
			}
			seen = &Stated{}
			s.States[key] = seen
		}
		seen.Seen++
		if seen.Seen < st.readings || seen.ToldAt > 0 && now.Sub(seen.ToldAt) < stateAgain {
			continue
		}
		seen.ToldAt = now
		signs = append(signs, Sign{Device: id, Kind: st.kind, Code: st.code, Severity: st.severity, Text: s.Name + ": " + words})
	}
	return signs
}

// linksDown compares with the most links that were up since the boot: a model may have fewer than its chip could.
func linksDown(s *Sighted, _ schema.Instant, d agentproto.Device) (string, bool, bool) {
	up, ok := d.Samples[LinksUp]
	if !ok {
		return "", false, false
	}
	s.Links = max(s.Links, up)
	return fmt.Sprintf("%.0f of %.0f links to other devices are up", up, s.Links), up < s.Links, true
}

// busy is the utilization from which on a device's PCIe link is expected at its full speed.
const busy = 0.5

func narrow(_ *Sighted, _ schema.Instant, d agentproto.Device) (string, bool, bool) {
	s := d.Samples
	if u, ok := s[Utilization]; !ok || u < busy {
		return "", false, false
	}
	gen, g := s[PCIeGen]
	genMax, gm := s[PCIeGenMax]
	width, w := s[PCIeWidth]
	widthMax, wm := s[PCIeWidthMax]
	if !(g && gm) && !(w && wm) {
		return "", false, false
	}
	bad := g && gm && gen < genMax || w && wm && width < widthMax
	return fmt.Sprintf("its PCIe link is generation %.0f x%.0f under load, and could be generation %.0f x%.0f", gen, width, genMax, widthMax), bad, true
}

const (
	slowWindow  = 10 // minutes
	slowMinutes = 6  // of them, with a reading at which the hardware held itself back
)

func slowed(s *Sighted, now schema.Instant, d agentproto.Device) (string, bool, bool) {
	v, ok := d.Samples[Throttled]
	if !ok {
		return "", false, false
	}
	minute := int64(now) / time.Minute.Milliseconds()
	if n := len(s.Slow); v == 1 && (n == 0 || s.Slow[n-1] != minute) {
		s.Slow = append(s.Slow, minute)
	}
	for len(s.Slow) > 0 && (s.Slow[0] <= minute-slowWindow || s.Slow[0] > minute) {
		s.Slow = s.Slow[1:]
	}
	return fmt.Sprintf("the hardware held itself back for heat or power in %d of %d minutes", len(s.Slow), slowWindow), len(s.Slow) >= slowMinutes, true
}
