package engine

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"
)

// far is the moment that never comes.
const far = int64(math.MaxInt64)

// whole is one accelerator in the unit amounts are counted in: thousandths.
const whole = int64(1000)

// State is the pool, the queue and the accounts of one region, kept current by small changes. One goroutine owns it.
type State struct {
	cfg       Config
	cycle     int64
	now       int64 // of the last cycle, Unix nanoseconds
	dirty     bool  // a fact changed since the last cycle
	reverting bool  // a job comes back that was seen before
	version   int64 // of the inventory: what could ever fit depends on it

	servers   map[string]*server
	ords      []*server
	free      []int // ordinals of servers that left
	accels    map[string]*accel
	pools     map[poolKey]*pool
	wheres    interner[whereKey]
	winsets   interner[string]
	sets      [][]*window // by id in winsets
	windows   map[string]*window
	oneTenant bool // there has been a server that does not keep jobs apart: whether a job fits depends on whose it is
	stops     map[string]*Stop
	specs     map[string]*spec
	families  []*family

	installed struct { // accelerators by model, as of a version
		of      map[string]int
		version int64
	}

	accounts map[accountKey]*account
	budgets  map[string]*budget
	guarded  map[string]int // models where a guarantee is set, by how many quotas

	jobs      map[string]*job
	shapes    map[shapeKey]*shape
	groups    map[groupKey]*group
	requests  map[requestKey]*request
	unasked   int // requests that no shape makes now
	arrays    map[string]*array
	ring      []*job // every waiting job, for refreshing numbers in turn
	cursor    int
	renewedAt int64               // when the last cycle refreshed numbers
	allocs    map[string][]*alloc // live, by job
	waiters   map[string][]*job   // jobs by the job they depend on
	ended     map[string]string   // terminal states of jobs that others depend on

	plans  []*plan                    // planned starts and claims, in the order of their jobs' turns
	walks  int64                      // walks through the queue so far
	turns  int64                      // turns taken in them
	pairs  map[string]map[string]bool // victims a job has had, each at most once
	ending map[string][]*alloc        // live allocations told to end, by the job they end for
	timers timers
	learn  learned
	stats  cycleStats
}

// New is an empty pool under a policy.
func New(cfg Config) *State {
	return &State{
		cfg:      cfg.withDefaults(),
		dirty:    true,
		servers:  map[string]*server{},
		accels:   map[string]*accel{},
		pools:    map[poolKey]*pool{},
		windows:  map[string]*window{},
		stops:    map[string]*Stop{},
		specs:    map[string]*spec{},
		accounts: map[accountKey]*account{},
		budgets:  map[string]*budget{},
		guarded:  map[string]int{},
		jobs:     map[string]*job{},
		shapes:   map[shapeKey]*shape{},
		groups:   map[groupKey]*group{},
		requests: map[requestKey]*request{},
		arrays:   map[string]*array{},
		allocs:   map[string][]*alloc{},
		waiters:  map[string][]*job{},
		ended:    map[string]string{},
		pairs:    map[string]map[string]bool{},
		ending:   map[string][]*alloc{},
		stats: cycleStats{
			running: map[string][]running{},
		},
	}
}

// spec is a Spec and the pools it can be served from.
type spec struct {
	Spec
	known  bool // false for a name only jobs or allocations mention
	k      int
	milli  int64 // of one node
	family *family
	pools  []*pool
	seen   float64 // nodes asked for so far: the task mix fragmentation is measured against
}

// slice says that a node takes only a part of one accelerator.
func (p *spec) slice() bool { return p.k == 1 && p.milli < whole }

// family is the pools whose accelerators are asked for interchangeably, so that their jobs wait for one another.
type family struct {
	perCore float64 // thousandths of an accelerator to a unit of CPU, over what is installed
	mix     []task
	mixed   int     // version of the mix
	mixSeen float64 // nodes seen when it was taken
	pools   []*pool
	specs   []*spec
	walked  walked
	line    line    // as of the last cycle
	given   decayed // accelerators given out by starts
	basis   string  // of the estimates of its queued jobs, as of cycle basisOf
	basisOf int64
}

// walked is what a walk through the queue has met of a family so far.
type walked struct {
	walk     int64
	reserved int  // jobs with a planned start
	blocked  bool // a job was blocked
	first    bool // the job at hand is the first that was
}

// in is the family's part of a walk.
func (f *family) in(walk int64) *walked {
	if f.walked.walk != walk {
		f.walked = walked{walk: walk}
	}
	return &f.walked
}

// SetSpec adds or changes a spec.
func (s *State) SetSpec(in Spec) {
	p := s.spec(in.Name)
	if p.known && p.same(in) {
		return
	}
	in.OtherModels = slices.Clone(in.OtherModels)
	p.Spec, p.known = in, true
	p.k, p.milli = in.Accelerators, int64(in.Accelerators)*whole
	if in.Accelerators == 1 && in.Milli > 0 && in.Milli < whole {
		p.milli = in.Milli
	}
	s.families = nil
	s.changed()
}

