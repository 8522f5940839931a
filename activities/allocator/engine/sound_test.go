package engine_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gpupool/activities/allocator/engine"
)

// extra is a server that was not there before.
func extra(id, model string, accelerators int) engine.Server {
	s := engine.Server{ID: id, Region: "r", Site: "s", Rack: "r1", CPU: 64, Schedulable: true}
	for i := range accelerators {
		s.Accelerators = append(s.Accelerators, engine.Accelerator{ID: id + "-" + strconv.Itoa(i), Model: model, Index: i, Schedulable: true})
	}
	return s
}

// starts says whether the job starts in the next cycle of a pool.
func starts(p *engine.State, now time.Time, id string) bool {
	for _, s := range p.Cycle(now).Starts {
		if s.Job == id {
			return true
		}
	}
	return false
}

// TestReasonsAreSoundAndMinimal does what a reason says would clear it, in a copy of the world, and sees the job
// leave; for CAPACITY it also does a little less, and sees it stay.
func TestReasonsAreSoundAndMinimal(t *testing.T) {
	t.Parallel()
	seen := map[engine.Code]int{}
	rapidCheck(t, worlds(t)/10, func(t *rapid.T) {
		w := drawWorld(t)
		for range rapid.IntRange(2, 10).Draw(t, "events") {
			w.step(t)
		}
		for _, id := range sortedKeys(w.waiting) {
			why, _ := w.pool.Explain(id)
			j := w.waiting[id]
			seen[why.Code]++
			switch why.Code {
			case engine.Capacity:
				if j.SameRequired || w.impossible() {
					continue // which rack has most is not said; and what never fit before may come first with more
				}
				w.checkCapacity(t, j, why)
			case engine.Unhealthy:
				p := w.again()
				for _, s := range w.servers {
					s.Schedulable, s.Accelerators = true, slices.Clone(s.Accelerators)
					for i := range s.Accelerators {
						s.Accelerators[i].Schedulable = true
					}
					p.SetServer(s)
				}
				if starts(p, w.now, id) {
					continue
				}
				// It leaves the code, which is what the rule asks; the planned start of another may bind now.
				if after, ok := p.Explain(id); ok && after.Code == engine.Unhealthy {
					t.Fatalf("%s waits UNHEALTHY %v, and still does when all is healthy", id, why.Detail)
				}
			case engine.QuotaReached:
				w.checkQuota(t, j, why)
			case engine.Held:
				p := w.again()
				j.Held = nil
				p.SetJob(j)
				p.Cycle(w.now)
				if after, ok := p.Explain(id); ok && after.Code == engine.Held {
					t.Fatalf("%s is released and still HELD", id)
				}
			case engine.Preempting:
				w.checkClaim(t, id, why)
			default: // no one fact clears it
			}
		}
	})
	for _, code := range []engine.Code{engine.Capacity, engine.Unhealthy, engine.QuotaReached, engine.Held} {
		if seen[code] == 0 {
			t.Errorf("no world has %s: the test does not see what it is for", code)
		}
	}
	t.Logf("%v", seen)
}

// checkClaim ends every victim in a copy of the world: who waits for some of them starts at once.
func (w *world) checkClaim(t *rapid.T, id string, why engine.Reason) {
	p := w.again()
	for _, victim := range sortedKeys(w.winner) {
		p.Release(victim, w.live[victim].start.Attempt, w.now)
	}
	if !starts(p, w.now, id) {
		after, _ := p.Explain(id)
		t.Fatalf("%s waits PREEMPTING %v, and when all victims have ended it waits %s %v", id, why.Detail, after.Code, after.Detail)
	}
}

