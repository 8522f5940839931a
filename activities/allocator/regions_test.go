package allocator

import (
	"sync"
	"testing"
	"time"

	"gpupool/activities/allocator/engine"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// regions is one record with two regions of one server each, and an allocator for each.
type regions struct {
	*policed
	us *policed
}

func newRegions(t *testing.T, db *store.Store) *regions {
	t.Helper()
	eu := &policed{region: newRegion(t, db)}
	second := storetest.NewServer(2, h100, 2)
	second.Region, second.Site = "us", "nyc1"
	us := &policed{region: &region{t, db, storetest.AvailableAs(t, db, second)}}
	r := &regions{eu, us}
	r.load()
	return r
}

// load makes both allocators new ones that know the record as it is.
func (r *regions) load() {
	r.t.Helper()
	var err error
	r.policed.l, err = load(r.t.Context(), r.db, "eu", "test", engine.Config{}, true)
	must(r.t, err)
	r.us.l, err = load(r.t.Context(), r.db, "us", "test", engine.Config{}, true)
	must(r.t, err)
}

// together submits a job in each region and lets both allocators decide at the same moment, neither having heard of the
// other's start: how many of the jobs start.
func (r *regions) together(change func(*store.NewJob)) (started []string, waits []string) {
	r.t.Helper()
	ids := []string{r.submitAs(func(n *store.NewJob) { n.Region = "eu"; change(n) }), r.submitAs(func(n *store.NewJob) { n.Region = "us"; change(n) })}
	for _, p := range []*policed{r.policed, r.us} {
		_, err := p.l.catchUp(r.t.Context())
		must(r.t, err)
	}
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for i, p := range []*policed{r.policed, r.us} {
		wg.Go(func() { _, _, errs[i] = p.l.cycle(r.t.Context()) })
	}
	wg.Wait()
	for _, err := range errs {
		must(r.t, err)
	}
	r.policed.cycle()
	r.us.cycle()
	for _, id := range ids {
		j, err := r.db.Job(r.t.Context(), id)
		must(r.t, err)
		if j.State == schema.JobStarting {
			started = append(started, id)
		} else {
			waits = append(waits, id)
		}
	}
	return started, waits
}

// Two regions that decide at once can't both take what is left of a tenant's limit, and who waits is told the whole truth.
func TestATenantsLimitsHoldOverAllRegionsTogether(t *testing.T) {
	t.Parallel()
	const hour = int64(time.Hour / time.Millisecond)
	for name, c := range map[string]struct {
		limit func(*testing.T, *store.Store)
		code  schema.ReasonCode
		check func(*regions, string)
	}{
		"quota": {func(t *testing.T, db *store.Store) {
			_, err := db.SetQuota(t.Context(), "test", "blue", "", h100, 0, 3)
			must(t, err)
		}, schema.ReasonQuota, func(r *regions, job string) {
			var d struct{ Used, Asked, Limit, Over float64 }
			r.waits(job, schema.ReasonQuota, &d)
			if d.Used != 2 || d.Asked != 2 || d.Limit != 3 {
				r.t.Errorf("the quota's reason says %+v", d)
			}
		}},
		"running jobs": {func(t *testing.T, db *store.Store) {
			one := 1
			_, err := db.SetProject(t.Context(), "test", "blue", "main", store.AccountChange{MaxRunningJobs: &one})
			must(t, err)
		}, schema.ReasonJobLimit, func(r *regions, job string) {
			var d struct{ Running, Limit int }
			r.waits(job, schema.ReasonJobLimit, &d)
			if d.Running != 1 || d.Limit != 1 {
				r.t.Errorf("the limit's reason says %+v", d)
			}
		}},
		"guarantee": {func(t *testing.T, db *store.Store) {
			_, err := db.SetQuota(t.Context(), "test", "blue", "", h100, 2, -1)
			must(t, err)
		}, schema.ReasonGuaranteeOnly, func(r *regions, job string) {
			var d struct {
				Guaranteed float64
				Used       float64 `json:"nonpreemptible_used"`
			}
			r.waits(job, schema.ReasonGuaranteeOnly, &d)
			if d.Guaranteed != 2 || d.Used != 2 {
				r.t.Errorf("the guarantee's reason says %+v", d)
			}
		}},
		"budget": {func(t *testing.T, db *store.Store) {
			_, err := db.SetBudget(t.Context(), "test", store.Budget{Tenant: "blue", Amount: 3 * hour})
			must(t, err)
		}, schema.ReasonBudget, func(r *regions, job string) {
			var d struct{ Amount, Asked, Remaining float64 }
			r.waits(job, schema.ReasonBudget, &d)
			if d.Amount != 3 || d.Asked != 2 || d.Remaining < 0.99 || d.Remaining > 1.01 {
				r.t.Errorf("the budget's reason says %+v", d)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := storetest.Open(t)
			r := newRegions(t, db)
			c.limit(t, db)
			for range 2 { // the second time by allocators that have just loaded
				started, waits := r.together(func(n *store.NewJob) { n.TimeLimit = time.Hour })
				if len(started) != 1 || len(waits) != 1 {
					t.Fatalf("%d of two jobs start at once where the limit has room for one", len(started))
				}
				c.check(r, waits[0])
				must(t, db.RequestStop(t.Context(), waits[0], 0, schema.AttemptCancelled, "test", ""))
				where := r.policed
				if j, err := db.Job(t.Context(), started[0]); err != nil || j.Region == "us" {
					where = r.us
				}
				where.finish(started[0])
				r.load()
			}
		})
	}
}
