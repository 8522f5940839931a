package store

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gpupool/schema"
)

// TakeEpoch makes holder the region's allocator: every commit under an earlier epoch is refused from now on.
func (s *Store) TakeEpoch(ctx context.Context, region, holder string) (int64, error) {
	var epoch int64
	err := s.Write(ctx, func(tx *Tx) error {
		return tx.db.Raw(`INSERT INTO allocator_epochs (region, epoch, holder, taken_at) VALUES (?, 1, ?, ?)
			ON CONFLICT (region) DO UPDATE SET epoch = allocator_epochs.epoch + 1, holder = excluded.holder, taken_at = excluded.taken_at RETURNING epoch`, region, holder, tx.now).Scan(&epoch).Error
	})
	return epoch, err
}

// Start is one placement that a cycle decided.
type Start struct {
	Job     string
	Attempt int
	Places  []Place
}

// Victim is an attempt that a cycle wants to end for another job.
type Victim struct {
	Job     string
	Attempt int
	For     string
	Cause   string
}

// Expiry is a job that waited longer than it wanted to.
type Expiry struct {
	Job   string
	Cause string
}

// Cycle is what one cycle of the allocator decided.
type Cycle struct {
	Number  int64
	Starts  []Start
	Victims []Victim
	Expired []Expiry
	Reasons map[string]schema.ReasonDoc // job -> why it waits; only those that changed
	Limits  map[string]int64            // limited tenant -> the version of its limits that the cycle rests on; see Elsewhere
	Mixed   bool                        // jobs of several tenants may meet on a server that does not keep them apart
}

// Refusal is a start that the database did not allow, and why.
type Refusal struct {
	Job     string
	Attempt int
	Why     string
}

// CommitCycle writes a cycle's decisions in one transaction under epoch. Health, cordons, phase and job state are
// checked here, at the moment of the act: what has changed since the cycle read it is refused, start by start, with
// nothing written for it. A CodeStale error means that another allocator has taken over: stop at once.
func (s *Store) CommitCycle(ctx context.Context, region string, epoch int64, c Cycle) ([]Refusal, error) {
	var refused []Refusal
	err := s.Write(ctx, func(tx *Tx) error {
		refused = nil
		n, err := tx.exec("UPDATE allocator_epochs SET cycle = ? WHERE region = ? AND epoch = ?", c.Number, region, epoch)
		if err != nil {
			return err
		}
		if n == 0 {
			return schema.Stale(fmt.Sprintf("epoch %d of region %s has passed", epoch, region))
		}
		if len(c.Starts) > 0 {
			world, err := tx.freeWorld(c.Starts, c.Mixed)
			if err != nil {
				return err
			}
			if err := tx.metered(); err != nil {
				return err
			}
			behind, err := tx.takeLimits(c.Starts, &world, c.Limits)
			if err != nil {
				return err
			}
			for _, st := range c.Starts {
				why := behind[world.jobs[st.Job].Tenant]
				if why == "" {
					why, err = tx.start(epoch, st, &world)
				}
				if err != nil {
					return err
				}
				if why != "" {
					refused = append(refused, Refusal{st.Job, st.Attempt, why})
				}
			}
			if err := tx.writeStarts(region, epoch, world.begun); err != nil {
				return err
			}
		}
		for _, v := range c.Victims {
			j, err := tx.job(v.Job)
			if err != nil {
				return err
			}
			if j.Attempt != v.Attempt || j.State.Ended() || j.State == schema.JobQueued {
				continue // it has ended by itself
			}
			if err := tx.requestStop(&j, schema.AttemptPreempted, "allocator", v.Cause); err != nil {
				return err
			}
			// Where it was asked to stop before, for another reason, that stands.
			if _, err := tx.exec("UPDATE attempts SET stop_for = ? WHERE job = ? AND attempt = ? AND stop_why = ? AND stop_for = ''", v.For, v.Job, v.Attempt, schema.AttemptPreempted); err != nil {
				return err
			}
		}
		for _, e := range c.Expired {
			j, err := tx.job(e.Job)
			if err != nil {
				return err
			}
			if j.State != schema.JobQueued {
				continue
			}
			if err := tx.requestStop(&j, schema.AttemptTimeout, "allocator", e.Cause); err != nil {
				return err
			}
		}
		return tx.setReasons(c.Reasons)
	})
	return refused, err
}

