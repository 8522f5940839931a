// Package slurm runs the pool's jobs on a Slurm cluster: through slurmrestd where there is one, through the command line
// where there is none or it does not answer.
//
// The pool says which nodes and how many accelerators; Slurm binds which of them, and that is read back. A run is known by
// its comment, "gpupool:<owner>:<job>:<attempt>", never by Slurm's id, which is given out again after a crash of
// slurmctld. Invariant: only jobs with that comment are ever changed. Not here: what is to be done (activities/cluster).
package slurm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"gpupool/activities/cluster"
	"gpupool/schema"
)

// Config is how a Slurm cluster is reached. At least one of Commands and URL.
type Config struct {
	Owner     string // marks this pool's jobs where several share a cluster; empty = gpupool
	URL       string // of slurmrestd, http or https; empty = command line only
	Version   string // of its data parser; empty = v0.0.38 (Slurm 22.05 and later have it)
	TokenFile string // a JWT, read anew for every request; or
	KeyFile   string // slurmctld's jwt_key, with which short tokens are made here
	User      string // whose jobs they are; empty = root
	BinDir    string // where squeue and the others are; empty = in PATH
	Conf      string // slurm.conf for the commands; empty = their default
	Partition string // empty = the cluster's default
	Account   string // empty = the user's default
	// ContainerFlag is srun's option that takes an image, such as pyxis' --container-image; empty = images are refused.
	ContainerFlag string
	LogDir        string // a folder that nodes and this process share, for output; empty = none is kept
	Log           *slog.Logger
}

// Can is what jobs can have on this cluster beside what is usual on Slurm.
func (c Config) Can() schema.Ability {
	if c.ContainerFlag != "" {
		return schema.CanImage
	}
	return 0
}

// Slurm is a cluster.Backend.
type Slurm struct {
	cfg  Config
	cmd  commands
	rest *rest // nil = none

	mu      sync.Mutex
	devices map[cluster.Ref]map[string][]int // what a running job was bound to, by node: read once
	nodes   map[string]cluster.Node
	nodesAt time.Time
}

// mark begins the comment of the pool's jobs.
func (s *Slurm) mark() string { return "gpupool:" + s.cfg.Owner + ":" }

// steps ends the comment of a job whose command is started by srun, in a step of its own.
const steps = ":steps"

// nodesEvery is how often nodes are looked at; a change of ours shows at once.
const nodesEvery = 3 * time.Second

