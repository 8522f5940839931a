// Package kmsg finds faults of accelerators in the kernel's log: NVIDIA's XIDs and amdgpu's hardware errors. The log
// has a number for each record, so that reading it again after a restart tells the same signs under the same keys.
//
// Not here: what a code means for scheduling, beyond how urgent it is at first sight; the platform's rules decide.
package kmsg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"gpupool/schema"
	"gpupool/worker/agent/accelerator"
)

// Path is the kernel's log (Documentation/ABI/testing/dev-kmsg).
const Path = "/dev/kmsg"

// Watch reads the log from its beginning and calls emit for each sign that keep wants, until ctx ends.
func Watch(ctx context.Context, path string, boot time.Time, keep func(accelerator.Sign) bool, emit func(accelerator.Sign)) error {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("kernel log: %w", err)
	}
	defer f.Close()
	defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })()
	buf := make([]byte, 16<<10) // a record is at most 8 KiB
	for {
		n, err := f.Read(buf)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, syscall.EPIPE): // records were overwritten before they were read
			continue
		case errors.Is(err, io.EOF):
			return errors.New("kernel log: it ended")
		case err != nil:
			return fmt.Errorf("kernel log: %w", err)
		}
		if s, ok := Parse(string(buf[:n]), boot); ok && keep(s) {
			emit(s)
		}
	}
}

// Parse reads one record: "level,sequence,microseconds,flags;text", as /dev/kmsg gives it.
func Parse(record string, boot time.Time) (accelerator.Sign, bool) {
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
	s, ok := Line(text)
	s.Key = "k" + strconv.FormatUint(seq, 10)
	if !boot.IsZero() {
		s.At = schema.At(boot.Add(time.Duration(us) * time.Microsecond))
	}
	return s, ok
}

var (
	xid = regexp.MustCompile(`NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)(?:,|:|$)`)
	ras = regexp.MustCompile(`amdgpu ([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d): .*?(\d+) (uncorrectable|correctable|deferred) hardware errors? detected in (?:total in )?(\S+) block`)
	rst = regexp.MustCompile(`amdgpu ([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d): .*?(GPU reset begin|GPU recovery failed|device lost from bus)`)
)

// Line finds a fault in one line of the log, with or without a time stamp before it.
func Line(text string) (accelerator.Sign, bool) {
	if m := xid.FindStringSubmatch(text); m != nil {
		return accelerator.Sign{Device: Address(m[1]), Kind: "xid", Code: m[2], Severity: Severity(m[2]), Text: text}, true
	}
	if m := ras.FindStringSubmatch(text); m != nil {
		s := accelerator.Sign{Device: m[1], Kind: "ras", Code: m[4], Severity: schema.SeverityInfo, Text: text}
		if m[2] == "0" {
			return s, false
		}
		if m[3] == "uncorrectable" {
			s.Severity = schema.SeverityCritical
		}
		return s, true
	}
	if m := rst.FindStringSubmatch(text); m != nil {
		s := accelerator.Sign{Device: m[1], Kind: "gpu-reset", Code: strings.ReplaceAll(m[2], " ", "-"), Severity: schema.SeverityWarning, Text: text}
		if m[2] != "GPU reset begin" {
			s.Severity = schema.SeverityCritical
		}
		return s, true
	}
	return accelerator.Sign{}, false
}

// Address makes a PCI address of what a driver writes: 0000:9b:00 or 00000000:9B:00.0 is 0000:9b:00.0.
func Address(s string) string {
	s = strings.ToLower(s)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	if domain, rest, ok := strings.Cut(s, ":"); ok && len(domain) > 4 && strings.Count(s, ":") == 2 {
		s = strings.TrimPrefix(domain, strings.Repeat("0", len(domain)-4)) + ":" + rest
	}
	return s
}

// severities are NVIDIA's XIDs at first sight. Source: NVIDIA XID catalogue (immediate action RESTART_BM, RESET_GPU or
// contact support = critical; RESTART_APP and contained errors = information or warning); where it and other tools
// disagree, health's own rules have the last word. A code that isn't here is kept as information.
var severities = map[string]schema.Severity{
	"48": schema.SeverityCritical, "64": schema.SeverityCritical, "79": schema.SeverityCritical, "95": schema.SeverityCritical,
	"119": schema.SeverityCritical, "120": schema.SeverityCritical, "140": schema.SeverityCritical,
	"62": schema.SeverityWarning, "63": schema.SeverityWarning, "74": schema.SeverityWarning, "92": schema.SeverityWarning,
	"94": schema.SeverityWarning, "109": schema.SeverityWarning, "110": schema.SeverityWarning, "136": schema.SeverityWarning,
}

// Severity is how urgent an XID is at first sight.
func Severity(code string) schema.Severity {
	if s, ok := severities[code]; ok {
		return s
	}
	return schema.SeverityInfo
}
