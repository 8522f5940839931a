package watch

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"gpupool/activities/bmc"
	"gpupool/schema"
)

// Snapshot is what one BMC said at one time. Nil parts were not read in this round, or could not be: unknown.
type Snapshot struct {
	Server string
	At     time.Time
	Vitals bmc.Vitals
	// Err is why nothing could be read; then everything else is unknown.
	Err error
	// The deep part.
	Identity *bmc.Identity
	GPUs     []bmc.GPUMetrics
	Plant    *bmc.Plant
	Readings []bmc.Reading  // IPMI: where there is Redfish they are hundreds of requests, and its log tells
	Entries  []bmc.LogEntry // new since the last deep round
}

// Sign is evidence for the health pipeline, source redfish. Key is the same for the same event however often it is seen.
type Sign struct {
	Server   string
	Serial   string // of the accelerator; "" is about the server or not known
	Slot     string
	Part     string // of what no accelerator is: the power supply, the fan, the detector
	Over     bool   // what was told of the same kind and part is over
	Kind     string // as in the health rules: xid, ecc-uncorrectable, absent, leak, ...; bmc-log is a log's words that nobody knows
	Code     string
	Severity schema.Severity
	Text     string
	At       time.Time // by the BMC's clock where that is right, else when it was seen
	Key      string
}

// Memory is what is known of the rounds before. It is kept as JSON, so that a restart takes no news for history and tells
// nothing twice. The zero value is a BMC never seen: its first snapshot is a baseline, whose counters and log are history.
type Memory struct {
	GPUs     map[string]bmc.GPUMetrics `json:"gpus,omitempty"`    // by slot; only what is compared
	Missing  map[string]time.Time      `json:"missing,omitempty"` // slot -> since when it is absent or critical; zero = told
	Starting time.Time                 `json:"starting,omitzero"` // since when a baseboard's BMC starts
	Stuck    bool                      `json:"stuck,omitempty"`   // told that it doesn't come up
	Wet      map[string]string         `json:"wet,omitempty"`     // detectors that say so -> how bad it was told
	Units    map[string]bool           `json:"units,omitempty"`   // kind/name of failed power supplies and fans, and of all where none is to spare -> told
	Alarms   map[string]string         `json:"sensors,omitempty"` // sensors that are critical -> kind that was told
	Cursors  map[string]*bmc.Cursor    `json:"cursors,omitempty"` // by log
	Unknown  map[string]int            `json:"unknown,omitempty"` // critical log entries that nobody knows the meaning of, by message
}

// xid finds NVIDIA's error number in a driver event. SXID (a switch's) has numbers of its own and is no XID: "SXID 0
// NVSWITCH SMBPBI server is online" is logged as Critical at every boot.
var xid = regexp.MustCompile(`\bXID (\d+)\b`)

// signs judges a snapshot against what was known, and updates that. Pure but for the memory. settle is how long a GPU may
// be missing before it counts: its BMC may be starting.
func (m *Memory) signs(s Snapshot, settle time.Duration) []Sign {
	if s.Err != nil {
		return nil // a BMC that doesn't answer says nothing about its server
	}
	var out []Sign
	add := func(x Sign) {
		x.Server = s.Server
		if x.At.IsZero() {
			x.At = s.At
		}
		out = append(out, x)
	}
	m.leak(s, add)
	m.units(s, add)
	m.alarms(s, add)
	for _, e := range s.Entries {
		n := xid.FindStringSubmatch(e.Message)
		switch {
		case n != nil && !e.History:
			slot := lastOf(e.Origin)
			if slot == "" && len(e.Args) > 0 {
				slot, _, _ = strings.Cut(e.Args[0], " ")
			}
			slot = strings.TrimPrefix(slot, "HGX_")
			at := trusted(e.At, s.At)
			serial := ""
			if g, ok := named(s, slot); ok {
				slot, serial = g.Slot, g.Serial
			}
			add(Sign{Slot: slot, Serial: serial, Kind: "xid", Code: n[1], Severity: schema.SeverityWarning, At: at, Text: e.Message,
				Key: fmt.Sprintf("log/%s/%s/%s", e.Service, e.ID, e.Created)})
		default:
			m.entry(s, e, add)
		}
	}
	m.presence(s, settle, add)
	m.counters(s, add)
	return out
}

