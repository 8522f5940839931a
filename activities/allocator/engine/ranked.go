package engine

import (
	"slices"
	"strings"
)

// ranked keeps jobs in submit order and answers how many are before one. Jobs nearly always come at the end and
// leave at the front, so it is a list of short sorted runs: what is compared lies together in memory, and a job that
// leaves from the middle moves no more than one run.
type ranked struct {
	runs [][]place
	n    int
}

// place is a job with its key beside it.
type place struct {
	seq int64
	job *job
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

func (r *ranked) len() int { return r.n }

// find is the run and the place in it where a job is or would be.
func (r *ranked) find(j *job) (run, at int, found bool) {
	if len(r.runs) == 0 {
		return 0, 0, false
	}
	lo, hi := 0, len(r.runs) // the last run that begins at or before j
	for hi-lo > 1 {
		mid := (lo + hi) / 2
		if comparePlace(r.runs[mid][0], j) <= 0 {
			lo = mid
		} else {
			hi = mid
		}
	}
	at, found = slices.BinarySearchFunc(r.runs[lo], j, comparePlace)
	return lo, at, found
}

func (r *ranked) insert(j *job) {
	r.n++
	if len(r.runs) == 0 {
		r.runs = append(r.runs, []place{{j.Seq, j}})
		return
	}
	i, at, _ := r.find(j)
	if len(r.runs[i]) < runLength {
		r.runs[i] = slices.Insert(r.runs[i], at, place{j.Seq, j})
		return
	}
	if i == len(r.runs)-1 && at == len(r.runs[i]) { // at the very end: leave the run full
		r.runs = append(r.runs, []place{{j.Seq, j}})
		return
	}
	half := runLength / 2
	upper := slices.Clone(r.runs[i][half:])
	clear(r.runs[i][half:])
	r.runs[i] = r.runs[i][:half]
	r.runs = slices.Insert(r.runs, i+1, upper)
	if at > half {
		i, at = i+1, at-half
	}
	r.runs[i] = slices.Insert(r.runs[i], at, place{j.Seq, j})
}

// remove reports whether the job was there.
func (r *ranked) remove(j *job) bool {
	i, at, found := r.find(j)
	if !found {
		return false
	}
	r.n--
	switch {
	case len(r.runs[i]) == 1:
		r.runs = slices.Delete(r.runs, i, i+1)
	case at == 0:
		r.runs[i][0] = place{}
		r.runs[i] = r.runs[i][1:]
	default:
		r.runs[i] = slices.Delete(r.runs[i], at, at+1)
	}
	return true
}

// first is the oldest job, nil when empty.
func (r *ranked) first() *job {
	if len(r.runs) == 0 {
		return nil
	}
	return r.runs[0][0].job
}

// ahead counts the jobs submitted before j.
func (r *ranked) ahead(j *job) int {
	i, at, _ := r.find(j)
	for _, run := range r.runs[:i] {
		at += len(run)
	}
	return at
}

// each visits jobs in order until visit says stop. The visit must not change the list and go on.
func (r *ranked) each(visit func(*job) bool) {
	for _, run := range r.runs {
		for _, p := range run {
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
