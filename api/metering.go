package api

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/usage"
)

// zone is the time zone asked for, else that of the charging policy.
func (s *Server) zone(c *gin.Context, asked *string) (*time.Location, error) {
	if val(asked) != "" {
		return usage.Zone(*asked)
	}
	p, err := s.c.Store.ChargePolicy(c.Request.Context())
	if err != nil {
		return nil, err
	}
	return usage.Zone(p.Zone)
}

// between is the interval asked for: until now, from 30 days before.
func (s *Server) between(from, to *time.Time) (usage.Interval, error) {
	w := usage.Interval{End: s.c.Store.Now()}
	if to != nil {
		var err error
		if w.End, err = until(*to); err != nil {
			return w, err
		}
	}
	w.Start = w.End.Add(-30 * 24 * time.Hour)
	if from != nil {
		w.Start = schema.At(*from)
	}
	if w.End <= w.Start {
		return w, schema.Invalid("from", w.Start, "before to, which is "+w.End.String())
	}
	return w, nil
}

// until is the end of what is asked for. Nothing is recorded of before 1970, whose first moment stands for none.
func until(t time.Time) (schema.Instant, error) {
	at := schema.At(t)
	if at <= 0 {
		return at, schema.Invalid("to", t.Format(time.RFC3339), "a moment after 1970-01-01T00:00:00Z")
	}
	return at, nil
}

// periods cuts what was asked for at the zone's calendar.
func (s *Server) periods(c *gin.Context, from, to *time.Time, every, zone *string) (usage.Interval, []usage.Period, error) {
	w, err := s.between(from, to)
	if err != nil {
		return w, nil, err
	}
	z, err := s.zone(c, zone)
	if err != nil {
		return w, nil, err
	}
	p, err := usage.Periods(w, usage.Every(val(every)), z)
	return w, p, err
}

// month is the interval of the month asked for, in the zone.
func (s *Server) month(c *gin.Context, month string, zone *string) (usage.Interval, *time.Location, error) {
	z, err := s.zone(c, zone)
	if err != nil {
		return usage.Interval{}, nil, err
	}
	w, err := usage.Month(month, z)
	return w, z, err
}

// GetLiveUsage lists what runs now.
func (s *Server) GetLiveUsage(c *gin.Context, p contract.GetLiveUsageParams) {
	t, pr, err := scope(c, p.Tenant, p.Project)
	if err != nil {
		s.fail(c, err)
		return
	}
	list, err := s.c.Store.LiveUsage(c.Request.Context(), t, pr, val(p.Job))
	s.done(c, http.StatusOK, contract.LiveUsageList{Items: each(list, func(j store.LiveJob) contract.LiveUsage {
		out := contract.LiveUsage{Job: j.Job, Name: j.Name, Tenant: j.Tenant, Project: j.Project, Spec: j.Spec, State: j.State, Accelerators: j.Accelerators, Since: j.Since, GpuMs: j.Charged(),
			GpuHoursPerHour: j.Accelerators, IdleSince: j.IdleSince, ReclaimAt: j.ReclaimAt}
		if j.Price != nil {
			out.CostMicrosPerHour, out.Currency = opt(j.Price.Micros*int64(j.Accelerators)), opt(j.Price.Currency)
		}
		return out
	})}, err)
}

// AuditUsage recomputes a period from the events.
func (s *Server) AuditUsage(c *gin.Context, p contract.AuditUsageParams) {
	w, err := s.between(p.From, p.To)
	if err != nil {
		s.fail(c, err)
		return
	}
	a, err := s.c.Store.AuditUsage(c.Request.Context(), w)
	s.done(c, http.StatusOK, contract.Audit{From: a.From, To: a.To, Accelerators: a.Accelerators, Intervals: a.Intervals, Balance: a.Balance, LedgerGpuMs: a.Ledger, LiveGpuMs: a.Live, EventsGpuMs: a.Events, Findings: some(a.Findings)}, err)
}

// ListFindings lists the newest alarms of the hourly check.
func (s *Server) ListFindings(c *gin.Context) {
	list, err := s.c.Store.Findings(c.Request.Context(), 200)
	s.done(c, http.StatusOK, contract.FindingList{Items: some(list)}, err)
}

// AdjustUsage books a correction.
func (s *Server) AdjustUsage(c *gin.Context) {
	var in contract.NewAdjustment
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	r, err := s.c.Store.AdjustUsage(c.Request.Context(), me(c).Name, store.Adjustment{Key: in.Key, Tenant: in.Tenant, Project: in.Project, Spec: in.Spec, Region: in.Region, Job: in.Job, GPUMillis: in.GpuMs, Note: in.Note})
	s.done(c, http.StatusCreated, r, err)
}

