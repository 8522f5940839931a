package dhcp

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"gpupool/pxe/lease"
)

// Mode is how the service takes part in its networks' DHCP.
type Mode string

const (
	ModeFull  Mode = "full"
	ModeRelay Mode = "relay"
	ModeProxy Mode = "proxy"
)

// Policy is what happens to a MAC that the inventory doesn't know. It is never answered.
type Policy string

const (
	Ignore Policy = "ignore" // nothing
	Record Policy = "record" // evidence, from which an operator may accept it
)

// Subnet is one network whose clients are answered.
type Subnet struct {
	// Prefix is the clients' network, as 10.1.0.0/24. In proxy mode too: it says which relays are known.
	Prefix netip.Prefix
	// Ranges are the addresses to give out; none = the whole prefix. Never given are its number and its broadcast
	// address, the Routers, Relays, DNS and NTP servers in it, ServerID and every other address that this machine
	// has, and the relay that a request comes through.
	Ranges []lease.Range
	// Relays are giaddrs of relays that serve this subnet from outside its prefix.
	Relays []netip.Addr
	// Interface is the interface the subnet is directly on; empty = found by the interface's own addresses.
	Interface string
	Routers   []netip.Addr
	DNS       []netip.Addr
	NTP       []netip.Addr
	Domain    string
	MTU       uint16 // option 26; 0 = not told
	// BootLease is the lease of firmware and boot loaders, which don't renew; 0 = 10 min. Lease is that of
	// operating systems; 0 = 12 h. T1 is half of it, T2 seven eighths (RFC 2131 section 4.4.5).
	BootLease, Lease time.Duration
}

// Config of a Server.
type Config struct {
	Mode Mode // empty = full
	// ServerID is option 54, siaddr and the TFTP server: an address of this server that its clients reach, and
	// that moves with the service (active and standby show the same).
	ServerID netip.Addr
	Subnets  []Subnet
	// FilesURL is where boot files are, for UEFI HTTP boot, as http://10.1.0.2:8080/files.
	FilesURL string
	// ScriptURL is the script of a MAC, for iPXE.
	ScriptURL func(mac string) string
	// Stages overrides the first program of an architecture; see Stages. An empty name boots nothing.
	Stages map[Arch]string
	// Has tells whether a boot file is there; nil = all are.
	Has func(name string) bool
	// SecureBoot gives every UEFI client the signed shim.
	SecureBoot bool
	// UserClass is the user class (option 77) of an iPXE built for this service; empty = none.
	UserClass string
	// Unknown is what is done about a MAC the inventory doesn't know; empty = ignore.
	Unknown Policy
	Limits  Limits
	// V6 is the service over IPv6; without subnets there is none.
	V6 Config6
}

// Check fills in what is left empty, and says what is wrong: each field, its value and what would be right.
func (c *Config) Check() error {
	if c.Mode == "" {
		c.Mode = ModeFull
	}
	if c.Unknown == "" {
		c.Unknown = Ignore
	}
	var errs []error
	switch c.Mode {
	case ModeFull, ModeRelay, ModeProxy:
	default:
		errs = append(errs, fmt.Errorf("mode %q: want full, relay or proxy", c.Mode))
	}
	switch c.Unknown {
	case Ignore, Record:
	default:
		errs = append(errs, fmt.Errorf("unknown %q: want ignore or record", c.Unknown))
	}
	if !c.ServerID.Is4() || c.ServerID.IsUnspecified() {
		errs = append(errs, fmt.Errorf("server id %q: want this server's IPv4 address as its clients reach it", c.ServerID))
	}
	if c.ScriptURL == nil {
		errs = append(errs, errors.New("script URL: want a function of the MAC"))
	}
	if len(c.Subnets) == 0 && c.Mode != ModeProxy {
		errs = append(errs, errors.New("subnets: want at least one in full and relay mode"))
	}
	for i := range c.Subnets {
		s := &c.Subnets[i]
		errs = append(errs, s.check())
		for _, o := range c.Subnets[:i] {
			if o.Prefix.IsValid() && s.Prefix.IsValid() && o.Prefix.Overlaps(s.Prefix) {
				errs = append(errs, fmt.Errorf("subnet %s overlaps %s: each address belongs to one subnet", s.Prefix, o.Prefix))
			}
		}
		errs = append(errs, c.checkRelays(i))
	}
	for i := range c.V6.Subnets {
		errs = append(errs, c.V6.Subnets[i].check())
	}
	if len(c.V6.Subnets) > 0 && c.V6.ScriptURL == nil {
		errs = append(errs, errors.New("IPv6 script URL: want a function of the MAC"))
	}
	if len(c.V6.Subnets) > 0 && c.Mode == ModeProxy {
		errs = append(errs, errors.New("IPv6 subnets: want none in proxy mode: DHCPv6 has no proxies, an address and its boot file come from one server"))
	}
	c.Limits = c.Limits.defaults()
	return errors.Join(errs...)
}

