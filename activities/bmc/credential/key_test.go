package credential_test

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"

	"gpupool/activities/bmc"
	"gpupool/activities/bmc/credential"
	lab "gpupool/deploy/lab/bmc"
)

// The BMC's TLS key changes in the middle of a rotation, right after it took the new password: no password is sent to the new
// key, the pending one is kept, and once an operator has acknowledged the key the rotation is ended, with no login refused.
func TestAKeyThatChangesInTheMiddleOfARotationStopsIt(t *testing.T) {
	t.Parallel()
	first, err := lab.SelfSigned()
	if err != nil {
		t.Fatal(err)
	}
	second, err := lab.SelfSigned()
	if err != nil {
		t.Fatal(err)
	}
	var shown atomic.Pointer[tls.Certificate]
	shown.Store(&first.Certificates[0])
	s := start(t, lab.WithCredential("root", "first-password"), lab.WithTLS(&tls.Config{MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return shown.Load(), nil }}))
	db := &rows{m: map[string]credential.Row{}}
	store := credential.NewStore(&swapper{db, func() { shown.Store(&second.Certificates[0]) }}, ring(t, "k1"))
	if err := credential.NewStore(db, ring(t, "k1")).Set(t.Context(), "srv-1", "root", "first-password"); err != nil {
		t.Fatal(err)
	}
	s.AddFault(lab.Fault{Method: "PATCH", Path: "/redfish/v1/AccountService/Accounts/*", Drop: true, AfterApply: true})
	p := bmc.NewPool(bmc.Config{Timing: timing, Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	c, err := p.Client(bmc.Endpoint{Address: s.URL(), Credential: store.For("srv-1")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Power(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := store.Rotate(t.Context(), c, "srv-1"); !errors.Is(err, bmc.ErrUntrusted) {
		t.Fatalf("error %v", err)
	}
	s.ClearFaults()
	l, err := store.Login(t.Context(), "srv-1")
	if err != nil || l.Pending == nil || string(l.Password) != "first-password" {
		t.Fatalf("pending %v, %v", l.Pending != nil, err)
	}
	asked := s.Served()
	if _, err := c.Power(t.Context()); !errors.Is(err, bmc.ErrUntrusted) {
		t.Fatalf("error %v", err)
	}
	if s.Served() != asked {
		t.Fatal("something was sent to the new key")
	}
	if err := p.TrustKey(t.Context(), s.URL(), ""); err != nil {
		t.Fatal(err)
	}
	if err := store.Settle(t.Context(), c, "srv-1"); err != nil {
		t.Fatal(err)
	}
	l, err = store.Login(t.Context(), "srv-1")
	if err != nil {
		t.Fatal(err)
	}
	if _, now := s.Credential(); l.Pending != nil || string(l.Password) != now || now == "first-password" || s.FailedLogins() > 1 {
		t.Fatalf("kept and real password differ, or one is still pending; %d refused logins", s.FailedLogins())
	}
}

// swapper does something once the pending password is kept.
type swapper struct {
	*rows
	then func()
}

func (s *swapper) Put(ctx context.Context, server string, row credential.Row) error {
	err := s.rows.Put(ctx, server, row)
	if err == nil && row.Pending != "" {
		s.then()
	}
	return err
}
