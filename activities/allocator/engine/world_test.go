package engine_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"gpupool/activities/allocator/engine"
)

// world is a small random pool that keeps every fact it has told, so that the same pool can be built again: to
// restart the engine, and to ask what would be if one thing were different.
type world struct {
	cfg     engine.Config
	pool    *engine.State
	now     time.Time
	facts   []func(*engine.State)
	servers map[string]engine.Server
	waiting map[string]engine.Job
	live    map[string]live
	quotas  map[string]engine.Quota
	starts  map[string]time.Time // planned, by job
	told    map[string]engine.Reason
	pairs   map[[2]string]int
	dying   map[string]time.Time
	winner  map[string]string // of victims that still run
	budgets map[string]engine.Budget
	limits  map[string]engine.Account
	windows []engine.Window
	stops   map[string]engine.Stop
	saved   map[string]time.Time // last checkpoints of what runs
	retired map[string]bool      // specs that take no jobs for now
	ended   map[string]string
	seq     int64
}

type live struct {
	job   engine.Job
	start engine.Start
	at    time.Time
}

func newWorld(cfg engine.Config) *world {
	cfg.ReasonsPerCycle = -1
	return &world{
		cfg: cfg, pool: engine.New(cfg), now: epoch, servers: map[string]engine.Server{}, waiting: map[string]engine.Job{},
		live: map[string]live{}, quotas: map[string]engine.Quota{}, starts: map[string]time.Time{},
		told: map[string]engine.Reason{}, pairs: map[[2]string]int{}, dying: map[string]time.Time{}, winner: map[string]string{},
		budgets: map[string]engine.Budget{}, limits: map[string]engine.Account{}, ended: map[string]string{},
		stops: map[string]engine.Stop{}, saved: map[string]time.Time{}, retired: map[string]bool{},
	}
}

func (w *world) tell(f func(*engine.State)) {
	w.facts = append(w.facts, f)
	f(w.pool)
}

// again builds the same pool by telling it the same facts.
func (w *world) again() *engine.State {
	s := engine.New(w.cfg)
	for _, f := range w.facts {
		f(s)
	}
	return s
}

func (w *world) setServer(s engine.Server) {
	w.servers[s.ID] = s
	w.tell(func(p *engine.State) { p.SetServer(s) })
}

func (w *world) setJob(j engine.Job) {
	w.waiting[j.ID] = j
	w.tell(func(p *engine.State) { p.SetJob(j) })
}

func (w *world) release(id string) {
	l := w.live[id]
	delete(w.live, id)
	delete(w.dying, id)
	delete(w.winner, id)
	delete(w.saved, id)
	now := w.now
	w.tell(func(p *engine.State) { p.Release(id, l.start.Attempt, now) })
}

// end is a job that is over for good.
func (w *world) end(id, state string) {
	w.ended[id] = state
	w.tell(func(p *engine.State) { p.Ended(id, state) })
}

