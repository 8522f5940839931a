package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"gpupool/schema"
	"gpupool/schema/agentproto"
)

// Dispatching is the detail of ReasonDispatching: an attempt has its accelerators and does not run yet.
type Dispatching struct {
	Backend string         `json:"backend"`
	Cluster string         `json:"cluster,omitempty"`
	Attempt int            `json:"attempt"`
	Since   schema.Instant `json:"since"`
	Native  string         `json:"native_reason,omitempty"` // the backend's own words
	Down    bool           `json:"backend_down"`            // it does not answer: the launch's clock stands

	job string
}

func (d Dispatching) reason(now schema.Instant) string {
	clears := "every server of the job has started its part"
	if d.Down {
		clears = fmt.Sprintf("the %s cluster %s answers again", d.Backend, d.Cluster)
	}
	return string(mustJSON(schema.ReasonDoc{Code: schema.ReasonDispatching, Class: "in progress", Since: d.Since, EvaluatedAt: now, ClearsWhen: clears, Detail: mustJSON(d)}))
}

// TakeCluster makes holder the cluster's connector: what is written under an earlier epoch is refused from now on.
func (s *Store) TakeCluster(ctx context.Context, name string, kind schema.ClusterKind, can schema.Ability, holder string) (epoch int64, err error) {
	err = s.Write(ctx, func(tx *Tx) error {
		before, err := clustersCan(tx.db)
		if err != nil {
			return err
		}
		if before[name] != can {
			tx.Emit(schema.Event{Kind: schema.EventClusterCan, Subject: name, By: "cluster/" + name}, map[string]any{"can": can.Words()})
		}
		return tx.db.Raw(`INSERT INTO clusters (name, kind, can, epoch, holder, taken_at) VALUES (?, ?, ?, 1, ?, ?)
			ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, can = excluded.can, epoch = clusters.epoch + 1, holder = excluded.holder, taken_at = excluded.taken_at RETURNING epoch`, name, kind, can, holder, tx.now).Scan(&epoch).Error
	})
	return epoch, err
}

// Connector is the right to write for a cluster: everything it does is refused once another has taken the cluster.
type Connector struct {
	s     *Store
	name  string
	epoch int64
}

// Connector writes under the epoch that TakeCluster gave.
func (s *Store) Connector(name string, epoch int64) *Connector { return &Connector{s, name, epoch} }

// write is a transaction in which no other connector of the cluster writes.
func (c *Connector) write(ctx context.Context, f func(tx *Tx, cl *schema.Cluster) error) error {
	return c.s.Write(ctx, func(tx *Tx) error {
		var cl schema.Cluster
		if err := one(tx.lock(&cl, "name = ?", c.name), "cluster", c.name); err != nil {
			return err
		}
		if cl.Epoch != c.epoch {
			return schema.Stale(fmt.Sprintf("epoch %d of cluster %s has passed: %s is its connector", c.epoch, c.name, cl.Holder))
		}
		return f(tx, &cl)
	})
}

// Clusters are all that a connector has ever served.
func (s *Store) Clusters(ctx context.Context) ([]schema.Cluster, error) {
	var out []schema.Cluster
	return out, s.read(ctx).Order("name").Find(&out).Error
}

// Cluster finds one by name.
func (s *Store) Cluster(ctx context.Context, name string) (schema.Cluster, error) {
	var c schema.Cluster
	return c, one(s.read(ctx).Where("name = ?", name).Take(&c).Error, "cluster", name)
}