// Open checks the configuration; the cluster need not answer yet.
func Open(c Config) (*Slurm, error) {
	if c.Owner == "" {
		c.Owner = "gpupool"
	}
	if c.User == "" {
		c.User = "root"
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	s := &Slurm{cfg: c, cmd: commands{dir: c.BinDir, conf: c.Conf}, devices: map[cluster.Ref]map[string][]int{}}
	if c.URL != "" {
		r, err := newREST(c)
		if err != nil {
			return nil, err
		}
		s.rest = r
	}
	if err := s.cmd.there(); err != nil {
		return nil, err // drains have no call in slurmrestd before v0.0.40
	}
	return s, nil
}

// Close is there for the interface: nothing stays open.
func (s *Slurm) Close() {}

// Changed is nil: Slurm can only be asked.
func (s *Slurm) Changed() <-chan struct{} { return nil }

// Observe lists what is live in one call; what is bound and not in that list is asked for one by one, first of
// slurmctld, which keeps ended jobs for MinJobAge, then of the accounting.
func (s *Slurm) Observe(ctx context.Context, known []cluster.Ref) (cluster.View, error) {
	v := cluster.View{}
	jobs, err := s.cmd.queue(ctx)
	if err != nil {
		return v, err
	}
	if v.Nodes, err = s.lookAtNodes(ctx); err != nil {
		return v, err
	}
	live := make(map[cluster.Ref]bool, len(jobs))
	var g errgroup.Group
	g.SetLimit(8)
	var mu sync.Mutex
	for _, j := range jobs {
		live[j.ref()] = true
		k, ours := s.key(j.Comment)
		switch {
		case ours:
			g.Go(func() error {
				seen, err := s.seen(ctx, k, j)
				mu.Lock()
				defer mu.Unlock()
				v.Runs = append(v.Runs, seen)
				return err
			})
		case j.running() && strings.Contains(j.TRES, "gpu"):
			g.Go(func() error {
				f, err := s.foreign(ctx, j)
				mu.Lock()
				defer mu.Unlock()
				v.Foreign = append(v.Foreign, f...)
				return err
			})
		}
	}
	forgotten, drained := false, false
	for _, ref := range known {
		if live[ref] {
			continue
		}
		g.Go(func() error {
			j, err := s.ended(ctx, ref)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			if j == nil { // nobody knows it any more
				forgotten = true
				return nil
			}
			k, ours := s.key(j.Comment)
			if !ours { // its id was given out again
				forgotten = true
				return nil
			}
			seen := j.seen(k, nil)
			if why := s.interrupted(k, *j); why != "" {
				drained = true
				seen.Interrupted, seen.Why = schema.AttemptLost, why
			}
			v.Runs = append(v.Runs, seen)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return v, err
	}
	if forgotten {
		if v.Since, err = s.cmd.booted(ctx); err != nil {
			return v, err
		}
	}
	if drained { // as Slurm does with a node that can't begin a job: it is to be known before the job is placed anew
		_ = s.changed(nil)
		if v.Nodes, err = s.lookAtNodes(ctx); err != nil {
			return v, err
		}
	}
	s.forget(live)
	return v, nil
}

// interrupted says how Slurm ended a job that is not to blame for it; empty = it didn't.
//
// One that its node can't begin (its prolog fails, or slurmd knows the id already) is asked to be requeued by slurmd, which the
// pool forbids, and cancelled then. So it has nodes and neither exit code nor signal. A job that somebody cancels has those,
// unless it ends well in the time that it is given: it has written to its output since it began.
//
// One that Slurm had begun before and forgot about is turned away by the script; see script.
func (s *Slurm) interrupted(k cluster.Key, j job) string {
	switch {
	case strings.HasPrefix(j.State, "CANCELLED") && len(j.Nodes) > 0 && j.Exit == 0 && j.Signal == 0:
		if !s.written(s.logFile(k, "*"), time.Unix(j.Began, 0)) {
			return "its node could not begin it"
		}
	case j.Exit == turnedAway:
		if s.written(againFile(s.logFile(k, "*")), time.Time{}) {
			return "Slurm began it a second time"
		}
	}
	return ""
}

// written reports whether a file of that pattern was written since.
func (s *Slurm) written(pattern string, since time.Time) bool {
	if s.cfg.LogDir == "" {
		return false
	}
	files, _ := filepath.Glob(pattern)
	for _, f := range files {
		if i, err := os.Stat(f); err == nil && !i.ModTime().Before(since) {
			return true
		}
	}
	return false
}

// key reads the mark; a job without it is not the pool's.
func (s *Slurm) key(comment string) (cluster.Key, bool) {
	rest, ours := strings.CutPrefix(comment, s.mark())
	job, attempt, ok := strings.Cut(rest, ":")
	n, err := strconv.Atoi(strings.TrimSuffix(attempt, steps))
	return cluster.Key{Job: job, Attempt: n}, ours && ok && err == nil
}

// seen reads the devices of a running job once: they don't change.
func (s *Slurm) seen(ctx context.Context, k cluster.Key, j job) (cluster.Seen, error) {
	if !j.running() {
		return j.seen(k, nil), nil
	}
	d, err := s.bound(ctx, j)
	return j.seen(k, d), err
}

func (s *Slurm) bound(ctx context.Context, j job) (map[string][]int, error) {
	s.mu.Lock()
	d, known := s.devices[j.ref()]
	s.mu.Unlock()
	if known {
		return d, nil
	}
	full, err := s.job(ctx, j.ID)
	if err != nil || full == nil || full.ref() != j.ref() || !full.running() {
		return nil, err
	}
	s.mu.Lock()
	s.devices[j.ref()] = full.Devices
	s.mu.Unlock()
	return full.Devices, nil
}

func (s *Slurm) forget(live map[cluster.Ref]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ref := range s.devices {
		if !live[ref] {
			delete(s.devices, ref)
		}
	}
}

func (s *Slurm) foreign(ctx context.Context, j job) ([]cluster.Foreign, error) {
	d, err := s.bound(ctx, j)
	if err != nil {
		return nil, err
	}
	var out []cluster.Foreign
	for _, node := range j.Nodes {
		f := cluster.Foreign{Node: node, What: fmt.Sprintf("slurm job %d of %s", j.ID, j.User)}
		for _, i := range d[node] {
			f.Devices = append(f.Devices, cluster.Device{Index: i})
		}
		if f.Count = len(f.Devices); f.Count > 0 {
			out = append(out, f)
		}
	}
	return out, nil
}

// job asks for one by id, in full; nil where slurmctld doesn't know it.
func (s *Slurm) job(ctx context.Context, id uint32) (*job, error) {
	if s.rest != nil {
		j, err := s.rest.job(ctx, id)
		if err == nil || !errors.As(err, new(*unreachable)) {
			return j, err
		}
		s.cfg.Log.Warn("slurmrestd does not answer: asking on the command line", "error", err)
	}
	return s.cmd.job(ctx, id)
}

// ended asks for a bound job that is not live.
func (s *Slurm) ended(ctx context.Context, ref cluster.Ref) (*job, error) {
	id, err := strconv.ParseUint(ref.Native, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("%q is no Slurm job id", ref.Native)
	}
	j, err := s.job(ctx, uint32(id))
	if err != nil {
		return nil, err
	}
	if j != nil && j.ref() == ref {
		return j, nil
	}
	return s.cmd.accounted(ctx, uint32(id), ref.Submitted)
}

// Submit hands the run over held.
func (s *Slurm) Submit(ctx context.Context, r cluster.Run) error {
	switch {
	case r.Network != "":
		return schema.Invalid("network", r.Network, "left out on Slurm: its jobs have their node's network")
	case r.Image != "" && s.cfg.ContainerFlag == "":
		return schema.Invalid("image", r.Image, "left out on this cluster: it is not set up with a container runtime (clusters.container_flag)")
	}
	for _, m := range r.Mounts {
		switch {
		case m.Volume == "":
			return schema.Invalid("mounts", m.Claim, "volumes that are folders of the servers: Slurm knows no claims")
		case r.Image != "" && s.cfg.ContainerFlag != pyxis:
			return schema.Invalid("mounts", m.Target, "left out beside an image on this cluster: only with "+pyxis+" can it be told of mounts (clusters.container_flag)")
		case r.Image == "" && source(m) != m.Target:
			return schema.Invalid("mounts", m.Target, source(m)+": on Slurm a job without an image sees a folder where it lies")
		}
	}
	d := s.describe(r)
	if s.rest != nil {
		err := s.rest.submit(ctx, d)
		if err == nil || !errors.As(err, new(*unreachable)) {
			return err
		}
		// It may have been taken: the next look shows that, and then one of the two is ended, both being held.
		s.cfg.Log.Warn("slurmrestd does not answer: submitting on the command line", "error", err)
	}
	return s.cmd.submit(ctx, d)
}

// Start releases the hold.
func (s *Slurm) Start(ctx context.Context, ref cluster.Ref) error {
	if s.rest != nil {
		if err := s.rest.release(ctx, ref.Native); err == nil || !errors.As(err, new(*unreachable)) {
			return err
		}
	}
	return s.cmd.release(ctx, ref.Native)
}

// Stop signals TERM to the whole job, or cancels it, which kills what doesn't end at once.
func (s *Slurm) Stop(ctx context.Context, ref cluster.Ref, kill bool) error {
	// Ids are given out again: what is ended is what was meant.
	id, err := strconv.ParseUint(ref.Native, 10, 32)
	if err != nil {
		return fmt.Errorf("%q is no Slurm job id", ref.Native)
	}
	j, err := s.job(ctx, uint32(id))
	if err != nil || j == nil || j.ref() != ref {
		return err
	}
	if _, ours := s.key(j.Comment); !ours {
		return schema.Unsafe(fmt.Sprintf("slurm job %d is not the pool's", j.ID), "only its own jobs are ended")
	}
	if !kill && j.running() && strings.HasSuffix(j.Comment, steps) {
		return s.cmd.cancel(ctx, ref.Native, "--signal=TERM") // srun that is signalled kills its tasks at once
	}
	if !kill && j.running() {
		return s.cmd.cancel(ctx, ref.Native, "--full", "--signal=TERM")
	}
	if kill && j.running() {
		if err := s.cmd.cancel(ctx, ref.Native, "--full", "--signal=KILL"); err != nil {
			return err
		}
	}
	return s.cmd.cancel(ctx, ref.Native)
}

// Clean has nothing to do: slurmctld forgets ended jobs by itself.
func (s *Slurm) Clean(context.Context, cluster.Ref) error { return nil }

// Output reads what a part has written to the shared folder.
func (s *Slurm) Output(_ context.Context, _ cluster.Ref, k cluster.Key, rank int, offset int64) ([]byte, error) {
	if s.cfg.LogDir == "" {
		return nil, nil
	}
	f, err := os.Open(s.logFile(k, strconv.Itoa(rank)))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b := make([]byte, 64<<10)
	n, err := f.ReadAt(b, offset)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b[:n], err
}

func (s *Slurm) logFile(k cluster.Key, rank string) string {
	return filepath.Join(s.cfg.LogDir, fmt.Sprintf("%s.%d.%s.log", k.Job, k.Attempt, rank))
}

// againFile is there where a part was begun a second time, beside its output.
func againFile(log string) string { return strings.TrimSuffix(log, ".log") + ".again" }

// reasonMark begins the reason of drains that are ours.
const reasonMark = "gpupool: "

func (s *Slurm) lookAtNodes(ctx context.Context) (map[string]cluster.Node, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes != nil && time.Since(s.nodesAt) < nodesEvery {
		return s.nodes, nil
	}
	all, err := s.cmd.nodes(ctx)
	if err != nil {
		return nil, err
	}
	s.nodes, s.nodesAt = map[string]cluster.Node{}, time.Now()
	for _, n := range all {
		if n.has("future") {
			continue // declared, and no node yet
		}
		s.nodes[n.Name] = n.node()
	}
	return s.nodes, nil
}

func (s *Slurm) changed(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes = nil
	return err
}

// Join brings a declared node (State=FUTURE) in. Slurm has no other way to add one at run time in all versions. sinfo
// doesn't list such nodes, so it is tried.
func (s *Slurm) Join(ctx context.Context, node string) error {
	err := s.cmd.update(ctx, node, "state=resume")
	if says(err, "Invalid node name") {
		return &schema.Error{Code: schema.CodeNotFound, Message: fmt.Sprintf("slurm.conf has no node %q", node), Hint: "declare it there, with State=FUTURE while it is not in the pool"}
	}
	return s.changed(err)
}

// Drain keeps jobs off.
func (s *Slurm) Drain(ctx context.Context, node, reason string) error {
	return s.changed(s.cmd.update(ctx, node, "state=drain", "reason="+reasonMark+oneLine(reason)))
}

// Resume takes a drain back.
func (s *Slurm) Resume(ctx context.Context, node string) error {
	return s.changed(s.cmd.update(ctx, node, "state=resume"))
}

// Leave makes it a declared node again.
func (s *Slurm) Leave(ctx context.Context, node string) error {
	return s.changed(s.cmd.update(ctx, node, "state=future"))
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
