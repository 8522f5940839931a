package engine

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// plan is a waiting job's reserved start: from then on, so much of these bays is its own. A claim is a plan whose
// places are being freed for the job by its victims: it holds from now on.
type plan struct {
	job     *job
	claim   bool
	due     bool // the job is within its guarantee: what others have borrowed is kept for it
	model   string
	milli   int64 // what the job asks for, in thousandths of an accelerator
	start   int64
	bays    []*bay
	victims []*alloc
	grace   int64
	made    int64
	walk    int64 // last walk that upheld it
	nodes   []int // accelerators of each bay, to notice a bay that shrank
}

// hold is a plan's part of one server.
type hold struct {
	plan        *plan
	bay         *bay
	k           int
	cpu, mem    int64
	from, until int64
}

// binds says whether a plan's holds stand in the way of a job. A claim's always do, and those of a job within its
// guarantee do for one that would borrow; otherwise they do not for a job of higher priority, for one whose turn
// was before, or for one that leads itself.
func (pl *plan) binds(j *job, st standing) bool {
	own := j.plan
	switch {
	case pl.job == j:
		return false
	case pl.claim:
		return true
	case own != nil && own.claim:
		return false
	case pl.due && st.borrows:
		return true
	case st.due && !pl.due:
		return false
	case pl.job.turn.walk != st.walk:
		return false // its turn comes later in this cycle
	case pl.job.Priority != j.Priority:
		return pl.job.Priority > j.Priority
	}
	return j.turn.walk != st.walk || pl.job.turn.n < j.turn.n
}

// leads says whether a job comes before the order of the queue: its place is being freed, or it is within its
// guarantee and had its turn among those.
func (j *job) leads(walk int64) bool { return j.plan != nil && j.plan.claim || j.dueTurn == walk }

// standing is how a job stands to the guarantees of its pools, in one walk through the queue.
type standing struct {
	due     bool  // with it, its tenant holds no more than is guaranteed
	borrows bool  // with it, it would hold more, where guarantees are in force
	walk    int64 // turns of this walk have been taken
}

func (s *State) standing(sh *shape) standing {
	st := standing{walk: s.walks}
	if len(s.guarded) > 0 {
		st.due = s.due(sh)
		st.borrows = !st.due && s.borrows(sh)
	}
	return st
}

func (h *hold) binds(a *ask) bool { return h.plan.binds(a.job, a.standing) }

// roomBesideHolds says whether a node that starts at from and runs until until leaves every hold that binds it what
// it will need.
func (s *State) roomBesideHolds(a *ask, b *bay, from, until int64) bool {
	if !s.roomAt(a, b, from) {
		return false
	}
	for _, h := range b.srv.holds {
		if h.from > from && h.from < until && h.binds(a) && !s.roomAt(a, b, h.from) {
			return false
		}
	}
	return true
}

// roomAt says whether at one moment, with what has ended by its limit, a node fits beside the holds.
func (s *State) roomAt(a *ask, b *bay, t int64) bool {
	k := a.k
	free := 0
	if t <= s.now {
		free = b.free
		if a.part > 0 && (len(b.parts) == 0 || b.parts[0] < a.part) {
			k = 1
		}
	} else {
		for _, r := range b.ready {
			if r <= t {
				free++
			}
		}
		if a.part > 0 {
			k = 1
		}
	}
	cpu, mem := b.srv.cpuFree, b.srv.memFree
	if t > s.now {
		for _, al := range b.srv.allocs {
			if al.end <= t {
				cpu += al.cpu
				mem += al.mem
			}
		}
	}
	for _, h := range b.srv.holds {
		if h.from <= t && t < h.until && h.binds(a) {
			if b.srv.OneTenant && h.plan.job.Tenant != a.tenant {
				return false
			}
			cpu -= h.cpu
			mem -= h.mem
			if h.bay == b {
				free -= h.k
			}
		}
	}
	return free >= k && cpu >= a.cpu && mem >= a.mem
}

