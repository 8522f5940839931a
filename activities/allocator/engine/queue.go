package engine

import (
	"cmp"
	"math/bits"
	"slices"
	"strings"
	"time"

	"gpupool/schema"
)

// job is a Job that waits. What every walk through the queue reads of a job lies together, at its beginning.
type job struct {
	turn  turn
	plan  *plan
	limit time.Duration // its own or the spec's; 0 = unlimited
	shape *shape
	Job
	asked   int    // priority; Priority is what its account allows of it
	parked  Code   // why it is not in its shape's queue: HELD, NOT_BEFORE, DEPENDENCY...; "" = it is
	dueTurn int64  // the walk in which it had its turn among those within their guarantee
	slot    int    // in State.ring
	entered int64  // the last cycle that had not seen it
	keeps   int64  // of its account's limits, in thousandths, while it waits; see State.keep
	keepsOf string // model
	removed bool
	touched bool
	before  struct { // what is ahead of it, as of a cycle
		tally
		cycle int64
	}
	diag *diag // nil until it headed its line

	sent    bool // a reason was reported
	code    Code // the one last reported
	since   int64
	print   uint64   // fingerprint of the numbers last reported
	guesses *guesses // nil until it was given an estimate
}

// turn is when, in which walk through the queue, a job had its turn and was blocked.
type turn struct{ walk, n int64 }

// shapeKey is everything about a request that decides where, when and whether it can start, but its place in line.
type shapeKey struct {
	spec, tenant, project string
	nodes, priority       int
	preemptible           bool
	same                  Level
	required              bool
	servers               string
	cluster, site, region string
	needs                 schema.Ability
	kept                  bool // it ran before, and keeps what it held of its limits; see State.keep
	limit                 int  // power of two of the time limit, so that shapes stay few
	array                 string
}

// shape is the waiting jobs that ask for the same thing. It is planned once a cycle.
type shape struct {
	shapeKey
	spec   *spec
	req    *request
	group  *group
	lane   *lane         // nil while no accelerators of the spec are known
	slot   int           // in group.shapes
	only   []string      // server constraint
	brief  time.Duration // no job of the shape has a shorter limit; 0 = none has one
	queue  ranked        // jobs that could start, by submit order
	head   *job          // the first of them
	parked int
	arr    *array

	verdict verdict
	glance  glance
	blocked int64 // last walk in which its turn came and nothing more could start
}

// first is the shape's job whose turn it is.
func (sh *shape) first() *job { return sh.head }

// milli is what a job of the shape holds, in thousandths of an accelerator.
func (sh *shape) milli() int64 { return int64(sh.nodes) * sh.spec.milli }

// insert puts a job in line.
func (sh *shape) insert(j *job) {
	sh.queue.insert(j, sh.milli())
	sh.head = sh.queue.first()
	sh.group.jobs++
	if sh.lane != nil {
		sh.lane.queue.insert(j, sh.milli())
	}
}

// remove takes a job out of the line.
func (sh *shape) remove(j *job) {
	if sh.queue.remove(j) {
		sh.head = sh.queue.first()
		sh.group.jobs--
	}
	if sh.lane != nil {
		sh.lane.queue.remove(j)
	}
}

// groupKey is a line in the queue: jobs of one are ordered by submit order alone.
type groupKey struct {
	priority        int
	tenant, project string
}

type group struct {
	groupKey
	account *account
	shapes  []*shape
	lanes   []*lane
	jobs    int      // in line
	lined   []*shape // space for an entry's shapes
	fronts  []front  // and for its fronts
}

// lane is a group's jobs in line for the accelerators of one family.
type lane struct {
	family *family
	shapes []*shape
	queue  ranked
	built  int64 // the last line it has a span in
	at     int   // its place there
}

// lane is the group's for a family, nil when it has none.
func (g *group) lane(f *family) *lane {
	for _, l := range g.lanes {
		if l.family == f {
			return l
		}
	}
	return nil
}

