package record_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gpupool/activities/bmc"
	"gpupool/activities/bmc/credential"
	"gpupool/activities/bmc/record"
	lab "gpupool/deploy/lab/bmc"
	"gpupool/schema"
	"gpupool/schema/secret"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// TestMain is, in the process that TestAProcessThatIsKilledInARotationLocksNobodyOut kills, one rotation.
func TestMain(m *testing.M) {
	if args := strings.Split(os.Getenv(rotator), "|"); len(args) == 3 {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		err := rotate(ctx, args[0], args[1], args[2])
		cancel()
		fmt.Fprintln(os.Stderr, "it was not killed:", err)
		os.Exit(1)
	}
	if args := strings.Split(os.Getenv(operator), "|"); len(args) == 2 {
		fmt.Fprintln(os.Stderr, "it was not killed:", operate(context.Background(), args[0], args[1]))
		os.Exit(1)
	}
	if args := strings.Split(os.Getenv(prober), "|"); len(args) == 3 {
		if err := probe(context.Background(), args[0], args[1], args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1")) // gorm's cache of statements has no end
}

var quick = bmc.Timing{Dial: 5 * time.Second, Call: 5 * time.Second, Poll: 4 * time.Millisecond, ReadBack: 200 * time.Millisecond, Busy: time.Second}

// site is one BMC, its server in a database, and processes over that.
type site struct {
	*testing.T
	bmc    *lab.Server
	db     *store.Store
	keys   *secret.Ring
	server schema.Server
	logins *credential.Store
}

func newSite(t *testing.T, opts ...lab.Option) *site {
	t.Helper()
	p, err := lab.ByName(lab.SupermicroHGX) // locks after three
	if err != nil {
		t.Fatal(err)
	}
	s := lab.New(p, lab.Hooks{}, append([]lab.Option{lab.WithCredential("root", "first-password"), lab.WithQuirks(func(q *lab.Quirks) { q.LockoutWindow, q.LockoutDuration = time.Hour, time.Hour })}, opts...)...)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	db, keys := storetest.Open(t), storetest.Ring(t)
	servers, err := db.EnrollServers(t.Context(), "test", keys, []store.NewServer{{Name: "r1s1", Region: "north", Site: "hall-1", Rack: "r1", Serial: "SN-1", MACs: []string{"0c:42:a1:00:00:01"},
		BMCAddress: s.URL(), BMCUsername: "root", BMCPassword: "first-password", Model: "nvidia-h100-80gb", Accelerators: 8, CPUs: 112, MemoryBytes: 2 << 40}})
	if err != nil {
		t.Fatal(err)
	}
	return &site{t, s, db, keys, servers[0], credential.NewStore(record.Rows{Store: db}, keys)}
}

// process is a pool of its own over the site's database.
func (s *site) process() *bmc.Client {
	s.Helper()
	p := bmc.NewPool(bmc.Config{Timing: quick, Shared: record.NewShared(s.db, s.keys), Log: slog.New(slog.DiscardHandler)})
	s.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			s.Error(err)
		}
	})
	c, err := p.Client(bmc.Endpoint{Address: s.server.BMCAddress, Credential: s.logins.For(s.server.ID)})
	if err != nil {
		s.Fatal(err)
	}
	return c
}

