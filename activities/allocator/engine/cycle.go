package engine

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// cycleStats is scratch space and counts that live for one cycle, unless said otherwise.
type cycleStats struct {
	decisions int
	hunts     int           // searches for victims
	told      []Reservation // since the last cycle
	lined     int64         // the lines that hold now: counted up when what they rest on has changed
	loosened  bool          // a walk has let go what it kept from jobs that had their turn: they are to be looked at again
	dues      []*job        // blocked though within their guarantee, in the order of their turns

	// kept across cycles
	probe   job
	scratch []candidate
	ready   []readyBay
	running map[string][]running // preemptible allocations by model
	seen    float64              // nodes of all jobs seen, for the task mix
	started []*alloc             // in the last cycle
	built   int64                // lines built so far
	touched []*job               // jobs whose reason may not be the one last reported
	special []*job               // jobs with a reason of their own, as of the last cycle
}

// Cycle decides, at the moment now, which waiting jobs start, who must end for whom, and why the others wait. Its
// own starts are applied: a second call without new facts starts nothing more.
func (s *State) Cycle(now time.Time) Result {
	s.cycle++
	s.now = max(s.now, ns(now))
	out := Result{Cycle: s.cycle, At: at(s.now)}
	s.fire(&out)
	s.regroup()
	st := &s.stats
	st.decisions, st.hunts = 0, 0
	for i, al := range st.started {
		al.job, st.started[i] = nil, nil
	}
	st.started = st.started[:0]
	if s.dirty {
		for n, again := 0, true; again && n < mostWalks; n++ {
			s.walks++
			st.dues = st.dues[:0]
			st.loosened = false
			made := len(out.Starts)
			s.keepPlans(&out)
			s.walk(&out)
			s.dropStale()
			again = st.loosened || len(out.Starts) > made && s.unsettled()
		}
		slices.SortStableFunc(s.plans, func(a, b *plan) int { return cmp.Compare(a.job.turn.n, b.job.turn.n) })
		st.lined++
		s.judge()
		s.dirty = false
	}
	s.report(&out)
	out.Reservations, st.told = slices.DeleteFunc(st.told, func(r Reservation) bool {
		return !r.Start.IsZero() && s.jobs[r.Job] == nil // a later walk has started it
	}), nil
	out.NextWake = at(s.timers.next())
	out.Decisions = st.decisions
	return out
}

// mostWalks bounds the walks of one cycle. Each one more takes what the last has changed: a gate that its starts have
// closed, or places that it no longer keeps from jobs that had their turn.
const mostWalks = 4

// unsettled says whether the starts of a walk have changed how a job stands that had its turn before them: its gate
// is closed now, or it is not within its guarantee any more. What was kept for it is then decided anew.
func (s *State) unsettled() bool {
	for _, pl := range s.plans {
		if !pl.claim && s.gate(pl.job.shape).code != "" {
			return true
		}
	}
	return slices.ContainsFunc(s.stats.dues, func(j *job) bool {
		return !j.removed && j.parked == "" && (j.plan == nil || !j.plan.claim) && !s.due(j.shape)
	})
}

// keepPlans looks at what was promised before all else: claims whose places are free start, and those that are broken
// or whose job has come to wait for something else are dropped, so that what their victims free goes to the next.
func (s *State) keepPlans(out *Result) {
	claims := s.claims()
	for _, pl := range claims {
		if cause := s.broken(pl); cause != "" {
			s.dropPlan(pl, cause)
		}
	}
	s.dropGated(claims)
	for _, pl := range slices.Clone(s.plans) {
		if pl.claim {
			continue
		}
		if v := s.gate(pl.job.shape); v.code != "" {
			s.dropPlan(pl, waitsFirst(v.code))
		} else {
			pl.due = s.due(pl.job.shape)
		}
	}
	for _, pl := range claims {
		j := pl.job
		if j.plan != pl || s.gateClaimed(pl).code != "" {
			continue
		}
		a := s.askFor(j)
		s.stats.decisions++
		if !slices.ContainsFunc(pl.bays, func(b *bay) bool { return !s.bayFits(&a, b) }) {
			s.start(j, pl.bays, out)
		}
	}
}

