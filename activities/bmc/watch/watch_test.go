package watch_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gpupool/activities/bmc"
	"gpupool/activities/bmc/watch"
	lab "gpupool/deploy/lab/bmc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fleet is n lab BMCs of all profiles.
func fleet(t testing.TB, n int, profiles ...string) []*lab.Server {
	t.Helper()
	if len(profiles) == 0 {
		profiles = lab.ProfileNames()
	}
	out := make([]*lab.Server, n)
	for i := range out {
		p, err := lab.ByName(profiles[i%len(profiles)])
		if err != nil {
			t.Fatal(err)
		}
		out[i] = lab.New(p, lab.Hooks{}, lab.WithLogCap(50), lab.WithIdentity(lab.Identity{Serial: fmt.Sprintf("SRV%05d", i)}))
		if err := out[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, s := range out {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return out
}

func targets(servers []*lab.Server) []watch.Target {
	out := make([]watch.Target, len(servers))
	for i, s := range servers {
		out[i] = watch.Target{Server: fmt.Sprintf("srv-%05d", i), Endpoint: bmc.Endpoint{Address: s.URL(), Credential: bmc.Static(s.Credential())}}
	}
	return out
}

// log collects what a watcher says.
type log struct {
	mu    sync.Mutex
	snaps map[string][]watch.Snapshot
	signs []watch.Sign
	took  map[string][]time.Duration
	ch    chan struct{}
}

func newLog() *log {
	return &log{snaps: map[string][]watch.Snapshot{}, took: map[string][]time.Duration{}, ch: make(chan struct{}, 1)}
}

func (l *log) sink(_ context.Context, s watch.Snapshot, signs []watch.Sign, _ []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.snaps[s.Server] = append(l.snaps[s.Server], watch.Snapshot{Server: s.Server, At: s.At, Vitals: s.Vitals, Err: s.Err})
	l.took[s.Server] = append(l.took[s.Server], time.Since(s.At))
	l.signs = append(l.signs, signs...)
	select {
	case l.ch <- struct{}{}:
	default:
	}
	return nil
}

func (l *log) until(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(limit)
	for {
		l.mu.Lock()
		done := ok()
		l.mu.Unlock()
		if done {
			return
		}
		select {
		case <-l.ch:
		case <-deadline:
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// run starts a watcher; the returned function stops it, logs out, and holds that nothing is left.
func run(t testing.TB, servers []*lab.Server, cfg watch.Config, timing bmc.Timing) func() {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	pool := bmc.NewPool(bmc.Config{Timing: timing, Rate: 1e6, Burst: 1000, Log: quiet})
	cfg.Log = quiet
	w := watch.New(pool, cfg)
	w.Set(targets(servers))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("run ended with %v", err)
		}
		if err := pool.Close(context.Background()); err != nil {
			t.Error(err)
		}
		for _, s := range servers {
			if n := s.OpenSessions(); n != 0 {
				t.Errorf("%d sessions left at %s", n, s.URL())
			}
		}
	}
}

var timing = bmc.Timing{Dial: 5 * time.Second, Call: 5 * time.Second, Poll: 5 * time.Millisecond}

func TestEvidenceComesFromOutsideAndABMCThatHangsDelaysNoOther(t *testing.T) {
	servers := fleet(t, 14)
	servers[3].AddFault(lab.Fault{Hang: true})
	l := newLog()
	stop := run(t, servers, watch.Config{Interval: 60 * time.Millisecond, Deep: 2, Settle: time.Nanosecond, Parallel: 4, Slow: 1, Sink: l.sink}, timing)
	l.until(t, 20*time.Second, "three rounds of each that answers", func() bool {
		for i := range servers {
			if i != 3 && len(l.snaps[fmt.Sprintf("srv-%05d", i)]) < 3 {
				return false
			}
		}
		return true
	})
	l.mu.Lock()
	if len(l.signs) != 0 {
		t.Errorf("signs of healthy servers: %+v", l.signs)
	}
	l.mu.Unlock()
	dgx := slices.Index(lab.ProfileNames(), lab.DGXH100)
	if _, err := servers[dgx].AddLogEntry("/redfish/v1/Systems/HGX_Baseboard_0/LogServices/EventLog", lab.Doc{
		"Created": "2020-05-08T11:14:01+00:00", "Severity": "Critical",
		"Message":     "The resource property GPU_SXM_4 Driver Event Message has detected errors of type '[Wed Dec 6 17:31:51 UTC 2023][1][00] XID 79'.",
		"MessageArgs": []any{"GPU_SXM_4 Driver Event Message"},
	}); err != nil {
		t.Fatal(err)
	}
	if err := servers[dgx].SetGPU(5, lab.GPU{State: "Absent", Health: "Critical"}); err != nil {
		t.Fatal(err)
	}
	l.until(t, 20*time.Second, "the xid and the absence", func() bool {
		seen := map[string]bool{}
		for _, x := range l.signs {
			seen[x.Server+" "+x.Kind+" "+x.Code+" "+x.Slot] = true
		}
		name := fmt.Sprintf("srv-%05d", dgx)
		return seen[name+" xid 79 SXM4"] && seen[name+" absent  SXM6"]
	})
	stop()
}

func TestATargetThatIsRemovedIsHeardOfNoMore(t *testing.T) {
	servers := fleet(t, 2, lab.Dell)
	l := newLog()
	pool := bmc.NewPool(bmc.Config{Timing: timing, Log: slog.New(slog.DiscardHandler)})
	w := watch.New(pool, watch.Config{Interval: 20 * time.Millisecond, Sink: l.sink})
	w.Set(targets(servers))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	l.until(t, 10*time.Second, "both seen", func() bool { return len(l.snaps) == 2 })
	w.Set(targets(servers)[:1])
	l.mu.Lock()
	kept := len(l.snaps["srv-00000"])
	l.mu.Unlock()
	l.until(t, 10*time.Second, "the other one goes on", func() bool { return len(l.snaps["srv-00000"]) > kept+5 })
	l.mu.Lock()
	after := len(l.snaps["srv-00001"])
	l.mu.Unlock()
	l.until(t, 10*time.Second, "and on", func() bool { return len(l.snaps["srv-00000"]) > kept+10 })
	if l.mu.Lock(); len(l.snaps["srv-00001"]) != after {
		t.Error("the removed one was read again")
	}
	l.mu.Unlock()
	cancel()
	<-done
	if err := pool.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkWatch watches 2,000 lab BMCs (WATCH_BMCS) from one worker, for 5 rounds (WATCH_ROUNDS) at an interval of 30 s
// (WATCH_INTERVAL), half of production's, one round in five a deep one; then again with 1 % of them hung. CPU and memory are
// of both sides: the lab's 2,000 servers live in the same process. Afterwards no session, socket or goroutine may be left.
func BenchmarkWatch(b *testing.B) {
	n, rounds, interval := 2000, 5, 30*time.Second
	for name, v := range map[string]any{"WATCH_BMCS": &n, "WATCH_ROUNDS": &rounds} {
		if s := os.Getenv(name); s != "" {
			if _, err := fmt.Sscan(s, v); err != nil {
				b.Fatalf("%s=%s: %v", name, s, err)
			}
		}
	}
	if s := os.Getenv("WATCH_INTERVAL"); s != "" {
		var err error
		if interval, err = time.ParseDuration(s); err != nil {
			b.Fatal(err)
		}
	}
	servers := fleet(b, n)
	before := runtime.NumGoroutine()
	measure := func(hung int) (p50, p99 time.Duration) {
		for i := range hung {
			servers[i*100].AddFault(lab.Fault{Hang: true})
		}
		l := newLog()
		cpu, start := cpuTime(), time.Now()
		stop := run(b, servers, watch.Config{Interval: interval, Deep: 5, Sink: l.sink}, timing)
		l.until(b, time.Hour, "all rounds", func() bool {
			total := 0
			for _, s := range l.snaps {
				total += len(s)
			}
			return total >= (n-hung)*rounds
		})
		wall := time.Since(start)
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		goroutines := runtime.NumGoroutine()
		stop()
		var took []time.Duration
		l.mu.Lock()
		for i := range servers {
			if hung > 0 && i%100 == 0 {
				continue
			}
			took = append(took, l.took[fmt.Sprintf("srv-%05d", i)]...)
		}
		l.mu.Unlock()
		slices.Sort(took)
		p50, p99 = took[len(took)/2], took[len(took)*99/100]
		b.Logf("%d BMCs, %d hung, %d reads in %s: p50 %s, p99 %s, cpu %.2f ms a read, heap %d MiB, sys %d MiB, %d goroutines",
			n, hung, len(took), wall.Round(time.Millisecond), p50, p99, float64(cpuTime()-cpu)/float64(time.Millisecond)/float64(len(took)), m.HeapInuse>>20, m.Sys>>20, goroutines)
		return p50, p99
	}
	for b.Loop() {
		_, alone := measure(0)
		_, beside := measure(n / 100)
		b.ReportMetric(float64(alone)/1e6, "p99-ms")
		b.ReportMetric(float64(beside)/1e6, "p99-hung-ms")
	}
	deadline := time.Now().Add(10 * time.Second)
	for runtime.NumGoroutine() > before+20 && time.Now().Before(deadline) {
		runtime.Gosched()
	}
	if n := runtime.NumGoroutine(); n > before+20 {
		b.Errorf("%d goroutines left of %d", n, before)
	}
}

func cpuTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// The interval is an hour: only an event can bring the entry in time. The Supermicro has no events and is seen by polling.
func TestAnEventMakesTheReadComeAtOnce(t *testing.T) {
	servers := fleet(t, 2, lab.DGXH100, lab.SupermicroHGX)
	l := newLog()
	pool := bmc.NewPool(bmc.Config{Timing: timing, Rate: 1e6, Burst: 1000, Log: slog.New(slog.DiscardHandler)})
	w := watch.New(pool, watch.Config{Interval: time.Hour, Deep: 1, Events: true, Sink: l.sink, Log: slog.New(slog.DiscardHandler)})
	w.Set(targets(servers))
	w.ReadNow("srv-00000")
	w.ReadNow("srv-00001")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	l.until(t, 10*time.Second, "the first sight", func() bool { return len(l.snaps) == 2 })
	streaming := func() bool {
		for _, r := range servers[0].Requests() {
			if r.Path == "/redfish/v1/EventService" {
				return true
			}
		}
		return false
	}
	deadline := time.Now().Add(10 * time.Second)
	for !streaming() && time.Now().Before(deadline) {
		runtime.Gosched()
	}
	for n := 0; ; n++ { // the stream may open a moment after it was asked for
		if _, err := servers[0].AddLogEntry("/redfish/v1/Systems/HGX_Baseboard_0/LogServices/EventLog", lab.Doc{
			"Created": time.Now().Format(time.RFC3339), "Message": "type '[00] XID 79 GPU has fallen off the bus'", "MessageArgs": []any{"GPU_SXM_2 Driver Event Message"}}); err != nil {
			t.Fatal(err)
		}
		ok := false
		for wait := time.After(time.Second); !ok; {
			l.mu.Lock()
			ok = slices.ContainsFunc(l.signs, func(x watch.Sign) bool { return x.Kind == "xid" && x.Code == "79" && x.Slot == "SXM2" })
			l.mu.Unlock()
			select {
			case <-l.ch:
				continue
			case <-wait:
			}
			break
		}
		if ok {
			break
		}
		if n == 10 {
			t.Fatal("no event brought a read")
		}
	}
	cancel()
	<-done
	if err := pool.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// A BMC that floods us with events is read at a bounded rate, and its last event is not lost for that.
func TestAFloodOfEventsIsNotReadWithoutEnd(t *testing.T) {
	servers := fleet(t, 1, lab.DGXH100)
	l := newLog()
	pool := bmc.NewPool(bmc.Config{Timing: timing, Rate: 1e6, Burst: 1000, Log: slog.New(slog.DiscardHandler)})
	w := watch.New(pool, watch.Config{Interval: time.Hour, Gap: 300 * time.Millisecond, Events: true, Sink: l.sink, Log: slog.New(slog.DiscardHandler)})
	w.Set(targets(servers))
	w.ReadNow("srv-00000")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	until(t, "the stream is open", func() bool { return servers[0].Hearers() == 1 })
	begun := time.Now()
	for i := range 300 {
		if _, err := servers[0].AddLogEntry("/redfish/v1/Systems/HGX_Baseboard_0/LogServices/EventLog", lab.Doc{
			"Created": time.Now().Format(time.RFC3339), "Message": fmt.Sprintf("type '[00] XID %d'", i), "MessageArgs": []any{"GPU_SXM_2 Driver Event Message"}}); err != nil {
			t.Fatal(err)
		}
	}
	l.until(t, 20*time.Second, "the last of the events", func() bool {
		return slices.ContainsFunc(l.signs, func(x watch.Sign) bool { return x.Code == "299" })
	})
	took := time.Since(begun)
	l.mu.Lock()
	if n, most := len(l.snaps["srv-00000"]), 3+int(took/(300*time.Millisecond)); n > most || len(l.signs) != 300 {
		t.Errorf("%d reads within %s, want at most %d; %d signs of 300 events", n, took, most, len(l.signs))
	}
	l.mu.Unlock()
	cancel()
	<-done
	if err := pool.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
}
