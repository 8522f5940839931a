package dhcp

import (
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// state is the client state a message is sent in: RFC 2131 section 4.3.2, table 4.
type state int

const (
	discovering state = iota
	selecting         // option 54 and 50: takes an offer, of this server or another
	initReboot        // option 50 alone: wants its earlier address again
	renewing          // ciaddr alone, by unicast
	rebinding         // ciaddr alone, by broadcast or through a relay
	declining
	releasing
	informing
	nonsense // a REQUEST that names no address
)

// stateOf tells the state from what the message carries. dst is the IP header's destination.
func stateOf(p *Packet, dst netip.Addr) state {
	switch p.Type {
	case dhcpv4.MessageTypeDiscover:
		return discovering
	case dhcpv4.MessageTypeDecline:
		return declining
	case dhcpv4.MessageTypeRelease:
		return releasing
	case dhcpv4.MessageTypeInform:
		return informing
	}
	switch {
	case p.ServerID.IsValid() && (p.Requested.IsValid() || p.CIAddr.IsValid()):
		return selecting
	case p.ServerID.IsValid():
		return nonsense
	case p.CIAddr.IsValid() && (p.GIAddr.IsValid() || isBroadcast(dst)):
		return rebinding
	case p.CIAddr.IsValid():
		return renewing
	case p.Requested.IsValid():
		return initReboot
	}
	return nonsense
}

// isBroadcast: only the limited broadcast counts here; where the destination isn't known the message is taken as
// sent to this server.
func isBroadcast(a netip.Addr) bool { return a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) }

// wants is the address a REQUEST is about.
func (p *Packet) wants() netip.Addr {
	if p.Requested.IsValid() {
		return p.Requested
	}
	return p.CIAddr
}

// xid is the transaction as a number.
func (p *Packet) xid() uint32 {
	x := p.TransactionID
	return uint32(x[0])<<24 | uint32(x[1])<<16 | uint32(x[2])<<8 | uint32(x[3])
}
