package pxe

import (
	"fmt"
	"strings"
	"time"

	"gpupool/schema"
)

// Line is one piece of evidence as a person reads it, for `gpupool pxe watch`:
//
//	14:03:07.120  r1s3 #2  52:54:00:77:00:01  dhcp-offer    10.1.0.57  snponly.efi  ok
func Line(at time.Time, e schema.BootEvidence) string {
	who := e.Server
	if who == "" {
		who = "-"
	}
	if e.Attempt != 0 {
		who += fmt.Sprintf(" #%d", e.Attempt)
	}
	parts := []string{at.Format("15:04:05.000"), fmt.Sprintf("%-14s", who), fmt.Sprintf("%-17s", e.MAC), fmt.Sprintf("%-14s", e.Kind)}
	for _, p := range []string{e.IP, e.What} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	if e.Bytes != 0 {
		parts = append(parts, size(e.Bytes))
	}
	return strings.Join(append(parts, e.Result), "  ")
}

func size(n int64) string {
	switch {
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 10<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
