package engine

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"gpupool/schema"
)

// server is a Server with what is used of it. It outlives its removal while allocations hold it.
type server struct {
	Server
	ord     int
	present bool
	where   int     // interned whereKey
	winset  int     // interned set of windows over it
	claim   *window // with OneTenant: of the tenant whose jobs run on it; one of windows
	windows []*window
	bays    []*bay
	allocs  []*alloc // live allocations with a node here
	holds   []*hold
	cpuFree int64
	memFree int64
}

type whereKey struct {
	region, site, cluster string
	lacks                 schema.Ability
}

// accel is one device, known by its id wherever it is.
type accel struct {
	id      string
	index   int
	bay     *bay // nil when no server shows it
	ok      bool
	why     string
	stuck   string
	back    back
	used    int64 // milli
	holders []*alloc
}

func (a *accel) health(in Accelerator) {
	a.ok, a.why, a.stuck, a.back = in.Schedulable, in.WhyNot, in.Stuck, backOf(in.Back, in.BackLate, in.BackBasis)
}

// back is when something is expected to be schedulable again: the median and 9 times in 10; at 0 = nobody says.
type back struct {
	at, late int64
	basis    string
}

func backOf(at, late time.Time, basis string) back {
	return back{ns(at), max(ns(at), ns(late)), basis}
}

// until is when the last of what runs on it is expected to end.
func (a *accel) until() int64 {
	t := int64(0)
	for _, h := range a.holders {
		t = max(t, h.end)
	}
	return t
}

// bay is the accelerators of one model on one server: the unit a node of a job is placed in.
type bay struct {
	up     bool  // new jobs may come: the server is here and schedulable, and this is still its bay
	whole  bool  // and all its accelerators are schedulable
	held   bool  // in pool.held: it has holds, and is looked at by itself
	free   int   // whole accelerators free and schedulable
	soon   int64 // when the next accelerator is to be free; far when none is in use
	srv    *server
	pool   *pool
	slot   int // in pool.bays
	accels []*accel
	parts  []int64 // what is left of accelerators in part use, largest first
	ready  []int64 // when each schedulable accelerator is free, soonest first; 0 = now
	class  *class  // nil while unschedulable or held

	domains [levels]*domain // it is in; nil where its server is in none
}

// pool is every bay of one accelerator model on the servers of one cluster. A gang is placed within one pool: no
// cluster starts a job together with another.
type pool struct {
	poolKey
	family  *family
	bays    []*bay
	seen    []glimpse // of each of bays
	held    []*bay
	byFree  [][]*class // by whole accelerators free
	classes map[classKey]*class
	domains [levels]map[string]*domain
	// installed, schedulable, free, in whole accelerators
	installed, schedulable, free int
}

// glimpse is what a look over all bays of a pool reads of each, to look closer only where that may help: the bays
// themselves lie all over memory.
type glimpse struct {
	free  int
	soon  int64
	whole bool
}

// full says that a bay lacks nothing but k free accelerators.
func (g *glimpse) full(k int) bool { return g.whole && g.free < k }

type poolKey struct{ model, cluster string }

func (k poolKey) compare(o poolKey) int {
	return cmp.Or(strings.Compare(k.model, o.model), strings.Compare(k.cluster, o.cluster))
}

// levels counts the levels a pool is indexed by: nvlink, rack, site, region.
const levels = 4

func (l Level) index() int {
	return slices.Index([]Level{LevelNVLink, LevelRack, LevelSite, LevelRegion}, l)
}

// domain is the bays of one pool within one NVLink domain, rack, site or region.
type domain struct {
	name string
	bays []*bay
	fits []int // bays with at least so many free, an upper bound: holds, CPU and windows are looked at later
}

// classKey is everything that decides whether and how well a node fits a bay that nothing is held on.
type classKey struct {
	size, free    int
	cpu, mem      int64
	where, winset int
	parts         string
}

// class is the bays of a pool that are in the same state. Its members are a heap of ordinals with lazy deletion.
type class struct {
	key   classKey
	parts []int64
	n     int
	heap  []int32
	slot  int // its place in pool.byFree[key.free]
	frag  fragMemo
}

