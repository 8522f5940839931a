package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"golang.org/x/sys/unix"
)

// Init is process 1 of a sandbox, where this program was started as one; then it never returns. A program that starts
// sandboxes calls it before anything else.
func Init() {
	if len(os.Args) != 2 || os.Args[0] != initName || os.Getpid() != 1 {
		return
	}
	// What belongs to one thread (no new privileges, the bounding set, namespaces) is set on that which starts the job.
	runtime.LockOSThread()
	// From the first moment: process 1 gets only the signals that it asked for.
	signals := make(chan os.Signal, 64)
	signal.Notify(signals)
	signal.Reset(unix.SIGCHLD, unix.SIGURG) // the runtime's own

	dir := os.Args[1]
	exit, err := os.OpenFile(filepath.Join(dir, ExitFile), os.O_WRONLY, 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	child, err := begin(dir)
	if err != nil {
		say(exit, "!"+strings.ReplaceAll(err.Error(), "\n", "; ")+"\n")
		os.Exit(1)
	}
	go func() {
		for s := range signals {
			if n, ok := s.(syscall.Signal); ok && n != unix.SIGCHLD && n != unix.SIGURG && n != unix.SIGPIPE {
				forward(n)
			}
		}
	}()
	code := strconv.Itoa(reap(child)) + "\n"
	say(exit, code)
	say(exit, code+strconv.Itoa(bury())+"\n")
	os.Exit(0) // and the kernel ends whoever came since
}

// say writes over the room that was kept for it. Nobody reads of a failure to write it.
func say(exit *os.File, s string) {
	if pad := len(noStatus) - len(s); pad > 0 {
		s += strings.Repeat(" ", pad)
	}
	_, _ = exit.WriteAt([]byte(s), 0)
}

// forward signals every process of the sandbox; one that is stopped must hear it too.
func forward(s syscall.Signal) {
	_ = unix.Kill(-1, s) // there may be none by now
	if s != unix.SIGSTOP && s != unix.SIGTSTP {
		_ = unix.Kill(-1, unix.SIGCONT)
	}
}

// begin makes the place and starts the job's program in it.
func begin(dir string) (child int, err error) {
	raw, err := os.ReadFile(filepath.Join(dir, specFile))
	if err != nil {
		return 0, err
	}
	var b Box
	if err := json.Unmarshal(raw, &b); err != nil {
		return 0, fmt.Errorf("%s: %w", specFile, err)
	}
	for _, g := range b.Groups {
		if err := write(g, "cgroup.procs", "0"); err != nil {
			return 0, fmt.Errorf("joining its control group: %w", err)
		}
	}
	unix.Umask(0o022) // not the agent's
	if err := spare(0); err != nil {
		return 0, err
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return 0, fmt.Errorf("a view of control groups of its own: %w", err)
	}
	if b.Network == NetworkNone {
		if err := loopbackUp(); err != nil {
			return 0, fmt.Errorf("its loopback interface: %w", err)
		}
	}
	if err := b.enter(); err != nil {
		return 0, err
	}
	if err := harden(); err != nil {
		return 0, err
	}
	if child, err = b.spawn(); err != nil {
		return 0, err
	}
	// Whoever ended init for memory would end the job without a word. The job itself was begun without this.
	return child, spare(-1000)
}

// spare sets how little this process is to be ended when memory runs out (proc_pid_oom_score_adj(5)). An agent in a
// container may not be allowed to: then the kernel chooses by size, and init is small.
func spare(adj int) error {
	err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(adj)), 0)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}

// spawn starts the program as the job's user. What can't be run ends as shells have it.
func (b Box) spawn() (int, error) {
	path, err := b.look()
	var code int
	var words string
	switch {
	case errors.Is(err, fs.ErrPermission):
		code, words = 126, "permission denied"
	case err != nil:
		code, words = 127, "not found"
	default:
		attr := &syscall.ProcAttr{Dir: b.WorkDir, Env: b.Env, Files: []uintptr{0, 1, 2},
			Sys: &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: uint32(b.User), Gid: uint32(b.User)}}}
		pid, err := syscall.ForkExec(path, b.Command, attr)
		if err == nil {
			return pid, nil
		}
		if st, serr := os.Stat(b.WorkDir); serr != nil || !st.IsDir() {
			return 0, fmt.Errorf("work_dir %q is not a folder that it sees", b.WorkDir)
		}
		code, words = 126, err.Error()
	}
	// A process of the sandbox says it and ends so: then there is one way to an end.
	script := `printf '%s: %s\n' "$1" "$2" >&2; exit "$3"`
	return syscall.ForkExec("/bin/sh", []string{"sh", "-c", script, "sh", b.Command[0], words, strconv.Itoa(code)}, &syscall.ProcAttr{Dir: "/", Env: b.Env, Files: []uintptr{0, 1, 2},
		Sys: &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: uint32(b.User), Gid: uint32(b.User)}}})
}

