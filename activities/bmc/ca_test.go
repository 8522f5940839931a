package bmc_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"gpupool/activities/bmc"
	lab "gpupool/deploy/lab/bmc"
	"gpupool/schema"
)

// authority is an operator's own: a root, and what makes a BMC's certificate under it.
func authority(t *testing.T) (*x509.CertPool, func(ip net.IP, until time.Time) *tls.Config) {
	t.Helper()
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	rootKey := key()
	root := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "operator's authority"}, NotBefore: time.Unix(0, 0), NotAfter: time.Now().AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, root, root, &rootKey.PublicKey, rootKey)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(signed)
	return roots, func(ip net.IP, until time.Time) *tls.Config {
		k := key()
		leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "bmc"}, NotBefore: time.Unix(0, 0), NotAfter: until, IPAddresses: []net.IP{ip},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
		der, err := x509.CreateCertificate(rand.Reader, leaf, signed, &k.PublicKey, rootKey)
		if err != nil {
			t.Fatal(err)
		}
		return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: k}}}
	}
}

// With the operator's authority nothing is trusted on first use: its certificates are taken, also after a renewal, and every
// other is refused with the reason before a byte is sent, until an operator acknowledges that very key.
func TestTheOperatorsAuthorityDecidesWhichKeysAreTrusted(t *testing.T) {
	t.Parallel()
	roots, issue := authority(t)
	_, stranger := authority(t)
	here, year := net.IPv4(127, 0, 0, 1), time.Now().AddDate(1, 0, 0)
	own := issue(here, year)
	s := serve(t, profile(t, lab.Dell), lab.Hooks{}, lab.WithTLS(own))
	power := func() error {
		_, err := client(t, pool(t, bmc.Config{CA: roots}), s.URL(), bmc.Static(s.Credential())).Power(t.Context())
		return err
	}
	if err := power(); err != nil {
		t.Fatalf("signed by the operator's authority: %v", err)
	}
	own.Certificates = issue(here, year).Certificates
	if err := power(); err != nil {
		t.Fatalf("renewed under the same authority: %v", err)
	}
	self, err := lab.SelfSigned()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		shows *tls.Config
		says  string
	}{
		"another authority's": {stranger(here, year), "unknown authority"},
		"self-signed":         {self, "unknown authority"},
		"of another address":  {issue(net.IPv4(192, 0, 2, 1), year), "valid for 192.0.2.1, not 127.0.0.1"},
		"expired":             {issue(here, time.Now().Add(-time.Hour)), "expired"},
	} {
		own.Certificates = c.shows.Certificates
		s.ClearRequests()
		err := power()
		if !errors.Is(err, bmc.ErrUntrusted) || schema.CodeOf(err) != schema.CodeUnsafe || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want untrusted with %q", name, err, c.says)
		}
		if got := s.Requests(); len(got) != 0 {
			t.Errorf("%s: sent to it: %v", name, got)
		}
	}
	p := pool(t, bmc.Config{CA: roots})
	c := client(t, p, s.URL(), bmc.Static(s.Credential()))
	if _, err := c.Power(t.Context()); !errors.Is(err, bmc.ErrUntrusted) {
		t.Fatalf("before it is acknowledged: %v", err)
	}
	x, err := x509.ParseCertificate(own.Certificates[0].Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(x.RawSubjectPublicKeyInfo)
	if err := p.TrustKey(t.Context(), s.URL(), hex.EncodeToString(sum[:])); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Power(t.Context()); err != nil {
		t.Fatalf("after it was acknowledged: %v", err)
	}
}
