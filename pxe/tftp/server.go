package tftp

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
)

// Content is an open file.
type Content interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

// Files opens boot files. name is slash-separated, relative and clean; client is who asks. fs.ErrNotExist and
// fs.ErrPermission become TFTP's errors 1 and 2.
type Files interface {
	Open(ctx context.Context, client netip.Addr, name string) (Content, error)
}

// Result is how a request ended.
type Result string

const (
	OK       Result = "ok"
	Probe    Result = "size probe"         // asked for the size and went away: firmware does that before the real request
	Aborted  Result = "aborted by client"  //
	TimedOut Result = "client went silent" //
	NotFound Result = "no such file"
	Denied   Result = "refused: outside the boot files"
	Write    Result = "refused: write"
	Busy     Result = "refused: too many transfers"
	Replaced Result = "client asked for something else"
	Crowded  Result = "client answered nothing, and others waited"
	Failed   Result = "read error"
)

// Transfer is what is reported of one request.
type Transfer struct {
	Client  netip.AddrPort
	Name    string
	Bytes   int64 // acknowledged by the client
	Size    int64
	Result  Result
	Text    string // the client's own words where it aborted
	Elapsed time.Duration
}

// Config of a Server. The zero value is usable.
type Config struct {
	Timeout   time.Duration // wait for an ACK before sending again, where the client doesn't say; 0 = 1 s
	Retries   int           // how often a window is sent again to a client that has answered before; 0 = 5
	PerClient int           // transfers at once for one address; 0 = 8
	Total     int           // transfers at once; 0 = 1024
	Report    func(Transfer)
	Log       *slog.Logger
}

// loops are how many threads share the transfers, to use more than one processor.
const loops = 4

// Server answers TFTP read requests. Serve owns one goroutine for each transfer, which opens and reads the file and reports,
// and a few loops, which send; it waits for all of them.
type Server struct {
	c     Config
	files Files
	sessions
}

// New returns a Server of files.
func New(files Files, c Config) *Server {
	if c.Timeout == 0 {
		c.Timeout = time.Second
	}
	if c.Retries == 0 {
		c.Retries = 5
	}
	if c.PerClient == 0 {
		c.PerClient = 8
	}
	if c.Total == 0 {
		c.Total = 1024
	}
	if c.Report == nil {
		c.Report = func(Transfer) {}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return &Server{c: c, files: files, sessions: newSessions(c.PerClient, c.Total)}
}

// Serve reads requests from c until ctx ends, then closes it and ends the transfers.
func (s *Server) Serve(ctx context.Context, c *net.UDPConn) error {
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	defer c.Close()
	var transfers, running sync.WaitGroup
	defer running.Wait()
	var drivers [loops]*loop
	for i := range drivers {
		l, err := newLoop()
		if err != nil {
			return err
		}
		drivers[i] = l
		running.Go(l.run)
		defer l.close()
	}
	defer transfers.Wait()
	read := reader(c)
	buf := make([]byte, 2048)
	for count := 0; ; {
		n, in, err := read(buf)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			s.c.Log.Warn("tftp read", "err", err)
			continue
		}
		req, err := parseRequest(buf[:n])
		if err != nil {
			continue // no answer to garbage
		}
		if req.op == opWRQ {
			s.refuse(c, in, req.name, errAccess, "this server is read only", Write)
			continue
		}
		sess, verdict := s.admit(ctx, in.src, buf[:n])
		switch verdict {
		case again:
			continue // the client repeats its request: the transfer that is under way repeats its answer
		case tooMany:
			s.refuse(c, in, req.name, errOther, "busy: too many transfers", Busy)
			continue
		case admitted:
		}
		l := drivers[count%loops]
		count++
		transfers.Go(func() {
			defer s.release(sess)
			s.transfer(l, sess, in, req)
		})
	}
}

// arrival is where a request came in.
type arrival struct {
	src   netip.AddrPort
	local netip.Addr // the address it was sent to; zero where not known or a broadcast
	mtu   int
}

func (s *Server) refuse(c *net.UDPConn, in arrival, name string, code uint16, text string, r Result) {
	_, _ = c.WriteToUDPAddrPort(errorPacket(code, text), in.src)
	s.c.Report(Transfer{Client: in.src, Name: printable(name), Result: r})
}

