package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"gpupool/schema"
)

// BeginRetirement asks for a server to be taken out for good: one of the pool drains first, an enrolled one goes at once, and so
// does one whose repair waits for a technician: that repair is given up. It refuses one that is protected, onboarding, or in
// another state of repair.
func (s *Store) BeginRetirement(ctx context.Context, server string, overwrite bool, reason, by string) (schema.Server, error) {
	if strings.TrimSpace(reason) == "" {
		return schema.Server{}, schema.Invalid("reason", reason, "why, in words: the next person reads it")
	}
	var v schema.Server
	err := s.Write(ctx, func(tx *Tx) error {
		var err error
		if v, err = tx.server(server); err != nil {
			return err
		}
		if v.Protected {
			return schema.Unsafe("server "+v.Name+" is protected", "lift the flag with unprotect, if it may really be wiped")
		}
		givenUp := false
		switch v.Phase {
		case schema.PhaseAvailable, schema.PhaseDraining, schema.PhaseEnrolled:
			err = tx.noRepair(v)
		case schema.PhaseRepairing:
			givenUp, err = tx.giveUpRepair(v, by, "the server is retired: "+reason)
		default:
			err = schema.Conflict(fmt.Sprintf("server %s is %s", v.Name, v.Phase), "a server that is available, draining, enrolled or in repair is retired; an onboarding is aborted first")
		}
		if err != nil {
			return err
		}
		old, err := tx.retirement(v.ID)
		if err != nil {
			return err
		}
		if old.At != 0 && old.ClosedAt == 0 && givenUp { // it was to go when its fault came
			tx.Emit(schema.Event{Kind: schema.EventServerRetire, Subject: v.ID, Server: v.ID, By: by}, map[string]any{"state": "asked", "reason": reason})
			return nil
		}
		if old.At != 0 && old.ClosedAt == 0 {
			return schema.Conflict(fmt.Sprintf("server %s is to be retired already, by %s: %s", v.Name, old.By, old.Reason), "see the server")
		}
		if old.At != 0 {
			if _, err := tx.exec("DELETE FROM retirements WHERE server = ?", v.ID); err != nil {
				return err
			}
		}
		if err := tx.db.Create(&schema.Retirement{Server: v.ID, Reason: reason, By: by, At: tx.now, Overwrite: overwrite}).Error; err != nil {
			return err
		}
		if v.Phase == schema.PhaseAvailable {
			if _, err := tx.cordon(v, "", schema.CordonOperator, by, "to be retired: "+reason); err != nil {
				return err
			}
			if err := tx.setPhase(&v, schema.PhaseDraining, by, "to be retired: "+reason); err != nil {
				return err
			}
		}
		tx.Emit(schema.Event{Kind: schema.EventServerRetire, Subject: v.ID, Server: v.ID, By: by}, map[string]any{"state": "asked", "reason": reason})
		return nil
	})
	return v, err
}

// giveUpRepair ends the repair of a server that is to go instead, and reports whether there was one. Only one that waits for a
// technician is given up: in any other state something is being done to the server.
func (tx *Tx) giveUpRepair(v schema.Server, by, why string) (bool, error) {
	var r schema.Repair
	if err := tx.lock(&r, "server = ? AND closed_at = 0", v.ID); err != nil {
		if isNoRows(err) {
			return false, nil
		}
		return false, err
	}
	if r.State != schema.RepairWaiting {
		return false, schema.Conflict(fmt.Sprintf("repair %s of server %s is %s", r.ID, v.Name, r.State), "a server in repair is retired once its repair waits for a technician")
	}
	r.ClosedAt, r.WaitingWhy = tx.now, ""
	return true, tx.setRepair(&r, schema.RepairCancelled, by, why)
}

// leaving reports whether a server in repair has none open, because it is retired instead.
func (tx *Tx) leaving(v schema.Server) (bool, error) {
	if v.Phase != schema.PhaseRepairing {
		return false, nil
	}
	var n int64
	err := tx.db.Raw("SELECT count(*) FROM retirements WHERE server = ? AND closed_at = 0 AND NOT EXISTS (SELECT 1 FROM repairs WHERE repairs.server = retirements.server AND repairs.closed_at = 0)", v.ID).Scan(&n).Error
	return n > 0, err
}

func (tx *Tx) noRepair(v schema.Server) error {
	var open int64
	if err := tx.db.Raw("SELECT count(*) FROM repairs WHERE server = ? AND closed_at = 0", v.ID).Scan(&open).Error; err != nil {
		return err
	}
	if open > 0 {
		return schema.Unsafe("server "+v.Name+" is in repair", "end the repair first: its devices are proven or given up there")
	}
	return nil
}

