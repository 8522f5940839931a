package engine

import (
	"cmp"
	"container/heap"
	"slices"
	"strings"
	"time"
)

// Preemption takes running work back for a job that may have its place: of higher priority, or within a guarantee
// that others have borrowed. It is a simulation first: victims are only told when the places they free, together
// with what is free, hold the whole job, and only those without whom it would not fit.

// hunter is a job looking for victims in one pool.
type hunter struct {
	*ask
	s       *State
	pool    *pool
	reclaim bool     // the job stays within its tenant's guarantee
	within  bool     // and within its project's
	atLimit bool     // it is its tenant's limit that keeps the job out
	excess  int64    // what its tenant would hold over it, in thousandths: only its other projects can end that
	idle    bool     // between cycles: what started in the last one runs
	ending  []*alloc // told to end for the job before: what they free is its already
	taken   map[*alloc]bool
	lost    map[accountKey]int64 // what the victims chosen so far take off their accounts
}

// preempt looks for victims for a blocked job and, when there are, tells them and claims what they free. Those that
// were told to end for it before, by a claim that broke or before a restart, are counted on first.
func (s *State) preempt(j *job, out *Result) bool {
	ending := s.ending[j.ID]
	if s.cfg.NoPreemption || len(ending) == 0 && (s.stats.hunts >= s.cfg.PreemptionTests ||
		len(s.guarded) == 0 && !s.lowerAnywhere(j)) {
		return false
	}
	best, tried := s.hunt(j, hunter{})
	if tried {
		s.stats.hunts++
	}
	if best == nil {
		return false
	}
	s.tell(j, best, out)
	return true
}

// reclaimLimit looks for victims for a job that its tenant's limit keeps out though its project holds less than its
// guarantee: those of the tenant's other projects that hold more than theirs.
func (s *State) reclaimLimit(j *job, v verdict, out *Result) bool {
	if !s.mayReclaimLimit(j, v) || s.stats.hunts >= s.cfg.PreemptionTests {
		return false
	}
	s.stats.hunts++
	best, _ := s.hunt(j, hunter{atLimit: true})
	if best == nil {
		return false
	}
	s.tell(j, best, out)
	return true
}

func (s *State) mayReclaimLimit(j *job, v verdict) bool {
	if s.cfg.NoPreemption || v.code != QuotaReached || v.account.project != "" || j.Project == "" || j.plan != nil && j.plan.claim {
		return false
	}
	return slices.ContainsFunc(s.able(j.shape), func(p *pool) bool { return s.overLimit(j.shape, p.model) > 0 })
}

// overLimit is what the tenant would hold of a model over its limits, in thousandths, with one more job of a shape
// that is within its project's guarantee and that nothing but those limits keeps out. Else it is 0: a victim's end
// would be for nothing.
func (s *State) overLimit(sh *shape, model string) int64 {
	if _, within := s.mayReclaim(sh, model); !within || s.guaranteeGate(sh, model).code != "" || s.budgetGate(sh, model, sh.first()).code != "" {
		return 0
	}
	over := int64(0)
	for _, a := range sh.group.account.chain {
		for _, m := range modelKeys(model) {
			q := a.quotas[m]
			if q == nil || q.limit == NoLimit {
				continue
			}
			h := a.of(m)
			kept, _ := sh.keptBeside(h)
			excess := h.used + h.elsewhere + h.claimed + kept + sh.milli() - q.limit
			if excess > 0 && a.project != "" {
				return 0
			}
			over = max(over, excess)
		}
	}
	return over
}

// hunt is the best victims for a job in the pools it accepts, nil when there are none, and whether it was worth a
// search.
func (s *State) hunt(j *job, like hunter) (best *hunt, tried bool) {
	a := s.askFor(j)
	pools := s.openPools(j.shape)
	if like.atLimit {
		pools = s.able(j.shape)
	}
	for _, p := range pools {
		h := &hunter{ask: &a, s: s, pool: p, ending: s.ending[j.ID], atLimit: like.atLimit, idle: like.idle}
		if h.atLimit {
			if h.excess = s.overLimit(j.shape, p.model); h.excess == 0 {
				continue
			}
		}
		h.reclaim, h.within = s.mayReclaim(j.shape, p.model)
		if !h.reclaim && !h.within && len(h.ending) == 0 && !s.lowerRuns(p, j.Priority) {
			continue
		}
		tried = true
		if found := h.search(); found != nil && (best == nil || found.better(best)) {
			best = found
		}
	}
	return best, tried
}

