package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	Init()
	goleak.VerifyTestMain(m)
}

// host is this machine as a server that keeps jobs apart.
func host(t *testing.T) *Host {
	t.Helper()
	h, err := Open(t.Context(), filepath.Join(t.TempDir(), "state"), DefaultUsers)
	if err != nil {
		t.Skipf("jobs can't be kept apart here: %v", err)
	}
	return h
}

// run is one job that was started.
type run struct {
	t   *testing.T
	h   *Host
	b   Box
	pid int
}

// users counts those that were given out: tests run side by side, each job as a user of its own.
var users atomic.Int32

// start begins a shell script; n marks it.
func start(t *testing.T, h *Host, n int, script string, change func(*Box)) *run {
	t.Helper()
	b := Box{ID: fmt.Sprintf("%s/%d", t.Name(), n), Dir: t.TempDir(), User: h.users.First + int(users.Add(1)), Command: []string{"sh", "-c", script},
		Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "MARK=" + strconv.Itoa(n)}}
	if change != nil {
		change(&b)
	}
	pid, err := h.Start(b)
	if err != nil {
		t.Fatal(err)
	}
	r := &run{t, h, b, pid}
	t.Cleanup(func() {
		if r.pid != 0 {
			_ = syscall.Kill(r.pid, syscall.SIGKILL)
			r.end()
		}
	})
	return r
}

func (r *run) out() string {
	b, err := os.ReadFile(filepath.Join(r.b.Dir, OutFile))
	if err != nil {
		r.t.Fatal(err)
	}
	return string(b)
}

// says waits until the job has written the words.
func (r *run) says(words string) {
	r.t.Helper()
	for end := time.Now().Add(20 * time.Second); !strings.Contains(r.out(), words); <-time.After(5 * time.Millisecond) {
		if time.Now().After(end) {
			e, _ := ReadExit(r.b.Dir)
			r.t.Fatalf("it said %q, not %q (%+v)", r.out(), words, e)
		}
	}
}

// end waits for init's end, and for the proof that nothing is left.
func (r *run) end() Exit {
	r.t.Helper()
	var ws syscall.WaitStatus
	if _, err := retried(func() (int, error) { return syscall.Wait4(r.pid, &ws, 0, nil) }); err != nil {
		r.t.Fatal(err)
	}
	r.pid = 0
	if _, err := r.h.Sweep(context.Background(), r.b.ID, 10*time.Second); err != nil {
		r.t.Error(err)
	}
	if used, err := InUse(r.b.User); err != nil || used {
		r.t.Errorf("a process of user %d is left (%v)", r.b.User, err)
	}
	for _, dir := range r.h.group(r.b.ID).dirs() {
		if _, err := os.Stat(dir); err == nil {
			r.t.Errorf("%s is left", dir)
		}
	}
	e, _ := ReadExit(r.b.Dir)
	return e
}

// result runs a script to its end.
func result(t *testing.T, h *Host, script string, change func(*Box)) (string, Exit) {
	t.Helper()
	r := start(t, h, 1, script, change)
	e := r.end()
	return r.out(), e
}

func TestAJobRunsAsAUserOfItsOwnWithoutAnyPrivilege(t *testing.T) {
	t.Parallel()
	h := host(t)
	r := start(t, h, 1, `id -u; id -un; id -G; grep -E '^(Cap|NoNewPrivs|Groups|Seccomp:)' /proc/self/status; umask; pwd; echo $MARK; ulimit -c; ls -A /work /tmp`, nil)
	e := r.end()
	out, user := r.out(), strconv.Itoa(r.b.User)
	for _, want := range []string{user + "\njob\n" + user + "\n", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "CapInh:\t0000000000000000", "CapAmb:\t0000000000000000",
		"NoNewPrivs:\t1", "Seccomp:\t2", "Groups:\t \n", "0022\n/work\n1\n0\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q: %s", want, out)
		}
	}
	if e != (Exit{}) {
		t.Errorf("it ended as %+v: %s", e, out)
	}
}