// TestAClaimComesTrueOrIsDropped fills a pool with what may be preempted, lets others claim places, and turns limits
// meanwhile: who is said to wait for victims gets their places, whatever has happened since they were told.
func TestAClaimComesTrueOrIsDropped(t *testing.T) {
	t.Parallel()
	claims, dropped := 0, 0
	rapidCheck(t, worlds(t)/10, func(t *rapid.T) {
		w := newWorld(engine.Config{Order: rapid.SampledFrom([]engine.Order{engine.FIFO, engine.FairShare}).Draw(t, "order"), AssumedLimit: 30 * time.Minute})
		t.Cleanup(func() {
			if t.Failed() {
				t.Log(w.String())
			}
		})
		for _, name := range specNames() {
			w.tell(func(p *engine.State) { p.SetSpec(specs[name]) })
		}
		for i := range rapid.IntRange(1, 3).Draw(t, "servers") {
			w.setServer(extra(fmt.Sprintf("s%d", i), "a", 4))
		}
		for _, tenant := range []string{"x", "y"} {
			if rapid.Bool().Draw(t, "guaranteed") {
				q := engine.Quota{Tenant: tenant, Model: "a", Limit: int64(rapid.IntRange(4, 12).Draw(t, "limit")), Guaranteed: int64(rapid.IntRange(1, 6).Draw(t, "guarantee"))}
				w.quotas[tenant+"a"] = q
				w.tell(func(p *engine.State) { p.SetQuota(q) })
			}
		}
		job := func(priority int, specs ...string) {
			w.seq++
			w.setJob(engine.Job{
				ID: fmt.Sprintf("j%d", w.seq), Tenant: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "tenant"), Project: "p",
				Spec: rapid.SampledFrom(specs).Draw(t, "spec"), Priority: priority, Seq: w.seq, Submitted: w.now, Attempt: 1,
				Preemptible: priority < 2, TimeLimit: time.Duration(rapid.IntRange(1, 60).Draw(t, "limit")) * time.Minute,
				Grace: time.Duration(rapid.IntRange(1, 300).Draw(t, "grace")) * time.Second,
			})
		}
		for range 12 {
			job(0, "a1", "a2")
		}
		w.cycle(t)
		for range rapid.IntRange(2, 10).Draw(t, "events") {
			switch rapid.IntRange(0, 3).Draw(t, "event") {
			case 0:
				job(rapid.IntRange(0, 2).Draw(t, "priority"), "a1", "a2", "a4")
			case 1:
				w.turnGate(t)
			case 2:
				if ids := sortedKeys(w.live); len(ids) > 0 {
					id := rapid.SampledFrom(ids).Draw(t, "ends")
					w.release(id)
					w.end(id, "completed")
				}
			case 3:
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 300).Draw(t, "seconds")) * time.Second)
				w.letEnd()
			}
			claimed := map[string]bool{}
			for id := range w.waiting {
				claimed[id] = w.told[id].Code == engine.Preempting
			}
			w.cycle(t)
			for _, id := range sortedKeys(w.waiting) {
				switch why := w.told[id]; {
				case why.Code == engine.Preempting:
					claims++
					w.checkClaim(t, id, why)
				case claimed[id]:
					dropped++
				}
			}
		}
	})
	if claims == 0 || dropped == 0 {
		t.Errorf("%d claims were seen and %d dropped: the test does not see what it is for", claims, dropped)
	}
	t.Logf("%d claims, %d dropped", claims, dropped)
}

// checkQuota raises the limit by over_by, and by one less, in copies of the world without the tenant's other jobs that
// wait: what they take first, of the limit or of the jobs that may run, is not in over_by. That goes for one that waits
// for the same limit, for one that NEVER_FITS a limit so low, and for one that may use several models. Those that wait
// for victims stay: what is reserved for them is in it.
func (w *world) checkQuota(t *rapid.T, j engine.Job, why engine.Reason) {
	key := j.Tenant + why.Detail["model"].(string)
	if strings.HasPrefix(why.Detail["level"].(string), "project") {
		key = j.Tenant + "/pa"
	}
	q := w.quotas[key]
	q.Limit += int64(why.Detail["over_by"].(float64))
	for _, less := range []int64{0, 1} {
		p := w.again()
		for _, id := range sortedKeys(w.waiting) {
			if w.waiting[id].Tenant == j.Tenant && id != j.ID && w.told[id].Code != engine.Preempting {
				p.RemoveJob(id)
			}
		}
		raised := q
		raised.Limit -= less
		p.SetQuota(raised)
		p.Cycle(w.now)
		after, waits := p.Explain(j.ID)
		still := waits && after.Code == engine.QuotaReached && after.Detail["level"] == why.Detail["level"]
		if still != (less == 1) {
			t.Fatalf("%s waits QUOTA %v, and with a limit of %d %s %v", j.ID, why.Detail, raised.Limit, after.Code, after.Detail)
		}
	}
}

