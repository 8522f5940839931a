package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpupool/api/call"
	"gpupool/api/contract"
	"gpupool/cmd/gpupool/serve"
	"gpupool/deploy/qemu"
	"gpupool/schema"
)

// The provisioning network. gpupool is its first address, and the BMCs are reached at it too.
const (
	address = "10.77.0.1"
	network = "10.77.0.0/24"
	model   = "nvidia-h100-80gb"
)

// world is a pool on a bridge.
type world struct {
	t        *testing.T
	dir      string
	settings []string // as of --set
	ready    serve.Ready
	cmd      *exec.Cmd
	ended    chan struct{}
	log      *os.File
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ip runs the ip command in the namespace.
func ip(t *testing.T, args string) {
	t.Helper()
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v %s", args, err, out)
	}
}

// newWorld is a pool that runs, with all roles in one process and these settings. Tests that have one don't run beside each other.
func newWorld(t *testing.T, settings ...string) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("takes minutes")
	}
	if why := os.Getenv(skipVar); why != "" {
		t.Skip(why)
	}
	ip(t, "link set lo up")
	ip(t, "link add br0 type bridge forward_delay 0 stp_state 0")
	t.Cleanup(func() { ip(t, "link del br0") })
	ip(t, "address add "+address+"/24 dev br0")
	ip(t, "link set br0 up")
	w := &world{t: t, settings: settings, dir: os.Getenv("GPUPOOL_E2E_KEEP")}
	if w.dir == "" {
		w.dir = t.TempDir()
	} else {
		w.dir = filepath.Join(w.dir, t.Name())
	}
	must(t, os.MkdirAll(w.dir, 0o755))
	var err error
	w.log, err = os.Create(filepath.Join(w.dir, "gpupool.log"))
	must(t, err)
	must(t, w.start())
	t.Cleanup(func() {
		w.kill()
		if b, err := os.ReadFile(w.log.Name()); err == nil && t.Failed() {
			t.Logf("the end of gpupool's log:\n%s", b[max(0, len(b)-6000):])
		}
		must(t, w.log.Close())
	})
	return w
}

