package simulate

import (
	"os"
	"runtime"
	"slices"
	"testing"
	"time"
)

// BenchmarkEngine prints the figures of Bench; go test -bench Engine -benchtime 1x.
func BenchmarkEngine(b *testing.B) {
	for range b.N {
		for _, f := range Bench(os.Getenv("QUICK") != "", func(line string) { b.Log(line) }) {
			if !f.Holds {
				b.Errorf("%s: %.4g %s, goal %g", f.Name, f.Value, f.Unit, f.Goal)
			}
		}
	}
}

// BenchmarkCycle is the steady cycle alone, back to back, for profiles: its processor time and what it allocates.
func BenchmarkCycle(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pool := newFullPool(10000, 100000)
	var work []time.Duration
	b.ReportAllocs()
	for b.Loop() {
		began := threadTime()
		pool.cycle()
		work = append(work, threadTime()-began)
	}
	slices.Sort(work)
	b.ReportMetric(float64(work[len(work)/2])/1e6, "p50-ms")
	b.ReportMetric(float64(work[len(work)*99/100])/1e6, "p99-ms")
}