// transfer serves one read request from a port of its own (its TID).
func (s *Server) transfer(l *loop, sess *session, in arrival, req request) {
	ctx, start := sess.ctx, time.Now()
	t := Transfer{Client: in.src, Name: printable(req.name)}
	defer func() {
		t.Elapsed = time.Since(start)
		s.c.Report(t)
	}()
	p, err := openPort(in)
	if err != nil {
		t.Result, t.Text = Failed, err.Error()
		return
	}
	defer p.close()
	fail := func(code uint16, text string, r Result) {
		t.Result = r
		_ = p.send(errorPacket(code, text))
	}
	name, err := clean(req.name)
	if err != nil {
		fail(errAccess, "access violation", Denied)
		return
	}
	t.Name = name
	content, err := s.files.Open(ctx, in.src.Addr(), name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		fail(errNotFound, "file not found", NotFound)
		return
	case errors.Is(err, fs.ErrPermission):
		fail(errAccess, "access violation", Denied)
		return
	case err != nil:
		t.Text = err.Error()
		fail(errOther, "server error", Failed)
		return
	}
	defer content.Close()
	if req.mode == "netascii" {
		if content, err = netascii(content); err != nil {
			t.Text = err.Error()
			fail(errOther, err.Error(), Failed)
			return
		}
	} else if req.mode != "octet" {
		fail(errIllegal, "only octet and netascii are served", Failed)
		return
	}
	t.Size = content.Size()
	x := &sender{
		port: p, content: content, terms: agree(req.options, in.mtu, t.Size, s.c.Timeout), retries: s.c.Retries,
		answered: func() { s.heard(sess) }, ended: make(chan outcome, 1), wants: make(chan piece, 1),
	}
	o := l.drive(ctx, x)
	if t.Result, t.Text = o.result, o.text; t.Result == stopped {
		t.Result, t.Text = Failed, "the server is stopping"
		if why := context.Cause(ctx); errors.As(why, &t.Result) {
			t.Text = ""
		}
	}
	t.Bytes = x.acked()
}

// printable keeps what a stranger sent from breaking a log.
func printable(s string) string {
	if len(s) > maxName {
		s = s[:maxName] + "…"
	}
	b := []rune(s)
	for i, r := range b {
		if r < 0x20 || r == 0x7f {
			b[i] = '?'
		}
	}
	return string(b)
}

// jitter spreads retransmissions of many clients that lost the same burst.
func jitter(d time.Duration) time.Duration { return d + time.Duration(rand.Int64N(int64(d/4)+1)) }

// reader returns a read function that tells the local address and the MTU where the system does.
func reader(c *net.UDPConn) func([]byte) (int, arrival, error) {
	mtu := mtus{}
	if a, ok := c.LocalAddr().(*net.UDPAddr); ok && a.IP.To4() == nil {
		p := ipv6.NewPacketConn(c)
		if p.SetControlMessage(ipv6.FlagDst|ipv6.FlagInterface, true) == nil {
			return func(b []byte) (int, arrival, error) {
				n, cm, src, err := p.ReadFrom(b)
				if err != nil {
					return 0, arrival{}, err
				}
				in := arrival{src: addrPort(src), mtu: defaultBlock + overhead}
				if cm != nil {
					in.local, in.mtu = localAddr(cm.Dst), mtu.of(cm.IfIndex)
					if in.src.Addr().Is6() {
						in.mtu -= 20 // IPv6's header is longer by that
					}
					if in.local.IsLinkLocalUnicast() && in.local.Is6() {
						in.local = in.local.WithZone(in.src.Addr().Zone())
					}
				}
				return n, in, nil
			}
		}
	}
	p := ipv4.NewPacketConn(c)
	_ = p.SetControlMessage(ipv4.FlagDst|ipv4.FlagInterface, true) // without it blocks stay at 512
	return func(b []byte) (int, arrival, error) {
		n, cm, src, err := p.ReadFrom(b)
		if err != nil {
			return 0, arrival{}, err
		}
		in := arrival{src: addrPort(src), mtu: defaultBlock + overhead}
		if cm != nil {
			in.local, in.mtu = localAddr(cm.Dst), mtu.of(cm.IfIndex)
		}
		return n, in, nil
	}
}

func addrPort(a net.Addr) netip.AddrPort {
	u, ok := a.(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	p := u.AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

// localAddr is the address to answer from; none for a broadcast, from which nothing can be sent.
func localAddr(ip net.IP) netip.Addr {
	a, ok := netip.AddrFromSlice(ip)
	a = a.Unmap()
	if !ok || a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return netip.Addr{}
	}
	return a
}

// mtus keeps interfaces' MTUs for a few seconds; it belongs to the one reading goroutine.
type mtus struct {
	at    time.Time
	cache map[int]int
}

func (m *mtus) of(index int) int {
	if time.Since(m.at) > 10*time.Second {
		m.at, m.cache = time.Now(), map[int]int{}
	}
	v, ok := m.cache[index]
	if !ok {
		v = 1500
		if i, err := net.InterfaceByIndex(index); err == nil {
			v = i.MTU
		}
		m.cache[index] = v
	}
	return v
}
