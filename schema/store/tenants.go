package store

import (
	"context"
	"fmt"

	"gpupool/schema"
)

// MaxQuota bounds guaranteed and limit: more accelerators than any pool has.
const MaxQuota = 1_000_000

// MaxIdle bounds idle limits, in ms: a year.
const MaxIdle = 366 * 24 * 60 * 60 * 1000

// MaxWeight is the largest weight in fair share.
const MaxWeight = 1_000_000

// AccountChange changes what holds for a tenant or project; nil fields stay.
type AccountChange struct {
	Weight, MaxRunningJobs, MaxPriority *int
	IdleWarn, IdleReclaim               *int64 // ms; 0 = never, schema.Inherit
}

func (c AccountChange) apply(a *schema.Account) error {
	if w := c.Weight; w != nil {
		if *w < 1 || *w > MaxWeight {
			return schema.Invalid("weight", *w, fmt.Sprintf("1 to %d", MaxWeight))
		}
		a.Weight = *w
	}
	if n := c.MaxRunningJobs; n != nil {
		if *n < 0 || *n > MaxQuota {
			return schema.Invalid("max_running_jobs", *n, fmt.Sprintf("1 to %d, or 0 for no limit", MaxQuota))
		}
		a.MaxRunningJobs = *n
	}
	if p := c.MaxPriority; p != nil {
		if err := checkPriority("max_priority", *p); err != nil {
			return err
		}
		a.MaxPriority = *p
	}
	for _, f := range []struct {
		field string
		is    *int64
		to    *int64
	}{{"idle_warn_ms", c.IdleWarn, &a.IdleWarn}, {"idle_reclaim_ms", c.IdleReclaim, &a.IdleReclaim}} {
		if f.is == nil {
			continue
		}
		if *f.is < schema.Inherit || *f.is > MaxIdle {
			return schema.Invalid(f.field, *f.is, fmt.Sprintf("1 to %d ms, 0 for never, or %d for what holds above it", int64(MaxIdle), schema.Inherit))
		}
		*f.to = *f.is
	}
	if a.IdleReclaim > 0 && a.IdleWarn >= a.IdleReclaim {
		return schema.Invalid("idle_reclaim_ms", a.IdleReclaim, fmt.Sprintf("more than idle_warn_ms, which is %d: nobody is stopped unwarned", a.IdleWarn))
	}
	return nil
}

// CreateTenant makes a tenant of weight 1. maxPriority caps its jobs' priority, 0 to MaxPriority.
func (s *Store) CreateTenant(ctx context.Context, by, name string, maxPriority int) (schema.Tenant, error) {
	if !NamePattern.MatchString(name) {
		return schema.Tenant{}, schema.Invalid("name", name, nameRight)
	}
	if err := checkPriority("max_priority", maxPriority); err != nil {
		return schema.Tenant{}, err
	}
	var t schema.Tenant
	err := s.Write(ctx, func(tx *Tx) error {
		t = schema.Tenant{Name: name, Account: schema.Account{Weight: 1, MaxPriority: maxPriority, IdleWarn: schema.Inherit, IdleReclaim: schema.Inherit}, CreatedAt: tx.now}
		n, err := tx.exec("INSERT INTO tenants (name, max_priority, created_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", t.Name, t.MaxPriority, t.CreatedAt)
		if err == nil && n == 0 {
			return schema.Conflict(fmt.Sprintf("there is a tenant %q already", name), "list the tenants")
		}
		tx.policyChanged(name, name, by, "tenant created", t)
		return err
	})
	return t, err
}

// SetTenant changes what holds for a tenant. A cap of priorities holds for the jobs that wait already.
func (s *Store) SetTenant(ctx context.Context, by, name string, change AccountChange) (schema.Tenant, error) {
	var t schema.Tenant
	err := s.Write(ctx, func(tx *Tx) error {
		if err := one(tx.lock(&t, "name = ?", name), "tenant", name); err != nil {
			return err
		}
		if err := change.apply(&t.Account); err != nil {
			return err
		}
		tx.policyChanged(name, name, by, "tenant changed", t)
		if err := tx.db.Save(&t).Error; err != nil {
			return err
		}
		var projects []string
		if err := tx.db.Raw("SELECT name FROM projects WHERE tenant = ? ORDER BY name", name).Scan(&projects).Error; err != nil {
			return err
		}
		for _, p := range projects {
			if err := tx.recap(name, p); err != nil {
				return err
			}
		}
		return nil
	})
	return t, err
}

