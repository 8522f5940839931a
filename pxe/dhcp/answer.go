package dhcp

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"gpupool/pxe/boot"
	"gpupool/pxe/lease"
	"gpupool/schema"
)

// Arrival is how a packet came in.
type Arrival struct {
	Src     netip.AddrPort
	Dst     netip.Addr // destination in the IP header; the zero Addr where not known
	IfIndex int
	PXEPort bool // it came to port 4011
}

// call is one packet being answered.
type call struct {
	*Server
	ctx    context.Context
	p      *Packet
	a      Arrival
	m      boot.Machine
	subnet Subnet
	pool   lease.Pool
	boot   Instruction
}

// Answer decides what to answer to one packet; ok is false for silence. Every answered or refused message of a
// known machine leaves evidence.
func (s *Server) Answer(ctx context.Context, b []byte, a Arrival) (r Reply, ok bool) {
	p, err := Parse(b)
	if err != nil {
		var g Garbage
		errors.As(err, &g)
		s.Metrics.dropped(g)
		return Reply{}, false
	}
	return s.answer(ctx, p, a)
}

func (s *Server) answer(ctx context.Context, p *Packet, a Arrival) (Reply, bool) {
	c := &call{Server: s, ctx: ctx, p: p, a: a}
	m, found, err := s.machine(ctx, p)
	if err != nil {
		s.log.Error("inventory does not answer", "mac", p.MAC, "err", err)
		return Reply{}, false
	}
	if !found {
		s.gate.forget(p.MAC)
		s.stranger(p, a)
		return Reply{}, false
	}
	s.gate.learn(s.now(), p.MAC)
	c.m = m
	if c.subnet, found = s.subnetOf(p, a); !found && (s.cfg.Mode != ModeProxy || p.GIAddr.IsValid()) {
		c.unknownNetwork()
		return Reply{}, false
	}
	if s.cfg.UserClass != "" && slices.Contains(p.Client.UserOf, s.cfg.UserClass) {
		p.Client.Firmware = IPXE // an own build, whatever else it lacks
	}
	c.boot = s.cfg.instruct(p.Client, p.MAC)
	if a.PXEPort {
		return c.pxe()
	}
	if s.cfg.Mode == ModeProxy {
		return c.proxy()
	}
	c.pool = s.cfg.pool(c.subnet, append(s.links.within(c.subnet.Prefix), p.GIAddr, p.Relay.Link)...)
	return c.full()
}

// machine is whose a packet is.
func (s *Server) machine(ctx context.Context, p *Packet) (m boot.Machine, found bool, err error) {
	if p.Type == dhcpv4.MessageTypeRequest {
		if m, found = s.exchanges.ends(p.MAC, p.xid(), s.now()); found {
			return m, true, nil
		}
	}
	m, found, err = s.inventory.ByMAC(ctx, p.MAC)
	if found && p.Type == dhcpv4.MessageTypeDiscover {
		s.exchanges.began(p.MAC, p.xid(), m, s.now())
	}
	return m, found, err
}

func (s *Server) stranger(p *Packet, a Arrival) {
	s.Metrics.strangers.Add(1)
	if s.cfg.Unknown == Record && p.Type == dhcpv4.MessageTypeDiscover {
		s.record(schema.BootEvidence{Kind: boot.KindUnknown, MAC: p.MAC, IP: text(p.GIAddr), What: p.Client.stranger(), Result: "not in the inventory: not answered"})
	}
}

// subnetOf chooses the client's subnet: the relay's link selection (RFC 3527), else the relay, else the address
// that the client renews, else the interface it came in on.
func (s *Server) subnetOf(p *Packet, a Arrival) (Subnet, bool) {
	switch {
	case p.Relay.Link.IsValid():
		return s.subnetAt(p.Relay.Link)
	case p.GIAddr.IsValid():
		return s.subnetAt(p.GIAddr)
	case p.CIAddr.IsValid() && (!isBroadcast(a.Dst) || p.Type == dhcpv4.MessageTypeInform): // what is told is right at that address
		return s.subnetAt(p.CIAddr)
	case s.cfg.Mode == ModeRelay:
		return Subnet{}, false
	}
	name, own := s.links.of(a.IfIndex)
	for _, n := range s.cfg.Subnets {
		if n.Interface != "" && n.Interface == name {
			return n, true
		}
	}
	for _, n := range s.cfg.Subnets {
		for _, o := range own {
			if n.Prefix.Contains(o) {
				return n, true
			}
		}
	}
	return Subnet{}, false
}

