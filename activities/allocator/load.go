package allocator

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"time"

	"gpupool/activities/allocator/engine"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/usage"
)

// live is one region's pool in memory. It is owned by the goroutine that runs the activity.
type live struct {
	db        *store.Store
	region    string
	mixed     bool // see Activities
	epoch     int64
	at        int64 // events applied so far
	number    int64 // of the last cycle
	pool      *engine.State
	quotas    map[quotaOf]bool // those that pool has: what the record no longer has is taken away
	budgets   map[string]bool  // likewise, by id
	windows   map[string]bool  // likewise, by id
	stops     map[string]bool  // likewise, by id
	specs     map[string]bool  // likewise, by name
	spentAt   schema.Instant   // when the budgets were read
	monthEnds schema.Instant   // when the first of their months is over; 0 = there are none
	repairsAt schema.Instant   // when what is expected of repairs was worked out
	bounded   map[string]bool  // tenants with a quota or a limit of running jobs
	spends    map[string]bool  // tenants with a budget
	limits    map[string]int64 // tenants with a limit of any kind, and the version of it that pool has
	servers   int
	queued    int
}

// quotaOf is what a quota is of.
type quotaOf struct{ tenant, project, model string }

// load takes the epoch first, so that no earlier holder can commit after the read.
func load(ctx context.Context, db *store.Store, region, holder string, policy engine.Config, mixed bool) (*live, error) {
	epoch, err := db.TakeEpoch(ctx, region, holder)
	if err != nil {
		return nil, fmt.Errorf("taking the epoch of region %s: %w", region, err)
	}
	l := &live{db: db, region: region, mixed: mixed, epoch: epoch, pool: engine.New(policy)}
	if l.at, err = db.Head(ctx); err != nil {
		return nil, err
	}
	if err := l.policy(ctx); err != nil {
		return nil, err
	}
	if err := l.setBudgets(ctx); err != nil {
		return nil, err
	}
	if _, err := l.elsewhere(ctx, keys(l.limited())); err != nil {
		return nil, err
	}
	ids, err := db.RegionServers(ctx, region)
	if err != nil {
		return nil, err
	}
	l.servers = len(ids)
	if err := l.setServers(ctx, ids); err != nil {
		return nil, err
	}
	half := cmp.Or(max(policy.HalfLife, 0), engine.DefaultHalfLife)
	past, err := db.PastUsage(ctx, region, db.Now().Add(-halfLivesKept*half), half/halfLifeSpans)
	if err != nil {
		return nil, err
	}
	for _, u := range past {
		l.pool.SetPastUsage(u.Tenant, u.Project, u.Model, acceleratorTime(u.Milliseconds), min(u.At, db.Now()).Time())
	}
	held, err := db.LiveAttempts(ctx, region)
	if err != nil {
		return nil, err
	}
	for _, h := range held {
		l.pool.SetAllocation(allocation(h))
	}
	for after := int64(0); ; {
		jobs, err := db.QueuedAfter(ctx, region, after, loadPart)
		if err != nil {
			return nil, err
		}
		if err := l.enqueue(ctx, jobs); err != nil {
			return nil, err
		}
		l.queued += len(jobs)
		if len(jobs) < loadPart {
			return l, nil
		}
		after = jobs[len(jobs)-1].Seq
	}
}

// loadPart is how many queued jobs are read at a time: what is read is not in memory twice.
const loadPart = 10000

const (
	// halfLivesKept is how far back fair share remembers at load: what was 13 half-lives before weighs less than 1/8000.
	halfLivesKept = 13
	// halfLifeSpans is how finely: what is taken for the middle of a 24th of a half-life weighs at most 1.5 % too much or too
	// little, and a load reads no more rows of a project for a half-life of a month than for one of a day.
	halfLifeSpans = 24
)

func keys(m map[string]bool) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	return out
}

