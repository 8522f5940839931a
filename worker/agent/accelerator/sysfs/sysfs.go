// Package sysfs reads the small files of /sys, under any root: a test's, or a captured tree's.
//
// A file that is not there, or can't be read, is "not known": each function says so, and none makes a 0 of it.
package sysfs

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
)

// Text is a file's content without the white space around it.
func Text(parts ...string) (string, bool) {
	b, err := os.ReadFile(filepath.Join(parts...))
	return strings.TrimSpace(string(b)), err == nil
}

// Number is a file that holds one number, in decimal or 0x.
func Number(parts ...string) (float64, bool) {
	s, ok := Text(parts...)
	if !ok {
		return 0, false
	}
	if n, err := strconv.ParseInt(s, 0, 64); err == nil {
		return float64(n), true
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil && !math.IsNaN(f) && !math.IsInf(f, 0)
}

// Pairs reads NAME=value lines (uevent) or "name: value" lines (ras).
func Pairs(sep string, parts ...string) map[string]string {
	s, _ := Text(parts...)
	m := map[string]string{}
	for line := range strings.Lines(s) {
		if k, v, ok := strings.Cut(line, sep); ok {
			m[strings.TrimSpace(k)] = strings.TrimSpace(v)
		}
	}
	return m
}

// Link adds a PCI device's link: generation and lanes, now and at most.
func Link(d *agentproto.Device, dir string) {
	for metric, file := range map[string]string{accelerator.PCIeGen: "current_link_speed", accelerator.PCIeGenMax: "max_link_speed"} {
		if s, ok := Text(dir, file); ok {
			if g, ok := generation(s); ok {
				d.Samples[metric] = g
			}
		}
	}
	for metric, file := range map[string]string{accelerator.PCIeWidth: "current_link_width", accelerator.PCIeWidthMax: "max_link_width"} {
		// 0 and 255 are what the kernel shows where there is no link to ask.
		if n, ok := Number(dir, file); ok && n > 0 && n < 255 {
			d.Samples[metric] = n
		}
	}
	AER(d, dir)
}

// AER adds a PCI device's error counters (Linux, Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats). They are there
// where the kernel, and not the firmware, handles PCIe errors.
func AER(d *agentproto.Device, parts ...string) {
	for _, c := range []struct{ metric, file, total string }{
		{accelerator.PCIeCorrected, "aer_dev_correctable", "TOTAL_ERR_COR"},
		{accelerator.PCIeNonFatal, "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL"},
		{accelerator.PCIeFatal, "aer_dev_fatal", "TOTAL_ERR_FATAL"},
	} {
		if n, err := strconv.ParseUint(Pairs(" ", append(parts, c.file)...)[c.total], 10, 64); err == nil {
			d.Samples[c.metric] = float64(n)
		}
	}
}

// generation reads "16.0 GT/s PCIe" (PCI Express Base Specification: 2.5, 5, 8, 16, 32, 64 GT/s).
func generation(s string) (float64, bool) {
	rate, _, _ := strings.Cut(s, " ")
	for i, r := range []string{"2.5", "5", "8", "16", "32", "64"} {
		if strings.TrimSuffix(rate, ".0") == r {
			return float64(i + 1), true
		}
	}
	return 0, false
}
