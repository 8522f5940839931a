package store

import (
	"context"
	"fmt"
	"time"

	"gpupool/schema"
)

// Verdict is what the rules make of a fault; see activities/health/rules.
type Verdict struct {
	Rule     string
	Action   schema.Action
	Cure     schema.Cure
	Corrupts bool   // no limit holds it back
	Silenced string // why it is only observed though a rule is met
	Why      string
	// Idle and Drain are when a person is called if work on the server has not ended: after a cordon, and after a drain.
	Idle, Drain time.Duration
}

// Judge applies a verdict to a fault, once. Evidence of an earlier epoch (before the last repair or install) is history. Where
// a limit is reached nothing is cordoned: a breaker opens, which a person resets, and the event calls one.
func (s *Store) Judge(ctx context.Context, fault string, v Verdict) (schema.Fault, error) {
	var f schema.Fault
	err := s.Write(ctx, func(tx *Tx) error {
		if err := one(tx.lock(&f, "id = ?", fault), "fault", fault); err != nil {
			return err
		}
		if f.Verdict != "" {
			return nil
		}
		srv, err := tx.server(f.Server)
		if err != nil {
			return err
		}
		leaves, err := tx.leaving(srv)
		if err != nil {
			return err
		}
		f.Rule, f.Cure, f.Breaker = v.Rule, v.Cure, ""
		switch {
		case f.Epoch < srv.Epoch:
			f.Verdict = schema.HeldStale
		case v.Silenced != "":
			f.Verdict = schema.HeldSilenced
		case v.Action == schema.ActionObserve || f.ClearedAt != 0:
			f.Verdict = string(schema.ActionObserve) // also what is over before it was judged
		case srv.Phase == schema.PhaseOnboarding || srv.Phase == schema.PhaseEnrolled || srv.Phase == schema.PhaseRetiring || srv.Phase == schema.PhaseRetired || leaves:
			f.Verdict = string(schema.ActionObserve) // not in the pool: onboarding's own gate judges the hardware
		default:
			if f.Breaker, err = tx.limited(srv, f, v); err != nil {
				return err
			}
			if f.Breaker != "" {
				f.Verdict = schema.HeldLimited
				break
			}
			f.Verdict = string(v.Action)
			if err := tx.applyVerdict(srv, &f, v); err != nil {
				return err
			}
		}
		return tx.db.Save(&f).Error
	})
	return f, err
}

