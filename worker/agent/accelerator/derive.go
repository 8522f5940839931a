package accelerator

import (
	"fmt"
	"maps"
	"slices"

	"gpupool/schema"
	"gpupool/schema/agentproto"
)

// Memory is what must be remembered of past readings to see a fault in the next. It is plain data, kept on the disk, so
// that a counter's jump while the agent was down is neither lost nor told twice.
type Memory struct {
	Boot    string              `json:"boot"`
	Devices map[string]*Sighted `json:"devices"`
	Parts   map[string]*Sighted `json:"parts,omitempty"` // of the server, by kind and name
}

// Sighted is what is remembered of one device.
type Sighted struct {
	Name     string             `json:"name"` // for words: model and slot
	Counters map[string]float64 `json:"counters,omitempty"`
	Missing  int                `json:"missing,omitempty"` // readings in a row without it
	Hot      int                `json:"hot,omitempty"`     // readings in a row at or over its limit
	Rates    map[string]*Rated  `json:"rates,omitempty"`   // by trend
	States   map[string]*Stated `json:"states,omitempty"`  // by state
	Slow     []int64            `json:"slow,omitempty"`    // minutes, since 1970, in which it slowed itself down
	Links    float64            `json:"links,omitempty"`   // most links seen up since the boot
	Active   schema.Instant     `json:"active,omitempty"`  // a port was last seen active
}

const (
	missingReadings = 2 // one short list may be a driver that restarts
	hotReadings     = 2
	hotHysteresis   = 5 // degrees below the limit at which "hot" ends
)

// booted forgets what a boot of the system ended.
func (m *Memory) booted(boot string) {
	if m.Boot == boot && m.Devices != nil {
		return
	}
	old := m.Devices
	m.Boot, m.Devices, m.Parts = boot, map[string]*Sighted{}, nil
	for id, s := range old {
		// Over a reboot, what is missing may have been taken out: the inventory tells. Life counters stay.
		if v, ok := s.Counters[ECCLifeUncorrect]; ok {
			m.Devices[id] = &Sighted{Name: s.Name, Counters: map[string]float64{ECCLifeUncorrect: v}, Missing: missingReadings}
		}
	}
}

// Step compares a complete reading with what is remembered, and returns the faults that only the comparison shows: a
// device that is gone, an uncorrectable error that is new, heat, a rate of errors that a good device doesn't have. The first
// sight of a counter is a baseline, never a burst; a counter that fell was reset, and begins a new one.
func (m *Memory) Step(boot string, now schema.Instant, list []agentproto.Device) []Sign {
	m.booted(boot)
	var signs []Sign
	here := map[string]bool{}
	for _, d := range list {
		id := Identity(d)
		if id == "" {
			continue // a device that never said who it is
		}
		here[id] = true
		s := m.Devices[id]
		if s == nil {
			s = &Sighted{}
			m.Devices[id] = s
		}
		s.Name, s.Missing = fmt.Sprintf("%s in %s", d.Model, slotOf(d)), 0
		if d.Error != "" {
			continue
		}
		signs = append(signs, s.counters(id, d)...)
		signs = append(signs, s.heat(id, d)...)
		signs = append(signs, s.trends(id, now, d)...)
		signs = append(signs, s.states(id, now, d)...)
	}
	for _, id := range slices.Sorted(maps.Keys(m.Devices)) {
		s := m.Devices[id]
		if here[id] {
			continue
		}
		if s.Missing++; s.Missing == missingReadings {
			signs = append(signs, Sign{Device: id, Kind: "absent", Severity: schema.SeverityCritical,
				Text: fmt.Sprintf("%s is no longer listed by its driver", s.Name)})
		}
	}
	return signs
}

func (s *Sighted) counters(id string, d agentproto.Device) []Sign {
	var signs []Sign
	for _, c := range []struct {
		metric, kind, text string
		severity           schema.Severity
	}{
		{ECCUncorrected, "ecc-uncorrectable", "uncorrectable memory errors", schema.SeverityCritical},
		{RemappedRows, "remap", "rows remapped or pages retired", schema.SeverityWarning},
	} {
		v, ok := d.Samples[c.metric]
		if !ok {
			continue
		}
		old, seen := s.Counters[c.metric]
		if s.Counters == nil {
			s.Counters = map[string]float64{}
		}
		s.Counters[c.metric] = v
		if seen && v > old {
			signs = append(signs, Sign{Device: id, Kind: c.kind, Severity: c.severity,
				Text: fmt.Sprintf("%s: %.0f new %s (%.0f in all)", s.Name, v-old, c.text, v)})
		}
	}
	if v, ok := d.Samples[ECCLifeUncorrect]; ok {
		if s.Counters == nil {
			s.Counters = map[string]float64{}
		}
		old, seen := s.Counters[ECCLifeUncorrect]
		s.Counters[ECCLifeUncorrect] = v
		// The count since driver load tells it already, unless the driver was loaded anew in between.
		if _, volatile := d.Samples[ECCUncorrected]; seen && v > old && (!volatile || len(signs) == 0) {
			signs = append(signs, Sign{Device: id, Kind: "ecc-uncorrectable", Severity: schema.SeverityCritical,
				Text: fmt.Sprintf("%s: %.0f new uncorrectable memory errors (%.0f over its life)", s.Name, v-old, v)})
		}
	}
	return signs
}

func (s *Sighted) heat(id string, d agentproto.Device) []Sign {
	t, known := d.Samples[Temperature]
	limit, has := d.Samples[TemperatureLimit]
	switch {
	case !known || !has:
	case t >= limit:
		if s.Hot++; s.Hot == hotReadings {
			return []Sign{{Device: id, Kind: "thermal", Severity: schema.SeverityWarning,
				Text: fmt.Sprintf("%s: %.0f °C, at or over the %.0f °C at which it slows down", s.Name, t, limit)}}
		}
	case s.Hot < hotReadings || t < limit-hotHysteresis:
		s.Hot = 0
	}
	return nil
}

func slotOf(d agentproto.Device) string {
	if d.Slot != "" {
		return d.Slot
	}
	return d.PCI
}
