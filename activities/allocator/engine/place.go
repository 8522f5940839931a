package engine

import (
	"cmp"
	"slices"
	"strings"
)

// ask is what a search for places is about: one job of a shape, until when it would run.
type ask struct {
	*shape
	job   *job
	k     int   // whole accelerators per node, 0 for a slice
	part  int64 // thousandths of one accelerator, for a slice
	cpu   int64
	mem   int64
	until int64
	standing
	// blind makes the search overlook things, to learn what stands in the way.
	blind blindness
}

type blindness struct{ windows, holds bool }

func (s *State) askFor(j *job) ask {
	sp := j.shape.spec
	a := ask{shape: j.shape, job: j, k: sp.k, cpu: sp.CPU, mem: sp.MemoryBytes, until: far, standing: s.standing(j.shape)}
	if sp.slice() {
		a.k, a.part = 0, sp.milli
	}
	if j.limit > 0 {
		a.until = plus(s.now, j.limit)
	}
	return a
}

// anywhere says that the job is tied to no place.
func (a *ask) anywhere() bool {
	return a.needs == 0 && a.cluster == "" && a.site == "" && a.region == "" && len(a.only) == 0
}

// within says that the nodes must be in one domain.
func (a *ask) within() bool { return a.required && a.same != AnyLevel && a.nodes > 1 }

// allows says whether a job of the shape may use the server at all, busy or not.
func (a *ask) allows(srv *server) bool {
	if a.needs&srv.Lacks != 0 || a.cluster != "" && srv.Cluster != a.cluster || a.site != "" && srv.Site != a.site ||
		a.region != "" && srv.Region != a.region {
		return false
	}
	if len(a.only) > 0 {
		_, ok := slices.BinarySearch(a.only, srv.ID)
		return ok
	}
	return true
}

// whereAllows is allows for all servers of one place.
func (s *State) whereAllows(a *ask, where int) bool {
	if a.needs == 0 && a.cluster == "" && a.site == "" && a.region == "" {
		return true
	}
	key := s.wheres.keys[where]
	return a.needs&key.lacks == 0 && (a.cluster == "" || key.cluster == a.cluster) && (a.site == "" || key.site == a.site) &&
		(a.region == "" || key.region == a.region)
}

// windowsAllow says whether a job that starts now and runs until a.until meets no window that is not for it.
func (s *State) windowsAllow(a *ask, set []*window, from, until int64) bool {
	for _, w := range set {
		if !w.admits(a.tenant, a.project) && w.from < until && from < w.until {
			return false
		}
	}
	return true
}

// classFits says whether a node fits the bays of a class now.
func (s *State) classFits(a *ask, c *class) bool {
	k := &c.key
	if k.free < a.k || k.cpu < a.cpu || k.mem < a.mem {
		return false
	}
	if a.part > 0 && k.free == 0 && (len(c.parts) == 0 || c.parts[0] < a.part) {
		return false
	}
	if !s.whereAllows(a, k.where) {
		return false
	}
	return k.winset == 0 || a.blind.windows || s.windowsAllow(a, s.sets[k.winset], s.now, a.until)
}

// bayFits says whether a node fits a bay now and until a.until, holds and windows regarded.
func (s *State) bayFits(a *ask, b *bay) bool {
	if !b.up || b.free < a.k || b.srv.cpuFree < a.cpu || b.srv.memFree < a.mem || !a.allows(b.srv) {
		return false
	}
	if a.part > 0 && b.free == 0 && (len(b.parts) == 0 || b.parts[0] < a.part) {
		return false
	}
	if len(b.srv.windows) > 0 && !a.blind.windows && !s.windowsAllow(a, b.srv.windows, s.now, a.until) {
		return false
	}
	return len(b.srv.holds) == 0 || a.blind.holds || s.roomBesideHolds(a, b, s.now, a.until)
}

// candidate is a group of equal bays, or one bay, with what choosing it costs.
type candidate struct {
	class *class
	bay   *bay
	n     int
	cost  float64
	left  float64 // what is left there: see fullness
	ord   int
}

