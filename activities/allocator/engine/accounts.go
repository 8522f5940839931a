package engine

import (
	"math"
	"slices"
	"time"
)

type accountKey struct{ tenant, project string }

// account is what a tenant (project "") or a project may hold and holds.
type account struct {
	accountKey
	parent      *account   // the tenant of a project
	chain       []*account // itself and its parent: what it holds counts for each
	weight      float64
	maxRunning  int
	maxPriority int
	running     int
	claims      int               // jobs that wait for victims to end
	runElse     int               // in other regions, beside running
	quotas      map[string]*quota // by model; "" = all
	held        map[string]*held
	projects    []*account
	groups      []*group // its lines in the queue, one a priority
	share       share
}

// share is a fair share as it was worked out last.
type share struct {
	value float64
	at    int64
	pools int64 // version of the inventory
	known bool
}

// quota is one row of the tree, in thousandths of an accelerator.
type quota struct {
	guaranteed int64
	limit      int64 // NoLimit = none
}

// held is what an account holds of a model, in thousandths of an accelerator.
type held struct {
	used           int64 // by live allocations
	nonPreemptible int64 // of which can't be taken back
	claimed        int64 // by jobs that wait for victims to end
	claimedFixed   int64 // of which for non-preemptible jobs
	kept           int64 // for services that ran and wait to be placed anew; what is claimed for one is not in it
	keptFixed      int64 // of which for non-preemptible ones
	elsewhere      int64 // in other regions, beside used
	elseFixed      int64 // of which can't be taken back
	past           decayed
}

func (s *State) account(tenant, project string) *account {
	key := accountKey{tenant, project}
	a := s.accounts[key]
	if a == nil {
		a = &account{accountKey: key, weight: 1, maxPriority: math.MaxInt, quotas: map[string]*quota{}, held: map[string]*held{}}
		if project != "" {
			a.parent = s.account(tenant, "")
			a.parent.projects = append(a.parent.projects, a)
		}
		a.chain = []*account{a}
		if a.parent != nil {
			a.chain = append(a.chain, a.parent)
		}
		s.accounts[key] = a
	}
	return a
}

// level names the account in a reason.
func (a *account) level() string {
	if a.project == "" {
		return "tenant " + a.tenant
	}
	return "project " + a.tenant + "/" + a.project
}

// chain is the project, if any, and its tenant.
func (s *State) chain(tenant, project string) []*account { return s.account(tenant, project).chain }

func (a *account) of(model string) *held {
	h := a.held[model]
	if h == nil {
		h = &held{}
		a.held[model] = h
	}
	return h
}

// SetQuota adds a quota or changes it.
func (s *State) SetQuota(q Quota) {
	s.changed()
	a := s.account(q.Tenant, q.Project)
	s.guard(q.Model, a.quotas[q.Model], -1)
	row := &quota{guaranteed: scaled(q.Guaranteed), limit: scaled(q.Limit)}
	if q.Limit < 0 {
		row.limit = NoLimit
	}
	a.quotas[q.Model] = row
	s.guard(q.Model, row, +1)
}

// scaled turns accelerators into thousandths without overflow.
func scaled(n int64) int64 {
	return min(max(n, 0), math.MaxInt64/whole/4) * whole
}

// RemoveQuota takes a quota away.
func (s *State) RemoveQuota(tenant, project, model string) {
	s.changed()
	a := s.account(tenant, project)
	s.guard(model, a.quotas[model], -1)
	delete(a.quotas, model)
}

// SetAccount sets what holds for a tenant or project; the zero Account takes everything back. A new cap moves the
// jobs that wait, each at its place by submit order.
func (s *State) SetAccount(in Account) {
	s.dirty = true
	a := s.account(in.Tenant, in.Project)
	a.weight, a.maxRunning = in.Weight, max(in.MaxRunningJobs, 0)
	if in.Weight <= 0 {
		a.weight = 1
	}
	a.share.known = false
	top := math.MaxInt
	if in.MaxPriority != nil {
		top = *in.MaxPriority
	}
	if a.maxPriority == top {
		return
	}
	a.maxPriority = top
	var moved []*job
	for _, j := range s.jobs {
		if j.Tenant == in.Tenant && (in.Project == "" || j.Project == in.Project) && s.capped(&j.Job, j.asked) != j.Priority {
			moved = append(moved, j)
		}
	}
	slices.SortFunc(moved, compareJobs)
	for _, j := range moved {
		again := j.Job
		again.Priority = j.asked
		s.SetJob(again)
	}
}

