package allocator

import (
	"testing"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// judge reports a fault of a server and lets a rule ask for a repair.
func (p *policed) judge(v schema.Server, code string) schema.Fault {
	p.t.Helper()
	must(p.t, p.db.ReportFault(p.t.Context(), v.ID, schema.Fault{Source: "agent", Kind: "xid", Code: code, Severity: schema.SeverityCritical, Text: "XID " + code, Dedupe: v.ID + code}))
	all, err := p.db.Faults(p.t.Context(), v.ID)
	must(p.t, err)
	f, err := p.db.Judge(p.t.Context(), all[0].ID, store.Verdict{Rule: "xid", Action: schema.ActionRepair, Cure: schema.CureTechnician, Why: "XID " + code})
	must(p.t, err)
	return f
}

// upTo checks who can act on the job's reason and what it takes.
func (p *policed) upTo(job, class string, what ...string) {
	p.t.Helper()
	var d struct {
		ToDecide []string `json:"to_decide"`
	}
	p.waits(job, schema.ReasonUnhealthy, &d)
	j, err := p.db.Job(p.t.Context(), job)
	must(p.t, err)
	if why := reasonOf(p.t, j); why.Class != class || len(d.ToDecide) != len(what) || len(what) > 0 && d.ToDecide[0] != what[0] {
		p.t.Fatalf("up to %q to decide %q, want %q and %q", why.Class, d.ToDecide, class, what)
	}
}

// A server that a breaker keeps from being repaired, or an operator from use, does not come back by itself: who waits for it
// is told whom to ask, by the news of it and by the record.
func TestWhoWaitsForWhatAPersonMustDecideIsToldSo(t *testing.T) {
	t.Parallel()
	p := newPoliced(t)
	for n := range 2 { // others of its rack; with one of three out the rack's limit is reached
		other := storetest.Available(t, p.db, 100+n, "nvidia-other", 1)
		if n == 0 {
			p.judge(other, "119")
		}
	}
	p.cycle()
	devices := storetest.Devices(p.server.Name, h100, 2)
	devices[1].Error = "GPU is lost"
	_, err := p.db.Heartbeat(t.Context(), p.server.ID, agentproto.Heartbeat{Apart: true, BootID: "boot-1", Devices: devices})
	must(t, err)
	job := p.submitAs(func(*store.NewJob) {})
	p.cycle()
	p.upTo(job, "wait")

	held := p.judge(p.server, "79")
	if held.Verdict != schema.HeldLimited || held.Breaker == "" {
		t.Fatalf("the fault was judged %+v", held)
	}
	for range 2 {
		p.cycle()
		p.upTo(job, "ask an admin", "breaker "+held.Breaker+" is reset")
		p.restart()
	}
	p.cycle()
	_, err = p.db.ResetBreaker(t.Context(), held.Breaker, "looked into", "ann")
	must(t, err)
	p.cycle()
	p.upTo(job, "wait")

	_, err = p.db.Cordon(t.Context(), p.server.ID, "", schema.CordonOperator, "ann", "moving the rack")
	must(t, err)
	p.cycle()
	p.upTo(job, "ask an admin", "the operator's cordon of "+p.server.ID+" is lifted")
}
