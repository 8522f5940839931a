package simulate

import (
	"fmt"
	"io"
	"math/bits"
	"slices"
	"text/tabwriter"
	"time"
)

// Report is what a replay found. Durations are seconds, shares are of 1.
type Report struct {
	Policy       string  `json:"policy"`
	Accelerators int     `json:"accelerators"`
	Jobs         int     `json:"jobs"`
	Completed    int     `json:"completed"`
	Unstarted    int     `json:"unstarted"`
	Expired      int     `json:"expired"`
	TurnedAway   int     `json:"turned_away"`
	Starts       int     `json:"starts"`
	Backfilled   int     `json:"backfilled"`
	Preemptions  int     `json:"preemptions"`
	LostGPUHours float64 `json:"lost_gpu_hours"`
	GPUHours     float64 `json:"gpu_hours"`
	Span         float64 `json:"span_seconds"`

	WaitMax  float64 `json:"wait_seconds_max"`
	WaitMean float64 `json:"wait_seconds_mean"`
	WaitP50  float64 `json:"wait_seconds_p50"`
	WaitP90  float64 `json:"wait_seconds_p90"`
	WaitP99  float64 `json:"wait_seconds_p99"`

	AllocatedShare float64 `json:"allocated_share"`
	Fragmentation  float64 `json:"fragmentation"`
	// WaitingWhileIdle is the share of time in which jobs waited although at least one accelerator was idle.
	WaitingWhileIdle float64 `json:"waiting_while_idle"`

	// UnstartedBy is why the unstarted still waited at the end, by reason code.
	UnstartedBy      map[string]int     `json:"unstarted_by,omitempty"`
	WaitBySpec       map[string]Waits   `json:"wait_by_spec"`
	GPUHoursByTenant map[string]float64 `json:"gpu_hours_by_tenant"`
	GPUHoursByMonth  map[string]float64 `json:"gpu_hours_by_month"`

	Cycles    int      `json:"cycles"`
	Decisions int      `json:"decisions"`
	Series    []Sample `json:"series,omitempty"`

	waits   []time.Duration
	bySpec  map[string][]time.Duration
	total   amount
	tenants map[string]*amount
	months  map[string]*amount
	held    amount // accelerators x time over the whole span
	idle    time.Duration
	began   time.Time
	ended   time.Time
	asked   int64
}

// Waits is the queue waits of one spec's jobs, in seconds.
type Waits struct {
	Jobs int     `json:"jobs"`
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	Max  float64 `json:"max"`
}

// Sample is accelerators in use and accelerators asked for by waiting jobs, from a moment until the next sample.
type Sample struct {
	At      time.Time `json:"at"`
	Busy    float64   `json:"busy"`
	Waiting float64   `json:"waiting"`
}

// amount is thousandths of an accelerator x nanoseconds, in 128 bits: a century of a million accelerators fits.
type amount struct{ hi, lo uint64 }

func (a *amount) add(milli int64, d time.Duration) {
	if milli <= 0 || d <= 0 {
		return
	}
	hi, lo := bits.Mul64(uint64(milli), uint64(d))
	var carry uint64
	a.lo, carry = bits.Add64(a.lo, lo, 0)
	a.hi, _ = bits.Add64(a.hi, hi, carry)
}

// milliSeconds is the amount in thousandths of an accelerator-second, exact where run times are whole milliseconds.
func (a *amount) milliSeconds() int64 {
	q, _ := bits.Div64(a.hi%uint64(time.Second), a.lo, uint64(time.Second))
	return int64(q)
}

// hours is the amount in accelerator-hours.
func (a *amount) hours() float64 { return float64(a.milliSeconds()) / 1000 / 3600 }

func newReport(policy string, accelerators, jobs int) *Report {
	return &Report{
		Policy: policy, Accelerators: accelerators, Jobs: jobs, bySpec: map[string][]time.Duration{},
		tenants: map[string]*amount{}, months: map[string]*amount{},
	}
}

