package webhook

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	netmail "net/mail"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emersion/go-sasl"
	"github.com/emersion/go-smtp"

	"gpupool/schema"
)

// mailbox is a mail server on loopback: TLS by STARTTLS, a login, and what it has taken.
type mailbox struct {
	addr   string
	ca     *x509.CertPool
	refuse atomic.Int64 // the code that it answers a message with; 0 = it takes it

	mu     sync.Mutex
	got    []*netmail.Message
	bodies []string
	clear  int // logins, or messages, on a line without TLS
}

func newMailbox(t *testing.T, withTLS bool) *mailbox {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mail"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	m := &mailbox{ca: x509.NewCertPool()}
	m.ca.AddCert(parsed)
	s := smtp.NewServer(smtp.BackendFunc(func(c *smtp.Conn) (smtp.Session, error) { return &mailSession{m: m, c: c}, nil }))
	s.Domain, s.AllowInsecureAuth = "mail.test", !withTLS
	if withTLS {
		s.TLSConfig = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m.addr = ln.Addr().String()
	done := make(chan error, 1)
	go func() { done <- s.Serve(ln) }()
	t.Cleanup(func() {
		_ = s.Close()
		if err := <-done; err != nil && !errors.Is(err, smtp.ErrServerClosed) {
			t.Error(err)
		}
	})
	return m
}

func (m *mailbox) all() ([]*netmail.Message, []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]*netmail.Message{}, m.got...), append([]string{}, m.bodies...)
}

type mailSession struct {
	m  *mailbox
	c  *smtp.Conn
	in bool
	to string
}

func (s *mailSession) Reset()        {}
func (s *mailSession) Logout() error { return nil }
func (s *mailSession) Mail(string, *smtp.MailOptions) error {
	s.seen()
	if !s.in {
		return smtp.ErrAuthRequired
	}
	return nil
}
func (s *mailSession) Rcpt(to string, _ *smtp.RcptOptions) error { s.to = to; return nil }

func (s *mailSession) seen() {
	if _, ok := s.c.TLSConnectionState(); !ok {
		s.m.mu.Lock()
		s.m.clear++
		s.m.mu.Unlock()
	}
}

func (s *mailSession) AuthMechanisms() []string { return []string{sasl.Plain} }
func (s *mailSession) Auth(string) (sasl.Server, error) {
	s.seen()
	return sasl.NewPlainServer(func(_, user, password string) error {
		if s.in = user == "gpupool" && password == "pass word"; !s.in {
			return smtp.ErrAuthFailed
		}
		return nil
	}), nil
}

func (s *mailSession) Data(r io.Reader) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	msg, err := netmail.ReadMessage(bytes.NewReader(b))
	if err != nil {
		return err
	}
	if code := s.m.refuse.Load(); code != 0 {
		return &smtp.SMTPError{Code: int(code), Message: "not now, says 10.0.0.7"}
	}
	body, err := io.ReadAll(msg.Body)
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	s.m.got, s.m.bodies = append(s.m.got, msg), append(s.m.bodies, string(body))
	return err
}

func (m *mailbox) through() Mail {
	return Mail{Server: m.addr, From: "gpupool@example.org", TLS: MailSTARTTLS, CA: m.ca, Username: "gpupool", Password: "pass word", Domains: []string{"example.org"}, URL: "https://pool.example.org"}
}

