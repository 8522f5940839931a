package bmc_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gpupool/activities/bmc"
	"gpupool/activities/bmc/watch"
	lab "gpupool/deploy/lab/bmc"
)

// Cases 10 and 11 at their full length: minutes of a BMC's time, with the timing of production. They run in a bubble of
// testing/synctest, whose clock jumps when everybody waits, so the BMCs are reached in memory: what waits for the kernel's
// network would not count as waiting.

// memoryNet is a network within the process.
type memoryNet struct {
	mu sync.Mutex
	at map[string]*listener
}

// listener is one address of it.
type listener struct {
	name  string
	calls chan net.Conn
	done  chan struct{}
	close func()
}

func (l *listener) Addr() net.Addr { return memoryAddr(l.name) }
func (l *listener) Close() error   { l.close(); return nil }

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.calls:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

type memoryAddr string

func (memoryAddr) Network() string  { return "memory" }
func (a memoryAddr) String() string { return string(a) }

func (n *memoryNet) listen(name string) net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.at == nil {
		n.at = map[string]*listener{}
	}
	l := &listener{name: name, calls: make(chan net.Conn), done: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.done) })
	n.at[name+":80"] = l
	return l
}

func (n *memoryNet) dial(ctx context.Context, _, to string) (net.Conn, error) {
	n.mu.Lock()
	l := n.at[to]
	n.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("dial %s: no route to host", to)
	}
	ours, theirs := net.Pipe()
	select {
	case l.calls <- theirs:
		return ours, nil
	case <-l.done:
		return nil, fmt.Errorf("dial %s: connection refused", to)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// serve starts a lab BMC in the network and stops it with the test.
func (n *memoryNet) serve(t *testing.T, name string, p lab.Profile, h lab.Hooks, opts ...lab.Option) *lab.Server {
	t.Helper()
	s := lab.New(p, h, opts...)
	s.Serve(n.listen(name))
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// pool is one with production's timing.
func (n *memoryNet) pool(t *testing.T) *bmc.Pool {
	t.Helper()
	return pool(t, bmc.Config{Timing: bmc.DefaultTiming, Dial: n.dial})
}

// Case 10: every entry of a DGX H100's firmware inventory takes 150 s. It is read to its end, and meanwhile verbs to the same
// BMC take what they take otherwise.
func TestAFirmwareInventoryOfMinutesCompletesBesideTheVerbs(t *testing.T) {
	tree := captured(t, "nvidia_viking")
	synctest.Test(t, func(t *testing.T) {
		var n memoryNet
		s := n.serve(t, "viking", tree, lab.Hooks{}, lab.WithQuirks(func(q *lab.Quirks) { q.PowerOffDelay, q.PowerOnDelay = 4500*time.Millisecond, 2500*time.Millisecond }))
		c := client(t, n.pool(t), s.URL(), bmc.Static(s.Credential()))
		took := func(f func() error) time.Duration {
			t.Helper()
			start := time.Now()
			if err := f(); err != nil {
				t.Fatal(err)
			}
			return time.Since(start)
		}
		cycle := func() error { return c.SetPower(t.Context(), bmc.Cycle, bmc.Hard()) }
		alone := took(cycle)

		s.AddFault(lab.Fault{Path: "/redfish/v1/UpdateService/FirmwareInventory/**", Latency: 150 * time.Second})
		type inventory struct {
			list []bmc.Firmware
			err  error
			took time.Duration
		}
		done := make(chan inventory, 1)
		go func() {
			start := time.Now()
			list, err := c.Firmware(t.Context())
			done <- inventory{list, err, time.Since(start)}
		}()
		<-time.After(200 * time.Second) // the bubble's: in the midst of the second entry
		for range 10 {
			if beside := took(cycle); beside != alone {
				t.Fatalf("a cycle takes %s beside the inventory, %s alone", beside, alone)
			}
		}
		got := <-done
		if got.err != nil || len(got.list) < 10 || got.took < time.Duration(len(got.list))*150*time.Second {
			t.Fatalf("%d firmwares after %s: %v", len(got.list), got.took, got.err)
		}
		if bad := refusals(s); bad != nil {
			t.Fatalf("refused: %v", bad)
		}
		t.Logf("%d firmwares in %s of the BMC's time; a cycle %s", len(got.list), got.took, alone)
	})
}

// Case 10: a BMC that accepts connections and never answers is unreachable within a minute, a hundred times, and leaves
// neither a goroutine (the bubble would not end) nor a session.
func TestABMCThatNeverAnswersIsUnreachableWithinAMinuteAHundredTimes(t *testing.T) {
	p := profile(t, lab.DGXH100)
	synctest.Test(t, func(t *testing.T) {
		var n memoryNet
		dead, alive := n.serve(t, "dead", p, lab.Hooks{}), n.serve(t, "alive", p, lab.Hooks{})
		dead.AddFault(lab.Fault{Hang: true})
		pool := n.pool(t)
		cred := bmc.Static(alive.Credential())
		for round := range 100 {
			start := time.Now()
			_, err := client(t, pool, dead.URL(), cred).Power(t.Context())
			if took := time.Since(start); !errors.Is(err, bmc.ErrUnreachable) || took > time.Minute {
				t.Fatalf("round %d: after %s: %v", round, took, err)
			}
			start = time.Now()
			if _, err := client(t, pool, alive.URL(), cred).Power(t.Context()); err != nil || time.Since(start) > 0 {
				t.Fatalf("round %d: the other BMC took %s: %v", round, time.Since(start), err)
			}
			<-time.After(time.Minute)
		}
		if dead.OpenSessions() != 0 || alive.OpenSessions() > 1 {
			t.Fatalf("%d and %d sessions", dead.OpenSessions(), alive.OpenSessions())
		}
	})
}

// Case 10 for the watch: of ten BMCs one never answers. For a hundred rounds at production's interval the others are read when
// they are due as they are without it, though there is but one place for those that answer.
func TestOneHungBMCDelaysNoOtherOfAWatchForAHundredRounds(t *testing.T) {
	p := profile(t, lab.Dell)
	lateness := func(hung bool) (p99 time.Duration, reads int) {
		synctest.Test(t, func(t *testing.T) {
			var n memoryNet
			var targets []watch.Target
			for i := range 10 {
				s := n.serve(t, fmt.Sprintf("bmc%d", i), p, lab.Hooks{}, lab.WithLogCap(1))
				s.AddFault(lab.Fault{Latency: 20 * time.Millisecond, Hang: i == 0 && hung})
				targets = append(targets, watch.Target{Server: fmt.Sprintf("srv-%d", i), Endpoint: bmc.Endpoint{Address: s.URL(), Credential: bmc.Static(s.Credential())}})
			}
			var mu sync.Mutex
			var late []time.Duration
			last, begun := map[string]time.Time{}, time.Now()
			ctx, cancel := context.WithCancel(t.Context())
			w := watch.New(n.pool(t), watch.Config{Log: testLog(t), Parallel: 1, Sink: func(_ context.Context, s watch.Snapshot, _ []watch.Sign, _ []byte) error {
				mu.Lock()
				defer mu.Unlock()
				if s.Server == "srv-0" {
					return nil
				}
				if s.Err != nil {
					t.Errorf("%s: %v", s.Server, s.Err)
				}
				if before, ok := last[s.Server]; ok && s.At.Sub(begun) > 3*time.Minute { // by then it is known which one hangs
					late = append(late, (s.At.Sub(before) - time.Minute).Abs())
				}
				last[s.Server] = s.At
				return nil
			}})
			w.Set(targets)
			done := make(chan error, 1)
			go func() { done <- w.Run(ctx) }()
			<-time.After(100 * time.Minute)
			cancel()
			<-done
			slices.Sort(late)
			p99, reads = late[len(late)*99/100], len(late)
		})
		return p99, reads
	}
	without, all := lateness(false)
	with, most := lateness(true)
	if all < 9*95 || most != all || with > without+time.Second {
		t.Fatalf("p99 of how far a read is off its minute: %s in %d reads, %s in %d while one hangs", without, all, with, most)
	}
	t.Logf("p99 of how far a read is off its minute: %s in %d reads, with one hung BMC %s in %d", without, all, with, most)
}

// Case 11: an iLO that refuses ForceOff of what is off, forgets an On within 15 s of the power going, and refuses the boot
// override for 90 s of POST. Each wish comes true, at production's pace, with a bounded number of tries.
func TestAServerIsPoweredAndBootedThroughItsPOSTWindow(t *testing.T) {
	for _, already := range []int{http.StatusBadRequest, http.StatusConflict} {
		p := profile(t, lab.HPE)
		synctest.Test(t, func(t *testing.T) {
			var n memoryNet
			boots := make(chan lab.Boot, 2)
			s := n.serve(t, "ilo", p, lab.Hooks{PowerOn: func(b lab.Boot) { boots <- b }}, lab.WithQuirks(func(q *lab.Quirks) {
				q.AlreadyStatus, q.OnIgnoredAfterOff, q.POSTWindow = already, 15*time.Second, 90*time.Second
				q.PowerOffDelay, q.PowerOnDelay = 6500*time.Millisecond, 3500*time.Millisecond
			}))
			c := client(t, n.pool(t), s.URL(), bmc.Static(s.Credential()))
			start := time.Now()
			if err := c.SetPower(t.Context(), bmc.Cycle, bmc.Hard()); err != nil {
				t.Fatal(err)
			}
			if first := <-boots; first.Network() || !s.PowerOn() {
				t.Fatalf("booted %+v, power %v", first, s.PowerOn())
			}
			cycled := time.Since(start)
			on := 0
			for _, r := range sent(s) {
				if strings.Contains(r, `"On"`) {
					on++
				}
			}
			// The first is lost: it comes ten seconds after the power went. The second comes twenty after that.
			if on != 2 || cycled < 15*time.Second || cycled > bmc.DefaultTiming.PowerChange {
				t.Fatalf("%d requests to power on, %s", on, cycled)
			}
			start = time.Now()
			if _, err := c.BootOnceFromNetwork(t.Context(), bmc.PXE); err != nil {
				t.Fatal(err)
			}
			if waited := time.Since(start); waited < 60*time.Second || waited > 95*time.Second {
				t.Fatalf("the POST of 90 s was waited out in %s", waited)
			}
			// Another hand switches it off between our read and our ForceOff.
			s.MachineOff()
			s.AddFault(lab.Fault{Method: "GET", Path: s.SystemPath(), Merge: lab.Doc{"PowerState": "On"}, Count: 1})
			start = time.Now()
			if err := c.SetPower(t.Context(), bmc.Off, bmc.Hard()); err != nil || time.Since(start) > 10*time.Second {
				t.Fatalf("off already, after %s: %v", time.Since(start), err)
			}
			if err := c.SetPower(t.Context(), bmc.On); err != nil {
				t.Fatal(err)
			}
			if b := <-boots; !b.Network() {
				t.Fatalf("booted %+v", b)
			}
		})
	}
}

// A POST that never ends is said so when its time is up, and no power is switched for it.
func TestAPOSTThatNeverEndsIsToldOfInBoundedTime(t *testing.T) {
	p := profile(t, lab.HPE)
	synctest.Test(t, func(t *testing.T) {
		var n memoryNet
		s := n.serve(t, "ilo", p, lab.Hooks{}, lab.WithPower(false), lab.WithQuirks(func(q *lab.Quirks) { q.POSTWindow = 24 * time.Hour }))
		c := client(t, n.pool(t), s.URL(), bmc.Static(s.Credential()))
		if err := c.SetPower(t.Context(), bmc.On); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err := c.BootOnceFromNetwork(t.Context(), bmc.PXE)
		if waited := time.Since(start); !errors.Is(err, bmc.ErrBusy) || waited < bmc.DefaultTiming.POSTWindow || waited > bmc.DefaultTiming.POSTWindow+time.Minute {
			t.Fatalf("after %s: %v", waited, err)
		}
		if !s.PowerOn() {
			t.Fatal("the power was switched")
		}
	})
}

// Case 11: an upgrade whose task can't be followed. An answer without a Location, and a task that is gone when the BMC is back
// from a restart of five minutes, are both decided by the version; until then nothing is started again.
func TestAnUpgradeThatCannotBeFollowedIsDecidedByTheVersion(t *testing.T) {
	p := profile(t, lab.Dell)
	inventory := "/redfish/v1/UpdateService/FirmwareInventory"
	for name, tc := range map[string]struct {
		located bool
		flashed bool
		want    error
	}{
		"no location, the version comes":                {false, true, nil},
		"the task is forgotten, the version comes":      {true, true, nil},
		"the task is forgotten, the version is the old": {true, false, bmc.ErrNotProven},
	} {
		synctest.Test(t, func(t *testing.T) {
			var n memoryNet
			s := n.serve(t, "idrac", p, lab.Hooks{}, lab.WithQuirks(func(q *lab.Quirks) { q.BMCResetTime = 5 * time.Minute }))
			c := client(t, n.pool(t), s.URL(), bmc.Static(s.Credential()))
			list, err := c.Firmware(t.Context())
			if err != nil || len(list) == 0 {
				t.Fatalf("%d firmwares: %v", len(list), err)
			}
			var task bmc.Task
			if tc.located {
				task.URI = s.AddTask(lab.Doc{"TaskState": "Running", "TaskStatus": "OK", "PercentComplete": 98}, nil)
			}
			go func() { // the upgrade restarts the BMC half a minute in
				<-time.After(30 * time.Second)
				s.Restart()
				if !tc.flashed {
					return
				}
				if err := s.Patch(inventory+"/"+list[0].ID, lab.Doc{"Version": "99.0"}); err != nil {
					t.Error(err)
				}
			}()
			start := time.Now()
			err = c.WaitTask(t.Context(), task, func(ctx context.Context) (bool, error) {
				now, err := c.Firmware(ctx)
				return err == nil && now[0].Version == "99.0", err
			})
			took := time.Since(start)
			if !errors.Is(err, tc.want) || took < 5*time.Minute || took > 5*time.Minute+bmc.DefaultTiming.TaskLost+2*time.Minute {
				t.Fatalf("%s: after %s: %v", name, took, err)
			}
			if got := sent(s); len(got) != 0 {
				t.Fatalf("%s: something was started beside it: %v", name, got)
			}
		})
	}
}

// Case 11: steps-fail. A task climbs to 98 % over twenty minutes and ends as Exception with status OK.
func TestAnUpgradeThatEndsInExceptionHasFailedAtOnce(t *testing.T) {
	p := profile(t, lab.Dell)
	synctest.Test(t, func(t *testing.T) {
		var n memoryNet
		s := n.serve(t, "idrac", p, lab.Hooks{})
		c := client(t, n.pool(t), s.URL(), bmc.Static(s.Credential()))
		var steps []lab.Doc
		for i := range 600 {
			steps = append(steps, lab.Doc{"TaskState": "Running", "TaskStatus": "OK", "PercentComplete": min(98, i/6)})
		}
		steps = append(steps, lab.Doc{"TaskState": "Exception", "TaskStatus": "OK", "PercentComplete": 98})
		start := time.Now()
		err := c.WaitTask(t.Context(), bmc.Task{URI: s.AddTask(steps...)}, nil)
		if took := time.Since(start); !errors.Is(err, bmc.ErrTaskFailed) || took < 19*time.Minute || took > 21*time.Minute {
			t.Fatalf("after %s: %v", took, err)
		}
		if got := sent(s); len(got) != 0 {
			t.Fatalf("something was started beside it: %v", got)
		}
	})
}
