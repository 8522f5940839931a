package dhcp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"

	"gpupool/pxe/boot"
	"gpupool/pxe/lease"
	"gpupool/schema"
)

// Config6 is the service for UEFI's network boot over IPv6 (RFC 5970): DHCPv6 beside DHCPv4, for the same machines.
type Config6 struct {
	Subnets []Subnet6
	// FilesURL and TFTPURL are where boot files are, as http://[2001:db8::2]:8080/files and tftp://[2001:db8::2].
	FilesURL, TFTPURL string
	// ScriptURL is the script of a MAC, for iPXE that has come over IPv6.
	ScriptURL func(mac string) string
}

// Subnet6 is one IPv6 network whose clients are answered. A machine's address in it is made from its MAC, so there is
// no range to run out of. Which router it has, it learns from the router (RFC 4861), not from DHCP.
type Subnet6 struct {
	// Prefix is the clients' network, /64 or shorter, as 2001:db8:0:1::/64.
	Prefix netip.Prefix
	// Interface is the interface the subnet is directly on; empty = found by the interface's own addresses.
	Interface string
	DNS       []netip.Addr
	// BootLease and Lease are as a Subnet's; 0 = 10 min and 12 h.
	BootLease, Lease time.Duration
}

func (s *Subnet6) check() error {
	if !s.Prefix.IsValid() || !s.Prefix.Addr().Is6() || s.Prefix.Addr().Is4In6() || s.Prefix.Bits() > 64 || s.Prefix.Bits() < 16 {
		return fmt.Errorf("IPv6 subnet %q: want an IPv6 network of /16 to /64, as 2001:db8:0:1::/64", s.Prefix)
	}
	if s.Prefix != s.Prefix.Masked() {
		return fmt.Errorf("IPv6 subnet %s has host bits: want %s", s.Prefix, s.Prefix.Masked())
	}
	if s.BootLease == 0 {
		s.BootLease = 10 * time.Minute
	}
	if s.Lease == 0 {
		s.Lease = 12 * time.Hour
	}
	return nil
}

// address is a machine's n-th choice: the MAC with two bytes in its middle that say so, where EUI-64 has ff:fe, so that
// it is neither the one that the host makes for itself nor another machine's.
func (s *Subnet6) address(hw []byte, n byte) netip.Addr {
	b := s.Prefix.Addr().As16()
	copy(b[8:], []byte{hw[0], hw[1], hw[2], 'g', 'p' + n, hw[3], hw[4], hw[5]})
	return netip.AddrFrom16(b)
}

func (s *Subnet6) pool() lease.Pool { return lease.Pool{Subnet: s.Prefix.String(), Prefix: s.Prefix} }

// Arrival6 is how a DHCPv6 packet came in.
type Arrival6 struct {
	Src     netip.AddrPort
	IfIndex int
}

// packet6 is a client's message that has passed every check that needs no state.
type packet6 struct {
	*dhcpv6.Message
	relay  *dhcpv6.RelayMessage // the outermost; nil = came directly
	link   netip.Addr           // the client's network, as its relay has it
	hw     []byte
	mac    string   // empty where only uuids tell who it is
	uuids  []string // of its DUID-UUID, as it may be written; nil = it has another identifier
	client Client
	server []byte // option 2; nil = none
}

const (
	maxHops6  = 8   // RFC 8415 section 7.6
	intelPXE  = 343 // the enterprise number that PXE and HTTP boot put into option 16
	clientV6  = 546
	serverV6  = 547
	choosable = byte(4) // addresses of one machine, should the first be declined
)

