package demo_test

import (
	"cmp"
	"database/sql"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"time"

	"gpupool/activities/health/rules"
	"gpupool/deploy/lab/device"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
)

// span is a time; to is 0 where it has not ended.
type span struct{ from, to schema.Instant }

func (s span) holds(at schema.Instant) bool { return s.from <= at && (s.to == 0 || at < s.to) }

// books are what the record holds when all is over, read by SQL and by nothing of the product.
type books struct {
	w       *ward
	servers map[string]bookServer // by id
	byName  map[string]string
	serials map[string]string // accelerator by serial
	cordons map[string][]bookCordon
	faults  []bookFault
	repairs []bookRepair
	tests   map[string][]bookTest // burn-ins by server
	breaks  []bookBreaker
}

type bookServer struct {
	name, region, model, site, rack string
	devices                         int
}
type bookCordon struct {
	span
	accelerator string
}
type bookFault struct {
	id, server, accelerator, kind, code, verdict, rule, repair, text string
	at, seen                                                         schema.Instant
}
type bookRepair struct {
	id, server, accelerator, state, tried, part string
	opened, done, closed                        schema.Instant
}
type bookTest struct {
	created, ended schema.Instant
	state          string
	proof          agentproto.BurnInResult
}
type bookBreaker struct {
	span
	scope string
}

// rows reads all rows of a query, one call of each for each.
func rows(w *ward, db *sql.DB, query string, each func(scan func(...any))) {
	w.t.Helper()
	r, err := db.QueryContext(w.t.Context(), query)
	must(w.t, err)
	defer r.Close()
	for r.Next() {
		each(func(into ...any) { must(w.t, r.Scan(into...)) })
	}
	must(w.t, r.Err())
}

func (w *ward) open(file string) *books {
	w.t.Helper()
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout(10000)")
	must(w.t, err)
	defer db.Close()
	b := &books{w: w, servers: map[string]bookServer{}, byName: map[string]string{}, serials: map[string]string{}, cordons: map[string][]bookCordon{}, tests: map[string][]bookTest{}}
	rows(w, db, "SELECT id, name, region, model, site, rack, accelerators FROM servers", func(scan func(...any)) {
		var id string
		var v bookServer
		scan(&id, &v.name, &v.region, &v.model, &v.site, &v.rack, &v.devices)
		b.servers[id], b.byName[v.name] = v, id
	})
	rows(w, db, "SELECT id, serial FROM accelerators", func(scan func(...any)) {
		var id, serial string
		scan(&id, &serial)
		b.serials[serial] = id
	})
	rows(w, db, "SELECT server, accelerator, at, lifted_at FROM cordons WHERE owner = 'fault' ORDER BY at", func(scan func(...any)) {
		var server string
		var c bookCordon
		scan(&server, &c.accelerator, &c.from, &c.to)
		b.cordons[server] = append(b.cordons[server], c)
	})
	rows(w, db, "SELECT id, server, accelerator, kind, code, verdict, rule, repair, text, at, seen_at FROM faults ORDER BY seen_at, id", func(scan func(...any)) {
		var f bookFault
		scan(&f.id, &f.server, &f.accelerator, &f.kind, &f.code, &f.verdict, &f.rule, &f.repair, &f.text, &f.at, &f.seen)
		b.faults = append(b.faults, f)
	})
	rows(w, db, "SELECT id, server, accelerator, state, tried, part, opened_at, done_at, closed_at FROM repairs ORDER BY opened_at, id", func(scan func(...any)) {
		var r bookRepair
		scan(&r.id, &r.server, &r.accelerator, &r.state, &r.tried, &r.part, &r.opened, &r.done, &r.closed)
		b.repairs = append(b.repairs, r)
	})
	rows(w, db, "SELECT server, created, ended, state, result FROM tasks WHERE kind = 'burn-in' ORDER BY created", func(scan func(...any)) {
		var server, result string
		var x bookTest
		scan(&server, &x.created, &x.ended, &x.state, &result)
		if result != "" {
			must(w.t, json.Unmarshal([]byte(result), &x.proof))
		}
		b.tests[server] = append(b.tests[server], x)
	})
	rows(w, db, "SELECT scope, opened_at, reset_at FROM breakers ORDER BY opened_at", func(scan func(...any)) {
		var x bookBreaker
		scan(&x.scope, &x.from, &x.to)
		b.breaks = append(b.breaks, x)
	})
	rows(w, db, "SELECT a.server, a.accelerator, a.allocated_at, a.job FROM allocations a", func(scan func(...any)) {
		var server, accelerator, job string
		var at schema.Instant
		scan(&server, &accelerator, &at, &job)
		for _, c := range b.cordons[server] {
			// A batch that is being committed as the cordon is set is refused or before it: the moments are of one clock.
			if (c.accelerator == "" || c.accelerator == accelerator) && at > c.from && (c.to == 0 || at < c.to) {
				w.t.Errorf("%s was placed on %s of %s at %s, which was cordoned from %s to %s", job, accelerator, b.servers[server].name, at, c.from, c.to)
			}
		}
	})
	return b
}

