package cluster

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
)

// One table for every way in which the record and the cluster can stand to each other about a run of two parts.
func TestDecide(t *testing.T) {
	t.Parallel()
	three := 3
	const now = schema.Instant(100_000)
	ref, other := Ref{"7", 1000}, Ref{"9", 2000}
	key := Key{"job_a", 2}
	resolve := func(string, []Device) []string { return nil }
	type change func(*store.ClusterWork)
	work := func(changes ...change) store.ClusterWork {
		w := store.ClusterWork{ClusterRun: schema.ClusterRun{Job: "job_a", Attempt: 2}, Parts: []store.ClusterPart{
			{Task: schema.Task{ID: "t0", State: schema.TaskClaimed}, Node: "h1"}, {Task: schema.Task{ID: "t1", State: schema.TaskClaimed}, Node: "h2"}}}
		for _, c := range changes {
			c(&w)
		}
		return w
	}
	bound := func(w *store.ClusterWork) { w.Native, w.SubmittedAt = ref.Native, ref.Submitted }
	ran := func(w *store.ClusterWork) {
		for i := range w.Parts {
			w.Parts[i].Task.Running, w.Parts[i].Task.State = 50_000, schema.TaskRunning
		}
	}
	stop := func(at schema.Instant) change {
		return func(w *store.ClusterWork) {
			for i := range w.Parts {
				w.Parts[i].Task.StopAt, w.Parts[i].Task.GraceMS = at, (10 * time.Second).Milliseconds()
			}
		}
	}
	seen := func(ref Ref, state schema.TaskState, change func(*Seen)) Seen {
		s := Seen{Key: key, Ref: ref, State: "X", Parts: []SeenPart{{State: state}, {State: state}}}
		if change != nil {
			change(&s)
		}
		return s
	}
	held := seen(ref, schema.TaskPending, func(s *Seen) { s.Held = true })
	running := seen(ref, schema.TaskRunning, func(s *Seen) { s.Began = 60_000 })
	over := seen(ref, schema.TaskFailed, func(s *Seen) {
		s.Began = 60_000
		for i := range s.Parts {
			s.Parts[i].Exit, s.Parts[i].NoneLeft = &three, true
		}
	})
	zero := 0
	well := func(ended schema.Instant) Seen {
		return seen(ref, schema.TaskDone, func(s *Seen) {
			s.Began, s.Ended = 60_000, ended
			for i := range s.Parts {
				s.Parts[i].Exit, s.Parts[i].NoneLeft = &zero, true
			}
		})
	}
	ptr := func(s Seen) *Seen { return &s }
	report := func(state schema.TaskState, text string, exit *int, none bool) []agentproto.TaskReport {
		var out []agentproto.TaskReport
		for _, id := range []string{"t0", "t1"} {
			out = append(out, agentproto.TaskReport{Task: id, State: state, Text: text, ExitCode: exit, NoneLeft: none})
		}
		return out
	}
	for name, c := range map[string]struct {
		work store.ClusterWork
		seen []Seen
		want act
	}{
		"new: it is submitted":                                               {work(), nil, act{submit: true}},
		"its answer was lost: it is bound":                                   {work(), []Seen{held}, act{bind: &ref}},
		"its answer was lost twice: the first is bound, one ended":           {work(), []Seen{seen(other, schema.TaskPending, nil), held}, act{bind: &ref, extra: []Ref{other}}},
		"not all parts are there: the rest is submitted":                     {work(), []Seen{seen(ref, schema.TaskPending, func(s *Seen) { s.Held, s.Partial = true, true })}, act{submit: true}},
		"bound, the start was lost: it is started":                           {work(bound), []Seen{held}, act{start: &ref}},
		"bound, and there again: the other is ended":                         {work(bound, ran), []Seen{running, seen(other, schema.TaskRunning, nil)}, act{extra: []Ref{other}}},
		"it waits: its reason is told":                                       {work(bound), []Seen{seen(ref, schema.TaskPending, func(s *Seen) { s.State, s.Why = "PENDING", "Resources" })}, act{waits: "PENDING: Resources"}},
		"it began: that is told":                                             {work(bound), []Seen{running}, act{reports: report(schema.TaskRunning, "", nil, false)}},
		"it runs on":                                                         {work(bound, ran), []Seen{running}, act{}},
		"it ended":                                                           {work(bound, ran), []Seen{over}, act{reports: report(schema.TaskFailed, "X", &three, true), account: &over}},
		"asked to end before it was submitted":                               {work(stop(99_000)), nil, act{reports: report(schema.TaskCancelled, "stopped before the cluster had it", nil, true)}},
		"asked to end, its answer was lost: it is ended, not bound":          {work(stop(99_000)), []Seen{held}, act{kill: &ref}},
		"asked to end while held":                                            {work(bound, stop(99_000)), []Seen{held}, act{kill: &ref}},
		"asked to end, and ended well: it tidied up":                         {work(bound, ran, stop(95_000)), []Seen{well(96_000)}, act{reports: report(schema.TaskCancelled, "X", &zero, true), account: ptr(well(96_000))}},
		"it had ended well before it was asked to end":                       {work(bound, ran, stop(95_000)), []Seen{well(92_000)}, act{reports: report(schema.TaskDone, "X", &zero, true), account: ptr(well(92_000))}},
		"asked to end within its grace":                                      {work(bound, ran, stop(95_000)), []Seen{running}, act{stop: &ref}},
		"asked to end, its grace is over":                                    {work(bound, ran, stop(90_000)), []Seen{running}, act{kill: &ref}},
		"asked to end and gone":                                              {work(bound, ran, stop(90_000)), nil, act{gone: true}},
		"asked to end and gone, it had not begun":                            {work(bound, stop(90_000)), nil, act{reports: report(schema.TaskCancelled, "the cluster no longer knows it; it had not begun", nil, true)}},
		"the cluster forgot it before it began: submitted again":             {work(bound), nil, act{unbind: true}},
		"the cluster forgot it while it ran":                                 {work(bound, ran), nil, act{lost: true}},
		"it ran, and the cluster has it as it was before: not started again": {work(bound, ran), []Seen{held}, act{lost: true}},
		"the same, asked to end":                                             {work(bound, ran, stop(95_000)), []Seen{held}, act{gone: true}},
		"the cluster gave its id to a later run of the same attempt":         {work(bound, ran), []Seen{seen(Ref{"7", 5000}, schema.TaskRunning, nil)}, act{lost: true, extra: []Ref{{"7", 5000}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := decide(c.work, c.seen, resolve, now)
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(act{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}
