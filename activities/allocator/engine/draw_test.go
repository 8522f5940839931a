package engine_test

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"pgregory.net/rapid"

	"gpupool/activities/allocator/engine"
)

func specNames() []string { return []string{"a1", "a2", "a4", "b1", "b2", "c2"} }

func drawWorld(t *rapid.T) *world {
	order := engine.FairShare
	if rapid.Bool().Draw(t, "fifo") {
		order = engine.FIFO
	}
	w := newWorld(engine.Config{
		Order: order, Placement: rapid.SampledFrom([]engine.Placement{engine.LeastFragmentation, engine.BestFit, engine.Spread}).Draw(t, "placement"),
		MinRunTime:   time.Duration(rapid.IntRange(0, 2).Draw(t, "min run")) * time.Minute,
		NoPreemption: rapid.IntRange(0, 3).Draw(t, "no preemption") == 0,
		Reservations: rapid.IntRange(1, 4).Draw(t, "reservations"),
		AssumedLimit: 30 * time.Minute,
	})
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.String())
		}
	})
	for _, name := range specNames() {
		w.tell(func(p *engine.State) { p.SetSpec(specs[name]) })
	}
	for i := range rapid.IntRange(1, 6).Draw(t, "servers") {
		w.setServer(w.drawServer(t, fmt.Sprintf("s%d", i)))
	}
	for _, tenant := range []string{"x", "y"} {
		for _, model := range []string{"a", "b"} {
			if rapid.IntRange(0, 2).Draw(t, "quota") > 0 {
				continue
			}
			q := engine.Quota{Tenant: tenant, Model: model, Limit: engine.NoLimit}
			if rapid.Bool().Draw(t, "limited") {
				q.Limit = int64(rapid.IntRange(0, 8).Draw(t, "limit"))
			}
			if rapid.IntRange(0, 2).Draw(t, "guaranteed") == 0 {
				q.Guaranteed = int64(rapid.IntRange(1, 6).Draw(t, "guarantee"))
			}
			w.quotas[tenant+model] = q
			w.tell(func(p *engine.State) { p.SetQuota(q) })
		}
	}
	w.drawLimits(t)
	if rapid.IntRange(0, 3).Draw(t, "budget") == 0 {
		b := engine.Budget{ID: "bx", Tenant: "x", Amount: time.Duration(rapid.IntRange(1, 20).Draw(t, "amount")) * time.Hour, At: epoch}
		w.budgets[b.ID] = b
		w.tell(func(p *engine.State) { p.SetBudget(b) })
	}
	return w
}

// drawLimits draws what is rarer: accounts, quotas of projects, a window.
func (w *world) drawLimits(t *rapid.T) {
	for _, tenant := range []string{"x", "y"} {
		if rapid.IntRange(0, 4).Draw(t, "account") == 0 {
			a := engine.Account{
				Tenant: tenant, Weight: float64(rapid.IntRange(0, 3).Draw(t, "weight")), MaxRunningJobs: rapid.IntRange(0, 3).Draw(t, "running"),
			}
			if top := rapid.IntRange(0, 2).Draw(t, "max priority"); top > 0 {
				top--
				a.MaxPriority = &top
			}
			w.limits[tenant] = a
			w.tell(func(p *engine.State) { p.SetAccount(a) })
		}
		if rapid.IntRange(0, 4).Draw(t, "project quota") == 0 {
			q := engine.Quota{Tenant: tenant, Project: "p", Model: "a", Limit: int64(rapid.IntRange(1, 8).Draw(t, "project limit"))}
			q.Guaranteed = int64(rapid.IntRange(0, int(q.Limit)).Draw(t, "project guarantee"))
			w.quotas[tenant+"/pa"] = q
			w.tell(func(p *engine.State) { p.SetQuota(q) })
		}
	}
	if rapid.IntRange(0, 3).Draw(t, "window") == 0 {
		from := epoch.Add(time.Duration(rapid.IntRange(0, 15).Draw(t, "from")) * time.Minute)
		win := engine.Window{
			ID: "win", Kind: "reservation", From: from, Until: from.Add(time.Duration(rapid.IntRange(1, 30).Draw(t, "lasts")) * time.Minute),
			Tenant: rapid.SampledFrom([]string{"", "x"}).Draw(t, "for"), Project: "p",
			Servers: sortedKeys(w.servers)[:rapid.IntRange(1, len(w.servers)).Draw(t, "of servers")],
		}
		w.windows = append(w.windows, win)
		w.tell(func(p *engine.State) { p.SetWindow(win) })
	}
}

