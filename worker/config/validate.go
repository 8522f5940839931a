package config

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpupool/schema"
)

// name is what a region or a site may be called: it becomes part of task queue names and addresses.
var name = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Validate reports everything that is wrong, each a *FieldError, joined. It reads no file and opens
// no address: that a path exists is said by who opens it.
func (c *Config) Validate() error {
	v := &checks{}
	v.that(c.DataDir != "", "data_dir", c.DataDir, "a folder")
	v.that(c.Durability.Valid(), "durability", c.Durability, "full or normal")
	v.that(len(c.Roles) > 0, "roles", "", "one or more of api, worker, allocator, pxe")
	for _, r := range c.Roles {
		v.that(r.Valid(), "roles", r, "api, worker, allocator or pxe")
	}
	v.names("regions", c.Regions)
	v.names("sites", c.Sites)
	c.Database.validate(v)
	c.Temporal.validate(v)
	c.API.validate(v)
	v.that(c.Database.Driver != Postgres || c.Secrets.KeyFile != "" || !c.UsesSecrets(), "secrets.key_file", c.Secrets.KeyFile,
		"set with database.driver postgres, since every process of the pool needs the same key; make one with 'gpupool keys secrets'")
	c.BMC.validate(v)
	c.Timing.validate(v)
	c.Queue.validate(v)
	c.Webhooks.validate(v)
	c.Mail.validate(v)
	validateClusters(c.Clusters, v)
	v.that(slices.Contains([]string{"", "quick", "standard", "soak"}, c.Install.BurnIn), "install.burn_in", c.Install.BurnIn, "quick, standard or soak")
	v.that(c.Limits.InstallsPerSite >= 1 && c.Limits.InstallsPerSite <= 10_000, "limits.installs_per_site", c.Limits.InstallsPerSite, "1 to 10000")
	c.PXE.validate(v)
	v.that(!c.Has(RolePXE) || c.Has(RoleAPI) || c.PXE.Mode == PXEOff || c.API.ExternalURL != "", "api.external_url", c.API.ExternalURL,
		"set where pxe runs without api: servers that it boots are told where to phone home")
	v.that(c.Log.Level.Valid(), "log.level", c.Log.Level, "debug, info, warn or error")
	v.that(c.Log.Format.Valid(), "log.format", c.Log.Format, "auto, text or json")

	// An embedded part lives in one process: a role elsewhere could not reach it. pxe needs the
	// database only.
	if parts := []Role{RoleAPI, RoleWorker, RoleAllocator}; !c.hasAll(parts) {
		v.that(c.Temporal.Mode != Embedded || !slices.ContainsFunc(parts, c.Has), "temporal.mode", c.Temporal.Mode,
			fmt.Sprintf("external when this process has only the roles %v; api, worker and allocator in one process can embed it", c.Roles))
		v.that(c.Database.Driver != SQLite, "database.driver", c.Database.Driver,
			fmt.Sprintf("postgres when this process has only the roles %v; SQLite serves one process", c.Roles))
	}
	return errors.Join(v.errs...)
}

// Warnings are settings that are allowed and probably not meant.
func (c *Config) Warnings() []string {
	var w []string
	if host, _, err := net.SplitHostPort(c.API.Listen); err == nil && c.API.TLSCert == "" && !loopback(host) && !strings.HasPrefix(c.API.ExternalURL, "https://") {
		w = append(w, fmt.Sprintf("api.listen is %s without TLS: tokens cross the network in the clear (hint: set api.tls_cert and api.tls_key, or api.external_url to the https address of the proxy in front)", c.API.Listen))
	}
	if c.Temporal.Mode == External && !c.Temporal.TLS.Enabled {
		if host, _, err := net.SplitHostPort(c.Temporal.Address); err == nil && !loopback(host) {
			w = append(w, fmt.Sprintf("temporal.address is %s without TLS: payloads are encrypted, ids and states are not (hint: set temporal.tls)", c.Temporal.Address))
		}
	}
	// A process of one role reads the file of all.
	if c.PXE.Mode != PXEOff && !c.Has(RolePXE) && len(c.Roles) > 1 {
		w = append(w, fmt.Sprintf("pxe.mode is %s, but this process doesn't have the role pxe", c.PXE.Mode))
	}
	return w
}

