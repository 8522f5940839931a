package store

import (
	"context"
	"fmt"

	"gorm.io/gorm/clause"

	"gpupool/schema"
	"gpupool/schema/hardware"
)

// SetBuild says what servers of this build are ordered with. It holds from the next inspection on: what runs is not stopped by it.
func (s *Store) SetBuild(ctx context.Context, by, name string, parts []hardware.Line) (hardware.Build, error) {
	if !NamePattern.MatchString(name) {
		return hardware.Build{}, schema.Invalid("build", name, nameRight)
	}
	if err := hardware.Check(parts); err != nil {
		return hardware.Build{}, err
	}
	var b hardware.Build
	err := s.Write(ctx, func(tx *Tx) error {
		b = hardware.Build{Name: name, Parts: parts, SetBy: by, SetAt: tx.now}
		return tx.db.Clauses(clause.OnConflict{UpdateAll: true}).Create(&b).Error
	})
	return b, err
}

// DeleteBuild takes one away that no server was ordered as by name; a CodeConflict error while one that is not retired was.
func (s *Store) DeleteBuild(ctx context.Context, name string) error {
	return s.Write(ctx, func(tx *Tx) error {
		var b hardware.Build
		if err := one(tx.lock(&b, "name = ?", name), "build", name); err != nil {
			return err
		}
		var server string
		if err := tx.db.Raw("SELECT name FROM servers WHERE build = ? AND phase <> ? ORDER BY name LIMIT 1", name, schema.PhaseRetired).Scan(&server).Error; err != nil {
			return err
		}
		if server != "" {
			return schema.Conflict(fmt.Sprintf("server %s was ordered as build %s", server, name), "without it nothing says what that server is to have; set it anew instead")
		}
		_, err := tx.exec("DELETE FROM builds WHERE name = ?", name)
		return err
	})
}

// Build is one of a name.
func (s *Store) Build(ctx context.Context, name string) (hardware.Build, error) {
	var b hardware.Build
	return b, one(s.read(ctx).Where("name = ?", name).Take(&b).Error, "build", name)
}

// Builds lists them by name.
func (s *Store) Builds(ctx context.Context) ([]hardware.Build, error) {
	var out []hardware.Build
	return out, s.read(ctx).Order("name").Find(&out).Error
}

// Ordered are the parts that a server was ordered with: its build's, else those of the build that is named as its model; nil = nothing
// more is known than what it was enrolled with.
func (s *Store) Ordered(ctx context.Context, v schema.Server) ([]hardware.Line, error) {
	name := v.Build
	if name == "" {
		name = v.Model
	}
	b, err := s.Build(ctx, name)
	if v.Build == "" && schema.Is(err, schema.CodeNotFound) {
		return nil, nil
	}
	return b.Parts, err
}
