package health

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gpupool/activities/health/rules"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

const model = "nvidia-h100-80gb"

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// clock is the test's.
type clock struct{ ms atomic.Int64 }

func newClock() *clock                { c := &clock{}; c.ms.Store(1_700_000_000_000); return c }
func (c *clock) now() time.Time       { return time.UnixMilli(c.ms.Load()) }
func (c *clock) pass(d time.Duration) { c.ms.Add(d.Milliseconds()) }

// report stores evidence on the server's first device and judges it.
func report(t *testing.T, s *store.Store, v schema.Server, kind, code, dedupe string, at schema.Instant) schema.Fault {
	t.Helper()
	devices, err := s.Accelerators(t.Context(), store.AcceleratorFilter{Server: v.ID})
	ok(t, err)
	ok(t, s.ReportFault(t.Context(), v.ID, schema.Fault{Accelerator: devices[0].ID, Source: "agent", Kind: kind, Code: code, Severity: schema.SeverityCritical, Text: kind + " " + code, At: at, Dedupe: dedupe}))
	all, err := s.Faults(t.Context(), v.ID)
	ok(t, err)
	for _, f := range all {
		ok(t, Judge(t.Context(), s, f.ID))
	}
	i := slices.IndexFunc(all, func(f schema.Fault) bool { return f.Dedupe == dedupe })
	if i < 0 {
		t.Fatalf("%s of server %s is not kept: %+v", dedupe, v.Name, all)
	}
	f, err := s.Fault(t.Context(), all[i].ID)
	ok(t, err)
	return f
}

func TestTheSameEventThroughTwoPathsIsOneFaultOneCordonAndOneRepair(t *testing.T) {
	t.Parallel()
	c := newClock()
	s := storetest.OpenAt(t, c.now)
	v := storetest.Available(t, s, 1, model, 8)
	first := report(t, s, v, "xid", "79", "same", s.Now())
	again := report(t, s, v, "xid", "79", "same", s.Now())
	if first.ID != again.ID || first.Verdict != "reset" || first.Repair == "" {
		t.Fatalf("first %+v, again %+v", first, again)
	}
	repairs, err := s.Repairs(t.Context(), store.RepairFilter{Server: v.ID})
	ok(t, err)
	cordons, err := s.Cordons(t.Context(), v.ID)
	ok(t, err)
	if len(repairs) != 1 || len(cordons) != 1 || cordons[0].Owner != schema.CordonFault {
		t.Fatalf("%d repairs and cordons %+v", len(repairs), cordons)
	}
	if v, err := s.Server(t.Context(), v.ID); err != nil || v.Phase != schema.PhaseDraining {
		t.Fatalf("the server is %s, %v", v.Phase, err)
	}
}

func TestAWarningCordonsTheDeviceAndUnknownEvidenceIsOnlyObserved(t *testing.T) {
	t.Parallel()
	s := storetest.Open(t)
	v := storetest.Available(t, s, 1, model, 8)
	before := Unknown.Load()
	if f := report(t, s, v, "xid", "12345", "a", s.Now()); f.Verdict != "observe" {
		t.Fatalf("an unknown code was judged %q", f.Verdict)
	}
	if Unknown.Load() != before+1 {
		t.Fatalf("unknown evidence was counted %d times", Unknown.Load()-before)
	}
	if f := report(t, s, v, "xid", "63", "b", s.Now()); f.Verdict != "cordon" {
		t.Fatalf("a pending remap was judged %q", f.Verdict)
	}
	cordons, err := s.Cordons(t.Context(), v.ID)
	ok(t, err)
	if len(cordons) != 1 || cordons[0].Accelerator == "" {
		t.Fatalf("the cordons are %+v, want one on the device", cordons)
	}
	if v, err := s.Server(t.Context(), v.ID); err != nil || v.Phase != schema.PhaseAvailable {
		t.Fatalf("the server is %s, %v", v.Phase, err)
	}
}

