// Package watch looks at servers from outside, through their BMCs: it sees what an agent can't, and goes on when the OS
// is down.
//
// It decides when each BMC is read and what of it is news. Reads are spread over the interval by the server's name, so a
// thousand BMCs are never asked at once; a BMC that is slow or silent is moved to a lane of its own and delays no other.
//
// Invariants: one read of a BMC at a time; what it doesn't say is unknown and makes no evidence; what is there at the
// first sight (counters, logs) is a baseline; Run returns only when every goroutine has ended.
//
// Not here: what evidence means (activities/health/rules), and storing it.
package watch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"hash/fnv"
	"log/slog"
	"sync"
	"time"

	"gpupool/activities/bmc"
)

// Target is one server to watch.
type Target struct {
	Server   string
	Endpoint bmc.Endpoint
	Memory   []byte // what was kept of it; nil for a server never seen
}

// Config is how a Watcher works. Zero fields take the default named.
type Config struct {
	Interval time.Duration // between two reads of one BMC; 60 s
	Deep     int           // every how many reads metrics, power and cooling, and logs are read as well; 5
	Settle   time.Duration // how long an accelerator may be missing before that is evidence; 10 min
	Parallel int           // BMCs read at once; 64
	Slow     int           // of those that were slow or silent last time, at once; 64
	// Events listens to BMCs that send events: one makes the next read come at once, and deep. What is evidence is still what
	// the read shows, so that a BMC with events and one without end in the same. It costs a connection a BMC.
	Events bool
	// Push says where a BMC that has no stream may push its events; they come back by ReadNow. It is given the address that
	// the BMC pushes to already, "" for none, and returns that one where it still holds. nil = such BMCs are polled alone.
	Push   func(ctx context.Context, server, have string) (string, error)
	SlowIs time.Duration // a read that takes longer moves its BMC there; 5 s
	Within time.Duration // the longest that one read may take: a BMC that always has something more to say ends there; 10 min
	Gap    time.Duration // the least between two reads that events bring: a BMC that floods us is not read without end; 2 s
	// Sink gets every snapshot with the signs in it, and after a deep read what is to be kept of it, nil where that is as it
	// was. It is called from many goroutines, never twice at once for one server. When it fails the signs are told again by
	// the next read.
	Sink func(ctx context.Context, s Snapshot, signs []Sign, memory []byte) error
	Log  *slog.Logger // nil is slog.Default
}

// Watcher reads many BMCs, again and again. Lock order: mu is the only lock and is not held while a BMC is read.
type Watcher struct {
	pool *bmc.Pool
	cfg  Config

	mu      sync.Mutex
	targets map[string]*watched
	left    []*watched    // removed, and their BMCs still push events
	changed chan struct{} // a target was added or removed
}

// watched is one target. Its fields but due and busy belong to the one read that runs.
type watched struct {
	Target
	due    time.Time
	begun  time.Time // when it was read last
	busy   bool
	gone   bool
	slow   bool
	urgent bool // an event came: the next read is a deep one
	listen listening
	stop   context.CancelFunc // ends listening; nil while nobody does
	pushes bool               // the BMC was told to push events
	again  time.Time          // when to see to its events again
	rounds int
	memory Memory
	kept   []byte   // memory as it was last kept
	logs   []string // services worth reading; nil until looked for
}

// listening is whether events of a BMC are listened to.
type listening int

const (
	notListening listening = iota
	isListening
	hasNoEvents
)