// TestAJobCannotReachAnother: each try of the second job must fail, and the first must be as it was.
func TestAJobCannotReachAnother(t *testing.T) {
	t.Parallel()
	h := host(t)
	a := start(t, h, 1, `echo secret >/tmp/a; echo secret >/dev/shm/a; echo secret >/work/a; ipcmk -M 4096 >/dev/null; chmod 777 /tmp/a /dev/shm/a /work/a
		trap 'echo signalled' TERM HUP USR1; echo up; while :; do sleep 0.05; done`, nil)
	a.says("up")
	for name, try := range map[string]string{
		"sees its processes":                  `cat /proc/[0-9]*/cmdline | tr '\0' ' ' | grep 'signall[e]d'`,
		"reads its environment":               fmt.Sprintf(`cat /proc/%d/environ`, a.pid),
		"signals its init by number":          fmt.Sprintf(`kill -TERM %d`, a.pid),
		"signals all that it may":             `trap '' TERM; kill -TERM -1; sleep 0.1; grep -l MARK=1 /proc/*/environ`,
		"reads its files in /tmp":             `cat /tmp/a`,
		"reads its files in /dev/shm":         `cat /dev/shm/a`,
		"reads its files in /var/tmp":         `cat /var/tmp/a`,
		"reads its working folder":            `cat /work/a`,
		"reads its folder on the server":      `ls ` + a.b.Dir,
		"sees its shared memory":              `ipcs -m | grep -q 4096`,
		"sees the agent's folder":             `ls ` + h.state,
		"reads the server's control groups":   `ls /sys/fs/cgroup/*/*`,
		"writes to the system":                `touch /usr/x || touch /etc/x || touch /bin/x || touch /opt/x`,
		"writes to the root":                  `mkdir /x || touch /x || touch /var/x || touch /run/x`,
		"makes a device":                      `mknod /tmp/mem c 1 1 || mknod /work/sda b 8 0`,
		"uses a device that it was not given": `ls /dev/kmsg /dev/kvm /dev/mem /dev/sda /dev/vda /dev/loop-control`,
		"becomes root by a program that may":  `su root -c true || test "$(id -u)" = 0`,
		"mounts":                              `mount -t tmpfs none /tmp`,
		"sees the server's /run and /home":    `ls /run/systemd/system /home /root /var/lib /boot`,
		"sees the server's sockets":           `find /run /tmp -type s | grep .`,
		"signals its own init":                `kill -KILL 1`,
		"reads its init's memory":             `cat /proc/1/environ || ls /proc/1/root/ || ls /proc/1/fd/`,
		"changes the kernel's settings":       `echo 1 >/proc/sys/vm/overcommit_memory || echo x >/proc/sysrq-trigger`,
		"writes to another's log":             `echo forged >>` + filepath.Join(a.b.Dir, OutFile),
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, h, 2, try, nil)
			if e := b.end(); e.Err != "" || e.Code == 0 {
				t.Errorf("it could: %+v, %s", e, b.out())
			}
		})
	}
	if out := a.out(); strings.Contains(out, "signalled") || strings.Contains(out, "forged") {
		t.Errorf("the first job was reached: %s", out)
	}
}