// ClusterServers are the servers that are nodes of a cluster and have not left, with their cordons and accelerators.
func (s *Store) ClusterServers(ctx context.Context, cluster string) ([]Node, error) {
	var ids []string
	if err := s.read(ctx).Raw("SELECT id FROM servers WHERE cluster = ? AND phase NOT IN ('enrolled', 'retired') ORDER BY id", cluster).Scan(&ids).Error; err != nil {
		return nil, err
	}
	nodes, err := s.Nodes(ctx, ids)
	if err != nil {
		return nil, err
	}
	// A cluster names devices by what is printed on them, which Nodes does not read.
	named := map[string]schema.Accelerator{}
	for part := range slices.Chunk(ids, 500) {
		var accs []schema.Accelerator
		if err := s.read(ctx).Where("server IN ? AND removed_at = 0", part).Find(&accs).Error; err != nil {
			return nil, err
		}
		for _, a := range accs {
			named[a.ID] = a
		}
	}
	for _, n := range nodes {
		for i, a := range n.Accelerators {
			if full, ok := named[a.ID]; ok {
				n.Accelerators[i] = full
			}
		}
	}
	return nodes, nil
}

// ClusterPart is one node's part of an attempt on a cluster.
type ClusterPart struct {
	Task schema.Task
	Node string // the server's name
	Run  agentproto.Run
}

// ClusterWork is an attempt that a cluster is to run, or is to stop running.
type ClusterWork struct {
	schema.ClusterRun // Job, Attempt and Cluster are set always, the rest once it was claimed
	Request           schema.Job
	Spec              schema.Spec
	Parts             []ClusterPart // in order of rank
}

