package store

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpupool/schema"
	"gpupool/schema/usage"
)

// UsageQuery asks for GPU time in [From, To); To 0 = now.
type UsageQuery struct {
	Tenant, Project string
	From, To        schema.Instant
	By              []string // of UsageKeys
	Live            bool     // also what live allocations have used until To
	Parts           bool     // also waits and idle time
	Every           usage.Every
	Zone            *time.Location // whose calendar cuts the periods; nil = UTC
	Periods         []usage.Period // in the place of From, To, Every and Zone: as they are
}

// UsageKeys are what usage can be grouped by. A report in periods also has the key "period".
var UsageKeys = []string{"tenant", "project", "spec", "model", "region", "outcome", "server", "rack", "job", "vendor", "generation"}

// kept are the keys that the hourly sums have; by others the ledger itself is summed.
var kept = UsageKeys[:6]

// classes are the keys that a model's name tells.
var classes = map[string]func(model string) string{"vendor": schema.ModelVendor, "generation": schema.ModelGeneration}

// UsageRow is the sum for one combination of keys.
type UsageRow struct {
	Keys map[string]string
	usage.Amounts
	// Cost is what Charged costs by the prices of each moment, in millionths of Currency; nil where a part has no price.
	Cost     *int64
	Currency string
	*Parts   // where they were asked for, and the keys tell
}

// Parts are what a period's use says beside the ledger.
type Parts struct {
	Waited int64 // ms that attempts allocated in the period had waited: no accelerator's time
	Known  int64 // GPU-milliseconds whose utilization is known; see FourCounts
	Idle   int64 // of them, under the threshold
}

// Usage sums the ledger exactly, each interval cut to [From, To) and to the periods. Whole hours come from the hourly
// sums, which are brought up to date first, the rest from the ledger itself.
func (s *Store) Usage(ctx context.Context, q UsageQuery) ([]UsageRow, error) {
	for _, k := range q.By {
		if !slices.Contains(UsageKeys, k) {
			return nil, schema.Invalid("by", k, "some of "+strings.Join(UsageKeys, ", "))
		}
	}
	if q.To == 0 {
		now, err := s.Metered(ctx)
		if err != nil {
			return nil, err
		}
		q.To = now + 1 // with what was booked in this millisecond
	}
	if q.Zone == nil {
		q.Zone = time.UTC
	}
	periods := q.Periods
	if periods == nil {
		var err error
		if periods, err = usage.Periods(usage.Interval{Start: q.From, End: q.To}, q.Every, q.Zone); err != nil {
			return nil, err
		}
	}
	for _, p := range q.Periods {
		q.To = max(q.To, p.End)
	}
	if err := s.CatchUpUsage(ctx); err != nil {
		return nil, err
	}
	prices, err := s.Prices(ctx)
	if err != nil {
		return nil, err
	}
	by := append(slices.Clone(q.By), "spec") // what is paid depends on it
	for i, k := range by {
		if classes[k] != nil {
			by[i] = "model"
		}
	}
	var live []liveSum
	if q.Live {
		if live, err = s.liveUsage(ctx, q, "", by); err != nil {
			return nil, err
		}
	}
	var out []UsageRow
	for _, p := range periods {
		rows, err := s.usageIn(ctx, q, by, p, live, prices)
		if err != nil {
			return nil, err
		}
		out = append(out, rows...)
	}
	return out, nil
}

// Metered is the ledger's clock, which never goes back: the process's, or the newest moment in the record where that is later.
func (s *Store) Metered(ctx context.Context) (schema.Instant, error) {
	var newest schema.Instant
	err := s.read(ctx).Raw("SELECT at FROM event_seq WHERE one = 1").Scan(&newest).Error
	return max(newest, s.Now()), err
}

