package agent_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent"
	"gpupool/worker/agent/agenttest"
	"gpupool/worker/agent/proc"
)

func TestAJobRunsWithItsDevicesAndItsEndIsReported(t *testing.T) {
	w := newWorld(t, nil)
	w.start()
	w.api.Give(w.server, agenttest.Run("job/1/1/s", 7, agentproto.Run{
		Job: "1", Attempt: 3, Devices: []string{"S2", "S5"}, Rank: 1, Nodes: 2, Peers: []string{"a", "b"}, Env: map[string]string{"X": "y", "CUDA_VISIBLE_DEVICES": "0"},
		Command: []string{"sh", "-c", `echo "$CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES $GPUPOOL_JOB $GPUPOOL_ATTEMPT $GPUPOOL_RANK $GPUPOOL_NODES $GPUPOOL_PEERS $X"; exit 3`},
	}))
	r := w.end("job/1/1/s")
	if r.State != schema.TaskFailed || r.ExitCode == nil || *r.ExitCode != 3 || !r.NoneLeft {
		t.Errorf("the end is %+v; a failed task with exit code 3 and nothing left is right", r)
	}
	if want := "GPU-2,GPU-5 GPU-2,GPU-5 1 3 1 2 a,b y\n"; r.Output != want {
		t.Errorf("the job saw %q, not %q", r.Output, want)
	}
	if strings.Join(r.Devices, " ") != "S2 S5" {
		t.Errorf("bound devices are %v", r.Devices)
	}
}

func TestHowAProgramEnds(t *testing.T) {
	w := newWorld(t, nil)
	w.start()
	for name, c := range map[string]struct {
		command []string
		state   schema.TaskState
		code    int
		signal  string
		output  string
	}{
		"success":                              {[]string{"true"}, schema.TaskDone, 0, "", ""},
		"a signal":                             {[]string{"sh", "-c", "kill -SEGV $$"}, schema.TaskFailed, 139, "SIGSEGV", ""},
		"a program that is not there":          {[]string{"no-such-program"}, schema.TaskFailed, 127, "", "not found"},
		"a word of the shell is no program":    {[]string{"exit", "0"}, schema.TaskFailed, 127, "", "not found"},
		"arguments are not read by a shell":    {[]string{"printf", "%s", "$HOME `id` ; 'x'"}, schema.TaskDone, 0, "", "$HOME `id` ; 'x'"},
		"both outputs are kept, in order":      {[]string{"sh", "-c", "echo a; echo b >&2; echo c"}, schema.TaskDone, 0, "", "a\nb\nc\n"},
		"it reads nothing":                     {[]string{"cat"}, schema.TaskDone, 0, "", ""},
		"it begins in a folder of its own":     {[]string{"sh", "-c", "ls -A; basename $PWD"}, schema.TaskDone, 0, "", "work\n"},
		"the agent's environment is not its":   {[]string{"sh", "-c", "echo ${USER-none}${AGENT_TEST_CONFIG-none}"}, schema.TaskDone, 0, "", "nonenone\n"},
		"it ends all the same after a SIGTERM": {[]string{"sh", "-c", "kill -TERM 0; sleep 5"}, schema.TaskFailed, 143, "SIGTERM", ""},
	} {
		t.Run(name, func(t *testing.T) {
			id := "job/" + name
			w.run(id, 1, nil, c.command...)
			r := w.end(id)
			if r.State != c.state || r.ExitCode == nil || *r.ExitCode != c.code || r.Signal != c.signal || !strings.Contains(r.Output, c.output) || !r.NoneLeft {
				t.Errorf("it ended as %s (code %v, signal %q, text %q, output %q)", r.State, deref(r.ExitCode), r.Signal, r.Text, r.Output)
			}
		})
	}
}

func deref(p *int) any {
	if p == nil {
		return nil
	}
	return *p
}