func (c candidate) compare(o candidate) int {
	return cmp.Or(cmp.Compare(c.cost, o.cost), cmp.Compare(c.left, o.left), cmp.Compare(c.ord, o.ord))
}

// scoreTests bounds how many classes are scored once a fitting one was found: the fullest come first.
const scoreTests = 2048

// find chooses bays for every node of the job in one pool, or nil when it does not fit now.
func (s *State) find(a *ask, p *pool) []*bay {
	s.stats.decisions++
	if p.free < a.nodes*a.k {
		return nil
	}
	if a.same != AnyLevel && a.nodes > 1 {
		if bays := s.findWithin(a, p, a.same.index()); bays != nil || a.required {
			return bays
		}
		return s.findNear(a, p)
	}
	if len(a.only) > 0 {
		return s.choose(a, s.named(a, p), a.nodes)
	}
	cands, total := s.candidates(a, p, a.nodes)
	if total < a.nodes {
		return nil
	}
	if a.nodes == 1 {
		best := slices.MinFunc(cands, candidate.compare)
		if best.class != nil {
			return best.class.take(s, 1)
		}
		return []*bay{best.bay}
	}
	slices.SortFunc(cands, candidate.compare)
	out := make([]*bay, 0, a.nodes)
	for _, c := range cands {
		if c.class != nil {
			out = append(out, c.class.take(s, min(c.n, a.nodes-len(out)))...)
		} else {
			out = append(out, c.bay)
		}
		if len(out) == a.nodes {
			break
		}
	}
	return out
}

// candidates is every class and held bay that fits, the fullest first, and how many bays that is. It stops early
// when there is room for as many as wanted and enough were scored.
func (s *State) candidates(a *ask, p *pool, want int) ([]candidate, int) {
	cands, total := s.stats.scratch[:0], 0
	add := func(c candidate) {
		cands = append(cands, c)
		total += c.n
	}
	for f := a.k; f < len(p.byFree); f++ {
		for _, c := range p.byFree[f] {
			if s.classFits(a, c) {
				add(candidate{
					class: c, n: c.n, left: s.fullness(p, f, c.parts, c.key.cpu),
					cost: s.costOfClass(a, p, c), ord: c.first(s).srv.ord,
				})
			}
		}
		if total >= want && (s.cfg.Placement == BestFit || len(cands) >= scoreTests) {
			break
		}
	}
	for _, b := range p.held {
		if s.bayFits(a, b) {
			add(candidate{bay: b, n: 1, left: s.fullness(p, b.free, b.parts, b.srv.cpuFree), cost: s.costOf(a, b), ord: b.srv.ord})
		}
	}
	s.stats.scratch = cands
	return cands, total
}

// fullness is what is left of a bay, to be made small: accelerators, and CPU counted by how many accelerators there
// are to a core in the family. Spread makes it large instead.
func (s *State) fullness(p *pool, free int, parts []int64, cpu int64) float64 {
	r := room{free: free, parts: parts}
	left := float64(r.left()) + float64(cpu)*p.family.perCore
	if s.cfg.Placement == Spread {
		return -left
	}
	return left
}

// named is the bays of the servers a job is tied to.
func (s *State) named(a *ask, p *pool) []*bay {
	var out []*bay
	for _, id := range a.only {
		if srv := s.servers[id]; srv != nil {
			for _, b := range srv.bays {
				if b.pool == p {
					out = append(out, b)
				}
			}
		}
	}
	return out
}

// choose takes the n best of the bays that fit, nil when there are fewer.
func (s *State) choose(a *ask, bays []*bay, n int) []*bay {
	cands := make([]candidate, 0, n)
	for _, b := range bays {
		if s.bayFits(a, b) {
			cands = append(cands, candidate{
				bay: b, left: s.fullness(b.pool, b.free, b.parts, b.srv.cpuFree), cost: s.costOf(a, b), ord: b.srv.ord,
			})
		}
	}
	if len(cands) < n {
		return nil
	}
	slices.SortFunc(cands, candidate.compare)
	out := make([]*bay, n)
	for i := range out {
		out[i] = cands[i].bay
	}
	return out
}

