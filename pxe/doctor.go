package pxe

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"gpupool/pxe/dhcp"
	"gpupool/pxe/lease"
	"gpupool/pxe/ndisc"
)

// Verdict of one Check.
type Verdict string

const (
	Good    Verdict = "ok"
	Warning Verdict = "warning" // it works, less well, or can't be told
	Bad     Verdict = "failed"
)

// Check is one thing that Doctor looked at.
type Check struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Text    string  `json:"text"`           // what was found
	Hint    string  `json:"hint,omitempty"` // what to do about it
}

// Doctor looks at what the boot service needs on this machine: the configuration, its address, ports, rights, routes, boot
// files, and another DHCP server on the wire. running says that the service runs here already, so that its ports are
// rightly in use; it is then asked how many addresses are left. It changes nothing; on the wire it sends one DISCOVER, with a MAC that no machine has, and over
// IPv6 one router solicitation.
func Doctor(ctx context.Context, cfg Config, running bool) []Check {
	var all []Check
	add := func(name string, v Verdict, text, hint string) { all = append(all, Check{name, v, text, hint}) }
	dc, err := cfg.resolve()
	if err == nil {
		dc.ScriptURL = func(string) string { return "" }
		dc.V6.ScriptURL = dc.ScriptURL
		err = dc.Check()
	}
	if err != nil {
		add("configuration", Bad, err.Error(), "correct it and look again")
		return all
	}
	add("configuration", Good, fmt.Sprintf("mode %s, %d subnets", dc.Mode, len(dc.Subnets)), "")
	all = append(all, address("server address", dc.ServerID))
	ports := []struct{ name, addr, def, network string }{
		{"dhcp port", cfg.DHCP, ":67", "udp4"}, {"pxe port", cfg.PXE, ":4011", "udp4"}, {"tftp port", cfg.TFTP, ":69", "udp4"}, {"http port", cfg.HTTP, ":8080", "tcp"},
	}
	if a, err := netip.ParseAddr(cfg.IPv6.Address); err == nil && len(cfg.IPv6.Subnets) > 0 {
		all = append(all, address("IPv6 address", a))
		ports = append(ports, []struct{ name, addr, def, network string }{{"dhcp port, IPv6", cfg.IPv6.DHCP, "[::]:547", "udp6"}, {"tftp port, IPv6", cfg.IPv6.TFTP, "[::]:69", "udp6"}}...)
	}
	for _, p := range ports {
		all = append(all, port(ctx, p.name, p.addr, p.def, p.network, running))
	}
	all = append(all, rights())
	for _, n := range dc.Subnets {
		all = append(all, route(ctx, n, dc.Mode, cfg.Interface))
	}
	if running && dc.Mode != dhcp.ModeProxy && cfg.HTTP != Off {
		all = append(all, addresses(ctx, cfg)...)
	}
	all = append(all, space(cfg.Root, dc))
	if dc.Mode != dhcp.ModeRelay {
		all = append(all, others(ctx, cfg.Interface, dc))
	}
	if len(dc.V6.Subnets) > 0 && dc.Mode == dhcp.ModeFull {
		all = append(all, advertisements(ctx, cfg)...)
	}
	return all
}

// advertisements asks each link of an IPv6 subnet whether hosts are told to ask DHCPv6 there. Without that no firmware
// and no system does.
func advertisements(ctx context.Context, cfg Config) []Check {
	links := map[string][]netip.Prefix{}
	var names []string
	for _, s := range cfg.IPv6.Subnets {
		n, err := s.resolve()
		name := cmp.Or(s.Interface, cfg.Interface, interfaceIn(n.Prefix))
		if err != nil || name == "" {
			continue // reached through relays: its routers are not on our wire
		}
		if links[name] == nil {
			names = append(names, name)
		}
		links[name] = append(links[name], n.Prefix)
	}
	var all []Check
	for _, ifname := range names {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		seen, err := ndisc.Look(ctx, ifname)
		cancel()
		all = append(all, advertised(ifname, links[ifname], seen, err, cfg.IPv6.Advertise))
	}
	return all
}

