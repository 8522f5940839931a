package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
	"gpupool/worker/agent/image"
	"gpupool/worker/agent/proc"
	"gpupool/worker/agent/sandbox"
)

// maxProcesses is how many processes and threads a job kept apart may have: enough for the data loaders of sixteen
// accelerators, and far below what a server can number.
const maxProcesses = 65_536

// home is what programs look for in their environment, and is only known where the sandbox made it.
var home = map[string]string{"HOME": "/work", "USER": "job", "LOGNAME": "job", "SHELL": "/bin/sh"}

// nodes are the device nodes that a run task may use.
func (t *tasks) nodes(p *runTask) ([]string, error) {
	var nodes []string
	for _, d := range p.devices {
		of, err := t.cfg.Nodes(d)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, of...)
	}
	if p.run.Nodes > 1 {
		nodes = append(nodes, accelerator.Fabric("/")...)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes), nil
}

// firstPerson is the least user id that is not a system's own (login.defs(5): UID_MIN).
const firstPerson = 1000

// checkApart refuses what only a sandbox can give, where there is none, and what a sandbox must not give.
func (t *tasks) checkApart(p *runTask) error {
	r := p.run
	if r.Image != "" && t.cfg.Apart != nil && t.cfg.Images == nil {
		return fmt.Errorf("image %s can't be had on this server: its agent uses no containerd", r.Image)
	}
	if t.cfg.Apart == nil {
		switch {
		case r.Image != "":
			return fmt.Errorf("image %s can't be had on this server: its jobs are not kept apart (%s)", r.Image, t.cfg.Shared)
		case len(r.Mounts) > 0:
			return fmt.Errorf("mounts can't be had on this server: its jobs are not kept apart (%s)", t.cfg.Shared)
		case r.Network == sandbox.NetworkNone:
			return fmt.Errorf("network %q can't be had on this server: its jobs are not kept apart (%s)", r.Network, t.cfg.Shared)
		}
		return nil
	}
	if r.User != 0 && (r.User < firstPerson || t.cfg.Apart.Users().Contains(r.User)) {
		return fmt.Errorf("user %d of the project is a system's own (below %d) or one of those that single jobs are given", r.User, firstPerson)
	}
	if r.Network != "" && r.Network != sandbox.NetworkHost && r.Network != sandbox.NetworkNone {
		return fmt.Errorf("network %q is not %s or %s", r.Network, sandbox.NetworkHost, sandbox.NetworkNone)
	}
	mounts := boxMounts(r.Mounts)
	for i, m := range mounts {
		if err := m.Check(mounts[:i]); err != nil {
			return fmt.Errorf("mount %d: %w", i+1, err)
		}
		if !slices.ContainsFunc(r.Allow, func(dir string) bool {
			return m.Source == dir || strings.HasPrefix(m.Source, strings.TrimSuffix(dir, "/")+"/")
		}) {
			return fmt.Errorf("mount %d: source %q lies in none of the folders that jobs may have: %s", i+1, m.Source, strings.Join(r.Allow, ", "))
		}
		if !m.ReadOnly && r.User == 0 {
			return fmt.Errorf("mount %d: %q is to be written to, but the job's user is its own alone: its files would be nobody's. Give the project a user id, or mount it read-only", i+1, m.Source)
		}
	}
	return nil
}

func boxMounts(asked []agentproto.Mount) []sandbox.Mount {
	out := make([]sandbox.Mount, len(asked))
	for i, m := range asked {
		out[i] = sandbox.Mount{Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly}
	}
	return out
}

// boxID names a task's sandbox: several agents may share a machine, as in tests.
func (t *tasks) boxID(r *record) string { return t.cfg.PhoneHome.Server + "/" + r.ID }

// startApart starts a run task in a sandbox. The caller holds mu.
func (t *tasks) startApart(r *record, p *runTask) (proc.ID, error) {
	pid, err := t.cfg.Apart.Start(sandbox.Box{
		ID: t.boxID(r), Dir: filepath.Join(t.cfg.StateDir, r.Dir), User: r.User, Command: p.run.Command, Env: p.env, WorkDir: p.run.WorkDir, Devices: p.nodes, Mounts: boxMounts(p.run.Mounts), Network: p.run.Network, Root: p.root, Libraries: libraries(p),
		Limits: sandbox.Limits{CPUs: p.run.CPUs, MemoryBytes: p.run.MemoryBytes, PIDs: maxProcesses},
	})
	if err != nil {
		return proc.ID{}, err
	}
	return t.identify(pid), nil
}

// viewKey names what a task sees of its image, among those of all agents that use the same containerd.
func (t *tasks) viewKey(r *record) string {
	sum := sha256.Sum256([]byte(t.boxID(r)))
	return "gpupool-" + hex.EncodeToString(sum[:16])
}

// bring has a run task's image on the server, and then starts it. An agent that ends meanwhile begins this again.
func (t *tasks) bring(ctx context.Context, r *record, l *live, p *runTask) {
	view, err := t.view(ctx, r, l, p)
	if ctx.Err() != nil {
		return
	}
	e := end{State: schema.TaskFailed, NoneLeft: true}
	select {
	case <-l.stop:
		e.State, e.Text = schema.TaskCancelled, "stopped while its image was brought"
	default:
		if err != nil {
			e.Text = "could not be started: " + err.Error()
			break
		}
		p.use(view)
		if err := t.beginIn(r, p); err == nil {
			t.watch(ctx, r, l, true)
			return
		} else {
			e.Text = "could not be started: " + err.Error()
		}
	}
	t.unshow(ctx, r)
	t.finish(r, e)
}

