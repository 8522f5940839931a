package config

import (
	"strings"
	"testing"
)

func TestAMailServerIsNamedWholeOrRefusedByField(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mail  Mail
		field string // empty = it is right
	}{
		"none":                               {Mail{}, ""},
		"a whole one":                        {Mail{Server: "mail.example.org:587", From: "gpupool@example.org", Username: "u", PasswordFile: "/f"}, ""},
		"this machine's, without TLS":        {Mail{Server: "127.0.0.1:25", From: "gpupool@example.org", TLS: "none"}, ""},
		"no port":                            {Mail{Server: "mail.example.org", From: "gpupool@example.org"}, "mail.server"},
		"a port that is none":                {Mail{Server: "mail.example.org:smtp", From: "gpupool@example.org"}, "mail.server"},
		"no sender":                          {Mail{Server: "mail.example.org:587"}, "mail.from"},
		"a sender with a head of its own":    {Mail{Server: "mail.example.org:587", From: "g@example.org\r\nBcc: x@example.org"}, "mail.from"},
		"a sender with a name":               {Mail{Server: "mail.example.org:587", From: "Pool <g@example.org>"}, "mail.from"},
		"no TLS over a network":              {Mail{Server: "mail.example.org:25", From: "g@example.org", TLS: "none"}, "mail.tls"},
		"TLS if it likes":                    {Mail{Server: "mail.example.org:25", From: "g@example.org", TLS: "opportunistic"}, "mail.tls"},
		"a name without a password":          {Mail{Server: "mail.example.org:25", From: "g@example.org", Username: "u"}, "mail.password_file"},
		"a password in the clear":            {Mail{Server: "localhost:25", From: "g@example.org", TLS: "none", Username: "u", PasswordFile: "/f"}, "mail.username"},
		"a domain that is all":               {Mail{Server: "mail.example.org:25", From: "g@example.org", Domains: []string{"*"}}, "mail.domains"},
		"something of mail, and no server":   {Mail{From: "g@example.org"}, "mail.server"},
		"domains of mail without any server": {Mail{Domains: []string{"example.org"}}, "mail.server"},
	} {
		t.Run(name, func(t *testing.T) {
			c.mail.fill()
			v := &checks{}
			c.mail.validate(v)
			switch {
			case c.field == "" && len(v.errs) != 0:
				t.Fatalf("refused: %v", v.errs)
			case c.field != "" && (len(v.errs) != 1 || !strings.Contains(v.errs[0].Error(), c.field)):
				t.Fatalf("got %v, want one error that names %s", v.errs, c.field)
			}
		})
	}
	m := Mail{Server: "mail.example.org:587", From: "gpupool@Example.org"}
	if m.fill(); m.TLS != "starttls" || len(m.Domains) != 1 || m.Domains[0] != "example.org" {
		t.Fatalf("filled: %+v", m)
	}
}