// trusted is the BMC's time of an event where that can be: BMC clocks run years off.
func trusted(at, seen time.Time) time.Time {
	if d := seen.Sub(at); d < -time.Hour || d > 24*time.Hour {
		return seen
	}
	return at
}

// alarms reports each sensor that is critical, once for as long as it is.
func (m *Memory) alarms(s Snapshot, add func(Sign)) {
	if s.Readings == nil || s.Vitals.Power != bmc.PowerOn { // without power voltages are "critical"
		return
	}
	for _, r := range s.Readings {
		told, what := m.Alarms[r.URI] != "", ofSensor(r.Kind)
		x := Sign{Kind: what.kind, Part: r.Name, Severity: what.severity, Key: fmt.Sprintf("sensor/%s/%d", r.URI, s.At.Unix())}
		switch {
		case r.Alarms() && !told:
			x.Text = fmt.Sprintf("sensor %s (%s) is critical", r.Name, r.Kind)
			if r.Value != nil {
				x.Text += fmt.Sprintf(" at %g %s", *r.Value, r.Unit)
			}
			if m.Alarms == nil {
				m.Alarms = map[string]string{}
			}
			m.Alarms[r.URI] = what.kind
			add(x)
		case told && !r.Alarms() && r.Health != "": // one without a reading has not become well
			x.Over, x.Text = true, "sensor "+r.Name+" is critical no more"
			delete(m.Alarms, r.URI)
			add(x)
		}
	}
}

// ofSensor is what a critical sensor of a kind is evidence of; the kinds are IPMI's (IPMI 2.0, table 42-3).
func ofSensor(kind string) meaning {
	switch kind {
	case "Fan":
		return noFan
	case "Power Supply":
		return noPower
	case "Temperature":
		return hot
	}
	return meaning{"bmc-critical", schema.SeverityCritical}
}

// leak reports each detector once for as long as it says so, and again when it gets worse. One that isn't shown any more, or
// doesn't say, has not become dry.
func (m *Memory) leak(s Snapshot, add func(Sign)) {
	if s.Plant == nil {
		return
	}
	for _, l := range s.Plant.Leaks {
		told, level, text := m.Wet[l.URI], schema.SeverityCritical, l.Name+" reports a leak"
		switch {
		case l.Dry():
			delete(m.Wet, l.URI)
			continue
		case l.Leaking():
		case l.Moist():
			level, text = schema.SeverityWarning, l.Name+" reports that there may be a leak"
		default:
			continue
		}
		if told == string(level) || told == string(schema.SeverityCritical) {
			continue
		}
		if m.Wet == nil {
			m.Wet = map[string]string{}
		}
		m.Wet[l.URI] = string(level)
		add(Sign{Kind: "leak", Part: l.Name, Severity: level, Text: text, Key: fmt.Sprintf("leak/%s/%s/%d", l.URI, level, s.At.Unix())})
	}
}

