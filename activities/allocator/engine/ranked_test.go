package engine

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestRankedIsASortedList compares ranked with a plain sorted slice under random inserts and removals.
func TestRankedIsASortedList(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var r ranked
		var model []*job
		n := 0
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if len(model) > 0 && rapid.IntRange(0, 2).Draw(t, "remove") == 0 {
				for range rapid.IntRange(1, len(model)).Draw(t, "how many") {
					i := rapid.IntRange(0, len(model)-1).Draw(t, "which")
					if !r.remove(model[i]) || r.remove(model[i]) {
						t.Fatalf("removing %s", model[i].ID)
					}
					model = slices.Delete(model, i, i+1)
				}
			} else {
				for range rapid.IntRange(1, 200).Draw(t, "inserts") {
					n++
					j := &job{Job: Job{ID: fmt.Sprint(n), Seq: int64(rapid.IntRange(0, 50).Draw(t, "seq"))}}
					at, _ := slices.BinarySearchFunc(model, j, compareJobs)
					model = slices.Insert(model, at, j)
					r.insert(j, j.Seq)
				}
			}
			var got []*job
			r.each(func(j *job) bool { got = append(got, j); return true })
			if !slices.Equal(got, model) || r.len() != len(model) {
				t.Fatalf("%d jobs, want %d, or in another order", len(got), len(model))
			}
			told := make([]place, 0, len(model))
			for i := range model {
				j := model[len(model)-1-i]
				told = append(told, place{j.Seq, j.Seq, j})
			}
			again := rank(told)
			var at []*job
			again.each(func(j *job) bool { at = append(at, j); return true })
			if !slices.Equal(at, model) || again.all != r.all {
				t.Fatalf("ranked at once: %d jobs and %+v, want %d and %+v, or in another order", len(at), again.all, len(model), r.all)
			}
			if len(model) > 0 {
				i := rapid.IntRange(0, len(model)-1).Draw(t, "asked")
				want := tally{jobs: i}
				for _, j := range model[:i] {
					want.milli += j.Seq
				}
				if got := r.ahead(model[i]); got != want || r.first() != model[0] {
					t.Fatalf("%+v ahead, want %+v", got, want)
				}
			}
		}
	})
}
