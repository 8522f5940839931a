package store_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
	"gpupool/schema/usage"
)

// TestAnyHistorySumsToTheReference: submits, starts, preemptions, losses, failures, retries, duplicates, cordons, restarts
// and a clock that is set back and forth. The sums are exact to the millisecond.
func TestAnyHistorySumsToTheReference(t *testing.T) {
	t.Parallel()
	seeds := 6
	if testing.Short() {
		seeds = 3
	}
	base := uint64(time.Now().UnixNano())
	for i := range seeds {
		seed := base + uint64(i)
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			b := newBooks(t, seed)
			defer func() { b.must(b.Close()) }()
			for range 150 {
				b.step()
			}
			b.check()
			for _, j := range b.in("starting", "running", "stopping") {
				b.end(j)
			}
			if live, err := b.LiveUsage(t.Context(), "", "", ""); err != nil || len(live) != 0 {
				t.Fatalf("after the end %+v is live (%v)", live, err)
			}
			b.check()
		})
	}
}

func TestAnyHistorySumsToTheReferenceOnPostgreSQL(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	b := newBooksOn(t, seed, store.Config{Driver: "postgres", DSN: storetest.Database(t, storetest.Postgres(t)), MaxConnections: 4})
	defer func() { b.must(b.Close()) }()
	for range 150 {
		b.step()
	}
	b.check()
	_, err := b.SetBudget(t.Context(), "test", store.Budget{Tenant: "blue", Amount: 1000})
	b.must(err)
	if _, err = b.WarnBudgets(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.FourCounts(t.Context(), store.CountsQuery{By: "spec", Periods: []usage.Period{{Interval: usage.Interval{Start: 0, End: schema.Instant(b.newest)}}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.DailyDemand(t.Context(), 0, schema.Instant(b.newest)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Trace(t.Context(), usage.Interval{Start: 0, End: schema.Instant(b.newest)}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.IdleJobs(t.Context(), usage.Policy{IdleWarn: 1}); err != nil {
		t.Fatal(err)
	}
}

// Case 21: one job of four attempts with gaps, ends told more than once.
func TestARequeuedJobIsTheSumOfItsAttempts(t *testing.T) {
	t.Parallel()
	b := newBooks(t, 21)
	defer func() { b.must(b.Close()) }()
	ctx := t.Context()
	_, err := b.CreateSpec(ctx, "test", store.NewSpec{Name: "g1", Model: h100, Accelerators: 1})
	b.must(err)
	job, _, err := b.SubmitJob(ctx, "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "g1", Nodes: 1, Command: []string{"true"}})
	b.must(err)
	zero := 0
	lengths := []int64{3889, 4473, 6122, 2153}
	for i, seconds := range lengths {
		b.now.Add(30_000)
		b.cycle++
		place := store.Place{Server: b.servers[0].ID, Accelerators: b.accs[b.servers[0].ID][:1]}
		no, err := b.CommitCycle(ctx, "eu", b.epoch, store.Cycle{Number: b.cycle, Starts: []store.Start{{Job: job.ID, Attempt: i + 1, Places: []store.Place{place}}}})
		b.must(err)
		if len(no) > 0 {
			t.Fatal(no)
		}
		b.must(b.DispatchAttempt(ctx, job.ID, i+1))
		_, err = b.ClaimTasks(ctx, place.Server)
		b.must(err)
		j := &booked{Job: schema.Job{ID: job.ID, Attempt: i + 1}, place: place}
		b.report(j, agentproto.TaskReport{Seq: 1, State: schema.TaskRunning})
		b.now.Add(seconds * 1000)
		end := agentproto.TaskReport{Seq: 9, State: schema.TaskDone, ExitCode: &zero, NoneLeft: true}
		if i < len(lengths)-1 {
			for range i + 1 { // asked for again while it is being stopped
				b.must(b.RequestStop(ctx, job.ID, i+1, schema.AttemptPreempted, "test", "because"))
			}
			end = agentproto.TaskReport{Seq: 9, State: schema.TaskFailed, Signal: "TERM", NoneLeft: true}
		}
		for range i + 1 {
			b.report(j, end)
			_, err := b.SettleAttempt(ctx, job.ID, i+1, nil)
			b.must(err)
			live, err := b.LiveUsage(ctx, "", "", "")
			b.must(err)
			if len(live) != 0 {
				t.Fatalf("when attempt %d has ended %+v is live", i+1, live)
			}
		}
	}
	rows, err := b.Usage(ctx, store.UsageQuery{By: []string{"job"}, Live: true})
	b.must(err)
	if len(rows) != 1 || rows[0].Used() != 16_637_000 || rows[0].Charged() != 16_637_000 {
		t.Fatalf("%+v, want 16,637 GPU-seconds of one job", rows)
	}
	ledger, err := b.Ledger(ctx, job.ID)
	b.must(err)
	if len(ledger) != 4 || ledger[0].Start-ledger[0].Queued != 30_000 || ledger[3].Start-ledger[3].Queued != 30_000 {
		t.Fatalf("%+v, want four attempts that each waited for 30 s", ledger)
	}
	live, err := b.LiveUsage(ctx, "", "", "")
	b.must(err)
	if len(live) != 0 {
		t.Fatalf("after the end %+v is live", live)
	}
	rowsOf := map[time.Duration]int{}
	for _, span := range []time.Duration{time.Hour, 24 * time.Hour} { // what the allocator remembers it by, however finely
		past, err := b.PastUsage(ctx, "eu", 0, span)
		b.must(err)
		rowsOf[span] = len(past)
		var sum int64
		for _, u := range past {
			sum += u.Milliseconds
			if middle := u.At.Time().UTC(); middle.Truncate(span) != middle.Add(-span/2) || u.Tenant != "blue" || u.Model != h100 {
				t.Errorf("%+v: want blue's, at the middle of a span of %s", u, span)
			}
		}
		if sum != 16_637_000 {
			t.Errorf("by spans of %s it is %d ms, want 16,637 GPU-seconds", span, sum)
		}
	}
	if rowsOf[time.Hour] < 5 || rowsOf[24*time.Hour] > 2 {
		t.Errorf("%v rows by span; want one for each hour, or each day", rowsOf)
	}
}

// A queue that doesn't move is in the counts, by its length and by who has waited for long.
func TestWhatWaitsStillIsCounted(t *testing.T) {
	t.Parallel()
	b := newBooks(t, 3)
	defer func() { b.must(b.Close()) }()
	ctx := t.Context()
	submit := func(tenant string) string {
		j, _, err := b.SubmitJob(ctx, "test", "", "", store.NewJob{Tenant: tenant, Project: "main", Spec: "h100x2", Nodes: 1, Command: []string{"true"}})
		b.must(err)
		return j.ID
	}
	submit("blue")
	held := submit("blue")
	b.must(b.HoldJob(ctx, held, "test"))
	b.now.Add(usage.LongWait)
	submit("blue")
	submit("red")
	now := schema.Instant(b.now.Load())
	counts := func(to schema.Instant) map[string]usage.Counts {
		all, err := b.FourCounts(ctx, store.CountsQuery{By: "tenant", Periods: []usage.Period{{Interval: usage.Interval{Start: 0, End: to}}}})
		b.must(err)
		out := map[string]usage.Counts{}
		for _, c := range all {
			out[c.Key] = c
		}
		return out
	}
	if c := counts(now + 1); c["blue"].Waiting != 2 || c["blue"].Overdue != 1 || c["red"].Waiting != 1 || c["red"].Overdue != 0 || c["red"].Capacity.Available() == 0 {
		t.Fatalf("%+v, want two of blue's to wait, one for long, and one of red's", c)
	}
	if c := counts(now - usage.Hour/12); c["blue"].Waiting != 0 {
		t.Fatalf("%+v: of a period that is over nothing waits still", c)
	}
}

// What the zone of the process is changes nothing; a budget warns once at each threshold; a correction is a row.
func TestBudgetsAdjustmentsAndPrices(t *testing.T) {
	t.Parallel()
	b := newBooks(t, 5)
	defer func() { b.must(b.Close()) }()
	ctx := t.Context()
	for range 400 {
		b.step()
	}
	for _, j := range b.in("starting", "running", "stopping") {
		b.end(j)
	}
	var charged int64
	for _, i := range b.ended {
		if i.tenant == "blue" {
			charged += i.charged(0, b.newest+1)
		}
	}
	if charged == 0 {
		t.Fatal("this history charges nothing: choose another seed")
	}
	b.now.Store(b.newest)
	_, err := b.SetBudget(ctx, "test", store.Budget{Tenant: "blue", Amount: charged * 100 / 85, Zone: "Europe/Berlin"})
	b.must(err)
	for range 2 {
		states, err := b.BudgetStates(ctx, "blue")
		b.must(err)
		if len(states) != 1 || states[0].Spent != charged || states[0].Remaining != states[0].Amount-charged || states[0].Committed != 0 {
			t.Fatalf("%+v, want %d spent", states, charged)
		}
	}
	for i, want := range []int{2, 0} { // 50 and 80 per cent of 85
		n, err := b.WarnBudgets(ctx)
		b.must(err)
		if n != want {
			t.Fatalf("round %d warned %d times, want %d", i, n, want)
		}
	}
	before := charged
	for range 2 { // the same key is one correction
		_, err = b.AdjustUsage(ctx, "fin", store.Adjustment{Key: "c1", Tenant: "blue", Project: "main", Spec: "h100x2", GPUMillis: -5_000, Note: "a goodwill"})
		b.must(err)
	}
	if _, err := b.AdjustUsage(ctx, "fin", store.Adjustment{Key: "c1", Tenant: "blue", Project: "main", Spec: "h100x2", GPUMillis: -6_000, Note: "a goodwill"}); !schema.Is(err, schema.CodeReused) {
		t.Fatalf("got %v, want reused", err)
	}
	_, err = b.SetPrice(ctx, "fin", usage.Price{Spec: "h100x2", Currency: "EUR", Micros: 3_600_000})
	b.must(err)
	rows, err := b.Usage(ctx, store.UsageQuery{Tenant: "blue", By: []string{"project"}})
	b.must(err)
	if len(rows) != 1 || rows[0].Charged() != before-5_000 || rows[0].Adjust != -5_000 || rows[0].Cost == nil || *rows[0].Cost != before-5_000 || rows[0].Currency != "EUR" {
		t.Fatalf("%+v, want %d GPU-ms at one millionth each", rows, before-5_000)
	}
	b.closes(rows[0])
	if _, err := b.SetPrice(ctx, "fin", usage.Price{Spec: "h100x2", Currency: "EUR", Micros: 1, From: usage.HourOf(schema.Instant(b.newest))}); !schema.Is(err, schema.CodeInvalid) {
		t.Fatalf("the price of a past hour was changed: %v", err)
	}
}

// closes holds that blue's use, of which all is blue's and of one spec, is told once when its month is closed, and no day before.
func (b *books) closes(blue store.UsageRow) {
	b.t.Helper()
	ctx := b.t.Context()
	told := func(at schema.Instant) []schema.Event {
		b.t.Helper()
		b.now.Store(int64(at))
		_, err := b.TellClosedMonths(ctx)
		b.must(err)
		list, _, err := b.Events(ctx, 0, 100, store.EventFilter{Kinds: []schema.EventKind{schema.EventUsageClosed}, Tenant: "blue"})
		b.must(err)
		return list
	}
	last := schema.Instant(b.newest).Time()
	begin := time.Date(last.Year(), last.Month(), 1, 0, 0, 0, 0, time.UTC)
	closed := begin.AddDate(0, 1, 5)
	before := len(told(schema.At(closed) - 1))
	for range 2 { // asked again
		list := told(schema.At(closed))
		if len(list) != before+1 {
			b.t.Fatalf("%d months of blue are told as closed, want %d", len(list), before+1)
		}
		var m store.ClosedMonth
		b.must(json.Unmarshal(list[len(list)-1].Data, &m))
		if m.Month != begin.Format("2006-01") || m.From != schema.At(begin) || len(m.Projects) == 0 {
			b.t.Fatalf("told is %+v", m)
		}
	}
	var sum int64
	for _, e := range told(schema.At(closed)) {
		var m store.ClosedMonth
		b.must(json.Unmarshal(e.Data, &m))
		parts := int64(0)
		for _, p := range m.Projects {
			parts += p.Charged
		}
		if parts != m.Charged {
			b.t.Errorf("the projects of %s sum to %d, the month is %d", m.Month, parts, m.Charged)
		}
		sum += m.Charged
	}
	if sum != blue.Charged() {
		b.t.Errorf("the closed months charge %d GPU-ms, the ledger %d", sum, blue.Charged())
	}
}

// A lost row, a doubled one and a wrong hourly sum are each found and named.
func TestTheAuditFindsWhatWasTamperedWith(t *testing.T) {
	t.Parallel()
	for kind, tamper := range map[string]string{
		usage.FoundRollup:      "UPDATE usage_hours SET run_ms = run_ms + 1 WHERE run_ms > 0",
		usage.FoundUncharged:   "DROP TRIGGER ledger_no_delete; DELETE FROM ledger WHERE id = (SELECT min(id) FROM ledger WHERE kind = 'usage' AND end_at > start_at)",
		usage.FoundInterval:    "DROP TRIGGER ledger_no_update; UPDATE ledger SET end_at = end_at + 7 WHERE id = (SELECT min(id) FROM ledger WHERE kind = 'usage' AND end_at > start_at)",
		usage.FoundUnheld:      "INSERT INTO ledger (id, kind, job, attempt, accelerator, server, tenant, project, spec, model, region, start_at, running_at, stopping_at, end_at, outcome) SELECT id || '/x', kind, job, attempt, accelerator, server, tenant, project, spec, model, region, start_at, running_at, stopping_at, end_at, outcome FROM ledger WHERE kind = 'usage' AND end_at > start_at LIMIT 1",
		usage.FoundStates:      "UPDATE capacity_spans SET state = 'repair' WHERE accelerator = (SELECT min(accelerator) FROM capacity_spans)",
		usage.FoundStateless:   "DELETE FROM capacity_spans WHERE accelerator = (SELECT min(accelerator) FROM capacity_spans)",
		usage.FoundTwice:       "INSERT INTO allocations (job, attempt, accelerator, server, region, allocated_at, released_at) SELECT job, attempt + 1000, accelerator, server, region, allocated_at, released_at FROM allocations WHERE released_at > allocated_at LIMIT 1",
		usage.FoundUninstalled: "UPDATE events SET at = at WHERE 1 = 0; DROP TRIGGER events_no_delete; DELETE FROM events WHERE kind = 'accelerator.installed' AND subject = (SELECT min(subject) FROM events WHERE kind = 'accelerator.installed')",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newBooks(t, 7)
			defer func() { b.must(b.Close()) }()
			for range 150 {
				b.step()
			}
			b.now.Store(max(b.newest, b.now.Load()) + 2*usage.Hour)
			b.must(b.CatchUpUsage(t.Context()))
			b.must(b.Exec(t.Context(), tamper))
			a, err := b.AuditUsage(t.Context(), usage.Interval{Start: 0, End: schema.Instant(b.now.Load())})
			b.must(err)
			if !slices.ContainsFunc(a.Findings, func(f usage.Finding) bool { return f.Kind == kind && f.Text != "" }) {
				t.Fatalf("%q was not found: %+v", kind, a.Findings)
			}
		})
	}
}

// Days that begin within an hour of UTC share no job, no start and no accelerator time: they sum to the whole.
func TestCountsOfDaysSumToTheWholeInZonesOffByHalfAnHour(t *testing.T) {
	t.Parallel()
	b := newBooks(t, uint64(time.Now().UnixNano()))
	defer func() { b.must(b.Close()) }()
	ctx := t.Context()
	for range 300 {
		b.step()
	}
	// Utilization of all accelerators, known all the time that something is held.
	for len(b.in("running")) == 0 {
		b.step()
	}
	held := b.in("running")[0]
	from := max(b.newest, b.now.Load())
	b.now.Store(from + 3*usage.Hour)
	list, err := b.Accelerators(ctx, store.AcceleratorFilter{Server: held.place.Server})
	b.must(err)
	var samples []store.Sampled
	for _, a := range list {
		if slices.Contains(held.place.Accelerators, a.ID) {
			samples = append(samples, store.Sampled{Identity: a.Identity, Interval: usage.Interval{Start: schema.Instant(from), End: schema.Instant(from + 3*usage.Hour)}, Busy: 0.01})
		}
	}
	b.must(b.AddUtilization(ctx, held.place.Server, samples, 0.05))
	for _, j := range b.in("starting", "running", "stopping") {
		b.end(j)
	}
	whole := usage.Interval{Start: schema.Instant(time.Date(2026, 7, 13, 0, 0, 0, 0, time.UTC).UnixMilli()), End: schema.Instant(b.newest + 1)}
	zone, err := usage.Zone("Asia/Kolkata")
	b.must(err)
	counts := func(every usage.Every) (sum usage.Counts) {
		periods, err := usage.Periods(whole, every, zone)
		b.must(err)
		all, err := b.FourCounts(ctx, store.CountsQuery{Periods: periods})
		b.must(err)
		sum.Jobs, sum.GPU = map[string]int64{}, map[string]int64{}
		for _, c := range all {
			sum.Wait.Attempts += c.Wait.Attempts
			sum.Allocated += c.Allocated
			sum.Known += c.Known
			sum.Idle += c.Idle
			sum.Capacity.Add(c.Capacity)
			for cause, n := range c.Jobs {
				sum.Jobs[cause] += n
			}
			for outcome, n := range c.GPU {
				sum.GPU[outcome] += n
			}
		}
		return sum
	}
	want := counts(usage.EveryNone)
	if want.Known == 0 || len(want.Jobs) == 0 || want.Capacity.Installed == 0 {
		t.Fatalf("%+v: this history shows nothing", want)
	}
	for _, every := range []usage.Every{usage.EveryHour, usage.EveryDay, usage.EveryMonth} {
		got := counts(every)
		// Of utilization, which is kept by the hour, the parts of an hour are rounded.
		if d := got.Known - want.Known; d < -200 || d > 200 {
			t.Errorf("by the %s: %d GPU-ms known, want %d", every, got.Known, want.Known)
		}
		if d := got.Idle - want.Idle; d < -200 || d > 200 {
			t.Errorf("by the %s: %d GPU-ms idle, want %d", every, got.Idle, want.Idle)
		}
		if got.Wait.Attempts != want.Wait.Attempts || got.Allocated != want.Allocated || got.Capacity != want.Capacity || !maps.Equal(got.Jobs, want.Jobs) || !maps.Equal(got.GPU, want.GPU) {
			t.Errorf("by the %s the counts sum to\n%+v, want\n%+v", every, got, want)
		}
	}
}

// zoneEnv makes TestTheZoneOfTheProcessChangesNothing print what it compares.
const zoneEnv = "GPUPOOL_TEST_PRINT_USAGE"

// TestTheZoneOfTheProcessChangesNothing: the same history under processes of other time zones says the same, to the byte.
func TestTheZoneOfTheProcessChangesNothing(t *testing.T) {
	if os.Getenv(zoneEnv) == "" {
		t.Parallel()
		said := map[string]string{}
		for _, tz := range []string{"UTC", "America/New_York", "Pacific/Apia", "Asia/Kolkata"} {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTheZoneOfTheProcessChangesNothing$", "-test.v")
			cmd.Env = append(os.Environ(), "TZ="+tz, zoneEnv+"=1", storetest.PostgresEnv+"=")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("TZ=%s: %v\n%s", tz, err, out)
			}
			for line := range strings.Lines(string(out)) {
				if _, rest, ok := strings.Cut(line, "usage is "); ok {
					said[tz] = rest
				}
			}
			if len(said[tz]) < 500 || said[tz] != said["UTC"] {
				t.Errorf("TZ=%s says\n%s, UTC says\n%s", tz, said[tz], said["UTC"])
			}
		}
		return
	}
	b := newBooks(t, 11)
	defer func() { b.must(b.Close()) }()
	for range 150 {
		b.step()
	}
	b.check()
	zone, err := usage.Zone("Europe/Berlin")
	b.must(err)
	whole := usage.Interval{Start: 1_783_900_000_000, End: schema.Instant(b.newest + 1)}
	days, err := usage.Periods(whole, usage.EveryDay, zone)
	b.must(err)
	rows, err := b.Usage(t.Context(), store.UsageQuery{From: whole.Start, To: whole.End, By: []string{"tenant", "spec", "outcome"}, Live: true, Every: usage.EveryDay, Zone: zone})
	b.must(err)
	counts, err := b.FourCounts(t.Context(), store.CountsQuery{By: "tenant", Periods: days})
	b.must(err)
	out, err := json.Marshal([]any{rows, counts})
	b.must(err)
	t.Logf("usage is %s", out)
}