// mayReclaim says whether the job fits inside what its tenant, and its project, are guaranteed of the model.
func (s *State) mayReclaim(sh *shape, model string) (tenant, project bool) {
	asked := sh.milli()
	claimed := sh.first() != nil && sh.first().plan != nil && sh.first().plan.claim
	if claimed {
		asked = 0 // booked as claimed already
	}
	for _, a := range sh.group.account.chain {
		h := a.of(model)
		kept, _ := sh.keptBeside(h)
		if claimed {
			kept = h.kept
		}
		inside := a.guarantee(model) > 0 && h.used+h.elsewhere+h.claimed+kept+asked <= a.guarantee(model)
		if a.project == "" {
			tenant = inside
		} else {
			project = inside
		}
	}
	return tenant, project
}

// due says whether a shape's next job is within what its tenant or project is guaranteed of some model that can hold it.
func (s *State) due(sh *shape) bool {
	if len(s.guarded) == 0 {
		return false
	}
	for _, p := range s.able(sh) {
		tenant, project := s.mayReclaim(sh, p.model)
		if tenant || project && sh.group.account.chain[len(sh.group.account.chain)-1].guarantee(p.model) == 0 {
			return true
		}
	}
	return false
}

// borrows says whether the shape's next job would take what is guaranteed to others.
func (s *State) borrows(sh *shape) bool {
	if len(s.guarded) == 0 {
		return false
	}
	return slices.ContainsFunc(s.able(sh), func(p *pool) bool { return s.guarantees(p.model) }) && !s.due(sh)
}

func (s *State) lowerAnywhere(j *job) bool {
	return slices.ContainsFunc(s.able(j.shape), func(p *pool) bool { return s.lowerRuns(p, j.Priority) })
}

// lowerRuns says whether anything of a lower priority runs in a pool that could be told to end.
func (s *State) lowerRuns(p *pool, priority int) bool {
	return slices.ContainsFunc(s.stats.running[p.model], func(r running) bool { return r.priority < priority })
}

// may says whether an allocation may be a victim for the job, with those already taken gone.
func (h *hunter) may(al *alloc) bool {
	s := h.s
	if !al.Preemptible || al.told || al.gone || al.cycle == s.cycle && !h.idle || al.Job == h.job.ID || s.pairs[h.job.ID][al.Job] {
		return false
	}
	if s.cfg.MinRunTime > 0 && s.now-ns(al.Started) < int64(s.cfg.MinRunTime) {
		return false
	}
	if h.excess > 0 && al.Tenant != h.tenant {
		return false
	}
	if al.Tenant == h.tenant {
		if al.Priority < h.priority {
			return true
		}
		return h.within && al.Project != h.shape.project && h.over(al.Tenant, al.Project, al.model)
	}
	return (al.Priority < h.priority || h.reclaim) && h.over(al.Tenant, "", al.model)
}

// over says whether an account holds more than it is guaranteed, so that the excess may be taken.
func (h *hunter) over(tenant, project, model string) bool {
	a := h.s.account(tenant, project)
	return a.of(model).used-h.lost[a.accountKey] > a.guarantee(model)
}

// hunt is what a search found.
type hunt struct {
	pool    *pool
	bays    []*bay
	victims []*alloc // to be told
	ending  []*alloc // told before, whose places it needs
	lost    time.Duration
}

// better is fewer victims, then less lost work.
func (h *hunt) better(o *hunt) bool {
	return len(h.victims) < len(o.victims) || len(h.victims) == len(o.victims) && h.lost < o.lost
}

func (h *hunter) search() *hunt {
	if h.nodes > 1 && h.same != AnyLevel {
		var best *hunt
		doms := h.pool.domains[h.same.index()]
		for _, name := range sortedKeys(doms) {
			if len(doms[name].bays) >= h.nodes {
				if found := h.among(doms[name].bays); found != nil && (best == nil || found.better(best)) {
					best = found
				}
			}
		}
		if best != nil || h.required {
			return best
		}
	}
	if len(h.only) > 0 {
		return h.among(h.s.named(h.ask, h.pool))
	}
	return h.among(h.pool.bays)
}