// ClusterWork is all that has not ended on a cluster.
func (s *Store) ClusterWork(ctx context.Context, cluster string) ([]ClusterWork, error) {
	var out []ClusterWork
	var keys []struct {
		Job     string
		Attempt int
	}
	db := s.read(ctx)
	if err := db.Raw("SELECT DISTINCT job, attempt FROM tasks WHERE cluster = ? AND ended = 0 ORDER BY job, attempt", cluster).Scan(&keys).Error; err != nil || len(keys) == 0 {
		return nil, err
	}
	type key struct {
		job     string
		attempt int
	}
	at, jobs := map[key]int{}, make([]string, 0, len(keys))
	for _, k := range keys {
		at[key{k.Job, k.Attempt}] = len(out)
		jobs = append(jobs, k.Job)
		out = append(out, ClusterWork{ClusterRun: schema.ClusterRun{Job: k.Job, Attempt: k.Attempt, Cluster: cluster}})
	}
	jobs = slices.Compact(jobs)
	err := inParts(jobs, func(part []string) error {
		var tasks []struct {
			schema.Task
			Node string
		}
		if err := db.Raw("SELECT t.*, s.name AS node FROM tasks t JOIN servers s ON s.id = t.server WHERE t.cluster = ? AND t.job IN ? ORDER BY t.id", cluster, part).Scan(&tasks).Error; err != nil {
			return err
		}
		for _, t := range tasks {
			i, ok := at[key{t.Job, t.Attempt}]
			if !ok {
				continue // an attempt that is over
			}
			p := ClusterPart{Task: t.Task, Node: t.Node}
			if err := json.Unmarshal([]byte(t.Payload), &p.Run); err != nil {
				return fmt.Errorf("task %s: its payload: %w", t.ID, err)
			}
			out[i].Parts = append(out[i].Parts, p)
		}
		var requests []schema.Job
		if err := db.Where("id IN ?", part).Find(&requests).Error; err != nil {
			return err
		}
		var runs []schema.ClusterRun
		if err := db.Where("cluster = ? AND job IN ?", cluster, part).Find(&runs).Error; err != nil {
			return err
		}
		for _, r := range runs {
			if i, ok := at[key{r.Job, r.Attempt}]; ok {
				out[i].ClusterRun = r
			}
		}
		for i := range out {
			for _, j := range requests {
				if j.ID == out[i].Job {
					out[i].Request = j
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	specs, err := s.Specs(ctx)
	for i := range out {
		for _, p := range specs {
			if p.Name == out[i].Request.Spec {
				out[i].Spec = p
			}
		}
	}
	return out, err
}

// Claim says that the connector is about to submit an attempt. It is false where the attempt is over or asked to stop:
// checked here, at the moment of the act. Claiming again after a lost answer is allowed.
func (c *Connector) Claim(ctx context.Context, job string, attempt int) (mine bool, err error) {
	err = c.write(ctx, func(tx *Tx, _ *schema.Cluster) error {
		mine = false
		live, err := tx.startable(job, attempt)
		if err != nil || !live {
			return err
		}
		if _, err := tx.exec("UPDATE tasks SET state = 'claimed', claimed = CASE WHEN claimed = 0 THEN ? ELSE claimed END, delivered = ? WHERE job = ? AND attempt = ? AND cluster = ? AND state IN ('pending', 'claimed') AND ended = 0",
			tx.now, tx.now, job, attempt, c.name); err != nil {
			return err
		}
		_, err = tx.exec("INSERT INTO cluster_runs (job, attempt, cluster, claimed_at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", job, attempt, c.name, tx.now)
		mine = err == nil
		return err
	})
	return mine, err
}

// startable reports whether an attempt may still be begun. The job is held by the transaction from here on.
func (tx *Tx) startable(job string, attempt int) (bool, error) {
	j, err := tx.job(job)
	if err != nil {
		return false, err
	}
	var a schema.Attempt
	if err := one(tx.db.Where("job = ? AND attempt = ?", job, attempt).Take(&a).Error, "attempt of job", job); err != nil {
		return false, err
	}
	var stopped int64
	if err := tx.db.Raw("SELECT count(*) FROM tasks WHERE job = ? AND attempt = ? AND (stop_at <> 0 OR ended <> 0)", job, attempt).Scan(&stopped).Error; err != nil {
		return false, err
	}
	return j.Attempt == attempt && !j.State.Ended() && a.StopWhy == "" && a.ReleasedAt == 0 && stopped == 0, nil
}

// Bind keeps what the cluster calls an attempt. It is false where that is not to be started: the attempt is over or
// asked to stop, or is bound to another one. What is not bound is never started.
func (c *Connector) Bind(ctx context.Context, job string, attempt int, native string, submitted schema.Instant) (mine bool, err error) {
	err = c.write(ctx, func(tx *Tx, _ *schema.Cluster) error {
		mine = false
		live, err := tx.startable(job, attempt)
		if err != nil || !live {
			return err
		}
		n, err := tx.exec("UPDATE cluster_runs SET native = ?, submitted_at = ? WHERE job = ? AND attempt = ? AND cluster = ? AND (native = '' OR (native = ? AND submitted_at = ?))",
			native, submitted, job, attempt, c.name, native, submitted)
		mine = n > 0
		return err
	})
	return mine, err
}

// Unbind forgets what the cluster called an attempt that it no longer knows and never ran, so that it is submitted anew.
func (c *Connector) Unbind(ctx context.Context, job string, attempt int, native, why string) error {
	return c.write(ctx, func(tx *Tx, _ *schema.Cluster) error {
		n, err := tx.exec("UPDATE cluster_runs SET native = '', submitted_at = 0 WHERE job = ? AND attempt = ? AND cluster = ? AND native = ?", job, attempt, c.name, native)
		if err == nil && n > 0 {
			tx.drift(c.name, schema.DriftLost, job, "", why)
		}
		return err
	})
}

// Report keeps what the connector tells of attempts' parts, as Store.Report does of an agent. A part's server is its
// task's.
func (c *Connector) Report(ctx context.Context, reports []agentproto.TaskReport) error {
	slices.SortStableFunc(reports, func(a, b agentproto.TaskReport) int { return strings.Compare(a.Task, b.Task) })
	return c.write(ctx, func(tx *Tx, _ *schema.Cluster) error {
		for _, r := range reports {
			var t struct{ Server, Cluster string }
			if err := tx.db.Raw("SELECT server, cluster FROM tasks WHERE id = ?", r.Task).Scan(&t).Error; err != nil {
				return err
			}
			if t.Cluster != c.name {
				return schema.Invalid("task", r.Task, "a task of cluster "+c.name)
			}
			if err := tx.report(t.Server, r); err != nil {
				return err
			}
		}
		return nil
	})
}

// Account keeps the cluster's own figures of a run; they are evidence, the ledger is made by the pool's clock.
func (c *Connector) Account(ctx context.Context, r schema.ClusterRun) error {
	return c.write(ctx, func(tx *Tx, _ *schema.Cluster) error {
		_, err := tx.exec("UPDATE cluster_runs SET started_at = ?, ended_at = ?, native_state = ? WHERE job = ? AND attempt = ? AND cluster = ? AND native = ? AND submitted_at = ?",
			r.StartedAt, r.EndedAt, r.NativeState, r.Job, r.Attempt, c.name, r.Native, r.SubmittedAt)
		return err
	})
}

// ClusterRuns are what clusters call a job's attempts.
func (s *Store) ClusterRuns(ctx context.Context, job string) ([]schema.ClusterRun, error) {
	var out []schema.ClusterRun
	return out, s.read(ctx).Where("job = ?", job).Order("attempt, cluster").Find(&out).Error
}

// Seen says whether the cluster answers; why is what failed where it does not. What waits to be started on it is told.
func (c *Connector) Seen(ctx context.Context, down bool, why string) error {
	if cl, err := c.s.Cluster(ctx, c.name); err == nil && cl.Epoch == c.epoch && (cl.DownSince != 0) == down && c.s.Now().Sub(cl.SeenAt) < SeenEvery {
		return nil
	}
	return c.write(ctx, func(tx *Tx, cl *schema.Cluster) error {
		was := cl.DownSince != 0
		switch {
		case !down:
			cl.SeenAt, cl.DownSince, cl.Why = tx.now, 0, ""
			if was {
				cl.UpSince = tx.now
			}
		case !was:
			cl.DownSince, cl.Why = tx.now, why
		}
		if was != down {
			tx.Emit(schema.Event{Kind: schema.EventClusterState, Subject: c.name, By: "cluster/" + c.name}, map[string]any{"down": down, "why": why})
			if err := tx.dispatching(c.name, func(d *Dispatching) { d.Down, d.Native = down, why }); err != nil {
				return err
			}
		}
		_, err := tx.exec("UPDATE clusters SET seen_at = ?, down_since = ?, up_since = ?, why = ? WHERE name = ?", cl.SeenAt, cl.DownSince, cl.UpSince, cl.Why, c.name)
		return err
	})
}

// Waits keeps why the cluster has not started attempts yet, in its own words, by job.
func (c *Connector) Waits(ctx context.Context, native map[string]string) error {
	return c.write(ctx, func(tx *Tx, _ *schema.Cluster) error {
		return tx.dispatching(c.name, func(d *Dispatching) {
			if why, ok := native[d.job]; ok {
				d.Native = why
			}
		})
	})
}

// dispatching changes the reason of what waits to be started on a cluster, where it changes.
func (tx *Tx) dispatching(cluster string, change func(*Dispatching)) error {
	var jobs []schema.Job
	if err := tx.lockAll(&jobs, "state = ? AND id IN (SELECT job FROM tasks WHERE cluster = ? AND ended = 0)", schema.JobStarting, cluster); err != nil {
		return err
	}
	for _, j := range jobs {
		var doc schema.ReasonDoc
		if json.Unmarshal([]byte(j.Reason), &doc) != nil || doc.Code != schema.ReasonDispatching {
			continue
		}
		var d Dispatching
		if err := json.Unmarshal(doc.Detail, &d); err != nil {
			return fmt.Errorf("job %s: its reason: %w", j.ID, err)
		}
		d.job = j.ID
		was := d
		change(&d)
		if d == was {
			continue
		}
		if _, err := tx.exec("UPDATE jobs SET reason = ?, version = version + 1 WHERE id = ?", d.reason(tx.now), j.ID); err != nil {
			return err
		}
		tx.Emit(schema.Event{Kind: schema.EventJobReason, Subject: j.ID, Job: j.ID, Tenant: j.Tenant}, map[string]any{"code": schema.ReasonDispatching, "native_reason": d.Native, "backend_down": d.Down})
	}
	return nil
}

// Drift tells of a disagreement between the record and the cluster, and of what was done about it.
func (c *Connector) Drift(ctx context.Context, kind schema.ClusterDrift, job, server, text string) error {
	return c.write(ctx, func(tx *Tx, _ *schema.Cluster) error {
		tx.drift(c.name, kind, job, server, text)
		return nil
	})
}

func (tx *Tx) drift(cluster string, kind schema.ClusterDrift, job, server, text string) {
	tx.Emit(schema.Event{Kind: schema.EventClusterDrift, Subject: cluster, Job: job, Server: server, By: "cluster/" + cluster}, map[string]any{"drift": kind, "text": text})
}

// Keep is what is to be kept off a server for its cluster's sake: the whole of it where Server is not empty, and single
// accelerators; each with why.
type Keep struct {
	Server       string
	Accelerators map[string]string
	Drift        schema.ClusterDrift // what a new cordon of the whole server is a case of; empty = none
}

// Cordons brings a server's cordons of owner cluster in line with keep.
func (c *Connector) Cordons(ctx context.Context, server string, keep Keep) error {
	return c.write(ctx, func(tx *Tx, _ *schema.Cluster) error {
		v, err := tx.server(server)
		if err != nil {
			return err
		}
		var live []schema.Cordon
		if err := tx.db.Where("server = ? AND owner = ? AND lifted_at = 0", v.ID, schema.CordonCluster).Find(&live).Error; err != nil {
			return err
		}
		by := "cluster/" + c.name
		want := map[string]string{}
		if keep.Server != "" {
			want[""] = keep.Server
		}
		for a, why := range keep.Accelerators {
			want[a] = why
		}
		for _, l := range live {
			if want[l.Accelerator] == l.Reason {
				delete(want, l.Accelerator)
				continue
			}
			if _, again := want[l.Accelerator]; !again {
				if _, err := tx.uncordon(v, l.Accelerator, schema.CordonCluster, by); err != nil {
					return err
				}
			}
		}
		for a, why := range want {
			if _, err := tx.cordon(v, a, schema.CordonCluster, by, why); err != nil {
				return err
			}
			switch {
			case a != "":
				tx.drift(c.name, schema.DriftForeign, "", v.ID, why)
			case keep.Drift != "":
				tx.drift(c.name, keep.Drift, "", v.ID, why)
			}
		}
		return nil
	})
}

// rebind brings an attempt's allocation on one server in line with the devices that the backend really bound, each by
// serial, else UUID, else PCI address. Where one of them is another attempt's, and that one has not told what it has,
// the two change places. It reports what is contested: bound here, and known to be another's.
func (tx *Tx) rebind(t *schema.Task, devices []string) (contested []string, err error) {
	b, err := json.Marshal(devices)
	if err != nil {
		return nil, err
	}
	if t.Devices == string(b) {
		return nil, nil
	}
	t.Devices = string(b)
	if _, err := tx.exec("UPDATE tasks SET devices = ? WHERE id = ?", t.Devices, t.ID); err != nil {
		return nil, err
	}
	var accs []schema.Accelerator
	if err := tx.db.Where("server = ? AND removed_at = 0", t.Server).Find(&accs).Error; err != nil {
		return nil, err
	}
	bound := map[string]bool{}
	for _, d := range devices {
		for _, a := range accs {
			if d == a.Serial || d == a.UUID || d == a.PCI {
				bound[a.ID] = true
			}
		}
	}
	if len(bound) != len(devices) {
		return nil, schema.Invalid("devices", devices, "devices of the server, as the inventory knows them")
	}
	var live []schema.Allocation
	if err := tx.db.Raw("SELECT * FROM allocations WHERE server = ? AND released_at = 0 ORDER BY job, attempt, accelerator"+tx.forUpdate(), t.Server).Scan(&live).Error; err != nil {
		return nil, err
	}
	mine, others := []schema.Allocation{}, map[string]schema.Allocation{}
	for _, l := range live {
		switch {
		case l.Job != t.Job || l.Attempt != t.Attempt:
			others[l.Accelerator] = l
		case bound[l.Accelerator]:
			delete(bound, l.Accelerator) // as allocated
		default:
			mine = append(mine, l)
		}
	}
	moved := map[string]int{}
	for _, a := range accs {
		if !bound[a.ID] {
			continue
		}
		if len(mine) == 0 {
			return nil, schema.Conflict(fmt.Sprintf("task %s: more devices are bound than were allocated", t.ID), "")
		}
		from := mine[0]
		other, held := others[a.ID]
		if held {
			var told string
			if err := tx.db.Raw("SELECT devices FROM tasks WHERE job = ? AND attempt = ? AND server = ?", other.Job, other.Attempt, t.Server).Scan(&told).Error; err != nil {
				return nil, err
			}
			if told != "" {
				contested = append(contested, a.ID)
				continue
			}
			// Out of the way of the index that refuses a second live allocation, while the two change places.
			if _, err := tx.exec("UPDATE allocations SET released_at = 1 WHERE job = ? AND attempt = ? AND accelerator = ?", other.Job, other.Attempt, other.Accelerator); err != nil {
				return nil, err
			}
		}
		mine = mine[1:]
		if err := tx.move(from, a.ID); err != nil {
			return nil, err
		}
		moved[from.Job] = from.Attempt
		if held {
			if err := tx.move(other, from.Accelerator); err != nil {
				return nil, err
			}
			moved[other.Job] = other.Attempt
		}
	}
	for job, attempt := range moved {
		tx.Emit(schema.Event{Kind: schema.EventJobDevices, Subject: job, Job: job, Server: t.Server}, map[string]any{"attempt": attempt})
	}
	if len(moved) > 0 {
		tx.drift(t.Cluster, schema.DriftDevices, t.Job, t.Server, fmt.Sprintf("%s is bound to %v", t.ID, devices))
	}
	for _, a := range contested {
		tx.drift(t.Cluster, schema.DriftContested, t.Job, t.Server, fmt.Sprintf("%s is bound to accelerator %s, which job %s holds", t.ID, a, others[a].Job))
	}
	return contested, nil
}

// move gives an allocation another accelerator of the same server.
func (tx *Tx) move(al schema.Allocation, accelerator string) error {
	return tx.update("allocation of job", al.Job, "UPDATE allocations SET accelerator = ?, released_at = 0 WHERE job = ? AND attempt = ? AND accelerator = ?", accelerator, al.Job, al.Attempt, al.Accelerator)
}

// contest keeps the next job off devices that two attempts use, until a person has looked.
func (tx *Tx) contest(t schema.Task, accelerators []string) error {
	for _, a := range accelerators {
		v, err := tx.server(t.Server)
		if err != nil {
			return err
		}
		if _, err := tx.cordon(v, a, schema.CordonRelease, "cluster/"+t.Cluster, "two jobs were bound to it, one of them "+t.Job+": see that no process is left"); err != nil {
			return err
		}
	}
	return nil
}

// ClusterNews reports whether something waits for a cluster's connector: a run to begin, or one to end.
func (s *Store) ClusterNews(ctx context.Context, cluster string) (bool, error) {
	var n int64
	err := s.read(ctx).Raw("SELECT count(*) FROM tasks WHERE cluster = ? AND ended = 0 AND (state = 'pending' OR stop_at > 0)", cluster).Scan(&n).Error
	return n > 0, err
}
