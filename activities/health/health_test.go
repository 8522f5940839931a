package health

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

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
	f, err := s.Fault(t.Context(), all[0].ID)
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
	if first.ID != again.ID || first.Verdict != "repair" || first.Repair == "" {
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

func TestOverTheBlastRadiusNothingIsCordoned(t *testing.T) {
	t.Parallel()
	s := storetest.Open(t)
	var pool []schema.Server
	for n := range 6 {
		pool = append(pool, storetest.Available(t, s, n+1, model, 8))
	}
	verdicts := map[string]int{}
	for i, v := range pool {
		verdicts[report(t, s, v, "xid", "79", fmt.Sprint("f", i), s.Now()).Verdict]++
	}
	if verdicts["repair"] != 2 || verdicts["limited"] != 4 { // a third of six
		t.Fatalf("the verdicts are %v", verdicts)
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
