package store

import (
	"context"
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
	if !f.Severity.Valid() {
		return schema.Invalid("severity", string(f.Severity), "info, warning or critical")
	}
	if f.Dedupe == "" {
		return schema.Invalid("dedupe", "", "a key that is the same whenever the same event is told again")
	}
	f.ID, f.Server, f.SeenAt, f.Epoch = NewID("flt", tx.now), v.ID, tx.now, v.Epoch
	f.At = tx.happened(f.At)
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
	r := tx.db.Exec(`INSERT INTO faults (id, server, accelerator, source, kind, code, part, value, severity, text, dedupe, epoch, at, seen_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING`,
		f.ID, f.Server, f.Accelerator, f.Source, f.Kind, f.Code, f.Part, f.Value, f.Severity, f.Text, f.Dedupe, f.Epoch, f.At, f.SeenAt)
	if r.Error != nil || r.RowsAffected == 0 {
		return r.Error
	}
	tx.Emit(schema.Event{Kind: schema.EventFault, Subject: f.ID, Server: v.ID}, map[string]any{"kind": f.Kind, "code": f.Code, "severity": f.Severity, "text": f.Text, "accelerator": f.Accelerator})
	return nil
}

// happened is when something happened that is told to have at a moment. One that is not told is now, and so is one that is not
// yet: the clock was wrong when it was read, and what lies ahead would count in every window until then.
func (tx *Tx) happened(at schema.Instant) schema.Instant {
	if at == 0 || at > tx.now.Add(agentproto.MaxSkew) {
		return tx.now
	}
	return at
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
	var other string
	err := tx.db.Raw(`SELECT id FROM faults f WHERE server = ? AND accelerator = ? AND kind = ? AND code = ? AND part = ? AND epoch = ? AND source <> ? AND source IN ('agent', 'redfish') AND at BETWEEN ? AND ?
		AND NOT EXISTS (SELECT 1 FROM fault_twins t WHERE t.fault = f.id AND t.source = ?) ORDER BY at, id LIMIT 1`,
		f.Server, f.Accelerator, f.Kind, f.Code, f.Part, f.Epoch, f.Source, at-w, at+w, f.Source).Scan(&other).Error
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

// FaultsOf are the newest faults of a server that rules count over: those since a moment, of any epoch.
func (s *Store) FaultsOf(ctx context.Context, server string, since schema.Instant) ([]schema.Fault, error) {
	var out []schema.Fault
	return out, s.read(ctx).Where("server = ? AND at >= ?", server, since).Order("seen_at DESC, id DESC").Limit(1000).Find(&out).Error
}

// FaultsSince are all faults seen since a moment, the oldest first; at most limit.
func (s *Store) FaultsSince(ctx context.Context, since schema.Instant, limit int) ([]schema.Fault, error) {
	var out []schema.Fault
	return out, s.read(ctx).Where("seen_at >= ?", since).Order("seen_at, id").Limit(limit).Find(&out).Error
}

// ClearFaults takes the word of a source that something is over. It clears the evidence of the same device, kind, code and
// part that happened before, and no other; a device that was cordoned stays so until it is proven.
func (s *Store) ClearFaults(ctx context.Context, server string, over schema.Fault) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		return tx.clearFaults(v, over)
	})
}

func (tx *Tx) clearFaults(v schema.Server, over schema.Fault) error {
	over.At = tx.happened(over.At)
	q := "UPDATE faults SET cleared_at = ? WHERE server = ? AND accelerator = ? AND kind = ? AND part = ? AND epoch = ? AND at <= ? AND cleared_at = 0"
	args := []any{tx.now, v.ID, over.Accelerator, over.Kind, over.Part, v.Epoch, over.At}
	if over.Code != "" {
		q, args = q+" AND code = ?", append(args, over.Code)
	}
	n, err := tx.exec(q, args...)
	if err != nil || n == 0 {
		return err
	}
	tx.Emit(schema.Event{Kind: schema.EventFaultCleared, Subject: v.ID, Server: v.ID}, map[string]any{"kind": over.Kind, "code": over.Code, "part": over.Part, "accelerator": over.Accelerator, "why": over.Text})
	var open schema.Repair
	err = tx.lock(&open, "server = ? AND closed_at = 0", v.ID)
	if isNoRows(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return tx.weigh(&open, over.Kind+" is over: "+over.Text)
}
