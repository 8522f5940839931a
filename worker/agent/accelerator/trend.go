package accelerator

import (
	"fmt"
	"math"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
)

// Rated is what is remembered of how fast a counter rises.
type Rated struct {
	At     schema.Instant `json:"at"` // the window's beginning
	Value  float64        `json:"value"`
	Over   int            `json:"over,omitempty"` // windows in a row over the limit
	OverAt schema.Instant `json:"over_at,omitempty"`
	Told   float64        `json:"told,omitempty"` // the rate that was told; 0 = it is not over the limit
	ToldAt schema.Instant `json:"told_at,omitempty"`
}

// trend is a counter whose rate is a sign, often the first one.
type trend struct {
	metric, kind, code string
	words              string        // what is counted, in words
	window             time.Duration // over which the rate is taken: nothing is said before it is full
	windows            int           // so many in a row over the limit; 0 = 1
	// limit is the rate a minute from which on it is a sign; 0 = none for this device.
	limit func(samples map[string]float64) float64
	// critical is the rate a minute from which on it is critical; 0 = never.
	critical float64
	severity schema.Severity // below critical; "" = warning
}

func always(perMinute float64) func(map[string]float64) float64 {
	return func(map[string]float64) float64 { return perMinute }
}

// trends of a device. What a rate then leads to is the platform's rules' to say: they compare it with limits of their own.
//
// Sources: correctable errors: proposed (a failing part was seen at 17,700 a second, its neighbours at none). PCIe replays:
// DCGM's limit by generation and lanes, a bit error rate of 1e-12. Links: DCGM fails a link at 100 CRC errors a second and
// warns at one a minute; fewer than five were found harmless in practice.
var trends = []trend{
	{metric: ECCCorrected, kind: "ecc-correctable", words: "correctable memory errors", window: 5 * time.Minute, limit: always(100)},
	{metric: PCIeReplays, kind: "pcie", code: "replay", words: "PCIe replays", window: time.Minute, windows: 3, limit: replayLimit},
	{metric: LinkErrors, kind: "link", code: "errors", words: "errors of links between devices", window: time.Minute, limit: always(5), critical: 100 * 60},
}

// replayLimit is how many PCIe replays a minute a good link has at most, by its generation and lanes
// (DCGM, Pcie.cpp: the errors of a link at its rate and a bit error rate of 1e-12). A link whose width or generation isn't known is not judged.
func replayLimit(samples map[string]float64) float64 {
	gen, lanes := samples[PCIeGen], samples[PCIeWidth]
	perLane := []float64{0.15, 0.3, 0.48, 0.96, 1.92, 3.84}
	if gen < 1 || int(gen) > len(perLane) || lanes < 1 {
		return 0
	}
	return math.Ceil(perLane[int(gen)-1] * lanes)
}

const (
	quiet     = 10 * time.Minute // under the limit for so long, an episode is over and the next is told anew
	rateAgain = time.Hour        // one that lasts is told again so often, and each time that it has doubled
)

// rate takes a counter's value now. full says that a window has ended, and what the rate a minute was in it.
func (r *Rated) rate(t trend, now schema.Instant, v float64) (perMinute float64, full bool) {
	if r.At == 0 || v < r.Value || now < r.At { // first sight, a reset or wrap of the counter, or a clock that was set back
		r.At, r.Value, r.Over = now, v, 0
		return 0, false
	}
	d := now.Sub(r.At)
	if d < t.window {
		return 0, false
	}
	perMinute = (v - r.Value) / d.Minutes()
	r.At, r.Value = now, v
	return perMinute, true
}

// tell reports whether a rate at or over the limit is to be told now.
func (r *Rated) tell(t trend, now schema.Instant, perMinute, limit float64) bool {
	if limit <= 0 || perMinute < limit {
		r.Over = 0
		if r.Told > 0 && now.Sub(r.OverAt) >= quiet {
			r.Told = 0
		}
		return false
	}
	r.Over++
	r.OverAt = now
	if r.Over < t.windows || r.Told > 0 && perMinute < 2*r.Told && now.Sub(r.ToldAt) < rateAgain {
		return false
	}
	r.Told, r.ToldAt = perMinute, now
	return true
}

// step compares a counter with what is remembered of it.
func (s *Sighted) step(t trend, now schema.Instant, samples map[string]float64) (Sign, bool) {
	v, ok := samples[t.metric]
	if !ok || math.IsNaN(v) {
		return Sign{}, false
	}
	key := t.kind + "/" + t.code
	r := s.Rates[key]
	if r == nil {
		if s.Rates == nil {
			s.Rates = map[string]*Rated{}
		}
		r = &Rated{}
		s.Rates[key] = r
	}
	rate, full := r.rate(t, now, v)
	if !full || !r.tell(t, now, rate, t.limit(samples)) {
		return Sign{}, false
	}
	severity := t.severity
	switch {
	case t.critical > 0 && rate >= t.critical:
		severity = schema.SeverityCritical
	case severity == "":
		severity = schema.SeverityWarning
	}
	return Sign{Kind: t.kind, Code: t.code, Severity: severity, Value: rate,
		Text: fmt.Sprintf("%s: %s a minute of %s, over %s (%.0f in all)", s.Name, figure(rate), t.words, span(t.window), v)}, true
}

func (s *Sighted) trends(id string, now schema.Instant, d agentproto.Device) []Sign {
	var signs []Sign
	for _, t := range trends {
		if sign, ok := s.step(t, now, d.Samples); ok {
			sign.Device = id
			signs = append(signs, sign)
		}
	}
	return signs
}

// span is a window in words: "5 minutes", "an hour".
func span(d time.Duration) string {
	switch {
	case d == time.Minute:
		return "a minute"
	case d == time.Hour:
		return "an hour"
	case d%time.Hour == 0:
		return fmt.Sprintf("%d hours", d/time.Hour)
	}
	return fmt.Sprintf("%d minutes", d/time.Minute)
}

// figure shows a number that may be small.
func figure(v float64) string {
	if v < 10 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}