// New makes a watcher without targets.
func New(pool *bmc.Pool, cfg Config) *Watcher {
	for _, d := range []struct {
		have *time.Duration
		def  time.Duration
	}{{&cfg.Interval, time.Minute}, {&cfg.Settle, 10 * time.Minute}, {&cfg.SlowIs, 5 * time.Second}, {&cfg.Within, 10 * time.Minute}, {&cfg.Gap, 2 * time.Second}} {
		if *d.have <= 0 {
			*d.have = d.def
		}
	}
	for _, n := range []struct {
		have *int
		def  int
	}{{&cfg.Deep, 5}, {&cfg.Parallel, 64}, {&cfg.Slow, 64}} {
		if *n.have <= 0 {
			*n.have = n.def
		}
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	return &Watcher{pool: pool, cfg: cfg, targets: map[string]*watched{}, changed: make(chan struct{}, 1)}
}

// Set makes targets the ones watched. Those already watched with the same address keep what is known of them.
func (w *Watcher) Set(targets []Target) {
	w.mu.Lock()
	defer w.mu.Unlock()
	want := map[string]bool{}
	now := time.Now()
	for _, t := range targets {
		want[t.Server] = true
		if have := w.targets[t.Server]; have != nil && have.Endpoint.Address == t.Endpoint.Address && have.Endpoint.SystemID == t.Endpoint.SystemID && have.Endpoint.Serial == t.Endpoint.Serial {
			continue
		} else if have != nil {
			w.leave(have)
		}
		phase := w.phase(t.Server)
		n := &watched{Target: t, due: now.Add(phase), kept: t.Memory,
			rounds: int(phase/time.Microsecond) % w.cfg.Deep} // deep rounds are spread over rounds as well
		n.remember(w.cfg.Log)
		n.Target.Memory = nil
		w.targets[t.Server] = n
	}
	for name, t := range w.targets {
		if !want[name] {
			w.leave(t)
			delete(w.targets, name)
		}
	}
	w.poke()
}

// remember makes the memory what was last kept.
func (t *watched) remember(log *slog.Logger) {
	t.memory = Memory{}
	if t.kept == nil {
		return
	}
	if err := json.Unmarshal(t.kept, &t.memory); err != nil {
		log.Error("what was kept of a bmc can't be read: its next read is a baseline", "server", t.Server, "err", err)
		t.memory = Memory{}
	}
}

// leave ends what is under way for a target. The caller holds mu.
func (w *Watcher) leave(t *watched) {
	t.gone = true
	if t.stop != nil {
		t.stop()
	}
	if t.pushes {
		w.left = append(w.left, t)
	}
}

// leavers takes the targets whose BMCs are to push no more.
func (w *Watcher) leavers() []*watched {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.left
	w.left = nil
	return out
}

// unsubscribeWithin is how long a BMC that is no longer watched may take to be told so.
const unsubscribeWithin = time.Minute

// unsubscribe tells a BMC to push no more. One that can't be told pushes to an address where nobody listens.
func (w *Watcher) unsubscribe(ctx context.Context, t *watched) {
	ctx, cancel := context.WithTimeout(ctx, unsubscribeWithin)
	defer cancel()
	c, err := w.pool.Client(t.Endpoint)
	if err == nil {
		err = c.Unsubscribe(ctx, subscription(t.Server))
	}
	if err != nil {
		w.cfg.Log.WarnContext(ctx, "a bmc goes on pushing events", "server", t.Server, "err", err)
	}
}

// subscription is the name of a server's.
func subscription(server string) string { return "gpupool " + server }

// ReadNow makes a server's next read come at once, and deep: after a repair, or when someone looks at it. An unknown one
// is ignored.
func (w *Watcher) ReadNow(server string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t := w.targets[server]; t != nil {
		w.hastenAll(t)
	}
}

// hastenAll hastens every server behind a BMC: its events don't say reliably which one they are about. The caller holds mu.
func (w *Watcher) hastenAll(t *watched) {
	for _, o := range w.behind(t) {
		w.hasten(o)
	}
}

// behind are the targets of a target's BMC, itself among them. The caller holds mu.
func (w *Watcher) behind(t *watched) []*watched {
	out := []*watched{t}
	for _, o := range w.targets {
		if o != t && o.Endpoint.Address == t.Endpoint.Address {
			out = append(out, o)
		}
	}
	return out
}

// hasten makes the next read come at once, and deep. The caller holds mu.
func (w *Watcher) hasten(t *watched) {
	t.urgent = true
	if next := later(time.Now(), t.begun.Add(w.cfg.Gap)); next.Before(t.due) || t.busy {
		t.due = next
	}
	w.poke()
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// phase is where in the interval a server's reads fall: the same after each restart, spread evenly over servers.
func (w *Watcher) phase(server string) time.Duration {
	h := fnv.New64a()
	h.Write([]byte(server))
	// FNV's low bits of similar names are similar; the multiplication spreads them (Knuth, vol. 3, 6.4).
	x := h.Sum64() * 0x9E3779B97F4A7C15
	return time.Duration(x>>11) % w.cfg.Interval
}

// Run watches until the context ends, and returns when every read has.
func (w *Watcher) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	fast, slow := make(chan struct{}, w.cfg.Parallel), make(chan struct{}, w.cfg.Slow)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
		case <-w.changed:
		}
		for _, t := range w.leavers() {
			wg.Go(func() { w.unsubscribe(ctx, t) })
		}
		due, next := w.due(time.Now())
		for _, t := range due {
			lane := fast
			if t.slow {
				lane = slow
			}
			wg.Go(func() {
				defer w.done(t)
				select {
				case lane <- struct{}{}:
				case <-ctx.Done():
					return
				}
				defer func() { <-lane }()
				w.read(ctx, t)
				if w.cfg.Events && w.startListening(t) {
					wg.Go(func() { w.hear(ctx, t) })
				}
			})
		}
		timer.Reset(next)
	}
}

