package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
	"gpupool/worker/agent/proc"
	"gpupool/worker/agent/sandbox"
)

// Names that a job's processes carry in their environment. The first is how they are found again.
const (
	MarkTask   = "GPUPOOL_TASK"   // the task's id
	MarkServer = "GPUPOOL_SERVER" // the server's id
)

// supervisor is the shell over a job: it writes the job's exit status where a later life of the agent finds it. It
// outlives every signal that a job may be sent to end; a trap that does something (":") is reset in the job itself,
// where one that ignores ("") would be inherited. The newline tells a whole status from one that was cut short. The status
// goes over noStatus, in place ("<>" does not cut the file): a job that fills the disk still has one.
const supervisor = `trap : HUP INT QUIT USR1 USR2 ALRM TERM
(exec "$@")
echo $? 1<>"$0/exit"`

// noStatus is what the file of the exit status holds until there is one: the room that a status needs.
const noStatus = "    "

// runTask is a run task that was looked at, but not begun.
type runTask struct {
	run     agentproto.Run
	devices []agentproto.Device // those it was given
	env     []string
	own     map[string]bool                      // variables that the job or the platform set: an image's are beneath them
	root    []sandbox.Layer                      // of its image
	nodes   []string                             // device nodes that it may use, where it is kept apart
	play    func(ctx context.Context) (code int) // in the place of a process; nil = it is one
	err     error                                // why it can't be begun
}

func runDir(id string) string {
	h := sha256.Sum256([]byte(id))
	return filepath.Join("run", hex.EncodeToString(h[:12]))
}

// prepare finds the devices of a run task and makes its environment.
func (t *tasks) prepare(ctx context.Context, task agentproto.Task) *runTask {
	p := &runTask{}
	if err := json.Unmarshal(task.Payload, &p.run); err != nil {
		p.err = fmt.Errorf("the task's payload could not be read: %w", err)
		return p
	}
	r := p.run
	if len(r.Command) == 0 || r.Command[0] == "" || strings.HasPrefix(r.Command[0], "-") {
		p.err = fmt.Errorf("command %q names no program", r.Command)
		return p
	}
	for k, v := range r.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			p.err = fmt.Errorf("env %q is not a name and a value without NUL", k)
			return p
		}
	}
	apart := t.cfg.Apart != nil
	if r.WorkDir != "" && !apart {
		if st, err := os.Stat(r.WorkDir); err != nil || !st.IsDir() {
			p.err = fmt.Errorf("work_dir %q is not a folder on this server", r.WorkDir)
			return p
		}
	}
	var all []agentproto.Device
	p.devices, all, p.err = t.devices.find(ctx, r.Devices)
	if p.err != nil {
		return p
	}
	if t.cfg.Play != nil {
		if p.play = t.cfg.Play(r.Command); p.play != nil {
			return p
		}
	}
	env := maps.Clone(t.cfg.Env)
	if p.err = t.checkApart(p); p.err != nil {
		return p
	}
	if apart {
		maps.Copy(env, home)
		if p.nodes, p.err = t.nodes(p); p.err != nil {
			return p
		}
	}
	maps.Copy(env, r.Env)
	maps.Copy(env, accelerator.Visible(p.devices, all, apart)) // after the job's own: what it may see is not its to say
	maps.Copy(env, map[string]string{
		MarkTask: task.ID, MarkServer: t.cfg.PhoneHome.Server,
		"GPUPOOL_JOB": r.Job, "GPUPOOL_ATTEMPT": strconv.Itoa(r.Attempt), "GPUPOOL_RANK": strconv.Itoa(r.Rank),
		"GPUPOOL_NODES": strconv.Itoa(max(r.Nodes, 1)), "GPUPOOL_PEERS": strings.Join(r.Peers, ","),
	})
	p.own = map[string]bool{}
	for k := range env {
		_, set := r.Env[k]
		_, base := t.cfg.Env[k]
		_, ours := home[k]
		p.own[k] = set || !base && !ours
	}
	p.env = make([]string, 0, len(env))
	for k, v := range env {
		p.env = append(p.env, k+"="+v)
	}
	return p
}

// run starts the process of a task that is on the disk. The caller holds mu.
func (t *tasks) run(ctx context.Context, r *record, p *runTask) {
	if p.play != nil {
		t.touch(r.ID)
		t.track(r, func(l *live) { t.play(ctx, r, l, p.play) })
		return
	}
	if r.Brings {
		t.track(r, func(l *live) { t.bring(ctx, r, l, p) })
		t.touch(r.ID)
		return
	}
	id, err := t.start(r, p)
	if err != nil {
		r.End = &end{State: schema.TaskFailed, Text: "could not be started: " + err.Error(), NoneLeft: true, At: t.now()}
		t.release(r)
		t.save(r)
		t.touch(r.ID)
		return
	}
	r.Proc = id
	t.save(r)
	t.touch(r.ID)
	t.track(r, func(l *live) { t.watch(ctx, r, l, true) })
}

