package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
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
	"gpupool/worker/agent/sandbox"
)

// TestMain runs an agent instead of the tests where it is asked to: the one that is killed.
func TestMain(m *testing.M) {
	sandbox.Init()
	if file := os.Getenv("AGENT_TEST_CONFIG"); file != "" {
		p, err := agent.ReadPhoneHome(file)
		if err == nil {
			cfg := config(p, filepath.Dir(file))
			cfg.Readers = []accelerator.Reader{newReader(8)}
			if first, _ := strconv.Atoi(os.Getenv("AGENT_TEST_USERS")); first > 0 {
				if cfg.Apart, err = sandbox.Open(context.Background(), cfg.StateDir, sandbox.Users{First: first, Count: usersPerAgent}); err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
			}
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
		PhoneHome: p, StateDir: filepath.Join(dir, "state"), Version: "test", PollWait: 2 * time.Second, Settle: -1,
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
