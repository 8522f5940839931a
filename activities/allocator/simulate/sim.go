package simulate

import (
	"cmp"
	"container/heap"
	"fmt"
	"slices"
	"time"

	"gpupool/activities/allocator/engine"
)

// Policy is the engine's policy and what goes with it.
type Policy struct {
	Name     string
	Config   engine.Config
	Quotas   []engine.Quota
	Accounts []engine.Account
	Budgets  []engine.Budget
	Windows  []engine.Window
	// Preemptible takes every job of the trace for preemptible: where there are guarantees, others run only inside theirs.
	Preemptible bool
}

// tell gives a pool everything of the policy but its Config.
func (p *Policy) tell(s *engine.State, began time.Time) {
	for _, q := range p.Quotas {
		s.SetQuota(q)
	}
	for _, a := range p.Accounts {
		s.SetAccount(a)
	}
	for _, b := range p.Budgets {
		b.At = began
		s.SetBudget(b)
	}
	for _, w := range p.Windows {
		s.SetWindow(w)
	}
}

// Progress is called from time to time with how far a replay is: jobs over, of all, and the virtual time.
type Progress func(done, all int, now time.Time)

// finish is an attempt's end on the virtual clock.
type finish struct {
	at      time.Time
	n       int // so that equal moments keep their order
	job     int
	attempt int
}

type finishes []finish

func (h finishes) Len() int { return len(h) }
func (h finishes) Less(i, j int) bool {
	if c := h[i].at.Compare(h[j].at); c != 0 {
		return c < 0
	}
	return h[i].n < h[j].n
}
func (h finishes) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *finishes) Push(x any)   { *h = append(*h, x.(finish)) }
func (h *finishes) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

// run is a replay under way.
type run struct {
	pool  *engine.State
	jobs  []Job
	byID  map[string]int
	state []jobState
	ends  finishes
	n     int
	now   time.Time
	out   *Report
	specs map[string]engine.Spec
	busy  int64 // thousandths of an accelerator
	queue int64 // thousandths of an accelerator that wait

	preemptible bool // every job is
}

type jobState struct {
	attempt int
	started time.Time
	running bool
	waited  time.Duration // until the first start
	stops   time.Time     // told to end by
	over    bool
}

// Replay runs a trace on a pool under a policy until every job is over or can never start.
func Replay(tr *Trace, pool *Pool, policy Policy, progress Progress) (*Report, error) {
	r, err := replay(tr, pool, policy, progress)
	if err != nil {
		return nil, err
	}
	r.out.finish(r)
	return r.out, nil
}

func replay(tr *Trace, pool *Pool, policy Policy, progress Progress) (*run, error) {
	if err := policy.check(pool); err != nil {
		return nil, err
	}
	cfg := policy.Config
	cfg.Quiet = true
	r := &run{
		pool: engine.New(cfg), jobs: tr.Jobs, byID: make(map[string]int, len(tr.Jobs)), state: make([]jobState, len(tr.Jobs)),
		specs: map[string]engine.Spec{}, out: newReport(policy.Name, pool.Accelerators(), len(tr.Jobs)),
		preemptible: policy.Preemptible,
	}
	for _, s := range pool.Servers {
		r.pool.SetServer(s)
	}
	for _, sp := range tr.Specs {
		r.pool.SetSpec(sp)
		r.specs[sp.Name] = sp
	}
	began := origin
	if len(tr.Jobs) > 0 {
		began = tr.Jobs[0].Submitted
	}
	policy.tell(r.pool, began)
	for i, j := range tr.Jobs {
		if _, ok := r.byID[j.ID]; ok {
			return nil, fmt.Errorf("job id %q appears twice in the trace: want one line per job", j.ID)
		}
		r.byID[j.ID] = i
	}
	return r, r.loop(progress)
}

// idleWakes is how many moments in a row may let nothing start, once nothing runs and nothing more is submitted: a
// budget opens every month for ever.
const idleWakes = 64

