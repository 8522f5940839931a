package config

import (
	"net"
	"net/mail"
	"regexp"
	"strings"
)

// Mail is the mail server that webhooks with an address mailto: send through.
type Mail struct {
	Server       string   `yaml:"server" help:"host:port of a mail server that takes mail for delivery (SMTP)." zero:"none: no webhook may ask for mail" example:"mail.example.net:587"`
	From         string   `yaml:"from" help:"Address that mail comes from." zero:"must be set with server" example:"gpupool@example.net"`
	TLS          string   `yaml:"tls" help:"starttls (or nothing is sent), tls (from the first byte, port 465) or none (a mail server of this machine only)." zero:"starttls" example:"tls"`
	CA           string   `yaml:"ca" help:"File with the certificate authorities to trust for it, PEM." zero:"the system's" example:"/etc/gpupool/mail-ca.pem"`
	Username     string   `yaml:"username" help:"Name to log in with; with password_file, and not without TLS." zero:"no login" example:"gpupool"`
	PasswordFile string   `yaml:"password_file" help:"File that holds the password." zero:"none" example:"/etc/gpupool/mail.password"`
	Domains      []string `yaml:"domains" help:"Domains whose addresses may be written to. Whoever may make a webhook can have mail sent to any address there." zero:"that of from" example:"[example.net, ops.example.net]"`
}

// domain is the name of a host in DNS, with at least two labels.
var domain = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

func (m *Mail) fill() {
	if m.Server == "" {
		return
	}
	if m.TLS == "" {
		m.TLS = "starttls"
	}
	if a, err := mail.ParseAddress(m.From); err == nil && a.Address == m.From && len(m.Domains) == 0 {
		_, of, _ := strings.Cut(m.From, "@")
		m.Domains = []string{strings.ToLower(of)}
	}
}

func (m Mail) validate(v *checks) {
	if m.Server == "" {
		v.that(m.From == "" && m.Username == "" && m.PasswordFile == "" && m.CA == "" && m.TLS == "" && len(m.Domains) == 0, "mail.server", m.Server, "host:port, where anything else of mail is set")
		return
	}
	host, port, err := net.SplitHostPort(m.Server)
	v.that(err == nil && host != "" && port != "" && port != "0" && strings.Trim(port, "0123456789") == "", "mail.server", m.Server, "host:port such as mail.example.net:587")
	a, err := mail.ParseAddress(m.From)
	v.that(err == nil && a.Address == m.From, "mail.from", m.From, "an address such as gpupool@example.net")
	v.that(m.TLS == "starttls" || m.TLS == "tls" || m.TLS == "none" && loopback(host), "mail.tls", m.TLS, "starttls or tls; none for a mail server of this machine")
	v.that((m.Username == "") == (m.PasswordFile == ""), "mail.password_file", m.PasswordFile, "set with mail.username, and only then")
	v.that(m.Username == "" || m.TLS != "none", "mail.username", m.Username, "empty where mail.tls is none: the password would cross in the clear")
	for _, d := range m.Domains {
		v.that(domain.MatchString(d), "mail.domains", d, "a domain such as example.net, in lower case")
	}
}