func TestMailComesAtLeastOnceUnderOneIDOverRefusalsAndADeath(t *testing.T) {
	b := newBench(t)
	m := newMailbox(t, true)
	m.refuse.Store(451)
	b.rules.Mail = m.through()
	hook := b.hook("mail", "mailto:ops@example.org", "acme", "", "job.submitted")
	stop := b.start()
	job := b.submit("acme", "main")
	b.until("refusal that shows", func() bool {
		l, err := b.db.Deliveries(t.Context(), hook.ID, schema.DeliveryPending, 10)
		b.must(l, err)
		return len(l) == 1 && l[0].Tries > 0 && l[0].Status == 451 && l[0].Error == "the mail server answered 451"
	})
	stop() // dies with the message not taken
	m.refuse.Store(0)
	b.start()
	b.until("mail", func() bool { got, _ := m.all(); return len(got) == 1 })
	var d schema.WebhookDelivery
	b.until("word of it", func() bool {
		l, err := b.db.Deliveries(t.Context(), hook.ID, schema.DeliveryDelivered, 10)
		b.must(l, err)
		if len(l) == 1 {
			d = l[0]
		}
		return len(l) == 1
	})
	got, bodies := m.all()
	for name, want := range map[string]string{"Message-Id": "<" + d.ID + "@example.org>", "From": "<gpupool@example.org>", "To": "<ops@example.org>", "Auto-Submitted": "auto-generated", "Subject": "gpupool: job.submitted " + job} {
		if have := got[0].Header.Get(name); have != want {
			t.Errorf("%s is %q, want %q", name, have, want)
		}
	}
	if !strings.Contains(strings.ReplaceAll(bodies[0], "=\r\n", ""), "https://pool.example.org/ui/jobs/"+job) {
		t.Errorf("the mail has no link: %s", bodies[0])
	}
	if m.clear != 0 {
		t.Errorf("%d times something was said in the clear", m.clear)
	}
}

func TestNoMailGoesToAServerThatIsNotTrustedOrHasNoTLS(t *testing.T) {
	for name, c := range map[string]struct {
		tls     bool
		trusted bool
	}{"not the one that is trusted": {true, false}, "no TLS": {false, true}} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			m := newMailbox(t, c.tls)
			b.rules.Mail = m.through()
			if !c.trusted {
				b.rules.Mail.CA = x509.NewCertPool()
			}
			hook := b.hook("mail", "mailto:ops@example.org", "", "", "job.submitted")
			b.start()
			b.submit("acme", "main")
			b.until("failure", func() bool {
				w, err := b.db.Webhook(t.Context(), hook.ID, "")
				b.must(w, err)
				return w.FailingSince != 0 && w.LastError == "the mail server does not answer, or is not the one that is trusted"
			})
			if got, _ := m.all(); len(got) != 0 || m.clear != 0 {
				t.Fatalf("%d messages, %d times in the clear", len(got), m.clear)
			}
		})
	}
}

func TestAHeadHoldsNothingThatPeopleTyped(t *testing.T) {
	t.Parallel()
	m := Mail{From: "gpupool@example.org", URL: "https://pool.example.org"}
	evil := `{"type":"repair.state","timestamp":"2026-11-30T00:00:00Z","data":{"subject":"rep_1\r\nBcc: all@example.org","data":{"to":"waiting\r\nX-Evil: 1\u0000","why":"a\r\n.\r\nQUIT\u001b[2J"}}}`
	msg, err := m.letter("ops@example.org", schema.WebhookDelivery{ID: "msg_1", Body: evil})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if _, err := msg.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	got, err := netmail.ReadMessage(bytes.NewReader(b.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if got.Header.Get("Bcc") != "" || got.Header.Get("X-Evil") != "" {
		t.Fatalf("%s", b.String())
	}
	if body, _ := io.ReadAll(got.Body); bytes.ContainsAny(body, "\x00\x1b") {
		t.Fatalf("control characters in %q", body)
	}
}

func TestMailGoesToOneAddressOfAnAllowedDomain(t *testing.T) {
	t.Parallel()
	r := Rules{Mail: Mail{Server: "mail:587", From: "gpupool@example.org", Domains: []string{"example.org"}}}
	for address, ok := range map[string]bool{
		"mailto:ops@example.org": true, "mailto:on-call+gpu@EXAMPLE.org": true,
		"mailto:ops@example.net": false, "mailto:ops@example.org.evil.net": false, "mailto:a@example.org,b@example.org": false, "mailto:Ops <ops@example.org>": false,
		"mailto:ops@example.org?bcc=all@example.org": false, "mailto:ops@example.org\r\nBcc: x@example.org": false, "mailto:": false, "mailto:ops": false,
		`mailto:"a b"@example.org`: false, "mailto:ö@example.org": false, "mailto:a@b@example.org": false,
	} {
		if err := r.Check(address); (err == nil) != ok {
			t.Errorf("%q: %v", address, err)
		}
	}
	if err := (Rules{}).Check("mailto:ops@example.org"); !schema.Is(err, schema.CodeInvalid) || !strings.Contains(err.Error(), "mail.server") {
		t.Errorf("without a mail server: %v", err)
	}
}
