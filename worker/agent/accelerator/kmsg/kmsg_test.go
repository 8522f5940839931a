package kmsg

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"gpupool/schema"
	"gpupool/schema/shared"
	"gpupool/worker/agent/accelerator"
)

// TestLogs reads logs and shows the signs in them: testdata/*, a log above ----, its signs below.
func TestLogs(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "log" {
				t.Fatalf("%s: %q is no command; log is", d.Pos, d.Cmd)
			}
			before := Malformed.Load()
			out := tell(d.Input)
			if n := Malformed.Load() - before; n > 0 {
				out += fmt.Sprintf("malformed %d\n", n)
			}
			if out == "" {
				out = "nothing\n"
			}
			return out
		})
	})
}

func tell(log string) string {
	s := NewScanner()
	var out strings.Builder
	for line := range strings.Lines(log) {
		x, ok := s.Line(strings.TrimRight(line, "\n"), 0)
		if !ok {
			continue
		}
		fmt.Fprintf(&out, "%s %s %s", x.Severity, x.Kind, orDash(x.Code))
		for _, f := range []struct{ name, value string }{{"device", x.Device}, {"uuid", x.UUID}, {"serial", x.Serial}, {"part", x.Part}} {
			if f.value != "" {
				fmt.Fprintf(&out, " %s=%s", f.name, f.value)
			}
		}
		if x.Clear {
			out.WriteString(" clear")
		}
		out.WriteByte('\n')
	}
	return out.String()
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func TestARecordHasItsNumberAndItsTime(t *testing.T) {
	t.Parallel()
	boot := time.Unix(1000, 0)
	s, ok := NewScanner().Record("4,812,2500000,-;NVRM: Xid (PCI:0000:9b:00): 79, x\n SUBSYSTEM=pci\n", boot)
	if !ok || s.Key != "k812" || s.At != schema.At(boot.Add(2500*time.Millisecond)) {
		t.Errorf("%+v, %v", s, ok)
	}
	for _, bad := range []string{"", ";", "4,x,1,-;NVRM: Xid (PCI:0000:9b:00): 79, x", "NVRM: Xid (PCI:0000:9b:00): 79"} {
		if s, ok := NewScanner().Record(bad, boot); ok {
			t.Errorf("%q was read as %+v", bad, s)
		}
	}
}

func TestADeviceThatFallsAgainLaterIsASecondFault(t *testing.T) {
	t.Parallel()
	s, line := NewScanner(), "NVRM: Xid (PCI:0000:b3:00): 79, GPU has fallen off the bus."
	got := 0
	for _, at := range []schema.Instant{1, 1000, schema.Instant(lostFor.Milliseconds()) + 2000} {
		if _, ok := s.Line(line, at); ok {
			got++
		}
	}
	if got != 2 {
		t.Errorf("%d faults in three messages, of which two came together", got)
	}
}

// TestARealLog is case 1 of the facts on health: one fault, with the names that the lines before it gave.
func TestARealLog(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(shared.Path(t, "data", "kmsg", "xid-119-gsp-timeout.log"))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Count(string(b), "NVRM: Xid (PCI:")
	got := strings.Split(strings.TrimSpace(tell(string(b))), "\n")
	first := "critical xid 119 device=0000:9b:00.0 uuid=GPU-509665ad-b600-ac93-3616-d754b23d636d serial=1650124014249"
	if len(got) != want || got[0] != first {
		t.Errorf("%d signs in %d lines with an XID; the first is %q", len(got), want, got[0])
	}
}

func TestASignHasTheNameThatTheAgentKnows(t *testing.T) {
	t.Parallel()
	s := accelerator.Sign{Device: "0000:9b:00.0", UUID: "GPU-1", Serial: "S1"}
	if got := s.Resolve(nil).Device; got != "S1" {
		t.Errorf("a device that nobody lists is called %q", got)
	}
	if got := (accelerator.Sign{Device: "0000:9b:00.0"}).Resolve(nil).Device; got != "0000:9b:00.0" {
		t.Errorf("a device of which only the address is known is called %q", got)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add("4,812,2500000,-;NVRM: Xid (PCI:0000:9b:00): 79, x\n")
	f.Add("6,1,1,-;amdgpu 0000:0c:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block")
	f.Add("6,1,1,-;nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20009, Non-fatal, Li")
	f.Add("6,1,1,-;NVRM: The NVIDIA GPU 0000:b3:00.0\n6,2,1,-;NVRM: fallen off the bus")
	f.Fuzz(func(t *testing.T, s string) {
		scan := NewScanner()
		for line := range strings.Lines(s) {
			if sign, ok := scan.Record(line, time.Time{}); ok && (sign.Kind == "" || sign.Key == "" || sign.Severity == "") {
				t.Errorf("%q gave %+v", line, sign)
			}
		}
	})
}