func TestATaskIsRefusedBeforeAnythingOfItRuns(t *testing.T) {
	w := newWorld(t, nil)
	w.start()
	w.run("held", 5, []string{"S0"}, "sleep", "60")
	w.until("it runs", func() bool { return len(w.api.Reports("held")) > 0 })
	w.run("old", 9, []string{"S1"}, "true")
	w.end("old")
	for name, c := range map[string]struct {
		task agentproto.Task
		want string
	}{
		"a device of a job that lives": {agenttest.Run("a", 6, agentproto.Run{Command: []string{"true"}, Devices: []string{"S0"}}), "held by task held"},
		"the same by another name":     {agenttest.Run("b", 6, agentproto.Run{Command: []string{"true"}, Devices: []string{"GPU-0"}}), "held by task held"},
		"an epoch that has passed":     {agenttest.Run("c", 8, agentproto.Run{Command: []string{"true"}, Devices: []string{"S1"}}), "epoch 8 is stale"},
		"a device of another server":   {agenttest.Run("d", 9, agentproto.Run{Command: []string{"true"}, Devices: []string{"ZZ"}}), "no device ZZ"},
		"no program":                   {agenttest.Run("e", 9, agentproto.Run{}), "names no program"},
		"a folder that is not there":   {agenttest.Run("f", 9, agentproto.Run{Command: []string{"true"}, WorkDir: "/no/such"}), "work_dir"},
		"a kind from the future":       {agenttest.Look("g", "dance", nil), "no task of kind"},
		"a payload that is none":       {agentproto.Task{ID: "h", Kind: schema.TaskRun, Payload: json.RawMessage(`{"command":3}`)}, "payload"},
	} {
		t.Run(name, func(t *testing.T) {
			w.api.Give(w.server, c.task)
			r := w.end(c.task.ID)
			if r.State != schema.TaskFailed || !strings.Contains(r.Text, c.want) || !r.NoneLeft {
				t.Errorf("it was answered %s %q; refused with %q is right", r.State, r.Text, c.want)
			}
		})
	}
	w.api.Give(w.server, agentproto.Task{ID: "held", Kind: schema.TaskRun, Stop: true})
	w.end("held")
}

func TestAStopEndsEveryProcessOfAJob(t *testing.T) {
	w := newWorld(t, nil)
	w.start()
	stop := func(id string, grace int64, signal string) agentproto.TaskReport {
		w.until("it says that it is up", func() bool {
			out := ""
			for _, r := range w.api.Reports(id) {
				out += r.Output
			}
			return strings.Contains(out, "up")
		})
		w.api.Give(w.server, agentproto.Task{ID: id, Kind: schema.TaskRun, Stop: true, GraceMS: grace, Signal: signal})
		return w.end(id)
	}
	t.Run("one that obeys ends with its own code", func(t *testing.T) {
		w.run("obeys", 1, nil, "sh", "-c", `trap 'echo saving; exit 7' TERM; echo up; while :; do sleep 0.02; done`)
		r := stop("obeys", 5000, "")
		if r.State != schema.TaskCancelled || r.ExitCode == nil || *r.ExitCode != 7 || !strings.Contains(r.Output, "saving") || !r.NoneLeft {
			t.Errorf("it ended as %+v", r)
		}
	})
	t.Run("the signal is the one that was named", func(t *testing.T) {
		w.run("usr1", 1, nil, "sh", "-c", `trap 'exit 9' USR1; echo up; while :; do sleep 0.02; done`)
		if r := stop("usr1", 5000, "SIGUSR1"); deref(r.ExitCode) != 9 {
			t.Errorf("it ended as %+v", r)
		}
	})
	t.Run("one that ignores it is killed after its grace", func(t *testing.T) {
		w.run("deaf", 1, nil, "sh", "-c", `trap '' TERM; echo up; while :; do sleep 0.02; done`)
		r := stop("deaf", 100, "")
		if r.State != schema.TaskCancelled || r.Signal != "SIGKILL" || !r.NoneLeft {
			t.Errorf("it ended as %+v", r)
		}
	})
	t.Run("children that left its group and session are ended too", func(t *testing.T) {
		w.run("scatter", 1, nil, "sh", "-c", `setsid sh -c 'trap "" TERM; sleep 61' & sleep 62 & echo up; wait`)
		if r := stop("scatter", 200, ""); r.State != schema.TaskCancelled || !r.NoneLeft {
			t.Errorf("it ended as %+v", r)
		}
	})
	t.Run("one that was never begun is answered, and never is", func(t *testing.T) {
		w.api.Give(w.server, agentproto.Task{ID: "never", Kind: schema.TaskRun, Stop: true})
		if r := w.end("never"); r.State != schema.TaskCancelled || !r.NoneLeft {
			t.Errorf("it ended as %+v", r)
		}
		w.run("never", 1, nil, "sh", "-c", "echo ran")
		w.run("after", 1, nil, "true")
		w.end("after")
		for _, r := range w.api.Reports("never") {
			if strings.Contains(r.Output, "ran") {
				t.Error("a task ran after it was stopped")
			}
		}
	})
}

