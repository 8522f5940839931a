package allocator

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"gpupool/activities/allocator/engine"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
	"gpupool/schema/usage"
)

// spender is a record with two regions, each with an allocator, and a budget that both draw on, by a clock of the test's.
type spender struct {
	*testing.T
	rnd    *rand.Rand
	dsn    string
	now    atomic.Int64
	db     *store.Store
	lives  map[string]*live
	budget store.Budget
	zone   *time.Location
	held   []spent // what has ended
	longer [2]int  // limits that were made longer, and that were refused
}

// spent is what an attempt held, from one moment to another.
type spent struct{ from, to, accelerators int64 }

func newSpender(t *testing.T, seed uint64, from time.Time, zone string) *spender {
	t.Helper()
	s := &spender{T: t, rnd: rand.New(rand.NewPCG(seed, 9)), dsn: filepath.Join(t.TempDir(), "gpupool.db"), lives: map[string]*live{}}
	s.now.Store(from.UnixMilli())
	s.open()
	ctx := t.Context()
	for i := range 8 {
		n := storetest.NewServer(i+1, h100, 2)
		if i%2 == 1 {
			n.Region, n.Site = "us", "nyc1"
		}
		storetest.AvailableAs(t, s.db, n)
	}
	_, err := s.db.CreateSpec(ctx, "test", store.NewSpec{Name: "x2", Model: h100, Accelerators: 2})
	must(t, err)
	_, err = s.db.CreateTenant(ctx, "test", "blue", 1)
	must(t, err)
	_, err = s.db.CreateProject(ctx, "test", "blue", "main")
	must(t, err)
	s.budget, err = s.db.SetBudget(ctx, "test", store.Budget{Tenant: "blue", Amount: 200 * usage.Hour, Zone: zone})
	must(t, err)
	s.zone, err = usage.Zone(zone)
	must(t, err)
	return s
}

// open is also what a kill and a restart of every process do.
func (s *spender) open() {
	s.Helper()
	var err error
	s.db, err = store.Open(s.Context(), store.Config{Driver: "sqlite", DSN: s.dsn, Clock: func() time.Time { return time.UnixMilli(s.now.Load()) }})
	must(s.T, err)
	clear(s.lives)
}

func (s *spender) cycle(region string) {
	s.Helper()
	l := s.lives[region]
	var err error
	if l == nil {
		l, err = load(s.Context(), s.db, region, "test", engine.Config{}, true)
		s.lives[region] = l
	} else {
		_, err = l.catchUp(s.Context())
	}
	must(s.T, err)
	_, _, err = l.cycle(s.Context())
	must(s.T, err)
	must(s.T, l.pool.Check())
}

// live are the jobs that hold accelerators, with the moment at which their limit ends them.
func (s *spender) live() (jobs []schema.Job, attempts map[string]schema.Attempt) {
	s.Helper()
	all, err := s.db.Jobs(s.Context(), store.JobFilter{Live: true, Limit: 1000})
	must(s.T, err)
	attempts = map[string]schema.Attempt{}
	for _, j := range all {
		if j.State == schema.JobQueued {
			continue
		}
		list, err := s.db.Attempts(s.Context(), j.ID)
		must(s.T, err)
		attempts[j.ID] = list[len(list)-1]
		jobs = append(jobs, j)
	}
	return jobs, attempts
}

// end ends an attempt, as its agent would tell it.
func (s *spender) end(j schema.Job, a schema.Attempt) {
	s.Helper()
	ctx := s.Context()
	held, err := s.db.HeldIn(ctx, usage.Interval{Start: a.AllocatedAt, End: a.AllocatedAt + 1})
	must(s.T, err)
	server := held[slices.IndexFunc(held, func(al schema.Allocation) bool { return al.Job == j.ID })].Server
	must(s.T, s.db.DispatchAttempt(ctx, j.ID, j.Attempt))
	_, err = s.db.ClaimTasks(ctx, server)
	must(s.T, err)
	zero := 0
	for _, r := range []agentproto.TaskReport{{Seq: 1, State: schema.TaskRunning}, {Seq: 2, State: schema.TaskDone, ExitCode: &zero, NoneLeft: true}} {
		r.Task = store.RunTaskID(j.ID, j.Attempt, 0)
		_, err = s.db.Report(ctx, server, agentproto.Report{Tasks: []agentproto.TaskReport{r}})
		must(s.T, err)
	}
	_, err = s.db.SettleAttempt(ctx, j.ID, j.Attempt, nil)
	must(s.T, err)
	s.held = append(s.held, spent{int64(a.AllocatedAt), s.now.Load(), int64(j.Accelerators())})
}

// pass lets time pass. Whose limit is over ends at that moment, as its node would end it.
func (s *spender) pass(d time.Duration) {
	s.Helper()
	for until := s.now.Load() + d.Milliseconds(); ; {
		jobs, attempts := s.live()
		next, at := -1, until
		for i, j := range jobs {
			if end := int64(attempts[j.ID].AllocatedAt) + j.TimeLimit; end <= at {
				next, at = i, end
			}
		}
		s.now.Store(max(at, s.now.Load()))
		if next < 0 {
			return
		}
		s.end(jobs[next], attempts[jobs[next].ID])
	}
}