// offer is a bay and what it takes to place a node there.
type offer struct {
	bay     *bay
	victims []*alloc
	lost    time.Duration
	index   int
}

func (o *offer) compare(p *offer) int {
	return cmp.Or(cmp.Compare(len(o.victims), len(p.victims)), cmp.Compare(o.lost, p.lost),
		cmp.Compare(o.bay.srv.ord, p.bay.srv.ord))
}

type offers []*offer

func (h offers) Len() int           { return len(h) }
func (h offers) Less(i, j int) bool { return h[i].compare(h[j]) < 0 }
func (h offers) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].index = i; h[j].index = j }
func (h *offers) Push(x any)        { o := x.(*offer); o.index = len(*h); *h = append(*h, o) }
func (h *offers) Pop() any {
	last := len(*h) - 1
	o := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return o
}

// among takes the cheapest bays until every node has one. A victim that frees several of them is paid once, so the
// bays it touches become cheaper as soon as it is taken.
func (h *hunter) among(bays []*bay) *hunt {
	h.taken, h.lost = map[*alloc]bool{}, map[accountKey]int64{}
	for _, v := range h.ending {
		h.take(v)
	}
	queue := make(offers, 0, len(bays))
	byBay := map[*bay]*offer{}
	for _, b := range bays {
		if o := h.offer(b); o != nil {
			o.index = len(queue)
			queue = append(queue, o)
			byBay[b] = o
		}
	}
	if len(queue) < h.nodes {
		return nil
	}
	heap.Init(&queue)
	found := &hunt{pool: h.pool}
	for len(found.bays) < h.nodes {
		if len(queue) == 0 {
			return nil
		}
		o := heap.Pop(&queue).(*offer)
		delete(byBay, o.bay)
		// Accounts may have come down to their guarantee since the offer was made.
		fresh := h.offer(o.bay)
		if fresh == nil {
			continue
		}
		if len(queue) > 0 && fresh.compare(queue[0]) > 0 && fresh.compare(o) > 0 {
			heap.Push(&queue, fresh)
			byBay[o.bay] = fresh
			continue
		}
		found.bays = append(found.bays, o.bay)
		for _, v := range fresh.victims {
			h.take(v)
			found.victims = append(found.victims, v)
			for _, srv := range v.servers {
				for _, b := range srv.bays {
					if other := byBay[b]; other != nil {
						if next := h.offer(b); next != nil {
							other.victims, other.lost = next.victims, next.lost
							heap.Fix(&queue, other.index)
						}
					}
				}
			}
		}
	}
	h.spare(found)
	for _, v := range h.ending {
		if slices.ContainsFunc(found.bays, func(b *bay) bool { return slices.Contains(v.servers, b.srv) }) {
			found.ending = append(found.ending, v)
		}
	}
	if h.excess > 0 && !h.level(found) {
		return nil
	}
	if len(found.victims)+len(found.ending) == 0 {
		// Everything fits without one: what is in the way is a claim or a window, not running work.
		return nil
	}
	for _, v := range found.victims {
		found.lost = addCapped(found.lost, v.lost(h.s.now))
	}
	return found
}

// level adds victims until the tenant is back within its limit with the job, and says whether that was possible. They
// are the fewest, since the largest go first, and the last of them is the cheapest that is enough.
func (h *hunter) level(found *hunt) bool {
	missing := h.excess
	for _, v := range slices.Concat(found.victims, found.ending) {
		missing -= v.milli
	}
	if missing <= 0 {
		return true
	}
	var more []*alloc
	for _, live := range h.s.allocs {
		for _, al := range live {
			if al.model == h.pool.model && !h.taken[al] && h.may(al) {
				more = append(more, al)
			}
		}
	}
	now := h.s.now
	slices.SortFunc(more, func(x, y *alloc) int {
		return cmp.Or(cmp.Compare(x.lost(now), y.lost(now)), strings.Compare(x.Job, y.Job))
	})
	for missing > 0 {
		var next *alloc
		for _, al := range more {
			if h.taken[al] || !h.may(al) { // its project may have come down to its guarantee
				continue
			}
			if al.milli >= missing {
				next = al
				break
			}
			if next == nil || al.milli > next.milli {
				next = al
			}
		}
		if next == nil {
			return false
		}
		h.take(next)
		found.victims = append(found.victims, next)
		missing -= next.milli
	}
	return true
}

