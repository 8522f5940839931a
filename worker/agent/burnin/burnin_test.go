package burnin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gpupool/schema/agentproto"
	"gpupool/worker/agent/standin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const h100 = "nvidia-h100-80gb"

func devices(n int) []agentproto.Device {
	var out []agentproto.Device
	for i := range n {
		out = append(out, agentproto.Device{Index: i, Slot: fmt.Sprintf("SXM%d", i+1), Serial: fmt.Sprintf("S%d", i), Model: h100})
	}
	return out
}

// fake is a program that prints what is told and ends as told.
func fake(t *testing.T, out string, code int) *Box {
	t.Helper()
	dir := t.TempDir()
	text, script := filepath.Join(dir, "out"), filepath.Join(dir, "program")
	if err := os.WriteFile(text, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	standin.Program(t, script, fmt.Sprintf("cat %s\nexit %d\n", text, code))
	return &Box{Path: func(string) (string, error) { return script, nil }, Grace: 200 * time.Millisecond}
}

// dcgmDoc is DCGM's result in the form of version 4, with a word for each test and GPU.
func dcgmDoc(n int, word func(test string, gpu int) string) string {
	var tests []string
	for _, test := range []string{"software", "pcie", "memory"} {
		var results []string
		for i := range n {
			if w := word(test, i); w != "" {
				results = append(results, fmt.Sprintf(`{"entity_group":"GPU","entity_group_id":1,"entity_id":%d,"status":%q,"warnings":[{"warning":"row 7 is bad","error_id":44}]}`, i, w))
			}
		}
		tests = append(tests, fmt.Sprintf(`{"name":%q,"results":[%s]}`, test, strings.Join(results, ",")))
	}
	return `{"DCGM Diagnostic":{"test_categories":[{"category":"Hardware","tests":[` + strings.Join(tests, ",") + `]}]}}`
}

func all(word string) func(string, int) string { return func(string, int) string { return word } }

// matrix is nvbandwidth's, every cell but a GPU with itself.
func bandwidth(h2d, p2p string) string {
	row := func(n int, v string, skip int) string {
		cells := make([]string, n)
		for i := range cells {
			cells[i] = `"` + v + `"`
			if i == skip {
				cells[i] = `"N/A"`
			}
		}
		return "[" + strings.Join(cells, ",") + "]"
	}
	return fmt.Sprintf(`nvbandwidth Version: v0.8
{"nvbandwidth":{"testcases":[{"name":"host_to_device_memcpy_ce","status":"Passed","bandwidth_matrix":[%s]},{"name":"device_to_host_memcpy_ce","status":"Passed","bandwidth_matrix":[%s]},
{"name":"device_to_device_memcpy_read_ce","status":"Passed","bandwidth_matrix":[%s,%s]}]}}`, row(2, h2d, -1), row(2, "55.1", -1), row(2, p2p, 0), row(2, p2p, 1))
}

// TestAVerdictIsReadFromWhatEachDeviceDidAndNothingElse is case 24 for every tool: what the program prints and how it ends,
// and what may be made of it.
func TestAVerdictIsReadFromWhatEachDeviceDidAndNothingElse(t *testing.T) {
	t.Parallel()
	const nccl = "#       size         count      type   redop    root     time   algbw   busbw #wrong\n 17179869184    4294967296     float     sum      -1    65234  263.36  %s      0\n# Out of bounds values : %s\n# Avg bus bandwidth    : %s\n"
	for name, c := range map[string]struct {
		test    Test
		n       int
		out     string
		code    int
		passed  int
		failed  []string // slots, each with words behind a colon
		nothing string   // the words of what was not proven
	}{
		"dcgm: all pass":                             {Test{Tool: "dcgm", Options: level2}, 8, dcgmDoc(8, all("Pass")), 0, 8, nil, ""},
		"dcgm: exit code 0 with a Fail in it":        {Test{Tool: "dcgm", Options: level2}, 8, dcgmDoc(8, one("memory", 3, "Fail")), 0, 7, []string{"SXM4: memory: row 7 is bad"}, ""},
		"dcgm: exit code 226 and nothing else":       {Test{Tool: "dcgm", Options: level2}, 8, "Error: unable to connect\n", 226, 0, nil, "exit code 226"},
		"dcgm: exit code 226 though all pass":        {Test{Tool: "dcgm", Options: level2}, 8, dcgmDoc(8, all("Pass")), 226, 8, nil, "exit code 226"},
		"dcgm: cut off":                              {Test{Tool: "dcgm", Options: level2}, 8, dcgmDoc(8, all("Pass"))[:300], 0, 0, nil, "cut off"},
		"dcgm: everything skipped":                   {Test{Tool: "dcgm", Options: level2}, 8, dcgmDoc(8, all("Skip")), 0, 0, nil, "SXM1 (pcie: Skip)"},
		"dcgm: one test not run on one":              {Test{Tool: "dcgm", Options: level2}, 8, dcgmDoc(8, one("pcie", 5, "")), 0, 7, nil, "SXM6 (pcie was not run)"},
		"dcgm: seven of eight seen":                  {Test{Tool: "dcgm", Options: level2}, 8, dcgmDoc(7, all("Pass")), 0, 7, nil, "SXM8"},
		"dcgm: a level's tests are its own":          {Test{Tool: "dcgm", Options: map[string]string{"level": "3"}}, 8, dcgmDoc(8, all("Pass")), 0, 0, nil, "diagnostic was not run"},
		"dcgm: a runtime error":                      {Test{Tool: "dcgm"}, 8, `{"DCGM Diagnostic":{"runtime_error":"no such image"}}`, 0, 0, nil, "no such image"},
		"dcgm 3: GPUs in one list":                   {Test{Tool: "dcgm", Options: level2}, 2, `{"DCGM GPU Diagnostic":{"test_categories":[{"tests":[{"name":"PCIe","results":[{"gpu_ids":"0,1","status":"Pass"}]},{"name":"GPU Memory","results":[{"gpu_ids":"0","status":"Pass"},{"gpu_ids":"1","status":"Fail","warnings":"ECC"}]}]}]}}`, 0, 1, []string{"SXM2: memory: ECC"}, ""},
		"dcgm: what was not asked for and failed":    {Test{Tool: "dcgm", Options: level2}, 2, dcgmDoc(2, one("software", 1, "Fail")), 0, 1, []string{"SXM2: software"}, ""},
		"gpu-burn: all well":                         {Test{Tool: "gpu-burn"}, 2, "10.0%  proc'd: 1 (1 Gflop/s)\nKilling processes.. done\n\nTested 2 GPUs:\n\tGPU 0: OK\n\tGPU 1: OK\n", 0, 2, nil, ""},
		"gpu-burn: one computes wrongly":             {Test{Tool: "gpu-burn"}, 2, "Tested 2 GPUs:\n\tGPU 0: OK\n\tGPU 1: FAULTY\n", 0, 1, []string{"SXM2: computed wrongly"}, ""},
		"gpu-burn: one not in the list":              {Test{Tool: "gpu-burn"}, 2, "Tested 1 GPUs:\n\tGPU 0: OK\n", 0, 1, nil, "SXM2"},
		"gpu-burn: no list":                          {Test{Tool: "gpu-burn"}, 2, "Couldn't init CUDA\n", 1, 0, nil, "Couldn't init CUDA"},
		"nvbandwidth: fast":                          {Test{Tool: "nvbandwidth"}, 2, bandwidth("53.0", "390.5"), 0, 2, nil, ""},
		"nvbandwidth: a slow host link":              {Test{Tool: "nvbandwidth"}, 2, bandwidth("24.9", "390.5"), 0, 0, []string{"SXM1: host-to-device is 24.9 GB/s, the floor is 48", "SXM2: host-to-device"}, ""},
		"nvbandwidth: waived between GPUs":           {Test{Tool: "nvbandwidth"}, 2, strings.Replace(bandwidth("53", "390"), `read_ce","status":"Passed"`, `read_ce","status":"Waived"`, 1), 0, 0, nil, "peer-to-peer was not measured"},
		"nccl: fast":                                 {Test{Tool: "nccl"}, 8, fmt.Sprintf(nccl, "479.7", "0 OK", "479.7"), 0, 8, nil, ""},
		"nccl: slow":                                 {Test{Tool: "nccl"}, 2, fmt.Sprintf(nccl, "200", "0 OK", "200.1"), 0, 0, []string{"SXM1: all-reduce is 200.1", "SXM2: all-reduce"}, ""},
		"nccl: wrong sums":                           {Test{Tool: "nccl"}, 1, fmt.Sprintf(nccl, "479", "4 FAILED", "479"), 0, 0, []string{"SXM1: 4 values"}, ""},
		"nccl: died":                                 {Test{Tool: "nccl"}, 1, "Test NCCL failure common.cu:958 'unhandled cuda error'\n", 3, 0, nil, "exit code 3"},
		"rvs: all pass":                              {Test{Tool: "rvs"}, 2, "[RESULT] [1.0] [action_1] gst [GPU:: 0] GFLOPS 1 met: TRUE\n[RESULT] [1.1] [iet] gpu_id 1 pass: TRUE\n", 0, 2, nil, ""},
		"rvs: one does not":                          {Test{Tool: "rvs"}, 2, "[RESULT] [1.0] [gst] GPU id: 0 met: TRUE\n[RESULT] [1.1] [iet] gpu_id 1 pass: FALSE\n", 0, 1, []string{"SXM2: pass: FALSE"}, ""},
		"rvs: nothing of one":                        {Test{Tool: "rvs"}, 2, "[RESULT] [1.0] [gst] GPU id: 0 met: TRUE\n", 0, 1, nil, "SXM2"},
		"stress-ng: a wrong result":                  {Test{Tool: "stress-ng-memory"}, 0, "stress-ng: fail:  [12] vm: detected 3 bit errors\nstress-ng: info:  [10] unsuccessful run completed in 1.00s\n", 2, 0, []string{"server: 3 bit errors"}, ""},
		"stress-ng: for want of memory":              {Test{Tool: "stress-ng-memory"}, 0, "stress-ng: info: [1] no resources\n", 3, 0, nil, "could not run it here"},
		"stress-ng: killed by the kernel":            {Test{Tool: "stress-ng-cpu"}, 0, "stress-ng: info: [1] dispatching hogs: 2 cpu\n", 137, 0, nil, "exit code 137"},
		"stress-ng: an end without its last words":   {Test{Tool: "stress-ng-cpu"}, 0, "stress-ng: info: [1] dispatching hogs: 2 cpu\n", 0, 0, nil, "exit code 0"},
		"fio: a checksum that is wrong":              {Test{Tool: "fio"}, 0, `{"jobs":[{"error":84,"read":{"io_bytes":4096},"write":{"io_bytes":8192}}]}`, 1, 0, []string{"server: not what was read"}, ""},
		"fio: no room":                               {Test{Tool: "fio"}, 0, `{"jobs":[{"error":28,"read":{"io_bytes":0},"write":{"io_bytes":0}}]}`, 1, 0, nil, "error 28"},
		"fio: less read than written":                {Test{Tool: "fio"}, 0, `{"jobs":[{"error":0,"read":{"io_bytes":4096},"write":{"io_bytes":8192}}]}`, 0, 0, nil, "4096"},
		"a model without a floor is not let through": {Test{Tool: "nccl"}, 1, fmt.Sprintf(nccl, "479", "0 OK", "479"), 0, 0, nil, "no floor of all-reduce"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			model := h100
			if strings.HasPrefix(name, "a model without") {
				model = "nvidia-l4-24gb"
			}
			c.test.Seconds = 20
			f, err := fake(t, c.out, c.code).Run(t.Context(), c.test, model, devices(c.n))
			var u *Unproven
			if got := errors.As(err, &u); got != (c.nothing != "") || err != nil && !got || got && !strings.Contains(u.Text, c.nothing) {
				t.Errorf("it proves nothing: %v, want %q", err, c.nothing)
			}
			if len(f.Passed) != c.passed {
				t.Errorf("%d passed, want %d: %+v", len(f.Passed), c.passed, f.Passed)
			}
			var slots []string
			for _, x := range f.Failed {
				slots = append(slots, x.Device.Slot+": "+x.Text)
			}
			if len(slots) != len(c.failed) {
				t.Fatalf("failed: %q, want %q", slots, c.failed)
			}
			for i, want := range c.failed {
				slot, words, _ := strings.Cut(want, ": ")
				if !strings.HasPrefix(slots[i], slot+": ") || !strings.Contains(slots[i], words) {
					t.Errorf("failed: %q, want %q", slots[i], want)
				}
			}
			if f.Evidence.Output != c.out || f.Evidence.ExitCode != c.code || len(f.Evidence.SHA256) != 64 || f.Evidence.Bytes != len(c.out) {
				t.Errorf("the evidence is %+v", f.Evidence)
			}
		})
	}
}

