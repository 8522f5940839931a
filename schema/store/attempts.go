package store

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
)

func (tx *Tx) job(id string) (schema.Job, error) {
	var j schema.Job
	return j, one(tx.lock(&j, "id = ?", id), "job", id)
}

// saveJob writes the columns that change in a job's life, and no others: a database that is told to write a column
// writes its indexes anew and looks at what refers to it, whether or not the value is another.
func (tx *Tx) saveJob(j *schema.Job) error {
	j.Version++
	q := "UPDATE jobs SET time_limit = ?, held = ?, held_by = ?, state = ?, attempt = ?, requeues = ?, cause = ?, exit_code = ?, reason = ?, started_at = ?, version = ?"
	args := []any{j.TimeLimit, j.Held, j.HeldBy, j.State, j.Attempt, j.Requeues, j.Cause, j.ExitCode, j.Reason, j.StartedAt, j.Version}
	if j.EndedAt != 0 {
		q, args = q+", ended_at = ?", append(args, j.EndedAt)
	}
	return tx.update("job", j.ID, q+" WHERE id = ?", append(args, j.ID)...)
}

func (tx *Tx) setJobState(j *schema.Job, to schema.JobState, cause string) error {
	if err := tx.turnJob(j, to, cause); err != nil {
		return err
	}
	return tx.saveJob(j)
}

// turnJob is setJobState that leaves the writing of the job to the caller.
func (tx *Tx) turnJob(j *schema.Job, to schema.JobState, cause string) error {
	if err := schema.JobStates.Check("job "+j.ID, j.State, to); err != nil {
		return err
	}
	tx.Emit(schema.Event{Kind: schema.EventJobState, Subject: j.ID, Job: j.ID, Tenant: j.Tenant}, struct {
		Attempt int             `json:"attempt"`
		Cause   string          `json:"cause"`
		From    schema.JobState `json:"from"`
		To      schema.JobState `json:"to"`
	}{j.Attempt, cause, j.State, to})
	j.State, j.Cause = to, cause
	if to.Ended() {
		j.EndedAt, j.Reason = tx.now, ""
	}
	return nil
}

// saveAttempt writes the columns that change in an attempt's life.
func (tx *Tx) saveAttempt(a *schema.Attempt) error {
	return tx.update("attempt of job", a.Job, "UPDATE attempts SET outcome = ?, cause = ?, exit_code = ?, running_at = ?, stopping_at = ?, stop_why = ?, released_at = ? WHERE job = ? AND attempt = ?",
		a.Outcome, a.Cause, a.ExitCode, a.RunningAt, a.StoppingAt, a.StopWhy, a.ReleasedAt, a.Job, a.Attempt)
}

// attemptRunning is called when one node's process has started: the attempt runs when all have. The caller holds the job.
func (tx *Tx) attemptRunning(job string, attempt int) error {
	var waiting int64
	if err := tx.db.Raw("SELECT count(*) FROM tasks WHERE job = ? AND attempt = ? AND running = 0", job, attempt).Scan(&waiting).Error; err != nil || waiting > 0 {
		return err
	}
	j, err := tx.job(job)
	if err != nil {
		return err
	}
	if _, err := tx.exec("UPDATE attempts SET running_at = ? WHERE job = ? AND attempt = ? AND running_at = 0", tx.now, job, attempt); err != nil {
		return err
	}
	if j.Attempt != attempt || j.State != schema.JobStarting {
		return nil
	}
	if j.StartedAt == 0 {
		j.StartedAt = tx.now
	}
	j.Reason = ""
	tx.Emit(schema.Event{Kind: schema.EventJobRunning, Subject: job, Job: job, Tenant: j.Tenant}, map[string]any{"attempt": attempt})
	return tx.setJobState(&j, schema.JobRunning, "")
}

// runTaskEnded tells the job's workflow when the last node's part has ended. One that failed takes the others of
// its gang with it. A service's is begun again where it ran, if it may be. The caller holds the job.
func (tx *Tx) runTaskEnded(t schema.Task) error {
	if again, err := tx.restart(t); err != nil || again {
		return err
	}
	var open []schema.Task
	if err := tx.lockAll(&open, "job = ? AND attempt = ? AND ended = 0", t.Job, t.Attempt); err != nil {
		return err
	}
	if len(open) > 0 {
		if t.State == schema.TaskDone && t.ExitCode != nil && *t.ExitCode == 0 {
			return nil
		}
		grace := DefaultGrace
		if j, err := tx.job(t.Job); err == nil {
			grace = time.Duration(j.Grace) * time.Millisecond
		}
		left := 0
		for i := range open {
			if err := tx.stopTask(&open[i], "TERM", grace); err != nil {
				return err
			}
			if !open[i].State.Ended() {
				left++
			}
		}
		if left > 0 {
			return nil
		}
	}
	return tx.emitAttemptEnded(t.Job, t.Attempt)
}

