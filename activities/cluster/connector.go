package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
)

// Timing is how a connector paces itself. Zero fields are the defaults.
type Timing struct {
	Poll     time.Duration // between looks while nothing is heard; 1 s
	Gather   time.Duration // the least time between two looks; 50 ms. One that costs the cluster more is made rarer
	Down     time.Duration // unanswered for so long, a cluster is down; 15 s
	Unready  time.Duration // a node that the cluster does not use is kept out after so long: many are back at once; 10 s
	Lost     time.Duration // a service whose node the cluster has not used for so long is placed anew; 5 min, as Kubernetes evicts pods
	Adopt    time.Duration // a run that the record does not know at all is left so long before it is ended; 1 min
	Parallel int           // submits and stops at once; 8
}

func (t Timing) withDefaults() Timing {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&t.Poll, time.Second)
	def(&t.Gather, 50*time.Millisecond)
	def(&t.Down, 15*time.Second)
	def(&t.Unready, 10*time.Second)
	def(&t.Lost, 5*time.Minute)
	def(&t.Adopt, time.Minute)
	if t.Parallel <= 0 {
		t.Parallel = 8
	}
	return t
}

// connector serves one cluster. One goroutine owns it.
type connector struct {
	name    string
	db      *store.Store
	right   *store.Connector
	backend Backend
	timing  Timing
	log     *slog.Logger

	failing time.Time            // the looks fail since; zero = they don't
	unready map[string]time.Time // nodes that the cluster does not use, since when
	drained map[string]bool      // nodes that this connector has drained
	tried   map[string]time.Time // joins, by node
	waiting map[string]string    // why the cluster had not begun jobs, as told last

	mu      sync.Mutex        // below: used by what runs in parallel
	asked   map[Ref]bool      // runs that were asked to end
	strange map[Ref]time.Time // runs that the record does not know, since when
}

func newConnector(name string, db *store.Store, right *store.Connector, backend Backend, timing Timing, log *slog.Logger) *connector {
	return &connector{name: name, db: db, right: right, backend: backend, timing: timing.withDefaults(), log: log,
		unready: map[string]time.Time{}, drained: map[string]bool{}, tried: map[string]time.Time{}, asked: map[Ref]bool{}, strange: map[Ref]time.Time{}}
}

// run serves until ctx ends or another connector has taken the cluster.
func (c *connector) run(ctx context.Context) error {
	watch := c.db.Watch(store.TopicAll)
	defer watch.Close()
	poll := time.NewTimer(0)
	defer poll.Stop()
	for {
		begun := time.Now()
		again, err := c.step(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case schema.Is(err, schema.CodeStale):
			return err
		case err != nil:
			c.log.Warn("the cluster's state could not be brought about", "cluster", c.name, "error", err)
		}
		// A look may cost the cluster a quarter of the time at most.
		gap := max(c.timing.Gather, 3*time.Since(begun))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(gap):
		}
		if again && err == nil {
			continue
		}
		poll.Reset(c.timing.Poll)
		for wait := true; wait; {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-poll.C:
				wait = false
			case <-watch.C:
				wait = !c.hasNews(ctx)
			case <-c.backend.Changed():
				wait = false
			}
		}
	}
}

// hasNews asks the record whether anything waits for the connector: most events are not about its cluster.
func (c *connector) hasNews(ctx context.Context) bool {
	news, err := c.db.ClusterNews(ctx, c.name)
	return err != nil || news
}

// step makes one look and does what is due. again says that what it did will show at the next look.
func (c *connector) step(ctx context.Context) (again bool, err error) {
	work, err := c.db.ClusterWork(ctx, c.name)
	if err != nil {
		return false, err
	}
	servers, err := c.db.ClusterServers(ctx, c.name)
	if err != nil {
		return false, err
	}
	var known []Ref
	for _, w := range work {
		if w.Native != "" {
			known = append(known, Ref{w.Native, w.SubmittedAt})
		}
	}
	look, cancel := context.WithTimeout(ctx, 2*c.timing.Down)
	view, err := c.backend.Observe(look, known)
	cancel()
	if err != nil {
		return false, c.away(ctx, servers, err)
	}
	c.failing = time.Time{}
	if err := c.right.Seen(ctx, false, ""); err != nil {
		return false, err
	}
	if err := c.keepNodes(ctx, work, servers, view); err != nil {
		return false, err
	}
	return c.keepRuns(ctx, work, servers, view)
}