func (s *Server) subnetAt(a netip.Addr) (Subnet, bool) {
	for _, n := range s.cfg.Subnets {
		if n.Prefix.Contains(a) {
			return n, true
		}
		for _, r := range n.Relays {
			if r == a {
				return n, true
			}
		}
	}
	return Subnet{}, false
}

func (c *call) unknownNetwork() {
	if c.p.GIAddr.IsValid() {
		c.note(boot.KindRelay, fmt.Sprintf("no subnet is configured for relay %s, link %s: not answered", c.p.GIAddr, text(c.p.Relay.Link)))
		return
	}
	c.note(kindOf(c.p.Type), "no subnet is configured for where it came from: not answered")
}

// full answers in full and relay mode.
func (c *call) full() (Reply, bool) {
	switch stateOf(c.p, c.a.Dst) {
	case discovering:
		return c.discover()
	case selecting:
		return c.selecting()
	case initReboot:
		return c.initReboot()
	case renewing:
		return c.extend(true)
	case rebinding:
		return c.extend(false)
	case declining:
		c.decline()
	case releasing:
		c.release()
	case informing:
		return c.inform()
	case nonsense:
		c.note(boot.KindRequest, "names no address: not answered")
	}
	return Reply{}, false
}

func (c *call) discover() (Reply, bool) {
	if c.looped() {
		return Reply{}, false
	}
	ip, err := c.book.Offer(c.ctx, c.pool, c.p.MAC, c.p.Requested)
	if err != nil {
		c.note(boot.KindExhausted, err.Error())
		return Reply{}, false
	}
	if !c.p.Client.Arch.arm() {
		c.booted()
	}
	c.note(boot.KindDiscover, "ok")
	d := c.lease(dhcpv4.MessageTypeOffer, ip)
	c.noted(boot.KindOffer, ip, "ok")
	return d.reply(c.p, c.a), true
}

// looped stops a machine that loads its first stage over and over.
func (c *call) looped() bool {
	if !c.boot.First {
		return false
	}
	stopped, justNow := c.loops.stopped(c.chain(), c.attempt(), c.p.xid(), c.now())
	if justNow {
		c.note(boot.KindLoop, fmt.Sprintf("loaded %s %d times and never fetched its script: not answered for %s (hint: the program it loads is not recognised as iPXE, or can't reach %s)", c.boot.File, loopLimit, loopWindow, c.cfg.ScriptURL(c.p.MAC)))
	}
	return stopped
}

// booted counts a boot that is given its first stage: where it begins, but on ARM only where the client takes what it is
// offered, since U-Boot has a new transaction for each DISCOVER that it repeats.
func (c *call) booted() {
	if c.boot.First {
		c.loops.booted(c.chain(), c.attempt(), c.p.xid(), c.now())
	}
}

// chain is what the machine's boots are counted under. A client that goes on to port 4011 in the same boot does so in
// another transaction, so what is asked there is counted apart.
func (c *call) chain() chainKey { return chainKey{c.p.MAC, c.a.PXEPort} }

// attempt is that which has armed the machine; 0 = none has.
func (c *call) attempt() int {
	if c.m.Armed == nil {
		return 0
	}
	return c.m.Armed.Attempt
}

// mine reports whether option 54 names this server, by its own identifier or by the one its relay shows for it.
func (c *call) mine() bool {
	return c.p.ServerID == c.cfg.ServerID || c.p.ServerID == c.p.Relay.Override
}

