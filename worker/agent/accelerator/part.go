package accelerator

import (
	"context"
	"fmt"
	"math"
	"time"

	"gpupool/schema"
)

// Part counts what befalls a part of the server that is no accelerator: a port of an InfiniBand adapter.
type Part struct {
	Kind    string             // of its evidence: ib
	Name    string             // mlx5_0/1
	Samples map[string]float64 // as a device's: what is missing is unknown
	State   PartState
}

// PartState is whether a part can be used.
type PartState string

const (
	PartUnknown PartState = ""
	PartActive  PartState = "active"
	PartDown    PartState = "down"
)

// PartReader is a Reader that also counts parts. It is read as devices are, with the same deadline.
type PartReader interface {
	Parts(ctx context.Context) ([]Part, error)
}

// Samples of an InfiniBand port (Linux, Documentation/ABI/stable/sysfs-class-infiniband). Rate is in bits a second.
const (
	IBSymbolErrors  = "symbol_error"
	IBLinkDowned    = "link_downed"
	IBIntegrity     = "local_link_integrity_errors"
	IBOverrun       = "excessive_buffer_overrun_errors"
	IBRate          = "rate_bits"
	pam4Rate        = 200e9 // from HDR on four lanes carry PAM4, whose raw symbol errors are forward error correction's daily work
	partDownAfter   = 4 * time.Minute
	partCheckWindow = time.Hour
)

// partGrowth are counters of which any growth is a sign: a good port's stay as they are. Source: IBTA, by way of NVSentinel.
var partGrowth = []struct{ metric, code, words string }{
	{IBLinkDowned, "link-downed", "link downed"},
	{IBIntegrity, "local-integrity", "local link integrity errors"},
	{IBOverrun, "buffer-overrun", "excessive buffer overruns"},
}

// symbolErrors: the specification allows 120 an hour.
var symbolErrors = trend{metric: IBSymbolErrors, kind: "ib", code: "symbol-error", words: "symbol errors", window: partCheckWindow, limit: func(s map[string]float64) float64 {
	if rate, ok := s[IBRate]; !ok || rate >= pam4Rate {
		return 0
	}
	return 2
}}

// StepParts compares a reading of the server's parts with what is remembered, as Step does for devices. A part that is not in
// it was not read this time, and nothing is said of it.
func (m *Memory) StepParts(boot string, now schema.Instant, parts []Part) []Sign {
	m.booted(boot)
	if m.Parts == nil && len(parts) > 0 {
		m.Parts = map[string]*Sighted{}
	}
	var signs []Sign
	for _, p := range parts {
		key := p.Kind + " " + p.Name
		s := m.Parts[key]
		if s == nil {
			s = &Sighted{Name: p.Name}
			m.Parts[key] = s
		}
		found := s.grown(p)
		if sign, ok := s.step(symbolErrors, now, p.Samples); ok {
			found = append(found, sign)
		}
		if sign, ok := s.down(p, now); ok {
			found = append(found, sign)
		}
		for _, sign := range found {
			sign.Kind, sign.Part = p.Kind, p.Name
			signs = append(signs, sign)
		}
	}
	return signs
}

func (s *Sighted) grown(p Part) []Sign {
	var signs []Sign
	for _, c := range partGrowth {
		v, ok := p.Samples[c.metric]
		if !ok || math.IsNaN(v) {
			continue
		}
		old, seen := s.Counters[c.metric]
		if s.Counters == nil {
			s.Counters = map[string]float64{}
		}
		s.Counters[c.metric] = v
		if seen && v > old {
			signs = append(signs, Sign{Code: c.code, Severity: schema.SeverityWarning, Value: v - old,
				Text: fmt.Sprintf("port %s: %s, %.0f more (%.0f in all)", p.Name, c.words, v-old, v)})
		}
	}
	return signs
}

// down tells a port that was active since the boot and has not been for some minutes. One that never was has no cable, maybe.
func (s *Sighted) down(p Part, now schema.Instant) (Sign, bool) {
	const key = "down/"
	switch {
	case p.State == PartActive:
		s.Active = now
		delete(s.States, key)
		return Sign{}, false
	case p.State != PartDown || s.Active == 0 || now.Sub(s.Active) < partDownAfter:
		return Sign{}, false
	}
	seen := s.States[key]
	if seen == nil {
		if s.States == nil {
			s.States = map[string]*Stated{}
		}
		seen = &Stated{}
		s.States[key] = seen
	}
	if seen.ToldAt > 0 && now.Sub(seen.ToldAt) < stateAgain {
		return Sign{}, false
	}
	seen.ToldAt = now
	return Sign{Code: "down", Severity: schema.SeverityWarning, Text: fmt.Sprintf("port %s has been down since %s", p.Name, s.Active)}, true
}
