// Package bmcbench measures the out-of-band watch: one worker that watches many BMCs through the pool, the limiter and the
// record that production has, against lab BMCs in a process of their own. Rounds in which some BMCs hang take turns with
// rounds in which none does, so that whoever else uses the machine slows both.
//
// Not here: tests of what the watch says (activities/bmc/watch); whether a goal is met (bench).
package bmcbench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"gpupool/activities/bmc"
	"gpupool/activities/bmc/record"
	"gpupool/activities/bmc/watch"
	"gpupool/schema/secret"
	"gpupool/schema/store"
)

// Config is what is measured.
type Config struct {
	BMCs     int
	Hung     int           // of them, in every other block
	Rounds   int           // of each BMC; a multiple of twice Block
	Block    int           // rounds before hanging begins or ends
	Interval time.Duration // of a round
	Deep     int           // every how many rounds everything is read
	Timing   bmc.Timing
}

// Spread is how long something took.
type Spread struct{ P50, P99 time.Duration }

// Counts are what may leak.
type Counts struct{ Sessions, Sockets, Goroutines int }

// Result is what was seen. Reads of the BMCs that are made to hang are in no figure.
type Result struct {
	Reads, DeepReads int
	// Quick is a read of one BMC's state, whole what a deep one takes; by whether others hung meanwhile.
	Quick, QuickHung, Whole, WholeHung Spread
	// Late is how much later than its turn a read began.
	Late, LateHung Spread
	Requests       int           // that the BMCs got
	Processor      time.Duration // of this process, the record included
	Wall           time.Duration
	Resident       int64 // bytes that this process grew by, to the last round
	// Before the watch, in its second block, in its last round, and after it.
	Before, Early, End, After Counts
	Failed                    int // refused logins
}

// Run measures. start starts the lab: it returns where its commands go, where it answers, and how to wait for its end, which
// comes when the commands are closed.
func Run(ctx context.Context, cfg Config, say func(string), start func(ctx context.Context, n int) (io.WriteCloser, io.Reader, func() error, error)) (r Result, err error) {
	dir, err := os.MkdirTemp("", "gpupool-bmcbench-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	commands, answers, wait, err := start(ctx, cfg.BMCs)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, commands.Close(), wait()) }()
	l := &far{commands, json.NewDecoder(bufio.NewReader(answers))}
	say(fmt.Sprintf("starting %d lab BMCs in a process of their own", cfg.BMCs))
	var machines []machine
	if err := l.read.Decode(&machines); err != nil {
		return r, fmt.Errorf("the lab: %w", err)
	}
	db, err := store.Open(ctx, store.Config{Driver: "sqlite", DSN: filepath.Join(dir, "record.db")})
	if err != nil {
		return r, err
	}
	defer db.Close()
	keys, err := secret.LoadOrCreate(filepath.Join(dir, "keys"))
	if err != nil {
		return r, err
	}
	targets, err := enroll(ctx, db, keys, machines)
	if err != nil {
		return r, err
	}
	if r.Before, err = l.settled(ctx, func(c, was Counts) bool { return c == was }); err != nil {
		return r, err
	}
	w := newWatch(db, keys, cfg, targets)
	defer w.stop(context.WithoutCancel(ctx))
	resident, processor, begun := Resident(), processorTime(), time.Now()
	for block := 0; block*cfg.Block < cfg.Rounds; block++ {
		hung := block % 2 * cfg.Hung
		say(fmt.Sprintf("rounds %d to %d of %d, %d BMCs hang", block*cfg.Block+1, (block+1)*cfg.Block, cfg.Rounds, hung))
		if _, err := l.ask(fmt.Sprintf("%s %d", cmdHang, hung)); err != nil {
			return r, err
		}
		w.switchTo(hung > 0)
		if err := w.reads(ctx, (block+1)*cfg.Block); err != nil {
			return r, err
		}
		if block == 2 { // the first without anybody hanging that begins with everybody known
			if r.Early, err = l.counts(); err != nil {
				return r, err
			}
		}
	}
	r.Wall, r.Processor, r.Resident = time.Since(begun), processorTime()-processor, Resident()-resident
	if _, err := l.ask(cmdHang + " 0"); err != nil {
		return r, err
	}
	if err := w.reads(ctx, cfg.Rounds+1); err != nil { // those that hung have a round to come back
		return r, err
	}
	if r.End, err = l.counts(); err != nil {
		return r, err
	}
	if err := w.stop(ctx); err != nil {
		return r, err
	}
	if r.After, err = l.settled(ctx, func(c, _ Counts) bool { return c == r.Before }); err != nil {
		return r, err
	}
	st, err := l.ask(cmdState)
	if err != nil {
		return r, err
	}
	r.Requests, r.Failed = st.Requests, st.Failed
	w.fill(&r)
	return r, nil
}

// far is the lab's process.
type far struct {
	commands io.Writer
	read     *json.Decoder
}

func (l *far) ask(command string) (st state, err error) {
	if _, err := fmt.Fprintln(l.commands, command); err != nil {
		return st, fmt.Errorf("the lab: %w", err)
	}
	if err := l.read.Decode(&st); err != nil {
		return st, fmt.Errorf("the lab: %w", err)
	}
	return st, nil
}

func (l *far) counts() (Counts, error) {
	st, err := l.ask(cmdState)
	return Counts{st.Sessions, sockets(), runtime.NumGoroutine()}, err
}

// settled counts until ok, or until the counts can be expected to stay as they are.
func (l *far) settled(ctx context.Context, ok func(c, was Counts) bool) (Counts, error) {
	was, err := l.counts()
	for range 100 {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return was, context.Cause(ctx)
		}
		c, e := l.counts()
		if e != nil || ok(c, was) {
			return c, e
		}
		was = c
	}
	return was, err
}

