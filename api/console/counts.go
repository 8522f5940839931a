package console

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"gpupool/api/call"
	"gpupool/api/contract"
	"gpupool/schema/usage"
)

// plot is one picture: what static/plots.js draws. Values are null where nothing is known, which leaves a gap.
type plot struct {
	Title  string   `json:"title"`
	Unit   string   `json:"unit"` // s or %
	Zone   string   `json:"zone"` // IANA name, of the days
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

// mostLines is how many lines a picture has at most.
const mostLines = 8

// counted4 are the four counts of a month: the whole with its verdict, by day, and the pictures of the days.
type counted4 struct {
	By    string            // spec, model, region, tenant, or "" for all together
	Whole []contract.Counts // one for each key, those that used most first
	Days  []contract.Counts
	Plots []plot
	Zone  string
	Below int // per cent of utilization under which is idle
	More  int // keys that are not drawn
}

// counts reads the four counts of w, by a key, and draws its days.
func (v *visit) counts(w usage.Interval, zone *time.Location, by string) (counted4, error) {
	out := counted4{By: by, Zone: zone.String()}
	if w.End <= w.Start {
		return out, nil
	}
	ctx, name := v.r.Context(), zone.String()
	from, to := w.Start.Time(), w.End.Time()
	whole, err := call.Do[contract.Report](v.api.GetReport(ctx, &contract.GetReportParams{From: &from, To: &to, Zone: &name, By: opt(by)}))
	if err != nil {
		return out, err
	}
	days, err := call.Do[contract.Report](v.api.GetReport(ctx, &contract.GetReportParams{From: &from, To: &to, Zone: &name, By: opt(by), Every: opt("day")}))
	if err != nil {
		return out, err
	}
	periods, err := usage.Periods(w, usage.EveryDay, zone)
	if err != nil {
		return out, err
	}
	out.Whole, out.Days, out.Below = whole.Items, days.Items, days.IdleBelowPercent
	slices.SortStableFunc(out.Whole, func(a, b contract.Counts) int { return cmp.Compare(b.AllocatedGpuMs, a.AllocatedGpuMs) })
	out.More = max(0, len(out.Whole)-mostLines)
	out.draw(periods)
	return out, nil
}

// draw makes the pictures: together one of each count with its parts; by a key one of each count, with a line for each.
func (c *counted4) draw(periods []usage.Period) {
	type of = func(contract.Counts) *float64
	x, at := make([]int64, len(periods)), map[string]int{}
	for i, p := range periods {
		x[i], at[p.Name] = p.Start.Time().Unix(), i
	}
	line := func(key, label string, f of) series {
		s := series{Label: label, Values: make([]*float64, len(periods))}
		for _, d := range c.Days {
			if i, ok := at[d.Period]; ok && d.Key == key {
				s.Values[i] = f(d)
			}
		}
		return s
	}
	add := func(title, unit string, lines ...series) {
		lines = slices.DeleteFunc(lines, func(s series) bool { return !slices.ContainsFunc(s.Values, func(f *float64) bool { return f != nil }) })
		if len(lines) > 0 {
			c.Plots = append(c.Plots, plot{title, unit, c.Zone, x, lines})
		}
	}
	waited := func(w func(contract.Counts) (usage.Waits, int64)) of {
		return func(d contract.Counts) *float64 {
			n, ms := w(d)
			if n.Attempts == 0 {
				return nil
			}
			s := float64(ms) / 1000
			return &s
		}
	}
	percents := func(f of) of {
		return func(d contract.Counts) *float64 {
			v := f(d)
			if v == nil {
				return nil
			}
			p := 100 * *v
			return &p
		}
	}
	p50 := waited(func(d contract.Counts) (usage.Waits, int64) { return d.Wait, d.Wait.P50 })
	p90 := waited(func(d contract.Counts) (usage.Waits, int64) { return d.Wait, d.Wait.P90 })
	p99 := waited(func(d contract.Counts) (usage.Waits, int64) { return d.Wait, d.Wait.P99 })
	allocated := percents(func(d contract.Counts) *float64 { return d.AllocatedShare })
	idle := percents(func(d contract.Counts) *float64 { return d.IdleRate })
	unknown := percents(func(d contract.Counts) *float64 { return d.UnknownShare })
	jobs := percents(func(d contract.Counts) *float64 { return d.JobSuccess })
	gpu := percents(func(d contract.Counts) *float64 { return d.GpuSuccess })
	if c.By == "" {
		var byReason []series
		for _, r := range c.reasons() {
			byReason = append(byReason, line("", r.Code, waited(func(d contract.Counts) (usage.Waits, int64) { w := d.WaitByReason[r.Code]; return w, w.P90 })))
		}
		add("Queue wait", "s", line("", "p50", p50), line("", "p90", p90), line("", "p99", p99))
		add("Queue wait, p90 by what held up longest", "s", byReason[:min(len(byReason), mostLines)]...)
		add("Allocated share of what was available", "%", line("", "allocated", allocated))
		add("Idle among the allocated", "%", line("", "idle", idle), line("", "unknown", unknown))
		add("Success", "%", line("", "of jobs", jobs), line("", "of GPU-hours", gpu))
		return
	}
	each := func(f of) (out []series) {
		for _, w := range c.Whole[:min(len(c.Whole), mostLines)] {
			out = append(out, line(w.Key, or(w.Key), f))
		}
		return out
	}
	add("Queue wait, p90", "s", each(p90)...)
	add("Allocated share of what was available", "%", each(allocated)...)
	add("Idle among the allocated", "%", each(idle)...)
	add("Utilization not known, of the allocated", "%", each(unknown)...)
	add("Success of jobs", "%", each(jobs)...)
	add("Success by GPU-hours", "%", each(gpu)...)
}

func (c counted4) title() string {
	if c.By == "" {
		return ""
	}
	return ", by " + c.By
}

func (c counted4) heading() string { return cmp.Or(c.By, "Month") }

func (c counted4) name(d contract.Counts) string {
	if c.By == "" {
		return "all together"
	}
	return or(d.Key)
}

func (c counted4) day(d contract.Counts) string {
	if c.By == "" {
		return d.Period
	}
	return d.Period + " " + or(d.Key)
}

// waitsBy are the waits of those that one reason held up longest.
type waitsBy struct {
	Code string
	usage.Waits
}

// reasons are those of the whole, the most starts first.
func (c counted4) reasons() (out []waitsBy) {
	for _, w := range c.Whole {
		for code, waits := range w.WaitByReason {
			out = append(out, waitsBy{code, waits})
		}
	}
	slices.SortFunc(out, func(a, b waitsBy) int {
		return cmp.Or(cmp.Compare(b.Attempts, a.Attempts), cmp.Compare(a.Code, b.Code))
	})
	return out
}

// counted64 is a name with how many or how much.
type counted64 struct {
	Name string
	N    int64
}

func sortedCounts(m map[string]int64) (out []counted64) {
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, counted64{k, m[k]})
	}
	slices.SortStableFunc(out, func(a, b counted64) int { return cmp.Compare(b.N, a.N) })
	return out
}

func stillWaits(d contract.Counts) string {
	s := fmt.Sprintf("%d jobs wait still, %d of them for 15 minutes or longer.", d.Waiting, d.Overdue)
	if d.Key != "" {
		return d.Key + ": " + s
	}
	return s
}

// waitOf is a percentile; a dash where nothing started.
func waitOf(d contract.Counts, ms int64) string {
	if d.Wait.Attempts == 0 {
		return "–"
	}
	return secondsOf(ms)
}

func secondsOf(ms int64) string { return strconv.FormatFloat(float64(ms)/1000, 'f', 1, 64) + " s" }

func shareOf(f *float64) string {
	if f == nil {
		return "–"
	}
	return strconv.FormatFloat(100**f, 'f', 1, 64) + " %"
}

// moneyOf is an amount to the cent; a dash where there is no price.
func moneyOf(micros *int64, currency *string) string {
	if micros == nil || currency == nil {
		return "–"
	}
	return strconv.FormatFloat(float64(*micros)/1e6, 'f', 2, 64) + " " + *currency
}