func (c *call) selecting() (Reply, bool) {
	ip := c.p.wants()
	if !c.mine() {
		c.book.Forget(c.pool, c.p.MAC)
		c.note(boot.KindRequest, "chose server "+c.p.ServerID.String()+": its offer here is free again")
		return Reply{}, false
	}
	offered, ok := c.book.Offered(c.pool, c.p.MAC)
	if ok && offered == ip {
		return c.ack(ip, "the offered address was taken by another machine meanwhile: not answered", false)
	}
	if !c.subnet.Prefix.Contains(ip) {
		return c.nak("requested address " + ip.String() + " is not in its network " + c.subnet.Prefix.String())
	}
	// No such offer is remembered, yet the client chose this server's identifier: whoever stood here before, or the
	// active beside this standby, offered it. Whatever has become of the address, a client that was offered one is
	// never sent a NAK: it ends a UEFI boot, where silence sends the client back to DISCOVER (RFC 2131 section 3.1, 5).
	row, had, err := c.book.Of(c.ctx, c.pool, c.p.MAC)
	if err != nil {
		return c.broken(err)
	}
	if had && row.IP == ip.String() && c.pool.Contains(ip) {
		return c.ack(ip, "its earlier address was taken by another machine: not answered", false)
	}
	free, err := c.book.Free(c.ctx, c.pool, c.p.MAC, ip)
	if err != nil {
		return c.broken(err)
	}
	if !ok && free {
		return c.ack(ip, "the address was taken by another machine meanwhile: not answered", false)
	}
	c.noted(boot.KindRequest, ip, "not offered to it by this process and not free: not answered")
	return Reply{}, false
}

// initReboot: RFC 2131 section 4.3.2. On the wrong network a NAK; on the right one silence where there's no record.
func (c *call) initReboot() (Reply, bool) {
	ip := c.p.Requested
	if !c.subnet.Prefix.Contains(ip) {
		return c.nak("requested address " + ip.String() + " is not in its network " + c.subnet.Prefix.String())
	}
	row, had, err := c.book.Of(c.ctx, c.pool, c.p.MAC)
	switch {
	case err != nil:
		return c.broken(err)
	case !had:
		c.note(boot.KindRequest, "asks for "+ip.String()+" again, but there is no record of it: not answered")
		return Reply{}, false
	case row.IP != ip.String() || !c.pool.Contains(ip):
		return c.nak("requested address " + ip.String() + "; its address is " + row.IP)
	}
	return c.ack(ip, "its earlier address was taken by another machine", true)
}

// extend answers RENEWING and REBINDING. A renewal without a record was sent to this server in person, by a machine
// of the inventory that uses the address: it keeps it, if nobody else has it. A rebinding without a record may be
// another server's.
func (c *call) extend(toMe bool) (Reply, bool) {
	ip := c.p.CIAddr
	row, had, err := c.book.Of(c.ctx, c.pool, c.p.MAC)
	if err != nil {
		return c.broken(err)
	}
	if had && row.IP == ip.String() && c.pool.Contains(ip) {
		return c.ack(ip, "its address was taken by another machine after the lease ran out", true)
	}
	if !had && toMe {
		if free, err := c.book.Free(c.ctx, c.pool, c.p.MAC, ip); err != nil {
			return c.broken(err)
		} else if free {
			return c.ack(ip, "the address was taken by another machine", true)
		}
	}
	if !had && !toMe {
		c.note(boot.KindRequest, "rebinds "+ip.String()+", but there is no record of it: not answered")
		return Reply{}, false
	}
	return c.nak("address " + ip.String() + " is not its own")
}

// ack commits the lease and then answers. Where another machine won the address: a NAK if nakLoser, else silence.
func (c *call) ack(ip netip.Addr, loser string, nakLoser bool) (Reply, bool) {
	_, err := c.book.Bind(c.ctx, c.pool, lease.Claim{
		MAC: c.p.MAC, ClientID: hex.EncodeToString(c.p.Options.Get(dhcpv4.OptionClientIdentifier)), Server: c.m.ID, IP: ip,
		For: c.length(), XID: c.p.xid(),
	})
	if errors.Is(err, lease.ErrTaken) {
		if nakLoser {
			return c.nak(loser)
		}
		c.noted(boot.KindRequest, ip, loser)
		return Reply{}, false
	}
	if err != nil {
		return c.broken(err)
	}
	c.booted()
	d := c.lease(dhcpv4.MessageTypeAck, ip)
	d.ciaddr = c.p.CIAddr
	c.noted(boot.KindAck, ip, "ok")
	return d.reply(c.p, c.a), true
}

func (c *call) broken(err error) (Reply, bool) {
	c.log.Error("lease store does not answer", "mac", c.p.MAC, "err", err)
	c.note(kindOf(c.p.Type), "lease store does not answer: "+err.Error())
	return Reply{}, false
}

