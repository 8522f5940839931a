package console

import (
	"encoding/json"
	"strconv"
	"time"

	"gpupool/api/call"
	"gpupool/api/contract"
)

// plot is one picture: what static/plots.js draws. Values are null where nothing is known, which leaves a gap.
type plot struct {
	Title  string   `json:"title"`
	Unit   string   `json:"unit"` // s or %
	X      []int64  `json:"x"`    // Unix seconds, the begin of each day
	Series []series `json:"series"`
}

type series struct {
	Label  string     `json:"label"`
	Values []*float64 `json:"values"`
}

// JSON is the plot as an attribute holds it.
func (p plot) JSON() string {
	b, err := json.Marshal(p)
	if err != nil {
		panic(err) // numbers and text only: a programming error
	}
	return string(b)
}

// counted4 are the four counts of a month: by day, and the whole with its verdict.
type counted4 struct {
	Whole contract.Counts
	Days  []contract.Counts
	Plots []plot
	Below int // per cent of utilization under which is idle
}

// counts reads the four counts from a moment to another, or until now.
func (v *visit) counts(from, to time.Time) (counted4, error) {
	var out counted4
	if now := v.now.Time(); to.After(now) {
		to = now
	}
	if !to.After(from) {
		return out, nil
	}
	zone := "UTC" // as the months of this page
	whole, err := call.Do[contract.Report](v.api.GetReport(v.r.Context(), &contract.GetReportParams{From: &from, To: &to, Zone: &zone}))
	if err != nil {
		return out, err
	}
	days, err := call.Do[contract.Report](v.api.GetReport(v.r.Context(), &contract.GetReportParams{From: &from, To: &to, Zone: &zone, Every: opt("day")}))
	if err != nil {
		return out, err
	}
	out.Days, out.Below = days.Items, days.IdleBelowPercent
	if len(whole.Items) > 0 {
		out.Whole = whole.Items[0]
	}
	var x []int64
	for i := range out.Days {
		x = append(x, from.AddDate(0, 0, i).Unix())
	}
	draw := func(title, unit string, lines ...series) {
		for _, l := range lines {
			for _, f := range l.Values {
				if f != nil {
					out.Plots = append(out.Plots, plot{title, unit, x, lines})
					return
				}
			}
		}
	}
	line := func(label string, of func(contract.Counts) *float64) series {
		s := series{Label: label}
		for _, d := range out.Days {
			s.Values = append(s.Values, of(d))
		}
		return s
	}
	waited := func(d contract.Counts, ms int64) *float64 {
		if d.Wait.Attempts == 0 {
			return nil
		}
		s := float64(ms) / 1000
		return &s
	}
	percents := func(f *float64) *float64 {
		if f == nil {
			return nil
		}
		p := 100 * *f
		return &p
	}
	draw("Queue wait", "s", line("p50", func(d contract.Counts) *float64 { return waited(d, d.Wait.P50) }), line("p90", func(d contract.Counts) *float64 { return waited(d, d.Wait.P90) }),
		line("p99", func(d contract.Counts) *float64 { return waited(d, d.Wait.P99) }))
	draw("Allocated share of what was available", "%", line("allocated", func(d contract.Counts) *float64 { return percents(d.AllocatedShare) }))
	draw("Idle among the allocated", "%", line("idle", func(d contract.Counts) *float64 { return percents(d.IdleRate) }), line("unknown", func(d contract.Counts) *float64 { return percents(d.UnknownShare) }))
	draw("Success", "%", line("of jobs", func(d contract.Counts) *float64 { return percents(d.JobSuccess) }), line("of GPU-hours", func(d contract.Counts) *float64 { return percents(d.GpuSuccess) }))
	return out, nil
}

func secondsOf(ms int64) string { return strconv.FormatFloat(float64(ms)/1000, 'f', 1, 64) + " s" }

func shareOf(f *float64) string {
	if f == nil {
		return "–"
	}
	return strconv.FormatFloat(100**f, 'f', 1, 64) + " %"
}
