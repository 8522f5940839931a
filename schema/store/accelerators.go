package store

import (
	"context"
	"fmt"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
)

// AcceleratorFilter narrows Accelerators; empty fields don't.
type AcceleratorFilter struct {
	Server, Model, Serial string
	Health                schema.Health
	Removed               bool // also those that were taken out
}

// Accelerators lists by server and index.
func (s *Store) Accelerators(ctx context.Context, f AcceleratorFilter) ([]schema.Accelerator, error) {
	q := s.read(ctx).Order("server, device_index, id")
	for col, v := range map[string]string{"server": f.Server, "model": f.Model, "serial": f.Serial, "health": string(f.Health)} {
		if v != "" {
			q = q.Where(col+" = ?", v)
		}
	}
	if !f.Removed {
		q = q.Where("removed_at = 0")
	}
	var out []schema.Accelerator
	return out, q.Find(&out).Error
}

// SeenEvery is how often "last seen" moments are written where Config says nothing: what changes is written at once, that nothing changed is not.
const SeenEvery = 15 * time.Second

// recordDevices brings the inventory of a server in line with what its agent reads. It reports faults for devices
// that went missing from a server in the pool.
func (tx *Tx) recordDevices(v schema.Server, devices []agentproto.Device) error {
	var known []schema.Accelerator
	if err := tx.db.Where("server = ? AND removed_at = 0", v.ID).Find(&known).Error; err != nil {
		return err
	}
	byIdentity := map[string]*schema.Accelerator{}
	for i := range known {
		byIdentity[known[i].Identity] = &known[i]
	}
	for _, d := range devices {
		id := schema.IdentityOf(d.Vendor, d.Serial, d.UUID, d.PCI, v.ID)
		a := byIdentity[id]
		delete(byIdentity, id)
		if a == nil {
			var other schema.Accelerator
			err := tx.lock(&other, "identity = ?", id)
			if err != nil && !isNoRows(err) {
				return err
			}
			if err == nil {
				there, err := tx.stillThere(v, other)
				if err != nil {
					return err
				}
				if there != "" {
					if err := tx.reportFault(v, schema.Fault{Source: "agent", Kind: "duplicate", Severity: schema.SeverityWarning, At: tx.now,
						Text: fmt.Sprintf("the device in slot %s says that it is %s, which is %s", d.Slot, id, there), Dedupe: fmt.Sprintf("duplicate/%s/%s/%d", v.ID, other.ID, v.Epoch)}); err != nil {
						return err
					}
					continue
				}
			}
			if err == nil { // it came from another server, or comes back: its history follows it, its proof does not
				a = &other
				tx.Emit(schema.Event{Kind: schema.EventAcceleratorSeen, Subject: a.ID, Server: v.ID}, map[string]any{"identity": id, "from": a.Server, "slot": d.Slot})
				if a.RemovedAt != 0 {
					a.InstalledAt = 0 // it left the pool, and is capacity again when it is proven again
				}
				a.Server, a.RemovedAt = v.ID, 0
				if err := tx.setHealth(a, schema.HealthSuspect, "came from another place: not proven here"); err != nil {
					return err
				}
			}
		}
		if a == nil {
			a = &schema.Accelerator{ID: NewID("acc", tx.now), Identity: id, Vendor: d.Vendor, Model: d.Model, Serial: d.Serial, UUID: d.UUID, PCI: d.PCI, Slot: d.Slot, Index: d.Index,
				MemoryBytes: d.MemoryBytes, Firmware: d.Firmware, Server: v.ID, Health: schema.HealthUnknown, HealthWhy: "not proven yet", HealthAt: tx.now, FirstSeen: tx.now, LastSeen: tx.now}
			tx.Emit(schema.Event{Kind: schema.EventAcceleratorSeen, Subject: a.ID, Server: v.ID}, map[string]any{"identity": id, "slot": d.Slot})
			if err := tx.db.Create(a).Error; err != nil {
				return err
			}
			continue
		}
		before := *a
		a.UUID, a.PCI, a.Slot, a.Index, a.MemoryBytes, a.Firmware, a.Model = d.UUID, d.PCI, d.Slot, d.Index, d.MemoryBytes, d.Firmware, d.Model
		switch {
		case d.Error != "" && a.Health == schema.HealthHealthy:
			if err := tx.setHealth(a, schema.HealthUnknown, "could not be read: "+d.Error); err != nil {
				return err
			}
		case d.Error == "" && a.Health == schema.HealthUnknown && a.InstalledAt != 0 && v.Phase == schema.PhaseAvailable:
			if err := tx.setHealth(a, schema.HealthHealthy, "read again"); err != nil {
				return err
			}
		case a.Health == schema.HealthAbsent:
			if err := tx.setHealth(a, schema.HealthSuspect, "seen again: not proven"); err != nil {
				return err
			}
		}
		if *a != before || tx.now.Sub(a.LastSeen) >= tx.s.seen {
			a.LastSeen = tx.now
			if err := tx.db.Save(a).Error; err != nil {
				return err
			}
		}
	}
	for _, a := range byIdentity {
		if a.Health == schema.HealthAbsent {
			continue
		}
		if err := tx.setHealth(a, schema.HealthAbsent, "not listed by the driver"); err != nil {
			return err
		}
		if err := tx.db.Save(a).Error; err != nil {
			return err
		}
		if v.Phase == schema.PhaseAvailable || v.Phase == schema.PhaseDraining {
			if err := tx.reportFault(v, schema.Fault{Accelerator: a.ID, Source: "agent", Kind: "absent", Severity: schema.SeverityCritical, At: tx.now,
				Text: fmt.Sprintf("accelerator %s (serial %s) is not listed any more", a.Slot, a.Serial), Dedupe: fmt.Sprintf("absent/%s/%d", a.ID, v.Epoch)}); err != nil {
				return err
			}
		}
	}
	return nil
}

