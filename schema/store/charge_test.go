package store_test

import (
	"sync"
	"testing"

	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
	"gpupool/schema/usage"
)

// accounts is a store with two tenants, each with a project main, and a spec of one and one of two accelerators.
func accounts(t *testing.T) *store.Store {
	t.Helper()
	s := storetest.Open(t)
	for _, tenant := range []string{"blue", "red"} {
		if _, err := s.CreateTenant(t.Context(), "test", tenant, 50); err != nil {
			t.Fatal(err)
		}
		if _, err := s.CreateProject(t.Context(), "test", tenant, "main"); err != nil {
			t.Fatal(err)
		}
	}
	for name, n := range map[string]int64{"h100x1": 1, "h100x2": 2} {
		if _, err := s.CreateSpec(t.Context(), "test", store.NewSpec{Name: name, Model: h100, Accelerators: n}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// The same key is the same correction: whoever is first books it, a repeat is told of that row, and what differs in anything
// is refused.
func TestACorrectionsKeyBooksOneRowWhoeverIsFirst(t *testing.T) {
	t.Parallel()
	s, ctx := accounts(t), t.Context()
	first := store.Adjustment{Key: "c1", Tenant: "blue", Project: "main", Spec: "h100x1", GPUMillis: -5_000, Note: "a goodwill"}
	rows := make([]schema.LedgerRow, 8)
	var wg sync.WaitGroup
	for i := range rows {
		wg.Go(func() {
			r, err := s.AdjustUsage(ctx, "fin", first)
			if err != nil {
				t.Errorf("repeat %d: %v", i, err)
			}
			rows[i] = r
		})
	}
	wg.Wait()
	for _, r := range rows {
		if r != rows[0] {
			t.Errorf("%+v and %+v are told of one key", r, rows[0])
		}
	}
	for name, change := range map[string]func(*store.Adjustment){
		"amount":  func(a *store.Adjustment) { a.GPUMillis = -6_000 },
		"spec":    func(a *store.Adjustment) { a.Spec = "h100x2" },
		"project": func(a *store.Adjustment) { a.Project, a.Spec = "", "" },
		"note":    func(a *store.Adjustment) { a.Note = "another" },
	} {
		other := first
		change(&other)
		if _, err := s.AdjustUsage(ctx, "fin", other); !schema.Is(err, schema.CodeReused) {
			t.Errorf("another %s under the same key: %v, want reused", name, err)
		}
	}
	if _, err := s.AdjustUsage(ctx, "fin", store.Adjustment{Key: "c1", Tenant: "red", GPUMillis: 1, Note: "another tenant's key"}); err != nil {
		t.Error(err)
	}
	used, err := s.Usage(ctx, store.UsageQuery{Tenant: "blue", To: s.Now() + 1})
	if err != nil || len(used) != 1 || used[0].Adjust != -5_000 || used[0].Rows != 1 {
		t.Errorf("%+v, %v: want one correction of -5000", used, err)
	}
}

// A threshold is told of once a month, and anew where the ceiling became another; at a ceiling of a few ms too.
func TestABudgetsThresholdsAreThoseOfItsCeiling(t *testing.T) {
	t.Parallel()
	s, ctx := accounts(t), t.Context()
	warned := func(what string, want int) {
		t.Helper()
		if n, err := s.WarnBudgets(ctx); err != nil || n != want {
			t.Errorf("%s: warned %d times (%v), want %d", what, n, err, want)
		}
	}
	set := func(ms int64, warn ...int) {
		t.Helper()
		if _, err := s.SetBudget(ctx, "test", store.Budget{Tenant: "blue", Amount: ms, Warn: warn}); err != nil {
			t.Fatal(err)
		}
	}
	set(99, 50, 50, 100)
	warned("nothing was used", 0)
	if _, err := s.AdjustUsage(ctx, "fin", store.Adjustment{Key: "use", Tenant: "blue", GPUMillis: 1_000_000, Note: "used"}); err != nil {
		t.Fatal(err)
	}
	set(1_200_000, 50, 50, 100)
	warned("83 per cent", 1)
	warned("again", 0)
	set(1_200_000, 50, 50, 100)
	warned("set to what it was", 0)
	set(1_500_000, 50, 100)
	warned("raised: 67 per cent", 1)
	set(10_000_000, 50, 100)
	warned("raised: 10 per cent", 0)
	set(1<<53, 1000)
	warned("the largest there is", 0)
	set(1_000_000, 50, 100)
	warned("lowered: all of it", 2)
}

// What an allocator decided by a budget as it was is refused once the budget is another, or gone: it decides again.
func TestAStartDecidedByABudgetAsItWasIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	ctx := t.Context()
	start := func(version int64, from int) bool {
		t.Helper()
		b.cycle++
		no, err := b.CommitCycle(ctx, "eu", b.epoch, store.Cycle{Number: b.cycle, Starts: []store.Start{b.start(b.submit(1), b.place(0, from))}, Limits: map[string]int64{"blue": version}})
		b.must(err)
		return len(no) == 0
	}
	known := func() int64 {
		t.Helper()
		all, err := b.Elsewhere(ctx, "eu", []string{"blue"})
		b.must(err)
		return all["blue"].Version
	}
	before := known()
	budget, err := b.SetBudget(ctx, "test", store.Budget{Tenant: "blue", Amount: usage.Hour})
	b.must(err)
	if start(before, 0) {
		t.Error("a start that knew of no budget was taken")
	}
	before = known()
	_, err = b.SetBudget(ctx, "test", store.Budget{Tenant: "blue", Amount: 1})
	b.must(err)
	if start(before, 0) {
		t.Error("a start by the budget before was taken")
	}
	before = known()
	b.must(b.DeleteBudget(ctx, "test", budget.ID))
	if start(before, 0) {
		t.Error("a start by a budget that is gone was taken")
	}
	if !start(known(), 0) || b.live() != 2 {
		t.Errorf("a start that knows what holds is refused, %d are held", b.live())
	}
}
