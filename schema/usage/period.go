package usage

import (
	"fmt"
	"strings"
	"time"

	"gpupool/schema"
)

// Every is the length of a report's periods.
type Every string

const (
	EveryNone  Every = "" // one period
	EveryHour  Every = "hour"
	EveryDay   Every = "day" // of 23, 24 or 25 hours, as the zone's calendar has it
	EveryWeek  Every = "week"
	EveryMonth Every = "month"
)

// Everies are all of them, for messages.
var Everies = []Every{EveryHour, EveryDay, EveryWeek, EveryMonth}

// MaxPeriods bounds a report.
const MaxPeriods = 800

// Period is one part of a report with its name in the zone: 2026-11, 2026-11-30, 2026-11-30T14:00+01:00.
type Period struct {
	Name string
	Interval
}

const zoneRight = "an IANA time zone, like UTC or Europe/Berlin"

// Zone is the IANA time zone named; the process's own ("Local") is none. "" is UTC.
func Zone(name string) (*time.Location, error) {
	if name == "" {
		return time.UTC, nil
	}
	z, err := time.LoadLocation(name)
	if err != nil || strings.EqualFold(name, "local") {
		return nil, schema.Invalid("zone", name, zoneRight)
	}
	return z, nil
}

// Month is the interval of a month like 2026-11 in zone.
func Month(month string, zone *time.Location) (Interval, error) {
	t, err := time.ParseInLocation("2006-01", month, zone)
	if err != nil {
		return Interval{}, schema.Invalid("month", month, "a month, like 2026-11")
	}
	y, m, _ := t.Date()
	return Interval{begin(y, m, 1, zone), begin(y, m+1, 1, zone)}, nil
}

// begin is the first moment of a date. Where the zone skips midnight that is the moment of the skip.
func begin(y int, m time.Month, d int, zone *time.Location) schema.Instant {
	t := time.Date(y, m, d, 0, 0, 0, 0, zone)
	want := time.Date(y, m, d, 12, 0, 0, 0, zone)
	if t.Day() != want.Day() { // midnight does not exist: time.Date gave the last hour of the day before
		_, t = t.ZoneBounds()
	}
	return schema.At(t)
}

// Periods cuts [from, to) at the zone's calendar. The parts sum to the whole.
func Periods(in Interval, every Every, zone *time.Location) ([]Period, error) {
	if in.End < in.Start {
		return nil, schema.Invalid("from", in.Start, "before to, which is "+in.End.String())
	}
	if every == EveryNone {
		return []Period{{"", in}}, nil
	}
	var out []Period
	for at := in.Start; at < in.End; {
		t := at.Time().In(zone)
		y, m, d := t.Date()
		var next schema.Instant
		name := t.Format(time.DateOnly)
		switch every {
		case EveryHour:
			// Zones that are off by parts of an hour have hours of their own.
			_, offset := t.Zone()
			off := schema.Instant(offset) * 1000
			next = HourOf(at+off) + Hour - off
			name = t.Truncate(0).Format("2006-01-02T15:04Z07:00")
		case EveryDay:
			next = begin(y, m, d+1, zone)
		case EveryWeek:
			next = begin(y, m, d+7-int(t.Weekday()+6)%7, zone)
			name = t.AddDate(0, 0, -int(t.Weekday()+6)%7).Format(time.DateOnly)
		case EveryMonth:
			next, name = begin(y, m+1, 1, zone), t.Format("2006-01")
		default:
			return nil, schema.Invalid("every", every, schema.OneOf(Everies))
		}
		if next <= at {
			return nil, fmt.Errorf("no %s follows %s in %s", every, at, zone)
		}
		out = append(out, Period{name, Interval{at, min(next, in.End)}})
		if len(out) > MaxPeriods {
			return nil, schema.Invalid("every", every, fmt.Sprintf("a longer one, or less between from and to: at most %d periods", MaxPeriods))
		}
		at = min(next, in.End)
	}
	return out, nil
}
