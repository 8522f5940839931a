package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"gpupool/schema"
	"gpupool/schema/usage"
)

// CapacityKey is what capacity is summed by.
type CapacityKey struct {
	Region string `json:"region"`
	Model  string `json:"model"`
}

// CapacityRow is the time of one model's accelerators in a region; its parts sum to Installed.
type CapacityRow struct {
	Period string `json:"period,omitempty"`
	CapacityKey
	usage.Balance
}

// told is what the events tell of capacity, read once for any number of intervals.
type told struct {
	installed, spans []usage.Span
	key              func(accelerator string) CapacityKey
	until            schema.Instant // when it was read
}

func (s *Store) told(ctx context.Context) (told, error) {
	events, err := s.CapacityEvents(ctx)
	if err != nil {
		return told{}, err
	}
	t := told{until: s.Now()}
	if t.installed, t.spans, err = usage.Replay(events); err != nil {
		return t, err
	}
	t.key, err = s.capacityKeys(ctx)
	return t, err
}

// capacityRecord is the live record of an interval: the states of accelerators, and who held them.
type capacityRecord struct {
	spans []usage.Span
	held  []usage.Held
}

func (s *Store) recorded(ctx context.Context, w usage.Interval) (c capacityRecord, err error) {
	if c.spans, err = s.CapacitySpans(ctx, w); err != nil {
		return c, err
	}
	allocations, err := s.HeldIn(ctx, w)
	if err != nil {
		return c, err
	}
	c.held = make([]usage.Held, len(allocations))
	for i, a := range allocations {
		c.held[i] = usage.Held{Accelerator: a.Accelerator, Start: a.AllocatedAt, End: a.ReleasedAt, By: a.ID()}
	}
	return c, nil
}

// conserved is the capacity of w by the live record, with the places where it does not balance.
func (t told) conserved(c capacityRecord, w usage.Interval) (map[CapacityKey]usage.Balance, []usage.Finding) {
	sums, found := usage.Conserve(t.installed, c.spans, c.held, w, t.key)
	return sums, append(found, usage.CompareSpans(c.spans, t.spans, w)...)
}

// capacityKeys says of each accelerator which sum it belongs to: its model, and the region of the server it was last in.
func (s *Store) capacityKeys(ctx context.Context) (func(string) CapacityKey, error) {
	var rows []struct {
		ID string
		CapacityKey
	}
	if err := s.read(ctx).Raw("SELECT a.id, a.model, s.region FROM accelerators a JOIN servers s ON s.id = a.server").Scan(&rows).Error; err != nil {
		return nil, err
	}
	keys := make(map[string]CapacityKey, len(rows))
	for _, r := range rows {
		keys[r.ID] = r.CapacityKey
	}
	return func(id string) CapacityKey { return keys[id] }, nil
}

// CheckHour keeps the capacity and the queues of one hour of UTC that is over, and tells (usage.alarm) of every place where the sums are
// not what was installed. Repeating it writes the same.
func (s *Store) CheckHour(ctx context.Context, hour schema.Instant) ([]usage.Finding, error) {
	if hour%usage.Hour != 0 || hour+usage.Hour > s.Now() {
		return nil, schema.Invalid("hour", hour, "the begin of an hour of UTC that is over")
	}
	t, err := s.told(ctx)
	if err != nil {
		return nil, err
	}
	return s.checkHour(ctx, t, hour)
}

func (s *Store) checkHour(ctx context.Context, t told, hour schema.Instant) ([]usage.Finding, error) {
	w := usage.Interval{Start: hour, End: hour + usage.Hour}
	record, err := s.recorded(ctx, w)
	if err != nil {
		return nil, err
	}
	queues, err := s.queues(ctx, t, record, w)
	if err != nil {
		return nil, err
	}
	sums, found := t.conserved(record, w)
	return found, s.Write(ctx, func(tx *Tx) error {
		if _, err := tx.exec("DELETE FROM capacity_hours WHERE hour = ?", hour); err != nil {
			return err
		}
		var values [][]any
		for k, b := range sums {
			values = append(values, []any{hour, k.Region, k.Model, b.Installed, b.Allocated, b.Idle, b.Reserved, b.Draining, b.Unhealthy, b.Repair})
		}
		if err := tx.insertMany("INSERT INTO capacity_hours (hour, region, model, installed, allocated, idle, reserved, draining, unhealthy, repair) VALUES ", values, ""); err != nil {
			return err
		}
		if _, err := tx.exec("DELETE FROM queue_hours WHERE hour = ?", hour); err != nil {
			return err
		}
		all := queues[CapacityKey{}] // also where nobody waited: it says that the hour's queues are known
		values = [][]any{{hour, "", "", all.Waited, all.WhileIdle}}
		for k, q := range queues {
			if k != (CapacityKey{}) {
				values = append(values, []any{hour, k.Region, k.Model, q.Waited, q.WhileIdle})
			}
		}
		if err := tx.insertMany("INSERT INTO queue_hours (hour, region, model, waited_ms, while_idle_ms) VALUES ", values, ""); err != nil {
			return err
		}
		for _, f := range found {
			if err := tx.alarm(f); err != nil {
				return err
			}
		}
		// The ledger's clock does not go back behind what was checked, where the process's is set back.
		if _, err := tx.exec("UPDATE event_seq SET at = ? WHERE one = 1 AND at < ?", hour+usage.Hour, hour+usage.Hour); err != nil {
			return err
		}
		_, err := tx.exec("INSERT INTO cursors (name, seq) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET seq = excluded.seq WHERE cursors.seq < excluded.seq", checkCursor, hour+usage.Hour)
		return err
	})
}

