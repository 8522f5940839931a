package watch

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"gpupool/activities/bmc"
	"gpupool/schema"
)

// meaning is what a log entry is evidence of. An empty kind is an entry known to be none.
type meaning struct {
	kind     string
	severity schema.Severity
}

var (
	leaks       = meaning{"leak", schema.SeverityCritical}
	tripped     = meaning{"thermal", schema.SeverityCritical}
	hot         = meaning{"thermal", schema.SeverityWarning}
	hostMemory  = meaning{"mce", schema.SeverityCritical}
	noPower     = meaning{string(bmc.PowerSupply), schema.SeverityWarning} // the others carry the load
	noFan       = meaning{string(bmc.Fan), schema.SeverityWarning}         // the BMC runs the others faster; what gets hot is told beside it
	remapFailed = meaning{"remap-failed", schema.SeverityCritical}
	remapWaits  = meaning{"remap-pending", schema.SeverityCritical}
)

// meanings are message keys whose registries say what they mean: DMTF's Environmental 1.1 and Power 1.0, OpenBMC's 0.x. A
// registry's keys keep their meaning over its minor versions (DSP0266 9.5.11.2), so a version isn't looked at.
var meanings = map[string]meaning{
	"Environmental.LeakDetectedCritical":                   leaks,
	"Environmental.LeakDetectedNormal":                     {},
	"Environmental.FanFailed":                              noFan,
	"Environmental.TemperatureAboveUpperFatalThreshold":    tripped,
	"Environmental.TemperatureAboveUpperCriticalThreshold": hot,
	"Power.PowerSupplyFailed":                              noPower,
	"OpenBMC.PowerSupplyFailed":                            noPower,
	"OpenBMC.MemoryECCUncorrectable":                       hostMemory,
	"OpenBMC.MemoryThermTrip":                              tripped,
	"OpenBMC.CPUThermalTrip":                               tripped,
}

// phrases are read where there is no such key: vendors' own numbers, and ResourceErrorsDetected, whose key says nothing. Only
// an entry that its BMC calls critical is read so, since words are looser than keys.
var phrases = []struct {
	says *regexp.Regexp
	meaning
}{
	// At every boot of an HGX baseboard, as Critical (captured from a DGX H100).
	{regexp.MustCompile(`(?i)\bSXID 0\b.*\bis online\b`), meaning{}},
	// What ended is no evidence, whatever it was.
	{regexp.MustCompile(`(?i)\b(de-?assert(ed)?|cleared|restored|recovered|returned to normal|no leak|going (low|high) deassert)\b`), meaning{}},
	{regexp.MustCompile(`(?i)\bleak(s|age|ing)?\b.*\b(detected|critical|assert(ed)?)\b|\b(detected|reports)\b.*\bleak(age)?\b`), leaks},
	{regexp.MustCompile(`(?i)\bthe?rm(al)?[ -]?trip\b`), tripped},
	// IPMI 2.0, table 42-2: what a threshold sensor's event is called.
	{regexp.MustCompile(`^Fan sensor \d+: Lower (Critical|Non-recoverable) - going low`), noFan},
	{regexp.MustCompile(`^Temperature sensor \d+: Upper Non-recoverable - going high`), tripped},
	{regexp.MustCompile(`^Temperature sensor \d+: Upper Critical - going high`), hot},
	{regexp.MustCompile(`(?i)\brow[ -]?remap(ping|per)?\b.*\bfail(ed|ure)\b`), remapFailed},
	{regexp.MustCompile(`(?i)\brow[ -]?remap(ping|per)?\b.*\bpending\b`), remapWaits},
	// Supermicro: "[PWR-0001] PS5 Status, Power Supply Failure detected", "[PWR-0003] PS5 Status, Power Supply input lost (AC/DC)".
	{regexp.MustCompile(`(?i)\b(power supply|PSU)\b.*\b(fail(ed|ure)|lost)\b`), noPower},
	// GB200: "Chassis_0_FAN_2_FRONT critical low threshold assert. Reading=0.000000 Threshold=2204.000000."
	{regexp.MustCompile(`(?i)(\b|_)fan(\b|_|\d).*\b(critical low threshold assert|fail(ed|ure)|stopped)\b`), noFan},
}