func (h *hunter) take(v *alloc) {
	h.taken[v] = true
	for _, a := range h.s.chain(v.Tenant, v.Project) {
		h.lost[a.accountKey] += v.milli
	}
}

func (h *hunter) giveBack(v *alloc) {
	delete(h.taken, v)
	for _, a := range h.s.chain(v.Tenant, v.Project) {
		h.lost[a.accountKey] -= v.milli
	}
}

// fits says whether a node fits a bay once the taken victims are gone.
func (h *hunter) fits(b *bay, extra []*alloc) bool {
	if !b.up || !h.allows(b.srv) || !h.s.windowsAllow(h.ask, b.srv.windows, h.s.now, h.until) {
		return false
	}
	gone := func(al *alloc) bool { return h.taken[al] || slices.Contains(extra, al) }
	free, part := 0, false
	for _, dev := range b.accels {
		if !dev.ok {
			continue
		}
		used := dev.used
		for _, al := range dev.holders {
			if gone(al) {
				used -= al.each()
			}
		}
		if used <= 0 {
			free++
		}
		part = part || h.part > 0 && whole-used >= h.part
	}
	cpu, mem := b.srv.cpuFree, b.srv.memFree
	for _, al := range b.srv.allocs {
		if gone(al) {
			cpu += al.cpu
			mem += al.mem
		}
	}
	for _, hd := range b.srv.holds {
		if hd.binds(h.ask) {
			cpu -= hd.cpu
			mem -= hd.mem
			if hd.bay == b {
				free -= hd.k
			}
		}
	}
	return free >= h.k && (h.part == 0 || part && free >= 0) && cpu >= h.cpu && mem >= h.mem
}

// offer is the cheapest victims found whose end makes a node fit a bay: none when it fits already, nil when nothing
// helps. Largest on the bay first, then a pass that spares those not needed, the most expensive first.
func (h *hunter) offer(b *bay) *offer {
	if len(b.ready) < h.k {
		return nil
	}
	if h.fits(b, nil) {
		return &offer{bay: b}
	}
	var cands []*alloc
	for _, al := range b.srv.allocs {
		if !h.taken[al] && h.may(al) {
			cands = append(cands, al)
		}
	}
	if len(cands) == 0 || !h.fits(b, cands) {
		return nil
	}
	chosen := h.fewest(b, cands)
	o := &offer{bay: b, victims: chosen}
	for _, v := range chosen {
		o.lost = addCapped(o.lost, v.lost(h.s.now))
	}
	return o
}

// fewest is the smallest and then cheapest set among candidates on one server. Up to 8 all sets are looked at, which
// covers a server of 8 accelerators; beyond, a greedy choice and a pass that spares.
func (h *hunter) fewest(b *bay, cands []*alloc) []*alloc {
	now := h.s.now
	slices.SortFunc(cands, func(x, y *alloc) int {
		return cmp.Or(cmp.Compare(x.Priority, y.Priority), cmp.Compare(x.lost(now), y.lost(now)),
			strings.Compare(x.Job, y.Job))
	})
	for _, al := range cands {
		if h.fits(b, []*alloc{al}) && len(cands) > 8 {
			return []*alloc{al}
		}
	}
	if len(cands) > 8 {
		return h.spareOn(b, cands)
	}
	need, frees := h.shortBy(b, cands)
	all := 0
	for _, n := range frees {
		all += n
	}
	if !slices.ContainsFunc(frees, func(n int) bool { return all-n >= need }) {
		return cands // each of them is needed
	}
	var best []*alloc
	var bestLost time.Duration
	set := make([]*alloc, 0, 8)
	for mask := 1; mask < 1<<len(cands); mask++ {
		freed := 0
		for i, n := range frees {
			freed += n * (mask >> i & 1)
		}
		if freed < need {
			continue
		}
		set = set[:0]
		lost := time.Duration(0)
		for i, al := range cands {
			if mask>>i&1 == 1 {
				set = append(set, al)
				lost = addCapped(lost, al.lost(now))
			}
		}
		if best != nil && (len(set) > len(best) || len(set) == len(best) && lost >= bestLost) {
			continue
		}
		if h.fits(b, set) {
			best, bestLost = slices.Clone(set), lost
		}
	}
	return best
}

