package store_test

import (
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

func TestOnCallCountsWhatWakesAnOperator(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	s := storetest.OpenAt(t, func() time.Time { return now })
	ctx, ring := t.Context(), storetest.Ring(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	read := func() store.OnCall {
		t.Helper()
		o, err := s.ReadOnCall(ctx)
		must(err)
		return o
	}
	if o := read(); len(o.Epochs)+len(o.Unevaluated)+len(o.BMCs)+len(o.Clusters)+o.Undelivered != 0 || o.Webhooks["disabled"] != 0 {
		t.Fatalf("an empty pool: %+v", o)
	}

	v := storetest.Available(t, s, 1, "nvidia-h100-80gb", 8)
	_, err := s.TakeEpoch(ctx, v.Region, "a")
	must(err)
	_, err = s.TakeEpoch(ctx, v.Region, "b")
	must(err)
	if o := read(); o.Epochs[v.Region] != 2 || o.Unevaluated[v.Region] != 0 {
		t.Fatalf("an allocator without a queue: %+v", o)
	}
	_, err = s.CreateTenant(ctx, "test", "acme", 100)
	must(err)
	_, err = s.CreateProject(ctx, "test", "acme", "main")
	must(err)
	_, err = s.CreateSpec(ctx, "test", store.NewSpec{Name: "x8", Model: "nvidia-h100-80gb", Accelerators: 8})
	must(err)
	first := s.Now()
	for range 2 {
		_, _, err = s.SubmitJob(ctx, "test", "", "", store.NewJob{Tenant: "acme", Project: "main", Spec: "x8", Nodes: 1, Region: v.Region, Command: []string{"true"}})
		must(err)
		now = now.Add(time.Minute)
	}
	must(s.SawBMC(ctx, schema.BMCSighting{Server: v.ID, Power: "unknown", Trouble: schema.BMCCredential, Text: "it refuses us"}))
	epoch, err := s.TakeCluster(ctx, "slurm", schema.ClusterSlurm, 0, "c")
	must(err)
	must(s.Connector("slurm", epoch).Seen(ctx, true, "refused"))
	_, err = s.CreateWebhook(ctx, "ann", store.NewWebhook{Name: "pager", URL: "https://x.test/", Events: []string{"server.*"}, Secret: "s"}, ring)
	must(err)
	must(s.SetCursor(ctx, "deliver", 1))
	head, err := s.Head(ctx)
	must(err)

	o := read()
	switch up, known := o.Clusters["slurm"]; {
	case o.Unevaluated[v.Region] != first:
		t.Errorf("the oldest unevaluated job waits since %s, want %s", o.Unevaluated[v.Region], first)
	case len(o.BMCs) != 1 || o.BMCs[schema.BMCCredential] != 1:
		t.Errorf("BMCs: %v", o.BMCs)
	case up || !known:
		t.Errorf("clusters: %v", o.Clusters)
	case o.Webhooks["told"] != 1:
		t.Errorf("webhooks: %v", o.Webhooks)
	case o.Behind["deliver"] != head-1:
		t.Errorf("behind: %v of %d events", o.Behind, head)
	}
}
