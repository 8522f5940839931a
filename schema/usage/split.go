package usage

import (
	"iter"

	"gpupool/schema"
)

// Hour is the width of a rollup's bucket, in milliseconds. Buckets begin at whole hours of UTC.
const Hour = 3_600_000

// HourOf is the begin of the hour of UTC that holds at.
func HourOf(at schema.Instant) schema.Instant {
	h := at / Hour
	if at%Hour < 0 { // before 1970
		h--
	}
	return h * Hour
}

// NextHour is at where it is a whole hour, else the begin of the next.
func NextHour(at schema.Instant) schema.Instant {
	if h := HourOf(at); h != at {
		return h + Hour
	}
	return at
}

// Hours are the hours that [start, end) touches, each with the part of the interval that lies in it.
func Hours(start, end schema.Instant) iter.Seq2[schema.Instant, Interval] {
	return func(yield func(schema.Instant, Interval) bool) {
		for at := start; at < end; {
			h := HourOf(at)
			next := min(end, h+Hour)
			if !yield(h, Interval{at, next}) {
				return
			}
			at = next
		}
	}
}

// Interval is [Start, End).
type Interval struct {
	Start, End schema.Instant
}

// Cut is the part of i within o; empty (zero or negative length) where they don't meet.
func (i Interval) Cut(o Interval) Interval { return Interval{max(i.Start, o.Start), min(i.End, o.End)} }

// Milliseconds is the length, never negative.
func (i Interval) Milliseconds() int64 { return max(0, int64(i.End-i.Start)) }

// minus is what of i is in none of the others.
func (i Interval) minus(others []Interval) []Interval {
	left := []Interval{i}
	for _, o := range others {
		var rest []Interval
		for _, l := range left {
			for _, part := range []Interval{{l.Start, min(l.End, o.Start)}, {max(l.Start, o.End), l.End}} {
				if part.Milliseconds() > 0 {
					rest = append(rest, part)
				}
			}
			if o.Milliseconds() == 0 {
				rest = []Interval{l}
			}
		}
		left = rest
	}
	return left
}

// Phases are the parts of the time that an attempt held one accelerator. They sum to all of it.
type Phases struct {
	Launch, Run, Drain Interval
}

// PhasesOf splits a usage row: launch until it runs, run until it is asked to stop, drain until it is released. What never
// ran has launched until it was asked to stop.
func PhasesOf(r schema.LedgerRow) Phases {
	stop := r.Stopping
	if stop == 0 || stop > r.End {
		stop = r.End
	}
	stop = max(stop, r.Start)
	run := r.Running
	if run == 0 || run > stop {
		run = stop
	}
	run = max(run, r.Start)
	return Phases{Interval{r.Start, run}, Interval{run, stop}, Interval{stop, r.End}}
}

// Amounts are GPU-milliseconds of a set of ledger rows.
type Amounts struct {
	Launch int64 `json:"launch_gpu_ms"`
	Run    int64 `json:"running_gpu_ms"`
	Drain  int64 `json:"drain_gpu_ms"`
	Credit int64 `json:"credit_gpu_ms"`     // taken back; positive
	Adjust int64 `json:"adjustment_gpu_ms"` // people's corrections and credits of closed months; signed
	Rows   int64 `json:"intervals"`         // ledger rows that ended
}

// Used is the time that accelerators were held, whoever pays for it.
func (a Amounts) Used() int64 { return a.Launch + a.Run + a.Drain }

// Charged is what the tenant pays for.
func (a Amounts) Charged() int64 { return a.Used() - a.Credit + a.Adjust }

// Add adds b to a.
func (a *Amounts) Add(b Amounts) {
	a.Launch += b.Launch
	a.Run += b.Run
	a.Drain += b.Drain
	a.Credit += b.Credit
	a.Adjust += b.Adjust
	a.Rows += b.Rows
}

// Times is what n of them amount to.
func (a Amounts) Times(n int64) Amounts {
	return Amounts{Launch: n * a.Launch, Run: n * a.Run, Drain: n * a.Drain, Credit: n * a.Credit, Adjust: n * a.Adjust, Rows: n * a.Rows}
}

// AmountsOf is what a row amounts to within w. An adjustment counts whole at the moment that it was booked.
func AmountsOf(r schema.LedgerRow, w Interval) Amounts {
	var a Amounts
	if r.End >= w.Start && r.End < w.End {
		a.Rows = 1
	}
	switch r.Kind {
	case schema.LedgerAdjustment:
		a.Adjust = a.Rows * r.Amount
	case schema.LedgerCredit:
		a.Credit = Interval{r.Start, r.End}.Cut(w).Milliseconds()
	case schema.LedgerUsage:
		p := PhasesOf(r)
		a.Launch, a.Run, a.Drain = p.Launch.Cut(w).Milliseconds(), p.Run.Cut(w).Milliseconds(), p.Drain.Cut(w).Milliseconds()
	}
	return a
}

// ByHour are a row's amounts hour by hour. They sum to AmountsOf over all time.
func ByHour(r schema.LedgerRow) iter.Seq2[schema.Instant, Amounts] {
	return func(yield func(schema.Instant, Amounts) bool) {
		last := HourOf(r.End) // where the row is counted, though nothing of it may lie there
		for h := range Hours(r.Start, r.End) {
			if h != last && !yield(h, AmountsOf(r, Interval{h, h + Hour})) {
				return
			}
		}
		yield(last, AmountsOf(r, Interval{last, last + Hour}))
	}
}
