package store

import (
	"context"
	"slices"

	"gpupool/schema"
	"gpupool/schema/usage"
)

// capacityKinds is the list of usage.CapacityEvents as the index events_capacity has it: PostgreSQL uses a partial index
// only where the statement holds the same words.
const capacityKinds = "kind IN ('accelerator.seen', 'accelerator.health', 'accelerator.installed', 'accelerator.gone', 'server.phase', 'server.cordoned', 'server.uncordoned')"

// recount brings the record of capacity in line with what this transaction's events say has changed. It runs at the
// transaction's end, when all rows are as they will be, so that no writer of a state has to think of it.
func (tx *Tx) recount() error {
	servers, accs := map[string]bool{}, map[string]bool{}
	for _, e := range tx.events {
		switch e.Kind {
		case schema.EventAcceleratorSeen, schema.EventAcceleratorHealth, schema.EventAcceleratorInstalled, schema.EventAcceleratorGone:
			accs[e.Subject] = true
		case schema.EventServerPhase, schema.EventServerCordoned, schema.EventServerUncordoned:
			servers[e.Server] = true
		default: // says nothing of capacity
		}
	}
	if len(servers)+len(accs) == 0 {
		return nil
	}
	// By the ledger's clock: an hour that was checked is over, and nothing of it changes.
	if err := tx.metered(); err != nil {
		return err
	}
	for i := range tx.events {
		tx.events[i].At = tx.now
	}
	var now []struct {
		ID, Server             string
		Phase                  schema.Phase
		Health                 schema.Health
		InstalledAt, RemovedAt schema.Instant
	}
	if err := tx.db.Raw(`SELECT a.id, a.server, a.health, a.installed_at, a.removed_at, s.phase FROM accelerators a JOIN servers s ON s.id = a.server
		WHERE a.server IN ? OR a.id IN ? ORDER BY a.id`, keysOf(servers), keysOf(accs)).Scan(&now).Error; err != nil || len(now) == 0 {
		return err
	}
	ids := make([]string, 0, len(now))
	for _, a := range now {
		ids, servers[a.Server] = append(ids, a.ID), true
	}
	var cordons []schema.Cordon
	if err := tx.db.Where("server IN ? AND lifted_at = 0", keysOf(servers)).Find(&cordons).Error; err != nil {
		return err
	}
	var open []usage.Span
	if err := tx.db.Raw("SELECT accelerator, server, state, start_at, end_at FROM capacity_spans WHERE accelerator IN ? AND end_at = 0", ids).Scan(&open).Error; err != nil {
		return err
	}
	is := make(map[string]usage.Span, len(open))
	for _, s := range open {
		is[s.Accelerator] = s
	}
	for _, a := range now {
		var owners []schema.CordonOwner
		for _, c := range cordons {
			if c.Server == a.Server && (c.Accelerator == "" || c.Accelerator == a.ID) {
				owners = append(owners, c.Owner)
			}
		}
		installed := a.InstalledAt != 0 && a.RemovedAt == 0 && a.Phase != schema.PhaseRetired
		state := usage.StateOf(a.Phase, a.Health, owners...)
		s, there := is[a.ID]
		if there && installed && s.State == state && s.Server == a.Server || !there && !installed {
			continue
		}
		at := tx.now
		if there {
			at = max(at, s.Start) // where the clock was set back, no time has passed
			if _, err := tx.exec("UPDATE capacity_spans SET end_at = ? WHERE accelerator = ? AND end_at = 0", at, a.ID); err != nil {
				return err
			}
		} else {
			var last schema.Instant
			if err := tx.db.Raw("SELECT coalesce(max(end_at), 0) FROM capacity_spans WHERE accelerator = ?", a.ID).Scan(&last).Error; err != nil {
				return err
			}
			at = max(at, last)
		}
		if installed {
			if _, err := tx.exec("INSERT INTO capacity_spans (accelerator, server, state, start_at, end_at) VALUES (?, ?, ?, ?, 0)", a.ID, a.Server, state, at); err != nil {
				return err
			}
		}
	}
	return nil
}

func keysOf(m map[string]bool) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// CapacitySpans are the states that accelerators were in at some moment of w.
func (s *Store) CapacitySpans(ctx context.Context, w usage.Interval) ([]usage.Span, error) {
	var out []usage.Span
	return out, s.read(ctx).Raw(`SELECT accelerator, server, state, start_at, end_at FROM capacity_spans
		WHERE start_at < ? AND (end_at > ? OR end_at = 0) AND (end_at = 0 OR end_at > start_at) ORDER BY accelerator, start_at`, w.End, w.Start).Scan(&out).Error
}

// CapacityEvents are all events that tell of accelerators' states. Where the clock was set back a later one bears an
// earlier moment, so that none can be left out by its moment.
func (s *Store) CapacityEvents(ctx context.Context) ([]schema.Event, error) {
	var out []schema.Event
	return out, s.read(ctx).Where(capacityKinds).Order("seq").Find(&out).Error
}

// HeldIn are the allocations that were live at some moment of w.
func (s *Store) HeldIn(ctx context.Context, w usage.Interval) ([]schema.Allocation, error) {
	var out []schema.Allocation
	// Two queries, each by an index of its own, since what was released before w is nearly all there is.
	err := s.read(ctx).Raw(`SELECT * FROM allocations WHERE released_at = 0 AND allocated_at < ?
		UNION ALL SELECT * FROM allocations WHERE released_at > 0 AND released_at > ? AND allocated_at < ? ORDER BY accelerator, allocated_at`, w.End, w.Start, w.End).Scan(&out).Error
	return out, err
}