// look finds the program by the job's own PATH.
func (b Box) look() (string, error) {
	name := b.Command[0]
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(b.WorkDir, name)
		}
		return name, runnable(name)
	}
	err := error(exec.ErrNotFound)
	for _, e := range b.Env {
		list, ok := strings.CutPrefix(e, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range filepath.SplitList(list) {
			path := filepath.Join(dir, name)
			switch rerr := runnable(path); {
			case rerr == nil:
				return path, nil
			case errors.Is(rerr, fs.ErrPermission):
				err = rerr
			}
		}
	}
	return "", err
}

func runnable(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	if st.IsDir() || st.Mode()&0o111 == 0 {
		return fs.ErrPermission
	}
	return nil
}

// filter refuses what outlives a job or leads around its limits, and no program of a job needs: keyrings belong to a user's
// number, which is used again; programs in the kernel and userfaultfd have been the way out of many a sandbox. All else is
// allowed: profilers and nested containers work.
var filter = seccomp.Filter{NoNewPrivs: true, Policy: seccomp.Policy{
	DefaultAction: seccomp.ActionAllow,
	Syscalls: []seccomp.SyscallGroup{{Action: seccomp.ActionErrno,
		Names: []string{"add_key", "keyctl", "request_key", "bpf", "userfaultfd", "kexec_load", "open_by_handle_at"}}},
}}

// harden takes from the thread that starts the job what the job must not have.
func harden() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	for c := uintptr(0); c <= 63; c++ {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			if errors.Is(err, unix.EINVAL) {
				break // the kernel knows no more of them
			}
			return fmt.Errorf("dropping capability %d: %w", c, err)
		}
	}
	// A keyring of its own, not the agent's.
	if _, _, err := unix.Syscall(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0); err != 0 && !errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("a keyring of its own: %w", err)
	}
	if err := seccomp.LoadFilter(filter); err != nil {
		return fmt.Errorf("system calls that it may not make: %w", err)
	}
	none := &unix.Rlimit{}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, none); err != nil {
		return err
	}
	// Devices pin memory; what a job may use is its control group's to say.
	unlimited := &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, unlimited); err != nil && !errors.Is(err, unix.EPERM) {
		return err
	}
	return nil
}

// reap waits for the job's program, and for whatever else was left to process 1 meanwhile.
func reap(child int) (code int) {
	for {
		var ws syscall.WaitStatus
		pid, err := retried(func() (int, error) { return syscall.Wait4(-1, &ws, 0, nil) })
		switch {
		case err != nil:
			return 255 // it is not our child: can't be
		case pid != child:
		case ws.Signaled():
			return 128 + int(ws.Signal())
		default:
			return ws.ExitStatus()
		}
	}
}

// buryFor is how long what a job left behind has to end when it is asked to.
const buryFor = 2 * time.Second

// bury ends what the job left behind: asked first, then killed. It returns how many there were.
func bury() int {
	left := others()
	if left == 0 {
		return 0
	}
	forward(unix.SIGTERM)
	for end := time.Now().Add(buryFor); time.Now().Before(end); {
		var ws syscall.WaitStatus
		pid, err := retried(func() (int, error) { return syscall.Wait4(-1, &ws, syscall.WNOHANG, nil) })
		if errors.Is(err, syscall.ECHILD) {
			return left
		}
		if pid == 0 {
			<-time.After(5 * time.Millisecond)
		}
	}
	return left // our own end is theirs
}

// others counts the live processes of the sandbox beside init.
func others() (n int) {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	for _, e := range names {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != 1 {
			if b, err := os.ReadFile("/proc/" + e.Name() + "/stat"); err == nil {
				if _, after, ok := strings.Cut(string(b), ") "); ok && !slices.Contains([]string{"Z", "X"}, after[:1]) {
					n++
				}
			}
		}
	}
	return n
}

// loopbackUp brings up the one interface of a network namespace of its own.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, r); err != nil {
		return err
	}
	r.SetUint16(r.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r)
}
