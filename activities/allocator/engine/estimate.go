package engine

import (
	"fmt"
	"slices"
	"time"
)

// learned is what the engine knows of how limits compare with what really ran, and of how good its estimates were.
type learned struct {
	ratios  ring // run time over limit, of attempts that ended
	misses  ring // (start - p50) of jobs that were given an estimate, in seconds, absolute
	covered int  // of which started by their p90
	judged  int
}

// ring keeps the last values seen, and their median once it was asked for.
type ring struct {
	values []float64
	next   int
	mid    float64
	fresh  bool // mid is up to date
}

const ringSize = 512

func (r *ring) put(v float64) {
	r.fresh = false
	if len(r.values) < ringSize {
		r.values = append(r.values, v)
		return
	}
	r.values[r.next] = v
	r.next = (r.next + 1) % ringSize
}

// median of the values kept, def when there are too few to say.
func (r *ring) median(def float64) float64 {
	if len(r.values) < 8 {
		return def
	}
	if !r.fresh {
		sorted := slices.Clone(r.values)
		slices.Sort(sorted)
		r.mid, r.fresh = sorted[len(sorted)/2], true
	}
	return r.mid
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
	case Held, QueueStopped, DependencyWait, JobLimit, QuotaReached, GuaranteeOnly:
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
	if j.plan == nil {
		return nil, "too far back in the queue for a planned start"
	}
	start := max(j.plan.start, s.now)
	ratio := s.learn.ratios.median(1)
	p50 := start
	if !j.plan.claim {
		p50 = s.now + int64(float64(start-s.now)*ratio)
	}
	if j.estimated == 0 {
		j.estimated, j.worst = p50, start
	}
	return &ETA{P50: at(p50), P90: at(start), Basis: s.learn.basis(j.plan.claim, ratio), At: at(s.now)}, ""
}

func (l *learned) basis(claim bool, ratio float64) string {
	what := fmt.Sprintf("planned by time limits; jobs used %.0f %% of theirs (median of %d)", ratio*100, len(l.ratios.values))
	if claim {
		what = "the victims' grace"
	}
	if l.judged == 0 {
		return what + "; no estimate has come due yet"
	}
	return fmt.Sprintf("%s; of %d estimates, %.0f %% started by their p90, median error of p50 %s", what, l.judged,
		100*float64(l.covered)/float64(l.judged), time.Duration(l.misses.median(0)*1e9).Round(time.Second))
}

// measureEstimate compares a start with the first estimate that was given for it.
func (s *State) measureEstimate(j *job) {
	if j.estimated == 0 {
		return
	}
	miss := float64(s.now-j.estimated) / 1e9
	s.learn.misses.put(max(miss, -miss))
	s.learn.judged++
	if s.now <= j.worst {
		s.learn.covered++
	}
}
