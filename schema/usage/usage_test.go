package usage_test

import (
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpupool/schema"
	"gpupool/schema/shared"
	"gpupool/schema/usage"
)

func at(t testing.TB, text string) schema.Instant {
	t.Helper()
	v, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return schema.At(v)
}

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	z, err := usage.Zone(name)
	if err != nil {
		t.Fatal(err)
	}
	return z
}

// total sums rows over a window.
func total(rows []schema.LedgerRow, w usage.Interval) usage.Amounts {
	var a usage.Amounts
	for _, r := range rows {
		a.Add(usage.AmountsOf(r, w))
	}
	return a
}

var ever = usage.Interval{Start: 0, End: math.MaxInt64 / 2}

// Case 20: sums of amount x duration for each slice, never sums of amounts times sums of durations.
func TestConcurrentJobsAreNotMultiplied(t *testing.T) {
	day := at(t, "2026-07-10T00:00:00Z")
	start := day - 120_000
	var rows []schema.LedgerRow
	for i := range 4 {
		rows = append(rows, schema.LedgerRow{ID: fmt.Sprint(i), Kind: schema.LedgerUsage, Start: start, Running: start, End: start + 300_000})
	}
	if got := total(rows, ever).Used(); got != 1_200_000 {
		t.Fatalf("4 x 300 s are %d GPU-ms, want 1,200,000", got)
	}
	periods, err := usage.Periods(usage.Interval{Start: day - 24*usage.Hour, End: day + 24*usage.Hour}, usage.EveryDay, time.UTC)
	if err != nil {
		t.Fatal(err)
	}
	if len(periods) != 2 || total(rows, periods[0].Interval).Used() != 480_000 || total(rows, periods[1].Interval).Used() != 720_000 {
		t.Fatalf("by day: %+v", periods)
	}
	rows = nil
	for i := range 8 {
		rows = append(rows, schema.LedgerRow{ID: fmt.Sprint("g8", i), Kind: schema.LedgerUsage, Start: start, Running: start, End: start + 600_000})
	}
	rows = append(rows, schema.LedgerRow{ID: "g1", Kind: schema.LedgerUsage, Start: start, Running: start, End: start + 60_000})
	if got := total(rows, ever).Used(); got != 4_860_000 {
		t.Fatalf("%d GPU-ms, want 4,860,000", got)
	}
}

// Case 23: the trace's own rows; queue time is no accelerator's time.
func TestQueueTimeIsApart(t *testing.T) {
	for _, c := range []struct {
		name                string
		gpus                int
		submit, start, end  string
		queue, gpuMS, wrong int64
	}{
		{"Kalos dlctk696s0jbvitv", 64, "2023-07-05T11:00:58Z", "2023-07-05T11:01:08Z", "2023-07-05T11:01:16Z", 10_000, 512_000, 1_152_000},
		{"Seren", 8, "2023-07-05T00:18:54Z", "2023-07-05T00:18:54Z", "2023-07-05T00:20:51Z", 0, 936_000, 0},
	} {
		var rows []schema.LedgerRow
		for i := range c.gpus {
			rows = append(rows, schema.LedgerRow{ID: fmt.Sprint(i), Kind: schema.LedgerUsage, Queued: at(t, c.submit), Start: at(t, c.start), Running: at(t, c.start), End: at(t, c.end)})
		}
		if got := total(rows, ever); got.Charged() != c.gpuMS || got.Charged() == c.wrong {
			t.Errorf("%s: %d GPU-ms, want %d", c.name, got.Charged(), c.gpuMS)
		}
		if q := int64(rows[0].Start - rows[0].Queued); q != c.queue {
			t.Errorf("%s: queued for %d ms, want %d", c.name, q, c.queue)
		}
	}
}