// parse6 reads a client's message, with the relays it came through taken off. The error is a Garbage.
func parse6(b []byte, src netip.Addr) (*packet6, error) {
	if err := measure6(b); err != nil {
		return nil, err
	}
	d, err := dhcpv6.FromBytes(b)
	if err != nil {
		return nil, BadOptions
	}
	p := &packet6{}
	peer := src
	for {
		r, ok := d.(*dhcpv6.RelayMessage)
		if !ok {
			break
		}
		if r.MessageType != dhcpv6.MessageTypeRelayForward {
			return nil, BadType
		}
		if p.relay == nil {
			p.relay = r
		}
		if a, ok := netip.AddrFromSlice(r.LinkAddr); ok && !a.IsUnspecified() && !a.IsLinkLocalUnicast() {
			p.link = a // the one nearest to the client counts: it is read last
		}
		peer, _ = netip.AddrFromSlice(r.PeerAddr)
		if typ, hw := r.Options.ClientLinkLayerAddress(); typ == iana.HWTypeEthernet && len(hw) == 6 {
			p.hw = hw // RFC 6939
		}
		if d = r.Options.RelayMessage(); d == nil {
			return nil, BadOptions
		}
	}
	m, ok := d.(*dhcpv6.Message)
	if !ok {
		return nil, BadType
	}
	if p.relay == nil && !src.IsLinkLocalUnicast() {
		return nil, NotOnLink // RFC 8415 section 18.2: a client has none but its link-local address until it is told to
	}
	p.Message = m
	addrs := 0
	for _, ia := range m.Options.IANA() {
		addrs += len(ia.Options.Addresses())
	}
	if len(m.Options.IANA()) > maxIAs6 || addrs > maxAddrs6 {
		return nil, BadValue
	}
	if id := m.Options.ServerID(); id != nil {
		p.server = id.ToBytes()
	}
	// RFC 8415 section 16: which messages name a server, and which must not.
	named := p.server != nil
	switch m.MessageType {
	case dhcpv6.MessageTypeSolicit, dhcpv6.MessageTypeConfirm, dhcpv6.MessageTypeRebind:
		if named || m.Options.ClientID() == nil {
			return nil, BadValue
		}
	case dhcpv6.MessageTypeRequest, dhcpv6.MessageTypeRenew, dhcpv6.MessageTypeDecline, dhcpv6.MessageTypeRelease:
		if !named || m.Options.ClientID() == nil {
			return nil, BadValue
		}
	case dhcpv6.MessageTypeInformationRequest:
		if m.Options.OneIANA() != nil {
			return nil, BadValue
		}
	default:
		return nil, BadType
	}
	if p.hw == nil {
		p.hw = hardwareOf(peer, m.Options.ClientID())
	}
	if id, ok := m.Options.ClientID().(*dhcpv6.DUIDUUID); ok {
		p.uuids = uuidTexts(id.UUID)
	}
	switch {
	case len(p.hw) == 6 && !allZero(p.hw):
		p.mac = boot.MAC(p.hw)
	case p.hw == nil && p.uuids != nil: // the inventory may know it
	default:
		return nil, BadHardware
	}
	p.client = client6(m)
	return p, nil
}

// uuidTexts is a DUID-UUID (RFC 6355) as the inventory may write it: SMBIOS has the first three fields with their low
// byte first, and firmware that copies them says so, where others send what they print.
func uuidTexts(u [16]byte) []string {
	if allZero(u[:]) {
		return nil
	}
	print := func(u [16]byte) string { return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:]) }
	swapped := u
	slices.Reverse(swapped[:4])
	slices.Reverse(swapped[4:6])
	slices.Reverse(swapped[6:8])
	return []string{print(u), print(swapped)}
}

// hardwareOf tells the MAC of who sends from a link-local address made from it (EUI-64, as firmware does it), else the
// one that its identifier is made from, which may be that of another interface of the same machine.
func hardwareOf(peer netip.Addr, id dhcpv6.DUID) []byte {
	if a := peer.As16(); peer.IsLinkLocalUnicast() && a[11] == 0xff && a[12] == 0xfe {
		return []byte{a[8] ^ 2, a[9], a[10], a[13], a[14], a[15]}
	}
	switch id := id.(type) {
	case *dhcpv6.DUIDLLT:
		if id.HWType == iana.HWTypeEthernet {
			return id.LinkLayerAddr
		}
	case *dhcpv6.DUIDLL:
		if id.HWType == iana.HWTypeEthernet {
			return id.LinkLayerAddr
		}
	}
	return nil
}

// client6 tells who sent a message by the same signs as clientOf, in their DHCPv6 form: options 15, 16 and 61.
func client6(m *dhcpv6.Message) Client {
	c := Client{Arch: ArchUnknown}
	for _, v := range m.Options.VendorClass(intelPXE) {
		if c.Class == "" {
			c.Class = string(v)
		}
	}
	for _, v := range m.Options.UserClasses() {
		c.UserOf = append(c.UserOf, string(v))
	}
	switch {
	case len(c.UserOf) > 0 && c.UserOf[0] == "iPXE":
		c.Firmware = IPXE
	case strings.HasPrefix(c.Class, "HTTPClient"):
		c.Firmware = HTTP
	case strings.HasPrefix(c.Class, "PXEClient"):
		c.Firmware = PXE
	}
	var archs []byte
	for _, a := range m.Options.ArchTypes() {
		archs = append(archs, byte(a>>8), byte(a))
	}
	c.Arch = archOf(archs, c.Class)
	return c
}