// due takes the targets whose time has come, and says when to look again. One that is still being read misses its turn.
func (w *Watcher) due(now time.Time) ([]*watched, time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	next := w.cfg.Interval
	var out []*watched
	for _, t := range w.targets {
		if t.busy && t.urgent {
			continue // read again as soon as this read is over, see done
		}
		if !now.Before(t.due) {
			for !now.Before(t.due) {
				t.due = t.due.Add(w.cfg.Interval)
			}
			if !t.busy {
				t.busy, t.begun = true, now
				out = append(out, t)
			}
		}
		next = min(next, t.due.Sub(now))
	}
	// Wake for a batch rather than for each: a scan of all targets each time would be quadratic.
	return out, max(next, min(w.cfg.Interval/256, 250*time.Millisecond))
}

// startListening says whether to listen to a BMC now: it was read well, and nobody does.
func (w *Watcher) startListening(t *watched) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t.gone || t.slow || t.listen != notListening || time.Now().Before(t.again) {
		return false
	}
	for _, o := range w.behind(t) {
		if o != t && (o.listen != notListening || o.pushes) {
			return false // one listens for all servers of a BMC
		}
	}
	t.listen = isListening
	return true
}

// pushAgain is how often a BMC's subscription is looked after: BMCs forget theirs when they restart.
const pushAgain = 10 * time.Minute

// hear listens until the stream ends; the next read that goes well starts another. A BMC without a stream is told where to
// push its events.
func (w *Watcher) hear(ctx context.Context, t *watched) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w.mu.Lock()
	t.stop = cancel
	if t.gone {
		cancel()
	}
	w.mu.Unlock()
	state, again, pushes := notListening, time.Time{}, false
	if t.Endpoint.Protocol == bmc.IPMI {
		state = hasNoEvents
	} else if c, err := w.pool.Client(t.Endpoint); err == nil {
		err = c.Events(ctx, func(bmc.Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.hastenAll(t)
		})
		if errors.Is(err, bmc.ErrUnsupported) && w.cfg.Push != nil {
			err = c.Subscribe(ctx, subscription(t.Server), func(ctx context.Context, have string) (string, error) { return w.cfg.Push(ctx, t.Server, have) })
			again, pushes = time.Now().Add(pushAgain), err == nil
			if err != nil && ctx.Err() == nil {
				w.cfg.Log.InfoContext(ctx, "a bmc pushes no events, it is polled", "server", t.Server, "err", err)
			}
		}
		if errors.Is(err, bmc.ErrUnsupported) {
			state = hasNoEvents
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	t.listen, t.stop, t.again = state, nil, again
	if t.pushes = t.pushes || pushes; t.pushes && t.gone {
		w.left = append(w.left, t) // it went while it was told to push
		w.poke()
	}
}

// poke makes Run look at what is due. The caller holds mu.
func (w *Watcher) poke() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *Watcher) done(t *watched) {
	w.mu.Lock()
	defer w.mu.Unlock()
	t.busy = false
	if t.urgent {
		w.poke()
	}
}