func (p *spec) same(in Spec) bool {
	return p.Model == in.Model && slices.Equal(p.OtherModels, in.OtherModels) && p.Accelerators == in.Accelerators &&
		p.Milli == in.Milli && p.CPU == in.CPU && p.MemoryBytes == in.MemoryBytes && p.MaxTime == in.MaxTime &&
		p.RetiredAt.Equal(in.RetiredAt)
}

// RemoveSpec forgets a spec. Jobs that ask for it wait as SPEC_UNAVAILABLE; what runs goes on.
func (s *State) RemoveSpec(name string) {
	if p := s.specs[name]; p != nil {
		p.known = false
		s.families = nil
		s.changed()
	}
}

func (s *State) spec(name string) *spec {
	p := s.specs[name]
	if p == nil {
		p = &spec{Spec: Spec{Name: name}}
		s.specs[name] = p
		s.families = nil
	}
	return p
}

// changed notes that what could ever fit may be different now.
func (s *State) changed() {
	s.dirty = true
	s.version++
}

// group pools into families: two pools are of one when some spec accepts both.
func (s *State) regroup() {
	if s.families != nil {
		return
	}
	keys := slices.SortedFunc(maps.Keys(s.pools), poolKey.compare)
	parent := map[*pool]*pool{}
	var find func(p *pool) *pool
	find = func(p *pool) *pool {
		if parent[p] == nil || parent[p] == p {
			return p
		}
		parent[p] = find(parent[p])
		return parent[p]
	}
	for _, name := range sortedKeys(s.specs) {
		p := s.specs[name]
		p.pools = p.pools[:0]
		p.family = nil
		for _, key := range keys {
			if p.known && (p.Model == "" || p.Model == key.model || slices.Contains(p.OtherModels, key.model)) {
				p.pools = append(p.pools, s.pools[key])
			}
		}
		for _, other := range p.pools {
			parent[find(other)] = find(p.pools[0])
		}
	}
	byRoot := map[*pool]*family{}
	before := map[*family]bool{}
	s.families = []*family{}
	for _, key := range keys {
		root := find(s.pools[key])
		f := byRoot[root]
		if f == nil {
			f = &family{}
			byRoot[root] = f
			s.families = append(s.families, f)
		}
		f.pools = append(f.pools, s.pools[key])
		if old := s.pools[key].family; old != nil && !before[old] {
			before[old] = true
			f.given.merge(&old.given, s.now, rateHalfLife)
		}
		s.pools[key].family = f
	}
	for _, f := range s.families {
		accelerators, cpu := 0, 0.0
		for _, p := range f.pools {
			accelerators += p.installed
			for _, b := range p.bays {
				cpu += float64(b.srv.CPU)
			}
		}
		if cpu > 0 {
			f.perCore = float64(accelerators) * float64(whole) / cpu
		}
	}
	for _, name := range sortedKeys(s.specs) {
		if p := s.specs[name]; len(p.pools) > 0 {
			p.family = p.pools[0].family
			p.family.specs = append(p.family.specs, p)
		}
	}
	s.relane()
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// interner gives equal keys one small number, so that they compare as fast as integers. 0 is the zero key.
type interner[K comparable] struct {
	ids  map[K]int
	keys []K
}

func (in *interner[K]) id(k K) int {
	if in.ids == nil {
		var zero K
		in.ids, in.keys = map[K]int{zero: 0}, []K{zero}
	}
	id, ok := in.ids[k]
	if !ok {
		id = len(in.keys)
		in.ids[k] = id
		in.keys = append(in.keys, k)
	}
	return id
}

// ns is a moment as the engine counts it; 0 is none. What is past the end of that clock, in 2262, never comes.
func ns(t time.Time) int64 {
	switch {
	case t.IsZero():
		return 0
	case t.Year() >= 2262:
		return far
	case t.Year() < 1970:
		return 1
	}
	return t.UnixNano()
}

func at(t int64) time.Time {
	if t == 0 || t == far {
		return time.Time{}
	}
	return time.Unix(0, t).UTC()
}

// plus adds a duration without running past far.
func plus(t int64, d time.Duration) int64 {
	if d <= 0 {
		return t
	}
	if t > far-int64(d) {
		return far
	}
	return t + int64(d)
}

// gpus shows an amount in accelerators.
func gpus(milli int64) float64 { return float64(milli) / float64(whole) }

// some is an amount in words: "1 accelerator", "2.5 accelerators".
func some(milli int64) string {
	if milli == whole {
		return "1 accelerator"
	}
	return amount(milli) + " accelerators"
}

// amount is gpus in a text: all its digits, and never an exponent.
func amount(milli int64) string { return strconv.FormatFloat(gpus(milli), 'f', -1, 64) }
