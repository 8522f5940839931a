package store_test

import (
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

func TestALimitHoldsOverAllRegions(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1)
	start := func(version int64, from int) []store.Refusal {
		t.Helper()
		b.cycle++
		no, err := b.CommitCycle(t.Context(), "eu", b.epoch, store.Cycle{Number: b.cycle, Starts: []store.Start{b.start(b.submit(1), b.place(0, from))}, Limits: map[string]int64{"blue": version}})
		b.must(err)
		return no
	}
	elsewhere := func(region string) store.Elsewhere {
		t.Helper()
		all, err := b.Elsewhere(t.Context(), region, []string{"blue", "nobody"})
		b.must(err)
		if len(all) != 2 || all["nobody"].Version != 0 || len(all["nobody"].Holds) != 0 {
			t.Fatalf("elsewhere: %+v", all)
		}
		return all["blue"]
	}
	if no := start(0, 0); len(no) != 0 {
		t.Fatalf("the first start: %+v", no)
	}
	if e := elsewhere("us"); e.Version != 1 || len(e.Holds) != 1 || e.Holds[0] != (store.HeldElsewhere{Tenant: "blue", Project: "main", Model: h100, Accelerators: 2, Jobs: 1}) {
		t.Fatalf("for another region: %+v", e)
	}
	if e := elsewhere("eu"); e.Version != 1 || len(e.Holds) != 0 {
		t.Fatalf("for its own region: %+v", e)
	}
	if no := start(0, 2); len(no) != 1 || b.live() != 2 {
		t.Fatalf("a start that rests on an old version is refused with %+v, and %d are held", no, b.live())
	}
	if no := start(1, 2); len(no) != 0 || b.live() != 4 {
		t.Fatalf("one that rests on the version that holds is refused with %+v, and %d are held", no, b.live())
	}
}

func TestABreakerHoldsFaultsBackUntilItIsReset(t *testing.T) {
	t.Parallel()
	b := newBench(t, 3)
	ctx := t.Context()
	var last schema.Fault
	for _, s := range b.servers { // of one rack, of which half may be out
		b.must(b.ReportFault(ctx, s.ID, schema.Fault{Source: "agent", Kind: "xid", Code: "79", Severity: schema.SeverityCritical, Text: "gone", Dedupe: s.ID, At: b.Now()}))
		faults, err := b.Faults(ctx, s.ID)
		b.must(err)
		last, err = b.Judge(ctx, faults[0].ID, store.Verdict{Rule: "xid-79", Action: schema.ActionRepair, Why: "gone"})
		b.must(err)
	}
	open, err := b.Breakers(ctx, true)
	b.must(err)
	if len(open) != 1 || open[0].Scope != "rack s1/r1" || len(open[0].Held) != 2 || open[0].Held[1].Fault != last.ID || last.Verdict != schema.HeldLimited {
		t.Fatalf("open: %+v; the last fault: %+v", open, last)
	}
	if o, err := b.PoolOverview(ctx); err != nil || len(o.Breakers) != 1 || len(o.Breakers[0].Held) != 2 {
		t.Fatalf("the overview: %+v, %v", o.Breakers, err)
	}
	if _, err := b.ResetBreaker(ctx, open[0].ID, " ", "ann"); !schema.Is(err, schema.CodeInvalid) {
		t.Fatalf("without a reason: %v", err)
	}
	_, err = b.ResetBreaker(ctx, open[0].ID, "a bad driver", "ann")
	b.must(err)
	if f, err := b.Fault(ctx, last.ID); err != nil || f.Verdict != "" {
		t.Fatalf("what was held back: %+v, %v", f, err)
	}
	if held, err := b.HeldBy(ctx, open[0].ID); err != nil || len(held) != 2 {
		t.Fatalf("it held back faults of %v, %v", held, err)
	}
	all, err := b.Breakers(ctx, false)
	if err != nil || len(all) != 1 || all[0].ResetBy != "ann" || len(all[0].Held) != 0 {
		t.Fatalf("all: %+v, %v", all, err)
	}
}

