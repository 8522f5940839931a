package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"gpupool/schema"
)

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
		r = schema.Repair{ID: NewID("rep", tx.now), Server: v.ID, State: schema.RepairVerifying, Cause: why, Part: schema.PartNone, Location: Location(v), DoneBy: by,
			Action: schema.ActionCordon, Cure: schema.CureBurnIn, FirstSignAt: tx.now, OpenedAt: tx.now, DrainedAt: tx.now, DoneAt: tx.now, Deadline: tx.now.Add(DefaultIdle)}
		assign(&r)
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

// RepairFaults is a repair's evidence, the oldest first.
func (s *Store) RepairFaults(ctx context.Context, repair string) ([]schema.Fault, error) {
	var out []schema.Fault
	return out, s.read(ctx).Where("repair = ?", repair).Order("seen_at, id").Find(&out).Error
}

// NudgeIdle wakes the repairs that wait for their server to become idle, where it is.
func (s *Store) NudgeIdle(ctx context.Context) error {
	var idle []schema.Repair
	if err := s.read(ctx).Where("state = ? AND NOT EXISTS (SELECT 1 FROM allocations a WHERE a.server = repairs.server AND a.released_at = 0)", schema.RepairCordoned).Order("id").Limit(500).Find(&idle).Error; err != nil || len(idle) == 0 {
		return err
	}
	return s.Write(ctx, func(tx *Tx) error {
		for _, r := range idle {
			tx.Emit(schema.Event{Kind: schema.EventRepairNews, Subject: r.ID, Server: r.Server}, map[string]any{"why": "the server is idle"})
		}
		return nil
	})
}

// HeardAgain are servers with evidence of their agent's silence that was heard of since, and the evidence.
func (s *Store) HeardAgain(ctx context.Context) ([]schema.Fault, error) {
	var out []schema.Fault
	return out, s.read(ctx).Raw(`SELECT f.* FROM faults f JOIN servers s ON s.id = f.server AND s.epoch = f.epoch WHERE f.kind = 'agent-silent' AND f.cleared_at = 0 AND f.repair <> '' AND s.agent_seen > f.at ORDER BY f.id LIMIT 500`).Scan(&out).Error
}

// Suspects are the devices that a repair's evidence is of, as the agent names them; evidence that is over counts too, once it
// was reason enough.
func (s *Store) Suspects(ctx context.Context, repair string) ([]string, error) {
	var out []string
	return out, s.read(ctx).Raw(`SELECT DISTINCT CASE WHEN a.serial <> '' THEN a.serial WHEN a.uuid <> '' THEN a.uuid ELSE a.pci END AS device
		FROM faults f JOIN accelerators a ON a.id = f.accelerator WHERE f.repair = ? ORDER BY device`, repair).Scan(&out).Error
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
	if to == schema.RepairWaiting && r.WaitingAt == 0 {
		r.WaitingAt = tx.now
	}
	assign(r)
	return tx.db.Save(r).Error
}

// assign says whose the next step is and what it is, of the state that r is in.
func assign(r *schema.Repair) {
	cures := map[schema.Cure]string{schema.CureBurnIn: "the burn-in", schema.CureDevice: "a reset of the device", schema.CureBaseboard: "a reset of all its devices",
		schema.CureReboot: "a reboot", schema.CurePower: "a power cycle", schema.CureTechnician: "a technician", "": "a technician"}
	r.Owner = schema.OwnerPlatform
	switch r.State {
	case schema.RepairCordoned:
		r.NextStep = "once the server is idle, at the latest by the deadline, it leaves the pool; then " + cures[r.Cure]
	case schema.RepairDraining:
		r.NextStep = "once no job is left: " + cures[r.Cure]
	case schema.RepairResetting:
		r.NextStep = cures[nextCure(*r)] + ", then the burn-in"
	case schema.RepairVerifying:
		r.NextStep = "its devices are read and burnt in; then it returns, or goes back"
	case schema.RepairWaiting:
		r.Owner, r.NextStep = schema.OwnerTechnicians, "look at "+r.Part+", then say done, or could-not-fix"
		if r.ClaimedBy != "" {
			r.Owner = r.ClaimedBy
		}
	case schema.RepairReturned, schema.RepairCancelled:
		r.Owner, r.NextStep, r.Deadline = "", "", 0
	}
}

// nextCure is the reset that comes next: the mildest that may help and was not tried, or a technician.
func nextCure(r schema.Repair) schema.Cure {
	c := r.Cure
	for c != schema.CureTechnician && c != schema.CureBurnIn && r.HasTried(c) {
		c = c.Next()
	}
	return c
}