func (r *Report) wait(_ Job, label string, waited time.Duration) {
	r.waits = append(r.waits, waited)
	r.bySpec[label] = append(r.bySpec[label], waited)
}

// charge is one row of the ledger: [from, to) of milli thousandths, split at the months it crosses.
func (r *Report) charge(j Job, milli int64, from, to time.Time) {
	r.total.add(milli, to.Sub(from))
	t := r.tenants[j.Tenant]
	if t == nil {
		t = &amount{}
		r.tenants[j.Tenant] = t
	}
	t.add(milli, to.Sub(from))
	for from.Before(to) {
		y, m, _ := from.Date()
		edge := time.Date(y, m+1, 1, 0, 0, 0, 0, from.Location())
		if edge.After(to) {
			edge = to
		}
		key := from.Format("2006-01")
		if r.months[key] == nil {
			r.months[key] = &amount{}
		}
		r.months[key].add(milli, edge.Sub(from))
		from = edge
	}
}

// pass accounts for the time from one moment to the next.
func (r *Report) pass(from, to time.Time, busy, waiting int64) {
	if r.began.IsZero() {
		r.began = to
		return
	}
	r.ended = to
	if !to.After(from) {
		return
	}
	r.held.add(busy, to.Sub(from))
	if waiting > 0 && busy+1000 <= int64(r.Accelerators)*1000 {
		r.idle += to.Sub(from)
	}
	s := Sample{from, float64(busy) / 1000, float64(waiting) / 1000}
	if n := len(r.Series); n > 0 && r.Series[n-1].Busy == s.Busy && r.Series[n-1].Waiting == s.Waiting {
		return
	}
	r.Series = append(r.Series, s)
	if len(r.Series) > maxSamples {
		r.thin()
	}
}

// maxSamples bounds the series kept for the picture.
const maxSamples = 1 << 16

// thin halves the series: of two samples the one with more waiting stays, so that peaks are not lost.
func (r *Report) thin() {
	out := r.Series[:0]
	for i := 0; i+1 < len(r.Series); i += 2 {
		s := r.Series[i]
		if r.Series[i+1].Waiting > s.Waiting {
			s.Waiting, s.Busy = r.Series[i+1].Waiting, r.Series[i+1].Busy
		}
		out = append(out, s)
	}
	r.Series = out
}

func (r *Report) finish(run *run) {
	for i := range run.state {
		if run.state[i].over {
			continue
		}
		r.Unstarted++
		if why, ok := run.pool.Explain(run.jobs[i].ID); ok {
			if r.UnstartedBy == nil {
				r.UnstartedBy = map[string]int{}
			}
			r.UnstartedBy[string(why.Code)]++
		}
	}
	r.GPUHours = r.total.hours()
	r.Span = r.ended.Sub(r.began).Seconds()
	if capacity := float64(r.Accelerators) * r.Span; capacity > 0 {
		r.AllocatedShare = r.held.hours() * 3600 / capacity
		r.WaitingWhileIdle = r.idle.Seconds() / r.Span
	}
	r.Fragmentation = run.pool.Fragmentation() / float64(max(r.Accelerators, 1))
	w := summary(r.waits)
	r.WaitMax, r.WaitMean, r.WaitP50, r.WaitP90 = w.Max, w.Mean, w.P50, w.P90
	r.WaitP99 = quantile(r.waits, 0.99)
	r.WaitBySpec = map[string]Waits{}
	for spec, list := range r.bySpec {
		r.WaitBySpec[spec] = summary(list)
	}
	r.GPUHoursByTenant, r.GPUHoursByMonth = map[string]float64{}, map[string]float64{}
	for tenant, a := range r.tenants {
		r.GPUHoursByTenant[tenant] = a.hours()
	}
	for month, a := range r.months {
		r.GPUHoursByMonth[month] = a.hours()
	}
}

// summary sorts the waits in place.
func summary(waits []time.Duration) Waits {
	if len(waits) == 0 {
		return Waits{}
	}
	slices.Sort(waits)
	sum := 0.0
	for _, w := range waits {
		sum += w.Seconds()
	}
	return Waits{
		Jobs: len(waits), Mean: sum / float64(len(waits)), P50: quantile(waits, 0.5), P90: quantile(waits, 0.9),
		Max: waits[len(waits)-1].Seconds(),
	}
}

