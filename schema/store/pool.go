package store

import (
	"context"
	"time"

	"gorm.io/gorm"

	"gpupool/schema"
)

// Node is a server as the allocator sees it.
type Node struct {
	Server       schema.Server
	Cordons      []schema.Cordon
	Accelerators []schema.Accelerator
}

// inParts runs f over ids in pieces that both databases take as parameters.
func inParts(ids []string, f func(part []string) error) error {
	for len(ids) > 0 {
		n := min(len(ids), 500)
		if err := f(ids[:n]); err != nil {
			return err
		}
		ids = ids[n:]
	}
	return nil
}

// RegionServers are the ids of a region's servers.
func (s *Store) RegionServers(ctx context.Context, region string) ([]string, error) {
	var ids []string
	return ids, s.read(ctx).Raw("SELECT id FROM servers WHERE region = ? ORDER BY id", region).Scan(&ids).Error
}

// Nodes reads servers with their live cordons and present accelerators.
func (s *Store) Nodes(ctx context.Context, ids []string) ([]Node, error) {
	var out []Node
	err := inParts(ids, func(part []string) error {
		var servers []schema.Server
		var cordons []schema.Cordon
		var accs []schema.Accelerator
		db := s.read(ctx)
		if err := db.Where("id IN ?", part).Order("id").Find(&servers).Error; err != nil {
			return err
		}
		if err := db.Where("server IN ? AND lifted_at = 0", part).Order("at").Find(&cordons).Error; err != nil {
			return err
		}
		if err := db.Where("server IN ? AND removed_at = 0", part).Order("device_index, id").Find(&accs).Error; err != nil {
			return err
		}
		at := make(map[string]int, len(servers))
		for _, v := range servers {
			at[v.ID] = len(out)
			out = append(out, Node{Server: v})
		}
		for _, c := range cordons {
			n := &out[at[c.Server]]
			n.Cordons = append(n.Cordons, c)
		}
		for _, a := range accs {
			n := &out[at[a.Server]]
			n.Accelerators = append(n.Accelerators, a)
		}
		return nil
	})
	return out, err
}

// QueuedJobs are a region's queued jobs by submit order; only those of ids where ids is not nil.
func (s *Store) QueuedJobs(ctx context.Context, region string, ids []string) ([]schema.Job, error) {
	base := func() *gorm.DB {
		return s.read(ctx).Where("region = ? AND state = ? AND ended_at = 0", region, schema.JobQueued).Order("seq")
	}
	var out []schema.Job
	if ids == nil {
		return out, base().Find(&out).Error
	}
	err := inParts(ids, func(part []string) error {
		var rows []schema.Job
		if err := base().Where("id IN ?", part).Find(&rows).Error; err != nil {
			return err
		}
		out = append(out, rows...)
		return nil
	})
	return out, err
}

// LiveAttempt is an attempt that holds accelerators.
type LiveAttempt struct {
	Job     schema.Job
	Attempt schema.Attempt
	Places  []Place
}

// LiveAttempts are all of a region.
func (s *Store) LiveAttempts(ctx context.Context, region string) ([]LiveAttempt, error) {
	var rows []schema.Allocation
	if err := s.read(ctx).Where("region = ? AND released_at = 0", region).Order("job, server, accelerator").Find(&rows).Error; err != nil {
		return nil, err
	}
	var out []LiveAttempt
	at := map[string]int{}
	var ids []string
	for _, r := range rows {
		i, seen := at[r.Job]
		if !seen {
			i = len(out)
			at[r.Job] = i
			ids = append(ids, r.Job)
			out = append(out, LiveAttempt{})
		}
		ps := out[i].Places
		if n := len(ps); n == 0 || ps[n-1].Server != r.Server {
			ps = append(ps, Place{Server: r.Server})
		}
		ps[len(ps)-1].Accelerators = append(ps[len(ps)-1].Accelerators, r.Accelerator)
		out[i].Places = ps
	}
	err := inParts(ids, func(part []string) error {
		var jobs []schema.Job
		var attempts []schema.Attempt
		if err := s.read(ctx).Where("id IN ?", part).Find(&jobs).Error; err != nil {
			return err
		}
		if err := s.read(ctx).Where("job IN ? AND released_at = 0", part).Find(&attempts).Error; err != nil {
			return err
		}
		for _, j := range jobs {
			out[at[j.ID]].Job = j
		}
		for _, a := range attempts {
			out[at[a.Job]].Attempt = a
		}
		return nil
	})
	return out, err
}

