package api_test

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpupool/api/auth"
	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store/storetest"
	"gpupool/schema/usage"
)

// One job's time, priced, corrected, budgeted, stated, exported and audited: every face shows the same number.
func TestEveryFaceOfUsageShowsTheSameTime(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	v := storetest.Available(t, p.store, 1, model, 8)
	read[usage.Price](t, p.op("PUT", "/v1/prices", `{"spec":"h100x8","currency":"EUR","micros_per_hour":3600000000}`), http.StatusOK) // one thousandth of a euro a GPU-ms
	j := p.submit(aJob)
	p.start(j.Id, 1, v)
	live := read[contract.LiveUsageList](t, p.member("GET", "/v1/usage/live", ""), http.StatusOK)
	if len(live.Items) != 1 || live.Items[0].GpuHoursPerHour != 8 || live.Items[0].CostMicrosPerHour == nil || *live.Items[0].CostMicrosPerHour != 8*3_600_000_000 {
		t.Fatalf("%+v", live)
	}
	p.must(p.store.RequestStop(t.Context(), j.Id, 1, schema.AttemptCancelled, "test", "enough"))
	_, err := p.store.SettleAttempt(t.Context(), j.Id, 1, nil)
	p.must(err)
	row := read[schema.LedgerRow](t, p.op("POST", "/v1/usage/adjustments", `{"key":"extra","tenant":"acme","job":"`+j.Id+`","gpu_ms":7200000,"note":"by hand"}`), http.StatusCreated)
	if row.Amount != 7_200_000 || row.Spec != "h100x8" {
		t.Fatalf("%+v", row)
	}
	u := read[contract.Usage](t, p.member("GET", "/v1/usage?by=spec", ""), http.StatusOK)
	if len(u.Items) != 1 || u.Items[0].AdjustmentGpuMs != 7_200_000 || u.Items[0].GpuMs != u.Items[0].UsedGpuMs+7_200_000 || u.Items[0].CostMicros == nil || *u.Items[0].CostMicros != u.TotalGpuMs*1000 {
		t.Fatalf("%+v", u)
	}
	month := time.Now().UTC().Format("2006-01")
	page := p.member("GET", "/v1/usage/statement?month="+month, "")
	want := fmt.Sprintf("%.2f EUR", float64(u.TotalGpuMs)/1000)
	if page.status != http.StatusOK || !strings.Contains(string(page.body), want) || !strings.Contains(string(page.body), "by hand") {
		t.Fatalf("%d, want %s in\n%s", page.status, want, page.body)
	}
	focus := p.member("GET", "/v1/usage/focus?month="+month, "")
	lines := strings.Split(strings.TrimSpace(string(focus.body)), "\n")
	if focus.status != http.StatusOK || len(lines) < 2 || !strings.HasPrefix(lines[0], "BilledCost,BillingAccountId") || !strings.Contains(lines[1], "GPU-hours of h100x8") {
		t.Fatalf("%d %s", focus.status, focus.body)
	}
	// What FOCUS 1.0 asks of every row (focus.finops.org), and no sum of a column is another than the bill's.
	table, err := csv.NewReader(bytes.NewReader(focus.body)).ReadAll()
	p.must(err)
	for _, column := range []string{"BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd",
		"ChargePeriodStart", "ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "ServiceCategory", "ServiceName"} {
		i := slices.Index(table[0], column)
		if i < 0 {
			t.Errorf("FOCUS asks for the column %s", column)
			continue
		}
		sum := 0.0
		for _, row := range table[1:] {
			if row[i] == "" && column != "ChargeClass" { // null where it corrects nothing
				t.Errorf("%s is empty in %v", column, row)
			}
			if strings.HasSuffix(column, "Cost") {
				v, err := strconv.ParseFloat(row[i], 64)
				p.must(err)
				sum += v
			}
		}
		if strings.HasSuffix(column, "Cost") && math.Abs(sum-float64(u.TotalGpuMs)/1000) > 1e-5 {
			t.Errorf("%s sums to %f, want %f", column, sum, float64(u.TotalGpuMs)/1000)
		}
	}
	// Each row is one unit price times its quantity; what was used and what was corrected are rows of their own.
	column := func(row []string, name string) string { return row[slices.Index(table[0], name)] }
	categories := map[string]int{}
	for _, row := range table[1:] {
		number := func(name string) float64 {
			v, err := strconv.ParseFloat(column(row, name), 64)
			p.must(err)
			return v
		}
		category := column(row, "ChargeCategory")
		categories[category]++
		if cost := number("ListUnitPrice") * number("PricingQuantity"); math.Abs(cost-number("ListCost")) > 1e-6 || number("ContractedUnitPrice") != 3600 {
			t.Errorf("%v: the price times the quantity is %f", row, cost)
		}
		if correction := category == "Adjustment"; correction != (column(row, "ChargeClass") == "Correction") || correction != (column(row, "ConsumedQuantity") == "") || column(row, "SkuPriceId") != "h100x8" {
			t.Errorf("%v is not as a row of its category is", row)
		}
	}
	if len(categories) != 2 || categories["Adjustment"] != 1 || categories["Usage"] == 0 {
		t.Errorf("rows by category %v, want those of use and one correction", categories)
	}
	parts := read[contract.Usage](t, p.member("GET", "/v1/usage?by=spec&parts=true", ""), http.StatusOK)
	if r := parts.Items[0]; r.WaitedMs == nil || r.KnownGpuMs == nil || *r.KnownGpuMs != 0 || r.IdleGpuMs == nil || r.LaunchGpuMs+r.RunningGpuMs+r.DrainGpuMs != r.UsedGpuMs {
		t.Fatalf("%+v", parts)
	}
	if r := read[contract.Usage](t, p.member("GET", "/v1/usage?by=server&parts=true", ""), http.StatusOK).Items[0]; r.WaitedMs != nil || r.IdleGpuMs != nil {
		t.Fatalf("%+v: a wait is at no server", r)
	}
	trace := p.op("GET", "/v1/usage/trace", "")
	if lines := strings.Split(strings.TrimSpace(string(trace.body)), "\n"); len(lines) != 2 || !strings.HasPrefix(lines[1], j.Id+",acme,") {
		t.Fatalf("%d %s", trace.status, trace.body)
	}
	audit := read[contract.Audit](t, p.op("GET", "/v1/usage/audit", ""), http.StatusOK)
	if len(audit.Findings) != 0 || audit.Accelerators != 8 || audit.LedgerGpuMs != u.Items[0].UsedGpuMs || audit.EventsGpuMs != audit.LedgerGpuMs || audit.Balance.Parts() != audit.Balance.Installed {
		t.Fatalf("%+v", audit)
	}
	p.submit(aJob)
	report := read[contract.Report](t, p.op("GET", "/v1/report?by=tenant", ""), http.StatusOK)
	if len(report.Items) != 1 || report.Items[0].AllocatedShare == nil || report.Items[0].Verdict == "" || report.Items[0].Wait.Attempts != 1 || report.Items[0].Waiting != 1 || report.Items[0].Overdue != 0 || report.Items[0].Jobs["cancelled"] != 1 || *report.Items[0].UnknownShare != 1 {
		t.Fatalf("%+v", report)
	}
	if report.Items[0].WaitedMs != nil {
		t.Fatalf("%+v: idle accelerators are for any tenant", report)
	}
	for by, key := range map[string]string{"model": "nvidia-h100-80gb", "": ""} {
		r := read[contract.Report](t, p.op("GET", "/v1/report?by="+by, ""), http.StatusOK)
		i := slices.IndexFunc(r.Items, func(n contract.Counts) bool { return n.Key == key })
		if i < 0 || r.Items[i].WaitedMs == nil || r.Items[i].WaitedWhileIdleMs == nil || *r.Items[i].WaitedMs == 0 || *r.Items[i].WaitedWhileIdleMs == 0 || *r.Items[i].WaitedWhileIdleMs > *r.Items[i].WaitedMs ||
			!strings.Contains(r.Items[i].Verdict, "of the time in which jobs waited") {
			t.Fatalf("by %q: a job waits beside idle accelerators, and the report says %+v", by, r.Items)
		}
	}
	if mine := read[contract.Report](t, p.member("GET", "/v1/report", ""), http.StatusOK); mine.Items[0].WaitedMs != nil || mine.Items[0].AvailableGpuMs != 0 || mine.Items[0].AllocatedShare != nil || mine.Items[0].Wait.Attempts != 1 {
		t.Fatalf("a tenant learns the pool's size: %+v", mine)
	}
	b := read[contract.Budget](t, p.op("PUT", "/v1/budgets", `{"tenant":"acme","gpu_ms":36000000}`), http.StatusOK)
	if b.SpentGpuMs != u.TotalGpuMs || b.RemainingGpuMs != b.GpuMs-b.SpentGpuMs {
		t.Fatalf("%+v, %d used", b, u.TotalGpuMs)
	}
	if other := read[contract.BudgetList](t, p.send(p.globex(), "GET", "/v1/budgets", ""), http.StatusOK); len(other.Items) != 0 {
		t.Fatalf("globex sees %+v", other)
	}
	scrape := string(p.op("GET", "/metrics", "").body)
	for _, want := range []string{`gpupool_accelerators{model="nvidia-h100-80gb",state="idle"} 8`, `gpupool_queue_wait_seconds{percentile="90",spec="h100x8"}`, `gpupool_tenant_waiting_jobs{tenant="acme"} 1`, `gpupool_tenant_utilization_unknown_share{tenant="acme"} 1`, `gpupool_region_allocated_share{region=`, `gpupool_overdue_jobs{spec="h100x8"} 0`, `gpupool_counts_left_out{by="tenant"} 0`, `gpupool_utilization_unknown_share{spec="h100x8"} 1`, `gpupool_budget_remaining_gpu_seconds{model="",project="",tenant="acme"}`, "gpupool_pool_metrics_up 1"} {
		if !strings.Contains(scrape, want) {
			t.Errorf("no %s in\n%s", want, scrape)
		}
	}
	read[contract.ForecastList](t, p.op("GET", "/v1/forecast", ""), http.StatusOK)
	read[contract.CapacityList](t, p.op("GET", "/v1/capacity?every=day&zone=Europe/Berlin", ""), http.StatusOK)
}

