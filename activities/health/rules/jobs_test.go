package rules_test

import (
	"fmt"
	"testing"
	"time"

	"gpupool/activities/health/rules"
	"gpupool/schema"
)

// TestWhatFailingJobsBlame is case 25 of the facts on health.
func TestWhatFailingJobsBlame(t *testing.T) {
	t.Parallel()
	end := func(minute int, job, owner, image, server, device, slot string, took time.Duration) rules.JobEnd {
		return rules.JobEnd{Job: job, Owner: owner, Image: image, Server: server, Devices: []rules.JobDevice{{ID: device, Slot: slot}}, At: start.Add(time.Duration(minute) * time.Minute), Took: took, Infra: true, Text: "CUDA error"}
	}
	repeat := func(n int, f func(i int) rules.JobEnd) (all []rules.JobEnd) {
		for i := range n {
			all = append(all, f(i))
		}
		return all
	}
	job := func(i int) string { return fmt.Sprint("job-", i) }
	for name, c := range map[string]struct {
		ends []rules.JobEnd
		want []string
	}{
		"five starts of different jobs fail at once: a black hole": {repeat(5, func(i int) rules.JobEnd {
			return end(i, job(i), "ann", fmt.Sprint("image-", i), "s1", fmt.Sprint("g", i), "", 20*time.Second)
		}), []string{"black-hole s1"}},
		"five starts over an hour are none": {repeat(5, func(i int) rules.JobEnd {
			return end(15*i, job(i), "ann", fmt.Sprint("image-", i), "s1", fmt.Sprint("g", i), "", 20*time.Second)
		}), nil},
		"one job that is tried ten times counts once": {repeat(10, func(i int) rules.JobEnd {
			return end(i, "job", "ann", "image", "s1", "g1", "SXM1", 20*time.Second)
		}), nil},
		"what is refused to one owner is what that owner asks for": {repeat(5, func(i int) rules.JobEnd {
			e := end(i, job(i), "ann", "image", "s1", fmt.Sprint("g", i), "", time.Second)
			e.Refused = true
			return e
		}), nil},
		"what is refused to two owners is what the server lacks": {repeat(5, func(i int) rules.JobEnd {
			e := end(i, job(i), fmt.Sprint("owner-", i%2), fmt.Sprint("image-", i), "s1", fmt.Sprint("g", i), "", time.Second)
			e.Refused = true
			return e
		}), []string{"black-hole s1"}},
		"three jobs of three owners on one device": {repeat(3, func(i int) rules.JobEnd {
			return end(100*i, job(i), fmt.Sprint("owner-", i), "image", "s1", "g1", "SXM1", time.Hour)
		}), []string{"job-failures s1 g1"}},
		"three jobs of one owner are his": {repeat(3, func(i int) rules.JobEnd {
			return end(100*i, job(i), "ann", "image", "s1", "g1", "SXM1", time.Hour)
		}), nil},
		"one image that fails everywhere blames no server": {repeat(40, func(i int) rules.JobEnd {
			return end(i, job(i), fmt.Sprint("owner-", i%3), "bad", fmt.Sprint("s", i%8), fmt.Sprint("g", i%8), "SXM1", 10*time.Second)
		}), nil},
		"a device that three owners' jobs followed to another server": {repeat(3, func(i int) rules.JobEnd {
			return end(100*i, job(i), fmt.Sprint("owner-", i), fmt.Sprint("image-", i), fmt.Sprint("s", i/2), "g1", "SXM1", time.Hour)
		}), []string{"job-failures s1 g1"}},
		"one slot with two cards: the slot": {repeat(3, func(i int) rules.JobEnd {
			return end(100*i, job(i), fmt.Sprint("owner-", i), "image", "s1", fmt.Sprint("g", i/2), "SXM3", time.Hour)
		}), []string{"slot-failures s1 SXM3"}},
		"the program's own failures blame nothing": {repeat(3, func(i int) rules.JobEnd {
			e := end(100*i, job(i), fmt.Sprint("owner-", i), "image", "s1", "g1", "SXM1", time.Hour)
			e.Infra = false
			return e
		}), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var last schema.Instant
			for _, e := range c.ends {
				last = max(last, e.At)
			}
			var got []string
			for _, b := range rules.BlameJobs(c.ends, last) {
				what := b.Device
				if b.Kind == "slot-failures" {
					what = b.Slot
				}
				s := b.Kind + " " + b.Server
				if what != "" {
					s += " " + what
				}
				got = append(got, s)
				if b.Text == "" || b.At == 0 {
					t.Errorf("%+v has no words or no time", b)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
			if later := rules.BlameJobs(c.ends, last.Add(48*time.Hour)); len(later) != 0 {
				t.Errorf("two days later: %+v", later)
			}
		})
	}
}
