package dhcp

import (
	"encoding/binary"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"gpupool/pxe/boot"
)

// Garbage is why a packet was dropped without a look at who sent it. Packets are counted by it.
type Garbage string

const (
	TooShort    Garbage = "too-short"
	TooLong     Garbage = "too-long"
	NotOnLink   Garbage = "not-on-link" // DHCPv6 from somewhere else than a link here or a relay
	NotRequest  Garbage = "not-a-bootrequest"
	BadHardware Garbage = "bad-hardware-address"
	TooManyHops Garbage = "too-many-hops"
	BadCookie   Garbage = "bad-cookie"
	BadOptions  Garbage = "bad-options"
	BadType     Garbage = "bad-message-type"
	BadValue    Garbage = "bad-option-value"
)

const (
	headerLen = 236 // RFC 2131 section 2: up to and without the cookie
	maxHops   = 16  // RFC 1542 section 4.1.1: a packet with more has been around in a loop

	// What comes back whole must leave room for an answer: a client identifier (RFC 6842) is at most one option, and all
	// that relays add (RFC 3046) at most two.
	maxClientID = 255
	maxRelay    = 2 * (2 + 255)
)

func (g Garbage) Error() string { return "dropped: " + string(g) }

// Packet is a message from a client that has passed every check that needs no state.
type Packet struct {
	*dhcpv4.DHCPv4
	MAC  string // boot.MAC form
	Type dhcpv4.MessageType

	CIAddr, GIAddr netip.Addr // zero where 0.0.0.0
	Requested      netip.Addr // option 50
	ServerID       netip.Addr // option 54
	MaxSize        int        // option 57; 0 = not told
	Relay          Relay
	Client         Client
}

// Parse reads a client's message. The error is a Garbage.
func Parse(b []byte) (*Packet, error) {
	switch {
	case len(b) < headerLen+4:
		return nil, TooShort
	case b[0] != byte(dhcpv4.OpcodeBootRequest):
		return nil, NotRequest
	case [4]byte(b[headerLen:]) != [4]byte{99, 130, 83, 99}:
		return nil, BadCookie
	case b[2] == 0 || b[2] > 16 || b[1] == 1 && b[2] != 6:
		return nil, BadHardware
	case b[3] > maxHops:
		return nil, TooManyHops
	}
	m, err := dhcpv4.FromBytes(b)
	if err != nil {
		return nil, BadOptions
	}
	p := &Packet{DHCPv4: m, MAC: boot.MAC(m.ClientHWAddr)}
	if allZero(m.ClientHWAddr) {
		return nil, BadHardware
	}
	if err := p.overload(b); err != nil {
		return nil, err
	}
	t := m.Options.Get(dhcpv4.OptionDHCPMessageType)
	if len(t) != 1 {
		return nil, BadType
	}
	p.Type = dhcpv4.MessageType(t[0])
	switch p.Type {
	case dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeRequest, dhcpv4.MessageTypeDecline, dhcpv4.MessageTypeRelease, dhcpv4.MessageTypeInform:
	default:
		return nil, BadType
	}
	if err := p.values(); err != nil {
		return nil, err
	}
	p.Relay = relayOf(b, p)
	if len(p.Relay.Raw) > maxRelay {
		return nil, BadValue
	}
	p.Client = clientOf(p)
	return p, nil
}

// headerMAC is the hardware address of what may be a message, in boot.MAC form; Parse says whether it is one.
func headerMAC(b []byte) (string, bool) {
	if len(b) < headerLen || b[2] == 0 || b[2] > 16 {
		return "", false
	}
	return boot.MAC(b[28 : 28+b[2]]), true
}

// overload reads the options that option 52 says are in file and sname: RFC 2131 section 4.1 orders them so.
func (p *Packet) overload(b []byte) error {
	o := p.Options.Get(dhcpv4.OptionOptionOverload)
	if o == nil {
		return nil
	}
	if len(o) != 1 || o[0] < 1 || o[0] > 3 {
		return BadValue
	}
	file, sname := b[108:236], b[44:108]
	var err error
	if o[0]&1 != 0 {
		err, p.BootFileName = p.Options.FromBytes(file), ""
	}
	if o[0]&2 != 0 && err == nil {
		err, p.ServerHostName = p.Options.FromBytes(sname), ""
	}
	if err != nil {
		return BadOptions
	}
	return nil
}

func (p *Packet) values() error {
	p.CIAddr, p.GIAddr = addr4(p.ClientIPAddr), addr4(p.GatewayIPAddr)
	for code, to := range map[dhcpv4.OptionCode]*netip.Addr{dhcpv4.OptionRequestedIPAddress: &p.Requested, dhcpv4.OptionServerIdentifier: &p.ServerID} {
		if v := p.Options.Get(code); v != nil {
			if len(v) != 4 {
				return BadValue
			}
			*to = addr4(v)
		}
	}
	if len(p.Options.Get(dhcpv4.OptionClientIdentifier)) > maxClientID {
		return BadValue
	}
	if v := p.Options.Get(dhcpv4.OptionMaximumDHCPMessageSize); v != nil {
		if len(v) != 2 {
			return BadValue
		}
		p.MaxSize = int(binary.BigEndian.Uint16(v))
	}
	return nil
}

// addr4 is the zero Addr for 0.0.0.0 and for what is no IPv4 address.
func addr4(b []byte) netip.Addr {
	a, ok := netip.AddrFromSlice(b)
	a = a.Unmap()
	if !ok || !a.Is4() || a.IsUnspecified() {
		return netip.Addr{}
	}
	return a
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
