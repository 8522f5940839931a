package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"gpupool/schema"
)

// A service is an array of jobs of kind JobService, its replicas: each has one node and is kept running. What ends is begun
// again where it ran, with what it holds; what is lost with its server, or can't be begun there, goes back to its place in
// the queue, without a limit.

// How long a service that keeps ending waits before it is begun again: nothing after the first end, then the double each
// time, up to the longest; a run that lasted puts it back to nothing. These are the kubelet's figures, so that a service
// fares the same on every backend.
const (
	firstBackOff   = 10 * time.Second
	longestBackOff = 5 * time.Minute
	lastingRun     = 10 * time.Minute
)

// backOffAfter is the wait after so many ends in a row of runs that did not last.
func backOffAfter(ends int) time.Duration {
	if ends <= 1 {
		return 0
	}
	return min(firstBackOff<<min(ends-2, 10), longestBackOff)
}

func (n *NewJob) checkService() error {
	switch {
	case n.Nodes != 1:
		return schema.Invalid("nodes", n.Nodes, "1: each replica of a service has one node")
	case n.RequeueLimit != nil:
		return schema.Invalid("requeue_limit", *n.RequeueLimit, "nothing: a service is started again however often it is lost")
	case n.ArrayLimit != 0:
		return schema.Invalid("array_limit", n.ArrayLimit, "nothing: all replicas of a service run")
	}
	return nil
}

// servesIn refuses a service that no server of its region could ever run.
func (tx *Tx) servesIn(region, model string) error {
	var n struct{ Servers, Slurm int64 }
	if err := tx.db.Raw("SELECT count(*) AS servers, coalesce(sum(CASE WHEN backend = ? THEN 1 ELSE 0 END), 0) AS slurm FROM servers WHERE region = ? AND model = ? AND phase <> ?",
		schema.ClusterSlurm, region, model, schema.PhaseRetired).Scan(&n).Error; err != nil {
		return err
	}
	if n.Servers > 0 && n.Servers == n.Slurm {
		return schema.Invalid("kind", string(schema.JobService), fmt.Sprintf("batch: all servers of region %s with %s are of Slurm clusters, which run what comes to an end; services run on servers of backend node or kubernetes", region, model))
	}
	return nil
}

// JobRestart is the data of EventJobRestarted.
type JobRestart struct {
	Attempt  int            `json:"attempt"`
	Restarts int            `json:"restarts"` // in this attempt
	ExitCode *int           `json:"exit_code,omitempty"`
	Why      string         `json:"why"`
	At       schema.Instant `json:"at"` // when it is begun; 0 = the cluster began it by itself
}

// keptRuns is how many ended runs of an attempt of a service stay in the record, with their output, beside the first.
const keptRuns = 10

// keptPieces is how many pieces of output, of up to 64 KiB each, are kept of what a service's part on a cluster wrote, as it is
// begun again.
const keptPieces = 128

// restart begins a service again where it ran, if its part that has ended may be: nothing of it is left, nobody asked it to
// stop, and its server and devices may still be used; else its attempt ends. A cluster does so by itself. The caller holds
// the job.
func (tx *Tx) restart(t schema.Task) (bool, error) {
	if t.Cluster != "" || t.StopAt != 0 || t.Running == 0 || !t.NoneLeft {
		return false, nil
	}
	j, err := tx.job(t.Job)
	if err != nil || j.Kind != schema.JobService || j.Attempt != t.Attempt || j.State != schema.JobRunning && j.State != schema.JobStarting {
		return false, err
	}
	var unfit int64
	if err := tx.db.Raw(`SELECT (SELECT count(*) FROM servers WHERE id = ? AND phase <> ?)
		+ (SELECT count(*) FROM allocations al JOIN accelerators a ON a.id = al.accelerator WHERE al.job = ? AND al.attempt = ? AND al.released_at = 0 AND (a.health <> ? OR a.removed_at <> 0))
		+ (SELECT count(*) FROM cordons c WHERE c.server = ? AND c.lifted_at = 0 AND (c.accelerator = '' OR c.accelerator IN (SELECT accelerator FROM allocations WHERE job = ? AND attempt = ? AND released_at = 0)))`,
		t.Server, schema.PhaseAvailable, t.Job, t.Attempt, schema.HealthHealthy, t.Server, t.Job, t.Attempt).Scan(&unfit).Error; err != nil || unfit > 0 {
		return false, err
	}
	var runs []struct{ Running, Ended schema.Instant }
	if err := tx.db.Raw("SELECT running, ended FROM tasks WHERE job = ? AND attempt = ? ORDER BY restarts DESC LIMIT ?", t.Job, t.Attempt, keptRuns).Scan(&runs).Error; err != nil {
		return false, err
	}
	ends := 0
	for ends < len(runs) && runs[ends].Ended.Sub(runs[ends].Running) < lastingRun {
		ends++
	}
	next := schema.Task{ID: fmt.Sprintf("%s/%d", RunTaskID(t.Job, t.Attempt, 0), t.Restarts+1), Server: t.Server, Workflow: t.Workflow, Kind: t.Kind, Job: t.Job, Attempt: t.Attempt, Epoch: t.Epoch, Payload: t.Payload,
		Restarts: t.Restarts + 1, NotBefore: tx.now.Add(backOffAfter(ends))}
	if err := tx.queueTask(next); err != nil {
		return false, err
	}
	if err := tx.restarted(t, next.Restarts, t.ExitCode, t.Text, next.NotBefore); err != nil {
		return false, err
	}
	if old := next.Restarts - 1 - keptRuns; old > 0 {
		if _, err := tx.exec("DELETE FROM tasks WHERE job = ? AND attempt = ? AND restarts BETWEEN 1 AND ?", t.Job, t.Attempt, old); err != nil {
			return false, err
		}
		first, seq := outputOf(schema.Task{ID: next.ID, Restarts: old + 1}, 0)
		if _, err := tx.exec("DELETE FROM task_output WHERE task = ? AND seq BETWEEN ? AND ?", first, seqARun, seq); err != nil {
			return false, err
		}
	}
	return true, nil
}