// enroll puts the BMCs' servers on the record.
func enroll(ctx context.Context, db *store.Store, keys *secret.Ring, machines []machine) ([]watch.Target, error) {
	in := make([]store.NewServer, len(machines))
	for i, m := range machines {
		in[i] = store.NewServer{Name: fmt.Sprintf("srv-%05d", i), Region: "r", Site: "s", Rack: fmt.Sprintf("r%d", i/40), Unit: i%40 + 1, Serial: fmt.Sprintf("SRV%05d", i),
			MACs: []string{fmt.Sprintf("0c:42:a1:00:%02x:%02x", i/256, i%256)}, BMCAddress: m.Address, BMCUsername: m.User, BMCPassword: m.Password,
			Model: "nvidia-h100-80gb", Accelerators: 8, CPUs: 112, MemoryBytes: 1 << 40}
	}
	servers, err := db.EnrollServers(ctx, "bench", keys, in)
	if err != nil {
		return nil, err
	}
	targets := make([]watch.Target, len(machines))
	for i, m := range machines {
		targets[i] = watch.Target{Server: servers[i].ID, Endpoint: bmc.Endpoint{Address: m.Address, Credential: bmc.Static(m.User, m.Password)}}
	}
	return targets, nil
}

// sample is one read.
type sample struct {
	took, late    time.Duration
	deep, hanging bool
}

// watching is a watch that runs, and what it said. mu guards all below it.
type watching struct {
	cfg  Config
	ends func(context.Context) error
	once sync.Once
	err  error

	mu      sync.Mutex
	hung    map[string]bool // servers that are made to hang
	hanging bool
	last    map[string]time.Time
	rounds  map[string]int
	behind  map[int]int // rounds -> servers that have had as many
	samples []sample
	moved   chan struct{}
}

