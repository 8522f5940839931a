package ascend

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpupool/worker/agent/accelerator"
	"gpupool/worker/agent/standin"
)

// info is what npu-smi info prints of n devices.
func info(n int, health string) string {
	var b strings.Builder
	b.WriteString(`+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc2                 Version: 24.1.rc2                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
`)
	for i := range n {
		fmt.Fprintf(&b, "| %-5d 910B3               | %-13s | 95.8        4%d                0    / 0             |\n", i, health, i%10)
		fmt.Fprintf(&b, "| 0                         | 0000:%02X:00.0  | 37          0    / 0          3346 / 65536         |\n", 0xc1+i)
		b.WriteString("+===========================+===============+====================================================+\n")
	}
	b.WriteString(`+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 12345         | python                   | 3300                    |
+===========================+===============+====================================================+
`)
	return b.String()
}

const ecc = `        NPU ID                                   : 0
        HBM Single Bit Error Count               : 5
        HBM Double Bit Error Count               : 1
        HBM Single Bit Aggregate Total Err Cnt   : 50
        HBM Double Bit Aggregate Total Err Cnt   : 3
        HBM Single Bit Isolated Pages Count      : 0
        HBM Double Bit Isolated Pages Count      : 2
        Chip ID                                  : 0
`

// tool makes an npu-smi.
func tool(t testing.TB, r *Reader, summary, counters string) {
	t.Helper()
	r.tool = filepath.Join(t.TempDir(), "npu-smi")
	standin.Program(t, r.tool, "case \"$*\" in\ninfo) cat <<'END'\n"+summary+"\nEND\n;;\n'info -t board -i '*) echo \"        Serial Number                  : 2106030217RC$5\";;\n'info -t ecc -i '*) cat <<'END'\n"+counters+"\nEND\n;;\n*) exit 2;;\nesac\n")
}

func TestEightDevices(t *testing.T) {
	t.Parallel()
	r := New(t.TempDir())
	tool(t, r, info(8, "OK"), ecc)
	list, err := r.Read(t.Context())
	if err != nil || len(list) != 8 {
		t.Fatalf("%d devices, %v", len(list), err)
	}
	for i, d := range list {
		if d.Serial != fmt.Sprintf("2106030217RC%d", i) || d.Model != "huawei-ascend-910b3-64gb" || d.PCI != fmt.Sprintf("0000:%02x:00.0", 0xc1+i) || d.Error != "" || d.Index != i {
			t.Errorf("device %d: %+v", i, d)
		}
		for m, want := range map[string]float64{accelerator.Power: 95.8, accelerator.Temperature: float64(40 + i), accelerator.Utilization: 0.37, accelerator.MemoryUsed: 3346 << 20,
			accelerator.ECCCorrected: 5, accelerator.ECCUncorrected: 1, accelerator.ECCLifeUncorrect: 3, accelerator.RemappedRows: 2, accelerator.VendorHealth: 0} {
			if got, ok := d.Samples[m]; !ok || got != want {
				t.Errorf("device %d: %s is %v (known: %v), want %v", i, m, got, ok, want)
			}
		}
	}
	if v, err := r.Driver(t.Context()); err != nil || v != "24.1.rc2" {
		t.Errorf("driver %q, %v", v, err)
	}
}

func TestItsOwnWordIsTakenAndAnUnknownOneIsUnknown(t *testing.T) {
	t.Parallel()
	for health, want := range map[string]float64{"OK": 0, "Warning": 1, "Alarm": 2, "Critical": 2, "UNKNOWN": -1, "Fancy": -1} {
		r := New(t.TempDir())
		tool(t, r, info(1, health), ecc)
		list, err := r.Read(t.Context())
		if err != nil || len(list) != 1 {
			t.Fatalf("%s: %v, %v", health, list, err)
		}
		got, known := list[0].Samples[accelerator.VendorHealth]
		if known != (want >= 0) || known && got != want || (list[0].Error == "") != known {
			t.Errorf("%s: %+v", health, list[0])
		}
	}
}

func TestCountersThatAreNotAnsweredAreForgotten(t *testing.T) {
	t.Parallel()
	r := New(t.TempDir())
	at := time.Unix(1000, 0)
	r.now = func() time.Time { return at }
	tool(t, r, info(1, "OK"), ecc)
	if list, err := r.Read(t.Context()); err != nil || list[0].Samples[accelerator.ECCCorrected] != 5 {
		t.Fatalf("%+v, %v", list, err)
	}
	tool(t, r, strings.Replace(info(1, "OK"), "95.8", "NA", 1), "the driver is busy")
	at = at.Add(2 * errorsEvery)
	list, err := r.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if v, ok := list[0].Samples[accelerator.ECCCorrected]; ok {
		t.Errorf("an old count is told: %v", v)
	}
	if !slices.Contains(list[0].NotApplicable, accelerator.Power) || list[0].Serial == "" {
		t.Errorf("%+v", list[0])
	}
}

func TestWhatCannotBeReadIsCountedAndTheRestIsRead(t *testing.T) {
	t.Parallel()
	whole := info(3, "OK")
	cut := whole[:strings.Index(whole, "0000:C3")]
	if s := parseInfo(cut); len(s.devices) != 2 || s.bad != 1 {
		t.Errorf("cut off: %d devices, %d bad", len(s.devices), s.bad)
	}
	if s := parseInfo(strings.Replace(whole, "0000:C2:00.0", "somewhere   ", 1)); len(s.devices) != 2 || s.bad != 1 {
		t.Errorf("a strange address: %d devices, %d bad", len(s.devices), s.bad)
	}
	two := ecc + strings.NewReplacer(": 5", ": 6", "Chip ID                                  : 0", "Chip ID                                  : 1").Replace(ecc)
	if a, b, c := parseECC(two, 0), parseECC(two, 1), parseECC(two, 2); a[accelerator.ECCCorrected] != 5 || b[accelerator.ECCCorrected] != 6 || len(c) != 0 {
		t.Errorf("two chips: %v, %v, %v", a, b, c)
	}
	r := New(t.TempDir())
	r.tool = "npu-smi-that-is-not-there"
	if _, err := r.Read(t.Context()); !errors.Is(err, accelerator.ErrNoDriver) {
		t.Errorf("without the tool: %v", err)
	}
	tool(t, r, "dcmi module initialize failed. ret is -8005", "")
	if _, err := r.Read(t.Context()); err == nil || errors.Is(err, accelerator.ErrNoDriver) {
		t.Errorf("a tool that says something else: %v", err)
	}
}

func FuzzInfo(f *testing.F) {
	f.Add(info(2, "OK"))
	f.Add("| 0 x | OK | 1e99 NaN |\n| 0 | 0000:C1:00.0 | -5 9 / 3 |\n")
	f.Fuzz(func(t *testing.T, out string) {
		for _, d := range parseInfo(out).devices {
			if d.PCI == "" || d.MemoryBytes < 0 {
				t.Errorf("%+v", d)
			}
			for k, v := range d.Samples {
				if v < 0 || v != v {
					t.Errorf("%s is %v", k, v)
				}
			}
		}
		for k, v := range parseECC(out, 0) {
			if v < 0 {
				t.Errorf("%s is %v", k, v)
			}
		}
		_ = serial(out)
	})
}
