package kmsg

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"gpupool/schema"
	"gpupool/worker/agent/accelerator"
)

// Malformed counts lines that begin as a fault does and can't be read, since the process began. They are no faults: a rising
// count asks for a look at what the driver writes.
var Malformed atomic.Int64

// Scanner reads the log line by line and remembers what one line says of the next: a device's names come before its XID, and
// "fallen off the bus" is said over three lines, with an XID 79 beside it or without.
type Scanner struct {
	names    map[string]names // by PCI address
	asked    string           // the device whose serial number comes next
	halves   []string         // devices of which the rest of the sentence is to come, in the order in which they began
	lost     map[string]schema.Instant
	firmware firmware
	lines    schema.Instant // read so far: the clock of a log without time
}

type names struct{ uuid, serial string }

// NewScanner begins at the log's first line.
func NewScanner() *Scanner {
	return &Scanner{names: map[string]names{}, lost: map[string]schema.Instant{}}
}

// Record reads one record: "level,sequence,microseconds,flags;text", as /dev/kmsg gives it.
func (s *Scanner) Record(record string, boot time.Time) (accelerator.Sign, bool) {
	head, text, ok := strings.Cut(record, ";")
	f := strings.Split(head, ",")
	if !ok || len(f) < 3 {
		return accelerator.Sign{}, false
	}
	seq, err1 := strconv.ParseUint(f[1], 10, 64)
	us, err2 := strconv.ParseInt(f[2], 10, 64)
	if err1 != nil || err2 != nil {
		return accelerator.Sign{}, false
	}
	text, _, _ = strings.Cut(text, "\n") // what follows are the record's own keys
	var at schema.Instant
	if !boot.IsZero() {
		at = schema.At(boot.Add(time.Duration(us) * time.Microsecond))
	}
	sign, ok := s.Line(text, at)
	sign.Key = "k" + strconv.FormatUint(seq, 10)
	return sign, ok
}

const bdf = `[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?`

