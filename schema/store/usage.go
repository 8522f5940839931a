package store

import (
	"context"
	"slices"
	"sort"
	"strings"

	"gpupool/schema"
)

// UsageQuery asks for GPU time in [From, To); To 0 = now.
type UsageQuery struct {
	Tenant, Project string
	From, To        schema.Instant
	By              []string // of tenant, project, spec, model, server, job, region
	Live            bool     // also what live allocations have used until To
}

// UsageKeys are what usage can be grouped by.
var UsageKeys = []string{"tenant", "project", "spec", "model", "server", "job", "region"}

// UsageRow is the sum for one combination of keys.
type UsageRow struct {
	Keys          map[string]string `json:"keys"`
	GPUMillis     int64             `json:"gpu_milliseconds"` // sum over accelerators, credits subtracted
	RunningMillis int64             `json:"running_gpu_milliseconds"`
	LaunchMillis  int64             `json:"launch_gpu_milliseconds"` // allocated, not yet running
	DrainMillis   int64             `json:"drain_gpu_milliseconds"`  // asked to stop, not yet released
	CreditMillis  int64             `json:"credit_gpu_milliseconds"`
	Intervals     int               `json:"intervals"`
}

// GPUHours is GPUMillis in hours, for people; sums are made of the integers.
func (r UsageRow) GPUHours() float64 { return float64(r.GPUMillis) / 3_600_000 }

// Usage sums the ledger exactly, each interval cut to [From, To).
func (s *Store) Usage(ctx context.Context, q UsageQuery) ([]UsageRow, error) {
	for _, k := range q.By {
		if !slices.Contains(UsageKeys, k) {
			return nil, schema.Invalid("by", k, "some of "+strings.Join(UsageKeys, ", "))
		}
	}
	if q.To == 0 {
		q.To = s.Now()
	}
	if q.From > q.To {
		return nil, schema.Invalid("from", q.From, "before to")
	}
	var rows []schema.LedgerRow
	db := s.read(ctx).Where("end_at > ? AND start_at < ?", q.From, q.To)
	if q.Tenant != "" {
		db = db.Where("tenant = ?", q.Tenant)
	}
	if q.Project != "" {
		db = db.Where("project = ?", q.Project)
	}
	if err := db.Find(&rows).Error; err != nil {
		return nil, err
	}
	if q.Live {
		live, err := s.liveUsage(ctx, q)
		if err != nil {
			return nil, err
		}
		rows = append(rows, live...)
	}
	sums := map[string]*UsageRow{}
	for _, r := range rows {
		keys := make(map[string]string, len(q.By))
		var id strings.Builder
		for _, k := range q.By {
			v := map[string]string{"tenant": r.Tenant, "project": r.Project, "spec": r.Spec, "model": r.Model, "server": r.Server, "job": r.Job, "region": r.Region}[k]
			keys[k] = v
			id.WriteString(v + "\x00")
		}
		u := sums[id.String()]
		if u == nil {
			u = &UsageRow{Keys: keys}
			sums[id.String()] = u
		}
		u.add(r, q.From, q.To)
	}
	out := make([]UsageRow, 0, len(sums))
	ids := make([]string, 0, len(sums))
	for id := range sums {
		ids = append(ids, id)
	}
	sort.Strings(ids)
	for _, id := range ids {
		out = append(out, *sums[id])
	}
	return out, nil
}

func (u *UsageRow) add(r schema.LedgerRow, from, to schema.Instant) {
	cut := func(a, b schema.Instant) int64 { return max(0, int64(min(b, to)-max(a, from))) }
	running, stopping := r.Running, r.Stopping
	if running == 0 || running > r.End {
		running = r.End // it never ran
	}
	if stopping == 0 || stopping > r.End {
		stopping = r.End
	}
	if stopping < running {
		running = stopping
	}
	u.Intervals++
	if r.Kind == schema.LedgerCredit {
		u.CreditMillis += cut(r.Start, r.End)
		u.GPUMillis -= cut(r.Start, r.End)
		return
	}
	u.GPUMillis += cut(r.Start, r.End)
	u.LaunchMillis += cut(r.Start, running)
	u.RunningMillis += cut(running, stopping)
	u.DrainMillis += cut(stopping, r.End)
}

// liveUsage gives live allocations as rows that end at To.
func (s *Store) liveUsage(ctx context.Context, q UsageQuery) ([]schema.LedgerRow, error) {
	db := s.read(ctx).Table("allocations al").Joins("JOIN jobs j ON j.id = al.job").Joins("JOIN attempts t ON t.job = al.job AND t.attempt = al.attempt").
		Select("al.id, 'usage' AS kind, al.job, al.attempt, al.accelerator, al.server, j.tenant, j.project, j.spec, j.model, al.region, al.allocated_at AS start_at, t.running_at, t.stopping_at").
		Where("al.released_at = 0 AND al.allocated_at < ?", q.To)
	if q.Tenant != "" {
		db = db.Where("j.tenant = ?", q.Tenant)
	}
	if q.Project != "" {
		db = db.Where("j.project = ?", q.Project)
	}
	var rows []schema.LedgerRow
	if err := db.Scan(&rows).Error; err != nil {
		return nil, err
	}
	for i := range rows {
		rows[i].End = q.To
	}
	return rows, nil
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
