package pxe

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"gpupool/pxe/boot"
	"gpupool/pxe/dhcp"
	"gpupool/pxe/lease"
	"gpupool/pxe/ndisc"
	"gpupool/schema"
)

// Off as a listen address leaves a service out.
const Off = "off"

// Config of a Server. Durations are Go's (10m); the zero value of a field means what its comment says.
type Config struct {
	// Mode is full, relay or proxy; empty = full. See pxe/dhcp.
	Mode dhcp.Mode `yaml:"mode"`
	// Interface binds DHCP to one interface; empty = all. Example: eno1.
	Interface string `yaml:"interface"`
	// ServerID is this server's IPv4 address as its clients reach it: DHCP's server identifier and the TFTP
	// server. An active and a standby share one. Empty = the interface's first address.
	ServerID string `yaml:"server_id"`

	// Listen addresses, host:port; "off" = not served. Empty = :67, :4011, :69, :8080. Port 0 takes a free port.
	DHCP string `yaml:"dhcp"`
	PXE  string `yaml:"pxe"`
	TFTP string `yaml:"tftp"`
	HTTP string `yaml:"http"`
	// TLSCert and TLSKey are files in PEM; with both HTTP is served as HTTPS. Empty = plain HTTP.
	TLSCert string `yaml:"tls_cert"`
	TLSKey  string `yaml:"tls_key"`

	// URL is the HTTP service's own, as clients reach it; empty = http://<server_id>:<port>.
	URL string `yaml:"url"`
	// APIURL is where an installed machine phones home. Example: https://pool.example.com.
	APIURL string `yaml:"api_url"`

	// IPv6 is the service for UEFI's network boot over IPv6.
	IPv6 IPv6 `yaml:"ipv6"`

	// Root is the folder of boot files. Nothing outside it is ever served, symbolic links included.
	Root string `yaml:"root"`
	// Plan is what an armed machine boots where there is no install profile for it.
	Plan Plan `yaml:"plan"`

	Subnets []Subnet `yaml:"subnets"`
	// Unknown says what is done about a MAC that isn't in the inventory: ignore or record; empty = ignore.
	Unknown dhcp.Policy `yaml:"unknown"`
	// Stages overrides the first program by architecture name: bios, ia32, x64, arm32, arm64. See dhcp.Stages.
	Stages map[string]string `yaml:"stages"`
	// SecureBoot gives every UEFI client the signed shim instead of iPXE.
	SecureBoot bool `yaml:"secure_boot"`
	// UserClass is the user class of an own iPXE build; empty = none.
	UserClass string `yaml:"user_class"`

	// NoProbe leaves out the look whether an address is in use before it is first offered (up to 400 ms).
	NoProbe bool `yaml:"no_probe"`
	// OfferHold is how long an offer waits for its request; 0 = 1 min. Quarantine is how long an address that was
	// found in use by something else is left alone; 0 = 1 h.
	OfferHold  time.Duration `yaml:"offer_hold"`
	Quarantine time.Duration `yaml:"quarantine"`
	// TFTPPerClient is how many transfers one address may have at once; 0 = 8.
	TFTPPerClient int `yaml:"tftp_per_client"`
	// Limits bound what a flood costs.
	Limits dhcp.Limits `yaml:"limits"`
}

// IPv6 is network boot over IPv6, in full and relay mode. Without subnets there is none.
type IPv6 struct {
	// Address is this server's IPv6 address as its clients reach it, for HTTP and TFTP. Example: 2001:db8:0:1::2.
	Address string `yaml:"address"`
	// DHCP is DHCPv6's listen address; empty = [::]:547, "off" = not served.
	DHCP string `yaml:"dhcp"`
	// TFTP is TFTP's listen address over IPv6; empty = [::]:69, "off" = not served.
	TFTP string `yaml:"tftp"`
	// URL is the HTTP service's own over IPv6; empty = http://[address]:<port>, where HTTP listens on all addresses.
	URL     string    `yaml:"url"`
	Subnets []Subnet6 `yaml:"subnets"`
	// Advertise sends router advertisements to the subnets' own links, in full mode: that addresses come from DHCPv6
	// (flags M and O). It makes this machine no ndisc. See pxe/ndisc.
	Advertise bool `yaml:"advertise"`
}

// Subnet6 is one IPv6 network whose clients are served. Example: cidr 2001:db8:0:1::/64.
type Subnet6 struct {
	CIDR      string        `yaml:"cidr"`
	Interface string        `yaml:"interface"`
	DNS       []string      `yaml:"dns"`
	BootLease time.Duration `yaml:"boot_lease"` // for firmware; 0 = 10 min
	Lease     time.Duration `yaml:"lease"`      // for operating systems; 0 = 12 h
}