// SetProject changes what holds for a project, as SetTenant does for a tenant.
func (s *Store) SetProject(ctx context.Context, by, tenant, name string, change AccountChange) (schema.Project, error) {
	var p schema.Project
	err := s.Write(ctx, func(tx *Tx) error {
		if err := one(tx.lock(&p, "tenant = ? AND name = ?", tenant, name), "project of tenant "+tenant, name); err != nil {
			return err
		}
		if err := change.apply(&p.Account); err != nil {
			return err
		}
		tx.policyChanged(tenant, tenant, by, "project changed", p)
		if err := tx.db.Save(&p).Error; err != nil {
			return err
		}
		return tx.recap(tenant, name)
	})
	return p, err
}

// priorityCap is the highest priority that jobs of a project may wait with; a CodeNotFound or CodeInvalid error where there is
// no such tenant or project.
func (tx *Tx) priorityCap(tenant, project string) (int, error) {
	var found []struct {
		Tenant  int
		Project *int
	}
	if err := tx.db.Raw("SELECT t.max_priority AS tenant, p.max_priority AS project FROM tenants t LEFT JOIN projects p ON p.tenant = t.name AND p.name = ? WHERE t.name = ?", project, tenant).Scan(&found).Error; err != nil {
		return 0, err
	}
	switch {
	case len(found) == 0:
		return 0, schema.NotFound("tenant", tenant)
	case found[0].Project == nil:
		return 0, &schema.Error{Code: schema.CodeInvalid, Field: "project", Message: fmt.Sprintf("tenant %s has no project %q", tenant, project), Hint: "a tenant admin makes it"}
	}
	return min(found[0].Tenant, *found[0].Project), nil
}

// recap gives a project's waiting jobs the priority that the caps allow of what each asked for.
func (tx *Tx) recap(tenant, project string) error {
	most, err := tx.priorityCap(tenant, project)
	if err != nil {
		return err
	}
	const capped = "CASE WHEN asked_priority < ? THEN asked_priority ELSE ? END"
	_, err = tx.exec("UPDATE jobs SET priority = "+capped+", version = version + 1 WHERE tenant = ? AND project = ? AND state = ? AND ended_at = 0 AND priority <> "+capped,
		most, most, tenant, project, schema.JobQueued, most, most)
	return err
}

func checkPriority(field string, p int) error {
	if p < 0 || p > MaxPriority {
		return schema.Invalid(field, p, fmt.Sprintf("0 to %d", MaxPriority))
	}
	return nil
}

// Tenant finds one by name.
func (s *Store) Tenant(ctx context.Context, name string) (schema.Tenant, error) {
	var t schema.Tenant
	return t, one(s.read(ctx).Where("name = ?", name).Take(&t).Error, "tenant", name)
}

// Tenants lists by name.
func (s *Store) Tenants(ctx context.Context) ([]schema.Tenant, error) {
	var out []schema.Tenant
	return out, s.read(ctx).Order("name").Find(&out).Error
}

// CreateProject makes a project of a tenant.
func (s *Store) CreateProject(ctx context.Context, by, tenant, name string) (schema.Project, error) {
	if !NamePattern.MatchString(name) {
		return schema.Project{}, schema.Invalid("name", name, nameRight)
	}
	var p schema.Project
	err := s.Write(ctx, func(tx *Tx) error {
		if err := tx.hasProject(tenant, ""); err != nil {
			return err
		}
		p = schema.Project{Tenant: tenant, Name: name, Account: schema.Account{Weight: 1, MaxPriority: MaxPriority, IdleWarn: schema.Inherit, IdleReclaim: schema.Inherit}, CreatedAt: tx.now}
		n, err := tx.exec("INSERT INTO projects (tenant, name, created_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", p.Tenant, p.Name, p.CreatedAt)
		if err == nil && n == 0 {
			return schema.Conflict(fmt.Sprintf("tenant %s has a project %q already", tenant, name), "list its projects")
		}
		tx.policyChanged(tenant, tenant, by, "project created", p)
		return err
	})
	return p, err
}