// claims is the plans whose places are being freed, in the order of their jobs' turns.
func (s *State) claims() []*plan {
	var list []*plan
	for _, pl := range s.plans {
		if pl.claim {
			list = append(list, pl)
		}
	}
	return list
}

// dropGated drops the claims whose gates would be closed with every victim gone: a limit was lowered, a budget used up,
// a queue stopped since. Where a limit has room for some of them, those whose turn was first keep it.
func (s *State) dropGated(claims []*plan) {
	live := claims[:0:0]
	for _, pl := range claims {
		if pl.job.plan == pl {
			live = append(live, pl)
		}
	}
	each := func(sign int) {
		for _, pl := range live {
			for _, v := range pl.victims {
				if !v.gone {
					s.count(v, int64(sign))
				}
			}
		}
	}
	each(-1)
	for _, pl := range live {
		s.claim(pl, -1)
	}
	closed := make([]Code, len(live))
	for i, pl := range live {
		closed[i] = s.gateTo(pl.job.shape, pl.model, pl.job).code
		if closed[i] == "" {
			s.claim(pl, +1)
		}
	}
	each(+1)
	for i, pl := range live {
		if closed[i] != "" {
			s.claim(pl, +1) // dropPlan takes it off
			s.dropPlan(pl, waitsFirst(closed[i]))
		}
	}
}

// waitsFirst is why a plan is dropped whose job has come to wait for something else than accelerators.
func waitsFirst(code Code) string { return "the job waits for something else first: " + string(code) }

// gateClaimed is the gate of a job whose amounts are booked as claimed already.
func (s *State) gateClaimed(pl *plan) verdict {
	s.claim(pl, -1)
	v := s.gateTo(pl.job.shape, pl.model, pl.job)
	s.claim(pl, +1)
	return v
}

// entry is one line of the queue in the walk of a priority.
type entry struct {
	group   *group
	tenant  float64 // share
	project float64
	head    *job
	shapes  []*shape // of the group, as the walk of the priority began
	fronts  []front  // of those with jobs still to try, a heap by their first jobs
}

// front is a shape and the place of its first job by submit order. It holds no pointer, so that a heap of them is moved
// about without a word to the garbage collector.
type front struct {
	seq  int64
	at   int32 // the shape, in entry.shapes
	jobs int32 // in the shape's line: another number means another first job
}

// comesFirst says whether the shape at i of the heap comes before that at k.
func (e *entry) comesFirst(i, k int) bool {
	f, o := &e.fronts[i], &e.fronts[k]
	if f.seq != o.seq {
		return f.seq < o.seq
	}
	a, b := e.shapes[f.at].first(), e.shapes[o.at].first()
	return a == nil || b != nil && before(a, b)
}

func (e *entry) compare(o *entry) int {
	if c := cmp.Or(cmp.Compare(e.tenant, o.tenant), cmp.Compare(e.project, o.project)); c != 0 {
		return c
	}
	if before(e.head, o.head) {
		return -1
	}
	return 1
}

// shares reads the fair shares an entry is ordered by.
func (s *State) shares(g *group) (tenant, project float64) {
	if s.cfg.Order == FIFO {
		return 0, 0
	}
	a := g.account
	if a.parent == nil {
		return s.shareOf(a, s.now), 0
	}
	return s.shareOf(a.parent, s.now), s.shareOf(a, s.now)
}

// walk goes through the queue in order and starts what fits. Each shape is tried until it is blocked, once. Where
// jobs within their guarantee wait, they come first: they could take their place back from a borrower at once.
func (s *State) walk(out *Result) {
	levels := s.priorities()
	if s.anyDue() {
		for _, level := range levels {
			s.walkLevel(level, true, out)
		}
	}
	for _, level := range levels {
		s.walkLevel(level, false, out)
	}
}

func (s *State) anyDue() bool {
	if len(s.guarded) == 0 {
		return false
	}
	for _, sh := range s.shapes {
		if sh.queue.len() > 0 && s.due(sh) {
			return true
		}
	}
	return false
}