// Case 25a: every job of the Philly trace started at its submission.
func TestThePhillyTraceByMonth(t *testing.T) {
	f, err := os.Open(shared.Path(t, "data", "traces", "philly.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	var months []usage.Period
	all := usage.Interval{Start: at(t, "2017-09-01T00:00:00Z"), End: at(t, "2018-01-01T00:00:00Z")}
	if months, err = usage.Periods(all, usage.EveryMonth, time.UTC); err != nil {
		t.Fatal(err)
	}
	sums, byVC := map[string]int64{}, map[string]int64{}
	var sum int64
	crossing := 0
	for _, l := range lines[1:] {
		start, err := time.Parse(time.DateTime, l[0])
		if err != nil {
			t.Fatal(err)
		}
		seconds, err1 := strconv.ParseFloat(l[1], 64)
		gpus, err2 := strconv.ParseInt(l[2], 10, 64)
		if err1 != nil || err2 != nil {
			t.Fatal(l)
		}
		r := schema.LedgerRow{Kind: schema.LedgerUsage, Tenant: l[4], Start: schema.At(start), Running: schema.At(start), End: schema.At(start) + schema.Instant(math.Round(seconds*1000))}
		touched := 0
		for _, m := range months {
			ms := gpus * usage.AmountsOf(r, m.Interval).Used()
			sums[m.Name] += ms
			if ms > 0 {
				touched++
			}
		}
		if touched > 1 {
			crossing++
		}
		ms := gpus * usage.AmountsOf(r, ever).Used()
		sum += ms
		byVC[l[4]] += ms
	}
	hours := func(ms int64) string { return fmt.Sprintf("%.2f", float64(ms)/usage.Hour) }
	for month, want := range map[string]string{"2017-09": "135584.80", "2017-10": "442067.61", "2017-11": "295879.67", "2017-12": "104546.39"} {
		if got := hours(sums[month]); got != want {
			t.Errorf("%s: %s GPU-hours, want %s", month, got, want)
		}
	}
	if hours(sum) != "978078.47" || sums["2017-09"]+sums["2017-10"]+sums["2017-11"]+sums["2017-12"] != sum {
		t.Errorf("%s GPU-hours, want 978078.47, and the months must sum to it", hours(sum))
	}
	if crossing != 550 {
		t.Errorf("%d jobs cross a month, want 550", crossing)
	}
	for vc, want := range map[string]float64{"6214e9": 97184.8, "ee9e8c": 256112.2} {
		if got := float64(byVC[vc]) / usage.Hour; math.Abs(got-want) > 0.05 {
			t.Errorf("virtual cluster %s: %.1f GPU-hours, want %.1f", vc, got, want)
		}
	}
}

func TestDaysHaveAsManyHoursAsTheCalendarSays(t *testing.T) {
	berlin := zone(t, "Europe/Berlin")
	for month, want := range map[string]map[string]int64{
		"2026-03": {"2026-03-28": 24, "2026-03-29": 23, "2026-03-30": 24},
		"2026-10": {"2026-10-24": 24, "2026-10-25": 25, "2026-10-26": 24},
	} {
		m, err := usage.Month(month, berlin)
		if err != nil {
			t.Fatal(err)
		}
		days, err := usage.Periods(m, usage.EveryDay, berlin)
		if err != nil {
			t.Fatal(err)
		}
		var sum int64
		for _, d := range days {
			sum += d.Milliseconds()
			if h, ok := want[d.Name]; ok && d.Milliseconds() != h*usage.Hour {
				t.Errorf("%s has %d ms, want %d hours", d.Name, d.Milliseconds(), h)
			}
		}
		if len(days) != 31 || sum != m.Milliseconds() {
			t.Errorf("%s: %d days of %d ms, the month has %d", month, len(days), sum, m.Milliseconds())
		}
	}
	// A zone that has no midnight on one day (Santiago, 2026-09-06): the day before still ends where the next begins.
	santiago := zone(t, "America/Santiago")
	days, err := usage.Periods(usage.Interval{Start: at(t, "2026-09-05T12:00:00-04:00"), End: at(t, "2026-09-07T12:00:00-03:00")}, usage.EveryDay, santiago)
	if err != nil || len(days) != 3 || days[1].Milliseconds() != 23*usage.Hour {
		t.Errorf("%+v, %v", days, err)
	}
	if _, err := usage.Zone("Local"); err == nil {
		t.Error("the process's own zone was taken")
	}
}

// Whatever the row and the window: hours sum to the whole, periods sum to the whole, phases sum to the interval.
func TestSplitsSumToTheWhole(t *testing.T) {
	zones := []string{"UTC", "Europe/Berlin", "Asia/Kathmandu", "Australia/Lord_Howe", "America/Santiago", "Pacific/Apia"}
	rapid.Check(t, func(t *rapid.T) {
		start := schema.Instant(rapid.Int64Range(1_700_000_000_000, 1_800_000_000_000).Draw(t, "start"))
		moment := rapid.Int64Range(-10_000, 40*24*usage.Hour)
		r := schema.LedgerRow{Kind: rapid.SampledFrom([]schema.LedgerKind{schema.LedgerUsage, schema.LedgerCredit, schema.LedgerAdjustment}).Draw(t, "kind"), Start: start,
			Running: start + schema.Instant(moment.Draw(t, "running")), Stopping: start + schema.Instant(moment.Draw(t, "stopping")), End: start + schema.Instant(rapid.Int64Range(0, 40*24*usage.Hour).Draw(t, "length")), Amount: rapid.Int64Range(-1e9, 1e9).Draw(t, "amount")}
		if rapid.Bool().Draw(t, "never ran") {
			r.Running = 0
		}
		whole := usage.AmountsOf(r, ever)
		if r.Kind == schema.LedgerUsage && whole.Used() != int64(r.End-r.Start) || whole.Rows != 1 || whole.Charged() != r.Milliseconds() {
			t.Fatalf("%+v is %+v", r, whole)
		}
		var hours usage.Amounts
		for h, a := range usage.ByHour(r) {
			if a.Launch < 0 || a.Run < 0 || a.Drain < 0 || a.Credit < 0 {
				t.Fatalf("hour %s is negative: %+v", h, a)
			}
			hours.Add(a)
		}
		if hours != whole {
			t.Fatalf("by hour %+v, whole %+v", hours, whole)
		}
		z, err := usage.Zone(rapid.SampledFrom(zones).Draw(t, "zone"))
		if err != nil {
			t.Fatal(err)
		}
		every := rapid.SampledFrom([]usage.Every{usage.EveryDay, usage.EveryWeek, usage.EveryMonth}).Draw(t, "every")
		in := usage.Interval{Start: start - schema.Instant(rapid.Int64Range(0, 10*24*usage.Hour).Draw(t, "before")), End: r.End + 1}
		periods, err := usage.Periods(in, every, z)
		if err != nil {
			t.Fatal(err)
		}
		var sum usage.Amounts
		at := in.Start
		for _, p := range periods {
			if p.Start != at || p.End <= p.Start {
				t.Fatalf("period %+v does not follow %s", p, at)
			}
			at = p.End
			sum.Add(usage.AmountsOf(r, p.Interval))
		}
		if at != in.End || sum != whole {
			t.Fatalf("by %s in %s %+v, whole %+v", every, z, sum, whole)
		}
	})
}

// Credits never take back more than was used, never the same twice, and what is closed stays as it is.
func TestCreditsStayWithinWhatWasUsed(t *testing.T) {
	payers := rapid.SampledFrom([]usage.Payer{usage.PayerTenant, usage.PayerPool})
	rapid.Check(t, func(t *rapid.T) {
		start := schema.Instant(1_780_000_000_000)
		moment := rapid.Int64Range(0, 100*24*usage.Hour)
		r := schema.LedgerRow{ID: "job/1/acc/0", Kind: schema.LedgerUsage, Start: start, Running: start + schema.Instant(moment.Draw(t, "running")), Stopping: start + schema.Instant(moment.Draw(t, "stopping")),
			End: start + schema.Instant(moment.Draw(t, "length")), Outcome: rapid.SampledFrom([]schema.AttemptOutcome{schema.AttemptCompleted, schema.AttemptFailed, schema.AttemptLost, schema.AttemptPreempted, schema.AttemptUnstarted, schema.AttemptCancelled}).Draw(t, "outcome")}
		p := usage.DefaultPolicy()
		p.Launch, p.Drain, p.PreemptedRun, p.PreemptedDrain = payers.Draw(t, "launch"), payers.Draw(t, "drain"), payers.Draw(t, "run"), payers.Draw(t, "grace")
		p.Lost = rapid.SampledFrom([]usage.Loss{usage.LossAll, usage.LossSinceGood, usage.LossNone}).Draw(t, "lost")
		p.Unstarted = rapid.Int64Range(0, 2*usage.Hour).Draw(t, "unstarted")
		var good schema.Instant
		if rapid.Bool().Draw(t, "fault known") {
			good = start + schema.Instant(rapid.Int64Range(-usage.Hour, 100*24*usage.Hour).Draw(t, "good"))
		}
		now := r.End + 5
		open := start + schema.Instant(rapid.Int64Range(-usage.Hour, 100*24*usage.Hour).Draw(t, "open"))
		credits := p.Credits(r, good, "flt_1", open, now)
		sum := usage.AmountsOf(r, ever)
		ids := map[string]bool{}
		for _, c := range credits {
			if ids[c.ID] || c.ID == r.ID {
				t.Fatalf("the id %s twice", c.ID)
			}
			ids[c.ID] = true
			if c.Kind == schema.LedgerCredit && c.Start < open {
				t.Fatalf("%+v changes a closed month: open from %s", c, open)
			}
			if c.Kind == schema.LedgerAdjustment && (c.End != now || c.Amount >= 0) {
				t.Fatalf("%+v is not booked now", c)
			}
			sum.Add(usage.AmountsOf(c, ever))
		}
		if c := sum.Charged(); c < 0 || c > sum.Used() {
			t.Fatalf("charged %d of %d used: %+v", c, sum.Used(), credits)
		}
		if again := p.Credits(r, good, "flt_1", open, now); fmt.Sprint(again) != fmt.Sprint(credits) {
			t.Fatal("a repeat gives other rows")
		}
		switch {
		case r.Outcome == schema.AttemptLost && p.Lost == usage.LossAll && sum.Charged() != 0:
			t.Fatalf("a lost attempt is charged %d", sum.Charged())
		case r.Outcome == schema.AttemptUnstarted && sum.Charged() != min(p.Unstarted, sum.Used()):
			t.Fatalf("an unstarted attempt is charged %d of %d, at most %d", sum.Charged(), sum.Used(), p.Unstarted)
		}
	})
}

func TestConservationNamesTheAcceleratorAndTheMoment(t *testing.T) {
	w := usage.Interval{Start: 1000 * usage.Hour, End: 1001 * usage.Hour}
	in := []usage.Span{{Accelerator: "a", Start: w.Start}, {Accelerator: "b", Start: w.Start + 600_000}}
	spans := []usage.Span{{Accelerator: "a", State: usage.StateIdle, Start: w.Start, End: w.Start + 1_800_000}, {Accelerator: "a", State: usage.StateUnhealthy, Start: w.Start + 1_800_000}, {Accelerator: "b", State: usage.StateIdle, Start: w.Start + 600_000}}
	held := []usage.Held{{Accelerator: "a", Start: w.Start + 60_000, End: w.Start + 120_000, By: "j1"}, {Accelerator: "b", Start: w.Start + 900_000, By: "j2"}}
	all := func(string) string { return "" }
	sums, found := usage.Conserve(in, spans, held, w, all)
	b := sums[""]
	want := usage.Balance{Installed: 3_600_000 + 3_000_000, Allocated: 60_000 + 2_700_000, Idle: 1_740_000 + 300_000, Unhealthy: 1_800_000}
	if b != want || b.Parts() != b.Installed || len(found) != 0 {
		t.Fatalf("%+v, %+v; want %+v", b, found, want)
	}
	for name, c := range map[string]struct {
		kind, acc string
		at, ms    int64
		break_    func(in, spans []usage.Span, held []usage.Held) ([]usage.Span, []usage.Span, []usage.Held)
	}{
		"held twice": {usage.FoundTwice, "a", 90_000, 30_000, func(in, s []usage.Span, h []usage.Held) ([]usage.Span, []usage.Span, []usage.Held) {
			return in, s, append(h, usage.Held{Accelerator: "a", Start: w.Start + 90_000, End: w.Start + 130_000, By: "j3"})
		}},
		"held before it was installed": {usage.FoundUninstalled, "b", 0, 600_000, func(in, s []usage.Span, h []usage.Held) ([]usage.Span, []usage.Span, []usage.Held) {
			return in, s, append(h, usage.Held{Accelerator: "b", Start: w.Start, End: w.Start + 600_000, By: "j3"})
		}},
		"no state": {usage.FoundStateless, "a", 1_200_000, 600_000, func(in, s []usage.Span, h []usage.Held) ([]usage.Span, []usage.Span, []usage.Held) {
			s[0].End = w.Start + 1_200_000
			return in, s, h
		}},
		"two states": {usage.FoundTwoStates, "a", 1_800_000, 1_800_000, func(in, s []usage.Span, h []usage.Held) ([]usage.Span, []usage.Span, []usage.Held) {
			s[0].End = 0
			return in, s, h
		}},
	} {
		t.Run(name, func(t *testing.T) {
			in, s, h := c.break_(append([]usage.Span{}, in...), append([]usage.Span{}, spans...), append([]usage.Held{}, held...))
			sums, found := usage.Conserve(in, s, h, w, all)
			if len(found) == 0 || found[0].Kind != c.kind || found[0].Accelerator != c.acc || found[0].At != w.Start+schema.Instant(c.at) || found[0].Milliseconds != c.ms {
				t.Fatalf("found %+v, want %+v", found, c)
			}
			if b := sums[""]; b.Parts() == b.Installed {
				t.Fatalf("the sums hide it: %+v", b)
			}
		})
	}
}

func TestMoneyIsRoundedOnce(t *testing.T) {
	p := usage.NewPrices([]usage.Price{{Spec: "s", From: 0, Currency: "EUR", Micros: 2_500_000}, {Spec: "s", From: 10 * usage.Hour, Currency: "EUR", Micros: 3_000_001}})
	w := p.Steady(usage.Interval{Start: 9 * usage.Hour, End: 11 * usage.Hour})
	if len(w) != 2 || w[0].End != 10*usage.Hour || w[1].Start != 10*usage.Hour {
		t.Fatalf("%+v", w)
	}
	var c usage.Cost
	for range 3 {
		c.Add(p.At("s", w[0].Start), usage.Hour/3)
	}
	c.Add(p.At("s", w[1].Start), usage.Hour)
	if m, cur := c.Micros(); m == nil || *m != 5_500_001 || cur != "EUR" {
		t.Fatalf("%v %s", m, cur)
	}
	c.Add(nil, 1)
	if m, _ := c.Micros(); m != nil {
		t.Fatal("a cost with an unpriced part was given")
	}
}

func TestTheVerdictTellsPolicyFromCapacity(t *testing.T) {
	long := usage.Waits{Attempts: 100, P90: 3_600_000}
	full := usage.Balance{Installed: 100, Allocated: 95, Idle: 5}
	for name, c := range map[string]struct {
		counts usage.Counts
		begins string
	}{
		"idle while others wait": {usage.Counts{Wait: long, Allocated: 95, Capacity: full, Known: 90, Idle: 45}, "Long queues and a high idle rate: a policy problem, not a capacity problem"},
		"full":                   {usage.Counts{Wait: long, Allocated: 95, Capacity: full, Known: 90, Idle: 2}, "Long queues and a full pool: a capacity problem"},
		"free and waiting":       {usage.Counts{Wait: long, Allocated: 50, Capacity: usage.Balance{Installed: 100, Allocated: 50, Idle: 50}, Known: 50}, "Long queues and free accelerators"},
		"others fill the pool":   {usage.Counts{Wait: long, Allocated: 5, Capacity: full, Known: 5}, "Long queues and a full pool: a capacity problem"},
		"others use the pool":    {usage.Counts{Allocated: 5, Capacity: full, Known: 5}, "Healthy"},
		"none starts":            {usage.Counts{Waiting: 3, Overdue: 1, Allocated: 95, Capacity: full, Known: 90}, "Long queues and a full pool: a capacity problem"},
		"one of many is overdue": {usage.Counts{Wait: usage.Waits{Attempts: 100, P90: 1}, Waiting: 3, Overdue: 1, Allocated: 95, Capacity: full, Known: 90}, "Healthy"},
		"quiet":                  {usage.Counts{Allocated: 20, Capacity: usage.Balance{Installed: 100, Allocated: 20, Idle: 80}, Known: 20}, "Short queues and a low allocated share"},
		"nothing there":          {usage.Counts{}, "Nothing to judge"},
	} {
		if got := c.counts.Verdict(); len(got) < len(c.begins) || got[:len(c.begins)] != c.begins {
			t.Errorf("%s: %q, want it to begin %q", name, got, c.begins)
		}
	}
}

func TestTheVerdictTellsOfIdleAcceleratorsWhileJobsWaited(t *testing.T) {
	long := usage.Waits{Attempts: 100, P90: 3_600_000}
	c := usage.Counts{Wait: long, Allocated: 95, Capacity: usage.Balance{Installed: 100, Allocated: 95, Idle: 5}, Known: 90, Queue: &usage.Queue{Waited: 36_000_000, WhileIdle: 30_000_000}}
	const number, yet = "for 83.3 % of the time in which jobs waited (10.0 h) accelerators of what they asked for were idle; ", "Yet for most of the time in which jobs waited, some accelerators were idle"
	if v := c.Verdict(); !strings.Contains(v, number) || !strings.Contains(v, yet) {
		t.Errorf("%q, want it to say %q and %q", v, number, yet)
	}
	c.Queue.WhileIdle = 3_600_000
	if v := c.Verdict(); !strings.Contains(v, "for 10.0 % of the time in which jobs waited") || strings.Contains(v, yet) {
		t.Errorf("%q: idle for a tenth of the time is not most of it", v)
	}
	for _, q := range []*usage.Queue{nil, {}} {
		if c.Queue = q; strings.Contains(c.Verdict(), "in which jobs waited") {
			t.Errorf("%q, of a queue of %+v", c.Verdict(), q)
		}
	}
}

func TestATrendNamesTheDay(t *testing.T) {
	var demand []float64
	for i := range 30 {
		demand = append(demand, 100+2*float64(i))
	}
	f := usage.Forecast("h100", demand, 200, time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC))
	// 158 on the last day, 2 more a day: 200 is reached after 21 days.
	if f.Exceeds == nil || *f.Exceeds != "2026-12-21" || math.Abs(f.Slope-2) > 1e-9 || math.Abs(f.Demand-158) > 1e-6 {
		t.Fatalf("%+v", f)
	}
	if f := usage.Forecast("h100", demand[:3], 200, time.Time{}); f.Exceeds != nil || f.Text == "" {
		t.Fatalf("a trend of three days: %+v", f)
	}
}

func TestWhatStartsInItsFirstCycleWaitedForNothing(t *testing.T) {
	t.Parallel()
	wait := func(ms schema.Instant) usage.Interval { return usage.Interval{Start: 1000, End: 1000 + ms} }
	earlier := []usage.Reason{{schema.ReasonCapacity, 500}} // of an attempt before
	for name, c := range map[string]struct {
		got, want schema.ReasonCode
	}{
		"no reason told, at once":          {usage.Longest(nil, wait(40)), usage.AtOnce},
		"told of an earlier wait only":     {usage.Longest(earlier, wait(40)), usage.AtOnce},
		"the allocator was long in coming": {usage.Longest(nil, wait(5000)), schema.ReasonNotEvaluated},
		"a reason was told":                {usage.Longest([]usage.Reason{{schema.ReasonCapacity, 1010}}, wait(40)), schema.ReasonCapacity},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s, want %s", name, c.got, c.want)
		}
	}
}

