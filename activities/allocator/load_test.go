package allocator

import (
	"encoding/json"
	"testing"
	"time"

	"gpupool/activities/allocator/engine"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What an operator takes back is taken back at once, not when the allocator happens to start again.
func TestARemovedQuotaNoLongerHoldsJobsBack(t *testing.T) {
	t.Parallel()
	const model = "nvidia-h100-80gb"
	ctx, db := t.Context(), storetest.Open(t)
	storetest.Available(t, db, 1, model, 2)
	_, err := db.CreateSpec(ctx, "test", store.NewSpec{Name: "x2", Model: model, Accelerators: 2})
	must(t, err)
	_, err = db.CreateTenant(ctx, "test", "blue", 1)
	must(t, err)
	_, err = db.CreateProject(ctx, "test", "blue", "main")
	must(t, err)
	_, err = db.SetQuota(ctx, "test", "blue", "", model, 0, 1)
	must(t, err)
	j, _, err := db.SubmitJob(ctx, "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "x2", Nodes: 1, Command: []string{"true"}})
	must(t, err)
	l, err := load(ctx, db, "eu", "test", engine.Config{}, false)
	must(t, err)
	_, _, err = l.cycle(ctx)
	must(t, err)
	if j, err = db.Job(ctx, j.ID); err != nil || j.State != schema.JobQueued {
		t.Fatalf("two accelerators over a quota of one: the job is %s (%v)", j.State, err)
	}
	must(t, db.DeleteQuota(ctx, "test", "blue", "", model))
	if _, err := l.catchUp(ctx); err != nil {
		t.Fatal(err)
	}
	_, _, err = l.cycle(ctx)
	must(t, err)
	if j, err = db.Job(ctx, j.ID); err != nil || j.State != schema.JobStarting {
		t.Fatalf("once the quota is gone the job is %s (%v), want starting: %s", j.State, err, j.Reason)
	}
}

// What an allocator has decided itself it does not read again: else each start would cost a second cycle.
func TestItsOwnStartIsNoNews(t *testing.T) {
	t.Parallel()
	p, ctx := newPoliced(t), t.Context()
	first, second := p.submit(), p.submit()
	p.cycle()
	p.starts(first)
	news := func(want bool) {
		t.Helper()
		if changed, err := p.l.catchUp(ctx); err != nil || changed != want {
			t.Fatalf("there is news: %t (%v), want %t", changed, err, want)
		}
	}
	news(false)
	must(t, p.db.RequestStop(ctx, second, 0, schema.AttemptCancelled, "test", ""))
	news(true)
	if p.l.pool.Waits(second) {
		t.Fatal("a job that was cancelled is still in the queue")
	}
	p.finish(first)
	news(true)
}

// Estimates and held starts rest on when running jobs must end.
func TestANewLimitOfARunningJobIsCounted(t *testing.T) {
	t.Parallel()
	const model = "nvidia-h100-80gb"
	ctx, db := t.Context(), storetest.Open(t)
	storetest.Available(t, db, 1, model, 2)
	_, err := db.CreateSpec(ctx, "test", store.NewSpec{Name: "x2", Model: model, Accelerators: 2})
	must(t, err)
	_, err = db.CreateTenant(ctx, "test", "blue", 1)
	must(t, err)
	_, err = db.CreateProject(ctx, "test", "blue", "main")
	must(t, err)
	var ids []string
	for range 2 {
		j, _, err := db.SubmitJob(ctx, "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "x2", Nodes: 1, Command: []string{"true"}, TimeLimit: 10 * time.Hour})
		must(t, err)
		ids = append(ids, j.ID)
	}
	l, err := load(ctx, db, "eu", "test", engine.Config{}, false)
	must(t, err)
	_, _, err = l.cycle(ctx)
	must(t, err)
	must(t, db.SetTimeLimit(ctx, ids[0], time.Hour, "test"))
	_, err = l.catchUp(ctx)
	must(t, err)
	_, _, err = l.cycle(ctx)
	must(t, err)
	waits, err := db.Job(ctx, ids[1])
	must(t, err)
	var why struct {
		Code   schema.ReasonCode `json:"code"`
		Detail struct {
			Next struct {
				At time.Time `json:"at"`
			} `json:"next_release"`
		} `json:"detail"`
	}
	must(t, json.Unmarshal([]byte(waits.Reason), &why))
	if left := time.Until(why.Detail.Next.At); why.Code != schema.ReasonCapacity || left > time.Hour || left < 50*time.Minute {
		t.Fatalf("the job waits with %s for a release in %s; the one that runs may run for an hour: %s", why.Code, left, waits.Reason)
	}
}

// policed is a record of one server, and the allocator that serves it, cycle by cycle.
type policed struct {
	*region
	l      *live
	policy engine.Config
}

func newPoliced(t *testing.T) *policed {
	t.Helper()
	return &policed{region: newRegion(t, storetest.Open(t))}
}

// cycle lets the allocator see what has happened, and decide.
func (p *policed) cycle() {
	p.t.Helper()
	var err error
	if p.l == nil {
		p.l, err = load(p.t.Context(), p.db, "eu", "test", p.policy, false)
	} else {
		_, err = p.l.catchUp(p.t.Context())
	}
	must(p.t, err)
	_, _, err = p.l.cycle(p.t.Context())
	must(p.t, err)
	must(p.t, p.l.pool.Check())
}

// restart makes the next cycle one of an allocator that knows only the record.
func (p *policed) restart() { p.l = nil }

// waits checks why a job waits, and reads the detail.
func (p *policed) waits(job string, code schema.ReasonCode, detail any) {
	p.t.Helper()
	j, err := p.db.Job(p.t.Context(), job)
	must(p.t, err)
	why := reasonOf(p.t, j)
	if j.State != schema.JobQueued || why.Code != code {
		p.t.Fatalf("job %s is %s with %s, want it to wait with %s", job, j.State, j.Reason, code)
	}
	if detail != nil {
		must(p.t, json.Unmarshal(why.Detail, detail))
	}
}

func (p *policed) starts(job string) {
	p.t.Helper()
	if j, err := p.db.Job(p.t.Context(), job); err != nil || j.State != schema.JobStarting {
		p.t.Fatalf("job %s is %s (%v), want it to start: %s", job, j.State, err, j.Reason)
	}
}

// submitAs submits a job of two accelerators that change alters.
func (p *policed) submitAs(change func(*store.NewJob)) string {
	p.t.Helper()
	n := store.NewJob{Tenant: "blue", Project: "main", Spec: "x2", Nodes: 1, Command: []string{"true"}}
	change(&n)
	j, _, err := p.db.SubmitJob(p.t.Context(), "test", "", "", n)
	must(p.t, err)
	return j.ID
}

func TestABudgetThatIsSpentHoldsJobsBack(t *testing.T) {
	t.Parallel()
	p := newPoliced(t)
	const hour = int64(time.Hour / time.Millisecond)
	b, err := p.db.SetBudget(t.Context(), "test", store.Budget{Tenant: "blue", Amount: 3 * hour, Zone: "Europe/Berlin"})
	must(t, err)
	limited := func(n *store.NewJob) { n.TimeLimit = time.Hour }
	first, second := p.submitAs(limited), p.submitAs(limited)
	for range 2 { // the second time by one that has just loaded
		p.cycle()
		p.starts(first)
		var d struct {
			Budget, TimeZone                           string
			Asked, Committed, Remaining, Spent, Amount float64
		}
		p.waits(second, schema.ReasonBudget, &d)
		if d.Budget != b.ID || d.Amount != 3 || d.Asked != 2 || d.Committed != 2 || d.Remaining != 1 {
			t.Fatalf("the budget of 3 GPU-hours of which 2 are committed says %+v", d)
		}
		p.restart()
	}
	b.Amount = 4 * hour
	_, err = p.db.SetBudget(t.Context(), "test", b)
	must(t, err)
	p.cycle()
	p.waits(second, schema.ReasonCapacity, nil)
	b.Amount = hour
	_, err = p.db.SetBudget(t.Context(), "test", b)
	must(t, err)
	p.finish(first) // in no time: what it had committed is given back
	p.cycle()
	p.waits(second, schema.ReasonBudget, nil)
	must(t, p.db.DeleteBudget(t.Context(), "test", b.ID))
	p.cycle()
	p.starts(second)
}

func TestAGangIsOfOneCluster(t *testing.T) {
	t.Parallel()
	p := newPoliced(t) // its server is of no cluster
	second := storetest.NewServer(2, h100, 2)
	second.Backend, second.Cluster = "slurm", "hall-b"
	storetest.AvailableAs(t, p.db, second)
	gang := p.submitAs(func(n *store.NewJob) { n.Nodes = 2 })
	single := p.submitAs(func(n *store.NewJob) {})
	p.cycle()
	p.waits(gang, schema.ReasonNeverFits, nil)
	p.starts(single)
}

func number(n int) *int { return &n }

func TestATenantsAndAProjectsLimitsHold(t *testing.T) {
	t.Parallel()
	p, ctx := newPoliced(t), t.Context()
	storetest.Available(t, p.db, 2, h100, 2)
	_, err := p.db.SetProject(ctx, "test", "blue", "main", store.AccountChange{MaxRunningJobs: number(1)})
	must(t, err)
	first, second := p.submit(), p.submit()
	for range 2 {
		p.cycle()
		p.starts(first)
		var d struct {
			Level          string
			Running, Limit int
		}
		p.waits(second, schema.ReasonJobLimit, &d)
		if d.Level != "project blue/main" || d.Running != 1 || d.Limit != 1 {
			t.Fatalf("the limit of one running job says %+v", d)
		}
		p.restart()
	}
	_, err = p.db.SetProject(ctx, "test", "blue", "main", store.AccountChange{MaxRunningJobs: number(0)})
	must(t, err)
	p.cycle()
	p.starts(second)
}

func TestACapThatIsRaisedGivesThePriorityBack(t *testing.T) {
	t.Parallel()
	p, ctx := newPoliced(t), t.Context()
	first := p.submit()
	p.cycle()
	p.starts(first)
	early := p.submit()
	urgent := p.submitAs(func(n *store.NewJob) { n.Priority = 50 })
	priority := func(want int) {
		t.Helper()
		if j, err := p.db.Job(ctx, urgent); err != nil || j.Priority != want {
			t.Fatalf("the job's priority is %d (%v), want %d", j.Priority, err, want)
		}
	}
	priority(1) // blue's cap
	p.cycle()
	_, err := p.db.SetTenant(ctx, "test", "blue", store.AccountChange{MaxPriority: number(100)})
	must(t, err)
	priority(50)
	_, err = p.db.SetProject(ctx, "test", "blue", "main", store.AccountChange{MaxPriority: number(20)})
	must(t, err)
	priority(20)
	p.cycle()
	p.finish(first)
	p.cycle()
	p.starts(urgent)
	p.waits(early, schema.ReasonCapacity, nil)
	priority(20)
}

// Two tenants wait with as many jobs: the one of weight 2 has two when the other has one.
func TestWeightsDivideWhatIsFree(t *testing.T) {
	t.Parallel()
	p, ctx := newPoliced(t), t.Context()
	for n := 2; n <= 3; n++ {
		storetest.Available(t, p.db, n, h100, 2)
	}
	_, err := p.db.CreateTenant(ctx, "test", "green", 1)
	must(t, err)
	_, err = p.db.CreateProject(ctx, "test", "green", "main")
	must(t, err)
	_, err = p.db.SetTenant(ctx, "test", "green", store.AccountChange{Weight: number(2)})
	must(t, err)
	var blue, green []string
	for range 3 {
		blue = append(blue, p.submit())
		green = append(green, p.submitAs(func(n *store.NewJob) { n.Tenant = "green" }))
	}
	p.cycle()
	for _, job := range []string{blue[0], green[0], green[1]} {
		p.starts(job)
	}
}

// What a tenant has used counts after a restart too: who has used less goes first. By first come first served it does not count.
func TestPastUsageIsRememberedOverARestart(t *testing.T) {
	t.Parallel()
	for _, order := range []engine.Order{engine.FairShare, engine.FIFO} {
		p, ctx := newPoliced(t), t.Context()
		p.policy = engine.Config{Order: order}
		_, err := p.db.CreateTenant(ctx, "test", "green", 1)
		must(t, err)
		_, err = p.db.CreateProject(ctx, "test", "green", "main")
		must(t, err)
		used := p.submit()
		p.cycle()
		p.finish(used)
		p.restart()
		first, second := p.submit(), p.submitAs(func(n *store.NewJob) { n.Tenant = "green" })
		if order == engine.FairShare {
			first, second = second, first
		}
		p.cycle()
		p.starts(first)
		p.waits(second, schema.ReasonCapacity, nil)
	}
}

// A restart in the middle of a preemption: what is freed is the claimant's, and nobody else is told to end for it.
func TestAClaimSurvivesARestart(t *testing.T) {
	t.Parallel()
	p, ctx := newPoliced(t), t.Context()
	storetest.Available(t, p.db, 2, h100, 2)
	_, err := p.db.SetTenant(ctx, "test", "blue", store.AccountChange{MaxPriority: number(100)})
	must(t, err)
	preemptible := func(n *store.NewJob) { n.Preemptible = true }
	running := []string{p.submitAs(preemptible), p.submitAs(preemptible)}
	p.cycle()
	urgent := p.submitAs(func(n *store.NewJob) { n.Priority = 100 })
	p.cycle()
	for range 2 {
		var d struct {
			Victims struct{ Count int }
		}
		p.waits(urgent, schema.ReasonPreempting, &d)
		stopping := 0
		for _, id := range running {
			if j, err := p.db.Job(ctx, id); err != nil {
				t.Fatal(err)
			} else if j.State == schema.JobStopping {
				stopping++
			}
		}
		if d.Victims.Count != 1 || stopping != 1 {
			t.Fatalf("%d victims are told of, %d jobs are stopping; want one", d.Victims.Count, stopping)
		}
		p.restart()
		p.cycle()
	}
}

func TestAWindowKeepsServersFree(t *testing.T) {
	t.Parallel()
	p, ctx := newPoliced(t), t.Context()
	from := p.db.Now().Add(2 * time.Hour)
	w, err := p.db.CreateWindow(ctx, "test", schema.Window{Kind: schema.WindowMaintenance, Servers: []string{p.server.Name}, From: from, Until: from.Add(time.Hour)})
	must(t, err)
	long := p.submitAs(func(n *store.NewJob) { n.TimeLimit = 3 * time.Hour })
	for range 2 {
		p.cycle()
		var d struct{ Window, Kind string }
		p.waits(long, schema.ReasonWindow, &d)
		if d.Window != w.ID || d.Kind != "maintenance" {
			t.Fatalf("the window %s says %+v", w.ID, d)
		}
		p.restart()
	}
	short := p.submitAs(func(n *store.NewJob) { n.TimeLimit = time.Hour })
	p.cycle()
	p.starts(short)
	p.finish(short)
	must(t, p.db.DeleteWindow(ctx, "test", w.ID))
	p.cycle()
	p.starts(long)
}

func TestAReservationIsForItsProject(t *testing.T) {
	t.Parallel()
	p, ctx := newPoliced(t), t.Context()
	_, err := p.db.CreateProject(ctx, "test", "blue", "other")
	must(t, err)
	_, err = p.db.CreateWindow(ctx, "test", schema.Window{Kind: schema.WindowReservation, Servers: []string{p.server.ID}, Tenant: "blue", Project: "main"})
	must(t, err)
	other := p.submitAs(func(n *store.NewJob) { n.Project = "other" })
	p.cycle()
	p.waits(other, schema.ReasonWindow, nil)
	mine := p.submit()
	p.cycle()
	p.starts(mine)
}

// The allocator has not heard of the window yet: the record refuses the start, and nothing is held.
func TestAWindowIsCheckedAtTheMomentOfTheStart(t *testing.T) {
	t.Parallel()
	p, ctx := newPoliced(t), t.Context()
	p.cycle()
	job := p.submit()
	_, err := p.l.catchUp(ctx)
	must(t, err)
	_, err = p.db.CreateWindow(ctx, "test", schema.Window{Kind: schema.WindowMaintenance, Servers: []string{p.server.ID}})
	must(t, err)
	_, _, err = p.l.cycle(ctx)
	must(t, err)
	if held, err := p.db.JobAllocations(ctx, job); err != nil || len(held) > 0 {
		t.Fatalf("under a window that the allocator did not know of %d accelerators are held (%v)", len(held), err)
	}
	p.cycle()
	p.waits(job, schema.ReasonWindow, nil)
}

func TestAJobStartsAfterTheJobsItDependsOn(t *testing.T) {
	t.Parallel()
	p, ctx := newPoliced(t), t.Context()
	after := func(on string, c schema.DependencyCondition) string {
		return p.submitAs(func(n *store.NewJob) { n.DependsOn = []schema.Dependency{{Job: on, Condition: c}} })
	}
	first := p.submit()
	ok, notOK := after(first, schema.AfterOK), after(first, schema.AfterNotOK)
	for range 2 {
		p.cycle()
		p.starts(first)
		var d struct{ Jobs []string }
		p.waits(ok, schema.ReasonDependency, &d)
		if len(d.Jobs) != 1 || d.Jobs[0] != first {
			t.Fatalf("the job that waits for %s says %v", first, d.Jobs)
		}
		p.restart()
	}
	p.cycle()
	p.finish(first)
	p.cycle()
	p.starts(ok)
	for range 2 {
		var d struct{ States []string }
		p.waits(notOK, schema.ReasonDependencyFailed, &d)
		if len(d.States) != 1 || d.States[0] != "completed" {
			t.Fatalf("the dependency ended as %v", d.States)
		}
		p.restart()
		p.cycle()
	}
	late := after(first, schema.AfterOK) // it has ended before the submit
	p.cycle()
	p.waits(late, schema.ReasonCapacity, nil)
	_, _, err := p.db.SubmitJob(ctx, "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "x2", Nodes: 1, Command: []string{"true"}, DependsOn: []schema.Dependency{{Job: "job_none"}}})
	if !schema.Is(err, schema.CodeInvalid) {
		t.Fatalf("a dependency on no job gives %v", err)
	}
}

func TestOfAnArrayOnlySoManyRunAtOnce(t *testing.T) {
	t.Parallel()
	p := newPoliced(t)
	storetest.Available(t, p.db, 2, h100, 2)
	one := func(n *store.NewJob) { n.Array, n.ArrayLimit = "sweep", 1 }
	first, second := p.submitAs(one), p.submitAs(one)
	for range 2 {
		p.cycle()
		p.starts(first)
		var d struct{ Level string }
		p.waits(second, schema.ReasonJobLimit, &d)
		if d.Level != "array blue/main/sweep" {
			t.Fatalf("the limit is of %s", d.Level)
		}
		p.restart()
	}
	p.cycle()
	p.finish(first)
	p.cycle()
	p.starts(second)
}

// Of two that could make room, the one that loses less work since its checkpoint ends, before and after a restart.
func TestWhoHasSavedItsWorkLosesLess(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		now := time.Now()
		p := &policed{region: newRegion(t, storetest.OpenAt(t, func() time.Time { return now }))}
		ctx := t.Context()
		storetest.Available(t, p.db, 2, h100, 2)
		_, err := p.db.SetTenant(ctx, "test", "blue", store.AccountChange{MaxPriority: number(100)})
		must(t, err)
		preemptible := func(n *store.NewJob) { n.Preemptible = true }
		early, late := p.submitAs(preemptible), ""
		p.cycle()
		p.starts(early)
		if err := p.db.Checkpoint(ctx, early, "test"); !schema.Is(err, schema.CodeConflict) {
			t.Fatalf("the checkpoint of a job that does not run yet gives %v", err)
		}
		p.run(early)
		now = now.Add(time.Hour)
		late = p.submitAs(preemptible)
		p.cycle()
		p.starts(late)
		now = now.Add(time.Hour)
		must(t, p.db.Checkpoint(ctx, early, "test"))
		p.cycle()
		if restart {
			p.restart()
		}
		p.submitAs(func(n *store.NewJob) { n.Priority = 100 })
		p.cycle()
		for job, want := range map[string]schema.JobState{early: schema.JobStopping, late: schema.JobStarting} {
			if j, err := p.db.Job(ctx, job); err != nil || j.State != want {
				t.Fatalf("restarted %t: job %s is %s (%v), want %s", restart, job, j.State, err, want)
			}
		}
	}
}

// run plays the agents until the job's processes run.
func (p *policed) run(job string) {
	p.t.Helper()
	ctx := p.t.Context()
	must(p.t, p.db.DispatchAttempt(ctx, job, 1))
	held, err := p.db.JobAllocations(ctx, job)
	must(p.t, err)
	_, err = p.db.ClaimTasks(ctx, held[0].Server)
	must(p.t, err)
	_, err = p.db.Report(ctx, held[0].Server, agentproto.Report{Tasks: []agentproto.TaskReport{{Task: store.RunTaskID(job, 1, 0), Seq: 1, State: schema.TaskRunning}}})
	must(p.t, err)
}
