package engine

import (
	"cmp"
	"fmt"
	"math"
	"time"
)

// learned is what the engine knows of how limits compare with what really ran, and of how good its estimates were.
type learned struct {
	ratios  ring // run time over limit, of attempts that ended
	planned record
	queued  record
	stretch ring // how long jobs estimated by the rate of starts waited, over what the rate said
}

// record is how estimates of one kind came out.
type record struct {
	misses  ring // (start - p50), in seconds, absolute
	covered int  // started by their p90
	judged  int
}

// ring keeps the last values seen, and their quantiles once they were asked for.
type ring struct {
	values []float64
	sorted []float64 // space to find them in
	next   int
	mid    float64
	high   float64 // 90th percentile
	fresh  bool    // mid and high are up to date
}

// A ring keeps ringSize values, and foretells by them once it has enough.
const (
	ringSize = 512
	enough   = 8
)

func (r *ring) put(v float64) {
	r.fresh = false
	if len(r.values) < ringSize {
		r.values = append(r.values, v)
		return
	}
	r.values[r.next] = v
	r.next = (r.next + 1) % ringSize
}

// median and p90 of the values kept, the defaults when there are too few to say.
func (r *ring) quantiles(median, p90 float64) (float64, float64) {
	if len(r.values) < enough {
		return median, p90
	}
	r.measure()
	return r.mid, r.high
}

// measure finds the quantiles of the values there are, at least one.
func (r *ring) measure() {
	if !r.fresh {
		r.sorted = append(r.sorted[:0], r.values...)
		r.mid, r.high, r.fresh = nth(r.sorted, len(r.sorted)/2), nth(r.sorted, len(r.sorted)*9/10), true
	}
}

// nth is what would be at i if the list, which is reordered, were sorted.
func nth(list []float64, i int) float64 {
	split(list, i+1, cmp.Compare)
	return list[i]
}

func (r *ring) median(def float64) float64 {
	mid, _ := r.quantiles(def, def)
	return mid
}

func (s *State) learnFrom(al *alloc, when int64) {
	if al.TimeLimit <= 0 || al.told {
		return
	}
	s.learn.ratios.put(min(float64(when-ns(al.Started))/float64(al.TimeLimit), 1))
}

// estimate is when a job is expected to start. A planned start rests on every limit running out, so it is the p90;
// the p50 scales what is left by how much of their limits jobs have used.
func (s *State) estimate(j *job, code Code) (*ETA, string) {
	switch code {
	case SpecUnavailable, NeverFits, DependencyFailed:
		return nil, "the job can't start as it is"
	case QueueStopped:
		if st := s.stop(j.shape); st != nil && !st.Until.IsZero() {
			return &ETA{P50: st.Until, P90: st.Until, Basis: "the end of the stop, if accelerators are free then", At: at(s.now)}, ""
		}
		return nil, "nobody has said when the queue is started again"
	case Held, DependencyWait, JobLimit, QuotaReached, GuaranteeOnly:
		return nil, "it waits for a decision or for its own project, not for accelerators"
	case NotEvaluated:
		return nil, "not evaluated yet"
	case BudgetSpent:
		b := j.shape.verdict.budget
		if b == nil {
			return nil, "it waits for its budget"
		}
		return &ETA{P50: at(b.reset), P90: at(b.reset), Basis: "the budget's reset", At: at(s.now)}, ""
	case NotBefore:
		if j.NotBefore.IsZero() {
			return nil, "an earlier attempt is still being released"
		}
		return &ETA{P50: j.NotBefore, P90: j.NotBefore, Basis: "not before, if accelerators are free then", At: at(s.now)}, ""
	default: // it waits for accelerators: the plan says when
	}
	if code == Unhealthy {
		if b := s.diagnose(j).back; b.at > 0 && (j.plan == nil || b.at < j.plan.start) {
			return &ETA{P50: at(b.at), P90: at(b.late), Basis: cmp.Or(b.basis, "the repair's own estimate"), At: at(s.now)}, ""
		}
	}
	switch {
	case j.plan != nil:
	case code == Unhealthy && len(s.toDecide(j)) > 0:
		return nil, "it waits for a person to decide"
	case code == Unhealthy:
		return nil, "nobody has said when what it needs will be repaired"
	case code == WindowAhead:
		end := at(j.shape.verdict.window.until)
		if end.IsZero() {
			return nil, "the window it would run into has no end"
		}
		return &ETA{P50: end, P90: end, Basis: "the window's end, if accelerators are free then", At: at(s.now)}, ""
	case s.endless(j, code):
		return nil, "what holds its place has no end of its own, as services have none"
	default:
		return s.estimateQueued(j)
	}
	p50, start := s.estimatePlan(j.plan)
	j.guessed().planned.set(guess{p50: p50, p90: start, made: s.now})
	what := "the victims' grace"
	if !j.plan.claim {
		what = "planned by time limits"
		if n := len(s.learn.ratios.values); n >= enough {
			what += fmt.Sprintf("; jobs used %.0f %% of theirs (median of %d)", s.learn.ratios.median(1)*100, n)
		}
	}
	return &ETA{P50: at(p50), P90: at(start), Basis: what + s.learn.planned.String(), At: at(s.now)}, ""
}

