package store

import (
	"context"
	"fmt"
	"strings"

	"gpupool/schema"
)

// RMAs lists parts that go back to their makers, newest first; only those that are not closed where open is set.
func (s *Store) RMAs(ctx context.Context, open bool) ([]schema.RMA, error) {
	q := s.read(ctx).Order("opened_at DESC, id DESC").Limit(500)
	if open {
		q = q.Where("closed_at = 0")
	}
	var out []schema.RMA
	return out, q.Find(&out).Error
}

// RMA finds one by its id, or the last one by the serial that went out.
func (s *Store) RMA(ctx context.Context, idOrSerial string) (schema.RMA, error) {
	var r schema.RMA
	return r, one(s.read(ctx).Where("id = ? OR serial_out = ?", idOrSerial, idOrSerial).Order("opened_at DESC").Limit(1).Take(&r).Error, "RMA", idOrSerial)
}

// OpenRMA begins the return of a part by its serial, where no repair did. The same open one again is that one.
func (s *Store) OpenRMA(ctx context.Context, serial, note, by string) (schema.RMA, error) {
	var out schema.RMA
	err := s.Write(ctx, func(tx *Tx) error {
		if strings.TrimSpace(serial) == "" {
			return schema.Invalid("serial_out", serial, "the part's serial, as printed on it")
		}
		if err := tx.lock(&out, "serial_out = ? AND closed_at = 0", serial); !isNoRows(err) {
			return err
		}
		out = schema.RMA{ID: NewID("rma", tx.now), SerialOut: serial, State: schema.RMAOpen, Note: note, OpenedBy: by, OpenedAt: tx.now}
		var a schema.Accelerator
		switch err := tx.lock(&a, "serial = ?", serial); {
		case err == nil:
			out.Accelerator, out.Vendor, out.Model = a.ID, string(a.Vendor), a.Model
			if a.RemovedAt == 0 && a.Health != schema.HealthAbsent {
				return schema.Conflict(fmt.Sprintf("%s is in a server of the pool", serial), "it goes back once it was replaced: say so with repair done")
			}
		case !isNoRows(err):
			return err
		}
		tx.Emit(schema.Event{Kind: schema.EventRMA, Subject: out.ID, By: by}, map[string]any{"state": out.State, "serial_out": serial})
		return tx.db.Create(&out).Error
	})
	return out, err
}

// openRMA puts the part that a repair took out on the list of those that go back.
func (tx *Tx) openRMA(r schema.Repair, v schema.Server, by string) error {
	var known int64
	if err := tx.db.Raw("SELECT count(*) FROM rmas WHERE serial_out = ? AND closed_at = 0", r.OldSerial).Scan(&known).Error; err != nil || known > 0 {
		return err
	}
	m := schema.RMA{ID: NewID("rma", tx.now), Repair: r.ID, Accelerator: r.Accelerator, Model: v.Model, SerialOut: r.OldSerial, State: schema.RMAOpen, Note: r.Cause, OpenedBy: by, OpenedAt: tx.now}
	var a schema.Accelerator
	if err := tx.lock(&a, "id = ?", r.Accelerator); err == nil {
		m.Vendor, m.Model = string(a.Vendor), a.Model
	} else if !isNoRows(err) {
		return err
	}
	tx.Emit(schema.Event{Kind: schema.EventRMA, Subject: m.ID, Server: v.ID, By: by}, map[string]any{"state": m.State, "serial_out": m.SerialOut, "repair": r.ID})
	return tx.db.Create(&m).Error
}

// RMAChange is what a person tells of a return; empty fields change nothing.
type RMAChange struct {
	State                      schema.RMAState
	VendorCase, SerialIn, Note string
}

// ChangeRMA keeps it.
func (s *Store) ChangeRMA(ctx context.Context, id string, c RMAChange, by string) (schema.RMA, error) {
	var m schema.RMA
	err := s.Write(ctx, func(tx *Tx) error {
		if err := one(tx.lock(&m, "id = ?", id), "RMA", id); err != nil {
			return err
		}
		if c.State != "" && c.State != m.State {
			if !schema.RMAStates.Valid(c.State) {
				return schema.Invalid("state", string(c.State), "open, shipped, replaced, repaired or denied")
			}
			if err := schema.RMAStates.Check("RMA "+m.ID, m.State, c.State); err != nil {
				return err
			}
			if c.State == schema.RMAShipped && m.VendorCase == "" && c.VendorCase == "" {
				return schema.Invalid("vendor_case", "", "the maker's case number: without it a parcel has no owner there")
			}
			if c.State == schema.RMAReplaced && m.SerialIn == "" && c.SerialIn == "" {
				return schema.Invalid("serial_in", "", "the serial of the part that came")
			}
			m.State = c.State
			switch {
			case c.State == schema.RMAShipped:
				m.ShippedAt = tx.now
			case schema.RMAStates.Final(c.State):
				m.ClosedAt = tx.now
			}
		}
		if c.SerialIn != "" && c.SerialIn == m.SerialOut && m.State != schema.RMARepaired {
			return schema.Invalid("serial_in", c.SerialIn, "another serial than the one that went out; where the same part came back, state repaired")
		}
		for _, f := range []struct {
			dst  *string
			with string
		}{{&m.VendorCase, c.VendorCase}, {&m.SerialIn, c.SerialIn}, {&m.Note, c.Note}} {
			if f.with != "" {
				*f.dst = f.with
			}
		}
		m.Version++
		tx.Emit(schema.Event{Kind: schema.EventRMA, Subject: m.ID, By: by}, map[string]any{"state": m.State, "serial_out": m.SerialOut, "serial_in": m.SerialIn, "vendor_case": m.VendorCase})
		return tx.db.Save(&m).Error
	})
	return m, err
}
