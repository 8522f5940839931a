package store

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // months are cut in the zones that people name, whatever is installed here

	"gpupool/schema"
	"gpupool/schema/usage"
)

// policies are all charge policies, the oldest first.
type policies []datedPolicy

type datedPolicy struct {
	from schema.Instant
	usage.Policy
}

// at is the policy that held at a moment.
func (p policies) at(at schema.Instant) usage.Policy {
	out := usage.DefaultPolicy()
	for _, d := range p {
		if d.from <= at {
			out = d.Policy
		}
	}
	return out
}

type policyRow struct {
	FromAt   schema.Instant
	Document string
}

func decodePolicies(rows []policyRow) (policies, error) {
	out := make(policies, 0, len(rows))
	for _, r := range rows {
		d := datedPolicy{from: r.FromAt, Policy: usage.DefaultPolicy()} // a field that is newer than the document has its default
		if err := json.Unmarshal([]byte(r.Document), &d.Policy); err != nil {
			return nil, fmt.Errorf("charge policy of %s: %w", r.FromAt, err)
		}
		out = append(out, d)
	}
	return out, nil
}

const selectPolicies = "SELECT from_at, document FROM charge_policies ORDER BY from_at"

func (tx *Tx) policies() (policies, error) {
	var rows []policyRow
	if err := tx.db.Raw(selectPolicies).Scan(&rows).Error; err != nil {
		return nil, err
	}
	return decodePolicies(rows)
}

// ChargePolicy is what is charged now.
func (s *Store) ChargePolicy(ctx context.Context) (usage.Policy, error) {
	var rows []policyRow
	if err := s.read(ctx).Raw(selectPolicies).Scan(&rows).Error; err != nil {
		return usage.Policy{}, err
	}
	all, err := decodePolicies(rows)
	return all.at(s.Now()), err
}

// SetChargePolicy charges by p what ends from now on. What was settled stays as it is.
func (s *Store) SetChargePolicy(ctx context.Context, by string, p usage.Policy) (usage.Policy, error) {
	if err := p.Check(); err != nil {
		return p, err
	}
	doc, err := json.Marshal(p)
	if err != nil {
		return p, err
	}
	return p, s.Write(ctx, func(tx *Tx) error {
		tx.policyChanged("charging", "", by, "charge policy set", p)
		_, err := tx.exec(`INSERT INTO charge_policies (from_at, document, "by") VALUES (?, ?, ?) ON CONFLICT (from_at) DO UPDATE SET document = excluded.document, "by" = excluded."by"`, tx.now, string(doc), by)
		return err
	})
}

// Adjustment is a person's correction: an amount booked now, in the month that is open.
type Adjustment struct {
	Key                                  string // the same key is the same correction, once
	Tenant, Project, Spec, Model, Region string
	Job                                  string // what it corrects; may be empty
	GPUMillis                            int64  // signed: what the tenant pays more (or, negative, less)
	Note                                 string
}

