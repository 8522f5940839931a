package engine

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Timers fire in the order of their moments, equal ones in the order they were set; those of jobs that are gone never
// fire, and stay fewer than those that mean something.
func TestTimersFireInOrderAndDeadOnesGo(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var set timers
		var want []timer // live, in the order they were set
		now := int64(0)
		for range rapid.IntRange(1, 600).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0: // time goes on
				now += rapid.Int64Range(1, 20).Draw(t, "for")
				due := slices.DeleteFunc(slices.Clone(want), func(o timer) bool { return o.at > now })
				slices.SortStableFunc(due, func(a, b timer) int { return int(a.at - b.at) })
				for _, w := range due {
					got, ok := set.due(now)
					for ok && !got.live() {
						got, ok = set.due(now)
					}
					if !ok || got.what != w.what {
						t.Fatalf("at %d fires %+v, not %+v", now, got, w)
					}
				}
				want = slices.DeleteFunc(want, func(o timer) bool { return o.at <= now })
			case 1: // a job leaves
				if len(want) > 0 {
					i := rapid.IntRange(0, len(want)-1).Draw(t, "which")
					want[i].what.(*job).removed = true
					want = slices.Delete(want, i, i+1)
				}
			default:
				w := timer{at: now + rapid.Int64Range(1, 60).Draw(t, "in"), kind: timerJob, what: &job{}}
				set.add(w.at, w.kind, w.what)
				want = append(want, w)
			}
		}
		next := int64(0)
		for _, w := range want {
			if next == 0 || w.at < next {
				next = w.at
			}
		}
		if got := set.next(); got != next {
			t.Fatalf("the next is at %d, not %d", got, next)
		}
	})
	var set timers
	live := make([]*job, 1000)
	for i := range 100000 { // a steady pool: each job that comes replaces another, whose timer is far ahead
		at := i * 7919 % len(live)
		if old := live[at]; old != nil {
			old.removed = true
		}
		live[at] = &job{}
		set.add(int64(1e12)+int64(i*31%977), timerJob, live[at])
		if n := len(set.list.items); n > 2*len(live) {
			t.Fatalf("%d timers are kept for %d jobs", n, len(live))
		}
	}
}