// retirement is a server's; zero where there is none.
func (tx *Tx) retirement(server string) (schema.Retirement, error) {
	var r schema.Retirement
	if err := tx.lock(&r, "server = ?", server); err != nil && !isNoRows(err) {
		return r, err
	}
	return r, nil
}

// Retirement is a server's; false where it was never asked to go.
func (s *Store) Retirement(ctx context.Context, server string) (schema.Retirement, bool, error) {
	var r schema.Retirement
	err := s.read(ctx).Where("server = ?", server).Limit(1).Find(&r).Error
	return r, r.Server != "", err
}

// cancelRetirement takes one back whose server has not begun to go.
func (tx *Tx) cancelRetirement(v schema.Server, by string) error {
	n, err := tx.exec("UPDATE retirements SET closed_at = ?, outcome = ? WHERE server = ? AND closed_at = 0", tx.now, "taken back by "+by, v.ID)
	if err == nil && n > 0 {
		tx.Emit(schema.Event{Kind: schema.EventServerRetire, Subject: v.ID, Server: v.ID, By: by}, map[string]any{"state": "taken-back"})
	}
	return err
}

// Retiring moves a server whose jobs have ended to retiring, and takes the attempt under which it is sanitised. Attempt 0 of the
// answer: jobs hold it still. Closed: the retirement was taken back, or is over.
func (s *Store) Retiring(ctx context.Context, server string) (schema.Retirement, error) {
	var r schema.Retirement
	err := s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		if r, err = tx.retirement(v.ID); err != nil || r.ClosedAt != 0 || r.Attempt != 0 {
			return err
		}
		if r.At == 0 {
			return schema.NotFound("retirement of server", v.Name)
		}
		switch err := tx.destructible(v); {
		case schema.Is(err, schema.CodeUnsafe) && !v.Protected:
			return nil // its jobs end first
		case err != nil:
			return err
		}
		if err := tx.noRepair(v); err != nil {
			return err
		}
		if v.Phase == schema.PhaseAvailable { // a repair brought it back before it could go
			if err := tx.setPhase(&v, schema.PhaseDraining, r.By, r.Reason); err != nil {
				return err
			}
		}
		v.Attempt++
		v.Epoch++
		v.Step = schema.StepVerifyBMC
		r.Attempt = v.Attempt
		if err := tx.setPhase(&v, schema.PhaseRetiring, r.By, r.Reason); err != nil {
			return err
		}
		return tx.db.Save(&r).Error
	})
	return r, err
}

// underway refuses an attempt, of an onboarding or a retirement, that has passed.
func underway(v schema.Server, attempt int) error {
	if v.Phase == schema.PhaseRetiring && v.Attempt == attempt {
		return nil
	}
	return current(v, attempt)
}

// NodeLeft says that a retiring server's cluster has let it go.
func (c *Connector) NodeLeft(ctx context.Context, server string) error {
	return c.write(ctx, func(tx *Tx, _ *schema.Cluster) error {
		n, err := tx.exec("UPDATE retirements SET left_at = ? WHERE server = ? AND closed_at = 0 AND left_at = 0", tx.now, server)
		if err == nil && n > 0 {
			tx.Emit(schema.Event{Kind: schema.EventServerRetire, Subject: server, Server: server}, map[string]any{"state": "left"})
		}
		return err
	})
}

// ArmSanitise lets a retiring server's next network boot empty its disks, under this attempt only, until ttl has passed.
func (s *Store) ArmSanitise(ctx context.Context, server string, attempt int, ttl time.Duration) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		r, err := tx.retirement(v.ID)
		if err != nil {
			return err
		}
		if v.Phase != schema.PhaseRetiring || r.ClosedAt != 0 || r.Attempt != attempt {
			return schema.Stale(fmt.Sprintf("server %s is %s at attempt %d, not retiring at attempt %d", v.Name, v.Phase, v.Attempt, attempt))
		}
		if err := tx.mayDestroy(v, attempt); err != nil {
			return err
		}
		c, err := tx.installChoice(v)
		if err != nil {
			return err
		}
		_, err = tx.exec("INSERT INTO armed (server, attempt, profile, vals, at, expires_at, sanitise, overwrite) VALUES (?, ?, ?, ?, ?, ?, TRUE, ?) ON CONFLICT (server) DO UPDATE SET attempt = excluded.attempt, profile = excluded.profile, vals = excluded.vals, at = excluded.at, expires_at = excluded.expires_at, installed_at = 0, failure = '', sanitise = TRUE, overwrite = excluded.overwrite",
			v.ID, attempt, c.Profile, c.Vals, tx.now, tx.now.Add(ttl), r.Overwrite)
		return err
	})
}