func TestWhatAJobLeavesBehindIsKilledBeforeItsDevicesAreFree(t *testing.T) {
	w := newWorld(t, nil)
	w.start()
	w.run("daemon", 1, []string{"S0"}, "sh", "-c", `setsid sh -c 'trap "" TERM; sleep 60' >/dev/null 2>&1 & env -i sleep 60 & echo main ended`)
	r := w.end("daemon")
	if r.State != schema.TaskDone || !r.NoneLeft || !strings.Contains(r.Text, "left behind were killed") {
		t.Errorf("it ended as %+v", r)
	}
	w.run("next", 2, []string{"S0"}, "true")
	if r := w.end("next"); r.State != schema.TaskDone {
		t.Errorf("the device was not free: %+v", r)
	}
}

func TestOutputIsKeptToItsCapAndSaysSo(t *testing.T) {
	w := newWorld(t, func(c *agent.Config) { c.Output = 300 << 10 })
	w.start()
	w.run("long", 1, nil, "sh", "-c", `i=0; while [ $i -lt 40000 ]; do echo "line $i äöü"; i=$((i+1)); done`)
	r := w.end("long")
	if n := len(r.Output); n > 300<<10 || n < 300<<10-3 || !strings.HasPrefix(r.Output, "line 0 äöü\nline 1 äöü\n") || !strings.Contains(r.Text, "cut after 307200 bytes") {
		t.Errorf("%d bytes of output, text %q", len(r.Output), r.Text)
	}
	if i := strings.IndexRune(r.Output, '�'); i >= 0 {
		t.Errorf("a rune was cut in two at byte %d", i)
	}
}

