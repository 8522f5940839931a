package store

import (
	"context"
	"maps"
	"slices"
)

// Limits are of a tenant and hold over all regions together, while each region's allocator decides by itself. So an
// allocator counts what the tenant holds elsewhere, as of a version; its commit moves the version, and one that rests on a
// version which another region has moved since is refused and decided again. Two regions can't both take what is left.

// Elsewhere is what a tenant's jobs hold in other regions, as of a version of its limits.
type Elsewhere struct {
	Version int64
	Holds   []HeldElsewhere
}

// HeldElsewhere is what a project's live jobs of one model, preemptible or not, hold.
type HeldElsewhere struct {
	Tenant, Project, Model string
	Preemptible            bool
	Accelerators, Jobs     int
}

// Elsewhere reads it for tenants, by tenant. The versions are read first: what is held is never older than they.
func (s *Store) Elsewhere(ctx context.Context, region string, tenants []string) (map[string]Elsewhere, error) {
	out := make(map[string]Elsewhere, len(tenants))
	return out, inParts(tenants, func(part []string) error {
		for _, t := range part {
			out[t] = Elsewhere{}
		}
		var versions []struct {
			Tenant  string
			Version int64
		}
		if err := s.read(ctx).Raw("SELECT tenant, version FROM limit_versions WHERE tenant IN ?", part).Scan(&versions).Error; err != nil {
			return err
		}
		for _, v := range versions {
			out[v.Tenant] = Elsewhere{Version: v.Version}
		}
		var holds []HeldElsewhere
		if err := s.read(ctx).Raw(`SELECT j.tenant, j.project, j.model, j.preemptible, count(*) AS accelerators, count(DISTINCT j.id) AS jobs
			FROM allocations al JOIN jobs j ON j.id = al.job WHERE al.released_at = 0 AND al.region <> ? AND j.tenant IN ? GROUP BY j.tenant, j.project, j.model, j.preemptible`, region, part).Scan(&holds).Error; err != nil {
			return err
		}
		for _, h := range holds {
			e := out[h.Tenant]
			e.Holds = append(e.Holds, h)
			out[h.Tenant] = e
		}
		return nil
	})
}

// takeLimits moves the versions of the limited tenants that starts are of, and says for which another region was first.
func (tx *Tx) takeLimits(starts []Start, w *world, known map[string]int64) (map[string]string, error) {
	tenants := map[string]bool{}
	for _, st := range starts {
		tenants[w.jobs[st.Job].Tenant] = true
	}
	behind := map[string]string{}
	for _, t := range slices.Sorted(maps.Keys(tenants)) { // in one order, so that two regions don't wait for each other
		version, limited := known[t]
		if !limited {
			continue
		}
		moved, err := tx.moveLimits(t, version)
		if err != nil {
			return nil, err
		}
		if !moved {
			behind[t] = "another region has started jobs of tenant " + t + ", one of its jobs got a longer limit or its budget was changed, at this moment"
		}
	}
	return behind, nil
}

// limitsChanged refuses what an allocator has decided by a tenant's limits as they were and not yet committed.
func (tx *Tx) limitsChanged(tenant string) error {
	_, err := tx.exec("INSERT INTO limit_versions (tenant, version) VALUES (?, 1) ON CONFLICT (tenant) DO UPDATE SET version = limit_versions.version + 1", tenant)
	return err
}

// moveLimits moves the version of a tenant's limits on from the one that is known; false where another was first.
func (tx *Tx) moveLimits(tenant string, known int64) (bool, error) {
	q, args := "UPDATE limit_versions SET version = version + 1 WHERE tenant = ? AND version = ?", []any{tenant, known}
	if known == 0 {
		q, args = "INSERT INTO limit_versions (tenant, version) VALUES (?, 1) ON CONFLICT DO NOTHING", args[:1]
	}
	n, err := tx.exec(q, args...)
	return n > 0, err
}
