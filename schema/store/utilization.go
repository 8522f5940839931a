package store

import (
	"context"
	"maps"
	"slices"
	"time"

	"gpupool/schema"
	"gpupool/schema/usage"
)

// Sampled is what was seen of one accelerator's utilization over an interval.
type Sampled struct {
	Identity string // of the accelerator; see schema.IdentityOf
	usage.Interval
	Busy float64 // 0 to 1
}

// blind is how long a job's utilization may be unknown without ending its idleness: samples are kept every minute. What is
// not known to be idle is not idle, and nobody is stopped for it.
const blind = 3 * time.Minute

// AddUtilization keeps samples of one server's accelerators, ascending by time, for the attempts that held them. What is
// under idleBelow counts as idle. A moment is counted once: of what was counted before, by this process or another,
// nothing is added again.
func (s *Store) AddUtilization(ctx context.Context, server string, samples []Sampled, idleBelow float64) error {
	if len(samples) == 0 {
		return nil
	}
	whole := usage.Interval{Start: samples[0].Start, End: samples[0].End}
	for _, p := range samples {
		whole.Start, whole.End = min(whole.Start, p.Start), max(whole.End, p.End)
	}
	var held []struct {
		Identity, Job, Tenant, Project, Spec, Model, Region string
		Attempt                                             int
		AllocatedAt, ReleasedAt                             schema.Instant
	}
	if err := s.read(ctx).Raw(`SELECT a.identity, al.job, al.attempt, al.allocated_at, al.released_at, al.region, j.tenant, j.project, j.spec, j.model
		FROM accelerators a JOIN allocations al ON al.accelerator = a.id JOIN jobs j ON j.id = al.job
		WHERE a.server = ? AND al.server = ? AND al.released_at = 0 AND al.allocated_at < ? ORDER BY a.identity`, server, server, whole.End).Scan(&held).Error; err != nil {
		return err
	}
	type key struct {
		hour    schema.Instant
		job     string
		attempt int
	}
	type sum struct {
		tenant, project, spec, model, region string
		known, idle, busy                    int64
		until                                schema.Instant
		active                               schema.Instant // the last moment at which some accelerator was busy; 0 = none
		from                                 schema.Instant
		seen                                 int // accelerators of which something is known
	}
	bySerial := map[string][]Sampled{}
	for _, p := range samples {
		bySerial[p.Identity] = append(bySerial[p.Identity], p)
	}
	return s.Write(ctx, func(tx *Tx) error {
		// Under the server's lock, so that two processes that heard the same agent add one after the other.
		if _, err := tx.server(server); err != nil {
			return err
		}
		type last struct{ CoveredUntil, IdleSince schema.Instant }
		before, all := map[attemptOf]last{}, map[attemptOf]int{}
		sums := map[key]*sum{}
		for _, h := range held {
			a := attemptOf{h.Job, h.Attempt}
			b, ok := before[a]
			if !ok {
				if err := tx.db.Raw("SELECT covered_until, idle_since FROM utilization_hours WHERE job = ? AND attempt = ? AND server = ? ORDER BY hour DESC LIMIT 1", h.Job, h.Attempt, server).Scan(&b).Error; err != nil {
					return err
				}
				before[a] = b
			}
			all[a]++
			counted := map[*sum]bool{}
			for _, p := range bySerial[h.Identity] {
				in := p.Cut(usage.Interval{Start: max(h.AllocatedAt, b.CoveredUntil), End: whole.End})
				for hour, part := range usage.Hours(in.Start, in.End) {
					k := key{hour, h.Job, h.Attempt}
					v := sums[k]
					if v == nil {
						v = &sum{tenant: h.Tenant, project: h.Project, spec: h.Spec, model: h.Model, region: h.Region, from: part.Start}
						sums[k] = v
					}
					if !counted[v] {
						counted[v] = true
						v.seen++
					}
					ms := part.Milliseconds()
					v.known += ms
					v.busy += int64(p.Busy * 1e6 * float64(ms))
					v.from, v.until = min(v.from, part.Start), max(v.until, part.End)
					if p.Busy < idleBelow {
						v.idle += ms
					} else {
						v.active = max(v.active, part.End)
					}
				}
			}
		}
		keys := slices.SortedFunc(maps.Keys(sums), func(a, b key) int { return int(a.hour - b.hour) })
		for _, k := range keys {
			v, a := sums[k], attemptOf{k.job, k.attempt}
			b := before[a]
			idle := b.IdleSince
			if v.from.Sub(b.CoveredUntil) > blind {
				idle = 0 // begun anew: of the time between nothing is known
			}
			switch {
			case v.active >= v.until || v.seen < all[a]:
				idle = 0
			case v.active > 0:
				idle = v.active
			case idle == 0:
				idle = v.from
			}
			before[a] = last{v.until, idle}
			if _, err := tx.exec(`INSERT INTO utilization_hours (hour, job, attempt, server, tenant, project, spec, model, region, known_ms, idle_ms, busy_ppm_ms, covered_until, idle_since) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
				ON CONFLICT (hour, job, attempt, server) DO UPDATE SET known_ms = utilization_hours.known_ms + excluded.known_ms, idle_ms = utilization_hours.idle_ms + excluded.idle_ms,
				busy_ppm_ms = utilization_hours.busy_ppm_ms + excluded.busy_ppm_ms, covered_until = excluded.covered_until, idle_since = excluded.idle_since`,
				k.hour, k.job, k.attempt, server, v.tenant, v.project, v.spec, v.model, v.region, v.known, v.idle, v.busy, v.until, idle); err != nil {
				return err
			}
		}
		return nil
	})
}