var (
	nvName   = regexp.MustCompile(`NVRM: GPU at (?:PCI:)?(` + bdf + `): (GPU-[0-9a-fA-F-]+)`)
	nvSerial = regexp.MustCompile(`NVRM: GPU Board Serial Number: (\S+)`)
	// Drivers up to 304 write no "PCI:"; of a partition its instances stand behind the address ("GPU-I:05 GPU-CI:00").
	xid    = regexp.MustCompile(`NVRM: Xid \((?:PCI:)?(` + bdf + `)(?: GPU-C?I:\d+)*\): (\d+)(?:,|:|$)`)
	sxid   = regexp.MustCompile(`SXid \(PCI:(` + bdf + `)\): (\d+)(.*)`)
	nvHalf = regexp.MustCompile(`NVRM: The NVIDIA GPU (?:at )?(?:PCI:)?(` + bdf + `)`)
	nvLost = regexp.MustCompile(`NVRM: (?:GPU (?:at )?(?:PCI:)?(` + bdf + `):? )?(?:GPU )?(?:has )?fallen off the bus`)

	ras    = regexp.MustCompile(`amdgpu (` + bdf + `): .*?(\d+) (?:new )?(uncorrectable|correctable|deferred|poison) (?:hardware errors?|consumption) detected in (total in )?(\S+) block`)
	rasUE  = regexp.MustCompile(`amdgpu (` + bdf + `): .*?(?:\{\d+\})?uncorrectable hardware error\((\w+)\) detected`)
	rasACA = regexp.MustCompile(`amdgpu (` + bdf + `): .*?aca entry\[\d+\]\.STATUS=0x([0-9a-fA-F]{1,16})\b`)
	rasLog = regexp.MustCompile(`amdgpu (` + bdf + `): .*?\[Hardware Error\]: Accelerator Check Architecture events logged`)
	reset  = regexp.MustCompile(`amdgpu (` + bdf + `): .*?(?i:(GPU reset begin|GPU recovery failed|GPU reset end with ret = -|device lost from bus))`)
	// The threshold of pages that went bad is reached: by what was found now, or by what its EEPROM held when it was started.
	badPages = regexp.MustCompile(`amdgpu (` + bdf + `): .*?(?:Saved bad pages ?\(?\d+\)? reaches threshold|RAS records:\d+ exceed threshold)`)

	aer = regexp.MustCompile(`(` + bdf + `): (?:AER: )?PCIe Bus Error: severity=(\w+(?: \(\w[\w-]*\))?)`)
	// A containment cuts a port off what is below it, before it can do harm. What it lost is told beside it.
	dpc = regexp.MustCompile(`(` + bdf + `): DPC: containment event`)
	// Intel's words, for one that kills "Exception"; AMD's decoder's.
	mce    = regexp.MustCompile(`\[Hardware Error\]: CPU \d+: Machine Check(?: Exception)?: [0-9a-fA-F]+ Bank \d+: ([0-9a-fA-F]{1,16})\b`)
	mceAMD = regexp.MustCompile(`\[Hardware Error\]: CPU:\d+ \([^)]*\) MC\d+_STATUS\[[^\]]*\]: 0x([0-9a-fA-F]{1,16})\b`)
	edac   = regexp.MustCompile(`EDAC \w+: (\d+) ([CU]E) `)
	died   = regexp.MustCompile(`Kernel panic - not syncing: (.*)`)

	nicLink   = regexp.MustCompile(`(?:mlx5_core|bnxt_en|ice|i40e|ixgbe|ionic) (` + bdf + `) ?(\S*?):? (?:NIC )?Link (?:is )?(?i:(down|up))`)
	nicHealth = regexp.MustCompile(`(?:mlx5_core|bnxt_en|ice|ionic) (` + bdf + `).*?(device's health compromised|Health issue observed, firmware internal error|insufficient power on the PCIe slot|High temperature on sensors|[Ff]atal error|Cable error|firmware (?:is )?unresponsive|Module .*?(?:temperature|overheat))`)
	nicStuck  = regexp.MustCompile(`NETDEV WATCHDOG: .*?(\S+) \((\w+)\): transmit queue \d+ timed out`)
)

// Line finds a fault in one line of the log, with or without a time stamp before it. at is the line's moment; 0 = not known.
func (s *Scanner) Line(text string, at schema.Instant) (accelerator.Sign, bool) {
	s.lines++
	sign, ok := s.nvidia(text, at)
	if !ok {
		sign, ok = amd(text)
	}
	if !ok {
		sign, ok = s.firmware.line(text)
	}
	if !ok {
		sign, ok = host(text)
	}
	sign.At = at
	return sign, ok
}

func (s *Scanner) nvidia(text string, at schema.Instant) (accelerator.Sign, bool) {
	if strings.Contains(text, "SXid") {
		return switchFault(text)
	}
	if !strings.Contains(text, "NVRM: ") {
		return accelerator.Sign{}, false
	}
	if m := nvName.FindStringSubmatch(text); m != nil {
		s.asked = Address(m[1])
		s.names[s.asked] = names{uuid: m[2]}
		return accelerator.Sign{}, false
	}
	if m := nvSerial.FindStringSubmatch(text); m != nil {
		if n, ok := s.names[s.asked]; ok && s.asked != "" {
			n.serial = m[1]
			s.names[s.asked] = n
		}
		s.asked = ""
		return accelerator.Sign{}, false
	}
	if m := nvHalf.FindStringSubmatch(text); m != nil {
		if len(s.halves) < 64 {
			s.halves = append(s.halves, Address(m[1]))
		}
		return accelerator.Sign{}, false
	}
	if m := xid.FindStringSubmatch(text); m != nil {
		if m[2] == "79" {
			return s.fallen(Address(m[1]), text, at)
		}
		return s.of(Address(m[1]), m[2], text), true
	}
	if m := nvLost.FindStringSubmatch(text); m != nil {
		device := Address(m[1])
		if m[1] == "" {
			if len(s.halves) == 0 {
				Malformed.Add(1)
				return accelerator.Sign{}, false
			}
			device, s.halves = s.halves[0], s.halves[1:]
		}
		return s.fallen(device, text, at)
	}
	if strings.Contains(text, "NVRM: Xid (") {
		Malformed.Add(1)
	}
	return accelerator.Sign{}, false
}