// units tells of power supplies and fans: a failure at the second look that shows it, since a BMC that restarts
// shows some for moments; that it is over at the first. Without power fans stand still, which says nothing of them.
func (m *Memory) units(s Snapshot, add func(Sign)) {
	if s.Plant == nil {
		return
	}
	for _, kind := range []bmc.UnitKind{bmc.PowerSupply, bmc.Fan} {
		if kind == bmc.Fan && s.Vitals.Power != bmc.PowerOn {
			continue
		}
		all, failed := 0, 0
		for _, u := range s.Plant.Units {
			if u.Kind != kind || !u.There() {
				continue
			}
			all++
			if u.Failed() {
				failed++
			}
			m.unit(s, kind, u.Name, u.Failed(), u.Health != "", schema.SeverityWarning, fmt.Sprintf("%s %s has failed, its BMC says", words[kind], u.Name), add)
		}
		lost, known := spare(s.Plant, kind, all, failed)
		m.unit(s, kind, together[kind], lost, known, schema.SeverityCritical, fmt.Sprintf("no %s is to spare any more: %d of %d have failed", words[kind], failed, all), add)
	}
}

var words = map[bmc.UnitKind]string{bmc.PowerSupply: "power supply", bmc.Fan: "fan"}

// together is the part's name where it is all of a kind.
var together = map[bmc.UnitKind]string{bmc.PowerSupply: "power supplies", bmc.Fan: "fans"}

// spare reports whether a kind's redundancy is lost: by the BMC's own word where it gives one, and else where half of the
// units have failed, as many as hang on one of two feeds. known is whether either can be said.
func spare(p *bmc.Plant, kind bmc.UnitKind, all, failed int) (lost, known bool) {
	for _, r := range p.Spare {
		if r.Kind == kind && r.Health != "" {
			lost, known = lost || r.Lost(), true
		}
	}
	if known {
		return lost, true
	}
	return failed > 0 && 2*failed >= all, all > 0
}

// unit tells one thing that is wrong or is over.
func (m *Memory) unit(s Snapshot, kind bmc.UnitKind, name string, wrong, known bool, severity schema.Severity, text string, add func(Sign)) {
	key := string(kind) + "/" + name
	told, seen := m.Units[key]
	switch {
	case !known:
	case !wrong && seen:
		delete(m.Units, key)
		if told {
			add(Sign{Kind: string(kind), Part: name, Over: true, Text: name + " in order again, their BMC says"})
		}
	case wrong && !seen:
		if m.Units == nil {
			m.Units = map[string]bool{}
		}
		m.Units[key] = false
	case wrong && !told:
		m.Units[key] = true
		add(Sign{Kind: string(kind), Part: name, Severity: severity, Text: text, Key: fmt.Sprintf("%s/%d", key, s.At.Unix())})
	}
}

// presence reports an accelerator that is absent, or whose BMC calls it critical, once it has been so for settle. While a
// baseboard's BMC starts, or a resource couldn't be read, or the power isn't on, nothing about presence is known.
func (m *Memory) presence(s Snapshot, settle time.Duration, add func(Sign)) {
	if s.Identity == nil {
		return
	}
	m.starting(s, settle, add)
	if s.Identity.Accelerators() != bmc.Known || s.Vitals.Power != bmc.PowerOn {
		m.Missing = nil // the time counts from when it is known again
		return
	}
	there := map[string]bmc.GPU{}
	for _, g := range s.Identity.GPUs {
		there[g.Slot] = g
	}
	bad := map[string]string{}
	for slot, g := range there {
		switch {
		case g.State == "Absent":
			bad[slot] = "absent"
		case g.Health == "Critical" && g.State == "Enabled":
			bad[slot] = "critical"
		}
	}
	for slot := range m.GPUs {
		if _, ok := there[slot]; !ok {
			bad[slot] = "absent"
		}
	}
	if m.Missing == nil {
		m.Missing = map[string]time.Time{}
	}
	for slot := range m.Missing {
		if bad[slot] == "" {
			delete(m.Missing, slot)
		}
	}
	for slot, what := range bad {
		since, known := m.Missing[slot]
		switch {
		case !known:
			m.Missing[slot] = s.At
			if settle > 0 {
				continue
			}
			since = s.At
		case since.IsZero() || s.At.Sub(since) < settle:
			continue // told already, or not long enough
		}
		m.Missing[slot] = time.Time{}
		text, kind := "accelerator "+slot+" is not listed by the BMC any more", "absent"
		if what == "critical" {
			text, kind = "the BMC calls accelerator "+slot+" critical", "bmc-critical"
		}
		add(Sign{Slot: slot, Serial: orKnown(there[slot].Serial, m.GPUs[slot].Serial), Kind: kind, Severity: schema.SeverityCritical, Text: text,
			Key: fmt.Sprintf("%s/%s/%d", kind, slot, since.Unix())})
	}
}