// AdjustUsage books a correction as a row of its own; nothing that is there changes.
func (s *Store) AdjustUsage(ctx context.Context, by string, in Adjustment) (schema.LedgerRow, error) {
	var row schema.LedgerRow
	if !NamePattern.MatchString(in.Key) {
		return row, schema.Invalid("key", in.Key, nameRight)
	}
	if strings.TrimSpace(in.Note) == "" {
		return row, schema.Invalid("note", in.Note, "why, in words: it stands on the statement")
	}
	if in.GPUMillis == 0 || in.GPUMillis > 1<<53 || in.GPUMillis < -1<<53 {
		return row, schema.Invalid("gpu_ms", in.GPUMillis, "signed GPU-milliseconds, not 0, at most 2^53")
	}
	err := s.Write(ctx, func(tx *Tx) error {
		if err := tx.hasProject(in.Tenant, in.Project); err != nil {
			return err
		}
		// Who repeats it at this moment waits, and finds it.
		if err := tx.exclusive("adjustment " + in.Tenant + "/" + in.Key); err != nil {
			return err
		}
		row = schema.LedgerRow{}
		if in.Job != "" {
			var j schema.Job
			if err := one(tx.db.Where("id = ? AND tenant = ?", in.Job, in.Tenant).Take(&j).Error, "job of tenant "+in.Tenant, in.Job); err != nil {
				return err
			}
			in.Project, in.Spec, in.Model, in.Region = j.Project, j.Spec, j.Model, j.Region
		} else if in.Spec != "" {
			var sp schema.Spec
			if err := one(tx.db.Where("name = ?", in.Spec).Take(&sp).Error, "spec", in.Spec); err != nil {
				return err
			}
			in.Model = sp.Model
		}
		if in.Job == "" && in.Region != "" {
			if _, err := tx.region(in.Region); err != nil {
				return err
			}
		}
		if err := tx.metered(); err != nil {
			return err
		}
		row = schema.LedgerRow{ID: "adjustment/" + in.Tenant + "/" + in.Key, Kind: schema.LedgerAdjustment, Job: in.Job, Tenant: in.Tenant, Project: in.Project, Spec: in.Spec, Model: in.Model, Region: in.Region,
			Start: tx.now, End: tx.now, Amount: in.GPUMillis, Note: in.Note + " (" + by + ")"}
		var before schema.LedgerRow
		switch err := tx.db.Where("id = ?", row.ID).Take(&before).Error; {
		case err == nil:
			if before.Amount != row.Amount || before.Job != row.Job || before.Project != row.Project || before.Spec != row.Spec || before.Region != row.Region || before.Note != row.Note {
				return &schema.Error{Code: schema.CodeReused, Field: "key", Message: fmt.Sprintf("%q was used for another correction", in.Key), Hint: "use a new key for a new one"}
			}
			row = before
			return nil
		case !isNoRows(err):
			return err
		}
		tx.Emit(schema.Event{Kind: schema.EventUsageAdjusted, Subject: row.ID, Job: in.Job, Tenant: in.Tenant, By: by}, map[string]any{"gpu_ms": row.Amount, "note": in.Note})
		return tx.db.Create(&row).Error
	})
	return row, err
}

var currencyPattern = regexp.MustCompile(`^[A-Z]{3}$`)

// SetPrice prices a spec's accelerator-hour from a whole hour of UTC on; a past hour's price can't be changed.
func (s *Store) SetPrice(ctx context.Context, by string, p usage.Price) (usage.Price, error) {
	if !currencyPattern.MatchString(p.Currency) {
		return p, schema.Invalid("currency", p.Currency, "three letters, like EUR (ISO 4217)")
	}
	if p.Micros < 0 || p.Micros > 1e12 {
		return p, schema.Invalid("micros_per_hour", p.Micros, "0 to 10^12 millionths of the currency")
	}
	err := s.Write(ctx, func(tx *Tx) error {
		var n int64
		if err := tx.db.Raw("SELECT count(*) FROM specs WHERE name = ?", p.Spec).Scan(&n).Error; err != nil {
			return err
		}
		if n == 0 {
			return schema.NotFound("spec", p.Spec)
		}
		var first int64
		if err := tx.db.Raw("SELECT count(*) FROM prices WHERE spec = ?", p.Spec).Scan(&first).Error; err != nil {
			return err
		}
		if p.From == 0 && first > 0 {
			p.From = usage.NextHour(tx.now)
		}
		if p.From%usage.Hour != 0 {
			return schema.Invalid("from", p.From, "a whole hour of UTC")
		}
		if first > 0 && p.From < tx.now {
			return schema.Invalid("from", p.From, "the next hour or later: what was used at a price was sold at it")
		}
		p.By = by
		tx.policyChanged(p.Spec, "", by, "price set", p)
		_, err := tx.exec(`INSERT INTO prices (spec, from_at, currency, micros, "by") VALUES (?, ?, ?, ?, ?)
			ON CONFLICT (spec, from_at) DO UPDATE SET currency = excluded.currency, micros = excluded.micros, "by" = excluded."by"`, p.Spec, p.From, p.Currency, p.Micros, by)
		return err
	})
	return p, err
}