// earliest is the first moment not before from, by the limits of what runs, at which a node fits a bay for as long as
// it needs; far when there is none. As when it starts, a job without a limit needs it for good.
func (s *State) earliest(a *ask, b *bay, from, length int64) int64 {
	need := a.k
	if a.part > 0 {
		need = 1
	}
	if !b.up || len(b.ready) < need || !a.allows(b.srv) ||
		b.srv.CPU < a.cpu || b.srv.MemoryBytes < a.mem {
		return far
	}
	moments := make([]int64, 0, 16)
	moments = append(moments, from)
	if need > 0 {
		moments[0] = max(from, b.ready[need-1])
	}
	if len(b.srv.holds) == 0 && len(b.srv.windows) == 0 {
		if s.roomAt(a, b, moments[0]) {
			return moments[0]
		}
	}
	for _, al := range b.srv.allocs {
		moments = append(moments, al.end)
	}
	for _, h := range b.srv.holds {
		moments = append(moments, h.until)
	}
	for _, w := range b.srv.windows {
		moments = append(moments, w.until)
	}
	slices.Sort(moments)
	for _, t := range moments {
		if t < from || t == far {
			continue
		}
		until := far
		if a.job.limit > 0 {
			until = t + length
		}
		if s.roomBesideHolds(a, b, t, until) && s.windowsAllow(a, b.srv.windows, t, until) {
			return t
		}
	}
	return far
}

// length is how long a job is taken to run when starts are planned; far for a service without a limit.
func (s *State) length(j *job) int64 {
	switch {
	case j.limit > 0:
		return int64(j.limit)
	case j.Service:
		return far
	}
	return int64(s.cfg.AssumedLimit)
}

type readyBay struct {
	t   int64
	bay *bay
}

// planStart finds the earliest start of a job before limit, and the bays it would have; nil when no end of what runs
// makes room by then.
func (s *State) planStart(a *ask, limit int64) *plan {
	var best *plan
	for _, p := range s.openPools(a.shape) {
		if pl := s.planIn(a, p, limit); pl != nil {
			best, limit = pl, pl.start
		}
	}
	return best
}

func (s *State) planIn(a *ask, p *pool, limit int64) *plan {
	length := s.length(a.job)
	gang := a.nodes > 1 && a.same != AnyLevel
	if !gang {
		return s.planAmong(a, p, p.bays, length, limit)
	}
	var best *plan
	for _, name := range sortedKeys(p.domains[a.same.index()]) {
		d := p.domains[a.same.index()][name]
		if len(d.bays) >= a.nodes {
			if pl := s.planAmong(a, p, d.bays, length, limit); pl != nil {
				best, limit = pl, pl.start
			}
		}
	}
	if a.required {
		return best
	}
	// It starts near its own rather than wait for a domain to itself: only an equally early start keeps it within one.
	if pl := s.planAmong(a, p, p.bays, length, limit); pl != nil {
		best = pl
	}
	return best
}

// planAmong plans within some bays, if that is possible before limit.
func (s *State) planAmong(a *ask, p *pool, bays []*bay, length, limit int64) *plan {
	if len(a.only) > 0 {
		bays = s.named(a, p)
	}
	list := s.stats.ready[:0]
	need := max(a.k, 1)
	all := len(bays) == len(p.bays) && len(a.only) == 0 // then p.seen is of them
	for i, b := range bays {
		if all && p.seen[i].free < need && p.seen[i].soon >= limit {
			continue
		}
		if len(b.ready) < need || b.ready[need-1] >= limit {
			continue
		}
		t := s.earliest(a, b, s.now, length)
		if t >= limit {
			continue
		}
		list = append(list, readyBay{t, b})
		if a.nodes == 1 && t > s.now {
			limit = t // only a bay that is ready sooner is of interest
		}
	}
	s.stats.ready = list
	if len(list) < a.nodes {
		return nil
	}
	byTime := func(x, y readyBay) int {
		return cmp.Or(cmp.Compare(x.t, y.t), cmp.Compare(x.bay.srv.ord, y.bay.srv.ord))
	}
	if a.nodes == 1 {
		first := slices.MinFunc(list, byTime)
		return s.newPlan(a, p, []*bay{first.bay}, first.t)
	}
	// A bay that is ready before the last one may be another's by then.
	for late := true; late; {
		soonest(list, a.nodes, byTime)
		start := list[a.nodes-1].t
		if start >= limit {
			return nil
		}
		late = false
		for i := range list[:a.nodes] {
			if r := &list[i]; r.t < start {
				if t := s.earliest(a, r.bay, start, length); t > start {
					r.t, late = t, true
				}
			}
		}
	}
	chosen := make([]*bay, a.nodes)
	for i := range chosen {
		chosen[i] = list[i].bay
	}
	return s.newPlan(a, p, chosen, list[a.nodes-1].t)
}

