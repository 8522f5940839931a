package pxe

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"gpupool/pxe/boot"
	"gpupool/pxe/dhcp"
	"gpupool/pxe/lease"
	"gpupool/pxe/ndisc"
)

// probeFor bounds one probe. ISC's server waits a second, which costs a client a quarter of its first timeout.
const probeFor = 400 * time.Millisecond

// prober looks whether an address is in use: by ARP on the link it is on, else by ICMP.
type prober struct{ slots chan struct{} }

// probesAtOnce is how many addresses are looked at at the same time: each by a socket, which on one link hears what is
// answered to all.
const probesAtOnce = 128

func (s *Server) prober() lease.Prober {
	if s.cfg.NoProbe {
		return nil
	}
	return prober{make(chan struct{}, probesAtOnce)}
}

// InUse implements lease.Prober. Where a whole site is new to it, it waits for its turn; one whose time is over by then
// finds nobody.
func (p prober) InUse(ctx context.Context, a netip.Addr, mac string) bool {
	if a.IsLoopback() {
		return false // the whole block is this host: everything in it answers
	}
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, probeFor)
	defer cancel()
	if i, ok := linkTo(a); ok {
		if used, err := linkProbe(ctx, i, a, mac); err == nil {
			return used
		}
	}
	return icmpProbe(ctx, a)
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

// icmpProbe asks a host behind a router in two ways, at the same time: for an echo, and by a datagram to the discard port,
// which a living host refuses by ICMP too. Firewalls let the one or the other through. One that drops both is not found, and
// will be by the client's own ARP, which ends in a DECLINE.
func icmpProbe(ctx context.Context, a netip.Addr) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // who asks in vain is not waited for where the other was answered
	answers := make(chan bool, 2)
	for _, ask := range []func(context.Context, netip.Addr) bool{echoProbe, udpProbe} {
		go func() { answers <- ask(ctx, a) }()
	}
	if first := <-answers; first {
		return true
	}
	return <-answers
}

// untilDone ends what is read from c at ctx's deadline, or when ctx is cancelled before it.
func untilDone(ctx context.Context, c interface{ SetReadDeadline(time.Time) error }) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Now()) })
}

// echoProbe is RFC 792's and RFC 4443's echo. Linux gives a socket for it without any rights where
// net.ipv4.ping_group_range has the group in it, and else with CAP_NET_RAW, which ARP takes as well.
func echoProbe(ctx context.Context, a netip.Addr) bool {
	plain, raw, proto, request, reply := "udp4", "ip4:icmp", 1, icmp.Type(ipv4.ICMPTypeEcho), icmp.Type(ipv4.ICMPTypeEchoReply)
	if a.Is6() {
		plain, raw, proto, request, reply = "udp6", "ip6:ipv6-icmp", 58, ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	var to net.Addr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 0))
	c, err := icmp.ListenPacket(plain, "")
	if err != nil {
		if c, err = icmp.ListenPacket(raw, ""); err != nil {
			return false
		}
		to = &net.IPAddr{IP: a.AsSlice(), Zone: a.Zone()}
	}
	defer c.Close()
	defer untilDone(ctx, c)()
	// Nobody else's echo has the same words; the identifier is the kernel's to choose on the one kind of socket.
	words := []byte(rand.Text())
	b, err := (&icmp.Message{Type: request, Body: &icmp.Echo{ID: int(words[0])<<8 | int(words[1]), Seq: 1, Data: words}}).Marshal(nil)
	if err != nil {
		return false
	}
	if _, err := c.WriteTo(b, to); err != nil {
		return false
	}
	in := make([]byte, 1500)
	for {
		n, from, err := c.ReadFrom(in)
		if err != nil {
			return false // the time is over: nobody answered
		}
		m, err := icmp.ParseMessage(proto, in[:n])
		if err != nil || m.Type != reply || !sameHost(from, a) {
			continue
		}
		if e, ok := m.Body.(*icmp.Echo); ok && bytes.Equal(e.Data, words) {
			return true
		}
	}
}

func sameHost(from net.Addr, a netip.Addr) bool {
	var ip net.IP
	switch f := from.(type) {
	case *net.UDPAddr:
		ip = f.IP
	case *net.IPAddr:
		ip = f.IP
	}
	at, ok := netip.AddrFromSlice(ip)
	return ok && at.Unmap() == a.WithZone("")
}

// udpProbe sends a datagram to the discard port.
func udpProbe(ctx context.Context, a netip.Addr) bool {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 9)))
	if err != nil {
		return false
	}
	defer c.Close()
	defer untilDone(ctx, c)()
	if _, err := c.Write([]byte{0}); err != nil {
		return errors.Is(err, syscall.ECONNREFUSED)
	}
	_, err = c.Read(make([]byte, 16))
	return err == nil || errors.Is(err, syscall.ECONNREFUSED)
}