// Prices are all there ever were.
func (s *Store) Prices(ctx context.Context) (usage.Prices, error) {
	var list []usage.Price
	if err := s.read(ctx).Raw(`SELECT spec, from_at, currency, micros, "by" FROM prices`).Scan(&list).Error; err != nil {
		return nil, err
	}
	return usage.NewPrices(list), nil
}

// Budget is a ceiling of accelerator time in each calendar month of Zone, for a tenant (Project empty) or a project, of one
// model or (empty) of all.
type Budget struct {
	ID, Tenant, Project, Model string
	Amount                     int64 `gorm:"column:amount_ms"` // GPU-milliseconds a month
	Zone                       string
	Warn                       []int `gorm:"serializer:json"` // per cent of Amount at which is warned, ascending
	UpdatedAt                  schema.Instant
}

// BudgetState is a budget with its month so far.
type BudgetState struct {
	Budget
	Month     usage.Interval
	Spent     int64 // charged in this month by what has ended
	Committed int64 // by what is allocated: since the month's begin, until schema.CommittedUntil
	Remaining int64 // Amount - Spent - Committed; negative where it is overdrawn
}

// SetBudget makes a budget or changes it.
func (s *Store) SetBudget(ctx context.Context, by string, b Budget) (Budget, error) {
	if b.Amount <= 0 || b.Amount > 1<<53 {
		return b, schema.Invalid("gpu_ms", b.Amount, "GPU-milliseconds a month, more than 0; 3,600,000 are one GPU-hour")
	}
	if b.Zone == "" {
		b.Zone = "UTC"
	}
	if _, err := usage.Zone(b.Zone); err != nil {
		return b, err
	}
	if b.Model != "" && !NamePattern.MatchString(b.Model) {
		return b, schema.Invalid("model", b.Model, "an accelerator model, or nothing for all")
	}
	if b.Warn == nil {
		b.Warn = []int{50, 80, 100}
	}
	slices.Sort(b.Warn)
	b.Warn = slices.Compact(b.Warn)
	for _, p := range b.Warn {
		if p < 1 || p > 1000 {
			return b, schema.Invalid("warn", p, "per cents from 1 to 1000")
		}
	}
	warn, err := json.Marshal(b.Warn)
	if err != nil {
		return b, err
	}
	err = s.Write(ctx, func(tx *Tx) error {
		if err := tx.hasProject(b.Tenant, b.Project); err != nil {
			return err
		}
		// What was told of another ceiling says nothing of this one.
		if _, err := tx.exec("DELETE FROM usage_warnings WHERE subject IN (SELECT id FROM budgets WHERE tenant = ? AND project = ? AND model = ? AND (amount_ms <> ? OR zone <> ?))", b.Tenant, b.Project, b.Model, b.Amount, b.Zone); err != nil {
			return err
		}
		b.ID, b.UpdatedAt = NewID("bud", tx.now), tx.now
		if err := tx.db.Raw(`INSERT INTO budgets (id, tenant, project, model, amount_ms, zone, warn, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (tenant, project, model) DO UPDATE SET amount_ms = excluded.amount_ms, zone = excluded.zone, warn = excluded.warn, updated_at = excluded.updated_at RETURNING id`,
			b.ID, b.Tenant, b.Project, b.Model, b.Amount, b.Zone, string(warn), b.UpdatedAt).Scan(&b.ID).Error; err != nil {
			return err
		}
		tx.policyChanged(b.Tenant, b.Tenant, by, "budget set", b)
		return tx.limitsChanged(b.Tenant)
	})
	return b, err
}

// DeleteBudget removes one by its id; a CodeNotFound error where there is none.
func (s *Store) DeleteBudget(ctx context.Context, by, id string) error {
	return s.Write(ctx, func(tx *Tx) error {
		var tenant string
		if err := tx.db.Raw("DELETE FROM budgets WHERE id = ? RETURNING tenant", id).Scan(&tenant).Error; err != nil {
			return err
		}
		if tenant == "" {
			return schema.NotFound("budget", id)
		}
		tx.policyChanged(tenant, tenant, by, "budget removed", map[string]any{"id": id})
		return tx.limitsChanged(tenant)
	})
}

