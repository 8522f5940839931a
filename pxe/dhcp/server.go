package dhcp

import (
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/net/ipv4"

	"gpupool/pxe/boot"
	"gpupool/pxe/lease"
	"gpupool/schema"
)

// Deps is what a Server works with. Record must not block.
type Deps struct {
	Inventory boot.Inventory
	Book      *lease.Book // not needed in proxy mode
	Record    func(schema.BootEvidence)
	Log       *slog.Logger
	Now       func() time.Time
}

// Server answers DHCP. Answer may be called from any number of goroutines; Serve owns one reader for each socket
// and Limits.Workers workers, and returns when all have ended.
type Server struct {
	Metrics Metrics

	cfg       Config
	inventory boot.Inventory
	book      *lease.Book
	record    func(schema.BootEvidence)
	log       *slog.Logger
	now       func() time.Time
	gate      *gate
	loops     loops
	exchanges exchanges
	sightings sightings
	links     links
}

// New checks the configuration.
func New(cfg Config, d Deps) (*Server, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Log == nil {
		d.Log = slog.Default()
	}
	if d.Record == nil {
		d.Record = func(schema.BootEvidence) {}
	}
	if d.Book == nil && cfg.Mode != ModeProxy {
		return nil, errors.New("a lease book is needed in full and relay mode")
	}
	return &Server{
		cfg: cfg, inventory: d.Inventory, book: d.Book, record: d.Record, log: d.Log, now: d.Now,
		gate: newGate(cfg.Limits, d.Now()), loops: loops{byMAC: map[chainKey]*chain{}}, exchanges: exchanges{byMAC: map[string]exchange{}}, sightings: sightings{byIP: map[netip.Addr]sighting{}},
	}, nil
}

// Progressed says that a machine fetched its script: whatever it loaded until then was no loop.
func (s *Server) Progressed(mac string) { s.loops.progressed(mac) }

// MACAt tells which machine has an address: by its live lease, in proxy mode by what it said on port 4011. ok is
// false where nobody is known to have it. exchange names the DHCP exchange that gave it the address.
func (s *Server) MACAt(ctx context.Context, ip netip.Addr) (mac, exchange string, ok bool, err error) {
	if s.cfg.Mode == ModeProxy {
		mac, ok = s.sightings.at(ip, s.now())
		return mac, "", ok, nil
	}
	l, ok, err := s.book.At(ctx, ip)
	return l.MAC, l.BoundAt.String(), ok, err
}

// Usage is how each IPv4 subnet's addresses are used, in the order of the configuration; nothing in proxy mode, which gives
// none. (Over IPv6 an address is made of its machine's MAC, and a pool has no end.)
func (s *Server) Usage(ctx context.Context) ([]lease.Usage, error) {
	if s.cfg.Mode == ModeProxy {
		return nil, nil
	}
	var all []lease.Usage
	for _, n := range s.cfg.Subnets {
		u, err := s.book.Usage(ctx, s.cfg.pool(n, s.links.within(n.Prefix)...))
		if err != nil {
			return nil, err
		}
		all = append(all, u)
	}
	return all, nil
}

// packet is one datagram on its way to a worker.
type packet struct {
	p  *Packet
	a  Arrival
	to *conn
	at time.Time
}

// How long a packet may wait for its worker, and the worker for what it asks. A client repeats itself after four seconds
// (RFC 2131 section 4.1), and an answer to what it said before that is none. When a database comes back that was away,
// what piled up meanwhile is so passed over at once.
const (
	staleAfter   = 4 * time.Second
	answerWithin = 8 * time.Second
)

// stale counts and passes over what has waited for too long.
func (s *Server) stale(at time.Time) bool {
	if time.Since(at) < staleAfter {
		return false
	}
	s.Metrics.overrun.Add(1)
	return true
}

// pause keeps a reader whose socket has a fault that lasts from turning at full speed.
func pause(ctx context.Context) {
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
	}
}

// queue is one worker's. What goes on with an exchange is worked on before what begins one: when a whole site comes up
// at once, finishing what was offered is worth more than offers that will be too late.
type queue struct{ begun, new chan packet }

// How many packets wait for one worker. Fewer that begin: an OFFER that waited for long is one that its client has given up.
// All workers' together are half a second's work.
const (
	waitBegun = 8
	waitNew   = 4
)

func (q queue) of(p *Packet) chan packet {
	if p.Type == dhcpv4.MessageTypeDiscover {
		return q.new
	}
	return q.begun
}

// next waits for a packet; ok is false when both channels are closed and empty.
func (q *queue) next() (p packet, ok bool) {
	select {
	case p, ok = <-q.begun:
		if ok {
			return p, true
		}
		q.begun = nil
	default:
	}
	for q.begun != nil || q.new != nil {
		select {
		case p, ok = <-q.begun:
			if ok {
				return p, true
			}
			q.begun = nil
		case p, ok = <-q.new:
			if ok {
				return p, true
			}
			q.new = nil
		}
	}
	return packet{}, false
}

// conn is a socket with what IP_PKTINFO tells and takes.
type conn struct {
	*ipv4.PacketConn
	pxe  bool
	link *linkSender
	from netip.Addr
}

// readBuffer holds what comes in while the reader is not scheduled: about 8000 packets.
const readBuffer = 8 << 20

