package store_test

import (
	"errors"
	"strings"
	"testing"

	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// One BMC of several servers: each has a place of its own, all have one credential, and what looks like a slip of the hand is
// refused by its field.
func TestServersBehindOneBMCHaveTheirPlacesAndOneCredential(t *testing.T) {
	t.Parallel()
	s, ring := storetest.Open(t), storetest.Ring(t)
	node := func(n int, system string, change ...func(*store.NewServer)) store.NewServer {
		v := storetest.NewServer(n, "nvidia-h100-80gb", 8)
		v.BMCAddress, v.BMCSystem = "https://10.9.9.9", system
		for _, f := range change {
			f(&v)
		}
		return v
	}
	noLogin := func(v *store.NewServer) { v.BMCUsername, v.BMCPassword = "", "" }
	enroll := func(in ...store.NewServer) ([]schema.Server, error) {
		return s.EnrollServers(t.Context(), "test", ring, in)
	}
	// The first of a bulk need not name its system; the others do, and leave the login out.
	got, err := enroll(node(1, ""), node(2, "Node2", noLogin))
	if err != nil {
		t.Fatal(err)
	}
	third, err := enroll(node(3, "Node3"))
	if err != nil {
		t.Fatalf("with the same login: %v", err)
	}
	for name, tc := range map[string]struct {
		in   store.NewServer
		says string
	}{
		"the same address by mistake": {node(4, ""), "bmc_address"},
		"a place that is taken":       {node(4, "Node2"), "bmc_system"},
		"another password":            {node(4, "Node4", func(v *store.NewServer) { v.BMCPassword = "other" }), "bmc_password"},
		"another account":             {node(4, "Node4", func(v *store.NewServer) { v.BMCUsername = "other" }), "bmc_username"},
		"another site":                {node(4, "Node4", func(v *store.NewServer) { v.Site = "s2" }), "site"},
		"a system over ipmi":          {node(4, "Node4", func(v *store.NewServer) { v.BMCProtocol = "ipmi" }), "bmc_system"},
		"no system's id":              {node(4, "../Node4"), "bmc_system"},
		"a BMC of its own, no login":  {node(4, "Node4", noLogin, func(v *store.NewServer) { v.BMCAddress = "https://10.9.9.8" }), "bmc_username"},
	} {
		_, err := enroll(tc.in)
		var e *schema.Error
		if !schema.Is(err, schema.CodeInvalid) || !errors.As(err, &e) || e.Field != tc.says {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What is set for one holds for all, and a rotation of one is due once.
	if err := s.SetBMCLogin(t.Context(), third[0].ID, "", "changed", ring, "test"); err != nil {
		t.Fatal(err)
	}
	for _, v := range append(got, third...) {
		if user, password, err := s.BMCCredential(t.Context(), v.ID, ring); err != nil || user != "admin" || password != "changed" {
			t.Errorf("%s: %s, %v", v.Name, user, err)
		}
	}
	if _, err := enroll(node(4, "Node4", noLogin)); err != nil {
		t.Fatalf("after the password was changed: %v", err)
	}
	row, err := s.BMCLogin(t.Context(), third[0].ID)
	if err != nil || row.Server != got[0].ID || strings.Contains(row.Sealed, "changed") {
		t.Fatalf("held by %s: %v", row.Server, err)
	}
}

func TestAPasswordOfSeveralServersIsDueOnce(t *testing.T) {
	t.Parallel()
	s, ring := storetest.Open(t), storetest.Ring(t)
	var last schema.Server
	for n, system := range []string{"Node1", "Node2", "Node3"} {
		as := storetest.NewServer(n+1, "nvidia-h100-80gb", 1)
		as.BMCAddress, as.BMCSystem = "https://10.9.9.9", system
		last = storetest.AvailableWith(t, s, ring, as)
	}
	due, err := s.BMCLoginsDue(t.Context(), last.Site, s.Now()+1000)
	if err != nil || len(due) != 1 {
		t.Fatalf("due %v, %v", due, err)
	}
}