// advertised judges what was seen on a link.
func advertised(ifname string, prefixes []netip.Prefix, seen []ndisc.Seen, err error, own bool) Check {
	const name = "IPv6 advertisements"
	if err != nil {
		return Check{name, Warning, "could not be looked for: " + err.Error(), "needs root, and a link-local address on " + ifname}
	}
	var managed, not []string
	for _, s := range seen {
		if who := s.From.WithZone("").String(); s.Managed {
			managed = append(managed, who)
		} else {
			not = append(not, who)
		}
	}
	if own {
		managed = append(managed, "this service")
	}
	switch {
	case len(managed) == 0 && len(not) == 0:
		return Check{name, Bad, "nobody advertises on " + ifname + ": no machine will ask DHCPv6", "let the router of " + list(prefixes) + " advertise with flags M and O, or set ipv6.advertise"}
	case len(managed) == 0:
		return Check{name, Bad, strings.Join(not, ", ") + " advertises on " + ifname + " without the managed flag: no machine will ask DHCPv6 for an address", "set flags M and O there"}
	case len(not) > 0:
		return Check{name, Warning, "on " + ifname + " " + strings.Join(managed, ", ") + " says that addresses are managed, " + strings.Join(not, ", ") + " does not: machines believe whom they hear last", "set flags M and O on all of them"}
	}
	return Check{name, Good, "on " + ifname + " by " + strings.Join(managed, ", "), ""}
}

func list(ps []netip.Prefix) string {
	var all []string
	for _, p := range ps {
		all = append(all, p.String())
	}
	return strings.Join(all, ", ")
}

func address(name string, id netip.Addr) Check {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return Check{name, Warning, err.Error(), ""}
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && (p.Addr() == id || id.IsLoopback() && p.Addr().IsLoopback()) {
			return Check{name, Good, id.String() + " is this machine's", ""}
		}
	}
	return Check{name, Warning, id.String() + " is not an address of this machine", "right on a standby, which takes it over; on the active server set the right one or give it the address"}
}

func port(ctx context.Context, name, addr, def, network string, running bool) Check {
	if addr == Off {
		return Check{name, Good, "not served", ""}
	}
	if addr == "" {
		addr = def
	}
	var err error
	if network == "tcp" {
		var l net.Listener
		if l, err = (&net.ListenConfig{}).Listen(ctx, network, addr); err == nil {
			l.Close()
		}
	} else {
		var c net.PacketConn
		if c, err = (&net.ListenConfig{}).ListenPacket(ctx, network, addr); err == nil {
			c.Close()
		}
	}
	inUse := errors.Is(err, syscall.EADDRINUSE)
	switch {
	case err == nil && running:
		return Check{name, Bad, "nothing listens on " + addr, "the service that should run here doesn't have it: read its log"}
	case err == nil:
		return Check{name, Good, addr + " can be had", ""}
	case inUse && running:
		return Check{name, Good, addr + " is in use, as it should be", ""}
	}
	return Check{name, Bad, err.Error(), strings.TrimSuffix(strings.TrimPrefix(hint(err, addr), " (hint: "), ")")}
}

func rights() Check {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return Check{"packet socket", Warning, err.Error(), ""}
	}
	f, err := dhcp.OpenLink(lo.Index, 0)
	if err != nil {
		return Check{"packet socket", Warning, err.Error() + ": offers are broadcast, and addresses are probed without ARP", "give the process CAP_NET_RAW; the systemd unit does"}
	}
	f.Close()
	return Check{"packet socket", Good, "can be had: offers go to their machine alone, addresses are probed by ARP", ""}
}

