package engine

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Explain is why a job waits, as the last cycle found it. It is false for a job that does not wait.
func (s *State) Explain(id string) (Reason, bool) {
	j := s.jobs[id]
	if j == nil {
		return Reason{}, false
	}
	s.regroup()
	return s.explain(j), true
}

func (s *State) explain(j *job) Reason {
	code := s.codeOf(j)
	r := Reason{
		Job: j.ID, Code: code, Class: code.Class(), EvaluatedAt: at(s.now), Cycle: s.cycle,
		Scope: Scope{j.Tenant, j.Project, j.Region, j.Spec}, Blockers: []Blocker{}, Also: []Also{},
	}
	r.Since = at(s.now)
	if j.sent && j.code == code {
		r.Since = at(j.since)
	}
	if f := j.shape.spec.family; f != nil && code != NotEvaluated {
		ahead := s.aheadOf(j)
		r.Position = Position{Project: s.aheadInProject(j), Spec: ahead.jobs, AheadGPUs: gpus(ahead.milli)}
	}
	if code == Unhealthy && len(s.toDecide(j)) > 0 {
		r.Class = AskAdmin
	}
	r.Detail, r.Blockers, r.ClearsWhen = s.detail(j, code)
	for _, other := range s.others(j, code) {
		d, _, _ := s.detail(j, other)
		r.Also = append(r.Also, Also{other, d})
	}
	if g := s.glanceAt(j); code == Behind && g.also.Code != "" {
		r.Also = append(r.Also, g.also)
	}
	r.ETA, r.NoETA = s.estimate(j, code)
	return r
}

// others is the further codes that apply to a job.
func (s *State) others(j *job, primary Code) []Code {
	if primary == NotEvaluated {
		return nil
	}
	var codes []Code
	add := func(c Code) {
		if c != "" && c != primary && !slices.Contains(codes, c) {
			codes = append(codes, c)
		}
	}
	add(j.parked)
	sh := j.shape
	if s.stop(sh) != nil {
		add(QueueStopped)
	}
	if primary == SpecUnavailable || primary == NeverFits {
		return codes
	}
	if j.plan == nil || !j.plan.claim {
		add(s.jobLimit(sh).code)
		if able := s.able(sh); len(able) > 0 {
			add(s.quotaGate(sh, able[0].model).code)
			add(s.guaranteeGate(sh, able[0].model).code)
			add(s.budgetGate(sh, able[0].model, sh.first()).code)
		}
	}
	slices.SortFunc(codes, func(a, b Code) int { return codeRank(a) - codeRank(b) })
	return codes
}

// glance is what all jobs of a shape share of a reason, so that it is looked up once a cycle.
type glance struct {
	cycle    int64
	heldBack bool // one would fit but for planned starts
	also     Also // FRAGMENTED or CAPACITY, by the pool's own counts
}

// glanceAt is the shape's glance as of the last cycle.
func (s *State) glanceAt(j *job) *glance {
	sh := j.shape
	if sh.glance.cycle == s.cycle && !s.dirty {
		return &sh.glance
	}
	g := glance{cycle: s.cycle}
	a := s.askFor(j)
	a.blind.holds = true
	g.heldBack = s.findAny(&a) != nil
	a.blind.holds = false
	if !g.heldBack || s.findAny(&a) == nil {
		g.also = s.shortOf(&a)
	}
	sh.glance = g
	return &sh.glance
}

// shortOf is what a job that fits nowhere now is short of, counted by classes of servers.
func (s *State) shortOf(a *ask) Also {
	free, blocks, largest := 0, 0, 0
	for _, p := range s.able(a.shape) {
		free = max(free, p.free)
		blocks = max(blocks, s.fitting(a, p))
		for f := len(p.byFree) - 1; f >= 0; f-- {
			if len(p.byFree[f]) > 0 {
				largest = max(largest, f)
				break
			}
		}
	}
	k := max(a.k, 1)
	needed := a.nodes * k
	if free < needed {
		return Also{Capacity, Detail{"free": min(blocks*k, needed), "needed": needed}}
	}
	if blocks > 0 {
		largest = blocks * k
	}
	return Also{Fragmented, Detail{"free_total": free, "largest_block": largest, "needed_block": needed}}
}