func TestBadUsageInputIsNamed(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	for _, c := range []struct{ method, path, body, field string }{
		{"GET", "/v1/usage?by=colour", "", "by"},
		{"GET", "/v1/usage?every=day", "", "from"},
		{"GET", "/v1/usage?from=2026-01-01T00:00:00Z&every=hour", "", "every"},
		{"GET", "/v1/usage?zone=Mars/Phobos", "", "zone"},
		{"GET", "/v1/usage?zone=Local", "", "zone"},
		{"GET", "/v1/usage?to=0000-01-01T00:00:00Z", "", "to"},
		{"GET", "/v1/usage?to=1970-01-01T00:00:00Z", "", "to"},
		{"GET", "/v1/usage/audit?to=0000-01-01T00:00:00Z", "", "to"},
		{"GET", "/v1/report?to=0001-01-01T00:00:00Z", "", "to"},
		{"GET", "/v1/report?from=9999-12-31T23:59:59Z", "", "from"},
		{"GET", "/v1/capacity?from=NaN", "", "from"},
		{"GET", "/v1/forecast?days=9223372036854775807", "", "days"},
		{"GET", "/v1/usage/focus?tenant=acme&month=2026-13", "", "month"},
		{"GET", "/v1/usage/focus?tenant=acme&month=2026-11&zone=../etc/passwd", "", "zone"},
		{"GET", "/v1/usage/statement?tenant=acme&month=2026-13", "", "month"},
		{"GET", "/v1/usage/statement?month=2026-01", "", "tenant"},
		{"GET", "/v1/usage/audit?from=2026-02-01T00:00:00Z&to=2026-01-01T00:00:00Z", "", "from"},
		{"PUT", "/v1/budgets", `{"tenant":"acme","gpu_ms":0}`, "gpu_ms"},
		{"PUT", "/v1/prices", `{"spec":"h100x8","currency":"euro","micros_per_hour":1}`, "currency"},
		{"PUT", "/v1/charging", `{"launch":"me","drain":"tenant","preempted_run":"tenant","preempted_drain":"pool","unstarted_charged_ms":0,"lost":"all","zone":"UTC","close_after_days":5,"idle_below_percent":5,"idle_warn_ms":0,"idle_reclaim_ms":0}`, "launch"},
		{"PUT", "/v1/charging", `{"launch":"tenant","drain":"tenant","preempted_run":"tenant","preempted_drain":"pool","unstarted_charged_ms":0,"lost":"all","zone":"UTC","close_after_days":5,"idle_below_percent":5,"idle_warn_ms":0,"idle_reclaim_ms":5}`, "idle_reclaim_ms"},
		{"POST", "/v1/usage/adjustments", `{"key":"a","tenant":"acme","gpu_ms":1,"note":" "}`, "note"},
		{"POST", "/v1/usage/adjustments", `{"key":"a","tenant":"acme","gpu_ms":0,"note":"x"}`, "gpu_ms"},
	} {
		wantProblem(t, p.op(c.method, c.path, c.body), schema.CodeInvalid, c.field)
	}
	wantProblem(t, p.op("PUT", "/v1/charging", `{"launch":"tenant","drain":"tenant","preempted_run":"tenant","preempted_drain":"pool","unstarted_charged_ms":0,"lost":"all","zone":"","close_after_days":5,"idle_below_percent":5,"idle_warn_ms":0,"idle_reclaim_ms":0}`), schema.CodeInvalid, "zone")
	wantProblem(t, p.op("GET", "/v1/usage/focus?tenant=nobody&month=2026-11", ""), schema.CodeNotFound, "", "nobody")
	wantProblem(t, p.send(p.tokens[auth.TenantAdmin], "PUT", "/v1/charging", "{}"), schema.CodeForbidden, "")
}