// capped is the priority a job has of the one it asks for.
func (s *State) capped(j *Job, asked int) int {
	for _, a := range s.chain(j.Tenant, j.Project) {
		asked = min(asked, a.maxPriority)
	}
	return asked
}

func (s *State) guard(model string, q *quota, sign int) {
	if q != nil && q.guaranteed > 0 {
		s.guarded[model] += sign
		if s.guarded[model] == 0 {
			delete(s.guarded, model)
		}
	}
}

// guarantees says whether the guarantees of a model are in force.
func (s *State) guarantees(model string) bool { return s.guarded[model] > 0 }

// guarantee is what the account is guaranteed of a model.
func (a *account) guarantee(model string) int64 {
	if q := a.quotas[model]; q != nil {
		return q.guaranteed
	}
	return 0
}

// book books an allocation on the accounts it belongs to, or takes it off with sign -1.
func (s *State) book(al *alloc, now int64, sign int64) {
	s.count(al, sign)
	for _, a := range s.chain(al.Tenant, al.Project) {
		for _, model := range modelKeys(al.model) {
			a.of(model).past.turn(now, float64(sign*al.milli), s.cfg.HalfLife)
		}
		a.share.known = false
	}
	if arr := s.arrays[al.Array]; arr != nil && arr.running == 0 && arr.waiting == 0 && arr.claims == 0 {
		delete(s.arrays, al.Array)
	}
}

// count counts an allocation where limits look, with sign +1, or takes it out again.
func (s *State) count(al *alloc, sign int64) {
	amount := sign * al.milli
	for _, a := range s.chain(al.Tenant, al.Project) {
		a.running += int(sign)
		for _, model := range modelKeys(al.model) {
			h := a.of(model)
			h.used += amount
			if !al.Preemptible {
				h.nonPreemptible += amount
			}
		}
	}
	if al.Array != "" {
		s.array(al.Array).running += int(sign)
	}
}

// modelKeys is the keys an amount of a model counts under: the model and all models together.
func modelKeys(model string) []string {
	if model == "" {
		return []string{""}
	}
	return []string{model, ""}
}

// claim books what a job that waits for its victims will need, so that its own tenant can't outrun it.
func (s *State) claim(pl *plan, sign int64) {
	j := pl.job
	amount := sign * pl.milli
	for _, a := range s.chain(j.Tenant, j.Project) {
		a.claims += int(sign)
		for _, m := range modelKeys(pl.model) {
			h := a.of(m)
			h.claimed += amount
			if !j.Preemptible {
				h.claimedFixed += amount
			}
		}
	}
	if j.shape.kept {
		s.keep(j, -sign)
	}
	if j.Array != "" {
		arr := s.array(j.Array)
		arr.claims += int(sign)
		if arr.running == 0 && arr.waiting == 0 && arr.claims == 0 {
			delete(s.arrays, j.Array)
		}
	}
	for _, b := range s.budgets {
		if b.covers(j.Tenant, j.Project, pl.model) {
			if sign < 0 {
				delete(b.claims, pl)
			} else {
				b.claims[pl] = s.commitment(j)
			}
		}
	}
}

// keep books what a service that ran holds of its limits while it waits to be placed anew, so that what was submitted since
// does not take it.
func (s *State) keep(j *job, sign int64) {
	if sign > 0 && j.keeps == 0 {
		j.keeps, j.keepsOf = j.shape.milli(), j.shape.spec.Model // what is given back is this, whatever becomes of the spec
	}
	amount := sign * j.keeps
	for _, a := range s.chain(j.Tenant, j.Project) {
		for _, m := range modelKeys(j.keepsOf) {
			h := a.of(m)
			h.kept += amount
			if !j.Preemptible {
				h.keptFixed += amount
			}
		}
	}
}

// keptBeside is what services keep of an amount beside a job of the shape itself, and of which for non-preemptible ones.
func (sh *shape) keptBeside(h *held) (kept, fixed int64) {
	if !sh.kept {
		return h.kept, h.keptFixed
	}
	if sh.preemptible {
		return h.kept - sh.milli(), h.keptFixed
	}
	return h.kept - sh.milli(), h.keptFixed - sh.milli()
}

// Elsewhere is what live jobs of a tenant's project hold of a model in other regions: limits hold over all of them.
type Elsewhere struct {
	Project      string
	Model        string
	Preemptible  bool
	Accelerators int64
	Jobs         int
}

