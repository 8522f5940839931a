package store_test

import (
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
	"gpupool/schema/usage"
)

// books is a pool under a clock that is set at will, beside its own bookkeeping, which knows nothing of the store's.
type books struct {
	*store.Store
	t       *testing.T
	rnd     *rand.Rand
	config  store.Config // where its record is
	now     atomic.Int64 // the process's clock, Unix ms
	newest  int64        // the latest moment at which something was written
	epoch   int64
	cycle   int64
	servers []schema.Server
	accs    map[string][]string // server -> accelerators
	busy    map[string]string   // accelerator -> job
	jobs    map[string]*booked
	ended   []interval
	cordons map[[2]string]bool
}

// booked is a job as the test knows it.
type booked struct {
	schema.Job
	tenant                   string
	place                    store.Place
	start, running, stopping int64
	why                      schema.AttemptOutcome
	queued                   int64
	waits                    []int64
}

// interval is what an accelerator was held for, and what of it is charged.
type interval struct {
	tenant                        string
	start, running, stopping, end int64
	outcome                       schema.AttemptOutcome
}

// used and charged are this test's own arithmetic: millisecond by millisecond where it can be, with the default policy.
func (i interval) used(from, to int64) int64 {
	if lo, hi := max(from, i.start), min(to, i.end); hi > lo {
		return hi - lo
	}
	return 0
}

func (i interval) charged(from, to int64) int64 {
	paidUntil := i.end
	switch i.outcome {
	case schema.AttemptUnstarted:
		paidUntil = i.start
	case schema.AttemptLost, schema.AttemptPreempted:
		if i.stopping > 0 {
			paidUntil = i.stopping
		}
	default:
	}
	return interval{start: i.start, end: min(paidUntil, i.end)}.used(from, to)
}

func newBooks(t *testing.T, seed uint64) *books {
	t.Helper()
	return newBooksOn(t, seed, store.Config{Driver: "sqlite", DSN: filepath.Join(t.TempDir(), "gpupool.db")})
}

func newBooksOn(t *testing.T, seed uint64, c store.Config) *books {
	t.Helper()
	b := &books{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), config: c, accs: map[string][]string{}, busy: map[string]string{}, jobs: map[string]*booked{}, cordons: map[[2]string]bool{}}
	b.now.Store(time.Date(2026, 7, 14, 21, 40, 0, 0, time.UTC).UnixMilli())
	b.open()
	for i := range 3 {
		v := storetest.Available(t, b.Store, i+1, h100, 4)
		b.servers = append(b.servers, v)
		list, err := b.Accelerators(t.Context(), store.AcceleratorFilter{Server: v.ID})
		b.must(err)
		for _, a := range list {
			b.accs[v.ID] = append(b.accs[v.ID], a.ID)
		}
	}
	_, err := b.CreateSpec(t.Context(), "test", store.NewSpec{Name: "h100x2", Model: h100, Accelerators: 2})
	b.must(err)
	for _, tenant := range []string{"blue", "red"} {
		_, err = b.CreateTenant(t.Context(), "test", tenant, 50)
		b.must(err)
		_, err = b.CreateProject(t.Context(), "test", tenant, "main")
		b.must(err)
	}
	b.wrote()
	return b
}

// open is also what a restart of the process does.
func (b *books) open() {
	b.t.Helper()
	c := b.config
	c.Clock = func() time.Time { return time.UnixMilli(b.now.Load()) }
	s, err := store.Open(b.t.Context(), c)
	b.must(err)
	b.Store = s
	b.epoch, err = b.TakeEpoch(b.t.Context(), "eu", "test")
	b.must(err)
}

func (b *books) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// wrote is told after every write that the store's log tells of.
func (b *books) wrote() { b.newest = max(b.newest, b.now.Load()) }

func pick[T any](b *books, list []T) (v T, ok bool) {
	if len(list) == 0 {
		return v, false
	}
	return list[b.rnd.IntN(len(list))], true
}

func (b *books) in(states ...string) []*booked {
	var out []*booked
	for _, id := range slices.Sorted(maps.Keys(b.jobs)) {
		j := b.jobs[id]
		state := "queued"
		switch {
		case j.start > 0 && j.stopping > 0:
			state = "stopping"
		case j.start > 0 && j.running > 0:
			state = "running"
		case j.start > 0:
			state = "starting"
		}
		if slices.Contains(states, state) {
			out = append(out, j)
		}
	}
	return out
}

