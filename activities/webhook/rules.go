package webhook

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"code.dny.dev/ssrf"

	"gpupool/schema"
)

// Rules say which addresses may be told of events. Tenants choose them, so they are what a tenant could reach itself: public
// ones. What is private, loopback, link-local (a cloud's metadata service among them) or otherwise special by IANA's
// registries is refused, unless an operator has said that its network may be reached.
type Rules struct {
	Networks []netip.Prefix // that may be reached although they are not public
	HTTP     bool           // without TLS, too
	Mail     Mail           // for hooks whose address is mailto:…
}

// maxURL is the longest address that is taken.
const maxURL = 2000

// Check refuses an address that could never be reached. What its host's name resolves to is checked at each connection, by
// the address that is connected to: a name may come to mean another one.
func (r Rules) Check(address string) error {
	if strings.HasPrefix(address, mailto) {
		return r.Mail.check(address)
	}
	right := "https://host[:port][/path]"
	if r.HTTP {
		right = "http[s]://host[:port][/path]"
	}
	u, err := url.Parse(address)
	switch {
	case err != nil || len(address) > maxURL || !schema.ValidHost(u) || u.Fragment != "" || u.Opaque != "":
		return schema.Invalid("url", address, right)
	case u.Scheme != "https" && (u.Scheme != "http" || !r.HTTP):
		return schema.Invalid("url", address, right)
	case u.Port() != "" && !port(u.Port()):
		return schema.Invalid("url", address, right+", with a port from 1 to 65535")
	case u.User != nil:
		return schema.Invalid("url", address[:len(u.Scheme)]+"://…", right+", without a user and password in it: what is sent is signed, and a secret may stand in the path")
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil {
		network := "tcp6"
		if ip = ip.Unmap(); ip.Is4() {
			network = "tcp4"
		}
		if r.guard().Safe(network, netip.AddrPortFrom(ip, 443).String(), nil) != nil {
			return schema.Invalid("url", address, notAllowed)
		}
	}
	return nil
}

func port(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

const notAllowed = "a public address; an operator can allow others with webhooks.allow_networks"

func (r Rules) guard() *ssrf.Guardian {
	var four, six []netip.Prefix
	for _, p := range r.Networks {
		if p.Addr().Is4() {
			four = append(four, p)
		} else {
			six = append(six, p)
		}
	}
	return ssrf.New(ssrf.WithAnyPort(), ssrf.WithAllowedV4Prefixes(four...), ssrf.WithAllowedV6Prefixes(six...))
}

// answerWithin is how long a receiver has, from the look-up of its name to the end of its answer's head.
const answerWithin = 15 * time.Second

// client is what reaches receivers: no proxy of the environment, which would connect for us to what we must not; no redirect,
// which could lead anywhere.
func (r Rules) client() *http.Client {
	d := &net.Dialer{Timeout: answerWithin, Control: r.guard().Safe}
	return &http.Client{
		Timeout:       answerWithin,
		Transport:     &http.Transport{DialContext: d.DialContext, ForceAttemptHTTP2: true, TLSHandshakeTimeout: answerWithin, MaxIdleConnsPerHost: most, IdleConnTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// words is why a receiver could not be told, as its owner may read it: what a name resolves to inside the pool's network is
// not the owner's to know.
func words(err error) string {
	var dns *net.DNSError
	var timeout interface{ Timeout() bool }
	var u *url.Error
	switch {
	case errors.Is(err, ssrf.ErrProhibitedIP) || errors.Is(err, ssrf.ErrProhibitedNetwork):
		return "its host's address may not be reached: it must be " + notAllowed
	case errors.As(err, &dns) && dns.IsNotFound:
		return fmt.Sprintf("there is no host %s", dns.Name)
	case errors.As(err, &dns):
		return fmt.Sprintf("the name %s could not be looked up", dns.Name)
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Sprintf("no answer within %s", answerWithin)
	case errors.As(err, &u):
		return u.Err.Error()
	}
	return err.Error()
}