// walkLevel goes through one priority, of all shapes or of those within their guarantee.
func (s *State) walkLevel(level int, due bool, out *Result) {
	s.walkHeads(level, due, out)
	lines := s.entries(level)
	for len(lines) > 0 {
		e := lines[0]
		sh := e.next()
		if sh == nil {
			lines = popEntry(lines)
			continue
		}
		e.head = sh.first()
		tenant, project := s.shares(e.group)
		if e.tenant != tenant || e.project != project {
			// Starts of this cycle have raised the share: take the place that belongs to it now.
			e.tenant, e.project = tenant, project
			siftEntry(lines, 0)
			continue
		}
		if len(lines) > 1 && !topIsFirst(lines) {
			siftEntry(lines, 0)
			continue
		}
		if due && !s.due(sh) || sh.blocked == s.walks {
			e.drop()
		} else if !s.advance(sh, out) {
			e.drop()
			sh.blocked = s.walks
		}
	}
}

// walkHeads gives the job that headed its family in the last cycle its turn before the others of its priority: fair
// share may reorder tenants from cycle to cycle, but a promised start stays promised. An older job of its own line
// still comes first.
func (s *State) walkHeads(level int, due bool, out *Result) {
	if s.cfg.Order == FIFO {
		return
	}
	seen := map[*family]bool{}
	for _, pl := range slices.Clone(s.plans) {
		j := pl.job
		if j.plan != pl || pl.claim || j.Priority != level || j.removed || j.parked != "" || due && !pl.due {
			continue
		}
		fam := j.shape.spec.family
		if !seen[fam] && !s.olderWaits(j) && j.shape.blocked != s.walks {
			s.tryPlanned(j, out)
		}
		seen[fam] = true
	}
}

// olderWaits says whether a job of the same line and family was submitted before and waits for accelerators.
func (s *State) olderWaits(j *job) bool {
	return slices.ContainsFunc(j.shape.group.shapes, func(sh *shape) bool {
		first := sh.first()
		return sh.spec.family == j.shape.spec.family && first != nil && before(first, j) && s.gate(sh).code == ""
	})
}

// priorities of waiting jobs, highest first.
func (s *State) priorities() []int {
	seen := map[int]bool{}
	var levels []int
	for key := range s.groups {
		if !seen[key.priority] {
			seen[key.priority] = true
			levels = append(levels, key.priority)
		}
	}
	slices.SortFunc(levels, func(a, b int) int { return cmp.Compare(b, a) })
	return levels
}

// entries is the lines of a priority as a heap.
func (s *State) entries(level int) []*entry {
	var list []*entry
	for _, g := range s.groups {
		if g.priority != level {
			continue
		}
		clear(g.lined) // those that are gone now are not kept
		e := &entry{group: g, shapes: append(g.lined[:0], g.shapes...), fronts: g.fronts[:0]}
		for i, sh := range e.shapes {
			if j := sh.first(); j != nil {
				e.fronts = append(e.fronts, front{j.Seq, int32(i), int32(sh.queue.len())})
			}
		}
		g.lined, g.fronts = e.shapes, e.fronts
		for i := len(e.fronts)/2 - 1; i >= 0; i-- {
			e.sift(i)
		}
		if sh := e.next(); sh != nil {
			e.head = sh.first()
			e.tenant, e.project = s.shares(g)
			list = append(list, e)
		}
	}
	for i := len(list)/2 - 1; i >= 0; i-- {
		siftEntry(list, i)
	}
	return list
}

// next is the shape whose first job was submitted first, nil when none is left.
func (e *entry) next() *shape {
	for len(e.fronts) > 0 {
		top := &e.fronts[0]
		sh := e.shapes[top.at]
		switch j := sh.first(); {
		case j == nil:
			e.drop()
		case int(top.jobs) == sh.queue.len():
			return sh
		default:
			top.seq, top.jobs = j.Seq, int32(sh.queue.len())
			e.sift(0)
		}
	}
	return nil
}

// drop takes the next shape off.
func (e *entry) drop() {
	last := len(e.fronts) - 1
	e.fronts[0] = e.fronts[last]
	e.fronts = e.fronts[:last]
	e.sift(0)
}

func (e *entry) sift(i int) {
	list := e.fronts
	for {
		child := 2*i + 1
		if child >= len(list) {
			return
		}
		if child+1 < len(list) && e.comesFirst(child+1, child) {
			child++
		}
		if !e.comesFirst(child, i) {
			return
		}
		list[i], list[child] = list[child], list[i]
		i = child
	}
}