func TestAJobSeesOnlyTheDevicesItWasGiven(t *testing.T) {
	t.Parallel()
	h := host(t)
	// The kernel's log stands for an accelerator: a device that only root may open on the server.
	r := start(t, h, 1, `ls /dev; stat -c '%u %a' /dev/kmsg; exec 3</dev/kmsg`, func(b *Box) { b.Devices = []string{"/dev/kmsg"} })
	r.end() // opening the kernel's log needs a capability besides
	out := r.out()
	if !strings.Contains(out, "kmsg\n") || !strings.Contains(out, strconv.Itoa(r.b.User)+" 600\n") {
		t.Errorf("it sees %s", out)
	}
	for _, never := range []string{"sda", "vda", "kvm", "mem", "loop", "fuse"} {
		if strings.Contains(out, never) {
			t.Errorf("it sees %s: %s", never, out)
		}
	}
	_, e := result(t, h, `true`, func(b *Box) { b.Devices = []string{"/dev/no-such"} })
	if !strings.Contains(e.Err, "device /dev/no-such") {
		t.Errorf("a device that is not there: %+v", e)
	}
	_, e = result(t, h, `true`, func(b *Box) { b.Devices = []string{"/etc/passwd"} })
	if !strings.Contains(e.Err, "is no device") {
		t.Errorf("a file as a device: %+v", e)
	}
}

func TestLimitsHoldForAllOfAJobTogether(t *testing.T) {
	t.Parallel()
	h := host(t)
	t.Run("memory", func(t *testing.T) {
		r := start(t, h, 1, `head -c 200m /dev/zero | tail -c 200m | wc -c; echo survived`, func(b *Box) { b.Limits.MemoryBytes = 64 << 20 })
		var ws syscall.WaitStatus
		if _, err := retried(func() (int, error) { return syscall.Wait4(r.pid, &ws, 0, nil) }); err != nil {
			t.Fatal(err)
		}
		kills := h.OOMKills(r.b.ID)
		if _, err := h.Sweep(t.Context(), r.b.ID, 10*time.Second); err != nil {
			t.Fatal(err)
		}
		r.pid = 0
		if kills == 0 || strings.Contains(r.out(), "209715200") {
			t.Errorf("200 MiB went into 64 MiB: %d kills, %s", kills, r.out())
		}
		if e, ok := ReadExit(r.b.Dir); !ok || e.Err != "" {
			t.Errorf("init did not outlive it: %+v", e)
		}
	})
	t.Run("memory in files of /dev/shm", func(t *testing.T) {
		out, e := result(t, h, `head -c 200m /dev/zero >/dev/shm/x; stat -c %s /dev/shm/x`, func(b *Box) { b.Limits.MemoryBytes = 64 << 20 })
		if strings.Contains(out, "209715200") {
			t.Errorf("200 MiB went into 64 MiB: %+v %s", e, out)
		}
	})
	t.Run("processes", func(t *testing.T) {
		out, _ := result(t, h, `n=0; for i in $(seq 100); do sleep 5 & n=$i; done; echo started $n`, func(b *Box) { b.Limits.PIDs = 20 })
		if strings.Contains(out, "started 100") || !strings.Contains(strings.ToLower(out), "fork") {
			t.Errorf("100 processes went into 20: %s", out)
		}
	})
	t.Run("CPU", func(t *testing.T) {
		r := start(t, h, 1, `echo up; while :; do :; done & while :; do :; done`, func(b *Box) { b.Limits.CPUs = 1 })
		r.says("up")
		for i, dir := range h.group(r.b.ID).dirs() {
			file, want := "cpu.cfs_quota_us", "100000"
			if h.trees[i].v2 {
				file, want = "cpu.max", "100000 100000"
			}
			if b, err := os.ReadFile(filepath.Join(dir, file)); err == nil && strings.TrimSpace(string(b)) != want {
				t.Errorf("%s is %q, not %q", file, b, want)
			}
		}
	})
}

