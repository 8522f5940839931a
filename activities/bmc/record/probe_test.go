package record_test

import (
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	tlog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"

	"gpupool/activities/bmc"
	lab "gpupool/deploy/lab/bmc"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// A site's worker that is given an account reads who each machine is, by one login each: what is not on the site's allow-list is
// told of and not kept. A probe that was cut off while it logged in logs in nowhere again.
func TestASitesProbeKeepsWhatIsOnItsAllowList(t *testing.T) {
	t.Parallel()
	db, ring, ctx := storetest.Open(t), storetest.Ring(t), t.Context()
	machines := map[string]*lab.Server{}
	port := "0"
	for at, serial := range map[string]string{"127.0.0.2": "OURS-1", "127.0.0.3": "THEIRS-1", "127.0.0.4": "OURS-2"} {
		p, err := lab.ByName(lab.Dell)
		if err != nil {
			t.Fatal(err)
		}
		password := "factory"
		if serial == "OURS-2" {
			password = "of somebody else"
		}
		s := lab.New(p, lab.Hooks{}, lab.WithIdentity(lab.Identity{Serial: serial}), lab.WithCredential("root", password))
		l, err := net.Listen("tcp", at+":"+port)
		if err != nil {
			t.Skipf("only one loopback address here: %v", err)
		}
		s.Serve(l)
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		machines[serial], port = s, strings.TrimPrefix(l.Addr().String(), at+":")
	}
	a := &bmc.Activities{Store: db, Keys: ring}
	probe := func(user, password string, before func(id string)) (schema.BMCProbe, error) {
		t.Helper()
		p, err := db.AskBMCProbe(ctx, store.NewBMCProbe{Site: "hall-1", Range: "127.0.0.0/29", Port: int(netip.MustParseAddrPort("127.0.0.1:" + port).Port()), PlainHTTP: true, Username: user, Password: password}, ring, "op")
		if err != nil {
			return p, err
		}
		if before != nil {
			before(p.ID)
		}
		var suite testsuite.WorkflowTestSuite
		suite.SetLogger(tlog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
		env := suite.NewTestActivityEnvironment()
		env.RegisterActivity(a)
		if _, err := env.ExecuteActivity(a.Operate, p.ID); err != nil {
			t.Fatal(err)
		}
		p, err = db.BMCProbe(ctx, p.ID)
		return p, err
	}
	logins := func(serial string) (n int) {
		for _, r := range machines[serial].Requests() {
			if r.Method == "POST" && strings.HasSuffix(r.Path, "/Sessions") {
				n++
			}
		}
		return n
	}

	if _, err := probe("root", "factory", nil); !schema.Is(err, schema.CodeConflict) {
		t.Fatalf("an account is given to strangers though nothing says which machines are ours: %v", err)
	}
	if err := db.AllowSerials(ctx, "hall-1", []string{"ours-1", "OURS-2"}, "op"); err != nil {
		t.Fatal(err)
	}
	p, err := probe("root", "factory", nil)
	if err != nil || p.Failure != "" || len(p.Found) != 3 {
		t.Fatalf("%+v, %v", p, err)
	}
	if f := p.Found[0]; f.Serial != "OURS-1" || f.Listed != schema.ListedYes || f.Trouble != "" {
		t.Errorf("%+v", f)
	}
	if f := p.Found[1]; f.Serial != "THEIRS-1" || f.Listed != schema.ListedNo {
		t.Errorf("%+v", f)
	}
	if f := p.Found[2]; f.Serial != "" || f.Listed != schema.ListedUnknown || !strings.Contains(f.Trouble, "401") {
		t.Errorf("%+v", f)
	}
	kept, err := db.BMCsFound(ctx, "hall-1")
	if err != nil || len(kept) != 2 || kept[0].Listed != schema.ListedYes || kept[1].Listed != schema.ListedUnknown {
		t.Fatalf("kept %+v, %v", kept, err)
	}
	for serial, s := range machines {
		if n := logins(serial); n != 1 || s.OpenSessions() != 0 {
			t.Errorf("%s: %d logins, %d sessions left", serial, n, s.OpenSessions())
		}
	}
	// The list is asked at the moment of each look, not only when the find was kept.
	if err := db.AllowSerials(ctx, "hall-1", []string{"OURS-2"}, "op"); err != nil {
		t.Fatal(err)
	}
	if kept, err = db.BMCsFound(ctx, "hall-1"); err != nil || kept[0].Listed != schema.ListedNo {
		t.Fatalf("kept %+v, %v", kept, err)
	}

	p, err = probe("root", "factory", func(id string) { // the first try took the account and was killed
		if _, _, taken, err := db.TakeBMCProbeLogin(ctx, id, ring); err != nil || !taken {
			t.Fatal(taken, err)
		}
	})
	if err != nil || p.FailureCode != schema.CodeConflict || !strings.Contains(p.Failure, "ask again") {
		t.Fatalf("%+v, %v", p, err)
	}
	for serial := range machines {
		if n := logins(serial); n != 1 {
			t.Errorf("%s: %d logins", serial, n)
		}
	}
}