// Budgets are all, or one tenant's, without their months.
func (s *Store) Budgets(ctx context.Context, tenant string) ([]Budget, error) {
	q := s.read(ctx).Order("tenant, project, model")
	if tenant != "" {
		q = q.Where("tenant = ?", tenant)
	}
	var out []Budget
	return out, q.Find(&out).Error
}

// BudgetStates are budgets with what their month has spent and committed: what admission may still give is Remaining.
func (s *Store) BudgetStates(ctx context.Context, tenant string) ([]BudgetState, error) {
	return s.budgetStates(ctx, tenant, "")
}

// BudgetsOutside are all budgets as a region's allocator needs them, which knows itself what it has committed: Committed is of
// the other regions only.
func (s *Store) BudgetsOutside(ctx context.Context, region string) ([]BudgetState, error) {
	return s.budgetStates(ctx, "", region)
}

func (s *Store) budgetStates(ctx context.Context, tenant, outside string) ([]BudgetState, error) {
	list, err := s.Budgets(ctx, tenant)
	if err != nil || len(list) == 0 {
		return []BudgetState{}, err
	}
	now := s.Now()
	type live struct {
		Tenant, Project, Model string
		AllocatedAt            schema.Instant
		TimeLimit, N           int64
	}
	var running []live
	if err := s.read(ctx).Raw(`SELECT j.tenant, j.project, j.model, t.allocated_at, j.time_limit, count(*) AS n FROM allocations al JOIN jobs j ON j.id = al.job
		JOIN attempts t ON t.job = al.job AND t.attempt = al.attempt WHERE al.released_at = 0 AND al.region <> ? GROUP BY al.job, al.attempt, j.tenant, j.project, j.model, t.allocated_at, j.time_limit`, outside).Scan(&running).Error; err != nil {
		return nil, err
	}
	out := make([]BudgetState, 0, len(list))
	for _, b := range list {
		zone, err := usage.Zone(b.Zone)
		if err != nil {
			return nil, err
		}
		st := BudgetState{Budget: b}
		if st.Month, err = usage.Month(now.Time().In(zone).Format("2006-01"), zone); err != nil {
			return nil, err
		}
		rows, err := s.Usage(ctx, UsageQuery{Tenant: b.Tenant, Project: b.Project, From: st.Month.Start, To: now + 1, By: []string{"model"}})
		if err != nil {
			return nil, err
		}
		for _, r := range rows {
			if b.Model == "" || r.Keys["model"] == b.Model {
				st.Spent += r.Charged()
			}
		}
		for _, l := range running {
			if l.Tenant != b.Tenant || b.Project != "" && l.Project != b.Project || b.Model != "" && l.Model != b.Model {
				continue
			}
			until := schema.CommittedUntil(l.AllocatedAt, schema.Instant(l.TimeLimit), schema.Instant(schema.AssumedLimit.Milliseconds()), now)
			st.Committed += l.N * usage.Interval{Start: max(l.AllocatedAt, st.Month.Start), End: until}.Milliseconds()
		}
		st.Remaining = st.Amount - st.Spent - st.Committed
		out = append(out, st)
	}
	return out, nil
}

// limitBudgets are the budgets of a job's tenant as of a version of its limits.
type limitBudgets struct {
	attempt int // of the job, which was live; 0 = it was not
	states  []BudgetState
	version int64
}

// budgetsOf reads them. The version is read first, so that what is committed is never older.
func (s *Store) budgetsOf(ctx context.Context, job string) (limitBudgets, error) {
	var out limitBudgets
	j, err := s.Job(ctx, job)
	if err != nil || j.State == schema.JobQueued || j.State.Ended() {
		return out, err
	}
	if err := s.read(ctx).Raw("SELECT version FROM limit_versions WHERE tenant = ?", j.Tenant).Scan(&out.version).Error; err != nil {
		return out, err
	}
	out.attempt = j.Attempt
	out.states, err = s.BudgetStates(ctx, j.Tenant)
	return out, err
}