// soonest brings the n first of the list to its front, in order, without sorting the rest.
func soonest[T any](list []T, n int, compare func(a, b T) int) {
	split(list, n, compare)
	slices.SortFunc(list[:n], compare)
}

// split brings the n first of the list, at least one, to its front, the last of them at n-1 (quickselect).
func split[T any](list []T, n int, compare func(a, b T) int) {
	lo, hi := 0, len(list)
	for hi-lo > 32 {
		pivot := list[lo+(hi-lo)/2]
		i, k, j := lo, lo, hi
		for k < j {
			switch c := compare(list[k], pivot); {
			case c < 0:
				list[i], list[k] = list[k], list[i]
				i, k = i+1, k+1
			case c > 0:
				j--
				list[k], list[j] = list[j], list[k]
			default:
				k++
			}
		}
		switch {
		case n <= i:
			hi = i
		case n > j:
			lo = j
		default:
			return
		}
	}
	slices.SortFunc(list[lo:hi], compare)
}

func (s *State) newPlan(a *ask, p *pool, bays []*bay, start int64) *plan {
	pl := &plan{job: a.job, model: p.model, milli: a.shape.milli(), start: start, bays: bays, made: s.now, walk: s.walks, due: s.due(a.shape)}
	for _, b := range bays {
		pl.nodes = append(pl.nodes, len(b.ready))
	}
	return pl
}

// uphold puts a plan's holds on its servers.
func (s *State) uphold(pl *plan) {
	a := s.askFor(pl.job)
	k := a.k
	if a.part > 0 {
		k = 1
	}
	from := pl.start
	if pl.claim {
		from = 0
	}
	until := plus(max(pl.start, s.now), time.Duration(s.length(pl.job)))
	pl.job.plan = pl
	s.plans = append(s.plans, pl)
	for _, b := range pl.bays {
		b.srv.holds = append(b.srv.holds, &hold{pl, b, k, a.cpu, a.mem, from, until})
		s.refresh(b.srv)
	}
	if pl.claim {
		s.claim(pl, +1)
		s.restand(pl.job.Tenant)
	}
}

// restand looks anew which planned starts of a tenant are within its guarantee, when it has come to hold or to claim
// more.
func (s *State) restand(tenant string) {
	if len(s.guarded) == 0 {
		return
	}
	for _, pl := range s.plans {
		if pl.claim || pl.job.Tenant != tenant {
			continue
		}
		if due := s.due(pl.job.shape); due != pl.due {
			s.loosen(pl)
			pl.due = due
		}
	}
}

// loosen notes that a plan lets go what it kept from whoever comes, whatever their turns: also from those that have
// had theirs in this walk. Other plans bind only those whose turn is after.
func (s *State) loosen(pl *plan) {
	if (pl.claim || pl.due) && pl.job.shape.spec.family.in(s.walks).blocked {
		s.stats.loosened = true
	}
}

// dropPlan takes a plan's holds away. With a cause, those who watch the planned start are told.
func (s *State) dropPlan(pl *plan, cause string) {
	s.loosen(pl)
	pl.job.plan = nil
	s.plans = slices.DeleteFunc(s.plans, func(o *plan) bool { return o == pl })
	for _, b := range pl.bays {
		b.srv.holds = slices.DeleteFunc(b.srv.holds, func(h *hold) bool { return h.plan == pl })
		s.refresh(b.srv)
		s.forget(b.srv)
	}
	if pl.claim {
		s.claim(pl, -1)
	}
	if cause != "" {
		s.stats.told = append(s.stats.told, Reservation{Job: pl.job.ID, Cause: cause})
	}
}