// Until are the times after which a person is called, by what the repair then waits for.
type Until struct {
	Reset, Technician, Proof time.Duration
}

func (tx *Tx) due(d time.Duration) schema.Instant { return tx.now.Add(orElse(d, DefaultIdle)) }

// RepairIdle is asked while a suspect is cordoned: once the server holds no job, or when the time for that is over, it leaves
// the pool. What runs then may still end by itself. It returns the state that the repair is in.
func (s *Store) RepairIdle(ctx context.Context, repair string, over bool, within time.Duration) (schema.RepairState, error) {
	var state schema.RepairState
	err := s.Write(ctx, func(tx *Tx) error {
		r, v, err := tx.repair(repair)
		if err != nil {
			return err
		}
		state = r.State
		if r.State != schema.RepairCordoned {
			return nil
		}
		n, err := tx.liveAllocations(v.ID)
		if err != nil || n > 0 && !over {
			return err
		}
		if _, err := tx.cordon(v, "", schema.CordonFault, "health", r.Cause); err != nil {
			return err
		}
		if v.Phase == schema.PhaseAvailable {
			if err := tx.setPhase(&v, schema.PhaseDraining, "health", r.Cause); err != nil {
				return err
			}
		}
		r.Deadline = tx.due(within)
		why := "the server is idle"
		if n > 0 {
			why = "the server was not idle in time: it takes no more work"
		}
		if err := tx.setRepair(&r, schema.RepairDraining, "repair", why); err != nil {
			return err
		}
		state = r.State
		return tx.emitIfDrained(v)
	})
	return state, err
}

// RepairDrainNow asks the jobs of a server under repair to end: a person doesn't wait for them.
func (s *Store) RepairDrainNow(ctx context.Context, repair, reason, by string) (schema.Repair, error) {
	var r schema.Repair
	err := s.Write(ctx, func(tx *Tx) error {
		var v schema.Server
		var err error
		if r, v, err = tx.repair(repair); err != nil {
			return err
		}
		if strings.TrimSpace(reason) == "" {
			return schema.Invalid("reason", reason, "why its jobs are not waited for, in words")
		}
		if r.State != schema.RepairCordoned && r.State != schema.RepairDraining {
			return schema.Conflict(fmt.Sprintf("repair %s is %s", r.ID, r.State), "no job is left on its server")
		}
		if _, err := tx.cordon(v, "", schema.CordonFault, "health", r.Cause); err != nil {
			return err
		}
		tx.Emit(schema.Event{Kind: schema.EventRepairNews, Subject: r.ID, Server: v.ID, By: by}, map[string]any{"why": "drained now by " + by + ": " + reason})
		return tx.drainNow(&r, v, 0, reason)
	})
	return r, err
}

// RepairDrained is called when no job is left: the server is repairing, and what its evidence asks for follows. Where a job is
// still on it, nothing changes. Repeating it changes nothing. It returns the state that the repair is in.
func (s *Store) RepairDrained(ctx context.Context, repair string, until Until) (schema.RepairState, error) {
	var state schema.RepairState
	err := s.Write(ctx, func(tx *Tx) error {
		r, v, err := tx.repair(repair)
		if err != nil {
			return err
		}
		state = r.State
		if r.State != schema.RepairDraining {
			return nil
		}
		n, err := tx.liveAllocations(v.ID)
		if err != nil || n > 0 {
			return err
		}
		r.DrainedAt = tx.now
		if v.Phase == schema.PhaseDraining {
			if err := tx.setPhase(&v, schema.PhaseRepairing, "repair", r.Cause); err != nil {
				return err
			}
		}
		switch c := nextCure(r); c {
		case schema.CureBurnIn:
			err = tx.toProof(&r, v, "its evidence is over, or asks for no more than a proof", until)
		case schema.CureTechnician:
			r.WaitingWhy, r.Deadline = "the part is to be looked at", tx.due(until.Technician)
			err = tx.setRepair(&r, schema.RepairWaiting, "repair", r.WaitingWhy)
		default:
			r.Deadline = tx.due(until.Reset)
			err = tx.setRepair(&r, schema.RepairResetting, "repair", "to be tried: "+string(c))
		}
		state = r.State
		return err
	})
	return state, err
}

// toProof begins a proof without a technician's word. What was told before is history.
func (tx *Tx) toProof(r *schema.Repair, v schema.Server, how string, until Until) error {
	r.Note, r.DoneBy, r.DoneAt, r.Deadline = how, schema.OwnerPlatform, tx.now, tx.due(until.Proof)
	v.Epoch++
	if err := tx.saveServer(&v); err != nil {
		return err
	}
	return tx.setRepair(r, schema.RepairVerifying, schema.OwnerPlatform, how)
}