// world is what the starts of one cycle need to know of the database at this moment.
type world struct {
	free map[string]string        // accelerator -> the server it is free and good on
	bad  map[string]string        // accelerator or server -> why it may not be used
	runs map[string]schema.Server // server -> what says who runs jobs on it
	jobs map[string]schema.Job
	over map[string][]schema.Window // server -> the windows over it
	stop []schema.Stop
	can  map[string]schema.Ability // what clusters are set up for
	mine map[string]string         // server that is one tenant's at a time -> whose it is now; "" = nobody's yet

	begun   []begun // what the starts have come to, written together: a statement for each would cost more than all else
	reasons map[Dispatching]string
}

// begun is a start that nothing stands against.
type begun struct {
	Start
	reason string // of the job, while it is handed to its servers
}

func (tx *Tx) freeWorld(starts []Start, mixed bool) (world, error) {
	w := world{reasons: map[Dispatching]string{}, mine: map[string]string{}, free: map[string]string{}, bad: map[string]string{}, runs: map[string]schema.Server{}, jobs: map[string]schema.Job{}, over: map[string][]schema.Window{}}
	servers, accs := map[string]bool{}, []string{}
	jobs := map[string]bool{}
	for _, st := range starts {
		jobs[st.Job] = true
		for _, p := range st.Places {
			servers[p.Server] = true
			accs = append(accs, p.Accelerators...)
		}
	}
	ids := slices.Collect(maps.Keys(servers))
	var err error
	if w.can, err = clustersCan(tx.db); err != nil {
		return w, err
	}
	// Held to the end of the transaction: who cordons, drains or repairs one of them waits, or was first and is seen.
	if err := each(tx.db.Raw("SELECT id, name, phase, backend, cluster, shared FROM servers WHERE ? ORDER BY id"+tx.forUpdate(), among{"id", ids}), func(scan func(...any) error) error {
		var v schema.Server
		if err := scan(&v.ID, &v.Name, &v.Phase, &v.Backend, &v.Cluster, &v.Shared); err != nil {
			return err
		}
		w.runs[v.ID] = v
		if v.Phase != schema.PhaseAvailable {
			w.bad[v.ID] = fmt.Sprintf("server %s is %s", v.Name, v.Phase)
		}
		if v.OneTenant() && !mixed {
			w.mine[v.ID] = ""
		}
		return nil
	}); err != nil {
		return w, err
	}
	var cordons []schema.Cordon
	if err := tx.db.Where("lifted_at = 0").Where(among{"server", ids}).Find(&cordons).Error; err != nil {
		return w, err
	}
	for _, c := range cordons {
		if c.Accelerator != "" {
			w.bad[c.Accelerator] = "cordoned: " + c.Reason
		} else {
			w.bad[c.Server] = "cordoned: " + c.Reason
		}
	}
	if err := tx.tenantsOn(w.mine); err != nil {
		return w, err
	}
	if err := each(tx.db.Raw(`SELECT a.id, a.server, a.health, (SELECT count(*) FROM allocations x WHERE x.accelerator = a.id AND x.released_at = 0) AS live
		FROM accelerators a WHERE ? AND a.removed_at = 0`, among{"a.id", accs}), func(scan func(...any) error) error {
		var id, server string
		var health schema.Health
		var held int64
		if err := scan(&id, &server, &health, &held); err != nil {
			return err
		}
		switch {
		case health != schema.HealthHealthy:
			w.bad[id] = "accelerator is " + string(health)
		case held > 0:
			w.bad[id] = "accelerator is held by another job"
		default:
			w.free[id] = server
		}
		return nil
	}); err != nil {
		return w, err
	}
	open, err := windows(tx.db, tx.now)
	if err != nil {
		return w, err
	}
	for _, o := range open {
		for _, id := range o.Servers {
			w.over[id] = append(w.over[id], o)
		}
	}
	if w.stop, err = stops(tx.db, tx.now); err != nil {
		return w, err
	}
	// What a start rests on of its job, and no more; see start.
	return w, each(tx.db.Raw("SELECT id, tenant, project, kind, spec, region, nodes, per_node, needs, time_limit, held, state, attempt FROM jobs WHERE ? ORDER BY id"+tx.forUpdate(), among{"id", slices.Collect(maps.Keys(jobs))}), func(scan func(...any) error) error {
		var j schema.Job
		if err := scan(&j.ID, &j.Tenant, &j.Project, &j.Kind, &j.Spec, &j.Region, &j.Nodes, &j.PerNode, &j.Needs, &j.TimeLimit, &j.Held, &j.State, &j.Attempt); err != nil {
			return err
		}
		w.jobs[j.ID] = j
		return nil
	})
}