// topIsFirst says whether the heap's top, whose key may have grown, still comes first.
func topIsFirst(list []*entry) bool {
	for _, i := range [2]int{1, 2} {
		if i < len(list) && list[i].compare(list[0]) < 0 {
			return false
		}
	}
	return true
}

func siftEntry(list []*entry, i int) {
	for {
		child := 2*i + 1
		if child >= len(list) {
			return
		}
		if child+1 < len(list) && list[child+1].compare(list[child]) < 0 {
			child++
		}
		if list[i].compare(list[child]) <= 0 {
			return
		}
		list[i], list[child] = list[child], list[i]
		i = child
	}
}

func popEntry(list []*entry) []*entry {
	last := len(list) - 1
	list[0] = list[last]
	list[last] = nil
	list = list[:last]
	siftEntry(list, 0)
	return list
}

// tryPlanned gives a job with a planned start its turn before the others of its priority.
func (s *State) tryPlanned(j *job, out *Result) {
	v := s.gate(j.shape)
	if v.code != "" {
		s.dropPlan(j.plan, waitsFirst(v.code))
		return
	}
	if bays := s.tryJob(j); bays != nil {
		s.start(j, bays, out)
		return
	}
	s.block(j, out)
}

// advance starts the first job of a shape and says whether the next one is worth a try.
func (s *State) advance(sh *shape, out *Result) bool {
	j := sh.first()
	if v := s.gate(sh); v.code != "" {
		sh.verdict = v
		s.reclaimLimit(j, v, out)
		return false
	}
	if j.turn.walk == s.walks {
		return s.fill(sh, j, out) // it had its turn already
	}
	fam := sh.spec.family
	if s.cfg.NoBackfill && fam.in(s.walks).blocked {
		return false
	}
	if bays := s.tryJob(j); bays != nil {
		s.start(j, bays, out)
		return sh.queue.len() > 0
	}
	s.block(j, out)
	return s.fill(sh, j, out)
}

// block deals with a job that has its turn and does not fit: victims, or a planned start.
func (s *State) block(j *job, out *Result) {
	w := j.shape.spec.family.in(s.walks)
	w.first = !w.blocked
	s.turns++
	j.turn = turn{s.walks, s.turns}
	if s.due(j.shape) {
		j.dueTurn = s.walks
		s.stats.dues = append(s.stats.dues, j)
	}
	claimed := j.plan != nil && j.plan.claim
	if !claimed && !s.preempt(j, out) && !s.cfg.NoBackfill {
		s.reserve(j)
	}
	w.blocked = true
}

// fill lets jobs behind a blocked one of the same shape use a gap that is too short for it.
func (s *State) fill(sh *shape, blocked *job, out *Result) bool {
	if s.cfg.NoBackfill || sh.queue.len() < 2 || !s.gapsMatter(sh) {
		return false
	}
	shortest := blocked.limit
	if shortest <= 0 {
		shortest = math.MaxInt64
	}
	if sh.brief == 0 || sh.brief >= shortest {
		return false // all are as long
	}
	// If the briefest could not start, none can.
	if sh.req.hopeless(s.missing(sh, sh.brief), s.walks) {
		return false
	}
	s.stats.probe = job{Job: blocked.Job, shape: sh, limit: sh.brief}
	if s.tryJob(&s.stats.probe) == nil {
		return false
	}
	var next *job
	depth := 0
	sh.queue.each(func(j *job) bool {
		depth++
		if j != blocked && j.plan == nil && j.limit > 0 && j.limit < shortest {
			shortest = j.limit
			if bays := s.tryJob(j); bays != nil {
				next = j
				s.start(j, bays, out)
				return false
			}
		}
		return depth < s.cfg.BackfillDepth
	})
	return next != nil && sh.queue.len() > 0
}

// gapsMatter says whether a shorter job could start where a longer one could not.
func (s *State) gapsMatter(sh *shape) bool {
	if len(s.windows) > 0 {
		return true
	}
	return slices.ContainsFunc(sh.spec.pools, func(p *pool) bool { return len(p.held) > 0 })
}

