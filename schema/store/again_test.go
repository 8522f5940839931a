package store_test

import (
	"errors"
	"strings"
	"testing"

	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// A machine that was retired comes back: it is refused with what to do, and taken where that is said. The retired server keeps its
// row, its id and its history; the accelerators that came back with the machine keep theirs.
func TestARetiredMachineIsEnrolledAgainAndItsHistoryIsKept(t *testing.T) {
	t.Parallel()
	s, ctx, ring := storetest.Open(t), t.Context(), storetest.Ring(t)
	old := storetest.Available(t, s, 1, "nvidia-h100-80gb", 8)
	same := storetest.NewServer(1, "nvidia-h100-80gb", 8)
	enroll := func(n store.NewServer) (schema.Server, error) {
		list, err := s.EnrollServers(ctx, "op", ring, []store.NewServer{n})
		if err != nil {
			return schema.Server{}, err
		}
		return list[0], nil
	}
	refused := func(n store.NewServer, field, hint string) {
		t.Helper()
		var e *schema.Error
		if _, err := enroll(n); !errors.As(err, &e) || e.Field != field || !strings.Contains(e.Hint, hint) {
			t.Fatalf("%v; want %s refused with %q", err, field, hint)
		}
	}
	again := same
	again.Again = true
	refused(again, "name", "it is server "+old.Name) // one that is there gives nothing up
	if err := s.Exec(ctx, "UPDATE servers SET phase = 'retired' WHERE id = '"+old.ID+"'"); err != nil {
		t.Fatal(err)
	}
	refused(same, "name", "enroll it with again")
	other := same
	other.Name = "elsewhere"
	refused(other, "serial", "enroll it with again")
	other.Serial = "SN-OTHER"
	refused(other, "macs", "enroll it with again")

	v, err := enroll(again)
	if err != nil {
		t.Fatal(err)
	}
	if v.ID == old.ID || v.Name != old.Name || v.Serial != old.Serial || v.Phase != schema.PhaseEnrolled {
		t.Fatalf("enrolled %+v", v)
	}
	kept, err := s.Server(ctx, old.ID)
	if err != nil || kept.Phase != schema.PhaseRetired || kept.Name == old.Name || !strings.HasPrefix(kept.Name, old.Name+".retired-") || !strings.HasPrefix(kept.Serial, old.Serial+"#") {
		t.Fatalf("the retired server is %+v, %v", kept, err)
	}
	refused(again, "name", "it is server "+old.Name) // there is but one of it
	events, _, err := s.Events(ctx, 0, 1000, store.EventFilter{})
	if err != nil {
		t.Fatal(err)
	}
	told := false
	for _, e := range events {
		told = told || e.Kind == schema.EventServerEnrolled && e.Subject == v.ID && strings.Contains(string(e.Data), old.ID)
	}
	if !told {
		t.Error("no event tells which server it was before")
	}
}