func TestOverTheBlastRadiusNothingIsCordonedUntilAPersonResetsIt(t *testing.T) {
	t.Parallel()
	c := newClock()
	s := storetest.OpenAt(t, c.now)
	var pool []schema.Server
	for n := range 6 {
		pool = append(pool, storetest.Available(t, s, n+1, model, 8))
	}
	verdicts := map[string]int{}
	for i, v := range pool[:5] {
		verdicts[report(t, s, v, "xid", []string{"79", "119", "120", "136", "143"}[i], fmt.Sprint("f", i), s.Now()).Verdict]++
		c.pass(time.Minute)
	}
	if verdicts["reset"] != 2 || verdicts["limited"] != 3 { // a tenth of six, and always two
		t.Fatalf("the verdicts are %v", verdicts)
	}
	open, err := s.Breakers(t.Context(), true)
	ok(t, err)
	if len(open) != 1 || !strings.HasPrefix(open[0].Scope, "model ") {
		t.Fatalf("breakers: %+v", open)
	}
	if b := open[0]; len(b.Held) != 3 || b.Held[0].ServerName != pool[2].Name || b.Held[0].Code != "120" || b.Held[0].Breaker != b.ID {
		t.Fatalf("it holds back %+v", b.Held)
	}
	nodes, err := s.Nodes(t.Context(), []string{pool[1].ID, pool[2].ID})
	ok(t, err)
	for _, n := range nodes {
		if want := n.Server.ID == pool[2].ID; len(n.Held) == 1 != want {
			t.Fatalf("of server %s is held back %+v", n.Server.Name, n.Held)
		}
	}
	if o, err := s.PoolOverview(t.Context()); err != nil || len(o.Breakers) != 1 || len(o.Breakers[0].Held) != 3 {
		t.Fatalf("the overview has %+v, %v", o.Breakers, err)
	}
	// It stays open when time has passed, and lets through what corrupts work.
	c.pass(48 * time.Hour)
	if f := report(t, s, pool[5], "xid", "119", "late", s.Now()); f.Verdict != "limited" {
		t.Fatalf("days later the verdict is %q", f.Verdict)
	}
	if f := report(t, s, pool[5], "xid", "95", "corrupts", s.Now()); f.Verdict != "reset" {
		t.Fatalf("what corrupts work is %q", f.Verdict)
	}
	_, err = s.ResetBreaker(t.Context(), open[0].ID, "", "ann")
	if !schema.Is(err, schema.CodeInvalid) {
		t.Fatalf("a reset without a reason: %v", err)
	}
	_, err = s.ResetBreaker(t.Context(), open[0].ID, "found and mended: a bad driver", "ann")
	ok(t, err)
	all, err := s.Faults(t.Context(), pool[4].ID)
	ok(t, err)
	if all[0].Verdict != "" {
		t.Fatalf("after the reset what was held is %q, not judged anew", all[0].Verdict)
	}
	last, err := s.Breakers(t.Context(), false)
	ok(t, err)
	if len(last) != 1 || len(last[0].Held) != 0 {
		t.Fatalf("a breaker that was reset holds back %+v", last)
	}
	if held, err := s.HeldBy(t.Context(), open[0].ID); err != nil || len(held) != 3+1 {
		t.Fatalf("it held back faults of %v, %v", held, err)
	}
}