func (w *world) drawServer(t *rapid.T, id string) engine.Server {
	s := engine.Server{
		ID: id, Region: "r", Site: "s", Rack: rapid.SampledFrom([]string{"r1", "r2", ""}).Draw(t, "rack"), CPU: 16, Schedulable: true,
	}
	model := rapid.SampledFrom([]string{"a", "a", "b"}).Draw(t, "model")
	for i := range rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "accelerators") {
		s.Accelerators = append(s.Accelerators, engine.Accelerator{ID: id + "-" + strconv.Itoa(i), Model: model, Index: i, Schedulable: true})
	}
	s.OneTenant = rapid.IntRange(0, 3).Draw(t, "one tenant") == 3
	return s
}

func (w *world) drawJob(t *rapid.T) engine.Job {
	w.seq++
	j := engine.Job{
		ID: fmt.Sprintf("j%d", w.seq), Tenant: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "tenant"),
		Project: rapid.SampledFrom([]string{"", "p"}).Draw(t, "project"), Spec: rapid.SampledFrom(specNames()).Draw(t, "spec"),
		Nodes: rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(t, "nodes"), Priority: rapid.IntRange(0, 2).Draw(t, "priority"),
		Seq: w.seq, Submitted: w.now, Attempt: 1, Preemptible: rapid.Bool().Draw(t, "preemptible"),
		TimeLimit: time.Duration(rapid.SampledFrom([]int{0, 1, 5, 20, 60}).Draw(t, "limit")) * time.Minute,
	}
	if j.Nodes > 1 {
		j.Same = rapid.SampledFrom([]engine.Level{"", engine.LevelRack}).Draw(t, "same")
		j.SameRequired = j.Same != "" && rapid.Bool().Draw(t, "required")
	}
	switch rapid.IntRange(0, 12).Draw(t, "special") {
	case 0:
		j.Held = &engine.Hold{By: "user", Why: "asked"}
	case 1:
		j.NotBefore = w.now.Add(3 * time.Minute)
	case 2:
		j.MaxQueue = 5 * time.Minute
	case 3:
		j.Array, j.ArrayLimit = "sweep of "+j.Tenant, 2
	case 6:
		j.Service, j.TimeLimit = true, 0
	case 4:
		j.Grace = time.Duration(rapid.IntRange(0, 300).Draw(t, "grace")) * time.Second
	case 5:
		if ids := slices.Concat(sortedKeys(w.live), sortedKeys(w.waiting), sortedKeys(w.ended)); len(ids) > 0 {
			on := rapid.SampledFrom(ids).Draw(t, "depends on")
			cond := rapid.SampledFrom([]engine.Condition{engine.AfterOK, engine.AfterNotOK, engine.AfterAny}).Draw(t, "condition")
			j.DependsOn = []engine.Dependency{{Job: on, Condition: cond, State: w.ended[on]}}
		}
	}
	return j
}

// drawBack is a moment to come, or none.
func (w *world) drawBack(t *rapid.T) time.Time {
	n := rapid.IntRange(0, 10).Draw(t, "back in minutes")
	if n == 0 {
		return time.Time{}
	}
	return w.now.Add(time.Duration(n) * time.Minute)
}

// turnGate changes a limit, so that a gate may close or open: also for who was promised a place.
func (w *world) turnGate(t *rapid.T) {
	tenant := rapid.SampledFrom([]string{"x", "y"}).Draw(t, "of")
	switch rapid.IntRange(0, 3).Draw(t, "gate") {
	case 0:
		model := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "model")
		q, there := w.quotas[tenant+model]
		if !there {
			q = engine.Quota{Tenant: tenant, Model: model}
		}
		q.Limit = int64(rapid.SampledFrom([]int{4, 3, 2, 8, 1, engine.NoLimit}).Draw(t, "limit"))
		w.quotas[tenant+model] = q
		w.tell(func(p *engine.State) { p.SetQuota(q) })
	case 1:
		b := engine.Budget{ID: "b" + tenant, Tenant: tenant, At: w.now}
		b.Amount = time.Duration(rapid.IntRange(1, 4).Draw(t, "amount")) * time.Hour
		b.Spent = time.Duration(rapid.IntRange(0, 240).Draw(t, "spent")) * time.Minute
		w.budgets[b.ID] = b
		w.tell(func(p *engine.State) { p.SetBudget(b) })
	case 2:
		a := w.limits[tenant]
		a.Tenant, a.MaxRunningJobs = tenant, rapid.IntRange(0, 2).Draw(t, "running")
		w.limits[tenant] = a
		w.tell(func(p *engine.State) { p.SetAccount(a) })
	case 3:
		spec := specs[rapid.SampledFrom(specNames()).Draw(t, "spec")]
		if w.retired[spec.Name] = !w.retired[spec.Name]; w.retired[spec.Name] {
			spec.RetiredAt = w.now
		}
		w.tell(func(p *engine.State) { p.SetSpec(spec) })
	}
}

