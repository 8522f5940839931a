package dhcp

import (
	"encoding/binary"

	"github.com/insomniacslk/dhcp/dhcpv6"
)

// How much a DHCPv6 message may hold. Options nest, and a packet of nothing but options in options costs its reader ten
// thousand times what it costs its sender; no client and no relay comes near these.
const (
	maxLen6     = 4096
	maxOptions6 = 200 // in all, at whatever depth
	maxDepth6   = 4   // an association, an address in it, a status in that, and one more
	maxIAs6     = 8   // associations of one client
	maxAddrs6   = 16  // addresses in them
)

// nested are the options that hold options, with the length of what comes before those.
var nested = map[dhcpv6.OptionCode]int{
	dhcpv6.OptionIANA: 12, dhcpv6.OptionIATA: 4, dhcpv6.OptionIAPD: 12, dhcpv6.OptionIAAddr: 24, dhcpv6.OptionIAPrefix: 25, dhcpv6.OptionVendorOpts: 4,
}

// measure6 looks how deep and how full a packet is, before anything else is made of it. Whether its options are right is
// not its affair.
func measure6(b []byte) error {
	if len(b) > maxLen6 {
		return TooLong
	}
	left := maxOptions6
	return message6(b, 0, &left)
}

func message6(b []byte, hops int, left *int) error {
	const header, relayHeader = 4, 34
	if len(b) < header {
		return TooShort
	}
	if t := dhcpv6.MessageType(b[0]); t != dhcpv6.MessageTypeRelayForward && t != dhcpv6.MessageTypeRelayReply {
		return options6(b[header:], 0, hops, left)
	}
	if len(b) < relayHeader {
		return TooShort
	}
	if hops++; hops > maxHops6 {
		return TooManyHops
	}
	return options6(b[relayHeader:], 0, hops, left)
}

func options6(b []byte, depth, hops int, left *int) error {
	if depth > maxDepth6 {
		return BadOptions
	}
	for len(b) >= 4 {
		code, n := dhcpv6.OptionCode(binary.BigEndian.Uint16(b)), int(binary.BigEndian.Uint16(b[2:]))
		if *left--; *left < 0 || len(b) < 4+n {
			return BadOptions
		}
		v := b[4 : 4+n]
		b = b[4+n:]
		var err error
		if head, ok := nested[code]; ok && len(v) > head {
			err = options6(v[head:], depth+1, hops, left)
		} else if code == dhcpv6.OptionRelayMsg {
			err = message6(v, hops, left)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