// quantile of sorted waits, in seconds.
func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)].Seconds()
}

// Print writes reports side by side, for people.
func Print(w io.Writer, reports ...*Report) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	line := func(name, format string, value func(*Report) any) {
		fmt.Fprint(tw, name)
		for _, r := range reports {
			fmt.Fprintf(tw, "\t"+format, value(r))
		}
		fmt.Fprintln(tw)
	}
	line("policy", "%s", func(r *Report) any { return r.Policy })
	line("accelerators", "%d", func(r *Report) any { return r.Accelerators })
	line("jobs", "%d", func(r *Report) any { return r.Jobs })
	line("completed", "%d", func(r *Report) any { return r.Completed })
	line("unstarted", "%d", func(r *Report) any { return r.Unstarted })
	line("turned away", "%d", func(r *Report) any { return r.TurnedAway })
	line("gpu_hours", "%.2f", func(r *Report) any { return r.GPUHours })
	line("wait_seconds_mean", "%.1f", func(r *Report) any { return r.WaitMean })
	line("wait_seconds_p50", "%.0f", func(r *Report) any { return r.WaitP50 })
	line("wait_seconds_p90", "%.0f", func(r *Report) any { return r.WaitP90 })
	line("wait_seconds_p99", "%.0f", func(r *Report) any { return r.WaitP99 })
	line("wait_seconds_max", "%.0f", func(r *Report) any { return r.WaitMax })
	line("allocated_share", "%.4f", func(r *Report) any { return r.AllocatedShare })
	line("fragmentation", "%.4f", func(r *Report) any { return r.Fragmentation })
	line("waiting_while_idle", "%.4f", func(r *Report) any { return r.WaitingWhileIdle })
	line("preemptions", "%d", func(r *Report) any { return r.Preemptions })
	line("lost_gpu_hours", "%.2f", func(r *Report) any { return r.LostGPUHours })
	line("backfilled", "%d", func(r *Report) any { return r.Backfilled })
	line("decisions", "%d", func(r *Report) any { return r.Decisions })
	section := func(title string, keys []string, show func(r *Report, key string) string) {
		if len(keys) == 0 {
			return
		}
		fmt.Fprintf(tw, "\n%s\n", title)
		for _, key := range keys {
			fmt.Fprint(tw, "  "+key)
			for _, r := range reports {
				fmt.Fprint(tw, "\t"+show(r, key))
			}
			fmt.Fprintln(tw)
		}
	}
	section("unstarted, by why they wait", keysOf(reports, func(r *Report) []string { return sortedKeys(r.UnstartedBy) }),
		func(r *Report, key string) string { return fmt.Sprint(r.UnstartedBy[key]) })
	section("wait by spec: jobs, mean / p50 / p90 / max seconds", keysOf(reports, func(r *Report) []string { return sortedKeys(r.WaitBySpec) }),
		func(r *Report, key string) string {
			v := r.WaitBySpec[key]
			return fmt.Sprintf("%d, %.0f / %.0f / %.0f / %.0f", v.Jobs, v.Mean, v.P50, v.P90, v.Max)
		})
	section("gpu_hours by tenant", keysOf(reports, func(r *Report) []string { return sortedKeys(r.GPUHoursByTenant) }),
		func(r *Report, key string) string { return fmt.Sprintf("%.2f", r.GPUHoursByTenant[key]) })
	section("gpu_hours by month", keysOf(reports, func(r *Report) []string { return sortedKeys(r.GPUHoursByMonth) }),
		func(r *Report, key string) string { return fmt.Sprintf("%.2f", r.GPUHoursByMonth[key]) })
	return tw.Flush()
}

func keysOf(reports []*Report, of func(*Report) []string) []string {
	var all []string
	for _, r := range reports {
		all = append(all, of(r)...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