// step is one random event: a fact, or the passing of time, and then a cycle.
func (w *world) step(t *rapid.T) {
	switch rapid.IntRange(0, 12).Draw(t, "event") {
	case 0, 1, 2, 3:
		for range rapid.IntRange(1, 3).Draw(t, "burst") {
			w.setJob(w.drawJob(t))
		}
	case 4, 5:
		if ids := sortedKeys(w.live); len(ids) > 0 {
			id := rapid.SampledFrom(ids).Draw(t, "ends")
			w.release(id)
			w.end(id, rapid.SampledFrom([]string{"completed", "failed"}).Draw(t, "how"))
		}
	case 6:
		id := rapid.SampledFrom(sortedKeys(w.servers)).Draw(t, "server")
		s := w.servers[id]
		s.Accelerators = slices.Clone(s.Accelerators)
		i := rapid.IntRange(-1, len(s.Accelerators)-1).Draw(t, "device")
		if i < 0 {
			s.Schedulable = !s.Schedulable
			s.WhyNot, s.Back = "cordoned", w.drawBack(t)
		} else {
			s.Accelerators[i].Schedulable = !s.Accelerators[i].Schedulable
			s.Accelerators[i].WhyNot, s.Accelerators[i].Back = "XID 79", w.drawBack(t)
		}
		w.setServer(s)
	case 7:
		w.now = w.now.Add(time.Duration(rapid.IntRange(1, 300).Draw(t, "seconds")) * time.Second)
	case 8:
		if ids := sortedKeys(w.waiting); len(ids) > 0 {
			id := rapid.SampledFrom(ids).Draw(t, "cancelled")
			w.gone(id)
			w.tell(func(p *engine.State) { p.RemoveJob(id) })
			w.end(id, "cancelled")
		}
	case 9:
		if ids := sortedKeys(w.waiting); len(ids) > 0 {
			j := w.waiting[rapid.SampledFrom(ids).Draw(t, "changed")]
			if j.Held == nil {
				j.Held = &engine.Hold{By: "user", Why: "asked"}
			} else {
				j.Held = nil
			}
			w.setJob(j)
		}
	case 10:
		id := rapid.SampledFrom([]string{"stop1", "stop2"}).Draw(t, "stop")
		if _, there := w.stops[id]; there {
			delete(w.stops, id)
			w.tell(func(p *engine.State) { p.RemoveStop(id) })
			break
		}
		st := engine.Stop{ID: id, By: "operator", Note: "n", Since: w.now, Tenant: rapid.SampledFrom([]string{"", "x"}).Draw(t, "of tenant"),
			Project: rapid.SampledFrom([]string{"", "p"}).Draw(t, "of project"), Spec: rapid.SampledFrom(append([]string{""}, specNames()...)).Draw(t, "of spec"), Until: w.drawBack(t)}
		w.stops[id] = st
		w.tell(func(p *engine.State) { p.SetStop(st) })
	case 11:
		if ids := sortedKeys(w.live); len(ids) > 0 {
			id, now := rapid.SampledFrom(ids).Draw(t, "saves"), w.now
			attempt := w.live[id].start.Attempt
			w.saved[id] = now
			w.tell(func(p *engine.State) { p.SetCheckpoint(id, attempt, now) })
		}
	case 12:
		w.turnGate(t)
	}
	w.letEnd()
	w.cycle(t)
}

// letEnd ends victims whose grace is over, which wait again in their old place, and what has reached its limit.
func (w *world) letEnd() {
	for _, id := range sortedKeys(w.live) {
		l := w.live[id]
		grace, told := w.dying[id]
		switch {
		case told && !w.now.Before(grace):
			w.release(id)
			j := l.job
			j.Attempt++
			w.setJob(j)
		case l.start.TimeLimit > 0 && w.now.Sub(l.at) >= l.start.TimeLimit:
			w.release(id)
			w.end(id, "timeout")
		}
	}
}
