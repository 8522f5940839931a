package api_test

import (
	"net/http"
	"testing"
	"time"

	"gpupool/api/auth"
	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

func TestARepairIsClaimedGivenUpAndItsEvidenceIsABundle(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	v := storetest.Available(t, p.store, 1, model, 8)
	ctx := t.Context()
	tech := p.tokens[auth.Technician]
	other := p.token(store.NewToken{Name: "other", Role: schema.RoleTechnician})
	accs, err := p.store.Accelerators(ctx, store.AcceleratorFilter{Server: v.ID})
	p.must(err)
	p.must(p.store.ReportFault(ctx, v.ID, schema.Fault{Accelerator: accs[2].ID, Source: "agent", Kind: "xid", Code: "64", Severity: schema.SeverityCritical, Text: "no spare row", Dedupe: "d1", At: p.store.Now()}))
	faults, err := p.store.Faults(ctx, v.ID)
	p.must(err)
	_, err = p.store.Judge(ctx, faults[0].ID, store.Verdict{Rule: "xid-64", Action: schema.ActionRepair, Why: "no spare row"})
	p.must(err)
	at := "/v1/repairs/" + v.Name
	wantProblem(t, p.send(tech, "POST", at+"/actions/claim", ""), schema.CodeConflict, "", "draining")
	wantProblem(t, p.send(tech, "POST", at+"/actions/drain-now", `{"reason":"x"}`), schema.CodeForbidden, "")
	wantProblem(t, p.op("POST", at+"/actions/drain-now", `{"reason":" "}`), schema.CodeInvalid, "reason")
	if r := read[schema.Repair](t, p.op("POST", at+"/actions/drain-now", `{"reason":"now"}`), http.StatusAccepted); r.State != schema.RepairDraining || r.Owner != "gpupool" {
		t.Fatalf("drained now: %+v", r)
	}
	r, _, err := p.store.OpenRepair(ctx, v.ID)
	p.must(err)
	_, err = p.store.RepairDrained(ctx, r.ID, store.Until{Technician: time.Hour})
	p.must(err)
	if r := read[schema.Repair](t, p.send(tech, "GET", at, ""), http.StatusOK); r.Owner != "technicians" || r.NextStep == "" || r.Deadline.Sub(p.store.Now()) > time.Hour {
		t.Fatalf("waiting: %+v", r)
	}
	mine := read[schema.Repair](t, p.send(tech, "POST", at+"/actions/claim", ""), http.StatusOK)
	if mine.ClaimedBy == "" || mine.Owner != mine.ClaimedBy || mine.ClaimedAt == 0 {
		t.Fatalf("claimed: %+v", mine)
	}
	wantProblem(t, p.send(other, "POST", at+"/actions/claim", "{}"), schema.CodeConflict, "", mine.ClaimedBy)
	if r := read[schema.Repair](t, p.send(other, "POST", at+"/actions/claim", `{"force":true}`), http.StatusOK); r.ClaimedBy == mine.ClaimedBy || r.ClaimedAt != mine.ClaimedAt {
		t.Fatalf("taken over: %+v", r)
	}
	e := read[contract.RepairEvidence](t, p.send(tech, "GET", at+"/evidence", ""), http.StatusOK)
	if e.Repair.ID != r.ID || len(e.Faults) != 1 || len(e.Devices) != 8 || len(e.Events) == 0 {
		t.Fatalf("the bundle has %d faults, %d devices, %d events", len(e.Faults), len(e.Devices), len(e.Events))
	}
	lemons := read[contract.LemonList](t, p.send(tech, "GET", "/v1/health/lemons", ""), http.StatusOK)
	if len(lemons.Items) != 2 || lemons.Items[0].Score != 4 { // the device, and its slot
		t.Fatalf("lemons: %+v", lemons.Items)
	}
	times := read[schema.HealthTimes](t, p.send(tech, "GET", "/v1/health/times", ""), http.StatusOK)
	if times.Repairs != 1 || times.MTBFHours <= 0 || len(times.LostByCause) != 1 || times.LostByCause[0].Rule != "xid-64" {
		t.Fatalf("times: %+v", times)
	}
	hour := p.store.Now() - p.store.Now()%3_600_000
	if err := p.store.PutDeviceHours(t.Context(), []store.DeviceHour{{Hour: hour, Identity: accs[0].Identity, Writer: "w", Server: r.Server, Metrics: map[string]store.MetricSum{"power_watts": {Min: 90, Max: 110, Sum: 300, N: 3, Last: 100, LastAt: hour}}}}); err != nil {
		t.Fatal(err)
	}
	hours := read[contract.MetricHourList](t, p.send(tech, "GET", "/v1/health/history?server="+r.Server+"&device="+accs[0].Slot, ""), http.StatusOK)
	if len(hours.Items) != 1 || hours.Items[0].Mean != 100 || hours.Items[0].Device != accs[0].ID {
		t.Fatalf("history: %+v", hours.Items)
	}
	for since, want := range map[schema.Instant]int{hour: 1, hour + 3_600_000: 0} {
		if l := read[contract.MetricHourList](t, p.send(tech, "GET", "/v1/health/history?server="+r.Server+"&since="+since.String(), ""), http.StatusOK); len(l.Items) != want {
			t.Errorf("since %s: %d hours, not %d", since, len(l.Items), want)
		}
	}
	wantProblem(t, p.send(tech, "GET", "/v1/health/history?server=nothing", ""), schema.CodeNotFound, "")
	out := read[schema.RMA](t, p.send(tech, "POST", "/v1/rmas", `{"serial_out":"DEAD-1"}`), http.StatusCreated)
	wantProblem(t, p.send(tech, "POST", "/v1/rmas", `{"serial_out":"`+accs[0].Serial+`"}`), schema.CodeConflict, "")
	wantProblem(t, p.send(tech, "PATCH", "/v1/rmas/DEAD-1", `{"state":"shipped"}`), schema.CodeInvalid, "vendor_case")
	if m := read[schema.RMA](t, p.send(tech, "PATCH", "/v1/rmas/DEAD-1", `{"state":"shipped","vendor_case":"C-1"}`), http.StatusOK); m.ID != out.ID || m.ShippedAt == 0 {
		t.Fatalf("shipped: %+v", m)
	}
}

func TestSilencesAndBreakersAreOperatorsToMakeAndEnd(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	tech := p.tokens[auth.Technician]
	until := p.store.Now().Add(time.Hour).String()
	body := `{"rule":"xid-79","reason":"known","until":"` + until + `"}`
	wantProblem(t, p.send(tech, "POST", "/v1/health/silences", body), schema.CodeForbidden, "")
	wantProblem(t, p.op("POST", "/v1/health/silences", `{"reason":"all","until":"`+until+`"}`), schema.CodeInvalid, "rule")
	x := read[schema.Silence](t, p.op("POST", "/v1/health/silences", body), http.StatusCreated)
	if l := read[contract.SilenceList](t, p.send(tech, "GET", "/v1/health/silences", ""), http.StatusOK); len(l.Items) != 1 {
		t.Fatalf("in force: %+v", l.Items)
	}
	if a := p.op("DELETE", "/v1/health/silences/"+x.ID, ""); a.status != http.StatusNoContent {
		t.Fatalf("ended: %d %s", a.status, a.body)
	}
	if l := read[contract.SilenceList](t, p.send(tech, "GET", "/v1/health/silences", ""), http.StatusOK); len(l.Items) != 0 {
		t.Fatalf("still in force: %+v", l.Items)
	}
	if l := read[contract.BreakerList](t, p.send(tech, "GET", "/v1/health/breakers", ""), http.StatusOK); len(l.Items) != 0 {
		t.Fatalf("breakers: %+v", l.Items)
	}
	wantProblem(t, p.op("POST", "/v1/health/breakers/brk_none/actions/reset", `{"reason":"x"}`), schema.CodeNotFound, "")
	if l := read[contract.HealthRuleList](t, p.send(tech, "GET", "/v1/health/rules", ""), http.StatusOK); len(l.Items) != 1 {
		t.Fatalf("rules: %+v", l.Items)
	}
	if r := read[schema.HealthRule](t, p.op("PUT", "/v1/health/rules/xid-79", `{"mode":"observe","reason":"on trial"}`), http.StatusOK); r.Mode != "observe" {
		t.Fatalf("changed: %+v", r)
	}
	wantProblem(t, p.op("POST", "/v1/health/replay", `{"change":{"mode":"off","reason":"x"}}`), schema.CodeInvalid, "rule")
	if r := read[schema.Replay](t, p.op("POST", "/v1/health/replay", `{"rule":"xid-79","change":{"action":"repair","reason":"x"}}`), http.StatusOK); len(r.Differ) != 1 || r.Differ[0].Verdict != schema.ActionRepair {
		t.Fatalf("replayed: %+v", r)
	}
}
