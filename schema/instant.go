package schema

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Instant is a moment in Unix milliseconds UTC; 0 means "not yet" or "never".
// It is an integer so that intervals add up exactly in both databases, whatever TZ the process runs in.
type Instant int64

// At converts a time to an Instant, dropping what is finer than a millisecond.
func At(t time.Time) Instant {
	if t.IsZero() {
		return 0
	}
	return Instant(t.UnixMilli())
}

// Time is the UTC time of i; the zero time where i is 0.
func (i Instant) Time() time.Time {
	if i == 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(i)).UTC()
}

// IsZero reports whether the moment has not come.
func (i Instant) IsZero() bool { return i == 0 }

// Sub is the duration i - j, or the longest that a Duration holds (292 years) where it is longer: RFC 3339 reaches the year 9999.
func (i Instant) Sub(j Instant) time.Duration {
	const most = Instant(math.MaxInt64 / int64(time.Millisecond))
	return time.Duration(min(max(i-j, -most), most)) * time.Millisecond
}

// Add is the moment d after i, to the millisecond.
func (i Instant) Add(d time.Duration) Instant { return i + Instant(d.Milliseconds()) }

// String is RFC 3339 with milliseconds, or "-" for the zero Instant.
func (i Instant) String() string {
	if i == 0 {
		return "-"
	}
	return i.Time().Format("2006-01-02T15:04:05.000Z07:00")
}

// MarshalJSON writes RFC 3339 in UTC, or null for the zero Instant.
func (i Instant) MarshalJSON() ([]byte, error) {
	if i == 0 {
		return []byte("null"), nil
	}
	return json.Marshal(i.String())
}

// LastMoment is the last that a person may ask for, the beginning of 2200: a clock of nanoseconds, as the allocator's, ends in 2262.
const LastMoment Instant = 7_258_118_400_000

// CheckMoment refuses a moment that the allocator's clock does not hold; 0 is none, and right.
func CheckMoment(field string, i Instant) error {
	if i < 0 || i > LastMoment {
		return Invalid(field, i.String(), "a moment from 1970 to "+LastMoment.String()+", or nothing")
	}
	return nil
}

// UnmarshalJSON reads RFC 3339, or null.
func (i *Instant) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*i = 0
		return nil
	}
	var t time.Time
	if err := json.Unmarshal(b, &t); err != nil {
		return fmt.Errorf("a moment is RFC 3339 or null, not %s: %w", b, err)
	}
	*i = At(t)
	return nil
}

// Setting is d as a person types it: 45s, 90m as 1h30m, 7d. It is exact to the millisecond, and the command line reads it.
func Setting(d time.Duration) string {
	days, rest := d/(24*time.Hour), d%(24*time.Hour)
	if d < 24*time.Hour {
		days, rest = 0, d
	}
	s := rest.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	switch {
	case days == 0:
		return s
	case rest == 0:
		return strconv.FormatInt(int64(days), 10) + "d"
	default:
		return strconv.FormatInt(int64(days), 10) + "d" + s
	}
}
