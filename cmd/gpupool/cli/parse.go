package cli

import (
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"gpupool/schema"
)

// duration is a flag's value in Go's form (90m, 2h30m) or with days (7d, 1d12h), as milliseconds.
type duration struct{ ms int64 }

func (d *duration) String() string {
	if d.ms == 0 {
		return ""
	}
	return schema.Setting(time.Duration(d.ms) * time.Millisecond)
}
func (d *duration) Type() string { return "duration" }
func (d *duration) Set(s string) (err error) {
	d.ms, err = parseDuration(s)
	return err
}

func parseDuration(s string) (int64, error) {
	bad := schema.Invalid("duration", s, "such as 45s, 90m, 2h30m, 7d or 1d12h")
	var days int64
	rest := s
	if head, tail, ok := strings.Cut(s, "d"); ok {
		n, err := strconv.ParseInt(head, 10, 32)
		if err != nil || n < 0 {
			return 0, bad
		}
		days, rest = n, tail
	}
	var d time.Duration
	if rest != "" {
		var err error
		if d, err = time.ParseDuration(rest); err != nil || d < 0 {
			return 0, bad
		}
	} else if days == 0 && s != "0d" {
		return 0, bad
	}
	return days*24*time.Hour.Milliseconds() + d.Milliseconds(), nil
}

// moment is a flag's value as RFC 3339, as a date (its begin in UTC), or as +duration from now.
type moment struct{ at schema.Instant }

func (m *moment) String() string {
	if m.at.IsZero() {
		return ""
	}
	return m.at.String()
}
func (m *moment) Type() string { return "time" }
func (m *moment) Set(s string) error {
	if later, ok := strings.CutPrefix(s, "+"); ok {
		ms, err := parseDuration(later)
		if err != nil {
			return err
		}
		m.at = schema.At(time.Now()).Add(time.Duration(ms) * time.Millisecond)
		return nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", time.DateOnly, "2006-01"} {
		if t, err := time.Parse(layout, s); err == nil {
			m.at = schema.At(t)
			return nil
		}
	}
	return schema.Invalid("time", s, "2026-11-30T14:00:00Z, 2026-11-30 (UTC), 2026-11, or +2h from now")
}

// size is a flag's value in bytes: 64GiB, 1.5TiB, 512GB, or a plain number.
type size struct{ bytes int64 }

func (z *size) String() string {
	if z.bytes == 0 {
		return ""
	}
	return strconv.FormatInt(z.bytes, 10)
}
func (z *size) Type() string { return "size" }
func (z *size) Set(s string) error {
	units := []struct {
		name string
		n    float64
	}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}}
	num, mul := strings.TrimSpace(s), 1.0
	for _, u := range units {
		if head, ok := strings.CutSuffix(num, u.name); ok {
			num, mul = strings.TrimSpace(head), u.n
			break
		}
	}
	v, err := strconv.ParseFloat(num, 64)
	if err != nil || v < 0 || math.IsNaN(v) || v*mul > 1<<53 {
		return schema.Invalid("size", s, "such as 512GiB or 2TiB")
	}
	z.bytes = int64(v * mul)
	return nil
}

// environment reads K=V, or K alone, which takes its value from this process's environment.
func environment(list []string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil
	}
	env := make(map[string]string, len(list))
	for _, kv := range list {
		k, v, ok := strings.Cut(kv, "=")
		if !ok {
			if v, ok = os.LookupEnv(k); !ok {
				return nil, schema.Invalid("env", kv, "NAME=VALUE; or NAME alone, which must then be set here")
			}
		}
		if k == "" {
			return nil, schema.Invalid("env", kv, "NAME=VALUE")
		}
		env[k] = v
	}
	return env, nil
}
