package console_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"gpupool/api/testpool"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
	"gpupool/schema/usage"
)

// used is a pool in which tenant acme's job has idled and runs, and globex's waits.
func used(t *testing.T) (p *testpool.Pool, running schema.Job) {
	t.Helper()
	p = start(t)
	ctx := t.Context()
	check := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	v := storetest.Available(t, p.Store, 1, "nvidia-h100-80gb", 8)
	check(p.Store.CreateSpec(ctx, "test", store.NewSpec{Name: "h100x8", Model: "nvidia-h100-80gb", Accelerators: 8}))
	policy := usage.DefaultPolicy()
	policy.Zone = "Pacific/Auckland" // a day ahead of UTC for half of the day
	check(p.Store.SetChargePolicy(ctx, "test", policy))
	submit := func(tenant string) schema.Job {
		check(p.Store.CreateTenant(ctx, "test", tenant, 1))
		check(p.Store.CreateProject(ctx, "test", tenant, "main"))
		j, _, err := p.Store.SubmitJob(ctx, "test", "", "", store.NewJob{Tenant: tenant, Project: "main", Name: tenant + "-job", Spec: "h100x8", Nodes: 1, Command: []string{"sleep", "forever"}})
		check(j, err)
		return j
	}
	until := func(id string, what func(schema.Job) bool) schema.Job {
		t.Helper()
		w := p.Store.Watch(store.TopicJob(id))
		defer w.Close()
		for end := time.After(time.Minute); ; {
			j, err := p.Store.Job(ctx, id)
			check(j, err)
			if what(j) {
				return j
			}
			select {
			case <-w.C:
			case <-end:
				t.Fatalf("job %s is %s", j.Name, j.State)
			}
		}
	}
	running = until(submit("acme").ID, func(j schema.Job) bool { return j.State == schema.JobRunning })
	until(submit("globex").ID, func(j schema.Job) bool { return strings.Contains(j.Reason, string(schema.ReasonCapacity)) })
	limit := (3 * time.Hour).Milliseconds()
	check(p.Store.SetProject(ctx, "test", "acme", "main", store.AccountChange{IdleReclaim: &limit}))
	check(p.Store.SetBudget(ctx, "test", store.Budget{Tenant: "acme", Amount: 1000 * usage.Hour, Zone: policy.Zone}))
	accs, err := p.Store.Accelerators(ctx, store.AcceleratorFilter{Server: v.ID})
	check(accs, err)
	began := p.Store.Now()
	for p.Store.Now() == began {
		<-time.After(time.Millisecond)
	}
	var samples []store.Sampled
	for _, a := range accs {
		samples = append(samples, store.Sampled{Identity: a.Identity, Interval: usage.Interval{Start: began, End: p.Store.Now()}, Busy: 0})
	}
	check(nil, p.Store.AddUtilization(ctx, v.ID, samples, 0.05))
	return p, running
}

func TestUsageIsSeenByKeyInThePoolsZoneWithWhatWaitsAndWhatIdles(t *testing.T) {
	t.Parallel()
	p, running := used(t)
	zone, err := time.LoadLocation("Pacific/Auckland")
	if err != nil {
		t.Fatal(err)
	}
	month := p.Store.Now().Time().In(zone).Format("2006-01")
	op := visit(t, p).signIn(schema.RoleOperator, "", "")
	for path, want := range map[string][]string{
		"/ui/usage":                                           {"Usage in " + month, "Months are of Pacific/Auckland", "Budgets of this month", "Runs now: 8 GPU-hours an hour", "have done nothing since", "it is stopped at", "1 jobs wait still", "STARTED_AT_ONCE", "zone&#34;:&#34;Pacific/Auckland"},
		"/ui/usage?counts=tenant":                             {"by tenant", "label&#34;:&#34;acme", "globex: 1 jobs wait still", "Idle among the allocated"},
		"/ui/usage?counts=spec":                               {"by spec", "label&#34;:&#34;h100x8"},
		"/ui/usage?counts=region":                             {"by region"},
		"/ui/jobs/" + running.ID:                              {"have done nothing since", "it is stopped at"},
		"/ui/usage/focus.csv?month=" + month:                  {"BilledCost,", "acme"},
		"/ui/usage/statement.html?tenant=acme&month=" + month: {"Statement of accelerator time", "Pacific/Auckland"},
	} {
		resp, text := op.do(http.MethodGet, path, nil)
		for _, w := range want {
			if resp.StatusCode != http.StatusOK || !strings.Contains(text, w) {
				t.Errorf("%s: %d, no %q in\n%s", path, resp.StatusCode, w, text)
			}
		}
	}
	member := visit(t, p).signIn(schema.RoleTenantAdmin, "globex", "")
	for _, path := range []string{"/ui/usage", "/ui/usage?counts=tenant", "/ui/usage/focus.csv?month=" + month, "/ui/usage/statement.html?month=" + month} {
		if resp, text := member.do(http.MethodGet, path, nil); resp.StatusCode != http.StatusOK || strings.Contains(text, "acme") {
			t.Errorf("%s: %d; globex sees acme in\n%s", path, resp.StatusCode, text)
		}
	}
	if resp, _ := member.do(http.MethodGet, "/ui/usage/other.csv?month="+month, nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("a file that there is not: %d", resp.StatusCode)
	}
}
