package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent"
	"gpupool/worker/agent/accelerator"
	"gpupool/worker/agent/agenttest"
	"gpupool/worker/agent/proc"
)

// TestMain runs an agent instead of the tests where it is asked to: the one that is killed.
func TestMain(m *testing.M) {
	if file := os.Getenv("AGENT_TEST_CONFIG"); file != "" {
		p, err := agent.ReadPhoneHome(file)
		if err == nil {
			cfg := config(p, filepath.Dir(file))
			cfg.Readers = []accelerator.Reader{newReader(8)}
			err = agent.New(cfg).Run(context.Background())
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// reader is a vendor's driver with n devices that tests change.
type reader struct {
	mu      sync.Mutex
	devices []agentproto.Device
	hang    chan struct{} // readings wait for it
	signs   chan accelerator.Sign
}

func newReader(n int) *reader {
	r := &reader{signs: make(chan accelerator.Sign, 16)}
	for i := range n {
		r.devices = append(r.devices, agentproto.Device{
			Vendor: schema.VendorNVIDIA, Model: "nvidia-h100-80gb", Serial: fmt.Sprintf("S%d", i), UUID: fmt.Sprintf("GPU-%d", i),
			PCI: fmt.Sprintf("0000:%02x:00.0", i+16), Slot: fmt.Sprintf("SXM%d", i+1), Index: i, MemoryBytes: 80 << 30,
			Samples: map[string]float64{
				accelerator.Temperature: 40, accelerator.TemperatureLimit: 87, accelerator.ECCUncorrected: 0,
				accelerator.RemappedRows: 0, accelerator.PCIeWidth: 16, accelerator.PCIeWidthMax: 16, accelerator.PCIeGen: 5,
				accelerator.PCIeGenMax: 5, accelerator.LinksUp: 18, accelerator.LinksTotal: 18,
			},
		})
	}
	return r
}

func (r *reader) Vendor() schema.Vendor                  { return schema.VendorNVIDIA }
func (r *reader) Driver(context.Context) (string, error) { return "570.86.15", nil }
func (r *reader) change(f func(d []agentproto.Device) []agentproto.Device) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.devices = f(r.devices)
}

func (r *reader) Read(context.Context) ([]agentproto.Device, error) {
	r.mu.Lock()
	hang := r.hang
	r.mu.Unlock()
	if hang != nil {
		<-hang
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]agentproto.Device, len(r.devices))
	for i, d := range r.devices {
		out[i] = d
		out[i].Samples = map[string]float64{}
		for k, v := range d.Samples {
			out[i].Samples[k] = v
		}
	}
	return out, nil
}

func (r *reader) Watch(ctx context.Context, emit func(accelerator.Sign)) error {
	for {
		select {
		case s := <-r.signs:
			emit(s)
		case <-ctx.Done():
			return nil
		}
	}
}

func config(p agent.PhoneHome, dir string) agent.Config {
	return agent.Config{
		PhoneHome: p, StateDir: filepath.Join(dir, "state"), Version: "test", PollWait: 2 * time.Second,
		Progress: 50 * time.Millisecond, Grace: 2 * time.Second, RetryMin: 10 * time.Millisecond, RetryMax: 100 * time.Millisecond,
		Log:     slog.New(slog.DiscardHandler),
		Runtime: func(context.Context) (string, error) { return "containerd 2.1.4", nil },
		Machine: func() agent.Machine {
			return agent.Machine{BootID: "boot-1", Serial: "CH1", UUID: "u-1", Hostname: "r1s1", CPUs: 112, MemoryBytes: 2 << 40}
		},
	}
}

// world is an API and an agent that has registered with it.
type world struct {
	t      *testing.T
	api    *agenttest.API
	reader *reader
	server string
	cfg    agent.Config
}

func newWorld(t *testing.T, change func(*agent.Config)) *world {
	t.Parallel()
	w := &world{t: t, api: agenttest.New(), reader: newReader(8), server: "srv-" + strconv.FormatInt(time.Now().UnixNano(), 36) + strings.Map(plain, t.Name())}
	t.Cleanup(func() {
		for _, f := range w.api.Faults() {
			t.Error(f)
		}
		w.api.Close()
		left, err := proc.New("").Marks("GPUPOOL_SERVER")
		if err != nil {
			t.Error(err)
		}
		for _, p := range left[w.server] {
			t.Errorf("process %d (%s) is left", p.PID, p.Command)
			_ = syscall.Kill(p.PID, syscall.SIGKILL)
		}
	})
	w.api.Token(w.server, "token-1")
	dir := t.TempDir()
	w.cfg = config(agent.PhoneHome{Server: w.server, Attempt: 1, API: w.api.URL, Token: "token-1"}, dir)
	w.cfg.Readers = []accelerator.Reader{w.reader}
	if change != nil {
		change(&w.cfg)
	}
	return w
}

func plain(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
		return r
	}
	return '-'
}