// fitting is how many bays of a pool hold a node now.
func (s *State) fitting(a *ask, p *pool) int {
	n := 0
	for f := a.k; f < len(p.byFree); f++ {
		for _, c := range p.byFree[f] {
			if s.classFits(a, c) {
				n += c.n
			}
		}
	}
	for _, b := range p.held {
		if s.bayFits(a, b) {
			n++
		}
	}
	return n
}

// aheadInProject is how many jobs of its project are in line before a job.
func (s *State) aheadInProject(j *job) int {
	n := 0
	for _, sh := range j.shape.group.shapes {
		if sh.lane == nil {
			n += sh.queue.ahead(j).jobs
		}
	}
	for _, l := range j.shape.group.lanes {
		n += l.queue.ahead(j).jobs
	}
	for _, g := range j.shape.group.account.groups {
		if g.priority > j.Priority {
			n += g.jobs
		}
	}
	return n
}

// aheadIn is how many jobs that count against an account, its project or its tenant, are in line before a job.
func (s *State) aheadIn(j *job, a *account) int {
	n := s.aheadInProject(j)
	if a.project != "" {
		return n
	}
	own := j.shape.group
	_, share := s.shares(own)
	for _, p := range a.projects {
		for _, g := range p.groups {
			switch {
			case p == own.account || g.priority < j.Priority:
			case g.priority > j.Priority:
				n += g.jobs
			case s.cfg.Order == FIFO:
				n += g.before(j)
			default:
				if _, other := s.shares(g); other < share || other == share && g.leads(own) {
					n += g.jobs
				}
			}
		}
	}
	return n
}

// before is how many jobs of the line were submitted before one.
func (g *group) before(j *job) int {
	n := 0
	for _, sh := range g.shapes {
		n += sh.queue.ahead(j).jobs
	}
	return n
}

// leads says whether the line's first job was submitted before the other's.
func (g *group) leads(o *group) bool {
	var first *job
	for _, sh := range g.shapes {
		if j := sh.first(); j != nil && (first == nil || before(j, first)) {
			first = j
		}
	}
	return first != nil && o.before(first) == 0
}