// route looks whether what is sent to a subnet gets there: to its machines, where it is on a link of this machine or they
// renew a lease, and to its relays.
func route(ctx context.Context, n dhcp.Subnet, mode dhcp.Mode, ifname string) Check {
	name := "route to " + n.Prefix.String()
	if i := interfaceIn(n.Prefix); i != "" {
		if ifname != "" && i != ifname {
			return Check{name, Bad, fmt.Sprintf("it is on %s, and DHCP is bound to %s: its machines are not heard", i, ifname), "set interface to " + i + ", or leave it empty"}
		}
		return Check{name, Good, "on " + i, ""}
	}
	from := ""
	for _, a := range append([]netip.Addr{n.Ranges[0].From}, n.Relays...) {
		// Nothing is sent: to connect is to look for the way.
		c, err := (&net.Dialer{}).DialContext(ctx, "udp4", netip.AddrPortFrom(a, 67).String())
		if err != nil {
			return Check{name, Bad, fmt.Sprintf("%s: %v: answers to machines behind its relay would be lost", a, errors.Unwrap(err)), "ip route add " + n.Prefix.String() + " via ROUTER, or a default route"}
		}
		from = c.LocalAddr().(*net.UDPAddr).IP.String()
		c.Close()
	}
	if mode != dhcp.ModeRelay && len(n.Relays) == 0 {
		return Check{name, Warning, "no interface here has an address in it: only machines behind a relay are answered", "right if a relay has an address in it; else give " + cmp.Or(ifname, "the interface on its link") + " one"}
	}
	return Check{name, Good, "sent from " + from, ""}
}

// addresses asks the service that runs here how many addresses are left. An address is for a machine that has none yet: the
// others keep theirs.
func addresses(ctx context.Context, cfg Config) []Check {
	const name = "addresses"
	unknown := func(err error) []Check {
		return []Check{{name, Warning, "could not be asked for: " + err.Error(), "the service that should run here doesn't answer by HTTP: read its log"}}
	}
	all, err := usageOf(ctx, cfg)
	if err != nil {
		return unknown(err)
	}
	var checks []Check
	for _, u := range all {
		c := Check{name + " of " + u.Subnet, Good, fmt.Sprintf("%d of %d are free; %d leased, %d quarantined", u.Free(), u.Size, u.Leased, u.Quarantined), ""}
		switch {
		case u.Free() <= 0:
			c.Verdict, c.Hint = Bad, "a machine that had none finds none: widen its range; `gpupool pxe watch` shows what was quarantined and why"
		case u.Free()*10 < u.Size:
			c.Verdict, c.Hint = Warning, "less than a tenth: widen its range before it is used up"
		}
		checks = append(checks, c)
	}
	if checks == nil {
		return unknown(errors.New("the service runs and can't read its leases"))
	}
	return checks
}

