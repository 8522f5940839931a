// Package slurmtest runs a real Slurm for tests: munged, slurmctld, a slurmd for each node and slurmrestd, on loopback,
// all of them ended with the test. Its accelerators are not there: character devices stand in for them, so that Slurm
// counts, binds and shows them as it does real ones.
package slurmtest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Cluster is a running Slurm.
type Cluster struct {
	t    testing.TB
	dir  string
	user string

	Conf    string // slurm.conf, for the commands
	URL     string // of slurmrestd
	KeyFile string // of its tokens
	LogDir  string
	User    string

	procs map[string]*proc
}

type proc struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// Start runs a cluster "pool" with a partition of the same name, of nodes with gpus accelerators each. Names in future
// are declared and are no nodes yet. It skips where Slurm is not installed.
func Start(t testing.TB, nodes, future []string, gpus int) *Cluster {
	t.Helper()
	for _, p := range []string{"munged", "slurmctld", "slurmd", "slurmrestd", "squeue", "sbatch"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip("Slurm is not installed: ", p, " is missing (Debian: slurm-wlm slurmrestd slurm-wlm-jwt-plugin munge; `make test` installs it where it may)")
		}
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	// Not t.TempDir: the path of a socket has at most 107 bytes.
	dir, err := os.MkdirTemp("", "gpupool-slurm-")
	if err != nil {
		t.Fatal(err)
	}
	c := &Cluster{t: t, dir: dir, user: me.Username, User: me.Username, Conf: filepath.Join(dir, "etc", "slurm.conf"), KeyFile: filepath.Join(dir, "etc", "jwt.key"), LogDir: filepath.Join(dir, "out"), procs: map[string]*proc{}}
	t.Cleanup(func() {
		if t.Failed() {
			for _, what := range [][]string{{"sinfo", "--Node", "--format=%N %T %E"}, {"squeue", "--steps"}, {"scontrol", "show", "job", "--oneliner"}} {
				out, _ := c.Run(what[0], what[1:]...)
				t.Logf("%v:\n%s", what, tail([]byte(out), 8000))
			}
		}
		c.stop()
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(dir, "log", "slurm*.out"))
			for _, path := range logs {
				b, _ := os.ReadFile(path)
				t.Logf("%s:\n%s", filepath.Base(path), tail(b, 8000))
			}
		}
		_ = os.RemoveAll(dir)
	})
	for _, d := range []string{"etc", "log", "spool", "state", "munge", "dev", "out"} {
		c.must(os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	c.must(os.Chmod(dir, 0o755))
	c.must(os.Chmod(filepath.Join(dir, "munge"), 0o700))
	for i := range gpus {
		c.must(os.Symlink("/dev/null", filepath.Join(dir, "dev", fmt.Sprint("gpu", i)))) // plain files are refused
	}
	secret := func(path string, n int, mode os.FileMode) {
		b := make([]byte, n)
		_, err := rand.Read(b)
		c.must(err)
		c.must(os.WriteFile(path, b, mode))
	}
	secret(filepath.Join(dir, "munge", "munge.key"), 1024, 0o400)
	secret(c.KeyFile, 32, 0o600)
	ports := freePorts(t, 3+len(nodes)+len(future))
	c.URL = fmt.Sprintf("http://127.0.0.1:%d", ports[2])
	host, err := os.Hostname()
	c.must(err)
	host, _, _ = strings.Cut(host, ".")
	var conf strings.Builder
	fmt.Fprintf(&conf, `ClusterName=pool
SlurmctldHost=%[2]s(127.0.0.1)
SlurmUser=%[3]s
SlurmdUser=%[3]s
AuthType=auth/munge
AuthInfo=socket=%[1]s/munge/munge.sock
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key=%[1]s/etc/jwt.key
CredType=cred/munge
SlurmctldPort=%[4]d
SlurmdPort=%[5]d
StateSaveLocation=%[1]s/state
SlurmdSpoolDir=%[1]s/spool/%%n
SlurmctldPidFile=%[1]s/log/slurmctld.pid
SlurmdPidFile=%[1]s/log/slurmd-%%n.pid
SlurmctldLogFile=%[1]s/log/slurmctld.log
SlurmdLogFile=%[1]s/log/slurmd-%%n.log
SlurmctldDebug=info
SlurmdDebug=info
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
DefMemPerCPU=1000
PriorityType=priority/basic
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
MinJobAge=300
InactiveLimit=0
KillWait=2
SlurmctldTimeout=30
SlurmdTimeout=15
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
`, dir, host, c.user, ports[0], ports[1])
	for i, n := range append(append([]string{}, nodes...), future...) {
		state := "UNKNOWN"
		if i >= len(nodes) {
			state = "FUTURE"
		}
		fmt.Fprintf(&conf, "NodeName=%s NodeHostname=localhost NodeAddr=127.0.0.1 Port=%d CPUs=64 RealMemory=512000 Gres=gpu:%d State=%s\n", n, ports[3+i], gpus, state)
	}
	conf.WriteString("PartitionName=pool Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=60 State=UP OverSubscribe=NO\n")
	c.must(os.WriteFile(c.Conf, []byte(conf.String()), 0o644))
	c.must(os.WriteFile(filepath.Join(dir, "etc", "gres.conf"), fmt.Appendf(nil, "AutoDetect=off\nNodeName=%s Name=gpu Count=%d File=%s/dev/gpu[0-%d] Flags=nvidia_gpu_env\n", strings.Join(append(append([]string{}, nodes...), future...), ","), gpus, dir, gpus-1), 0o644))
	c.must(os.WriteFile(filepath.Join(dir, "etc", "cgroup.conf"), []byte("CgroupPlugin=cgroup/v1\n"), 0o644))

	m := filepath.Join(dir, "munge")
	c.spawn("munged", "munged", "--force", "--foreground", "--key-file="+m+"/munge.key", "--socket="+m+"/munge.sock", "--pid-file="+m+"/munged.pid", "--log-file="+m+"/munged.log", "--seed-file="+m+"/munge.seed", "--num-threads=4")
	c.await("munged's socket", func() bool { _, err := os.Stat(m + "/munge.sock"); return err == nil })
	c.StartController()
	for _, n := range nodes {
		c.StartNode(n)
	}
	c.StartREST()
	c.await("idle nodes", func() bool {
		out, _ := c.Run("sinfo", "--noheader", "--Node", "--states=idle", "--format=%N")
		return len(strings.Fields(out)) >= len(nodes)
	})
	return c
}

// StartController starts slurmctld, from its saved state where it ran before.
func (c *Cluster) StartController() {
	c.t.Helper()
	c.spawn("slurmctld", "slurmctld", "-D")
	c.await("slurmctld", func() bool { out, _ := c.Run("scontrol", "ping"); return strings.Contains(out, "UP") })
}

// StartNode starts a node's slurmd.
func (c *Cluster) StartNode(name string) {
	c.t.Helper()
	c.must(os.MkdirAll(filepath.Join(c.dir, "spool", name), 0o755))
	c.spawn("slurmd-"+name, "slurmd", "-D", "-N", name)
}

// StartREST starts slurmrestd.
func (c *Cluster) StartREST() {
	c.t.Helper()
	addr := strings.TrimPrefix(c.URL, "http://")
	c.spawn("slurmrestd", "slurmrestd", "-a", "rest_auth/jwt", "-s", "openapi/v0.0.38", addr)
	c.await("slurmrestd", func() bool {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	})
}

// Saved waits until slurmctld has written its jobs: what it acknowledged and did not write dies with it.
func (c *Cluster) Saved() {
	c.t.Helper()
	before := time.Now()
	id := c.Must("sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap", "true") // a change, so that there is something to write
	c.await("written jobs", func() bool {
		i, err := os.Stat(filepath.Join(c.dir, "state", "job_state"))
		return err == nil && i.ModTime().After(before)
	})
	c.Must("scancel", id)
}

// Forget has a controller that is ended begin with an empty state folder: it knows of no job, and gives ids out again from the
// first on.
func (c *Cluster) Forget() {
	c.t.Helper()
	c.must(os.RemoveAll(filepath.Join(c.dir, "state")))
	c.must(os.Mkdir(filepath.Join(c.dir, "state"), 0o700))
}

// Prolog has every node run a shell script before each job; one that fails keeps the job off.
func (c *Cluster) Prolog(script string) {
	c.t.Helper()
	path := filepath.Join(c.dir, "etc", "prolog")
	_, err := os.Stat(path)
	c.must(os.WriteFile(path+".new", []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	c.must(os.Rename(path+".new", path)) // one that runs can't be written
	if err == nil {
		return // it is set up
	}
	f, err := os.OpenFile(c.Conf, os.O_APPEND|os.O_WRONLY, 0)
	c.must(err)
	_, err = fmt.Fprintf(f, "Prolog=%s\n", path)
	c.must(errors.Join(err, f.Close()))
	c.Must("scontrol", "reconfigure")
}

// Kill ends slurmctld, slurmrestd or slurmd-NODE as kill -9 does.
func (c *Cluster) Kill(name string) {
	c.t.Helper()
	p := c.procs[name]
	if p == nil {
		c.t.Fatalf("%s does not run", name)
	}
	_ = p.cmd.Process.Kill()
	<-p.done
	delete(c.procs, name)
}

// Run runs one of Slurm's commands.
func (c *Cluster) Run(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "SLURM_CONF="+c.Conf)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Must is Run that has to work.
func (c *Cluster) Must(name string, args ...string) string {
	c.t.Helper()
	out, err := c.Run(name, args...)
	if err != nil {
		c.t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return strings.TrimSpace(out)
}

func (c *Cluster) spawn(name, program string, args ...string) {
	c.t.Helper()
	log, err := os.OpenFile(filepath.Join(c.dir, "log", name+".out"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	c.must(err)
	defer func() { _ = log.Close() }()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "SLURM_CONF="+c.Conf)
	if program == "slurmrestd" {
		cmd.Env = append(cmd.Env, "SLURM_JWT=daemon", "SLURMRESTD_SECURITY=disable_user_check")
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.must(cmd.Start())
	p := &proc{cmd, make(chan struct{})}
	go func() { _ = cmd.Wait(); close(p.done) }()
	c.procs[name] = p
}

// stop ends what jobs are left, then the daemons: the munged that all need goes last.
func (c *Cluster) stop() {
	if c.procs["slurmctld"] != nil && c.procs["munged"] != nil {
		_, _ = c.Run("scancel", "--user="+c.user, "--signal=KILL", "--full")
		_, _ = c.Run("scancel", "--user="+c.user)
	}
	for name, p := range c.procs {
		if name == "munged" {
			continue
		}
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
	}
	for name, p := range c.procs {
		if name == "munged" {
			continue
		}
		select {
		case <-p.done:
		case <-time.After(10 * time.Second):
			_ = p.cmd.Process.Kill()
			<-p.done
		}
	}
	if p := c.procs["munged"]; p != nil {
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	c.sweep()
}

// sweep ends what slurmd has left: a slurmstepd tries for an hour to tell a slurmctld that is gone how its job ended.
func (c *Cluster) sweep() {
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range all {
		b, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(append([]byte{0}, b...), []byte("\x00SLURM_CONF="+c.Conf+"\x00")) {
			continue // it has ended, or is not ours
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

func (c *Cluster) await(what string, ready func() bool) {
	c.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ready() {
		if time.Now().After(deadline) {
			c.t.Fatalf("Slurm: %s not there within 30 s", what)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func (c *Cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func freePorts(t testing.TB, n int) []int {
	t.Helper()
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

func tail(b []byte, n int) []byte { return b[max(0, len(b)-n):] }
