package dhcp

import (
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// Relay is what option 82 says. Raw is every instance of it as it came, code and length included, since a relay
// may compare what it gets back byte for byte (RFC 3046 section 2.2).
type Relay struct {
	Raw        []byte
	Link       netip.Addr // sub-option 5, RFC 3527: the client's subnet, where giaddr isn't in it
	Override   netip.Addr // sub-option 11, RFC 5107: the server identifier to show
	SourcePort bool       // sub-option 19, RFC 8357: answer to the port the relay sent from
}

// relayOf collects option 82. Its sub-options count only in a packet that came through a relay: a direct client
// could otherwise choose its subnet.
func relayOf(b []byte, p *Packet) Relay {
	var r Relay
	o := b[headerLen+4:]
	for len(o) > 0 && o[0] != 255 {
		if o[0] == 0 {
			o = o[1:]
			continue
		}
		if len(o) < 2 || len(o) < 2+int(o[1]) {
			break // FromBytes has refused such a packet already
		}
		n := 2 + int(o[1])
		if o[0] == dhcpv4.OptionRelayAgentInformation.Code() {
			r.Raw = append(r.Raw, o[:n]...)
		}
		o = o[n:]
	}
	if !p.GIAddr.IsValid() {
		return r
	}
	sub := p.Options.Get(dhcpv4.OptionRelayAgentInformation)
	for len(sub) >= 2 && len(sub) >= 2+int(sub[1]) {
		v := sub[2 : 2+int(sub[1])]
		switch sub[0] {
		case dhcpv4.LinkSelectionSubOption.Code():
			r.Link = addr4(v)
		case dhcpv4.ServerIdentifierOverrideSubOption.Code():
			r.Override = addr4(v)
		case dhcpv4.RelaySourcePortSubOption.Code():
			r.SourcePort = true
		}
		sub = sub[2+len(v):]
	}
	return r
}
