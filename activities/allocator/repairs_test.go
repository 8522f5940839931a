package allocator

import (
	"strings"
	"testing"
	"time"

	"gpupool/activities/allocator/engine"
	"gpupool/schema"
	"gpupool/schema/store"
)

// What is said of a repair rests on past ones of its kind that took longer than it has by now; of too few nothing is said.
func TestARepairIsExpectedToBeOverByPastOnes(t *testing.T) {
	t.Parallel()
	opened := schema.At(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC))
	hours := func(list ...int) (past []int64) {
		for _, h := range list {
			past = append(past, (time.Duration(h) * time.Hour).Milliseconds())
		}
		return past
	}
	for name, c := range map[string]struct {
		past    []int64
		after   time.Duration // since it was opened
		at, p90 int           // hours after it was opened; 0 = nothing is said
		count   string
	}{
		"all are longer":          {hours(10, 1, 2, 3, 4, 5, 6, 7, 8, 9), 0, 5, 9, "10 past repairs"},
		"the short ones drop out": {hours(1, 2, 3, 4, 5, 6, 7, 8, 9, 10), 4 * time.Hour, 7, 10, "6 past repairs"},
		"too few are left":        {hours(1, 2, 3, 4, 5, 6, 7, 8, 9, 10), 6 * time.Hour, 0, 0, ""},
		"none is known":           {nil, 0, 0, 0, ""},
		"four are few":            {hours(2, 2, 2, 2), 0, 0, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := repair{schema.Repair{OpenedAt: opened, Cure: "replace"}, c.past}
			at, late, basis := r.over(opened.Add(c.after))
			if c.at == 0 {
				if !at.IsZero() {
					t.Fatalf("of %d past repairs it says %s", len(c.past), at)
				}
				return
			}
			if want, p90 := opened.Add(time.Duration(c.at)*time.Hour).Time(), opened.Add(time.Duration(c.p90)*time.Hour).Time(); !at.Equal(want) || !late.Equal(p90) || !strings.Contains(basis, c.count) {
				t.Errorf("it says %s, 9 in 10 by %s (%s); want %s and %s of %s", at, late, basis, want, p90, c.count)
			}
		})
	}
}

// The estimate reaches the reason of the job that waits for the server, unless somebody else keeps the server out of use.
func TestAJobThatWaitsForARepairIsToldWhenItMayBeOver(t *testing.T) {
	t.Parallel()
	now := schema.At(time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC))
	past := make([]int64, 20)
	for i := range past {
		past[i] = (time.Duration(i+1) * time.Hour).Milliseconds()
	}
	open := []repair{{schema.Repair{OpenedAt: now, Cure: "replace"}, past}}
	for name, cordons := range map[string][]schema.Cordon{
		"told":     {{Owner: schema.CordonFault}},
		"not told": {{Owner: schema.CordonFault}, {Owner: schema.CordonOperator}},
	} {
		s := engine.Server{ID: "s1", Region: "eu", WhyNot: "repairing", Accelerators: []engine.Accelerator{{ID: "a1", Model: "h100", Schedulable: true}}}
		expect(&s, open, cordons, now)
		pool := engine.New(engine.Config{})
		pool.SetSpec(engine.Spec{Name: "x1", Model: "h100", Accelerators: 1})
		pool.SetServer(s)
		pool.SetJob(engine.Job{ID: "j", Tenant: "t", Project: "p", Spec: "x1", Seq: 1, Attempt: 1, Submitted: now.Time()})
		pool.Cycle(now.Time())
		why, ok := pool.Explain("j")
		if !ok || why.Code != engine.Unhealthy {
			t.Fatalf("the job waits with %s", why.Code)
		}
		if name == "not told" {
			if why.ETA != nil || why.Detail["repair_estimate"] != nil {
				t.Errorf("of a server that an operator keeps it says %+v, %v", why.ETA, why.Detail["repair_estimate"])
			}
			continue
		}
		if why.ETA == nil || !why.ETA.P50.Equal(now.Add(10*time.Hour).Time()) || !why.ETA.P90.Equal(now.Add(18*time.Hour).Time()) || !strings.Contains(why.ETA.Basis, "20 past repairs (replace)") {
			t.Errorf("its estimate is %+v", why.ETA)
		}
	}
}

// With a repair open and none in the record, the job is told that nobody knows.
func TestOfAFirstRepairNothingIsSaid(t *testing.T) {
	t.Parallel()
	p := newPoliced(t)
	if _, err := p.db.BeginBurnIn(t.Context(), p.server.ID, "test"); err != nil {
		t.Fatal(err)
	}
	job := p.submitAs(func(*store.NewJob) {})
	for range 2 {
		p.cycle()
		var d struct {
			Estimate any `json:"repair_estimate"`
		}
		p.waits(job, schema.ReasonUnhealthy, &d)
		if d.Estimate != nil {
			t.Fatalf("of the first repair it says %v", d.Estimate)
		}
		p.restart()
	}
	times, err := p.db.RepairTimes(t.Context())
	if err != nil || len(times) != 0 {
		t.Fatalf("repairs took %v (%v), none is over", times, err)
	}
	if open, err := p.db.OpenRepairs(t.Context(), nil); err != nil || len(open) != 1 {
		t.Fatalf("%d repairs are open (%v)", len(open), err)
	}
}
