package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"gpupool/schema"
)

// WeighDifferences keeps what a step of an attempt saw of a server that is not as ordered, and splits it into what stops the
// server and what somebody has accepted for this serial. What the step saw before and doesn't see now is no longer there.
// Attempt 0 (a repair's proof) only weighs.
func (s *Store) WeighDifferences(ctx context.Context, server string, attempt int, step schema.Step, seen []schema.Difference) (open, accepted []schema.Difference, err error) {
	err = s.Write(ctx, func(tx *Tx) error {
		open, accepted = nil, nil
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		if attempt > 0 {
			if err := current(v, attempt); err != nil {
				return err
			}
			if _, err := tx.exec("UPDATE differences SET there = FALSE WHERE serial = ? AND step = ?", v.Serial, step); err != nil {
				return err
			}
		}
		for _, d := range seen {
			d, err := tx.noteDifference(v, attempt, step, d)
			if err != nil {
				return err
			}
			if d.AcceptedAt != 0 {
				accepted = append(accepted, d)
			} else {
				open = append(open, d)
			}
		}
		return nil
	})
	return open, accepted, err
}

func (tx *Tx) noteDifference(v schema.Server, attempt int, step schema.Step, d schema.Difference) (schema.Difference, error) {
	var known schema.Difference
	err := tx.lock(&known, "serial = ? AND item = ? AND ordered = ? AND found = ?", v.Serial, d.Item, d.Ordered, d.Found)
	fresh := isNoRows(err)
	if err != nil && !fresh {
		return d, err
	}
	if fresh {
		known = d
		known.ID, known.Serial = NewID("dif", tx.now), v.Serial
	}
	if attempt == 0 {
		return known, nil
	}
	again := known.Server == v.ID && known.Attempt == attempt
	known.Words, known.Missing, known.Server, known.Attempt, known.Step, known.There, known.SeenAt = d.Words, d.Missing, v.ID, attempt, step, true, tx.now
	if known.AcceptedAt == 0 && !again {
		tx.Emit(schema.Event{Kind: schema.EventServerDifference, Subject: v.ID, Server: v.ID}, map[string]any{"item": d.Item, "ordered": d.Ordered, "found": d.Found, "accepted": false})
	}
	if fresh {
		return known, tx.db.Create(&known).Error
	}
	return known, tx.db.Save(&known).Error
}

// AcceptDifferences accepts what stopped a step of an attempt: from now on the machine of this serial is taken as it is in
// these points. ids are those that the person has seen; empty = all. It refuses where others stand than were seen, and where
// none does.
func (s *Store) AcceptDifferences(ctx context.Context, server string, attempt int, ids []string, reason, by string) error {
	if strings.TrimSpace(reason) == "" {
		return schema.Invalid("reason", reason, "why, in words: the next person reads it")
	}
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		if err := current(v, attempt); err != nil {
			return err
		}
		var open []schema.Difference
		if err := tx.lockAll(&open, "server = ? AND attempt = ? AND step = ? AND there AND accepted_at = 0", v.ID, attempt, v.Step); err != nil {
			return err
		}
		if len(open) == 0 || v.FailureCode != string(schema.FailHardware) {
			return schema.Conflict(fmt.Sprintf("server %s has not stopped for a difference from its order", v.Name), "only what differs from the order can be accepted; a fault is repaired, then the step is retried")
		}
		if len(ids) > 0 {
			for _, d := range open {
				if !slices.Contains(ids, d.ID) {
					return schema.Conflict(fmt.Sprintf("server %s differs in more than was looked at: %s", v.Name, d.Words), "look again, then accept what stands there now")
				}
			}
			for _, id := range ids {
				if !slices.ContainsFunc(open, func(d schema.Difference) bool { return d.ID == id }) {
					return schema.Conflict(fmt.Sprintf("difference %s does not stop server %s", id, v.Name), "look again, then accept what stands there now")
				}
			}
		}
		for _, d := range open {
			d.AcceptedAt, d.AcceptedBy, d.Reason = tx.now, by, reason
			tx.Emit(schema.Event{Kind: schema.EventServerDifference, Subject: v.ID, Server: v.ID, By: by}, map[string]any{"item": d.Item, "ordered": d.Ordered, "found": d.Found, "accepted": true, "reason": reason})
			if err := tx.db.Save(&d).Error; err != nil {
				return err
			}
		}
		return nil
	})
}

// Differences are those of the machine of a server's serial, the newest first.
func (s *Store) Differences(ctx context.Context, server string) ([]schema.Difference, error) {
	var out []schema.Difference
	return out, s.read(ctx).Where("serial = (SELECT serial FROM servers WHERE id = ?)", server).Order("seen_at DESC, item, id").Find(&out).Error
}

// Expected is how many accelerators a server is to have: as ordered, less those whose lack somebody has accepted.
func (s *Store) Expected(ctx context.Context, v schema.Server) (int, error) {
	return expected(&Tx{db: s.read(ctx)}, v)
}

func expected(tx *Tx, v schema.Server) (int, error) {
	var missing int
	err := tx.db.Raw("SELECT COALESCE(max(missing), 0) FROM differences WHERE serial = ? AND item = ? AND there AND accepted_at > 0", v.Serial, schema.ItemAccelerators).Scan(&missing).Error
	return max(v.Accelerators-missing, 0), err
}

// PauseOnboarding asks for a stop before a step; empty = before the next. Asking again renews it.
func (s *Store) PauseOnboarding(ctx context.Context, server string, attempt int, p schema.Pause) error {
	if strings.TrimSpace(p.Reason) == "" {
		return schema.Invalid("reason", p.Reason, "why, in words: the next person reads it")
	}
	return s.pause(ctx, server, attempt, "asked", func(v *schema.Server, now schema.Instant) bool {
		p.At, p.HeldAt = now, 0
		v.Pause = p
		return true
	}, p.By)
}

// HoldOnboarding says that the onboarding stands where it was asked to stop.
func (s *Store) HoldOnboarding(ctx context.Context, server string, attempt int) error {
	return s.pause(ctx, server, attempt, "held", func(v *schema.Server, now schema.Instant) bool {
		if v.Pause.At == 0 || v.Pause.HeldAt != 0 {
			return false
		}
		v.Pause.HeldAt = now
		return true
	}, "")
}

// ContinueOnboarding takes a pause back.
func (s *Store) ContinueOnboarding(ctx context.Context, server string, attempt int, by string) error {
	return s.pause(ctx, server, attempt, "lifted", func(v *schema.Server, _ schema.Instant) bool {
		had := v.Pause.At != 0
		v.Pause = schema.Pause{}
		return had
	}, by)
}

func (s *Store) pause(ctx context.Context, server string, attempt int, state string, change func(*schema.Server, schema.Instant) bool, by string) error {
	return s.Write(ctx, func(tx *Tx) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		if err := current(v, attempt); err != nil {
			return err
		}
		was := v.Pause
		if !change(&v, tx.now) {
			return nil
		}
		told := v.Pause
		if told.At == 0 {
			told = was
		}
		tx.Emit(schema.Event{Kind: schema.EventServerPause, Subject: v.ID, Server: v.ID, By: by}, map[string]any{"state": state, "before": told.Before, "reason": told.Reason})
		return tx.saveServer(&v)
	})
}
