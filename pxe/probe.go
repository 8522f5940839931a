package pxe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"gpupool/pxe/boot"
	"gpupool/pxe/dhcp"
	"gpupool/pxe/lease"
	"gpupool/pxe/ndisc"
)

// probeFor bounds one probe. ISC's server waits a second, which costs a client a quarter of its first timeout.
const probeFor = 400 * time.Millisecond

// prober looks whether an address is in use: by ARP on the link it is on, else by a datagram that a living host
// refuses.
type prober struct{}

func (s *Server) prober() lease.Prober {
	if s.cfg.NoProbe {
		return nil
	}
	return prober{}
}

// InUse implements lease.Prober.
func (prober) InUse(ctx context.Context, a netip.Addr, mac string) bool {
	if a.IsLoopback() {
		return false // the whole block is this host: everything in it answers
	}
	ctx, cancel := context.WithTimeout(ctx, probeFor)
	defer cancel()
	if i, ok := linkTo(a); ok {
		if used, err := linkProbe(ctx, i, a, mac); err == nil {
			return used
		}
	}
	return udpProbe(ctx, a)
}

// linkTo finds the Ethernet interface whose network a is in.
func linkTo(a netip.Addr) (net.Interface, bool) {
	all, err := net.Interfaces()
	if err != nil {
		return net.Interface{}, false
	}
	for _, i := range all {
		addrs, err := i.Addrs()
		if err != nil || len(i.HardwareAddr) != 6 || i.Flags&net.FlagUp == 0 {
			continue
		}
		for _, ia := range addrs {
			if p, err := netip.ParsePrefix(ia.String()); err == nil && p.Contains(a) {
				return i, true
			}
		}
	}
	return net.Interface{}, false
}

// linkProbe asks on a's own link. An error means that it couldn't ask.
func linkProbe(ctx context.Context, i net.Interface, a netip.Addr, mac string) (bool, error) {
	if a.Is4() {
		return arpProbe(ctx, i, a, mac)
	}
	hw, err := net.ParseMAC(mac)
	if err != nil {
		return false, err
	}
	return ndisc.Probe(ctx, &i, a, hw)
}

// arpProbe is RFC 5227 section 2.1.1: a request with an empty sender address, so that no cache learns it. A host
// answers ARP even where its firewall drops everything else. An error means that it couldn't ask.
func arpProbe(ctx context.Context, i net.Interface, a netip.Addr, mac string) (bool, error) {
	const etherARP = 0x0806
	f, err := dhcp.OpenLink(i.Index, etherARP)
	if err != nil {
		return false, err
	}
	defer f.Close()
	target := a.As4()
	req := make([]byte, 42)
	copy(req, bytes.Repeat([]byte{0xff}, 6))
	copy(req[6:], i.HardwareAddr)
	binary.BigEndian.PutUint16(req[12:], etherARP)
	copy(req[14:], []byte{0, 1, 8, 0, 6, 4, 0, 1}) // Ethernet, IPv4, request
	copy(req[22:], i.HardwareAddr)
	copy(req[38:], target[:])
	deadline, _ := ctx.Deadline()
	if err := f.SetReadDeadline(deadline); err != nil {
		return false, err
	}
	if _, err := f.Write(req); err != nil {
		return false, err
	}
	in := make([]byte, 128)
	for {
		n, err := f.Read(in)
		if err != nil {
			return false, nil // the time is over: nobody answered
		}
		if n >= 42 && binary.BigEndian.Uint16(in[12:]) == etherARP && in[21] == 2 && bytes.Equal(in[28:32], target[:]) && boot.MAC(in[22:28]) != mac {
			return true, nil
		}
	}
}

// udpProbe sends a datagram to the discard port. A host that lives refuses or answers it; one behind a firewall that
// drops it is not found, and will be by the client's own ARP, which ends in a DECLINE.
func udpProbe(ctx context.Context, a netip.Addr) bool {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 9)))
	if err != nil {
		return false
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	if c.SetDeadline(deadline) != nil {
		return false
	}
	if _, err := c.Write([]byte{0}); err != nil {
		return errors.Is(err, syscall.ECONNREFUSED)
	}
	_, err = c.Read(make([]byte, 16))
	return err == nil || errors.Is(err, syscall.ECONNREFUSED)
}