// DUID is the server's identifier: made from ServerID, so that an active and a standby have the same (RFC 6355).
func (c Config) DUID() dhcpv6.DUID {
	d := &dhcpv6.DUIDUUID{}
	sum := sha256.Sum256([]byte("gpupool dhcp " + c.ServerID.String()))
	copy(d.UUID[:], sum[:])
	return d
}

// call6 is one DHCPv6 message being answered.
type call6 struct {
	*Server
	ctx    context.Context
	p      *packet6
	m      boot.Machine
	subnet *Subnet6
	boot   Instruction
}

// Answer6 decides what to answer to one DHCPv6 packet, and to where; ok is false for silence. Like Answer it serves the
// inventory's machines only, and no address is confirmed before its lease is durable.
func (s *Server) Answer6(ctx context.Context, b []byte, a Arrival6) (reply []byte, to netip.AddrPort, ok bool) {
	p, err := parse6(b, a.Src.Addr())
	if err != nil {
		var g Garbage
		errors.As(err, &g)
		s.Metrics.dropped(g)
		return nil, to, false
	}
	key := p.mac
	if key == "" {
		key = p.uuids[0]
	}
	if !s.gate.admit(key, s.now()) {
		s.Metrics.limited.Add(1)
		return nil, to, false
	}
	c := &call6{Server: s, ctx: ctx, p: p}
	var found bool
	if c.m, found, err = s.machine6(ctx, p); err != nil {
		s.log.Error("inventory does not answer", "mac", p.mac, "err", err)
		return nil, to, false
	}
	if !found {
		s.gate.forget(key)
		s.Metrics.strangers.Add(1)
		if s.cfg.Unknown == Record && p.MessageType == dhcpv6.MessageTypeSolicit {
			what := p.client.describe() + ", IPv6"
			if p.mac == "" {
				what += ", UUID " + p.uuids[0]
			}
			s.record(schema.BootEvidence{Kind: boot.KindUnknown, MAC: p.mac, What: what, Result: "not in the inventory: not answered"})
		}
		return nil, to, false
	}
	s.gate.learn(s.now(), key)
	if c.subnet = s.subnet6(p, a); c.subnet == nil {
		c.note(boot.KindRelay, p.link, "no IPv6 subnet is configured for where it came from: not answered")
		return nil, to, false
	}
	c.boot = s.cfg.instruct6(p.client, p.mac)
	m, ok := c.answer()
	if !ok {
		return nil, to, false
	}
	if p.relay == nil {
		return m.ToBytes(), netip.AddrPortFrom(a.Src.Addr(), clientV6), true
	}
	r, err := dhcpv6.NewRelayReplFromRelayForw(p.relay, m)
	if err != nil {
		s.log.Error("dhcpv6 relay reply", "err", err)
		return nil, to, false
	}
	port := uint16(serverV6)
	if p.relay.GetOneOption(dhcpv6.OptionRelayPort) != nil { // RFC 8357
		port = a.Src.Port()
	}
	return r.ToBytes(), netip.AddrPortFrom(a.Src.Addr(), port), true
}

// machine6 finds who sent p: by its MAC, and where none can be told (a host that hides it, and a relay without RFC 6939)
// by the UUID in its identifier; p then has the MAC that the inventory has first.
func (s *Server) machine6(ctx context.Context, p *packet6) (boot.Machine, bool, error) {
	if p.mac != "" {
		return s.inventory.ByMAC(ctx, p.mac)
	}
	by, ok := s.inventory.(boot.ByUUID)
	if !ok {
		return boot.Machine{}, false, nil
	}
	m, mac, found, err := by.ByUUID(ctx, p.uuids...)
	if err != nil || !found {
		return boot.Machine{}, false, err
	}
	if p.hw, err = net.ParseMAC(mac); err != nil || len(p.hw) != 6 {
		return boot.Machine{}, false, fmt.Errorf("server %s has MAC %q: want six bytes", m.ID, mac)
	}
	p.mac = mac
	return m, true, nil
}