// policy reads specs, tenants, projects, quotas, windows and stops: they are few, so all are read.
func (l *live) policy(ctx context.Context) error {
	p, err := l.db.Policy(ctx)
	if err != nil {
		return err
	}
	offered := make(map[string]bool, len(p.Specs))
	for _, s := range p.Specs {
		offered[s.Name] = true
		l.pool.SetSpec(engine.Spec{Name: s.Name, Model: s.Model, Accelerators: s.Accelerators, CPU: int64(s.CPUs), MemoryBytes: s.MemoryBytes, MaxTime: time.Duration(s.MaxTime) * time.Millisecond, RetiredAt: s.RetiredAt.Time()})
	}
	for name := range l.specs {
		if !offered[name] {
			l.pool.RemoveSpec(name)
		}
	}
	l.specs = offered
	l.bounded = map[string]bool{}
	for _, t := range p.Tenants {
		l.pool.SetAccount(account(t.Name, "", t.Account))
		if t.MaxRunningJobs > 0 {
			l.bounded[t.Name] = true
		}
	}
	for _, pr := range p.Projects {
		l.pool.SetAccount(account(pr.Tenant, pr.Name, pr.Account))
		if pr.MaxRunningJobs > 0 {
			l.bounded[pr.Tenant] = true
		}
	}
	have := make(map[quotaOf]bool, len(p.Quotas))
	for _, q := range p.Quotas {
		have[quotaOf{q.Tenant, q.Project, q.Model}] = true
		l.bounded[q.Tenant] = true
		l.pool.SetQuota(engine.Quota{Tenant: q.Tenant, Project: q.Project, Model: q.Model, Guaranteed: int64(q.Guaranteed), Limit: int64(q.Limit)})
	}
	for q := range l.quotas {
		if !have[q] {
			l.pool.RemoveQuota(q.tenant, q.project, q.model)
		}
	}
	l.quotas = have
	open := make(map[string]bool, len(p.Windows))
	for _, w := range p.Windows {
		open[w.ID] = true
		if !l.windows[w.ID] { // a window never changes
			l.pool.SetWindow(engine.Window{ID: w.ID, Kind: string(w.Kind), Servers: w.Servers, From: w.From.Time(), Until: w.Until.Time(), Tenant: w.Tenant, Project: w.Project})
		}
	}
	for id := range l.windows {
		if !open[id] {
			l.pool.RemoveWindow(id)
		}
	}
	l.windows = open
	closed := make(map[string]bool, len(p.Stops))
	for _, s := range p.Stops {
		if s.Region != "" && s.Region != l.region {
			continue
		}
		closed[s.ID] = true
		if !l.stops[s.ID] { // a stop never changes
			l.pool.SetStop(engine.Stop{ID: s.ID, Tenant: s.Tenant, Project: s.Project, Spec: s.Spec, Scope: s.Scope(), By: s.By, Note: s.Why, Since: s.CreatedAt.Time(), Until: s.Until.Time()})
		}
	}
	for id := range l.stops {
		if !closed[id] {
			l.pool.RemoveStop(id)
		}
	}
	l.stops = closed
	return nil
}

func account(tenant, project string, a schema.Account) engine.Account {
	return engine.Account{Tenant: tenant, Project: project, Weight: float64(a.Weight), MaxRunningJobs: a.MaxRunningJobs, MaxPriority: &a.MaxPriority}
}

// budgetLook is how often budgets are read. What ends in this region is settled at once; what was credited, corrected or
// committed in another region is known by then.
const budgetLook = 10 * time.Second

// setBudgets tells what each budget has spent in its month.
func (l *live) setBudgets(ctx context.Context) error {
	states, err := l.db.BudgetsOutside(ctx, l.region)
	if err != nil {
		return err
	}
	l.spentAt, l.spends, l.monthEnds = l.db.Now(), map[string]bool{}, 0
	have := make(map[string]bool, len(states))
	for _, b := range states {
		zone, err := usage.Zone(b.Zone)
		if err != nil {
			return err
		}
		have[b.ID], l.spends[b.Tenant] = true, true
		if l.monthEnds == 0 || b.Month.End < l.monthEnds {
			l.monthEnds = b.Month.End
		}
		l.pool.SetBudget(engine.Budget{ID: b.ID, Tenant: b.Tenant, Project: b.Project, Model: b.Model, Amount: acceleratorTime(b.Amount), Spent: acceleratorTime(b.Spent + b.Committed), At: l.spentAt.Time(), Zone: zone})
	}
	for id := range l.budgets {
		if !have[id] {
			l.pool.RemoveBudget(id)
		}
	}
	l.budgets = have
	return nil
}