// idleSince is since when live jobs do nothing on any of their accelerators: the latest moment at which one of their
// servers was busy. A job that is busy, or of which an accelerator is not known, or no longer, is not in it.
func (s *Store) idleSince(ctx context.Context, jobs []string) (map[string]schema.Instant, error) {
	var rows []struct {
		Job  string
		Idle schema.Instant // the latest
		Busy int64          // servers
	}
	if err := s.read(ctx).Raw(`SELECT x.job, max(x.idle) AS idle, sum(CASE WHEN x.idle = 0 THEN 1 ELSE 0 END) AS busy FROM (
		SELECT al.job, al.server, coalesce((SELECT CASE WHEN u.covered_until >= ? THEN u.idle_since ELSE 0 END FROM utilization_hours u WHERE u.job = al.job AND u.attempt = al.attempt AND u.server = al.server ORDER BY u.hour DESC LIMIT 1), 0) AS idle
		FROM allocations al WHERE al.released_at = 0 AND al.job IN ? GROUP BY al.job, al.attempt, al.server) x GROUP BY x.job`, s.Now().Add(-blind), jobs).Scan(&rows).Error; err != nil {
		return nil, err
	}
	out := map[string]schema.Instant{}
	for _, r := range rows {
		if r.Busy == 0 && r.Idle > 0 {
			out[r.Job] = r.Idle
		}
	}
	return out, nil
}

// Idle is a live job that has done nothing since a moment.
type Idle struct {
	LiveJob
	For     int64 // milliseconds
	Reclaim int64 // it is to be stopped after so many; 0 = never
}

// IdleJobs are live jobs that have done nothing for longer than they may without being told, by p and by their tenant's
// and project's own limits.
func (s *Store) IdleJobs(ctx context.Context, p usage.Policy) ([]Idle, error) {
	live, err := s.LiveUsage(ctx, "", "", "")
	if err != nil {
		return nil, err
	}
	live = slices.DeleteFunc(live, func(j LiveJob) bool { return j.IdleSince == 0 || j.State != schema.JobRunning })
	if len(live) == 0 {
		return nil, nil
	}
	accounts, err := s.accounts(ctx)
	if err != nil {
		return nil, err
	}
	now := s.Now()
	var out []Idle
	for _, j := range live {
		warn, reclaim := p.IdleLimits(accounts[j.Tenant], accounts[j.Tenant+"/"+j.Project])
		if d := int64(now - j.IdleSince); warn > 0 && d >= warn {
			out = append(out, Idle{j, d, reclaim})
		}
	}
	return out, nil
}

// setReclaims says of idle jobs when they are stopped at the earliest.
func (s *Store) setReclaims(ctx context.Context, live []LiveJob) error {
	if !slices.ContainsFunc(live, func(j LiveJob) bool { return j.IdleSince != 0 }) {
		return nil
	}
	p, err := s.ChargePolicy(ctx)
	if err != nil {
		return err
	}
	accounts, err := s.accounts(ctx)
	if err != nil {
		return err
	}
	for i := range live {
		j := &live[i]
		if _, reclaim := p.IdleLimits(accounts[j.Tenant], accounts[j.Tenant+"/"+j.Project]); j.IdleSince != 0 && reclaim > 0 {
			j.ReclaimAt = j.IdleSince + schema.Instant(reclaim)
		}
	}
	return nil
}

// accounts are those of tenants by their name and of projects by tenant/project.
func (s *Store) accounts(ctx context.Context) (map[string]schema.Account, error) {
	tenants, err := s.Tenants(ctx)
	if err != nil {
		return nil, err
	}
	projects, err := s.Projects(ctx, "")
	if err != nil {
		return nil, err
	}
	out := make(map[string]schema.Account, len(tenants)+len(projects))
	for _, t := range tenants {
		out[t.Name] = t.Account
	}
	for _, p := range projects {
		out[p.Tenant+"/"+p.Name] = p.Account
	}
	return out, nil
}

// TellIdle records, once for each stretch of idleness, that a job was told of it, and when it was.
func (s *Store) TellIdle(ctx context.Context, j Idle, reclaimAt schema.Instant) (told schema.Instant, err error) {
	err = s.Write(ctx, func(tx *Tx) error {
		n, err := tx.exec("INSERT INTO usage_warnings (subject, since, percent, at) VALUES (?, ?, 0, ?) ON CONFLICT DO NOTHING", "idle/"+j.Job, j.IdleSince, tx.now)
		if err != nil {
			return err
		}
		if n == 0 {
			return tx.db.Raw("SELECT at FROM usage_warnings WHERE subject = ? AND since = ? AND percent = 0", "idle/"+j.Job, j.IdleSince).Scan(&told).Error
		}
		told = tx.now
		tx.Emit(schema.Event{Kind: schema.EventJobIdle, Subject: j.Job, Job: j.Job, Tenant: j.Tenant}, map[string]any{"since": j.IdleSince, "accelerators": j.Accelerators, "reclaim_at": reclaimAt})
		return nil
	})
	return told, err
}
