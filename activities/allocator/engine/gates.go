package engine

import (
	"maps"
	"slices"
	"time"

	"gpupool/schema"
)

// verdict is what a cycle found about a shape: the code of its first job and the numbers it rests on.
type verdict struct {
	code  Code
	cycle int64

	account  *account // QUOTA, JOB_LIMIT, GUARANTEE_ONLY
	model    string
	used     int64
	reserved int64
	limit    int64
	budget   *budget
	asked    time.Duration // BUDGET
	stop     *Stop
	window   *window
	fits     *mostPossible
}

// contends says whether the shape's jobs stand in line for accelerators, and so are ahead of others.
func (v *verdict) contends() bool {
	switch v.code {
	case Behind, Unhealthy, Fragmented, Capacity, Preempting, WindowAhead:
		return true
	default:
		return false // it waits for something else, and takes nobody's turn
	}
}

// gate is the first reason that keeps the whole shape from being placed, by everything but free accelerators.
func (s *State) gate(sh *shape) verdict {
	if v := s.commonGate(sh); v.code != "" {
		return v
	}
	// With several models to choose from, it is enough that one of them is open.
	var first verdict
	for _, p := range s.able(sh) {
		v := s.amountGate(sh, p.model, sh.first())
		if v.code == "" {
			return verdict{}
		}
		if first.code == "" {
			first = v
		}
	}
	return first
}

// commonGate is the part of the gate that is the same for every model.
func (s *State) commonGate(sh *shape) verdict {
	if v := s.fixable(sh); v.code != "" {
		return v
	}
	if st := s.stop(sh); st != nil {
		return verdict{code: QueueStopped, stop: st}
	}
	return s.jobLimit(sh)
}

// gateTo is the gate of one job of a shape to the accelerators of one model.
func (s *State) gateTo(sh *shape, model string, j *job) verdict {
	if v := s.commonGate(sh); v.code != "" {
		return v
	}
	return s.amountGate(sh, model, j)
}

// amountGate is the first of quota, guarantee and budget that has no room for one more job of the shape, j.
func (s *State) amountGate(sh *shape, model string, j *job) verdict {
	if v := s.quotaGate(sh, model); v.code != "" {
		return v
	}
	if v := s.guaranteeGate(sh, model); v.code != "" {
		return v
	}
	return s.budgetGate(sh, model, j)
}

// fixable is SPEC_UNAVAILABLE or NEVER_FITS: no wait will help.
func (s *State) fixable(sh *shape) verdict {
	sp := sh.spec
	if !sp.known || !sp.RetiredAt.IsZero() && ns(sp.RetiredAt) <= s.now {
		return verdict{code: SpecUnavailable}
	}
	most := s.most(sh)
	if most.installed == 0 && sp.k > 0 {
		return verdict{code: SpecUnavailable}
	}
	if !slices.ContainsFunc(s.able(sh), func(p *pool) bool { return s.quotaMost(sh, p.model) >= sh.milli() }) {
		return verdict{code: NeverFits, fits: most}
	}
	return verdict{}
}

// quotaMost is the most the shape's project could ever hold of a model.
func (s *State) quotaMost(sh *shape, model string) int64 {
	most := far
	for _, a := range sh.group.account.chain {
		if len(a.quotas) == 0 {
			continue
		}
		for _, m := range modelKeys(model) {
			if q := a.quotas[m]; q != nil && q.limit != NoLimit {
				most = min(most, q.limit)
			}
		}
	}
	return most
}

func (s *State) jobLimit(sh *shape) verdict {
	for _, a := range sh.group.account.chain {
		if running := a.running + a.runElse; a.maxRunning > 0 && running+a.claims >= a.maxRunning {
			return verdict{code: JobLimit, account: a, used: int64(running), reserved: int64(a.claims), limit: int64(a.maxRunning)}
		}
	}
	if arr := sh.arr; arr != nil {
		if first := sh.first(); first != nil && first.ArrayLimit > 0 && arr.running+arr.claims >= first.ArrayLimit {
			return verdict{code: JobLimit, used: int64(arr.running), reserved: int64(arr.claims), limit: int64(first.ArrayLimit)}
		}
	}
	return verdict{}
}

func (s *State) quotaGate(sh *shape, model string) verdict {
	asked := sh.milli()
	for _, a := range sh.group.account.chain {
		if len(a.quotas) == 0 {
			continue
		}
		for _, m := range modelKeys(model) {
			q := a.quotas[m]
			if q == nil || q.limit == NoLimit {
				continue
			}
			h := a.of(m)
			kept, _ := sh.keptBeside(h)
			if h.used+h.elsewhere+h.claimed+kept+asked > q.limit {
				return verdict{
					code: QuotaReached, account: a, model: m, used: h.used + h.elsewhere, reserved: h.claimed + kept, limit: q.limit,
				}
			}
		}
	}
	return verdict{}
}

// guaranteeGate keeps what can't be taken back inside what is guaranteed, where guarantees are in force.
func (s *State) guaranteeGate(sh *shape, model string) verdict {
	if sh.preemptible || len(s.guarded) == 0 {
		return verdict{}
	}
	asked := sh.milli()
	for _, a := range sh.group.account.chain {
		for _, m := range modelKeys(model) {
			if !s.guarantees(m) || a.project != "" && a.guarantee(m) == 0 {
				continue // the tenant does not divide its guarantee among projects: its own counts
			}
			h := a.of(m)
			_, kept := sh.keptBeside(h)
			if h.nonPreemptible+h.elseFixed+h.claimedFixed+kept+asked > a.guarantee(m) {
				return verdict{
					code: GuaranteeOnly, account: a, model: m,
					used: h.nonPreemptible + h.elseFixed, reserved: h.claimedFixed + kept, limit: a.guarantee(m),
				}
			}
		}
	}
	return verdict{}
}