// counters reports what rose since the last round on the same device. The first sight is a baseline; a counter that fell
// was reset and is a new baseline; a device with another serial is another device.
func (m *Memory) counters(s Snapshot, add func(Sign)) {
	if s.GPUs == nil {
		return
	}
	if m.GPUs == nil {
		m.GPUs = map[string]bmc.GPUMetrics{}
	}
	for _, g := range s.GPUs {
		was, known := m.GPUs[g.Slot]
		sameDevice := known && (was.Serial == g.Serial || was.Serial == "" || g.Serial == "")
		key := func(kind string, v float64) string { return fmt.Sprintf("%s/%s/%s/%.0f", kind, g.Slot, g.Serial, v) }
		rose := func(kind, what string, severity schema.Severity, before, now *float64) {
			if sameDevice && before != nil && now != nil && *now > *before {
				add(Sign{Slot: g.Slot, Serial: g.Serial, Kind: kind, Severity: severity, Key: key(kind, *now),
					Text: fmt.Sprintf("%s of %s rose from %.0f to %.0f", what, g.Slot, *before, *now)})
			}
		}
		rose("ecc-uncorrectable", "uncorrectable memory errors", schema.SeverityCritical, was.UncorrectableECC, g.UncorrectableECC)
		rose("ecc-uncorrectable", "uncorrectable cache errors", schema.SeverityCritical, was.CacheUncorrectableECC, g.CacheUncorrectableECC)
		rose("remap", "rows remapped for uncorrectable errors", schema.SeverityInfo, was.RemapUncorrectable, g.RemapUncorrectable)
		rose("pcie", "fatal PCIe errors", schema.SeverityCritical, was.PCIeFatal, g.PCIeFatal)
		// A state is evidence at first sight too: it says how the device is, not what happened once.
		for _, f := range []struct {
			kind, text string
			was, now   *bool
		}{
			{"remap-failed", "row remapping has failed on " + g.Slot, was.RemapFailed, g.RemapFailed},
			{"remap-pending", "a row remap waits for a reset on " + g.Slot, was.RemapPending, g.RemapPending},
			{"sram-threshold", "the SRAM error threshold is exceeded on " + g.Slot, was.SRAMThreshold, g.SRAMThreshold},
		} {
			if f.now != nil && *f.now && !(sameDevice && f.was != nil && *f.was) {
				add(Sign{Slot: g.Slot, Serial: g.Serial, Kind: f.kind, Severity: schema.SeverityCritical, Text: f.text, Key: fmt.Sprintf("%s/%s/%s/%d", f.kind, g.Slot, g.Serial, s.At.Unix())})
			}
		}
		if lane, errors, typical, bad := worstLane(g.PCIeLanes); bad {
			if _, _, _, told := worstLane(was.PCIeLanes); !sameDevice || !told {
				add(Sign{Slot: g.Slot, Serial: g.Serial, Kind: "pcie-lane", Severity: schema.SeverityWarning, Key: fmt.Sprintf("pcie-lane/%s/%s/%d/%d", g.Slot, g.Serial, lane, s.At.Unix()),
					Text: fmt.Sprintf("lane %d of the PCIe port of %s has received %.0f errors, its other lanes %.0f in the middle", lane, g.Slot, errors, typical)})
			}
		}
		m.GPUs[g.Slot] = compared(keep(was, g, sameDevice))
	}
}