func TestHowItEnds(t *testing.T) {
	t.Parallel()
	h := host(t)
	for name, c := range map[string]struct {
		script string
		change func(*Box)
		want   Exit
		out    string
	}{
		"well":                          {"true", nil, Exit{}, ""},
		"with a code":                   {"exit 7", nil, Exit{Code: 7}, ""},
		"by a signal":                   {"kill -SEGV $$", nil, Exit{Code: 139}, ""},
		"with processes left":           {"sleep 60 & setsid sleep 60 & trap '' TERM; exit 3", nil, Exit{Code: 3, Left: 2}, ""},
		"with one left that ignores it": {`sh -c 'trap "" TERM; sleep 60; true' & sleep 0.2; exit 0`, nil, Exit{Left: 2}, ""},
		"a program that is not there":   {"", func(b *Box) { b.Command = []string{"no-such-program"} }, Exit{Code: 127}, "no-such-program: not found\n"},
		"one that can't be run":         {"", func(b *Box) { b.Command = []string{"/etc/passwd"} }, Exit{Code: 126}, "/etc/passwd: permission denied\n"},
		"a folder that is not there":    {"", func(b *Box) { b.WorkDir = "/no/such" }, Exit{Err: `work_dir "/no/such" is not a folder that it sees`}, ""},
		"its own folder by another way": {"pwd; echo x >y; cat /work/y", func(b *Box) { b.WorkDir = "/work" }, Exit{}, "/work\nx\n"},
		"what it opens anew":            {"echo a >/dev/stdout; echo b >>/dev/stderr", nil, Exit{}, "a\nb\n"},
	} {
		t.Run(name, func(t *testing.T) {
			out, e := result(t, h, c.script, c.change)
			if diff := cmp.Diff(c.want, e); diff != "" || !strings.Contains(out, c.out) {
				t.Errorf("%s output %q", diff, out)
			}
		})
	}
}

