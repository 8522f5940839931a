package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpupool/worker/agent"
	"gpupool/worker/agent/agenttest"
)

// BenchmarkAtRest is what the agent itself costs on a server with eight devices: the whole program, NVIDIA's library being the
// tests' own, a real API on loopback, and a Prometheus that asks at each heartbeat. An iteration is a heartbeat; at one every ten
// seconds the share of a core is its cost over ten seconds.
func BenchmarkAtRest(b *testing.B) {
	dir := b.TempDir()
	binary := filepath.Join(dir, "gpupool-agent")
	for _, args := range [][]string{{"go", "build", "-o", binary, "."}, {"cc", "-shared", "-fPIC", "-DHEALTHY", "-o", filepath.Join(dir, "libnvidia-ml.so.1"), "../../worker/agent/accelerator/nvidia/testdata/fakenvml.c"}} {
		if out, err := exec.CommandContext(b.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			b.Skipf("%s: %v: %s", args[0], err, out)
		}
	}
	api := agenttest.New()
	defer api.Close()
	api.Token("s", "t")
	config := filepath.Join(dir, "agent.json")
	home, err := json.Marshal(agent.PhoneHome{Server: "s", API: api.URL, Token: "t"})
	if err == nil {
		err = os.WriteFile(config, home, 0o600)
	}
	if err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
	var said bytes.Buffer
	cmd := exec.CommandContext(b.Context(), binary, "-config", config, "-state", filepath.Join(dir, "state"), "-apart=false", "-metrics", address)
	cmd.Env, cmd.Stderr = append(os.Environ(), "LD_LIBRARY_PATH="+dir), &said
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}()
	beats := func() int { return len(api.Heartbeats("s")) }
	until := func(n int) {
		b.Helper()
		if err := api.Until(b.Context(), func() bool { return beats() >= n }); err != nil {
			b.Fatalf("%d heartbeats: %v; it said %s", beats(), err, said.String())
		}
	}
	until(3)
	if h := api.Heartbeats("s"); len(h[0].Devices) != 8 || len(h[0].Devices[0].Samples) < 15 {
		b.Fatalf("the devices are %+v", h[0].Devices)
	}
	begun, first := processor(b, cmd.Process.Pid), beats()
	b.ResetTimer()
	for n := 1; b.Loop(); n++ {
		until(first + n)
		resp, err := http.Get("http://" + address + "/metrics") //nolint:noctx // it is on loopback and answers at once
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			b.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	b.StopTimer()
	cost := (processor(b, cmd.Process.Pid) - begun).Seconds() / float64(beats()-first)
	b.ReportMetric(1e3*cost, "cpu-ms/heartbeat")
	b.ReportMetric(100*cost/10, "%-of-a-core-at-10s")
	b.ReportMetric(resident(b, cmd.Process.Pid), "MB-resident")
}

// processor is the processor time of a process: utime and stime of /proc/PID/stat, in hundredths of a second.
func processor(b *testing.B, pid int) time.Duration {
	b.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		b.Fatal(err)
	}
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var ticks int
	for _, s := range f[11:13] {
		n, err := strconv.Atoi(s)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

func resident(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "VmRSS:" {
			kb, err := strconv.ParseFloat(f[1], 64)
			if err != nil {
				b.Fatal(err)
			}
			return kb * 1024 / 1e6
		}
	}
	b.Fatal("no VmRSS")
	return 0
}