// SetElsewhere tells all that a tenant holds in other regions, in the place of what was told before.
func (s *State) SetElsewhere(tenant string, in []Elsewhere) {
	s.dirty = true
	for key, a := range s.accounts {
		if key.tenant != tenant {
			continue
		}
		a.runElse = 0
		for _, h := range a.held {
			h.elsewhere, h.elseFixed = 0, 0
		}
	}
	for _, e := range in {
		for _, a := range s.chain(tenant, e.Project) {
			a.runElse += e.Jobs
			for _, m := range modelKeys(e.Model) {
				h := a.of(m)
				h.elsewhere += scaled(e.Accelerators)
				if !e.Preemptible {
					h.elseFixed += scaled(e.Accelerators)
				}
			}
		}
	}
}

// SetPastUsage tells fair share what a tenant's project used before this State began: accelerator-time of a model
// around a moment, beside what was told before.
func (s *State) SetPastUsage(tenant, project, model string, used time.Duration, when time.Time) {
	for _, a := range s.chain(tenant, project) {
		a.of(model).past.charge(ns(when), used.Seconds()*float64(whole), s.cfg.HalfLife)
		a.share.known = false
	}
	s.dirty = true
}

// decayed is usage that weighs half as much every half-life, while rate is used now. The sum is exact between
// changes: nothing is sampled.
type decayed struct {
	value float64 // milli-accelerator-seconds
	rate  float64 // milli-accelerators
	at    int64
}

// worth is the usage as it weighs at a moment.
func (d *decayed) worth(now int64, halfLife time.Duration) float64 {
	if now <= d.at || d.at == 0 {
		return d.value
	}
	dt := float64(now-d.at) / 1e9
	if halfLife <= 0 {
		return d.value + d.rate*dt
	}
	h := halfLife.Seconds()
	keep := math.Exp2(-dt / h)
	return d.value*keep + d.rate*(1-keep)*h/math.Ln2
}

// turn changes the rate by delta from a moment on. What is told late counts as if it had been told in time.
func (d *decayed) turn(when int64, delta float64, halfLife time.Duration) {
	d.charge(when, 0, halfLife)
	if when < d.at {
		d.value += (&decayed{rate: delta, at: when}).worth(d.at, halfLife)
	}
	d.rate += delta
}

// charge adds usage at a moment.
func (d *decayed) charge(when int64, amount float64, halfLife time.Duration) {
	if when < d.at {
		d.value += (&decayed{value: amount, at: when}).worth(d.at, halfLife)
		return
	}
	d.value, d.at = d.worth(when, halfLife)+amount, when
}

// merge adds another usage to this one.
func (d *decayed) merge(o *decayed, now int64, halfLife time.Duration) {
	d.charge(now, o.worth(now, halfLife), halfLife)
	d.rate += o.rate
}

// shareOf is an account's dominant share: over the models, the largest part of what is installed, by decayed usage
// over weight (DRF, Ghodsi et al., NSDI 2011, on decayed usage).
func (s *State) shareOf(a *account, now int64) float64 {
	if a.share.known && a.share.at == now && a.share.pools == s.version {
		return a.share.value
	}
	a.share = share{s.measureShare(a, now), now, s.version, true}
	return a.share.value
}

func (s *State) measureShare(a *account, now int64) float64 {
	share := 0.0
	for model, h := range a.held {
		if n := s.installedOf(model); n > 0 {
			share = max(share, h.past.worth(now, s.cfg.HalfLife)/float64(n))
		}
	}
	return share / a.weight
}

// installedOf is how many accelerators of a model there are.
func (s *State) installedOf(model string) int {
	if s.installed.version != s.version || s.installed.of == nil {
		s.installed.version, s.installed.of = s.version, map[string]int{}
		for key, p := range s.pools {
			s.installed.of[key.model] += p.installed
		}
	}
	return s.installed.of[model]
}

// penalize charges the entry penalty of a start to fair share, or gives it back.
func (s *State) penalize(al *alloc, now int64, sign float64) {
	if s.cfg.EntryPenalty <= 0 {
		return
	}
	for _, a := range s.chain(al.Tenant, al.Project) {
		a.of(al.model).past.charge(now, sign*float64(al.milli)*s.cfg.EntryPenalty.Seconds(), s.cfg.HalfLife)
		a.share.known = false
	}
}
