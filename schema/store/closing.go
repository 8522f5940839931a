package store

import (
	"context"
	"time"

	"gpupool/schema"
	"gpupool/schema/usage"
)

// ClosedMonth is the data of EventUsageClosed: a tenant's month as its statement has it, for who bills from events.
type ClosedMonth struct {
	Month    string         `json:"month"` // 2026-11
	Zone     string         `json:"zone"`
	From     schema.Instant `json:"from"`
	To       schema.Instant `json:"to"`
	Charged  int64          `json:"charged_gpu_ms"`
	Projects []ClosedUse    `json:"projects"`
}

// ClosedUse is what a project used of a spec. Cost is in millionths of Currency; absent where a part has no price.
type ClosedUse struct {
	Project string `json:"project"`
	Spec    string `json:"spec"`
	Model   string `json:"model"`
	usage.Amounts
	Charged  int64  `json:"charged_gpu_ms"`
	Cost     *int64 `json:"cost_micros,omitempty"`
	Currency string `json:"currency,omitempty"`
}

// toldBack is how many months back it is looked for closed ones that nobody was told of: the pool may have been down.
const toldBack = 12

// TellClosedMonths tells, once for each month and tenant that used or was credited anything, that the month is closed: its sums
// don't change any more.
func (s *Store) TellClosedMonths(ctx context.Context) (told int, err error) {
	p, err := s.ChargePolicy(ctx)
	if err != nil {
		return 0, err
	}
	zone, err := time.LoadLocation(p.Zone)
	if err != nil {
		return 0, err
	}
	now, err := s.Metered(ctx)
	if err != nil {
		return 0, err
	}
	end := p.OpenFrom(now, zone)
	for range toldBack {
		begin := schema.At(end.Time().In(zone).AddDate(0, -1, 0))
		var known int64
		if err := s.read(ctx).Raw("SELECT count(*) FROM usage_warnings WHERE subject = ? AND since = ? AND percent = 0", monthClosed, begin).Scan(&known).Error; err != nil || known > 0 {
			return told, err
		}
		n, err := s.tellClosed(ctx, usage.Interval{Start: begin, End: end}, zone)
		told += n
		if err != nil {
			return told, err
		}
		end = begin
	}
	return told, nil
}

const monthClosed = "closed"

func (s *Store) tellClosed(ctx context.Context, m usage.Interval, zone *time.Location) (told int, err error) {
	rows, err := s.Usage(ctx, UsageQuery{From: m.Start, To: m.End, By: []string{"tenant", "project", "spec", "model"}})
	if err != nil {
		return 0, err
	}
	tenants, months := []string{}, map[string]*ClosedMonth{}
	for _, r := range rows {
		t := r.Keys["tenant"]
		c := months[t]
		if c == nil {
			c = &ClosedMonth{Month: m.Start.Time().In(zone).Format("2006-01"), Zone: zone.String(), From: m.Start, To: m.End}
			months[t], tenants = c, append(tenants, t)
		}
		c.Charged += r.Charged()
		c.Projects = append(c.Projects, ClosedUse{Project: r.Keys["project"], Spec: r.Keys["spec"], Model: r.Keys["model"], Amounts: r.Amounts, Charged: r.Charged(), Cost: r.Cost, Currency: r.Currency})
	}
	return len(tenants), s.Write(ctx, func(tx *Tx) error {
		n, err := tx.exec("INSERT INTO usage_warnings (subject, since, percent, at) VALUES (?, ?, 0, ?) ON CONFLICT DO NOTHING", monthClosed, m.Start, tx.now)
		if err != nil || n == 0 {
			return err // another process told it
		}
		for _, t := range tenants {
			tx.Emit(schema.Event{Kind: schema.EventUsageClosed, Subject: t, Tenant: t}, months[t])
		}
		return nil
	})
}
