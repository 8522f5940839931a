package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"gorm.io/gorm"

	"gpupool/schema"
)

// Node is a server as the allocator sees it.
type Node struct {
	Server       schema.Server
	Lacks        schema.Ability // what jobs on it can't have
	Cordons      []schema.Cordon
	Accelerators []schema.Accelerator
	Held         []schema.HeldFault // what an open breaker keeps from being acted on
}

// RegionServers are the ids of a region's servers.
func (s *Store) RegionServers(ctx context.Context, region string) ([]string, error) {
	var ids []string
	return ids, s.read(ctx).Raw("SELECT id FROM servers WHERE region = ? ORDER BY id", region).Scan(&ids).Error
}

// Nodes reads servers with their live cordons, present accelerators and faults that are held back, by id. Of accelerators it reads what decides about
// them: id, model, index, health and whether they are installed.
func (s *Store) Nodes(ctx context.Context, ids []string) ([]Node, error) {
	var out []Node
	for part := range slices.Chunk(slices.Sorted(slices.Values(ids)), 1000) { // with what they hold they are many rows
		var servers []schema.Server
		var cordons []schema.Cordon
		db := s.read(ctx)
		if err := db.Where(among{"id", part}).Order("id").Find(&servers).Error; err != nil {
			return nil, err
		}
		if err := db.Where("lifted_at = 0").Where(among{"server", part}).Order("at").Find(&cordons).Error; err != nil {
			return nil, err
		}
		can, err := clustersCan(db)
		if err != nil {
			return nil, err
		}
		at := make(map[string]int, len(servers))
		for _, v := range servers {
			at[v.ID] = len(out)
			out = append(out, Node{Server: v, Lacks: v.Lacks(can[v.Cluster])})
		}
		for _, c := range cordons {
			n := &out[at[c.Server]]
			n.Cordons = append(n.Cordons, c)
		}
		q := db.Raw("SELECT id, server, model, device_index, health, health_why, installed_at FROM accelerators WHERE ? AND removed_at = 0 ORDER BY device_index, id", among{"server", part})
		if err := each(q, func(scan func(...any) error) error {
			var a schema.Accelerator
			if err := scan(&a.ID, &a.Server, &a.Model, &a.Index, &a.Health, &a.HealthWhy, &a.InstalledAt); err != nil {
				return err
			}
			n := &out[at[a.Server]]
			n.Accelerators = append(n.Accelerators, a)
			return nil
		}); err != nil {
			return nil, err
		}
		held, err := heldFaults(db, " AND ?", among{"f.server", part})
		if err != nil {
			return nil, err
		}
		for _, h := range held {
			n := &out[at[h.Server]]
			n.Held = append(n.Held, h)
		}
	}
	return out, nil
}

// clustersCan is what each cluster is set up for beside what is usual for its kind.
func clustersCan(db *gorm.DB) (map[string]schema.Ability, error) {
	out := map[string]schema.Ability{}
	return out, each(db.Raw("SELECT name, can FROM clusters WHERE can <> 0"), func(scan func(...any) error) error {
		var name string
		var can schema.Ability
		if err := scan(&name, &can); err != nil {
			return err
		}
		out[name] = can
		return nil
	})
}

// QueuedJobs are those of ids that are queued in a region, by submit order, with what decides about them; see scanJobs.
func (s *Store) QueuedJobs(ctx context.Context, region string, ids []string) (out []schema.Job, err error) {
	// Asked for by nothing but their ids: told more, PostgreSQL reads the region's whole queue where it believes that to be short.
	err = scanJobs(s.read(ctx), func(j schema.Job) {
		if j.Region == region && j.State == schema.JobQueued {
			out = append(out, j)
		}
	}, "?", among{"id", ids})
	slices.SortFunc(out, func(a, b schema.Job) int { return cmp.Compare(a.Seq, b.Seq) })
	return out, err
}

// QueuedAfter are a region's next queued jobs after the one of number seq, by submit order; none where there is none left.
func (s *Store) QueuedAfter(ctx context.Context, region string, seq int64, limit int) (out []schema.Job, err error) {
	err = scanJobs(s.read(ctx), func(j schema.Job) { out = append(out, j) }, "region = ? AND state = ? AND ended_at = 0 AND seq > ? ORDER BY seq LIMIT ?", region, schema.JobQueued, seq, limit)
	return out, err
}