func (s *Server) subnet6(p *packet6, a Arrival6) *Subnet6 {
	all := s.cfg.V6.Subnets
	if p.relay != nil {
		for i := range all {
			if p.link.IsValid() && all[i].Prefix.Contains(p.link) {
				return &all[i]
			}
		}
		return nil
	}
	name, own := s.links.of(a.IfIndex)
	for i := range all {
		if all[i].Interface != "" && all[i].Interface == name {
			return &all[i]
		}
	}
	for i := range all {
		for _, o := range own {
			if all[i].Prefix.Contains(o) {
				return &all[i]
			}
		}
	}
	return nil
}

// instruct6 is instruct for IPv6, where a boot file is always a URL (RFC 5970 section 3.1).
func (c Config) instruct6(cl Client, mac string) Instruction {
	c.FilesURL, c.ScriptURL = c.V6.FilesURL, c.V6.ScriptURL
	i := c.instruct(cl, mac)
	if i.First && !strings.Contains(i.File, "://") {
		i.File = c.V6.TFTPURL + "/" + strings.TrimPrefix(i.File, "/")
	}
	return i
}

// answer follows RFC 8415 section 18.3.
func (c *call6) answer() (*dhcpv6.Message, bool) {
	if c.p.server != nil && !bytes.Equal(c.p.server, c.cfg.DUID().ToBytes()) {
		return nil, false // meant for another server
	}
	reply := &dhcpv6.Message{MessageType: dhcpv6.MessageTypeReply, TransactionID: c.p.TransactionID}
	reply.AddOption(dhcpv6.OptServerID(c.cfg.DUID()))
	if id := c.p.Options.ClientID(); id != nil {
		reply.AddOption(dhcpv6.OptClientID(id))
	}
	switch c.p.MessageType {
	case dhcpv6.MessageTypeSolicit:
		return c.advertise(reply)
	case dhcpv6.MessageTypeRequest, dhcpv6.MessageTypeRenew, dhcpv6.MessageTypeRebind:
		return c.bind(reply)
	case dhcpv6.MessageTypeConfirm:
		return c.confirm(reply)
	case dhcpv6.MessageTypeRelease:
		return c.release(reply)
	case dhcpv6.MessageTypeDecline:
		return c.decline(reply)
	case dhcpv6.MessageTypeInformationRequest:
		c.options(reply)
		c.note(boot.KindInform, netip.Addr{}, "ok")
		return reply, true
	default: // parse6 lets no other through
		return nil, false
	}
}

// options are what every answer with parameters has.
func (c *call6) options(m *dhcpv6.Message) {
	if c.boot.File != "" {
		if c.p.client.Firmware == HTTP {
			// EDK2 takes an offer for HTTP boot only with its own class in it.
			m.AddOption(&dhcpv6.OptVendorClass{EnterpriseNumber: intelPXE, Data: [][]byte{[]byte("HTTPClient")}})
		}
		m.AddOption(dhcpv6.OptBootFileURL(c.boot.File))
	}
	if len(c.subnet.DNS) > 0 {
		var to []byte
		for _, a := range c.subnet.DNS {
			to = append(to, a.AsSlice()...)
		}
		m.AddOption(&dhcpv6.OptionGeneric{OptionCode: dhcpv6.OptionDNSRecursiveNameServer, OptionData: to})
	}
}

// pick is the machine's address: the one it has, or had, else the first of its own that is free. It is the zero Addr
// where all are taken.
func (c *call6) pick() (netip.Addr, error) {
	row, had, err := c.book.Of(c.ctx, c.subnet.pool(), c.p.mac)
	if err != nil {
		return netip.Addr{}, err
	}
	pool, own := c.subnet.pool(), c.links.within(c.subnet.Prefix)
	// A machine's own live lease isn't probed: it would find the machine itself.
	if ip, err := netip.ParseAddr(row.IP); had && err == nil && c.subnet.Prefix.Contains(ip) && (lease.Live(row, c.now()) || c.book.Vacant(c.ctx, pool, c.p.mac, ip)) {
		return ip, nil
	}
	for n := range choosable {
		ip := c.subnet.address(c.p.hw, n)
		if slices.Contains(own, ip) || slices.Contains(c.subnet.DNS, ip) {
			continue
		}
		free, err := c.book.Untaken(c.ctx, ip, c.p.mac)
		if err != nil {
			return netip.Addr{}, err
		}
		if free && c.book.Vacant(c.ctx, pool, c.p.mac, ip) {
			return ip, nil
		}
	}
	return netip.Addr{}, nil
}