func TestProcessesShareOneSessionThroughTheDatabase(t *testing.T) {
	t.Parallel()
	s := newSite(t, lab.WithQuirks(func(q *lab.Quirks) { q.MaxSessions = 1 }))
	var wg sync.WaitGroup
	for range 4 {
		c := s.process()
		wg.Go(func() {
			if _, err := c.Power(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := s.bmc.OpenSessions(); n != 1 {
		t.Fatalf("%d sessions", n)
	}
	row, err := s.db.BMCState(t.Context(), s.server.BMCAddress)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := json.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range s.bmc.Requests() {
		if strings.HasPrefix(r.Path, "/redfish/v1/SessionService/Sessions/") && strings.Contains(string(kept), r.Path) {
			t.Fatal("a session can be read in the database")
		}
	}
	if row.Sealed == "" || strings.Contains(string(kept), "token") {
		t.Fatalf("kept %s", kept)
	}
}

// Case 8: the password is changed behind our back. All processes together, one after the other as after restarts, stay
// below the lockout, and the right one is taken up by those that run.
func TestRestartsDoNotRenewTheLoginBudget(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := s.process()
	if _, err := first.Power(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.bmc.SetPassword("changed-at-the-machine")
	s.bmc.DropSessions()
	for range 6 {
		if _, err := s.process().Power(t.Context()); !errors.Is(err, bmc.ErrCredential) {
			t.Fatalf("error %v", err)
		}
	}
	if n := s.bmc.FailedLogins(); n > 2 {
		t.Fatalf("%d failed logins", n)
	}
	if err := s.db.SetBMCLogin(t.Context(), "r1s1", "", "changed-at-the-machine", s.keys, "op"); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Power(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.bmc.Locked() {
		t.Fatal("locked")
	}
}

func TestAKeyIsTrustedOnceForAllAndAnOtherNeedsAnOperator(t *testing.T) {
	t.Parallel()
	cert, err := lab.SelfSigned()
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, lab.WithTLS(cert))
	if _, err := s.process().Power(t.Context()); err != nil {
		t.Fatal(err)
	}
	row, err := s.db.BMCState(t.Context(), s.server.BMCAddress)
	if err != nil || len(row.TLSKey) != 64 {
		t.Fatalf("state %+v, %v", row, err)
	}
	// Another key stood there before: as if the BMC had been swapped since.
	if err := s.db.UpdateBMCState(t.Context(), s.server.BMCAddress, func(b *store.BMCState) error { b.TLSKey = strings.Repeat("ab", 32); return nil }); err != nil {
		t.Fatal(err)
	}
	waiting := s.process()
	logins := len(s.bmc.Requests())
	if _, err := waiting.Power(t.Context()); !errors.Is(err, bmc.ErrUntrusted) {
		t.Fatalf("error %v", err)
	}
	if n := len(s.bmc.Requests()); n != logins {
		t.Fatal("something was sent to an unknown key")
	}
	if err := s.db.TrustBMCKey(t.Context(), "r1s1", strings.Repeat("cd", 32), "op"); !schema.Is(err, schema.CodeUnsafe) || !strings.Contains(err.Error(), row.TLSKey) {
		t.Fatalf("a key that is not the one offered: %v", err)
	}
	if err := s.db.TrustBMCKey(t.Context(), "r1s1", row.TLSKey, "op"); err != nil {
		t.Fatal(err)
	}
	if _, err := waiting.Power(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestOneProcessFindsOutThatABMCIsDownForAll(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.bmc.AddFault(lab.Fault{Drop: true})
	a, b := s.process(), s.process()
	for range 3 {
		if _, err := a.Power(t.Context()); !errors.Is(err, bmc.ErrUnreachable) {
			t.Fatalf("error %v", err)
		}
	}
	before := len(s.bmc.Requests())
	for range 5 {
		if _, err := b.Power(t.Context()); !errors.Is(err, bmc.ErrUnreachable) {
			t.Fatalf("error %v", err)
		}
	}
	if n := len(s.bmc.Requests()) - before; n > 2 { // one try, and its second for a connection that broke
		t.Fatalf("the other process sent %d requests", n)
	}
}

func TestARotationIsKeptInTheRecordAndToldOf(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if err := s.logins.Rotate(t.Context(), s.process(), s.server.ID); err != nil {
		t.Fatal(err)
	}
	_, now := s.bmc.Credential()
	user, password, err := s.db.BMCCredential(t.Context(), s.server.ID, s.keys)
	if err != nil || user != "root" || password != now || now == "first-password" {
		t.Fatalf("kept and real password differ: %v", err)
	}
	row, err := s.db.BMCLogin(t.Context(), s.server.ID)
	if err != nil || row.RotatedAt == 0 || row.Pending != "" {
		t.Fatalf("row %+v, %v", row, err)
	}
	events, _, err := s.db.Events(t.Context(), 0, 100, store.EventFilter{})
	if err != nil {
		t.Fatal(err)
	}
	told := false
	for _, e := range events {
		told = told || e.Kind == schema.EventServerBMC && strings.Contains(string(e.Data), "password-rotated")
		if strings.Contains(string(e.Data), now) {
			t.Fatal("a password in an event")
		}
	}
	if !told {
		t.Fatal("no event tells of the rotation")
	}
}

// The daily limit of resets outlives the process that counted: a loop of restarts is a loop too.
func TestRestartsDoNotRenewTheResetBudget(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for i := range 4 {
		p := bmc.NewPool(bmc.Config{Timing: quick, ResetsPerDay: 3, Shared: record.NewShared(s.db, s.keys), Log: slog.New(slog.DiscardHandler)})
		c, err := p.Client(bmc.Endpoint{Address: s.server.BMCAddress, Credential: s.logins.For(s.server.ID)})
		if err != nil {
			t.Fatal(err)
		}
		err = c.SetPower(t.Context(), bmc.Cycle, bmc.Hard())
		if i < 3 && err != nil || i == 3 && !errors.Is(err, bmc.ErrTooOften) {
			t.Fatalf("cycle %d: %v", i+1, err)
		}
		if err := p.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
