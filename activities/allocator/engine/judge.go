package engine

import (
	"cmp"
	"slices"
	"time"
)

// judge finds, once all starts are made, why each shape waits. It looks at shapes, not at jobs.
func (s *State) judge() {
	var turned []*shape
	for _, sh := range s.shapes {
		if sh.queue.len() == 0 {
			sh.verdict = verdict{cycle: s.cycle}
			continue
		}
		v := s.verdictOf(sh)
		changed := sh.verdict.code != v.code && !s.cfg.Quiet
		sh.verdict = v
		if changed {
			turned = append(turned, sh)
		}
	}
	slices.SortFunc(turned, compareShapes) // so that the same facts report in the same order
	for _, sh := range turned {
		sh.queue.each(func(j *job) bool { s.touch(j); return true })
	}
	// Those at the head of a line, and those victims make room for, have reasons of their own.
	for _, j := range s.stats.special {
		if !j.removed {
			s.touch(j)
		}
	}
	s.stats.special = s.stats.special[:0]
	for _, f := range s.families {
		l := s.lineOf(f)
		s.stats.special = append(s.stats.special, l.leads...)
		if first := l.first(); first != nil {
			s.stats.special = append(s.stats.special, first)
		}
	}
	for _, j := range s.stats.special {
		s.touch(j)
	}
}

// verdictOf is why a shape with jobs in line waits. That nothing is ahead of its first job is seen later.
func (s *State) verdictOf(sh *shape) verdict {
	v := s.gate(sh)
	if v.code == "" {
		v.code = Behind
		if w := s.windowAhead(sh); w != nil {
			v.code, v.window = WindowAhead, w
		}
	}
	v.cycle = s.cycle
	return v
}

// touch asks for the job's reason to be looked at when reasons are reported.
func (s *State) touch(j *job) {
	if !j.touched && !s.cfg.Quiet {
		j.touched = true
		s.stats.touched = append(s.stats.touched, j)
	}
}

// windowAhead is the window but for which a shape's first job would start now.
func (s *State) windowAhead(sh *shape) *window {
	if len(s.windows) == 0 {
		return nil
	}
	j := sh.first()
	if j == nil || j.plan != nil && j.plan.claim {
		return nil
	}
	a := s.askFor(j)
	a.blind.windows = true
	bays := s.findAny(&a)
	if bays == nil {
		return nil
	}
	a.blind.windows = false
	for _, b := range bays {
		for _, w := range b.srv.windows {
			if !s.windowsAllow(&a, []*window{w}, s.now, a.until) {
				return w
			}
		}
	}
	return nil
}

// A waiting job's numbers are compared with those last reported once in renewal, as far as a cycle compares at least
// leastRenewed and at most mostRenewed of them: so that what it costs follows time, not how many cycles a busy pool has.
const (
	renewal      = time.Minute
	leastRenewed = 32
	mostRenewed  = 512
)

// renewed is how many jobs have their numbers compared in this cycle, in turn.
func (s *State) renewed() int {
	since := s.now - s.renewedAt
	s.renewedAt = s.now
	share := min(float64(since)/float64(renewal), 1)
	return min(len(s.ring), max(leastRenewed, min(mostRenewed, int(share*float64(len(s.ring))))))
}

// report lists reasons whose code changed, then those whose numbers did.
func (s *State) report(out *Result) {
	if s.cfg.Quiet {
		return
	}
	limit := s.cfg.ReasonsPerCycle
	full := func() bool { return limit > 0 && len(out.Reasons) >= limit }
	tell := func(j *job) {
		code, print := s.judgement(j)
		if j.sent && j.code == code && j.print == print {
			return
		}
		if !j.sent || j.code != code {
			j.since = s.now
		}
		j.sent, j.code, j.print = true, code, print
		out.Reasons = append(out.Reasons, s.explain(j))
	}
	list, renewed := s.stats.touched, s.renewed()
	size := len(list) + renewed
	if limit > 0 {
		size = min(size, limit)
	}
	out.Reasons = make([]Reason, 0, size)
	n := 0
	for n < len(list) && !full() {
		list[n].touched = false
		if !list[n].removed {
			tell(list[n])
		}
		n++
	}
	s.stats.touched = slices.Delete(list, 0, n)
	out.More = len(s.stats.touched) > 0
	for range renewed {
		if full() {
			break
		}
		s.cursor++
		if s.cursor >= len(s.ring) {
			s.cursor = 0
		}
		tell(s.ring[s.cursor])
	}
}