// acceleratorTime is GPU-milliseconds as a duration, which ends at 292 years of one accelerator: more is as good as that.
func acceleratorTime(ms int64) time.Duration {
	return time.Duration(min(max(ms, 0), math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}

func (l *live) setServers(ctx context.Context, ids []string) error {
	open, err := l.repairs(ctx, ids)
	if err != nil {
		return err
	}
	nodes, err := l.db.Nodes(ctx, ids)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if n.Server.Region != l.region {
			continue
		}
		if n.Server.Phase == schema.PhaseRetired {
			l.pool.RemoveServer(n.Server.ID)
			continue
		}
		s := server(n)
		s.OneTenant = n.Server.OneTenant() && !l.mixed
		expect(&s, open[n.Server.ID], n.Cordons, l.db.Now())
		stuck(&s, n, open[n.Server.ID])
		l.pool.SetServer(s)
	}
	return nil
}

// enqueue tells of jobs that wait, and how those that they depend on have ended. Ends to come are told by their events.
func (l *live) enqueue(ctx context.Context, jobs []schema.Job) error {
	var others []string
	for _, j := range jobs {
		for _, d := range j.DependsOn {
			others = append(others, d.Job)
		}
	}
	ended, err := l.db.EndedStates(ctx, others)
	if err != nil {
		return err
	}
	for _, j := range jobs {
		l.pool.SetJob(waiting(j, ended))
	}
	return nil
}

// setJobs brings the queue in line with what the database says of these jobs now.
func (l *live) setJobs(ctx context.Context, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	queued, err := l.db.QueuedJobs(ctx, l.region, ids)
	if err != nil {
		return err
	}
	if err := l.enqueue(ctx, queued); err != nil {
		return err
	}
	is := make(map[string]bool, len(queued))
	for _, j := range queued {
		is[j.ID] = true
	}
	for _, id := range ids {
		if !is[id] {
			l.pool.RemoveJob(id)
		}
	}
	return nil
}

func server(n store.Node) engine.Server {
	v := n.Server
	s := engine.Server{ID: v.ID, Region: v.Region, Site: v.Site, Rack: v.Rack, NVLinkDomain: v.NVLinkDomain, Cluster: v.Cluster, Lacks: n.Lacks, CPU: int64(v.CPUs), MemoryBytes: v.MemoryBytes, Schedulable: true}
	if v.Phase != schema.PhaseAvailable {
		s.Schedulable, s.WhyNot = false, string(v.Phase)
	}
	cordoned := map[string]string{}
	for _, c := range n.Cordons {
		if c.Accelerator != "" {
			cordoned[c.Accelerator] = c.Reason
			continue
		}
		s.Schedulable, s.WhyNot = false, "cordoned: "+c.Reason
	}
	for _, a := range n.Accelerators {
		if a.InstalledAt == 0 {
			continue // it never passed the gate: no capacity, and no hope of any for who waits
		}
		e := engine.Accelerator{ID: a.ID, Model: a.Model, Index: a.Index, Schedulable: a.Health == schema.HealthHealthy, WhyNot: a.HealthWhy}
		if why, ok := cordoned[a.ID]; ok {
			e.Schedulable, e.WhyNot = false, "cordoned: "+why
		}
		s.Accelerators = append(s.Accelerators, e)
	}
	return s
}

func waiting(j schema.Job, ended map[string]schema.JobState) engine.Job {
	e := engine.Job{ID: j.ID, Tenant: j.Tenant, Project: j.Project, Spec: j.Spec, Nodes: j.Nodes, Priority: j.AskedPriority, Seq: j.Seq, Submitted: j.SubmittedAt.Time(), Attempt: j.Attempt + 1,
		Preemptible: j.Preemptible, TimeLimit: j.Limit(), Grace: time.Duration(j.Grace) * time.Millisecond, NotBefore: j.NotBefore.Time(), MaxQueue: time.Duration(j.MaxQueue) * time.Millisecond, Same: engine.Level(j.Same), SameRequired: j.SameRequired, Region: j.Region}
	e.Array, e.ArrayLimit, e.Service = array(j), j.ArrayLimit, j.Kind == schema.JobService
	e.Needs = j.Needs
	if e.Service && j.Attempt > 0 {
		e.NotBeforeWhy, e.MaxQueue = "retry", 0 // it was submitted long ago, and is to be kept
	}
	for _, d := range j.DependsOn {
		e.DependsOn = append(e.DependsOn, engine.Dependency{Job: d.Job, Condition: engine.Condition(d.Condition), State: string(ended[d.Job])})
	}
	if j.Held {
		e.Held = &engine.Hold{By: "user", Why: "asked for", Note: j.HeldBy}
	}
	return e
}

// array is a name that no other project's array has: names hold no slash.
func array(j schema.Job) string {
	if j.Array == "" {
		return ""
	}
	return j.Tenant + "/" + j.Project + "/" + j.Array
}

func allocation(h store.LiveAttempt) engine.Allocation {
	a := engine.Allocation{Job: h.Job.ID, Attempt: h.Attempt.Attempt, Tenant: h.Job.Tenant, Project: h.Job.Project, Spec: h.Job.Spec, Priority: h.Job.Priority, Preemptible: h.Job.Preemptible, Array: array(h.Job), Service: h.Job.Kind == schema.JobService,
		Started: h.Attempt.AllocatedAt.Time(), Checkpoint: h.Attempt.CheckpointAt.Time(), TimeLimit: h.Job.Limit(), Grace: time.Duration(h.Job.Grace) * time.Millisecond}
	if h.Attempt.StopWhy == schema.AttemptPreempted {
		a.For = h.Attempt.StopFor
		a.GraceUntil = h.Attempt.StoppingAt.Add(time.Duration(h.Job.Grace) * time.Millisecond).Time()
	}
	for _, p := range h.Places {
		a.Places = append(a.Places, engine.Place{Server: p.Server, Accelerators: p.Accelerators})
	}
	return a
}