// away notes that the cluster did not answer. Once it is down no new job is placed there; what runs is left alone, and
// what it holds stays held.
func (c *connector) away(ctx context.Context, servers []store.Node, cause error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	now := time.Now()
	if c.failing.IsZero() {
		c.failing = now
		c.log.Warn("the cluster does not answer", "cluster", c.name, "error", cause)
	}
	if now.Sub(c.failing) < c.timing.Down {
		return nil
	}
	if err := c.right.Seen(ctx, true, cause.Error()); err != nil {
		return err
	}
	for _, n := range servers {
		keep := keepOf(n)
		keep.Server, keep.Drift = "its cluster "+c.name+" does not answer", ""
		if err := c.cordon(ctx, n, keep); err != nil {
			return err
		}
	}
	return nil
}

// keepRuns brings the cluster's runs in line with the record, and the record with how they fare.
func (c *connector) keepRuns(ctx context.Context, work []store.ClusterWork, servers []store.Node, view View) (again bool, err error) {
	seen := map[Key][]Seen{}
	for _, s := range view.Runs {
		seen[s.Key] = append(seen[s.Key], s)
	}
	resolve := resolver(servers)
	now := c.db.Now()
	var reports []agentproto.TaskReport
	var jobs []func() error
	waits := map[string]string{}
	live := map[Ref]bool{}
	for _, w := range work {
		k := Key{w.Job, w.Attempt}
		a := decide(w, seen[k], resolve, now)
		for _, s := range seen[k] {
			live[s.Ref] = true
		}
		delete(seen, k)
		again = again || a.submit || a.bind != nil || a.start != nil || a.unbind
		if a.account != nil && a.account.Interrupted != "" {
			if err := c.interrupted(ctx, w, a.account.Interrupted, words(a.account)); err != nil {
				return false, err
			}
		}
		reports = append(reports, c.sequence(ctx, w, a.reports)...)
		if a.waits != "" {
			waits[w.Job] = a.waits
		}
		if why := c.cutOff(w, view); why != "" {
			if err := c.interrupted(ctx, w, schema.AttemptLost, why); err != nil {
				return false, err
			}
		}
		jobs = append(jobs, func() error { return c.do(ctx, w, a, view) })
	}
	for _, orphans := range seen {
		for _, s := range orphans {
			if s.Over() {
				jobs = append(jobs, func() error { return c.backend.Clean(ctx, s.Ref) })
				continue
			}
			live[s.Ref] = true
			jobs = append(jobs, func() error { return c.orphan(ctx, s) })
		}
	}
	c.forget(live)
	if len(reports) > 0 {
		if err := c.report(ctx, reports); err != nil {
			return false, err
		}
	}
	if !maps.Equal(waits, c.waiting) {
		if err := c.right.Waits(ctx, waits); err != nil {
			return false, err
		}
		c.waiting = waits
	}
	return again, c.parallel(jobs)
}

// report keeps what is told. A report that the record refuses must not keep the others back.
func (c *connector) report(ctx context.Context, reports []agentproto.TaskReport) error {
	err := c.right.Report(ctx, reports)
	if err == nil || schema.Is(err, schema.CodeStale) || ctx.Err() != nil || len(reports) == 1 {
		return err
	}
	byTask := map[string][]agentproto.TaskReport{}
	for _, r := range reports {
		byTask[r.Task] = append(byTask[r.Task], r)
	}
	var errs []error
	for task, rs := range byTask {
		if err := c.right.Report(ctx, rs); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", task, err))
		}
	}
	return errors.Join(errs...)
}