// A lane is worse than its port's others from so many errors on, and so many times those of the lane in the middle.
const (
	laneErrors = 100
	laneTimes  = 10
)

// worstLane is the lane with the most errors, from 0, and whether it is worse than the others.
func worstLane(lanes []float64) (lane int, errors, typical float64, bad bool) {
	if len(lanes) < 2 {
		return 0, 0, 0, false
	}
	sorted := slices.Sorted(slices.Values(lanes))
	typical, errors = sorted[len(sorted)/2], sorted[len(sorted)-1]
	return slices.Index(lanes, errors), errors, typical, errors >= laneErrors && errors > laneTimes*typical
}

// starting reports a baseboard whose own BMC doesn't come up, once. Until then it is unknown what is behind it.
func (m *Memory) starting(s Snapshot, settle time.Duration, add func(Sign)) {
	switch {
	case s.Identity.BaseboardsReady || s.Vitals.Power != bmc.PowerOn:
		if m.Stuck {
			add(Sign{Kind: "baseboard-starting", Over: true, Text: "the GPU baseboard's BMC is up, or its power is off"})
		}
		m.Starting, m.Stuck = time.Time{}, false
	case m.Starting.IsZero():
		m.Starting = s.At
	case !m.Stuck && s.At.Sub(m.Starting) >= settle:
		m.Stuck = true
		add(Sign{Kind: "baseboard-starting", Severity: schema.SeverityWarning, Key: fmt.Sprintf("baseboard/%d", m.Starting.Unix()),
			Text: fmt.Sprintf("the GPU baseboard's BMC has been starting since %s: its accelerators can't be seen out of band", m.Starting.UTC().Format(time.RFC3339))})
	}
}

// compared is the part of an accelerator's metrics that the next round is compared with.
func compared(g bmc.GPUMetrics) bmc.GPUMetrics {
	return bmc.GPUMetrics{GPU: bmc.GPU{Slot: g.Slot, Serial: g.Serial}, UncorrectableECC: g.UncorrectableECC, CacheUncorrectableECC: g.CacheUncorrectableECC,
		RemapUncorrectable: g.RemapUncorrectable, PCIeFatal: g.PCIeFatal, RemapFailed: g.RemapFailed, RemapPending: g.RemapPending, SRAMThreshold: g.SRAMThreshold, PCIeLanes: g.PCIeLanes}
}

// keep carries a known value over a round in which it was unknown, so that a gap hides no rise.
func keep(was, now bmc.GPUMetrics, sameDevice bool) bmc.GPUMetrics {
	if !sameDevice {
		return now
	}
	for _, p := range []struct{ was, now **float64 }{
		{&was.UncorrectableECC, &now.UncorrectableECC}, {&was.CacheUncorrectableECC, &now.CacheUncorrectableECC},
		{&was.RemapUncorrectable, &now.RemapUncorrectable}, {&was.PCIeFatal, &now.PCIeFatal},
	} {
		if *p.now == nil {
			*p.now = *p.was
		}
	}
	for _, p := range []struct{ was, now **bool }{{&was.RemapFailed, &now.RemapFailed}, {&was.RemapPending, &now.RemapPending}, {&was.SRAMThreshold, &now.SRAMThreshold}} {
		if *p.now == nil {
			*p.now = *p.was
		}
	}
	if now.PCIeLanes == nil {
		now.PCIeLanes = was.PCIeLanes
	}
	now.Serial = orKnown(now.Serial, was.Serial)
	return now
}

// named finds the accelerator that a log calls by its slot or its resource's name.
func named(s Snapshot, name string) (bmc.GPU, bool) {
	if s.Identity != nil {
		for _, g := range s.Identity.GPUs {
			if g.Slot == name || lastOf(g.URI) == name {
				return g, true
			}
		}
	}
	return bmc.GPU{}, false
}

func orKnown(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

func lastOf(uri string) string { return uri[strings.LastIndexByte(uri, '/')+1:] }