// judgement is a job's code now and a fingerprint of the numbers behind it.
func (s *State) judgement(j *job) (Code, uint64) {
	code := s.codeOf(j)
	h := uint64(14695981039346656037)
	put := func(values ...int64) {
		for _, v := range values {
			h = (h ^ uint64(v)) * 1099511628211
			h ^= h >> 29
		}
	}
	v := &j.shape.verdict
	switch code {
	case Behind:
		l := s.lineOf(j.shape.spec.family)
		t := s.aheadOf(j)
		put(int64(t.jobs), t.milli)
		if first := l.first(); first != nil {
			put(int64(mix(first.ID)))
		}
	case QuotaReached, JobLimit, GuaranteeOnly:
		put(v.used, v.reserved, v.limit)
	case BudgetSpent:
		put(int64(v.budget.Spent), int64(v.budget.sum), int64(v.budget.reserved()), int64(v.budget.Amount))
	case WindowAhead:
		put(v.window.from, v.window.until, int64(mix(v.window.ID)))
	case NeverFits:
		put(s.version)
	case Unhealthy, Fragmented, Capacity:
		d := s.diagnose(j)
		put(int64(d.blocks), int64(d.free), int64(d.largest), d.next, int64(d.healed), d.back.at, int64(mix(d.nextJob)), int64(oneIf(d.endless)))
		for _, what := range d.stuck {
			put(int64(mix(what)))
		}
	case Preempting:
		put(j.plan.grace, int64(s.releasedOf(j.plan)))
	default: // their numbers are the job's own, and change with it
	}
	if j.plan != nil {
		put(j.plan.start)
	}
	return code, h
}

// codeOf is a job's primary reason by what the last cycle found.
func (s *State) codeOf(j *job) Code {
	if j.entered == s.cycle && !j.sent || j.shape.verdict.cycle == 0 {
		return NotEvaluated
	}
	if v := &j.shape.verdict; v.code == SpecUnavailable || v.code == NeverFits {
		return v.code
	}
	if j.parked != "" {
		if v := s.fixable(j.shape); v.code != "" {
			return v.code
		}
		if st := s.stop(j.shape); st != nil && codeRank(j.parked) > codeRank(QueueStopped) {
			return QueueStopped
		}
		return j.parked
	}
	if j.plan != nil && j.plan.claim {
		return Preempting
	}
	code := j.shape.verdict.code
	if code == "" {
		return NotEvaluated
	}
	if code == Behind && s.aheadOf(j).jobs == 0 {
		return s.diagnose(j).code
	}
	return code
}

var codeOrder = []Code{
	SpecUnavailable, NeverFits, DependencyFailed, Held, QueueStopped, NotBefore, DependencyWait, JobLimit,
	QuotaReached, GuaranteeOnly, BudgetSpent, WindowAhead, Behind, Unhealthy, Fragmented, Capacity, Preempting,
	Dispatching, NotEvaluated,
}

func codeRank(c Code) int { return slices.Index(codeOrder, c) }

