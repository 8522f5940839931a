package engine

import (
	"slices"
	"time"
)

// alloc is a live allocation.
type alloc struct {
	Allocation
	model    string
	milli    int64 // all nodes
	cpu, mem int64 // per node
	part     int64 // of the one accelerator, for a slice; else 0
	servers  []*server
	accels   []*accel
	end      int64 // when it is expected to end, by its limit
	late     bool  // it ran past that
	told     bool  // it was told to end
	gone     bool
	cycle    int64
	job      *job // what it was started from, for Revert; nil when that was before the last cycle
}

func (s *State) alloc(job string, attempt int) *alloc {
	for _, al := range s.allocs[job] {
		if al.Attempt == attempt {
			return al
		}
	}
	return nil
}

// SetAllocation tells of a live allocation, after the specs and, if known, the servers were told. For one that is
// known already only what may change is taken: its limit, checkpoint and grace.
func (s *State) SetAllocation(in Allocation) {
	s.dirty = true
	if al := s.alloc(in.Job, in.Attempt); al != nil {
		al.TimeLimit, al.Checkpoint = in.TimeLimit, in.Checkpoint
		if !in.GraceUntil.IsZero() {
			al.GraceUntil = in.GraceUntil
			s.doom(al, in.For)
		}
		s.expect(al)
		s.recommit(al)
		return
	}
	in.Places = slices.Clone(in.Places)
	al := &alloc{Allocation: in}
	if !in.GraceUntil.IsZero() {
		s.doom(al, in.For)
	}
	s.take(al)
	if j := s.jobs[in.Job]; j != nil {
		if j.Attempt <= in.Attempt {
			s.drop(j, "the job runs")
		} else {
			s.unpark(j)
		}
	}
}

// Rebind tells which accelerators live allocations really hold, where their backend chose others of the same servers than
// were allocated. All that change places are told at once: none takes what another has yet to give.
func (s *State) Rebind(all []Allocation) {
	for _, in := range all {
		if al := s.alloc(in.Job, in.Attempt); al != nil {
			for _, dev := range al.accels {
				dev.used -= al.each()
				dev.holders = slices.DeleteFunc(dev.holders, func(o *alloc) bool { return o == al })
			}
			al.accels = al.accels[:0]
		}
	}
	for _, in := range all {
		al := s.alloc(in.Job, in.Attempt)
		if al == nil {
			continue
		}
		s.dirty = true
		al.Places = slices.Clone(in.Places)
		for _, place := range al.Places {
			for _, id := range place.Accelerators {
				dev := s.accel(id)
				dev.used += al.each()
				dev.holders = append(dev.holders, al)
				al.accels = append(al.accels, dev)
			}
		}
		for _, srv := range al.servers {
			s.refresh(srv)
		}
	}
}

// SetCheckpoint notes that a running attempt has saved its work.
func (s *State) SetCheckpoint(job string, attempt int, when time.Time) {
	if al := s.alloc(job, attempt); al != nil {
		al.Checkpoint = when
	}
}

// SetTimeLimit changes the limit of a running attempt; 0 = none.
func (s *State) SetTimeLimit(job string, attempt int, limit time.Duration) {
	if al := s.alloc(job, attempt); al != nil {
		s.dirty = true
		al.TimeLimit = limit
		s.expect(al)
		s.recommit(al)
	}
}

// doom notes that an allocation was told to end for a job, which will not tell it again.
func (s *State) doom(al *alloc, winner string) {
	if al.told {
		return
	}
	al.told, al.For = true, winner
	if winner == "" {
		return
	}
	s.ending[winner] = append(s.ending[winner], al)
	if s.pairs[winner] == nil {
		s.pairs[winner] = map[string]bool{}
	}
	s.pairs[winner][al.Job] = true
}

// expect sets when an allocation will be over and tells its servers.
func (s *State) expect(al *alloc) {
	end := al.limitEnd(s.cfg.AssumedLimit)
	if al.told {
		end = ns(al.GraceUntil)
	}
	if al.end != end {
		s.timers.add(end, timerEnd, al)
	}
	al.end, al.late = end, false
	for _, srv := range al.servers {
		s.refresh(srv)
	}
}