// applyVerdict takes the device out of scheduling and attaches the fault to the server's repair, which it opens where none is.
func (tx *Tx) applyVerdict(srv schema.Server, f *schema.Fault, v Verdict) error {
	slot, serial := "", ""
	if f.Accelerator != "" {
		var a schema.Accelerator
		if err := tx.lock(&a, "id = ?", f.Accelerator); err != nil {
			return err
		}
		slot, serial = a.Slot, a.Serial
		to := schema.HealthSuspect
		if v.Action.Stronger(schema.ActionCordon) {
			to = schema.HealthFailed
		}
		if a.Health != schema.HealthAbsent && a.Health != schema.HealthFailed {
			if err := tx.setHealth(&a, to, f.Text); err != nil {
				return err
			}
			if err := tx.db.Save(&a).Error; err != nil {
				return err
			}
		}
	}
	on := ""
	if v.Action == schema.ActionCordon {
		on = f.Accelerator
	}
	if _, err := tx.cordon(srv, on, schema.CordonFault, "health", v.Why); err != nil {
		return err
	}
	var r schema.Repair
	err := tx.lock(&r, "server = ? AND closed_at = 0", srv.ID)
	switch {
	case isNoRows(err):
		if r, err = tx.openRepair(srv, *f, slot, serial, v); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	// One repair at a time: what comes while one is open is more evidence for it.
	f.Repair = r.ID
	if err := tx.db.Save(f).Error; err != nil {
		return err
	}
	if r.FirstSignAt > f.At {
		r.FirstSignAt = f.At
	}
	if err := tx.weigh(&r, v.Why); err != nil {
		return err
	}
	if v.Action == schema.ActionCordon || r.State != schema.RepairCordoned && r.State != schema.RepairDraining {
		return nil
	}
	return tx.drainNow(&r, srv, v.Drain, f.Text)
}

// openRepair opens a server's repair with its first fault.
func (tx *Tx) openRepair(srv schema.Server, f schema.Fault, slot, serial string, v Verdict) (schema.Repair, error) {
	part := "server"
	switch {
	case f.Kind == "slot-failures":
		part = "slot " + f.Part + ": its seat and the board, not the card"
	case f.Accelerator != "":
		part = "accelerator " + slot
	case f.Part != "":
		part = f.Part
	}
	location := fmt.Sprintf("%s / %s / %s", srv.Site, srv.Rack, srv.Name)
	if srv.Unit > 0 {
		location = fmt.Sprintf("%s / %s / U%d / %s", srv.Site, srv.Rack, srv.Unit, srv.Name)
	}
	if slot != "" {
		location += " / " + slot
	}
	r := schema.Repair{ID: NewID("rep", tx.now), Server: srv.ID, Accelerator: f.Accelerator, State: schema.RepairCordoned, Cause: f.Text, Part: part, Location: location, OldSerial: serial,
		Action: v.Action, Cure: v.Cure, FirstSignAt: min(f.At, tx.now), OpenedAt: tx.now, Deadline: tx.now.Add(orElse(v.Idle, DefaultIdle))}
	if v.Action.Stronger(schema.ActionCordon) {
		r.State, r.Deadline = schema.RepairDraining, tx.now.Add(orElse(v.Drain, DefaultDrain))
	}
	assign(&r)
	if err := tx.db.Create(&r).Error; err != nil {
		return r, err
	}
	tx.Emit(schema.Event{Kind: schema.EventRepairOpened, Subject: r.ID, Server: srv.ID}, map[string]any{"cause": r.Cause, "part": r.Part, "location": r.Location, "action": r.Action, "rule": f.Rule, "state": r.State})
	return r, nil
}

// Where the verdict tells no times.
const (
	DefaultIdle  = 24 * time.Hour
	DefaultDrain = 15 * time.Minute
)

func orElse(d, def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return d
}

// drainNow takes a server whose repair is cordoned or drains out of the pool and asks its jobs to end.
func (tx *Tx) drainNow(r *schema.Repair, srv schema.Server, within time.Duration, why string) error {
	if srv.Phase == schema.PhaseAvailable {
		if err := tx.setPhase(&srv, schema.PhaseDraining, "health", why); err != nil {
			return err
		}
	}
	if r.State == schema.RepairCordoned {
		r.Deadline = tx.now.Add(orElse(within, DefaultDrain))
		if err := tx.setRepair(r, schema.RepairDraining, "health", why); err != nil {
			return err
		}
	}
	var jobs []string
	if err := tx.db.Raw("SELECT DISTINCT job FROM allocations WHERE server = ? AND released_at = 0 ORDER BY job", srv.ID).Scan(&jobs).Error; err != nil {
		return err
	}
	for _, id := range jobs {
		j, err := tx.job(id)
		if err != nil {
			return err
		}
		if err := tx.requestStop(&j, schema.AttemptLost, "health", "server "+srv.Name+": "+why); err != nil {
			return err
		}
	}
	return tx.emitIfDrained(srv)
}

// weigh finds what a repair's evidence asks for now: the strongest of what is not cleared. Where all is cleared nothing is to
// be cured, and the hardware only proven: it was suspected.
func (tx *Tx) weigh(r *schema.Repair, why string) error {
	var all []schema.Fault
	if err := tx.db.Where("repair = ? AND cleared_at = 0", r.ID).Find(&all).Error; err != nil {
		return err
	}
	action, cure := schema.ActionCordon, schema.CureBurnIn
	for _, f := range all {
		a, c := schema.Action(f.Verdict), f.Cure
		if a == schema.ActionRepair || a == schema.ActionCordon && c == "" {
			c = schema.CureTechnician
		}
		if a.Stronger(action) {
			action = a
		}
		if c.Stronger(cure) {
			cure = c
		}
	}
	// Who failed again while it was being proven over a longer time is not reset once more.
	if cure != schema.CureBurnIn && cure != schema.CureTechnician {
		again, err := tx.onProbation(*r)
		if err != nil {
			return err
		}
		if again {
			cure = schema.CureTechnician
		}
	}
	if r.Action == action && r.Cure == cure {
		return tx.db.Save(r).Error
	}
	tx.Emit(schema.Event{Kind: schema.EventRepairNews, Subject: r.ID, Server: r.Server}, map[string]any{"action": action, "cure": cure, "why": why})
	r.Action, r.Cure, r.Version = action, cure, r.Version+1
	assign(r)
	return tx.db.Save(r).Error
}

// onProbation reports whether the server came back by resets alone so often, or so lately, that another would be in vain.
func (tx *Tx) onProbation(r schema.Repair) (bool, error) {
	var before []schema.Repair
	if err := tx.db.Where("server = ? AND accelerator = ? AND state = ? AND id <> ? AND closed_at >= ?", r.Server, r.Accelerator, schema.RepairReturned, r.ID, r.OpenedAt.Add(-7*24*time.Hour)).Order("closed_at DESC").Find(&before).Error; err != nil {
		return false, err
	}
	resets := 0
	for _, b := range before {
		if b.ProbationUntil > r.OpenedAt {
			return true, nil
		}
		if b.Tried != "" && b.Did == "" {
			resets++
		}
	}
	return resets >= resetsAWeek, nil
}

// resetsAWeek is after how many returns by resets alone within 7 days the next repair goes to a technician (NVSentinel asks
// for five remediations; three are proposed, of which this is the third).
const resetsAWeek = 2