// start runs the agent; the returned function ends it and gives its error.
func (w *world) start() (stop func() error) {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error, 1)
	go func() { done <- agent.New(w.cfg).Run(ctx) }()
	var once sync.Once
	var err error
	stop = func() error {
		once.Do(func() { cancel(); err = <-done })
		return err
	}
	w.t.Cleanup(func() { _ = stop() })
	return stop
}

func (w *world) ctx() context.Context {
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	w.t.Cleanup(cancel)
	return ctx
}

func (w *world) end(task string) agentproto.TaskReport {
	w.t.Helper()
	r, err := w.api.End(w.ctx(), task)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func (w *world) until(what string, cond func() bool) {
	w.t.Helper()
	if err := w.api.Until(w.ctx(), cond); err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
}

func (w *world) run(id string, epoch int64, devices []string, command ...string) {
	w.api.Give(w.server, agenttest.Run(id, epoch, agentproto.Run{Job: "j-" + id, Attempt: 1, Command: command, Devices: devices, Nodes: 1}))
}

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

func TestNothingIsLostOrDoubledWhenAnswersAreLost(t *testing.T) {
	w := newWorld(t, nil)
	w.api.Lose(agentproto.PathRegister, 1)
	w.api.Lose(agentproto.PathTasks, 1)
	w.api.Lose(agentproto.PathReport, 2)
	w.start()
	file := filepath.Join(t.TempDir(), "ran")
	w.run("once", 1, nil, "sh", "-c", "echo x >>"+file+"; echo out")
	r := w.end("once")
	if r.State != schema.TaskDone || r.Output != "out\n" {
		t.Errorf("it ended as %+v", r)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "x\n" {
		t.Errorf("it ran %q (%v)", b, err)
	}
	if n := len(w.api.Registered()); n != 2 {
		t.Errorf("%d registrations; the answer of the first was lost", n)
	}
}

func TestARefusedRegistrationEndsTheAgentWithWords(t *testing.T) {
	w := newWorld(t, func(c *agent.Config) { c.PhoneHome.Token = "stolen" })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err := agent.New(w.cfg).Run(ctx)
	var refused *agent.RefusedError
	if !errors.As(err, &refused) || refused.Status != 403 || !strings.Contains(err.Error(), "not of this server's attempt") {
		t.Errorf("the error is %v", err)
	}
	if n := w.api.Calls(agentproto.PathRegister); n != 1 {
		t.Errorf("it asked %d times", n)
	}
}

func TestAnAPIThatIsDownIsWaitedFor(t *testing.T) {
	w := newWorld(t, nil)
	w.api.Fail(agentproto.PathRegister, 503)
	w.start()
	w.until("it asks again", func() bool { return w.api.Calls(agentproto.PathRegister) > 2 })
	w.api.Fail(agentproto.PathRegister, 0)
	w.until("it is up", func() bool { return len(w.api.Heartbeats(w.server)) > 0 })
	h := w.api.Heartbeats(w.server)[0]
	if h.BootID != "boot-1" || len(h.Devices) != 8 {
		t.Errorf("the first heartbeat is %+v", h)
	}
}

func TestTheKeyIsItsOwnAndTheTokenIsNotNeededTwice(t *testing.T) {
	w := newWorld(t, nil)
	stop := w.start()
	w.until("it is up", func() bool { return len(w.api.Heartbeats(w.server)) > 0 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(filepath.Join(w.cfg.StateDir, "agent.key"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the key's file is %v (%v)", st.Mode(), err)
	}
	n := len(w.api.Heartbeats(w.server))
	w.start()
	w.until("it is up again", func() bool { return len(w.api.Heartbeats(w.server)) > n })
	if n := w.api.Calls(agentproto.PathRegister); n != 1 {
		t.Errorf("it registered %d times", n)
	}
}

func TestEvidenceIsToldAtOnceAndKeptUntilItIsTaken(t *testing.T) {
	w := newWorld(t, func(c *agent.Config) { c.Heartbeat = time.Hour })
	stop := w.start()
	w.until("it is up", func() bool { return len(w.api.Heartbeats(w.server)) > 0 })
	w.api.Fail(agentproto.PathHeartbeat, 500)
	w.reader.signs <- accelerator.Sign{Device: "S3", Kind: "xid", Code: "79", Severity: schema.SeverityCritical, Text: "fell off the bus"}
	n := w.api.Calls(agentproto.PathHeartbeat)
	w.until("it tries", func() bool { return w.api.Calls(agentproto.PathHeartbeat) > n })
	if err := stop(); err != nil { // dies with it untold
		t.Fatal(err)
	}
	w.api.Fail(agentproto.PathHeartbeat, 0)
	w.start()
	w.until("it is told", func() bool { return len(w.api.Evidence()) == 1 })
	e := w.api.Evidence()[0]
	if e.Device != "S3" || e.Code != "79" || !strings.HasPrefix(e.ID, "boot-1/nvidia/") || e.At == 0 {
		t.Errorf("the evidence is %+v", e)
	}
}

func TestAReadingShowsWhatIsGoneHotAndBroken(t *testing.T) {
	w := newWorld(t, nil)
	w.start()
	w.until("it is up", func() bool { return len(w.api.Heartbeats(w.server)) > 0 })
	w.reader.change(func(d []agentproto.Device) []agentproto.Device {
		d[1].Samples[accelerator.ECCUncorrected] = 2
		d[2].Samples[accelerator.Temperature] = 91
		return d[:7]
	})
	w.until("three faults are told", func() bool { return len(w.api.Evidence()) == 3 })
	got := map[string]string{}
	for _, e := range w.api.Evidence() {
		got[e.Kind] = e.Device
	}
	if got["absent"] != "S7" || got["thermal"] != "S2" || got["ecc-uncorrectable"] != "S1" {
		t.Errorf("the evidence is %v", got)
	}
}

func TestADriverThatHangsMakesDevicesUnknownNotGone(t *testing.T) {
	w := newWorld(t, func(c *agent.Config) { c.ReadTimeout = 50 * time.Millisecond })
	w.start()
	w.until("it is up", func() bool { return len(w.api.Heartbeats(w.server)) > 0 })
	hang := make(chan struct{})
	defer close(hang)
	w.reader.mu.Lock()
	w.reader.hang = hang
	w.reader.mu.Unlock()
	w.until("it says so", func() bool {
		h := w.api.Heartbeats(w.server)
		d := h[len(h)-1].Devices
		return len(d) == 8 && d[0].Error != "" && d[0].Samples == nil && d[0].Serial == "S0"
	})
	if e := w.api.Evidence(); len(e) != 0 {
		t.Errorf("evidence %v came of a reading that was not had", e)
	}
	w.run("cpu", 1, nil, "true") // and work goes on
	w.end("cpu")
}

func TestTasksThatThePlatformDoesNotKnowAreEnded(t *testing.T) {
	w := newWorld(t, nil)
	w.start()
	w.run("orphan", 1, []string{"S0"}, "sleep", "60")
	w.until("it runs", func() bool { return len(w.api.Reports("orphan")) > 0 })
	w.api.Unknown("orphan")
	if r := w.end("orphan"); r.State != schema.TaskCancelled || !r.NoneLeft {
		t.Errorf("it ended as %+v", r)
	}
}

func TestLookingTasks(t *testing.T) {
	w := newWorld(t, nil)
	w.start()
	w.api.Give(w.server,
		agenttest.Look("inv", schema.TaskInventory, nil),
		agenttest.Look("drv", schema.TaskDrivers, agentproto.Setup{Profile: "nvidia-570", Vendor: "nvidia"}),
		agenttest.Look("amd", schema.TaskDrivers, agentproto.Setup{Profile: "rocm-7", Vendor: "amd"}),
		agenttest.Look("rt", schema.TaskRuntime, agentproto.Setup{Profile: "containerd"}))
	var inv agentproto.Inventory
	if err := json.Unmarshal(w.end("inv").Result, &inv); err != nil {
		t.Fatal(err)
	}
	if inv.Serial != "CH1" || inv.CPUs != 112 || len(inv.Devices) != 8 || inv.Drivers["nvidia"] != "570.86.15" || inv.Runtime != "containerd 2.1.4" {
		t.Errorf("the inventory is %+v", inv)
	}
	if r := w.end("drv"); r.State != schema.TaskDone || !strings.Contains(r.Text, "570.86.15") {
		t.Errorf("drivers: %+v", r)
	}
	if r := w.end("amd"); r.State != schema.TaskFailed || !strings.Contains(r.Text, `no reader for vendor "amd"`) {
		t.Errorf("drivers of amd: %+v", r)
	}
	if r := w.end("rt"); r.State != schema.TaskDone {
		t.Errorf("runtime: %+v", r)
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

// TestKilledAtAnyMoment kills the agent with SIGKILL again and again while jobs come and go. Each job writes a line
// when it runs; in the end each has run once at most, and every one that ran is known to have.
func TestKilledAtAnyMoment(t *testing.T) {
	w := newWorld(t, nil)
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
		cmd.Env = append(os.Environ(), "AGENT_TEST_CONFIG="+file)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	const jobs, rounds = 60, 6
	ran := filepath.Join(dir, "ran")
	if err := os.Mkdir(ran, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := begin()
	w.until("it is up", func() bool { return len(w.api.Heartbeats(w.server)) > 0 })
	for i := range jobs {
		id := fmt.Sprintf("job/%d", i)
		// mkdir fails on the second run of the same job
		w.run(id, 1, nil, "sh", "-c", fmt.Sprintf("mkdir %s/%d || touch %s/%d/twice; sleep 0.0%d; echo done", ran, i, ran, i, i%10))
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
