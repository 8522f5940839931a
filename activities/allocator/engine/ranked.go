package engine

import (
	"slices"
	"strings"
)

// ranked keeps jobs in submit order and answers how many are before one, and what those ask for. Jobs nearly always
// come at the end and leave at the front, so it is a list of short sorted runs: what is compared lies together in
// memory, and a job that leaves from the middle moves no more than one run.
type ranked struct {
	runs []run
	all  tally
}

// run is a part of the list, never empty, and what its jobs ask for.
type run struct {
	first  int64 // number of the first place, so that a search stays within the list of runs
	places []place
	milli  int64
}

// place is a job with its key beside it.
type place struct {
	seq   int64
	milli int64
	job   *job
}

// tally is a number of jobs and the accelerators they ask for, in thousandths.
type tally struct {
	jobs  int
	milli int64
}

func (t *tally) add(o tally) {
	t.jobs += o.jobs
	t.milli += o.milli
}

func (t *tally) sub(o tally) {
	t.jobs -= o.jobs
	t.milli -= o.milli
}

// runLength is where a run is split.
const runLength = 256

func before(a, b *job) bool { return compareJobs(a, b) < 0 }

func compareJobs(a, b *job) int {
	switch {
	case a.Seq < b.Seq:
		return -1
	case a.Seq > b.Seq:
		return 1
	}
	return strings.Compare(a.ID, b.ID)
}

func comparePlace(p place, j *job) int {
	switch {
	case p.seq < j.Seq:
		return -1
	case p.seq > j.Seq:
		return 1
	}
	return strings.Compare(p.job.ID, j.ID)
}

// rank is a list of jobs, told in any order.
func rank(places []place) ranked {
	slices.SortFunc(places, func(p, o place) int { return comparePlace(p, o.job) })
	var r ranked
	for part := range slices.Chunk(places, runLength) {
		next := run{first: part[0].seq, places: slices.Clone(part)}
		for _, p := range part {
			next.milli += p.milli
		}
		r.runs = append(r.runs, next)
		r.all.add(tally{len(part), next.milli})
	}
	return r
}

func (r *ranked) len() int { return r.all.jobs }

// find is the run and the place in it where a job is or would be.
func (r *ranked) find(j *job) (run, at int, found bool) {
	if len(r.runs) == 0 {
		return 0, 0, false
	}
	lo, hi := 0, len(r.runs) // the last run that begins at or before j
	for hi-lo > 1 {
		mid := (lo + hi) / 2
		if r.runs[mid].before(j) {
			lo = mid
		} else {
			hi = mid
		}
	}
	at, found = slices.BinarySearchFunc(r.runs[lo].places, j, comparePlace)
	return lo, at, found
}

// before says whether a run begins at or before a job.
func (r *run) before(j *job) bool {
	return r.first < j.Seq || r.first == j.Seq && comparePlace(r.places[0], j) <= 0
}

// insert adds a job that asks for milli thousandths of an accelerator.
func (r *ranked) insert(j *job, milli int64) {
	r.all.add(tally{1, milli})
	p := place{j.Seq, milli, j}
	i, at, _ := r.find(j)
	if n := len(r.runs); n == 0 || i == n-1 && at == runLength { // at the very end: leave the run full
		r.runs = append(r.runs, run{p.seq, []place{p}, milli})
		return
	}
	if len(r.runs[i].places) == runLength {
		r.split(i)
		if half := len(r.runs[i].places); at > half {
			i, at = i+1, at-half
		}
	}
	r.runs[i].places = slices.Insert(r.runs[i].places, at, p)
	r.runs[i].first = r.runs[i].places[0].seq
	r.runs[i].milli += milli
}

// split makes two runs of one.
func (r *ranked) split(i int) {
	lower := r.runs[i].places
	half := len(lower) / 2
	upper := run{first: lower[half].seq, places: slices.Clone(lower[half:])}
	for _, p := range upper.places {
		upper.milli += p.milli
	}
	clear(lower[half:])
	r.runs[i].places = lower[:half]
	r.runs[i].milli -= upper.milli
	r.runs = slices.Insert(r.runs, i+1, upper)
}

// remove reports whether the job was there.
func (r *ranked) remove(j *job) bool {
	i, at, found := r.find(j)
	if !found {
		return false
	}
	places := r.runs[i].places
	milli := places[at].milli
	r.all.sub(tally{1, milli})
	r.runs[i].milli -= milli
	switch {
	case len(places) == 1:
		r.runs = slices.Delete(r.runs, i, i+1)
	case at == 0:
		places[0] = place{}
		r.runs[i].places, r.runs[i].first = places[1:], places[1].seq
	default:
		r.runs[i].places = slices.Delete(places, at, at+1)
	}
	return true
}

// first is the oldest job, nil when empty.
func (r *ranked) first() *job {
	if len(r.runs) == 0 {
		return nil
	}
	return r.runs[0].places[0].job
}

// ahead is the jobs submitted before j, counted from the nearer end: most that ask have just come.
func (r *ranked) ahead(j *job) tally {
	var sum tally
	i, at, _ := r.find(j)
	if i == len(r.runs) {
		return sum
	}
	if i <= len(r.runs)/2 {
		for k := range r.runs[:i] {
			sum.add(r.runs[k].all())
		}
	} else {
		sum = r.all
		for k := range r.runs[i:] {
			sum.sub(r.runs[i+k].all())
		}
	}
	sum.add(r.runs[i].until(at))
	return sum
}

// all is everything in the run.
func (r *run) all() tally { return tally{len(r.places), r.milli} }

// until is its first n jobs.
func (r *run) until(n int) tally {
	sum := tally{jobs: n}
	if n <= len(r.places)/2 {
		for i := range r.places[:n] {
			sum.milli += r.places[i].milli
		}
		return sum
	}
	sum.milli = r.milli
	for i := range r.places[n:] {
		sum.milli -= r.places[n+i].milli
	}
	return sum
}

// each visits jobs in order until visit says stop. The visit must not change the list and go on.
func (r *ranked) each(visit func(*job) bool) {
	for _, run := range r.runs {
		for _, p := range run.places {
			if !visit(p.job) {
				return
			}
		}
	}
}

// mix is FNV-1a with a final avalanche: ids that differ in a digit get unrelated numbers.
func mix(id string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * 1099511628211
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	return h ^ h>>33
}
