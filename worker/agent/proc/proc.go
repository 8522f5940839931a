// Package proc finds, in /proc, the processes of a task, and proves that none is left.
//
// A task's processes are those that carry its marks in the environment they began with, and those of the session and
// process group that its first process opened; so a descendant is found although it changed its group, and although
// it dropped its environment, but not when it did both. Where the agent may use a control group, that closes the gap.
//
// Invariant: Find answers "none" only when no such process was alive at one moment after Find was called: a scan in
// which a candidate vanished is done again, since what vanished may have left a child that the scan had passed.
//
// Not here: signals and control groups (worker/agent).
package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ID tells a process from every other of the same boot: a pid is used again, a pid with its start time is not.
type ID struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot; field 22 of /proc/<pid>/stat
}

// Process is one process as /proc shows it.
type Process struct {
	ID
	Parent, Group, Session int
	State                  byte // R, S, D, Z, ...
	Command                string
}

// Query names a task's processes.
type Query struct {
	Marks   []string // NAME=value, all of them in their first environment
	Session ID       // the process that opened their session and group; zero = only by Marks
}

// Table is the process table of this machine. It serves any number of askers with one scan at a time.
//
// mu guards the queue and forks; a scan holds no lock.
type Table struct {
	root string

	begun time.Time // when the last scan began; of the one goroutine that scans

	mu       sync.Mutex
	waiting  []*waiter
	scanning bool
}

type waiter struct {
	q     Query
	found []Process
	err   error
	done  chan struct{}
}

// New is the table under root; "" is /proc.
func New(root string) *Table {
	if root == "" {
		root = "/proc"
	}
	return &Table{root: root}
}

// Identify is the process that has this pid now.
func (t *Table) Identify(pid int) (Process, error) { return t.stat(pid) }

// Alive reports whether that very process runs still; a zombie doesn't.
func (t *Table) Alive(id ID) bool {
	p, err := t.stat(id.PID)
	return err == nil && p.Start == id.Start && p.State != 'Z' && p.State != 'X'
}

// gather is the least time from the beginning of a scan to that of the next. A scan looks at every process of the
// machine, for however many askers; and jobs end together, as they are started together. The first asker after a quiet
// moment is served at once.
const gather = 25 * time.Millisecond