// do carries out what was decided of one run.
func (c *connector) do(ctx context.Context, w store.ClusterWork, a act, view View) error {
	for _, ref := range a.extra {
		if err := c.right.Drift(ctx, schema.DriftDuplicate, w.Job, "", fmt.Sprintf("%s is there again as %s: ended", w.Job, ref.Native)); err != nil {
			return err
		}
		if err := c.backend.Stop(ctx, ref, true); err != nil {
			return fmt.Errorf("ending the second run of %s: %w", w.Job, err)
		}
	}
	switch {
	case a.submit:
		mine, err := c.right.Claim(ctx, w.Job, w.Attempt)
		if err != nil || !mine {
			return err
		}
		if err := c.backend.Submit(ctx, runOf(w)); err != nil {
			return c.refused(ctx, w, err)
		}
	case a.bind != nil:
		mine, err := c.right.Bind(ctx, w.Job, w.Attempt, a.bind.Native, a.bind.Submitted)
		if err != nil || !mine {
			return err // the next look ends it
		}
		return c.backend.Start(ctx, *a.bind)
	case a.start != nil:
		return c.backend.Start(ctx, *a.start)
	case a.stop != nil:
		if c.isAsked(*a.stop) {
			return nil
		}
		return c.backend.Stop(ctx, *a.stop, false)
	case a.kill != nil:
		return c.backend.Stop(ctx, *a.kill, true)
	case a.unbind:
		return c.right.Unbind(ctx, w.Job, w.Attempt, w.Native, fmt.Sprintf("%s does not know %s, which had not begun: submitted again", c.name, w.Native))
	case a.lost:
		return c.lost(ctx, w, view)
	case a.gone:
		return c.over(ctx, w, view, schema.TaskCancelled, "ended as it was asked to")
	case a.account != nil:
		s := a.account
		r := w.ClusterRun
		r.StartedAt, r.EndedAt, r.NativeState = s.Began, s.Ended, s.State
		if err := c.right.Account(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// refused is a submit that the cluster answered with no. What can't be better the next time ends the attempt; it goes
// back to the queue, within its requeue limit.
func (c *connector) refused(ctx context.Context, w store.ClusterWork, err error) error {
	if schema.Is(err, schema.CodeInvalid) || schema.Is(err, schema.CodeForbidden) {
		return c.right.Report(ctx, numbered(w, ends(w, schema.TaskFailed, fmt.Sprintf("cluster %s refused it: %v", c.name, err), true)))
	}
	if werr := c.right.Waits(ctx, map[string]string{w.Job: err.Error()}); werr != nil {
		return werr
	}
	return fmt.Errorf("submitting %s: %w", w.Job, err)
}

// lost ends an attempt that had begun and that the cluster no longer knows. Its nodes are free only where the cluster
// says that nothing is left on them.
func (c *connector) lost(ctx context.Context, w store.ClusterWork, view View) error {
	why := fmt.Sprintf("cluster %s no longer knows %s, which had begun", c.name, w.Native)
	if err := c.right.Drift(ctx, schema.DriftLost, w.Job, "", why); err != nil {
		return err
	}
	if err := c.interrupted(ctx, w, schema.AttemptLost, why); err != nil {
		return err
	}
	return c.over(ctx, w, view, schema.TaskFailed, why)
}

// over reports the end of what the cluster no longer knows. Where it began anew after it was given the run, it may have
// forgotten one that runs on.
func (c *connector) over(ctx context.Context, w store.ClusterWork, view View, state schema.TaskState, why string) error {
	reports := ends(w, state, why, false)
	for i := range reports {
		for _, p := range w.Parts {
			if p.Task.ID == reports[i].Task {
				reports[i].NoneLeft = view.Definite || view.Nodes[p.Node].Idle && view.Since != 0 && view.Since <= w.SubmittedAt
			}
		}
	}
	return c.right.Report(ctx, numbered(w, reports))
}

// interrupted says why an attempt ended that its job is not to blame for.
func (c *connector) interrupted(ctx context.Context, w store.ClusterWork, why schema.AttemptOutcome, cause string) error {
	err := c.db.RequestStop(ctx, w.Job, w.Attempt, why, "cluster/"+c.name, cause)
	if schema.Is(err, schema.CodeStale) {
		return nil // the attempt has passed
	}
	return err
}

// cutOff is why a service that runs is to be placed anew: its node has been out of use for too long. Empty = it isn't. What
// comes to an end by itself is ended by the cluster then.
func (c *connector) cutOff(w store.ClusterWork, view View) string {
	if w.Request.Kind != schema.JobService || w.Native == "" {
		return ""
	}
	for _, p := range w.Parts {
		since, unready := c.unready[p.Node]
		if unready && p.Task.Running != 0 && time.Since(since) >= c.timing.Lost {
			return strings.TrimSuffix(fmt.Sprintf("cluster %s has not used node %s for %s: %s", c.name, p.Node, schema.Setting(c.timing.Lost), view.Nodes[p.Node].Why), ": ")
		}
	}
	return ""
}

// orphan ends a run that carries the pool's mark and is not to run. One that the record has never heard of may be
// another's with the same mark: it is left for a while, and said.
func (c *connector) orphan(ctx context.Context, s Seen) error {
	_, err := c.db.Job(ctx, s.Job)
	unknown := schema.Is(err, schema.CodeNotFound)
	if err != nil && !unknown {
		return err
	}
	if unknown {
		since, seen := c.strangeSince(s.Ref)
		if !seen {
			c.log.Warn("the cluster runs a job with the pool's mark that the record does not know", "cluster", c.name, "native", s.Native, "job", s.Job, "ended_in", c.timing.Adopt)
			return nil
		}
		if time.Since(since) < c.timing.Adopt {
			return nil
		}
	}
	if !c.isAsked(s.Ref) {
		if err := c.right.Drift(ctx, schema.DriftOrphan, s.Job, "", fmt.Sprintf("%s (attempt %d of %s) is not to run: ended", s.Native, s.Attempt, s.Job)); err != nil {
			return err
		}
	}
	return c.backend.Stop(ctx, s.Ref, true)
}

// isAsked reports whether a run was asked to end before, and notes that it is now.
func (c *connector) isAsked(ref Ref) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.asked[ref]
	c.asked[ref] = true
	return was
}

func (c *connector) strangeSince(ref Ref) (since time.Time, seen bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	since, seen = c.strange[ref]
	if !seen {
		c.strange[ref] = time.Now()
	}
	return since, seen
}

// forget drops what was noted of runs that are gone.
func (c *connector) forget(live map[Ref]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	gone := func(ref Ref) bool { return !live[ref] }
	maps.DeleteFunc(c.asked, func(r Ref, _ bool) bool { return gone(r) })
	maps.DeleteFunc(c.strange, func(r Ref, _ time.Time) bool { return gone(r) })
}

// parallel does the jobs, a few at once, and gives all their errors.
func (c *connector) parallel(jobs []func() error) error {
	var g errgroup.Group
	g.SetLimit(c.timing.Parallel)
	errs := make([]error, len(jobs))
	for i, job := range jobs {
		g.Go(func() error {
			errs[i] = job()
			return nil
		})
	}
	_ = g.Wait()
	return errors.Join(errs...)
}

// runOf is a run as it is to be submitted.
func runOf(w store.ClusterWork) Run {
	j := w.Request
	r := Run{Key: Key{w.Job, w.Attempt}, Tenant: j.Tenant, Project: j.Project, Name: j.Name, Service: j.Kind == schema.JobService, WorkDir: j.WorkDir, Image: j.Image, Network: j.Network, Limit: j.Limit(), Grace: time.Duration(j.Grace) * time.Millisecond,
		Accelerators: j.PerNode, CPUs: w.Spec.CPUs, MemoryBytes: w.Spec.MemoryBytes, Vendor: vendorOf(j.Model), Model: j.Model}
	for _, p := range w.Parts {
		r.Command, r.Env, r.User, r.Mounts = p.Run.Command, p.Run.Env, p.Run.User, mounts(p.Run.Mounts)
		r.Parts = append(r.Parts, Part{Node: p.Node, Env: map[string]string{
			"GPUPOOL_JOB": w.Job, "GPUPOOL_ATTEMPT": strconv.Itoa(w.Attempt), "GPUPOOL_RANK": strconv.Itoa(p.Run.Rank),
			"GPUPOOL_NODES": strconv.Itoa(max(p.Run.Nodes, 1)), "GPUPOOL_PEERS": strings.Join(p.Run.Peers, ","),
		}})
	}
	return r
}

func mounts(asked []agentproto.Mount) []Mount {
	var out []Mount
	for _, m := range asked {
		out = append(out, Mount{Claim: m.Claim, Volume: m.Volume, Folder: m.Folder, Target: m.Target, ReadOnly: m.ReadOnly})
	}
	return out
}

// vendorOf is the maker of a model: its name begins with it.
func vendorOf(model string) schema.Vendor {
	v, _, _ := strings.Cut(model, "-")
	switch v := schema.Vendor(v); v {
	case schema.VendorNVIDIA, schema.VendorAMD, schema.VendorIntel, schema.VendorHuawei:
		return v
	default:
		return schema.VendorOther
	}
}

// outputCap is how much of one part's output the record keeps, in bytes.
const outputCap = 1 << 20

// sequence puts what a run's parts have written between the word that they began and the word that they ended, and
// numbers the reports of each part. Output that can't be read is tried again at the next look; it holds up nothing.
func (c *connector) sequence(ctx context.Context, w store.ClusterWork, reports []agentproto.TaskReport) []agentproto.TaskReport {
	var out []agentproto.TaskReport
	for _, p := range w.Parts {
		seq, began, read := p.Task.Seq, p.Task.Running != 0, p.Task.OutputRead
		add := func(r agentproto.TaskReport) {
			seq++
			r.Seq = seq
			out = append(out, r)
		}
		var end *agentproto.TaskReport
		for i := range reports {
			r := &reports[i]
			switch {
			case r.Task != p.Task.ID:
			case r.State.Ended():
				end = r
			default:
				if began = true; r.Restarts > p.Task.Restarts {
					read = 0 // its output begins anew
				}
				add(*r)
			}
		}
		for began && !p.Task.State.Ended() && read < outputCap {
			b, err := c.backend.Output(ctx, Ref{w.Native, w.SubmittedAt}, Key{w.Job, w.Attempt}, p.Run.Rank, read)
			if err != nil || len(b) == 0 {
				break
			}
			read += int64(len(b))
			add(agentproto.TaskReport{Task: p.Task.ID, State: schema.TaskRunning, Output: string(b), OutputRead: read})
		}
		if end != nil {
			add(*end)
		}
	}
	return out
}

// numbered numbers reports that end parts, one each.
func numbered(w store.ClusterWork, reports []agentproto.TaskReport) []agentproto.TaskReport {
	for i := range reports {
		for _, p := range w.Parts {
			if p.Task.ID == reports[i].Task {
				reports[i].Seq = p.Task.Seq + 1
			}
		}
	}
	return reports
}
