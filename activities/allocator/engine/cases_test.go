package engine_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gpupool/activities/allocator/engine"
)

// The cases on the queue whose input is repeated, or too long for a scenario file. Each of the others is a scenario
// (testdata/scenarios/case*, budget.txt), or a test that names it: 11 and 18e in sound_test.go, 12, 20 and 25 in the simulator,
// 17 and 24 in schema/store, 21 and 23 there and in schema/usage.

// disjoint fails the test when a device is in two of the starts.
func disjoint(t *testing.T, starts []engine.Start) {
	t.Helper()
	holder := map[string]string{}
	for _, s := range starts {
		for _, p := range s.Places {
			for _, dev := range p.Accelerators {
				if holder[dev] != "" {
					t.Fatalf("%s is given to %s and to %s", dev, holder[dev], s.Job)
				}
				holder[dev] = s.Job
			}
		}
	}
}

func caseJob(id, project, spec string, seq int64) engine.Job {
	return engine.Job{ID: id, Tenant: "t", Project: project, Spec: spec, Nodes: 1, Seq: seq, Submitted: epoch, Attempt: 1}
}

// TestNoHostIsGivenTwiceInOneCycle is case 1, a thousand times over: a gang of four or of five and a single on five hosts.
func TestNoHostIsGivenTwiceInOneCycle(t *testing.T) {
	t.Parallel()
	for n := range 1000 {
		rng := rand.New(rand.NewPCG(uint64(n), 1))
		s := engine.New(engine.Config{})
		for _, i := range rng.Perm(5) {
			s.SetServer(extra(fmt.Sprint("h", i), "h100", 8))
		}
		s.SetSpec(engine.Spec{Name: "g8", Model: "h100", Accelerators: 8})
		gang, single := caseJob("gang", "a", "g8", 1), caseJob("single", "b", "g8", 2)
		gang.Nodes = 4 + n%2
		if rng.IntN(2) == 0 {
			gang.Seq = 3
		}
		told := []engine.Job{gang, single}
		if rng.IntN(2) == 0 {
			slices.Reverse(told)
		}
		var starts []engine.Start
		now := epoch
		for _, j := range told {
			s.SetJob(j)
			if rng.IntN(2) == 0 { // within a millisecond, in one cycle or in two
				now = now.Add(time.Millisecond)
				starts = append(starts, s.Cycle(now).Starts...)
			}
		}
		starts = append(starts, s.Cycle(now.Add(time.Millisecond)).Starts...)
		disjoint(t, starts)
		if err := s.Check(); err != nil {
			t.Fatalf("seed %d: %v", n, err)
		}
		if gang.Nodes == 4 {
			if len(starts) != 2 {
				t.Fatalf("seed %d: %d of the two started, on five hosts for five nodes", n, len(starts))
			}
			continue
		}
		if len(starts) != 1 {
			t.Fatalf("seed %d: %d started, on five hosts for six nodes", n, len(starts))
		}
		waits, free, needed := "single", 0, 8
		if starts[0].Job == "single" {
			waits, free, needed = "gang", 32, 40
		}
		why, ok := s.Explain(waits)
		if !ok || why.Code != engine.Capacity || why.Detail["free"] != free || why.Detail["needed"] != needed {
			t.Fatalf("seed %d: %s waits %s %v, want CAPACITY free=%d needed=%d", n, waits, why.Code, why.Detail, free, needed)
		}
	}
}

// TestWhatALaunchHeldIsFreeAgainWhereverItBreaks is case 9: on a host with devices 2, 3, 6 and 7 launches are refused, cancelled
// and lost at random; then two jobs of two devices each both run. Five hundred schedules.
func TestWhatALaunchHeldIsFreeAgainWhereverItBreaks(t *testing.T) {
	t.Parallel()
	for n := range 500 {
		rng := rand.New(rand.NewPCG(uint64(n), 9))
		host := extra("h", "h100", 4)
		for i, index := range []int{2, 3, 6, 7} {
			host.Accelerators[i].ID, host.Accelerators[i].Index = fmt.Sprint("dev", index), index
		}
		s := engine.New(engine.Config{})
		s.SetServer(host)
		s.SetSpec(engine.Spec{Name: "g2", Model: "h100", Accelerators: 2})
		now, seq := epoch, int64(0)
		submit := func() string {
			seq++
			id := fmt.Sprint("j", seq)
			s.SetJob(caseJob(id, "p", "g2", seq))
			return id
		}
		for range 1 + rng.IntN(6) {
			id := submit()
			now = now.Add(time.Second)
			step := rng.IntN(5)
			if step == 0 { // cancelled before it is reserved
				s.RemoveJob(id)
				continue
			}
			if got := s.Cycle(now).Starts; len(got) != 1 || got[0].Job != id {
				t.Fatalf("seed %d: %v start, want %s", n, got, id)
			}
			switch step {
			case 1: // the record refuses it, and it is cancelled then
				s.Revert(id, 1)
				s.RemoveJob(id)
			case 2: // cancelled after the dispatch; the end is told twice
				s.Release(id, 1, now)
				s.Release(id, 1, now.Add(time.Second))
			case 3: // the agent starts anew: its server is told again, before the end is
				s.SetServer(host)
				s.Release(id, 1, now)
			case 4: // the host is gone for a while, and the end is told meanwhile
				s.RemoveServer("h")
				s.Release(id, 1, now)
				s.SetServer(host)
			}
		}
		submit()
		submit()
		got := s.Cycle(now.Add(time.Minute)).Starts
		disjoint(t, got)
		if err := s.Check(); err != nil || len(got) != 2 {
			t.Fatalf("seed %d: %d of two jobs start on a free host: %v, %v", n, len(got), got, err)
		}
	}
}

