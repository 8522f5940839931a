package allocator

import (
	"encoding/json"
	"testing"
	"time"

	"gpupool/activities/allocator/engine"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// What an operator takes back is taken back at once, not when the allocator happens to start again.
func TestARemovedQuotaNoLongerHoldsJobsBack(t *testing.T) {
	t.Parallel()
	const model = "nvidia-h100-80gb"
	ctx, db := t.Context(), storetest.Open(t)
	storetest.Available(t, db, 1, model, 2)
	_, err := db.CreateSpec(ctx, "test", store.NewSpec{Name: "x2", Model: model, Accelerators: 2})
	must(t, err)
	_, err = db.CreateTenant(ctx, "test", "blue", 1)
	must(t, err)
	_, err = db.CreateProject(ctx, "test", "blue", "main")
	must(t, err)
	_, err = db.SetQuota(ctx, "test", "blue", "", model, 0, 1)
	must(t, err)
	j, _, err := db.SubmitJob(ctx, "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "x2", Nodes: 1, Command: []string{"true"}})
	must(t, err)
	l, err := load(ctx, db, "eu", "test", engine.Config{})
	must(t, err)
	_, _, err = l.cycle(ctx)
	must(t, err)
	if j, err = db.Job(ctx, j.ID); err != nil || j.State != schema.JobQueued {
		t.Fatalf("two accelerators over a quota of one: the job is %s (%v)", j.State, err)
	}
	must(t, db.DeleteQuota(ctx, "test", "blue", "", model))
	if _, err := l.catchUp(ctx); err != nil {
		t.Fatal(err)
	}
	_, _, err = l.cycle(ctx)
	must(t, err)
	if j, err = db.Job(ctx, j.ID); err != nil || j.State != schema.JobStarting {
		t.Fatalf("once the quota is gone the job is %s (%v), want starting: %s", j.State, err, j.Reason)
	}
}

// Estimates and held starts rest on when running jobs must end.
func TestANewLimitOfARunningJobIsCounted(t *testing.T) {
	t.Parallel()
	const model = "nvidia-h100-80gb"
	ctx, db := t.Context(), storetest.Open(t)
	storetest.Available(t, db, 1, model, 2)
	_, err := db.CreateSpec(ctx, "test", store.NewSpec{Name: "x2", Model: model, Accelerators: 2})
	must(t, err)
	_, err = db.CreateTenant(ctx, "test", "blue", 1)
	must(t, err)
	_, err = db.CreateProject(ctx, "test", "blue", "main")
	must(t, err)
	var ids []string
	for range 2 {
		j, _, err := db.SubmitJob(ctx, "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "x2", Nodes: 1, Command: []string{"true"}, TimeLimit: 10 * time.Hour})
		must(t, err)
		ids = append(ids, j.ID)
	}
	l, err := load(ctx, db, "eu", "test", engine.Config{})
	must(t, err)
	_, _, err = l.cycle(ctx)
	must(t, err)
	must(t, db.SetTimeLimit(ctx, ids[0], time.Hour, "test"))
	_, err = l.catchUp(ctx)
	must(t, err)
	_, _, err = l.cycle(ctx)
	must(t, err)
	waits, err := db.Job(ctx, ids[1])
	must(t, err)
	var why struct {
		Code   schema.ReasonCode `json:"code"`
		Detail struct {
			Next struct {
				At time.Time `json:"at"`
			} `json:"next_release"`
		} `json:"detail"`
	}
	must(t, json.Unmarshal([]byte(waits.Reason), &why))
	if left := time.Until(why.Detail.Next.At); why.Code != schema.ReasonCapacity || left > time.Hour || left < 50*time.Minute {
		t.Fatalf("the job waits with %s for a release in %s; the one that runs may run for an hour: %s", why.Code, left, waits.Reason)
	}
}