func TestSignalsReachEveryProcess(t *testing.T) {
	t.Parallel()
	h := host(t)
	r := start(t, h, 1, `setsid sh -c 'trap "echo far; exit 0" USR1; while :; do sleep 0.02; done' & trap 'echo near; wait; exit 5' USR1; sleep 0.2; echo up; while :; do sleep 0.02; done`, nil)
	r.says("up")
	if err := syscall.Kill(r.pid, syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	e := r.end()
	if out := r.out(); e.Code != 5 || !strings.Contains(out, "near") || !strings.Contains(out, "far") {
		t.Errorf("it ended as %+v: %s", e, out)
	}
}

func TestKillingInitEndsAll(t *testing.T) {
	t.Parallel()
	h := host(t)
	r := start(t, h, 1, `setsid sh -c 'trap "" TERM HUP; sleep 60' & env -i setsid sleep 60 & echo up; wait`, nil)
	r.says("up")
	if err := syscall.Kill(r.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.end() // which looks for processes of its user
	if _, ok := ReadExit(r.b.Dir); ok {
		t.Error("it left a status")
	}
}

func TestNetworks(t *testing.T) {
	t.Parallel()
	h := host(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	try := fmt.Sprintf(`bash -c 'exec 3<>/dev/tcp/127.0.0.1/%d'`, port)
	if out, e := result(t, h, try, nil); e.Code != 0 {
		t.Errorf("with the server's network: %+v %s", e, out)
	}
	out, e := result(t, h, `tail -n +3 /proc/net/dev | wc -l; cat /sys/class/net/lo/operstate >/dev/null; `+try, func(b *Box) { b.Network = NetworkNone })
	if e.Code == 0 || !strings.HasPrefix(out, "1\n") || !strings.Contains(out, "refused") {
		t.Errorf("with none: %+v %s", e, out)
	}
}

func TestMountsThatWereAskedFor(t *testing.T) {
	t.Parallel()
	h := host(t)
	data := t.TempDir()
	if err := os.WriteFile(filepath.Join(data, "f"), []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(data, 0o777); err != nil {
		t.Fatal(err)
	}
	with := func(mounts ...Mount) func(*Box) { return func(b *Box) { b.Mounts = mounts } }
	if out, e := result(t, h, "cat /data/f; touch /data/g", with(Mount{data, "/data", false})); out != "hello\n" || e != (Exit{}) {
		t.Errorf("%+v %s", e, out)
	}
	if out, e := result(t, h, "cat /deep/down/f; touch /deep/down/h", with(Mount{data, "/deep/down", true})); !strings.HasPrefix(out, "hello\n") || e.Code == 0 {
		t.Errorf("%+v %s", e, out)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/etc", link); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		mounts []Mount
		want   string
	}{
		"a source that is not there":     {[]Mount{{"/no/such", "/data", true}}, "/no/such"},
		"a source through a link":        {[]Mount{{link, "/data", true}}, "there is a link in it"},
		"a file":                         {[]Mount{{filepath.Join(data, "f"), "/data", true}}, "not a directory"},
		"a target that climbs out":       {[]Mount{{data, "/../../tmp", true}}, "not an absolute path"},
		"a target over the system":       {[]Mount{{data, "/usr/bin", true}}, "lie in each other"},
		"a target over its own folder":   {[]Mount{{data, "/work/x", true}}, "lie in each other"},
		"the root":                       {[]Mount{{data, "/", true}}, "not an absolute path"},
		"one in another, through a link": {[]Mount{{data, "/data", false}, {data, "/data/x", true}}, "lie in each other"},
		"one above another":              {[]Mount{{data, "/data/x", false}, {data, "/data", true}}, "lie in each other"},
	} {
		t.Run(name, func(t *testing.T) {
			if out, e := result(t, h, "ls /data", with(c.mounts...)); !strings.Contains(e.Err, c.want) {
				t.Errorf("%+v, want %q; %s", e, c.want, out)
			}
		})
	}
}

// image makes a folder with a shell and what it links, and what else is wanted: path -> content, or -> a link's target after "->".
func image(t *testing.T, more map[string]string) (dir string, root []Layer) {
	t.Helper()
	dir = t.TempDir()
	shell, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"/bin/sh": shell}
	out, err := exec.Command("ldd", shell).Output()
	if err != nil {
		t.Skipf("what a shell links can't be told: %v", err)
	}
	for word := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(word, "/") {
			files[word] = word
		}
	}
	put := func(path string, content []byte, mode os.FileMode) {
		path = filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, mode)); err != nil {
			t.Fatal(err)
		}
	}
	for at, from := range files {
		content, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		put(at, content, 0o755)
	}
	for path, content := range more {
		if to, link := strings.CutPrefix(content, "->"); link {
			if err := os.Symlink(to, filepath.Join(dir, path)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		put(path, []byte(content), 0o644)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir, []Layer{{Source: dir, Flags: unix.MS_BIND}}
}

func TestARootOfItsOwn(t *testing.T) {
	t.Parallel()
	h := host(t)
	dir, root := image(t, map[string]string{"/etc/release": "an image\n", "/etc/passwd": "root:x:0:0::/:/bin/sh\n", "/lib/libx.so": "the image's", "/open/f": "before"})
	data := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(data, "f"), nil, 0o644), os.Chmod(data, 0o755), os.Chmod(filepath.Join(dir, "open"), 0o777)); err != nil {
		t.Fatal(err)
	}
	out, e := result(t, h, `read line </etc/release; echo "$line"; while read line; do echo "$line"; done </etc/passwd; echo x >/work/x && echo /work/*; echo /usr/bin/* /data/* /dev/n*; echo /usr/local/nvidia/lib64/*; echo y >/open/y && echo /open/*; echo z >/bin/z`, func(b *Box) {
		b.Root, b.Mounts, b.Libraries = root, []Mount{{data, "/data", true}}, []string{"/etc/os-release"}
	})
	for _, want := range []string{"an image\n", "job:x:19", "/work/x\n", "/usr/bin/* /data/f /dev/null\n", "/usr/local/nvidia/lib64/os-release\n", "/open/f /open/y\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q: %+v %s", want, e, out)
		}
	}
	if e.Code == 0 {
		t.Errorf("it wrote to a folder of root's in its image: %s", out)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*", "[yz]")); err != nil || len(left) > 0 {
		t.Errorf("the image itself holds %v now (%v)", left, err)
	}
}

