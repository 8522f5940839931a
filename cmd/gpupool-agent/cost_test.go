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
	address := free(b)
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
	memory := resident(b, cmd.Process.Pid)
	b.ReportMetric(1e3*cost, "cpu-ms/heartbeat")
	b.ReportMetric(100*cost/10, "%-of-a-core-at-10s")
	b.ReportMetric(memory, "MB-resident")
	if file := os.Getenv("GPUPOOL_BENCH_FIGURES"); file != "" {
		write(b, file, 100*cost/10, memory)
	}
}

// The goals are the agent's own: 0.2 % of a core and 40 MB, for eight devices that are read every ten seconds.
const shareGoal, memoryGoal = 0.2, 40.0

// write keeps the figures as `gpupool bench --with` reads them: beside node_exporter, measured here where it is installed, and
// what was published of dcgm-exporter, which asks for NVIDIA's devices.
func write(b *testing.B, file string, share, memory float64) {
	b.Helper()
	type figure struct {
		Group     string   `json:"group"`
		Name      string   `json:"name"`
		Value     float64  `json:"value"`
		Unit      string   `json:"unit"`
		Peer      string   `json:"peer,omitempty"`
		PeerValue *float64 `json:"peer_value,omitempty"`
		Ratio     *float64 `json:"ratio,omitempty"`
		Goal      float64  `json:"goal"`
		Holds     bool     `json:"holds"`
	}
	beside := func(name string, value float64, unit, peer string, theirs, goal float64) figure {
		f := figure{Group: "health", Name: name, Value: value, Unit: unit, Peer: peer, Goal: goal, Holds: value <= goal}
		if theirs > 0 {
			ratio := value / theirs
			f.PeerValue, f.Ratio = &theirs, &ratio
		}
		return f
	}
	nodeShare, nodeMemory, node := nodeExporter(b)
	text, err := json.MarshalIndent([]figure{
		beside("agent, 8 devices every 10 s", share, "% of a core", node, nodeShare, shareGoal),
		beside("agent's memory, 8 devices", memory, "MB", node, nodeMemory, memoryGoal),
		beside("agent, 8 devices every 10 s, once more", share, "% of a core", "dcgm-exporter, published: 3 to 9 m of a core (NVIDIA/gpu-operator#340)", 0.8, shareGoal),
		beside("agent's memory, 8 devices, once more", memory, "MB", "dcgm-exporter, published: median of 12 servers of 8 GPUs (pytorch/ci-infra#1011)", 484*1024*1024/1e6, memoryGoal),
	}, "", "  ")
	if err == nil {
		err = os.WriteFile(file, append(text, '\n'), 0o644)
	}
	if err != nil {
		b.Fatal(err)
	}
}

// nodeExporter is what Debian's node_exporter costs that is asked every ten seconds; what it reads is the server around the devices.
func nodeExporter(b *testing.B) (share, memory float64, name string) {
	b.Helper()
	program, err := exec.LookPath("prometheus-node-exporter")
	if err != nil {
		return 0, 0, "node_exporter is not installed (prometheus-node-exporter)"
	}
	address := free(b)
	cmd := exec.CommandContext(b.Context(), program, "--web.listen-address="+address, "--log.level=error")
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	scrape := func() error {
		resp, err := http.Get("http://" + address + "/metrics") //nolint:noctx // it is on loopback and answers at once
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); scrape() != nil; <-tick.C {
		if time.Now().After(end) {
			b.Fatal("node_exporter does not answer")
		}
	}
	const times = 200
	begun := processor(b, cmd.Process.Pid)
	for range times {
		if err := scrape(); err != nil {
			b.Fatal(err)
		}
	}
	return 100 * (processor(b, cmd.Process.Pid) - begun).Seconds() / times / 10, resident(b, cmd.Process.Pid), "node_exporter, asked every 10 s"
}

// free is an address of loopback that nobody listens on.
func free(b *testing.B) string {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
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