func (c *call6) advertise(m *dhcpv6.Message) (*dhcpv6.Message, bool) {
	m.MessageType = dhcpv6.MessageTypeAdvertise
	if c.boot.First && c.looped() {
		return nil, false
	}
	ip, err := c.pick()
	if err != nil {
		return c.broken(err)
	}
	c.note(boot.KindDiscover, netip.Addr{}, "ok")
	c.identity(m, ip)
	c.options(m)
	if !ip.IsValid() {
		c.note(boot.KindExhausted, ip, "all its addresses in "+c.subnet.Prefix.String()+" are quarantined")
	} else {
		c.note(boot.KindOffer, ip, "ok")
	}
	return m, true
}

func (c *call6) looped() bool {
	stopped, justNow := c.loops.stopped(chainKey{c.p.mac, false}, c.attempt(), c.xid(), c.now())
	if justNow {
		c.note(boot.KindLoop, netip.Addr{}, fmt.Sprintf("loaded %s %d times and never fetched its script: not answered for %s (hint: the program it loads is not recognised as iPXE, or can't reach %s)", c.boot.File, loopLimit, loopWindow, c.cfg.V6.ScriptURL(c.p.mac)))
	}
	return stopped
}

func (c *call6) attempt() int {
	if c.m.Armed == nil {
		return 0
	}
	return c.m.Armed.Attempt
}

// xid is the transaction as a number.
func (c *call6) xid() uint32 {
	x := c.p.TransactionID
	return uint32(x[0])<<16 | uint32(x[1])<<8 | uint32(x[2])
}

// bind commits the lease and then answers.
func (c *call6) bind(m *dhcpv6.Message) (*dhcpv6.Message, bool) {
	var ip netip.Addr
	if c.p.Options.OneIANA() != nil {
		var err error
		if ip, err = c.pick(); err != nil {
			return c.broken(err)
		}
	}
	if ip.IsValid() {
		err := c.commit(ip)
		if errors.Is(err, lease.ErrTaken) {
			c.note(boot.KindRequest, ip, "the address was taken by another machine meanwhile: not answered")
			return nil, false
		}
		if err != nil {
			return c.broken(err)
		}
	}
	if c.boot.First && c.p.MessageType == dhcpv6.MessageTypeRequest {
		c.loops.booted(chainKey{c.p.mac, false}, c.attempt(), c.xid(), c.now())
	}
	c.identity(m, ip)
	c.options(m)
	c.note(boot.KindAck, ip, "ok")
	return m, true
}

// commit makes the lease of the message's first association durable.
func (c *call6) commit(ip netip.Addr) error {
	_, err := c.book.Bind(c.ctx, c.subnet.pool(), lease.Claim{MAC: c.p.mac, ClientID: c.identifier(c.p.Options.OneIANA()), Server: c.m.ID, IP: ip,
		For: c.length(), XID: c.xid()})
	return err
}

func (c *call6) broken(err error) (*dhcpv6.Message, bool) {
	c.log.Error("lease store does not answer", "mac", c.p.mac, "err", err)
	c.note(boot.KindRequest, netip.Addr{}, "lease store does not answer: "+err.Error())
	return nil, false
}

// identity answers the client's associations: the first has ip, others nothing. What the client has and should not is
// given back with no time left (RFC 8415 section 18.3.4).
func (c *call6) identity(m *dhcpv6.Message, ip netip.Addr) {
	n := c.length()
	for i, ia := range c.p.Options.IANA() {
		out := &dhcpv6.OptIANA{IaId: ia.IaId}
		if i == 0 && ip.IsValid() {
			out.T1, out.T2 = n/2, n*4/5
			out.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: ip.AsSlice(), PreferredLifetime: n, ValidLifetime: n})
		} else {
			out.Options.Add(&dhcpv6.OptStatusCode{StatusCode: iana.StatusNoAddrsAvail, StatusMessage: "one address a machine"})
		}
		if c.p.MessageType != dhcpv6.MessageTypeSolicit {
			for _, old := range ia.Options.Addresses() {
				if a, ok := netip.AddrFromSlice(old.IPv6Addr); ok && (a != ip || i > 0) {
					out.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: old.IPv6Addr})
				}
			}
		}
		m.AddOption(out)
	}
}