// diagnosis is what keeps the first job of a line from starting.
type diagnosis struct {
	code    Code
	model   string
	cluster string // whose servers these are
	level   string
	free    int // accelerators free and schedulable where the job may go
	blocks  int // nodes that fit now, within the best domain when one is required
	largest int // accelerators in the largest usable block
	block   int // accelerators the job needs in one block
	needed  int
	healed  int // nodes that would fit if everything idle were healthy
	pool    *pool
	next    int64
	nextJob string
	limited string // cpu or memory, when accelerators alone would do
	sick    map[string][]string
	back    back // when enough of what is sick is expected back
	// stuck is what people have to decide first, where without it too little comes back.
	stuck []string
	// endless says that no end of what runs makes room: what holds it does not come to an end by itself.
	endless bool
}

// diag is a diagnosis as of a cycle.
type diag struct {
	diagnosis
	cycle int64
}

// diagnose looks at every bay the job may use. It is asked only for the heads of lines.
func (s *State) diagnose(j *job) diagnosis {
	if j.diag != nil && j.diag.cycle == s.cycle && !s.dirty {
		return j.diag.diagnosis
	}
	var best diagnosis
	for i, p := range s.openPools(j.shape) {
		if d := s.diagnoseIn(j, p); i == 0 || d.blocks > best.blocks {
			best = d
		}
	}
	if best.code == "" {
		best = diagnosis{code: Capacity, needed: j.shape.nodes * j.shape.spec.k}
	}
	if (best.code == Capacity || best.code == Fragmented) && j.plan == nil {
		a := s.askFor(j)
		best.endless = s.planStart(&a, far) == nil
	}
	j.diag = &diag{best, s.cycle}
	return best
}

// counts is what one domain holds of a request.
type counts struct {
	fit, healed int
	stuck       int    // of those healed, that do not come back before a person has decided something
	back        []back // when each that would fit if healthy is expected back; far = nobody says
}

func (s *State) diagnoseIn(j *job, p *pool) diagnosis {
	a := s.askFor(j)
	k := max(a.k, 1)
	d := diagnosis{pool: p, model: p.model, cluster: p.cluster, needed: a.nodes * k, block: k, level: "server", sick: map[string][]string{}, next: far}
	within := a.within()
	var all counts
	domains := map[string]*counts{"": &all}
	widest, byGPUs := 0, 0
	var soonest *bay // where the next release is
	var decide []string
	anywhere := a.anywhere()
	for i, b := range p.bays {
		if g := &p.seen[i]; g.full(a.k) && anywhere && !within {
			d.free += g.free
			widest = max(widest, g.free)
			if g.soon < d.next && g.soon > s.now {
				d.next, soonest = g.soon, b
			}
			continue
		}
		if !anywhere && !a.allows(b.srv) {
			continue
		}
		d.free += b.free
		widest = max(widest, b.free)
		c := &all
		if within {
			name := b.domainNames()[a.same.index()]
			if name == "" {
				continue // in no domain of the level
			}
			if c = domains[name]; c == nil {
				c = &counts{}
				domains[name] = c
			}
		}
		fit := s.bayFits(&a, b)
		if fit {
			c.fit++
		} else if b.free >= k {
			byGPUs++
		}
		if fit || s.fitsHealed(&a, b, true) {
			c.healed++
			if !fit {
				why := b.whyNot()
				d.sick[why] = append(d.sick[why], b.srv.ID)
				c.back = append(c.back, b.backAt(s.now))
				if !s.fitsHealed(&a, b, false) {
					c.stuck++
					decide = append(decide, b.stuck()...)
				}
			}
		}
		if !fit && b.soon < d.next && b.soon > s.now {
			d.next, soonest = b.soon, b
		}
	}
	if soonest != nil {
		for _, al := range soonest.srv.allocs {
			if al.end == d.next && (d.nextJob == "" || al.Job < d.nextJob) {
				d.nextJob = al.Job
			}
		}
	}
	unaided := 0
	for _, c := range domains {
		d.blocks = max(d.blocks, c.fit)
		d.healed = max(d.healed, c.healed)
		unaided = max(unaided, c.healed-c.stuck)
	}
	d.largest = d.blocks * k
	if a.nodes > 1 {
		d.block = d.needed
		if within {
			d.level = string(a.same)
		}
	} else if d.blocks == 0 {
		d.largest = widest
	}
	if byGPUs > 0 && d.blocks < a.nodes {
		d.limited = "cpu or memory"
	}
	switch {
	case d.blocks >= a.nodes:
		d.code = NotEvaluated // the next cycle starts it
	case d.healed >= a.nodes:
		d.code = Unhealthy
		if unaided < a.nodes {
			slices.Sort(decide)
			d.stuck = slices.Compact(decide)
		}
		for _, c := range domains {
			if c.healed >= a.nodes {
				slices.SortFunc(c.back, func(x, y back) int { return cmp.Compare(x.at, y.at) })
				if t := c.back[a.nodes-c.fit-1]; t.at != far && (d.back.at == 0 || t.at < d.back.at) {
					d.back = t
				}
			}
		}
	case d.free >= d.needed:
		d.code = Fragmented
	default:
		d.code = Capacity
	}
	return d
}