func (d Database) validate(v *checks) {
	v.that(d.Driver.Valid(), "database.driver", d.Driver, "sqlite or postgres")
	v.that(d.MaxConnections >= 2 && d.MaxConnections <= 500, "database.max_connections", d.MaxConnections, "2 to 500")
	switch d.Driver {
	case Postgres:
		// The value may hold a password, so it isn't repeated.
		v.that(d.DSN != "", "database.dsn", "", "set, or database.dsn_file, with driver postgres, as in postgres://gpupool@localhost/gpupool")
		v.that(d.DSN == "" || strings.HasPrefix(d.DSN, "postgres://") || strings.HasPrefix(d.DSN, "postgresql://") || strings.Contains(d.DSN, "="),
			"database.dsn", "(hidden)", "a postgres:// URL or key=value pairs with driver postgres")
	case SQLite:
		v.that(!strings.Contains(d.DSN, "://"), "database.dsn", "(hidden)", "a file's path with driver sqlite; set database.driver to postgres for a URL")
	}
}

func (t Temporal) validate(v *checks) {
	v.that(t.Mode.Valid(), "temporal.mode", t.Mode, "embedded or external")
	v.that(t.Namespace != "" && !strings.ContainsAny(t.Namespace, " /"), "temporal.namespace", t.Namespace, "a name without spaces or slashes")
	v.that(t.Retention >= time.Hour, "temporal.retention", t.Retention, "1h or more")
	v.hostPort("temporal.address", t.Address, t.Mode == Embedded)
	v.pair("temporal.tls.cert", t.TLS.Cert, "temporal.tls.key", t.TLS.Key)
	switch t.Mode {
	case Embedded:
		if host, _, err := net.SplitHostPort(t.Address); err == nil {
			v.that(host == "127.0.0.1", "temporal.address", t.Address, "on 127.0.0.1 with mode embedded: that server asks nobody who they are")
		}
		v.that(!t.TLS.Enabled, "temporal.tls", "set", "left out with mode embedded, which stays on this machine")
	case External:
		v.that(t.PayloadKeyFile != "", "temporal.payload_key_file", "", "set with mode external, since every process of the pool needs the same keys; make one with 'gpupool keys payload'")
	}
}

func (a API) validate(v *checks) {
	v.hostPort("api.listen", a.Listen, true)
	v.pair("api.tls_cert", a.TLSCert, "api.tls_key", a.TLSKey)
	v.url("api.external_url", a.ExternalURL)
}

func (p PXE) validate(v *checks) {
	v.that(p.Mode.Valid(), "pxe.mode", p.Mode, "off, full, proxy or relay")
	v.hostPort("pxe.dhcp_listen", p.DHCPListen, true)
	if p.BootListen != Off {
		v.hostPort("pxe.boot_listen", p.BootListen, true)
	}
	v.hostPort("pxe.tftp_listen", p.TFTPListen, true)
	v.that(p.TFTPPerClient >= 1 && p.TFTPPerClient <= 1000, "pxe.tftp_per_client", p.TFTPPerClient, "1 to 1000")
	v.hostPort("pxe.http_listen", p.HTTPListen, true)
	v.pair("pxe.tls_cert", p.TLSCert, "pxe.tls_key", p.TLSKey)
	for _, arch := range slices.Sorted(maps.Keys(p.Stages)) {
		v.that(slices.Contains(architectures, arch), "pxe.stages", arch, "by architecture: "+strings.Join(architectures, ", "))
		v.that(p.Stages[arch] == "" || filepath.IsLocal(p.Stages[arch]), "pxe.stages", p.Stages[arch], "a file of pxe.boot_dir, as custom/ipxe.efi, or empty: that architecture boots nothing")
	}
	v.that(p.LeaseTime >= 2*time.Minute && p.LeaseTime <= 720*time.Hour, "pxe.lease_time", p.LeaseTime, "2m to 720h")
	v.that(p.BootLeaseTime >= 30*time.Second && p.BootLeaseTime <= max(p.LeaseTime, 30*time.Second), "pxe.boot_lease_time", p.BootLeaseTime, fmt.Sprintf("30s to %s, which is pxe.lease_time", p.LeaseTime))
	v.that(p.OfferHold >= 5*time.Second && p.OfferHold <= 10*time.Minute, "pxe.offer_hold", p.OfferHold, "5s to 10m")
	v.that(p.Quarantine >= time.Minute && p.Quarantine <= 720*time.Hour, "pxe.quarantine", p.Quarantine, "1m to 720h")
	for i, s := range p.Subnets {
		s.validate(v, fmt.Sprintf("pxe.subnets[%d].", i))
	}
	p.IPv6.validate(v, p.Mode)
	if p.Mode == PXEOff || !p.Mode.Valid() {
		return
	}
	id, err := netip.ParseAddr(p.ServerID)
	v.that(err == nil && id.Is4() && !id.IsUnspecified(), "pxe.server_id", p.ServerID, "an IPv4 address of this service that booting servers reach")
	v.url("pxe.external_url", p.ExternalURL)
	v.that(len(p.Subnets) > 0, "pxe.subnets", "", "one network or more unless mode is off")
}

