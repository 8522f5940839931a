package store

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"gorm.io/gorm"

	"gpupool/schema"
)

// Limits bound what may be taken out of the pool automatically. Zero fields are DefaultLimits'.
type Limits struct {
	// AtOnce and PerHour are shares of a model's servers in a region that may be out for faults at one time, and that may be
	// taken out within an hour. Always at least AtLeast servers, so that a small pool isn't stopped by its second fault. What
	// was out when a person last reset the limit's breaker is what that person has accepted: each reset grants the whole again.
	AtOnce, PerHour float64
	AtLeast         int
	// Rack is the share of a rack's servers that may be out for faults at one time, and always one.
	Rack float64
	// Alike servers with the same kind and code of fault within AlikeWithin are held: software is the likelier cause.
	Alike       int
	AlikeWithin time.Duration
}

// DefaultLimits are proposals: the nearest public figure is NVSentinel's half of a cluster within 5 minutes, which is loose.
var DefaultLimits = Limits{AtOnce: 0.10, PerHour: 0.05, AtLeast: 2, Rack: 0.5, Alike: 3, AlikeWithin: 10 * time.Minute}

// WithDefaults fills in what is zero.
func (l Limits) WithDefaults() Limits {
	d := DefaultLimits
	for _, f := range []struct{ have, def *float64 }{{&l.AtOnce, &d.AtOnce}, {&l.PerHour, &d.PerHour}, {&l.Rack, &d.Rack}} {
		if *f.have == 0 {
			*f.have = *f.def
		}
	}
	if l.AtLeast == 0 {
		l.AtLeast = d.AtLeast
	}
	if l.Alike == 0 {
		l.Alike = d.Alike
	}
	if l.AlikeWithin == 0 {
		l.AlikeWithin = d.AlikeWithin
	}
	return l
}

// allowed is how many of total a share allows.
func (l Limits) allowed(share float64, total int64) int64 {
	return max(int64(l.AtLeast), int64(math.Floor(share*float64(total))))
}

// alone are kinds that no breaker over codes holds: a person's word, the gate's, and silence, which has a rule of its own.
var alone = map[string]bool{"operator": true, "burn-in": true, "agent-silent": true, "leak": true, "job-failures": true, "black-hole": true, "slot-failures": true}

// limited is the breaker that holds the verdict back, or none. The first limit that is reached opens its breaker. A server that
// is out for a fault already takes nothing more from the pool, and work that may be wrong by now is never let go on.
func (tx *Tx) limited(v schema.Server, f schema.Fault, verdict Verdict) (string, error) {
	l := tx.s.limits
	if err := tx.exclusive("limits of " + v.Region); err != nil {
		return "", err
	}
	var mine int64
	if err := tx.db.Raw("SELECT count(*) FROM repairs WHERE closed_at = 0 AND server = ?", v.ID).Scan(&mine).Error; err != nil || mine > 0 {
		return "", err
	}
	model, rack, code := "model "+v.Region+"/"+v.Model, "rack "+v.Site+"/"+v.Rack, "code "+strings.TrimSuffix(f.Kind+"/"+f.Code, "/")
	scopes := []string{model, rack}
	if !alone[f.Kind] {
		scopes = append(scopes, code)
	}
	scope, why := "", ""
	var open []Breaker
	if err := tx.db.Where("reset_at = 0 AND scope IN ?", scopes).Order("opened_at").Limit(1).Find(&open).Error; err != nil {
		return "", err
	}
	if len(open) > 0 {
		scope, why = open[0].Scope, open[0].Why
	}
	count := func(dst *int64, q string, args ...any) error { return tx.db.Raw(q, args...).Scan(dst).Error }
	const sinceReset = " > (SELECT COALESCE(max(reset_at), 0) FROM breakers WHERE scope = ?)"
	const inPool = "phase IN ('available','draining','repairing')"
	if scope == "" && !alone[f.Kind] {
		var alike, pool int64
		if err := count(&alike, "SELECT count(DISTINCT server) FROM faults WHERE kind = ? AND code = ? AND at >= ? AND server <> ? AND verdict NOT IN ('', ?, ?) AND at"+sinceReset,
			f.Kind, f.Code, f.At.Add(-l.AlikeWithin), v.ID, schema.HeldStale, schema.ActionObserve, code); err != nil {
			return "", err
		}
		if err := count(&pool, "SELECT count(*) FROM servers WHERE "+inPool); err != nil {
			return "", err
		}
		if most := max(int64(l.Alike), pool/500); alike+1 >= most {
			scope, why = code, fmt.Sprintf("%s %s came on %d servers within %s: software, or something that they share, is the likelier cause", f.Kind, f.Code, alike+1, schema.Setting(l.AlikeWithin))
		}
	}
	if scope == "" {
		var total, out, hour int64
		if err := count(&total, "SELECT count(*) FROM servers WHERE region = ? AND model = ? AND "+inPool, v.Region, v.Model); err != nil {
			return "", err
		}
		if err := count(&out, "SELECT count(*) FROM repairs r JOIN servers s ON s.id = r.server WHERE r.closed_at = 0 AND s.region = ? AND s.model = ? AND r.opened_at"+sinceReset, v.Region, v.Model, model); err != nil {
			return "", err
		}
		if err := count(&hour, "SELECT count(DISTINCT r.server) FROM repairs r JOIN servers s ON s.id = r.server WHERE r.opened_at > ? AND s.region = ? AND s.model = ? AND r.opened_at"+sinceReset,
			tx.now.Add(-time.Hour), v.Region, v.Model, model); err != nil {
			return "", err
		}
		switch {
		case out+1 > l.allowed(l.AtOnce, total):
			scope, why = model, fmt.Sprintf("%d of %d servers of model %s are out for faults already", out, total, v.Model)
		case hour+1 > l.allowed(l.PerHour, total):
			scope, why = model, fmt.Sprintf("%d of %d servers of model %s were taken out for faults within the hour", hour, total, v.Model)
		}
	}
	if scope == "" && v.Rack != "" {
		var total, out int64
		if err := count(&total, "SELECT count(*) FROM servers WHERE site = ? AND rack = ? AND "+inPool, v.Site, v.Rack); err != nil {
			return "", err
		}
		if err := count(&out, "SELECT count(*) FROM repairs r JOIN servers s ON s.id = r.server WHERE r.closed_at = 0 AND s.site = ? AND s.rack = ? AND r.opened_at"+sinceReset, v.Site, v.Rack, rack); err != nil {
			return "", err
		}
		if out+1 > max(1, int64(math.Floor(l.Rack*float64(total)))) && total > 2 {
			scope, why = rack, fmt.Sprintf("%d of %d servers of rack %s are out for faults already", out, total, v.Rack)
		}
	}
	if scope == "" {
		return "", nil
	}
	if len(open) == 0 {
		b := Breaker{ID: NewID("brk", tx.now), Scope: scope, Why: why, OpenedAt: tx.now}
		open = append(open, b)
		if err := tx.db.Create(&b).Error; err != nil {
			return "", err
		}
		tx.Emit(schema.Event{Kind: schema.EventBreaker, Subject: b.ID, Server: v.ID}, map[string]any{"scope": scope, "open": true, "why": why})
	}
	text := fmt.Sprintf("%s: it is only observed, because %s (breaker %q)", f.Text, why, scope)
	if verdict.Corrupts {
		text = fmt.Sprintf("%s: taken out though %s (breaker %q), because work on it may be wrong by now", f.Text, why, scope)
	}
	tx.Emit(schema.Event{Kind: schema.EventServerFailure, Subject: v.ID, Server: v.ID}, map[string]any{"code": "blast-radius", "retryable": false, "text": text + ". A person must look"})
	if verdict.Corrupts {
		return "", nil
	}
	return open[0].ID, nil
}

