package store

import (
	"context"
	"encoding/json"
	"time"

	"gpupool/schema"
)

// DryRun is a question to the allocator of a job's region: what would become of the job if it were submitted now.
type DryRun struct {
	ID  string
	Job schema.Job // that nobody submitted: without an id and a place by submit order
}

// DryRunAnswer is what a region's allocator says of one moment: after that anything may happen.
type DryRunAnswer struct {
	At      schema.Instant    `json:"at"`
	Cycle   int64             `json:"cycle"`            // the allocator's last
	Starts  bool              `json:"starts"`           // at once, with nobody stopped for it
	Places  []Place           `json:"places"`           // what it would be given then
	Victims []DryRunVictim    `json:"victims"`          // who would be stopped for it, if anybody; it starts when they have ended
	Reason  *schema.ReasonDoc `json:"reason,omitempty"` // why it would wait, where it does not start at once
}

// DryRunVictim is a running job that would be stopped.
type DryRunVictim struct {
	Job        string         `json:"job"`
	Why        string         `json:"why"` // priority or reclaim
	GraceUntil schema.Instant `json:"grace_until"`
	LostWork   int64          `json:"lost_gpu_ms"` // accelerator time since its last checkpoint, or since its start
}

// dryRunFor is how long a question stands that nobody answers or reads the answer of.
const dryRunFor = time.Minute

// TopicDryRuns wakes a region's allocator, TopicDryRun who asked, where both are of one process; others look by themselves.
func TopicDryRuns(region string) string { return "dry-runs/" + region }

// TopicDryRun wakes who asked.
func TopicDryRun(id string) string { return "dry-run/" + id }

// AskDryRun checks a job as SubmitJob does and asks what would become of it. No job is made.
func (s *Store) AskDryRun(ctx context.Context, by string, in NewJob) (DryRun, error) {
	var q DryRun
	if err := in.check(); err != nil {
		return q, err
	}
	err := s.Write(ctx, func(tx *Tx) error {
		j, err := tx.newJob(by, in)
		if err != nil {
			return err
		}
		q = DryRun{NewID("dry", tx.now), j}
		if _, err := tx.exec("DELETE FROM dry_runs WHERE asked_at < ?", tx.now.Add(-dryRunFor)); err != nil {
			return err
		}
		_, err = tx.exec("INSERT INTO dry_runs (id, region, job, asked_at) VALUES (?, ?, ?, ?)", q.ID, j.Region, string(mustJSON(j)), tx.now)
		return err
	})
	if err == nil {
		s.Nudge(TopicDryRuns(q.Job.Region))
	}
	return q, err
}

// DryRuns are a region's open questions, the oldest first.
func (s *Store) DryRuns(ctx context.Context, region string) ([]DryRun, error) {
	var rows []struct{ ID, Job string }
	if err := s.read(ctx).Raw("SELECT id, job FROM dry_runs WHERE region = ? AND answer = '' AND asked_at > ? ORDER BY asked_at LIMIT 100", region, s.Now().Add(-dryRunFor)).Scan(&rows).Error; err != nil {
		return nil, err
	}
	out := make([]DryRun, len(rows))
	for i, r := range rows {
		out[i].ID = r.ID
		if err := json.Unmarshal([]byte(r.Job), &out[i].Job); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// AnswerDryRun answers a question; one that nobody waits for any more is no error.
func (s *Store) AnswerDryRun(ctx context.Context, id string, a DryRunAnswer) error {
	err := s.Write(ctx, func(tx *Tx) error {
		_, err := tx.exec("UPDATE dry_runs SET answer = ? WHERE id = ?", string(mustJSON(a)), id)
		return err
	})
	if err == nil {
		s.Nudge(TopicDryRun(id))
	}
	return err
}

// DryRunAnswered is the answer to a question, nil while there is none.
func (s *Store) DryRunAnswered(ctx context.Context, id string) (*DryRunAnswer, error) {
	var doc string
	if err := s.read(ctx).Raw("SELECT answer FROM dry_runs WHERE id = ?", id).Scan(&doc).Error; err != nil || doc == "" {
		return nil, err
	}
	var a DryRunAnswer
	return &a, json.Unmarshal([]byte(doc), &a)
}

// AcceleratorNames says where accelerators are now, by id.
func (s *Store) AcceleratorNames(ctx context.Context, ids []string) (map[string]DeviceName, error) {
	out := make(map[string]DeviceName, len(ids))
	return out, inParts(ids, func(part []string) error {
		var rows []DeviceName
		if err := s.read(ctx).Raw("SELECT x.id AS accelerator, v.name AS server, x.slot FROM accelerators x JOIN servers v ON v.id = x.server WHERE x.id IN ?", part).Scan(&rows).Error; err != nil {
			return err
		}
		for _, r := range rows {
			out[r.Accelerator] = r
		}
		return nil
	})
}

// ForgetDryRun takes a question back, answered or not.
func (s *Store) ForgetDryRun(ctx context.Context, id string) error {
	return s.Write(ctx, func(tx *Tx) error {
		_, err := tx.exec("DELETE FROM dry_runs WHERE id = ?", id)
		return err
	})
}
