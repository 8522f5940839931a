package allocator

import (
	"context"

	"gpupool/activities/allocator/engine"
)

// limited are the tenants with a limit of any kind: a quota, a limit of running jobs, a budget.
func (l *live) limited() map[string]bool {
	out := make(map[string]bool, len(l.bounded)+len(l.spends))
	for _, m := range []map[string]bool{l.bounded, l.spends} {
		for t := range m {
			out[t] = true
		}
	}
	return out
}

// elsewhere reads what those of the tenants that are limited hold in other regions; read says that there was one.
func (l *live) elsewhere(ctx context.Context, tenants []string) (read bool, err error) {
	limited := l.limited()
	if l.limits == nil {
		l.limits = map[string]int64{}
	}
	for t := range l.limits {
		if !limited[t] {
			delete(l.limits, t)
			l.pool.SetElsewhere(t, nil)
		}
	}
	var of []string
	spends := false
	for _, t := range tenants {
		if limited[t] {
			of = append(of, t)
			spends = spends || l.spends[t]
		}
	}
	if len(of) == 0 {
		return false, nil
	}
	held, err := l.db.Elsewhere(ctx, l.region, of)
	if err != nil {
		return false, err
	}
	for t, e := range held {
		in := make([]engine.Elsewhere, len(e.Holds))
		for i, h := range e.Holds {
			in[i] = engine.Elsewhere{Project: h.Project, Model: h.Model, Preemptible: h.Preemptible, Accelerators: int64(h.Accelerators), Jobs: h.Jobs}
		}
		l.pool.SetElsewhere(t, in)
		l.limits[t] = e.Version
	}
	if spends { // read after the versions, as what is held is
		return true, l.setBudgets(ctx)
	}
	return true, nil
}

// moved notes that a commit with starts of these tenants has moved the versions of their limits, but where some were refused:
// of those the record is asked.
func (l *live) moved(ctx context.Context, starts []engine.Start, refused map[string]bool) error {
	again, once := map[string]bool{}, map[string]bool{}
	for _, s := range starts {
		if refused[s.Job] {
			again[s.Tenant] = true
		}
		once[s.Tenant] = true
	}
	for t := range once {
		if _, limited := l.limits[t]; limited && !again[t] {
			l.limits[t]++
		}
	}
	_, err := l.elsewhere(ctx, keys(again))
	return err
}
