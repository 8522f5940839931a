package simulate

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"gpupool/activities/allocator/engine"
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
	queue := 100000
	if q := os.Getenv("QUEUE"); q != "" {
		queue, _ = strconv.Atoi(q)
	}
	pool := newFullPool(10000, queue)
	var work []time.Duration
	b.ReportAllocs()
	for b.Loop() {
		pool.submit()
		began := threadTime()
		pool.cycle()
		work = append(work, threadTime()-began)
	}
	slices.Sort(work)
	b.ReportMetric(float64(work[len(work)/10])/1e6, "p10-ms") // what a busy machine disturbs least
	b.ReportMetric(float64(work[len(work)/2])/1e6, "p50-ms")
	b.ReportMetric(float64(work[len(work)*99/100])/1e6, "p99-ms")
}

// BenchmarkFill is the first cycle of a pool with a queue, for profiles: its processor time by start.
func BenchmarkFill(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	starts, spent := 0, time.Duration(0)
	for range b.N {
		pool, now := benchPool(10000), origin
		for i := range 100000 + 25000 {
			pool.SetJob(benchJob(i, now))
		}
		runtime.GC()
		began := threadTime()
		starts += len(pool.Cycle(now).Starts)
		spent += threadTime() - began
	}
	b.ReportMetric(float64(spent.Nanoseconds())/float64(starts), "ns/start")
}

// BenchmarkVictims is the search for the victims of a job of 8 accelerators alone, for profiles: its processor time.
func BenchmarkVictims(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	spent := time.Duration(0)
	for range b.N {
		s := victimPool()
		s.SetJob(engine.Job{ID: "high", Tenant: "u", Spec: "x8", Nodes: 1, Priority: 10, Seq: 5000, Attempt: 1})
		began := threadTime()
		if r := s.Cycle(origin.Add(time.Hour)); len(r.Victims) != 8 {
			b.Fatalf("%d victims", len(r.Victims))
		}
		spent += threadTime() - began
	}
	b.ReportMetric(float64(spent.Microseconds())/float64(b.N), "us/search")
}