// scanJobs reads of jobs what decides about them. Left out are texts, which may be long: command, environment, names, reason
// and cause; and how they went.
func scanJobs(db *gorm.DB, f func(schema.Job), where string, args ...any) error {
	return each(db.Raw(`SELECT id, seq, tenant, project, kind, spec, model, nodes, per_node, priority, asked_priority, preemptible, same, same_required, region, time_limit, max_queue, grace, not_before,
		held, held_by, coalesce(depends_on, ''), array_name, array_limit, needs, state, attempt, submitted_at FROM jobs WHERE `+where, args...), func(scan func(...any) error) error {
		var j schema.Job
		var after string
		if err := scan(&j.ID, &j.Seq, &j.Tenant, &j.Project, &j.Kind, &j.Spec, &j.Model, &j.Nodes, &j.PerNode, &j.Priority, &j.AskedPriority, &j.Preemptible, &j.Same, &j.SameRequired, &j.Region, &j.TimeLimit, &j.MaxQueue, &j.Grace, &j.NotBefore,
			&j.Held, &j.HeldBy, &after, &j.Array, &j.ArrayLimit, &j.Needs, &j.State, &j.Attempt, &j.SubmittedAt); err != nil {
			return err
		}
		if after != "" {
			if err := json.Unmarshal([]byte(after), &j.DependsOn); err != nil {
				return fmt.Errorf("what job %s depends on: %w", j.ID, err)
			}
		}
		f(j)
		return nil
	})
}

// LiveAttempt is an attempt that holds accelerators, of a job with what decides about it; see scanJobs.
type LiveAttempt struct {
	Job     schema.Job
	Attempt schema.Attempt
	Places  []Place
}

// LiveAttempts are all of a region, by job.
func (s *Store) LiveAttempts(ctx context.Context, region string) ([]LiveAttempt, error) {
	return s.live(ctx, "region = ?", region)
}

// LiveAttempt is what a job holds now; nil where it holds nothing.
func (s *Store) LiveAttempt(ctx context.Context, job string) (*LiveAttempt, error) {
	all, err := s.live(ctx, "job = ?", job)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &all[0], nil
}

func (s *Store) live(ctx context.Context, where string, arg any) ([]LiveAttempt, error) {
	var out []LiveAttempt
	at := map[string]int{}
	if err := each(s.read(ctx).Raw("SELECT job, server, accelerator FROM allocations WHERE "+where+" AND released_at = 0 ORDER BY job, server, accelerator", arg), func(scan func(...any) error) error {
		var job, server, accelerator string
		if err := scan(&job, &server, &accelerator); err != nil {
			return err
		}
		if n := len(out); n == 0 || out[n-1].Job.ID != job {
			at[job] = n
			out = append(out, LiveAttempt{Job: schema.Job{ID: job}})
		}
		l := &out[len(out)-1]
		if n := len(l.Places); n == 0 || l.Places[n-1].Server != server {
			l.Places = append(l.Places, Place{Server: server})
		}
		last := &l.Places[len(l.Places)-1]
		last.Accelerators = append(last.Accelerators, accelerator)
		return nil
	}); err != nil {
		return nil, err
	}
	ids := slices.Collect(maps.Keys(at))
	if err := scanJobs(s.read(ctx), func(j schema.Job) { out[at[j.ID]].Job = j }, "?", among{"id", ids}); err != nil {
		return nil, err
	}
	return out, each(s.read(ctx).Raw("SELECT job, attempt, epoch, allocated_at, running_at, stopping_at, stop_why, stop_for, checkpoint_at FROM attempts WHERE ? AND released_at = 0", among{"job", ids}), func(scan func(...any) error) error {
		var a schema.Attempt
		if err := scan(&a.Job, &a.Attempt, &a.Epoch, &a.AllocatedAt, &a.RunningAt, &a.StoppingAt, &a.StopWhy, &a.StopFor, &a.CheckpointAt); err != nil {
			return err
		}
		out[at[a.Job]].Attempt = a
		return nil
	})
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
	if len(ids) == 0 {
		return out, nil
	}
	return out, each(s.read(ctx).Raw("SELECT id, state FROM jobs WHERE ? AND ended_at > 0", among{"id", ids}), func(scan func(...any) error) error {
		var id string
		var state schema.JobState
		if err := scan(&id, &state); err != nil {
			return err
		}
		out[id] = state
		return nil
	})
}

// Used is the accelerator time of a project's jobs in a span of time.
type Used struct {
	Tenant, Project, Model string
	At                     schema.Instant // the middle of the span
	Milliseconds           int64
}

// PastUsage is what ended attempts have used in a region since a moment, in the order of time, by spans of whole hours.
func (s *Store) PastUsage(ctx context.Context, region string, since schema.Instant, span time.Duration) ([]Used, error) {
	if err := s.CatchUpUsage(ctx); err != nil {
		return nil, err
	}
	ms := max(span.Truncate(time.Hour), time.Hour).Milliseconds()
	var out []Used
	return out, s.read(ctx).Raw(`SELECT tenant, project, model, hour / ? * ? + ? AS at, CAST(sum(launch_ms + run_ms + drain_ms) AS BIGINT) AS milliseconds FROM usage_hours
		WHERE region = ? AND hour >= ? GROUP BY 1, 2, 3, 4 ORDER BY 4, 1, 2, 3`, ms, ms, ms/2, region, since).Scan(&out).Error
}
