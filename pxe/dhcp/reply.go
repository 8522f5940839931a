package dhcp

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

const (
	serverPort = 67
	clientPort = 68
	pxePort    = 4011

	bootpMin    = 300  // RFC 951; some relays and ROMs drop less
	dhcpMin     = 576  // RFC 2131 section 2: what every client takes, as an IP datagram
	ethernet    = 1500 // never fragment, whatever the client says it takes
	ipUDPHeader = 28

	broadcastFlag = 0x8000
)

// Reply is one packet to send.
type Reply struct {
	Type    dhcpv4.MessageType
	Bytes   []byte
	To      netip.AddrPort
	YIAddr  netip.Addr
	HWAddr  []byte // where To is an address that the client doesn't answer ARP for yet: send to this on the link
	IfIndex int    // where it came from; 0 = let the routes decide
}

// draft is a reply being written. Options are kept in the order of their weight: when a reply would be too long for
// its client the last ones are left out, so what must arrive is put first.
type draft struct {
	typ            dhcpv4.MessageType
	ciaddr, yiaddr netip.Addr
	siaddr         netip.Addr
	file           string
	flags          uint16
	options        []option
}

type option struct {
	code  byte
	value []byte
}

func (d *draft) set(code dhcpv4.OptionCode, value []byte) {
	d.options = append(d.options, option{code.Code(), value})
}

func (d *draft) addrs(code dhcpv4.OptionCode, as ...netip.Addr) {
	if len(as) == 0 {
		return
	}
	var v []byte
	for _, a := range as {
		b := a.As4()
		v = append(v, b[:]...)
	}
	d.set(code, v)
}

func (d *draft) text(code dhcpv4.OptionCode, s string) {
	if s != "" {
		d.set(code, []byte(s))
	}
}

func (d *draft) seconds(code dhcpv4.OptionCode, t time.Duration) {
	d.set(code, binary.BigEndian.AppendUint32(nil, uint32(t/time.Second)))
}

// encode writes the reply to p within the size its client takes, in which option 82 does not count where its relay takes
// it off (RFC 3046 section 2.1).
func (d *draft) encode(p *Packet) []byte {
	limit := min(max(p.MaxSize, dhcpMin), ethernet) - ipUDPHeader
	if p.GIAddr.IsValid() {
		limit = min(limit+len(p.Relay.Raw), ethernet-ipUDPHeader)
	}
	b := make([]byte, headerLen+4, bootpMin+64)
	b[0], b[1], b[2] = byte(dhcpv4.OpcodeBootReply), byte(p.HWType), byte(len(p.ClientHWAddr))
	copy(b[4:8], p.TransactionID[:])
	binary.BigEndian.PutUint16(b[10:], d.flags)
	put := func(at int, a netip.Addr) {
		if a.IsValid() {
			v := a.As4()
			copy(b[at:], v[:])
		}
	}
	put(12, d.ciaddr)
	put(16, d.yiaddr)
	put(20, d.siaddr)
	put(24, p.GIAddr)
	copy(b[28:44], p.ClientHWAddr)
	copy(b[108:235], d.file) // 127 at most, and a NUL: BIOS ROMs read it as a C string
	copy(b[headerLen:], []byte{99, 130, 83, 99})

	// RFC 6842: the client's identifier comes back. Room for it, option 82 and the end is set aside first.
	tail := encodeOption(nil, dhcpv4.OptionClientIdentifier.Code(), p.Options.Get(dhcpv4.OptionClientIdentifier))
	tail = append(append(tail, p.Relay.Raw...), 255)
	for _, o := range d.options {
		e := encodeOption(nil, o.code, o.value)
		if len(b)+len(e)+len(tail) <= limit {
			b = append(b, e...)
		}
	}
	b = append(b, tail...)
	for len(b) < bootpMin {
		b = append(b, 0)
	}
	return b
}

// encodeOption splits a long value as RFC 3396 has it. Nothing is written for a nil value.
func encodeOption(b []byte, code byte, v []byte) []byte {
	if v == nil {
		return b
	}
	for {
		n := min(len(v), 255)
		b = append(append(b, code, byte(n)), v[:n]...)
		if v = v[n:]; len(v) == 0 {
			return b
		}
	}
}

// reply addresses a draft: RFC 2131 section 4.1, with RFC 8357 for a relay that listens elsewhere than on port 67.
func (d *draft) reply(p *Packet, a Arrival) Reply {
	r := Reply{Type: d.typ, YIAddr: d.yiaddr, IfIndex: a.IfIndex}
	d.flags = p.Flags
	switch {
	case a.PXEPort:
		r.To, r.IfIndex = a.Src, 0
	case p.GIAddr.IsValid():
		port := uint16(serverPort)
		if p.Relay.SourcePort {
			port = a.Src.Port()
		}
		r.To, r.IfIndex = netip.AddrPortFrom(p.GIAddr, port), 0
		if d.typ == dhcpv4.MessageTypeNak {
			d.flags |= broadcastFlag // the client has no address to be reached by: section 4.3.2
		}
	case d.typ == dhcpv4.MessageTypeNak:
		r.To = broadcastTo()
	case p.CIAddr.IsValid():
		r.To, r.IfIndex = netip.AddrPortFrom(p.CIAddr, clientPort), 0
	case d.yiaddr.IsValid() && p.Flags&broadcastFlag == 0 && p.HWType == 1:
		r.To, r.HWAddr = netip.AddrPortFrom(d.yiaddr, clientPort), p.ClientHWAddr
	default:
		r.To = broadcastTo()
	}
	r.Bytes = d.encode(p)
	return r
}

func broadcastTo() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), clientPort)
}