// lostFor is how long the several messages about one device that fell off the bus may be apart. A later one is another fall.
const lostFor = 5 * time.Minute

// fallen tells a device that was lost from the bus once, however many messages say so.
func (s *Scanner) fallen(device, text string, at schema.Instant) (accelerator.Sign, bool) {
	now := at
	if now == 0 {
		now = s.lines * 1000 // a log without time: a line counts as a second
	}
	before, told := s.lost[device]
	s.lost[device] = now
	if told && now.Sub(before) < lostFor {
		return accelerator.Sign{}, false
	}
	return s.of(device, "79", text), true
}

func (s *Scanner) of(device, code, text string) accelerator.Sign {
	n := s.names[device]
	return accelerator.Sign{Device: device, UUID: n.uuid, Serial: n.serial, Kind: "xid", Code: code, Severity: Severity(code), Text: text}
}

// switchFault reads an NVSwitch's SXID. A switch is no accelerator: the fault is the server's, and of all accelerators behind it.
// The line may be cut anywhere.
func switchFault(text string) (accelerator.Sign, bool) {
	m := sxid.FindStringSubmatch(text)
	if m == nil {
		Malformed.Add(1)
		return accelerator.Sign{}, false
	}
	sign := accelerator.Sign{Kind: "sxid", Code: m[2], Severity: schema.SeverityInfo, Text: text}
	switch rest := strings.TrimLeft(m[3], ", "); {
	case strings.HasPrefix(rest, "Severity "), strings.HasPrefix(rest, "Data {"): // more words on the error of the line before
		return accelerator.Sign{}, false
	case strings.HasPrefix(rest, "Fatal"):
		sign.Severity = schema.SeverityCritical
	case strings.HasPrefix(rest, "Non-fatal"):
		sign.Severity = schema.SeverityWarning
	}
	return sign, true
}

func amd(text string) (accelerator.Sign, bool) {
	if !strings.Contains(text, "amdgpu ") {
		return accelerator.Sign{}, false
	}
	if m := ras.FindStringSubmatch(text); m != nil {
		sign := accelerator.Sign{Device: Address(m[1]), Kind: "ras", Code: m[5], Severity: schema.SeverityInfo, Text: text}
		if m[2] == "0" || m[4] != "" { // the sum since the driver was loaded: what is new is told beside it
			return accelerator.Sign{}, false
		}
		switch m[3] {
		case "uncorrectable":
			sign.Severity = schema.SeverityCritical
		case "deferred", "poison": // memory that is wrong and was not used yet; one that was, whose program is ended
			sign.Severity = schema.SeverityWarning
		}
		return sign, true
	}
	if m := rasUE.FindStringSubmatch(text); m != nil {
		return accelerator.Sign{Device: Address(m[1]), Kind: "ras", Code: m[2], Severity: schema.SeverityCritical, Text: text}, true
	}
	if m := rasACA.FindStringSubmatch(text); m != nil {
		return accelerator.Sign{Device: Address(m[1]), Kind: "ras", Code: "aca", Severity: ofStatus(m[2]), Text: text}, true
	}
	if m := rasLog.FindStringSubmatch(text); m != nil {
		return accelerator.Sign{Device: Address(m[1]), Kind: "ras", Code: "aca", Severity: schema.SeverityInfo, Text: text}, true
	}
	if m := reset.FindStringSubmatch(text); m != nil {
		sign := accelerator.Sign{Device: Address(m[1]), Kind: "gpu-reset", Code: "GPU-recovery-failed", Severity: schema.SeverityCritical, Text: text}
		switch strings.ToLower(m[2]) {
		case "gpu reset begin":
			sign.Code, sign.Severity = "GPU-reset-begin", schema.SeverityInfo
		case "device lost from bus":
			sign.Code = "device-lost-from-bus"
		}
		return sign, true
	}
	if m := badPages.FindStringSubmatch(text); m != nil {
		return accelerator.Sign{Device: Address(m[1]), Kind: "bad-pages", Severity: schema.SeverityCritical, Text: text}, true
	}
	return accelerator.Sign{}, false
}