// checkCursor is up to which moment hours have been checked.
const checkCursor = "usage_check"

// unsettled is how long after its end an hour is checked: transactions that began in it have ended by then.
const unsettled = 10 * time.Second

// alarm keeps a finding and tells of it, once.
func (tx *Tx) alarm(f usage.Finding) error {
	id := fmt.Sprintf("%s/%s/%d", f.Kind, f.Accelerator, f.At)
	n, err := tx.exec("INSERT INTO usage_findings (id, kind, accelerator, at, milliseconds, text, found_at) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", id, f.Kind, f.Accelerator, f.At, f.Milliseconds, f.Text, tx.now)
	if err != nil || n == 0 {
		return err
	}
	tx.Emit(schema.Event{Kind: schema.EventUsageAlarm, Subject: f.Accelerator}, f)
	return nil
}

// UsageAlarm keeps a finding of another check, and tells of it once.
func (s *Store) UsageAlarm(ctx context.Context, f usage.Finding) error {
	return s.Write(ctx, func(tx *Tx) error { return tx.alarm(f) })
}

// CheckHours checks every hour that is over and was not checked yet, the oldest first, at most max of them.
func (s *Store) CheckHours(ctx context.Context, most int) (hours int, found []usage.Finding, err error) {
	at, err := s.Cursor(ctx, checkCursor)
	if err != nil {
		return 0, nil, err
	}
	if at == 0 { // from the first accelerator on
		if err := s.read(ctx).Raw("SELECT coalesce(min(start_at), 0) FROM capacity_spans").Scan(&at).Error; err != nil || at == 0 {
			return 0, nil, err
		}
	}
	h := usage.HourOf(schema.Instant(at))
	if h+usage.Hour > s.Now().Add(-unsettled) {
		return 0, nil, nil
	}
	t, err := s.told(ctx) // of hours that are over: what comes in the meantime is of later ones
	if err != nil {
		return 0, nil, err
	}
	for ; h+usage.Hour <= t.until.Add(-unsettled) && hours < most; h += usage.Hour {
		f, err := s.checkHour(ctx, t, h)
		if err != nil {
			return hours, found, err
		}
		hours++
		found = append(found, f...)
	}
	return hours, found, nil
}

// Capacity is the time of all accelerators by state in each period. Checked hours come from their sums, the rest is worked
// out.
func (s *Store) Capacity(ctx context.Context, periods []usage.Period) ([]CapacityRow, error) {
	rows, _, err := s.capacity(ctx, periods, false)
	return rows, err
}