// stillThere says where an accelerator that v's agent lists is listed too; empty where it may have been moved to v. Two devices
// with one serial exist, and an agent may lie: neither takes a device away from a server that has it.
func (tx *Tx) stillThere(v schema.Server, a schema.Accelerator) (string, error) {
	switch {
	case a.RemovedAt != 0 || a.Health == schema.HealthAbsent:
		return "", nil
	case a.Server == v.ID:
		return "listed twice by this server", nil
	case tx.now.Sub(a.LastSeen) > 4*tx.s.seen: // nobody moves a part within a minute
		return "", nil
	}
	owner, err := tx.server(a.Server)
	if err != nil || owner.Phase != schema.PhaseAvailable && owner.Phase != schema.PhaseDraining {
		return "", err
	}
	return fmt.Sprintf("in server %s, slot %s", owner.Name, a.Slot), nil
}

// setHealth changes an accelerator's health by the lifecycle table; the caller saves the row.
func (tx *Tx) setHealth(a *schema.Accelerator, to schema.Health, why string) error {
	if a.Health == to {
		a.HealthWhy = why
		return nil
	}
	if err := schema.Healths.Check("accelerator "+a.Identity, a.Health, to); err != nil {
		return err
	}
	tx.Emit(schema.Event{Kind: schema.EventAcceleratorHealth, Subject: a.ID, Server: a.Server}, map[string]any{"from": a.Health, "to": to, "why": why})
	a.Health, a.HealthWhy, a.HealthAt = to, why, tx.now
	return nil
}

// markProven makes every accelerator that is there healthy: only a passed burn-in calls it. All that were ordered
// must be there.
func (tx *Tx) markProven(v schema.Server, why string) error {
	var all []schema.Accelerator
	if err := tx.db.Where("server = ? AND removed_at = 0", v.ID).Find(&all).Error; err != nil {
		return err
	}
	there := 0
	for i := range all {
		a := &all[i]
		if a.Health == schema.HealthAbsent {
			continue
		}
		there++
		if a.Health == schema.HealthFailed {
			if err := tx.setHealth(a, schema.HealthSuspect, "repaired: to be proven"); err != nil {
				return err
			}
		}
		if err := tx.setHealth(a, schema.HealthHealthy, why); err != nil {
			return err
		}
		if err := tx.db.Save(a).Error; err != nil {
			return err
		}
	}
	want, err := expected(tx, v)
	if err != nil {
		return err
	}
	if there < want {
		return schema.Unsafe(fmt.Sprintf("server %s shows %d of the %d accelerators ordered", v.Name, there, want), "find the missing one, or correct the order")
	}
	return nil
}

// install counts the server's accelerators as installed capacity from now on.
func (tx *Tx) install(v schema.Server) error {
	var fresh []string
	if err := tx.db.Raw("SELECT id FROM accelerators WHERE server = ? AND removed_at = 0 AND installed_at = 0 ORDER BY id", v.ID).Scan(&fresh).Error; err != nil || len(fresh) == 0 {
		return err
	}
	for _, id := range fresh {
		tx.Emit(schema.Event{Kind: schema.EventAcceleratorInstalled, Subject: id, Server: v.ID}, nil)
	}
	_, err := tx.exec("UPDATE accelerators SET installed_at = ? WHERE id IN ?", tx.now, fresh)
	return err
}

// removeAccelerator takes a replaced device out of the inventory; its history stays under its serial.
func (tx *Tx) removeAccelerator(a *schema.Accelerator, why string) error {
	a.RemovedAt = tx.now
	tx.Emit(schema.Event{Kind: schema.EventAcceleratorGone, Subject: a.ID, Server: a.Server}, map[string]any{"identity": a.Identity, "why": why})
	return tx.db.Save(a).Error
}
