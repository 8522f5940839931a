package store

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"gorm.io/gorm/clause"

	"gpupool/schema"
	"gpupool/schema/agentproto"
)

// QueueTask gives a server's agent a piece of work. Asking again with the same id changes nothing.
func (s *Store) QueueTask(ctx context.Context, t schema.Task) error {
	return s.Write(ctx, func(tx *Tx) error { return tx.queueTask(t) })
}

func (tx *Tx) queueTask(t schema.Task) error {
	t.State, t.Created = schema.TaskPending, tx.now
	r := tx.db.Clauses(clause.OnConflict{DoNothing: true}).Create(&t)
	if r.Error == nil && r.RowsAffected > 0 {
		tx.Emit(schema.Event{Kind: schema.EventTaskQueued, Subject: t.ID, Server: t.Server, Job: t.Job}, nil)
	}
	return r.Error
}

// Task finds one by id.
func (s *Store) Task(ctx context.Context, id string) (schema.Task, error) {
	var t schema.Task
	return t, one(s.read(ctx).Where("id = ?", id).Take(&t).Error, "task", id)
}

// RedeliverAfter is how long a claim or a stop may go unanswered before it is handed out again; the agent does each
// task once, however often it hears of it.
const RedeliverAfter = 3 * time.Second

// ClaimTasks hands a server's agent what it is to do now: new tasks, stops, and what it was handed and has not
// answered. It returns none without writing where there is nothing.
func (s *Store) ClaimTasks(ctx context.Context, server string) ([]agentproto.Task, error) {
	due := "server = ? AND ended = 0 AND cluster = '' AND not_before <= ? AND (state = 'pending' OR ((state = 'claimed' OR stop_at > 0) AND delivered < ?))"
	var n int64
	if err := s.read(ctx).Raw("SELECT count(*) FROM tasks WHERE "+due, server, s.Now(), s.Now().Add(-RedeliverAfter)).Scan(&n).Error; err != nil || n == 0 {
		return nil, err
	}
	var out []agentproto.Task
	err := s.Write(ctx, func(tx *Tx) error {
		out = nil
		var rows []schema.Task
		if err := tx.db.Where(due, server, tx.now, tx.now.Add(-RedeliverAfter)).Order("created, id").Limit(256).Find(&rows).Error; err != nil {
			return err
		}
		for _, t := range rows {
			n, err := tx.exec("UPDATE tasks SET delivered = ?, claimed = CASE WHEN claimed = 0 THEN ? ELSE claimed END, state = CASE WHEN state = 'pending' THEN 'claimed' ELSE state END WHERE id = ? AND ended = 0",
				tx.now, tx.now, t.ID)
			if err != nil {
				return err
			}
			if n == 0 {
				continue // it has ended since it was read
			}
			out = append(out, agentproto.Task{ID: t.ID, Kind: t.Kind, Epoch: t.Epoch, Payload: json.RawMessage(t.Payload), Stop: t.StopAt != 0, Signal: t.StopWith, GraceMS: t.GraceMS})
		}
		return nil
	})
	return out, err
}

// Report keeps what an agent tells of its tasks. A repeat, or a word about a task that has ended, is accepted and
// changes nothing; a word about another server's task is not.
func (s *Store) Report(ctx context.Context, server string, r agentproto.Report) (agentproto.ReportReply, error) {
	var reply agentproto.ReportReply
	// Two servers that report on parts of the same gangs lock them in the same order.
	slices.SortStableFunc(r.Tasks, func(a, b agentproto.TaskReport) int { return strings.Compare(a.Task, b.Task) })
	err := s.Write(ctx, func(tx *Tx) error {
		reply.Accepted = nil
		for _, tr := range r.Tasks {
			if err := tx.report(server, tr); err != nil {
				if schema.Is(err, schema.CodeNotFound) {
					reply.Accepted = append(reply.Accepted, tr.Task) // never ours: the agent may forget it
					continue
				}
				return err
			}
			reply.Accepted = append(reply.Accepted, tr.Task)
		}
		return nil
	})
	return reply, err
}