// audit compares the record with what was dealt.
func (w *ward) audit(file string) {
	w.t.Helper()
	b := w.open(file)
	b.theFaultyWereOut()
	b.theWellWereNotOut()
	b.nothingCameBackUnproven()
	b.noLimitWasExceeded()
	db, err := store.Open(w.t.Context(), store.Config{Driver: "sqlite", DSN: file})
	must(w.t, err)
	defer db.Close()
	checkPool(w.t, db, 1)
}

// out is when a device, or the server where accelerator is empty, was first out at or after a moment.
func (b *books) out(server, accelerator string, at schema.Instant) (schema.Instant, bool) {
	first := schema.Instant(math.MaxInt64)
	for _, c := range b.cordons[server] {
		if accelerator != "" && c.accelerator != "" && c.accelerator != accelerator {
			continue
		}
		switch {
		case c.holds(at):
			return at, true
		case c.from >= at:
			first = min(first, c.from)
		}
	}
	return first, first < math.MaxInt64
}

// held is for how long of a span a breaker kept verdicts on a server back.
func (b *books) held(server string, s span) time.Duration {
	var parts []span
	for _, x := range b.breaks {
		v := b.servers[server]
		if strings.HasPrefix(x.scope, "model ") && x.scope != "model "+v.region+"/"+v.model || strings.HasPrefix(x.scope, "rack ") && x.scope != "rack "+v.site+"/"+v.rack {
			continue
		}
		from, to := max(x.from, s.from), min(cmp.Or(x.to, s.to), s.to)
		if from < to {
			parts = append(parts, span{from, to})
		}
	}
	slices.SortFunc(parts, func(a, c span) int { return cmp.Compare(a.from, c.from) })
	var sum time.Duration
	at := s.from
	for _, p := range parts {
		if p.to > at {
			sum += p.to.Sub(max(at, p.from))
			at = p.to
		}
	}
	return sum
}

// theFaultyWereOut: within the time of its rule, and what a busy machine and the breakers took.
func (b *books) theFaultyWereOut() {
	w := b.w
	took := map[string][]time.Duration{}
	var beyond []time.Duration
	var left []blow // who was mended or replaced with its server before it could be seen
	for _, x := range w.blows {
		if !x.out {
			continue
		}
		server, accelerator := b.byName[x.name], b.serials[x.serial]
		if x.server {
			accelerator = ""
		}
		at, ok := b.out(server, accelerator, x.at)
		if !ok && x.whileOut {
			left = append(left, x)
			continue
		}
		if !ok {
			w.t.Errorf("%s: %s of %s was never taken out", x.kind, cmp.Or(x.slot, "all"), x.name)
			continue
		}
		d := at.Sub(x.at)
		d -= b.held(server, span{x.at, at})
		took[x.kind] = append(took[x.kind], d)
		var within time.Duration
		if x.within != nil {
			within = x.within(w.pace)
		}
		beyond = append(beyond, d-within)
		if d > within+wardSlack {
			w.t.Errorf("%s: %s of %s was out after %s, its rule's time is %s", x.kind, cmp.Or(x.slot, "all"), x.name, d, within)
		}
	}
	for kind, list := range took {
		slices.Sort(list)
		w.t.Logf("%-14s %3d times out, after %s in the middle, %s at most", kind, len(list), list[len(list)/2].Round(time.Millisecond), list[len(list)-1].Round(time.Millisecond))
	}
	slices.Sort(beyond)
	if len(beyond) == 0 {
		w.t.Fatal("no fault was looked at")
	}
	w.t.Logf("beside its rule's own time a fault took %s in the middle, %s at 99 %%; %d met a server that was out, and were mended with it", beyond[len(beyond)/2].Round(time.Millisecond),
		beyond[len(beyond)*99/100].Round(time.Millisecond), len(left))
}

// theWellWereNotOut: a server without a fault that matters was never cordoned, and who came back was not kept longer than its check.
func (b *books) theWellWereNotOut() {
	w := b.w
	ill := map[string][]schema.Instant{}
	for _, x := range w.blows {
		if x.out {
			ill[b.byName[x.name]] = append(ill[b.byName[x.name]], x.at)
		}
	}
	var checks []time.Duration
	for _, r := range b.repairs {
		name := b.servers[r.server].name
		if !slices.ContainsFunc(ill[r.server], func(at schema.Instant) bool { return at <= r.opened }) {
			var why []string
			for _, f := range b.faults {
				if f.repair == r.id {
					why = append(why, f.rule+": "+f.text)
				}
			}
			w.t.Errorf("%s was well and taken out at %s: %s", name, r.opened, strings.Join(why, "; "))
		}
		if r.state != string(schema.RepairReturned) {
			w.t.Errorf("%s of %s ended as %s", r.id, name, r.state)
			continue
		}
		// From the beginning of the proof that let it back in: that is the check.
		last := b.proof(r)
		if last.created == 0 {
			continue // nothingCameBackUnproven tells it
		}
		checks = append(checks, r.closed.Sub(last.created))
		if d := r.closed.Sub(last.ended); d > wardSlack {
			w.t.Errorf("%s had passed its check and was kept for %s", name, d)
		}
	}
	// Of a server that is cordoned for one device only, the others go on until it is drained: they are out with it for the repair.
	slices.Sort(checks)
	if len(checks) > 0 {
		w.t.Logf("%d repairs; the check took %s in the middle, %s at most", len(b.repairs), checks[len(checks)/2].Round(time.Millisecond), checks[len(checks)-1].Round(time.Millisecond))
	}
}