// tenantsOn fills in whose jobs hold accelerators of each of these servers.
func (tx *Tx) tenantsOn(servers map[string]string) error {
	if len(servers) == 0 {
		return nil
	}
	var rows []struct{ Server, Tenant string }
	if err := tx.db.Raw(`SELECT DISTINCT al.server, j.tenant FROM allocations al JOIN jobs j ON j.id = al.job WHERE al.released_at = 0 AND ?`, among{"al.server", slices.Collect(maps.Keys(servers))}).Scan(&rows).Error; err != nil {
		return err
	}
	for _, r := range rows {
		if servers[r.Server] != "" && servers[r.Server] != r.Tenant {
			r.Tenant = "*" // no tenant's name: nobody may come
		}
		servers[r.Server] = r.Tenant
	}
	return nil
}

func (tx *Tx) start(epoch int64, st Start, w *world) (refused string, err error) {
	j, ok := w.jobs[st.Job]
	switch {
	case !ok:
		return "", schema.NotFound("job", st.Job)
	case j.State != schema.JobQueued:
		return fmt.Sprintf("job is %s", j.State), nil
	case j.Attempt+1 != st.Attempt:
		return fmt.Sprintf("job's next attempt is %d, not %d", j.Attempt+1, st.Attempt), nil
	case j.Held:
		return "job is held", nil
	}
	for _, s := range w.stop {
		if s.Holds(j, tx.now) {
			return fmt.Sprintf("the queue of %s is stopped: %s", s.Scope(), s.Why), nil
		}
	}
	count := 0
	for _, p := range st.Places {
		if why := w.bad[p.Server]; why != "" {
			return why, nil
		}
		if a, b := w.runs[st.Places[0].Server].Cluster, w.runs[p.Server].Cluster; a != b {
			return fmt.Sprintf("servers of two clusters, %q and %q", a, b), nil
		}
		if lack := j.Needs & w.runs[p.Server].Lacks(w.can[w.runs[p.Server].Cluster]); lack != 0 {
			return fmt.Sprintf("server %s, of backend %s, does not have %s", w.runs[p.Server].Name, w.runs[p.Server].Backend, strings.Join(lack.Words(), ", ")), nil
		}
		if whose := w.mine[p.Server]; whose != "" && whose != j.Tenant {
			return fmt.Sprintf("another tenant's jobs run on server %s, which does not keep jobs apart: %s", w.runs[p.Server].Name, w.runs[p.Server].Shared), nil
		}
		for _, o := range w.over[p.Server] {
			until := schema.Instant(0)
			if j.TimeLimit > 0 {
				until = tx.now.Add(j.Limit())
			}
			if o.Bars(j.Tenant, j.Project, tx.now, until) {
				return fmt.Sprintf("%s window %s is over the server", o.Kind, o.ID), nil
			}
		}
		for _, a := range p.Accelerators {
			if why := w.bad[a]; why != "" {
				return why, nil
			}
			if w.free[a] != p.Server {
				return "accelerator is not on that server any more", nil
			}
		}
		if len(p.Accelerators) != j.PerNode {
			return fmt.Sprintf("%d accelerators on a server where the spec has %d", len(p.Accelerators), j.PerNode), nil
		}
		count++
	}
	if count != j.Nodes {
		return fmt.Sprintf("%d servers for a job of %d", count, j.Nodes), nil
	}
	for _, p := range st.Places {
		if _, one := w.mine[p.Server]; one {
			w.mine[p.Server] = j.Tenant
		}
		for _, a := range p.Accelerators {
			w.bad[a] = "accelerator is held by another job"
		}
	}
	j.Attempt = st.Attempt
	first := w.runs[st.Places[0].Server]
	d := Dispatching{Backend: first.Backend, Cluster: first.Cluster, Attempt: st.Attempt, Since: tx.now}
	if w.reasons[d] == "" { // most starts of a cycle share one
		w.reasons[d] = d.reason(tx.now)
	}
	tx.Emit(schema.Event{Kind: schema.EventJobAllocated, Subject: j.ID, Job: j.ID, Tenant: j.Tenant}, struct {
		Attempt int   `json:"attempt"`
		Epoch   int64 `json:"epoch"`
	}{st.Attempt, epoch})
	err = tx.turnJob(&j, schema.JobStarting, "")
	w.jobs[j.ID] = j // told twice, it is refused
	w.begun = append(w.begun, begun{st, w.reasons[d]})
	return "", err
}

