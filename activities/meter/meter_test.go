package meter_test

import (
	"context"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"gpupool/activities/meter"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
	"gpupool/schema/usage"
)

const model = "nvidia-h100-80gb"

// pool is a server of two accelerators, both held by one job that runs.
type pool struct {
	*store.Store
	t       *testing.T
	now     time.Time
	server  schema.Server
	job     schema.Job
	sampler *meter.Sampler
	meter   *meter.Activities
	devices []agentproto.Device
}

func newPool(t *testing.T) *pool {
	t.Helper()
	p := &pool{t: t, now: time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC)}
	p.Store = storetest.OpenAt(t, func() time.Time { return p.now })
	p.server = storetest.Available(t, p.Store, 1, model, 2)
	p.devices = storetest.Devices(p.server.Name, model, 2)
	p.sampler, p.meter = &meter.Sampler{Store: p.Store}, &meter.Activities{Store: p.Store}
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := p.CreateSpec(ctx, "test", store.NewSpec{Name: "x2", Model: model, Accelerators: 2})
	must(err)
	_, err = p.CreateTenant(ctx, "test", "blue", 1)
	must(err)
	_, err = p.CreateProject(ctx, "test", "blue", "main")
	must(err)
	epoch, err := p.TakeEpoch(ctx, "eu", "test")
	must(err)
	p.job, _, err = p.SubmitJob(ctx, "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "x2", Nodes: 1, Command: []string{"true"}})
	must(err)
	accs, err := p.Accelerators(ctx, store.AcceleratorFilter{Server: p.server.ID})
	must(err)
	no, err := p.CommitCycle(ctx, "eu", epoch, store.Cycle{Starts: []store.Start{{Job: p.job.ID, Attempt: 1, Places: []store.Place{{Server: p.server.ID, Accelerators: []string{accs[0].ID, accs[1].ID}}}}}})
	must(err)
	if len(no) > 0 {
		t.Fatal(no)
	}
	must(p.DispatchAttempt(ctx, p.job.ID, 1))
	_, err = p.ClaimTasks(ctx, p.server.ID)
	must(err)
	_, err = p.Report(ctx, p.server.ID, agentproto.Report{Tasks: []agentproto.TaskReport{{Task: store.RunTaskID(p.job.ID, 1, 0), Seq: 1, State: schema.TaskRunning}}})
	must(err)
	return p
}

// run lets time pass in heartbeats of ten seconds, each with what the devices do.
func (p *pool) run(d time.Duration, busy ...float64) {
	p.t.Helper()
	for end := p.now.Add(d); p.now.Before(end); {
		p.now = p.now.Add(10 * time.Second)
		p.beat(busy...)
	}
	p.sampler.Flush(p.t.Context())
}

func (p *pool) beat(busy ...float64) {
	for i := range p.devices {
		p.devices[i].Samples = nil
		if i < len(busy) {
			p.devices[i].Samples = map[string]float64{"utilization_ratio": busy[i]}
		}
	}
	p.sampler.Seen(p.server.ID, p.devices)
}

