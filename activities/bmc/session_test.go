package bmc_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gpupool/activities/bmc"
	lab "gpupool/deploy/lab/bmc"
	"gpupool/schema"
)

func pool(t testing.TB, cfg bmc.Config) *bmc.Pool {
	t.Helper()
	if cfg.Timing == (bmc.Timing{}) {
		cfg.Timing = quick
	}
	cfg.Log = testLog(t)
	p := bmc.NewPool(cfg)
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p
}

func client(t testing.TB, p *bmc.Pool, url string, cred bmc.Credential) *bmc.Client {
	t.Helper()
	c, err := p.Client(bmc.Endpoint{Address: url, Credential: cred})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func logins(s *lab.Server) int {
	n := 0
	for _, r := range s.Requests() {
		if r.Method == http.MethodPost && strings.HasSuffix(r.Path, "/Sessions") {
			n++
		}
	}
	return n
}

func TestAllCallersOfAllProcessesShareOneSession(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.DGXH100), lab.Hooks{}, lab.WithQuirks(func(q *lab.Quirks) { q.MaxSessions = 1 }))
	cred := bmc.Static(s.Credential())
	sharedState := bmc.NewShared() // stands for the site's database: two pools are two processes
	var wg sync.WaitGroup
	for range 2 {
		p := pool(t, bmc.Config{Shared: sharedState})
		for range 10 {
			wg.Go(func() {
				if _, err := client(t, p, s.URL(), cred).Power(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait() // a simultaneous first login of two processes is the test below
	}
	if n := logins(s); n != 1 || s.OpenSessions() != 1 {
		t.Fatalf("%d logins, %d sessions; want one of each", n, s.OpenSessions())
	}
}

func TestTwoProcessesThatLogInAtOnceEndWithOneSession(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.Dell), lab.Hooks{})
	s.AddFault(lab.Fault{Method: "POST", Path: "/redfish/v1/SessionService/Sessions", Latency: 30 * time.Millisecond})
	cred := bmc.Static(s.Credential())
	sharedState := bmc.NewShared()
	var wg sync.WaitGroup
	for range 4 {
		p := pool(t, bmc.Config{Shared: sharedState})
		wg.Go(func() {
			if _, err := client(t, p, s.URL(), cred).Power(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if s.OpenSessions() != 1 {
		t.Fatalf("%d sessions", s.OpenSessions())
	}
}

func TestASessionThatEndsIsOpenedAgainWithoutTheCallerSeeing(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.SupermicroHGX), lab.Hooks{})
	c := dial(t, s)
	for range 3 {
		s.DropSessions()
		if _, err := c.Power(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := logins(s); n != 4 {
		t.Fatalf("%d logins, want the first and three more", n)
	}
}

// Case 8: the password is changed behind our back; everything together stays below the lockout, and the right secret is
// taken up at once.
func TestAWrongPasswordNeverLocksTheAccount(t *testing.T) {
	t.Parallel()
	for _, sessions := range []bool{true, false} {
		t.Run(map[bool]string{true: "sessions", false: "basic only"}[sessions], func(t *testing.T) {
			t.Parallel()
			s := serve(t, profile(t, lab.SupermicroHGX), lab.Hooks{}, lab.WithQuirks(func(q *lab.Quirks) {
				q.NoSessions, q.LockoutWindow, q.LockoutDuration = !sessions, time.Hour, time.Hour
			}))
			user, password := s.Credential()
			var secret atomic.Value
			secret.Store(password)
			cred := func(context.Context) (bmc.Login, error) {
				return bmc.Login{User: user, Password: bmc.Secret(secret.Load().(string))}, nil
			}
			sharedState := bmc.NewShared()
			pools := []*bmc.Pool{pool(t, bmc.Config{Shared: sharedState}), pool(t, bmc.Config{Shared: sharedState})}
			for _, p := range pools {
				if _, err := client(t, p, s.URL(), cred).Power(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			s.SetPassword("changed-behind-your-back")
			s.DropSessions()
			var wg sync.WaitGroup
			for i := range 40 {
				wg.Go(func() {
					_, err := client(t, pools[i%2], s.URL(), cred).Identify(t.Context())
					if !errors.Is(err, bmc.ErrCredential) {
						t.Errorf("error %v, want a credential fault", err)
					}
					if schema.CodeOf(err) != schema.CodeConflict {
						t.Errorf("code %s", schema.CodeOf(err))
					}
				})
			}
			wg.Wait()
			if n := s.FailedLogins(); n > 2 || s.Locked() {
				t.Fatalf("%d failed logins, locked %v; the budget is 2", n, s.Locked())
			}
			secret.Store("changed-behind-your-back")
			for _, p := range pools {
				if _, err := client(t, p, s.URL(), cred).Power(t.Context()); err != nil && sessions {
					t.Fatalf("the right secret, with no restart: %v", err)
				} else if err != nil && !errors.Is(err, bmc.ErrCredential) {
					t.Fatal(err)
				}
			}
			if s.Locked() {
				t.Fatal("locked")
			}
		})
	}
}

func TestARotationThatWasCutOffIsFoundByTryingBothSecretsOnce(t *testing.T) {
	t.Parallel()
	for _, inForce := range []string{"old-password", "new-password"} {
		s := serve(t, profile(t, lab.SupermicroHGX), lab.Hooks{}, lab.WithCredential("root", inForce))
		var got atomic.Value
		p := pool(t, bmc.Config{OnLogin: func(_ string, l bmc.Login) { got.Store(string(l.Password)) }})
		cred := func(context.Context) (bmc.Login, error) {
			return bmc.Login{User: "root", Password: "old-password", Pending: &bmc.Login{User: "root", Password: "new-password"}}, nil
		}
		if _, err := client(t, p, s.URL(), cred).Power(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got.Load() != inForce || s.FailedLogins() > 1 {
			t.Fatalf("in with %v, %d failures; want %s and at most one", got.Load(), s.FailedLogins(), inForce)
		}
	}
}

func TestAFactoryPasswordCanOnlyBeChanged(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.DGXH100), lab.Hooks{}, lab.WithPasswordChangeRequired())
	user, password := s.Credential()
	secret := password
	p := pool(t, bmc.Config{})
	cred := func(context.Context) (bmc.Login, error) {
		return bmc.Login{User: user, Password: bmc.Secret(secret)}, nil
	}
	c := client(t, p, s.URL(), cred)
	if _, err := c.Identify(t.Context()); !errors.Is(err, bmc.ErrPasswordChange) {
		t.Fatalf("error %v, want that the password must be changed", err)
	}
	if err := c.SetPassword(t.Context(), user, "a-better-password"); err != nil {
		t.Fatal(err)
	}
	secret = "a-better-password"
	if _, err := c.Identify(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestAChangedTLSKeyStopsEverythingUntilItIsAcknowledged(t *testing.T) {
	t.Parallel()
	first, err := lab.SelfSigned()
	if err != nil {
		t.Fatal(err)
	}
	second, err := lab.SelfSigned()
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, profile(t, lab.Dell), lab.Hooks{}, lab.WithTLS(first))
	pins := map[string]string{}
	p := pool(t, bmc.Config{OnPin: func(address, pin string) { pins[address] = pin }})
	cred := bmc.Static(s.Credential())
	if _, err := client(t, p, s.URL(), cred).Power(t.Context()); err != nil {
		t.Fatal(err)
	}
	x, err := x509.ParseCertificate(first.Certificates[0].Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(x.RawSubjectPublicKeyInfo)
	if pins[s.URL()] != hex.EncodeToString(sum[:]) {
		t.Fatalf("pin %s", pins[s.URL()])
	}
	first.Certificates = second.Certificates // the BMC's next handshakes show another key
	s.ClearRequests()
	q := pool(t, bmc.Config{})
	stranger, err := q.Client(bmc.Endpoint{Address: s.URL(), Credential: cred, TLSPin: pins[s.URL()]})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stranger.Power(t.Context()); !errors.Is(err, bmc.ErrUntrusted) || schema.CodeOf(err) != schema.CodeUnsafe {
		t.Fatalf("error %v, want an untrusted key", err)
	}
	if got := s.Requests(); len(got) != 0 {
		t.Fatalf("something was sent to an unknown key: %v", got)
	}
	if err := q.TrustKey(t.Context(), s.URL(), ""); err != nil {
		t.Fatal(err)
	}
	if _, err := stranger.Power(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestNotNowIsWaitedOutAsLongAsTheBMCAsks(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.Dell), lab.Hooks{})
	c := dial(t, s)
	s.AddFault(lab.Fault{Path: s.SystemPath(), Status: 503, Message: "RAC0218", Header: http.Header{"Retry-After": {"0"}}, Count: 2})
	if _, err := c.Power(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.AddFault(lab.Fault{Path: s.SystemPath(), Status: 503})
	if _, err := c.Power(t.Context()); !errors.Is(err, bmc.ErrBusy) || schema.CodeOf(err) != schema.CodeUnavailable {
		t.Fatalf("error %v", err)
	}
}

func TestABMCThatTakesOneRequestAtATimeIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.Dell), lab.Hooks{}, lab.WithQuirks(func(q *lab.Quirks) { q.OneAtATime = true }))
	s.AddFault(lab.Fault{Path: s.SystemPath(), Latency: 20 * time.Millisecond})
	c := dial(t, s)
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if _, err := c.Power(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestABrokenBodyIsNamedByItsURI(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.Dell), lab.Hooks{})
	c := dial(t, s)
	for body, kind := range map[string]error{`{"PowerState":`: bmc.ErrBody, `<html><body>Busy</body></html>`: bmc.ErrBody, `[1,2]`: bmc.ErrBody} {
		id := s.AddFault(lab.Fault{Path: s.SystemPath(), Status: 200, Replace: []byte(body)})
		_, err := c.Power(t.Context())
		s.RemoveFault(id)
		if err == nil {
			t.Fatalf("%s was read", body)
		}
		if !errors.Is(err, kind) && !errors.Is(err, bmc.ErrNoHost) {
			t.Fatalf("%s: %v", body, err)
		}
	}
	if _, err := c.Power(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.AddFault(lab.Fault{Path: s.SystemPath(), Status: 200, Replace: []byte(`{"PowerState":`)})
	if _, err := c.Power(t.Context()); !errors.Is(err, bmc.ErrBody) || !strings.Contains(err.Error(), s.SystemPath()) {
		t.Fatalf("error %v, want the URI", err)
	}
}

// Case 10: a BMC that accepts and never answers fails in bounded time, delays no other, and leaves nothing behind.
func TestABMCThatHangsDelaysNoOtherAndLeavesNothing(t *testing.T) {
	dead := serve(t, profile(t, lab.Dell), lab.Hooks{})
	dead.AddFault(lab.Fault{Hang: true})
	alive := serve(t, profile(t, lab.Dell), lab.Hooks{})
	timing := quick
	timing.Call = 500 * time.Millisecond
	p := pool(t, bmc.Config{Timing: timing})
	cred := bmc.Static(alive.Credential())
	if _, err := client(t, p, alive.URL(), cred).Power(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	var slowest time.Duration
	for range 100 {
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := client(t, p, dead.URL(), cred).Power(t.Context()); !errors.Is(err, bmc.ErrUnreachable) {
				t.Errorf("error %v, want unreachable", err)
			}
		})
		start := time.Now()
		if _, err := client(t, p, alive.URL(), cred).Power(t.Context()); err != nil {
			t.Fatal(err)
		}
		slowest = max(slowest, time.Since(start))
		wg.Wait()
	}
	if n := len(dead.Requests()); n > 4 {
		t.Errorf("the breaker let %d requests through", n)
	}
	if slowest > 2*time.Second {
		t.Errorf("the other BMC took %s", slowest)
	}
	if alive.OpenSessions() != 1 {
		t.Errorf("%d sessions", alive.OpenSessions())
	}
	eventually(t, "goroutines as before", func() bool { return runtime.NumGoroutine() <= before+2 })
}

// Case 10: a firmware inventory of minutes doesn't hold up the power.
func TestALongReadDoesNotHoldUpTheVerbs(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.DGXH100), lab.Hooks{})
	c := dial(t, s)
	s.AddFault(lab.Fault{Path: "/redfish/v1/UpdateService/FirmwareInventory/**", Latency: 400 * time.Millisecond})
	done := make(chan error, 1)
	go func() {
		fw, err := c.Firmware(t.Context())
		if err == nil && len(fw) != 2 {
			err = fmt.Errorf("%d entries", len(fw))
		}
		done <- err
	}()
	eventually(t, "the inventory is under way", func() bool {
		for _, r := range s.Requests() {
			if strings.HasSuffix(r.Path, "/UpdateService") {
				return true
			}
		}
		return false
	})
	start := time.Now()
	if err := c.SetPower(t.Context(), bmc.Off, bmc.Hard()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		t.Fatalf("the inventory was not slow (%v); power took %s", err, time.Since(start))
	default:
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestNoSecretIsEverPrinted(t *testing.T) {
	t.Parallel()
	l := bmc.Login{User: "root", Password: "hunter2-hunter2"}
	var b bytes.Buffer
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "login", l, "password", l.Password, "state", bmc.State{Token: "hunter2-hunter2"})
	fmt.Fprintf(&b, "%v %+v %#v %s", l, l, l, l.Password)
	if strings.Contains(b.String(), "hunter2") {
		t.Fatalf("printed: %s", b.String())
	}
	if out, err := json.Marshal(l); err == nil {
		t.Fatalf("marshalled as %s", out)
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// cut is a Shared whose process dies with the first login that it tries.
type cut struct {
	bmc.Shared
	dead atomic.Bool
}

func (c *cut) Update(ctx context.Context, address string, change func(*bmc.State) error) error {
	if c.dead.Load() {
		return errors.New("this process is dead")
	}
	return c.Shared.Update(ctx, address, func(st *bmc.State) error {
		err := change(st)
		c.dead.Store(err == nil && st.Trying != "")
		return err
	})
}

// A process that is killed while it logs in leaves a try that nobody knows the end of. It must not shut everybody out of
// the BMC, and it must not be forgotten either: the BMC may have refused it.
func TestALoginThatWasCutOffIsTriedOnceMore(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.SupermicroHGX), lab.Hooks{}, lab.WithQuirks(func(q *lab.Quirks) { q.LockoutWindow, q.LockoutDuration = time.Hour, time.Hour }))
	user, password := s.Credential()
	timing := quick
	timing.Call = 200 * time.Millisecond
	right, wrong := bmc.Static(user, password), bmc.Static(user, "wrong")
	site := bmc.NewShared()
	die := func(cred bmc.Credential) {
		t.Helper()
		c := &cut{Shared: site}
		p := bmc.NewPool(bmc.Config{Shared: c, Timing: timing, Log: testLog(t)})
		if _, err := client(t, p, s.URL(), cred).Power(t.Context()); err == nil || !c.dead.Load() {
			t.Fatalf("the process did not die: %v", err)
		}
	}
	die(right)
	if _, err := client(t, pool(t, bmc.Config{Shared: site, Timing: timing}), s.URL(), right).Power(t.Context()); err != nil {
		t.Fatalf("after one login that was cut off: %v", err)
	}
	s.DropSessions()
	die(wrong)
	if n := s.FailedLogins(); n != 1 {
		t.Fatalf("%d failed logins", n)
	}
	for range 3 {
		if _, err := client(t, pool(t, bmc.Config{Shared: site, Timing: timing}), s.URL(), wrong).Power(t.Context()); !errors.Is(err, bmc.ErrCredential) {
			t.Fatalf("a wrong password: %v", err)
		}
	}
	if n := s.FailedLogins(); n != 2 || s.Locked() {
		t.Fatalf("%d failed logins, locked %v; the budget is 2, with the one that was cut off", n, s.Locked())
	}
}