// A service ends when its owner cancels it: its time counts neither for nor against what completed.
func TestWhatItsOwnerCancelledIsNeitherSuccessNorFailure(t *testing.T) {
	t.Parallel()
	c := usage.Counts{
		Jobs: map[string]int64{"completed": 3, "exit-code": 1, "cancelled": 40},
		GPU:  map[string]int64{string(schema.AttemptCompleted): 600, string(schema.AttemptLost): 200, string(schema.AttemptCancelled): 9000},
	}
	if v, ok := c.JobSuccess(); !ok || v != 0.75 {
		t.Errorf("by jobs %v, want 3 of 4", v)
	}
	if v, ok := c.GPUSuccess(); !ok || v != 0.75 {
		t.Errorf("by accelerator time %v, want 600 of 800", v)
	}
	if _, ok := (usage.Counts{GPU: map[string]int64{string(schema.AttemptCancelled): 1}}).GPUSuccess(); ok {
		t.Error("a success rate of nothing but what was cancelled")
	}
}

// A month that begins without a midnight (Asuncion, 2017-10-01) is open from the moment at which the month before ends.
func TestAMonthIsOpenFromTheMomentItBegins(t *testing.T) {
	asuncion := zone(t, "America/Asuncion")
	september, err := usage.Month("2017-09", asuncion)
	if err != nil {
		t.Fatal(err)
	}
	if got := usage.DefaultPolicy().OpenFrom(at(t, "2017-10-20T12:00:00Z"), asuncion); got != september.End {
		t.Errorf("open from %s, and September ends at %s", got, september.End)
	}
}

func TestAChargingPolicyNamesAZone(t *testing.T) {
	for zone, ok := range map[string]bool{"UTC": true, "Asia/Kolkata": true, "": false, "Local": false, "local": false, "Mars/Olympus": false, "../etc/passwd": false} {
		p := usage.DefaultPolicy()
		p.Zone = zone
		var e *schema.Error
		if err := p.Check(); ok != (err == nil) || !ok && (!errors.As(err, &e) || e.Field != "zone") {
			t.Errorf("zone %q: %v", zone, err)
		}
	}
}