// writeStarts writes attempts, what they hold, and what a start changes of its job.
func (tx *Tx) writeStarts(region string, epoch int64, all []begun) error {
	var allocations, attempts, jobs []row
	for _, b := range all {
		at := int64(b.Attempt)
		attempts = append(attempts, row{b.Job, at, epoch, int64(tx.now)})
		jobs = append(jobs, row{b.Job, at, b.reason})
		for _, p := range b.Places {
			for _, a := range p.Accelerators {
				allocations = append(allocations, row{b.Job, at, a, p.Server, region, int64(tx.now)})
			}
		}
	}
	if _, err := tx.writeRows("INSERT INTO allocations (job, attempt, accelerator, server, region, allocated_at) ?", allocations); err != nil {
		return err
	}
	if _, err := tx.writeRows("INSERT INTO attempts (job, attempt, epoch, allocated_at) ?", attempts); err != nil {
		return err
	}
	n, err := tx.writeRows("WITH v (id, attempt, reason) AS (?) UPDATE jobs SET state = 'starting', cause = '', attempt = v.attempt, reason = v.reason, version = version + 1 FROM v WHERE jobs.id = v.id", jobs)
	if err == nil && n != int64(len(jobs)) {
		err = fmt.Errorf("%d of %d jobs that start are in the record", n, len(jobs))
	}
	return err
}

// setReasons writes why jobs wait, for those that still do. A reason that was there already keeps its since.
func (tx *Tx) setReasons(reasons map[string]schema.ReasonDoc) error {
	if len(reasons) == 0 {
		return nil
	}
	rows := make([]row, 0, len(reasons))
	if err := each(tx.db.Raw("SELECT id, tenant, reason FROM jobs WHERE ? AND state = ? ORDER BY id"+tx.forUpdate(), among{"id", slices.Collect(maps.Keys(reasons))}, schema.JobQueued), func(scan func(...any) error) error {
		var id, tenant, before string
		if err := scan(&id, &tenant, &before); err != nil {
			return err
		}
		var old struct {
			Code  schema.ReasonCode `json:"code"`
			Since schema.Instant    `json:"since"`
		}
		_ = json.Unmarshal([]byte(before), &old)
		r := reasons[id]
		if old.Code == r.Code && old.Since != 0 {
			r.Since = old.Since
		}
		doc, err := json.Marshal(r)
		if err != nil {
			return err
		}
		rows = append(rows, row{id, string(doc)})
		if old.Code != r.Code {
			tx.Emit(schema.Event{Kind: schema.EventJobReason, Subject: id, Job: id, Tenant: tenant}, map[string]any{"code": r.Code, "clears_when": r.ClearsWhen})
		}
		return nil
	}); err != nil {
		return err
	}
	_, err := tx.writeRows("WITH v (id, reason) AS (?) UPDATE jobs SET reason = v.reason, version = version + 1 FROM v WHERE jobs.id = v.id", rows)
	return err
}

func mustJSON(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("%T can't be marshalled: %v", v, err)) // a programming error
	}
	return b
}

// Settle is how an attempt ended and was settled.
type Settle struct {
	Outcome schema.AttemptOutcome
	State   schema.JobState // the job's state afterwards
}