// Plan is boot.Plan as configuration.
type Plan struct {
	Kernel string   `yaml:"kernel"`
	Initrd []string `yaml:"initrd"`
	Args   string   `yaml:"args"`
}

// Subnet is one network whose clients are served. Example: cidr 10.1.0.0/24, range 10.1.0.50-10.1.0.250.
type Subnet struct {
	CIDR      string        `yaml:"cidr"`
	Range     string        `yaml:"range"`  // from-to, several with commas; empty = the whole network
	Relays    []string      `yaml:"relays"` // relays that serve it from outside it
	Interface string        `yaml:"interface"`
	Routers   []string      `yaml:"routers"`
	DNS       []string      `yaml:"dns"`
	NTP       []string      `yaml:"ntp"`
	Domain    string        `yaml:"domain"`
	MTU       uint16        `yaml:"mtu"`
	BootLease time.Duration `yaml:"boot_lease"` // for firmware; 0 = 10 min
	Lease     time.Duration `yaml:"lease"`      // for operating systems; 0 = 12 h
}

var stageNames = map[string][]dhcp.Arch{
	"bios": {dhcp.BIOS, dhcp.HTTPBIOS}, "ia32": {dhcp.EFIIA32, dhcp.HTTPIA32},
	"x64":   {dhcp.EFIX64, dhcp.EFIBC, dhcp.HTTPX64, dhcp.HTTPBC},
	"arm32": {dhcp.EFIArm32, dhcp.HTTPArm32, dhcp.UBootArm32, dhcp.HTTPUBoot32},
	"arm64": {dhcp.EFIArm64, dhcp.HTTPArm64, dhcp.UBootArm64, dhcp.HTTPUBoot64},
}

// resolve turns the configuration into what the DHCP server takes. URLs are filled in later, when ports are known.
func (c Config) resolve() (dhcp.Config, error) {
	d := dhcp.Config{Mode: c.Mode, SecureBoot: c.SecureBoot, UserClass: c.UserClass, Unknown: c.Unknown, Limits: c.Limits, Stages: map[dhcp.Arch]string{}}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for name, file := range c.Stages {
		archs, ok := stageNames[name]
		if !ok {
			bad("stages: %q is no architecture: want bios, ia32, x64, arm32 or arm64", name)
		}
		for _, a := range archs {
			d.Stages[a] = file
		}
	}
	var err error
	if _, none := net.InterfaceByName(c.Interface); c.Interface != "" && none != nil {
		bad("interface: %q: there is none of that name: want one of %s", c.Interface, strings.Join(interfaces(), ", "))
	} else if d.ServerID, err = c.serverID(); err != nil {
		errs = append(errs, err)
	}
	if c.Root == "" {
		bad("root: want the folder of boot files")
	}
	for field, u := range map[string]string{"url": c.URL, "api_url": c.APIURL} {
		if _, ok := schema.ParseURL(u); u != "" && !ok {
			bad("%s: %q: want http://host:port or https://host", field, u)
		}
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		bad("tls_cert and tls_key: want both or neither")
	}
	for i, s := range c.Subnets {
		n, err := s.resolve()
		if err != nil {
			bad("subnets[%d]: %w", i, err)
		}
		d.Subnets = append(d.Subnets, n)
	}
	if len(c.IPv6.Subnets) > 0 {
		if a, err := netip.ParseAddr(c.IPv6.Address); err != nil || !a.Is6() || a.Is4In6() {
			bad("ipv6.address: %q: want this server's IPv6 address as its clients reach it, as 2001:db8:0:1::2", c.IPv6.Address)
		}
		if _, ok := schema.ParseURL(c.IPv6.URL); c.IPv6.URL != "" && !ok {
			bad("ipv6.url: %q: want http://[address]:port or https://host", c.IPv6.URL)
		}
	}
	if c.IPv6.Advertise {
		if _, err := c.advertisers(nil); err != nil {
			errs = append(errs, err)
		}
	}
	for i, s := range c.IPv6.Subnets {
		n, err := s.resolve()
		if err != nil {
			bad("ipv6.subnets[%d]: %w", i, err)
		}
		d.V6.Subnets = append(d.V6.Subnets, n)
	}
	return d, errors.Join(errs...)
}

func (s Subnet6) resolve() (dhcp.Subnet6, error) {
	n := dhcp.Subnet6{Interface: s.Interface, BootLease: s.BootLease, Lease: s.Lease}
	var err error
	if n.Prefix, err = netip.ParsePrefix(s.CIDR); err != nil {
		return n, fmt.Errorf("cidr: %q: want an IPv6 network, as 2001:db8:0:1::/64", s.CIDR)
	}
	for _, t := range s.DNS {
		a, err := netip.ParseAddr(t)
		if err != nil || !a.Is6() {
			return n, fmt.Errorf("dns: %q: want an IPv6 address", t)
		}
		n.DNS = append(n.DNS, a)
	}
	return n, nil
}

