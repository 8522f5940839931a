package credential_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gpupool/activities/bmc"
	"gpupool/activities/bmc/credential"
	lab "gpupool/deploy/lab/bmc"
	"gpupool/schema/secret"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rows is a database of one table. It can be told to die: then it and everything after it fails, as for a process that
// was killed; what was put stays.
type rows struct {
	mu     sync.Mutex
	m      map[string]credential.Row
	puts   int
	dieAt  int  // the put that doesn't happen; 0 never
	killed bool // and nothing after it does
}

var errKilled = errors.New("killed")

func (r *rows) Get(_ context.Context, server string) (credential.Row, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.killed {
		return credential.Row{}, errKilled
	}
	return r.m[server], nil
}

func (r *rows) Put(_ context.Context, server string, row credential.Row) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.puts++; r.puts == r.dieAt || r.killed {
		r.killed = true
		return errKilled
	}
	if r.m[server].Version != row.Version {
		return credential.ErrChanged
	}
	row.Version++
	r.m[server] = row
	return nil
}

func (r *rows) restart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.killed, r.dieAt = false, 0
}

func ring(t *testing.T, ids ...string) *secret.Ring {
	t.Helper()
	var b strings.Builder
	for _, id := range ids {
		fmt.Fprintf(&b, "%s %s\n", id, base64.StdEncoding.EncodeToString([]byte(strings.Repeat(id, 32)[:32])))
	}
	r, err := secret.Parse(b.String())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var timing = bmc.Timing{Dial: 5 * time.Second, Call: 5 * time.Second, Poll: 4 * time.Millisecond, ReadBack: 200 * time.Millisecond, Busy: time.Second}

// process is one run of the product: a pool of its own over the shared database.
func process(t *testing.T, s *lab.Server, store *credential.Store, state bmc.Shared) (*bmc.Client, func()) {
	t.Helper()
	p := bmc.NewPool(bmc.Config{Timing: timing, Shared: state, Log: slog.New(slog.DiscardHandler)})
	c, err := p.Client(bmc.Endpoint{Address: s.URL(), Credential: store.For("srv-1")})
	if err != nil {
		t.Fatal(err)
	}
	return c, func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

func start(t *testing.T, opts ...lab.Option) *lab.Server {
	t.Helper()
	p, err := lab.ByName(lab.SupermicroHGX) // locks after three
	if err != nil {
		t.Fatal(err)
	}
	s := lab.New(p, lab.Hooks{}, append([]lab.Option{lab.WithQuirks(func(q *lab.Quirks) { q.LockoutWindow, q.LockoutDuration = time.Hour, time.Hour })}, opts...)...)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Case 8, the rotation: killed at each of its steps, it is picked up by the next process, with at most two refused logins.
func TestARotationKilledAnywhereIsRecovered(t *testing.T) {
	t.Parallel()
	for name, kill := range map[string]func(*rows, *lab.Server){
		"not at all":                       func(*rows, *lab.Server) {},
		"before the pending one is kept":   func(r *rows, _ *lab.Server) { r.dieAt = 1 },
		"after the bmc, before the commit": func(r *rows, _ *lab.Server) { r.dieAt = 2 },
		"the bmc set it, the answer is lost": func(_ *rows, s *lab.Server) {
			s.AddFault(lab.Fault{Method: "PATCH", Path: "/redfish/v1/AccountService/Accounts/*", Drop: true, AfterApply: true})
		},
		"the bmc never got it": func(_ *rows, s *lab.Server) {
			s.AddFault(lab.Fault{Method: "PATCH", Path: "/redfish/v1/AccountService/Accounts/*", Drop: true})
		},
		"the bmc refuses it": func(_ *rows, s *lab.Server) {
			s.AddFault(lab.Fault{Method: "PATCH", Path: "/redfish/v1/AccountService/Accounts/*", Status: 400, Message: "PropertyValueFormatError"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, lab.WithCredential("root", "first-password"))
			db := &rows{m: map[string]credential.Row{}}
			store := credential.NewStore(db, ring(t, "k1"))
			if err := store.Set(t.Context(), "srv-1", "root", "first-password"); err != nil {
				t.Fatal(err)
			}
			db.puts = 0
			state := bmc.NewShared()
			kill(db, s)
			c, stop := process(t, s, store, state)
			first := store.Rotate(t.Context(), c, "srv-1")
			stop()

			db.restart()
			s.ClearFaults()
			s.DropSessions()
			c, stop = process(t, s, store, state)
			defer stop()
			if _, err := c.Power(t.Context()); err != nil {
				t.Fatalf("after %v the next process is not let in: %v", first, err)
			}
			if err := store.Rotate(t.Context(), c, "srv-1"); err != nil {
				t.Fatal(err)
			}
			l, err := store.Login(t.Context(), "srv-1")
			if err != nil {
				t.Fatal(err)
			}
			if _, now := s.Credential(); string(l.Password) != now || l.Pending != nil || now == "first-password" {
				t.Fatalf("kept and real password differ, or one is still pending")
			}
			if s.FailedLogins() > 2 || s.Locked() {
				t.Fatalf("%d failed logins, locked %v", s.FailedLogins(), s.Locked())
			}
		})
	}
}

func TestAFactoryPasswordIsReplaced(t *testing.T) {
	t.Parallel()
	s := start(t, lab.WithCredential("admin", "factory-default"), lab.WithPasswordChangeRequired())
	store := credential.NewStore(&rows{m: map[string]credential.Row{}}, ring(t, "k1"))
	if err := store.Set(t.Context(), "srv-1", "admin", "factory-default"); err != nil {
		t.Fatal(err)
	}
	c, stop := process(t, s, store, bmc.NewShared())
	defer stop()
	if _, err := c.Power(t.Context()); !errors.Is(err, bmc.ErrPasswordChange) {
		t.Fatalf("error %v", err)
	}
	if err := store.Rotate(t.Context(), c, "srv-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Power(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestKeysRotateAndRowsCanNotBeSwapped(t *testing.T) {
	t.Parallel()
	db := &rows{m: map[string]credential.Row{}}
	old := credential.NewStore(db, ring(t, "k1"))
	for _, server := range []string{"srv-1", "srv-2"} {
		if err := old.Set(t.Context(), server, "root", "password-of-"+bmc.Secret(server)); err != nil {
			t.Fatal(err)
		}
	}
	both := credential.NewStore(db, ring(t, "k2", "k1"))
	for _, want := range []bool{true, false} {
		if done, err := both.Reseal(t.Context(), "srv-1"); err != nil || done != want {
			t.Fatalf("reseal %v, %v", done, err)
		}
	}
	onlyNew := credential.NewStore(db, ring(t, "k2"))
	if l, err := onlyNew.Login(t.Context(), "srv-1"); err != nil || l.Password != "password-of-srv-1" {
		t.Fatal(err)
	}
	if _, err := onlyNew.Login(t.Context(), "srv-2"); !errors.Is(err, secret.ErrUnknownKey) {
		t.Fatalf("error %v", err)
	}
	a, b := db.m["srv-1"], db.m["srv-2"]
	a.Sealed, a.KeyID = b.Sealed, b.KeyID
	db.m["srv-1"] = a
	if _, err := both.Login(t.Context(), "srv-1"); err == nil {
		t.Fatal("another server's password was opened")
	}
	for _, r := range db.m {
		if strings.Contains(fmt.Sprintf("%+v", r), "password-of") {
			t.Fatal("a password at rest is readable")
		}
	}
}

func TestAGeneratedPasswordSuitsEveryMaker(t *testing.T) {
	t.Parallel()
	seen := map[bmc.Secret]bool{}
	for range 1000 {
		p, err := credential.Generate(20)
		if err != nil {
			t.Fatal(err)
		}
		s := string(p)
		if len(s) != 20 || seen[p] || strings.ContainsAny(s, " '\"\\$&`;<>|:/@#%!") ||
			!strings.ContainsAny(s, "abcdefghijkmnopqrstuvwxyz") || !strings.ContainsAny(s, "ABCDEFGHJKLMNPQRSTUVWXYZ") || !strings.ContainsAny(s, "23456789") || !strings.ContainsAny(s, "-_.") {
			t.Fatal("a password of the wrong shape")
		}
		seen[p] = true
	}
}
