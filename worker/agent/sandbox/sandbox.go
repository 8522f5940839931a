package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Host is a server whose jobs can be kept apart.
type Host struct {
	trees []tree
	state string
	users Users
}

// Users are the user ids that jobs run as; a group of the same number is each one's own. No other account may be in the
// range.
type Users struct {
	First int
	Count int
}

// DefaultUsers lie where neither people's accounts nor systemd's own ranges do (systemd, "Users, Groups, UIDs and GIDs").
var DefaultUsers = Users{First: 1_900_000_000, Count: 65_536}

// Contains reports whether id is one of a job.
func (u Users) Contains(id int) bool { return id >= u.First && id < u.First+u.Count }

// Open finds out whether this server can keep jobs apart, by doing so once: a program is run in a sandbox of its own. state
// is the agent's own folder, which no job sees. The error says what is missing.
func Open(ctx context.Context, state string, users Users) (*Host, error) {
	switch {
	case os.Geteuid() != 0:
		return nil, errors.New("the agent is not root")
	case users.First <= 0 || users.Count <= 0 || users.First > 1<<31-1-users.Count:
		return nil, fmt.Errorf("users from %d, %d of them, are no range of user ids below 2147483647", users.First, users.Count)
	}
	trees, err := openTrees()
	if err != nil {
		return nil, err
	}
	h := &Host{trees: trees, state: state, users: users}
	if err := h.prove(ctx); err != nil {
		return nil, fmt.Errorf("a sandbox could not be made: %w", err)
	}
	return h, nil
}

func (h *Host) prove(ctx context.Context) error {
	if err := os.MkdirAll(h.state, 0o700); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(h.state, "prove-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := Box{ID: filepath.Base(dir), Dir: dir, User: h.users.First, Command: []string{"true"}, Env: []string{"PATH=/usr/bin:/bin"}}
	pid, err := h.Start(b)
	if err != nil {
		return err
	}
	var ws syscall.WaitStatus
	if _, err := retried(func() (int, error) { return syscall.Wait4(pid, &ws, 0, nil) }); err != nil {
		return err
	}
	if _, err := h.Sweep(ctx, b.ID, 10*time.Second); err != nil {
		return err
	}
	end, ok := ReadExit(dir)
	switch out, _ := os.ReadFile(filepath.Join(dir, OutFile)); {
	case end.Err != "":
		return errors.New(end.Err)
	case !ok || end.Code != 0:
		return fmt.Errorf("`true` did not end well in it: %s", strings.TrimSpace(string(out)))
	}
	return nil
}

// Users is the range that jobs' users are of.
func (h *Host) Users() Users { return h.users }

// Box is one job's sandbox on one server.
type Box struct {
	ID      string   `json:"id"`   // no other live job of this machine has it
	Dir     string   `json:"dir"`  // the task's folder; everything in it but the log belongs to the agent or is made here
	User    int      `json:"user"` // its user id, and its group's
	Command []string `json:"command"`
	Env     []string `json:"env"` // NAME=value
	WorkDir string   `json:"work_dir,omitempty"`
	Devices []string `json:"devices,omitempty"` // device nodes that it may use, by their path on the server
	Mounts  []Mount  `json:"mounts,omitempty"`  // what it sees beside the system
	Root    []Layer  `json:"root,omitempty"`    // its root's files, in place of the server's own system
	// Libraries are files of the server that a job with a root of its own finds in LibraryDir.
	Libraries []string `json:"libraries,omitempty"`
	Network   string   `json:"network,omitempty"` // NetworkHost, NetworkNone
	Limits    Limits   `json:"limits"`

	Groups []string `json:"groups"` // its control group's folders
	Hide   []string `json:"hide"`   // folders of the system that it finds empty
}

// Mount is a folder of the server that a job sees.
type Mount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only"`
}

// Layer is a mount, as mount(2) takes it.
type Layer struct {
	Type   string  `json:"type"`
	Source string  `json:"source"`
	Flags  uintptr `json:"flags"`
	Data   string  `json:"data"`
}

// Networks that a job may have. With NetworkHost it shares the server's, as multi-node jobs over RDMA need; its ports and
// abstract sockets are then seen by other jobs there. With NetworkNone it has a loopback interface of its own and no other.
const (
	NetworkHost = "host"
	NetworkNone = "none"
)

// Files in a box's folder.
const (
	OutFile  = "out"  // what it wrote, both outputs
	ExitFile = "exit" // how it ended, see Exit
	specFile = "box.json"
	workDir  = "work"
	tmpDir   = "tmp"
)

// noStatus is what the file of the exit status holds until there is one: the room that a status needs, so that a job that
// fills the disk still has one.
const noStatus = "            "

// initName is the name under which this program, started again, is a sandbox's init.
const initName = "gpupool-job"