func (tx *Tx) emitAttemptEnded(job string, attempt int) error {
	j, err := tx.job(job)
	if err != nil {
		return err
	}
	tx.Emit(schema.Event{Kind: schema.EventJobAttemptEnded, Subject: job, Job: job, Tenant: j.Tenant}, map[string]any{"attempt": attempt})
	return nil
}

// Place is one server's part of an allocation.
type Place struct {
	Server       string
	Accelerators []string
}

// DispatchAttempt hands the attempt to the servers it was given: one run task each. Repeating it changes nothing. An
// attempt that is asked to stop, or has passed, is not dispatched.
func (s *Store) DispatchAttempt(ctx context.Context, job string, attempt int) error {
	return s.Write(ctx, func(tx *Tx) error {
		j, err := tx.job(job)
		if err != nil {
			return err
		}
		var a schema.Attempt
		if err := one(tx.lock(&a, "job = ? AND attempt = ?", job, attempt), "attempt of job", job); err != nil {
			return err
		}
		if j.Attempt != attempt || a.StopWhy != "" || a.ReleasedAt != 0 {
			return nil // the stop that overtook us ends it
		}
		var rows []struct {
			Server, Name, Cluster, Device string
		}
		if err := tx.db.Raw(`SELECT al.server, s.name, s.cluster, CASE WHEN ac.serial <> '' THEN ac.serial WHEN ac.uuid <> '' THEN ac.uuid ELSE ac.pci END AS device FROM allocations al JOIN servers s ON s.id = al.server JOIN accelerators ac ON ac.id = al.accelerator
			WHERE al.job = ? AND al.attempt = ? ORDER BY s.name, ac.device_index, ac.id`, job, attempt).Scan(&rows).Error; err != nil {
			return err
		}
		var peers []string
		var servers []string
		clusters := map[string]string{}
		devices := map[string][]string{}
		for _, r := range rows {
			if _, seen := devices[r.Server]; !seen {
				servers, peers = append(servers, r.Server), append(peers, r.Name)
			}
			clusters[r.Server] = r.Cluster
			devices[r.Server] = append(devices[r.Server], r.Device)
		}
		run := agentproto.Run{Job: job, Attempt: attempt, WorkDir: j.WorkDir, Image: j.Image, Network: j.Network, Nodes: len(servers), Peers: peers}
		var spec struct {
			CPUs        int `gorm:"column:cpus"`
			MemoryBytes int64
		}
		if err := tx.db.Raw("SELECT cpus, memory_bytes FROM specs WHERE name = ?", j.Spec).Scan(&spec).Error; err != nil {
			return err
		}
		run.CPUs, run.MemoryBytes = spec.CPUs, spec.MemoryBytes
		if err := tx.mount(&run, j); err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(j.Command), &run.Command); err != nil {
			return fmt.Errorf("job %s: its command: %w", job, err)
		}
		if err := json.Unmarshal([]byte(j.Env), &run.Env); err != nil {
			return fmt.Errorf("job %s: its env: %w", job, err)
		}
		for rank, srv := range servers {
			run.Rank, run.Devices = rank, devices[srv]
			payload, err := json.Marshal(run)
			if err != nil {
				return err
			}
			if err := tx.queueTask(schema.Task{ID: RunTaskID(job, attempt, rank), Server: srv, Cluster: clusters[srv], Workflow: "job/" + job, Kind: schema.TaskRun, Job: job, Attempt: attempt, Epoch: a.Epoch, Payload: string(payload)}); err != nil {
				return err
			}
		}
		return nil
	})
}

// RequestStop asks that an attempt end, and says why; the first asker's word stands. attempt 0 means whatever is live.
// A queued job is ended at once; one that is cancelled may be cancelled again, which changes nothing.
func (s *Store) RequestStop(ctx context.Context, job string, attempt int, why schema.AttemptOutcome, by, cause string) error {
	return s.Write(ctx, func(tx *Tx) error {
		j, err := tx.job(job)
		if err != nil {
			return err
		}
		if attempt != 0 && j.Attempt != attempt {
			return schema.Stale(fmt.Sprintf("job %s is at attempt %d, not %d", job, j.Attempt, attempt))
		}
		if attempt != 0 && j.State == schema.JobQueued { // what is said of an attempt is not said of the next
			return schema.Stale(fmt.Sprintf("attempt %d of job %s has passed: it is queued again", attempt, job))
		}
		if j.State.Ended() {
			if attempt == 0 && (j.State != schema.JobCancelled || why != schema.AttemptCancelled) {
				return schema.Conflict(fmt.Sprintf("job %s is %s already", job, j.State), "there is nothing to stop")
			}
			return nil
		}
		return tx.requestStop(&j, why, by, cause)
	})
}