// detail is the numbers of a code for a job, what stands in the way, and what would clear it in a tenant's words.
func (s *State) detail(j *job, code Code) (Detail, []Blocker, string) {
	sh, v := j.shape, &j.shape.verdict
	blockers := []Blocker{}
	switch code {
	case NotEvaluated:
		return Detail{"submitted": j.Submitted}, blockers, "the allocator has looked at the job, within a cycle"

	case SpecUnavailable:
		return s.specDetail(j), blockers, "the job asks for one of the known specs"

	case NeverFits:
		return s.neverDetail(sh)

	case DependencyFailed, DependencyWait:
		jobs, states := []string{}, []string{}
		for _, d := range j.DependsOn {
			state := s.endOf(d)
			met, known := d.met(state)
			if met || known != (code == DependencyFailed) {
				continue
			}
			if state == "" {
				state = "not ended"
			}
			jobs, states = append(jobs, d.Job), append(states, state)
			blockers = append(blockers, Blocker{Kind: "job", ID: d.Job})
		}
		d := Detail{"jobs": jobs, "states": states}
		if code == DependencyFailed {
			return d, blockers, "the job is submitted again without a dependency that ended otherwise"
		}
		return d, blockers, "the jobs it depends on have ended: " + strings.Join(jobs, ", ")

	case Held:
		h := j.Held
		if h == nil {
			h = &Hold{}
		}
		return Detail{"by": h.By, "why": h.Why, "note": h.Note}, blockers, "the hold is released by its " + h.By

	case QueueStopped:
		st := s.stop(sh)
		if st == nil {
			st = &Stop{}
		}
		d := Detail{"scope": stopScope(st), "by": st.By, "stopped_at": orNil(st.Since), "until": orNil(st.Until), "note": st.Note}
		clears := "the queue of " + stopScope(st) + " is started again"
		if !st.Until.IsZero() {
			clears += ", at the latest at " + clock(st.Until)
		}
		return d, append(blockers, Blocker{Kind: "stop", ID: st.ID}), clears

	case NotBefore:
		if live := s.allocs[j.ID]; len(live) > 0 {
			return Detail{"until": nil, "why": "an earlier attempt has not been released yet"}, blockers,
				"the earlier attempt's accelerators are released"
		}
		why := j.NotBeforeWhy
		if why == "" {
			why = "asked"
		}
		return Detail{"until": j.NotBefore, "why": why}, blockers, "it is " + clock(j.NotBefore)

	case JobLimit:
		jv := s.jobLimit(sh)
		levelName := "array " + sh.array
		if jv.account != nil {
			levelName = jv.account.level()
		}
		d := Detail{"level": levelName, "running": jv.used, "limit": jv.limit}
		clears := fmt.Sprintf("fewer than %d jobs of %s run", jv.limit, levelName)
		if jv.reserved > 0 {
			d["reserved"] = jv.reserved
			clears += " or wait for victims to end"
		}
		return d, blockers, clears

	case QuotaReached:
		return s.quotaDetail(j, v)

	case GuaranteeOnly:
		return s.guaranteeDetail(sh, v)

	case BudgetSpent:
		return s.budgetDetail(j, v)

	case WindowAhead:
		w := v.window
		if w.Kind == kindClaim {
			d := Detail{"kind": w.Kind, "your_limit": j.limit.String()}
			if w.until != far {
				d["ends"] = time.Unix(0, w.until).UTC()
			}
			return d, blockers, "the other tenant's jobs have ended on a server that does not keep tenants' jobs apart"
		}
		limit := time.Duration(max(w.from-s.now, 0)).Truncate(time.Second)
		d := Detail{
			"window": w.ID, "kind": w.Kind, "starts": w.From, "ends": orNil(w.Until),
			"your_limit": j.limit.String(), "max_limit_that_starts_now": limit.String(),
		}
		return d, append(blockers, Blocker{Kind: "window", ID: w.ID}),
			fmt.Sprintf("%s %s is over, or the job's time limit is at most %s", w.Kind, w.ID, limit)

	case Behind:
		return s.behindDetail(j)

	case Unhealthy, Fragmented, Capacity:
		return s.capacityDetail(j, code)

	case Preempting:
		return s.preemptingDetail(j)

	default: // DISPATCHING is not the engine's: the job has left its queue
		return Detail{}, blockers, ""
	}
}

func (s *State) specDetail(j *job) Detail {
	known := []string{}
	for _, name := range sortedKeys(s.specs) {
		p := s.specs[name]
		there := p.k == 0
		for _, pool := range p.pools {
			there = there || pool.installed > 0
		}
		if p.known && there && (p.RetiredAt.IsZero() || ns(p.RetiredAt) > s.now) {
			known = append(known, name)
		}
	}
	return Detail{"spec": j.Spec, "known_specs": known, "retired_at": orNil(j.shape.spec.RetiredAt)}
}

