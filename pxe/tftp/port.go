package tftp

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// port is a transfer's own UDP port, its TID, and the client's. It is a bare socket: the runtime's poller would wake a
// thread for each packet, which costs more than the packet does (see loop). Addresses are package syscall's, as unix.Recvfrom
// asks the kernel for the socket's protocol at each packet.
type port struct {
	fd int
	to syscall.Sockaddr
}

// openPort takes a port to answer a request from.
func openPort(in arrival) (*port, error) {
	to, err := sockaddr(in.src)
	if err != nil {
		return nil, err
	}
	family := syscall.AF_INET6
	if in.src.Addr().Is4() {
		family = syscall.AF_INET
	}
	fd, err := syscall.Socket(family, syscall.SOCK_DGRAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	p := &port{fd, to}
	if in.local.IsValid() {
		local, err := sockaddr(netip.AddrPortFrom(in.local, 0))
		if err == nil {
			err = syscall.Bind(fd, local)
		}
		if err != nil {
			p.close()
			return nil, fmt.Errorf("bind to %s: %w", in.local, err)
		}
	}
	return p, nil
}

func (p *port) close() { _ = unix.Close(p.fd) }

func (p *port) send(b []byte) error { return syscall.Sendto(p.fd, b, 0, p.to) }

// What the kernel takes by one call, to be cut in packets (UDP_SEGMENT): so many, of so many bytes together.
const (
	maxBurst    = 64
	maxDatagram = 65000
)

// bursts lets sends be of n blocks at once, where the kernel can do that, and returns how many they may be of.
func (s *sender) bursts(n int) int {
	if s.block < defaultBlock { // smaller than an OACK or ERROR may be, which must not be cut
		n = 1
	}
	size := 0
	if n > 1 {
		size = 4 + s.block
	} else if s.burst <= 1 {
		return 1
	}
	if unix.SetsockoptInt(s.fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT, size) != nil {
		return 1
	}
	return max(n, 1)
}

// isFrom reports whether a packet is the client's.
func (p *port) isFrom(a syscall.Sockaddr) bool {
	switch a := a.(type) {
	case *syscall.SockaddrInet4:
		to, ok := p.to.(*syscall.SockaddrInet4)
		return ok && a.Addr == to.Addr && a.Port == to.Port
	case *syscall.SockaddrInet6:
		to, ok := p.to.(*syscall.SockaddrInet6)
		return ok && a.Addr == to.Addr && a.Port == to.Port && a.ZoneId == to.ZoneId
	}
	return false
}

func sockaddr(a netip.AddrPort) (syscall.Sockaddr, error) {
	ip := a.Addr()
	if ip.Is4() {
		return &syscall.SockaddrInet4{Port: int(a.Port()), Addr: ip.As4()}, nil
	}
	out := &syscall.SockaddrInet6{Port: int(a.Port()), Addr: ip.As16()}
	if zone := ip.Zone(); zone != "" {
		i, err := net.InterfaceByName(zone)
		if err != nil {
			return nil, fmt.Errorf("address %s: %w", ip, err)
		}
		out.ZoneId = uint32(i.Index)
	}
	return out, nil
}