var level2 = map[string]string{"level": "2"}

func one(test string, gpu int, word string) func(string, int) string {
	return func(t string, g int) string {
		if t == test && g == gpu {
			return word
		}
		return "Pass"
	}
}

// TestAProgramThatHangsIsKilledWithItsChildren: it ignores the word to stop and has a child that does so too.
// Case 22 of the cases on health: a diagnosis that hangs proves nothing, and is ended.
func TestAProgramThatHangsIsKilledWithItsChildren(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script, pids := filepath.Join(dir, "program"), filepath.Join(dir, "pids")
	standin.Program(t, script, fmt.Sprintf("trap '' TERM\n(trap '' TERM; echo $$ >>%[1]s; while :; do sleep 60; done) &\necho $! >>%[1]s\necho $$ >>%[1]s\nwhile :; do sleep 60; done\n", pids))
	r := run(t.Context(), 500*time.Millisecond, 200*time.Millisecond, script)
	if !r.late || r.code != -1 {
		t.Fatalf("it ended with %d, late %v", r.code, r.late)
	}
	b, err := os.ReadFile(pids)
	must(t, err)
	for pid := range strings.FieldsSeq(string(b)) {
		var n int
		if _, err := fmt.Sscan(pid, &n); err != nil {
			t.Fatal(err)
		}
		gone := func() bool {
			stat, err := os.ReadFile("/proc/" + pid + "/stat")
			return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) || strings.Contains(string(stat), ") Z ") // its new parent may be slow to reap it
		}
		tick, deadline := time.NewTicker(time.Millisecond), time.After(10*time.Second)
		for !gone() {
			select {
			case <-tick.C:
			case <-deadline:
				t.Fatalf("process %s lives on", pid)
			}
		}
		tick.Stop()
	}
	box := &Box{Path: func(string) (string, error) { return script, nil }, Grace: 100 * time.Millisecond}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := box.Run(ctx, Test{Tool: "dcgm", Seconds: 60}, h100, devices(1)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a run whose caller went away: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestAToolThatIsMissingProvesNothing(t *testing.T) {
	t.Parallel()
	box := &Box{Path: func(string) (string, error) { return "", exec.ErrNotFound }}
	for _, tool := range append(Tools(), "nonsense") {
		f, err := box.Run(t.Context(), Test{Tool: tool, Seconds: 1}, h100, devices(8))
		var u *Unproven
		if !errors.As(err, &u) || len(f.Passed)+len(f.Failed) > 0 {
			t.Errorf("%s: %+v, %v", tool, f, err)
		}
	}
}

// TestTheRealHostToolsRun: stress-ng and fio as Debian has them, for a second each.
func TestTheRealHostToolsRun(t *testing.T) {
	t.Parallel()
	for _, c := range []Test{
		{Tool: "stress-ng-cpu", Seconds: 1, Options: map[string]string{"workers": "1"}},
		{Tool: "stress-ng-memory", Seconds: 1, Options: map[string]string{"workers": "1", "memory": "16m"}},
		{Tool: "fio", Seconds: 1, Options: map[string]string{"size": "4m", "direct": "0"}},
	} {
		t.Run(c.Tool, func(t *testing.T) {
			if _, err := exec.LookPath(tools[c.Tool].program); err != nil {
				t.Skipf("%s is not installed (make test installs it)", tools[c.Tool].program)
			}
			dir := t.TempDir()
			f, err := (&Box{Scratch: dir}).Run(t.Context(), c, h100, nil)
			if err != nil || len(f.Passed) != 1 || len(f.Failed) > 0 || f.Evidence.Version == "" {
				t.Fatalf("%+v, %v", f, err)
			}
			if left, err := filepath.Glob("*.state"); err != nil || len(left) > 0 {
				t.Fatalf("it left %v in the folder that the agent runs in (%v)", left, err)
			}
			if c.Tool == "fio" && (f.Figures["write_bytes_per_second"] <= 0 || f.Figures["read_bytes_per_second"] <= 0) {
				t.Errorf("figures %v", f.Figures)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("it left %v, %v", left, err)
			}
		})
	}
}

func TestFloorsAreHeldAgainstTheDataSheetWhenTheyAreLoaded(t *testing.T) {
	t.Parallel()
	if len(Floors) == 0 || FloorsVersion < 1 {
		t.Fatalf("%d floors of version %d", len(Floors), FloorsVersion)
	}
	for what, line := range map[string]string{
		"GB typed as MB":       `{model: nvidia-h200-141gb, metric: memory, unit: MB/s, min: 2333, sheet: 4800000, source: x}`,
		"a floor too high":     `{model: m, metric: x, unit: GB/s, min: 70, sheet: 63, source: x}`,
		"one without a source": `{model: m, metric: x, unit: GB/s, min: 50, sheet: 63}`,
		"twice the same":       "{model: m, metric: x, unit: GB/s, min: 50, sheet: 63, source: x}\n  - {model: m, metric: x, unit: GB/s, min: 50, sheet: 63, source: x}",
	} {
		if _, _, err := readFloors([]byte("version: 1\nfloors:\n  - " + line + "\n")); err == nil {
			t.Errorf("%s was taken", what)
		}
	}
}

func TestEverySuiteOfEveryVendorHasItsTools(t *testing.T) {
	t.Parallel()
	byName, version := Suites()
	if version < 1 {
		t.Errorf("version %d", version)
	}
	for _, vendor := range []string{"nvidia", "amd"} {
		got := byName(vendor)
		for _, name := range []string{"quick", "standard", "soak"} {
			if !slices.ContainsFunc(got[name], func(x Test) bool { return IsHost(x.Tool) }) || !slices.ContainsFunc(got[name], func(x Test) bool { return !IsHost(x.Tool) }) {
				t.Errorf("suite %s of %s tests %v: want the server and its devices", name, vendor, got[name])
			}
		}
	}
	if len(byName("intel")) != 0 {
		t.Error("a vendor without tests of its own has a suite: its devices would pass untested")
	}
	if _, err := readSuites([]byte("version: 1\nsuites: {quick: {any: [{tool: dcgmi, seconds: 1}]}}")); err == nil {
		t.Error("a tool that there is not was taken")
	}
}

// FuzzFindings: whatever a program prints and however it ends, a device is said to have passed at most once, and none that there is not.
func FuzzFindings(f *testing.F) {
	for _, seed := range []string{dcgmDoc(2, all("Pass")), bandwidth("53.0", "390.5"), "Tested 2 GPUs:\n\tGPU 0: OK\n\tGPU 1: FAULTY\n", "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 479.7\n",
		"[RESULT] [1.0] [gst] GPU id: 0 met: TRUE\n", "stress-ng: info:  [10] successful run completed in 1.00s\n", `{"jobs":[{"error":0,"read":{"io_bytes":4096},"write":{"io_bytes":4096}}]}`} {
		f.Add([]byte(seed), 0)
		f.Add([]byte(seed[:len(seed)/2]), 1)
	}
	f.Fuzz(func(t *testing.T, out []byte, code int) {
		for name, x := range tools {
			o := order{Test: Test{Tool: name, Seconds: 20}, model: h100, devices: devices(2)}
			found, err := x.read(o, out, code)
			if err != nil {
				continue
			}
			said := map[string]int{}
			for _, d := range found.Passed {
				said[d.Serial]++
			}
			for serial, n := range said {
				if n > 1 || !x.host && serial != "S0" && serial != "S1" {
					t.Errorf("%s: %q passed %d times", name, serial, n)
				}
			}
			for _, failed := range found.Failed {
				if said[failed.Device.Serial] > 0 {
					t.Errorf("%s: %q failed and passed", name, failed.Device.Serial)
				}
			}
		}
	})
}