// proof is the last burn-in of a server that ended before its repair was closed.
func (b *books) proof(r bookRepair) (last bookTest) {
	for _, x := range b.tests[r.server] {
		if x.ended > 0 && x.ended <= r.closed && x.created >= r.opened {
			last = x
		}
	}
	return last
}

// nothingCameBackUnproven: each return has a burn-in on all devices that began after the repair and after the last fault that was
// known, and nothing that was dealt before it began was still there.
func (b *books) nothingCameBackUnproven() {
	w, returned := b.w, 0
	for _, r := range b.repairs {
		if r.closed == 0 {
			continue
		}
		returned++
		name, x := b.servers[r.server].name, b.proof(r)
		if x.state != string(schema.TaskDone) || x.proof.Outcome != "passed" || len(x.proof.Devices) != b.servers[r.server].devices || x.created < r.done {
			w.t.Errorf("%s came back at %s with the proof %+v", name, r.closed, x)
			continue
		}
		for _, f := range b.faults {
			if f.server == r.server && f.seen <= r.closed && f.at > x.created && f.verdict != string(schema.ActionObserve) && f.verdict != schema.HeldStale {
				w.t.Errorf("%s came back at %s, proven from %s, with a fault of %s: %s", name, r.closed, x.created, f.at, f.text)
			}
		}
	}
	if returned == 0 {
		w.t.Error("nothing came back")
	}
	// What was dealt and is still in its slot when its server came back: its serial is among the proven devices of a later return.
	for _, d := range w.blows {
		if !d.out || d.also != device.BurnIn || d.serial == "" {
			continue
		}
		for _, r := range b.repairs {
			if x := b.proof(r); r.server == b.byName[d.name] && x.created > d.at && slices.Contains(x.proof.Devices, d.serial) {
				w.t.Errorf("%s of %s computes wrong results, and was let back in at %s", d.slot, d.name, r.closed)
			}
		}
	}
	w.t.Logf("%d returns, each proven on all devices", returned)
}

// noLimitWasExceeded counts anew, for each repair that was opened, what was out then: by model at once and within the hour, by rack.
func (b *books) noLimitWasExceeded() {
	w, l := b.w, store.DefaultLimits
	total := map[string]int{}
	for _, v := range b.servers {
		total["model "+v.region+"/"+v.model]++
		total["rack "+v.site+"/"+v.rack]++
	}
	corrupts := map[string]bool{}
	for _, r := range rules.Table {
		corrupts[r.Name] = r.Corrupts
	}
	opened := map[string]string{} // the rule that opened a repair
	for _, f := range b.faults {
		if f.repair != "" && opened[f.repair] == "" {
			opened[f.repair] = f.rule
		}
	}
	free := 0
	for i, r := range b.repairs {
		if corrupts[opened[r.id]] {
			free++ // work on it may be wrong by now: no limit holds it
			continue
		}
		v := b.servers[r.server]
		for _, scope := range []string{"model " + v.region + "/" + v.model, "rack " + v.site + "/" + v.rack} {
			since := schema.Instant(0)
			for _, x := range b.breaks {
				if x.scope == scope && x.to > 0 && x.to <= r.opened {
					since = max(since, x.to)
				}
				if x.scope == scope && x.from < r.opened && (x.to == 0 || r.opened < x.to) {
					w.t.Errorf("%s was taken out at %s for %s, though the breaker of %q was open", v.name, r.opened, opened[r.id], scope)
				}
			}
			out, hour := 1, map[string]bool{r.server: true}
			for _, o := range b.repairs[:i] {
				u := b.servers[o.server]
				if o.opened <= since || scope != "model "+u.region+"/"+u.model && scope != "rack "+u.site+"/"+u.rack {
					continue
				}
				if o.closed == 0 || o.closed > r.opened {
					out++
				}
				if r.opened.Sub(o.opened) <= time.Hour {
					hour[o.server] = true
				}
			}
			n := float64(total[scope])
			allowed, inHour := max(1, int(l.Rack*n)), math.MaxInt
			if strings.HasPrefix(scope, "model ") {
				allowed, inHour = max(l.AtLeast, int(l.AtOnce*n)), max(l.AtLeast, int(l.PerHour*n))
			}
			if out > allowed || len(hour) > inHour {
				w.t.Errorf("%s was the %d. of %q that was out at %s, and the %d. within the hour; the limits are %d and %d", v.name, out, scope, r.opened, len(hour), allowed, inHour)
			}
		}
	}
	w.t.Logf("%d breakers opened and were reset; %d of %d repairs no limit holds, since work may be wrong", len(b.breaks), free, len(b.repairs))
	if len(b.repairs) > 20 && len(b.breaks) == 0 {
		w.t.Error("no breaker opened: the limits were not tried")
	}
}