// GetCapacity sums the time of all accelerators by state.
func (s *Server) GetCapacity(c *gin.Context, p contract.GetCapacityParams) {
	_, periods, err := s.periods(c, p.From, p.To, p.Every, p.Zone)
	if err != nil {
		s.fail(c, err)
		return
	}
	rows, err := s.c.Store.Capacity(c.Request.Context(), periods)
	s.done(c, http.StatusOK, contract.CapacityList{Items: each(rows, func(r store.CapacityRow) contract.CapacityRow {
		return contract.CapacityRow{Period: r.Period, Region: r.Region, Model: r.Model, Capacity: r.Balance}
	})}, err)
}

// GetReport gives the four counts. Of the pool's capacity a tenant learns nothing.
func (s *Server) GetReport(c *gin.Context, p contract.GetReportParams) {
	t, pr, err := scope(c, p.Tenant, p.Project)
	if err != nil {
		s.fail(c, err)
		return
	}
	w, periods, err := s.periods(c, p.From, p.To, p.Every, p.Zone)
	if err != nil {
		s.fail(c, err)
		return
	}
	policy, err := s.c.Store.ChargePolicy(c.Request.Context())
	if err != nil {
		s.fail(c, err)
		return
	}
	pool := me(c).Pool()
	list, err := s.c.Store.FourCounts(c.Request.Context(), store.CountsQuery{Tenant: t, Project: pr, By: val(p.By), Periods: periods, Queues: pool})
	s.done(c, http.StatusOK, contract.Report{From: w.Start, To: w.End, IdleBelowPercent: policy.IdleBelow, Items: each(list, func(n usage.Counts) contract.Counts { return toCounts(n, pool) })}, err)
}

func toCounts(n usage.Counts, pool bool) contract.Counts {
	known := func(v float64, ok bool) *float64 {
		if !ok {
			return nil
		}
		return &v
	}
	out := contract.Counts{Period: n.Period, Key: n.Key, Wait: n.Wait, WaitByReason: n.WaitBy, Waiting: n.Waiting, Overdue: n.Overdue, AllocatedGpuMs: n.Allocated, KnownGpuMs: n.Known, IdleGpuMs: n.Idle, Jobs: n.Jobs, OutcomeGpuMs: n.GPU,
		IdleRate: known(n.IdleRate()), UnknownShare: known(n.UnknownShare()), JobSuccess: known(n.JobSuccess()), GpuSuccess: known(n.GPUSuccess())}
	if pool {
		out.AvailableGpuMs, out.AllocatedShare, out.Verdict = n.Capacity.Available(), known(n.AllocatedShare()), n.Verdict()
		if n.Queue != nil {
			out.WaitedMs, out.WaitedWhileIdleMs = &n.Queue.Waited, &n.Queue.WhileIdle
		}
	}
	return out
}

// GetForecast follows the trend of each model's demand.
func (s *Server) GetForecast(c *gin.Context, p contract.GetForecastParams) {
	const day = 24 * usage.Hour
	ctx := c.Request.Context()
	days := int64(cmp.Or(val(p.Days), 60))
	to := s.c.Store.Now() / day * day // today is not over
	from := to - schema.Instant(days*day)
	demand, err := s.c.Store.DailyDemand(ctx, from, to)
	if err != nil {
		s.fail(c, err)
		return
	}
	pool, err := s.c.Store.PoolOverview(ctx)
	if err != nil {
		s.fail(c, err)
		return
	}
	available := map[string]int{}
	for _, m := range pool.Models {
		available[m.Model] = m.Allocated + m.Idle + m.Cordoned
	}
	series := map[string][]float64{}
	var first int64
	for _, d := range demand {
		if first == 0 || d.Day < first {
			first = d.Day
		}
	}
	for _, d := range demand {
		if series[d.Model] == nil {
			series[d.Model] = make([]float64, int64(to)/day-first)
		}
		series[d.Model][d.Day-first] = float64(d.GPU) / usage.Hour
	}
	for m := range available {
		if series[m] == nil {
			series[m] = []float64{}
		}
	}
	out := contract.ForecastList{Items: []usage.Trend{}}
	for m, points := range series {
		out.Items = append(out.Items, usage.Forecast(m, points, float64(24*available[m]), (to-1).Time()))
	}
	slices.SortFunc(out.Items, func(a, b usage.Trend) int { return cmp.Compare(a.Model, b.Model) })
	s.reply(c, http.StatusOK, out)
}

// ListBudgets lists budgets with their month; a tenant's caller its own.
func (s *Server) ListBudgets(c *gin.Context, p contract.ListBudgetsParams) {
	t, pr, err := scope(c, p.Tenant, nil)
	if err != nil {
		s.fail(c, err)
		return
	}
	list, err := s.c.Store.BudgetStates(c.Request.Context(), t)
	if pr != "" {
		list = slices.DeleteFunc(list, func(b store.BudgetState) bool { return b.Project != "" && b.Project != pr })
	}
	s.done(c, http.StatusOK, contract.BudgetList{Items: each(list, toBudget)}, err)
}

