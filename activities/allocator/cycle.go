package allocator

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"gpupool/activities/allocator/engine"
	"gpupool/schema"
	"gpupool/schema/store"
)

// cycle decides, commits, and takes back from memory what the database refused.
func (l *live) cycle(ctx context.Context) (next time.Time, more bool, err error) {
	r := l.pool.Cycle(l.db.Now().Time())
	l.number = r.Cycle
	c := store.Cycle{Number: r.Cycle, Mixed: l.mixed, Limits: l.limits, Reasons: make(map[string]schema.ReasonDoc, len(r.Reasons))}
	for _, s := range r.Starts {
		c.Starts = append(c.Starts, store.Start{Job: s.Job, Attempt: s.Attempt, Places: places(s.Places)})
	}
	for _, v := range r.Victims {
		c.Victims = append(c.Victims, store.Victim{Job: v.Job, Attempt: v.Attempt, For: v.For, Cause: fmt.Sprintf("preempted (%s) for %s", v.Why, v.For)})
	}
	for _, e := range r.Expired {
		c.Expired = append(c.Expired, store.Expiry{Job: e.Job, Cause: fmt.Sprintf("not started within its max queue time of %s", e.MaxQueue)})
	}
	for _, why := range r.Reasons {
		doc, err := reasonDoc(why)
		if err != nil {
			return next, false, err
		}
		c.Reasons[why.Job] = doc
	}
	if len(c.Starts)+len(c.Victims)+len(c.Expired)+len(c.Reasons) == 0 {
		return r.NextWake, r.More, nil
	}
	refused, err := l.db.CommitCycle(ctx, l.region, l.epoch, c)
	if err != nil {
		return next, false, fmt.Errorf("committing cycle %d: %w", r.Cycle, err)
	}
	for _, no := range refused {
		l.pool.Revert(no.Job, no.Attempt)
	}
	no := make(map[string]bool, len(refused))
	for _, r := range refused {
		no[r.Job] = true
	}
	if err := l.moved(ctx, r.Starts, no); err != nil {
		return next, false, err
	}
	if len(refused) > 0 {
		if err := l.reread(ctx, r.Starts, refused); err != nil {
			return next, false, err
		}
	}
	return r.NextWake, r.More || len(refused) > 0, nil
}

func places(in []engine.Place) []store.Place {
	out := make([]store.Place, len(in))
	for i, p := range in {
		out[i] = store.Place{Server: p.Server, Accelerators: p.Accelerators}
	}
	return out
}

// reread brings memory in line with the database for what a refused start touched: the refusal means that memory
// was behind, and the event that says so may still be on its way.
func (l *live) reread(ctx context.Context, starts []engine.Start, refused []store.Refusal) error {
	no := map[string]bool{}
	for _, r := range refused {
		no[r.Job] = true
	}
	servers, jobs := map[string]bool{}, map[string]bool{}
	for _, s := range starts {
		if !no[s.Job] {
			continue
		}
		jobs[s.Job] = true
		for _, p := range s.Places {
			servers[p.Server] = true
		}
	}
	if err := l.setServers(ctx, keys(servers)); err != nil {
		return err
	}
	return l.setJobs(ctx, keys(jobs))
}

// reasonDoc writes the engine's reason as the record keeps it.
func reasonDoc(r engine.Reason) (schema.ReasonDoc, error) {
	d := schema.ReasonDoc{Code: schema.ReasonCode(r.Code), Class: string(r.Class), Since: schema.At(r.Since), EvaluatedAt: schema.At(r.EvaluatedAt), Cycle: r.Cycle, ClearsWhen: r.ClearsWhen}
	eta := any(r.ETA)
	if r.ETA == nil {
		eta = map[string]string{"why": r.NoETA}
	}
	for _, f := range []struct {
		to   *json.RawMessage
		from any
	}{{&d.Scope, r.Scope}, {&d.Detail, r.Detail}, {&d.Blockers, r.Blockers}, {&d.Position, r.Position}, {&d.ETA, eta}, {&d.Also, r.Also}} {
		b, err := json.Marshal(f.from)
		if err != nil {
			return d, fmt.Errorf("reason of job %s: %w", r.Job, err)
		}
		*f.to = b
	}
	return d, nil
}