// SetServer adds a server or replaces what is known of it.
func (s *State) SetServer(in Server) {
	s.dirty = true
	s.oneTenant = s.oneTenant || in.OneTenant
	srv := s.servers[in.ID]
	if srv == nil {
		srv = s.addServer(in.ID)
	}
	if srv.CPU != in.CPU || srv.MemoryBytes != in.MemoryBytes {
		s.version++
	}
	if srv.present && srv.sameShape(in) && s.shows(srv) {
		// Only health changed: by far the most frequent change.
		srv.Schedulable, srv.WhyNot, srv.Stuck = in.Schedulable, in.WhyNot, in.Stuck
		srv.Back, srv.BackLate, srv.BackBasis = in.Back, in.BackLate, in.BackBasis
		srv.CPU, srv.MemoryBytes, srv.OneTenant = in.CPU, in.MemoryBytes, in.OneTenant
		for _, a := range in.Accelerators {
			s.accels[a.ID].health(a)
		}
		s.refresh(srv)
		return
	}
	s.version++
	s.unplug(srv)
	srv.Server, srv.present = in, true
	srv.where = s.wheres.id(whereKey{in.Region, in.Site, in.Cluster, in.Lacks})
	byModel := map[string]*bay{}
	for _, a := range in.Accelerators {
		dev := s.accel(a.ID)
		switch {
		case dev.bay == nil:
		case dev.bay.srv == srv:
			continue // listed twice
		default:
			s.pull(dev)
		}
		b := byModel[a.Model]
		if b == nil {
			b = &bay{srv: srv, pool: s.pool(poolKey{a.Model, in.Cluster})}
			byModel[a.Model] = b
			srv.bays = append(srv.bays, b)
		}
		dev.bay, dev.index = b, a.Index
		dev.health(a)
		b.accels = append(b.accels, dev)
	}
	for _, b := range srv.bays {
		slices.SortFunc(b.accels, func(x, y *accel) int {
			return cmp.Or(cmp.Compare(x.index, y.index), strings.Compare(x.id, y.id))
		})
		b.pool.plug(b)
	}
	s.refresh(srv)
}

// sameShape says that nothing but health, CPU and memory differ.
func (srv *server) sameShape(in Server) bool {
	return srv.Region == in.Region && srv.Site == in.Site && srv.Rack == in.Rack &&
		srv.NVLinkDomain == in.NVLinkDomain && srv.Cluster == in.Cluster && srv.Lacks == in.Lacks &&
		slices.EqualFunc(srv.Accelerators, in.Accelerators, func(a, b Accelerator) bool {
			return a.ID == b.ID && a.Model == b.Model && a.Index == b.Index
		})
}

// shows says that no accelerator of the server is shown by another one now.
func (s *State) shows(srv *server) bool {
	return !slices.ContainsFunc(srv.Accelerators, func(a Accelerator) bool {
		dev := s.accels[a.ID]
		return dev == nil || dev.bay == nil || dev.bay.srv != srv
	})
}

// RemoveServer takes a server out of the pool. What runs on it still counts until it is released.
func (s *State) RemoveServer(id string) {
	srv := s.servers[id]
	if srv == nil {
		return
	}
	s.changed()
	s.unplug(srv)
	srv.present = false
	s.forget(srv)
}

func (s *State) addServer(id string) *server {
	srv := &server{Server: Server{ID: id}}
	if n := len(s.free); n > 0 {
		srv.ord, s.free = s.free[n-1], s.free[:n-1]
		s.ords[srv.ord] = srv
	} else {
		srv.ord = len(s.ords)
		s.ords = append(s.ords, srv)
	}
	s.servers[id] = srv
	for _, w := range s.windows {
		if slices.Contains(w.Servers, id) {
			srv.windows = append(srv.windows, w)
		}
	}
	s.rewindow(srv)
	return srv
}

// forget drops a server that is neither present nor in use.
func (s *State) forget(srv *server) {
	if !srv.present && len(srv.allocs) == 0 && len(srv.holds) == 0 {
		delete(s.servers, srv.ID)
		s.ords[srv.ord] = nil
		s.free = append(s.free, srv.ord)
	}
}

func (s *State) accel(id string) *accel {
	a := s.accels[id]
	if a == nil {
		a = &accel{id: id}
		s.accels[id] = a
	}
	return a
}

