package webhook

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	netmail "net/mail"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/wneessen/go-mail"

	"gpupool/schema"
)

// mailto begins the address of a hook whose messages are mail.
const mailto = "mailto:"

// mailWithin is how long a mail server has for one message, from the look-up of its name to its answer: it may look at what it
// is given before it answers.
const mailWithin = time.Minute

// Mail is the server that mail goes through (RFC 5321); without a Server no hook may ask for mail.
type Mail struct {
	Server   string // host:port
	From     string // address that mail comes from
	TLS      MailTLS
	CA       *x509.CertPool // nil = the system's
	Username string         // empty = it takes mail without one
	Password string
	Domains  []string // whose addresses may be written to; tenants choose among them
	URL      string   // of the console, for links
}

// MailTLS is how the way to the mail server is kept secret.
type MailTLS string

const (
	MailSTARTTLS MailTLS = "starttls" // or nothing is sent
	MailTLSOnly  MailTLS = "tls"      // from the first byte
	MailPlain    MailTLS = "none"
)

// check refuses an address that no mail may be sent to.
func (m Mail) check(address string) error {
	if m.Server == "" {
		return schema.Invalid("url", address, "https://host[:port][/path]; for mail an operator must have set mail.server")
	}
	to := strings.TrimPrefix(address, mailto)
	a, err := netmail.ParseAddress(to)
	plain := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`?%"(),:;<>[\]`, r) }
	if err != nil || a.Address != to || strings.ContainsFunc(to, plain) || len(to) > 254 {
		return schema.Invalid("url", address, "mailto:name@"+cmp.Or(strings.Join(m.Domains, ", "), "host")+": one address and nothing else")
	}
	_, domain, _ := strings.Cut(to, "@")
	if !slices.ContainsFunc(m.Domains, func(d string) bool { return strings.EqualFold(d, domain) }) {
		return schema.Invalid("url", address, "an address of "+strings.Join(m.Domains, ", ")+"; an operator can allow others with mail.domains")
	}
	return nil
}

// send gives one message to the mail server. code is the server's reply; 0 = there was none. A message that is sent again has
// the Message-ID that it had, by which mail systems know it.
func (m Mail) send(ctx context.Context, to string, d schema.WebhookDelivery) (code int, err error) {
	msg, err := m.letter(to, d)
	if err != nil {
		return 0, err
	}
	c, err := m.client()
	if err != nil {
		return 0, err
	}
	if err = c.DialAndSendWithContext(ctx, msg); err == nil {
		return 250, nil
	}
	if refused, ok := errors.AsType[*mail.SendError](err); ok {
		code = refused.ErrorCode()
	}
	return code, err
}

func (m Mail) client() (*mail.Client, error) {
	host, port, err := net.SplitHostPort(m.Server)
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return nil, err
	}
	o := []mail.Option{mail.WithPort(n), mail.WithTimeout(mailWithin), mail.WithTLSConfig(&tls.Config{ServerName: host, RootCAs: m.CA, MinVersion: tls.VersionTLS12})}
	switch m.TLS {
	case MailTLSOnly:
		o = append(o, mail.WithSSL())
	case MailPlain:
		o = append(o, mail.WithTLSPolicy(mail.NoTLS))
	default:
		o = append(o, mail.WithTLSPolicy(mail.TLSMandatory))
	}
	if m.Username != "" {
		o = append(o, mail.WithSMTPAuth(mail.SMTPAuthAutoDiscover), mail.WithUsername(m.Username), mail.WithPassword(m.Password))
	}
	return mail.NewClient(host, o...)
}

// letter is a message as mail. What stands in its head is ours: a kind, an id, a state. What people have typed is in its body.
func (m Mail) letter(to string, d schema.WebhookDelivery) (*mail.Msg, error) {
	msg := mail.NewMsg()
	if err := errors.Join(msg.From(m.From), msg.To(to)); err != nil {
		return nil, err
	}
	_, domain, _ := strings.Cut(m.From, "@")
	msg.SetMessageIDWithValue(d.ID + "@" + strings.TrimSuffix(domain, ">"))
	msg.SetGenHeader("Auto-Submitted", "auto-generated") // RFC 3834: nobody's machine answers it
	subject, body := m.text(d)
	msg.Subject(subject)
	msg.SetBodyString(mail.TypeTextPlain, body)
	return msg, nil
}

// text is a message in words.
func (m Mail) text(d schema.WebhookDelivery) (subject, body string) {
	var in struct {
		Type      string
		Timestamp string
		Data      struct {
			Subject, Server, Job, By string
			JobName                  string `json:"job_name"`
			Data                     map[string]any
		}
	}
	if json.Unmarshal([]byte(d.Body), &in) != nil {
		return "gpupool: " + oneLine(string(d.Kind)), d.Body
	}
	subject = "gpupool: " + oneLine(in.Type+" "+in.Data.Subject)
	if to, ok := in.Data.Data["to"].(string); ok {
		subject += ": " + oneLine(to)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s at %s\n\n", in.Type, in.Timestamp)
	line := func(name string, v any) {
		text, ok := v.(string)
		if !ok {
			raw, _ := json.Marshal(v) // it was read as JSON
			text = string(raw)
		}
		if text != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, text)
		}
	}
	line("about", in.Data.Subject)
	line("server", in.Data.Server)
	line("job", in.Data.Job)
	line("job name", in.Data.JobName)
	line("by", in.Data.By)
	for _, name := range slices.Sorted(maps.Keys(in.Data.Data)) {
		line(name, in.Data.Data[name])
	}
	for prefix, page := range map[string]string{"rep_": "repairs", "job_": "jobs", "srv_": "servers"} {
		if m.URL != "" && strings.HasPrefix(in.Data.Subject, prefix) {
			fmt.Fprintf(&b, "\n%s/ui/%s/%s\n", m.URL, page, in.Data.Subject)
		}
	}
	fmt.Fprintf(&b, "\nMessage %s of a webhook: `gpupool webhook list` names it.\n", d.ID)
	return subject, strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return ' '
		}
		return r
	}, b.String())
}

// oneLine is text that may stand in a head: no control characters, and not for ever.
func oneLine(s string) string {
	out := []rune(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s))
	return strings.TrimSpace(string(out[:min(len(out), 120)]))
}
