package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"gorm.io/gorm/clause"

	"gpupool/schema"
	"gpupool/schema/agentproto"
)

// Limits of volumes and mounts.
const (
	MaxMounts   = 32
	FirstPerson = 1000    // the least user id that is not a system's own (login.defs(5): UID_MIN)
	maxUser     = 1 << 30 // above it are the ids that agents give to single jobs
)

// NewVolume is a volume as it is asked for.
type NewVolume struct {
	Name, Path, Claim, Tenant string
	Writable                  bool
	User                      int64 // 0 = each job as its own user
}

func (n NewVolume) check() error {
	const folder = "a folder of the servers, as an absolute path without . and .. below the root"
	switch {
	case !NamePattern.MatchString(n.Name):
		return schema.Invalid("name", n.Name, nameRight)
	case n.Path == "" && n.Claim == "":
		return schema.Invalid("path", "", folder+"; or a claim of a Kubernetes cluster, or both")
	case n.Path != "" && !schema.CleanPath(n.Path):
		return schema.Invalid("path", n.Path, folder)
	case n.Claim != "" && !NamePattern.MatchString(n.Claim):
		return schema.Invalid("claim", n.Claim, "the name of a PersistentVolumeClaim in the namespace of the cluster's jobs")
	case n.User != 0 && (n.User < FirstPerson || n.User > maxUser):
		return schema.Invalid("user_id", n.User, fmt.Sprintf("%d to %d, the id that owns the files; or 0 for each job's own user", FirstPerson, maxUser))
	case n.Writable && n.User == 0:
		return schema.Invalid("user_id", 0, "with writable the user id whose the files are: what a job wrote as a user of its own would be nobody's")
	}
	return nil
}

// CreateVolume makes a volume. A volume never changes: jobs rest on it.
func (s *Store) CreateVolume(ctx context.Context, by string, n NewVolume) (v schema.Volume, err error) {
	if err := n.check(); err != nil {
		return v, err
	}
	err = s.Write(ctx, func(tx *Tx) error {
		v = schema.Volume{Name: n.Name, Path: n.Path, Claim: n.Claim, Tenant: n.Tenant, Writable: n.Writable, User: int(n.User), CreatedAt: tx.now}
		if n.Tenant != "" {
			if err := one(tx.db.Where("name = ?", n.Tenant).Take(&schema.Tenant{}).Error, "tenant", n.Tenant); err != nil {
				return err
			}
		}
		done, err := tx.exec("INSERT INTO volumes (name, path, claim, tenant, writable, user_id, created_at) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", v.Name, v.Path, v.Claim, v.Tenant, v.Writable, v.User, v.CreatedAt)
		if err == nil && done == 0 {
			return schema.Conflict(fmt.Sprintf("there is a volume %q already", n.Name), "a volume never changes: make one with another name, or delete this one first")
		}
		tx.policyChanged(v.Name, v.Tenant, by, "volume created", v)
		return err
	})
	return v, err
}

// DeleteVolume removes a volume that no live job mounts; a CodeConflict error while one does.
func (s *Store) DeleteVolume(ctx context.Context, by, name string) error {
	return s.Write(ctx, func(tx *Tx) error {
		var v schema.Volume
		if err := one(tx.lock(&v, "name = ?", name), "volume", name); err != nil {
			return err
		}
		var live []string
		if err := each(tx.db.Raw("SELECT id, mounts FROM jobs WHERE ended_at = 0 AND mounts IS NOT NULL ORDER BY seq"), func(scan func(...any) error) error {
			var id, text string
			var mounts []schema.Mount
			if err := scan(&id, &text); err != nil {
				return err
			}
			if err := json.Unmarshal([]byte(text), &mounts); err != nil {
				return fmt.Errorf("job %s: its mounts: %w", id, err)
			}
			if slices.ContainsFunc(mounts, func(m schema.Mount) bool { return m.Volume == name }) {
				live = append(live, id)
			}
			return nil
		}); err != nil {
			return err
		}
		if len(live) > 0 {
			return schema.Conflict(fmt.Sprintf("jobs that have not ended mount volume %s: %d, such as %s", name, len(live), live[0]), "cancel them, or wait for their end")
		}
		tx.policyChanged(name, v.Tenant, by, "volume deleted", v)
		_, err := tx.exec("DELETE FROM volumes WHERE name = ?", name)
		return err
	})
}

