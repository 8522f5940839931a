package store_test

import (
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
	"gpupool/schema/usage"
)

func TestTheTimeInWhichJobsWaitedWhileAcceleratorsWereIdle(t *testing.T) {
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		waitedWhileIdle(t, store.Config{Driver: "sqlite", DSN: filepath.Join(t.TempDir(), "gpupool.db")})
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		waitedWhileIdle(t, store.Config{Driver: "postgres", DSN: storetest.Database(t, storetest.Postgres(t)), MaxConnections: 4})
	})
}

// waitedWhileIdle is a history of twelve accelerators of one model and none of another, on minutes that are named from its begin.
func waitedWhileIdle(t *testing.T, c store.Config) {
	b := newBooksOn(t, 1, c)
	defer func() { b.must(b.Close()) }()
	ctx := t.Context()
	const a100 = "nvidia-a100-80gb"
	begin := time.Date(2026, 7, 14, 22, 0, 0, 0, time.UTC).UnixMilli()
	minute := func(m int64) schema.Instant { return schema.Instant(begin + m*60_000) }
	at := func(m int64) {
		b.now.Store(int64(minute(m)))
		b.wrote()
	}
	submit := func(spec string, notBefore ...schema.Instant) *booked {
		in := store.NewJob{Tenant: "blue", Project: "main", Spec: spec, Nodes: 1, Command: []string{"true"}}
		if len(notBefore) > 0 {
			in.NotBefore = notBefore[0]
		}
		j, _, err := b.SubmitJob(ctx, "test", "", "", in)
		b.must(err)
		b.jobs[j.ID] = &booked{Job: j, tenant: "blue"}
		return b.jobs[j.ID]
	}
	cycle := func(c store.Cycle) {
		b.cycle++
		c.Number = b.cycle
		no, err := b.CommitCycle(ctx, "eu", b.epoch, c)
		b.must(err)
		if len(no) > 0 {
			t.Fatalf("refused: %+v", no)
		}
	}
	start := func(j *booked, p store.Place) {
		var err error
		j.Job, err = b.Job(ctx, j.ID)
		b.must(err)
		cycle(store.Cycle{Starts: []store.Start{{Job: j.ID, Attempt: j.Attempt + 1, Places: []store.Place{p}}}})
		j.start, j.running, j.place = b.now.Load(), b.now.Load(), p
		j.Job, err = b.Job(ctx, j.ID)
		b.must(err)
		b.must(b.DispatchAttempt(ctx, j.ID, j.Attempt))
		_, err = b.ClaimTasks(ctx, p.Server)
		b.must(err)
		b.report(j, agentproto.TaskReport{Seq: 1, State: schema.TaskRunning})
	}
	why := func(j *booked, code schema.ReasonCode) {
		cycle(store.Cycle{Reasons: map[string]schema.ReasonDoc{j.ID: {Code: code, Since: schema.Instant(b.now.Load())}}})
	}
	_, err := b.CreateSpec(ctx, "test", store.NewSpec{Name: "a100x2", Model: a100, Accelerators: 2})
	b.must(err)

	at(0) // all twelve are taken
	var six []*booked
	for _, v := range b.servers {
		for i := range 2 {
			j := submit("h100x2")
			start(j, store.Place{Server: v.ID, Accelerators: b.accs[v.ID][2*i : 2*i+2]})
			six = append(six, j)
		}
	}
	at(10)
	waits := submit("h100x2")
	why(waits, schema.ReasonCapacity)
	at(30) // two are free, and a quota keeps them so
	b.end(six[0])
	why(waits, schema.ReasonQuota)
	at(40) // 30 minutes were waited, 10 of them beside idle ones
	start(waits, six[0].place)
	at(45) // what its owner holds waits for no accelerator
	held := submit("h100x2")
	b.must(b.HoldJob(ctx, held.ID, "test"))
	why(held, schema.ReasonHeld)
	at(50)
	other := submit("a100x2")
	why(other, schema.ReasonCapacity)
	at(55) // what is free from here on is not what the other asks for
	b.end(six[1])
	at(65)
	b.must(b.RequestStop(ctx, other.ID, 0, schema.AttemptCancelled, "test", "not needed"))
	if o, err := b.Job(ctx, other.ID); err != nil || o.State != schema.JobCancelled {
		t.Fatalf("%+v, %v: it was to end in the queue", o, err)
	}
	at(70) // one that is let go after it was held, and waits still
	b.must(b.UnholdJob(ctx, held.ID, "test"))
	why(held, schema.ReasonQuota)
	at(80)

	counts := func(by string, w usage.Interval, every usage.Every) map[string]usage.Queue {
		periods, err := usage.Periods(w, every, time.UTC)
		b.must(err)
		all, err := b.FourCounts(ctx, store.CountsQuery{By: by, Periods: periods, Queues: true})
		b.must(err)
		out := map[string]usage.Queue{}
		for _, c := range all {
			if c.Queue == nil {
				t.Fatalf("by %q: of %+v the queue is not known", by, c)
			}
			q := out[c.Key]
			q.Add(*c.Queue)
			out[c.Key] = q
		}
		return out
	}
	check := func(what string) {
		t.Helper()
		w := usage.Interval{Start: minute(0) - usage.Hour, End: minute(80)}
		for _, every := range []usage.Every{usage.EveryNone, usage.EveryHour} {
			for by, want := range map[string]map[string]usage.Queue{
				"model":  {h100: {Waited: 40 * 60_000, WhileIdle: 20 * 60_000}, a100: {Waited: 15 * 60_000}},
				"region": {"eu": {Waited: 55 * 60_000, WhileIdle: 20 * 60_000}},
				"":       {"": {Waited: 55 * 60_000, WhileIdle: 20 * 60_000}},
			} {
				got := counts(by, w, every)
				for key, q := range want {
					if got[key] != q {
						t.Errorf("%s, by %q, every %q: %s has %+v, want %+v", what, by, every, key, got[key], q)
					}
				}
			}
		}
		part := counts("model", usage.Interval{Start: minute(25), End: minute(52)}, usage.EveryNone)
		if part[h100] != (usage.Queue{Waited: 15 * 60_000, WhileIdle: 10 * 60_000}) || part[a100] != (usage.Queue{Waited: 2 * 60_000}) {
			t.Errorf("%s, from 25 to 52: %+v", what, part)
		}
	}
	check("at once")
	at(200) // the three hours are over and kept
	if n, found, err := b.CheckHours(ctx, 10); err != nil || n < 4 || len(found) > 0 {
		t.Fatalf("%d hours checked, %+v, %v", n, found, err)
	}
	check("of hours that are over")
	if q := counts("model", usage.Interval{Start: minute(0), End: minute(200)}, usage.EveryNone)[h100]; q != (usage.Queue{Waited: 160 * 60_000, WhileIdle: 140 * 60_000}) {
		t.Errorf("two hours later: %+v", q)
	}
	// Of what waits now and no cycle has looked at: from the release before, from when it may start, and not while it is held.
	b.must(b.RequestStop(ctx, held.ID, 0, schema.AttemptCancelled, "test", "not needed"))
	at(205)
	b.must(b.HoldJob(ctx, submit("a100x2").ID, "test"))
	at(210)
	again := six[2]
	b.must(b.RequestStop(ctx, again.ID, 0, schema.AttemptPreempted, "test", "for others"))
	again.stopping, again.why = b.now.Load(), schema.AttemptPreempted
	b.end(again)
	submit("a100x2", minute(235))
	for _, c := range []struct {
		minute    int64
		new, none usage.Queue
	}{
		{220, usage.Queue{Waited: 10 * 60_000, WhileIdle: 10 * 60_000}, usage.Queue{}},
		{250, usage.Queue{Waited: 40 * 60_000, WhileIdle: 40 * 60_000}, usage.Queue{Waited: 15 * 60_000}},
	} {
		at(c.minute)
		got := counts("model", usage.Interval{Start: minute(205), End: minute(c.minute)}, usage.EveryNone)
		if got[h100] != c.new || got[a100] != c.none {
			t.Errorf("from 205 to %d: %+v, want %+v and %+v", c.minute, got, c.new, c.none)
		}
	}
	for _, q := range []store.CountsQuery{{By: "tenant"}, {By: "spec"}, {Tenant: "blue"}, {}} {
		q.Queues, q.Periods = q.By != "" || q.Tenant != "", []usage.Period{{Interval: usage.Interval{Start: minute(0), End: minute(80)}}}
		all, err := b.FourCounts(ctx, q)
		b.must(err)
		for _, c := range all {
			if c.Queue != nil {
				t.Errorf("%+v: %+v, which was not asked for or says nothing", q, *c.Queue)
			}
		}
	}
	// Of an hour that was checked before its queues were kept nothing is said.
	b.must(b.Exec(ctx, "DELETE FROM queue_hours WHERE hour = (SELECT max(hour) FROM queue_hours)"))
	all, err := b.FourCounts(ctx, store.CountsQuery{Queues: true, Periods: []usage.Period{{Interval: usage.Interval{Start: minute(0), End: minute(200)}}}})
	b.must(err)
	if len(all) != 1 || all[0].Queue != nil {
		t.Errorf("%+v: an hour of it is not known", all)
	}
}