// coverLimit refuses a longer limit of a job that holds accelerators where what remains of a budget does not cover it, and
// keeps allocators from giving the same on.
func (tx *Tx) coverLimit(j schema.Job, limit time.Duration, have limitBudgets) error {
	if j.State == schema.JobQueued {
		return nil // its budget is asked when it starts
	}
	if have.attempt != j.Attempt {
		return schema.Conflict("job "+j.ID+" has started at this moment", "try again")
	}
	var allocated schema.Instant
	if err := tx.db.Raw("SELECT allocated_at FROM attempts WHERE job = ? AND attempt = ?", j.ID, j.Attempt).Scan(&allocated).Error; err != nil {
		return err
	}
	until := func(limit schema.Instant) schema.Instant {
		return schema.CommittedUntil(allocated, limit, schema.Instant(schema.AssumedLimit.Milliseconds()), tx.now)
	}
	longer := int64(until(schema.Instant(limit.Milliseconds())) - until(schema.Instant(j.TimeLimit)))
	if longer <= 0 {
		return nil
	}
	more := longer * int64(j.Accelerators())
	covered := false
	for _, b := range have.states {
		if b.Project != "" && b.Project != j.Project || b.Model != "" && b.Model != j.Model {
			continue
		}
		covered = true
		if more > b.Remaining {
			return schema.Conflict(fmt.Sprintf("time_limit %s: it takes %.2f GPU-hours more, and budget %s has %.2f left until %s", limit, float64(more)/usage.Hour, b.ID, float64(max(b.Remaining, 0))/usage.Hour, b.Month.End),
				"ask for less, or have the budget raised")
		}
	}
	if !covered {
		return nil
	}
	moved, err := tx.moveLimits(j.Tenant, have.version)
	if err == nil && !moved {
		err = schema.Conflict("a job of tenant "+j.Tenant+" has started or got a longer limit at this moment", "try again")
	}
	return err
}

// WarnBudgets tells, once a month, threshold and ceiling, of budgets that have spent and used as much.
func (s *Store) WarnBudgets(ctx context.Context) (warned int, err error) {
	states, err := s.BudgetStates(ctx, "")
	if err != nil {
		return 0, err
	}
	for _, b := range states {
		for _, percent := range b.Warn {
			if 100*(b.Spent+b.Committed) < b.Amount*int64(percent) { // 2^53 x 1000 fits
				continue
			}
			err := s.Write(ctx, func(tx *Tx) error {
				n, err := tx.exec("INSERT INTO usage_warnings (subject, since, percent, at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", b.ID, b.Month.Start, percent, tx.now)
				if err != nil || n == 0 {
					return err
				}
				warned++
				tx.Emit(schema.Event{Kind: schema.EventBudgetWarning, Subject: b.ID, Tenant: b.Tenant}, map[string]any{"project": b.Project, "model": b.Model, "percent": percent,
					"spent_gpu_ms": b.Spent, "committed_gpu_ms": b.Committed, "amount_gpu_ms": b.Amount})
				return nil
			})
			if err != nil {
				return warned, err
			}
		}
	}
	return warned, nil
}

// Corrections are a tenant's credits and adjustments that ended in w, of a job and a reason together, the newest first.
func (s *Store) Corrections(ctx context.Context, tenant, project string, w usage.Interval) ([]schema.LedgerRow, error) {
	where, args := scopeOf(UsageQuery{Tenant: tenant, Project: project}, "", "end_at >= ? AND end_at < ? AND kind <> ?", w.Start, w.End, schema.LedgerUsage)
	var rows []schema.LedgerRow
	if err := s.read(ctx).Where(where, args...).Order("end_at DESC, id").Find(&rows).Error; err != nil {
		return nil, err
	}
	type key struct {
		job, note string
		end       schema.Instant
	}
	at := map[key]int{}
	var out []schema.LedgerRow
	for _, r := range rows {
		k := key{r.Job, r.Note, r.End}
		i, ok := at[k]
		if !ok {
			at[k] = len(out)
			out = append(out, schema.LedgerRow{Kind: schema.LedgerAdjustment, Job: r.Job, Note: r.Note, End: r.End, Amount: r.Milliseconds()})
			continue
		}
		out[i].Amount += r.Milliseconds()
	}
	return out, nil
}