func (p *pool) settle() meter.Settled {
	p.t.Helper()
	out, err := p.meter.Settle(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

func (p *pool) counts() usage.Counts {
	p.t.Helper()
	all, err := p.FourCounts(p.t.Context(), store.CountsQuery{By: "spec", Periods: []usage.Period{{Interval: usage.Interval{Start: 0, End: schema.At(p.now.Add(time.Hour))}}}})
	if err != nil || len(all) != 1 {
		p.t.Fatalf("%+v, %v", all, err)
	}
	return all[0]
}

func TestASampleSpeaksForTheTimeSinceTheOneBefore(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	p.beat(0, 1)
	p.run(time.Minute, 0, 1)
	if c := p.counts(); c.Known != 120_000 || c.Idle != 60_000 {
		t.Fatalf("known %d ms, idle %d ms; want both devices' minute known and one's idle", c.Known, c.Idle)
	}
	for name, f := range map[string]func(){
		"a device that says nothing of its utilization": func() { p.run(time.Minute) },
		"a device that can't be read":                   func() { p.run(time.Minute, math.NaN(), math.NaN()) },
		"a gap between two heartbeats":                  func() { p.beat(0, 0); p.now = p.now.Add(31 * time.Second); p.beat(0, 0); p.sampler.Flush(t.Context()) },
		"a clock that was set back": func() {
			p.beat(0, 0)
			p.now = p.now.Add(-time.Minute)
			p.beat(0, 0)
			p.sampler.Flush(t.Context())
			p.now = p.now.Add(time.Minute)
		},
	} {
		p.beat() // what comes next has no sample before it
		before := p.counts()
		f()
		if after := p.counts(); after.Known != before.Known || after.Idle != before.Idle {
			t.Errorf("%s: known went from %d to %d ms, idle from %d to %d", name, before.Known, after.Known, before.Idle, after.Idle)
		}
	}
}

func TestAnIdleJobIsToldAndThenStoppedByItsProjectsLimit(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	warn, reclaim, inherit, never := (30 * time.Minute).Milliseconds(), (time.Hour).Milliseconds(), int64(schema.Inherit), int64(0)
	set := func(tenantWarn, tenantReclaim, projectWarn, projectReclaim *int64) {
		t.Helper()
		if _, err := p.SetTenant(t.Context(), "test", "blue", store.AccountChange{IdleWarn: tenantWarn, IdleReclaim: tenantReclaim}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.SetProject(t.Context(), "test", "blue", "main", store.AccountChange{IdleWarn: projectWarn, IdleReclaim: projectReclaim}); err != nil {
			t.Fatal(err)
		}
	}
	p.beat(0, 0)
	p.run(29*time.Minute, 0, 0)
	if got := p.settle(); got != (meter.Settled{}) {
		t.Fatalf("by the pool's limits, which warn after two hours: %+v", got)
	}
	set(&warn, &reclaim, &never, &never)
	p.run(2*time.Hour, 0, 0)
	if got := p.settle(); got != (meter.Settled{}) {
		t.Fatalf("the project's never comes before its tenant's limit: %+v", got)
	}
	set(&warn, &reclaim, &inherit, &inherit)
	if got := p.settle(); got.Idle != 1 || got.Reclaimed != 0 {
		t.Fatalf("nobody is stopped in the round that tells him: %+v", got)
	}
	p.run(time.Minute, 0, 0.5)
	if got := p.settle(); got != (meter.Settled{}) {
		t.Fatalf("one of its accelerators works again: %+v", got)
	}
	p.run(31*time.Minute, 0, 0)
	if got := p.settle(); got.Idle != 1 || got.Reclaimed != 0 {
		t.Fatalf("after its warning's time: %+v", got)
	}
	p.run(31*time.Minute, 0, 0)
	if got := p.settle(); got.Reclaimed != 1 {
		t.Fatalf("after its limit: %+v", got)
	}
	j, err := p.Job(t.Context(), p.job.ID)
	if err != nil || j.State != schema.JobStopping {
		t.Fatalf("the job is %s, %v", j.State, err)
	}
	told, _, err := p.Events(t.Context(), 0, 1000, store.EventFilter{Kinds: []schema.EventKind{schema.EventJobIdle}})
	if err != nil || len(told) != 2 {
		t.Fatalf("it was told %d times, %v", len(told), err)
	}
	for _, e := range told {
		if !strings.Contains(string(e.Data), "reclaim_at") || e.Tenant != "blue" {
			t.Errorf("event %+v", e)
		}
	}
}

// What is not known is never idle, and nobody is stopped for it.
func TestAJobIsIdleOnlyAsLongAsAllOfItIsKnownToBe(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	warn, reclaim := (30 * time.Minute).Milliseconds(), (time.Hour).Milliseconds()
	if _, err := p.SetProject(t.Context(), "test", "blue", "main", store.AccountChange{IdleWarn: &warn, IdleReclaim: &reclaim}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		busy []float64 // of each device; what is missing is unknown
		d    time.Duration
		want meter.Settled
	}{
		{"one of two says nothing", []float64{0}, 2 * time.Hour, meter.Settled{}},
		{"both are idle, for less than the limit", []float64{0, 0}, 25 * time.Minute, meter.Settled{}},
		{"then nothing is known", nil, 20 * time.Minute, meter.Settled{}},
		{"it is idle again: that begins anew", []float64{0, 0}, 25 * time.Minute, meter.Settled{}},
		{"as long as the limit", []float64{0, 0}, 6 * time.Minute, meter.Settled{Idle: 1}},
		{"the agents fall silent", nil, 3 * time.Hour, meter.Settled{}},
		{"idle for as long as the limit once more", []float64{0, 0}, 31 * time.Minute, meter.Settled{Idle: 1}},
		{"a short gap ends nothing", nil, 2 * time.Minute, meter.Settled{Idle: 1}},
		{"after it", []float64{0, 0}, 30 * time.Minute, meter.Settled{Idle: 1, Reclaimed: 1}},
	} {
		p.run(c.d, c.busy...)
		if got := p.settle(); got != c.want {
			t.Fatalf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestAWarningThatWouldComeTooLateComesAtHalfTheTime(t *testing.T) {
	t.Parallel()
	all := usage.Policy{IdleWarn: 7200, IdleReclaim: 0}
	inherit := schema.Account{IdleWarn: schema.Inherit, IdleReclaim: schema.Inherit}
	for name, c := range map[string]struct {
		tenant, project schema.Account
		warn, reclaim   int64
	}{
		"the pool's":                       {inherit, inherit, 7200, 0},
		"the tenant's":                     {schema.Account{IdleWarn: 10, IdleReclaim: 100}, inherit, 10, 100},
		"the project's":                    {schema.Account{IdleWarn: 10, IdleReclaim: 100}, schema.Account{IdleWarn: 20, IdleReclaim: 200}, 20, 200},
		"never, before the tenant's":       {schema.Account{IdleWarn: 10, IdleReclaim: 100}, schema.Account{}, 0, 0},
		"a limit before the pool's notice": {inherit, schema.Account{IdleWarn: schema.Inherit, IdleReclaim: 100}, 50, 100},
		"a limit and no notice":            {inherit, schema.Account{IdleWarn: 0, IdleReclaim: 100}, 50, 100},
	} {
		if warn, reclaim := all.IdleLimits(c.tenant, c.project); warn != c.warn || reclaim != c.reclaim {
			t.Errorf("%s: warned after %d, stopped after %d; want %d and %d", name, warn, reclaim, c.warn, c.reclaim)
		}
	}
}

func TestEachTimeThatTheClockIsSetThereIsAnAlarm(t *testing.T) {
	t.Parallel()
	st := storetest.Open(t)
	var mu sync.Mutex
	wall, passed := time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC), time.Duration(0)
	var reads int
	read := make(chan int, 1000)
	clock := func() (time.Time, time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		reads++
		wall, passed = wall.Add(10*time.Second), passed+10*time.Second
		switch reads {
		case 3:
			wall = wall.Add(time.Hour)
		case 5:
			wall = wall.Add(-2 * time.Hour)
		case 7:
			wall = wall.Add(500 * time.Millisecond) // as a slewing NTP client does
		}
		read <- reads
		return wall, passed
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- meter.WatchClock(ctx, st, time.Millisecond, clock) }()
	for n := range read {
		if n == 9 {
			break
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	found, err := st.Findings(context.Background(), 10)
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, f := range found {
		if f.Kind != usage.FoundClock {
			t.Errorf("found %+v", f)
		}
		said = append(said, f.Text)
	}
	if all := strings.Join(said, "; "); len(found) != 2 || !strings.Contains(all, "by 1h, from about 2026-03-01T08:00:30") || !strings.Contains(all, "by -2h") {
		t.Fatalf("found %q", said)
	}
}
