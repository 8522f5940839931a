package engine

import (
	"slices"
	"strings"
	"time"
)

// Answer is what would become of a job that is not submitted: it starts, at once or when its victims have ended, or
// it waits for a reason.
type Answer struct {
	Starts  bool
	Places  []Place  // servers and accelerators it would get, if it starts at once
	Victims []Victim // who would be told to end for it, if anybody; their places would be its own
	Reason  *Reason  // why it would wait, if it does not start at once
}

// DryRun says what the next cycle would do with a job if it were submitted now, and changes nothing.
func (s *State) DryRun(in Job, now time.Time) Answer {
	dirty, seen, cycle, when := s.dirty, s.stats.seen, s.cycle, s.now
	spec := s.spec(in.Spec)
	specSeen := spec.seen
	in.ID = "\x00" + in.ID // never the id of a job that exists
	if in.Seq == 0 {
		in.Seq = far
	}
	s.now = max(s.now, ns(now))
	s.SetJob(in)
	s.regroup()
	j := s.jobs[in.ID]
	defer func() {
		j.plan = nil
		s.drop(j, "")
		s.stats.seen, spec.seen = seen, specSeen
		s.dirty, s.cycle, s.now = dirty, cycle, when
		s.stats.lined++
	}()

	sh := j.shape
	// The shape may be new: judge it as a cycle would.
	kept := sh.verdict
	sh.verdict = s.verdictOf(sh)
	defer func() { sh.verdict = kept }()
	j.entered = -1
	s.dirty = true // nothing found here is to be kept
	s.stats.lined++
	if j.parked == "" && sh.verdict.contends() {
		a := s.askFor(j)
		// Jobs ahead had their turn in the last cycle, and what they are to have is held for them.
		if bays := s.findAny(&a); bays != nil {
			places, _ := s.placesFor(&a, bays)
			return Answer{Starts: true, Places: places}
		}
	}
	answer := Answer{Victims: s.wouldPreempt(j)}
	if len(answer.Victims) == 0 {
		j.plan = s.wouldPlan(j)
	}
	r := s.explain(j)
	r.Job = in.ID[1:]
	answer.Reason = &r
	return answer
}

// wouldPlan is the start that a cycle would plan for a job, and holds nothing for it; nil where it would plan none.
func (s *State) wouldPlan(j *job) *plan {
	sh := j.shape
	if j.parked != "" || !sh.verdict.contends() || s.cfg.NoBackfill || sh.first() != j {
		return nil
	}
	planned := 0
	for _, pl := range s.plans {
		if !pl.claim && pl.job.shape.spec.family == sh.spec.family {
			planned++
		}
	}
	if planned >= s.cfg.Reservations {
		return nil
	}
	a := s.askFor(j)
	return s.planStart(&a, far)
}

// wouldPreempt is the victims a job would have, and tells nobody.
func (s *State) wouldPreempt(j *job) []Victim {
	v := j.shape.verdict
	like := hunter{idle: true}
	switch {
	case j.parked != "" || s.cfg.NoPreemption:
		return nil
	case s.mayReclaimLimit(j, v):
		like.atLimit = true
	case !v.contends():
		return nil
	}
	found, _ := s.hunt(j, like)
	if found == nil {
		return nil
	}
	slices.SortFunc(found.victims, func(x, y *alloc) int { return strings.Compare(x.Job, y.Job) })
	list := make([]Victim, len(found.victims))
	for i, v := range found.victims {
		list[i] = v.victim(j, s.now)
		list[i].For, list[i].GraceUntil = j.ID[1:], at(s.graceOf(v))
	}
	return list
}

// placesFor is the accelerators a node of the job would get in each bay, and their names.
func (s *State) placesFor(a *ask, bays []*bay) ([]Place, []*accel) {
	places := make([]Place, len(bays))
	all := make([]*accel, 0, len(bays)*max(a.k, 1))
	for i, b := range bays {
		from := len(all)
		all = s.pick(a, b, all)
		ids := make([]string, len(all)-from)
		for n, dev := range all[from:] {
			ids[n] = dev.id
		}
		places[i] = Place{b.srv.ID, ids}
	}
	return places, all
}