// impossible says whether a job waits that more servers may let into line: the inventory could never hold it; or it waits
// for the limits of one model, and of another that it accepts there are too few for it.
func (w *world) impossible() bool {
	for id, j := range w.waiting {
		switch why, _ := w.pool.Explain(id); why.Code {
		case engine.NeverFits, engine.SpecUnavailable:
			return true
		case engine.QuotaReached, engine.GuaranteeOnly, engine.BudgetSpent:
			if len(specs[j.Spec].OtherModels) > 0 {
				return true
			}
		default: // it is in line, or waits for something else than accelerators of any model
		}
	}
	return false
}

// checkCapacity adds what is missing, as servers of the spec's size; then one accelerator less.
func (w *world) checkCapacity(t *rapid.T, j engine.Job, why engine.Reason) {
	spec := specs[j.Spec]
	missing := why.Detail["needed"].(int) - why.Detail["free"].(int)
	for _, less := range []int{0, 1} {
		p := w.again()
		for n, left := 0, missing-less; left > 0; n++ {
			k := min(left, spec.Accelerators)
			model, of := why.Detail["model"].(string)
			if !of {
				model = spec.Model
			}
			p.SetServer(extra(fmt.Sprintf("extra%d", n), model, k))
			left -= k
		}
		if got := starts(p, w.now, j.ID); got != (less == 0) {
			t.Fatalf("%s waits CAPACITY %v: with %d more it starts: %v", j.ID, why.Detail, missing-less, got)
		}
	}
}

// TestARestartKeepsWhatIsAllocated is I5 for the engine: told the record anew, it gives nothing twice, keeps every
// limit, has a reason for every job, and lets nobody who was told to end live on in its plans.
func TestARestartKeepsWhatIsAllocated(t *testing.T) {
	t.Parallel()
	rapidCheck(t, worlds(t)/10, func(t *rapid.T) {
		w := drawWorld(t)
		for range rapid.IntRange(2, 8).Draw(t, "events") {
			w.step(t)
		}
		for range 2 {
			w.restart()
			w.cycle(t)
			w.step(t)
		}
	})
}

// restart tells a new engine what a database would: policy, servers, live allocations, waiting jobs.
func (w *world) restart() {
	w.pool = engine.New(w.cfg)
	w.facts = nil
	w.told, w.starts = map[string]engine.Reason{}, map[string]time.Time{}
	for _, name := range specNames() {
		spec := specs[name]
		if w.retired[name] {
			spec.RetiredAt = epoch
		}
		w.tell(func(p *engine.State) { p.SetSpec(spec) })
	}
	for _, key := range sortedKeys(w.quotas) {
		q := w.quotas[key]
		w.tell(func(p *engine.State) { p.SetQuota(q) })
	}
	for _, tenant := range sortedKeys(w.limits) {
		a := w.limits[tenant]
		w.tell(func(p *engine.State) { p.SetAccount(a) })
	}
	for _, win := range w.windows {
		w.tell(func(p *engine.State) { p.SetWindow(win) })
	}
	for _, b := range w.budgets {
		w.tell(func(p *engine.State) { p.SetBudget(b) })
	}
	for _, id := range sortedKeys(w.stops) {
		st := w.stops[id]
		w.tell(func(p *engine.State) { p.SetStop(st) })
	}
	for _, id := range sortedKeys(w.servers) {
		w.setServer(w.servers[id])
	}
	for _, id := range sortedKeys(w.live) {
		l := w.live[id]
		a := engine.Allocation{
			Job: id, Attempt: l.start.Attempt, Tenant: l.job.Tenant, Project: l.job.Project, Spec: l.job.Spec,
			Priority: l.job.Priority, Preemptible: l.job.Preemptible, Array: l.job.Array, Service: l.job.Service, Started: l.at, TimeLimit: l.start.TimeLimit,
			Grace: l.job.Grace, GraceUntil: w.dying[id], For: w.winner[id], Checkpoint: w.saved[id], Places: l.start.Places,
		}
		w.tell(func(p *engine.State) { p.SetAllocation(a) })
	}
	for _, id := range sortedKeys(w.waiting) {
		j := w.waiting[id]
		j.DependsOn = slices.Clone(j.DependsOn)
		for i, d := range j.DependsOn {
			j.DependsOn[i].State = w.ended[d.Job]
		}
		w.setJob(j)
	}
	// Only pairs that are still under way are known after a restart.
	w.pairs = map[[2]string]int{}
	for victim, winner := range w.winner {
		w.pairs[[2]string{winner, victim}] = 1
	}
}