// usageIn sums one period, apart for each span of time with the same prices.
func (s *Store) usageIn(ctx context.Context, q UsageQuery, by []string, p usage.Period, live []liveSum, prices usage.Prices) ([]UsageRow, error) {
	sums := map[string]*UsageRow{}
	cost := map[string]*usage.Cost{}
	for _, w := range prices.Steady(p.Interval) {
		found, err := s.amounts(ctx, q, by, w)
		if err != nil {
			return nil, err
		}
		for _, l := range live {
			if a := l.in(w); a != (usage.Amounts{}) {
				found = append(found, keyed{slices.Clone(l.keys), a})
			}
		}
		for _, f := range found {
			keys := f.keys[:len(q.By)]
			for i, k := range q.By {
				if class := classes[k]; class != nil {
					keys[i] = class(keys[i])
				}
			}
			id := strings.Join(keys, "\x00")
			if sums[id] == nil {
				sums[id] = &UsageRow{Keys: map[string]string{}}
				cost[id] = &usage.Cost{}
				if p.Name != "" {
					sums[id].Keys["period"] = p.Name
				}
				for i, k := range q.By {
					sums[id].Keys[k] = keys[i]
				}
			}
			sums[id].Add(f.Amounts)
			cost[id].Add(prices.At(f.keys[len(q.By)], w.Start), f.Charged())
		}
	}
	if q.Parts {
		if err := s.addParts(ctx, q, p.Interval, sums); err != nil {
			return nil, err
		}
	}
	out := make([]UsageRow, 0, len(sums))
	ids := make([]string, 0, len(sums))
	for id := range sums {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		r := *sums[id]
		r.Cost, r.Currency = cost[id].Micros()
		out = append(out, r)
	}
	return out, nil
}

// addParts adds waits and idle time to the sums, where both are known by the keys.
func (s *Store) addParts(ctx context.Context, q UsageQuery, w usage.Interval, sums map[string]*UsageRow) error {
	by := slices.Clone(q.By)
	for i, k := range by {
		if classes[k] != nil {
			by[i] = "model"
		} else if k == "outcome" || k == "server" || k == "rack" { // of a wait there is none
			return nil
		}
	}
	add := func(table, when string, cut usage.Interval, columns string, scale func(*Parts, int64, int64)) error {
		where, args := scopeOf(q, "", when+" >= ? AND "+when+" < ?", cut.Start, cut.End)
		query := "SELECT " + strings.Join(append(slices.Clone(by), columns), ", ") + " FROM " + table + " WHERE " + where
		if len(by) > 0 {
			query += " GROUP BY " + strings.Join(by, ", ")
		}
		rows, err := s.read(ctx).Raw(query, args...).Rows()
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			keys, dst := make([]string, len(by)), make([]any, 0, len(by)+2)
			for i := range keys {
				dst = append(dst, &keys[i])
			}
			var a, b int64
			if err := rows.Scan(append(dst, &a, &b)...); err != nil {
				return err
			}
			for i, k := range q.By {
				if class := classes[k]; class != nil {
					keys[i] = class(keys[i])
				}
			}
			if r := sums[strings.Join(keys, "\x00")]; r != nil {
				scale(r.Parts, a, b)
			}
		}
		return rows.Err()
	}
	for _, r := range sums {
		r.Parts = &Parts{}
	}
	if err := add("attempt_facts", "allocated_at", w, "CAST(coalesce(sum(wait_ms), 0) AS BIGINT), 0", func(p *Parts, ms, _ int64) { p.Waited += ms }); err != nil {
		return err
	}
	for _, part := range hourly(w, s.Now()) {
		if err := add("utilization_hours", "hour", part.hours, "CAST(coalesce(sum(known_ms), 0) AS BIGINT), CAST(coalesce(sum(idle_ms), 0) AS BIGINT)", func(p *Parts, known, idle int64) {
			p.Known += part.of(known)
			p.Idle += part.of(idle)
		}); err != nil {
			return err
		}
	}
	return nil
}

// hoursPart are hours of what is kept by the hour, and the share of them that lies in an interval.
type hoursPart struct {
	hours usage.Interval
	share float64
}

func (h hoursPart) of(ms int64) int64 { return int64(math.Round(h.share * float64(ms))) }