func (s *State) neverDetail(sh *shape) (Detail, []Blocker, string) {
	most := s.most(sh)
	k := sh.spec.k
	possible := map[string]any{
		"server": most.server, "nvlink": most.at[0] * k, "rack": most.at[1] * k, "site": most.at[2] * k,
		"pool": most.pool * k,
	}
	nodes, quota := 0, int64(0)
	for _, in := range most.within {
		limit := s.quotaMost(sh, in.pool.model)
		if in.nodes >= sh.nodes || len(most.able) == 0 {
			quota = max(quota, limit)
		}
		if sh.spec.milli > 0 {
			in.nodes = int(min(int64(in.nodes), limit/sh.spec.milli))
		}
		nodes = max(nodes, in.nodes)
	}
	if quota != far {
		possible["quota"] = gpus(quota)
	}
	ok := map[string]any{"nodes": nodes, "accelerators": nodes * k}
	d := Detail{
		"asked":        map[string]any{"nodes": sh.nodes, "accelerators": k, "same": string(sh.same), "total": gpus(sh.milli())},
		"max_possible": possible, "nearest_ok": ok,
	}
	if nodes == 0 {
		d["nearest_ok"] = nil
		if len(most.able) > 0 {
			return d, []Blocker{}, fmt.Sprintf("the job asks for a smaller spec, or the limit of its tenant or project is raised to %s", some(sh.milli()))
		}
		if sh.needs != 0 {
			d["needs"] = sh.needs.Words()
			return d, []Blocker{}, fmt.Sprintf("the job asks for a smaller spec or other servers, or does without %s: not all backends have that", strings.Join(sh.needs.Words(), ", "))
		}
		return d, []Blocker{}, "the job asks for a smaller spec or other servers"
	}
	clears := fmt.Sprintf("the job asks for at most %d nodes", nodes)
	if len(most.able) > 0 { // only the limit stands in the way
		clears += fmt.Sprintf(", or the limit of its tenant or project is raised to %s", some(sh.milli()))
	}
	return d, []Blocker{}, clears
}

func (s *State) quotaDetail(j *job, v *verdict) (Detail, []Blocker, string) {
	sh := j.shape
	if able := s.able(sh); v.code != QuotaReached && len(able) > 0 {
		q := s.quotaGate(sh, able[0].model)
		v = &q
	}
	if v.account == nil {
		return Detail{}, []Blocker{}, ""
	}
	over := v.used + v.reserved + sh.milli() - v.limit
	holders, blockers := s.holders(v.account, v.model)
	model := v.model
	if model == "" {
		model = "any"
	}
	d := Detail{
		"level": v.account.level(), "model": model, "used": gpus(v.used), "reserved": gpus(v.reserved),
		"asked": gpus(sh.milli()), "limit": gpus(v.limit), "over_by": gpus(over), "holders": holders,
	}
	clears := fmt.Sprintf("%s uses %s fewer, or its limit is raised by as many", v.account.level(), some(over))
	switch n := s.aheadIn(j, v.account); n {
	case 0:
	case 1:
		clears += fmt.Sprintf("; 1 job of %s is ahead", v.account.level())
	default:
		clears += fmt.Sprintf("; %d jobs of %s are ahead", n, v.account.level())
	}
	return d, blockers, clears
}

// holdersShown bounds the list of who holds what: the largest come first.
const holdersShown = 10

// holders is the live allocations of an account, the largest first.
func (s *State) holders(a *account, model string) ([]string, []Blocker) {
	var list []*alloc
	for _, live := range s.allocs {
		for _, al := range live {
			if al.Tenant == a.tenant && (a.project == "" || al.Project == a.project) && (model == "" || al.model == model) {
				list = append(list, al)
			}
		}
	}
	slices.SortFunc(list, func(x, y *alloc) int {
		if x.milli != y.milli {
			return int(y.milli - x.milli)
		}
		return strings.Compare(x.Job, y.Job)
	})
	names, blockers := []string{}, []Blocker{}
	for _, al := range list[:min(len(list), holdersShown)] {
		names = append(names, al.Job)
		blockers = append(blockers, Blocker{"job", al.Job, gpus(al.milli), al.Tenant})
	}
	return names, blockers
}

func (s *State) guaranteeDetail(sh *shape, v *verdict) (Detail, []Blocker, string) {
	if able := s.able(sh); v.code != GuaranteeOnly && len(able) > 0 {
		g := s.guaranteeGate(sh, able[0].model)
		v = &g
	}
	if v.account == nil {
		return Detail{}, []Blocker{}, ""
	}
	idle := int64(0)
	for _, p := range s.able(sh) {
		idle += int64(p.free) * whole
	}
	d := Detail{
		"level": v.account.level(), "guaranteed": gpus(v.limit), "nonpreemptible_used": gpus(v.used + v.reserved),
		"asked": gpus(sh.milli()), "as_preemptible": map[string]any{"idle": gpus(idle)},
	}
	return d, []Blocker{}, fmt.Sprintf("non-preemptible jobs of %s use at most %s, or the job is submitted as preemptible",
		v.account.level(), amount(max(v.limit-sh.milli(), 0)))
}