// Breakers lists those that are open, or all of the last ones, newest first, each with the faults that it holds back.
func (s *Store) Breakers(ctx context.Context, open bool) ([]Breaker, error) {
	q := s.read(ctx).Order("opened_at DESC, id DESC").Limit(200)
	if open {
		q = q.Where("reset_at = 0")
	}
	var out []Breaker
	if err := q.Find(&out).Error; err != nil || len(out) == 0 {
		return out, err
	}
	held, err := heldFaults(s.read(ctx), "")
	if err != nil {
		return nil, err
	}
	for i := range out {
		for _, h := range held {
			if h.Breaker == out[i].ID {
				out[i].Held = append(out[i].Held, h)
			}
		}
	}
	return out, nil
}

// heldFaults are those that open breakers hold back, the oldest first; also narrows them.
func heldFaults(db *gorm.DB, also string, args ...any) ([]schema.HeldFault, error) {
	var out []schema.HeldFault
	return out, db.Raw(`SELECT f.breaker, f.id AS fault, f.server, s.name AS server_name, f.accelerator, COALESCE(a.slot, '') AS slot, f.kind, f.code, f.text, f.at
		FROM faults f JOIN breakers b ON b.id = f.breaker AND b.reset_at = 0 JOIN servers s ON s.id = f.server AND s.epoch = f.epoch LEFT JOIN accelerators a ON a.id = f.accelerator
		WHERE f.verdict = 'limited' AND f.cleared_at = 0`+also+` ORDER BY f.at, f.id`, args...).Scan(&out).Error
}

// HeldBy are the servers whose faults a breaker has held back last, whether it is open still or not.
func (s *Store) HeldBy(ctx context.Context, breaker string) ([]string, error) {
	var out []string
	return out, s.read(ctx).Raw("SELECT DISTINCT server FROM faults WHERE breaker = ? ORDER BY server", breaker).Scan(&out).Error
}

// ResetBreaker lets faults of its scope be acted on again: the scope's limits count from now on. What was held back meanwhile
// is judged anew, unless it is over; what is more than the limits grant opens the next breaker.
func (s *Store) ResetBreaker(ctx context.Context, id, reason, by string) (Breaker, error) {
	var b Breaker
	err := s.Write(ctx, func(tx *Tx) error {
		if strings.TrimSpace(reason) == "" {
			return schema.Invalid("reason", reason, "what was found: the next person reads it")
		}
		if err := one(tx.lock(&b, "id = ?", id), "breaker", id); err != nil {
			return err
		}
		if b.ResetAt != 0 {
			return nil
		}
		b.ResetAt, b.ResetBy, b.Reason = tx.now, by, reason
		if err := tx.db.Save(&b).Error; err != nil {
			return err
		}
		tx.Emit(schema.Event{Kind: schema.EventBreaker, Subject: b.ID, By: by}, map[string]any{"scope": b.Scope, "open": false, "why": reason})
		var held []schema.Fault
		if err := tx.lockAll(&held, "verdict = ? AND cleared_at = 0 AND epoch = (SELECT epoch FROM servers s WHERE s.id = faults.server)", schema.HeldLimited); err != nil {
			return err
		}
		for i := range held {
			held[i].Verdict = ""
			if err := tx.db.Save(&held[i]).Error; err != nil {
				return err
			}
			tx.Emit(schema.Event{Kind: schema.EventFault, Subject: held[i].ID, Server: held[i].Server, By: by}, map[string]any{"kind": held[i].Kind, "code": held[i].Code, "text": held[i].Text, "again": true})
		}
		return nil
	})
	return b, err
}