// A person who resets a breaker has accepted what is out: as many go out once more as the limit grants, though the first are
// out still, and what is beyond opens the next breaker.
func TestAResetGrantsTheLimitOnceMore(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]struct {
		of    func(n int) string // the model of the n-th server
		scope string
		most  int // that may be out
	}{
		"of a model": {func(int) string { return model }, "model ", 2}, // a tenth of eight, and always two; then the rack's is reached
		"of a rack":  {func(n int) string { return fmt.Sprint("nvidia-m", n) }, "rack ", 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClock()
			s := storetest.OpenAt(t, c.now)
			var pool []schema.Server
			for n := range 8 {
				pool = append(pool, storetest.Available(t, s, n+1, limit.of(n), 8))
			}
			out := func() int {
				n := 0
				for i, v := range pool {
					f := report(t, s, v, "xid", []string{"79", "119", "120", "136", "143", "46", "62", "109"}[i], fmt.Sprint("f", i), s.Now())
					if f.Verdict == "reset" {
						n++
					}
					c.pass(time.Minute)
				}
				return n
			}
			if n := out(); n != limit.most {
				t.Fatalf("%d of 8 went out, want %d", n, limit.most)
			}
			open, err := s.Breakers(t.Context(), true)
			ok(t, err)
			if held := len(pool) - limit.most; len(open) != 1 || !strings.HasPrefix(open[0].Scope, limit.scope) || len(open[0].Held) != held {
				t.Fatalf("open: %+v, want one %sthat holds back %d", open, limit.scope, held)
			}
			_, err = s.ResetBreaker(t.Context(), open[0].ID, "the hardware does fail", "ann")
			ok(t, err)
			c.pass(time.Minute)
			if n := out(); n != 2*limit.most {
				t.Fatalf("after the reset %d of 8 are out, want %d", n, 2*limit.most)
			}
			again, err := s.Breakers(t.Context(), true)
			ok(t, err)
			if left := len(pool) - 2*limit.most; left > 0 && (len(again) != 1 || again[0].ID == open[0].ID || len(again[0].Held) != left) || left == 0 && len(again) != 0 {
				t.Fatalf("open then: %+v, want another that holds back %d", again, left)
			}
		})
	}
}

func TestTheTimeBetweenRepairsCountsFromWhenAServerJoined(t *testing.T) {
	t.Parallel()
	c := newClock()
	s := storetest.OpenAt(t, c.now)
	since := s.Now()
	c.pass(29 * 24 * time.Hour)
	v := storetest.Available(t, s, 1, model, 8)
	storetest.Available(t, s, 2, model, 8)
	c.pass(3 * time.Hour)
	report(t, s, v, "xid", "79", "a", s.Now())
	times, err := s.HealthTimes(t.Context(), since)
	ok(t, err)
	if times.Repairs != 1 || times.Returned != 0 || times.MTBFHours != 6 {
		t.Fatalf("of two servers in the pool for three hours: %+v", times)
	}
}

func TestTheSameCodeOnManyServersAtOnceIsHeldAsSuspectSoftware(t *testing.T) {
	t.Parallel()
	c := newClock()
	s := storetest.OpenAt(t, c.now)
	var last schema.Fault
	for n := range 3 {
		last = report(t, s, storetest.Available(t, s, n+1, fmt.Sprint("nvidia-m", n), 8), "xid", "119", fmt.Sprint("f", n), s.Now())
		c.pass(time.Minute)
	}
	open, err := s.Breakers(t.Context(), true)
	ok(t, err)
	if last.Verdict != "limited" || len(open) != 1 || open[0].Scope != "code xid/119" {
		t.Fatalf("the third is %q; breakers %+v", last.Verdict, open)
	}
}

func TestARackKeepsHalfOfItsServers(t *testing.T) {
	t.Parallel()
	s := storetest.Open(t)
	verdicts := map[string]int{}
	for n := range 4 { // storetest puts servers into one rack
		storetest.Available(t, s, n+1, fmt.Sprint("nvidia-m", n), 8)
	}
	all, err := s.Servers(t.Context(), store.ServerFilter{})
	ok(t, err)
	for i, v := range all {
		verdicts[report(t, s, v, "xid", []string{"79", "119", "120", "136"}[i], fmt.Sprint("f", i), s.Now()).Verdict]++
	}
	if verdicts["reset"] != 2 || verdicts["limited"] != 2 {
		t.Fatalf("the verdicts are %v", verdicts)
	}
}