// endless says that no end of what runs makes room for a job, or for the first in line, which asks for the same and
// does not run longer.
func (s *State) endless(j *job, code Code) bool {
	if code == Capacity || code == Fragmented {
		return s.diagnose(j).endless
	}
	first := s.lineOf(j.shape.spec.family).first()
	return first != nil && first != j && first.plan == nil && first.shape.req == j.shape.req &&
		(j.limit <= 0 || first.limit > 0 && first.limit <= j.limit) && s.diagnose(first).endless
}

// estimatePlan is when a planned start is expected, and when it is due at the latest.
func (s *State) estimatePlan(pl *plan) (p50, p90 int64) {
	p90 = max(pl.start, s.now)
	if pl.claim {
		return p90, p90
	}
	return s.now + int64(float64(p90-s.now)*s.learn.ratios.median(1)), p90
}

// planBefore is the last planned start that a job can't come before: of one that asks for the same, is ahead of it, and does
// not run longer. nil when there is none.
func (s *State) planBefore(j *job) *plan {
	var last *plan
	st := s.standing(j.shape)
	for _, pl := range s.plans {
		o := pl.job
		same := o.shape.req == j.shape.req && (len(s.windows) == 0 && !s.oneTenant || o.shape.group.account == j.shape.group.account)
		if same && (j.limit <= 0 || o.limit > 0 && o.limit <= j.limit) && pl.binds(j, st) && (last == nil || pl.start > last.start) {
			last = pl
		}
	}
	return last
}

// rateHalfLife is how long a start counts half in the rate of starts.
const rateHalfLife = time.Hour

// estimateQueued is for a job too far back for a planned start: what is ahead of it and it itself, at the rate at
// which the family's accelerators were given out lately, as much longer or shorter as such estimates turned out.
func (s *State) estimateQueued(j *job) (*ETA, string) {
	rate := j.shape.spec.family.given.worth(s.now, rateHalfLife) * math.Ln2 / rateHalfLife.Seconds() // milli a second
	if rate*rateHalfLife.Seconds() < 1 {
		return nil, "too far back in the queue for a planned start, and no job has started lately to tell a rate by"
	}
	said := float64(s.aheadOf(j).milli+j.shape.milli()) / rate
	mid, high := s.learn.stretch.quantiles(1, 2)
	after := func(sec float64) int64 { return s.now + int64(min(math.Ceil(sec), 1e9))*1e9 }
	p50, p90 := after(said*mid), after(said*max(high, mid))
	floor := ""
	if pl := s.planBefore(j); pl != nil {
		mid, late := s.estimatePlan(pl)
		if p50 < mid || p90 < late {
			p50, p90, floor = max(p50, mid), max(p90, late), "not before one ahead that asks for the same; "
		}
	}
	j.guessed().queued.set(guess{p50: p50, p90: p90, made: s.now, said: said})
	f := j.shape.spec.family
	if f.basisOf != s.cycle || f.basis == "" { // one for all its jobs, a cycle
		f.basisOf = s.cycle
		f.basis = fmt.Sprintf("%.3g accelerators an hour were given out lately", rate*3600/float64(whole)) + s.learn.queued.String()
	}
	return &ETA{P50: at(p50), P90: at(p90), Basis: floor + f.basis, At: at(s.now)}, ""
}

// guess is the first estimate of a kind that a job was given.
type guess struct {
	p50, p90, made int64
	said           float64 // seconds by the rate of starts
}

func (g *guess) set(first guess) {
	if g.p50 == 0 {
		*g = first
	}
}

// guesses is what a job was told, kept to be compared with its start.
type guesses struct{ planned, queued guess }

func (j *job) guessed() *guesses {
	if j.guesses == nil {
		j.guesses = &guesses{}
	}
	return j.guesses
}

// String is the measured error of a kind of estimate, in words.
func (r *record) String() string {
	if r.judged == 0 {
		return "; no estimate has come due yet"
	}
	r.misses.measure()
	return fmt.Sprintf("; of %d estimates, %.0f %% started by their p90, median error of p50 %s", r.judged,
		100*float64(r.covered)/float64(r.judged), time.Duration(r.misses.mid*1e9).Round(time.Second))
}

// measureEstimate compares a start with the first estimates that were given for it.
func (s *State) measureEstimate(j *job) {
	s.given(j)
	if j.guesses == nil {
		return
	}
	s.learn.planned.judge(&j.guesses.planned, s.now)
	if g := &j.guesses.queued; g.p50 != 0 {
		s.learn.queued.judge(g, s.now)
		s.learn.stretch.put(float64(s.now-g.made) / 1e9 / g.said)
	}
}

// judge compares a start with an estimate; none was given if its p50 is 0.
func (r *record) judge(g *guess, started int64) {
	if g.p50 == 0 {
		return
	}
	r.misses.put(math.Abs(float64(started-g.p50)) / 1e9)
	r.judged++
	if started <= g.p90 {
		r.covered++
	}
}

// given counts a start in its family's rate.
func (s *State) given(j *job) {
	j.shape.spec.family.given.charge(s.now, float64(j.shape.milli()), rateHalfLife)
}
