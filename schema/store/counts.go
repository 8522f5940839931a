package store

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"gpupool/schema"
	"gpupool/schema/usage"
)

// CountsQuery asks for the four counts of each period.
type CountsQuery struct {
	Tenant, Project string // what the caller may see, or asks for
	By              string // of CountsKeys; "" = all together
	Periods         []usage.Period
	Queues          bool // also the time in which jobs waited: of all tenants, by region, model or all together
}

// CountsKeys are what the four counts can be given by.
var CountsKeys = []string{"spec", "tenant", "region", "model"}

// FourCounts are the counts of each period and key, the periods in order.
func (s *Store) FourCounts(ctx context.Context, q CountsQuery) ([]usage.Counts, error) {
	if q.By != "" && !slices.Contains(CountsKeys, q.By) {
		return nil, schema.Invalid("by", q.By, "one of "+strings.Join(CountsKeys, ", "))
	}
	if err := s.CatchUpUsage(ctx); err != nil {
		return nil, err
	}
	models := map[string]string{}
	if q.By == "spec" {
		specs, err := s.Specs(ctx)
		if err != nil {
			return nil, err
		}
		for _, sp := range specs {
			models[sp.Name] = sp.Model
		}
	}
	// Accelerators are idle for anybody: of one tenant's or one spec's wait that says nothing.
	q.Queues = q.Queues && q.Tenant == "" && q.Project == "" && (q.By == "" || q.By == "region" || q.By == "model")
	capacity, queues, err := s.capacity(ctx, q.Periods, q.Queues)
	if err != nil {
		return nil, err
	}
	of := map[string][]CapacityRow{}
	for _, r := range capacity {
		of[r.Period] = append(of[r.Period], r)
	}
	now := s.Now()
	var begun []usage.Period // as far as they have come
	for _, p := range q.Periods {
		if p.End = min(p.End, now+1); p.Milliseconds() > 0 {
			begun = append(begun, p)
		}
	}
	if len(begun) == 0 {
		return nil, nil
	}
	by := []string{"outcome"}
	if q.By != "" {
		by = append(by, q.By)
	}
	used, err := s.Usage(ctx, UsageQuery{Tenant: q.Tenant, Project: q.Project, By: by, Live: true, Periods: begun})
	if err != nil {
		return nil, err
	}
	usedIn := map[string][]UsageRow{}
	for _, r := range used {
		usedIn[r.Keys["period"]] = append(usedIn[r.Keys["period"]], r)
	}
	var out []usage.Counts
	for _, p := range begun {
		rows, err := s.countsIn(ctx, q, p, now, models, usedIn[p.Name], of[p.Name], queues[p.Name])
		if err != nil {
			return nil, err
		}
		out = append(out, rows...)
	}
	return out, nil
}

func (s *Store) countsIn(ctx context.Context, q CountsQuery, p usage.Period, now schema.Instant, models map[string]string, used []UsageRow, capacity []CapacityRow, queues map[CapacityKey]usage.Queue) ([]usage.Counts, error) {
	sums := map[string]*usage.Counts{}
	at := func(key string) *usage.Counts {
		if sums[key] == nil {
			sums[key] = &usage.Counts{Period: p.Name, Key: key, Jobs: map[string]int64{}, GPU: map[string]int64{}, WaitBy: map[string]usage.Waits{}}
		}
		return sums[key]
	}
	if q.By == "" {
		at("")
	}
	for _, r := range used {
		if r.Used() == 0 {
			continue
		}
		c := at(r.Keys[q.By])
		c.Allocated += r.Used()
		if o := r.Keys["outcome"]; o != "" {
			c.GPU[o] += r.Used()
		}
	}
	key := "''"
	if q.By != "" {
		key = q.By
	}
	if err := s.ends(ctx, q, p.Interval, at); err != nil {
		return nil, err
	}
	if err := s.utilization(ctx, q, p.Interval, now, key, at); err != nil {
		return nil, err
	}
	if err := s.waits(ctx, q, p, key, func(k string) *usage.Counts { return at(k) }); err != nil {
		return nil, err
	}
	if now.Sub(p.End) < time.Minute { // it reaches to now, as whoever asked read the clock
		if err := s.waiting(ctx, q, now, key, at); err != nil {
			return nil, err
		}
	}
	for _, r := range capacity {
		switch q.By {
		case "region", "model":
			key := r.Region
			if q.By == "model" {
				key = r.Model
			}
			at(key).Capacity.Add(r.Balance)
		case "spec":
			for key, c := range sums {
				if models[key] == r.Model {
					c.Capacity.Add(r.Balance)
				}
			}
		default:
			for _, c := range sums {
				c.Capacity.Add(r.Balance)
			}
		}
	}
	if queues != nil {
		addQueues(q.By, queues, sums, at)
	}
	out := make([]usage.Counts, 0, len(sums))
	for _, c := range sums {
		out = append(out, *c)
	}
	slices.SortFunc(out, func(a, b usage.Counts) int { return strings.Compare(a.Key, b.Key) })
	return out, nil
}

