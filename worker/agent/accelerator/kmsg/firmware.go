package kmsg

import (
	"regexp"
	"strings"

	"gpupool/schema"
	"gpupool/worker/agent/accelerator"
)

// firmware reads what a server's firmware tells the kernel of errors that it handles first (ACPI Platform Error Interfaces,
// UEFI's Common Platform Error Record): a report of several lines under one number, of one or more errors, each with its
// severity, its sort and, for PCIe, its device. Only numbered reports are of now: what the firmware kept of the boot before (BERT) has no
// number, and is no fault of this one. Linux: drivers/firmware/efi/cper.c, drivers/acpi/apei/ghes.c.
type firmware struct {
	report   string          // the number of the report that is being read
	severity schema.Severity // of its error that is being read; "" = not told yet
	pcie     bool            // the error is PCIe's; its device is to come
}

var (
	cperLine   = regexp.MustCompile(`\{(\d+)\}\[Hardware Error\]: +(.*)`)
	cperError  = regexp.MustCompile(`^(?:Error \d+, type|event severity): (\w+)`)
	cperSort   = regexp.MustCompile(`^section_type: (.*?)\s*$`)
	cperDevice = regexp.MustCompile(`^device_id: (` + bdf + `)`)
)

func (f *firmware) line(text string) (accelerator.Sign, bool) {
	m := cperLine.FindStringSubmatch(text)
	if m == nil {
		return accelerator.Sign{}, false
	}
	if m[1] != f.report {
		*f = firmware{report: m[1]}
	}
	said := m[2]
	if m := cperError.FindStringSubmatch(said); m != nil {
		f.pcie = false
		switch m[1] {
		case "corrected", "info":
			f.severity = schema.SeverityInfo
		case "recoverable":
			f.severity = schema.SeverityWarning
		case "fatal":
			f.severity = schema.SeverityCritical
		default:
			f.severity = ""
		}
		return accelerator.Sign{}, false
	}
	if m := cperSort.FindStringSubmatch(said); m != nil {
		f.pcie = m[1] == "PCIe error"
		sign := accelerator.Sign{Kind: "mce", Severity: f.severity, Text: text}
		switch {
		case f.pcie:
			return accelerator.Sign{}, false
		case f.severity == "":
			Malformed.Add(1)
			return accelerator.Sign{}, false
		case strings.Contains(m[1], "memory error"):
			sign.Code = "memory"
		case strings.Contains(m[1], "processor error"):
			sign.Code = "processor"
		default:
			Malformed.Add(1) // a section of which nothing is known
			return accelerator.Sign{}, false
		}
		return sign, true
	}
	if m := cperDevice.FindStringSubmatch(said); m != nil && f.pcie {
		f.pcie = false
		sign := accelerator.Sign{Device: Address(m[1]), Kind: "pcie", Severity: f.severity, Text: text}
		switch f.severity {
		case schema.SeverityInfo:
			sign.Code = "aer-correctable"
		case schema.SeverityWarning:
			sign.Code = "aer-nonfatal"
		case schema.SeverityCritical:
			sign.Code = "aer-fatal"
		default:
			Malformed.Add(1)
			return accelerator.Sign{}, false
		}
		return sign, true
	}
	return accelerator.Sign{}, false
}