// Projects of a tenant by name; of all tenants where it is empty.
func (s *Store) Projects(ctx context.Context, tenant string) ([]schema.Project, error) {
	q := s.read(ctx).Order("tenant, name")
	if tenant != "" {
		q = q.Where("tenant = ?", tenant)
	}
	var out []schema.Project
	return out, q.Find(&out).Error
}

// hasProject is a CodeNotFound error where the tenant, or the project (unless empty), does not exist.
func (tx *Tx) hasProject(tenant, project string) error {
	var n int64
	if err := tx.db.Raw("SELECT count(*) FROM tenants WHERE name = ?", tenant).Scan(&n).Error; err != nil {
		return err
	}
	if n == 0 {
		return schema.NotFound("tenant", tenant)
	}
	if project == "" {
		return nil
	}
	if err := tx.db.Raw("SELECT count(*) FROM projects WHERE tenant = ? AND name = ?", tenant, project).Scan(&n).Error; err != nil {
		return err
	}
	if n == 0 {
		return schema.NotFound("project of tenant "+tenant, project)
	}
	return nil
}

// SetQuota sets what a tenant (project empty) or a project may hold at once of one model. Counts are int64, so that a
// number too big is refused and never cut.
func (s *Store) SetQuota(ctx context.Context, by, tenant, project, model string, guaranteed, limit int64) (schema.Quota, error) {
	if !NamePattern.MatchString(model) {
		return schema.Quota{}, schema.Invalid("model", model, "an accelerator model, like nvidia-h100-80gb")
	}
	if limit < -1 || limit > MaxQuota {
		return schema.Quota{}, schema.Invalid("limit", limit, fmt.Sprintf("0 to %d accelerators, or -1 for no limit", MaxQuota))
	}
	if guaranteed < 0 || guaranteed > MaxQuota || limit >= 0 && guaranteed > limit {
		return schema.Quota{}, schema.Invalid("guaranteed", guaranteed, "0 to the limit")
	}
	var q schema.Quota
	err := s.Write(ctx, func(tx *Tx) error {
		if err := tx.hasProject(tenant, project); err != nil {
			return err
		}
		q = schema.Quota{Tenant: tenant, Project: project, Model: model, Guaranteed: int(guaranteed), Limit: int(limit), UpdatedAt: tx.now}
		if _, err := tx.exec(`INSERT INTO quotas (tenant, project, model, guaranteed, max, updated_at) VALUES (?, ?, ?, ?, ?, ?)
			ON CONFLICT (tenant, project, model) DO UPDATE SET guaranteed = excluded.guaranteed, max = excluded.max, updated_at = excluded.updated_at`,
			q.Tenant, q.Project, q.Model, q.Guaranteed, q.Limit, q.UpdatedAt); err != nil {
			return err
		}
		tx.policyChanged(tenant, tenant, by, "quota set", q)
		return nil
	})
	return q, err
}

// DeleteQuota removes one; a CodeNotFound error where there is none.
func (s *Store) DeleteQuota(ctx context.Context, by, tenant, project, model string) error {
	return s.Write(ctx, func(tx *Tx) error {
		n, err := tx.exec("DELETE FROM quotas WHERE tenant = ? AND project = ? AND model = ?", tenant, project, model)
		if err == nil && n == 0 {
			return schema.NotFound("quota of "+tenant+" "+project+" for", model)
		}
		tx.policyChanged(tenant, tenant, by, "quota removed", map[string]any{"project": project, "model": model})
		return err
	})
}

// Quotas lists by tenant, project and model; of one tenant where it is not empty.
func (s *Store) Quotas(ctx context.Context, tenant string) ([]schema.Quota, error) {
	q := s.read(ctx).Table("quotas").Order("tenant, project, model") // gorm takes quota for a plural
	if tenant != "" {
		q = q.Where("tenant = ?", tenant)
	}
	var out []schema.Quota
	return out, q.Find(&out).Error
}

// policyChanged tells the allocator, and whoever reads the audit, that the rules have changed.
func (tx *Tx) policyChanged(subject, tenant, by, act string, to any) {
	tx.Emit(schema.Event{Kind: schema.EventPolicyChanged, Subject: subject, Tenant: tenant, By: by}, map[string]any{"act": act, "to": to})
}