// enlist gives a shape its lane.
func (g *group) enlist(sh *shape) {
	f := sh.spec.family
	if f == nil {
		return
	}
	l := g.lane(f)
	if l == nil {
		l = &lane{family: f}
		g.lanes = append(g.lanes, l)
	}
	sh.lane = l
	l.shapes = append(l.shapes, sh)
}

// relane sorts the jobs in line into lanes anew, when families have changed.
func (s *State) relane() {
	var jobs []place
	for _, g := range s.groups {
		g.lanes = nil
		for _, sh := range g.shapes {
			sh.lane = nil
			g.enlist(sh)
			if n := sh.queue.all; n.milli != int64(n.jobs)*sh.milli() { // what a job asks for has changed with its spec
				sh.queue = rank(sh.places(jobs[:0]))
			}
		}
		for _, l := range g.lanes {
			jobs = jobs[:0]
			for _, sh := range l.shapes {
				jobs = sh.places(jobs)
			}
			l.queue = rank(jobs)
		}
	}
}

// places appends the shape's jobs in line.
func (sh *shape) places(to []place) []place {
	milli := sh.milli()
	sh.queue.each(func(j *job) bool {
		to = append(to, place{j.Seq, milli, j})
		return true
	})
	return to
}

type array struct {
	running, waiting int
	claims           int // of those that wait: whose victims are to end
}

func (s *State) array(id string) *array {
	a := s.arrays[id]
	if a == nil {
		a = &array{}
		s.arrays[id] = a
	}
	return a
}

// SetJob adds a waiting job or replaces what is known of it. A job whose live allocation is of the same or a later
// attempt is not waiting, and the call changes nothing: an event that was overtaken can't start it twice.
func (s *State) SetJob(in Job) {
	for _, al := range s.allocs[in.ID] {
		if al.Attempt >= in.Attempt {
			return
		}
	}
	s.dirty = true
	in.Nodes = max(in.Nodes, 1)
	in.Servers = slices.Clone(in.Servers)
	slices.Sort(in.Servers)
	in.DependsOn = slices.Clone(in.DependsOn)
	asked := in.Priority
	in.Priority = s.capped(&in, asked)
	if j := s.jobs[in.ID]; j != nil {
		s.dequeue(j)
		s.dropWaits(j)
		if j.plan != nil && s.keyOf(&in) != j.shape.shapeKey {
			s.dropPlan(j.plan, "the job asks for something else now")
		}
		j.Job, j.asked = in, asked
		s.enqueue(j)
		if j.parked != "" && j.plan != nil {
			s.dropPlan(j.plan, "the job is not to start for now")
		}
		return
	}
	j := &job{Job: in, asked: asked, slot: len(s.ring), entered: s.cycle}
	s.jobs[in.ID] = j
	s.ring = append(s.ring, j)
	s.enqueue(j)
	if in.Attempt <= 1 && !s.reverting {
		j.shape.spec.seen += float64(in.Nodes)
		s.stats.seen += float64(in.Nodes)
	}
}

// RemoveJob takes a job that was cancelled out of the queue.
func (s *State) RemoveJob(id string) {
	if j := s.jobs[id]; j != nil {
		s.dirty = true
		s.drop(j, "the job left the queue")
		delete(s.pairs, id)
	}
}

// Waits reports whether a job is in the queue.
func (s *State) Waits(id string) bool { return s.jobs[id] != nil }

// Holds says whether a job holds accelerators.
func (s *State) Holds(id string) bool { return len(s.allocs[id]) > 0 }

// drop takes a job out of the queue for good.
func (s *State) drop(j *job, why string) {
	if j.plan != nil {
		s.dropPlan(j.plan, why)
	}
	s.dequeue(j)
	s.dropWaits(j)
	delete(s.jobs, j.ID)
	last := len(s.ring) - 1
	s.ring[j.slot] = s.ring[last]
	s.ring[j.slot].slot = j.slot
	s.ring[last] = nil
	s.ring = s.ring[:last]
	j.removed = true
}