// memoryError is an uncorrectable error of memory. "uncorrectable" holds "correctable": the word's start counts.
var memoryError = regexp.MustCompile(`(?i)\buncorrect(able|ed)\b.*\b(ecc|memory|dimm|dram|sram|hbm)\b|\b(ecc|memory|dimm|dram|sram|hbm)\b.*\buncorrect(able|ed)\b`)

// ofAccelerators are kinds that only an accelerator can have.
var ofAccelerators = []string{remapFailed.kind, remapWaits.kind}

// means says what an entry is evidence of, and whether that is known. gpu is whether it names an accelerator.
func means(e bmc.LogEntry, gpu bool) (meaning, bool) {
	if m, ok := meanings[key(e.MessageID)]; ok {
		return m, true
	}
	if !strings.EqualFold(e.Severity, "Critical") {
		return meaning{}, false
	}
	for _, w := range phrases {
		if w.says.MatchString(e.Message) && (gpu || !slices.Contains(ofAccelerators, w.kind)) {
			return w.meaning, true
		}
	}
	switch {
	case !memoryError.MatchString(e.Message):
		return meaning{}, false
	case gpu:
		return meaning{"ecc-uncorrectable", schema.SeverityCritical}, true
	}
	return hostMemory, true
}

// key is a message id without the version of its registry: "Environmental.1.1.0.FanFailed" is "Environmental.FanFailed".
func key(id string) string {
	first, last := strings.IndexByte(id, '.'), strings.LastIndexByte(id, '.')
	if first < 0 {
		return id
	}
	return id[:first] + id[last:]
}

// unknownKinds bounds how many messages that nobody knows are counted by their id; the rest count as "other".
const unknownKinds = 64

// entry judges one entry of a Redfish log that came since the last round and is no XID.
func (m *Memory) entry(s Snapshot, e bmc.LogEntry, add func(Sign)) {
	if e.History || e.Resolved != nil && *e.Resolved {
		return
	}
	slot, serial, gpu := device(s, e)
	x := Sign{Slot: slot, Serial: serial, Code: key(e.MessageID), At: trusted(e.At, s.At), Text: e.Message, Key: fmt.Sprintf("log/%s/%s/%s", e.Service, e.ID, e.Created)}
	what, known := means(e, gpu)
	switch {
	case known && what.kind == "", known && m.shown(what.kind):
		return
	case known:
		x.Kind, x.Severity = what.kind, what.severity
		add(x)
	case strings.EqualFold(e.Severity, "Critical"):
		// Unknown is neither healthy nor a fault: each is counted, and each sort told once, for a person to give it a meaning.
		if x.Code == "" {
			x.Code = "no-message-id"
		}
		if m.Unknown == nil {
			m.Unknown = map[string]int{}
		}
		if _, have := m.Unknown[x.Code]; !have && len(m.Unknown) >= unknownKinds {
			x.Code = "other"
		}
		if m.Unknown[x.Code]++; m.Unknown[x.Code] == 1 {
			x.Kind, x.Severity = "bmc-log", schema.SeverityWarning
			add(x)
		}
	}
}

// shown reports whether the part itself, or its sensor, shows what a log tells of its kind: that is told once.
func (m *Memory) shown(kind string) bool {
	if kind == leaks.kind && len(m.Wet) > 0 {
		return true
	}
	for key := range m.Units {
		if strings.HasPrefix(key, kind+"/") {
			return true
		}
	}
	for _, told := range m.Alarms {
		if told == kind {
			return true
		}
	}
	return false
}

// device finds the accelerator that an entry is about, by its origin or the first word of its first argument. Where the
// BMC's list of them couldn't be read, the name still says that it is one.
func device(s Snapshot, e bmc.LogEntry) (slot, serial string, gpu bool) {
	names := []string{lastOf(e.Origin)}
	if len(e.Args) > 0 {
		first, _, _ := strings.Cut(e.Args[0], " ")
		names = append(names, first)
	}
	for _, n := range names {
		n = strings.TrimPrefix(n, "HGX_")
		if g, ok := named(s, n); ok {
			return g.Slot, g.Serial, true
		}
		if strings.HasPrefix(n, "GPU_") {
			return n, "", true
		}
	}
	return "", "", false
}