func TestASilencedFaultIsOnlyObservedUntilTheSilenceEnds(t *testing.T) {
	t.Parallel()
	c := newClock()
	s := storetest.OpenAt(t, c.now)
	v := storetest.Available(t, s, 1, model, 8)
	for _, bad := range []store.Silence{{Reason: "x", Until: s.Now().Add(time.Hour)}, {Rule: "xid-79", Until: s.Now().Add(time.Hour)},
		{Rule: "xid-79", Reason: "x"}, {Rule: "xid-79", Reason: "x", Until: s.Now().Add(60 * 24 * time.Hour)}} {
		if _, err := s.Silence(t.Context(), bad, "ann"); !schema.Is(err, schema.CodeInvalid) {
			t.Errorf("%+v was answered %v", bad, err)
		}
	}
	_, err := s.Silence(t.Context(), store.Silence{Rule: "xid-79", Server: v.Name, Reason: "known", Until: s.Now().Add(time.Hour)}, "ann")
	ok(t, err)
	if f := report(t, s, v, "xid", "79", "a", s.Now()); f.Verdict != "silenced" || f.Rule != "xid-79" {
		t.Fatalf("within the silence: %+v", f)
	}
	c.pass(2 * time.Hour)
	if f := report(t, s, v, "xid", "79", "b", s.Now()); f.Verdict != "reset" {
		t.Fatalf("after the silence: %+v", f)
	}
}

func TestAnOperatorsChangeOfARuleIsInForceAtOnce(t *testing.T) {
	t.Parallel()
	s := storetest.Open(t)
	v := storetest.Available(t, s, 1, model, 8)
	for _, bad := range []rules.Change{{Rule: "nothing"}, {Rule: "xid-79", Mode: "perhaps"}, {Rule: "xid-79", Cure: "prayer"}, {Rule: "xid-79", Cure: "technician"}, {Rule: "thermal", Count: 3}, {Rule: "xid-94-again", Within: 100 * 24 * time.Hour}} {
		if _, err := rules.Check(rules.Table, bad); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
	ok(t, s.ChangeRule(t.Context(), store.RuleChange{Rule: "xid-79", Mode: "observe", Reason: "on trial"}, "ann"))
	if f := report(t, s, v, "xid", "79", "a", s.Now()); f.Verdict != "observe" {
		t.Fatalf("a rule on trial acted: %+v", f)
	}
	ok(t, s.ChangeRule(t.Context(), store.RuleChange{Rule: "xid-79", Reason: "taken back"}, "ann"))
	if left, err := s.RuleChanges(t.Context()); err != nil || len(left) != 0 {
		t.Fatalf("a change of nothing left %+v, %v", left, err)
	}
}

func TestASilentServerIsReportedOnceForEachSilence(t *testing.T) {
	t.Parallel()
	c := newClock()
	s := storetest.OpenAt(t, c.now)
	quiet := storetest.Available(t, s, 1, model, 8)
	c.pass(time.Hour)
	for n := range 3 {
		storetest.Available(t, s, n+2, model, 8)
	}
	for range 3 {
		ok(t, reportSilent(t.Context(), s, time.Minute))
	}
	all, err := s.Faults(t.Context(), "")
	ok(t, err)
	if len(all) != 1 || all[0].Server != quiet.ID || all[0].Kind != "agent-silent" || all[0].Severity != schema.SeverityCritical {
		t.Fatalf("the faults are %+v", all)
	}
}

func TestWhenMostAreSilentThePlatformIsTheLikelierCause(t *testing.T) {
	t.Parallel()
	c := newClock()
	s := storetest.OpenAt(t, c.now)
	for n := range 3 {
		storetest.Available(t, s, n+1, model, 8)
	}
	c.pass(time.Hour)
	ok(t, reportSilent(t.Context(), s, time.Minute))
	if all, err := s.Faults(t.Context(), ""); err != nil || len(all) != 0 {
		t.Fatalf("servers were blamed: %+v %v", all, err)
	}
}