// SanitiseOrder is what a server that is armed for it is told.
func (s *Store) SanitiseOrder(ctx context.Context, server string) (schema.SanitiseOrder, error) {
	v, err := s.Server(ctx, server)
	if err != nil {
		return schema.SanitiseOrder{}, err
	}
	a, ok, err := s.Armed(ctx, v.ID)
	if err != nil {
		return schema.SanitiseOrder{}, err
	}
	if !ok || !a.Sanitise {
		return schema.SanitiseOrder{}, schema.Stale("server " + v.Name + " is not armed to be sanitised")
	}
	o := schema.SanitiseOrder{Server: v.Name, Attempt: a.Attempt, Serial: v.Serial, Overwrite: a.Overwrite}
	all, err := s.DriveCertificates(ctx, v.ID, a.Attempt)
	for _, c := range all {
		if c.Outcome.Good() && c.Serial != "" {
			o.Done = append(o.Done, c.Serial)
		}
	}
	return o, err
}

// sanitised keeps what a sanitise run says of each drive: one certificate for each.
func (tx *Tx) sanitised(v schema.Server, attempt int, drives []schema.DriveResult) error {
	for _, d := range drives {
		c := schema.DriveCertificate{ID: NewID("crt", tx.now), Server: v.ID, ServerName: v.Name, ServerSerial: v.Serial, Attempt: attempt, DriveResult: d, At: tx.now}
		if err := tx.db.Create(&c).Error; err != nil {
			return err
		}
		tx.Emit(schema.Event{Kind: schema.EventServerDrive, Subject: v.ID, Server: v.ID}, map[string]any{"serial": d.Serial, "name": d.Name, "outcome": d.Outcome, "trouble": d.Trouble, "method": d.Method})
	}
	return nil
}

// MissingDrives certifies that drives which are known to be the server's were not found by its sanitise run.
func (s *Store) MissingDrives(ctx context.Context, server string, attempt int, missing []schema.DriveResult) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		if err := underway(v, attempt); err != nil {
			return err
		}
		for i := range missing {
			missing[i].Outcome, missing[i].Started, missing[i].Ended = schema.DriveMissing, tx.now, tx.now
		}
		return tx.sanitised(v, attempt, missing)
	})
}

// DriveCertificates are those of a server, the newest of each drive first; of every attempt where attempt is 0.
func (s *Store) DriveCertificates(ctx context.Context, server string, attempt int) ([]schema.DriveCertificate, error) {
	q := s.read(ctx).Where("server = ?", server)
	if attempt > 0 {
		q = q.Where("attempt = ?", attempt)
	}
	var out []schema.DriveCertificate
	return out, q.Order("at DESC, name, id").Find(&out).Error
}

// FinishRetirement ends a retirement whose every step is done or was skipped by name. The server's row stays, with its history and
// its drives' certificates.
func (s *Store) FinishRetirement(ctx context.Context, server string, attempt int) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		if v.Phase == schema.PhaseRetired && v.Attempt == attempt {
			return nil // asked again
		}
		if v.Phase != schema.PhaseRetiring || v.Attempt != attempt {
			return schema.Stale(fmt.Sprintf("server %s is %s at attempt %d, not retiring at attempt %d", v.Name, v.Phase, v.Attempt, attempt))
		}
		var runs []schema.StepRun
		if err := tx.db.Where("server = ? AND attempt = ?", v.ID, attempt).Find(&runs).Error; err != nil {
			return err
		}
		outcome := "sanitised"
		for _, step := range schema.RetireSteps {
			i := slices.IndexFunc(runs, func(r schema.StepRun) bool { return r.Step == step })
			switch {
			case i < 0 || runs[i].State != schema.StepDone && runs[i].State != schema.StepSkipped:
				return schema.Unsafe(fmt.Sprintf("server %s has not been through %s", v.Name, step), "a retirement ends when every step is done, or skipped by name")
			case step == schema.StepSanitise && runs[i].State == schema.StepSkipped:
				outcome = "NOT sanitised: " + runs[i].Detail
			}
		}
		if err := tx.disarm(v.ID, attempt); err != nil {
			return err
		}
		if _, err := tx.exec("UPDATE retirements SET closed_at = ?, outcome = ? WHERE server = ?", tx.now, outcome, v.ID); err != nil {
			return err
		}
		v.Step = ""
		return tx.setPhase(&v, schema.PhaseRetired, "retirement", outcome)
	})
}