// shortBy is how many whole accelerators a bay lacks for a node, and how many each candidate could free at most.
func (h *hunter) shortBy(b *bay, cands []*alloc) (need int, frees []int) {
	need, frees = h.k, make([]int, len(cands))
	for _, dev := range b.accels {
		if !dev.ok {
			continue
		}
		idle := true
		for _, al := range dev.holders {
			idle = idle && h.taken[al]
			if i := slices.Index(cands, al); i >= 0 {
				frees[i]++
			}
		}
		if idle {
			need--
		}
	}
	return need, frees
}

// spareOn drops candidates that are not needed, the last (most expensive) first.
func (h *hunter) spareOn(b *bay, cands []*alloc) []*alloc {
	kept := slices.Clone(cands)
	for i := len(kept) - 1; i >= 0; i-- {
		without := slices.Delete(slices.Clone(kept), i, i+1)
		if h.fits(b, without) {
			kept = without
		}
	}
	return kept
}

// spare is the reverse pass over the whole hunt: a victim without whom every bay still fits is let go.
func (h *hunter) spare(found *hunt) {
	now := h.s.now
	slices.SortFunc(found.victims, func(x, y *alloc) int {
		return cmp.Or(cmp.Compare(y.lost(now), x.lost(now)), cmp.Compare(y.Priority, x.Priority),
			strings.Compare(x.Job, y.Job))
	})
	onBay := map[*server][]*bay{}
	for _, b := range found.bays {
		onBay[b.srv] = append(onBay[b.srv], b)
	}
	kept := found.victims[:0]
	for _, v := range found.victims {
		h.giveBack(v)
		needed := false
		for _, srv := range v.servers {
			for _, b := range onBay[srv] {
				needed = needed || !h.fits(b, nil)
			}
		}
		if needed {
			h.take(v)
			kept = append(kept, v)
		}
	}
	found.victims = kept
}

// tell commits a hunt: the victims are told once, and what they free is claimed for the job.
func (s *State) tell(j *job, found *hunt, out *Result) {
	var old *plan
	cause := ""
	if old = j.plan; old != nil {
		cause = s.broken(old)
		s.dropPlan(old, "")
	}
	grace := s.now
	for _, v := range found.ending {
		grace = max(grace, ns(v.GraceUntil))
	}
	slices.SortFunc(found.victims, func(x, y *alloc) int { return strings.Compare(x.Job, y.Job) })
	for _, v := range found.victims {
		until := s.graceOf(v)
		grace = max(grace, until)
		v.GraceUntil = at(until)
		out.Victims = append(out.Victims, v.victim(j, s.now))
		s.doom(v, j.ID)
		s.expect(v)
	}
	a := s.askFor(j)
	pl := s.newPlan(&a, found.pool, found.bays, grace)
	pl.claim, pl.victims, pl.grace = true, slices.Concat(found.victims, found.ending), grace
	s.uphold(pl)
	switch {
	case old == nil || pl.start <= old.start:
		cause = ""
	case cause == "":
		cause = "room is made by preemption, after the victims' grace"
	}
	s.stats.told = append(s.stats.told, pl.announce(cause))
}

// graceOf is when a victim told now must have ended. One that reaches its limit first is over by then.
func (s *State) graceOf(v *alloc) int64 {
	grace := v.Grace
	if grace <= 0 {
		grace = s.cfg.Grace
	}
	return min(plus(s.now, grace), v.end)
}

// victim is what is told of one that must end for a job.
func (al *alloc) victim(j *job, now int64) Victim {
	why := "priority"
	if al.Priority >= j.Priority {
		why = "reclaim"
	}
	return Victim{Job: al.Job, Attempt: al.Attempt, For: j.ID, Why: why, GraceUntil: al.GraceUntil, LostWork: al.lost(now)}
}