// findWithin puts a gang into one domain of the level asked for: of those with room, the one with least to spare.
func (s *State) findWithin(a *ask, p *pool, level int) []*bay {
	for _, d := range a.roomy(p, level) {
		if bays := s.choose(a, d.bays, a.nodes); bays != nil {
			return bays
		}
	}
	return nil
}

// roomy is the domains of a level where the gang may fit, by accelerators alone, the one with least to spare first.
func (a *ask) roomy(p *pool, level int) []*domain {
	doms := make([]*domain, 0, 8)
	for _, d := range p.domains[level] {
		if d.atLeast(a.k) >= a.nodes {
			doms = append(doms, d)
		}
	}
	slices.SortFunc(doms, func(x, y *domain) int {
		return cmp.Or(cmp.Compare(x.atLeast(a.k), y.atLeast(a.k)), cmp.Compare(x.atLeast(1), y.atLeast(1)),
			strings.Compare(x.name, y.name))
	})
	return doms
}

// findNear places a gang that no one domain of the level it prefers can hold: within the closest wider domain that
// can, and there over as few domains of its level as will do.
func (s *State) findNear(a *ask, p *pool) []*bay {
	for level := a.same.index() + 1; level < levels; level++ {
		for _, d := range a.roomy(p, level) {
			if bays := s.fewest(a, d.bays); bays != nil {
				return bays
			}
		}
	}
	if len(a.only) > 0 {
		return s.fewest(a, s.named(a, p))
	}
	return s.fewest(a, p.bays)
}

// fewest spreads a gang over few domains of the level it prefers: whole ones, the largest first, and for the rest the
// smallest that will do. A server in no domain is one by itself.
func (s *State) fewest(a *ask, bays []*bay) []*bay {
	level := a.same.index()
	byName := map[string][]*bay{}
	var parts [][]*bay
	fit := 0
	for _, b := range bays {
		if !s.bayFits(a, b) {
			continue
		}
		fit++
		if name := b.domainNames()[level]; name != "" {
			byName[name] = append(byName[name], b)
		} else {
			parts = append(parts, []*bay{b})
		}
	}
	if fit < a.nodes {
		return nil
	}
	for _, name := range sortedKeys(byName) {
		parts = append(parts, byName[name])
	}
	slices.SortStableFunc(parts, func(x, y []*bay) int { return cmp.Compare(len(y), len(x)) })
	out := make([]*bay, 0, a.nodes)
	for i, part := range parts {
		left := a.nodes - len(out)
		if left > len(part) {
			out = append(out, part...)
			continue
		}
		for i+1 < len(parts) && len(parts[i+1]) >= left { // the last domain: the smallest that holds the rest
			i++
		}
		return append(out, s.choose(a, parts[i], left)...)
	}
	return nil
}

// atLeast is how many bays have k whole accelerators free.
func (d *domain) atLeast(k int) int {
	if k >= len(d.fits) {
		return 0
	}
	return d.fits[k]
}

// pick appends the accelerators of one node in a bay to out: the lowest indexes; for a slice, the one where it adds least
// fragmentation, or the fullest that has room.
func (s *State) pick(a *ask, b *bay, out []*accel) []*accel {
	if a.part > 0 {
		return append(out, s.pickPart(a, b))
	}
	full := len(out) + a.k
	for _, dev := range b.accels {
		if len(out) == full {
			break
		}
		if dev.ok && dev.used == 0 {
			out = append(out, dev)
		}
	}
	return out
}

func (s *State) pickPart(a *ask, b *bay) *accel {
	left := int64(-1) // of the accelerator to take
	if s.cfg.Placement == LeastFragmentation {
		r := room{free: b.free, cpu: b.srv.cpuFree, mem: b.srv.memFree, parts: b.parts}
		left = whole
		if slot, _ := s.bestSlot(a, b.pool, &r); slot >= 0 {
			left = b.parts[slot]
		}
	}
	var best *accel
	for _, dev := range b.accels {
		rest := whole - dev.used
		if dev.ok && rest >= a.part && (left < 0 || rest == left) && (best == nil || dev.used > best.used) {
			best = dev
		}
	}
	return best
}