// view has the image there, and shows it to the task, until l is stopped.
func (t *tasks) view(ctx context.Context, r *record, l *live, p *runTask) (image.View, error) {
	if p.err != nil {
		return image.View{}, p.err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-l.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := t.cfg.Images.Get(ctx, r.Image); err != nil {
		return image.View{}, err
	}
	return t.cfg.Images.Show(ctx, t.viewKey(r), r.Image)
}

// beginIn starts a task whose image is there. That it is begun is on the disk before its process is.
func (t *tasks) beginIn(r *record, p *runTask) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.Brings = false
	if err := t.journal.add(false, true, r); err != nil {
		return fmt.Errorf("its state could not be kept on the disk: %w", err)
	}
	id, err := t.start(r, p)
	if err != nil {
		return err
	}
	r.Proc = id
	t.save(r)
	t.touch(r.ID)
	return nil
}

func (t *tasks) unshow(ctx context.Context, r *record) {
	if t.cfg.Images == nil {
		return
	}
	if err := t.cfg.Images.Drop(ctx, t.viewKey(r)); err != nil {
		t.cfg.Log.WarnContext(ctx, "what a job saw of its image could not be removed", "task", r.ID, "err", err)
	}
}

// use takes up what an image says: its files, and beneath what the job says of them, its variables and its folder.
func (p *runTask) use(v image.View) {
	p.root = v.Root
	if p.run.WorkDir == "" {
		p.run.WorkDir = v.WorkDir
	}
	for _, e := range v.Env {
		name, _, _ := strings.Cut(e, "=")
		if !p.own[name] {
			p.env = slices.DeleteFunc(p.env, func(o string) bool { return strings.HasPrefix(o, name+"=") })
			p.env = append(p.env, e)
		}
	}
	if !p.nvidia() {
		return
	}
	const path = "LD_LIBRARY_PATH="
	switch at := slices.IndexFunc(p.env, func(o string) bool { return strings.HasPrefix(o, path) }); {
	case at < 0:
		p.env = append(p.env, path+sandbox.LibraryDir)
	case !strings.Contains(p.env[at], sandbox.LibraryDir):
		p.env[at] += ":" + sandbox.LibraryDir
	}
}

func (p *runTask) nvidia() bool {
	return slices.ContainsFunc(p.devices, func(d agentproto.Device) bool { return d.Vendor == schema.VendorNVIDIA })
}

// libraries are the parts of a driver that belong to this server's kernel and not into an image.
func libraries(p *runTask) []string {
	if len(p.root) == 0 || !p.nvidia() {
		return nil
	}
	return accelerator.Libraries("/")
}

// freeUser is a user that no live job has, and of which no process is left: one that may still write is not met again. The
// range is gone through from end to end, so that each is used again as late as can be. The caller holds mu.
func (t *tasks) freeUser() (int, error) {
	u := t.cfg.Apart.Users()
	for range u.Count {
		t.lastUser++
		if !u.Contains(t.lastUser) {
			t.lastUser = u.First
		}
		if t.users[t.lastUser] != "" {
			continue
		}
		used, err := sandbox.InUse(t.lastUser)
		if err != nil {
			return 0, err
		}
		if !used {
			return t.lastUser, nil
		}
	}
	return 0, fmt.Errorf("all %d user ids from %d on are in use: give jobs a larger range", u.Count, u.First)
}

// isInit reports whether a process that carries a job's marks is its sandbox's init: the only one of them that is root's.
func isInit(pid int) bool { return sandbox.Owner(strconv.Itoa(pid)) == 0 }

// oomKills is how many processes of a job were ended for memory.
func (t *tasks) oomKills(r *record) int {
	if r.User == 0 || t.cfg.Apart == nil {
		return 0
	}
	return t.cfg.Apart.OOMKills(t.boxID(r))
}

// hanging finds out that a job's init can't end, though the job's program has, or it was killed: a process that hangs in a
// driver holds it, for hours if need be. The zero value is ready.
type hanging struct {
	from time.Time
	now  bool
}

func (h *hanging) since(t *tasks, r *record, killed bool) bool {
	if r.User == 0 {
		return false
	}
	if _, over := sandbox.ReadExit(filepath.Join(t.cfg.StateDir, r.Dir)); !over && !killed {
		return false
	}
	if h.from.IsZero() {
		h.from = time.Now()
	}
	h.now = time.Since(h.from) > sweepFor
	return h.now
}

// diskLook is how many looks for new output go to one at the disk.
const diskLook = 10

// watchDisk tells once when a job kept apart has more on the disk than it may: what it fills others can't use. done ends the
// watching.
func (t *tasks) watchDisk(ctx context.Context, r *record) (over <-chan string, done func()) {
	ch := make(chan string, 1)
	dir := filepath.Join(t.cfg.StateDir, r.Dir)
	limit := t.diskOf(r)
	if r.User == 0 || limit <= 0 {
		return ch, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		wait := diskLook * t.cfg.Progress
		for pause(ctx, wait) == nil {
			begun := time.Now()
			used, err := sandbox.Used(ctx, dir)
			if err == nil && used > limit {
				ch <- fmt.Sprintf("killed: it had %d MiB on the server's disk, %d MiB are its share", used>>20, limit>>20)
				return
			}
			wait = max(wait, diskLook*time.Since(begun)) // many files take long to look at
		}
	}()
	return ch, func() { cancel(); <-stopped }
}

// diskOf is how much a job may have on the disk.
func (t *tasks) diskOf(r *record) int64 {
	if t.cfg.Disk > 0 {
		return t.cfg.Disk
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(t.cfg.StateDir, &st); err != nil {
		return 0
	}
	all := int64(max(len(t.devices.cached()), 1))
	return int64(st.Blocks) * st.Bsize / 10 * 9 / all * min(max(int64(len(r.Devices)), 1), all)
}