// Start begins the job and returns its init's pid, of this process's own child. What can't be made is told by the exit.
func (h *Host) Start(b Box) (pid int, err error) {
	g := h.group(b.ID)
	if err := g.create(b.Limits); err != nil {
		return 0, fmt.Errorf("its control group: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.remove())
		}
	}()
	b.Groups = g.dirs()
	b.Hide = append(b.Hide, h.state)
	if b.WorkDir == "" {
		b.WorkDir = "/" + workDir
	}
	for _, sub := range []string{workDir, tmpDir} {
		path := filepath.Join(b.Dir, sub)
		if err := os.MkdirAll(path, 0o700); err != nil {
			return 0, err
		}
		if err := os.Chown(path, b.User, b.User); err != nil {
			return 0, err
		}
	}
	// Appending, so that the file can be cut while the job writes.
	out, err := os.OpenFile(filepath.Join(b.Dir, OutFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	// Its own, since many programs open /dev/stdout again.
	if err := out.Chown(b.User, b.User); err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(b.Dir, ExitFile), []byte(noStatus), 0o600); err != nil {
		return 0, err
	}
	spec, err := json.Marshal(b)
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(b.Dir, specFile), spec, 0o600); err != nil {
		return 0, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	flags := uintptr(unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWIPC)
	if b.Network == NetworkNone {
		flags |= unix.CLONE_NEWNET
	}
	// The job's marks are init's too: an agent that died as it began it finds it by them.
	return syscall.ForkExec("/proc/self/exe", []string{initName, b.Dir}, &syscall.ProcAttr{
		Dir: "/", Env: b.Env, Files: []uintptr{null.Fd(), out.Fd(), out.Fd()},
		Sys: &syscall.SysProcAttr{Setsid: true, Cloneflags: flags},
	})
}

func (h *Host) group(id string) group {
	sum := sha256.Sum256([]byte(id))
	return group{h.trees, hex.EncodeToString(sum[:12])}
}

// Sweep ends what is left of a job whose init is gone, and proves that nothing is. It returns how many processes there
// were. within is how long killed processes may take to vanish: one that doesn't hangs in a driver.
func (h *Host) Sweep(ctx context.Context, id string, within time.Duration) (int, error) {
	g := h.group(id)
	seen := map[int]bool{}
	deadline := time.Now().Add(within)
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		pids, err := g.processes()
		if err != nil {
			return len(seen), err
		}
		for _, pid := range pids {
			seen[pid] = true
		}
		if len(pids) > 0 {
			g.kill()
		} else if err = g.remove(); err == nil {
			return len(seen), nil
		}
		if time.Now().After(deadline) {
			if len(pids) > 0 {
				return len(seen), fmt.Errorf("%d of its processes did not end though killed, process %d among them", len(pids), pids[0])
			}
			return len(seen), fmt.Errorf("its control group can't be removed: %w", err)
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return len(seen), ctx.Err()
		}
	}
}

// OOMKills is how many of a job's processes were ended because it had used up its memory. Ask before Sweep.
func (h *Host) OOMKills(id string) int { return h.group(id).oomKills() }

// Exit is how a box's program ended.
type Exit struct {
	Code int    // as shells have it: 128 and the signal's number where one ended it; 126, 127 where it could not be run
	Left int    // processes that it left behind, which were killed
	Err  string // the sandbox could not be made
}

// ReadExit reads what init wrote; false = it wrote nothing whole.
func ReadExit(dir string) (Exit, bool) {
	b, err := os.ReadFile(filepath.Join(dir, ExitFile))
	if err != nil {
		return Exit{}, false
	}
	line, rest, whole := strings.Cut(string(b), "\n")
	if !whole {
		return Exit{}, false
	}
	if why, bad := strings.CutPrefix(line, "!"); bad {
		return Exit{Err: why}, true
	}
	code, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		return Exit{}, false
	}
	var left int
	if s, _, whole := strings.Cut(rest, "\n"); whole {
		left, _ = strconv.Atoi(strings.TrimSpace(s)) // init wrote a number
	}
	return Exit{Code: code, Left: left}, true
}

// Used is how many bytes on the disk a box's folder holds.
func Used(ctx context.Context, dir string) (int64, error) {
	var sum int64
	err := filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return nil // it vanished while we looked
		}
		if info, err := d.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				sum += st.Blocks * 512
			}
		}
		return nil
	})
	return sum, err
}

// InUse reports whether any process of this machine runs as the user.
func InUse(user int) (bool, error) {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return false, err
	}
	for _, n := range names {
		if _, err := strconv.Atoi(n.Name()); err != nil {
			continue
		}
		if Owner(n.Name()) == user {
			return true, nil
		}
	}
	return false, nil
}

// Owner is the user of a process, by its pid; -1 where there is no such process. A process that may not be looked into
// (it changed its user) is shown as root's.
func Owner(pid string) int {
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join("/proc", pid), &st); err != nil {
		return -1
	}
	return int(st.Uid)
}

func retried(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
}
