package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"

	"gpupool/schema"
	"gpupool/schema/usage"
)

// foldCursor is how far the hourly sums have come in the log of events.
const foldCursor = "usage_fold"

// foldEvents is how many events one transaction folds at most.
const foldEvents = 2000

// CatchUpUsage brings the hourly sums, the credits and the facts of attempts and jobs up to the newest event. It follows
// the log of events and moves its cursor in the transaction that adds, so that nothing is counted twice or left out,
// whoever runs it, however often and however it ends.
func (s *Store) CatchUpUsage(ctx context.Context) error {
	for {
		head, err := s.Head(ctx)
		if err != nil {
			return err
		}
		at, err := s.Cursor(ctx, foldCursor)
		if err != nil || at >= head {
			return err
		}
		if err := s.Write(ctx, func(tx *Tx) error { return tx.fold() }); err != nil {
			return fmt.Errorf("folding usage after event %d: %w", at, err)
		}
	}
}

// attemptOf names an attempt.
type attemptOf struct {
	job     string
	attempt int
}

// folded is what a stretch of events tells the books.
type folded struct {
	allocated, released map[attemptOf]bool
	ended               map[string]bool
	adjusted            []string
}

func (tx *Tx) fold() error {
	if err := tx.exclusive(foldCursor); err != nil {
		return err
	}
	var head, at int64
	if err := tx.db.Raw("SELECT seq FROM event_seq WHERE one = 1").Scan(&head).Error; err != nil {
		return err
	}
	if err := tx.db.Raw("SELECT seq FROM cursors WHERE name = ?", foldCursor).Scan(&at).Error; err != nil {
		return err
	}
	to := min(head, at+foldEvents)
	if to <= at {
		return nil
	}
	f, err := tx.foldable(at, to)
	if err != nil {
		return err
	}
	jobs, err := tx.jobsOf(f)
	if err != nil {
		return err
	}
	rows, err := tx.settled(f)
	if err != nil {
		return err
	}
	if err := tx.addHours(rows); err != nil {
		return err
	}
	if err := tx.addFacts(f, jobs, to); err != nil {
		return err
	}
	if err := tx.addEnds(f, jobs); err != nil {
		return err
	}
	_, err = tx.exec("INSERT INTO cursors (name, seq) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET seq = excluded.seq", foldCursor, to)
	return err
}

func (tx *Tx) foldable(after, to int64) (folded, error) {
	f := folded{allocated: map[attemptOf]bool{}, released: map[attemptOf]bool{}, ended: map[string]bool{}}
	var events []schema.Event
	err := tx.db.Where("seq > ? AND seq <= ? AND kind IN ?", after, to, []schema.EventKind{schema.EventJobAllocated, schema.EventJobReleased, schema.EventJobState, schema.EventUsageAdjusted}).
		Order("seq").Find(&events).Error
	if err != nil {
		return f, err
	}
	for _, e := range events {
		var d struct {
			Attempt int             `json:"attempt"`
			To      schema.JobState `json:"to"`
		}
		if len(e.Data) > 0 {
			if err := json.Unmarshal(e.Data, &d); err != nil {
				return f, fmt.Errorf("event %d (%s): %w", e.Seq, e.Kind, err)
			}
		}
		switch e.Kind {
		case schema.EventJobAllocated:
			f.allocated[attemptOf{e.Job, d.Attempt}] = true
		case schema.EventJobReleased:
			f.released[attemptOf{e.Job, d.Attempt}] = true
		case schema.EventJobState:
			if d.To.Ended() {
				f.ended[e.Job] = true
			}
		case schema.EventUsageAdjusted:
			f.adjusted = append(f.adjusted, e.Subject)
		default: // not asked for
		}
	}
	return f, nil
}

// foldedJob is what the books need to know of a job.
type foldedJob struct {
	ID, Tenant, Project, Spec, Model, Region string
	State                                    schema.JobState
	SubmittedAt, EndedAt                     schema.Instant
	Attempts                                 map[int]schema.Attempt `gorm:"-"`
}

func (tx *Tx) jobsOf(f folded) (map[string]foldedJob, error) {
	ids := map[string]bool{}
	for a := range f.allocated {
		ids[a.job] = true
	}
	for j := range f.ended {
		ids[j] = true
	}
	out := make(map[string]foldedJob, len(ids))
	for part := range slices.Chunk(keysOf(ids), 500) {
		var jobs []foldedJob
		if err := tx.db.Raw("SELECT id, tenant, project, spec, model, region, state, submitted_at, ended_at FROM jobs WHERE id IN ?", part).Scan(&jobs).Error; err != nil {
			return nil, err
		}
		for _, j := range jobs {
			j.Attempts = map[int]schema.Attempt{}
			out[j.ID] = j
		}
		var attempts []schema.Attempt
		if err := tx.db.Where("job IN ?", part).Find(&attempts).Error; err != nil {
			return nil, err
		}
		for _, a := range attempts {
			out[a.Job].Attempts[a.Attempt] = a
		}
	}
	return out, nil
}

