// Package ndisc speaks IPv6's neighbor discovery (RFC 4861) where DHCPv6 depends on it: clients ask DHCPv6 only on a
// network where somebody advertises the managed flag, and an address is given only if nobody answers there.
//
// [Advertiser] is that somebody where the site's own routers aren't, [Look] tells who advertises what, [Probe] asks for
// an address. Invariant: what is advertised here never makes this machine a router: the router lifetime is 0, and no
// host makes an address of its own from a prefix. All of it needs CAP_NET_RAW.
//
// Not here: which address is whose (pxe/dhcp, pxe/lease).
package ndisc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/mdlayher/ndp"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
)

// link is ICMPv6 on one interface. It names the interface by its number in each packet rather than by the zone of an
// address: Go remembers zones for a minute, and an interface that was made anew meanwhile has another number.
type link struct {
	*net.Interface
	pc   *ipv6.PacketConn
	from netip.Addr // its link-local address
	buf  []byte
}

// open listens for one type of message.
func open(i *net.Interface, want ipv6.ICMPType) (*link, error) {
	l := &link{Interface: i, buf: make([]byte, 9216)}
	addrs, err := i.Addrs()
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", i.Name, err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsLinkLocalUnicast() && p.Addr().Is6() {
			l.from = p.Addr()
		}
	}
	if !l.from.IsValid() {
		return nil, fmt.Errorf("interface %s has no IPv6 link-local address", i.Name)
	}
	c, err := icmp.ListenPacket("ip6:ipv6-icmp", "::")
	if err != nil {
		return nil, fmt.Errorf("ICMPv6: %w", err)
	}
	l.pc = c.IPv6PacketConn()
	var f ipv6.ICMPFilter
	f.SetAll(true)
	f.Accept(want)
	const checksumAt = 2
	if err := errors.Join(l.pc.SetICMPFilter(&f), l.pc.SetHopLimit(ndp.HopLimit), l.pc.SetMulticastHopLimit(ndp.HopLimit), l.pc.SetChecksum(true, checksumAt),
		l.pc.SetControlMessage(ipv6.FlagHopLimit|ipv6.FlagInterface, true)); err != nil {
		c.Close()
		return nil, fmt.Errorf("ICMPv6: %w", err)
	}
	return l, nil
}

// join makes the interface hear a group.
func (l *link) join(group netip.Addr) error {
	return l.pc.JoinGroup(l.Interface, &net.IPAddr{IP: group.AsSlice()})
}

func (l *link) send(m ndp.Message, to netip.Addr) error {
	b, err := ndp.MarshalMessage(m)
	if err != nil {
		return err
	}
	_, err = l.pc.WriteTo(b, &ipv6.ControlMessage{HopLimit: ndp.HopLimit, Src: l.from.AsSlice(), IfIndex: l.Index}, &net.IPAddr{IP: to.AsSlice()})
	return err
}

// receive waits for the next well-formed message of another on this link. What a router forwarded has lost from its hop
// limit, so that none can come from elsewhere (section 6.1).
func (l *link) receive() (ndp.Message, netip.Addr, error) {
	for {
		n, cm, src, err := l.pc.ReadFrom(l.buf)
		if err != nil {
			return nil, netip.Addr{}, err
		}
		ip, ok := src.(*net.IPAddr)
		if !ok || cm == nil || cm.IfIndex != l.Index || cm.HopLimit != ndp.HopLimit {
			continue
		}
		from, ok := netip.AddrFromSlice(ip.IP)
		if !ok || from == l.from {
			continue
		}
		if m, err := ndp.ParseMessage(l.buf[:n]); err == nil {
			return m, from, nil
		}
	}
}

// until ends what waits in receive when ctx does: with a deadline error, or net.ErrClosed after close.
func (l *link) until(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = l.pc.SetReadDeadline(time.Unix(1, 0)) })
}

// Probe asks whether something else than mac (nil = anybody) answers at a on an interface, until ctx ends. An error
// means that it couldn't ask.
func Probe(ctx context.Context, i *net.Interface, a netip.Addr, mac net.HardwareAddr) (used bool, err error) {
	l, err := open(i, ipv6.ICMPTypeNeighborAdvertisement)
	if err != nil {
		return false, err
	}
	defer l.pc.Close()
	defer l.until(ctx)()
	group, err := ndp.SolicitedNodeMulticast(a)
	if err != nil {
		return false, err
	}
	if err := l.send(&ndp.NeighborSolicitation{TargetAddress: a, Options: []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Source, Addr: i.HardwareAddr}}}, group); err != nil {
		return false, err
	}
	for {
		m, _, err := l.receive()
		if err != nil {
			return false, nil // the time is over: nobody answered
		}
		na, ok := m.(*ndp.NeighborAdvertisement)
		if !ok || na.TargetAddress != a {
			continue
		}
		for _, o := range na.Options {
			if own, ok := o.(*ndp.LinkLayerAddress); ok && mac != nil && own.Addr.String() == mac.String() {
				return false, nil
			}
		}
		return true, nil
	}
}
