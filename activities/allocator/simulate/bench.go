package simulate

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"gpupool/activities/allocator/engine"
)

// Figure is one line of the engine's benchmark. Goal 0 = none; a goal in a unit of time is a ceiling, else a floor.
type Figure struct {
	Name  string
	Value float64
	Unit  string
	Goal  float64
	Holds bool
}

func ceiling(name string, d time.Duration, unit string, per time.Duration, goal float64) Figure {
	v := float64(d) / float64(per)
	return Figure{name, v, unit, goal, goal == 0 || v <= goal}
}

// BenchPool is a pool of servers of 8 accelerators of three models, 32 servers to a rack.
func benchPool(servers int) *engine.State {
	s := engine.New(engine.Config{})
	for i := range servers {
		s.SetServer(benchServer(i, 32, []string{"h100", "b200", "mi300x"}[i%3]))
	}
	for _, model := range []string{"h100", "b200", "mi300x"} {
		for _, k := range []int{1, 2, 4, 8} {
			s.SetSpec(engine.Spec{Name: fmt.Sprintf("%s-x%d", model, k), Model: model, Accelerators: k, CPU: int64(12 * k), MemoryBytes: int64(k) << 37})
		}
	}
	return s
}

func benchServer(i, perRack int, model string) engine.Server {
	id := fmt.Sprintf("s%06d", i)
	srv := engine.Server{
		ID: id, Region: "r", Site: fmt.Sprintf("site%d", i/4096), Rack: fmt.Sprintf("rack%05d", i/perRack),
		CPU: 112, MemoryBytes: 2 << 40, Schedulable: true, Accelerators: make([]engine.Accelerator, 8),
	}
	for k := range srv.Accelerators {
		srv.Accelerators[k] = engine.Accelerator{ID: fmt.Sprintf("%s-%d", id, k), Model: model, Index: k, Schedulable: true}
	}
	return srv
}

// benchJob is the i-th of a stream over 20 tenants and 12 specs.
func benchJob(i int, now time.Time) engine.Job {
	rng := newRandom(uint64(i))
	model := []string{"h100", "b200", "mi300x"}[rng.below(3)]
	k := []int{1, 1, 2, 4, 8}[rng.below(5)]
	return engine.Job{
		ID: fmt.Sprintf("job-%08d", i), Tenant: fmt.Sprintf("tenant%02d", rng.below(20)), Project: "p",
		Spec: fmt.Sprintf("%s-x%d", model, k), Nodes: 1, Seq: int64(i), Submitted: now, Attempt: 1, Preemptible: true,
		TimeLimit: time.Duration(1+rng.below(8)) * time.Hour,
	}
}

// Bench measures the engine by itself: no database, no events. quick stops after the figures of one full-size pool.
func Bench(quick bool, progress func(string)) []Figure {
	if progress == nil {
		progress = func(string) {}
	}
	var out []Figure
	add := func(f ...Figure) {
		for _, x := range f {
			progress(fmt.Sprintf("%s: %.4g %s", x.Name, x.Value, x.Unit))
		}
		out = append(out, f...)
	}
	add(benchSteady(10000, 100000, true)...)
	if quick {
		return out
	}
	add(benchGang())
	add(benchVictims()...)
	for _, size := range []struct{ servers, queue int }{{1000, 10000}, {100000, 100000}, {10000, 1000}, {10000, 10000}, {10000, 1000000}} {
		add(benchSteady(size.servers, size.queue, false)...)
	}
	return out
}

// fullPool is a pool with a queue, kept full: each cycle releases 100 jobs and submits as many.
type fullPool struct {
	pool  *engine.State
	now   time.Time
	live  []engine.Start
	next  int          // number of the next job
	come  []engine.Job // in the next cycle
	rng   *random
	fills time.Duration
	spent time.Duration // of the processor while filling
	loads time.Duration

	poolBytes, bytes int64
	total            int // jobs submitted before the first cycle
	filled           int // of which started in it
}