// nak refuses; RFC 2131 table 3 says what may be in it.
func (c *call) nak(why string) (Reply, bool) {
	d := &draft{typ: dhcpv4.MessageTypeNak}
	d.head(c)
	d.text(dhcpv4.OptionMessage, why)
	c.note(boot.KindNak, why)
	return d.reply(c.p, c.a), true
}

// declineWithin is how long after its ACK a client may find that its address is in use: it looks before it uses it.
const declineWithin = 2 * time.Minute

// declineMost is how many addresses one machine can have in quarantine. One that finds more of them in use hears itself, or
// a switch that answers ARP for everything, and would take the whole range from the others.
const declineMost = 3

// decline quarantines an address, if the machine really was about to use it. Anyone can send a DECLINE in another's
// name, so one for an address that has been in use for a while is not believed.
func (c *call) decline() {
	ip := c.p.Requested
	offered, ok := c.book.Offered(c.pool, c.p.MAC)
	row, had, err := c.book.Of(c.ctx, c.pool, c.p.MAC)
	switch {
	case err != nil:
		c.broken(err)
	case !c.mine():
		c.note(boot.KindDecline, "not sent to this server: ignored")
	case !(ok && offered == ip) && !(had && row.IP == ip.String() && c.now().Sub(row.BoundAt.Time()) < declineWithin):
		c.note(boot.KindDecline, "declines "+text(ip)+", which it was not given just now: ignored")
	case c.declined() >= declineMost:
		c.noted(boot.KindDecline, ip, fmt.Sprintf("has %d addresses in quarantine already: ignored (hint: it finds each address in use; something answers ARP for all of them, or it hears its own)", declineMost))
	default:
		if err := c.book.Decline(c.ctx, c.pool, c.p.MAC, ip); err != nil {
			c.broken(err)
			return
		}
		c.noted(boot.KindDecline, ip, "found in use by another machine: quarantined")
	}
}

// declined is how many addresses the machine has in quarantine; more than may be where that can't be told.
func (c *call) declined() int {
	n, err := c.book.Quarantined(c.ctx, c.pool, c.p.MAC)
	if err != nil {
		c.broken(err)
		return declineMost
	}
	return n
}

// release ends a lease for its owner only. Its address stays its own until another machine needs it.
func (c *call) release() {
	row, had, err := c.book.Of(c.ctx, c.pool, c.p.MAC)
	id := hex.EncodeToString(c.p.Options.Get(dhcpv4.OptionClientIdentifier))
	switch {
	case err != nil:
		c.broken(err)
	case !c.mine():
		c.note(boot.KindRelease, "not sent to this server: ignored")
	case !c.p.CIAddr.IsValid() || !had || row.IP != c.p.CIAddr.String() || row.State != schema.LeaseBound:
		c.note(boot.KindRelease, "releases "+text(c.p.CIAddr)+", which it has no lease of: ignored")
	case row.ClientID != id:
		c.note(boot.KindRelease, "client identifier is not that of the lease: ignored")
	default:
		if err := c.book.Release(c.ctx, row); err != nil {
			c.broken(err)
			return
		}
		c.noted(boot.KindRelease, c.p.CIAddr, "ok")
	}
}

// inform answers with parameters only: no address, no times (RFC 2131 section 4.3.5).
func (c *call) inform() (Reply, bool) {
	if !c.p.CIAddr.IsValid() {
		c.note(boot.KindInform, "has no address to be answered at: not answered")
		return Reply{}, false
	}
	d := &draft{typ: dhcpv4.MessageTypeAck, ciaddr: c.p.CIAddr}
	d.head(c)
	d.network(c)
	d.boot(c)
	c.noted(boot.KindInform, c.p.CIAddr, "ok")
	r := d.reply(c.p, c.a)
	if !c.p.GIAddr.IsValid() {
		r.To = netip.AddrPortFrom(c.p.CIAddr, clientPort)
	}
	return r, true
}

// length is how long this client's lease is.
func (c *call) length() time.Duration {
	if c.p.Client.Firmware == OS {
		return c.subnet.Lease
	}
	return c.subnet.BootLease
}
