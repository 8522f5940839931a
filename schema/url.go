package schema

import (
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// ParseURL reads an address of a service over HTTP, as people configure one and as others are told it: http or https, a
// host that there could be, a port of 1 to 65535 where there is one, no account, query or fragment. ok is false for everything
// else. A path may be there.
func ParseURL(s string) (u *url.URL, ok bool) {
	u, err := url.Parse(s)
	ok = err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Opaque == "" && u.User == nil && ValidHost(u) &&
		!strings.ContainsAny(s, "?#") && !strings.ContainsFunc(s, func(r rune) bool { return r <= 0x20 || r == 0x7f })
	return u, ok
}

// hostName is RFC 1123 section 2.1, with the underscore that names inside of networks have, and the letters of all scripts
// (RFC 5890: who connects writes them as ASCII).
var hostName = regexp.MustCompile(`^([\pL\pM\pN_]([\pL\pM\pN_-]{0,61}[\pL\pM\pN_])?\.)*[\pL\pM\pN_]([\pL\pM\pN_-]{0,61}[\pL\pM\pN_])?\.?$`)

// ValidHost reports whether a parsed URL's host could be one: an IP address or a name, and a port of 1 to 65535 if there is one.
func ValidHost(u *url.URL) bool {
	host, port := u.Hostname(), u.Port()
	if n, err := strconv.ParseUint(port, 10, 16); port != "" && (err != nil || n == 0) || strings.HasSuffix(u.Host, ":") {
		return false
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	// A name whose last label is a number would be read as an IPv4 address, which it isn't.
	last := host[strings.LastIndexByte(strings.TrimSuffix(host, "."), '.')+1:]
	_, err := strconv.ParseUint(strings.TrimSuffix(last, "."), 10, 64)
	return err != nil && len(host) <= 253 && hostName.MatchString(host)
}
