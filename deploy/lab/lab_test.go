package lab_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gpupool/deploy/lab"
	"gpupool/pxe"
	"gpupool/pxe/boot"
	"gpupool/pxe/lease"
	"gpupool/pxe/pxetest"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/agenttest"
	"gpupool/worker/agent/proc"
)

// TestMain runs a lab instead of the tests where it is asked to: the one that is killed.
func TestMain(m *testing.M) {
	if file := os.Getenv("LAB_TEST_CONFIG"); file != "" {
		var c lab.Config
		b, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(b, &c)
		}
		var l *lab.Lab
		if err == nil {
			c.Log = slog.New(slog.DiscardHandler)
			l, err = lab.New(c)
		}
		if err == nil {
			err = l.Run(context.Background())
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// platform is the real boot service with an inventory in memory, and a small API: what the lab's servers meet.
type platform struct {
	*pxetest.Platform
	t   *testing.T
	api *agenttest.API
	pxe *pxe.Server
	cfg lab.Config
}

// Plan implements boot.Installer.
func (p *platform) Plan(context.Context, boot.Machine) (boot.Plan, error) {
	return boot.Plan{Kernel: "vmlinuz", Initrd: []string{"initrd"}, Args: "gpupool.user_data={{base}}/user-data console=ttyS0"}, nil
}

// InMemory implements boot.Installer.
func (p *platform) InMemory(string) bool { return false }

// Document implements boot.Installer.
func (p *platform) Document(ctx context.Context, r boot.DocumentRequest) (boot.Document, error) {
	if r.Name != "user-data" {
		return boot.Document{}, boot.ErrNoSuch
	}
	token, err := r.PhoneHome(ctx)
	if err != nil {
		return boot.Document{}, err
	}
	p.api.Token(r.Machine.ID, token)
	b, err := json.Marshal(map[string]any{"server": r.Machine.ID, "attempt": r.Attempt, "api_url": p.api.URL, "phone_home_token": token, "hostname": r.Machine.Name})
	return boot.Document{ContentType: "application/json", Body: b, Secret: true}, err
}

// newPlatform serves the network 127.n.0.0/16.
func newPlatform(t *testing.T, n int, servers ...lab.ServerConfig) *platform {
	t.Parallel()
	p := &platform{Platform: pxetest.New(), t: t, api: agenttest.New()}
	t.Cleanup(p.api.Close)
	root := t.TempDir()
	for name, size := range map[string]int{"snponly.efi": 200_000, "vmlinuz": 3_000_000, "initrd": 1_000_000} {
		if err := os.WriteFile(filepath.Join(root, name), bytes.Repeat([]byte("x"), size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	net := fmt.Sprintf("127.%d", n)
	var err error
	p.pxe, err = pxe.New(pxe.Config{
		Mode: "relay", ServerID: "127.0.0.1", DHCP: "127.0.0.1:0", PXE: "127.0.0.1:0", TFTP: "127.0.0.1:0", HTTP: "127.0.0.1:0",
		APIURL: p.api.URL, Root: root, Subnets: []pxe.Subnet{{CIDR: net + ".0.0/16", Range: net + ".1.1-" + net + ".9.250"}}, NoProbe: true,
	}, pxe.Deps{Inventory: p, Leases: lease.NewMemory(), Tokens: p, Installer: p, Recorder: p, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.pxe.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	p.cfg = lab.Config{Dir: filepath.Join(t.TempDir(), "lab"), Servers: servers, DHCP: p.pxe.Addrs().DHCP.String(),
		TFTPPort: int(netip.MustParseAddrPort(p.pxe.Addrs().TFTP.String()).Port()), Relay: net + ".0.1", BMCNet: fmt.Sprintf("127.%d.0.0/16", n+100), Speed: 20,
		Log: slog.New(slog.DiscardHandler)}
	return p
}

// world is a lab that runs in this process.
type world struct {
	*platform
	*lab.Lab
	stop func()
}

func (p *platform) start() *world {
	p.t.Helper()
	l, err := lab.New(p.cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	w := &world{platform: p, Lab: l}
	stopped := false
	w.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			p.t.Error(err)
		}
	}
	p.t.Cleanup(w.stop)
	for _, s := range l.State() {
		p.put(s)
	}
	return w
}

// put enrols a server, unless it was.
func (p *platform) put(s lab.ServerState) {
	id := "id-" + p.slug() + "-" + s.Name
	if _, found, _ := p.ByID(p.t.Context(), id); !found {
		p.Put(boot.Machine{ID: id, Name: s.Name, Phase: schema.PhaseEnrolled, Arch: s.Arch}, s.MACs...)
	}
}

func (p *platform) slug() string { return filepath.Base(filepath.Dir(filepath.Dir(p.cfg.Dir))) }

func (p *platform) id(name string) string { return "id-" + p.slug() + "-" + name }

func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for late := time.After(20 * time.Second); !cond(); {
		select {
		case <-look.C:
		case <-late:
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func find(s []lab.ServerState, name string) lab.ServerState {
	for _, x := range s {
		if x.Name == name {
			return x
		}
	}
	return lab.ServerState{}
}

func (w *world) at(name string) lab.ServerState { return find(w.State(), name) }

// redfish asks a BMC.
func redfish(t *testing.T, s lab.ServerState, method, path string, body any) (int, string) {
	t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, s.BMC+path, bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	r.SetBasicAuth(s.User, s.Password)
	r.Header.Set("Content-Type", "application/json")
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func power(t *testing.T, s lab.ServerState, kind string) {
	t.Helper()
	if code, text := redfish(t, s, "POST", "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset", map[string]string{"ResetType": kind}); code >= 300 {
		t.Fatalf("%s: %d %s", kind, code, text)
	}
}

func bootOnce(t *testing.T, s lab.ServerState, target string) {
	t.Helper()
	if code, text := redfish(t, s, "PATCH", "/redfish/v1/Systems/1", map[string]any{"Boot": map[string]string{
		"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": target, "BootSourceOverrideMode": "UEFI"}}); code >= 300 {
		t.Fatalf("override: %d %s", code, text)
	}
}

// onboard installs a server as the platform would.
func (w *world) onboard(name string, attempt int) {
	w.t.Helper()
	w.Arm(w.id(name), attempt)
	bootOnce(w.t, w.at(name), "Pxe")
	power(w.t, w.at(name), "On")
	until(w.t, name+" is installed and its agent is up", func() bool {
		return w.at(name).Stage == lab.StageOS && w.at(name).Attempt == attempt && len(w.api.Heartbeats(w.id(name))) > 0
	})
	w.Disarm(w.id(name))
}

func h100(name string) lab.ServerConfig {
	return lab.ServerConfig{Name: name, Profile: "supermicro-hgx-h100", Devices: lab.Devices{Model: "nvidia-h100-80gb", Count: 8}}
}

func (w *world) task(t *testing.T, task agentproto.Task, server string) agentproto.TaskReport {
	t.Helper()
	w.api.Give(w.id(server), task)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := w.api.End(ctx, task.ID)
	if err != nil {
		t.Fatalf("%v; console %q", err, w.at(server).Console)
	}
	return r
}

func TestAServerGoesFromItsBMCToAJobOnItsDevices(t *testing.T) {
	w := newPlatform(t, 81, h100("s1")).start()
	if s := w.at("s1"); s.On || s.Stage != lab.StageOff {
		t.Fatalf("a new server is %+v", s)
	}
	w.onboard("s1", 3)
	s := w.at("s1")
	if s.Installs != 1 || s.Attempt != 3 || s.Server != w.id("s1") || s.BootID == "" {
		t.Errorf("it is %+v", s)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for _, kind := range []string{boot.KindDiscover, boot.KindAck, boot.KindTFTP, boot.KindScript, boot.KindHTTP, boot.KindDocument} {
		e, err := w.Wait(ctx, func(e schema.BootEvidence) bool { return e.Kind == kind && e.Server == w.id("s1") && e.Attempt == 3 })
		if err != nil {
			t.Errorf("the boot service has no %s of it: %v", kind, err)
		}
		_ = e
	}
	r := w.api.Registered()
	if len(r) != 1 || r[0].Serial != s.Serial || r[0].BootID != s.BootID {
		t.Errorf("it registered as %+v", r)
	}
	rep := w.task(t, agenttest.Run("job", 1, agentproto.Run{Job: "j", Command: []string{"sh", "-c", "echo $CUDA_VISIBLE_DEVICES"}, Devices: []string{s.Devices[2].Serial}}), "s1")
	if rep.State != schema.TaskDone || rep.Output != s.Devices[2].UUID+"\n" {
		t.Errorf("its job ended as %+v", rep)
	}
	rep = w.task(t, agenttest.Look("burn", schema.TaskBurnIn, agentproto.BurnIn{Suite: "quick", Model: "nvidia-h100-80gb", Devices: 8}), "s1")
	var res agentproto.BurnInResult
	if err := json.Unmarshal(rep.Result, &res); err != nil || res.Outcome != "passed" || len(res.Tests) != 6 || len(res.Devices) != 8 {
		t.Errorf("burn-in: %s %+v (%v)", rep.Text, res, err)
	}
}

func TestAnInstalledServerThatBootsFromTheNetworkIsHandedToItsDisk(t *testing.T) {
	w := newPlatform(t, 82, h100("s1")).start()
	w.onboard("s1", 1)
	before := w.at("s1")
	bootOnce(t, before, "Pxe")
	power(t, before, "ForceRestart")
	until(t, "it is up again", func() bool { s := w.at("s1"); return s.Stage == lab.StageOS && s.BootID != before.BootID })
	if s := w.at("s1"); s.Installs != 1 {
		t.Errorf("it was installed %d times", s.Installs)
	}
	if c := strings.Join(w.at("s1").Console, "\n"); !strings.Contains(c, "booting from disk") {
		t.Errorf("its console: %s", c)
	}
}

func TestFaultsAreSeenByWhoWouldSeeThem(t *testing.T) {
	amd := lab.ServerConfig{Name: "a", Profile: "supermicro-mi300x", Devices: lab.Devices{Model: "amd-mi300x-192gb", Count: 8}}
	w := newPlatform(t, 83, h100("n"), amd).start()
	w.onboard("n", 1)
	w.onboard("a", 1)
	serial := func(s string, i int) string { return w.at(s).Devices[i].Serial }
	for _, f := range []struct{ server, device, kind string }{{"n", "SXM2", "xid79"}, {"n", "2", "xid48"}, {"n", serial("n", 3), "ecc"}, {"n", "SXM5", "thermal"}, {"n", "SXM6", "absent"}, {"a", "OAM1", "ras"}} {
		if err := w.Fault(f.server, f.device, f.kind); err != nil {
			t.Fatal(err)
		}
	}
	for dev, want := range map[string]string{serial("n", 1): "xid79", serial("n", 2): "xid48", serial("n", 3): "ecc-uncorrectable", serial("n", 4): "thermal", serial("n", 5): "absent", serial("a", 1): "ras"} {
		until(t, want+" is told", func() bool {
			return slices.ContainsFunc(w.api.Evidence(), func(e agentproto.Evidence) bool {
				return e.Device == dev && e.Kind+e.Code == want || want == "ras" && e.Kind == want && e.Device == dev
			})
		})
	}
	// and the BMC sees what is out of the bus
	found := false
	for i := 1; i <= 8; i++ {
		_, text := redfish(t, w.at("n"), "GET", fmt.Sprintf("/redfish/v1/Chassis/1/PCIeDevices/GPU%d", i), nil)
		found = found || strings.Contains(text, serial("n", 1)) && strings.Contains(text, "Critical")
	}
	if !found {
		t.Error("the BMC shows no critical device with that serial")
	}
	for what, err := range map[string]error{
		"a kind that is none":           w.Fault("n", "SXM1", "sadness"),
		"a device that is none":         w.Fault("n", "SXM9", "ecc"),
		"AMD's fault of an NVIDIA part": w.Fault("n", "SXM1", "ras"),
		"a server that is none":         w.Fault("zz", "SXM1", "ecc"),
		"a server's fault of a device":  w.Fault("n", "SXM1", "no-dhcp"),
	} {
		if err == nil {
			t.Errorf("%s was taken", what)
		}
	}
}

func TestAPartThatFailsItsBurnInIsReplacedAndPasses(t *testing.T) {
	c := h100("s1")
	c.Faults = []string{"burnin SXM4"}
	w := newPlatform(t, 84, c).start()
	w.onboard("s1", 1)
	order := agentproto.BurnIn{Suite: "quick", Model: "nvidia-h100-80gb", Devices: 8}
	burn := func(id string) (r agentproto.BurnInResult) {
		if err := json.Unmarshal(w.task(t, agenttest.Look(id, schema.TaskBurnIn, order), "s1").Result, &r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := burn("b1"); r.Outcome != "failed" || len(r.Failed) != 1 || r.Failed[0].Slot != "SXM4" || r.Failed[0].Test != "compute" {
		t.Errorf("burn-in of a broken part: %+v", r)
	}
	boot := w.at("s1").BootID
	if err := w.Replace("s1", "SXM4", "NEW-0001"); err != nil {
		t.Fatal(err)
	}
	until(t, "it is up again", func() bool { s := w.at("s1"); return s.Stage == lab.StageOS && s.BootID != boot })
	if r := burn("b2"); r.Outcome != "passed" || !strings.Contains(strings.Join(r.Devices, " "), "NEW-0001") {
		t.Errorf("burn-in of the new part: %+v", r)
	}
	if s := w.at("s1"); s.Installs != 1 {
		t.Errorf("it was installed %d times", s.Installs)
	}
}

func TestPowerOffEndsAJobAndTheAgentSaysSoAfterwards(t *testing.T) {
	w := newPlatform(t, 85, h100("s1")).start()
	w.onboard("s1", 1)
	w.api.Give(w.id("s1"), agenttest.Run("job", 1, agentproto.Run{Job: "j", Command: []string{"sleep", "60"}, Devices: []string{w.at("s1").Devices[0].Serial}}))
	until(t, "it runs", func() bool { return len(w.api.Reports("job")) > 0 })
	until(t, "its device is busy", func() bool {
		h := w.api.Heartbeats(w.id("s1"))
		d := h[len(h)-1].Devices
		return len(d) > 0 && d[0].Samples["utilization_ratio"] > 0.5 && d[1].Samples["utilization_ratio"] == 0
	})
	power(t, w.at("s1"), "ForceOff")
	until(t, "it is off", func() bool { return !w.at("s1").On })
	until(t, "its processes are gone", func() bool {
		marks, err := proc.New("").Marks("GPUPOOL_SERVER")
		return err == nil && len(marks[w.id("s1")]) == 0
	})
	power(t, w.at("s1"), "On")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := w.api.End(ctx, "job")
	if err != nil || r.State != schema.TaskFailed || !strings.Contains(r.Text, "restarted") || !r.NoneLeft {
		t.Errorf("it ended as %+v (%v)", r, err)
	}
}

func TestFaultsOfABoot(t *testing.T) {
	w := newPlatform(t, 86, h100("cable"), h100("hang"), h100("bmc")).start()
	for _, s := range []string{"cable", "hang"} {
		w.Arm(w.id(s), 1)
		bootOnce(t, w.at(s), "Pxe")
	}
	if err := w.Fault("cable", "", lab.NoDHCP); err != nil {
		t.Fatal(err)
	}
	if err := w.Fault("hang", "", lab.BootHang); err != nil {
		t.Fatal(err)
	}
	power(t, w.at("cable"), "On")
	power(t, w.at("hang"), "On")
	until(t, "a server without a cable finds nothing to boot", func() bool { return w.at("cable").Stage == lab.StageHalted })
	until(t, "a server that hangs is in POST", func() bool { return w.at("hang").Stage == lab.StagePOST })
	if err := w.Clear("hang", "", ""); err != nil {
		t.Fatal(err)
	}
	until(t, "it goes on when it no longer hangs", func() bool { return w.at("hang").Stage == lab.StageOS })
	if err := w.Fault("hang", "", lab.AgentSilent); err != nil {
		t.Fatal(err)
	}
	if err := w.Fault("bmc", "", lab.BMCDown); err != nil {
		t.Fatal(err)
	}
	if code, text := redfish(t, w.at("bmc"), "GET", "/redfish/v1", nil); code != 0 {
		t.Errorf("a BMC that is down answered %d %s", code, text)
	}
	if err := w.Clear("bmc", "", lab.BMCDown); err != nil {
		t.Fatal(err)
	}
	if code, _ := redfish(t, w.at("bmc"), "GET", "/redfish/v1", nil); code != 200 {
		t.Errorf("a BMC that is up again answered %d", code)
	}
}

// TestAKilledLabIsTheSameWorldAgain kills the lab's process while a job runs, a server installs, and an override waits.
func TestAKilledLabIsTheSameWorldAgain(t *testing.T) {
	p := newPlatform(t, 87, h100("job"), h100("install"), h100("off"))
	p.cfg.Speed = 5
	file := filepath.Join(t.TempDir(), "lab.json")
	b, err := json.Marshal(p.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	begin := func() (*exec.Cmd, *lab.Client) {
		if err := os.Remove(filepath.Join(p.cfg.Dir, "control.json")); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "LAB_TEST_CONFIG="+file)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var c *lab.Client
		until(t, "the lab is up", func() bool {
			var err error
			c, err = lab.Open(p.cfg.Dir)
			if err != nil {
				return false
			}
			_, err = c.State(t.Context())
			return err == nil
		})
		return cmd, c
	}
	cmd, c := begin()
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		marks, err := proc.New("").Marks("GPUPOOL_SERVER")
		if err != nil {
			t.Error(err)
		}
		for _, ps := range [][]proc.Process{marks[p.id("job")], marks[p.id("install")]} {
			for _, x := range ps {
				t.Errorf("process %d (%s) is left", x.PID, x.Command)
				_ = syscall.Kill(x.PID, syscall.SIGKILL)
			}
		}
	}()
	at := func(name string) lab.ServerState {
		s, err := c.State(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return find(s, name)
	}
	for _, n := range []string{"job", "install", "off"} {
		p.put(at(n))
	}
	install := func(name string) {
		p.Arm(p.id(name), 1)
		bootOnce(t, at(name), "Pxe")
		power(t, at(name), "On")
	}
	install("job")
	until(t, "its agent is up", func() bool { return len(p.api.Heartbeats(p.id("job"))) > 0 })
	gate := filepath.Join(t.TempDir(), "gate")
	p.api.Give(p.id("job"), agenttest.Run("j", 1, agentproto.Run{Job: "j", Devices: []string{at("job").Devices[0].Serial},
		Command: []string{"sh", "-c", "while [ ! -e " + gate + " ]; do sleep 0.05; done; echo survived"}}))
	until(t, "the job runs", func() bool { return len(p.api.Reports("j")) > 0 })
	if err := c.Fault(t.Context(), "job", "SXM8", "thermal"); err != nil {
		t.Fatal(err)
	}
	bootOnce(t, at("off"), "Pxe")
	install("install")
	until(t, "it installs", func() bool { return at("install").Stage == lab.StageInstall })
	before := at("job")

	for range 2 {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		cmd, c = begin()
	}
	if s := at("job"); s.BootID != before.BootID || s.BMC != before.BMC || !s.On || s.Stage != lab.StageOS || len(s.Devices[7].Faults) != 1 {
		t.Errorf("it was %+v, it is %+v", before, s)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if r, err := p.api.End(ctx, "j"); err != nil || r.State != schema.TaskDone || r.Output != "survived\n" {
		t.Errorf("the job ended as %+v (%v)", r, err)
	}
	until(t, "the other is installed", func() bool { return at("install").Stage == lab.StageOS })
	if s := at("install"); s.Installs != 1 {
		t.Errorf("it was installed %d times", s.Installs)
	}
	p.Arm(p.id("off"), 1)
	power(t, at("off"), "On")
	until(t, "the override that was set before is obeyed", func() bool { return at("off").Stage == lab.StageOS })
}

func TestALabFileIsCheckedWhole(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*lab.Config)
		want   string
	}{
		"two servers of one name": {func(c *lab.Config) { c.Servers = append(c.Servers, c.Servers[0]) }, "is taken"},
		"a MAC that is none":      {func(c *lab.Config) { c.Servers[0].MACs = []string{"zz"} }, "want a MAC"},
		"a model that is none":    {func(c *lab.Config) { c.Servers[0].Devices.Model = "voodoo2" }, "want one of"},
		"a relay that is outside": {func(c *lab.Config) { c.Relay = "10.0.0.1" }, "127.0.0.0/8"},
		"a profile that is none":  {func(c *lab.Config) { c.Servers[0].Profile = "toaster" }, "toaster"},
		"no folder":               {func(c *lab.Config) { c.Dir = "" }, "dir"},
	} {
		cfg := lab.Config{Dir: filepath.Join(t.TempDir(), "x"), Servers: []lab.ServerConfig{h100("a")}, BMCNet: "127.190.0.0/16"}
		c.change(&cfg)
		if _, err := lab.New(cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
}

// run runs a lab around f.
func run(t testing.TB, l *lab.Lab, f func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	for _, m := range l.State() { // once its BMC answers, a server lives
		resp, err := http.Get(m.BMC + "/redfish/v1/")
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	http.DefaultClient.CloseIdleConnections() // so that a measurement is of a lab at rest
	f()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