// read takes one snapshot and hands it on.
func (w *Watcher) read(ctx context.Context, t *watched) {
	start := time.Now()
	w.mu.Lock()
	deep := t.urgent || t.rounds%w.cfg.Deep == 0
	t.urgent = false
	w.mu.Unlock()
	s := w.snapshotWithin(ctx, t, deep)
	if ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	t.slow = s.Err != nil || !deep && time.Since(start) > w.cfg.SlowIs
	if s.Err == nil {
		t.rounds++ // a deep round that failed is tried again
	}
	w.mu.Unlock()
	signs := t.memory.signs(s, w.cfg.Settle)
	w.mu.Lock()
	gone := t.gone
	w.mu.Unlock()
	if gone || w.cfg.Sink == nil {
		return
	}
	var changed []byte
	if deep && s.Err == nil {
		if b, err := json.Marshal(t.memory); err == nil && !bytes.Equal(b, t.kept) {
			changed = b
		}
	}
	if err := w.cfg.Sink(ctx, s, signs, changed); err != nil {
		t.remember(w.cfg.Log) // told again by the next read
		if ctx.Err() == nil {
			w.cfg.Log.WarnContext(ctx, "what a bmc showed was not kept", "server", t.Server, "err", err)
			w.mu.Lock()
			t.rounds += (w.cfg.Deep - t.rounds%w.cfg.Deep) % w.cfg.Deep // the next read is a deep one
			w.mu.Unlock()
		}
		return
	}
	if changed != nil {
		t.kept = changed
	}
}

func (w *Watcher) snapshotWithin(ctx context.Context, t *watched, deep bool) Snapshot {
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Within)
	defer cancel()
	return w.snapshot(ctx, t, deep)
}

func (w *Watcher) snapshot(ctx context.Context, t *watched, deep bool) (s Snapshot) {
	s = Snapshot{Server: t.Server, At: time.Now()}
	s.Vitals.Power = bmc.PowerUnknown
	any, err := w.pool.Controller(t.Endpoint)
	if err == nil {
		s.Vitals, err = any.Vitals(ctx)
	}
	if s.Err = err; err != nil || !deep {
		return s
	}
	// A part of the deep round that fails leaves that part unknown; the rest is still evidence.
	part := func(name string, err error) bool {
		if err != nil && ctx.Err() == nil {
			w.cfg.Log.DebugContext(ctx, "part of a bmc not read", "server", t.Server, "part", name, "err", err)
		}
		return err == nil
	}
	if over, ok := any.(*bmc.IPMIClient); ok {
		w.overIPMI(ctx, over, t, &s, part)
		return s
	}
	c, ok := any.(*bmc.Client)
	if !ok {
		return s
	}
	id, err := c.Identify(ctx)
	if part("identity", err) {
		s.Identity = &id
		if m, err := c.GPUMetrics(ctx, id); part("gpu metrics", err) {
			s.GPUs = m
		}
	}
	if p, err := c.Plant(ctx); part("power and cooling", err) {
		s.Plant = &p
	}
	if t.logs == nil {
		if list, err := c.LogServices(ctx); part("logs", err) {
			t.logs = bmc.EventLogs(list)
		}
	}
	for _, service := range t.logs {
		entries, next, err := c.LogEntries(ctx, service, t.memory.Cursors[service])
		if part(service, err) {
			if t.memory.Cursors == nil {
				t.memory.Cursors = map[string]*bmc.Cursor{}
			}
			t.memory.Cursors[service] = next
			s.Entries = append(s.Entries, entries...)
		}
	}
	return s
}

// selLog is the name of IPMI's one log among the cursors.
const selLog = "sel"

// overIPMI is the deep part of a BMC that has no Redfish: its sensors and its event log.
func (w *Watcher) overIPMI(ctx context.Context, c *bmc.IPMIClient, t *watched, s *Snapshot, part func(string, error) bool) {
	if list, err := c.Sensors(ctx); part("sensors", err) {
		s.Readings = append([]bmc.Reading{}, list...)
	}
	entries, next, err := c.LogEntries(ctx, t.memory.Cursors[selLog])
	if part("event log", err) {
		if t.memory.Cursors == nil {
			t.memory.Cursors = map[string]*bmc.Cursor{}
		}
		t.memory.Cursors[selLog] = next
		s.Entries = entries
	}
}
