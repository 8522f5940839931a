package store

import (
	"context"
	"encoding/json"
	"slices"

	"gpupool/schema"
	"gpupool/schema/usage"
)

// queueSums are what queues are summed by: a region, a model, and all together, of which the other parts are "".
func queueSums(k CapacityKey) []CapacityKey {
	return []CapacityKey{{Region: k.Region}, {Model: k.Model}, {}}
}

// queues are, by queueSums, the time of w in which jobs waited, and that in which accelerators of what they asked for were idle.
func (s *Store) queues(ctx context.Context, t told, c capacityRecord, w usage.Interval) (map[CapacityKey]usage.Queue, error) {
	waits, err := s.demand(ctx, w)
	if err != nil || len(waits) == 0 {
		return nil, err
	}
	return usage.Queues(waits, usage.Idle(c.spans, c.held, w, t.key), w, queueSums), nil
}

// queueHours adds the queues of checked hours. They are not known where one of the hours was checked by a version that did
// not keep them.
func (s *Store) queueHours(ctx context.Context, w usage.Interval, add func(CapacityKey, usage.Queue)) (known bool, err error) {
	var without int64
	if err := s.read(ctx).Raw(`SELECT count(*) FROM capacity_hours c WHERE c.hour >= ? AND c.hour < ?
		AND NOT EXISTS (SELECT 1 FROM queue_hours q WHERE q.hour = c.hour AND q.region = '' AND q.model = '')`, w.Start, w.End).Scan(&without).Error; err != nil || without > 0 {
		return false, err
	}
	var rows []struct {
		CapacityKey
		usage.Queue
	}
	if err := s.read(ctx).Raw(`SELECT region, model, CAST(sum(waited_ms) AS BIGINT) AS waited, CAST(sum(while_idle_ms) AS BIGINT) AS while_idle
		FROM queue_hours WHERE hour >= ? AND hour < ? GROUP BY region, model`, w.Start, w.End).Scan(&rows).Error; err != nil {
		return false, err
	}
	for _, r := range rows {
		add(r.CapacityKey, r.Queue)
	}
	return true, nil
}

// aWait is one job's wait for one attempt.
type aWait struct {
	Job string
	CapacityKey
	Start, End schema.Instant // End 0 = it goes on
	Released   schema.Instant // of the attempt before; 0 = there was none
	// Of a wait that goes on:
	Seq       int64
	Reason    string
	Held      bool
	NotBefore schema.Instant
}

// released is when a job's attempt before its wait ended.
const released = "coalesce((SELECT max(t.released_at) FROM attempts t WHERE t.job = j.id), 0) AS released"

// demand says of each region and model when in w jobs waited for its accelerators; see usage.Demanded. What waits is read
// before what has waited, so that a start between is in both and not in none.
func (s *Store) demand(ctx context.Context, w usage.Interval) (map[CapacityKey][]usage.Interval, error) {
	out := map[CapacityKey][]usage.Interval{}
	if err := s.demandNow(ctx, w, out); err != nil {
		return nil, err
	}
	var ended, started []aWait
	// Of what has ended only these can have ended in the queue.
	if err := s.read(ctx).Raw("SELECT j.id AS job, j.region, j.model, j.submitted_at AS start, j.ended_at AS \"end\", "+released+` FROM jobs j
		WHERE j.ended_at > 0 AND j.ended_at > ? AND j.submitted_at < ? AND j.state IN ?`, w.Start, w.End, []schema.JobState{schema.JobCancelled, schema.JobExpired, schema.JobFailed}).Scan(&ended).Error; err != nil {
		return nil, err
	}
	if err := s.CatchUpUsage(ctx); err != nil {
		return nil, err
	}
	if err := s.read(ctx).Raw(`SELECT job, region, model, queued_at AS start, allocated_at AS "end" FROM attempt_facts WHERE allocated_at > ? AND queued_at < ?`, w.Start, w.End).Scan(&started).Error; err != nil {
		return nil, err
	}
	return out, s.demanded(ctx, w, slices.Concat(ended, started), out)
}

// waitsRead is how many waits are read at a time.
const waitsRead = 500

// demandNow is demand of what waits still. A queue is long, and what it says is short: it is read in the order of submitting,
// and once somebody is known to have waited for a pool from a moment until w's end, only who may have waited for it before that
// moment is read on.
func (s *Store) demandNow(ctx context.Context, w usage.Interval, out map[CapacityKey][]usage.Interval) error {
	for after := int64(0); ; {
		q, args := "SELECT j.seq, j.id AS job, j.region, j.model, j.submitted_at AS start, "+released+`, j.reason, j.held, j.not_before FROM jobs j
			WHERE j.ended_at = 0 AND j.state = ? AND j.submitted_at < ? AND j.seq > ?`, []any{schema.JobQueued, w.End, after}
		for k, list := range out {
			if since, ok := usage.Lasting(list, w); ok {
				if since == w.Start {
					since = 0
				}
				q, args = q+" AND NOT (j.region = ? AND j.model = ? AND j.submitted_at >= ?)", append(args, k.Region, k.Model, since)
			}
		}
		var page []aWait
		if err := s.read(ctx).Raw(q+" ORDER BY j.seq LIMIT ?", append(args, waitsRead)...).Scan(&page).Error; err != nil {
			return err
		}
		if err := s.demanded(ctx, w, page, out); err != nil || len(page) < waitsRead {
			return err
		}
		after = page[len(page)-1].Seq
	}
}

// demanded adds to out in which parts of their waits jobs waited for accelerators.
func (s *Store) demanded(ctx context.Context, w usage.Interval, waits []aWait, out map[CapacityKey][]usage.Interval) error {
	var open []aWait // what the reasons of which have to be read
	for _, a := range waits {
		a.Start = max(a.Start, a.Released)
		if a.End == 0 {
			a.End, a.Start = w.End, max(a.Start, a.NotBefore)
			var now struct {
				Code  schema.ReasonCode `json:"code"`
				Since schema.Instant    `json:"since"`
			}
			// One reason for all of it needs no events. What can't be read is one that they tell.
			if json.Unmarshal([]byte(a.Reason), &now) == nil && now.Since <= max(w.Start, a.Start) {
				if usage.Demanded(now.Code) && !(a.Held && now.Code == schema.ReasonNotEvaluated) {
					out[a.CapacityKey] = append(out[a.CapacityKey], usage.Interval{Start: a.Start, End: a.End})
				}
				continue
			}
		}
		if (usage.Interval{Start: a.Start, End: a.End}).Cut(w).Milliseconds() > 0 {
			open = append(open, a)
		}
	}
	jobs := map[string]bool{}
	for _, a := range open {
		jobs[a.Job] = true
	}
	reasons := map[string][]usage.Reason{}
	for part := range slices.Chunk(keysOf(jobs), 500) {
		if err := readReasons(s.read(ctx), part, reasons); err != nil {
			return err
		}
	}
	for _, a := range open {
		out[a.CapacityKey] = append(out[a.CapacityKey], usage.Demand(reasons[a.Job], usage.Interval{Start: a.Start, End: a.End})...)
	}
	return nil
}
