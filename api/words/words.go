// Package words says the pool's numbers and states in words that a person reads: durations, sizes, GPU-hours, what a
// phase or a step means, why a job waits. The command line and the console share it, so both say the same.
//
// Invariant: it is pure, and what it can't say it leaves out; an unknown number is never shown as 0.
// Not here: the reasons themselves (activities/allocator/engine), tables and pages (cmd/gpupool/cli, api/console).
package words

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"gpupool/schema"
)

// None stands where there is nothing to show.
const None = "-"

// Duration is d to two units, as people say it: 850ms, 42s, 3m12s, 5h04m, 2d03h. Negative is shown with a minus.
func Duration(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + Duration(-d)
	case d == 0:
		return "0s"
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + "ms"
	case d < time.Minute:
		return strconv.Itoa(int(d/time.Second)) + "s"
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	default:
		return fmt.Sprintf("%dd%02dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
	}
}

// Ago is how long before now t was: "3m12s ago", "just now"; None for the zero Instant.
func Ago(t, now schema.Instant) string {
	switch d := now.Sub(t); {
	case t.IsZero():
		return None
	case d < time.Second && d > -time.Second:
		return "just now"
	case d < 0:
		return "in " + Duration(-d)
	default:
		return Duration(d) + " ago"
	}
}

// Between is the time from one moment to the other, or to now where the other has not come; None before the first.
func Between(from, to, now schema.Instant) string {
	if from.IsZero() {
		return None
	}
	if to.IsZero() {
		to = now
	}
	return Duration(max(to.Sub(from), 0))
}

// Clock is a moment to the second in UTC, without the date where it is today's; None for the zero Instant.
func Clock(t, now schema.Instant) string {
	if t.IsZero() {
		return None
	}
	tt, nn := t.Time(), now.Time()
	if tt.Year() == nn.Year() && tt.YearDay() == nn.YearDay() {
		return tt.Format("15:04:05Z")
	}
	return tt.Format("2006-01-02 15:04:05Z")
}

// Bytes is n in binary units, as memory is counted: "80 GiB", "1.5 TiB"; None for 0, which means not known.
func Bytes(n int64) string {
	if n <= 0 {
		return None
	}
	const units = "KMGTPE"
	v, u := float64(n), -1
	for v >= 1024 && u < len(units)-1 {
		v /= 1024
		u++
	}
	if u < 0 {
		return strconv.FormatInt(n, 10) + " B"
	}
	s := strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64)
	return s + " " + units[u:u+1] + "iB"
}

// HourDigits is how many decimals GPU-hours of this size are worth: a job of seconds is not 0.000, and a month of a pool
// needs no seconds.
func HourDigits(ms int64) int {
	switch h := max(ms, -ms) / 3_600_000; {
	case h < 1:
		return 4
	case h < 100:
		return 2
	default:
		return 1
	}
}

// GPUHours is GPU-milliseconds as hours, with HourDigits decimals.
func GPUHours(ms int64) string { return GPUHoursTo(ms, HourDigits(ms)) }

// GPUHoursTo is GPU-milliseconds as hours with that many decimals (at most 6), rounded half away from zero: so that a
// column of them has one form.
func GPUHoursTo(ms int64, digits int) string {
	sign := ""
	if ms < 0 {
		sign, ms = "-", -ms
	}
	unit := int64(1)
	for range digits {
		unit *= 10
	}
	whole, rest := ms/3_600_000, ms%3_600_000
	part := (rest*unit + 1_800_000) / 3_600_000
	if part == unit {
		whole, part = whole+1, 0
	}
	if whole == 0 && part == 0 {
		sign = ""
	}
	return fmt.Sprintf("%s%d.%0*d", sign, whole, digits, part)
}

// Count is "1 server", "3 servers".
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if strings.HasSuffix(noun, "y") {
		return strconv.Itoa(n) + " " + strings.TrimSuffix(noun, "y") + "ies"
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// Or is s, or None where it is empty.
func Or(s string) string {
	if s == "" {
		return None
	}
	return s
}

// Printable is s without what could move a terminal's cursor or hide text: control characters become "?",
// but for tab and, where lines is set, line feed.
func Printable(s string, lines bool) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t', r == '\n' && lines:
			return r
		case r < 0x20, r >= 0x7f && r < 0xa0, r == '\u2028', r == '\u2029', r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
			return '?'
		}
		return r
	}, s)
}

// Light says what became of a locator light that somebody switched.
func Light(lit bool, by string, ended schema.Instant, failure string) string {
	to := "off"
	if lit {
		to = "on"
	}
	switch {
	case failure != "":
		return "could not be switched " + to + ": " + failure
	case ended.IsZero():
		return "being switched " + to + " for " + by
	}
	return "switched " + to + " by " + by
}
