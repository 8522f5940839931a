package engine

import (
	"cmp"
	"slices"
	"strings"
)

// line is the order of the jobs that wait for the accelerators of one family, as a cycle left it: first those whose
// place is being freed and those within their guarantee that have a planned start (they lead), then by priority; within one, first those with a planned start, then by fair share
// and submit order. It answers how much is ahead of a job without visiting the jobs.
type line struct {
	leads  []*job
	levels []level
	spans  []span
	fifo   bool
	lined  int64 // see cycleStats
	built  int64 // number of the build, so that lanes know whether they are in it
}

// level is one priority: what is in all higher ones, and its own jobs with a planned start, in the order of their
// turns; none for FIFO.
type level struct {
	priority int
	ahead    tally // in higher priorities
	all      tally // in this one
	planned  []*job
	spans    []span
}

// span is one group's part of the line.
type span struct {
	lane     *lane
	priority int
	out      []*shape // of the lane, that wait for something else than accelerators
	ahead    tally    // of this priority and higher
	share    [2]float64
	head     *job
}

// all is everything in the span.
func (sp *span) all() tally {
	sum := sp.lane.queue.all
	for _, sh := range sp.out {
		sum.sub(sh.queue.all)
	}
	return sum
}

// before is what was submitted before a job.
func (sp *span) before(j *job) tally {
	sum := sp.lane.queue.ahead(j)
	for _, sh := range sp.out {
		sum.sub(sh.queue.ahead(j))
	}
	return sum
}

// lineOf is the family's line as of the last cycle.
func (s *State) lineOf(f *family) *line {
	if l := &f.line; l.built != 0 && l.lined == s.stats.lined {
		return l
	}
	s.buildLine(f)
	return &f.line
}

// aheadOf is everything in line before a job.
func (s *State) aheadOf(j *job) tally {
	if j.before.cycle == s.cycle && !s.dirty {
		return j.before.tally
	}
	t := s.lineOf(j.shape.spec.family).ahead(j, s.standing(j.shape))
	j.before.tally, j.before.cycle = t, s.cycle
	if s.dirty {
		j.before.cycle = -1
	}
	return t
}

func (s *State) buildLine(f *family) {
	s.stats.built++
	l := &f.line
	clear(l.leads)
	clear(l.spans)
	*l = line{
		leads: l.leads[:0], levels: l.levels[:0], spans: l.spans[:0],
		fifo: s.cfg.Order == FIFO, lined: s.stats.lined, built: s.stats.built,
	}
	for _, g := range s.groups {
		lane := g.lane(f)
		if lane == nil || lane.queue.len() == 0 {
			continue
		}
		sp := span{lane: lane, priority: g.priority, head: lane.queue.first()}
		for _, sh := range lane.shapes {
			if sh.queue.len() > 0 && !sh.verdict.contends() {
				sp.out = append(sp.out, sh)
			}
		}
		if len(sp.out) > 0 {
			sp.head = lane.contender()
		}
		if sp.head != nil {
			sp.share[0], sp.share[1] = s.shares(g)
			l.spans = append(l.spans, sp)
		}
	}
	slices.SortFunc(l.spans, func(a, b span) int {
		c := cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.share[0], b.share[0]),
			cmp.Compare(a.share[1], b.share[1]), cmp.Compare(a.head.Seq, b.head.Seq))
		return cmp.Or(c, strings.Compare(a.head.ID, b.head.ID))
	})
	var sum tally
	from := 0
	for i := range l.spans {
		sp := &l.spans[i]
		if n := len(l.levels); n == 0 || l.levels[n-1].priority != sp.priority {
			from = i
			l.levels = append(l.levels, level{priority: sp.priority, ahead: sum})
		}
		lv := &l.levels[len(l.levels)-1]
		lv.spans = l.spans[from : i+1]
		sp.lane.built, sp.lane.at = l.built, i
		sp.ahead = sum
		all := sp.all()
		lv.all.add(all)
		sum.add(all)
	}
	for _, pl := range s.plans {
		if pl.job.shape.spec.family != f {
			continue
		}
		if pl.claim {
			l.leads = append(l.leads, pl.job)
		} else if pl.job.leads(s.walks) {
			continue
		} else if lv := l.level(pl.job.Priority); lv != nil && !l.fifo {
			lv.planned = append(lv.planned, pl.job)
		}
	}
	for _, j := range s.stats.dues {
		if !j.removed && j.parked == "" && j.shape.spec.family == f && (j.plan == nil || !j.plan.claim) {
			l.leads = append(l.leads, j)
		}
	}
}