// fitsHealed says whether a node would fit a bay if the server and its accelerators were schedulable: all of them, or
// but for those that a person has to decide about first.
func (s *State) fitsHealed(a *ask, b *bay, all bool) bool {
	if b.whole || !b.srv.present || !all && !b.srv.Schedulable && b.srv.Stuck != "" {
		return false
	}
	if b.srv.cpuFree < a.cpu || b.srv.memFree < a.mem || !s.windowsAllow(a, b.srv.windows, s.now, a.until) {
		return false
	}
	free, part := 0, false
	for _, dev := range b.accels {
		if !all && !dev.ok && dev.stuck != "" {
			continue
		}
		if dev.used == 0 {
			free++
		}
		part = part || a.part > 0 && whole-dev.used >= a.part
	}
	for _, h := range b.srv.holds {
		if h.bay == b && h.binds(a) {
			free -= h.k
		}
	}
	return free >= a.k && (a.part == 0 || part)
}

// backAt is when a bay that is not wholly schedulable is expected to be: far when nobody says, or said a time that
// is past.
func (b *bay) backAt(now int64) back {
	t := back{}
	known := func(is back) {
		if is.at <= now {
			is = back{at: far, late: far}
		}
		if is.at > t.at {
			t = is
		}
	}
	if !b.srv.Schedulable {
		known(backOf(b.srv.Back, b.srv.BackLate, b.srv.BackBasis))
	}
	for _, dev := range b.accels {
		if !dev.ok {
			known(dev.back)
		}
	}
	return t
}

// afterPreempt is how many nodes of a job would fit a pool, in the best domain if the gang must be in one, with everything
// that may be preempted gone.
func (s *State) afterPreempt(j *job, p *pool) int {
	ask := s.askFor(j)
	a, within := &ask, ask.within()
	domains := map[string]int{}
	most := 0
	for _, b := range p.bays {
		if a.allows(b.srv) && (s.bayFits(a, b) || s.fitsPreempted(a, b)) {
			name := ""
			if within {
				if name = b.domainNames()[a.same.index()]; name == "" {
					continue
				}
			}
			domains[name]++
			most = max(most, domains[name])
		}
	}
	return most
}

// fitsPreempted says whether a node would fit if everything preemptible of lower priority ended.
func (s *State) fitsPreempted(a *ask, b *bay) bool {
	if !b.up {
		return false
	}
	free := 0
	for _, dev := range b.accels {
		busy := slices.ContainsFunc(dev.holders, func(al *alloc) bool {
			return !al.Preemptible || al.Priority >= a.priority
		})
		if dev.ok && !busy {
			free++
		}
	}
	return free >= max(a.k, 1)
}

// releasedOf is how many accelerators of a claim's victims have been given back.
func (s *State) releasedOf(pl *plan) int {
	n := 0
	for _, v := range pl.victims {
		if v.gone {
			n += len(v.accels)
		}
	}
	return n
}