// addQueues adds the queues of what the counts are by. Where nobody waited that is said too.
func addQueues(by string, queues map[CapacityKey]usage.Queue, sums map[string]*usage.Counts, at func(string) *usage.Counts) {
	for k, queue := range queues {
		switch {
		case by == "" && k == CapacityKey{}, by == "region" && k.Region != "":
			at(k.Region).Queue = &queue
		case by == "model" && k.Model != "":
			at(k.Model).Queue = &queue
		}
	}
	for _, c := range sums {
		if c.Queue == nil {
			c.Queue = &usage.Queue{}
		}
	}
}

// ends counts how jobs ended in w: whole hours from their sums, the edges from the jobs themselves.
func (s *Store) ends(ctx context.Context, q CountsQuery, w usage.Interval, at func(string) *usage.Counts) error {
	scope := UsageQuery{Tenant: q.Tenant, Project: q.Project}
	edges := []usage.Interval{w}
	if from, to := usage.NextHour(w.Start), usage.HourOf(w.End); from < to {
		edges = []usage.Interval{{Start: w.Start, End: from}, {Start: to, End: w.End}}
		var rows []struct {
			Key, Cause string
			N          int64
		}
		where, args := scopeOf(scope, "", "hour >= ? AND hour < ?", from, to)
		if err := s.read(ctx).Raw("SELECT "+cmp.Or(q.By, "''")+" AS key, cause, CAST(sum(jobs) AS BIGINT) AS n FROM job_hours WHERE "+where+" GROUP BY 1, 2", args...).Scan(&rows).Error; err != nil {
			return err
		}
		for _, r := range rows {
			at(r.Key).Jobs[r.Cause] += r.N
		}
	}
	key := "''"
	if q.By != "" {
		key = "j." + q.By
	}
	for _, edge := range edges {
		if edge.Milliseconds() == 0 {
			continue
		}
		var rows []struct {
			Key   string
			State schema.JobState
			Last  schema.AttemptOutcome
			N     int64
		}
		where, args := scopeOf(scope, "j.", "j.ended_at > 0 AND j.ended_at >= ? AND j.ended_at < ?", edge.Start, edge.End)
		if err := s.read(ctx).Raw("SELECT "+key+" AS key, j.state, coalesce(t.outcome, '') AS last, count(*) AS n FROM jobs j LEFT JOIN attempts t ON t.job = j.id AND t.attempt = j.attempt WHERE "+where+" GROUP BY 1, 2, 3", args...).Scan(&rows).Error; err != nil {
			return err
		}
		for _, r := range rows {
			at(r.Key).Jobs[usage.Cause(r.State, r.Last)] += r.N
		}
	}
	return nil
}

// utilization sums what was known of w. It is kept by the hour: of an hour that lies in w by a part, that part is taken.
func (s *Store) utilization(ctx context.Context, q CountsQuery, w usage.Interval, now schema.Instant, key string, at func(string) *usage.Counts) error {
	for _, part := range hourly(w, now) {
		var rows []struct {
			Key         string
			Known, Idle int64
		}
		where, args := scopeOf(UsageQuery{Tenant: q.Tenant, Project: q.Project}, "", "hour >= ? AND hour < ?", part.hours.Start, part.hours.End)
		if err := s.read(ctx).Raw("SELECT "+key+" AS key, CAST(sum(known_ms) AS BIGINT) AS known, CAST(sum(idle_ms) AS BIGINT) AS idle FROM utilization_hours WHERE "+where+" GROUP BY 1", args...).Scan(&rows).Error; err != nil {
			return err
		}
		for _, r := range rows {
			c := at(r.Key)
			c.Known += part.of(r.Known)
			c.Idle += part.of(r.Idle)
		}
	}
	return nil
}