// hourly cuts w into whole hours and parts of one. Of an hour that goes on, what is over counts as the whole.
func hourly(w usage.Interval, now schema.Instant) (out []hoursPart) {
	from, to := usage.NextHour(w.Start), usage.HourOf(w.End)
	parts := []usage.Interval{{Start: w.Start, End: min(from, w.End)}, {Start: from, End: to}, {Start: max(to, from), End: w.End}}
	if from > to { // within one hour
		parts = parts[:1]
	}
	for _, p := range parts {
		if p.Milliseconds() == 0 {
			continue
		}
		h := usage.Interval{Start: usage.HourOf(p.Start), End: usage.NextHour(p.End)}
		whole := max(usage.Interval{Start: h.Start, End: min(h.End, now+1)}.Milliseconds(), 1)
		out = append(out, hoursPart{h, min(1, float64(p.Milliseconds())/float64(whole))})
	}
	return out
}

// keyed is a sum with the values of what it was grouped by, in that order.
type keyed struct {
	keys []string
	usage.Amounts
}

// amounts sums w: its whole hours from the hourly sums where those have the keys, its edges from the ledger.
func (s *Store) amounts(ctx context.Context, q UsageQuery, by []string, w usage.Interval) ([]keyed, error) {
	from, to := usage.NextHour(w.Start), usage.HourOf(w.End)
	if from >= to || slices.ContainsFunc(by, func(k string) bool { return !slices.Contains(kept, k) }) {
		return s.ledgerAmounts(ctx, q, by, w)
	}
	out, err := s.hourlyAmounts(ctx, q, by, usage.Interval{Start: from, End: to})
	if err != nil {
		return nil, err
	}
	for _, edge := range []usage.Interval{{Start: w.Start, End: from}, {Start: to, End: w.End}} {
		if edge.Milliseconds() == 0 {
			continue
		}
		more, err := s.ledgerAmounts(ctx, q, by, edge)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

func (s *Store) hourlyAmounts(ctx context.Context, q UsageQuery, by []string, w usage.Interval) ([]keyed, error) {
	where, args := scopeOf(q, "", "hour >= ? AND hour < ?", w.Start, w.End)
	return s.sums(ctx, by, "usage_hours", where, args, "sum(launch_ms)", "sum(run_ms)", "sum(drain_ms)", "sum(credit_ms)", "sum(adjust_ms)", "sum(row_count)")
}

// ledgerAmounts is the same sum as usage.AmountsOf makes, done by the database.
func (s *Store) ledgerAmounts(ctx context.Context, q UsageQuery, by []string, w usage.Interval) ([]keyed, error) {
	least, greatest := "min", "max" // SQLite's, of several arguments
	if s.postgres {
		least, greatest = "least", "greatest"
	}
	stop := fmt.Sprintf("%s(l.start_at, CASE WHEN l.stopping_at = 0 OR l.stopping_at > l.end_at THEN l.end_at ELSE l.stopping_at END)", greatest)
	run := fmt.Sprintf("%s(l.start_at, CASE WHEN l.running_at = 0 OR l.running_at > %[2]s THEN %[2]s ELSE l.running_at END)", greatest, stop)
	cut := func(kind schema.LedgerKind, a, b string) string {
		return fmt.Sprintf("sum(CASE WHEN l.kind = '%s' THEN %s(0, %s(%s, %d) - %s(%s, %d)) ELSE 0 END)", kind, greatest, least, b, w.End, greatest, a, w.Start)
	}
	in := fmt.Sprintf("l.end_at >= %d AND l.end_at < %d", w.Start, w.End)
	from := "ledger l"
	if slices.Contains(by, "rack") {
		from += " LEFT JOIN servers s ON s.id = l.server"
	}
	// A row of no length at the window's begin, as an adjustment is, belongs to it.
	where, args := scopeOf(q, "l.", "l.end_at >= ? AND l.start_at < ?", w.Start, w.End)
	out, err := s.sums(ctx, by, from, where, args, cut(schema.LedgerUsage, "l.start_at", run), cut(schema.LedgerUsage, run, stop), cut(schema.LedgerUsage, stop, "l.end_at"),
		cut(schema.LedgerCredit, "l.start_at", "l.end_at"), fmt.Sprintf("sum(CASE WHEN l.kind = '%s' AND %s THEN l.amount ELSE 0 END)", schema.LedgerAdjustment, in), "sum(CASE WHEN "+in+" THEN 1 ELSE 0 END)")
	return slices.DeleteFunc(out, func(k keyed) bool { return k.Amounts == usage.Amounts{} }), err
}

// scopeOf narrows a statement to the query's tenant and project.
func scopeOf(q UsageQuery, prefix, where string, args ...any) (string, []any) {
	if q.Tenant != "" {
		where, args = where+" AND "+prefix+"tenant = ?", append(args, q.Tenant)
	}
	if q.Project != "" {
		where, args = where+" AND "+prefix+"project = ?", append(args, q.Project)
	}
	return where, args
}

// sums groups by the keys' columns. The values are Launch, Run, Drain, Credit, Adjust and Rows.
func (s *Store) sums(ctx context.Context, by []string, from, where string, args []any, values ...string) ([]keyed, error) {
	prefix := ""
	if strings.HasPrefix(from, "ledger l") {
		prefix = "l."
	}
	var columns, group []string
	for i, k := range by {
		c := prefix + k
		if k == "rack" {
			c = "coalesce(s.rack, '')"
		}
		columns = append(columns, c)
		group = append(group, fmt.Sprint(i+1))
	}
	for _, v := range values {
		columns = append(columns, "CAST(coalesce("+v+", 0) AS BIGINT)") // PostgreSQL's sum of bigint is numeric
	}
	query := "SELECT " + strings.Join(columns, ", ") + " FROM " + from + " WHERE " + where
	if len(group) > 0 {
		query += " GROUP BY " + strings.Join(group, ", ")
	}
	rows, err := s.read(ctx).Raw(query, args...).Rows()
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []keyed
	for rows.Next() {
		k := keyed{keys: make([]string, len(by))}
		dst := make([]any, 0, len(columns))
		for i := range k.keys {
			dst = append(dst, &k.keys[i])
		}
		dst = append(dst, &k.Launch, &k.Run, &k.Drain, &k.Credit, &k.Adjust, &k.Rows)
		if err := rows.Scan(dst...); err != nil {
			return nil, err
		}
		out = append(out, k)
	}
	return out, rows.Err()
}

// liveSum is how many accelerators live attempts hold since the same moments, with the values of what they were grouped by, in
// that order. It is no part of the ledger: what ends is there from then on, with the same part in every past period.
type liveSum struct {
	keys []string
	row  schema.LedgerRow // as the ledger would have it of one of them, if it ended at To
	n    int64
}

// in is what they amount to within w.
func (l liveSum) in(w usage.Interval) usage.Amounts { return usage.AmountsOf(l.row, w).Times(l.n) }

// liveColumns are where a key is found of what is live.
var liveColumns = map[string]string{"tenant": "j.tenant", "project": "j.project", "spec": "j.spec", "model": "j.model", "region": "al.region", "outcome": "''", "server": "al.server", "rack": "s.rack", "job": "al.job", "attempt": "CAST(al.attempt AS VARCHAR)"}

// liveUsage sums live allocations by columns; job "" = of all jobs. Accelerators are counted by the database before anything is
// looked up of them: most of a job's are of one server and one moment.
func (s *Store) liveUsage(ctx context.Context, q UsageQuery, job string, by []string) ([]liveSum, error) {
	where, args := "released_at = 0 AND allocated_at < ?", []any{q.To}
	if job != "" {
		where, args = where+" AND job = ?", append(args, job)
	}
	from := "(SELECT job, attempt, server, region, allocated_at, count(*) AS n FROM allocations WHERE " + where + " GROUP BY job, attempt, server, region, allocated_at) al JOIN jobs j ON j.id = al.job JOIN attempts t ON t.job = al.job AND t.attempt = al.attempt"
	var columns []string
	for _, k := range by {
		if k == "rack" {
			from += " JOIN servers s ON s.id = al.server"
		}
		columns = append(columns, liveColumns[k])
	}
	scope, more := scopeOf(q, "j.", "1 = 1")
	columns = append(columns, "al.allocated_at", "t.running_at", "t.stopping_at")
	var group []string
	for i := range columns {
		group = append(group, fmt.Sprint(i+1))
	}
	rows, err := s.read(ctx).Raw("SELECT "+strings.Join(columns, ", ")+", CAST(sum(al.n) AS BIGINT) FROM "+from+" WHERE "+scope+" GROUP BY "+strings.Join(group, ", "), append(args, more...)...).Rows()
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []liveSum
	for rows.Next() {
		l := liveSum{keys: make([]string, len(by)), row: schema.LedgerRow{Kind: schema.LedgerUsage, End: q.To}}
		dst := make([]any, 0, len(by)+4)
		for i := range l.keys {
			dst = append(dst, &l.keys[i])
		}
		if err := rows.Scan(append(dst, &l.row.Start, &l.row.Running, &l.row.Stopping, &l.n)...); err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, rows.Err()
}

// LiveJob is what a job that holds accelerators has used so far, and uses an hour.
type LiveJob struct {
	Job, Name, Tenant, Project, Spec string
	Attempt                          int
	State                            schema.JobState
	Accelerators                     int
	Since                            schema.Instant // of this attempt's allocation
	usage.Amounts                                   // of this attempt, until now
	Price                            *usage.Price   // an accelerator's hour now; nil = none is set
	IdleSince                        schema.Instant
	ReclaimAt                        schema.Instant // when it is stopped at the earliest if it goes on being idle; 0 = never
}

// LiveUsage is what runs now, the most accelerators first; job "" = all jobs.
func (s *Store) LiveUsage(ctx context.Context, tenant, project, job string) ([]LiveJob, error) {
	now := s.Now()
	sums, err := s.liveUsage(ctx, UsageQuery{Tenant: tenant, Project: project, To: now + 1}, job, []string{"job", "tenant", "project", "spec", "attempt"})
	if err != nil {
		return nil, err
	}
	prices, err := s.Prices(ctx)
	if err != nil {
		return nil, err
	}
	byJob := map[string]*LiveJob{}
	for _, l := range sums {
		l.row.End = max(now, l.row.Start)
		id := l.keys[0]
		j := byJob[id]
		if j == nil {
			j = &LiveJob{Job: id, Tenant: l.keys[1], Project: l.keys[2], Spec: l.keys[3], Since: l.row.Start, Price: prices.At(l.keys[3], now)}
			if j.Attempt, err = strconv.Atoi(l.keys[4]); err != nil {
				return nil, err
			}
			byJob[id] = j
		}
		j.Accelerators += int(l.n)
		j.Add(l.in(usage.Interval{Start: l.row.Start, End: l.row.End + 1}))
	}
	ids := make([]string, 0, len(byJob))
	for id := range byJob {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for part := range slices.Chunk(ids, 500) {
		var jobs []struct {
			ID, Name string
			State    schema.JobState
		}
		if err := s.read(ctx).Raw("SELECT id, name, state FROM jobs WHERE id IN ?", part).Scan(&jobs).Error; err != nil {
			return nil, err
		}
		for _, j := range jobs {
			byJob[j.ID].Name, byJob[j.ID].State = j.Name, j.State
		}
		idle, err := s.idleSince(ctx, part)
		if err != nil {
			return nil, err
		}
		for id, at := range idle {
			byJob[id].IdleSince = at
		}
	}
	out := make([]LiveJob, 0, len(ids))
	for _, id := range ids {
		out = append(out, *byJob[id])
	}
	slices.SortStableFunc(out, func(a, b LiveJob) int { return b.Accelerators - a.Accelerators })
	return out, s.setReclaims(ctx, out)
}

// Ledger are rows in the order they were made, for audits and tests.
func (s *Store) Ledger(ctx context.Context, job string) ([]schema.LedgerRow, error) {
	q := s.read(ctx).Order("end_at, id")
	if job != "" {
		q = q.Where("job = ?", job)
	}
	var out []schema.LedgerRow
	return out, q.Find(&out).Error
}