func toBudget(b store.BudgetState) contract.Budget {
	return contract.Budget{Id: b.ID, Tenant: b.Tenant, Project: b.Project, Model: b.Model, GpuMs: b.Amount, Zone: b.Zone, Warn: some(b.Warn), MonthFrom: b.Month.Start, MonthTo: b.Month.End,
		SpentGpuMs: b.Spent, CommittedGpuMs: b.Committed, RemainingGpuMs: b.Remaining}
}

// SetBudget sets one.
func (s *Server) SetBudget(c *gin.Context) {
	var in contract.NewBudget
	err := decode(c, &in, false)
	if err == nil && in.Model != "" {
		err = s.knownModel(c, "model", in.Model, false)
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	ctx := c.Request.Context()
	b, err := s.c.Store.SetBudget(ctx, me(c).Name, store.Budget{Tenant: in.Tenant, Project: in.Project, Model: in.Model, Amount: in.GpuMs, Zone: in.Zone, Warn: in.Warn})
	if err != nil {
		s.fail(c, err)
		return
	}
	all, err := s.c.Store.BudgetStates(ctx, b.Tenant)
	i := slices.IndexFunc(all, func(x store.BudgetState) bool { return x.ID == b.ID })
	if err == nil && i < 0 {
		err = schema.NotFound("budget", b.ID) // removed in the meantime
	}
	if err != nil {
		s.fail(c, err)
		return
	}
	s.reply(c, http.StatusOK, toBudget(all[i]))
}

// DeleteBudget removes one.
func (s *Server) DeleteBudget(c *gin.Context, id string) {
	if err := s.c.Store.DeleteBudget(c.Request.Context(), me(c).Name, id); err != nil {
		s.fail(c, err)
		return
	}
	c.Status(http.StatusNoContent)
}

// ListPrices lists prices of all times.
func (s *Server) ListPrices(c *gin.Context) {
	all, err := s.c.Store.Prices(c.Request.Context())
	out := contract.PriceList{Items: []usage.Price{}}
	for _, l := range all {
		out.Items = append(out.Items, l...)
	}
	slices.SortFunc(out.Items, func(a, b usage.Price) int { return cmp.Or(cmp.Compare(a.Spec, b.Spec), cmp.Compare(a.From, b.From)) })
	s.done(c, http.StatusOK, out, err)
}

// SetPrice prices a spec.
func (s *Server) SetPrice(c *gin.Context) {
	var in contract.NewPrice
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	p := usage.Price{Spec: in.Spec, Currency: in.Currency, Micros: in.MicrosPerHour}
	if in.From != nil {
		p.From = schema.At(*in.From)
	}
	p, err := s.c.Store.SetPrice(c.Request.Context(), me(c).Name, p)
	s.done(c, http.StatusOK, p, err)
}

// GetCharging is the policy now.
func (s *Server) GetCharging(c *gin.Context) {
	p, err := s.c.Store.ChargePolicy(c.Request.Context())
	s.done(c, http.StatusOK, p, err)
}

// SetCharging changes it.
func (s *Server) SetCharging(c *gin.Context) {
	var in usage.Policy
	if err := decode(c, &in, false); err != nil {
		s.fail(c, err)
		return
	}
	p, err := s.c.Store.SetChargePolicy(c.Request.Context(), me(c).Name, in)
	s.done(c, http.StatusOK, p, err)
}

// GetTrace exports the pool's history as gpupool simulate reads it.
func (s *Server) GetTrace(c *gin.Context, p contract.GetTraceParams) {
	w, err := s.between(p.From, p.To)
	if err != nil {
		s.fail(c, err)
		return
	}
	rows, err := s.c.Store.Trace(c.Request.Context(), w)
	if err != nil {
		s.fail(c, err)
		return
	}
	lines := [][]string{{"id", "tenant", "project", "spec", "model", "accelerators", "nodes", "priority", "preemptible", "submit", "run", "limit"}}
	for _, r := range rows {
		lines = append(lines, []string{r.ID, r.Tenant, r.Project, r.Spec, r.Model, strconv.Itoa(r.PerNode), strconv.Itoa(r.Nodes), strconv.Itoa(r.Priority), strconv.FormatBool(r.Preemptible),
			r.SubmittedAt.Time().Format(time.RFC3339Nano), inSeconds(r.RunMS), inSeconds(r.TimeLimit)})
	}
	s.csv(c, "trace.csv", lines)
}

func inSeconds(ms int64) string { return strconv.FormatFloat(seconds(ms), 'f', -1, 64) }

func (s *Server) csv(c *gin.Context, name string, lines [][]string) {
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	if err := w.WriteAll(lines); err != nil {
		s.fail(c, err)
		return
	}
	attachment(c, name, b.Bytes())
}

// focusColumns are those of FOCUS 1.0 (focus.finops.org) that the pool knows: all mandatory ones, and of the conditional ones those
// of consumption, of prices, regions, SKUs and sub accounts.
var focusColumns = []string{"BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodStart", "BillingPeriodEnd", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency", "ChargePeriodStart", "ChargePeriodEnd",
	"ConsumedQuantity", "ConsumedUnit", "ContractedCost", "ContractedUnitPrice", "EffectiveCost", "InvoiceIssuerName", "ListCost", "ListUnitPrice", "PricingCategory", "PricingQuantity", "PricingUnit", "ProviderName", "PublisherName", "RegionId", "RegionName", "ServiceCategory", "ServiceName", "SkuId", "SkuPriceId", "SubAccountId", "SubAccountName"}

// inUTC is a moment as FOCUS has it.
func inUTC(i schema.Instant) string { return i.Time().Format("2006-01-02T15:04:05Z") }

// GetFocus exports a month's charges by day, and by price where one changes within a day: a line for what was used, and one for
// what was booked as a correction.
func (s *Server) GetFocus(c *gin.Context, p contract.GetFocusParams) {
	t, pr, err := scope(c, p.Tenant, nil)
	if err != nil {
		s.fail(c, err)
		return
	}
	if t != "" {
		if _, err := s.c.Store.Tenant(c.Request.Context(), t); err != nil {
			s.fail(c, err)
			return
		}
	}
	w, zone, err := s.month(c, p.Month, p.Zone)
	if err != nil {
		s.fail(c, err)
		return
	}
	end := min(w.End, s.c.Store.Now())
	days, err := usage.Periods(usage.Interval{Start: w.Start, End: max(end, w.Start)}, usage.EveryDay, zone)
	if err != nil {
		s.fail(c, err)
		return
	}
	prices, err := s.c.Store.Prices(c.Request.Context())
	if err != nil {
		s.fail(c, err)
		return
	}
	parts := []usage.Period{} // each of one price
	ends := map[string]schema.Instant{}
	for _, d := range days {
		for _, w := range prices.Steady(d.Interval) {
			parts = append(parts, usage.Period{Name: inUTC(w.Start), Interval: w})
			ends[inUTC(w.Start)] = w.End
		}
	}
	rows, err := s.c.Store.Usage(c.Request.Context(), store.UsageQuery{Tenant: t, Project: pr, Periods: parts, By: []string{"tenant", "project", "spec", "model", "region"}, Live: true})
	if err != nil {
		s.fail(c, err)
		return
	}
	lines := [][]string{focusColumns}
	for _, r := range rows {
		k, from := r.Keys, r.Keys["period"]
		var price *usage.Price
		if at, err := time.Parse(time.RFC3339, from); err == nil {
			price = prices.At(k["spec"], schema.At(at))
		}
		charge := func(category, class string, ms int64) {
			if ms == 0 {
				return
			}
			var sum usage.Cost
			sum.Add(price, ms)
			amount, currency := sum.Micros()
			cost, hours := micros(amount), strconv.FormatFloat(float64(ms)/usage.Hour, 'f', -1, 64)
			consumed, unit := hours, "GPU-hours"
			if category != "Usage" {
				consumed, unit = "", ""
			}
			var perHour, priceID string
			if price != nil {
				perHour, priceID = micros(&price.Micros), price.Spec
				if price.From != 0 {
					priceID += "@" + inUTC(price.From)
				}
			}
			lines = append(lines, []string{cost, plain(k["tenant"]), plain(k["tenant"]), currency, inUTC(w.Start), inUTC(w.End), category, class, plain(fmt.Sprintf("GPU-hours of %s (%s)", k["spec"], k["model"])), "Usage-Based", from, inUTC(ends[from]),
				consumed, unit, cost, perHour, cost, "gpupool", cost, perHour, "Standard", hours, "GPU-hours", "gpupool", "gpupool", plain(k["region"]), plain(k["region"]), "AI and Machine Learning", "GPU pool", plain(k["spec"]), plain(priceID), plain(k["project"]), plain(k["project"])})
		}
		charge("Usage", "", r.Used()-r.Credit)
		charge("Adjustment", "Correction", r.Adjust) // booked in this month, of an earlier one or by hand
	}
	s.csv(c, "focus-"+p.Month+".csv", lines)
}

// micros is an amount of money in its currency, exact; "" where it is not known.
func micros(v *int64) string {
	if v == nil {
		return ""
	}
	sign, n := "", *v
	if n < 0 {
		sign, n = "-", -n
	}
	return fmt.Sprintf("%s%d.%06d", sign, n/1_000_000, n%1_000_000)
}