func (s *State) budgetDetail(j *job, v *verdict) (Detail, []Blocker, string) {
	if able := s.able(j.shape); v.code != BudgetSpent && len(able) > 0 {
		b := s.budgetGate(j.shape, able[0].model, j.shape.first())
		v = &b
	}
	b := v.budget
	if b == nil {
		return Detail{}, []Blocker{}, ""
	}
	remaining := b.Amount - b.taken()
	d := Detail{
		"budget": b.ID, "amount": b.Amount.Hours(), "spent": b.Spent.Hours(), "committed": b.sum.Hours(),
		"asked": s.commitment(j).Hours(), "remaining": remaining.Hours(), "unit": "accelerator-hours",
		"resets_at": at(b.reset).In(b.Zone), "time_zone": b.Zone.String(),
	}
	if held := b.reserved(); held > 0 {
		d["reserved"] = held.Hours() // for jobs that wait for victims to end
	}
	if remaining <= 0 {
		if remaining < 0 {
			d["overdrawn"] = (-remaining).Hours()
		}
		return d, []Blocker{{Kind: "budget", ID: b.ID}},
			fmt.Sprintf("running jobs settle for less, the budget is raised by %.2f accelerator-hours, or it resets at %s", (s.commitment(j) - remaining).Hours(), at(b.reset).In(b.Zone).Format(time.RFC3339))
	}
	return d, []Blocker{{Kind: "budget", ID: b.ID}},
		fmt.Sprintf("the job asks for at most %.2f accelerator-hours (limit x accelerators), running jobs settle for less, or the budget resets at %s",
			max(remaining, 0).Hours(), at(b.reset).In(b.Zone).Format(time.RFC3339))
}

func (s *State) behindDetail(j *job) (Detail, []Blocker, string) {
	l := s.lineOf(j.shape.spec.family)
	ahead := s.aheadOf(j)
	d := Detail{"ahead_jobs": ahead.jobs, "ahead_gpus": gpus(ahead.milli), "head_job": nil, "held_for": nil}
	blockers := []Blocker{}
	first := l.first()
	if first != nil && first != j {
		d["head_job"] = first.ID
		blockers = append(blockers, Blocker{"job", first.ID, gpus(first.shape.milli()), first.Tenant})
	}
	if s.glanceAt(j).heldBack {
		// It would fit, and is held back for those with a planned start.
		held := []string{}
		st := s.standing(j.shape)
		for _, pl := range s.plans {
			if pl.job.shape.spec.family == j.shape.spec.family && pl.binds(j, st) {
				held = append(held, pl.job.ID)
			}
		}
		if len(held) > 0 {
			d["held_for"] = held
		}
	}
	if ahead.jobs == 1 {
		return d, blockers, "the job ahead has started or left the queue"
	}
	return d, blockers, "the " + strconv.Itoa(ahead.jobs) + " jobs ahead have started or left the queue"
}

func (s *State) capacityDetail(j *job, code Code) (Detail, []Blocker, string) {
	d := s.diagnose(j)
	det, blockers, clears := s.shortDetail(j, code, &d)
	if len(j.shape.spec.OtherModels) > 0 && d.model != "" {
		det["model"] = d.model // the numbers are of the one where most is free
		clears += ", of " + d.model
	}
	if d.cluster != "" {
		det["cluster"] = d.cluster
		clears += " in cluster " + d.cluster
	}
	return det, blockers, clears
}

// toDecide is what people have to decide before a job that waits for hardware can start; none where its start is planned
// on other hardware.
func (s *State) toDecide(j *job) []string {
	if j.plan != nil {
		return nil
	}
	return s.diagnose(j).stuck
}