// cycle runs one and checks what must hold of it.
func (w *world) cycle(t *rapid.T) engine.Result {
	now := w.now
	w.facts = append(w.facts, func(p *engine.State) { p.Cycle(now) })
	r := w.pool.Cycle(now)
	for _, e := range r.Expired {
		j, ok := w.waiting[e.Job]
		if !ok || now.Sub(j.Submitted) < j.MaxQueue {
			t.Fatalf("%s expired after %s of %s", e.Job, now.Sub(j.Submitted), e.MaxQueue)
		}
		w.gone(e.Job)
		w.end(e.Job, "expired")
	}
	for _, v := range r.Victims {
		l, ok := w.live[v.Job]
		winner, waits := w.waiting[v.For]
		switch {
		case !ok || !waits:
			t.Fatalf("victim %s for %s: not running, or the other does not wait", v.Job, v.For)
		case !l.job.Preemptible:
			t.Fatalf("victim %s is not preemptible", v.Job)
		case v.Why == "priority" && w.capped(l.job) >= w.capped(winner):
			t.Fatalf("victim %s of priority %d for %s of %d", v.Job, l.job.Priority, v.For, winner.Priority)
		case l.job.Grace > 0 && v.GraceUntil.Before(now.Add(l.job.Grace)) && (l.start.TimeLimit == 0 || v.GraceUntil.Before(l.at.Add(l.start.TimeLimit))):
			t.Fatalf("victim %s is given until %s of a grace of %s", v.Job, clock(v.GraceUntil), l.job.Grace)
		case now.Sub(l.at) < w.cfg.MinRunTime:
			t.Fatalf("victim %s has run %s of at least %s", v.Job, now.Sub(l.at), w.cfg.MinRunTime)
		}
		pair := [2]string{v.For, v.Job}
		if w.pairs[pair]++; w.pairs[pair] > 1 {
			t.Fatalf("%s preempts %s again", v.For, v.Job)
		}
		w.dying[v.Job], w.winner[v.Job] = v.GraceUntil, v.For
	}
	for _, s := range r.Starts {
		j, ok := w.waiting[s.Job]
		if !ok {
			t.Fatalf("%s starts but does not wait", s.Job)
		}
		w.checkStart(t, j, s)
		w.gone(s.Job)
		w.live[s.Job] = live{j, s, now}
	}
	w.checkDisjoint(t)
	w.checkLimits(t, r.Starts)
	if err := w.pool.Check(); err != nil && !errors.Is(err, engine.ErrOverLimit) {
		t.Fatalf("check: %v", err)
	}
	for _, p := range r.Reservations {
		before, known := w.starts[p.Job]
		if known && p.Cause == "" && p.Start.After(before) {
			t.Fatalf("the planned start of %s moved from %s to %s without a cause", p.Job, clock(before), clock(p.Start))
		}
		if p.Start.IsZero() {
			delete(w.starts, p.Job)
		} else if _, waits := w.waiting[p.Job]; waits {
			w.starts[p.Job] = p.Start
		}
	}
	for _, why := range r.Reasons {
		w.told[why.Job] = why
	}
	w.checkReasons(t)
	return r
}

// capped is the priority a job has of the one it asks for.
func (w *world) capped(j engine.Job) int {
	if a, ok := w.limits[j.Tenant]; ok && a.MaxPriority != nil {
		return min(j.Priority, *a.MaxPriority)
	}
	return j.Priority
}

func (w *world) gone(id string) {
	delete(w.waiting, id)
	delete(w.starts, id)
	delete(w.told, id)
}

// checkStart: the job got what it asked for, on schedulable devices of the model, close enough together.
func (w *world) checkStart(t *rapid.T, j engine.Job, s engine.Start) {
	nodes := max(j.Nodes, 1)
	if spec := specs[j.Spec]; s.Model != spec.Model && !slices.Contains(spec.OtherModels, s.Model) {
		t.Fatalf("%s of spec %s starts on model %s", j.ID, j.Spec, s.Model)
	}
	if len(s.Places) != nodes {
		t.Fatalf("%s asks for %d nodes, gets %d", j.ID, nodes, len(s.Places))
	}
	seen := map[string]bool{}
	racks := map[string]bool{}
	for _, p := range s.Places {
		srv, ok := w.servers[p.Server]
		if !ok || !srv.Schedulable || seen[p.Server] {
			t.Fatalf("%s is placed on server %s: gone, not schedulable, or twice", j.ID, p.Server)
		}
		seen[p.Server] = true
		racks[srv.Rack] = true
		if want := specs[j.Spec].Accelerators; len(p.Accelerators) != want {
			t.Fatalf("%s gets %d accelerators on %s, wants %d", j.ID, len(p.Accelerators), p.Server, want)
		}
		for _, id := range p.Accelerators {
			i := slices.IndexFunc(srv.Accelerators, func(a engine.Accelerator) bool { return a.ID == id })
			if i < 0 || !srv.Accelerators[i].Schedulable || srv.Accelerators[i].Model != s.Model {
				t.Fatalf("%s gets accelerator %s of %s: not there, not schedulable or of another model", j.ID, id, p.Server)
			}
		}
	}
	if j.Same == engine.LevelRack && j.SameRequired && len(racks) > 1 {
		t.Fatalf("%s must be in one rack, is in %d", j.ID, len(racks))
	}
	if w.retired[j.Spec] {
		t.Fatalf("%s starts with spec %s, which is retired", j.ID, j.Spec)
	}
	if j.Held != nil || j.NotBefore.After(w.now) {
		t.Fatalf("%s starts though it is held or not to start yet", j.ID)
	}
	for _, d := range j.DependsOn {
		state := w.ended[d.Job]
		if state == "" || d.Condition == engine.AfterOK && state != "completed" || d.Condition == engine.AfterNotOK && state == "completed" {
			t.Fatalf("%s starts %s of %s, which is %q", j.ID, d.Condition, d.Job, state)
		}
	}
	for _, st := range w.stops {
		of := (st.Tenant == "" || st.Tenant == j.Tenant) && (st.Project == "" || st.Project == j.Project) && (st.Spec == "" || st.Spec == j.Spec)
		if of && (st.Until.IsZero() || st.Until.After(w.now)) {
			t.Fatalf("%s starts while its queue is stopped: %+v", j.ID, st)
		}
	}
	for _, win := range w.windows {
		admitted := win.Tenant == j.Tenant && (win.Project == "" || win.Project == j.Project)
		over := !w.now.Before(win.Until) || j.TimeLimit > 0 && !w.now.Add(j.TimeLimit).After(win.From)
		if !admitted && !over && slices.ContainsFunc(s.Places, func(p engine.Place) bool { return slices.Contains(win.Servers, p.Server) }) {
			t.Fatalf("%s starts on a server of window %s, %s to %s, with a limit of %s", j.ID, win.ID, clock(win.From), clock(win.Until), j.TimeLimit)
		}
	}
}