// settled are the ledger rows that came with the events: usage as it was written, the credits that the policy gives for
// it, which are written here, and people's adjustments.
func (tx *Tx) settled(f folded) ([]schema.LedgerRow, error) {
	jobs := map[string]bool{}
	for a := range f.released {
		jobs[a.job] = true
	}
	var rows []schema.LedgerRow
	for part := range slices.Chunk(keysOf(jobs), 500) {
		var some []schema.LedgerRow
		if err := tx.db.Where("job IN ? AND kind = ?", part, schema.LedgerUsage).Order("id").Find(&some).Error; err != nil {
			return nil, err
		}
		for _, r := range some {
			if f.released[attemptOf{r.Job, r.Attempt}] {
				rows = append(rows, r)
			}
		}
	}
	credits, err := tx.credits(rows)
	if err != nil {
		return nil, err
	}
	if len(credits) > 0 {
		if err := tx.db.Clauses(clause.OnConflict{DoNothing: true}).CreateInBatches(credits, 200).Error; err != nil {
			return nil, err
		}
	}
	rows = append(rows, credits...)
	for part := range slices.Chunk(f.adjusted, 500) {
		var some []schema.LedgerRow
		if err := tx.db.Where("id IN ?", part).Order("id").Find(&some).Error; err != nil {
			return nil, err
		}
		rows = append(rows, some...)
	}
	return rows, nil
}

func (tx *Tx) credits(rows []schema.LedgerRow) ([]schema.LedgerRow, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	policies, err := tx.policies()
	if err != nil {
		return nil, err
	}
	type sign struct {
		at  schema.Instant
		why string
	}
	good := map[attemptOf]sign{}
	lost := map[attemptOf]usage.Interval{}
	servers := map[attemptOf][]string{}
	for _, r := range rows {
		if r.Outcome == schema.AttemptLost {
			a := attemptOf{r.Job, r.Attempt}
			lost[a] = usage.Interval{Start: r.Start, End: r.End}
			servers[a] = append(servers[a], r.Server)
		}
	}
	for a, in := range lost {
		var f schema.Fault
		err := tx.db.Where("server IN ? AND at >= ? AND at <= ? AND severity <> ?", servers[a], in.Start, in.End, schema.SeverityInfo).Order("at, id").Take(&f).Error
		switch {
		case err == nil:
			good[a] = sign{f.At, f.ID + " " + f.Text}
		case !isNoRows(err):
			return nil, err
		}
	}
	var out []schema.LedgerRow
	for _, r := range rows {
		p := policies.at(r.End)
		zone, err := usage.Zone(p.Zone)
		if err != nil {
			return nil, err
		}
		g := good[attemptOf{r.Job, r.Attempt}]
		now := max(tx.now, r.End)
		out = append(out, p.Credits(r, g.at, g.why, p.OpenFrom(now, zone), now)...)
	}
	return out, nil
}

// addHours adds rows to the hourly sums.
func (tx *Tx) addHours(rows []schema.LedgerRow) error {
	type key struct {
		hour                                          schema.Instant
		tenant, project, spec, model, region, outcome string
	}
	sums := map[key]usage.Amounts{}
	for _, r := range rows {
		for hour, a := range usage.ByHour(r) {
			k := key{hour, r.Tenant, r.Project, r.Spec, r.Model, r.Region, string(r.Outcome)}
			v := sums[k]
			v.Add(a)
			sums[k] = v
		}
	}
	var values [][]any
	for k, a := range sums {
		values = append(values, []any{k.hour, k.tenant, k.project, k.spec, k.model, k.region, k.outcome, a.Launch, a.Run, a.Drain, a.Credit, a.Adjust, a.Rows})
	}
	return tx.insertMany("INSERT INTO usage_hours (hour, tenant, project, spec, model, region, outcome, launch_ms, run_ms, drain_ms, credit_ms, adjust_ms, row_count) VALUES ",
		values, ` ON CONFLICT (hour, tenant, project, spec, model, region, outcome) DO UPDATE SET launch_ms = usage_hours.launch_ms + excluded.launch_ms, run_ms = usage_hours.run_ms + excluded.run_ms,
		drain_ms = usage_hours.drain_ms + excluded.drain_ms, credit_ms = usage_hours.credit_ms + excluded.credit_ms, adjust_ms = usage_hours.adjust_ms + excluded.adjust_ms, row_count = usage_hours.row_count + excluded.row_count`)
}