// A long queue is read until it says nothing new: who waits for another model behind it is found, and so is who has waited
// longer than what is known.
func TestALongQueueIsReadUntilItSaysNothingNew(t *testing.T) {
	t.Parallel()
	b := newBooks(t, 1)
	defer func() { b.must(b.Close()) }()
	ctx := t.Context()
	const a100 = "nvidia-a100-80gb"
	_, err := b.CreateSpec(ctx, "test", store.NewSpec{Name: "a100x2", Model: a100, Accelerators: 2})
	b.must(err)
	begin := time.Date(2026, 7, 14, 22, 0, 0, 0, time.UTC).UnixMilli()
	submit := func(minute int64, spec string, n int, code schema.ReasonCode) {
		b.now.Store(begin + minute*60_000)
		b.wrote()
		_, _, err := b.SubmitArray(ctx, "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: spec, Nodes: 1, Command: []string{"true"}}, upTo(n))
		b.must(err)
		queued, err := b.QueuedAfter(ctx, "eu", 0, 10_000)
		b.must(err)
		c := store.Cycle{Number: minute, Reasons: map[string]schema.ReasonDoc{}}
		for _, j := range queued[len(queued)-n:] {
			c.Reasons[j.ID] = schema.ReasonDoc{Code: code, Since: schema.Instant(b.now.Load())}
		}
		no, err := b.CommitCycle(ctx, "eu", b.epoch, c)
		b.must(err)
		if len(no) > 0 {
			t.Fatalf("refused: %+v", no)
		}
	}
	submit(0, "a100x2", 600, schema.ReasonHeld)
	submit(5, "h100x2", 1200, schema.ReasonCapacity)
	submit(20, "a100x2", 1, schema.ReasonCapacity)
	b.now.Store(begin + 60*60_000)
	b.wrote()

	var reads atomic.Int64
	b.must(b.Record(func(s store.Statement) {
		if strings.HasPrefix(s.SQL, "SELECT j.seq") {
			reads.Add(1)
		}
	}))
	for _, w := range []struct{ from, h100, a100, reads int64 }{
		{from: 0, h100: 55, a100: 40, reads: 3}, // 600 that say nothing, and what the first of the others say
		{from: 30, h100: 30, a100: 30, reads: 3},
	} {
		reads.Store(0)
		all, err := b.FourCounts(ctx, store.CountsQuery{By: "model", Queues: true, Periods: []usage.Period{{Name: "p", Interval: usage.Interval{Start: schema.Instant(begin + w.from*60_000), End: schema.Instant(begin + 60*60_000)}}}})
		b.must(err)
		got := map[string]int64{}
		for _, c := range all {
			got[c.Key] = c.Queue.Waited / 60_000
		}
		if got[h100] != w.h100 || got[a100] != w.a100 || reads.Load() != w.reads {
			t.Errorf("from minute %d: %v in %d reads of the queue, want %d and %d in %d", w.from, got, reads.Load(), w.h100, w.a100, w.reads)
		}
	}
}

func upTo(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}