func TestAJobOutlivesItsAgentAndIsAdopted(t *testing.T) {
	w := newWorld(t, nil)
	gate := filepath.Join(t.TempDir(), "gate")
	stop := w.start()
	w.run("long", 4, []string{"S0"}, "sh", "-c", "echo begun; while [ ! -e "+gate+" ]; do sleep 0.02; done; echo ended; exit 5")
	w.until("it says so", func() bool {
		r := w.api.Reports("long")
		return len(r) > 0 && strings.Contains(r[len(r)-1].Output, "begun")
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.run("other", 5, []string{"S0"}, "true")
	if r := w.end("other"); !strings.Contains(r.Text, "held by task long") {
		t.Errorf("its device was given out again: %+v", r)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := w.end("long"); deref(r.ExitCode) != 5 || r.Output != "begun\nended\n" || !r.NoneLeft {
		t.Errorf("it ended as %+v", r)
	}
}

func TestAJobThatEndedWhileTheAgentWasDown(t *testing.T) {
	w := newWorld(t, nil)
	gate := filepath.Join(t.TempDir(), "gate")
	stop := w.start()
	w.run("a", 1, nil, "sh", "-c", "while [ ! -e "+gate+" ]; do sleep 0.02; done; exit 6")
	w.run("b", 1, nil, "sleep", "60")
	w.until("both run", func() bool { return len(w.api.Reports("a")) > 0 && len(w.api.Reports("b")) > 0 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	table := proc.New("")
	gone := func(id string, kill bool) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); ; {
			ps, err := table.Find(t.Context(), proc.Query{Marks: []string{"GPUPOOL_TASK=" + id, "GPUPOOL_SERVER=" + w.server}})
			if err != nil {
				t.Fatal(err)
			}
			if len(ps) == 0 {
				return
			}
			for _, p := range ps {
				if kill {
					_ = syscall.Kill(p.PID, syscall.SIGKILL)
				}
			}
			if time.Now().After(end) {
				t.Fatal("it doesn't end")
			}
		}
	}
	gone("a", false)
	gone("b", true)
	w.start()
	if r := w.end("a"); deref(r.ExitCode) != 6 || !r.NoneLeft {
		t.Errorf("it ended as %+v", r)
	}
	if r := w.end("b"); r.State != schema.TaskFailed || !strings.Contains(r.Text, "left no exit status") || !r.NoneLeft {
		t.Errorf("it ended as %+v", r)
	}
}

func TestAJobEndsWithItsStatusThoughTheDiskIsFull(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("a small disk can't be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	w := newWorld(t, func(c *agent.Config) { c.StateDir = filepath.Join(dir, "state") })
	gate := filepath.Join(t.TempDir(), "gate")
	stop := w.start()
	wait := "while [ ! -e " + gate + " ]; do sleep 0.02; done; exit "
	w.run("a", 1, []string{"S0"}, "sh", "-c", wait+"0")
	w.run("b", 1, []string{"S1"}, "sh", "-c", wait+"130")
	w.until("both run", func() bool { return len(w.api.Reports("a")) > 0 && len(w.api.Reports("b")) > 0 })
	fill := filepath.Join(dir, "fill")
	if err := os.WriteFile(fill, make([]byte, 2<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling the disk gave %v", err)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := w.end("a"); r.State != schema.TaskDone || deref(r.ExitCode) != 0 {
		t.Errorf("it ended as %+v", r)
	}
	if r := w.end("b"); deref(r.ExitCode) != 130 {
		t.Errorf("it ended as %+v", r)
	}
	// once there is room again the agent goes on, in this life and in the next
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	w.run("c", 2, []string{"S0"}, "true")
	if r := w.end("c"); r.State != schema.TaskDone {
		t.Errorf("it ended as %+v", r)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.run("d", 3, []string{"S0"}, "true")
	if r := w.end("d"); r.State != schema.TaskDone {
		t.Errorf("it ended as %+v", r)
	}
}

func TestAServerThatRestartedLostItsJobs(t *testing.T) {
	w := newWorld(t, nil)
	stop := w.start()
	w.run("lost", 1, []string{"S0"}, "sleep", "60")
	w.until("it runs", func() bool { return len(w.api.Reports("lost")) > 0 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for left := true; left; { // the power goes
		marks, err := proc.New("").Marks("GPUPOOL_SERVER")
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range marks[w.server] {
			_ = syscall.Kill(p.PID, syscall.SIGKILL)
		}
		left = len(marks[w.server]) > 0
	}
	m := w.cfg.Machine()
	m.BootID = "boot-2"
	w.cfg.Machine = func() agent.Machine { return m }
	w.start()
	if r := w.end("lost"); r.State != schema.TaskFailed || !strings.Contains(r.Text, "restarted") || !r.NoneLeft {
		t.Errorf("it ended as %+v", r)
	}
}

// project is a project's own user id.
const project = 5001

// TestKilledAtAnyMoment kills the agent with SIGKILL again and again while jobs come and go. Each job writes a line
// when it runs; in the end each has run once at most, and every one that ran is known to have.
func TestKilledAtAnyMoment(t *testing.T) {
	t.Run("jobs as the agent's user", func(t *testing.T) { killAtAnyMoment(t, newWorld(t, nil), 0) })
	t.Run("jobs kept apart", func(t *testing.T) {
		first := freshRange()
		killAtAnyMoment(t, newWorld(t, func(c *agent.Config) { apart(t, c, first) }), first)
	})
}

func killAtAnyMoment(t *testing.T, w *world, users int) {
	dir := t.TempDir()
	file := filepath.Join(dir, "phone-home.json")
	b, err := json.Marshal(w.cfg.PhoneHome)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	begin := func() *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "AGENT_TEST_CONFIG="+file, fmt.Sprintf("AGENT_TEST_USERS=%d", users))
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	const jobs, rounds = 60, 6
	ran := filepath.Join(dir, "ran")
	if err := errors.Join(os.Mkdir(ran, 0o700), os.Chown(ran, project, project)); err != nil && users != 0 {
		t.Fatal(err)
	}
	cmd := begin()
	w.until("it is up", func() bool { return len(w.api.Heartbeats(w.server)) > 0 })
	for i := range jobs {
		id := fmt.Sprintf("job/%d", i)
		// mkdir fails on the second run of the same job
		at := ran
		r := agentproto.Run{}
		if users != 0 {
			at = "/ran"
			r = agentproto.Run{User: project, Mounts: []agentproto.Mount{{Source: ran, Target: at}}, Allow: []string{dir}}
		}
		r.Command = []string{"sh", "-c", fmt.Sprintf("mkdir %s/%d || touch %s/%d/twice; sleep 0.0%d; echo done", at, i, at, i, i%10)}
		w.give(id, 1, r)
		if i%(jobs/rounds) == jobs/rounds-1 {
			if i%2 == 1 {
				w.until("some of it ran", func() bool { return len(w.api.Reports(fmt.Sprintf("job/%d", i-3))) > 0 })
			}
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			cmd = begin()
		}
	}
	known := 0
	for i := range jobs {
		r := w.end(fmt.Sprintf("job/%d", i))
		_, err := os.Stat(filepath.Join(ran, strconv.Itoa(i)))
		switch {
		case r.State == schema.TaskDone && err == nil && r.Output == "done\n" && r.NoneLeft:
			known++
		case r.State == schema.TaskFailed && r.NoneLeft && (strings.Contains(r.Text, "not known to have run") || strings.Contains(r.Text, "left no exit status")):
		default:
			t.Errorf("job %d ended as %+v; it ran: %v", i, r, err == nil)
		}
	}
	if twice, err := filepath.Glob(ran + "/*/twice"); err != nil || len(twice) > 0 {
		t.Errorf("ran twice: %v (%v)", twice, err)
	}
	if known < jobs-2*rounds {
		t.Errorf("only %d of %d jobs are known to have run", known, jobs)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}