func (s *State) pool(key poolKey) *pool {
	p := s.pools[key]
	if p == nil {
		p = &pool{poolKey: key, classes: map[classKey]*class{}}
		for l := range p.domains {
			p.domains[l] = map[string]*domain{}
		}
		s.pools[key] = p
		s.families = nil
	}
	return p
}

// unplug takes a server's bays out of their pools.
func (s *State) unplug(srv *server) {
	for _, b := range srv.bays {
		b.leave()
		b.pool.count(b, -1)
		b.pool.unplug(b)
		b.up, b.whole, b.free, b.ready = false, false, 0, nil // a plan may still know it
		for _, a := range b.accels {
			a.bay = nil
			if len(a.holders) == 0 {
				delete(s.accels, a.id)
			}
		}
	}
	srv.bays = nil
}

// pull takes one accelerator off the server that showed it, because another one shows it now.
func (s *State) pull(dev *accel) {
	b := dev.bay
	b.leave()
	b.pool.count(b, -1)
	b.accels = slices.DeleteFunc(b.accels, func(a *accel) bool { return a == dev })
	b.pool.count(b, +1)
	dev.bay = nil
	s.refresh(b.srv)
}

func (b *bay) domainNames() [levels]string {
	srv := b.srv
	return [levels]string{srv.NVLinkDomain, srv.Rack, srv.Site, srv.Region}
}

func (p *pool) plug(b *bay) {
	b.slot = len(p.bays)
	p.bays, p.seen = append(p.bays, b), append(p.seen, glimpse{})
	for l, name := range b.domainNames() {
		if name == "" {
			continue
		}
		d := p.domains[l][name]
		if d == nil {
			d = &domain{name: name}
			p.domains[l][name] = d
		}
		d.bays = append(d.bays, b)
		b.domains[l] = d
	}
	b.free = 0
	p.count(b, +1)
}

func (p *pool) unplug(b *bay) {
	p.bays, p.seen = slices.Delete(p.bays, b.slot, b.slot+1), slices.Delete(p.seen, b.slot, b.slot+1)
	for i, o := range p.bays[b.slot:] {
		o.slot = b.slot + i
	}
	for l, d := range b.domains {
		if d == nil {
			continue
		}
		d.bays = slices.DeleteFunc(d.bays, func(o *bay) bool { return o == b })
		if len(d.bays) == 0 {
			delete(p.domains[l], d.name)
		}
		b.domains[l] = nil
	}
}

// count adds what a bay contributes to the pool's sums, or takes it off.
func (p *pool) count(b *bay, sign int) {
	p.installed += sign * len(b.accels)
	p.schedulable += sign * len(b.ready)
	p.free += sign * b.free
	for _, d := range b.domains {
		if d == nil {
			continue
		}
		for len(d.fits) <= b.free {
			d.fits = append(d.fits, 0)
		}
		for f := range b.free + 1 {
			d.fits[f] += sign
		}
	}
}

// refresh recomputes what a change on a server touches: its bays' free counts and the classes they are in.
func (s *State) refresh(srv *server) {
	s.dirty = true
	srv.cpuFree, srv.memFree = srv.CPU, srv.MemoryBytes
	for _, a := range srv.allocs {
		srv.cpuFree -= a.cpu
		srv.memFree -= a.mem
	}
	s.reclaim(srv)
	for _, b := range srv.bays {
		b.leave()
		b.pool.count(b, -1)
		b.measure()
		b.pool.count(b, +1)
		b.pool.seen[b.slot] = glimpse{b.free, b.soon, b.whole}
		b.enter(s)
	}
}

// measure reads the accelerators of a bay.
func (b *bay) measure() {
	b.up, b.whole = b.srv.present && b.srv.Schedulable, false
	b.free, b.soon, b.parts, b.ready = 0, far, b.parts[:0], b.ready[:0]
	if !b.up {
		return
	}
	for _, a := range b.accels {
		if !a.ok {
			continue
		}
		switch {
		case a.used == 0:
			b.free++
		case a.used < whole:
			b.parts = append(b.parts, whole-a.used)
		}
		t := a.until()
		if t > 0 {
			b.soon = min(b.soon, t)
		}
		b.ready = append(b.ready, t)
	}
	b.whole = len(b.ready) == len(b.accels)
	slices.Sort(b.ready)
	slices.SortFunc(b.parts, func(x, y int64) int { return cmp.Compare(y, x) })
}