// TestAnImageLeadsNowhere: links in an image, which a root that is filled from outside would follow on the server.
func TestAnImageLeadsNowhere(t *testing.T) {
	t.Parallel()
	h := host(t)
	for _, at := range []string{"/work", "/tmp", "/dev", "/etc", "/run", "/proc", "/data", "/usr"} {
		t.Run(at, func(t *testing.T) {
			outside, data := t.TempDir(), t.TempDir()
			if err := errors.Join(os.Chmod(outside, 0o777), os.Chmod(data, 0o777)); err != nil {
				t.Fatal(err)
			}
			_, root := image(t, map[string]string{at: "->" + outside})
			out, e := result(t, h, `echo x >`+at+`/x`, func(b *Box) {
				b.Root, b.Mounts, b.Libraries = root, []Mount{{data, "/data/d", true}}, []string{"/etc/os-release"}
			})
			if e.Err == "" {
				t.Errorf("it ran, with a link where its own are to be: %+v %s", e, out)
			}
			if files, err := os.ReadDir(outside); err != nil || len(files) > 0 {
				t.Errorf("the server's folder holds %v (%v)", files, err)
			}
		})
	}
}

func TestWhereControlGroupsAre(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mounts, self string
		want         []tree
	}{
		"version 2": {"30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate", "0::/system.slice/gpupool-agent.service",
			[]tree{{base: "/sys/fs/cgroup/gpupool", v2: true}}},
		"version 1": {"31 24 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n32 24 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n33 24 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n34 24 0:30 / /sys/fs/cgroup/net_cls rw - cgroup cgroup rw,net_cls",
			"1:name=systemd:/x\n4:cpu,cpuacct:/system.slice\n5:memory:/system.slice/a\n6:net_cls:/",
			[]tree{{base: "/sys/fs/cgroup/cpu,cpuacct/system.slice/gpupool", controllers: []string{"cpu"}}, {base: "/sys/fs/cgroup/memory/system.slice/a/gpupool", controllers: []string{"memory"}}}},
		"version 1 in a container": {"33 24 0:29 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory", "5:memory:/docker/abc",
			[]tree{{base: "/sys/fs/cgroup/memory/gpupool", controllers: []string{"memory"}}}},
		"none": {"20 1 0:19 / /proc rw - proc proc rw", "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, findTrees([]byte(c.mounts), []byte(c.self)), cmp.AllowUnexported(tree{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAnExitThatWasCutShortIsNone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for content, want := range map[string]*Exit{
		noStatus: nil, "": nil, "13": nil, "137\n": {Code: 137}, "0\n4\n      ": {Left: 4}, "!mount /usr: denied\n": {Err: "mount /usr: denied"}, "!mount": nil, "x\n": nil,
	} {
		if err := os.WriteFile(filepath.Join(dir, ExitFile), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		got, ok := ReadExit(dir)
		if ok != (want != nil) || ok && got != *want {
			t.Errorf("%q is read as %+v, %v", content, got, ok)
		}
	}
}

func TestWhyJobsAreNotKeptApart(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		if _, err := Open(t.Context(), t.TempDir(), DefaultUsers); err == nil || !strings.Contains(err.Error(), "not root") {
			t.Errorf("the reason is %v", err)
		}
		return
	}
	if _, err := Open(t.Context(), t.TempDir(), Users{First: 1<<31 - 10, Count: 100}); err == nil || !strings.Contains(err.Error(), "no range of user ids") {
		t.Errorf("the reason is %v", err)
	}
}

func TestTheDiskThatIsUsed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a", "b", "f"), bytes.Repeat([]byte("x"), 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := Used(t.Context(), dir); err != nil || n < 1<<20 || n > 1<<20+1<<16 {
		t.Errorf("%d bytes (%v)", n, err)
	}
}