func TestAWebhooksMessagesWaitInOrderUntilTheyAreTakenOrGivenUp(t *testing.T) {
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
	w, err := s.CreateWebhook(ctx, "ann", store.NewWebhook{Name: "pager", URL: "https://x.test/", Events: []string{"server.*"}, Secret: "s"}, ring)
	must(err)
	if _, err := s.CreateWebhook(ctx, "ann", store.NewWebhook{Name: "pager", URL: "https://x.test/", Events: []string{"server.*"}, Secret: "s"}, ring); !schema.Is(err, schema.CodeConflict) {
		t.Fatalf("the same name again: %v", err)
	}
	storetest.Available(t, s, 1, h100, 4)
	news, next, err := s.WebhookNews(ctx, w, w.Cursor, 100)
	must(err)
	if len(news) < 2 || next <= w.Cursor {
		t.Fatalf("news: %+v up to %d", news, next)
	}
	message := func(id, subject string, event int64) schema.WebhookDelivery {
		return schema.WebhookDelivery{ID: id, Webhook: w.ID, Event: event, Kind: news[0].Kind, Subject: subject, Body: "{}"}
	}
	list := []schema.WebhookDelivery{message("a1", "a", 1), message("a2", "a", 2), message("b1", "b", 3)}
	for range 2 { // the second time none is kept twice
		taken, err := s.QueueDeliveries(ctx, w.ID, next, list)
		must(err)
		if n, err := s.OpenDeliveries(ctx, w.ID); err != nil || n != 3 || !taken {
			t.Fatalf("%d wait, taken %v, %v", n, taken, err)
		}
	}
	due := func(want ...string) {
		t.Helper()
		w, err = s.Webhook(ctx, "pager", "")
		must(err)
		list, _, err := s.DueDeliveries(ctx, w, 10)
		must(err)
		var got []string
		for _, d := range list {
			got = append(got, d.ID)
		}
		if len(got) != len(want) {
			t.Fatalf("due are %v, not %v", got, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("due are %v, not %v", got, want)
			}
		}
	}
	due("a1", "b1")
	must(s.RecordTries(ctx, w.ID, time.Hour, []store.Tried{{ID: "a1", Status: 200}, {ID: "b1", Status: 500, Error: "500", Again: time.Minute}}))
	due("a2")
	now = now.Add(time.Minute)
	due("a2", "b1")
	must(s.RecordTries(ctx, w.ID, time.Hour, []store.Tried{{ID: "a2", Error: "refused", Again: 2 * time.Hour}, {ID: "b1", Error: "refused", Again: 2 * time.Hour}}))
	now = now.Add(2 * time.Hour)
	must(s.RecordTries(ctx, w.ID, time.Hour, []store.Tried{{ID: "a2", Error: "refused", Again: time.Hour}}))
	due() // it took nothing for longer than an hour: it is disabled
	if w.DisabledAt == 0 || w.DisabledWhy == "" {
		t.Fatalf("it is %+v", w)
	}
	if taken, err := s.QueueDeliveries(ctx, w.ID, next+1, []schema.WebhookDelivery{message("c1", "c", 9)}); err != nil || taken {
		t.Fatalf("a disabled one takes more: %v, %v", taken, err)
	}
	d, err := s.TestWebhook(ctx, "ann", w.ID, func(string, schema.Instant) (string, error) { return "{}", nil })
	must(err)
	due(d.ID) // a test is tried all the same
	_, err = s.EnableWebhook(ctx, "ann", w.ID, false)
	must(err)
	w, err = s.Webhook(ctx, w.ID, "")
	must(err)
	if list, _, err := s.DueDeliveries(ctx, w, 10); err != nil || len(list) != 3 {
		t.Fatalf("enabled again, due are %+v, %v", list, err)
	}
	if kept, err := s.Deliveries(ctx, w.ID, schema.DeliveryDelivered, 10); err != nil || len(kept) != 1 || kept[0].ID != "a1" {
		t.Fatalf("delivered: %+v, %v", kept, err)
	}
	now = now.Add(8 * 24 * time.Hour)
	must(s.PruneDeliveries(ctx))
	if _, err := s.Delivery(ctx, w.ID, "a1"); !schema.Is(err, schema.CodeNotFound) {
		t.Fatalf("a week later: %v", err)
	}
	must(s.DeleteWebhook(ctx, "ann", w.ID))
	if n, err := s.OpenDeliveries(ctx, w.ID); err != nil || n != 0 {
		t.Fatalf("of one that is gone wait %d, %v", n, err)
	}
}
