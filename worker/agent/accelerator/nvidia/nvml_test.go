//go:build cgo && linux

package nvidia

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
)

// reading is what a process with a library of its own read. NVML is loaded once in a process, so each case has one.
type reading struct {
	Driver  string
	Devices []agentproto.Device
	Err     string
	None    bool // ErrNoDriver
}

func TestMain(m *testing.M) {
	if os.Getenv("NVML_TEST_READ") == "" {
		os.Exit(m.Run())
	}
	r := New("", time.Time{})
	var out reading
	var err error
	if out.Devices, err = r.Read(context.Background()); err == nil {
		out.Driver, err = r.Driver(context.Background())
	}
	if err != nil {
		out.Err, out.None = err.Error(), errors.Is(err, accelerator.ErrNoDriver)
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// library compiles the fake library; flags are the compiler's.
func library(t *testing.T, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	args := append([]string{"-shared", "-fPIC", "-o", filepath.Join(dir, "libnvidia-ml.so.1"), "testdata/fakenvml.c"}, flags...)
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		t.Skipf("no C compiler for the fake library: %v: %s", err, out)
	}
	return dir
}

func read(t *testing.T, dir, fake string) reading {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), "NVML_TEST_READ=1", "LD_LIBRARY_PATH="+dir, "FAKE_NVML="+fake)
	out, err := cmd.Output()
	if err != nil {
		var x *exec.ExitError
		if errors.As(err, &x) {
			t.Fatalf("the reader died: %v: %s", err, bytes.TrimSpace(x.Stderr))
		}
		t.Fatal(err)
	}
	var r reading
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return r
}

func TestEightHealthyDevices(t *testing.T) {
	t.Parallel()
	r := read(t, library(t), "")
	if r.Err != "" || r.Driver != "570.86.15" || len(r.Devices) != 8 {
		t.Fatalf("%+v", r)
	}
	d := r.Devices[3]
	if d.Serial != "165000003" || d.UUID != "GPU-3" || d.PCI != "0000:1e:00.0" || d.Model != "nvidia-h100-80gb" || d.MemoryBytes != 81559<<20 || d.Error != "" {
		t.Errorf("%+v", d)
	}
	for m, want := range map[string]float64{
		accelerator.Temperature: 43, accelerator.TemperatureLimit: 87, accelerator.Power: 71.5, accelerator.PowerLimit: 700, accelerator.Utilization: 0.37,
		accelerator.ECCUncorrected: 2, accelerator.ECCLifeUncorrect: 12, accelerator.ECCCorrected: 40, accelerator.RemappedRows: 3, accelerator.RemapPending: 1, accelerator.RemapFailed: 0,
		accelerator.ClockCore: 1980e6, accelerator.PCIeGen: 5, accelerator.PCIeWidth: 16, accelerator.LinksUp: 18, accelerator.LinksTotal: 18, accelerator.LinkErrors: 0, accelerator.Throttled: 0,
		accelerator.SRAMThreshold: 0, accelerator.Energy: 5000, accelerator.UtilizationMemory: 0.05,
	} {
		if got, ok := d.Samples[m]; !ok || got != want {
			t.Errorf("%s is %v (known: %v), want %v", m, got, ok, want)
		}
	}
	if r.Devices[4].Samples[accelerator.Throttled] != 1 || r.Devices[6].Samples[accelerator.LinksUp] != 17 || r.Devices[1].Samples[accelerator.PCIeWidth] != 8 {
		t.Error("a slowed device, a link that is down or a narrow slot is not seen")
	}
}

func TestADeviceThatIsLostIsListedWithWords(t *testing.T) {
	t.Parallel()
	r := read(t, library(t), "lost=3")
	if len(r.Devices) != 8 || !strings.Contains(r.Devices[3].Error, "lost") || r.Devices[3].Serial != "165000003" || len(r.Devices[3].Samples) != 0 {
		t.Errorf("%+v", r.Devices)
	}
	if r.Devices[2].Error != "" || len(r.Devices[2].Samples) == 0 {
		t.Errorf("its neighbour: %+v", r.Devices[2])
	}
}

func TestADeviceOverItsSRAMLimitSaysSo(t *testing.T) {
	t.Parallel()
	r := read(t, library(t), "sram=1")
	for i, want := range []float64{0, 1} {
		if got, ok := r.Devices[i].Samples[accelerator.SRAMThreshold]; !ok || got != want {
			t.Errorf("device %d: %v (known: %v)", i, got, ok)
		}
	}
}

func TestADeviceThatHangsStarvesNoOther(t *testing.T) {
	t.Parallel()
	r := read(t, library(t), "hang=5")
	for i, d := range r.Devices {
		if i == 5 && (d.Error == "" || d.UUID != "GPU-5") || i != 5 && (d.Error != "" || d.Samples[accelerator.Temperature] != float64(40+i)) {
			t.Errorf("device %d: %+v", i, d)
		}
	}
}

func TestWhatAPartitionedDeviceCannotSayIsNotZero(t *testing.T) {
	t.Parallel()
	d := read(t, library(t), "mig=2").Devices[2]
	for _, m := range []string{accelerator.Utilization, accelerator.RemappedRows, accelerator.RemapFailed} {
		if _, ok := d.Samples[m]; ok || !slices.Contains(d.NotApplicable, m) {
			t.Errorf("%s: %v, not applicable: %v", m, d.Samples[m], d.NotApplicable)
		}
	}
}

func TestADriverThatLacksAFunctionIsRead(t *testing.T) {
	t.Parallel()
	r := read(t, library(t, "-DOLD"), "")
	if len(r.Devices) != 8 || r.Devices[0].Samples[accelerator.Temperature] != 40 {
		t.Fatalf("%+v", r)
	}
	if _, ok := r.Devices[0].Samples[accelerator.RemappedRows]; ok {
		t.Error("remapped rows were made up")
	}
}

func TestAServerWithoutTheLibrary(t *testing.T) {
	t.Parallel()
	if r := read(t, t.TempDir(), ""); !r.None || !strings.Contains(r.Err, "no NVIDIA driver") {
		t.Errorf("%+v", r)
	}
	if r := read(t, library(t), "noinit=1"); !r.None {
		t.Errorf("a driver that is not loaded: %+v", r)
	}
}