// openPools is the pools that can hold a job of the shape and where its project may hold one job more.
func (s *State) openPools(sh *shape) []*pool {
	able := s.able(sh)
	if len(able) <= 1 {
		return able
	}
	open := make([]*pool, 0, len(able))
	for _, p := range able {
		if s.amountGate(sh, p.model, sh.first()).code == "" {
			open = append(open, p)
		}
	}
	return open
}

// shutPools is which of the pools that can hold it a shape may not use now, one bit each.
func (s *State) shutPools(sh *shape) uint64 {
	able := s.able(sh)
	if len(able) <= 1 {
		return 0
	}
	shut := uint64(0)
	for i, p := range able {
		if s.amountGate(sh, p.model, sh.first()).code != "" {
			shut |= 1 << i
		}
	}
	return shut
}

// tryJob finds places for a job now, nil when there are none. What did not fit is not tried again in this walk, nor
// is what would run longer.
func (s *State) tryJob(j *job) []*bay {
	sh := j.shape
	m := s.missing(sh, j.limit)
	counts := j.plan == nil && len(s.able(sh)) <= 64
	if counts && sh.req.hopeless(m, s.walks) {
		return nil
	}
	a := s.askFor(j)
	bays := s.findAny(&a)
	if bays == nil && counts {
		sh.req.missed = append(sh.req.missed, m)
	}
	return bays
}

// missing is that a job of the shape with such a limit does not fit.
func (s *State) missing(sh *shape, limit time.Duration) miss {
	m := miss{priority: sh.priority, limit: limit, shut: s.shutPools(sh)}
	if m.limit <= 0 {
		m.limit = math.MaxInt64
	}
	if len(s.windows) > 0 || s.oneTenant {
		m.account = sh.group.account
	}
	return m
}

// findAny looks through every open pool; a job of one node goes where it costs least over all of them.
func (s *State) findAny(a *ask) []*bay {
	open := s.openPools(a.shape)
	if a.nodes > 1 || len(open) == 1 || len(a.only) > 0 {
		for _, p := range open {
			if bays := s.find(a, p); bays != nil {
				return bays
			}
		}
		return nil
	}
	s.stats.decisions++
	var best candidate
	found := false
	for _, p := range open {
		cands, _ := s.candidates(a, p, 1)
		for _, c := range cands {
			if !found || c.compare(best) < 0 {
				best, found = c, true
			}
		}
	}
	switch {
	case !found:
		return nil
	case best.class != nil:
		return best.class.take(s, 1)
	default:
		return []*bay{best.bay}
	}
}

// start gives a job its places and takes it out of the queue.
func (s *State) start(j *job, bays []*bay, out *Result) {
	sh := j.shape
	s.measureEstimate(j)
	if j.plan != nil {
		s.dropPlan(j.plan, "")
	}
	a := s.askFor(j)
	given, accels := s.placesFor(&a, bays)
	al := &alloc{
		Allocation: Allocation{
			Job: j.ID, Attempt: j.Attempt, Tenant: j.Tenant, Project: j.Project, Spec: sh.spec.Name,
			Priority: j.Priority, Preemptible: j.Preemptible, Array: j.Array, Service: j.Service, Grace: j.Grace,
			Started: at(s.now), TimeLimit: j.limit, Places: given,
		},
		servers: make([]*server, len(bays)), accels: accels,
		model: bays[0].pool.model,
		cycle: s.cycle,
		job:   j,
	}
	for i, b := range bays {
		al.servers[i] = b.srv
	}
	if sh.spec.k == 0 {
		al.model = ""
	}
	out.Starts = append(out.Starts, Start{
		Job: j.ID, Attempt: j.Attempt, Tenant: j.Tenant, Project: j.Project, Spec: sh.spec.Name, Model: al.model,
		Places: al.Places, TimeLimit: j.limit, Waited: time.Duration(max(s.now-ns(j.Submitted), 0)),
		Backfilled: sh.spec.family.in(s.walks).blocked,
	})
	s.drop(j, "")
	s.take(al)
	s.stats.started = append(s.stats.started, al)
	s.restand(j.Tenant)
	s.penalize(al, s.now, +1)
}

// dropStale lets go of planned starts of jobs that were overtaken in this cycle.
func (s *State) dropStale() {
	for _, pl := range slices.Clone(s.plans) {
		if pl.walk != s.walks && !pl.claim {
			s.dropPlan(pl, "other jobs come first now")
		}
	}
}