func (s *spender) step() {
	s.Helper()
	ctx := s.Context()
	s.now.Add(1)
	switch s.rnd.IntN(10) {
	case 0, 1, 2:
		region := []string{"eu", "us"}[s.rnd.IntN(2)]
		_, _, err := s.db.SubmitJob(ctx, "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "x2", Nodes: 1, Region: region, Command: []string{"true"},
			TimeLimit: time.Duration(1+s.rnd.IntN(60*60)) * time.Minute})
		must(s.T, err)
	case 3, 4, 5:
		s.cycle([]string{"eu", "us"}[s.rnd.IntN(2)])
	case 6:
		s.pass(time.Duration(s.rnd.Int64N(int64(36 * time.Hour))))
	case 7: // one ends early
		if jobs, attempts := s.live(); len(jobs) > 0 {
			j := jobs[s.rnd.IntN(len(jobs))]
			s.end(j, attempts[j.ID])
		}
	case 8: // one wants to run for longer, or for less
		if jobs, attempts := s.live(); len(jobs) > 0 {
			j := jobs[s.rnd.IntN(len(jobs))]
			limit := time.Duration(1+s.rnd.IntN(80*60)) * time.Minute
			if int64(attempts[j.ID].AllocatedAt)+limit.Milliseconds() < s.now.Load() {
				return // it would be over already
			}
			switch err := s.db.SetTimeLimit(ctx, j.ID, limit, "test"); {
			case err == nil:
				s.longer[0]++
			case schema.Is(err, schema.CodeConflict):
				s.longer[1]++
			default:
				s.Fatal(err)
			}
		}
	case 9:
		if s.rnd.IntN(4) == 0 {
			must(s.T, s.db.Close())
			s.open()
		}
	}
}

// check compares the record with this test's own sums: of no month more is spent and committed than its budget.
func (s *spender) check() {
	s.Helper()
	ctx := context.WithoutCancel(s.Context())
	jobs, attempts := s.live()
	y, m, _ := time.UnixMilli(s.now.Load()).In(s.zone).Date()
	for k := -2; k <= 2; k++ {
		from, to := time.Date(y, m+time.Month(k), 1, 0, 0, 0, 0, s.zone).UnixMilli(), time.Date(y, m+time.Month(k)+1, 1, 0, 0, 0, 0, s.zone).UnixMilli()
		in := func(p spent) int64 { return max(0, min(p.to, to)-max(p.from, from)) * p.accelerators }
		var used, may int64
		for _, p := range s.held {
			used += in(p)
		}
		for _, j := range jobs {
			at := int64(attempts[j.ID].AllocatedAt)
			may += in(spent{at, at + j.TimeLimit, int64(j.Accelerators())})
		}
		if used+may > s.budget.Amount {
			s.Fatalf("of the month from %s %.3f GPU-hours are spent and %.3f may be, of %.3f", time.UnixMilli(from).In(s.zone), float64(used)/usage.Hour, float64(may)/usage.Hour, float64(s.budget.Amount)/usage.Hour)
		}
		if k == 0 {
			states, err := s.db.BudgetStates(ctx, "blue")
			must(s.T, err)
			if b := states[0]; b.Spent != used || b.Committed < may || b.Remaining < 0 || b.Remaining != b.Amount-b.Spent-b.Committed || int64(b.Month.Start) != from || int64(b.Month.End) != to {
				s.Fatalf("%+v, want %d spent and %d or more committed", b, used, may)
			}
		}
	}
}

// TestABudgetIsNeverOverdrawn: whatever is submitted, ends early or late, gets other limits, in two regions at once, over the
// ends of months and over restarts, no month's jobs can use more than its budget.
func TestABudgetIsNeverOverdrawn(t *testing.T) {
	t.Parallel()
	base := uint64(time.Now().UnixNano())
	for i, zone := range []string{"UTC", "Europe/Berlin", "Asia/Kolkata"} {
		seed := base + uint64(i)
		t.Run(fmt.Sprint(zone, " seed ", seed), func(t *testing.T) {
			t.Parallel()
			s := newSpender(t, seed, time.Date(2026, 10, 31, 12, 0, 0, 0, time.UTC), zone)
			defer func() { must(t, s.db.Close()) }()
			for range 400 {
				s.step()
				s.check()
			}
			months := time.UnixMilli(s.now.Load()).Sub(time.Date(2026, 10, 31, 12, 0, 0, 0, time.UTC)).Hours() / 24 / 30
			if len(s.held) == 0 || months < 0.5 {
				t.Fatalf("%d ended in %.1f months: this history shows nothing", len(s.held), months)
			}
			t.Logf("%d attempts in %.1f months; of new limits %d were given and %d refused", len(s.held), months, s.longer[0], s.longer[1])
		})
	}
}