// TestARefusedStartIsAsIfItNeverWas: what the database refuses is taken back, and the job starts again at its place.
func TestARefusedStartIsAsIfItNeverWas(t *testing.T) {
	t.Parallel()
	rapidCheck(t, worlds(t)/10, func(t *rapid.T) {
		w := drawWorld(t)
		// In submit order and without memory of the task mix, so that nothing but what is free decides.
		w.cfg.NoPreemption, w.cfg.Order, w.cfg.Placement = true, engine.FIFO, engine.BestFit
		w.pool = w.again()
		for range rapid.IntRange(1, 6).Draw(t, "jobs") {
			w.setJob(w.drawJob(t))
		}
		first := w.pool.Cycle(w.now)
		for _, s := range first.Starts {
			w.pool.Revert(s.Job, s.Attempt)
			w.pool.Revert(s.Job, s.Attempt) // told twice
		}
		if err := w.pool.Check(); err != nil {
			t.Fatal(err)
		}
		if len(first.Starts) == 0 {
			return
		}
		// The first of them is first again; the others may find a start planned meanwhile.
		if id := first.Starts[0].Job; !starts(w.pool, w.now, id) {
			why, _ := w.pool.Explain(id)
			t.Fatalf("%s started, was refused, and now waits %+v", id, why)
		}
	})
}

// TestDryRunAgreesWithSubmitting: what a dry run says is what the next cycle does, and it leaves nothing behind.
func TestDryRunAgreesWithSubmitting(t *testing.T) {
	t.Parallel()
	rapidCheck(t, worlds(t)/10, func(t *rapid.T) {
		w := drawWorld(t)
		w.cfg.NoPreemption = true
		w.pool = w.again()
		for range rapid.IntRange(2, 8).Draw(t, "events") {
			w.step(t)
		}
		w.cycle(t)
		j := w.drawJob(t)
		answer := w.pool.DryRun(j, w.now)
		if r := w.pool.Cycle(w.now); len(r.Starts)+len(r.Reasons) > 0 {
			t.Fatalf("after a dry run the cycle decides %+v", r)
		}
		if err := w.pool.Check(); err != nil && !errors.Is(err, engine.ErrOverLimit) {
			t.Fatal(err)
		}
		p := w.again()
		p.SetJob(j)
		if got := starts(p, w.now, j.ID); !got && answer.Starts {
			after, _ := p.Explain(j.ID)
			t.Fatalf("the dry run says %s starts, and it waits %+v", j.ID, after)
		}
	})
}

// TestPlannedStartsStandStill: while nothing changes but that one more job is held, no planned start moves or
// goes, whatever the last cycle's own starts have changed.
func TestPlannedStartsStandStill(t *testing.T) {
	t.Parallel()
	rapidCheck(t, worlds(t)/10, func(t *rapid.T) {
		w := drawWorld(t)
		w.cfg.Order, w.cfg.NoPreemption = engine.FIFO, true
		w.pool = w.again()
		for range rapid.IntRange(2, 8).Draw(t, "events") {
			w.step(t)
		}
		w.cycle(t)
		planned := maps.Clone(w.starts)
		held := w.drawJob(t)
		held.Held = &engine.Hold{By: "user", Why: "asked"}
		w.setJob(held)
		r := w.cycle(t)
		for _, p := range r.Reservations {
			if before, ok := planned[p.Job]; ok {
				t.Fatalf("with one more held job the planned start of %s moves from %s to %s on %v: %s", p.Job, clock(before), clock(p.Start), p.Places, p.Cause)
			}
		}
	})
}