func (s *State) keyOf(j *Job) shapeKey {
	limit := j.TimeLimit
	p := s.specs[j.Spec]
	if limit <= 0 && p != nil {
		limit = p.MaxTime
	}
	return shapeKey{
		kept: j.Service && j.Attempt > 1 && j.Held == nil && p != nil && p.Model != "" && len(p.OtherModels) == 0,
		spec: j.Spec, tenant: j.Tenant, project: j.Project, nodes: j.Nodes, priority: j.Priority,
		preemptible: j.Preemptible, same: j.Same, required: j.SameRequired, servers: strings.Join(j.Servers, "\n"),
		cluster: j.Cluster, site: j.Site, region: j.Region, needs: j.Needs, limit: bits.Len64(uint64(max(limit, 0))), array: j.Array,
	}
}

// enqueue puts a job into the queue of its shape, or parks it.
func (s *State) enqueue(j *job) {
	key := s.keyOf(&j.Job)
	sp := s.spec(j.Spec)
	j.limit = j.TimeLimit
	if j.limit <= 0 {
		j.limit = max(sp.MaxTime, 0)
	}
	sh := s.shapes[key]
	if sh == nil {
		sh = &shape{shapeKey: key, spec: sp, only: j.Servers}
		sh.req = s.request(sh)
		gk := groupKey{j.Priority, j.Tenant, j.Project}
		g := s.groups[gk]
		if g == nil {
			g = &group{groupKey: gk, account: s.account(j.Tenant, j.Project)}
			g.account.groups = append(g.account.groups, g)
			s.groups[gk] = g
		}
		sh.slot = len(g.shapes)
		g.shapes = append(g.shapes, sh)
		sh.group = g
		g.enlist(sh)
		s.shapes[key] = sh
		if j.Array != "" {
			sh.arr = s.array(j.Array)
		}
	}
	j.shape = sh
	if sh.kept {
		s.keep(j, +1)
	}
	if j.limit > 0 && (sh.brief == 0 || j.limit < sh.brief) {
		sh.brief = j.limit
	}
	for _, d := range j.DependsOn {
		if d.State == "" {
			s.waiters[d.Job] = append(s.waiters[d.Job], j)
		}
	}
	if sh.arr != nil {
		sh.arr.waiting++
	}
	if j.MaxQueue > 0 {
		s.timers.add(plus(ns(j.Submitted), j.MaxQueue), timerJob, j)
	}
	s.park(j)
}

// park decides whether a job stands in line, by what concerns it alone.
func (s *State) park(j *job) {
	s.touch(j)
	j.parked = s.ownGate(j)
	if j.parked == "" {
		j.shape.insert(j)
	} else {
		j.shape.parked++
		if j.parked == NotBefore && ns(j.NotBefore) > s.now {
			s.timers.add(ns(j.NotBefore), timerJob, j)
		}
	}
}

// unpark lets a parked job be looked at again.
func (s *State) unpark(j *job) {
	if j.removed {
		return
	}
	s.dirty = true
	if j.parked != "" {
		j.shape.parked--
	} else {
		j.shape.remove(j)
	}
	s.park(j)
	if j.parked != "" && j.plan != nil {
		s.dropPlan(j.plan, "the job is not to start for now")
	}
}

// dequeue takes a job out of its shape; a shape without jobs is forgotten.
func (s *State) dequeue(j *job) {
	sh := j.shape
	if sh.kept {
		s.keep(j, -1)
	}
	if j.parked != "" {
		sh.parked--
	} else {
		sh.remove(j)
	}
	if sh.arr != nil {
		sh.arr.waiting--
		if sh.arr.waiting == 0 && sh.arr.running == 0 && sh.arr.claims == 0 {
			delete(s.arrays, sh.array)
		}
	}
	if sh.parked == 0 && sh.queue.len() == 0 {
		delete(s.shapes, sh.shapeKey)
		g := sh.group
		last := len(g.shapes) - 1
		g.shapes[sh.slot] = g.shapes[last]
		g.shapes[sh.slot].slot = sh.slot
		g.shapes[last] = nil
		g.shapes = g.shapes[:last]
		if l := sh.lane; l != nil {
			l.shapes = slices.DeleteFunc(l.shapes, func(o *shape) bool { return o == sh })
		}
		s.forgetRequest(sh.req)
		if last == 0 {
			delete(s.groups, g.groupKey)
			g.account.groups = slices.DeleteFunc(g.account.groups, func(o *group) bool { return o == g })
		}
	}
}