// every is how often a steady cycle comes, so 5,000 jobs a second start and as many end: what the store commits at most.
// Back to back the garbage collector would never find a gap, as it does in service.
const every = 20 * time.Millisecond

// newFullPool fills a pool from a queue.
func newFullPool(servers, queue int) *fullPool {
	b := &fullPool{now: origin, rng: newRandom(7)}
	before := heapBytes()
	began := time.Now()
	b.pool = benchPool(servers)
	b.poolBytes = heapBytes() - before
	// Enough jobs to fill the pool and leave the queue: the mean job takes 3.2 accelerators.
	b.total = queue + servers*8*10/32
	for i := range b.total {
		b.pool.SetJob(benchJob(i, b.now))
	}
	b.loads = time.Since(began)
	began, spent := time.Now(), threadTime()
	r := b.pool.Cycle(b.now)
	b.fills, b.spent = time.Since(began), threadTime()-spent
	b.filled, b.next = len(r.Starts), b.total
	b.live = append(make([]engine.Start, 0, len(r.Starts)), r.Starts...)
	for more := r.More; more; { // every reason is told before the clock starts
		more = b.pool.Cycle(b.now).More
	}
	b.bytes = heapBytes() - before
	return b
}

// submit makes the jobs that come in the next cycle, apart from it: they are the load, not the work.
func (b *fullPool) submit() {
	b.now = b.now.Add(every)
	b.come = b.come[:0]
	for range 100 {
		b.come = append(b.come, benchJob(b.next, b.now))
		b.next++
	}
}

// cycle is one steady cycle, after submit. It returns the processor time that telling the facts took.
func (b *fullPool) cycle() time.Duration {
	began := threadTime()
	for range min(100, len(b.live)) {
		i := b.rng.below(len(b.live))
		b.pool.Release(b.live[i].Job, b.live[i].Attempt, b.now)
		b.live[i] = b.live[len(b.live)-1]
		b.live = b.live[:len(b.live)-1]
	}
	for _, j := range b.come {
		b.pool.SetJob(j)
	}
	facts := threadTime() - began
	b.live = append(b.live, b.pool.Cycle(b.now).Starts...)
	return facts
}

// benchSteady fills a pool from a queue, then keeps it full for 1,000 cycles.
func benchSteady(servers, queue int, goals bool) []Figure {
	name := fmt.Sprintf("%d servers, %d jobs queued", servers, queue)
	goal := func(v float64) float64 {
		if goals {
			return v
		}
		return 0
	}
	runtime.LockOSThread() // its own processor time is what a cycle costs, however busy the machine is
	defer runtime.UnlockOSThread()
	b := newFullPool(servers, queue)
	const cycles = 1000 // so that they meet garbage collections as often as in service
	var times, work, facts []time.Duration
	collected := collections()
	pace := time.NewTicker(every)
	defer pace.Stop()
	for range cycles {
		b.submit()
		<-pace.C
		began, spent := time.Now(), threadTime()
		facts = append(facts, b.cycle())
		times, work = append(times, time.Since(began)), append(work, threadTime()-spent)
	}
	collected = collections() - collected
	slices.Sort(times)
	slices.Sort(work)
	slices.Sort(facts)
	runtime.KeepAlive(b)
	rate := float64(b.filled) / b.fills.Seconds()
	figures := []Figure{
		{"placements a second while filling, " + name, rate, "1/s", goal(100000), rate >= goal(100000)},
		{"placements a second of processor time while filling, " + name, float64(b.filled) / b.spent.Seconds(), "1/s", 0, true},
		ceiling("cycle p99 (100 releases, 100 submits, every 20 ms), "+name, times[len(times)*99/100], "ms", time.Millisecond, goal(5)),
		ceiling("cycle p50 (100 releases, 100 submits, every 20 ms), "+name, times[len(times)/2], "ms", time.Millisecond, 0),
		ceiling("processor time of a cycle, p50, "+name, work[len(work)/2], "ms", time.Millisecond, 0),
		ceiling("processor time of a cycle, p99, "+name, work[len(work)*99/100], "ms", time.Millisecond, 0),
		ceiling("of which telling the releases and submits, p50, "+name, facts[len(facts)/2], "ms", time.Millisecond, 0),
		{"garbage collections in " + fmt.Sprint(cycles) + " cycles, " + name, float64(collected), "", 0, true},
		ceiling("loading the facts, "+name, b.loads, "s", time.Second, goal(10)),
		{"memory per accelerator, " + name, float64(b.poolBytes) / float64(servers*8), "B", 0, true},
	}
	if b.total > b.filled {
		figures = append(figures, Figure{"memory per queued job, " + name, float64(b.bytes-b.poolBytes) / float64(b.total), "B", 0, true})
	}
	return figures
}

