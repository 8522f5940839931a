// Package kmsg finds faults in the kernel's log: NVIDIA's XIDs and its switches' SXIDs, amdgpu's hardware errors, PCIe's AER,
// machine checks and memory controllers, and network adapters. The log has a number for each record, so that reading it
// again after a restart tells the same signs under the same keys.
//
// Not here: what a code means for scheduling, beyond how urgent it is at first sight; the platform's rules decide.
package kmsg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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
	scan := NewScanner()
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
		if s, ok := scan.Record(string(buf[:n]), boot); ok && keep(s) {
			emit(s)
		}
	}
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
