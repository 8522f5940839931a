package allocator

import (
	"fmt"
	"path/filepath"
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

// TestSweepsThatDieAtOnceGiveTheirBudgetBack is case 23: four sweeps of eight jobs with a limit of 240 min commit
// 32 GPU-hours each when they start and are settled to the two minutes that each held them; what is left of the budget is
// there again, for a fifth that waited for it.
func TestSweepsThatDieAtOnceGiveTheirBudgetBack(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	var now atomic.Int64
	now.Store(time.Date(2026, 7, 14, 12, 0, 0, 0, time.UTC).UnixMilli())
	db, err := store.Open(ctx, store.Config{Driver: "sqlite", DSN: filepath.Join(t.TempDir(), "gpupool.db"), Clock: func() time.Time { return time.UnixMilli(now.Load()) }})
	must(t, err)
	defer func() { must(t, db.Close()) }()
	for i := range 5 {
		storetest.Available(t, db, i+1, h100, 8)
	}
	_, err = db.CreateSpec(ctx, "test", store.NewSpec{Name: "g1", Model: h100, Accelerators: 1})
	must(t, err)
	_, err = db.CreateTenant(ctx, "test", "blue", 1)
	must(t, err)
	_, err = db.CreateProject(ctx, "test", "blue", "main")
	must(t, err)
	_, err = db.SetBudget(ctx, "test", store.Budget{Tenant: "blue", Amount: 128 * usage.Hour})
	must(t, err)
	var jobs []string // eight a sweep
	for k := range 5 {
		_, _, err := db.SubmitArray(ctx, "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "g1", Nodes: 1, Command: []string{"false"}, TimeLimit: 240 * time.Minute, Array: fmt.Sprint("sweep", k)}, []int{0, 1, 2, 3, 4, 5, 6, 7})
		must(t, err)
		list, err := db.Jobs(ctx, store.JobFilter{Array: fmt.Sprint("sweep", k), Limit: 8})
		must(t, err)
		for _, j := range list {
			jobs = append(jobs, j.ID)
		}
		now.Add(1)
	}
	l, err := load(ctx, db, "eu", "test", engine.Config{}, true)
	must(t, err)
	cycle := func() {
		t.Helper()
		_, err := l.catchUp(ctx)
		must(t, err)
		_, _, err = l.cycle(ctx)
		must(t, err)
	}
	budget := func(spent, committed int64) {
		t.Helper()
		states, err := db.BudgetStates(ctx, "blue")
		must(t, err)
		if b := states[0]; b.Spent != spent || b.Committed != committed || b.Remaining != 128*usage.Hour-spent-committed {
			t.Fatalf("of the budget %d GPU-ms are spent, %d committed and %d left, want %d and %d", b.Spent, b.Committed, b.Remaining, spent, committed)
		}
	}
	cycle()
	budget(0, 4*32*usage.Hour)
	fifth, err := db.Job(ctx, jobs[32])
	must(t, err)
	if why := reasonOf(t, fifth); fifth.State != schema.JobQueued || why.Code != schema.ReasonBudget {
		t.Fatalf("a job of the fifth sweep is %s with %s, want it to wait with %s", fifth.State, fifth.Reason, schema.ReasonBudget)
	}
	// Each dies two minutes after it was placed: its launch counts as what it held.
	servers, err := db.Servers(ctx, store.ServerFilter{})
	must(t, err)
	one := 1
	report := func(tasks map[string][]agentproto.Task, r agentproto.TaskReport) {
		t.Helper()
		for server, list := range tasks {
			for _, task := range list {
				r.Task = task.ID
				_, err := db.Report(ctx, server, agentproto.Report{Tasks: []agentproto.TaskReport{r}})
				must(t, err)
			}
		}
	}
	for _, j := range jobs[:32] {
		must(t, db.DispatchAttempt(ctx, j, 1))
	}
	tasks := map[string][]agentproto.Task{}
	for _, v := range servers {
		tasks[v.ID], err = db.ClaimTasks(ctx, v.ID)
		must(t, err)
	}
	report(tasks, agentproto.TaskReport{Seq: 1, State: schema.TaskRunning})
	now.Add((2 * time.Minute).Milliseconds())
	report(tasks, agentproto.TaskReport{Seq: 2, State: schema.TaskFailed, ExitCode: &one, NoneLeft: true})
	for _, j := range jobs[:32] {
		_, err := db.SettleAttempt(ctx, j, 1, nil)
		must(t, err)
	}
	const each = 8 * 120_000 // GPU-ms a sweep: 0.267 GPU-hours
	rows, err := db.Usage(ctx, store.UsageQuery{By: []string{"job"}})
	must(t, err)
	charged := map[string]int64{}
	for _, r := range rows {
		charged[r.Keys["job"]] = r.Charged()
	}
	for k := range 4 {
		var sum int64
		for _, j := range jobs[8*k : 8*k+8] {
			sum += charged[j]
		}
		if sum != each {
			t.Errorf("sweep %d is charged %d GPU-ms, want %d", k, sum, each)
		}
	}
	budget(4*each, 0)
	cycle()
	budget(4*each, 32*usage.Hour)
}