// TestImpossibleRequestsTouchNobody is case 11: counts near the edge of integers never wrap into somebody's quota.
func TestImpossibleRequestsTouchNobody(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1 << 31, 1<<53 + 1, 1<<63 - 1, -1, 0} {
		t.Run(strconv.Itoa(nodes), func(t *testing.T) {
			t.Parallel()
			p := engine.New(engine.Config{})
			p.SetServer(extra("s1", "a", 4))
			p.SetSpec(specs["a4"])
			p.SetQuota(engine.Quota{Tenant: "x", Model: "a", Limit: 4})
			p.SetQuota(engine.Quota{Tenant: "y", Model: "a", Limit: 4})
			p.SetJob(engine.Job{ID: "huge", Tenant: "x", Spec: "a4", Nodes: nodes, Attempt: 1, Seq: 1, Priority: 9})
			p.SetJob(engine.Job{ID: "plain", Tenant: "y", Spec: "a4", Nodes: 1, Attempt: 1, Seq: 2})
			got := starts(p, epoch, "plain")
			if nodes > 1 {
				if why, ok := p.Explain("huge"); !ok || why.Code != engine.NeverFits {
					t.Errorf("huge waits %s, want NEVER_FITS", why.Code)
				}
				if !got {
					t.Error("the other tenant's job does not start")
				}
			}
			if err := p.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTheSameFactsGiveTheSameDecisions builds a world twice and compares everything one more cycle says.
func TestTheSameFactsGiveTheSameDecisions(t *testing.T) {
	t.Parallel()
	rapidCheck(t, worlds(t)/20, func(t *rapid.T) {
		w := drawWorld(t)
		for range rapid.IntRange(2, 8).Draw(t, "events") {
			w.step(t)
		}
		more := []engine.Job{w.drawJob(t), w.drawJob(t), w.drawJob(t)}
		decide := func() engine.Result {
			p := w.again()
			for _, j := range more {
				p.SetJob(j)
			}
			return p.Cycle(w.now)
		}
		if diff := cmp.Diff(decide(), decide()); diff != "" {
			t.Fatalf("the same facts decide otherwise:\n%s", diff)
		}
	})
}

// TestNeverFitsNamesTheLimitThatMakesItSo: where only a limit stands in the way, raising it is said to clear it, and does.
func TestNeverFitsNamesTheLimitThatMakesItSo(t *testing.T) {
	t.Parallel()
	p := engine.New(engine.Config{})
	p.SetSpec(specs["a4"])
	for _, id := range []string{"s1", "s2"} {
		p.SetServer(extra(id, "a", 4))
	}
	p.SetQuota(engine.Quota{Tenant: "x", Model: "a", Limit: 6})
	p.SetJob(engine.Job{ID: "j", Tenant: "x", Spec: "a4", Nodes: 2, Attempt: 1, Seq: 1})
	p.Cycle(epoch)
	why, _ := p.Explain("j")
	if want := "the job asks for at most 1 nodes, or the limit of its tenant or project is raised to 8 accelerators"; why.Code != engine.NeverFits || why.ClearsWhen != want {
		t.Fatalf("got %s %q, want %q", why.Code, why.ClearsWhen, want)
	}
	p.SetQuota(engine.Quota{Tenant: "x", Model: "a", Limit: 8})
	if !starts(p, epoch, "j") {
		t.Fatal("the limit is raised as told, and the job does not start")
	}
}

// TestEveryJobHasAReasonAfterItsFirstCycle is case 18 at its size: ten thousand jobs, one cycle, none without a reason.
func TestEveryJobHasAReasonAfterItsFirstCycle(t *testing.T) {
	t.Parallel()
	p := engine.New(engine.Config{})
	for _, name := range specNames() {
		p.SetSpec(specs[name])
	}
	for i := range 50 {
		p.SetServer(extra(fmt.Sprintf("s%d", i), []string{"a", "b"}[i%2], 4))
	}
	const jobs = 10000
	for i := range jobs {
		p.SetJob(engine.Job{
			ID: fmt.Sprint(i), Tenant: fmt.Sprintf("t%d", i%20), Spec: specNames()[i%5], Seq: int64(i), Attempt: 1,
			TimeLimit: time.Duration(1+i%7) * time.Hour,
		})
	}
	r := p.Cycle(epoch)
	waiting, codes := 0, map[engine.Code]int{}
	for i := range jobs {
		why, ok := p.Explain(fmt.Sprint(i))
		if !ok {
			continue // it started
		}
		waiting++
		codes[why.Code]++
		if why.Code == engine.NotEvaluated || why.Code == "" || why.Code == engine.Behind && why.Detail["ahead_jobs"] == 0 {
			t.Fatalf("job %d waits %s %v", i, why.Code, why.Detail)
		}
	}
	if waiting+len(r.Starts) != jobs || waiting == 0 {
		t.Fatalf("%d wait and %d started of %d", waiting, len(r.Starts), jobs)
	}
	// What is told is told within the next cycles, each job once.
	told := len(r.Reasons)
	for more := r.More; more; {
		r = p.Cycle(epoch)
		told, more = told+len(r.Reasons), r.More
	}
	if told != waiting {
		t.Errorf("%d reasons were told of %d that wait: %v", told, waiting, codes)
	}
}

// TestTwoGangsThatOverflowTogetherTouchNobody is case 11: each of two gangs, and what they ask for together, is past what an integer
// holds. They never fit, and what another tenant holds and what its owner reclaims is as without them.
func TestTwoGangsThatOverflowTogetherTouchNobody(t *testing.T) {
	t.Parallel()
	p := engine.New(engine.Config{})
	p.SetSpec(specs["a4"])
	for _, id := range []string{"s1", "s2"} {
		p.SetServer(extra(id, "a", 4))
	}
	for _, tenant := range []string{"x", "y"} {
		p.SetQuota(engine.Quota{Tenant: tenant, Model: "a", Guaranteed: 4, Limit: 8})
	}
	for i := range 2 {
		p.SetJob(engine.Job{ID: fmt.Sprint("lent", i), Tenant: "y", Spec: "a4", Nodes: 1, Attempt: 1, Seq: int64(i), Preemptible: true})
	}
	if r := p.Cycle(epoch); len(r.Starts) != 2 {
		t.Fatalf("%d of two start on two servers", len(r.Starts))
	}
	for i, nodes := range []int{1 << 62, 1<<62 + 1} {
		p.SetJob(engine.Job{ID: fmt.Sprint("huge", i), Tenant: "x", Spec: "a4", Nodes: nodes, Attempt: 1, Seq: int64(10 + i), Priority: 9})
	}
	if r := p.Cycle(epoch.Add(time.Minute)); len(r.Victims) != 0 || len(r.Starts) != 0 {
		t.Fatalf("for gangs that never fit %v must end and %v start", r.Victims, r.Starts)
	}
	for i := range 2 {
		if why, ok := p.Explain(fmt.Sprint("huge", i)); !ok || why.Code != engine.NeverFits {
			t.Errorf("huge%d waits %s, want NEVER_FITS", i, why.Code)
		}
	}
	p.SetJob(engine.Job{ID: "own", Tenant: "x", Spec: "a4", Nodes: 1, Attempt: 1, Seq: 20})
	if r := p.Cycle(epoch.Add(2 * time.Minute)); len(r.Victims) != 1 || r.Victims[0].For != "own" {
		t.Errorf("within its guarantee x takes back %v, want one job", r.Victims)
	}
	if err := p.Check(); err != nil {
		t.Error(err)
	}
}

// TestTheEndOfAMinimumRunTimeIsAwaited: who waits for a job that is protected for so long is looked at again at that moment, with
// no other news, and then it must end; once it has ended by itself nobody is woken for it.
func TestTheEndOfAMinimumRunTimeIsAwaited(t *testing.T) {
	t.Parallel()
	for _, ended := range []bool{false, true} {
		p := engine.New(engine.Config{MinRunTime: 5 * time.Minute})
		p.SetSpec(specs["a4"])
		p.SetServer(extra("s1", "a", 4))
		p.SetJob(engine.Job{ID: "low", Tenant: "x", Spec: "a4", Attempt: 1, Seq: 1, Preemptible: true, TimeLimit: time.Hour})
		p.Cycle(epoch)
		if ended {
			p.Release("low", 1, epoch.Add(time.Second))
			if wake := p.Cycle(epoch.Add(time.Minute)).NextWake; !wake.IsZero() {
				t.Errorf("with nothing running it wakes at %s", wake)
			}
			continue
		}
		p.SetJob(engine.Job{ID: "high", Tenant: "y", Spec: "a4", Attempt: 1, Seq: 2, Priority: 9})
		r := p.Cycle(epoch.Add(time.Minute))
		if want := epoch.Add(5 * time.Minute); len(r.Victims) != 0 || !r.NextWake.Equal(want) {
			t.Fatalf("after a minute %v must end, and it wakes at %s, want %s", r.Victims, r.NextWake, want)
		}
		if r = p.Cycle(r.NextWake); len(r.Victims) != 1 || r.Victims[0].Job != "low" {
			t.Errorf("when its five minutes are over %v must end, want low", r.Victims)
		}
	}
}