// contender is the lane's first job that waits for accelerators, nil when there is none.
func (l *lane) contender() *job {
	var head *job
	for _, sh := range l.shapes {
		if j := sh.first(); j != nil && sh.verdict.contends() && (head == nil || before(j, head)) {
			head = j
		}
	}
	return head
}

// spanOf is the part of the line that a job's group has, nil when it has none.
func (l *line) spanOf(j *job) *span {
	if lane := j.shape.lane; lane != nil && lane.built == l.built {
		return &l.spans[lane.at]
	}
	return nil
}

func (l *line) level(priority int) *level {
	for i := range l.levels {
		if l.levels[i].priority == priority {
			return &l.levels[i]
		}
	}
	return nil
}

// higher is what contends at priorities above one.
func (l *line) higher(priority int) tally {
	var sum tally
	for i := range l.levels {
		if lv := &l.levels[i]; lv.priority > priority {
			sum = lv.ahead
			sum.add(lv.all)
		}
	}
	return sum
}

// byOrder is what is ahead of a job by priority, share and submit order alone. One whose group has nobody in line
// would come by its submit order.
func (l *line) byOrder(j *job) tally {
	lv := l.level(j.Priority)
	if lv == nil {
		return l.higher(j.Priority)
	}
	if sp := l.spanOf(j); sp != nil && !l.fifo {
		sum := sp.ahead
		sum.add(sp.before(j))
		return sum
	}
	sum := lv.ahead
	for i := range lv.spans {
		sum.add(lv.spans[i].before(j))
	}
	return sum
}

// precedes says whether a is ahead of b by priority, share and submit order alone.
func (l *line) precedes(a, b *job) bool {
	if a.Priority != b.Priority {
		return a.Priority > b.Priority
	}
	if !l.fifo {
		x, y := l.spanOf(a), l.spanOf(b)
		if x != nil && y != nil && x != y {
			return x.lane.at < y.lane.at
		}
	}
	return before(a, b)
}

// after says whether a job comes after one that leads.
func (st standing) after(j, lead *job) bool {
	if lead.plan == nil {
		return !st.due // nothing is held for it, but it has its turn first
	}
	return lead.plan.binds(j, st)
}

// ahead is everything ahead of a job, by how it stands to the guarantees.
func (l *line) ahead(j *job, st standing) tally {
	var sum tally
	one := func(o *job) { sum.add(tally{1, o.shape.milli()}) }
	if j.leads(st.walk) {
		for _, o := range l.leads {
			if o == j {
				return sum
			}
			one(o)
		}
		return sum
	}
	if j.plan != nil && !l.fifo {
		sum = l.higher(j.Priority)
		sum.add(l.older(j))
		counted := func(o *job) bool {
			return o.shape.group == j.shape.group && before(o, j) && o.shape.verdict.contends()
		}
		for _, o := range l.leads {
			if o.Priority <= j.Priority && st.after(j, o) && !counted(o) {
				one(o)
			}
		}
		if lv := l.level(j.Priority); lv != nil {
			for _, o := range lv.planned {
				if o == j {
					break
				}
				if !counted(o) {
					one(o)
				}
			}
		}
		return sum
	}
	sum = l.byOrder(j)
	for _, o := range l.leads {
		if !(l.precedes(o, j) && o.shape.verdict.contends()) && st.after(j, o) {
			one(o)
		}
	}
	if lv := l.level(j.Priority); lv != nil {
		for i, o := range lv.planned {
			// The head has its turn first from the next cycle on, whatever the shares are then.
			head := i == 0 && l.older(o).jobs == 0
			if !l.precedes(o, j) && (head || j.turn.walk != st.walk || o.turn.n < j.turn.n) {
				one(o)
			}
		}
	}
	return sum
}

// older is what was submitted before a job in its own line, and so keeps its turn before the job's planned start.
func (l *line) older(j *job) tally {
	if sp := l.spanOf(j); sp != nil {
		return sp.before(j)
	}
	return tally{}
}

// first is the job nothing is ahead of, nil when none stands in line.
func (l *line) first() *job {
	if len(l.leads) > 0 {
		return l.leads[0]
	}
	if len(l.levels) == 0 {
		return nil
	}
	lv := &l.levels[0]
	if len(lv.planned) > 0 && l.older(lv.planned[0]).jobs == 0 {
		return lv.planned[0]
	}
	first := l.spans[0].head
	for i := range lv.spans {
		if l.fifo && before(lv.spans[i].head, first) {
			first = lv.spans[i].head
		}
	}
	return first
}