// take makes an allocation live: accelerators, servers and accounts hold it from now on.
func (s *State) take(al *alloc) {
	sp := s.spec(al.Spec)
	al.cpu, al.mem = sp.CPU, sp.MemoryBytes
	if sp.slice() {
		al.part = sp.milli
	}
	if len(al.servers) == 0 { // told by its names
		for _, place := range al.Places {
			srv := s.servers[place.Server]
			if srv == nil {
				srv = s.addServer(place.Server)
			}
			if !slices.Contains(al.servers, srv) {
				al.servers = append(al.servers, srv)
			}
			for _, id := range place.Accelerators {
				al.accels = append(al.accels, s.accel(id))
			}
		}
	}
	each := al.each()
	for _, srv := range al.servers {
		srv.allocs = append(srv.allocs, al)
	}
	for _, dev := range al.accels {
		dev.used += each
		dev.holders = append(dev.holders, al)
		al.milli += each
		if al.model == "" && dev.bay != nil {
			al.model = dev.bay.pool.model
		}
	}
	if al.model == "" {
		al.model = sp.Model
	}
	s.allocs[al.Job] = append(s.allocs[al.Job], al)
	s.running(al, +1)
	if al.Preemptible && s.cfg.MinRunTime > 0 {
		s.timers.add(plus(ns(al.Started), s.cfg.MinRunTime), timerWake, al) // from then on it may be a victim
	}
	s.book(al, ns(al.Started), +1)
	for _, b := range s.budgets {
		if b.covers(al.Tenant, al.Project, al.model) {
			b.commit(al, s.cfg.AssumedLimit)
		}
	}
	s.expect(al)
}

// running counts preemptible allocations by priority, to know at a glance whether a search for victims can succeed.
func (s *State) running(al *alloc, delta int) {
	if !al.Preemptible {
		return
	}
	list := s.stats.running[al.model]
	i := slices.IndexFunc(list, func(r running) bool { return r.priority == al.Priority })
	if i < 0 {
		s.stats.running[al.model] = append(list, running{al.Priority, delta})
		return
	}
	if list[i].n += delta; list[i].n == 0 {
		s.stats.running[al.model] = slices.Delete(list, i, i+1)
	}
}

// running is how many preemptible allocations of a priority there are.
type running struct{ priority, n int }

func (s *State) recommit(al *alloc) {
	for _, b := range s.budgets {
		if b.uncommit(al, s.cfg.AssumedLimit) {
			b.commit(al, s.cfg.AssumedLimit)
		}
	}
}

// Release ends an allocation at a moment and frees what it held. One that is not live is no error: events repeat.
func (s *State) Release(job string, attempt int, when time.Time) {
	al := s.alloc(job, attempt)
	if al == nil {
		return
	}
	for _, b := range s.budgets {
		b.settle(al, ns(when), s.cfg.AssumedLimit)
	}
	s.learnFrom(al, ns(when))
	s.give(al, ns(when))
}

// give takes an allocation off everything that holds it.
func (s *State) give(al *alloc, when int64) {
	s.dirty = true
	al.gone = true
	if al.told && al.For != "" {
		s.ending[al.For] = slices.DeleteFunc(s.ending[al.For], func(o *alloc) bool { return o == al })
		if len(s.ending[al.For]) == 0 {
			delete(s.ending, al.For)
		}
	}
	s.running(al, -1)
	list := slices.DeleteFunc(s.allocs[al.Job], func(o *alloc) bool { return o == al })
	if len(list) == 0 {
		delete(s.allocs, al.Job)
	} else {
		s.allocs[al.Job] = list
	}
	each := al.each()
	for _, dev := range al.accels {
		dev.used -= each
		dev.holders = slices.DeleteFunc(dev.holders, func(o *alloc) bool { return o == al })
		if dev.bay == nil && len(dev.holders) == 0 {
			delete(s.accels, dev.id)
		}
	}
	for _, srv := range al.servers {
		srv.allocs = slices.DeleteFunc(srv.allocs, func(o *alloc) bool { return o == al })
		s.refresh(srv)
		s.forget(srv)
	}
	s.book(al, when, -1)
	if j := s.jobs[al.Job]; j != nil {
		s.unpark(j)
	}
}

// each is what the allocation holds of each of its accelerators.
func (al *alloc) each() int64 {
	if al.part > 0 {
		return al.part
	}
	return whole
}

// Revert takes back a start of the last cycle that the database refused: the job waits again, in its old place.
func (s *State) Revert(job string, attempt int) {
	al := s.alloc(job, attempt)
	if al == nil {
		return
	}
	for _, b := range s.budgets {
		b.uncommit(al, s.cfg.AssumedLimit)
	}
	s.penalize(al, s.now, -1)
	s.give(al, ns(al.Started))
	if al.job != nil {
		again := al.job.Job
		again.Priority = al.job.asked
		s.reverting = true
		s.SetJob(again)
		s.reverting = false
	}
}

// lost is the accelerator-time that would be lost if the allocation ended now.
func (al *alloc) lost(now int64) time.Duration {
	return acceleratorTime(al.milli, now-max(ns(al.Started), ns(al.Checkpoint)))
}
