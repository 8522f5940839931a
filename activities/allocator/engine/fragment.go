package engine

// Fragmentation after FGD (Weng et al., "Beware of Fragmentation", USENIX ATC 2023): on one server, for a task of
// the mix, the free accelerators that task could not use; over the mix, the expectation; over servers, the sum.
// Among the servers that fit, the one where a placement adds least is taken.

// task is one kind of the mix and its share.
type task struct {
	spec  *spec
	share float64
}

// room is what is left on a bay.
type room struct {
	free     int
	cpu, mem int64
	parts    []int64
}

// left is free accelerators, partial ones counted by what is left of them.
func (r *room) left() int64 {
	sum := int64(r.free) * whole
	for _, p := range r.parts {
		sum += p
	}
	return sum
}

// wasted is what a task could not use of the room.
func (r *room) wasted(sp *spec) int64 {
	if sp.CPU > r.cpu || sp.MemoryBytes > r.mem || sp.k == 0 {
		return r.left()
	}
	if sp.slice() {
		lost, fits := int64(0), r.free > 0
		for _, p := range r.parts {
			if p < sp.milli {
				lost += p
			} else {
				fits = true
			}
		}
		if !fits {
			return r.left()
		}
		return lost
	}
	if sp.k > r.free {
		return r.left()
	}
	return r.left() - int64(r.free)*whole
}

// fragments is the expectation of wasted over the mix.
func (s *State) fragments(r *room, p *pool) float64 {
	sum := 0.0
	for _, t := range s.mixOf(p) {
		sum += t.share * float64(r.wasted(t.spec))
	}
	return sum
}

// after is the room once a node is placed; a slice goes to the fullest accelerator with room, as pick does.
func (r *room) after(a *ask) room {
	out := room{free: r.free - a.k, cpu: r.cpu - a.cpu, mem: r.mem - a.mem, parts: r.parts}
	if a.part == 0 {
		return out
	}
	best := -1
	for i, p := range r.parts {
		if p >= a.part && (best < 0 || p < r.parts[best]) {
			best = i
		}
	}
	out.parts = make([]int64, 0, len(r.parts)+1)
	for i, p := range r.parts {
		if i == best {
			p -= a.part
		}
		if p > 0 {
			out.parts = append(out.parts, p)
		}
	}
	if best < 0 {
		out.free--
		out.parts = append(out.parts, whole-a.part)
	}
	return out
}

// fragMemo keeps what a class was found to cost for a spec, as long as the mix stays the same.
type fragMemo struct {
	mix   int
	specs []*spec
	costs []float64
}

// costOfClass is the fragmentation a node adds on a bay of the class.
func (s *State) costOfClass(a *ask, p *pool, c *class) float64 {
	if s.cfg.Placement != LeastFragmentation {
		return 0
	}
	mix := s.mixVersion(p)
	if c.frag.mix != mix {
		c.frag = fragMemo{mix: mix}
	}
	for i, sp := range c.frag.specs {
		if sp == a.spec {
			return c.frag.costs[i]
		}
	}
	r := room{free: c.key.free, cpu: c.key.cpu, mem: c.key.mem, parts: c.parts}
	cost := s.added(a, p, &r)
	c.frag.specs = append(c.frag.specs, a.spec)
	c.frag.costs = append(c.frag.costs, cost)
	return cost
}

func (s *State) costOf(a *ask, b *bay) float64 {
	if s.cfg.Placement != LeastFragmentation {
		return 0
	}
	r := room{free: b.free, cpu: b.srv.cpuFree, mem: b.srv.memFree, parts: b.parts}
	return s.added(a, b.pool, &r)
}

func (s *State) added(a *ask, p *pool, r *room) float64 {
	next := r.after(a)
	return s.fragments(&next, p) - s.fragments(r, p)
}

// mixOf is the task mix of a pool: every spec by the nodes jobs have asked for so far. It is taken anew when the
// number seen has grown by half, so that memoized costs live long and the mix still follows demand.
func (s *State) mixOf(p *pool) []task {
	s.mixVersion(p)
	return p.family.mix
}

func (s *State) mixVersion(p *pool) int {
	f := p.family
	if f.mixed > 0 && s.stats.seen < f.mixSeen*3/2+16 {
		return f.mixed
	}
	f.mixSeen = s.stats.seen
	f.mixed++
	f.mix = f.mix[:0]
	total := 0.0
	for _, sp := range f.specs {
		total += sp.seen
	}
	for _, sp := range f.specs {
		if sp.seen > 0 {
			f.mix = append(f.mix, task{sp, sp.seen / total})
		}
	}
	return f.mixed
}

// SetMix tells how often each spec is asked for, before jobs were seen to ask.
func (s *State) SetMix(weights map[string]float64) {
	for name, w := range weights {
		s.spec(name).seen = w
	}
	s.families = nil
	s.dirty = true
}

// Fragmentation is, over all servers, the free accelerators a job drawn from the task mix could not use.
func (s *State) Fragmentation() float64 {
	s.regroup()
	sum := 0.0
	for _, p := range s.pools {
		for _, b := range p.bays {
			if b.usable() {
				r := room{free: b.free, cpu: b.srv.cpuFree, mem: b.srv.memFree, parts: b.parts}
				sum += s.fragments(&r, p)
			}
		}
	}
	return sum / float64(whole)
}