func (w *world) start() error {
	ready := filepath.Join(w.dir, "ready")
	if err := os.Remove(ready); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	args := []string{"up", "--data-dir", filepath.Join(w.dir, "data"), "--ready-file", ready}
	for _, set := range append([]string{
		"api.listen=" + address + ":8080", "durability=normal", "log.format=text", "log.level=info",
		"pxe.mode=full", "pxe.interface=br0", "pxe.server_id=" + address, "pxe.http_listen=" + address + ":8081", "pxe.tftp_listen=" + address + ":69",
		"pxe.boot_dir=" + filepath.Join(os.Getenv(filesVar), "boot"), "pxe.subnets=[{cidr: " + network + ", range: 10.77.0.100-10.77.0.120}]",
		"timing.heartbeat=2s", "timing.phone_home=10m",
	}, w.settings...) {
		args = append(args, "--set", set)
	}
	w.cmd = exec.Command(os.Args[0], args...)
	w.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir}
	w.cmd.Stdout, w.cmd.Stderr = w.log, w.log
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := w.cmd.Start(); err != nil {
		return err
	}
	w.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) { _ = cmd.Wait(); close(ended) }(w.cmd, w.ended)
	for late := time.After(3 * time.Minute); ; {
		if b, err := os.ReadFile(ready); err == nil {
			token := w.ready.Token // told by the first start only
			if err := json.Unmarshal(b, &w.ready); err != nil {
				return err
			}
			if w.ready.Token == "" {
				w.ready.Token = token
			}
			return nil
		}
		select {
		case <-w.ended:
			return errors.New("gpupool ended while it started")
		case <-late:
			return errors.New("gpupool is not ready after three minutes")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// kill is SIGKILL.
func (w *world) kill() {
	_ = w.cmd.Process.Kill() // it may have ended, which the test then shows
	<-w.ended
}

// do asks the API.
func do[T any](ctx context.Context, w *world, method, path string, body any) (T, error) {
	var b bytes.Buffer
	var none T
	if body != nil {
		if err := json.NewEncoder(&b).Encode(body); err != nil {
			return none, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, w.ready.URL+path, &b)
	if err != nil {
		return none, err
	}
	req.Header.Set("Authorization", "Bearer "+w.ready.Token)
	req.Header.Set("Content-Type", "application/json")
	return call.Do[T](http.DefaultClient.Do(req))
}

func (w *world) must(method, path string, body any) {
	w.t.Helper()
	if _, err := do[json.RawMessage](w.t.Context(), w, method, path, body); err != nil {
		w.t.Fatalf("%s %s: %v", method, path, err)
	}
}

func (w *world) server(name string) contract.Server {
	w.t.Helper()
	v, err := do[contract.Server](w.t.Context(), w, http.MethodGet, "/v1/servers/"+name, nil)
	must(w.t, err)
	return v
}

// machine is a virtual machine on the bridge, enrolled.
func (w *world) machine(n int, c qemu.Config) *qemu.Machine {
	w.t.Helper()
	c.Tap, c.MAC, c.BMC = fmt.Sprintf("tap%d", n), fmt.Sprintf("52:54:00:77:00:%02x", n), fmt.Sprintf("%s:%d", address, 8443+n)
	c.UUID = fmt.Sprintf("6770f001-0000-4000-8000-0000000000%02x", n)
	c.Dir, c.Memory = filepath.Join(w.dir, c.Name), 1280
	c.Log = slog.New(slog.NewTextHandler(w.t.Output(), nil))
	ip(w.t, "tuntap add "+c.Tap+" mode tap")
	w.t.Cleanup(func() { ip(w.t, "link del "+c.Tap) })
	ip(w.t, "link set "+c.Tap+" master br0 up")
	m, err := qemu.New(c)
	must(w.t, err)
	w.t.Cleanup(func() {
		if w.t.Failed() {
			text, err := m.Console(6000)
			w.t.Logf("%s: boots %d; the end of its console (%v):\n%s", c.Name, m.Boots(), err, text)
		}
		if err := m.Close(); err != nil {
			w.t.Error(err)
		}
	})
	arch, console := "x86_64", "ttyS0,115200"
	if c.Firmware == qemu.ARM64 {
		arch, console = "arm64", "ttyAMA0"
	}
	w.must(http.MethodPost, "/v1/servers/bulk", contract.NewServers{Servers: []contract.NewServer{{
		Name: c.Name, Region: "default", Site: "default", Rack: "r1", Serial: m.Serial(), Macs: []string{c.MAC}, BmcAddress: m.Address(), BmcUsername: "admin", BmcPassword: "gpupool-lab",
		Model: model, Accelerators: 8, Cpus: 2, MemoryBytes: 1 << 30, Arch: arch,
	}}})
	// Under emulation on a busy machine the kernel's test of its timer fails, and it panics. The image has it, too.
	w.must(http.MethodPut, "/v1/install-choices", contract.NewInstallChoice{Scope: "server", Name: c.Name, Profile: "image", Values: map[string]string{"kernel_arg": "no_timer_check", "console": console}})
	return m
}

// arrives waits until the servers are in the pool, and says what they do meanwhile. A step that stops fails the test.
func (w *world) arrives(limit time.Duration, names ...string) {
	w.t.Helper()
	w.watch(limit, func(v contract.Server) bool { return v.Phase == schema.PhaseAvailable }, names...)
}

// watch looks at the servers until each is as it should be.
func (w *world) watch(limit time.Duration, done func(contract.Server) bool, names ...string) {
	w.t.Helper()
	begun := time.Now()
	told := map[string]string{}
	for {
		ready := 0
		for _, name := range names {
			v, err := do[contract.Server](w.t.Context(), w, http.MethodGet, "/v1/servers/"+name, nil)
			must(w.t, err)
			if v.Failure != nil {
				w.t.Fatalf("%s stopped at %s: %s: %s", name, v.Step, v.Failure.Code, v.Failure.Text)
			}
			if now := w.doing(v); told[name] != now {
				told[name] = now
				w.t.Logf("%6.1fs %s %s", time.Since(begun).Seconds(), name, now)
			}
			if done(v) {
				ready++
			}
		}
		if ready == len(names) {
			return
		}
		if time.Since(begun) > limit {
			w.t.Fatalf("%d of %d servers are as they should be after %s: %v", ready, len(names), limit, told)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-w.t.Context().Done():
			w.t.Fatal("the test ended")
		}
	}
}

// doing is a server's phase, and in onboarding its step with the words that stand there.
func (w *world) doing(v contract.Server) string {
	if v.Phase != schema.PhaseOnboarding {
		return string(v.Phase)
	}
	steps, err := do[contract.StepList](w.t.Context(), w, http.MethodGet, "/v1/servers/"+v.Name+"/steps", nil)
	if err != nil || len(steps.Items) == 0 {
		return string(v.Step)
	}
	s := steps.Items[len(steps.Items)-1]
	return fmt.Sprintf("%s: %s", s.Step, s.Detail)
}

// events are the record's, of one kind and one server.
func (w *world) events(kind schema.EventKind, server string) []contract.Event {
	w.t.Helper()
	var out []contract.Event
	after := int64(0)
	for {
		l, err := do[contract.EventList](w.t.Context(), w, http.MethodGet, fmt.Sprintf("/v1/events?limit=500&after=%d&kind=%s", after, kind), nil)
		must(w.t, err)
		if len(l.Items) == 0 {
			return out
		}
		for _, e := range l.Items {
			after = e.Seq
			if e.Server == server {
				out = append(out, e)
			}
		}
	}
}

// stops waits until the server's onboarding has stopped at a failed step.
func (w *world) stops(name string, limit time.Duration) contract.Failure {
	w.t.Helper()
	begun, told := time.Now(), ""
	for {
		v := w.server(name)
		if v.Failure != nil {
			return *v.Failure
		}
		if now := w.doing(v); now != told {
			told = now
			w.t.Logf("%6.1fs %s %s", time.Since(begun).Seconds(), name, now)
		}
		if time.Since(begun) > limit {
			w.t.Fatalf("%s has not stopped within %s: %s", name, limit, told)
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-w.t.Context().Done():
			w.t.Fatal("the test ended")
		}
	}
}