// NextReset is what is to be tried now, at the moment of the act: CureBurnIn where the evidence is over by now. Where nothing is
// left to try the repair waits for the technician from here on, because of why.
func (s *Store) NextReset(ctx context.Context, repair, why string, until Until) (schema.Cure, error) {
	var c schema.Cure
	err := s.Write(ctx, func(tx *Tx) error {
		r, v, err := tx.repair(repair)
		if err != nil {
			return err
		}
		if r.State != schema.RepairResetting {
			c = schema.CureTechnician
			return nil
		}
		if err := tx.destructible(v); err != nil {
			why, r.Cure = err.Error(), schema.CureTechnician
		}
		switch c = nextCure(r); c {
		case schema.CureBurnIn:
			return tx.toProof(&r, v, "its evidence is over", until)
		case schema.CureTechnician:
			if why == "" {
				why = "no reset is left to try"
			}
			r.WaitingWhy, r.Deadline = why, tx.due(until.Technician)
			return tx.setRepair(&r, schema.RepairWaiting, "repair", why)
		default:
			return nil
		}
	})
	return c, err
}

// ResetTried keeps what came of a reset: one that was carried out is followed by the proof; after one that was not, the next is
// tried. Repeating it changes nothing.
func (s *Store) ResetTried(ctx context.Context, repair string, c schema.Cure, done bool, how string, until Until) error {
	return s.Write(ctx, func(tx *Tx) error {
		r, v, err := tx.repair(repair)
		if err != nil || r.State != schema.RepairResetting || r.HasTried(c) {
			return err
		}
		r.Tried = strings.TrimPrefix(r.Tried+","+string(c), ",")
		if done {
			return tx.toProof(&r, v, how, until)
		}
		assign(&r)
		r.Version++
		tx.Emit(schema.Event{Kind: schema.EventRepairNews, Subject: r.ID, Server: v.ID}, map[string]any{"why": how})
		return tx.db.Save(&r).Error
	})
}

// RepairWord is a technician's word on a repair.
type RepairWord struct {
	OldSerial, NewSerial string            // of the part taken out and put in; empty = not told
	Did                  schema.RepairWork // empty: replaced, where a new serial is told, else other
	Note                 string
	By                   string
}

// RepairClaim says who works on a repair that waits. An open claim of another person's is not taken away without force.
func (s *Store) RepairClaim(ctx context.Context, repair, by string, force bool) (schema.Repair, error) {
	var r schema.Repair
	err := s.Write(ctx, func(tx *Tx) error {
		var err error
		if r, _, err = tx.repair(repair); err != nil {
			return err
		}
		if r.State != schema.RepairWaiting {
			return schema.Conflict(fmt.Sprintf("repair %s is %s", r.ID, r.State), "it is claimed while it waits for the technician")
		}
		if r.ClaimedBy == by {
			return nil
		}
		if r.ClaimedBy != "" && !force {
			return schema.Conflict(fmt.Sprintf("repair %s was claimed by %s %s", r.ID, r.ClaimedBy, r.ClaimedAt), "agree with them, then claim it with force")
		}
		r.ClaimedBy = by
		if r.ClaimedAt == 0 {
			r.ClaimedAt = tx.now // hands-on begins
		}
		r.Version++
		assign(&r)
		tx.Emit(schema.Event{Kind: schema.EventRepairNews, Subject: r.ID, Server: r.Server, By: by}, map[string]any{"why": "claimed by " + by})
		return tx.db.Save(&r).Error
	})
	return r, err
}

