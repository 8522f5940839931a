package dhcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

// links knows the interfaces' names and addresses, read again when they are a few seconds old.
type links struct {
	mu    sync.Mutex
	at    time.Time
	names map[int]string
	addrs map[int][]netip.Addr
	own   []netip.Addr // of all interfaces
}

// within are this machine's own addresses in a network.
func (l *links) within(p netip.Prefix) []netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fresh()
	var in []netip.Addr
	for _, a := range l.own {
		if p.Contains(a) {
			in = append(in, a)
		}
	}
	return in
}

// fresh reads again what is old; the caller holds mu.
func (l *links) fresh() {
	if time.Since(l.at) > 5*time.Second {
		l.read()
	}
}

func (l *links) of(index int) (string, []netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fresh()
	return l.names[index], l.addrs[index]
}

func (l *links) read() {
	l.at, l.names, l.addrs, l.own = time.Now(), map[int]string{}, map[int][]netip.Addr{}, nil
	all, err := net.Interfaces()
	if err != nil {
		return
	}
	for _, i := range all {
		l.names[i.Index] = i.Name
		as, err := i.Addrs()
		if err != nil {
			continue
		}
		for _, a := range as {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				l.addrs[i.Index] = append(l.addrs[i.Index], p.Addr().Unmap())
				if i.Flags&net.FlagLoopback == 0 {
					l.own = append(l.own, p.Addr().Unmap())
				}
			}
		}
	}
}

// OpenLink opens a packet socket on one interface, for whole Ethernet frames of one EtherType. It needs CAP_NET_RAW.
// etherType 0 receives nothing.
func OpenLink(index int, etherType uint16) (*os.File, error) {
	proto := int(etherType>>8 | etherType<<8) // network byte order
	fd, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, proto)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrLinklayer{Protocol: uint16(proto), Ifindex: index}); err != nil {
		syscall.Close(fd)
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	return os.NewFile(uintptr(fd), "packet"), nil
}

var errNoLink = errors.New("no packet socket for this interface")

// linkSender sends to a client that has no address yet: to its hardware address, with the address it is offered.
// Where it can't (no right to, not Ethernet), the reply is broadcast, which RFC 2131 section 4.1 allows.
type linkSender struct {
	mu    sync.Mutex
	socks map[int]*linkSocket // by interface; a nil entry can't be had
}

type linkSocket struct {
	f  *os.File
	hw net.HardwareAddr
}

func newLinkSender() *linkSender { return &linkSender{socks: map[int]*linkSocket{}} }

func (l *linkSender) socket(index int) *linkSocket {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.socks[index]
	if ok {
		return s
	}
	if i, err := net.InterfaceByIndex(index); err == nil && len(i.HardwareAddr) == 6 {
		if f, err := OpenLink(index, 0); err == nil {
			s = &linkSocket{f, i.HardwareAddr}
		}
	}
	l.socks[index] = s
	return s
}

// send writes r as one frame; from is the server's address.
func (l *linkSender) send(r Reply, from netip.Addr) error {
	s := l.socket(r.IfIndex)
	if s == nil || len(r.HWAddr) != 6 {
		return errNoLink
	}
	_, err := s.f.Write(frame(s.hw, r.HWAddr, from, r.To, r.Bytes))
	return err
}

func (l *linkSender) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.socks {
		if s != nil {
			s.f.Close()
		}
	}
}

// frame is an Ethernet frame with an IPv4 (RFC 791) and UDP (RFC 768) header from port 67.
func frame(src, dst net.HardwareAddr, from netip.Addr, to netip.AddrPort, payload []byte) []byte {
	b := make([]byte, 14+20+8, 14+20+8+len(payload))
	copy(b, dst)
	copy(b[6:], src)
	binary.BigEndian.PutUint16(b[12:], 0x0800)
	ip, udp := b[14:34], b[34:42]
	f, t := from.As4(), to.Addr().As4()
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(28+len(payload)))
	copy(ip[12:], f[:])
	copy(ip[16:], t[:])
	binary.BigEndian.PutUint16(ip[10:], ^sum(0, ip))
	binary.BigEndian.PutUint16(udp, serverPort)
	binary.BigEndian.PutUint16(udp[2:], to.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(8+len(payload)))
	b = append(b, payload...)
	// The checksum covers a pseudo header: addresses, protocol, length.
	c := ^sum(uint32(17+8+len(payload)), append(append(append([]byte{}, f[:]...), t[:]...), b[34:]...))
	if c == 0 {
		c = 0xffff
	}
	binary.BigEndian.PutUint16(b[40:], c)
	return b
}

// sum is the ones' complement sum of RFC 1071.
func sum(start uint32, b []byte) uint16 {
	for ; len(b) >= 2; b = b[2:] {
		start += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		start += uint32(b[0]) << 8
	}
	for start>>16 != 0 {
		start = start>>16 + start&0xffff
	}
	return uint16(start)
}