// TestWaitingLongerNeverLowersAChance is case 13 at its size: all of the higher priority first, each by submit order and in the
// cycle after a place is free, however long they have waited.
func TestWaitingLongerNeverLowersAChance(t *testing.T) {
	t.Parallel()
	s := engine.New(engine.Config{})
	s.SetServer(extra("h", "h100", 8))
	s.SetSpec(engine.Spec{Name: "g1", Model: "h100", Accelerators: 1})
	now, seq := epoch, int64(0)
	var running, want []string
	submit := func(priority, count int) {
		for range count {
			seq++
			j := caseJob(fmt.Sprint("j", seq), "p", "g1", seq)
			j.Priority = priority
			s.SetJob(j)
			want = append(want, j.ID)
		}
	}
	take := func(after time.Duration) {
		now = now.Add(after)
		for _, st := range s.Cycle(now).Starts {
			if len(want) == 0 || st.Job != want[0] {
				t.Fatalf("%s starts, want the first of %v", st.Job, want)
			}
			running, want = append(running, st.Job), want[1:]
		}
		if len(running) != 8 {
			t.Fatalf("%d run on 8 accelerators while %v wait", len(running), want)
		}
	}
	free := func() {
		s.Release(running[0], 1, now)
		running = running[1:]
		take(time.Second)
	}
	submit(50, 8)
	take(0)
	submit(50, 6)
	low := want
	want = nil
	submit(51, 6)
	want = append(want, low...)
	take(15 * time.Minute)
	for len(want) > 0 {
		free()
	}
	submit(50, 100)
	take(15 * time.Minute)
	for len(want) > 0 {
		free()
	}
}

// TestALargeGangStartsWhenItWasPlanned is case 12 cycle by cycle: ten hosts of single jobs of ten minutes, then a gang of eight
// whole hosts and a stream of singles. Its start is planned at once and never moves later, nothing that would run past it starts on
// the hosts it is planned on, what is over before it does, and it starts in the cycle after the last of them has ended.
func TestALargeGangStartsWhenItWasPlanned(t *testing.T) {
	t.Parallel()
	const tick, long, brief = 5 * time.Second, 10 * time.Minute, 30 * time.Second
	for _, priority := range []int{0, 5} {
		s := engine.New(engine.Config{})
		for i := range 10 {
			s.SetServer(extra(fmt.Sprint("h", i), "h100", 8))
		}
		s.SetSpec(engine.Spec{Name: "g1", Model: "h100", Accelerators: 1})
		s.SetSpec(engine.Spec{Name: "g8", Model: "h100", Accelerators: 8})
		seq, ends := int64(0), map[string]time.Time{}
		submit := func(now time.Time, id, spec string, nodes, priority int, limit time.Duration) {
			seq++
			j := caseJob(id, "p", spec, seq)
			j.Submitted, j.Nodes, j.Priority, j.TimeLimit = now, nodes, priority, limit
			s.SetJob(j)
		}
		for i := range 80 {
			submit(epoch, fmt.Sprint("first", i), "g1", 1, 0, long)
		}
		for _, st := range s.Cycle(epoch).Starts {
			ends[st.Job] = epoch.Add(st.TimeLimit)
		}
		ends["first0"] = epoch // one ends at once, on a host that the gang will be planned on
		submit(epoch.Add(time.Second), "gang", "g8", 8, priority, long)
		var planned time.Time
		var places []string
		started, filled := time.Time{}, 0
		for now := epoch.Add(time.Second); started.IsZero(); now = now.Add(tick) {
			if now.After(epoch.Add(long + 2*tick)) {
				t.Fatalf("priority %d: by %s the gang has not started", priority, now.Sub(epoch))
			}
			for id, end := range ends {
				if !end.After(now) {
					s.Release(id, 1, end)
					delete(ends, id)
				}
			}
			n := int(now.Sub(epoch) / tick)
			submit(now, fmt.Sprint("long", n), "g1", 1, 0, long)
			if n%6 == 0 {
				submit(now, fmt.Sprint("brief", n), "g1", 1, 0, brief)
			}
			r := s.Cycle(now)
			for _, p := range r.Reservations {
				if p.Job != "gang" {
					continue
				}
				if p.Start.IsZero() || !planned.IsZero() && p.Start.After(planned) {
					if s.Waits("gang") {
						t.Fatalf("priority %d: the planned start moves from %s to %s: %q", priority, planned, p.Start, p.Cause)
					}
					continue
				}
				planned, places = p.Start, p.Places
			}
			if planned.IsZero() || len(places) != 8 {
				t.Fatalf("priority %d: the gang is planned for %s on %v", priority, planned, places)
			}
			for _, st := range r.Starts {
				end := now.Add(st.TimeLimit)
				ends[st.Job] = end
				switch {
				case st.Job == "gang":
					started = now
				case !started.IsZero(): // behind the gang, in its own cycle
				case !end.After(planned):
					filled++
				case slices.Contains(places, st.Places[0].Server):
					t.Fatalf("priority %d: %s starts on %s until %s, past the gang's start at %s", priority, st.Job, st.Places[0].Server, end, planned)
				}
			}
			if err := s.Check(); err != nil {
				t.Fatal(err)
			}
		}
		if filled == 0 {
			t.Errorf("priority %d: nothing short started before the gang", priority)
		}
	}
}
