package allocator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"gpupool/activities/allocator/engine"
	"gpupool/schema"
	"gpupool/schema/store"
)

// repair is an open one, and how long past ones of its kind took.
type repair struct {
	schema.Repair
	past []int64 // ms
}

// fewRepairs is how many past repairs of a kind, longer than the one at hand is by now, an estimate needs at least: of fewer
// nothing is said.
const fewRepairs = 5

// repairs are the open ones of servers, by server. Past ones are read only where there is one.
func (l *live) repairs(ctx context.Context, servers []string) (map[string][]repair, error) {
	if len(servers) == 0 {
		return nil, nil
	}
	open, err := l.db.OpenRepairs(ctx, servers)
	if err != nil || len(open) == 0 {
		return nil, err
	}
	times, err := l.db.RepairTimes(ctx)
	if err != nil {
		return nil, err
	}
	out := map[string][]repair{}
	for _, r := range open {
		out[r.Server] = append(out[r.Server], repair{r, times[store.RepairKind{Action: r.Action, Cure: r.Cure}]})
	}
	return out, nil
}

// expect fills in when a server and its accelerators under repair are expected back. Of a server that somebody keeps out of
// use for another cause nothing is said.
func expect(s *engine.Server, open []repair, cordons []schema.Cordon, now schema.Instant) {
	if slices.ContainsFunc(cordons, func(c schema.Cordon) bool { return c.Accelerator == "" && c.Owner != schema.CordonFault }) {
		return
	}
	for _, r := range open {
		at, late, basis := r.over(now)
		if at.IsZero() {
			continue
		}
		for i := range s.Accelerators {
			if a := &s.Accelerators[i]; r.Accelerator == "" || a.ID == r.Accelerator {
				a.Back, a.BackLate, a.BackBasis = at, late, basis
			}
		}
		if at.After(s.Back) { // the last of several
			s.Back, s.BackLate, s.BackBasis = at, late, basis
		}
	}
}

// over is when the repair is expected to be over: the median and 9 in 10 of those past ones that took longer than it has
// taken by now. The zero time where too few are left to tell.
func (r repair) over(now schema.Instant) (at, late time.Time, basis string) {
	longer := slices.DeleteFunc(slices.Clone(r.past), func(took int64) bool { return took <= int64(now-r.OpenedAt) })
	n := len(longer)
	if n < fewRepairs {
		return at, late, ""
	}
	slices.Sort(longer)
	after := func(took int64) time.Time { return r.OpenedAt.Add(time.Duration(took) * time.Millisecond).Time() }
	kind := cmp.Or(string(r.Cure), string(r.Action), "no known cure")
	return after(longer[(n-1)/2]), after(longer[(n*9+9)/10-1]), fmt.Sprintf("median and 9 in 10 of %d past repairs (%s) that took longer than this one has by now", n, kind)
}

// repairLook is how often what is expected of open repairs is worked out again: as time goes by the short ones drop out.
const repairLook = time.Minute

// expectAgain does so when it is due, and says whether there was an open repair.
func (l *live) expectAgain(ctx context.Context) (bool, error) {
	now := l.db.Now()
	if now < l.repairsAt.Add(repairLook) {
		return false, nil
	}
	l.repairsAt = now
	open, err := l.db.OpenRepairs(ctx, nil)
	if err != nil || len(open) == 0 {
		return false, err
	}
	servers := map[string]bool{}
	for _, r := range open {
		servers[r.Server] = true
	}
	return true, l.setServers(ctx, keys(servers))
}
