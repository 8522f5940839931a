package console

import (
	"cmp"
	"io"
	"net/http"
	"slices"

	"gpupool/api/call"
	"gpupool/api/contract"
	"gpupool/schema/usage"
)

// usageDetail is a month of usage.
type usageDetail struct {
	contract.Usage
	Month   string
	Zone    string
	Now     bool // the month goes on
	Budgets []contract.Budget
	Live    []contract.LiveUsage
}

// usagePage is a month: GPU-hours by what the reader picks, budgets, what burns now, files to take away, the four counts.
func usagePage(v *visit) {
	q := v.r.URL.Query()
	by := q["by"]
	if len(by) == 0 {
		by = []string{"tenant", "project", "spec"}
	}
	policy, err := call.Do[usage.Policy](v.api.GetCharging(v.r.Context()))
	if err != nil {
		v.fail(err)
		return
	}
	zone, err := usage.Zone(policy.Zone)
	if err != nil {
		v.fail(err)
		return
	}
	month := cmp.Or(q.Get("month"), v.now.Time().In(zone).Format("2006-01"))
	w, err := usage.Month(month, zone)
	if err != nil {
		v.fail(err)
		return
	}
	d := usageDetail{Month: month, Zone: zone.String(), Now: v.now >= w.Start && v.now < w.End}
	from, to := w.Start.Time(), min(w.End, v.now+1).Time()
	if !to.After(from) {
		to = from.Add(1)
	}
	if d.Usage, err = call.Do[contract.Usage](v.api.GetUsage(v.r.Context(), &contract.GetUsageParams{By: &by, Live: opt(true), From: &from, To: &to})); err != nil {
		v.fail(err)
		return
	}
	slices.SortStableFunc(d.Items, func(a, b contract.UsageRow) int { return cmp.Compare(b.GpuMs, a.GpuMs) })
	if d.Now {
		if err := v.usageNow(&d); err != nil {
			v.fail(err)
			return
		}
	}
	var counts counted4
	if !v.fragment() { // they are beside the live part: read once with the page
		if counts, err = v.counts(usage.Interval{Start: w.Start, End: min(w.End, v.now)}, zone, q.Get("counts")); err != nil {
			v.fail(err)
			return
		}
	}
	v.show(page{title: "Usage", path: "/ui/usage"}, usageView(v, d), usageBelow(v, usageForm(v, month, by, q.Get("counts")), month, counts))
}

// usageNow reads what is true now: budgets and what runs.
func (v *visit) usageNow(d *usageDetail) error {
	budgets, err := call.Do[contract.BudgetList](v.api.ListBudgets(v.r.Context(), &contract.ListBudgetsParams{}))
	if err != nil {
		return err
	}
	live, err := call.Do[contract.LiveUsageList](v.api.GetLiveUsage(v.r.Context(), &contract.GetLiveUsageParams{}))
	d.Budgets, d.Live = budgets.Items, live.Items
	return err
}

var usageKeys = []string{"tenant", "project", "spec", "model", "vendor", "region", "server", "job"}

// countsKeys are what the four counts can be seen by.
var countsKeys = []struct{ Key, Name string }{{"", "all together"}, {"spec", "spec"}, {"model", "model"}, {"region", "region"}, {"tenant", "tenant"}}

// usageFile passes a file of the API's on: a statement to print or to send, CSV for spreadsheets and FinOps tools.
func usageFile(v *visit) {
	q := v.r.URL.Query()
	month, tenant, ctx := q.Get("month"), opt(q.Get("tenant")), v.r.Context()
	var resp *http.Response
	var err error
	switch v.r.PathValue("file") {
	case "statement.html":
		resp, err = v.api.GetStatement(ctx, &contract.GetStatementParams{Month: month, Tenant: tenant})
	case "focus.csv":
		resp, err = v.api.GetFocus(ctx, &contract.GetFocusParams{Month: month, Tenant: tenant})
	default:
		v.missing()
		return
	}
	if err := call.Check(resp, err); err != nil {
		v.fail(err)
		return
	}
	defer func() { _ = resp.Body.Close() }()
	for _, h := range []string{"Content-Type", "Content-Disposition", "Content-Security-Policy"} {
		if x := resp.Header.Get(h); x != "" {
			v.w.Header().Set(h, x)
		}
	}
	if _, err := io.Copy(v.w, resp.Body); err != nil && ctx.Err() == nil {
		v.Log.WarnContext(ctx, "console: passing a file on", "path", v.r.URL.Path, "error", err)
	}
}

// burns is what all that runs burns an hour, in GPU-hours.
func (d usageDetail) burns() (sum int) {
	for _, j := range d.Live {
		sum += j.GpuHoursPerHour
	}
	return sum
}

// idle are live jobs that do nothing.
func (d usageDetail) idle() (out []contract.LiveUsage) {
	for _, j := range d.Live {
		if !j.IdleSince.IsZero() {
			out = append(out, j)
		}
	}
	return out
}

func budgetOf(b contract.Budget) string {
	s := b.Tenant
	if b.Project != "" {
		s += " / " + b.Project
	}
	if b.Model != "" {
		s += ", " + b.Model
	}
	return s
}

func overdrawn(b contract.Budget) string {
	if b.RemainingGpuMs <= 0 {
		return badge("failed")
	}
	return badge("healthy")
}

func liveName(j contract.LiveUsage) string { return cmp.Or(j.Name, j.Job) }