// checkDisjoint is I1, from what the world itself was told; and that no two tenants meet where jobs are not kept apart.
func (w *world) checkDisjoint(t *rapid.T) {
	by, tenants := map[string]string{}, map[string]string{}
	for id, l := range w.live {
		for _, p := range l.start.Places {
			if other := tenants[p.Server]; w.servers[p.Server].OneTenant && other != "" && other != l.job.Tenant {
				t.Fatalf("job %s of %s runs on %s beside one of %s", id, l.job.Tenant, p.Server, other)
			}
			tenants[p.Server] = l.job.Tenant
		}
	}
	for id, l := range w.live {
		for _, p := range l.start.Places {
			for _, dev := range p.Accelerators {
				if other, ok := by[dev]; ok {
					t.Fatalf("accelerator %s is held by %s and %s", dev, other, id)
				}
				by[dev] = id
			}
		}
	}
}

// checkLimits is I2, from live allocations alone: nothing starts over a limit. What ran when a limit was lowered may go on.
func (w *world) checkLimits(t *rapid.T, starts []engine.Start) {
	running, arrays := map[string]int{}, map[string]int{}
	for _, l := range w.live {
		running[l.job.Tenant]++
		arrays[l.job.Array]++
	}
	for _, st := range starts {
		j := w.live[st.Job].job
		if j.Array != "" && arrays[j.Array] > j.ArrayLimit {
			t.Fatalf("%s starts as one of %d running of array %s, limit %d", st.Job, arrays[j.Array], j.Array, j.ArrayLimit)
		}
		if a := w.limits[j.Tenant]; a.MaxRunningJobs > 0 && running[j.Tenant] > a.MaxRunningJobs {
			t.Fatalf("%s starts as one of %d of %s, limit %d", st.Job, running[j.Tenant], j.Tenant, a.MaxRunningJobs)
		}
		for _, q := range w.quotas {
			of := func(l live) bool {
				return l.job.Tenant == q.Tenant && (q.Project == "" || l.job.Project == q.Project) && l.start.Model == q.Model
			}
			if !of(w.live[st.Job]) {
				continue
			}
			held, fixed := int64(0), int64(0)
			for _, l := range w.live {
				if of(l) {
					n := int64(max(l.job.Nodes, 1) * specs[l.job.Spec].Accelerators)
					held += n
					if !l.job.Preemptible {
						fixed += n
					}
				}
			}
			if q.Limit != engine.NoLimit && held > q.Limit {
				t.Fatalf("%s starts and %s/%s holds %d of %s, limit %d", st.Job, q.Tenant, q.Project, held, q.Model, q.Limit)
			}
			if q.Guaranteed > 0 && !j.Preemptible && fixed > q.Guaranteed {
				t.Fatalf("%s starts and %s/%s holds %d of %s for good, guaranteed %d", st.Job, q.Tenant, q.Project, fixed, q.Model, q.Guaranteed)
			}
		}
		for _, b := range w.budgets {
			sum := b.Spent
			for _, l := range w.live {
				if l.job.Tenant == b.Tenant {
					used := w.now.Sub(l.at)
					if l.start.TimeLimit > 0 {
						used = l.start.TimeLimit
					}
					sum += used * time.Duration(max(l.job.Nodes, 1)*specs[l.job.Spec].Accelerators)
				}
			}
			if b.Tenant == j.Tenant && sum > b.Amount {
				t.Fatalf("%s starts and budget %s has %s spent and committed of %s", st.Job, b.ID, sum, b.Amount)
			}
		}
	}
}

