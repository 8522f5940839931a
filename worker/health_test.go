package worker

import (
	"fmt"
	"testing"
	"time"

	"gpupool/activities/health"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

func TestAReplaySaysWhatAChangedRuleWouldHaveFoundAndChangesNothing(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := storetest.Open(t)
	v := storetest.Available(t, s, 1, "nvidia-h100-80gb", 8)
	devices, err := s.Accelerators(ctx, store.AcceleratorFilter{Server: v.ID})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		f := schema.Fault{Accelerator: devices[0].ID, Source: "agent", Kind: "xid", Code: "31", Severity: schema.SeverityInfo, Text: "page fault", At: s.Now(), Dedupe: fmt.Sprint(i)}
		if err := s.ReportFault(ctx, v.ID, f); err != nil {
			t.Fatal(err)
		}
	}
	all, err := s.Faults(ctx, v.ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if err := health.Judge(ctx, s, f.ID); err != nil {
			t.Fatal(err)
		}
	}
	h := healthRules{s}
	since := s.Now().Add(-time.Hour)
	as, err := h.Replay(ctx, since, nil)
	if err != nil || as.Faults != 3 || len(as.Differ) != 0 || len(as.Actions) != 1 || as.Actions[0].Rule != "xid-31" {
		t.Fatalf("as they are: %+v %v", as, err)
	}
	tried, err := h.Replay(ctx, since, &schema.RuleChange{Rule: "xid-31-again", Mode: "enforce", Count: 3})
	if err != nil || len(tried.Differ) != 1 || tried.Differ[0].Verdict != schema.ActionCordon || tried.Differ[0].Then != "observe" ||
		len(tried.Before) != 1 || tried.Before[0] != as.Actions[0] || len(tried.Actions) != 2 || tried.Actions[1] != (schema.ActionCount{Rule: "xid-31-again", Action: schema.ActionCordon, Faults: 1, Servers: 1}) {
		t.Fatalf("tried: %+v %v", tried, err)
	}
	if _, err := h.Replay(ctx, since, &schema.RuleChange{Rule: "none"}); !schema.Is(err, schema.CodeNotFound) {
		t.Fatalf("a rule that is not there: %v", err)
	}
	if c, err := s.RuleChanges(ctx); err != nil || len(c) != 0 {
		t.Fatalf("the replay kept %+v, %v", c, err)
	}
	r, err := h.ChangeRule(ctx, schema.RuleChange{Rule: "xid-31-again", Mode: "enforce", Reason: "tried"}, "ann")
	if err != nil || r.Mode != "enforce" || r.Changed == "" {
		t.Fatalf("changed: %+v %v", r, err)
	}
	list, err := h.Rules(ctx)
	if err != nil || len(list) < 60 {
		t.Fatalf("%d rules, %v", len(list), err)
	}
	for _, x := range list {
		if x.Name == "xid-31" && x.Met != 3 {
			t.Errorf("xid-31 was met %d times", x.Met)
		}
	}
}