func (s *State) budgetGate(sh *shape, model string, j *job) verdict {
	if len(s.budgets) == 0 || j == nil {
		return verdict{}
	}
	asked := s.commitment(j)
	for _, id := range sortedKeys(s.budgets) {
		b := s.budgets[id]
		if b.covers(sh.tenant, sh.project, model) && addCapped(b.taken(), asked) > b.Amount {
			return verdict{code: BudgetSpent, budget: b, asked: asked}
		}
	}
	return verdict{}
}

// commitment is what a job would set aside of a budget: its limit x its accelerators.
func (s *State) commitment(j *job) time.Duration {
	limit := j.limit
	if limit <= 0 {
		limit = s.cfg.AssumedLimit
	}
	return acceleratorTime(j.shape.milli(), int64(limit))
}

// mostPossible is how many nodes of a request the inventory could hold if all of it were healthy and idle.
type mostPossible struct {
	version   int64
	installed int         // accelerators of the models, wherever they are
	server    int         // accelerators on one server
	at        [levels]int // nodes within the best domain of each level
	pool      int         // nodes
	within    []poolMost  // nodes within the level asked for, in each pool of the spec
	able      []*pool     // those of them that could hold all nodes asked for
}

type poolMost struct {
	pool  *pool
	nodes int
}

// able is the pools that could hold a job of the shape if all they have were healthy and idle: the others' limits are
// none of its concern.
func (s *State) able(sh *shape) []*pool { return s.most(sh).able }

// request is what a search for places is asked, whoever asks it: shapes that differ in who and when share one.
type request struct {
	requestKey
	refs int
	most *mostPossible
	// missed is what did not fit in a walk: within one, room only shrinks.
	missed []miss
	walk   int64
}

type requestKey struct {
	spec                  string
	nodes                 int
	same                  Level
	required              bool
	servers               string
	cluster, site, region string
	needs                 schema.Ability
}

// miss is that a job of a priority and account, with so much time or more, did not fit.
type miss struct {
	priority int
	limit    time.Duration
	account  *account // nil where no window tells accounts apart
	shut     uint64   // pools it could not use
}

// request is the shape's, counted.
func (s *State) request(sh *shape) *request {
	key := requestKey{sh.spec.Name, sh.nodes, sh.same, sh.required, sh.servers, sh.cluster, sh.site, sh.region, sh.needs}
	r := s.requests[key]
	switch {
	case r == nil:
		r = &request{requestKey: key}
		s.requests[key] = r
	case r.refs == 0:
		s.unasked--
	}
	r.refs++
	return r
}

// forgetRequest notes that a shape is gone. What was measured for a request is kept until those that nobody asks are many:
// the next job often asks the same.
func (s *State) forgetRequest(r *request) {
	if r.refs--; r.refs > 0 {
		return
	}
	if s.unasked++; s.unasked > len(s.requests)/2+256 {
		maps.DeleteFunc(s.requests, func(_ requestKey, o *request) bool { return o.refs == 0 })
		s.unasked = 0
	}
}

// hopeless says whether what did not fit in this walk leaves no hope for a job of this kind.
func (r *request) hopeless(m miss, walk int64) bool {
	if r.walk != walk {
		r.walk, r.missed = walk, r.missed[:0]
	}
	return len(r.missed) > 0 && slices.ContainsFunc(r.missed, func(o miss) bool {
		return o.shut&^m.shut == 0 && o.priority == m.priority && o.account == m.account && o.limit <= m.limit
	})
}

// most changes only with the inventory.
func (s *State) most(sh *shape) *mostPossible {
	r := sh.req
	if r.most == nil || r.most.version != s.version {
		same := AnyLevel
		if sh.required && sh.nodes > 1 {
			same = sh.same
		}
		r.most = s.measureMost(sh, same)
	}
	return r.most
}

func (s *State) measureMost(sh *shape, same Level) *mostPossible {
	m := &mostPossible{version: s.version}
	a := ask{shape: sh}
	sp := sh.spec
	need := max(sp.k, 0)
	for _, p := range sp.pools {
		m.installed += p.installed
		fit := make([]*bay, 0, len(p.bays))
		for _, b := range p.bays {
			if !a.allows(b.srv) || b.srv.CPU < sp.CPU || b.srv.MemoryBytes < sp.MemoryBytes {
				continue
			}
			m.server = max(m.server, len(b.accels))
			if len(b.accels) >= need {
				fit = append(fit, b)
			}
		}
		nodes := len(fit)
		m.pool = max(m.pool, nodes)
		at := p.largest(fit)
		for l := range at {
			m.at[l] = max(m.at[l], at[l])
		}
		if same != AnyLevel {
			nodes = at[same.index()]
		}
		m.within = append(m.within, poolMost{p, nodes})
		if nodes >= sh.nodes {
			m.able = append(m.able, p)
		}
	}
	return m
}

// largest is how many of some bays of a pool are in one domain, at most, by levels.
func (p *pool) largest(some []*bay) (most [levels]int) {
	for l := range most {
		if len(some) == len(p.bays) { // all of them, as nearly always
			for _, d := range p.domains[l] {
				most[l] = max(most[l], len(d.bays))
			}
			continue
		}
		counts := map[string]int{}
		for _, b := range some {
			if name := b.domainNames()[l]; name != "" {
				counts[name]++
				most[l] = max(most[l], counts[name])
			}
		}
	}
	return most
}
