package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
)

// ReportFault keeps evidence once: the same dedupe key again is the same fault. Judging it is activities/health's.
func (s *Store) ReportFault(ctx context.Context, server string, f schema.Fault) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		return tx.reportFault(v, f)
	})
}

func (tx *Tx) reportFault(v schema.Server, f schema.Fault) error {
	switch f.Severity {
	case schema.SeverityInfo, schema.SeverityWarning, schema.SeverityCritical:
	default:
		return schema.Invalid("severity", string(f.Severity), "info, warning or critical")
	}
	if f.Dedupe == "" {
		return schema.Invalid("dedupe", "", "a key that is the same whenever the same event is told again")
	}
	f.ID, f.Server, f.SeenAt, f.Epoch = NewID("flt", tx.now), v.ID, tx.now, v.Epoch
	old, err := tx.beforeEpoch(v, f.At)
	if err != nil {
		return err
	}
	if old {
		f.Epoch-- // told late: it is of the hardware as it was before
	}
	if twin, err := tx.twin(f); err != nil || twin {
		return err
	}
	r := tx.db.Exec(`INSERT INTO faults (id, server, accelerator, source, kind, code, severity, text, dedupe, epoch, at, seen_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
		f.ID, f.Server, f.Accelerator, f.Source, f.Kind, f.Code, f.Severity, f.Text, f.Dedupe, f.Epoch, f.At, f.SeenAt)
	if r.Error != nil || r.RowsAffected == 0 {
		return r.Error
	}
	tx.Emit(schema.Event{Kind: schema.EventFault, Subject: f.ID, Server: v.ID}, map[string]any{"kind": f.Kind, "code": f.Code, "severity": f.Severity, "text": f.Text, "accelerator": f.Accelerator})
	return nil
}

// twinWindow is how far apart two paths may tell of one event: an out-of-band read comes minutes after it.
const twinWindow = 10 * time.Minute

// twin recognises an event that another path has told of: the same kind and code on the same device at about the same time,
// not matched with one of this path's yet. It is kept beside that fault and is no fault of its own, so that two paths don't
// count one event twice.
func (tx *Tx) twin(f schema.Fault) (bool, error) {
	if f.Source != "agent" && f.Source != "redfish" || f.Accelerator == "" {
		return false, nil
	}
	var known int64
	if err := tx.db.Raw("SELECT count(*) FROM fault_twins WHERE dedupe = ?", f.Dedupe).Scan(&known).Error; err != nil || known > 0 {
		return known > 0, err
	}
	if err := tx.db.Raw("SELECT count(*) FROM faults WHERE dedupe = ?", f.Dedupe).Scan(&known).Error; err != nil || known > 0 {
		return known > 0, err
	}
	at, w := f.At, schema.Instant(twinWindow.Milliseconds())
	if at == 0 {
		at = tx.now
	}
	var other string
	err := tx.db.Raw(`SELECT id FROM faults f WHERE server = ? AND accelerator = ? AND kind = ? AND code = ? AND epoch = ? AND source <> ? AND source IN ('agent', 'redfish') AND at BETWEEN ? AND ?
		AND NOT EXISTS (SELECT 1 FROM fault_twins t WHERE t.fault = f.id AND t.source = ?) ORDER BY at, id LIMIT 1`,
		f.Server, f.Accelerator, f.Kind, f.Code, f.Epoch, f.Source, at-w, at+w, f.Source).Scan(&other).Error
	if err != nil || other == "" {
		return false, err
	}
	_, err = tx.exec("INSERT INTO fault_twins (dedupe, source, fault, at) VALUES (?, ?, ?, ?)", f.Dedupe, f.Source, other, tx.now)
	return err == nil, err
}

// beforeEpoch reports whether something that happened at a moment is of an earlier epoch of the server: from before the
// technician's last word, or before the installed system's first. A moment that isn't told is now. Clocks of servers may
// be MaxSkew off, so what is told to be that near to the epoch's start counts as new: a fault too many sends a server to
// a person, one too few keeps a bad device in the pool.
func (tx *Tx) beforeEpoch(v schema.Server, at schema.Instant) (bool, error) {
	if at == 0 {
		return false, nil
	}
	var since schema.Instant
	err := tx.db.Raw(`SELECT max(since) FROM (SELECT COALESCE(max(done_at), 0) AS since FROM repairs WHERE server = ? UNION ALL SELECT COALESCE(max(registered_at), 0) FROM agents WHERE server = ?) AS epochs`, v.ID, v.ID).Scan(&since).Error
	return since > 0 && at < since.Add(-agentproto.MaxSkew), err
}

// Fault finds one by id.
func (s *Store) Fault(ctx context.Context, id string) (schema.Fault, error) {
	var f schema.Fault
	return f, one(s.read(ctx).Where("id = ?", id).Take(&f).Error, "fault", id)
}

// Faults of a server, newest first; of all where server is empty.
func (s *Store) Faults(ctx context.Context, server string) ([]schema.Fault, error) {
	q := s.read(ctx).Order("seen_at DESC, id DESC").Limit(500)
	if server != "" {
		q = q.Where("server = ?", server)
	}
	var out []schema.Fault
	return out, q.Find(&out).Error
}

// Action is what a verdict does.
type Action string

const (
	ActionObserve Action = "observe" // keep it, do nothing
	ActionCordon  Action = "cordon"  // no new jobs on the accelerator (or server); jobs go on
	ActionRepair  Action = "repair"  // cordon, drain now, repair
)

// BlastRadius bounds what may be cordoned automatically: at most this share of a model's servers in a region, and
// always at least one.
const BlastRadius = 0.34

// Judge applies a verdict to a fault, once. Evidence of an earlier epoch (before the last repair or install) is
// history. Over the blast radius nothing is cordoned and a person is called by the event.
func (s *Store) Judge(ctx context.Context, fault string, action Action, why string) (schema.Fault, error) {
	var f schema.Fault
	err := s.Write(ctx, func(tx *Tx) error {
		if err := one(tx.lock(&f, "id = ?", fault), "fault", fault); err != nil {
			return err
		}
		if f.Verdict != "" {
			return nil
		}
		v, err := tx.server(f.Server)
		if err != nil {
			return err
		}
		switch {
		case f.Epoch < v.Epoch:
			f.Verdict = "stale"
		case action == ActionObserve:
			f.Verdict = string(ActionObserve)
		case v.Phase == schema.PhaseOnboarding || v.Phase == schema.PhaseEnrolled || v.Phase == schema.PhaseRetiring || v.Phase == schema.PhaseRetired:
			f.Verdict = string(ActionObserve) // not in the pool: onboarding's own gate judges the hardware
		default:
			over, err := tx.overBlastRadius(v)
			if err != nil {
				return err
			}
			if over {
				f.Verdict = "limited"
				tx.Emit(schema.Event{Kind: schema.EventServerFailure, Subject: v.ID, Server: v.ID}, map[string]any{"code": "blast-radius", "retryable": false,
					"text": fmt.Sprintf("%s: too many servers of model %s are cordoned for faults already; this one is only observed. A person must look.", f.Text, v.Model)})
				break
			}
			f.Verdict = string(action)
			if err := tx.applyVerdict(v, &f, action, why); err != nil {
				return err
			}
		}
		return tx.db.Save(&f).Error
	})
	return f, err
}

func (tx *Tx) overBlastRadius(v schema.Server) (bool, error) {
	if err := tx.exclusive("blast radius of " + v.Region + " " + v.Model); err != nil {
		return false, err
	}
	var total, out, mine int64
	if err := tx.db.Raw("SELECT count(*) FROM servers WHERE region = ? AND model = ? AND phase IN ('available','draining','repairing')", v.Region, v.Model).Scan(&total).Error; err != nil {
		return false, err
	}
	if err := tx.db.Raw("SELECT count(DISTINCT c.server) FROM cordons c JOIN servers s ON s.id = c.server WHERE c.lifted_at = 0 AND c.owner = 'fault' AND s.region = ? AND s.model = ? AND c.server <> ?", v.Region, v.Model, v.ID).Scan(&out).Error; err != nil {
		return false, err
	}
	if err := tx.db.Raw("SELECT count(*) FROM cordons WHERE lifted_at = 0 AND owner = 'fault' AND server = ?", v.ID).Scan(&mine).Error; err != nil {
		return false, err
	}
	return mine == 0 && out > 0 && float64(out+1) > BlastRadius*float64(total), nil
}

func (tx *Tx) applyVerdict(v schema.Server, f *schema.Fault, action Action, why string) error {
	slot, serial := "", ""
	if f.Accelerator != "" {
		var a schema.Accelerator
		if err := tx.lock(&a, "id = ?", f.Accelerator); err != nil {
			return err
		}
		slot, serial = a.Slot, a.Serial
		to := schema.HealthSuspect
		if action == ActionRepair {
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
	if action == ActionCordon {
		_, err := tx.cordon(v, f.Accelerator, schema.CordonFault, "health", why)
		return err
	}
	if _, err := tx.cordon(v, "", schema.CordonFault, "health", why); err != nil {
		return err
	}
	var open schema.Repair
	err := tx.lock(&open, "server = ? AND closed_at = 0", v.ID)
	if err == nil {
		f.Repair = open.ID
		return nil // one repair at a time: this is more evidence for it
	}
	if !isNoRows(err) {
		return err
	}
	part, location := "server", fmt.Sprintf("%s / %s / %s", v.Site, v.Rack, v.Name)
	if v.Unit > 0 {
		location = fmt.Sprintf("%s / %s / U%d / %s", v.Site, v.Rack, v.Unit, v.Name)
	}
	if f.Accelerator != "" {
		part = "accelerator " + slot
		location += " / " + slot
	}
	r := schema.Repair{ID: NewID("rep", tx.now), Server: v.ID, Accelerator: f.Accelerator, State: schema.RepairDraining, Cause: f.Text, Part: part, Location: location, OldSerial: serial, OpenedAt: tx.now}
	f.Repair = r.ID
	if err := tx.db.Create(&r).Error; err != nil {
		return err
	}
	tx.Emit(schema.Event{Kind: schema.EventRepairOpened, Subject: r.ID, Server: v.ID}, map[string]any{"cause": r.Cause, "part": r.Part, "location": r.Location})
	if v.Phase == schema.PhaseAvailable {
		if err := tx.setPhase(&v, schema.PhaseDraining, "health", why); err != nil {
			return err
		}
	}
	var jobs []string
	if err := tx.db.Raw("SELECT DISTINCT job FROM allocations WHERE server = ? AND released_at = 0 ORDER BY job", v.ID).Scan(&jobs).Error; err != nil {
		return err
	}
	for _, id := range jobs {
		j, err := tx.job(id)
		if err != nil {
			return err
		}
		if err := tx.requestStop(&j, schema.AttemptLost, "health", "server "+v.Name+": "+f.Text); err != nil {
			return err
		}
	}
	return tx.emitIfDrained(v)
}

// BeginBurnIn takes a server out of the pool to prove its accelerators: one whose burn-in was skipped, or that a person
// doubts. It is a repair that begins with its proof, and comes back as every repair does. That the server holds no job,
// is not protected and is not being repaired is checked here, in the transaction that takes it out: drain it first.
func (s *Store) BeginBurnIn(ctx context.Context, server, by string) (schema.Repair, error) {
	var r schema.Repair
	err := s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		var open schema.Repair
		switch err := tx.lock(&open, "server = ? AND closed_at = 0", v.ID); {
		case err == nil:
			return schema.Conflict(fmt.Sprintf("server %s is in repair: %s is %s", v.Name, open.ID, open.State), "a repair ends with a burn-in of its own")
		case !isNoRows(err):
			return err
		case v.Phase != schema.PhaseAvailable && v.Phase != schema.PhaseDraining:
			return schema.Conflict(fmt.Sprintf("server %s is %s", v.Name, v.Phase), "a server that is available, or draining and without jobs, is burnt in; an onboarding has its own burn-in")
		}
		if err := tx.destructible(v); err != nil {
			return err
		}
		why := "burn-in asked for by " + by
		if v.Phase == schema.PhaseAvailable {
			if err := tx.setPhase(&v, schema.PhaseDraining, by, why); err != nil {
				return err
			}
		}
		v.Epoch++ // what was told before is history: the proof decides
		if err := tx.setPhase(&v, schema.PhaseRepairing, by, why); err != nil {
			return err
		}
		r = schema.Repair{ID: NewID("rep", tx.now), Server: v.ID, State: schema.RepairVerifying, Cause: why, Part: schema.PartNone, Location: Location(v), DoneBy: by, OpenedAt: tx.now, DrainedAt: tx.now, DoneAt: tx.now}
		tx.Emit(schema.Event{Kind: schema.EventRepairOpened, Subject: r.ID, Server: v.ID, By: by}, map[string]any{"cause": r.Cause, "part": r.Part, "location": r.Location})
		return tx.db.Create(&r).Error
	})
	return r, err
}

// RepairFilter narrows Repairs; empty fields don't.
type RepairFilter struct {
	Server string
	Open   bool
}

// Repairs lists the newest first.
func (s *Store) Repairs(ctx context.Context, f RepairFilter) ([]schema.Repair, error) {
	q := s.read(ctx).Order("opened_at DESC, id DESC").Limit(500)
	if f.Server != "" {
		q = q.Where("server = ?", f.Server)
	}
	if f.Open {
		q = q.Where("closed_at = 0")
	}
	var out []schema.Repair
	return out, q.Find(&out).Error
}

// Repair finds one by id.
func (s *Store) Repair(ctx context.Context, id string) (schema.Repair, error) {
	var r schema.Repair
	return r, one(s.read(ctx).Where("id = ?", id).Take(&r).Error, "repair", id)
}

// OpenRepair is the server's live repair, if any.
func (s *Store) OpenRepair(ctx context.Context, server string) (schema.Repair, bool, error) {
	var r schema.Repair
	err := s.read(ctx).Where("server = ? AND closed_at = 0", server).Take(&r).Error
	if isNoRows(err) {
		return r, false, nil
	}
	return r, err == nil, err
}

func (tx *Tx) repair(id string) (schema.Repair, schema.Server, error) {
	var r schema.Repair
	if err := one(tx.lock(&r, "id = ?", id), "repair", id); err != nil {
		return r, schema.Server{}, err
	}
	v, err := tx.server(r.Server)
	return r, v, err
}

func (tx *Tx) setRepair(r *schema.Repair, to schema.RepairState, by, why string) error {
	if err := schema.RepairStates.Check("repair "+r.ID, r.State, to); err != nil {
		return err
	}
	tx.Emit(schema.Event{Kind: schema.EventRepairState, Subject: r.ID, Server: r.Server, By: by}, map[string]any{"from": r.State, "to": to, "why": why})
	r.State, r.Version = to, r.Version+1
	return tx.db.Save(r).Error
}

// RepairDrained is called when no job is left: the server is repairing and waits for the technician. It reports
// false, changing nothing, while a job is still on it. Repeating it changes nothing.
func (s *Store) RepairDrained(ctx context.Context, repair string) (bool, error) {
	drained := false
	err := s.Write(ctx, func(tx *Tx) error {
		r, v, err := tx.repair(repair)
		if err != nil {
			return err
		}
		if r.State != schema.RepairDraining {
			drained = true
			return nil
		}
		n, err := tx.liveAllocations(v.ID)
		if err != nil || n > 0 {
			return err
		}
		drained = true
		r.DrainedAt, r.WaitingWhy = tx.now, "the part is to be looked at"
		if v.Phase == schema.PhaseDraining {
			if err := tx.setPhase(&v, schema.PhaseRepairing, "repair", r.Cause); err != nil {
				return err
			}
		}
		return tx.setRepair(&r, schema.RepairWaiting, "repair", r.WaitingWhy)
	})
	return drained, err
}

// RepairDone is the technician's word that the work is done. It returns nothing to the pool: inspection and burn-in
// follow. From here on older evidence is history (a new epoch).
func (s *Store) RepairDone(ctx context.Context, repair, oldSerial, newSerial, note, by string) error {
	return s.Write(ctx, func(tx *Tx) error {
		r, v, err := tx.repair(repair)
		if err != nil {
			return err
		}
		if r.State == schema.RepairVerifying && r.DoneBy == by && r.Note == note && r.NewSerial == newSerial {
			return nil // the same word again: its answer was lost
		}
		if r.State != schema.RepairWaiting {
			return schema.Conflict(fmt.Sprintf("repair %s is %s", r.ID, r.State), "done is taken while it waits for the technician")
		}
		if oldSerial != "" && r.OldSerial != "" && oldSerial != r.OldSerial {
			return &schema.Error{Code: schema.CodeInvalid, Field: "old_serial", Message: fmt.Sprintf("%q is not the part to be replaced", oldSerial), Hint: "the failed part's serial is " + r.OldSerial + ", at " + r.Location}
		}
		if newSerial != "" && newSerial == r.OldSerial {
			return &schema.Error{Code: schema.CodeInvalid, Field: "new_serial", Message: fmt.Sprintf("%q is the failed part's own serial", newSerial), Hint: "the new part's serial, or nothing where the same part stays"}
		}
		if newSerial != "" {
			if err := tx.newPart(r, v, newSerial); err != nil {
				return err
			}
		}
		r.NewSerial, r.Note, r.DoneBy, r.DoneAt = newSerial, note, by, tx.now
		v.Epoch++
		if err := tx.saveServer(&v); err != nil {
			return err
		}
		tx.Emit(schema.Event{Kind: schema.EventRepairDone, Subject: r.ID, Server: v.ID, By: by}, map[string]any{"old_serial": r.OldSerial, "new_serial": newSerial, "note": note})
		return tx.setRepair(&r, schema.RepairVerifying, by, note)
	})
}

// newPart refuses a serial that is known at another place: it is not what was put in.
func (tx *Tx) newPart(r schema.Repair, v schema.Server, serial string) error {
	var at, old schema.Accelerator
	err := tx.lock(&at, "serial = ? AND removed_at = 0", serial)
	if isNoRows(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if at.Server != v.ID {
		return &schema.Error{Code: schema.CodeInvalid, Field: "new_serial", Message: fmt.Sprintf("%q is in another server", serial), Hint: "read the new part's label again"}
	}
	if r.Accelerator == "" {
		return nil
	}
	if err := tx.lock(&old, "id = ?", r.Accelerator); err != nil {
		return err
	}
	if at.Slot != "" && old.Slot != "" && at.Slot != old.Slot { // the agent may have seen the new part in its place before the technician says so
		return &schema.Error{Code: schema.CodeInvalid, Field: "new_serial", Message: fmt.Sprintf("%q is in slot %s of this server; the repair is of slot %s", serial, at.Slot, old.Slot),
			Hint: "read the new part's label again; where parts changed places within the server, leave it out"}
	}
	return nil
}

// RepairSelfCured skips the technician where a reset may have cured it: verification decides. Only while draining
// has ended and nobody has said done.
func (s *Store) RepairSelfCured(ctx context.Context, repair, how string) error {
	return s.Write(ctx, func(tx *Tx) error {
		r, v, err := tx.repair(repair)
		if err != nil || r.State == schema.RepairVerifying {
			return err
		}
		r.Note, r.DoneBy, r.DoneAt = how, "gpupool", tx.now
		v.Epoch++
		if err := tx.saveServer(&v); err != nil {
			return err
		}
		return tx.setRepair(&r, schema.RepairVerifying, "gpupool", how)
	})
}

// RepairUnproven sends a repair back to the technician: the proof failed, and why.
func (s *Store) RepairUnproven(ctx context.Context, repair, why string) error {
	return s.Write(ctx, func(tx *Tx) error {
		r, _, err := tx.repair(repair)
		if err != nil || r.State == schema.RepairWaiting {
			return err
		}
		r.Returns++
		r.WaitingWhy = why
		return tx.setRepair(&r, schema.RepairWaiting, "repair", why)
	})
}

// RepairCouldNotFix is the technician's word that the work can't be done here. The repair stays open and the server out:
// a person decides whether it is tried again or retired.
func (s *Store) RepairCouldNotFix(ctx context.Context, repair, note, by string) error {
	return s.Write(ctx, func(tx *Tx) error {
		r, v, err := tx.repair(repair)
		if err != nil {
			return err
		}
		if r.State != schema.RepairWaiting {
			return schema.Conflict(fmt.Sprintf("repair %s is %s", r.ID, r.State), "that is taken while it waits for the technician")
		}
		if strings.TrimSpace(note) == "" {
			return schema.Invalid("note", note, "what was tried and why it did not help: the next person reads it")
		}
		r.Note, r.WaitingWhy, r.Version = note, "could not be fixed by "+by+": "+note, r.Version+1
		tx.Emit(schema.Event{Kind: schema.EventRepairState, Subject: r.ID, Server: r.Server, By: by}, map[string]any{"from": r.State, "to": r.State, "why": r.WaitingWhy})
		if err := tx.db.Save(&r).Error; err != nil {
			return err
		}
		return tx.callPerson(&v, schema.FailCouldNotFix, r.WaitingWhy)
	})
}

// RepairStuck calls a person to a repair that waits too long, and says for what. The same code and text again is the
// same call.
func (s *Store) RepairStuck(ctx context.Context, repair, code, text string) error {
	return s.Write(ctx, func(tx *Tx) error {
		r, v, err := tx.repair(repair)
		if err != nil || r.ClosedAt != 0 || v.FailureCode == code && v.FailureText == text {
			return err
		}
		return tx.callPerson(&v, schema.FailureCode(code), text)
	})
}

// callPerson shows on the server that its process waits for a person; the next change of its phase takes it away.
func (tx *Tx) callPerson(v *schema.Server, code schema.FailureCode, text string) error {
	v.FailureCode, v.FailureText, v.FailureRetryable = string(code), text, true
	tx.Emit(schema.Event{Kind: schema.EventServerFailure, Subject: v.ID, Server: v.ID}, map[string]any{"code": code, "text": text, "retryable": true})
	return tx.saveServer(v)
}

// RepairReturn lets a repaired server back into the pool. The proof is checked here, at the moment of the act: a
// burn-in task queued after the technician's word passed on every device ordered, and no fault has come since.
func (s *Store) RepairReturn(ctx context.Context, repair, burnIn string) error {
	return s.Write(ctx, func(tx *Tx) error {
		r, v, err := tx.repair(repair)
		if err != nil || r.State == schema.RepairReturned {
			return err
		}
		if r.State != schema.RepairVerifying {
			return schema.Conflict(fmt.Sprintf("repair %s is %s", r.ID, r.State), "it returns from verifying only")
		}
		var t schema.Task
		if err := one(tx.lock(&t, "id = ? AND server = ? AND kind = ?", burnIn, v.ID, schema.TaskBurnIn), "burn-in", burnIn); err != nil {
			return err
		}
		var proof agentproto.BurnInResult
		if err := json.Unmarshal([]byte(t.Result), &proof); err != nil || t.State != schema.TaskDone || proof.Outcome != "passed" || t.Created < r.DoneAt {
			return schema.Unsafe(fmt.Sprintf("burn-in %s does not prove repair %s", burnIn, r.ID), "a burn-in that began after the repair must pass")
		}
		if len(proof.Devices) < v.Accelerators {
			return schema.Unsafe(fmt.Sprintf("burn-in %s covered %d of %d devices", burnIn, len(proof.Devices), v.Accelerators), "all must be there")
		}
		var since schema.Fault
		err = tx.lock(&since, "server = ? AND epoch = ? AND severity <> ? AND cleared_at = 0", v.ID, v.Epoch, schema.SeverityInfo)
		if err == nil {
			return schema.Unsafe("a fault came since the repair: "+since.Text, "the server goes back to the technician")
		} else if !isNoRows(err) {
			return err
		}
		if err := tx.swapSerial(&r, v); err != nil {
			return err
		}
		if err := tx.markProven(v, "burn-in passed after repair"); err != nil {
			return err
		}
		if err := tx.install(v); err != nil {
			return err
		}
		if _, err := tx.exec("UPDATE faults SET cleared_at = ? WHERE server = ? AND cleared_at = 0 AND epoch < ?", tx.now, v.ID, v.Epoch); err != nil {
			return err
		}
		var lifted []schema.Cordon
		if err := tx.lockAll(&lifted, "server = ? AND owner IN (?, ?) AND lifted_at = 0", v.ID, schema.CordonFault, schema.CordonRelease); err != nil {
			return err
		}
		for _, c := range lifted {
			if _, err := tx.uncordon(v, c.Accelerator, c.Owner, "repair"); err != nil {
				return err
			}
		}
		r.ClosedAt = tx.now
		if err := tx.setRepair(&r, schema.RepairReturned, "repair", "proven by burn-in"); err != nil {
			return err
		}
		return tx.setPhase(&v, schema.PhaseAvailable, "repair", "repaired and proven")
	})
}

// swapSerial takes the replaced part out of the inventory: the new one must have been seen.
func (tx *Tx) swapSerial(r *schema.Repair, v schema.Server) error {
	if r.NewSerial == "" {
		told, err := tx.untoldSwap(r, v)
		if err != nil || !told {
			return err
		}
	}
	var fresh schema.Accelerator
	if err := tx.lock(&fresh, "server = ? AND serial = ? AND removed_at = 0", v.ID, r.NewSerial); err != nil {
		if isNoRows(err) {
			return schema.Unsafe(fmt.Sprintf("the new serial %s is not seen in server %s", r.NewSerial, v.Name), "is the part seated? is the serial right?")
		}
		return err
	}
	if r.Accelerator == "" {
		return nil
	}
	var old schema.Accelerator
	if err := tx.lock(&old, "id = ?", r.Accelerator); err != nil {
		return err
	}
	if old.ID == fresh.ID || old.RemovedAt != 0 {
		return nil
	}
	if old.Health != schema.HealthAbsent {
		return schema.Unsafe(fmt.Sprintf("the failed part %s is still seen in server %s", old.Serial, v.Name), "was the right part replaced?")
	}
	return tx.removeAccelerator(&old, "replaced by "+r.NewSerial+" in "+r.ID)
}

// untoldSwap finds the new part by the failed one's slot, where the technician named no serial and the failed one is gone.
func (tx *Tx) untoldSwap(r *schema.Repair, v schema.Server) (bool, error) {
	if r.Accelerator == "" {
		return false, nil
	}
	var old, fresh schema.Accelerator
	if err := tx.lock(&old, "id = ?", r.Accelerator); err != nil || old.Health != schema.HealthAbsent || old.Slot == "" {
		return false, err
	}
	err := tx.lock(&fresh, "server = ? AND slot = ? AND id <> ? AND removed_at = 0 AND health <> ? AND serial <> ''", v.ID, old.Slot, old.ID, schema.HealthAbsent)
	if isNoRows(err) {
		return false, nil
	}
	r.NewSerial = fresh.Serial
	return err == nil, err
}

// Silent are servers in the pool whose agent has not been heard of since before.
func (s *Store) Silent(ctx context.Context, before schema.Instant) ([]schema.Server, error) {
	var out []schema.Server
	return out, s.read(ctx).Where("phase = ? AND agent_seen < ? AND agent_seen > 0", schema.PhaseAvailable, before).Order("name").Find(&out).Error
}

// Location is where a technician finds the server.
func Location(v schema.Server) string {
	parts := []string{v.Region, v.Site, v.Rack}
	if v.Unit > 0 {
		parts = append(parts, fmt.Sprintf("U%d", v.Unit))
	}
	return strings.Join(append(parts, v.Name), " / ")
}