// threadTime is the processor time of the calling thread, 0 where the system does not tell.
func threadTime() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// collections is how many garbage collections there have been.
func collections() int64 {
	var st debug.GCStats
	debug.ReadGCStats(&st)
	return st.NumGC
}

func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// benchGang places a gang of 512 servers that must be within one rack, in a pool of 20 racks of 512.
func benchGang() Figure {
	s := engine.New(engine.Config{})
	for i := range 20 * 512 {
		s.SetServer(benchServer(i, 512, "h100"))
	}
	s.SetSpec(engine.Spec{Name: "x8", Model: "h100", Accelerators: 8})
	s.SetSpec(engine.Spec{Name: "x1", Model: "h100", Accelerators: 1})
	for i := range 19 { // one rack only is whole
		s.SetJob(engine.Job{ID: fmt.Sprintf("small%d", i), Tenant: "t", Spec: "x1", Servers: []string{fmt.Sprintf("s%06d", i*512)}, Seq: int64(i), Attempt: 1})
	}
	s.Cycle(origin)
	s.SetJob(engine.Job{ID: "gang", Tenant: "t", Spec: "x8", Nodes: 512, Same: engine.LevelRack, SameRequired: true, Seq: 100, Attempt: 1})
	began := time.Now()
	r := s.Cycle(origin.Add(time.Second))
	took := time.Since(began)
	f := ceiling("gang of 512 servers within a rack", took, "ms", time.Millisecond, 50)
	f.Holds = f.Holds && len(r.Starts) == 1
	return f
}

// benchVictims looks for the victims of a job of 8 accelerators, and of one of 4,000, among 4,000 running jobs.
func benchVictims() []Figure {
	var out []Figure
	for _, c := range []struct {
		nodes int
		goal  float64
	}{{1, 10}, {500, 200}} {
		var times []time.Duration
		found := true
		for range 5 {
			s := victimPool()
			s.SetJob(engine.Job{ID: "high", Tenant: "u", Spec: "x8", Nodes: c.nodes, Priority: 10, Seq: 5000, Attempt: 1})
			began := time.Now()
			r := s.Cycle(origin.Add(time.Hour))
			times = append(times, time.Since(began))
			found = found && len(r.Victims) == 8*c.nodes
		}
		slices.Sort(times)
		f := ceiling(fmt.Sprintf("victims of a job of %d accelerators among 4,000 running, median of 5", 8*c.nodes), times[2], "ms", time.Millisecond, c.goal)
		f.Holds = f.Holds && found
		out = append(out, f)
	}
	return out
}

// victimPool is full of 4,000 jobs of one accelerator each.
func victimPool() *engine.State {
	s := engine.New(engine.Config{})
	for i := range 500 {
		s.SetServer(benchServer(i, 32, "h100"))
	}
	s.SetSpec(engine.Spec{Name: "x8", Model: "h100", Accelerators: 8})
	s.SetSpec(engine.Spec{Name: "x1", Model: "h100", Accelerators: 1})
	for i := range 4000 {
		s.SetJob(engine.Job{ID: fmt.Sprintf("low%04d", i), Tenant: "t", Spec: "x1", Seq: int64(i), Attempt: 1, Preemptible: true})
	}
	s.Cycle(origin)
	return s
}
