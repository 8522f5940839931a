package engine

// timers are moments at which a decision may change by itself. Entries that are out of date are found to be so when
// they fire, or by a look at a few entries with each new one: so that they stay fewer than those that mean something,
// and no cycle pays for sweeping them all.
type timers struct {
	list   timerHeap
	cursor int // where the next look begins
}

// looks is how many entries are looked at with each new one.
const looks = 4

type timerKind int

const (
	timerWake   timerKind = iota // something may be different: plan again, if what it is about is still there
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
	h.rise(len(h.items) - 1)
}

func (h *timerHeap) pop() timer { return h.remove(0) }

// remove takes out the item at i.
func (h *timerHeap) remove(i int) timer {
	out, last := h.items[i], len(h.items)-1
	h.items[i], h.items[last] = h.items[last], timer{}
	h.items = h.items[:last]
	if i < last {
		h.sift(i)
		h.rise(i)
	}
	return out
}

// rise moves an item up to where it belongs.
func (h *timerHeap) rise(i int) {
	for i > 0 {
		up := (i - 1) / 2
		if !h.less(i, up) {
			return
		}
		h.items[i], h.items[up] = h.items[up], h.items[i]
		i = up
	}
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

func (t *timers) add(when int64, kind timerKind, what any) {
	if when <= 0 || when == far {
		return
	}
	for range min(looks, len(t.list.items)) {
		if t.cursor >= len(t.list.items) {
			t.cursor = 0
		}
		if t.list.items[t.cursor].live() {
			t.cursor++
		} else {
			t.list.remove(t.cursor)
		}
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
		return !what.gone && (t.kind == timerWake || what.end == t.at)
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
		if t.kind == timerWake {
			continue
		}
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