func (tx *Tx) report(server string, r agentproto.TaskReport) error {
	var job string
	if err := tx.db.Raw("SELECT job FROM tasks WHERE id = ? AND server = ?", r.Task, server).Scan(&job).Error; err != nil {
		return err
	}
	if job != "" { // the parts of a gang report at once: each must see what the others said
		if _, err := tx.job(job); err != nil {
			return err
		}
	}
	var t schema.Task
	if err := one(tx.lock(&t, "id = ? AND server = ?", r.Task, server), "task", r.Task); err != nil {
		return err
	}
	if r.Seq <= t.Seq || t.State.Ended() {
		return nil
	}
	if r.Output != "" {
		task, seq := outputOf(t, r.Seq)
		if _, err := tx.exec("INSERT INTO task_output (task, seq, at, output) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", task, seq, tx.now, printable(r.Output)); err != nil {
			return err
		}
	}
	t.Seq = r.Seq
	if r.Text != "" {
		t.Text = r.Text
	}
	started := t.Running == 0 && (r.State == schema.TaskRunning || r.State == schema.TaskDone)
	if started {
		t.Running = tx.now
	}
	switch {
	case r.State == schema.TaskRunning:
		if t.State != schema.TaskRunning {
			t.State = schema.TaskRunning
		}
		if t.Kind != schema.TaskRun {
			v, err := tx.server(server)
			if err != nil {
				return err
			}
			if err := tx.stepWaits(v, atWork(t)); err != nil {
				return err
			}
			tx.Emit(schema.Event{Kind: schema.EventTaskProgress, Subject: t.ID, Server: server, Job: t.Job}, map[string]any{"text": r.Text})
		}
	case r.State.Ended():
		t.State, t.ExitCode, t.Signal, t.NoneLeft, t.Result, t.Ended = r.State, r.ExitCode, r.Signal, r.NoneLeft, string(r.Result), tx.now
	default:
		return schema.Invalid("state", string(r.State), "running, done, failed or cancelled")
	}
	if err := tx.saveTask(&t); err != nil {
		return err
	}
	if t.Cluster != "" && (r.Instance != "" || r.Output != "" || r.Restarts > t.Restarts) {
		if r.Restarts > t.Restarts {
			t.OutputRead = 0
		}
		if r.Output != "" {
			t.OutputRead = r.OutputRead
		}
		if _, err := tx.exec("UPDATE tasks SET instance = CASE WHEN ? = '' THEN instance ELSE ? END, output_read = ? WHERE id = ?", r.Instance, r.Instance, t.OutputRead, t.ID); err != nil {
			return err
		}
	}
	if t.Cluster != "" && r.Restarts > t.Restarts {
		if err := tx.restarted(t, r.Restarts, nil, r.Text, 0); err != nil {
			return err
		}
	}
	if t.Cluster != "" && len(r.Devices) > 0 {
		contested, err := tx.rebind(&t, r.Devices)
		if err != nil {
			return err
		}
		if err := tx.contest(t, contested); err != nil {
			return err
		}
	}
	if t.Kind == schema.TaskRun {
		if started {
			if err := tx.attemptRunning(t.Job, t.Attempt); err != nil {
				return err
			}
		}
		if t.State.Ended() {
			return tx.runTaskEnded(t)
		}
		return nil
	}
	if t.Kind == schema.TaskInventory && t.State == schema.TaskDone {
		// What was read is the inventory from this moment: whoever waits for the task's end finds it there.
		var inv agentproto.Inventory
		if err := json.Unmarshal([]byte(t.Result), &inv); err == nil && inv.Devices != nil {
			v, err := tx.server(server)
			if err != nil {
				return err
			}
			if err := tx.recordDevices(v, inv.Devices); err != nil {
				return err
			}
		}
	}
	if t.State.Ended() {
		tx.Emit(schema.Event{Kind: schema.EventTaskEnded, Subject: t.ID, Server: server}, TaskEnded{Task: t.ID, Kind: t.Kind, State: t.State, Workflow: t.Workflow})
	}
	return nil
}