// advertisers are those that IPv6.Advertise asks for: one for each interface.
func (c Config) advertisers(log *slog.Logger) ([]ndisc.Advertiser, error) {
	switch {
	case len(c.IPv6.Subnets) == 0:
		return nil, errors.New("ipv6.advertise: true without ipv6.subnets: want the networks to advertise")
	case c.Mode != "" && c.Mode != dhcp.ModeFull:
		return nil, fmt.Errorf("ipv6.advertise: true in mode %s: want mode full; elsewhere the routers advertise", c.Mode)
	}
	var all []ndisc.Advertiser
	for i, s := range c.IPv6.Subnets {
		n, err := s.resolve()
		if err != nil {
			return nil, nil // which resolve tells
		}
		name := s.Interface
		if name == "" {
			name = c.Interface
		}
		if name == "" {
			name = interfaceIn(n.Prefix)
		}
		if name == "" {
			return nil, fmt.Errorf("ipv6.subnets[%d].interface: no interface has an address in %s: want the one to advertise on", i, n.Prefix)
		}
		at := slices.IndexFunc(all, func(a ndisc.Advertiser) bool { return a.Interface == name })
		if at < 0 {
			at, all = len(all), append(all, ndisc.Advertiser{Interface: name, Log: log})
		}
		all[at].Prefixes = append(all[at].Prefixes, n.Prefix)
		for _, d := range n.DNS {
			if !slices.Contains(all[at].DNS, d) {
				all[at].DNS = append(all[at].DNS, d)
			}
		}
	}
	return all, nil
}

// interfaceIn is the interface that has an address in p; empty = none.
func interfaceIn(p netip.Prefix) string {
	all, err := net.Interfaces()
	if err != nil {
		return ""
	}
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range addrs {
			if own, err := netip.ParsePrefix(a.String()); err == nil && p.Contains(own.Addr()) {
				return i.Name
			}
		}
	}
	return ""
}

// interfaces are the names of this machine's.
func interfaces() []string {
	all, err := net.Interfaces()
	if err != nil {
		return []string{err.Error()}
	}
	var names []string
	for _, i := range all {
		names = append(names, i.Name)
	}
	return names
}

func (c Config) serverID() (netip.Addr, error) {
	if c.ServerID != "" {
		a, err := netip.ParseAddr(c.ServerID)
		if err != nil || !a.Is4() {
			return a, fmt.Errorf("server_id: %q: want an IPv4 address, as 10.1.0.2", c.ServerID)
		}
		return a, nil
	}
	if c.Interface == "" {
		return netip.Addr{}, errors.New("server_id: want this server's IPv4 address, or an interface to take it from")
	}
	i, err := net.InterfaceByName(c.Interface)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("interface: %q: %w", c.Interface, err)
	}
	addrs, err := i.Addrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("interface: %q: %w", c.Interface, err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
			return p.Addr(), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("interface: %q has no IPv4 address: give it one, or set server_id", c.Interface)
}

func (s Subnet) resolve() (dhcp.Subnet, error) {
	n := dhcp.Subnet{Interface: s.Interface, Domain: s.Domain, MTU: s.MTU, BootLease: s.BootLease, Lease: s.Lease}
	var err error
	if n.Prefix, err = netip.ParsePrefix(s.CIDR); err != nil {
		return n, fmt.Errorf("cidr: %q: want a network, as 10.1.0.0/24", s.CIDR)
	}
	for _, r := range strings.Split(s.Range, ",") {
		if r = strings.TrimSpace(r); r == "" {
			continue
		}
		from, to, _ := strings.Cut(r, "-")
		f, err1 := netip.ParseAddr(strings.TrimSpace(from))
		t, err2 := netip.ParseAddr(strings.TrimSpace(to))
		if err1 != nil || err2 != nil || !f.Is4() || !t.Is4() {
			return n, fmt.Errorf("range: %q: want two addresses, as 10.1.0.50-10.1.0.250", r)
		}
		n.Ranges = append(n.Ranges, lease.Range{From: f, To: t})
	}
	for field, l := range map[string]struct {
		in  []string
		out *[]netip.Addr
	}{"relays": {s.Relays, &n.Relays}, "routers": {s.Routers, &n.Routers}, "dns": {s.DNS, &n.DNS}, "ntp": {s.NTP, &n.NTP}} {
		for _, t := range l.in {
			a, err := netip.ParseAddr(t)
			if err != nil || !a.Is4() {
				return n, fmt.Errorf("%s: %q: want an IPv4 address", field, t)
			}
			*l.out = append(*l.out, a)
		}
	}
	return n, nil
}

func (c Config) plan() boot.Plan { return boot.Plan(c.Plan) }
