package bmc

import (
	"regexp"
	"slices"
	"time"
)

// Make is who made the server, as far as its firmware's manners go.
type Make string

// The makes that have manners of their own. Unknown is any other: the standard applies.
const (
	MakeUnknown    Make = "unknown"
	MakeAMI        Make = "ami"
	MakeDell       Make = "dell"
	MakeHPE        Make = "hpe"
	MakeLenovo     Make = "lenovo"
	MakeNVIDIA     Make = "nvidia"
	MakeSupermicro Make = "supermicro"
)

// manners is what this package does differently for a firmware. The zero value is the standard.
type manners struct {
	// targetAlias: what a boot target reads back as.
	targetAlias map[string]string
	// undeclaredHTTP: UefiHttp works though the allowable values don't list it.
	undeclaredHTTP bool
	// managerResetIfMatch is sent with Manager.Reset.
	managerResetIfMatch string
	// settle is the least time off before on.
	settle time.Duration
}

// Quirk is one known difference, as data: whom it concerns, where it was seen, what is done about it.
type Quirk struct {
	Name     string
	Make     Make
	Model    *regexp.Regexp // of the host system; nil any
	Firmware *regexp.Regexp // of the BMC; nil any
	Why      string
	Source   string
	apply    func(*manners)
}

// Quirks is the table. Differences that show in the resources themselves are not in it: they are read, not guessed (the
// system with a reset, allowable values inline or in an ActionInfo, the settings resource that holds the override, a
// missing mode, power cycles by off and on).
var Quirks = []Quirk{
	{
		Name: "pxe-reads-back-as-boot-next", Make: MakeSupermicro,
		Why:    "a Pxe override is kept as UefiBootNext; comparing would send it again for ever",
		Source: "https://github.com/DMTF/Redfishtool/pull/106",
		apply:  func(m *manners) { m.targetAlias = map[string]string{"Pxe": "UefiBootNext"} },
	},
	{
		Name: "manager-reset-any-tag", Make: MakeAMI,
		Why:    "Manager.Reset is 412 without If-Match: *",
		Source: "DGX H100 firmware, as driven by libredfish",
		apply:  func(m *manners) { m.managerResetIfMatch = "*" },
	},
	{
		Name: "off-before-on", Make: MakeAMI, Model: regexp.MustCompile(`(?i)dgx`),
		Why:    "an On within 10 to 15 s of the power going off is lost",
		Source: "DGX H100 user guide and https://github.com/DMTF/Redfish-Tacklebox/issues/144",
		apply:  func(m *manners) { m.settle = 15 * time.Second },
	},
	{
		Name: "undeclared-uefi-http", Make: MakeNVIDIA, Model: regexp.MustCompile(`(?i)gh200|p4480|cg1`),
		Why:    "UefiHttp works though it isn't among the allowable values",
		Source: "libredfish, nvidia_gh200",
		apply:  func(m *manners) { m.undeclaredHTTP = true },
	},
	{
		Name: "stays-off-after-force-restart", Make: MakeLenovo, Model: regexp.MustCompile(`(?i)sr67[05]`),
		Why:    "ForceRestart can leave the machine off; a cycle is off, 10 s, on",
		Source: "libredfish, lenovo",
		apply:  func(m *manners) { m.settle = 10 * time.Second },
	},
}

// quirksOf lists the quirks of a machine.
func quirksOf(mk Make, model, firmware string) []Quirk {
	var out []Quirk
	for _, q := range Quirks {
		if q.Make == mk && (q.Model == nil || q.Model.MatchString(model)) && (q.Firmware == nil || q.Firmware.MatchString(firmware)) {
			out = append(out, q)
		}
	}
	return out
}

// firmwareMatters reports whether a quirk of this make depends on the BMC's firmware.
func firmwareMatters(mk Make) bool {
	return slices.ContainsFunc(Quirks, func(q Quirk) bool { return q.Make == mk && q.Firmware != nil })
}