// play is a job that is no process. When the agent ends, so does it, and the next life says so.
func (t *tasks) play(ctx context.Context, r *record, l *live, act func(context.Context) int) {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	code := make(chan int, 1)
	go func() { code <- act(inner) }()
	e := end{NoneLeft: true}
	select {
	case <-l.stop:
		cancel()
		<-code
		e.State, e.Signal, e.Text = schema.TaskCancelled, "SIGTERM", "ended by SIGTERM"
	case c := <-code:
		if ctx.Err() != nil {
			return
		}
		e.ExitCode, e.State = &c, schema.TaskDone
		if c != 0 {
			e.State, e.Text = schema.TaskFailed, fmt.Sprintf("exited with code %d", c)
		}
	}
	t.finish(r, e)
}

func (t *tasks) start(r *record, p *runTask) (proc.ID, error) {
	if r.User != 0 {
		return t.startApart(r, p)
	}
	dir := filepath.Join(t.cfg.StateDir, r.Dir)
	work := p.run.WorkDir
	if work == "" {
		work = filepath.Join(dir, "work")
	}
	if err := os.MkdirAll(filepath.Join(dir, "work"), 0o700); err != nil {
		return proc.ID{}, err
	}
	// Appending, so that the file can be cut while the job writes.
	out, err := os.OpenFile(filepath.Join(dir, "out"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return proc.ID{}, err
	}
	defer out.Close()
	if err := os.WriteFile(filepath.Join(dir, "exit"), []byte(noStatus), 0o600); err != nil {
		return proc.ID{}, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return proc.ID{}, err
	}
	defer null.Close()
	argv := append([]string{"sh", "-c", supervisor, dir}, p.run.Command...)
	pid, err := syscall.ForkExec("/bin/sh", argv, &syscall.ProcAttr{
		Dir: work, Env: p.env, Files: []uintptr{null.Fd(), out.Fd(), out.Fd()},
		Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return proc.ID{}, err
	}
	return t.identify(pid), nil
}

// identify names a child of ours: its pid stays its own until it is waited for.
func (t *tasks) identify(pid int) proc.ID {
	got, err := t.cfg.Table.Identify(pid)
	if err != nil {
		return proc.ID{PID: pid}
	}
	return got.ID
}

// adopt takes up a run task of an earlier life. The caller holds mu.
func (t *tasks) adopt(ctx context.Context, r *record, marked []proc.Process) {
	if r.Boot != t.boot {
		t.track(r, func(*live) {
			e := end{State: schema.TaskFailed, Text: "the server was restarted while it ran", NoneLeft: true}
			if r.Stop {
				e.State = schema.TaskCancelled
			}
			t.finish(r, e)
		})
		return
	}
	if r.Brings {
		t.track(r, func(l *live) {
			t.bring(ctx, r, l, t.prepare(ctx, agentproto.Task{ID: r.ID, Kind: r.Kind, Epoch: r.Epoch, Payload: r.Payload}))
		})
		return
	}
	if !t.cfg.Table.Alive(r.Proc) {
		for _, p := range marked {
			// The shell over it opened the session; it is the oldest that carries the mark.
			if p.PID == p.Session && r.Proc.PID == 0 && (r.User == 0 || isInit(p.PID)) {
				r.Proc = p.ID
			}
		}
	}
	if r.Proc.PID != 0 {
		t.save(r)
		t.touch(r.ID)
	}
	t.track(r, func(l *live) { t.watch(ctx, r, l, false) })
}

// watch follows a job from its start, or from its adoption, to the proof that nothing of it is left. child says that
// it is this process's own child.
func (t *tasks) watch(ctx context.Context, r *record, l *live, child bool) {
	ended, free := exits(ctx, t.cfg.Table, r.Proc)
	defer free()
	over, done := t.watchDisk(ctx, r)
	defer done()
	tick := time.NewTicker(t.cfg.Progress)
	defer tick.Stop()
	var kill <-chan time.Time
	stop := l.stop
	killed := false
	why := "" // we killed it, unasked
	var hangs hanging
	for running := true; running; {
		select {
		case <-ended:
			running = false
		case <-stop:
			stop = nil
			t.mu.Lock()
			sig, grace := signalNumber(r.Signal), time.Duration(r.Grace)*time.Millisecond
			t.mu.Unlock()
			if grace == 0 {
				grace = t.cfg.Grace
			}
			t.signal(ctx, r, sig)
			kill = time.After(grace)
		case <-kill:
			killed = true
			t.signal(ctx, r, syscall.SIGKILL)
			kill = time.After(time.Second)
		case why = <-over:
			killed = true
			t.signal(ctx, r, syscall.SIGKILL)
		case <-tick.C:
			t.progress(r)
			running = !hangs.since(t, r, killed)
		case <-ctx.Done():
			return // the job lives on
		}
	}
	if ctx.Err() != nil {
		return
	}
	var ws syscall.WaitStatus
	if child && !hangs.now {
		for {
			_, err := syscall.Wait4(r.Proc.PID, &ws, 0, nil)
			if !errors.Is(err, syscall.EINTR) {
				break
			}
		}
	}
	e := t.verdict(r, ws, child, killed)
	if why != "" {
		e.Text = why
	}
	left, err := t.sweep(ctx, r)
	if ctx.Err() != nil {
		return
	}
	e.NoneLeft = err == nil
	if left > 0 {
		e.Text = joinText(e.Text, fmt.Sprintf("%d processes that it left behind were killed", left))
	}
	if err != nil {
		e.Text = joinText(e.Text, err.Error())
	}
	t.finish(r, e)
	for !e.NoneLeft {
		// Its devices stay held. A process that hangs in a driver may go hours later: that is told too.
		if pause(ctx, sweepFor) != nil {
			return
		}
		if _, err := t.sweep(ctx, r); err == nil {
			e.NoneLeft = true
			t.proven(r)
			if child && hangs.now {
				_, _ = syscall.Wait4(r.Proc.PID, &ws, syscall.WNOHANG, nil) // its status was told
			}
		}
	}
}

// proven says, after its end was told, that nothing of r is left by now.
func (t *tasks) proven(r *record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.End.NoneLeft, r.Done = true, false
	if r.Sent != nil {
		s := *r.Sent
		s.Accepted = true // what follows is another report, not a repeat
		r.Sent = &s
	}
	t.release(r)
	t.save(r)
	t.touch(r.ID)
}

// verdict reads how a job ended from the status that its shell left.
func (t *tasks) verdict(r *record, ws syscall.WaitStatus, child, killed bool) end {
	t.mu.Lock()
	stopped := r.Stop
	t.mu.Unlock()
	e := end{State: schema.TaskFailed, At: t.now()}
	exit, ok := sandbox.ReadExit(filepath.Join(t.cfg.StateDir, r.Dir))
	switch {
	case exit.Err != "":
		e.Text = "could not be started: " + exit.Err
	case ok:
		e.ExitCode = &exit.Code
		switch {
		case exit.Code == 0:
			e.State = schema.TaskDone
		case exit.Code > 128 && unix.SignalName(syscall.Signal(exit.Code-128)) != "":
			// A shell's word for "ended by a signal"; a program that exits so says the same of a child of its own.
			e.Signal = unix.SignalName(syscall.Signal(exit.Code - 128))
			e.Text = "ended by " + e.Signal
		default:
			e.Text = fmt.Sprintf("exited with code %d", exit.Code)
		}
		if exit.Left > 0 {
			e.Text = joinText(e.Text, fmt.Sprintf("%d processes that it left behind were killed", exit.Left))
		}
	case killed:
		e.Signal, e.Text = "SIGKILL", "killed: it did not end within the grace it was given"
	case child && ws.Signaled():
		e.Signal = unix.SignalName(ws.Signal())
		e.Text = fmt.Sprintf("ended by %s together with the shell over it: killed from outside, or out of memory", e.Signal)
	case r.Proc.PID == 0:
		e.Text = "not known to have run: the agent ended as it began this task"
	case child:
		e.Text = "left no exit status: its folder was removed, or could not be written"
	default:
		e.Text = "ended while the agent was down and left no exit status: it was killed"
	}
	if n := t.oomKills(r); n > 0 {
		e.Text = joinText(e.Text, fmt.Sprintf("out of memory: %d of its processes were ended as it had used up what it was given", n))
	}
	if stopped {
		e.State = schema.TaskCancelled
	}
	return e
}

// signal sends sig to every process of the job: its group, and those that left the group.
func (t *tasks) signal(ctx context.Context, r *record, sig syscall.Signal) {
	if r.User != 0 {
		if r.Proc.PID > 1 && t.cfg.Table.Alive(r.Proc) {
			_ = syscall.Kill(r.Proc.PID, sig) // its init passes it on to every process, and dies with all of them
		}
		return
	}
	// The number of a group is not used again while any of it lives; its leader is the shell that we wait for.
	if r.Proc.PID > 1 && t.cfg.Table.Alive(r.Proc) {
		_ = syscall.Kill(-r.Proc.PID, sig)
		if sig != syscall.SIGKILL {
			_ = syscall.Kill(-r.Proc.PID, syscall.SIGCONT) // one that is stopped must hear it too
		}
	}
	found, err := t.cfg.Table.Find(ctx, t.query(r))
	if err != nil {
		return // the caller signals again, or sweeps
	}
	for _, p := range found {
		if p.Group != r.Proc.PID {
			_ = syscall.Kill(p.PID, sig)
		}
	}
}

func (t *tasks) query(r *record) proc.Query {
	// The server too: several agents may share a machine, as in the lab.
	return proc.Query{Marks: []string{MarkTask + "=" + r.ID, MarkServer + "=" + t.cfg.PhoneHome.Server}, Session: r.Proc}
}

// sweepFor is how long killed processes may take to vanish. One that doesn't hangs in a driver, and holds its device.
const sweepFor = 30 * time.Second

// sweep ends what a job left behind: asked first, then killed, until /proc shows none. It returns how many there were.
func (t *tasks) sweep(ctx context.Context, r *record) (int, error) {
	if r.User != 0 && t.cfg.Apart != nil {
		n, err := t.cfg.Apart.Sweep(ctx, t.boxID(r), sweepFor)
		if err == nil && r.Image != "" {
			t.unshow(ctx, r)
		}
		return n, err
	}
	deadline := time.Now().Add(sweepFor)
	hard := time.Now().Add(min(t.cfg.Grace, 2*time.Second))
	seen := map[proc.ID]bool{}
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		found, err := t.cfg.Table.Find(ctx, t.query(r))
		if err == nil && len(found) == 0 {
			return len(seen), nil
		}
		if err != nil && ctx.Err() != nil {
			return 0, err
		}
		for _, p := range found {
			switch {
			case !seen[p.ID]:
				seen[p.ID] = true
				_ = syscall.Kill(p.PID, syscall.SIGTERM)
				_ = syscall.Kill(p.PID, syscall.SIGCONT)
			case time.Now().After(hard):
				_ = syscall.Kill(p.PID, syscall.SIGKILL)
			}
		}
		if time.Now().After(deadline) {
			if err != nil {
				return len(seen), err
			}
			p := found[0]
			return len(seen), fmt.Errorf("%d of its processes did not end though killed: process %d (%s) is in state %c", len(found), p.PID, p.Command, p.State)
		}
		if err := pause(ctx, wait); err != nil {
			return 0, err
		}
	}
}

// progress has new output sent, and keeps a file that nobody will read from growing.
func (t *tasks) progress(r *record) {
	path := filepath.Join(t.cfg.StateDir, r.Dir, "out")
	st, err := os.Stat(path)
	if err != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var to int64
	if r.Sent != nil {
		to = r.Sent.To
	}
	switch {
	case to < min(st.Size(), t.cfg.Output):
		t.touch(r.ID)
	case st.Size() > 2*t.cfg.Output && to > t.cfg.Output-utf8.UTFMax:
		_ = os.Truncate(path, t.cfg.Output+1) // one byte more than is kept says that it was cut
	}
}

// exits closes the channel when the process is gone (a zombie counts as gone). free ends the waiting.
func exits(ctx context.Context, table *proc.Table, id proc.ID) (<-chan struct{}, func()) {
	ended := make(chan struct{})
	if id.PID == 0 {
		close(ended)
		return ended, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if waitPidfd(ctx, table, id) || pollGone(ctx, table, id) {
			close(ended)
		}
	}()
	return ended, func() { cancel(); <-done }
}

// waitPidfd waits without a thread: a pidfd becomes readable when its process ends (pidfd_open(2), Linux 5.3). It
// reports whether the process is gone.
func waitPidfd(ctx context.Context, table *proc.Table, id proc.ID) bool {
	fd, err := unix.PidfdOpen(id.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return true
	}
	if err != nil {
		return false
	}
	if err := unix.SetNonblock(fd, true); err != nil { // so that the runtime's poller takes it
		_ = unix.Close(fd)
		return false
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	defer f.Close()
	// The number may have been used again before it was opened.
	if p, err := table.Identify(id.PID); err != nil || id.Start != 0 && p.Start != id.Start {
		return true
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })()
	gone := false
	err = raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		gone = err == nil && n == 1
		return gone
	})
	return err == nil && gone
}

// pollGone is for kernels without pidfds.
func pollGone(ctx context.Context, table *proc.Table, id proc.ID) bool {
	for table.Alive(id) {
		if pause(ctx, 100*time.Millisecond) != nil {
			return false
		}
	}
	return ctx.Err() == nil
}

// signalNumber reads SIGUSR1, USR1 or 10; anything else is SIGTERM.
func signalNumber(name string) syscall.Signal {
	if n, err := strconv.Atoi(name); err == nil && n > 0 && n < 65 {
		return syscall.Signal(n)
	}
	if name = strings.ToUpper(name); name != "" && !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if n := unix.SignalNum(name); n != 0 {
		return n
	}
	return syscall.SIGTERM
}