// capacity is Capacity and, where they are asked for, the queues by queueSums of each period of which they are known.
func (s *Store) capacity(ctx context.Context, periods []usage.Period, withQueues bool) ([]CapacityRow, map[string]map[CapacityKey]usage.Queue, error) {
	checked, err := s.Cursor(ctx, checkCursor)
	if err != nil {
		return nil, nil, err
	}
	now := s.Now()
	var t told // read when the first part of an hour has to be worked out
	var out []CapacityRow
	queues := map[string]map[CapacityKey]usage.Queue{}
	for _, p := range periods {
		sums := map[CapacityKey]usage.Balance{}
		queued := map[CapacityKey]usage.Queue{}
		addQueue := func(k CapacityKey, q usage.Queue) {
			sum := queued[k]
			sum.Add(q)
			queued[k] = sum
		}
		w, known := p.Interval, withQueues
		w.End = min(w.End, now) // what is to come is neither installed nor idle yet
		from, to := usage.NextHour(w.Start), min(usage.HourOf(w.End), schema.Instant(checked))
		rest := []usage.Interval{w}
		if from < to {
			rest = []usage.Interval{{Start: w.Start, End: from}, {Start: to, End: w.End}}
			var rows []CapacityRow
			if err := s.read(ctx).Raw(`SELECT region, model, CAST(sum(installed) AS BIGINT) AS installed, CAST(sum(allocated) AS BIGINT) AS allocated, CAST(sum(idle) AS BIGINT) AS idle, CAST(sum(reserved) AS BIGINT) AS reserved,
				CAST(sum(draining) AS BIGINT) AS draining, CAST(sum(unhealthy) AS BIGINT) AS unhealthy, CAST(sum(repair) AS BIGINT) AS repair FROM capacity_hours WHERE hour >= ? AND hour < ? GROUP BY region, model`, from, to).Scan(&rows).Error; err != nil {
				return nil, nil, err
			}
			for _, r := range rows {
				sums[r.CapacityKey] = r.Balance
			}
			if withQueues {
				if known, err = s.queueHours(ctx, usage.Interval{Start: from, End: to}, addQueue); err != nil {
					return nil, nil, err
				}
			}
		}
		for _, w := range rest {
			if w.Milliseconds() == 0 {
				continue
			}
			if t.key == nil {
				if t, err = s.told(ctx); err != nil {
					return nil, nil, err
				}
			}
			record, err := s.recorded(ctx, w)
			if err != nil {
				return nil, nil, err
			}
			if known {
				more, err := s.queues(ctx, t, record, w)
				if err != nil {
					return nil, nil, err
				}
				for k, q := range more {
					addQueue(k, q)
				}
			}
			more, _ := t.conserved(record, w)
			for k, b := range more {
				sum := sums[k]
				sum.Add(b)
				sums[k] = sum
			}
		}
		if known {
			queues[p.Name] = queued
		}
		rows := make([]CapacityRow, 0, len(sums))
		for k, b := range sums {
			rows = append(rows, CapacityRow{p.Name, k, b})
		}
		slices.SortFunc(rows, func(a, b CapacityRow) int {
			return slices.Compare([]string{a.Region, a.Model}, []string{b.Region, b.Model})
		})
		out = append(out, rows...)
	}
	return out, queues, nil
}

// Audit is what recomputing a period from the events has shown.
type Audit struct {
	From         schema.Instant  `json:"from"`
	To           schema.Instant  `json:"to"`
	Accelerators int             `json:"accelerators"` // installed at some moment
	Intervals    int             `json:"intervals"`    // held at some moment
	Balance      usage.Balance   `json:"balance"`
	Ledger       int64           `json:"ledger_gpu_ms"` // usage rows within the period, cut to it
	Live         int64           `json:"live_gpu_ms"`   // what is held still
	Events       int64           `json:"events_gpu_ms"` // the same from the events of allocation and release
	Findings     []usage.Finding `json:"findings"`      // empty: the books balance
}