// SettleAttempt releases what an attempt held, writes its ledger rows and moves the job on, in one transaction.
// It refuses while a part is running, but on the servers named in unconfirmed: those are cordoned in the same
// transaction, so that what may still be in use is not given out. Repeating it changes nothing.
func (s *Store) SettleAttempt(ctx context.Context, job string, attempt int, unconfirmed []string) (Settle, error) {
	var out Settle
	err := s.Write(ctx, func(tx *Tx) error {
		// The servers first, and all: each is told when it is drained, by whoever releases what it held last.
		var servers []schema.Server
		if err := tx.lockAll(&servers, "id IN (SELECT server FROM allocations WHERE job = ? AND attempt = ?)", job, attempt); err != nil {
			return err
		}
		j, err := tx.job(job)
		if err != nil {
			return err
		}
		var a schema.Attempt
		if err := one(tx.lock(&a, "job = ? AND attempt = ?", job, attempt), "attempt of job", job); err != nil {
			return err
		}
		if a.ReleasedAt != 0 {
			out = Settle{a.Outcome, j.State}
			return nil
		}
		if err := tx.metered(); err != nil {
			return err
		}
		isUnconfirmed := map[string]bool{}
		for _, v := range unconfirmed {
			isUnconfirmed[v] = true
		}
		var tasks []schema.Task
		if err := tx.lockAll(&tasks, "job = ? AND attempt = ?", job, attempt); err != nil {
			return err
		}
		clean, refused := true, false // every part ended by itself with 0; a server would not start its part
		var told *schema.Task         // the part whose end says why the attempt ended
		for i := range tasks {
			t := &tasks[i]
			if !t.State.Ended() || !t.NoneLeft {
				if !isUnconfirmed[t.Server] {
					return schema.Unsafe(fmt.Sprintf("part %s of job %s is %s", t.ID, job, t.State), "it is released when no process of it is left")
				}
				if !t.State.Ended() {
					t.State, t.Text, t.Ended = schema.TaskCancelled, "its end could not be confirmed", tx.now
					if err := tx.saveTask(t); err != nil {
						return err
					}
				}
				v, err := tx.server(t.Server)
				if err != nil {
					return err
				}
				if _, err := tx.cordon(v, "", schema.CordonRelease, "job/"+job, "the end of job "+job+" could not be confirmed: processes of it may be left"); err != nil {
					return err
				}
			}
			if t.ExitCode == nil || *t.ExitCode != 0 || t.State != schema.TaskDone {
				clean = false
			}
			refused = refused || t.State == schema.TaskFailed && t.Running == 0 && t.ExitCode == nil
			if told == nil || tells(t, told) {
				told = t
			}
		}
		var exit *int
		cause := a.Cause
		if told != nil {
			exit = told.ExitCode
			if cause == "" && told.State != schema.TaskDone {
				cause = told.Text
			}
		}
		switch {
		case len(tasks) > 0 && clean && j.Kind != schema.JobService && (a.StopWhy == "" || a.StopWhy == schema.AttemptPreempted || a.StopWhy == schema.AttemptLost):
			a.Outcome, cause = schema.AttemptCompleted, ""
		case a.StopWhy != "":
			a.Outcome = a.StopWhy
		case refused:
			a.Outcome = schema.AttemptUnstarted
		default:
			a.Outcome = schema.AttemptFailed
			if cause == "" && exit != nil {
				cause = fmt.Sprintf("exit code %d", *exit)
			}
		}
		a.ReleasedAt, a.ExitCode, a.Cause = tx.now, exit, cause
		if err := tx.saveAttempt(&a); err != nil {
			return err
		}
		if err := tx.release(j, a, servers); err != nil {
			return err
		}
		tx.Emit(schema.Event{Kind: schema.EventJobReleased, Subject: job, Job: job, Tenant: j.Tenant}, map[string]any{"attempt": attempt, "outcome": a.Outcome})
		if j.Attempt != attempt {
			return fmt.Errorf("job %s is at attempt %d while attempt %d was live", job, j.Attempt, attempt)
		}
		j.ExitCode = exit
		to := schema.JobFailed
		switch a.Outcome {
		case schema.AttemptCompleted:
			to = schema.JobCompleted
		case schema.AttemptCancelled:
			to = schema.JobCancelled
		case schema.AttemptTimeout:
			to = schema.JobTimeout
		case schema.AttemptPreempted:
			to = schema.JobQueued
		case schema.AttemptFailed, schema.AttemptLive:
		case schema.AttemptLost, schema.AttemptUnstarted:
			j.Requeues++
			if to = schema.JobQueued; j.Requeues > j.RequeueLimit {
				to, cause = schema.JobFailed, fmt.Sprintf("lost to hardware %d times, the requeue limit is %d; last: %s", j.Requeues, j.RequeueLimit, cause)
			}
		}
		if j.Kind == schema.JobService && to != schema.JobCancelled && to != schema.JobTimeout {
			if to, cause = schema.JobQueued, a.Cause; a.Outcome == schema.AttemptFailed || a.Outcome == schema.AttemptUnstarted {
				if err := tx.backOff(j); err != nil {
					return err
				}
			}
		}
		if to == schema.JobQueued {
			reason, err := json.Marshal(schema.ReasonDoc{Code: schema.ReasonNotEvaluated, Class: "in progress", Since: tx.now, EvaluatedAt: tx.now, ClearsWhen: "the allocator's next cycle has seen the job"})
			if err != nil {
				return err
			}
			j.Reason = string(reason)
			most, err := tx.priorityCap(j.Tenant, j.Project) // it may be another than when it started
			if err != nil {
				return err
			}
			if _, err := tx.exec("UPDATE jobs SET priority = ? WHERE id = ?", min(j.AskedPriority, most), j.ID); err != nil {
				return err
			}
		}
		out = Settle{a.Outcome, to}
		return tx.setJobState(&j, to, cause)
	})
	return out, err
}