// Serve reads the sockets until ctx ends: main is on port 67, pxe on 4011 (nil = none). It closes both.
func (s *Server) Serve(ctx context.Context, main, pxe net.PacketConn) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	queues := make([]queue, s.cfg.Limits.Workers)
	var workers, readers sync.WaitGroup
	for i := range queues {
		queues[i] = queue{make(chan packet, waitBegun), make(chan packet, waitNew)}
		workers.Go(func() { s.work(ctx, queues[i]) })
	}
	if l, ok := s.inventory.(boot.Lister); ok {
		workers.Go(func() { s.learn(ctx, l) })
	}
	link := newLinkSender()
	defer link.close()
	errs := make(chan error, 2)
	var open []net.PacketConn
	for _, c := range []net.PacketConn{main, pxe} {
		if c == nil {
			continue
		}
		p := ipv4.NewPacketConn(c)
		if err := p.SetControlMessage(ipv4.FlagDst|ipv4.FlagInterface, true); err != nil {
			s.log.Warn("can't tell where packets come in; only relayed clients are answered", "err", err)
		}
		if u, ok := c.(interface{ SetReadBuffer(int) error }); ok {
			_ = u.SetReadBuffer(readBuffer) // the system's limit may be lower
		}
		open = append(open, c)
		readers.Go(func() { errs <- s.read(ctx, &conn{p, c == pxe, link, s.cfg.ServerID}, queues) })
	}
	stop := context.AfterFunc(ctx, func() {
		for _, c := range open {
			c.Close()
		}
	})
	defer stop()
	readers.Wait()
	for _, c := range open {
		c.Close()
	}
	cancel()
	for _, q := range queues {
		close(q.begun)
		close(q.new)
	}
	workers.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

const learnEvery = 3 * time.Second

// learn keeps the gate's known MACs those of the inventory.
func (s *Server) learn(ctx context.Context, l boot.Lister) {
	tick := time.NewTicker(learnEvery)
	defer tick.Stop()
	for {
		macs, err := l.MACs(ctx)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("inventory's MACs can't be listed", "err", err)
		}
		if err == nil {
			s.gate.learn(s.now(), macs...)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// read parses what comes in and hands it to the worker of its MAC, so that no two of one machine's packets are worked
// on at once. Where the worker is behind, the oldest packet goes: its client has given up on it soonest.
func (s *Server) read(ctx context.Context, c *conn, queues []queue) error {
	seed := maphash.MakeSeed()
	batch := make([]ipv4.Message, 32) // by one system call, where as many wait
	for i := range batch {
		batch[i] = ipv4.Message{Buffers: [][]byte{make([]byte, longest)}, OOB: ipv4.NewControlMessage(ipv4.FlagDst | ipv4.FlagInterface)}
	}
	for {
		n, err := c.ReadBatch(batch, 0)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			s.log.Warn("dhcp read", "err", err)
			pause(ctx)
			continue
		}
		for _, m := range batch[:n] {
			if p, ok := s.admitted(m.Buffers[0][:m.N]); ok {
				s.enqueue(queues[maphash.String(seed, p.MAC)%uint64(len(queues))].of(p), packet{p, arrival(m, c.pxe), c, time.Now()})
			}
		}
	}
}

// longest is room for any message: clients are told to send 576 bytes at least, and never send more than a frame.
const longest = 9216

// admitted parses what the limits let through.
func (s *Server) admitted(b []byte) (*Packet, bool) {
	// The gate comes before everything that costs: a flood is turned away by a look at the header.
	if mac, ok := headerMAC(b); ok && !s.gate.admit(mac, s.now()) {
		s.Metrics.limited.Add(1)
		return nil, false
	}
	p, err := Parse(b)
	if err != nil {
		var g Garbage
		errors.As(err, &g)
		s.Metrics.dropped(g)
		return nil, false
	}
	return p, true
}

func arrival(m ipv4.Message, pxePort bool) Arrival {
	a := Arrival{PXEPort: pxePort}
	if u, ok := m.Addr.(*net.UDPAddr); ok {
		a.Src = netip.AddrPortFrom(u.AddrPort().Addr().Unmap(), u.AddrPort().Port())
	}
	var cm ipv4.ControlMessage
	if cm.Parse(m.OOB[:m.NN]) == nil {
		a.IfIndex = cm.IfIndex
		if d, ok := netip.AddrFromSlice(cm.Dst); ok {
			a.Dst = d.Unmap()
		}
	}
	return a
}

func (s *Server) enqueue(q chan packet, p packet) {
	for {
		select {
		case q <- p:
			return
		default:
		}
		select {
		case <-q:
			s.Metrics.overrun.Add(1)
		default:
		}
	}
}

func (s *Server) work(ctx context.Context, q queue) {
	for p, ok := q.next(); ok; p, ok = q.next() {
		if s.stale(p.at) {
			continue
		}
		within, cancel := context.WithTimeout(ctx, answerWithin)
		r, ok := s.answer(within, p.p, p.a)
		cancel()
		if !ok {
			continue
		}
		if err := p.to.send(r); err != nil && ctx.Err() == nil {
			s.log.Warn("dhcp reply", "to", r.To, "type", r.Type.String(), "err", err)
		}
	}
}

// send writes a reply: on the link to a client that has no address yet, where that can be done, else by broadcast.
func (c *conn) send(r Reply) error {
	to := r.To
	if r.HWAddr != nil {
		if c.link.send(r, c.from) == nil {
			return nil
		}
		to = broadcastTo()
	}
	var cm *ipv4.ControlMessage
	if r.IfIndex != 0 && to.Addr() == broadcastTo().Addr() {
		cm = &ipv4.ControlMessage{IfIndex: r.IfIndex}
	}
	_, err := c.WriteTo(r.Bytes, cm, net.UDPAddrFromAddrPort(to))
	return err
}