// Policy is what the allocator is to keep to, all of it.
type Policy struct {
	Specs    []schema.Spec
	Tenants  []schema.Tenant
	Projects []schema.Project
	Quotas   []schema.Quota
	Windows  []schema.Window // that have not passed
	Stops    []schema.Stop   // in force
}

// Policy reads it.
func (s *Store) Policy(ctx context.Context) (p Policy, err error) {
	if p.Specs, err = s.Specs(ctx); err != nil {
		return p, err
	}
	if p.Tenants, err = s.Tenants(ctx); err != nil {
		return p, err
	}
	if p.Projects, err = s.Projects(ctx, ""); err != nil {
		return p, err
	}
	if p.Quotas, err = s.Quotas(ctx, ""); err != nil {
		return p, err
	}
	if p.Windows, err = s.Windows(ctx); err != nil {
		return p, err
	}
	p.Stops, err = s.Stops(ctx)
	return p, err
}

// EndedStates are the states of those of the jobs that have ended, by job.
func (s *Store) EndedStates(ctx context.Context, ids []string) (map[string]schema.JobState, error) {
	out := map[string]schema.JobState{}
	return out, inParts(ids, func(part []string) error {
		var rows []struct {
			ID    string
			State schema.JobState
		}
		if err := s.read(ctx).Raw("SELECT id, state FROM jobs WHERE id IN ? AND ended_at > 0", part).Scan(&rows).Error; err != nil {
			return err
		}
		for _, r := range rows {
			out[r.ID] = r.State
		}
		return nil
	})
}

// Used is the accelerator time of a project's jobs in an hour.
type Used struct {
	Tenant, Project, Model string
	At                     schema.Instant // the middle of the hour
	Milliseconds           int64
}

// PastUsage is what ended attempts have used in a region since a moment, by hours in their order.
func (s *Store) PastUsage(ctx context.Context, region string, since schema.Instant) ([]Used, error) {
	if err := s.CatchUpUsage(ctx); err != nil {
		return nil, err
	}
	var out []Used
	return out, s.read(ctx).Raw(`SELECT tenant, project, model, hour + ? AS at, CAST(sum(launch_ms + run_ms + drain_ms) AS BIGINT) AS milliseconds FROM usage_hours
		WHERE region = ? AND hour >= ? GROUP BY tenant, project, model, hour ORDER BY hour, tenant, project, model`, (30 * time.Minute).Milliseconds(), region, since).Scan(&out).Error
}

// LiveAttempt is what a job holds now; nil where it holds nothing.
func (s *Store) LiveAttempt(ctx context.Context, job string) (*LiveAttempt, error) {
	var rows []schema.Allocation
	if err := s.read(ctx).Where("job = ? AND released_at = 0", job).Order("server, accelerator").Find(&rows).Error; err != nil || len(rows) == 0 {
		return nil, err
	}
	out := &LiveAttempt{}
	for _, r := range rows {
		if n := len(out.Places); n == 0 || out.Places[n-1].Server != r.Server {
			out.Places = append(out.Places, Place{Server: r.Server})
		}
		last := &out.Places[len(out.Places)-1]
		last.Accelerators = append(last.Accelerators, r.Accelerator)
	}
	if err := one(s.read(ctx).Where("id = ?", job).Take(&out.Job).Error, "job", job); err != nil {
		return nil, err
	}
	return out, one(s.read(ctx).Where("job = ? AND attempt = ?", job, rows[0].Attempt).Take(&out.Attempt).Error, "attempt of job", job)
}