// checkRelays says which relay of the i-th subnet is another's too, by its list or its address: whose clients it relays could
// not be told.
func (c *Config) checkRelays(i int) error {
	for j, o := range c.Subnets {
		if i == j {
			continue
		}
		for _, r := range c.Subnets[i].Relays {
			if o.Prefix.Contains(r) {
				return fmt.Errorf("subnet %s: relay %s is an address of subnet %s, so it can't be told whose clients it relays: want it off the list, and to say their network in option 82, sub-option 5", c.Subnets[i].Prefix, r, o.Prefix)
			}
			if j < i && slices.Contains(o.Relays, r) {
				return fmt.Errorf("subnet %s: relay %s is of subnet %s already: want each relay in one subnet's list", c.Subnets[i].Prefix, r, o.Prefix)
			}
		}
	}
	return nil
}

func (s *Subnet) check() error {
	if !s.Prefix.IsValid() || !s.Prefix.Addr().Is4() || s.Prefix.Bits() < 8 || s.Prefix.Bits() > 31 {
		return fmt.Errorf("subnet %q: want an IPv4 network of /8 to /31, as 10.1.0.0/24", s.Prefix)
	}
	if s.Prefix != s.Prefix.Masked() {
		return fmt.Errorf("subnet %s has host bits: want %s", s.Prefix, s.Prefix.Masked())
	}
	if len(s.Ranges) == 0 {
		s.Ranges = []lease.Range{{From: s.Prefix.Addr(), To: lease.Broadcast(s.Prefix)}}
	}
	for i, r := range s.Ranges {
		if !s.Prefix.Contains(r.From) || !s.Prefix.Contains(r.To) || r.To.Less(r.From) {
			return fmt.Errorf("subnet %s: range %s-%s: want two addresses of the subnet, the lower one first", s.Prefix, r.From, r.To)
		}
		for _, o := range s.Ranges[:i] {
			if r.From.Compare(o.To) <= 0 && o.From.Compare(r.To) <= 0 {
				return fmt.Errorf("subnet %s: range %s-%s overlaps %s-%s: want each address in one range", s.Prefix, r.From, r.To, o.From, o.To)
			}
		}
	}
	for _, r := range s.Routers {
		if !s.Prefix.Contains(r) {
			return fmt.Errorf("subnet %s: router %s is outside it; clients could not reach it", s.Prefix, r)
		}
	}
	if s.BootLease == 0 {
		s.BootLease = 10 * time.Minute
	}
	if s.Lease == 0 {
		s.Lease = 12 * time.Hour
	}
	for _, d := range []time.Duration{s.BootLease, s.Lease} {
		if d < 30*time.Second || d > 365*24*time.Hour {
			return fmt.Errorf("subnet %s: lease of %s: want 30 s to a year", s.Prefix, d)
		}
	}
	return nil
}

// pool is the subnet as the lease book sees it. own are this machine's addresses.
func (c Config) pool(s Subnet, own ...netip.Addr) lease.Pool {
	return lease.Pool{Subnet: s.Prefix.String(), Prefix: s.Prefix, Ranges: s.Ranges, Reserved: slices.Concat([]netip.Addr{c.ServerID}, s.Routers, s.Relays, s.DNS, s.NTP, own)}
}
