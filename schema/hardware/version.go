package hardware

import (
	"cmp"
	"strings"
)

// atLeast begins a firmware that may be later than told.
const atLeast = ">="

// satisfies reports whether a version is as ordered. A part that tells none is not.
func satisfies(version, ordered string) bool {
	if least, ok := strings.CutPrefix(ordered, atLeast); ok {
		return version != "" && compareVersions(version, strings.TrimSpace(least)) >= 0
	}
	return version == ordered
}

// compareVersions compares by runs: digits as numbers, all else as text without regard to case. Where one ends first it is the earlier.
// Makers number in too many ways for a stricter rule: 96.00.89.00.01, 1.15.0, GDC5302Q, FB01.
func compareVersions(a, b string) int {
	for a != "" && b != "" {
		x, y := run(&a), run(&b)
		c := strings.Compare(strings.ToLower(x), strings.ToLower(y))
		if digit(x[0]) && digit(y[0]) {
			x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
			c = cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(x, y))
		}
		if c != 0 {
			return c
		}
	}
	return cmp.Compare(len(a), len(b))
}

// run takes a run of digits, or of anything else, off the front.
func run(s *string) string {
	n := 1
	for n < len(*s) && digit((*s)[n]) == digit((*s)[0]) {
		n++
	}
	out := (*s)[:n]
	*s = (*s)[n:]
	return out
}

func digit(c byte) bool { return '0' <= c && c <= '9' }
