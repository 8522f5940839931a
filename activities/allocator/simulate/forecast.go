package simulate

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Growths are the multiples of a trace's demand that a forecast tries, in order.
var Growths = []float64{1, 1.1, 1.2, 1.3, 1.5, 1.75, 2, 2.5, 3, 4, 6, 8}

// Outgrown says by which growth of the whole demand a spec's jobs wait longer than they may.
type Outgrown struct {
	Spec   string  `json:"spec"`
	Jobs   int     `json:"jobs"`           // in the trace
	Now    float64 `json:"wait_p90_now"`   // seconds, with the demand as it was
	Growth float64 `json:"growth"`         // the first of Growths at which the wait is too long; 0 = with none of them
	Then   float64 `json:"wait_p90_then"`  // seconds, at Growth; at the last of Growths where that is 0
	Never  int     `json:"never_starting"` // jobs that never start on this pool, whatever the demand
}

// ErrNoHistory says that a trace has no jobs.
var ErrNoHistory = errors.New("the trace has no jobs: nothing to forecast from")

// Forecast replays a trace with ever more demand, until the p90 of each spec's waits is over limit. Demand grows evenly:
// each job comes so many times, its copies up to three hours before or after it. seed makes who comes once more where
// the growth is no whole number, and when; the same seed gives the same answer.
func Forecast(tr *Trace, pool *Pool, policy Policy, limit time.Duration, seed uint64, progress func(growth float64)) ([]Outgrown, error) {
	if len(tr.Jobs) == 0 {
		return nil, ErrNoHistory
	}
	at := map[string]*Outgrown{}
	for _, j := range tr.Jobs {
		if at[j.Spec] == nil {
			at[j.Spec] = &Outgrown{Spec: j.Spec}
		}
		at[j.Spec].Jobs++
	}
	for _, growth := range Growths {
		if progress != nil {
			progress(growth)
		}
		waits, unstarted, err := grown(tr, pool, policy, growth, seed)
		if err != nil {
			return nil, err
		}
		open := false
		for spec, o := range at {
			if o.Growth > 0 {
				continue
			}
			slices.Sort(waits[spec])
			p90 := quantile(waits[spec], 0.9)
			if growth == 1 {
				o.Now, o.Never = p90, unstarted[spec]
			}
			o.Then = p90
			if p90 > limit.Seconds() {
				o.Growth = growth
			}
			open = open || o.Growth == 0
		}
		if !open {
			break
		}
	}
	var out []Outgrown
	for _, spec := range sortedKeys(at) {
		out = append(out, *at[spec])
	}
	return out, nil
}

// grown is each spec's waits, and how many of its jobs never start, with demand times growth.
func grown(tr *Trace, pool *Pool, policy Policy, growth float64, seed uint64) (map[string][]time.Duration, map[string]int, error) {
	g, err := Grow(tr, growth, seed)
	if err != nil {
		return nil, nil, err
	}
	r, err := replay(g, pool, policy, nil)
	if err != nil {
		return nil, nil, err
	}
	waits, unstarted := map[string][]time.Duration{}, map[string]int{}
	for i, j := range r.jobs {
		switch st := &r.state[i]; {
		case st.started.IsZero():
			unstarted[j.Spec]++
		default:
			waits[j.Spec] = append(waits[j.Spec], st.waited)
		}
	}
	return waits, unstarted, nil
}

// apart is how far a copy of a job is from it at most.
const apart = 3 * time.Hour

// Grow is a trace with times demand of another, from 1 on.
func Grow(tr *Trace, times float64, seed uint64) (*Trace, error) {
	if !(times >= 1 && times <= 1000) {
		return nil, fmt.Errorf("%w: growth=%g: want 1 to 1000", ErrOptions, times)
	}
	out := &Trace{Format: tr.Format, Specs: tr.Specs, Jobs: slices.Clone(tr.Jobs)}
	if len(tr.Jobs) == 0 {
		return out, nil
	}
	first, last := tr.Jobs[0].Submitted, tr.Jobs[len(tr.Jobs)-1].Submitted
	rng := newRandom(seed)
	for _, j := range tr.Jobs {
		more := int(times) - 1
		if float64(rng.below(1<<30)) < (times-float64(int(times)))*(1<<30) {
			more++
		}
		for k := range more {
			c := j
			c.ID += "+" + strconv.Itoa(k+1)
			c.Submitted = c.Submitted.Add(time.Duration(rng.below(int(2*apart))) - apart)
			if c.Submitted.Before(first) {
				c.Submitted = first
			}
			if c.Submitted.After(last) {
				c.Submitted = last
			}
			out.Jobs = append(out.Jobs, c)
		}
	}
	slices.SortStableFunc(out.Jobs, func(a, b Job) int { return a.Submitted.Compare(b.Submitted) })
	for i := range out.Jobs {
		out.Jobs[i].Seq = int64(i + 1)
	}
	return out, nil
}