func (s *State) dropWaits(j *job) {
	for _, d := range j.DependsOn {
		list := slices.DeleteFunc(s.waiters[d.Job], func(o *job) bool { return o == j })
		if len(list) == 0 {
			delete(s.waiters, d.Job)
			delete(s.ended, d.Job)
		} else {
			s.waiters[d.Job] = list
		}
	}
}

// Ended tells that a job is over for good, in state completed, failed, cancelled, timeout or expired, to those that
// depend on it.
func (s *State) Ended(id, state string) {
	delete(s.pairs, id)
	list := s.waiters[id]
	if len(list) == 0 {
		return
	}
	s.ended[id] = state
	for _, j := range slices.Clone(list) {
		s.unpark(j)
	}
}

// met says whether the end of a dependency lets the job start: unknown until it has one.
func (d Dependency) met(state string) (met, known bool) {
	if state == "" {
		return false, false
	}
	switch d.Condition {
	case AfterAny:
		return true, true
	case AfterNotOK:
		return state != "completed", true
	default:
		return state == "completed", true
	}
}

func (s *State) endOf(d Dependency) string {
	if d.State != "" {
		return d.State
	}
	return s.ended[d.Job]
}

// ownGate is the first reason that concerns the job alone, in the order of the codes.
func (s *State) ownGate(j *job) Code {
	failed, open := false, false
	for _, d := range j.DependsOn {
		met, known := d.met(s.endOf(d))
		failed = failed || known && !met
		open = open || !known
	}
	switch {
	case failed:
		return DependencyFailed
	case j.Held != nil:
		return Held
	case ns(j.NotBefore) > s.now || len(s.allocs[j.ID]) > 0:
		return NotBefore
	case open:
		return DependencyWait
	}
	return ""
}

// SetStop closes a queue or changes who is stopped.
func (s *State) SetStop(in Stop) {
	s.stops[in.ID] = &in
	s.dirty = true
	if !in.Until.IsZero() {
		s.timers.add(ns(in.Until), timerWake, nil)
	}
}

// RemoveStop opens it again.
func (s *State) RemoveStop(id string) {
	delete(s.stops, id)
	s.dirty = true
}

// stop is the one that holds a shape, nil when none does.
func (s *State) stop(sh *shape) *Stop {
	var found *Stop
	for _, st := range s.stops {
		match := (st.Tenant == "" || st.Tenant == sh.tenant) && (st.Project == "" || st.Project == sh.project) &&
			(st.Spec == "" || st.Spec == sh.spec.Name) && (st.Until.IsZero() || ns(st.Until) > s.now)
		if match && (found == nil || st.ID < found.ID) {
			found = st
		}
	}
	return found
}

// compareShapes orders shapes so that walks over maps can be made in one order.
func compareShapes(a, b *shape) int {
	x, y := a.shapeKey, b.shapeKey
	return cmp.Or(
		cmp.Compare(y.priority, x.priority), cmp.Compare(x.tenant, y.tenant), cmp.Compare(x.project, y.project),
		cmp.Compare(x.spec, y.spec), cmp.Compare(x.nodes, y.nodes), cmp.Compare(x.limit, y.limit),
		cmp.Compare(x.array, y.array), cmp.Compare(x.same, y.same), cmp.Compare(x.servers, y.servers),
		cmp.Compare(x.cluster, y.cluster), cmp.Compare(x.site, y.site), cmp.Compare(x.region, y.region),
		cmp.Compare(x.needs, y.needs), cmp.Compare(oneIf(x.kept), oneIf(y.kept)),
	)
}

func oneIf(b bool) int {
	if b {
		return 1
	}
	return 0
}
