package engine

import (
	"math"
	"math/bits"
	"time"

	"gpupool/schema"
)

// budget is a Budget with what live allocations of its scope have committed.
type budget struct {
	Budget
	month int64                    // start of the month Spent counts for
	reset int64                    // start of the next one
	seen  int64                    // when it was told last, or its month began
	live  map[*alloc]time.Duration // what each counts for: has held since the month began, and may hold still
	sum   time.Duration
	// claims is what jobs that wait for victims to end will set aside.
	claims map[*plan]time.Duration
}

// taken is what is spent, committed and promised to those that wait for victims to end.
func (b *budget) taken() time.Duration { return addCapped(addCapped(b.Spent, b.sum), b.reserved()) }

func (b *budget) reserved() time.Duration {
	sum := time.Duration(0)
	for _, amount := range b.claims {
		sum = addCapped(sum, amount)
	}
	return sum
}

// SetBudget adds a budget or changes it. Spent replaces what the engine has settled itself.
func (s *State) SetBudget(in Budget) {
	s.dirty = true
	if in.Zone == nil {
		in.Zone = time.UTC
	}
	b := s.budgets[in.ID]
	if b == nil {
		b = &budget{live: map[*alloc]time.Duration{}, claims: map[*plan]time.Duration{}}
		s.budgets[in.ID] = b
	}
	b.Budget = in
	when := in.At
	if when.IsZero() {
		when = at(s.now)
	}
	reset := b.reset
	b.seen = ns(when)
	b.turn(when)
	clear(b.live)
	for _, list := range s.allocs {
		for _, al := range list {
			if b.covers(al.Tenant, al.Project, al.model) {
				b.live[al] = 0
			}
		}
	}
	b.recommit(s.cfg.AssumedLimit)
	clear(b.claims)
	for _, pl := range s.claims() {
		if b.covers(pl.job.Tenant, pl.job.Project, pl.model) {
			b.claims[pl] = s.commitment(pl.job)
		}
	}
	if b.reset != reset { // else its timer is set
		s.timers.add(b.reset, timerBudget, b)
	}
}

// RemoveBudget takes a ceiling away.
func (s *State) RemoveBudget(id string) {
	delete(s.budgets, id)
	s.dirty = true
}

// turn opens the calendar month that holds t, in the budget's zone.
func (b *budget) turn(t time.Time) {
	local := t.In(b.Zone)
	y, m, _ := local.Date()
	b.month = time.Date(y, m, 1, 0, 0, 0, 0, b.Zone).UnixNano()
	b.reset = time.Date(y, m+1, 1, 0, 0, 0, 0, b.Zone).UnixNano()
}

// roll starts the month now is in, when the old one is over.
func (b *budget) roll(now int64, assumed time.Duration) bool {
	if now < b.reset {
		return false
	}
	b.seen = now
	b.turn(at(now))
	b.Spent = 0
	b.recommit(assumed)
	return true
}

func (b *budget) covers(tenant, project, model string) bool {
	return b.Tenant == tenant && (b.Project == "" || b.Project == project) && (b.Model == "" || b.Model == model)
}

// commit sets aside what an allocation takes of the budget: from its start (or the month's) until schema.CommittedUntil.
func (b *budget) commit(al *alloc, assumed time.Duration) {
	until := schema.CommittedUntil(ns(al.Started), int64(al.TimeLimit), int64(assumed), b.seen)
	b.live[al] = acceleratorTime(al.milli, until-max(ns(al.Started), b.month))
	b.sum = addCapped(b.sum, b.live[al])
}

func (b *budget) recommit(assumed time.Duration) {
	b.sum = 0
	for al := range b.live {
		b.commit(al, assumed)
	}
}

// uncommit gives back what was set aside and says whether there was any.
func (b *budget) uncommit(al *alloc, assumed time.Duration) bool {
	amount, ok := b.live[al]
	if !ok {
		return false
	}
	delete(b.live, al)
	if b.sum == math.MaxInt64 { // saturated: only a new sum is right
		b.recommit(assumed)
	} else {
		b.sum -= amount
	}
	return true
}

// settle books the actual use of an allocation that ended.
func (b *budget) settle(al *alloc, end int64, assumed time.Duration) {
	if b.uncommit(al, assumed) {
		b.Spent = addCapped(b.Spent, acceleratorTime(al.milli, end-max(ns(al.Started), b.month)))
	}
}

// acceleratorTime is amount x duration, saturating.
func acceleratorTime(milli, d int64) time.Duration {
	if d <= 0 || milli <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(milli), uint64(d))
	if hi >= uint64(whole) {
		return math.MaxInt64
	}
	q, _ := bits.Div64(hi, lo, uint64(whole))
	return time.Duration(min(q, math.MaxInt64))
}

func addCapped(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// limitEnd is when the allocation ends at the latest, far for a service without a limit.
func (al *alloc) limitEnd(assumed time.Duration) int64 {
	switch {
	case al.TimeLimit > 0:
		return plus(ns(al.Started), al.TimeLimit)
	case al.Service:
		return far
	}
	return plus(ns(al.Started), assumed)
}