// waits are exact percentiles by the nearest rank, of the attempts that were allocated in p, together and by reason.
func (s *Store) waits(ctx context.Context, q CountsQuery, p usage.Period, key string, at func(string) *usage.Counts) error {
	where, args := scopeOf(UsageQuery{Tenant: q.Tenant, Project: q.Project}, "", "allocated_at >= ? AND allocated_at < ?", p.Start, p.End)
	for _, reason := range []string{"''", "reason"} {
		var rows []struct {
			Key, Reason         string
			N, P50, P90, P99, M int64
		}
		query := fmt.Sprintf(`SELECT key, reason, max(n) AS n, max(CASE WHEN r = (n * 50 + 99) / 100 THEN w END) AS p50, max(CASE WHEN r = (n * 90 + 99) / 100 THEN w END) AS p90,
			max(CASE WHEN r = (n * 99 + 99) / 100 THEN w END) AS p99, max(w) AS m FROM (
			SELECT %[1]s AS key, %[2]s AS reason, wait_ms AS w, row_number() OVER (PARTITION BY %[1]s, %[2]s ORDER BY wait_ms) AS r, count(*) OVER (PARTITION BY %[1]s, %[2]s) AS n
			FROM attempt_facts WHERE %[3]s) x GROUP BY key, reason`, key, reason, where)
		if err := s.read(ctx).Raw(query, args...).Scan(&rows).Error; err != nil {
			return err
		}
		for _, r := range rows {
			w := usage.Waits{Attempts: r.N, P50: r.P50, P90: r.P90, P99: r.P99, Max: r.M}
			if r.Reason == "" {
				at(r.Key).Wait = w
			} else {
				at(r.Key).WaitBy[r.Reason] = w
			}
		}
	}
	return nil
}

// waiting counts the jobs that wait now, but for those that nobody wants started yet.
func (s *Store) waiting(ctx context.Context, q CountsQuery, now schema.Instant, key string, at func(string) *usage.Counts) error {
	where, args := scopeOf(UsageQuery{Tenant: q.Tenant, Project: q.Project}, "", "ended_at = 0 AND state = ? AND NOT held AND not_before <= ?", schema.JobQueued, now)
	long := now - usage.LongWait
	var rows []struct {
		Key              string
		Waiting, Overdue int64
	}
	if err := s.read(ctx).Raw("SELECT "+key+` AS key, count(*) AS waiting, sum(CASE WHEN submitted_at <= ? AND not_before <= ?
		AND coalesce((SELECT max(t.released_at) FROM attempts t WHERE t.job = jobs.id), 0) <= ? THEN 1 ELSE 0 END) AS overdue FROM jobs WHERE `+where+" GROUP BY 1",
		append([]any{long, long, long}, args...)...).Scan(&rows).Error; err != nil {
		return err
	}
	for _, r := range rows {
		c := at(r.Key)
		c.Waiting, c.Overdue = r.Waiting, r.Overdue
	}
	return nil
}

// Demand is what jobs of a model asked for, by the day on which they were submitted: GPU-milliseconds that they came to use.
type Demand struct {
	Day   int64 // days since 1970-01-01 UTC
	Model string
	GPU   int64
}

// DailyDemand is by whole days of UTC in [from, to).
func (s *Store) DailyDemand(ctx context.Context, from, to schema.Instant) ([]Demand, error) {
	var out []Demand
	return out, s.read(ctx).Raw(`SELECT j.submitted_at / 86400000 AS day, l.model, CAST(sum(l.end_at - l.start_at) AS BIGINT) AS gpu FROM ledger l JOIN jobs j ON j.id = l.job
		WHERE l.kind = ? AND l.end_at >= ? AND j.submitted_at >= ? AND j.submitted_at < ? GROUP BY 1, 2 ORDER BY 2, 1`, schema.LedgerUsage, from, from, to).Scan(&out).Error
}

// TraceRow is one ended job as `gpupool simulate` reads it.
type TraceRow struct {
	ID, Tenant, Project, Spec, Model string
	PerNode, Nodes, Priority         int
	Preemptible                      bool
	SubmittedAt                      schema.Instant
	RunMS, TimeLimit                 int64
}

// Trace are the jobs submitted in w that have run and ended, in submit order: their run is what all attempts held together.
func (s *Store) Trace(ctx context.Context, w usage.Interval) ([]TraceRow, error) {
	var out []TraceRow
	return out, s.read(ctx).Raw(`SELECT j.id, j.tenant, j.project, j.spec, j.model, j.per_node, j.nodes, j.priority, j.preemptible, j.submitted_at, j.time_limit,
		CAST(coalesce((SELECT sum(t.released_at - t.allocated_at) FROM attempts t WHERE t.job = j.id AND t.released_at > 0), 0) AS BIGINT) AS run_ms
		FROM jobs j WHERE j.submitted_at >= ? AND j.submitted_at < ? AND j.ended_at > 0 AND j.attempt > 0 ORDER BY j.seq`, w.Start, w.End).Scan(&out).Error
}

// Findings are the newest alarms of the books.
func (s *Store) Findings(ctx context.Context, limit int) ([]usage.Finding, error) {
	var out []usage.Finding
	return out, s.read(ctx).Raw("SELECT kind, accelerator, at, milliseconds, text FROM usage_findings ORDER BY found_at DESC, id LIMIT ?", limit).Scan(&out).Error
}
