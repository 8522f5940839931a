package store_test

import (
	"errors"
	"strings"
	"testing"

	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// An allow-list holds at each act: when a machine is found, by whom ever, when it is enrolled, when its onboarding begins, and when
// that is about to take the disk. Taking it away allows all again; another site's is another's.
func TestAnAllowListHoldsAtTheMomentOfEachAct(t *testing.T) {
	t.Parallel()
	s, ctx, ring := storetest.Open(t), t.Context(), storetest.Ring(t)
	one, two := storetest.NewServer(1, "nvidia-h100-80gb", 8), storetest.NewServer(2, "nvidia-h100-80gb", 8)
	allow := func(serials ...string) {
		t.Helper()
		if err := s.AllowSerials(ctx, one.Site, serials, "op"); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(what string, err error) {
		t.Helper()
		var e *schema.Error
		if !errors.As(err, &e) || e.Code != schema.CodeUnsafe || !strings.Contains(e.Message, "is not on the allow-list of site "+one.Site) || e.Hint == "" {
			t.Fatalf("%s: %v", what, err)
		}
	}
	found := func(want ...string) {
		t.Helper()
		list, err := s.BMCsFound(ctx, "")
		if err != nil {
			t.Fatal(err)
		}
		var have []string
		for _, f := range list {
			have = append(have, f.Address+" "+string(f.Listed))
		}
		if strings.Join(have, ", ") != strings.Join(want, ", ") {
			t.Fatalf("found %q, want %q", have, want)
		}
	}
	see := func(list ...schema.BMCFound) {
		t.Helper()
		if err := s.FoundBMCs(ctx, list); err != nil {
			t.Fatal(err)
		}
	}
	see(schema.BMCFound{Address: "https://10.0.0.1", Site: one.Site, Serial: "STRANGER", Via: "probe"})
	found("https://10.0.0.1 ")

	allow(strings.ToLower(one.Serial), " SPARE ")
	found("https://10.0.0.1 no")
	see(schema.BMCFound{Address: "https://10.0.0.2", Site: one.Site, Serial: "STRANGER-2", Via: "probe"}, schema.BMCFound{Address: "https://10.0.0.3", Site: one.Site, Serial: "spare", Via: "probe"},
		schema.BMCFound{Address: "https://10.0.0.4", Site: "hall-9", Serial: "STRANGER-4", Via: "probe"}, schema.BMCFound{Address: "mac:3c:ec:ef:00:00:01", Site: one.Site, MAC: "3c:ec:ef:00:00:01", Via: "dhcp"})
	found("https://10.0.0.1 no", "https://10.0.0.3 yes", "https://10.0.0.4 ", "mac:3c:ec:ef:00:00:01 unknown")

	_, err := s.EnrollServers(ctx, "op", ring, []store.NewServer{one, two})
	refused("enrolment", err)
	var e *schema.Error
	if errors.As(err, &e); e.Field != "servers[1].serial" {
		t.Fatalf("field %q", e.Field)
	}
	servers, err := s.EnrollServers(ctx, "op", ring, []store.NewServer{one})
	if err != nil {
		t.Fatal(err)
	}
	allow("SPARE")
	_, err = s.BeginOnboarding(ctx, servers[0].ID, "op")
	refused("onboarding", err)
	allow(one.Serial)
	v, err := s.BeginOnboarding(ctx, servers[0].ID, "op")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.MayDestroy(ctx, v.ID, v.Attempt); err != nil {
		t.Fatal(err)
	}
	allow("SPARE")
	refused("the disk", s.MayDestroy(ctx, v.ID, v.Attempt))
	allow()
	if err := s.MayDestroy(ctx, v.ID, v.Attempt); err != nil {
		t.Fatal(err)
	}
	if _, err := s.EnrollServers(ctx, "op", ring, []store.NewServer{two}); err != nil {
		t.Fatal(err)
	}

	for field, list := range map[string][]string{"serials[0]": {""}, "serials[1]": {"A", "a "}, "serials[2]": {"A", "B", "C\x1b[2J"}, "serials[3]": {"A", "B", "C", strings.Repeat("x", 129)}} {
		if err := s.AllowSerials(ctx, one.Site, list, "op"); !errors.As(err, &e) || e.Field != field || e.Code != schema.CodeInvalid {
			t.Errorf("%q: %v", list, err)
		}
	}
	if err := s.AllowSerials(ctx, "Hall 1", nil, "op"); !errors.As(err, &e) || e.Field != "site" {
		t.Error(err)
	}
}