func newWatch(db *store.Store, keys *secret.Ring, cfg Config, targets []watch.Target) *watching {
	quiet := slog.New(slog.DiscardHandler)
	w := &watching{cfg: cfg, hung: map[string]bool{}, last: map[string]time.Time{}, rounds: map[string]int{}, behind: map[int]int{}, moved: make(chan struct{}, 1)}
	for i, t := range targets {
		if isHung(i, len(targets), cfg.Hung) {
			w.hung[t.Server] = true
		}
	}
	pool := bmc.NewPool(bmc.Config{Timing: cfg.Timing, Shared: record.NewShared(db, keys), Log: quiet})
	keep := watch.Keep(db)
	watcher := watch.New(pool, watch.Config{Interval: cfg.Interval, Deep: cfg.Deep, Events: true, Log: quiet,
		Sink: func(ctx context.Context, s watch.Snapshot, signs []watch.Sign, memory []byte) error {
			w.saw(s, time.Since(s.At))
			return keep(ctx, s, signs, memory)
		}})
	watcher.Set(targets)
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error, 1)
	go func() { ran <- watcher.Run(ctx) }()
	w.ends = func(ctx context.Context) error {
		cancel()
		<-ran
		return pool.Close(ctx)
	}
	return w
}

// stop ends the watch and logs out everywhere.
func (w *watching) stop(ctx context.Context) error {
	w.once.Do(func() { w.err = w.ends(ctx) })
	return w.err
}

func (w *watching) switchTo(hanging bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hanging = hanging
}

func (w *watching) saw(s watch.Snapshot, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hung[s.Server] {
		return
	}
	x := sample{took: took, deep: s.Identity != nil, hanging: w.hanging}
	if last, ok := w.last[s.Server]; ok {
		x.late = max(0, s.At.Sub(last)-w.cfg.Interval)
		w.samples = append(w.samples, x) // the first read is a login and a baseline, of which there is one
	}
	w.last[s.Server] = s.At
	w.rounds[s.Server]++
	w.behind[w.rounds[s.Server]]++
	select {
	case w.moved <- struct{}{}:
	default:
	}
}

// reads waits until every BMC that doesn't hang has been read so often.
func (w *watching) reads(ctx context.Context, rounds int) error {
	slow := time.NewTimer(time.Duration(w.cfg.Block+5)*w.cfg.Interval*2 + time.Minute)
	defer slow.Stop()
	for {
		w.mu.Lock()
		done := w.behind[rounds] >= w.cfg.BMCs-len(w.hung)
		w.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-w.moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-slow.C:
			return fmt.Errorf("only %d of %d BMCs were read %d times: this machine is too slow for an interval of %s", w.behind[rounds], w.cfg.BMCs-len(w.hung), rounds, w.cfg.Interval)
		}
	}
}

func (w *watching) fill(r *Result) {
	w.mu.Lock()
	defer w.mu.Unlock()
	of := func(f func(sample) time.Duration, ok func(sample) bool) Spread {
		var list []time.Duration
		for _, s := range w.samples {
			if ok(s) {
				list = append(list, f(s))
			}
		}
		if len(list) == 0 {
			return Spread{}
		}
		slices.Sort(list)
		return Spread{list[len(list)/2], list[len(list)*99/100]}
	}
	took := func(s sample) time.Duration { return s.took }
	late := func(s sample) time.Duration { return s.late }
	r.Quick, r.QuickHung = of(took, func(s sample) bool { return !s.deep && !s.hanging }), of(took, func(s sample) bool { return !s.deep && s.hanging })
	r.Whole, r.WholeHung = of(took, func(s sample) bool { return s.deep && !s.hanging }), of(took, func(s sample) bool { return s.deep && s.hanging })
	r.Late, r.LateHung = of(late, func(s sample) bool { return !s.hanging }), of(late, func(s sample) bool { return s.hanging })
	r.Reads = len(w.samples)
	for _, s := range w.samples {
		if s.deep {
			r.DeepReads++
		}
	}
}

// sockets counts this process's.
func sockets() int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	n := 0
	for _, e := range list {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

// Resident is this process's memory, in bytes.
func Resident() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		return 0
	}
	return resident * int64(os.Getpagesize())
}

func processorTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
