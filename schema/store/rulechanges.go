package store

import (
	"context"
	"strings"
	"time"

	"gpupool/schema"
)

// These are schema's.
type (
	RuleChange = schema.RuleChange
	Silence    = schema.Silence
	Breaker    = schema.Breaker
)

// RuleChanges lists them by rule.
func (s *Store) RuleChanges(ctx context.Context) ([]RuleChange, error) {
	var out []RuleChange
	return out, s.read(ctx).Order("rule").Find(&out).Error
}

// ChangeRule keeps what an operator changes of a rule. A change of nothing takes an earlier change back. The caller has checked
// that the rule exists and what it makes of it.
func (s *Store) ChangeRule(ctx context.Context, c RuleChange, by string) error {
	if strings.TrimSpace(c.Reason) == "" {
		return schema.Invalid("reason", c.Reason, "why, in words: the next person reads it")
	}
	return s.Write(ctx, func(tx *Tx) error {
		c.By, c.At = by, tx.now
		tx.Emit(schema.Event{Kind: schema.EventPolicyChanged, Subject: c.Rule, By: by}, map[string]any{"rule": c})
		if (RuleChange{Rule: c.Rule, By: c.By, Reason: c.Reason, At: c.At}) == c {
			_, err := tx.exec("DELETE FROM rule_changes WHERE rule = ?", c.Rule)
			return err
		}
		return tx.db.Save(&c).Error
	})
}

// longestSilence is how long a silence may last: who needs more switches the rule off, which is seen in the list of rules.
const longestSilence = 30 * 24 * time.Hour

// Silence begins one.
func (s *Store) Silence(ctx context.Context, x Silence, by string) (Silence, error) {
	err := s.Write(ctx, func(tx *Tx) error {
		switch {
		case x.Rule == "" && x.Kind == "" && x.Server == "" && x.Accelerator == "":
			return schema.Invalid("rule", "", "a rule, a kind, a server or an accelerator: nothing silences everything")
		case strings.TrimSpace(x.Reason) == "":
			return schema.Invalid("reason", x.Reason, "why, in words: the next person reads it")
		case x.Until <= tx.now:
			return schema.Invalid("until", x.Until.String(), "a moment to come")
		case x.Until.Sub(tx.now) > longestSilence:
			return schema.Invalid("until", x.Until.String(), "within 30 days; who needs more switches the rule off")
		}
		if x.Server != "" {
			v, err := tx.server(x.Server)
			if err != nil {
				return err
			}
			x.Server = v.ID
		}
		x.ID, x.By, x.At, x.EndedAt, x.EndedBy = NewID("sil", tx.now), by, tx.now, 0, ""
		tx.Emit(schema.Event{Kind: schema.EventPolicyChanged, Subject: x.ID, Server: x.Server, By: by}, map[string]any{"silence": x})
		return tx.db.Create(&x).Error
	})
	return x, err
}

// Unsilence ends one before its time.
func (s *Store) Unsilence(ctx context.Context, id, by string) error {
	return s.Write(ctx, func(tx *Tx) error {
		var x Silence
		if err := one(tx.lock(&x, "id = ?", id), "silence", id); err != nil {
			return err
		}
		if x.EndedAt != 0 || x.Until <= tx.now {
			return nil
		}
		x.EndedAt, x.EndedBy = tx.now, by
		tx.Emit(schema.Event{Kind: schema.EventPolicyChanged, Subject: x.ID, Server: x.Server, By: by}, map[string]any{"silence": x})
		return tx.db.Save(&x).Error
	})
}

// Silences lists those that are in force, or the last ones, newest first.
func (s *Store) Silences(ctx context.Context, inForce bool) ([]Silence, error) {
	q := s.read(ctx).Order("at DESC, id DESC").Limit(500)
	if inForce {
		q = q.Where("ended_at = 0 AND until > ?", s.Now())
	}
	var out []Silence
	return out, q.Find(&out).Error
}