// Find is every live process that q names. Askers that come while a scan runs, or too soon after one, share the next.
func (t *Table) Find(ctx context.Context, q Query) ([]Process, error) {
	w := &waiter{q: q, done: make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, w)
	if !t.scanning {
		t.scanning = true
		go t.serve()
	}
	t.mu.Unlock()
	select {
	case <-w.done:
		return w.found, w.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (t *Table) serve() {
	for {
		<-time.After(time.Until(t.begun.Add(gather)))
		t.mu.Lock()
		batch := t.waiting
		t.waiting = nil
		if len(batch) == 0 {
			t.scanning = false
			t.mu.Unlock()
			return
		}
		t.mu.Unlock()
		t.begun = time.Now()
		t.scan(batch)
		for _, w := range batch {
			close(w.done)
		}
	}
}

// maxScans bounds how often a scan in which candidates vanished is done again.
const maxScans = 200

func (t *Table) scan(batch []*waiter) {
	for try := range maxScans {
		for _, w := range batch {
			w.found, w.err = nil, nil
		}
		clean, err := t.pass(batch)
		if err != nil {
			for _, w := range batch {
				w.err = err
			}
			return
		}
		if clean {
			return
		}
		if try > 2 {
			<-time.After(time.Millisecond) // a process that was killed is gone a moment later
		}
	}
	for _, w := range batch {
		if len(w.found) == 0 {
			w.err = fmt.Errorf("%s changed during each of %d scans: it could not be proven that no process is left", t.root, maxScans)
		}
	}
}

// pass looks at every process once. It is clean when nothing vanished under it.
func (t *Table) pass(batch []*waiter) (clean bool, err error) {
	pids, err := t.pids()
	if err != nil {
		return false, err
	}
	reused := make([]bool, len(batch)) // the session's number belongs to another process by now
	for i, w := range batch {
		if w.q.Session.PID != 0 {
			if p, err := t.stat(w.q.Session.PID); err == nil && p.Start != w.q.Session.Start {
				reused[i] = true
			}
		}
	}
	clean = true
	for _, pid := range pids {
		p, err := t.stat(pid)
		if err != nil {
			clean = false
			continue
		}
		if p.State == 'Z' || p.State == 'X' {
			continue
		}
		var env []byte
		var read bool
		for i, w := range batch {
			s := w.q.Session
			// What began before the session's first process cannot descend from it.
			if s.PID != 0 && p.Start < s.Start {
				continue
			}
			if s.PID != 0 && !reused[i] && (p.Session == s.PID || p.Group == s.PID) {
				w.found = append(w.found, p)
				continue
			}
			if !read {
				read = true
				env, err = os.ReadFile(filepath.Join(t.root, strconv.Itoa(pid), "environ"))
				if errors.Is(err, fs.ErrNotExist) {
					clean = false
				}
				// Another user's process can't be looked into. It is none of ours then, unless it changed its user.
			}
			if len(w.q.Marks) > 0 && carries(env, w.q.Marks) {
				w.found = append(w.found, p)
			}
		}
	}
	return clean, nil
}

// Marks groups every live process that carries name=..., and all of the marks, in its first environment, by the value.
func (t *Table) Marks(name string, marks ...string) (map[string][]Process, error) {
	pids, err := t.pids()
	if err != nil {
		return nil, err
	}
	by := map[string][]Process{}
	for _, pid := range pids {
		env, err := os.ReadFile(filepath.Join(t.root, strconv.Itoa(pid), "environ"))
		if err != nil {
			continue
		}
		v, ok := lookup(env, name)
		if !ok || !carries(env, marks) {
			continue
		}
		if p, err := t.stat(pid); err == nil && p.State != 'Z' && p.State != 'X' {
			by[v] = append(by[v], p)
		}
	}
	return by, nil
}

func (t *Table) pids() ([]int, error) {
	d, err := os.Open(t.root)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	pids := make([]int, 0, len(names))
	for _, n := range names {
		if n[0] >= '1' && n[0] <= '9' {
			if pid, err := strconv.Atoi(n); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	slices.Sort(pids)
	return pids, nil
}

func (t *Table) stat(pid int) (Process, error) {
	// A scan reads hundreds of these: so without the runtime's poller, which wants four more system calls for each, and in
	// one read, which the line fits: a name of at most 64 bytes and 51 numbers of at most 20 digits.
	var buf [1152]byte
	path := filepath.Join(t.root, strconv.Itoa(pid), "stat")
	fd, err := retried(func() (int, error) { return syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0) })
	if err != nil {
		return Process{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	n, err := retried(func() (int, error) { return syscall.Read(fd, buf[:]) })
	_ = syscall.Close(fd) // it was only read
	if err != nil {
		return Process{}, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return parseStat(pid, buf[:n])
}

// retried repeats a system call that a signal interrupted.
func retried(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
}

// parseStat reads proc(5)'s stat line. The command's name stands in parentheses and may hold spaces and parentheses.
func parseStat(pid int, b []byte) (Process, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return Process{}, fmt.Errorf("stat of process %d has no name in parentheses", pid)
	}
	f := bytes.Fields(b[end+1:]) // from field 3, the state
	if len(f) < 20 || len(f[0]) != 1 {
		return Process{}, fmt.Errorf("stat of process %d has %d fields after its name, 20 are needed", pid, len(f))
	}
	p := Process{ID: ID{PID: pid}, State: f[0][0], Command: string(b[open+1 : end])}
	var err error
	num := func(i int) int {
		n, e := strconv.Atoi(string(f[i]))
		err = errors.Join(err, e)
		return n
	}
	p.Parent, p.Group, p.Session = num(1), num(2), num(3)
	start, e := strconv.ParseUint(string(f[19]), 10, 64)
	p.Start = start
	if err = errors.Join(err, e); err != nil {
		return Process{}, fmt.Errorf("stat of process %d: %w", pid, err)
	}
	return p, nil
}

func carries(env []byte, marks []string) bool {
	for _, m := range marks {
		name, want, _ := strings.Cut(m, "=")
		if v, ok := lookup(env, name); !ok || v != want {
			return false
		}
	}
	return true
}

func lookup(env []byte, name string) (string, bool) {
	for len(env) > 0 {
		v, rest, _ := bytes.Cut(env, []byte{0})
		if val, ok := bytes.CutPrefix(v, []byte(name+"=")); ok {
			return string(val), true
		}
		env = rest
	}
	return "", false
}