func (p PXE6) validate(v *checks, mode PXEMode) {
	v.hostPort("pxe.ipv6.dhcp_listen", p.DHCPListen, true)
	v.hostPort("pxe.ipv6.tftp_listen", p.TFTPListen, true)
	v.url("pxe.ipv6.external_url", p.ExternalURL)
	v.that(!p.Advertise || mode == PXEFull && len(p.Subnets) > 0, "pxe.ipv6.advertise", p.Advertise, "false but in mode full with pxe.ipv6.subnets: elsewhere the routers advertise")
	if len(p.Subnets) == 0 {
		return
	}
	a, err := netip.ParseAddr(p.Address)
	v.that(err == nil && a.Is6() && !a.Is4In6() && !a.IsUnspecified(), "pxe.ipv6.address", p.Address, "an IPv6 address of this service that booting servers reach")
	v.that(mode != PXEProxy, "pxe.ipv6.subnets", len(p.Subnets), "none in mode proxy: DHCPv6 has no proxies")
	for i, s := range p.Subnets {
		at := fmt.Sprintf("pxe.ipv6.subnets[%d].", i)
		n, err := netip.ParsePrefix(s.CIDR)
		v.that(err == nil && n.Addr().Is6() && !n.Addr().Is4In6() && n.Bits() >= 16 && n.Bits() <= 64 && n.Masked() == n, at+"cidr", s.CIDR, "an IPv6 network of /16 to /64, as in 2001:db8:0:1::/64")
		for _, d := range s.DNS {
			a, err := netip.ParseAddr(d)
			v.that(err == nil && a.Is6(), at+"dns", d, "an IPv6 address")
		}
	}
}

func (s Subnet) validate(v *checks, at string) {
	network, err := netip.ParsePrefix(s.CIDR)
	if err != nil || !network.Addr().Is4() || network.Masked() != network {
		v.that(false, at+"cidr", s.CIDR, "an IPv4 network, as in 10.20.0.0/22")
		return
	}
	inside := func(text string) (netip.Addr, bool) {
		a, err := netip.ParseAddr(strings.TrimSpace(text))
		return a, err == nil && network.Contains(a)
	}
	for _, part := range strings.Split(s.Range, ",") {
		first, last, _ := strings.Cut(part, "-")
		a, ok1 := inside(first)
		b, ok2 := inside(last)
		v.that(s.Range == "" || ok1 && ok2 && a.Compare(b) <= 0, at+"range", s.Range, "first-last, both inside "+s.CIDR+"; several with commas")
	}
	if s.Router != "" {
		_, ok := inside(s.Router)
		v.that(ok, at+"router", s.Router, "an address inside "+s.CIDR)
	}
	for _, list := range []struct {
		field string
		all   []string
	}{{"relays", s.Relays}, {"dns", s.DNS}, {"ntp", s.NTP}} {
		for _, d := range list.all {
			a, err := netip.ParseAddr(d)
			v.that(err == nil && a.Is4(), at+list.field, d, "an IPv4 address")
		}
	}
	// 576 is the least that every IPv4 host takes (RFC 791), 65535 the most that an IPv4 packet is.
	v.that(s.MTU == 0 || s.MTU >= 576 && s.MTU <= 65535, at+"mtu", s.MTU, "576 to 65535")
}

// architectures are those of pxe.stages.
var architectures = []string{"bios", "ia32", "x64", "arm32", "arm64"}

// checks gathers what is wrong.
type checks struct{ errs []error }

func (v *checks) that(ok bool, field string, value any, want string) {
	if !ok {
		v.errs = append(v.errs, &FieldError{Field: field, Value: value, Want: want})
	}
}

func (v *checks) names(field string, names []string) {
	v.that(len(names) > 0, field, "", "one name or more")
	for i, n := range names {
		v.that(name.MatchString(n), field, n, "1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit")
		v.that(!slices.Contains(names[:i], n), field, n, "named once")
	}
}

func (v *checks) hostPort(field, value string, anyPort bool) {
	host, port, err := net.SplitHostPort(value)
	n, portErr := strconv.Atoi(port)
	low := 1
	if anyPort {
		low = 0
	}
	ok := err == nil && portErr == nil && n >= low && n <= 65535 && (anyPort || host != "")
	v.that(ok, field, value, fmt.Sprintf("host:port with a port of %d to 65535", low))
}

func (v *checks) url(field, value string) {
	if value == "" {
		return
	}
	_, ok := schema.ParseURL(value)
	v.that(ok, field, value, "an http or https address without a query, as in https://gpupool.example.net")
}

func (v *checks) pair(fieldA, a, fieldB, b string) {
	v.that(a == "" || b != "", fieldB, "", "set when "+fieldA+" is")
	v.that(b == "" || a != "", fieldA, "", "set when "+fieldB+" is")
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