// checkReasons is I3: every waiting job has one reason with the numbers its code requires, and was told of it.
func (w *world) checkReasons(t *rapid.T) {
	for id := range w.waiting {
		why, ok := w.pool.Explain(id)
		if !ok {
			t.Fatalf("%s waits, and the engine knows nothing of it", id)
		}
		told, ok := w.told[id]
		if !ok || told.Code != why.Code {
			t.Fatalf("%s waits %s, was told %q", id, why.Code, told.Code)
		}
		if why.Code == engine.NotEvaluated || why.ClearsWhen == "" || why.Class == "" {
			t.Fatalf("%s waits %+v after a cycle", id, why)
		}
		for _, key := range required[why.Code] {
			if _, ok := why.Detail[key]; !ok {
				t.Fatalf("%s waits %s without %s: %v", id, why.Code, key, why.Detail)
			}
		}
		switch why.Code {
		case engine.Behind:
			if why.Detail["ahead_jobs"].(int) <= 0 || why.Position.Spec != why.Detail["ahead_jobs"].(int) {
				t.Fatalf("%s is behind %v jobs, position %d", id, why.Detail["ahead_jobs"], why.Position.Spec)
			}
		case engine.Unhealthy:
			if back, said := why.Detail["repair_estimate"].(time.Time); said && !back.After(w.now) {
				t.Fatalf("%s waits for a repair that is expected to have been done at %s", id, clock(back))
			}
		case engine.Capacity:
			if why.Detail["free"].(int) >= why.Detail["needed"].(int) {
				t.Fatalf("%s waits CAPACITY %v", id, why.Detail)
			}
		case engine.QuotaReached:
			used, asked, limit := why.Detail["used"].(float64), why.Detail["asked"].(float64), why.Detail["limit"].(float64)
			if over := used + why.Detail["reserved"].(float64) + asked - limit; over <= 0 || over != why.Detail["over_by"].(float64) {
				t.Fatalf("%s waits QUOTA %v", id, why.Detail)
			}
		case engine.Fragmented:
			if why.Detail["free_total"].(int) < why.Detail["needed_block"].(int) {
				t.Fatalf("%s waits FRAGMENTED %v", id, why.Detail)
			}
		default: // its details were looked at above
		}
		if why.ETA == nil && why.NoETA == "" {
			t.Fatalf("%s has no estimate and no why", id)
		}
	}
}

// required is the details each code must carry (the reference of reason codes).
var required = map[engine.Code][]string{
	engine.SpecUnavailable:  {"spec", "known_specs", "retired_at"},
	engine.NeverFits:        {"asked", "max_possible", "nearest_ok"},
	engine.DependencyFailed: {"jobs", "states"},
	engine.Held:             {"by", "why", "note"},
	engine.QueueStopped:     {"scope", "by", "until"},
	engine.NotBefore:        {"until", "why"},
	engine.DependencyWait:   {"jobs", "states"},
	engine.JobLimit:         {"level", "running", "limit"},
	engine.QuotaReached:     {"level", "used", "reserved", "asked", "limit", "over_by", "holders"},
	engine.GuaranteeOnly:    {"guaranteed", "nonpreemptible_used", "asked", "as_preemptible"},
	engine.BudgetSpent:      {"budget", "spent", "committed", "asked", "remaining", "resets_at", "time_zone"},
	engine.WindowAhead:      {"kind", "your_limit"},
	engine.Behind:           {"ahead_jobs", "ahead_gpus", "head_job", "held_for"},
	engine.Unhealthy:        {"would_fit_if_healthy", "servers_by_cause", "repair_estimate"},
	engine.Fragmented:       {"free_total", "largest_block", "needed_block", "level", "after_preempt_largest"},
	engine.Capacity:         {"free", "needed", "next_release"},
	engine.Preempting:       {"victims", "grace_until", "released"},
}

