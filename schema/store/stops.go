package store

import (
	"context"
	"fmt"
	"strings"

	"gorm.io/gorm"

	"gpupool/schema"
)

// StopQueue closes the queue of a scope. A scope that is closed already is a CodeConflict error: start it first, so that
// who stopped it and why is not lost.
func (s *Store) StopQueue(ctx context.Context, by string, in schema.Stop) (schema.Stop, error) {
	switch {
	case in.Project != "" && in.Tenant == "":
		return in, schema.Invalid("project", in.Project, "nothing without a tenant")
	case strings.TrimSpace(in.Why) == "" || len(in.Why) > 1000:
		return in, schema.Invalid("why", in.Why, "why, in at most 1000 bytes: those who wait read it")
	}
	if err := schema.CheckMoment("until", in.Until); err != nil {
		return in, err
	}
	err := s.Write(ctx, func(tx *Tx) error {
		if in.Until != 0 && in.Until <= tx.now {
			return schema.Invalid("until", in.Until.String(), "a moment to come, or nothing")
		}
		if in.Tenant != "" {
			if err := tx.hasProject(in.Tenant, in.Project); err != nil {
				return err
			}
		}
		if in.Spec != "" {
			var sp schema.Spec
			if err := one(tx.db.Where("name = ?", in.Spec).Take(&sp).Error, "spec", in.Spec); err != nil {
				return err
			}
		}
		if in.Region != "" {
			if _, err := tx.region(in.Region); err != nil {
				return err
			}
		}
		if err := tx.exclusive("stops"); err != nil {
			return err
		}
		open, err := stops(tx.db, tx.now)
		if err != nil {
			return err
		}
		for _, o := range open {
			if o.Scope() == in.Scope() {
				return schema.Conflict(fmt.Sprintf("the queue of %s is stopped by %s since %s: %s", o.Scope(), o.By, o.CreatedAt, o.Why), "start it first: gpupool queue start "+o.ID)
			}
		}
		in.ID, in.By, in.CreatedAt = NewID("stp", tx.now), by, tx.now
		tx.policyChanged(in.ID, in.Tenant, by, "queue stopped", in)
		return tx.db.Create(&in).Error
	})
	return in, err
}

// StartQueue ends a stop; a CodeNotFound error where there is none.
func (s *Store) StartQueue(ctx context.Context, by, id string) error {
	return s.Write(ctx, func(tx *Tx) error {
		var st schema.Stop
		if err := one(tx.lock(&st, "id = ?", id), "stop", id); err != nil {
			return err
		}
		tx.policyChanged(id, st.Tenant, by, "queue started", st)
		_, err := tx.exec("DELETE FROM stops WHERE id = ?", id)
		return err
	})
}

// Stops are those in force, the oldest first.
func (s *Store) Stops(ctx context.Context) ([]schema.Stop, error) {
	return stops(s.read(ctx), s.Now())
}

func stops(db *gorm.DB, now schema.Instant) ([]schema.Stop, error) {
	var out []schema.Stop
	return out, db.Where("until_at = 0 OR until_at > ?", now).Order("created_at, id").Find(&out).Error
}
