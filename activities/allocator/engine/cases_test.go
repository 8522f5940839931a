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