var specs = map[string]engine.Spec{
	"a1": {Name: "a1", Model: "a", Accelerators: 1, CPU: 2},
	"a2": {Name: "a2", Model: "a", Accelerators: 2, CPU: 4},
	"a4": {Name: "a4", Model: "a", Accelerators: 4, CPU: 8},
	"b1": {Name: "b1", Model: "b", Accelerators: 1, CPU: 6},
	"b2": {Name: "b2", Model: "b", Accelerators: 2, CPU: 4},
	"c2": {Name: "c2", Model: "a", OtherModels: []string{"b"}, Accelerators: 2, CPU: 4},
}

// worlds is how many random worlds a test looks at: GPUPOOL_WORLDS sets it for a soak.
func worlds(t *testing.T) int {
	if v := os.Getenv("GPUPOOL_WORLDS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatalf("GPUPOOL_WORLDS=%q: want a number", v)
		}
		return n
	}
	return 10000
}

// TestRandomWorldsHoldTheInvariants checks I1 to I3 and every rule of reasons after each of a few random events.
func TestRandomWorldsHoldTheInvariants(t *testing.T) {
	t.Parallel()
	n := 0
	rapidCheck(t, worlds(t), func(t *rapid.T) {
		n++
		w := drawWorld(t)
		for range rapid.IntRange(2, 12).Draw(t, "events") {
			w.step(t)
		}
		// Nothing new, nothing done: and no reason changes without an event.
		if r := w.cycle(t); len(r.Starts)+len(r.Victims)+len(r.Reasons)+len(r.Reservations) > 0 {
			t.Fatalf("a cycle without a new fact decided %+v", r)
		}
	})
	t.Logf("%d worlds", n)
}

// rapidCheck runs a property a given number of times; rapid's own flag is for the whole binary. A failure prints its
// seed, what was drawn and the world it led to; with -rapid.seed that one run is repeated.
func rapidCheck(t *testing.T, checks int, prop func(*rapid.T)) {
	t.Helper()
	if f := flag.Lookup("rapid.seed"); f != nil && f.Value.String() != f.DefValue {
		checks = 1
	}
	for done := 0; done < checks && !t.Failed(); done += 100 {
		rapid.Check(failures{t}, prop)
	}
}

// failures is a test that does not repeat, for every hundred worlds, that they passed: a seed is easy to find.
type failures struct{ *testing.T }

func (f failures) Logf(format string, args ...any) {
	f.Helper()
	if !strings.HasPrefix(format, "[rapid] OK") {
		f.T.Logf(format, args...)
	}
}

// String shows the world as it is: servers, what runs, what waits and why.
func (w *world) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "at %s, cycle policy %+v\n", clock(w.now), w.cfg)
	for _, id := range sortedKeys(w.servers) {
		s := w.servers[id]
		fmt.Fprintf(&b, "server %s rack %q schedulable %v:", id, s.Rack, s.Schedulable)
		for _, a := range s.Accelerators {
			fmt.Fprintf(&b, " %s %v", a.Model, a.Schedulable)
		}
		b.WriteByte('\n')
	}
	for _, key := range sortedKeys(w.quotas) {
		fmt.Fprintf(&b, "quota %+v\n", w.quotas[key])
	}
	for _, id := range sortedKeys(w.live) {
		l := w.live[id]
		fmt.Fprintf(&b, "%s runs since %s, limit %s, priority %d, preemptible %v, on %s\n", id, clock(l.at), l.start.TimeLimit,
			l.job.Priority, l.job.Preemptible, places(l.start.Places))
	}
	for _, id := range sortedKeys(w.waiting) {
		j := w.waiting[id]
		fmt.Fprintf(&b, "%s asks %d x %s same %q %v for %s/%s, priority %d, preemptible %v, limit %s\n", id, j.Nodes, j.Spec,
			j.Same, j.SameRequired, j.Tenant, j.Project, j.Priority, j.Preemptible, j.TimeLimit)
		if why, ok := w.pool.Explain(id); ok {
			b.WriteString("  " + show(why))
		}
	}
	for _, id := range sortedKeys(w.starts) {
		fmt.Fprintf(&b, "%s is planned for %s\n", id, clock(w.starts[id]))
	}
	return b.String()
}
