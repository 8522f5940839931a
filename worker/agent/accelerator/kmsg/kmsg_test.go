package kmsg

import (
	"os"
	"strings"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/shared"
)

func TestLines(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		line, device, kind, code string
		severity                 schema.Severity
	}{
		"a card off its bus":              {"NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=x, GPU has fallen off the bus.", "0000:9b:00.0", "xid", "79", schema.SeverityCritical},
		"an application's own fault":      {"NVRM: Xid (PCI:0000:9b:00): 13, pid=1, Graphics Exception", "0000:9b:00.0", "xid", "13", schema.SeverityInfo},
		"a code that nobody knows":        {"NVRM: Xid (PCI:0000:9b:00): 9999, something new", "0000:9b:00.0", "xid", "9999", schema.SeverityInfo},
		"an address of eight digits":      {"NVRM: Xid (PCI:00000000:9B:00.0): 48, DBE", "0000:9b:00.0", "xid", "48", schema.SeverityCritical},
		"amdgpu's uncorrectable error":    {"amdgpu 0000:0c:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block", "0000:0c:00.0", "ras", "umc", schema.SeverityCritical},
		"amdgpu's correctable error":      {"amdgpu 0000:0c:00.0: amdgpu: 1 correctable hardware errors detected in umc block", "0000:0c:00.0", "ras", "umc", schema.SeverityInfo},
		"a count of none is no error":     {"amdgpu 0000:0c:00.0: amdgpu: 0 uncorrectable hardware errors detected in umc block", "", "", "", ""},
		"a reset that failed":             {"amdgpu 0000:0c:00.0: amdgpu: GPU recovery failed with -62", "0000:0c:00.0", "gpu-reset", "GPU-recovery-failed", schema.SeverityCritical},
		"another driver's word is no XID": {"usb 1-1: Xid in a name", "", "", "", ""},
	} {
		s, ok := Line(c.line)
		if ok != (c.kind != "") || ok && (s.Device != c.device || s.Kind != c.kind || s.Code != c.code || s.Severity != c.severity) {
			t.Errorf("%s: %+v, %v", name, s, ok)
		}
	}
}

func TestARecordHasItsNumberAndItsTime(t *testing.T) {
	t.Parallel()
	boot := time.Unix(1000, 0)
	s, ok := Parse("4,812,2500000,-;NVRM: Xid (PCI:0000:9b:00): 79, x\n SUBSYSTEM=pci\n", boot)
	if !ok || s.Key != "k812" || s.At != schema.At(boot.Add(2500*time.Millisecond)) {
		t.Errorf("%+v, %v", s, ok)
	}
	for _, bad := range []string{"", ";", "4,x,1,-;NVRM: Xid (PCI:0000:9b:00): 79, x", "NVRM: Xid (PCI:0000:9b:00): 79"} {
		if s, ok := Parse(bad, boot); ok {
			t.Errorf("%q was read as %+v", bad, s)
		}
	}
}

func TestARealLogTellsItsXIDs(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(shared.Path(t, "data", "kmsg", "xid-119-gsp-timeout.log"))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Count(string(b), "NVRM: Xid (PCI:")
	got := 0
	for line := range strings.Lines(string(b)) {
		if s, ok := Line(line); ok {
			got++
			if s.Code == "119" && (s.Device != "0000:9b:00.0" || s.Severity != schema.SeverityCritical) {
				t.Errorf("%+v", s)
			}
		}
	}
	if got != want || got == 0 {
		t.Errorf("%d signs in %d lines with an XID", got, want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("4,812,2500000,-;NVRM: Xid (PCI:0000:9b:00): 79, x\n")
	f.Add("6,1,1,-;amdgpu 0000:0c:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block")
	f.Fuzz(func(t *testing.T, s string) {
		if sign, ok := Parse(s, time.Time{}); ok && (sign.Kind == "" || sign.Device == "" || sign.Key == "") {
			t.Errorf("%q gave %+v", s, sign)
		}
	})
}
