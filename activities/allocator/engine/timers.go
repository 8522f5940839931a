package engine

import "slices"

// timers are moments at which a decision may change by itself. Entries that are out of date are found to be so when
// they fire, or swept out when they may have come to be the most.
type timers struct {
	list  timerHeap
	sweep int // swept at so many
}

type timerKind int

const (
	timerWake   timerKind = iota // something may be different: plan again
	timerJob                     // a job's not-before or max queue time
	timerEnd                     // an allocation's expected end
	timerBudget                  // a month is over
	timerWindow                  // a window begins or ends
)

type timer struct {
	at   int64
	n    int64 // insertion number, so that equal moments fire in order
	kind timerKind
	what any
}

type timerHeap struct {
	items []timer
	next  int64
}

func (h *timerHeap) less(i, j int) bool {
	a, b := &h.items[i], &h.items[j]
	return a.at < b.at || a.at == b.at && a.n < b.n
}

func (h *timerHeap) push(t timer) {
	h.items = append(h.items, t)
	for i := len(h.items) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.less(i, up) {
			return
		}
		h.items[i], h.items[up] = h.items[up], h.items[i]
		i = up
	}
}

func (h *timerHeap) pop() timer {
	top, last := h.items[0], len(h.items)-1
	h.items[0], h.items[last] = h.items[last], timer{}
	h.items = h.items[:last]
	h.sift(0)
	return top
}

// sift moves an item down to where it belongs.
func (h *timerHeap) sift(i int) {
	for {
		child := 2*i + 1
		if child >= len(h.items) {
			return
		}
		if child+1 < len(h.items) && h.less(child+1, child) {
			child++
		}
		if !h.less(child, i) {
			return
		}
		h.items[i], h.items[child] = h.items[child], h.items[i]
		i = child
	}
}

// order makes a heap of items in any order.
func (h *timerHeap) order() {
	for i := len(h.items)/2 - 1; i >= 0; i-- {
		h.sift(i)
	}
}

func (t *timers) add(when int64, kind timerKind, what any) {
	if when <= 0 || when == far {
		return
	}
	if len(t.list.items) >= t.sweep {
		t.list.items = slices.DeleteFunc(t.list.items, func(o timer) bool { return !o.live() })
		t.list.order()
		t.sweep = 2*len(t.list.items) + 1024
	}
	t.list.next++
	t.list.push(timer{when, t.list.next, kind, what})
}

// due pops what has fired by now.
func (t *timers) due(now int64) (timer, bool) {
	if len(t.list.items) == 0 || t.list.items[0].at > now {
		return timer{}, false
	}
	return t.list.pop(), true
}

// next is when the next one that still means something fires.
func (t *timers) next() int64 {
	for len(t.list.items) > 0 {
		top := t.list.items[0]
		if top.live() {
			return top.at
		}
		t.list.pop()
	}
	return 0
}

// live says whether the timer still concerns something.
func (t timer) live() bool {
	switch what := t.what.(type) {
	case *job:
		return !what.removed
	case *alloc:
		return !what.gone && what.end == t.at
	default:
		return true
	}
}

// fire applies everything time alone changed up to now, and takes expired jobs out of the queue.
func (s *State) fire(out *Result) {
	for {
		t, ok := s.timers.due(s.now)
		if !ok {
			return
		}
		if !t.live() {
			continue
		}
		s.dirty = true
		switch what := t.what.(type) {
		case *job:
			if what.MaxQueue > 0 && plus(ns(what.Submitted), what.MaxQueue) <= s.now {
				out.Expired = append(out.Expired, Expiry{what.ID, what.Attempt, what.MaxQueue})
				s.drop(what, "the job expired")
				s.Ended(what.ID, "expired")
				continue
			}
			s.unpark(what)
		case *alloc:
			s.overrun(what)
		case *budget:
			if s.budgets[what.ID] == what && what.roll(s.now, s.cfg.AssumedLimit) {
				s.timers.add(what.reset, timerBudget, what)
			}
		case *window:
			s.turnWindow(what)
		}
	}
}

// overrun moves the expected end of what has run past it: an eighth of its run so far, at least a minute.
func (s *State) overrun(al *alloc) {
	ran := s.now - ns(al.Started)
	al.late = true
	al.end = s.now + max(ran/8, int64(60e9))
	s.timers.add(al.end, timerEnd, al)
	for _, srv := range al.servers {
		s.refresh(srv)
	}
}
