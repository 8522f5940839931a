package store

import (
	"cmp"
	"context"
	"fmt"

	"gorm.io/gorm"

	"gpupool/schema"
)

// MaxWindowServers is the most servers that one window is over.
const MaxWindowServers = 10_000

// CreateWindow makes a maintenance window or a reservation. Servers are ids or names; From 0 = now.
func (s *Store) CreateWindow(ctx context.Context, by string, w schema.Window) (schema.Window, error) {
	switch {
	case w.Kind != schema.WindowMaintenance && w.Kind != schema.WindowReservation:
		return w, schema.Invalid("kind", string(w.Kind), "maintenance or reservation")
	case w.Kind == schema.WindowReservation && w.Tenant == "":
		return w, schema.Invalid("tenant", "", "the tenant that the reservation is for")
	case w.Kind == schema.WindowMaintenance && w.Tenant != "":
		return w, schema.Invalid("tenant", w.Tenant, "nothing: maintenance is for nobody; a reservation is for a tenant")
	case w.Project != "" && w.Tenant == "":
		return w, schema.Invalid("project", w.Project, "nothing without a tenant")
	case len(w.Servers) == 0 || len(w.Servers) > MaxWindowServers:
		return w, schema.Invalid("servers", len(w.Servers), fmt.Sprintf("1 to %d servers", MaxWindowServers))
	case len(w.Note) > 1000:
		return w, schema.Invalid("note", w.Note, "at most 1000 bytes")
	}
	if err := cmp.Or(schema.CheckMoment("from", w.From), schema.CheckMoment("until", w.Until)); err != nil {
		return w, err
	}
	err := s.Write(ctx, func(tx *Tx) error {
		if w.From == 0 {
			w.From = tx.now
		}
		if w.Until != 0 && w.Until <= max(w.From, tx.now) {
			return schema.Invalid("until", w.Until.String(), "a moment to come that is after from, or nothing")
		}
		if w.Tenant != "" {
			if err := tx.hasProject(w.Tenant, w.Project); err != nil {
				return err
			}
		}
		w.ID, w.By, w.CreatedAt = NewID("win", tx.now), by, tx.now
		if err := tx.db.Create(&w).Error; err != nil {
			return err
		}
		names := w.Servers
		w.Servers = nil
		for _, name := range names {
			var id string
			if err := tx.db.Raw("SELECT id FROM servers WHERE (id = ? OR name = ?) AND phase <> ?", name, name, schema.PhaseRetired).Scan(&id).Error; err != nil {
				return err
			}
			if id == "" {
				return schema.NotFound("server", name)
			}
			n, err := tx.exec(`INSERT INTO window_servers ("window", server) VALUES (?, ?) ON CONFLICT DO NOTHING`, w.ID, id)
			if err != nil {
				return err
			}
			if n > 0 { // not named twice
				w.Servers = append(w.Servers, id)
			}
		}
		w.Count = len(w.Servers)
		if err := tx.reservedApart(w); err != nil {
			return err
		}
		tx.policyChanged(w.ID, w.Tenant, by, "window made", w)
		return nil
	})
	return w, err
}

// reservedApart refuses a reservation of a server that is reserved for somebody else meanwhile: neither's jobs could start there.
func (tx *Tx) reservedApart(w schema.Window) error {
	if w.Kind != schema.WindowReservation {
		return nil
	}
	if err := tx.exclusive("reservations"); err != nil {
		return err
	}
	var other struct{ ID, Tenant, Project, Name string }
	if err := tx.db.Raw(`SELECT o.id, o.tenant, o.project, v.name FROM windows o JOIN window_servers os ON os."window" = o.id JOIN servers v ON v.id = os.server
		WHERE o.kind = ? AND o.id <> ? AND os.server IN (SELECT server FROM window_servers WHERE "window" = ?)
			AND (o.until_at = 0 OR o.until_at > ?) AND (? = 0 OR o.from_at < ?)
			AND (o.tenant <> ? OR o.project <> ? AND o.project <> '' AND ? <> '')
		ORDER BY o.id, v.name LIMIT 1`,
		schema.WindowReservation, w.ID, w.ID, w.From, w.Until, w.Until, w.Tenant, w.Project, w.Project).Scan(&other).Error; err != nil {
		return err
	}
	if other.ID == "" {
		return nil
	}
	whose := "tenant " + other.Tenant
	if other.Project != "" {
		whose += ", project " + other.Project
	}
	return schema.Conflict(fmt.Sprintf("server %s is reserved for %s at that time: %s", other.Name, whose, other.ID), "leave it out, choose another time, or end that one first")
}

// DeleteWindow ends one at once; a CodeNotFound error where there is none.
func (s *Store) DeleteWindow(ctx context.Context, by, id string) error {
	return s.Write(ctx, func(tx *Tx) error {
		var w schema.Window
		if err := one(tx.lock(&w, "id = ?", id), "window", id); err != nil {
			return err
		}
		if _, err := tx.exec(`DELETE FROM window_servers WHERE "window" = ?`, id); err != nil {
			return err
		}
		tx.policyChanged(id, w.Tenant, by, "window removed", w)
		_, err := tx.exec("DELETE FROM windows WHERE id = ?", id)
		return err
	})
}

// Windows are those that have not passed, by their begin.
func (s *Store) Windows(ctx context.Context) ([]schema.Window, error) {
	return windows(s.read(ctx), s.Now())
}

func windows(db *gorm.DB, now schema.Instant) ([]schema.Window, error) {
	var out []schema.Window
	if err := db.Where("until_at = 0 OR until_at > ?", now).Order("from_at, id").Find(&out).Error; err != nil || len(out) == 0 {
		return out, err
	}
	var over []struct{ Window, Server string }
	if err := db.Raw(`SELECT s."window", s.server FROM window_servers s JOIN windows w ON w.id = s."window" WHERE w.until_at = 0 OR w.until_at > ? ORDER BY 1, 2`, now).Scan(&over).Error; err != nil {
		return nil, err
	}
	servers := map[string][]string{}
	for _, o := range over {
		servers[o.Window] = append(servers[o.Window], o.Server)
	}
	for i := range out {
		out[i].Servers, out[i].Count = servers[out[i].ID], len(servers[out[i].ID])
	}
	return out, nil
}