func (b *books) step() {
	ctx, t := b.t.Context(), b.t
	b.now.Add(1) // the log tells transactions apart by their moments
	switch b.rnd.IntN(14) {
	case 0, 1, 2:
		b.now.Add(b.rnd.Int64N(90 * 60_000))
	case 3: // the clock is set
		b.now.Add(b.rnd.Int64N(4*3_600_000) - 2*3_600_000)
	case 4, 5:
		tenant, _ := pick(b, []string{"blue", "red"})
		j, _, err := b.SubmitJob(ctx, "test", "", "", store.NewJob{Tenant: tenant, Project: "main", Spec: "h100x2", Nodes: 1, Command: []string{"true"}})
		b.must(err)
		b.wrote()
		b.jobs[j.ID] = &booked{Job: j, tenant: tenant, queued: b.now.Load()}
	case 6, 7, 8: // start one, where two are free and nothing is cordoned
		j, ok := pick(b, b.in("queued"))
		if !ok {
			return
		}
		for _, v := range b.servers {
			if b.cordons[[2]string{v.ID, ""}] {
				continue
			}
			var free []string
			for _, a := range b.accs[v.ID] {
				if b.busy[a] == "" && !b.cordons[[2]string{v.ID, a}] {
					free = append(free, a)
				}
			}
			if len(free) < 2 {
				continue
			}
			b.cycle++
			place := store.Place{Server: v.ID, Accelerators: free[:2]}
			no, err := b.CommitCycle(ctx, "eu", b.epoch, store.Cycle{Number: b.cycle, Starts: []store.Start{{Job: j.ID, Attempt: j.Attempt + 1, Places: []store.Place{place}}}})
			b.must(err)
			if len(no) > 0 {
				t.Fatalf("refused: %+v", no)
			}
			j.start = max(b.newest, b.now.Load())
			j.waits = append(j.waits, max(0, j.start-min(j.queued, j.start)))
			b.newest = j.start
			j.place, j.running, j.stopping, j.why = place, 0, 0, ""
			j.Job, err = b.Job(ctx, j.ID)
			b.must(err)
			for _, a := range place.Accelerators {
				b.busy[a] = j.ID
			}
			b.must(b.DispatchAttempt(ctx, j.ID, j.Attempt))
			b.wrote()
			_, err = b.ClaimTasks(ctx, v.ID)
			b.must(err)
			return
		}
	case 9: // it runs
		if j, ok := pick(b, b.in("starting")); ok {
			b.report(j, agentproto.TaskReport{Seq: 1, State: schema.TaskRunning})
			j.running = b.now.Load()
			b.wrote()
		}
	case 10: // it is asked to stop
		if j, ok := pick(b, b.in("starting", "running")); ok {
			why, _ := pick(b, []schema.AttemptOutcome{schema.AttemptPreempted, schema.AttemptLost, schema.AttemptCancelled, schema.AttemptTimeout})
			if j.running == 0 && why == schema.AttemptTimeout {
				why = schema.AttemptCancelled
			}
			b.must(b.RequestStop(ctx, j.ID, j.Attempt, why, "test", "because"))
			j.stopping, j.why = b.now.Load(), why
			b.wrote()
		}
	case 11: // it ends
		if j, ok := pick(b, b.in("starting", "running", "stopping")); ok {
			b.end(j)
		}
	case 12:
		v, _ := pick(b, b.servers)
		acc := ""
		if b.rnd.IntN(2) == 0 {
			acc, _ = pick(b, b.accs[v.ID])
		}
		k := [2]string{v.ID, acc}
		if b.cordons[k] {
			b.must(b.Uncordon(ctx, v.ID, acc, schema.CordonOperator, "test"))
		} else {
			_, err := b.Cordon(ctx, v.ID, acc, schema.CordonOperator, "test", "looks odd")
			b.must(err)
		}
		b.cordons[k] = !b.cordons[k]
		b.wrote()
	case 13:
		if b.rnd.IntN(3) == 0 { // the process dies and starts again
			b.must(b.Close())
			b.open()
		} else {
			b.must(b.CatchUpUsage(ctx))
			_, _, err := b.CheckHours(ctx, 10)
			b.must(err)
			checked, err := b.Cursor(ctx, "usage_check") // nothing begins or ends before that any more
			b.must(err)
			b.newest = max(b.newest, checked)
		}
	}
}