// Volumes lists by name those that jobs of a tenant may mount; empty = all there are.
func (s *Store) Volumes(ctx context.Context, tenant string) ([]schema.Volume, error) {
	var out []schema.Volume
	db := s.read(ctx)
	if tenant != "" {
		db = db.Where("tenant = '' OR tenant = ?", tenant)
	}
	return out, db.Order("name").Find(&out).Error
}

// checkMounts refuses what can't be right whatever volumes there are.
func checkMounts(mounts []schema.Mount) error {
	if len(mounts) > MaxMounts {
		return schema.Invalid("mounts", len(mounts), fmt.Sprintf("at most %d", MaxMounts))
	}
	for i, m := range mounts {
		if m.Path != "" && !schema.CleanFolder(m.Path) {
			return schema.Invalid(fmt.Sprintf("mounts[%d].path", i), m.Path, "a folder of the volume, as a relative path without . and ..")
		}
	}
	if at, right := schema.CheckTargets(mounts); right != "" {
		return schema.Invalid(fmt.Sprintf("mounts[%d].target", at), mounts[at].Target, right)
	}
	return nil
}

// volumesOf finds the volumes that a job mounts, and keeps them from being deleted before this transaction has ended.
func (tx *Tx) volumesOf(mounts []schema.Mount) (map[string]schema.Volume, error) {
	out := map[string]schema.Volume{}
	if len(mounts) == 0 {
		return out, nil
	}
	var names []string
	for _, m := range mounts {
		names = append(names, m.Volume)
	}
	db := tx.db
	if tx.s.postgres {
		db = db.Clauses(clause.Locking{Strength: "KEY SHARE"})
	}
	var list []schema.Volume
	if err := db.Where("name IN ?", names).Order("name").Find(&list).Error; err != nil {
		return nil, err
	}
	for _, v := range list {
		out[v.Name] = v
	}
	return out, nil
}

// mountsOf checks a job's mounts against the volumes that its tenant may have. Of one that is another's it says no more than of one
// that there isn't.
func (tx *Tx) mountsOf(tenant string, mounts []schema.Mount) (map[string]schema.Volume, error) {
	volumes, err := tx.volumesOf(mounts)
	if err != nil {
		return nil, err
	}
	user, of := 0, ""
	for i, m := range mounts {
		v, ok := volumes[m.Volume]
		if !ok || v.Tenant != "" && v.Tenant != tenant {
			return nil, tx.unknownVolume(fmt.Sprintf("mounts[%d].volume", i), tenant, m.Volume)
		}
		if m.Write && !v.Writable {
			return nil, schema.Invalid(fmt.Sprintf("mounts[%d].write", i), true, "left out: volume "+v.Name+" is for reading")
		}
		switch {
		case v.User == 0:
		case user != 0 && user != v.User:
			return nil, schema.Invalid(fmt.Sprintf("mounts[%d].volume", i), v.Name, fmt.Sprintf("in a job without %s: they are files of two users, and a job runs as one", of))
		default:
			user, of = v.User, v.Name
		}
	}
	return volumes, nil
}

func (tx *Tx) unknownVolume(field, tenant, name string) error {
	var names []string
	if err := tx.db.Raw("SELECT name FROM volumes WHERE tenant = '' OR tenant = ? ORDER BY name LIMIT 20", tenant).Scan(&names).Error; err != nil {
		return err
	}
	right := "a volume; there is none that jobs of tenant " + tenant + " may mount: an operator makes it"
	if len(names) > 0 {
		right = "one of the volumes that jobs of tenant " + tenant + " may mount: " + strings.Join(names, ", ")
	}
	return schema.Invalid(field, name, right)
}

// mount fills in what a server is told of a job's mounts.
func (tx *Tx) mount(run *agentproto.Run, j schema.Job) error {
	volumes, err := tx.mountsOf(j.Tenant, j.Mounts)
	if err != nil {
		return fmt.Errorf("job %s: %w", j.ID, err)
	}
	for _, m := range j.Mounts {
		v := volumes[m.Volume]
		to := agentproto.Mount{Volume: v.Path, Claim: v.Claim, Folder: m.Path, Target: m.Target, ReadOnly: !m.Write}
		if v.Path != "" {
			to.Source = v.Source(m)
			if !slices.Contains(run.Allow, v.Path) {
				run.Allow = append(run.Allow, v.Path)
			}
		}
		if v.User != 0 {
			run.User = v.User
		}
		run.Mounts = append(run.Mounts, to)
	}
	return nil
}
