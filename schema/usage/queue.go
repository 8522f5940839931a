package usage

import (
	"cmp"
	"slices"

	"gpupool/schema"
)

// Queue is the time in which somebody waited for accelerators, and the part of it in which some of what was waited for were
// idle, in milliseconds of time: however many waited, and however many were idle.
type Queue struct {
	Waited    int64 `json:"waited_ms"`
	WhileIdle int64 `json:"waited_while_idle_ms"` // no more than Waited
}

// IdleShare is the share of the time with waiting jobs in which accelerators were idle; ok is false where nobody waited.
func (q Queue) IdleShare() (float64, bool) { return share(q.WhileIdle, q.Waited) }

// Add adds what was counted of another stretch of time.
func (q *Queue) Add(o Queue) {
	q.Waited += o.Waited
	q.WhileIdle += o.WhileIdle
}

// Queues are the queues within w. waits and idle say of each pool when somebody waited for its accelerators and when some of
// them were idle, in any order and however they overlap. A pool counts in each sum that groups names: a moment at which
// jobs of several of a sum's pools waited is one, and it was one with idle accelerators where a single one of those pools had them.
// A sum in which nobody waited is left out.
func Queues[P, K comparable](waits, idle map[P][]Interval, w Interval, groups func(P) []K) map[K]Queue {
	waited, both := map[K][]Interval{}, map[K][]Interval{}
	for pool, list := range waits {
		list = union(list, w)
		free := overlap(list, union(idle[pool], w))
		for _, k := range groups(pool) {
			waited[k] = append(waited[k], list...)
			both[k] = append(both[k], free...)
		}
	}
	out := map[K]Queue{}
	for k, list := range waited {
		if q := (Queue{length(union(list, w)), length(union(both[k], w))}); q.Waited > 0 {
			out[k] = q
		}
	}
	return out
}

// Idle are the times within w in which an accelerator was free and good and nobody held it, by its pool.
func Idle[P comparable](spans []Span, held []Held, w Interval, pool func(accelerator string) P) map[P][]Interval {
	holds := map[string][]Interval{}
	for _, h := range held {
		holds[h.Accelerator] = append(holds[h.Accelerator], lasting(h.Start, h.End, w))
	}
	for acc, list := range holds {
		holds[acc] = union(list, w)
	}
	out := map[P][]Interval{}
	for _, s := range spans {
		free := lasting(s.Start, s.End, w).Cut(w)
		if s.State != StateIdle || free.Milliseconds() == 0 {
			continue
		}
		p, at := pool(s.Accelerator), free.Start
		for _, h := range holds[s.Accelerator] {
			if part := (Interval{at, min(h.Start, free.End)}); part.Milliseconds() > 0 {
				out[p] = append(out[p], part)
			}
			at = max(at, h.End)
		}
		if rest := (Interval{at, free.End}); rest.Milliseconds() > 0 {
			out[p] = append(out[p], rest)
		}
	}
	return out
}

// unwanted are the reasons of jobs that no idle accelerator would start: nobody wants them started yet, or nothing that is
// idle could ever be what they ask for.
var unwanted = []schema.ReasonCode{schema.ReasonSpecUnavailable, schema.ReasonNeverFits, schema.ReasonDependencyFailed, schema.ReasonHeld, schema.ReasonNotBefore, schema.ReasonDependency}

// Demanded says whether a job that waits for this reason waits for accelerators: not one that is held, is not to start yet,
// comes after another job, or can never run.
func Demanded(code schema.ReasonCode) bool { return !slices.Contains(unwanted, code) }

// Demand are the parts of a wait in which accelerators were waited for; see Demanded. reasons are in order; the first that
// was told within the wait holds from its begin.
func Demand(reasons []Reason, wait Interval) []Interval {
	var out []Interval
	code, since := schema.ReasonNotEvaluated, wait.Start
	count := func(until schema.Instant) {
		if part := (Interval{since, until}); Demanded(code) && part.Milliseconds() > 0 {
			out = append(out, part)
		}
	}
	first := true
	for _, r := range reasons {
		if r.At < wait.Start || r.At > wait.End {
			continue // of an earlier or a later attempt's wait
		}
		if !first {
			count(r.At)
			since = max(since, r.At)
		}
		first, code = false, r.Code
	}
	count(wait.End)
	return out
}

// lasting is [start, end), where an end of 0 is w's.
func lasting(start, end schema.Instant, w Interval) Interval {
	if end == 0 {
		end = w.End
	}
	return Interval{start, end}
}

// union is what of w lies in any of list: in order, and with gaps between.
func union(list []Interval, w Interval) []Interval {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b Interval) int { return cmp.Compare(a.Start, b.Start) })
	var out []Interval
	for _, i := range list {
		if i = i.Cut(w); i.Milliseconds() == 0 {
			continue
		}
		if n := len(out); n > 0 && i.Start <= out[n-1].End {
			out[n-1].End = max(out[n-1].End, i.End)
			continue
		}
		out = append(out, i)
	}
	return out
}

// Lasting is the moment since which all of w until its end lies in one of list or another; ok is false where its end does not.
func Lasting(list []Interval, w Interval) (since schema.Instant, ok bool) {
	all := union(list, w)
	if n := len(all); n > 0 && all[n-1].End == w.End {
		return all[n-1].Start, true
	}
	return 0, false
}

// overlap is what lies in both, of two unions.
func overlap(a, b []Interval) []Interval {
	var out []Interval
	for len(a) > 0 && len(b) > 0 {
		if both := a[0].Cut(b[0]); both.Milliseconds() > 0 {
			out = append(out, both)
		}
		if a[0].End < b[0].End {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return out
}

func length(list []Interval) (ms int64) {
	for _, i := range list {
		ms += i.Milliseconds()
	}
	return ms
}