// usageOf reads gpupool_pxe_addresses from the service's own /metrics.
func usageOf(ctx context.Context, cfg Config) ([]lease.Usage, error) {
	host, port, err := net.SplitHostPort(cmp.Or(cfg.HTTP, ":8080"))
	if err != nil {
		return nil, err
	}
	if a, err := netip.ParseAddr(host); host == "" || err == nil && a.IsUnspecified() {
		host = "localhost"
	}
	scheme, client := "http", &http.Client{Timeout: 5 * time.Second}
	if cfg.TLSCert != "" {
		scheme = "https"
		// Its certificate is for its machines' address, not for this one; and what it says is no secret.
		client.Transport = &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}} //nolint:gosec
	} else {
		client.Transport = &http.Transport{DisableKeepAlives: true}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+net.JoinHostPort(host, port)+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	a, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(io.LimitReader(a.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	var all []lease.Usage
	for _, m := range families["gpupool_pxe_addresses"].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		i := slices.IndexFunc(all, func(u lease.Usage) bool { return u.Subnet == labels["subnet"] })
		if i < 0 {
			i, all = len(all), append(all, lease.Usage{Subnet: labels["subnet"]})
		}
		n := int(m.GetGauge().GetValue())
		all[i].Size += n
		switch labels["state"] {
		case addressLeased:
			all[i].Leased = n
		case addressQuarantined:
			all[i].Quarantined = n
		}
	}
	return all, nil
}

// space looks whether the first stages are in the folder of boot files.
func space(root string, c dhcp.Config) Check {
	f, err := openFolder(root)
	if err != nil {
		return Check{"boot files", Bad, err.Error(), "deploy/pxe/boot-files.sh " + root + " makes and fills it"}
	}
	defer f.root.Close()
	c.Has = f.has
	want := map[string]string{}
	for _, a := range []dhcp.Arch{dhcp.BIOS, dhcp.EFIX64, dhcp.EFIArm64} {
		if name := c.Stage(a, c.SecureBoot); name != "" {
			want[name] = a.String()
			if next, ok := strings.CutPrefix(name, "shim"); ok {
				want["grub"+next] = a.String() // which the shim asks for
			}
		}
	}
	var there, missing []string
	for name, arch := range want {
		file, err := f.OpenFile(name)
		if err != nil {
			missing = append(missing, name+" ("+arch+")")
			continue
		}
		if st, err := file.Stat(); err == nil && st.Size() > 0 {
			there = append(there, name)
		} else {
			missing = append(missing, name+" ("+arch+"), which is empty")
		}
		file.Close()
	}
	slices.Sort(there)
	slices.Sort(missing)
	switch {
	case len(there) == 0:
		return Check{"boot files", Bad, "no first stage in " + root + ": missing " + strings.Join(missing, ", "), "deploy/pxe/boot-files.sh " + root}
	case len(missing) > 0:
		return Check{"boot files", Warning, "there: " + strings.Join(there, ", ") + "; missing: " + strings.Join(missing, ", "), "needed only where there are machines of that kind; deploy/pxe/boot-files.sh " + root}
	}
	return Check{"boot files", Good, strings.Join(there, ", "), ""}
}

// others asks the wire who else gives addresses. In proxy mode somebody must; else nobody may.
func others(ctx context.Context, ifname string, c dhcp.Config) Check {
	const name = "other DHCP servers"
	if ifname == "" {
		return Check{name, Warning, "not looked for: no interface is named", "set interface"}
	}
	found, err := offers(ctx, ifname)
	found = slices.DeleteFunc(found, func(a netip.Addr) bool { return a == c.ServerID })
	switch {
	case err != nil:
		return Check{name, Warning, "could not be looked for: " + err.Error(), "needs root, and port 68 free"}
	case c.Mode == dhcp.ModeProxy && len(found) == 0:
		return Check{name, Bad, "none answers on " + ifname + ": in proxy mode another server must give the addresses", "start it, or use mode full"}
	case c.Mode != dhcp.ModeProxy && len(found) > 0:
		return Check{name, Bad, fmt.Sprintf("%v answers on %s: machines will take whichever offer comes first", found, ifname), "stop it, or use mode proxy beside it"}
	}
	if len(found) == 0 {
		return Check{name, Good, "none answers on " + ifname, ""}
	}
	return Check{name, Good, fmt.Sprintf("%v answers on %s", found, ifname), ""}
}

// offersWithin is how long a server may take: dnsmasq pings an address for three seconds before it offers it.
const offersWithin = 4500 * time.Millisecond

// offers sends one DISCOVER and collects who offers.
func offers(ctx context.Context, ifname string) ([]netip.Addr, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if cerr := c.Control(func(fd uintptr) { err = syscall.BindToDevice(int(fd), ifname) }); cerr != nil {
			return cerr
		}
		return err
	}}
	c, err := lc.ListenPacket(ctx, "udp4", ":68")
	if err != nil {
		return nil, err
	}
	defer c.Close()
	mac := net.HardwareAddr{0x02, 0, 0, 0, 0, 0} // locally administered
	if _, err := rand.Read(mac[1:]); err != nil {
		return nil, err
	}
	m, err := dhcpv4.NewDiscovery(mac, dhcpv4.WithBroadcast(true))
	if err != nil {
		return nil, err
	}
	if _, err := c.WriteTo(m.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: 67}); err != nil {
		return nil, err
	}
	if err := c.SetReadDeadline(time.Now().Add(offersWithin)); err != nil {
		return nil, err
	}
	var found []netip.Addr
	b := make([]byte, 1500)
	for {
		n, _, err := c.ReadFrom(b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return found, nil
		}
		if err != nil {
			return found, err
		}
		o, err := dhcpv4.FromBytes(b[:n])
		if err != nil || o.TransactionID != m.TransactionID || o.MessageType() != dhcpv4.MessageTypeOffer {
			continue
		}
		if a, ok := netip.AddrFromSlice(o.ServerIdentifier().To4()); ok && !slices.Contains(found, a) {
			found = append(found, a)
		}
	}
}