// loop goes from moment to moment: ends first, then submits, then one cycle. Time counts up to the last moment at
// which something happened.
func (r *run) loop(progress Progress) error {
	next, done, idle := 0, 0, 0
	wake, counted := time.Time{}, time.Time{}
	for {
		at, ok := r.nextMoment(next, wake)
		if !ok {
			break
		}
		busy, queue := r.busy, r.queue
		happened := next < len(r.jobs) && !r.jobs[next].Submitted.After(at) || len(r.ends) > 0 && !r.ends[0].at.After(at)
		r.now = at
		for len(r.ends) > 0 && !r.ends[0].at.After(at) {
			done += r.end(heap.Pop(&r.ends).(finish))
		}
		for next < len(r.jobs) && !r.jobs[next].Submitted.After(at) {
			r.submit(next)
			next++
		}
		res := r.pool.Cycle(at)
		for _, s := range res.Starts {
			r.start(s)
		}
		for _, v := range res.Victims {
			r.stop(v)
		}
		for _, e := range res.Expired {
			i := r.byID[e.Job]
			r.queue -= r.milli(i)
			r.state[i].over = true
			r.out.Expired++
			done++
		}
		if happened || len(res.Starts)+len(res.Expired) > 0 {
			r.out.pass(counted, at, busy, queue)
			counted = at
		}
		r.out.Decisions += res.Decisions
		r.out.Cycles++
		wake = res.NextWake
		if progress != nil && r.out.Cycles%4096 == 0 {
			progress(done, len(r.jobs), at)
		}
		if next == len(r.jobs) && len(r.ends) == 0 && len(res.Starts) == 0 {
			// Nothing runs and nothing will be submitted: time alone may still let something start.
			if idle++; wake.IsZero() || idle > idleWakes {
				break
			}
		} else {
			idle = 0
		}
	}
	if progress != nil {
		progress(done, len(r.jobs), r.now)
	}
	return r.pool.Check()
}

// nextMoment is the earliest of the next end, submit and wake-up that lies ahead.
func (r *run) nextMoment(next int, wake time.Time) (time.Time, bool) {
	var at time.Time
	take := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	if len(r.ends) > 0 {
		take(r.ends[0].at)
	}
	if next < len(r.jobs) {
		take(r.jobs[next].Submitted)
	}
	if wake.After(r.now) {
		take(wake)
	}
	return at, !at.IsZero()
}

// milli is what a job holds while it runs, in thousandths of an accelerator.
func (r *run) milli(i int) int64 {
	sp := r.specs[r.jobs[i].Spec]
	each := int64(sp.Accelerators) * 1000
	if sp.Accelerators == 1 && sp.Milli > 0 {
		each = sp.Milli
	}
	return each * int64(max(r.jobs[i].Nodes, 1))
}

func (r *run) submit(i int) {
	r.queue += r.milli(i)
	r.state[i].attempt = 1
	r.pool.SetJob(r.job(i))
}

// job is what is submitted for a line of the trace.
func (r *run) job(i int) engine.Job {
	j := r.jobs[i].Job
	j.Preemptible = j.Preemptible || r.preemptible
	return j
}

func (r *run) start(s engine.Start) {
	i := r.byID[s.Job]
	st := &r.state[i]
	if s.Attempt == 1 {
		st.waited = r.now.Sub(r.jobs[i].Submitted)
		r.out.wait(r.jobs[i], r.label(i), st.waited)
	}
	st.running, st.started, st.attempt = true, r.now, s.Attempt
	r.queue -= r.milli(i)
	r.busy += r.milli(i)
	r.out.Starts++
	if s.Backfilled {
		r.out.Backfilled++
	}
	run := r.jobs[i].Run
	if limit := r.jobs[i].TimeLimit; limit > 0 {
		run = min(run, limit)
	}
	r.n++
	heap.Push(&r.ends, finish{r.now.Add(run), r.n, i, s.Attempt})
}

// stop has a victim end when its grace is over. It starts again from the beginning.
func (r *run) stop(v engine.Victim) {
	i := r.byID[v.Job]
	r.state[i].stops = v.GraceUntil
	r.out.Preemptions++
	r.out.LostGPUHours += v.LostWork.Hours()
	r.n++
	heap.Push(&r.ends, finish{v.GraceUntil, r.n, i, v.Attempt})
}

