package store_test

import (
	"slices"
	"testing"

	"gpupool/schema"
	"gpupool/schema/store/storetest"
)

func TestAPushedEventIsTakenOnceAndOnlyTheSecretOpens(t *testing.T) {
	t.Parallel()
	s, ctx := storetest.Open(t), t.Context()
	v := storetest.Available(t, s, 1, "nvidia-h100-80gb", 8)
	take := func(want ...string) {
		t.Helper()
		if got, err := s.TakeBMCEvents(ctx, v.Site); err != nil || !slices.Equal(got, want) {
			t.Fatalf("took %v, %v; want %v", got, err, want)
		}
	}
	if err := s.HeardBMC(ctx, v.ID, ""); !schema.Is(err, schema.CodeNotFound) {
		t.Fatalf("without a listener: %v", err)
	}
	for _, secret := range []string{"first", "second"} { // a new secret closes the one before
		if err := s.SetBMCListener(ctx, v.ID, secret); err != nil {
			t.Fatal(err)
		}
		for _, wrong := range []string{"", "wrong", map[string]string{"second": "first"}[secret]} {
			if err := s.HeardBMC(ctx, v.ID, wrong); !schema.Is(err, schema.CodeNotFound) {
				t.Fatalf("%q opened: %v", wrong, err)
			}
		}
		take()
		for range 3 {
			if err := s.HeardBMC(ctx, v.ID, secret); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := s.TakeBMCEvents(ctx, "elsewhere"); err != nil || got != nil {
			t.Fatalf("another site took %v, %v", got, err)
		}
		take(v.ID)
		take()
	}
}