// tells reports whether part t says more than o about why an attempt ended: a part that failed says more than one that
// ended well; one that failed by itself more than one that was stopped because another had failed; the earlier more.
func tells(t, o *schema.Task) bool {
	well := func(t *schema.Task) bool { return t.State == schema.TaskDone && t.ExitCode != nil && *t.ExitCode == 0 }
	switch {
	case well(t) != well(o):
		return well(o)
	case (t.StopAt == 0) != (o.StopAt == 0):
		return t.StopAt == 0
	default:
		return t.Ended < o.Ended
	}
}

// release frees an attempt's accelerators, all on servers that the caller holds, and writes one ledger row for each.
func (tx *Tx) release(j schema.Job, a schema.Attempt, servers []schema.Server) error {
	var held []schema.Allocation
	if err := tx.db.Where("job = ? AND attempt = ? AND released_at = 0", a.Job, a.Attempt).Find(&held).Error; err != nil {
		return err
	}
	queued := j.SubmittedAt
	if a.Attempt > 1 {
		if err := tx.db.Raw("SELECT released_at FROM attempts WHERE job = ? AND attempt = ?", a.Job, a.Attempt-1).Scan(&queued).Error; err != nil {
			return err
		}
	}
	var rows []schema.LedgerRow
	for _, h := range held {
		rows = append(rows, schema.LedgerRow{ID: fmt.Sprintf("%s/%d/%s/0", h.Job, h.Attempt, h.Accelerator), Kind: schema.LedgerUsage, Job: h.Job, Attempt: h.Attempt, Accelerator: h.Accelerator, Server: h.Server,
			Tenant: j.Tenant, Project: j.Project, Spec: j.Spec, Model: j.Model, Region: h.Region, Queued: min(queued, h.AllocatedAt), Start: h.AllocatedAt, Running: a.RunningAt, Stopping: a.StoppingAt, End: tx.now, Outcome: a.Outcome})
	}
	if len(rows) > 0 {
		if err := tx.db.CreateInBatches(rows, 200).Error; err != nil {
			return err
		}
	}
	if _, err := tx.exec("UPDATE allocations SET released_at = ? WHERE job = ? AND attempt = ? AND released_at = 0", tx.now, a.Job, a.Attempt); err != nil {
		return err
	}
	for _, v := range servers {
		if v.Phase == schema.PhaseDraining {
			if err := tx.emitIfDrained(v); err != nil {
				return err
			}
		}
	}
	return nil
}
