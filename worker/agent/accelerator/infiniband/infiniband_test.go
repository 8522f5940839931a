package infiniband

import (
	"fmt"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/worker/agent/accelerator"
	"gpupool/worker/agent/accelerator/sysfs/sysfstest"
)

func port(name string, counters map[string]string) map[string]string {
	dir := "class/infiniband/" + name + "/"
	files := map[string]string{dir + "state": "4: ACTIVE\n", dir + "phys_state": "5: LinkUp\n", dir + "rate": "400 Gb/sec (4X NDR)\n", dir + "link_layer": "InfiniBand\n"}
	for k, v := range counters {
		files[dir+k] = v
	}
	return files
}

func TestPortsAreReadByTheirFiles(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for i := range 12 { // more than ten
		for k, v := range port(fmt.Sprintf("mlx5_%d/ports/1", i), map[string]string{"counters/symbol_error": "18446744073709551615\n", "counters/link_downed": "N/A (no PMA)\n", "counters/local_link_integrity_errors": "3\n"}) {
			files[k] = v
		}
	}
	for k, v := range port("mlx5_9/ports/1", map[string]string{"link_layer": "Ethernet\n"}) {
		files[k] = v
	}
	for k, v := range port("mlx5_8/ports/1", map[string]string{"state": "1: DOWN\n", "rate": "fast\n"}) {
		files[k] = v
	}
	for k, v := range port("mlx5_7/ports/1", map[string]string{"state": "2: INIT\n"}) {
		files[k] = v
	}
	parts, err := New(sysfstest.Tree(t, files)).Parts(t.Context())
	if err != nil || len(parts) != 11 {
		t.Fatalf("%d ports, %v; want 11: one is Ethernet's", len(parts), err)
	}
	states := map[accelerator.PartState]int{}
	for _, p := range parts {
		states[p.State]++
		if _, ok := p.Samples[accelerator.IBLinkDowned]; ok || p.Samples[accelerator.IBSymbolErrors] != 1<<64-1 || p.Samples[accelerator.IBIntegrity] != 3 {
			t.Errorf("%s: %v", p.Name, p.Samples)
		}
		if _, ok := p.Samples[accelerator.IBOverrun]; ok {
			t.Errorf("%s has a counter without a file", p.Name)
		}
		if rate, ok := p.Samples[accelerator.IBRate]; ok == (p.Name == "mlx5_8/1") || ok && rate != 400e9 {
			t.Errorf("%s: rate %v (known: %v)", p.Name, rate, ok)
		}
	}
	if states[accelerator.PartActive] != 9 || states[accelerator.PartDown] != 1 || states[accelerator.PartUnknown] != 1 {
		t.Errorf("states %v", states)
	}
	if parts, err := New(t.TempDir()).Parts(t.Context()); err != nil || len(parts) != 0 {
		t.Errorf("a server without InfiniBand: %v, %v", parts, err)
	}
}

// Case 11 of the cases on health, from the files on: a port that goes down once, a driver that is loaded anew.
func TestOnlyWhatRisesIsTold(t *testing.T) {
	t.Parallel()
	var m accelerator.Memory
	for i, c := range []struct {
		downed string
		want   int
	}{{"10000", 0}, {"10000", 0}, {"0", 0}, {"0", 0}, {"1", 1}, {"1", 0}, {"", 0}, {"1", 0}} {
		parts, err := New(sysfstest.Tree(t, port("mlx5_0/ports/1", map[string]string{"counters/link_downed": c.downed}))).Parts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := m.StepParts("b", schema.At(time.Unix(1_700_000_000, 0).Add(time.Duration(i)*time.Minute)), parts); len(got) != c.want {
			t.Errorf("look %d tells %+v, want %d signs", i+1, got, c.want)
		}
	}
}

func FuzzPort(f *testing.F) {
	f.Add("4: ACTIVE", "400 Gb/sec (4X NDR)", "17")
	f.Add("", "NaN Gb/sec", "-1")
	f.Fuzz(func(t *testing.T, state, rate, counter string) {
		parts, err := New(sysfstest.Tree(t, port("mlx5_0/ports/1", map[string]string{"state": state, "rate": rate, "counters/link_downed": counter}))).Parts(t.Context())
		if err != nil || len(parts) != 1 {
			t.Fatalf("%d ports, %v", len(parts), err)
		}
		for k, v := range parts[0].Samples {
			if v < 0 || v != v {
				t.Errorf("%s is %v", k, v)
			}
		}
	})
}