// AuditUsage recomputes [from, to) from the events, and compares: the states with the record of states, what was held with
// the ledger row by row, the hourly sums with the ledger.
func (s *Store) AuditUsage(ctx context.Context, w usage.Interval) (Audit, error) {
	a := Audit{From: w.Start, To: w.End, Findings: []usage.Finding{}}
	if w.End <= w.Start {
		return a, schema.Invalid("to", w.End, "after from, which is "+w.Start.String())
	}
	w.End = min(w.End, s.Now()+1)
	a.To = w.End
	if err := s.CatchUpUsage(ctx); err != nil {
		return a, err
	}
	t, err := s.told(ctx)
	if err != nil {
		return a, err
	}
	record, err := s.recorded(ctx, w)
	if err != nil {
		return a, err
	}
	sums, found := t.conserved(record, w)
	a.Findings = append(a.Findings, found...)
	for _, b := range sums {
		a.Balance.Add(b)
	}
	if err := s.read(ctx).Raw("SELECT count(DISTINCT accelerator) FROM capacity_spans WHERE start_at < ? AND (end_at > ? OR end_at = 0)", w.End, w.Start).Scan(&a.Accelerators).Error; err != nil {
		return a, err
	}
	held, err := s.HeldIn(ctx, w)
	if err != nil {
		return a, err
	}
	a.Intervals = len(held)
	told, err := s.toldAttempts(ctx, held)
	if err != nil {
		return a, err
	}
	var rows []schema.LedgerRow
	if err := s.read(ctx).Where("kind = ? AND end_at > ? AND start_at < ?", schema.LedgerUsage, w.Start, w.End).Order("id").Find(&rows).Error; err != nil {
		return a, err
	}
	ledger := make(map[string]schema.LedgerRow, len(rows))
	for _, r := range rows {
		a.Ledger += usage.Interval{Start: r.Start, End: r.End}.Cut(w).Milliseconds()
		ledger[r.ID] = r
	}
	find := func(kind, accelerator string, at schema.Instant, ms int64, format string, args ...any) {
		a.Findings = append(a.Findings, usage.Finding{Kind: kind, Accelerator: accelerator, At: at, Milliseconds: ms, Text: fmt.Sprintf(format, args...)})
	}
	for _, h := range held {
		e := told[attemptOf{h.Job, h.Attempt}]
		end := h.ReleasedAt
		if end == 0 {
			end = w.End
			a.Live += usage.Interval{Start: h.AllocatedAt, End: end}.Cut(w).Milliseconds()
		}
		eventEnd := e.End
		if eventEnd == 0 {
			eventEnd = w.End
		}
		a.Events += usage.Interval{Start: e.Start, End: eventEnd}.Cut(w).Milliseconds()
		if e.Start != h.AllocatedAt || e.End != h.ReleasedAt {
			find(usage.FoundInterval, h.Accelerator, h.AllocatedAt, int64(end-h.AllocatedAt), "%s was held from %s to %s, by the events from %s to %s", h.ID(), h.AllocatedAt, h.ReleasedAt, e.Start, e.End)
		}
		if h.ReleasedAt == 0 || h.ReleasedAt == h.AllocatedAt {
			delete(ledger, h.ID()+"/0")
			continue
		}
		r, ok := ledger[h.ID()+"/0"]
		switch {
		case !ok:
			find(usage.FoundUncharged, h.Accelerator, h.AllocatedAt, int64(h.ReleasedAt-h.AllocatedAt), "%s was held until %s", h.ID(), h.ReleasedAt)
		case r.Start != h.AllocatedAt || r.End != h.ReleasedAt:
			find(usage.FoundInterval, h.Accelerator, h.AllocatedAt, int64(r.End-r.Start)-int64(h.ReleasedAt-h.AllocatedAt), "%s was held from %s to %s, by the ledger from %s to %s", h.ID(), h.AllocatedAt, h.ReleasedAt, r.Start, r.End)
		}
		delete(ledger, h.ID()+"/0")
	}
	left := make([]string, 0, len(ledger))
	for id := range ledger {
		left = append(left, id)
	}
	slices.Sort(left)
	for _, id := range left {
		r := ledger[id]
		find(usage.FoundUnheld, r.Accelerator, r.Start, int64(r.End-r.Start), "%s is in the ledger and nothing held it", id)
	}
	return a, s.auditHours(ctx, w, find)
}

// toldAttempts are the intervals of attempts by the events alone.
func (s *Store) toldAttempts(ctx context.Context, held []schema.Allocation) (map[attemptOf]usage.Interval, error) {
	jobs := map[string]bool{}
	for _, h := range held {
		jobs[h.Job] = true
	}
	out := map[attemptOf]usage.Interval{}
	for part := range slices.Chunk(keysOf(jobs), 500) {
		var events []schema.Event
		if err := s.read(ctx).Where("job IN ? AND job <> '' AND kind IN ?", part, []schema.EventKind{schema.EventJobAllocated, schema.EventJobReleased}).Order("seq").Find(&events).Error; err != nil {
			return nil, err
		}
		for _, e := range events {
			n, err := attemptIn(e)
			if err != nil {
				return nil, err
			}
			a := attemptOf{e.Job, n}
			in := out[a]
			if e.Kind == schema.EventJobAllocated {
				in.Start = e.At
			} else {
				in.End = e.At
			}
			out[a] = in
		}
	}
	return out, nil
}

// auditHours compares the hourly sums of the whole hours in w with the ledger.
func (s *Store) auditHours(ctx context.Context, w usage.Interval, find func(kind, accelerator string, at schema.Instant, ms int64, format string, args ...any)) error {
	from, to := usage.NextHour(w.Start), usage.HourOf(w.End)
	if from >= to {
		return nil
	}
	by := []string{"tenant", "spec"}
	ledger, err := s.ledgerAmounts(ctx, UsageQuery{}, by, usage.Interval{Start: from, End: to})
	if err != nil {
		return err
	}
	hours, err := s.hourlyAmounts(ctx, UsageQuery{}, by, usage.Interval{Start: from, End: to})
	if err != nil {
		return err
	}
	type pair struct{ hours, ledger usage.Amounts }
	sums := map[[2]string]*pair{}
	at := func(k keyed) *pair {
		id := [2]string{k.keys[0], k.keys[1]}
		if sums[id] == nil {
			sums[id] = &pair{}
		}
		return sums[id]
	}
	for _, k := range ledger {
		at(k).ledger.Add(k.Amounts)
	}
	for _, k := range hours {
		at(k).hours.Add(k.Amounts)
	}
	for id, p := range sums {
		if p.hours != p.ledger {
			find(usage.FoundRollup, "", from, p.hours.Charged()-p.ledger.Charged(), "tenant %s, spec %s: the hourly sums are %+v, the ledger %+v", id[0], id[1], p.hours, p.ledger)
		}
	}
	return nil
}