// end closes an attempt and says how many jobs are over by it.
func (r *run) end(f finish) int {
	st := &r.state[f.job]
	if !st.running || st.attempt != f.attempt {
		return 0 // it was preempted, or ended before its grace was over
	}
	j := r.jobs[f.job]
	st.running = false
	r.busy -= r.milli(f.job)
	r.out.charge(j, r.milli(f.job), st.started, r.now)
	r.pool.Release(j.ID, f.attempt, r.now)
	if !st.stops.IsZero() && r.now.Sub(st.started) < j.Run {
		st.stops = time.Time{}
		again := r.job(f.job)
		again.Attempt = f.attempt + 1
		r.queue += r.milli(f.job)
		r.pool.SetJob(again)
		return 0
	}
	st.over = true
	r.out.Completed++
	r.pool.Ended(j.ID, "completed")
	return 1
}

// label groups jobs in the report: by spec, and by nodes where a spec is one accelerator of many.
func (r *run) label(i int) string {
	j := r.jobs[i]
	if j.Nodes > 1 || r.specs[j.Spec].Name == "gpu" {
		return fmt.Sprintf("%s x %d", j.Spec, max(j.Nodes, 1))
	}
	return j.Spec
}

// Fill submits tasks drawn from a trace, in a random order and again when they run out, that never end, until they
// ask for share of the pool's accelerators. One that does not fit at its turn is turned away, as in the experiments
// of FGD (Weng et al., USENIX ATC 2023). seed makes the order; the same seed gives the same result.
func Fill(tr *Trace, pool *Pool, policy Policy, share float64, seed uint64) (*Report, error) {
	cfg := policy.Config
	cfg.Quiet, cfg.Reservations, cfg.NoPreemption = true, -1, true
	out := newReport(policy.Name, pool.Accelerators(), 0)
	s := engine.New(cfg)
	for _, srv := range pool.Servers {
		s.SetServer(srv)
	}
	specs, weights := map[string]engine.Spec{}, map[string]float64{}
	for _, sp := range tr.Specs {
		s.SetSpec(sp)
		specs[sp.Name] = sp
	}
	for _, j := range tr.Jobs {
		weights[j.Spec]++
	}
	s.SetMix(weights)
	r := &run{specs: specs, jobs: slices.Clone(tr.Jobs)}
	goal := int64(share * float64(pool.Accelerators()) * 1000)
	rng := newRandom(seed)
	now := origin
	order := rng.permutation(len(r.jobs))
	for n := 0; out.asked < goal; n++ {
		i := order[n%len(order)]
		if n >= len(order) {
			i = rng.below(len(order)) // beyond the trace itself: drawn with replacement
		}
		j := r.jobs[i].Job
		j.ID, j.Seq, j.Submitted, j.TimeLimit = fmt.Sprintf("%s#%d", j.ID, n), int64(n), now, 0
		out.asked += r.milli(i)
		s.SetJob(j)
		res := s.Cycle(now)
		out.Decisions += res.Decisions
		out.Cycles++
		if len(res.Starts) == 0 {
			s.RemoveJob(j.ID)
			out.TurnedAway++
			continue
		}
		out.Starts++
		r.busy += r.milli(i)
	}
	if err := s.Check(); err != nil {
		return nil, err
	}
	out.Jobs = out.Starts + out.TurnedAway
	out.AllocatedShare = float64(r.busy) / 1000 / float64(pool.Accelerators())
	out.Fragmentation = s.Fragmentation() / float64(pool.Accelerators())
	return out, nil
}

// random is SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): small, and the same everywhere.
type random struct{ state uint64 }

func newRandom(seed uint64) *random { return &random{seed} }

func (r *random) next() uint64 {
	r.state += 0x9e3779b97f4a7c15
	z := r.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (r *random) below(n int) int { return int(r.next() % uint64(n)) }

func (r *random) permutation(n int) []int {
	p := make([]int, n)
	for i := range p {
		p[i] = i
	}
	for i := n - 1; i > 0; i-- {
		k := r.below(i + 1)
		p[i], p[k] = p[k], p[i]
	}
	return p
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