// confirm says whether the client's addresses are still right where it is (RFC 8415 section 18.3.3). One address a
// machine is: that one, and its lease is made anew where it has run out, so that it is known who speaks from it.
func (c *call6) confirm(m *dhcpv6.Message) (*dhcpv6.Message, bool) {
	asked := c.addresses()
	if len(asked) == 0 {
		return nil, false
	}
	ip, err := c.pick()
	if err != nil {
		return c.broken(err)
	}
	status := iana.StatusSuccess
	if !ip.IsValid() || slices.ContainsFunc(asked, func(a netip.Addr) bool { return a != ip }) {
		status = iana.StatusNotOnLink
	} else if err = c.commit(ip); errors.Is(err, lease.ErrTaken) {
		status = iana.StatusNotOnLink
	} else if err != nil {
		return c.broken(err)
	}
	m.AddOption(&dhcpv6.OptStatusCode{StatusCode: status})
	c.note(boot.KindRequest, asked[0], "asks whether its address still holds: "+status.String())
	return m, true
}

func (c *call6) release(m *dhcpv6.Message) (*dhcpv6.Message, bool) {
	row, had, err := c.book.Of(c.ctx, c.subnet.pool(), c.p.mac)
	if err != nil {
		return c.broken(err)
	}
	for _, ia := range c.p.Options.IANA() {
		for _, o := range ia.Options.Addresses() {
			a, _ := netip.AddrFromSlice(o.IPv6Addr)
			switch {
			case !had || row.IP != a.String() || row.State != schema.LeaseBound:
				c.note(boot.KindRelease, a, "it has no lease of it: ignored")
			case row.ClientID != c.identifier(ia):
				// EDK2 has one association for its own stack and one for the boot, and ends the first while it boots.
				c.note(boot.KindRelease, a, "another association of the machine has it: ignored")
			default:
				if err := c.book.Release(c.ctx, row); err != nil {
					return c.broken(err)
				}
				c.note(boot.KindRelease, a, "ok")
			}
		}
	}
	m.AddOption(&dhcpv6.OptStatusCode{StatusCode: iana.StatusSuccess})
	return m, true
}

// decline quarantines an address that the machine was given just now, as DHCPv4's does.
func (c *call6) decline(m *dhcpv6.Message) (*dhcpv6.Message, bool) {
	row, had, err := c.book.Of(c.ctx, c.subnet.pool(), c.p.mac)
	if err != nil {
		return c.broken(err)
	}
	for _, a := range c.addresses() {
		if had && row.IP == a.String() && c.now().Sub(row.BoundAt.Time()) < declineWithin {
			if err := c.book.Decline(c.ctx, c.subnet.pool(), c.p.mac, a); err != nil {
				return c.broken(err)
			}
			c.note(boot.KindDecline, a, "found in use by another machine: quarantined")
		}
	}
	m.AddOption(&dhcpv6.OptStatusCode{StatusCode: iana.StatusSuccess})
	return m, true
}

// identifier names one association of one client, in hex.
func (c *call6) identifier(ia *dhcpv6.OptIANA) string {
	return hex.EncodeToString(append(c.p.Options.ClientID().ToBytes(), ia.IaId[:]...))
}

// addresses are those that the message is about.
func (c *call6) addresses() []netip.Addr {
	var all []netip.Addr
	for _, ia := range c.p.Options.IANA() {
		for _, o := range ia.Options.Addresses() {
			if a, ok := netip.AddrFromSlice(o.IPv6Addr); ok {
				all = append(all, a)
			}
		}
	}
	return all
}

func (c *call6) length() time.Duration {
	if c.p.client.Firmware == OS {
		return c.subnet.Lease
	}
	return c.subnet.BootLease
}

// note records what came of the message being answered, under the kinds of DHCPv4's messages.
func (c *call6) note(kind string, ip netip.Addr, result string) {
	e := schema.BootEvidence{Kind: kind, MAC: c.p.mac, IP: text(ip), Server: c.m.ID, Result: result}
	if c.m.Armed != nil {
		e.Attempt = c.m.Armed.Attempt
	}
	switch kind {
	case boot.KindDiscover:
		e.What = c.p.client.describe() + ", IPv6"
	case boot.KindOffer, boot.KindAck, boot.KindLoop:
		if e.What = c.boot.File; c.boot.Why != "" {
			e.What = "nothing to boot: " + c.boot.Why
		}
	}
	c.Metrics.answered(kind)
	c.record(e)
}