// restarted notes that a service was begun again, for the so-many-eth time in its attempt.
func (tx *Tx) restarted(t schema.Task, restarts int, exit *int, why string, at schema.Instant) error {
	if t.Cluster != "" {
		if _, err := tx.exec("UPDATE tasks SET restarts = ? WHERE id = ?", restarts, t.ID); err != nil {
			return err
		}
		// Its runs are not told apart there: of all their output the latest pieces are kept.
		if _, err := tx.exec("DELETE FROM task_output WHERE task = ? AND seq <= (SELECT seq FROM task_output WHERE task = ? ORDER BY seq DESC LIMIT 1 OFFSET ?)", t.ID, t.ID, keptPieces); err != nil {
			return err
		}
	}
	if _, err := tx.exec("UPDATE jobs SET restarts = restarts + ?, version = version + 1 WHERE id = ?", restarts-t.Restarts, t.Job); err != nil {
		return err
	}
	var tenant string
	if err := tx.db.Raw("SELECT tenant FROM jobs WHERE id = ?", t.Job).Scan(&tenant).Error; err != nil {
		return err
	}
	if why == "" && exit != nil {
		why = fmt.Sprintf("exited with code %d", *exit)
	}
	tx.Emit(schema.Event{Kind: schema.EventJobRestarted, Subject: t.Job, Job: t.Job, Tenant: tenant, Server: t.Server}, JobRestart{Attempt: t.Attempt, Restarts: restarts, ExitCode: exit, Why: why, At: at})
	return nil
}

// seqARun is the room that each run of a service's part has for the numbers of its pieces of output: they are kept together,
// as one text, under the first run's id.
const seqARun = int64(1) << 32

func outputOf(t schema.Task, seq int64) (string, int64) {
	if t.Restarts == 0 || t.Cluster != "" {
		return t.ID, seq
	}
	return t.ID[:strings.LastIndexByte(t.ID, '/')], int64(t.Restarts)*seqARun + seq
}

// backOff keeps a service in the queue for a while whose attempts fail one after the other.
func (tx *Tx) backOff(j schema.Job) error {
	var last []schema.Attempt
	if err := tx.db.Where("job = ?", j.ID).Order("attempt DESC").Limit(keptRuns).Find(&last).Error; err != nil {
		return err
	}
	ends := 0
	for _, a := range last {
		failed := a.Outcome == schema.AttemptFailed || a.Outcome == schema.AttemptUnstarted
		if !failed || a.RunningAt != 0 && a.ReleasedAt.Sub(a.RunningAt) >= lastingRun {
			break
		}
		ends++
	}
	_, err := tx.exec("UPDATE jobs SET not_before = ? WHERE id = ?", tx.now.Add(backOffAfter(ends)), j.ID)
	return err
}