// enter puts a bay among those a job may be placed in.
func (b *bay) enter(s *State) {
	if len(b.ready) == 0 {
		return
	}
	p := b.pool
	if len(b.srv.holds) > 0 {
		b.held = true
		p.held = append(p.held, b)
		return
	}
	key := classKey{
		size: len(b.ready), free: b.free, cpu: b.srv.cpuFree, mem: b.srv.memFree,
		where: b.srv.where, winset: b.srv.winset, parts: packParts(b.parts),
	}
	c := p.classes[key]
	if c == nil {
		c = &class{key: key, parts: slices.Clone(b.parts)}
		p.classes[key] = c
		for len(p.byFree) <= key.free {
			p.byFree = append(p.byFree, nil)
		}
		c.slot = len(p.byFree[key.free])
		p.byFree[key.free] = append(p.byFree[key.free], c)
	}
	b.class = c
	c.n++
	c.push(int32(b.srv.ord))
	if len(c.heap) > 2*c.n+64 {
		c.compact(s)
	}
}

// leave takes it out again.
func (b *bay) leave() {
	if b.held {
		b.held = false
		i := slices.Index(b.pool.held, b)
		b.pool.held = slices.Delete(b.pool.held, i, i+1)
	}
	c := b.class
	if c == nil {
		return
	}
	b.class = nil
	c.n--
	if c.n == 0 {
		p := b.pool
		delete(p.classes, c.key)
		row := p.byFree[c.key.free]
		last := row[len(row)-1]
		row[c.slot], last.slot = last, c.slot
		row[len(row)-1] = nil
		p.byFree[c.key.free] = row[:len(row)-1]
	}
}

func packParts(parts []int64) string {
	if len(parts) == 0 {
		return ""
	}
	packed := make([]byte, 0, 2*len(parts))
	for _, p := range parts {
		packed = append(packed, byte(p>>8), byte(p))
	}
	return string(packed)
}

func (c *class) push(ord int32) {
	c.heap = append(c.heap, ord)
	for i := len(c.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if c.heap[up] <= c.heap[i] {
			return
		}
		c.heap[up], c.heap[i] = c.heap[i], c.heap[up]
		i = up
	}
}

func (c *class) pop() int32 {
	top, last := c.heap[0], len(c.heap)-1
	c.heap[0] = c.heap[last]
	c.heap = c.heap[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			return top
		}
		if child+1 < last && c.heap[child+1] < c.heap[child] {
			child++
		}
		if c.heap[i] <= c.heap[child] {
			return top
		}
		c.heap[i], c.heap[child] = c.heap[child], c.heap[i]
		i = child
	}
}

// member is the bay an ordinal of the heap stands for, nil when it has left the class since.
func (c *class) member(s *State, ord int32) *bay {
	srv := s.ords[ord]
	if srv == nil {
		return nil
	}
	for _, b := range srv.bays {
		if b.class == c {
			return b
		}
	}
	return nil
}

// first is the member with the lowest ordinal.
func (c *class) first(s *State) *bay {
	for {
		if b := c.member(s, c.heap[0]); b != nil {
			return b
		}
		c.pop()
	}
}

// take is the n members with the lowest ordinals.
func (c *class) take(s *State, n int) []*bay {
	if n == 1 {
		return []*bay{c.first(s)}
	}
	out := make([]*bay, 0, n)
	last := int32(-1)
	for len(out) < n {
		ord := c.pop()
		if b := c.member(s, ord); b != nil && ord != last {
			out = append(out, b)
			last = ord
		}
	}
	for _, b := range out {
		c.push(int32(b.srv.ord))
	}
	return out
}

// compact drops ordinals of bays that have left.
func (c *class) compact(s *State) {
	slices.Sort(c.heap)
	kept := slices.Compact(c.heap)
	c.heap = slices.DeleteFunc(kept, func(ord int32) bool { return c.member(s, ord) == nil })
}