// atWork says what the agent does now, by its own words where it gave any.
func atWork(t schema.Task) string {
	if t.Text != "" {
		return string(t.Kind) + ": " + t.Text
	}
	return string(t.Kind) + ": the server's agent is at it"
}

// TaskEnded is the data of EventTaskEnded.
type TaskEnded struct {
	Task     string           `json:"task"`
	Kind     schema.TaskKind  `json:"kind"`
	State    schema.TaskState `json:"state"`
	Workflow string           `json:"workflow"`
}

// CancelTask ends a task that nobody waits for any more: at once where no agent has it, else by asking the agent.
func (s *Store) CancelTask(ctx context.Context, id string, grace time.Duration) error {
	return s.Write(ctx, func(tx *Tx) error {
		var t schema.Task
		if err := one(tx.lock(&t, "id = ?", id), "task", id); err != nil {
			if schema.Is(err, schema.CodeNotFound) {
				return nil // it was never queued
			}
			return err
		}
		return tx.stopTask(&t, "TERM", grace)
	})
}

// stopTask cancels a pending task, or asks the agent to stop a claimed one. An ended one is left as it is.
func (tx *Tx) stopTask(t *schema.Task, signal string, grace time.Duration) error {
	switch {
	case t.State.Ended() || t.StopAt != 0:
		return nil
	case t.State == schema.TaskPending:
		t.State, t.NoneLeft, t.Ended, t.StopAt, t.Text = schema.TaskCancelled, true, tx.now, tx.now, "stopped before the agent took it"
	default:
		t.StopAt, t.StopWith, t.GraceMS, t.Delivered = tx.now, signal, grace.Milliseconds(), 0
		tx.Emit(schema.Event{Kind: schema.EventTaskQueued, Subject: t.ID, Server: t.Server, Job: t.Job}, nil)
	}
	return tx.saveTask(t)
}

// saveTask writes the columns that change in a task's life.
func (tx *Tx) saveTask(t *schema.Task) error {
	q := "UPDATE tasks SET state = ?, text = ?, exit_code = ?, signal = ?, none_left = ?, result = ?, seq = ?, stop_at = ?, stop_with = ?, grace_ms = ?, delivered = ?, claimed = ?, running = ?"
	args := []any{t.State, t.Text, t.ExitCode, t.Signal, t.NoneLeft, t.Result, t.Seq, t.StopAt, t.StopWith, t.GraceMS, t.Delivered, t.Claimed, t.Running}
	if t.Ended != 0 {
		q, args = q+", ended = ?", append(args, t.Ended)
	}
	return tx.update("task", t.ID, q+" WHERE id = ?", append(args, t.ID)...)
}

// TaskOutput is a piece of a task's output, in order of Seq.
type TaskOutput struct {
	Task   string         `json:"task"`
	Seq    int64          `json:"seq"`
	At     schema.Instant `json:"at"`
	Output string         `json:"output"`
}

// Output are the pieces after seq of one task.
func (s *Store) Output(ctx context.Context, task string, after int64) ([]TaskOutput, error) {
	var out []TaskOutput
	return out, s.read(ctx).Raw("SELECT * FROM task_output WHERE task = ? AND seq > ? ORDER BY seq LIMIT 1000", task, after).Scan(&out).Error
}

// JobOutput are the pieces after seq of one node's part of an attempt; of the newest attempt where attempt is 0.
func (s *Store) JobOutput(ctx context.Context, job string, attempt, rank int, after int64) ([]TaskOutput, error) {
	if attempt == 0 {
		j, err := s.Job(ctx, job)
		if err != nil {
			return nil, err
		}
		attempt = j.Attempt
	}
	return s.Output(ctx, RunTaskID(job, attempt, rank), after)
}
