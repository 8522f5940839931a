package store

import (
	"context"
	"fmt"
	"time"

	"gpupool/schema"
)

// MaxSpecAccelerators is the most accelerators a spec may ask of one node.
const MaxSpecAccelerators = 16

// NewSpec is a spec as it is asked for. Counts are int64, so that a number too big is refused and never cut.
type NewSpec struct {
	Name, Model       string
	Accelerators      int64 // per node, 1 to MaxSpecAccelerators
	CPUs, MemoryBytes int64 // per node; 0 = not bounded
	Description       string
	MaxTime           time.Duration // that a job may run; 0 = not bounded
}

func (n NewSpec) check() error {
	if !NamePattern.MatchString(n.Name) {
		return schema.Invalid("name", n.Name, nameRight)
	}
	if !NamePattern.MatchString(n.Model) {
		return schema.Invalid("model", n.Model, "an accelerator model, like nvidia-h100-80gb")
	}
	if n.Accelerators < 1 || n.Accelerators > MaxSpecAccelerators {
		return schema.Invalid("accelerators", n.Accelerators, fmt.Sprintf("1 to %d a node", MaxSpecAccelerators))
	}
	if n.CPUs < 0 || n.CPUs > 8192 {
		return schema.Invalid("cpus", n.CPUs, "0 to 8192 cores a node")
	}
	if n.MemoryBytes < 0 || n.MemoryBytes > 1<<50 {
		return schema.Invalid("memory_bytes", n.MemoryBytes, "0 to 1 PiB a node, in bytes")
	}
	if n.MaxTime < 0 || n.MaxTime > MaxTimeLimit {
		return schema.Invalid("max_time", n.MaxTime, fmt.Sprintf("0 for none, at most %s", MaxTimeLimit))
	}
	if len(n.Description) > 1000 {
		return schema.Invalid("description", n.Description, "at most 1000 bytes")
	}
	return nil
}

// CreateSpec makes a spec. A spec never changes: jobs rest on it.
func (s *Store) CreateSpec(ctx context.Context, by string, n NewSpec) (schema.Spec, error) {
	if err := n.check(); err != nil {
		return schema.Spec{}, err
	}
	var sp schema.Spec
	err := s.Write(ctx, func(tx *Tx) error {
		sp = schema.Spec{Name: n.Name, Model: n.Model, Accelerators: int(n.Accelerators), CPUs: int(n.CPUs), MemoryBytes: n.MemoryBytes, Description: n.Description, MaxTime: n.MaxTime.Milliseconds(), CreatedAt: tx.now}
		done, err := tx.exec("INSERT INTO specs (name, model, accelerators, cpus, memory_bytes, description, max_time, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
			sp.Name, sp.Model, sp.Accelerators, sp.CPUs, sp.MemoryBytes, sp.Description, sp.MaxTime, sp.CreatedAt)
		if err == nil && done == 0 {
			return schema.Conflict(fmt.Sprintf("there is a spec %q already", n.Name), "a spec never changes: make one with another name, and retire this one")
		}
		tx.policyChanged(sp.Name, "", by, "spec created", sp)
		return err
	})
	return sp, err
}

// RetireSpec takes a spec out of use: it takes no new jobs, those that wait for it never start, those that run go on.
// Doing it again is no error.
func (s *Store) RetireSpec(ctx context.Context, by, name string) (schema.Spec, error) {
	var sp schema.Spec
	err := s.Write(ctx, func(tx *Tx) error {
		if err := one(tx.lock(&sp, "name = ?", name), "spec", name); err != nil {
			return err
		}
		if sp.RetiredAt != 0 {
			return nil
		}
		sp.RetiredAt = tx.now
		tx.policyChanged(name, "", by, "spec retired", sp)
		return tx.db.Save(&sp).Error
	})
	return sp, err
}

// DeleteSpec removes a spec that no live job asks for; a CodeConflict error while one does. What ended jobs used and were
// charged of it stays in the record under its name.
func (s *Store) DeleteSpec(ctx context.Context, by, name string) error {
	return s.Write(ctx, func(tx *Tx) error {
		var sp schema.Spec
		if err := one(tx.lock(&sp, "name = ?", name), "spec", name); err != nil {
			return err
		}
		var live int64
		if err := tx.db.Raw("SELECT count(*) FROM jobs WHERE spec = ? AND ended_at = 0", name).Scan(&live).Error; err != nil {
			return err
		}
		if live > 0 {
			return schema.Conflict(fmt.Sprintf("jobs that have not ended ask for spec %s: %d", name, live), "retire it: it takes no new jobs, and can be deleted when these have ended or are cancelled")
		}
		var stop string
		if err := tx.db.Raw("SELECT id FROM stops WHERE spec = ? AND (until_at = 0 OR until_at > ?) LIMIT 1", name, tx.now).Scan(&stop).Error; err != nil {
			return err
		}
		if stop != "" {
			return schema.Conflict(fmt.Sprintf("the queue of spec %s is stopped", name), "start it first: gpupool queue start "+stop)
		}
		tx.policyChanged(name, "", by, "spec deleted", sp)
		_, err := tx.exec("DELETE FROM specs WHERE name = ?", name)
		return err
	})
}

// Spec finds one by name.
func (s *Store) Spec(ctx context.Context, name string) (schema.Spec, error) {
	var sp schema.Spec
	return sp, one(s.read(ctx).Where("name = ?", name).Take(&sp).Error, "spec", name)
}

// Specs lists by name, the retired ones too.
func (s *Store) Specs(ctx context.Context) ([]schema.Spec, error) {
	var out []schema.Spec
	return out, s.read(ctx).Order("name").Find(&out).Error
}

// KnownModels are the accelerator models that servers were ordered with, that were seen, or that a spec names.
func (s *Store) KnownModels(ctx context.Context) ([]string, error) {
	var out []string
	return out, s.read(ctx).Raw("SELECT model FROM servers UNION SELECT model FROM accelerators UNION SELECT model FROM specs ORDER BY model").Scan(&out).Error
}