// shortDetail is capacityDetail but for the cluster.
func (s *State) shortDetail(j *job, code Code, d *diagnosis) (Detail, []Blocker, string) {
	blockers := []Blocker{}
	switch code {
	case Unhealthy:
		causes := map[string]any{}
		for why, servers := range d.sick {
			slices.Sort(servers)
			causes[why] = servers
			for _, id := range servers {
				blockers = append(blockers, Blocker{Kind: "server", ID: id})
			}
		}
		slices.SortFunc(blockers, func(a, b Blocker) int { return strings.Compare(a.ID, b.ID) })
		det := Detail{
			"would_fit_if_healthy": d.healed, "nodes": j.shape.nodes, "servers_by_cause": causes,
			"repair_estimate": repairEstimate(d.back),
		}
		if what := s.toDecide(j); len(what) > 0 {
			det["to_decide"] = what
		}
		return det, blockers, "a server that could hold the job is schedulable again"
	case Fragmented:
		after := d.largest // where nothing can be preempted
		if s.lowerRuns(d.pool, j.Priority) {
			after = max(after, s.afterPreempt(j, d.pool)*max(j.shape.spec.k, 1))
		}
		det := Detail{
			"free_total": d.free, "largest_block": d.largest, "needed_block": d.block, "level": d.level,
			"after_preempt_largest": after,
		}
		clears := fmt.Sprintf("%s free together in one %s", accelerators(d.block, ""), d.level)
		if d.limited != "" {
			det["limited_by"] = d.limited
			clears += ", with the CPU and memory that the job asks for"
		}
		return det, blockers, clears
	default:
		det := Detail{"free": d.blocks * max(j.shape.spec.k, 1), "needed": d.needed, "next_release": nil}
		if d.nextJob != "" {
			det["next_release"] = map[string]any{"job": d.nextJob, "at": at(d.next)}
			if al := s.allocs[d.nextJob]; len(al) > 0 {
				blockers = append(blockers, Blocker{"job", d.nextJob, gpus(al[0].milli), al[0].Tenant})
			}
		}
		return det, blockers, accelerators(d.needed-d.blocks*max(j.shape.spec.k, 1), "more ") + " free"
	}
}

func (s *State) preemptingDetail(j *job) (Detail, []Blocker, string) {
	pl := j.plan
	if pl == nil {
		return Detail{}, []Blocker{}, ""
	}
	total := 0
	blockers := []Blocker{}
	for _, v := range pl.victims {
		total += len(v.accels)
		blockers = append(blockers, Blocker{"job", v.Job, gpus(v.milli), v.Tenant})
	}
	return Detail{
		"victims":     map[string]any{"count": len(pl.victims), "gpus": total},
		"grace_until": at(pl.grace), "released": s.releasedOf(pl),
	}, blockers, "the victims have ended, at the latest when their grace is over"
}

func stopScope(st *Stop) string {
	if st.Scope != "" {
		return st.Scope
	}
	var parts []string
	for _, p := range []struct{ kind, name string }{{"tenant", st.Tenant}, {"project", st.Project}, {"spec", st.Spec}} {
		if p.name != "" {
			parts = append(parts, p.kind+" "+p.name)
		}
	}
	if len(parts) == 0 {
		return "everything"
	}
	return strings.Join(parts, ", ")
}

// repairEstimate is when a repair is expected to be over, nil when nobody says.
func repairEstimate(b back) any {
	switch {
	case b.at == 0:
		return nil
	case b.basis == "":
		return at(b.at)
	}
	return map[string]any{"p50": at(b.at), "p90": at(b.late), "basis": b.basis}
}

func orNil(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}

func clock(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// accelerators is "1 more accelerator of the spec is", "8 accelerators are".
func accelerators(n int, more string) string {
	of := ""
	if more != "" {
		of = " of the spec"
	}
	if n == 1 {
		return "1 " + more + "accelerator" + of + " is"
	}
	return fmt.Sprintf("%d %saccelerators%s are", n, more, of)
}