func (tx *Tx) requestStop(j *schema.Job, why schema.AttemptOutcome, by, cause string) error {
	if j.State == schema.JobQueued {
		to := schema.JobCancelled
		if why == schema.AttemptTimeout {
			to = schema.JobExpired
		}
		tx.Emit(schema.Event{Kind: schema.EventJobStop, Subject: j.ID, Job: j.ID, Tenant: j.Tenant, By: by}, JobStop{Attempt: j.Attempt, Why: why, Ended: true})
		return tx.setJobState(j, to, cause)
	}
	var a schema.Attempt
	if err := tx.lock(&a, "job = ? AND attempt = ?", j.ID, j.Attempt); err != nil {
		return err
	}
	if a.StopWhy != "" || a.ReleasedAt != 0 {
		return nil
	}
	a.StopWhy, a.StoppingAt, a.Cause = why, tx.now, cause
	if err := tx.saveAttempt(&a); err != nil {
		return err
	}
	var tasks []schema.Task
	if err := tx.lockAll(&tasks, "job = ? AND attempt = ?", j.ID, j.Attempt); err != nil {
		return err
	}
	left := 0
	for i := range tasks {
		if err := tx.stopTask(&tasks[i], "TERM", time.Duration(j.Grace)*time.Millisecond); err != nil {
			return err
		}
		if !tasks[i].State.Ended() {
			left++
		}
	}
	tx.Emit(schema.Event{Kind: schema.EventJobStop, Subject: j.ID, Job: j.ID, Tenant: j.Tenant, By: by}, JobStop{Attempt: j.Attempt, Why: why})
	if err := tx.setJobState(j, schema.JobStopping, cause); err != nil {
		return err
	}
	if left == 0 {
		return tx.emitAttemptEnded(j.ID, j.Attempt)
	}
	return nil
}

// JobStop is the data of EventJobStop.
type JobStop struct {
	Attempt int                   `json:"attempt"`
	Why     schema.AttemptOutcome `json:"why"`
	Ended   bool                  `json:"ended"` // it was queued and has ended with this
}

// AttemptStatus is what a job's workflow needs to know after a signal or a restart.
type AttemptStatus struct {
	Job     schema.Job // its state, grace and time limit only
	Attempt schema.Attempt
	Tasks   int            // nodes' parts
	Open    int            // those that have not ended
	OpenOn  []string       // their servers
	Unsure  []string       // servers where a part has ended without proof that no process is left
	Away    bool           // a cluster that has an open part does not answer: nothing of it is known
	BackAt  schema.Instant // such a cluster answers again since; 0 = always has
}

// AttemptStatus reads it. It is read for each news of each job: of the job and the tasks only what is asked for.
func (s *Store) AttemptStatus(ctx context.Context, job string, attempt int) (AttemptStatus, error) {
	var st AttemptStatus
	if err := one(s.read(ctx).Select("id", "state", "grace", "time_limit").Where("id = ?", job).Take(&st.Job).Error, "job", job); err != nil {
		return st, err
	}
	if err := one(s.read(ctx).Where("job = ? AND attempt = ?", job, attempt).Take(&st.Attempt).Error, "attempt of job", job); err != nil {
		return st, err
	}
	var tasks []schema.Task
	err := s.read(ctx).Select("state", "none_left", "server", "cluster").Where("job = ? AND attempt = ?", job, attempt).Order("id").Find(&tasks).Error
	st.Tasks = len(tasks)
	clusters := map[string]bool{}
	for _, t := range tasks {
		if t.Cluster != "" && !t.State.Ended() {
			clusters[t.Cluster] = true
		}
		if !t.State.Ended() {
			st.Open++
			st.OpenOn = append(st.OpenOn, t.Server)
		} else if !t.NoneLeft {
			st.Unsure = append(st.Unsure, t.Server)
		}
	}
	if err != nil || len(clusters) == 0 {
		return st, err
	}
	var at []schema.Cluster
	err = s.read(ctx).Where("name IN ?", slices.Sorted(maps.Keys(clusters))).Find(&at).Error
	for _, c := range at {
		st.Away = st.Away || c.DownSince != 0
		st.BackAt = max(st.BackAt, c.UpSince)
	}
	return st, err
}

// HeldJobs are the jobs that hold accelerators: each has a process.
func (s *Store) HeldJobs(ctx context.Context) ([]string, error) {
	var ids []string
	err := s.read(ctx).Raw("SELECT id FROM jobs WHERE ended_at = 0 AND state <> ?", schema.JobQueued).Scan(&ids).Error
	slices.Sort(ids) // here: told to, SQLite would read all jobs there ever were in the order of their ids
	return ids, err
}

// Unattended tells that a job's process does not fit its state: a new one is to take it up, or the old one to look.
func (s *Store) Unattended(ctx context.Context, job string) error {
	return s.Write(ctx, func(tx *Tx) error {
		j, err := tx.job(job)
		if err != nil {
			return err
		}
		tx.Emit(schema.Event{Kind: schema.EventJobUnattended, Subject: j.ID, Job: j.ID, Tenant: j.Tenant, By: "attend"}, map[string]any{"attempt": j.Attempt, "state": j.State})
		return nil
	})
}