// insertMany runs one statement for every hundred rows. Two lengths of statement are prepared for most rows: of a hundred
// and of one.
func (tx *Tx) insertMany(head string, rows [][]any, tail string) error {
	for len(rows) > 0 {
		n := 1
		if len(rows) >= 100 {
			n = 100
		}
		var args []any
		for _, r := range rows[:n] {
			args = append(args, r...)
		}
		one := "(" + strings.TrimSuffix(strings.Repeat("?,", len(rows[0])), ",") + ")"
		if _, err := tx.exec(head+strings.TrimSuffix(strings.Repeat(one+",", n), ",")+tail, args...); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// addFacts keeps how long each attempt waited, and the reason that held it up longest.
func (tx *Tx) addFacts(f folded, jobs map[string]foldedJob, upTo int64) error {
	waiting := map[string]bool{}
	for a := range f.allocated {
		waiting[a.job] = true
	}
	reasons := map[string][]usage.Reason{}
	for part := range slices.Chunk(keysOf(waiting), 500) {
		if err := readReasons(tx.db.Where("seq <= ?", upTo), part, reasons); err != nil {
			return err
		}
	}
	var values [][]any
	for a := range f.allocated {
		j, ok := jobs[a.job]
		got, there := j.Attempts[a.attempt]
		if !ok || !there {
			return fmt.Errorf("attempt %d of job %s is in the log and not in the record", a.attempt, a.job)
		}
		queued := j.SubmittedAt
		if before, ok := j.Attempts[a.attempt-1]; ok {
			queued = before.ReleasedAt
		}
		queued = min(queued, got.AllocatedAt)
		w := usage.Interval{Start: queued, End: got.AllocatedAt}
		values = append(values, []any{a.job, a.attempt, j.Tenant, j.Project, j.Spec, j.Model, j.Region, queued, got.AllocatedAt, w.Milliseconds(), usage.Longest(reasons[a.job], w)})
	}
	return tx.insertMany("INSERT INTO attempt_facts (job, attempt, tenant, project, spec, model, region, queued_at, allocated_at, wait_ms, reason) VALUES ", values, " ON CONFLICT DO NOTHING")
}

// readReasons adds what the events tell of why each of some jobs waited, in order.
func readReasons(db *gorm.DB, jobs []string, to map[string][]usage.Reason) error {
	var events []schema.Event
	if err := db.Where("job IN ? AND job <> '' AND kind = ?", jobs, schema.EventJobReason).Order("seq").Find(&events).Error; err != nil {
		return err
	}
	for _, e := range events {
		var d struct {
			Code schema.ReasonCode `json:"code"`
		}
		if err := json.Unmarshal(e.Data, &d); err != nil {
			return fmt.Errorf("event %d (%s): %w", e.Seq, e.Kind, err)
		}
		to[e.Job] = append(to[e.Job], usage.Reason{Code: d.Code, At: e.At})
	}
	return nil
}

// addEnds counts how jobs ended, by the hour.
func (tx *Tx) addEnds(f folded, jobs map[string]foldedJob) error {
	type key struct {
		hour                                               schema.Instant
		tenant, project, spec, model, region, state, cause string
	}
	sums := map[key]int64{}
	for id := range f.ended {
		j, ok := jobs[id]
		if !ok {
			return fmt.Errorf("job %s is in the log and not in the record", id)
		}
		last := schema.AttemptLive
		if n := len(j.Attempts); n > 0 {
			last = j.Attempts[n].Outcome
		}
		sums[key{usage.HourOf(j.EndedAt), j.Tenant, j.Project, j.Spec, j.Model, j.Region, string(j.State), usage.Cause(j.State, last)}]++
	}
	var values [][]any
	for k, n := range sums {
		values = append(values, []any{k.hour, k.tenant, k.project, k.spec, k.model, k.region, k.state, k.cause, n})
	}
	return tx.insertMany("INSERT INTO job_hours (hour, tenant, project, spec, model, region, state, cause, jobs) VALUES ", values,
		" ON CONFLICT (hour, tenant, project, spec, model, region, state, cause) DO UPDATE SET jobs = job_hours.jobs + excluded.jobs")
}

// attemptIn is the attempt that an event of a job tells of.
func attemptIn(e schema.Event) (int, error) {
	var d struct {
		Attempt int `json:"attempt"`
	}
	if err := json.Unmarshal(e.Data, &d); err != nil {
		return 0, fmt.Errorf("event %d (%s): %w", e.Seq, e.Kind, err)
	}
	return d.Attempt, nil
}