// ofStatus reads a machine check status register: bit 63 valid, 61 uncorrected (AMD64 Architecture Programmer's Manual 2,
// MCA_STATUS; Intel SDM 3B, IA32_MCi_STATUS), and AMD's bit 44, deferred.
func ofStatus(hex string) schema.Severity {
	v, err := strconv.ParseUint(hex, 16, 64)
	switch {
	case err != nil || v>>63 == 0:
		return schema.SeverityInfo
	case v>>61&1 == 1:
		return schema.SeverityCritical
	case v>>44&1 == 1:
		return schema.SeverityWarning
	}
	return schema.SeverityInfo
}

// host finds faults of the server itself: its PCIe ports, processors, memory and network adapters.
func host(text string) (accelerator.Sign, bool) {
	if m := aer.FindStringSubmatch(text); m != nil {
		sign := accelerator.Sign{Device: Address(m[1]), Kind: "pcie", Severity: schema.SeverityWarning, Code: "aer-nonfatal", Text: text}
		switch {
		case strings.HasPrefix(m[2], "Correct"):
			sign.Severity, sign.Code = schema.SeverityInfo, "aer-correctable"
		case strings.Contains(m[2], "(Fatal)"):
			sign.Severity, sign.Code = schema.SeverityCritical, "aer-fatal"
		}
		return sign, true
	}
	if m := dpc.FindStringSubmatch(text); m != nil {
		return accelerator.Sign{Device: Address(m[1]), Kind: "pcie", Code: "dpc", Severity: schema.SeverityWarning, Text: text}, true
	}
	for _, x := range []*regexp.Regexp{mce, mceAMD} {
		if m := x.FindStringSubmatch(text); m != nil {
			return accelerator.Sign{Kind: "mce", Code: "processor", Severity: ofStatus(m[1]), Text: text}, true
		}
	}
	if m := edac.FindStringSubmatch(text); m != nil && m[1] != "0" {
		sign := accelerator.Sign{Kind: "mce", Code: "memory", Severity: schema.SeverityInfo, Text: text}
		if m[2] == "UE" {
			sign.Severity = schema.SeverityCritical
		}
		return sign, true
	}
	if m := died.FindStringSubmatch(text); m != nil {
		return accelerator.Sign{Kind: "panic", Severity: schema.SeverityCritical, Text: text}, true
	}
	if m := nicHealth.FindStringSubmatch(text); m != nil {
		code, severity := "health", schema.SeverityCritical
		switch {
		case m[2] == "Cable error":
			code, severity = "cable", schema.SeverityWarning
		case strings.HasPrefix(m[2], "insufficient power"):
			code, severity = "slot-power", schema.SeverityInfo // many a server says it at each start
		case strings.HasPrefix(m[2], "Module"), strings.HasPrefix(m[2], "High temperature"):
			code, severity = "module", schema.SeverityWarning
		}
		return accelerator.Sign{Kind: "nic", Code: code, Severity: severity, Text: text}, true
	}
	if m := nicLink.FindStringSubmatch(text); m != nil {
		port := m[2]
		if port == "" {
			port = Address(m[1])
		}
		return accelerator.Sign{Kind: "nic", Code: "link", Severity: schema.SeverityWarning, Clear: strings.EqualFold(m[3], "up"), Part: port, Text: text}, true
	}
	if m := nicStuck.FindStringSubmatch(text); m != nil {
		return accelerator.Sign{Kind: "nic", Code: "transmit", Severity: schema.SeverityWarning, Text: fmt.Sprintf("%s (%s): %s", m[1], m[2], text)}, true
	}
	return accelerator.Sign{}, false
}
