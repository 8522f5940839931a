package store

import (
	"context"

	"gpupool/schema"
)

// JobEnd is one accelerator's part of an attempt that ended, by the ledger.
type JobEnd struct {
	Job         string
	Attempt     int
	Accelerator string
	Slot        string
	Server      string
	Owner       string // tenant/person
	Command     string // JSON of argv: jobs of the same are compared
	Outcome     schema.AttemptOutcome
	StartAt     schema.Instant
	EndAt       schema.Instant
	Text        string // of its task
	Output      string // the last piece of what it printed
}

// mostJobEnds bounds what one look at failures reads: more at once is no single device's fault.
const mostJobEnds = 20_000

// FailedJobs are the attempts that failed, or were never started, since a moment.
func (s *Store) FailedJobs(ctx context.Context, since schema.Instant) ([]JobEnd, error) {
	var out []JobEnd
	return out, s.read(ctx).Raw(`SELECT l.job, l.attempt, l.accelerator, a.slot, l.server, l.tenant || '/' || j.submitted_by AS owner, j.command, l.outcome, l.start_at, l.end_at, COALESCE(t.text, '') AS text,
		COALESCE((SELECT o.output FROM task_output o WHERE o.task = t.id ORDER BY o.seq DESC LIMIT 1), '') AS output
		FROM ledger l JOIN jobs j ON j.id = l.job JOIN accelerators a ON a.id = l.accelerator
		LEFT JOIN tasks t ON t.job = l.job AND t.attempt = l.attempt AND t.server = l.server AND t.kind = 'run'
		WHERE l.kind = ? AND l.end_at >= ? AND l.outcome IN (?, ?) ORDER BY l.end_at DESC, l.id LIMIT ?`,
		schema.LedgerUsage, since, schema.AttemptFailed, schema.AttemptUnstarted, mostJobEnds).Scan(&out).Error
}

// CompletedJobs are the attempts that completed since a moment and ran one of the commands: one row each.
func (s *Store) CompletedJobs(ctx context.Context, since schema.Instant, commands []string) ([]JobEnd, error) {
	if len(commands) == 0 {
		return nil, nil
	}
	var out []JobEnd
	return out, s.read(ctx).Raw(`SELECT l.job, l.attempt, min(l.server) AS server, l.tenant || '/' || j.submitted_by AS owner, j.command, l.outcome, min(l.start_at) AS start_at, max(l.end_at) AS end_at
		FROM ledger l JOIN jobs j ON j.id = l.job WHERE l.kind = ? AND l.end_at >= ? AND l.outcome = ? AND j.command IN ?
		GROUP BY l.job, l.attempt, l.tenant, j.submitted_by, j.command, l.outcome ORDER BY max(l.end_at) DESC LIMIT ?`,
		schema.LedgerUsage, since, schema.AttemptCompleted, commands, mostJobEnds).Scan(&out).Error
}