// RepairDone is the technician's word that the work is done. It returns nothing to the pool: inspection and burn-in
// follow. From here on older evidence is history (a new epoch).
func (s *Store) RepairDone(ctx context.Context, repair string, w RepairWord, until Until) error {
	return s.Write(ctx, func(tx *Tx) error {
		r, v, err := tx.repair(repair)
		if err != nil {
			return err
		}
		w.OldSerial, w.NewSerial = strings.TrimSpace(w.OldSerial), strings.TrimSpace(w.NewSerial) // a scanner ends with a blank
		if w.Did == "" {
			w.Did = schema.WorkOther
			if w.NewSerial != "" {
				w.Did = schema.WorkReplaced
			}
		}
		if r.State == schema.RepairVerifying && r.DoneBy == w.By && r.Note == w.Note && r.NewSerial == w.NewSerial && r.Did == w.Did {
			return nil // the same word again: its answer was lost
		}
		if r.State != schema.RepairWaiting {
			return schema.Conflict(fmt.Sprintf("repair %s is %s", r.ID, r.State), "done is taken while it waits for the technician")
		}
		switch {
		case !w.Did.Valid():
			return schema.Invalid("did", string(w.Did), "one of "+works())
		case w.Did != schema.WorkReplaced && w.NewSerial != "":
			return schema.Invalid("did", string(w.Did), "replaced, where a new serial is told; else leave new_serial out")
		case w.OldSerial != "" && r.OldSerial != "" && w.OldSerial != r.OldSerial:
			return &schema.Error{Code: schema.CodeInvalid, Field: "old_serial", Message: fmt.Sprintf("%q is not the part to be replaced", w.OldSerial), Hint: "the failed part's serial is " + r.OldSerial + ", at " + r.Location}
		case w.NewSerial != "" && w.NewSerial == r.OldSerial:
			return &schema.Error{Code: schema.CodeInvalid, Field: "new_serial", Message: fmt.Sprintf("%q is the failed part's own serial", w.NewSerial), Hint: "the new part's serial, or nothing where the same part stays"}
		}
		if w.NewSerial != "" {
			if err := tx.newPart(r, v, w.NewSerial); err != nil {
				return err
			}
		}
		if r.ClaimedBy == "" { // who says done has worked on it
			r.ClaimedBy, r.ClaimedAt = w.By, tx.now
		}
		r.NewSerial, r.Did, r.Note, r.DoneBy, r.DoneAt, r.Deadline = w.NewSerial, w.Did, w.Note, w.By, tx.now, tx.due(until.Proof)
		v.Epoch++
		if err := tx.saveServer(&v); err != nil {
			return err
		}
		tx.Emit(schema.Event{Kind: schema.EventRepairDone, Subject: r.ID, Server: v.ID, By: w.By}, map[string]any{"old_serial": r.OldSerial, "new_serial": w.NewSerial, "did": w.Did, "note": w.Note})
		if w.NewSerial != "" && r.OldSerial != "" {
			if err := tx.openRMA(r, v, w.By); err != nil {
				return err
			}
		}
		return tx.setRepair(&r, schema.RepairVerifying, w.By, w.Note)
	})
}

func works() string {
	out := make([]string, len(schema.RepairWorks))
	for i, w := range schema.RepairWorks {
		out[i] = string(w)
	}
	return strings.Join(out, ", ")
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

// RepairUnproven ends a proof that failed: where reset is set and one is left to try it is tried, else the repair goes back to
// the technician.
func (s *Store) RepairUnproven(ctx context.Context, repair, why string, reset bool, until Until) (schema.RepairState, error) {
	var state schema.RepairState
	err := s.Write(ctx, func(tx *Tx) error {
		r, _, err := tx.repair(repair)
		if err != nil {
			return err
		}
		state = r.State
		if r.State != schema.RepairVerifying {
			return nil
		}
		r.Returns++
		r.WaitingWhy = why
		if c := nextCure(r); reset && c != schema.CureTechnician && c != schema.CureBurnIn {
			r.Deadline = tx.due(until.Reset)
			err = tx.setRepair(&r, schema.RepairResetting, "repair", why)
		} else {
			r.Deadline = tx.due(until.Technician)
			err = tx.setRepair(&r, schema.RepairWaiting, "repair", why)
		}
		state = r.State
		return err
	})
	return state, err
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
		r.ClaimedBy = ""
		assign(&r)
		r.Owner, r.NextStep = schema.OwnerOperators, "decide: another technician, the part back to its maker, or the server retired"
		tx.Emit(schema.Event{Kind: schema.EventRepairState, Subject: r.ID, Server: r.Server, By: by}, map[string]any{"from": r.State, "to": r.State, "why": r.WaitingWhy})
		if err := tx.db.Save(&r).Error; err != nil {
			return err
		}
		return tx.callPerson(&v, schema.FailCouldNotFix, r.WaitingWhy)
	})
}

// RepairStuck calls a person to a repair that waits too long, and says for what. The same code and text again is the
// same call.
func (s *Store) RepairStuck(ctx context.Context, repair, code, text string, again time.Duration) error {
	return s.Write(ctx, func(tx *Tx) error {
		r, v, err := tx.repair(repair)
		if err != nil || r.ClosedAt != 0 || v.FailureCode == code && v.FailureText == text {
			return err
		}
		r.Deadline, r.Version = tx.due(again), r.Version+1
		if err := tx.db.Save(&r).Error; err != nil {
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