// Scale changes how many replicas a service has. The ones with the highest index are stopped first; new ones take the lowest
// indices that are free, and are as those that are there.
func (s *Store) Scale(ctx context.Context, a Array, replicas int, by string) error {
	if replicas < 1 || replicas > MaxArray {
		return schema.Invalid("replicas", replicas, fmt.Sprintf("1 to %d; cancel the service to end it", MaxArray))
	}
	return s.Write(ctx, func(tx *Tx) error {
		if err := tx.exclusive(arrayLock(a.Tenant, a.Project, a.Name)); err != nil {
			return err
		}
		var live []schema.Job
		if err := tx.lockAll(&live, inArray+" AND ended_at = 0", a.Tenant, a.Project, a.Name); err != nil {
			return err
		}
		taken := map[int]bool{}
		for i := range live {
			if live[i].Kind != schema.JobService {
				return schema.Conflict(fmt.Sprintf("array %s is of batch jobs", a.Name), "only a service is scaled")
			}
			if live[i].ArrayIndex != nil {
				taken[*live[i].ArrayIndex] = true
			}
		}
		stopping := func(j schema.Job) bool { return j.State == schema.JobStopping }
		kept := slices.DeleteFunc(slices.Clone(live), stopping) // but who stops is no replica any more, unless for another
		for _, j := range live {
			if stopping(j) {
				var why schema.AttemptOutcome
				if err := tx.db.Raw("SELECT stop_why FROM attempts WHERE job = ? AND attempt = ?", j.ID, j.Attempt).Scan(&why).Error; err != nil {
					return err
				}
				if why != schema.AttemptCancelled {
					kept = append(kept, j)
				}
			}
		}
		if len(kept) == 0 {
			return schema.Conflict(fmt.Sprintf("service %s has ended", a.Name), "submit it again, under another name")
		}
		slices.SortFunc(kept, func(x, y schema.Job) int { return cmp.Compare(indexOf(x), indexOf(y)) })
		for i := len(kept) - 1; i >= replicas; i-- {
			if err := tx.requestStop(&kept[i], schema.AttemptCancelled, by, "the service was scaled to "+fmt.Sprint(replicas)+" by "+by); err != nil {
				return err
			}
		}
		if len(kept) >= replicas {
			return nil
		}
		return tx.addReplicas(by, a, kept[0], replicas-len(kept), taken)
	})
}

func indexOf(j schema.Job) int {
	if j.ArrayIndex == nil {
		return 0
	}
	return *j.ArrayIndex
}

// addReplicas submits n more jobs like one of the service.
func (tx *Tx) addReplicas(by string, a Array, like schema.Job, n int, taken map[int]bool) error {
	in := NewJob{Tenant: like.Tenant, Project: like.Project, Name: strings.TrimSuffix(like.Name, fmt.Sprintf("-%d", indexOf(like))), Kind: like.Kind, Spec: like.Spec, Nodes: like.Nodes, Priority: like.AskedPriority, Preemptible: like.Preemptible,
		Same: like.Same, SameRequired: like.SameRequired, Region: like.Region, WorkDir: like.WorkDir, Image: like.Image, Network: like.Network, Mounts: like.Mounts, TimeLimit: like.Limit(), MaxQueue: time.Duration(like.MaxQueue) * time.Millisecond,
		Grace: time.Duration(like.Grace) * time.Millisecond, Array: like.Array}
	if err := json.Unmarshal([]byte(like.Command), &in.Command); err != nil {
		return fmt.Errorf("job %s: its command: %w", like.ID, err)
	}
	if err := json.Unmarshal([]byte(like.Env), &in.Env); err != nil {
		return fmt.Errorf("job %s: its env: %w", like.ID, err)
	}
	if err := in.check(); err != nil {
		return err
	}
	base, err := tx.newJob(by, in)
	if err != nil {
		return err
	}
	var last int64
	if err := tx.db.Raw("UPDATE job_seq SET seq = seq + ? WHERE one = 1 RETURNING seq", n).Scan(&last).Error; err != nil {
		return err
	}
	jobs := make([]schema.Job, n)
	for i, index := 0, 0; i < n; index++ {
		if taken[index] {
			continue
		}
		j := base
		j.ID, j.Seq, j.ArrayIndex = NewID("job", tx.now), last-int64(n-1-i), &index
		if in.Name != "" {
			j.Name = fmt.Sprintf("%s-%d", in.Name, index)
		}
		in.Env[EnvArrayIndex] = fmt.Sprint(index)
		j.Env = string(mustJSON(in.Env))
		jobs[i] = j
		tx.Emit(schema.Event{Kind: schema.EventJobSubmitted, Subject: j.ID, Job: j.ID, Tenant: j.Tenant, By: by}, map[string]any{"spec": j.Spec, "nodes": j.Nodes, "array": a.Name, "index": index})
		i++
	}
	return tx.db.CreateInBatches(jobs, 200).Error
}