func (b *books) report(j *booked, r agentproto.TaskReport) {
	b.t.Helper()
	r.Task = store.RunTaskID(j.ID, j.Attempt, 0)
	_, err := b.Report(b.t.Context(), j.place.Server, agentproto.Report{Tasks: []agentproto.TaskReport{r}})
	b.must(err)
}

// end reports the end up to three times and settles it up to three times, then keeps what the accelerators were held for.
func (b *books) end(j *booked) {
	b.t.Helper()
	zero, seven := 0, 7
	r := agentproto.TaskReport{Seq: 9, State: schema.TaskDone, ExitCode: &zero, NoneLeft: true}
	outcome := schema.AttemptCompleted
	switch {
	case j.why != "":
		r.State, r.ExitCode, r.Signal, outcome = schema.TaskFailed, nil, "TERM", j.why
	case j.running == 0:
		r.State, r.ExitCode, outcome = schema.TaskFailed, nil, schema.AttemptUnstarted
	case b.rnd.IntN(3) == 0:
		r.State, r.ExitCode, outcome = schema.TaskFailed, &seven, schema.AttemptFailed
	}
	for range 1 + b.rnd.IntN(3) {
		b.report(j, r)
	}
	b.wrote()
	var got store.Settle
	for range 1 + b.rnd.IntN(3) {
		var err error
		got, err = b.SettleAttempt(b.t.Context(), j.ID, j.Attempt, nil)
		b.must(err)
	}
	if got.Outcome != outcome {
		b.t.Fatalf("settled as %s, want %s", got.Outcome, outcome)
	}
	end := max(b.newest, b.now.Load())
	b.newest = end
	i := interval{tenant: j.tenant, start: j.start, running: j.running, stopping: j.stopping, end: end, outcome: outcome}
	if i.stopping > 0 { // by whatever clock it was told, it lies within
		i.stopping = min(max(i.stopping, i.start), i.end)
	}
	for _, a := range j.place.Accelerators {
		b.ended = append(b.ended, i)
		delete(b.busy, a)
	}
	j.start, j.queued = 0, end
	if got.State.Ended() {
		delete(b.jobs, j.ID)
	}
}

// check compares all that the store says with this test's own books.
func (b *books) check() {
	t, ctx := b.t, b.t.Context()
	t.Helper()
	for range 6 {
		from := b.newest - b.rnd.Int64N(30*3_600_000)
		to := from + b.rnd.Int64N(31*3_600_000)
		if b.rnd.IntN(4) == 0 {
			from, to = 0, b.newest+1
		}
		want := map[string][2]int64{}
		for _, i := range b.ended {
			w := want[i.tenant]
			w[0] += i.used(from, to)
			w[1] += i.charged(from, to)
			want[i.tenant] = w
		}
		for _, j := range b.jobs {
			if j.start > 0 {
				w := want[j.tenant]
				live := 2 * interval{start: j.start, end: to}.used(from, to)
				w[0] += live
				w[1] += live
				want[j.tenant] = w
			}
		}
		for _, by := range [][]string{{"tenant"}, {"tenant", "server"}, {"tenant", "spec", "outcome"}, {"vendor", "tenant", "generation"}} {
			rows, err := b.Usage(ctx, store.UsageQuery{From: schema.Instant(from), To: schema.Instant(to), By: by, Live: true})
			b.must(err)
			got := map[string][2]int64{}
			for _, r := range rows {
				if v, ok := r.Keys["vendor"]; ok && (v != "nvidia" || r.Keys["generation"] != "hopper") {
					t.Fatalf("the class of a %s is %v", h100, r.Keys)
				}
				g := got[r.Keys["tenant"]]
				g[0] += r.Used()
				g[1] += r.Charged()
				got[r.Keys["tenant"]] = g
			}
			for _, tenant := range []string{"blue", "red"} {
				if got[tenant] != want[tenant] {
					t.Fatalf("%s from %d to %d by %v: used and charged %v, want %v", tenant, from, to, by, got[tenant], want[tenant])
				}
			}
		}
	}
	a, err := b.AuditUsage(ctx, usage.Interval{Start: 0, End: schema.Instant(b.newest)})
	b.must(err)
	if len(a.Findings) > 0 || a.Balance.Parts() != a.Balance.Installed || a.Balance.Allocated != a.Ledger+a.Live || a.Events != a.Balance.Allocated {
		t.Fatalf("the audit found %+v", a)
	}
	if found, err := b.Findings(ctx, 10); err != nil || len(found) > 0 {
		t.Fatalf("alarms %+v, %v", found, err)
	}
}