// broken says why a plan can't be kept: "" when it can.
func (s *State) broken(pl *plan) string {
	a := s.askFor(pl.job)
	length := s.length(pl.job)
	for i, b := range pl.bays {
		if !b.up || len(b.ready) < pl.nodes[i] {
			return fmt.Sprintf("server %s is not schedulable: %s", b.srv.ID, b.whyNot())
		}
		if pl.claim {
			continue
		}
		start := max(pl.start, s.now)
		until := far
		if pl.job.limit > 0 {
			until = start + length
		}
		if !s.windowsAllow(&a, b.srv.windows, start, until) {
			return fmt.Sprintf("a window on server %s", b.srv.ID)
		}
		if s.roomBesideHolds(&a, b, start, until) {
			continue
		}
		for _, al := range b.srv.allocs {
			if al.late {
				return fmt.Sprintf("job %s runs past its limit on server %s", al.Job, b.srv.ID)
			}
		}
		for _, al := range b.srv.allocs {
			if al.Priority > pl.job.Priority {
				return fmt.Sprintf("job %s of higher priority started on server %s", al.Job, b.srv.ID)
			}
		}
		for _, al := range b.srv.allocs {
			if ns(al.Started) >= pl.made {
				return fmt.Sprintf("job %s, whose turn came first, started on server %s", al.Job, b.srv.ID)
			}
		}
		for _, h := range b.srv.holds {
			if h.binds(&a) {
				return fmt.Sprintf("job %s is to start on server %s", h.plan.job.ID, b.srv.ID)
			}
		}
		return fmt.Sprintf("what runs on server %s has a longer limit now", b.srv.ID)
	}
	return ""
}

// stuck is what people have to decide before a bay is wholly schedulable again; none where it comes back without.
func (b *bay) stuck() []string {
	var out []string
	add := func(what string) {
		if what != "" && !slices.Contains(out, what) {
			out = append(out, what)
		}
	}
	if !b.srv.Schedulable {
		add(b.srv.Stuck)
	}
	for _, dev := range b.accels {
		if !dev.ok {
			add(dev.stuck)
		}
	}
	return out
}

// whyNot is the cause a bay is not, or not wholly, schedulable.
func (b *bay) whyNot() string {
	if !b.srv.present {
		return "it left the pool"
	}
	if !b.srv.Schedulable {
		return b.srv.WhyNot
	}
	for _, dev := range b.accels {
		if !dev.ok {
			return dev.why
		}
	}
	return "its accelerators have changed"
}

// reserve gives a blocked job a planned start, keeps the one it has, or moves it earlier.
func (s *State) reserve(j *job) {
	old := j.plan
	a := s.askFor(j)
	cause := ""
	w := j.shape.spec.family.in(s.walks)
	if w.reserved >= s.cfg.Reservations {
		if old != nil {
			s.dropPlan(old, "other jobs come first now")
		}
		return
	}
	if old != nil {
		cause = s.broken(old)
		if cause == "" {
			old.walk = s.walks
			if old.start <= s.now || !w.first {
				w.reserved++
				return
			}
		}
	}
	limit := far
	if old != nil && cause == "" {
		limit = old.start // only an earlier start is of interest
	}
	pl := s.planStart(&a, limit)
	switch {
	case old != nil && cause == "" && (pl == nil || pl.start >= old.start):
		w.reserved++
		return
	case pl == nil && old == nil:
		return
	case pl == nil:
		s.dropPlan(old, cause)
		return
	}
	if old != nil {
		if pl.start <= old.start {
			cause = ""
		}
		s.dropPlan(old, "")
	}
	w.reserved++
	s.uphold(pl)
	s.stats.told = append(s.stats.told, pl.announce(cause))
}

func (pl *plan) announce(cause string) Reservation {
	r := Reservation{Job: pl.job.ID, Start: at(pl.start), Cause: cause}
	for _, b := range pl.bays {
		r.Places = append(r.Places, b.srv.ID)
	}
	return r
}
