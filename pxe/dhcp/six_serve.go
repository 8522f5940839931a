package dhcp

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/ipv6"
)

// The groups that clients (RFC 8415 section 7.1: all relay agents and servers) and relays (all servers) send to.
var groups6 = []netip.Addr{netip.MustParseAddr("ff02::1:2"), netip.MustParseAddr("ff05::1:3")}

// Serve6 answers DHCPv6 on a socket of port 547 until ctx ends, then closes it. ifname is the interface on which the
// groups are joined; empty = all that can.
func (s *Server) Serve6(ctx context.Context, c net.PacketConn, ifname string) error {
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	defer c.Close()
	p := ipv6.NewPacketConn(c)
	if err := p.SetControlMessage(ipv6.FlagInterface, true); err != nil {
		s.log.Warn("can't tell where DHCPv6 packets come in; only relayed clients are answered", "err", err)
	}
	all, err := net.Interfaces()
	if err != nil {
		return err
	}
	joined := 0
	for _, i := range all {
		if ifname != "" && i.Name != ifname || i.Flags&net.FlagUp == 0 || i.Flags&net.FlagMulticast == 0 {
			continue
		}
		for _, g := range groups6 {
			if err := p.JoinGroup(&i, &net.UDPAddr{IP: g.AsSlice()}); err == nil {
				joined++
			}
		}
	}
	if joined == 0 {
		s.log.Warn("no interface hears DHCPv6 clients: only what relays send here by unicast is answered", "interface", ifname)
	}
	type packet struct {
		b  []byte
		a  Arrival6
		at time.Time
	}
	queue := make(chan packet, 256) // full = the newest is dropped; its client repeats it within a second
	var workers sync.WaitGroup
	defer workers.Wait()
	defer close(queue)
	for range min(16, s.cfg.Limits.Workers) {
		workers.Go(func() {
			for in := range queue {
				if s.stale(in.at) {
					continue
				}
				within, cancel := context.WithTimeout(ctx, answerWithin)
				b, to, ok := s.Answer6(within, in.b, in.a)
				cancel()
				if !ok {
					continue
				}
				if _, err := p.WriteTo(b, nil, net.UDPAddrFromAddrPort(to)); err != nil && ctx.Err() == nil {
					s.log.Warn("dhcpv6 reply", "to", to, "err", err)
				}
			}
		})
	}
	buf := make([]byte, maxLen6+1)
	for {
		n, cm, src, err := p.ReadFrom(buf)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			s.log.Warn("dhcpv6 read", "err", err)
			pause(ctx)
			continue
		}
		in := packet{b: append([]byte(nil), buf[:n]...), at: time.Now()}
		if u, ok := src.(*net.UDPAddr); ok {
			in.a.Src = u.AddrPort()
		}
		if cm != nil {
			in.a.IfIndex = cm.IfIndex
		}
		select {
		case queue <- in:
		default:
			s.Metrics.overrun.Add(1)
		}
	}
}
