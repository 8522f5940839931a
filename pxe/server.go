package pxe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"gpupool/pxe/boot"
	"gpupool/pxe/dhcp"
	"gpupool/pxe/httpboot"
	"gpupool/pxe/lease"
	"gpupool/pxe/script"
	"gpupool/pxe/tftp"
	"gpupool/schema"
)

// Deps is what a Server works with.
type Deps struct {
	Inventory boot.Inventory
	Leases    lease.Store // not needed in proxy mode
	Tokens    boot.Tokens
	Installer boot.Installer // nil = Config.Plan and the built-in enrol document
	Reports   boot.Reports   // nil = reports of installers are evidence, and no more
	Recorder  boot.Recorder  // nil = evidence is only logged
	Log       *slog.Logger
	Now       func() time.Time
}

// GCPercent is the garbage collector's target in a process that does nothing but boot servers. What it holds is small, 8 MB
// at 10,000 leases, what each packet leaves behind is not: collecting a quarter as often saves a sixth of the processor time
// of an exchange (BenchmarkDORA), for some ten megabytes.
const GCPercent = 400

// Server is the boot service. New opens its sockets, Run serves them.
type Server struct {
	cfg      Config
	log      *slog.Logger
	evidence *evidence
	files    *folder
	dhcp     *dhcp.Server
	tftp     *tftp.Server
	http     *http.Server
	scripts  *script.Service
	deps     Deps
	usage    usage

	dhcpConn, pxeConn, dhcp6Conn net.PacketConn
	tftpConn, tftp6Conn          *net.UDPConn
	httpListener                 net.Listener
}

// New checks the configuration and opens the sockets, so that Addrs is right and clients' packets wait from here on.
// Close it where Run is never called.
func New(cfg Config, d Deps) (*Server, error) {
	if d.Log == nil {
		d.Log = slog.Default()
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	if d.Inventory == nil || d.Tokens == nil {
		return nil, errors.New("pxe: an inventory and tokens are needed")
	}
	if cfg.Mode != dhcp.ModeProxy && d.Leases == nil {
		return nil, errors.New("pxe: a lease store is needed in full and relay mode")
	}
	dc, err := cfg.resolve()
	if err != nil {
		return nil, fmt.Errorf("pxe: %w", err)
	}
	s := &Server{cfg: cfg, log: d.Log, deps: d, evidence: newEvidence(d.Recorder, d.Log, d.Now)}
	if err := s.build(dc); err != nil {
		s.Close()
		return nil, fmt.Errorf("pxe: %w", err)
	}
	return s, nil
}

func (s *Server) build(dc dhcp.Config) error {
	var err error
	if s.files, err = openFolder(s.cfg.Root); err != nil {
		return err
	}
	if err := s.listen(); err != nil {
		return err
	}
	url := s.cfg.URL
	if url == "" && s.httpListener != nil {
		_, port, _ := net.SplitHostPort(s.httpListener.Addr().String())
		url = s.scheme() + "://" + net.JoinHostPort(dc.ServerID.String(), port)
	}
	url6 := s.cfg.IPv6.URL
	if url6 == "" && s.cfg.IPv6.Address != "" && s.httpListener != nil {
		_, port, _ := net.SplitHostPort(s.httpListener.Addr().String())
		url6 = s.scheme() + "://" + net.JoinHostPort(s.cfg.IPv6.Address, port)
	}
	locate := &locator{}
	s.scripts = script.New(script.Config{URL: url, URL6: url6, APIURL: s.cfg.APIURL, Plan: s.cfg.plan()}, script.Deps{
		Inventory: s.deps.Inventory, Tokens: s.deps.Tokens, Installer: s.deps.Installer, Reports: s.deps.Reports, Locator: locate,
		Record: s.evidence.record, Progress: func(mac string) { s.dhcp.Progressed(mac) }, Log: s.log, Now: s.deps.Now,
	})
	dc.Has = s.files.has
	dc.ScriptURL, dc.FilesURL = s.scripts.ScriptURL, s.scripts.FilesURL()
	dc.V6.ScriptURL, dc.V6.FilesURL, dc.V6.TFTPURL = s.scripts.ScriptURL6, strings.TrimSuffix(url6, "/")+"/files", "tftp://["+s.cfg.IPv6.Address+"]"
	book := lease.NewBook(s.deps.Leases, lease.Options{
		OfferHold: s.cfg.OfferHold, Quarantine: s.cfg.Quarantine, Prober: s.prober(), Now: s.deps.Now,
		Conflict: func(a netip.Addr, mac string) {
			s.evidence.record(schema.BootEvidence{Kind: boot.KindConflict, MAC: mac, IP: a.String(), Result: "something else answers at this address: quarantined, another one is offered"})
		},
	})
	if s.dhcp, err = dhcp.New(dc, dhcp.Deps{Inventory: s.deps.Inventory, Book: book, Record: s.evidence.record, Log: s.log, Now: s.deps.Now}); err != nil {
		return err
	}
	locate.Server = s.dhcp
	s.usage.ask = s.dhcp.Usage
	s.tftp = tftp.New(&tftpFiles{s.files, s.scripts, locate}, tftp.Config{PerClient: s.cfg.TFTPPerClient, Report: s.transferred, Log: s.log})
	metrics, err := s.metrics()
	if err != nil {
		return err
	}
	s.http = httpboot.NewServer(&httpboot.Handler{Metrics: metrics, Files: s.files, Scripts: s.scripts, Locator: locate, Record: s.evidence.record, Who: s.who, Log: s.log})
	return nil
}

func (s *Server) scheme() string {
	if s.cfg.TLSCert != "" {
		return "https"
	}
	return "http"
}

// locator is the DHCP server as the scripts see it; it is filled in once both exist.
type locator struct{ *dhcp.Server }

func (s *Server) who(ctx context.Context, mac string) (server string, attempt int) {
	m, ok, err := s.deps.Inventory.ByMAC(ctx, mac)
	if err != nil || !ok {
		return "", 0
	}
	if m.Armed != nil {
		attempt = m.Armed.Attempt
	}
	return m.ID, attempt
}

// transferred makes evidence of a TFTP request.
func (s *Server) transferred(t tftp.Transfer) {
	e := schema.BootEvidence{Kind: boot.KindTFTP, IP: t.Client.Addr().String(), What: t.Name, Bytes: t.Bytes, Result: string(t.Result)}
	if t.Text != "" {
		e.Result += ": " + t.Text
	}
	if t.Result == tftp.Denied || t.Result == tftp.Write || t.Result == tftp.Busy {
		e.Kind = boot.KindTFTPDenied
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if mac, _, ok, err := s.dhcp.MACAt(ctx, t.Client.Addr()); err == nil && ok {
		e.MAC = mac
		e.Server, e.Attempt = s.who(ctx, mac)
	}
	s.evidence.record(e)
}

func (s *Server) listen() error {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		if s.cfg.Interface == "" {
			return nil
		}
		var err error
		if cerr := c.Control(func(fd uintptr) { err = syscall.BindToDevice(int(fd), s.cfg.Interface) }); cerr != nil {
			return cerr
		}
		return err
	}}
	ctx := context.Background()
	udp := func(what, addr, def string, to *net.PacketConn, lc net.ListenConfig) error {
		if addr == Off {
			return nil
		}
		if addr == "" {
			addr = def
		}
		network := "udp4"
		if strings.HasSuffix(what, "IPv6") {
			network = "udp6"
		}
		c, err := lc.ListenPacket(ctx, network, addr)
		if err != nil {
			return fmt.Errorf("%s: %w%s", what, err, hint(err, addr))
		}
		*to = c
		return nil
	}
	var tftpConn, tftp6Conn net.PacketConn
	six := s.cfg.IPv6
	if len(six.Subnets) == 0 {
		six.DHCP, six.TFTP = Off, Off
	}
	err := errors.Join(
		udp("dhcp", s.cfg.DHCP, ":67", &s.dhcpConn, lc),
		udp("pxe", s.cfg.PXE, ":4011", &s.pxeConn, lc),
		udp("tftp", s.cfg.TFTP, ":69", &tftpConn, net.ListenConfig{}),
		udp("dhcp over IPv6", six.DHCP, "[::]:547", &s.dhcp6Conn, lc),
		udp("tftp over IPv6", six.TFTP, "[::]:69", &tftp6Conn, net.ListenConfig{}),
	)
	s.tftpConn, _ = tftpConn.(*net.UDPConn)
	s.tftp6Conn, _ = tftp6Conn.(*net.UDPConn)
	if err != nil {
		return err
	}
	if s.cfg.HTTP == Off {
		return nil
	}
	addr := s.cfg.HTTP
	if addr == "" {
		addr = ":8080"
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("http: %w%s", err, hint(err, addr))
	}
	s.httpListener = l
	if s.cfg.TLSCert != "" {
		pair, err := tls.LoadX509KeyPair(s.cfg.TLSCert, s.cfg.TLSKey)
		if err != nil {
			return fmt.Errorf("tls_cert: %w", err)
		}
		s.httpListener = tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
	}
	return nil
}

func hint(err error, addr string) string {
	switch {
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fmt.Sprintf(" (hint: a port below 1024 needs CAP_NET_BIND_SERVICE; systemd's unit gives it, or choose another port than %s)", addr)
	case errors.Is(err, syscall.EADDRINUSE):
		_, port, _ := net.SplitHostPort(addr)
		return fmt.Sprintf(" (hint: another program has port %s; ss -lunp 'sport = :%s' names it)", port, port)
	}
	return ""
}

// Addrs is where each service listens; the zero AddrPort where it doesn't.
type Addrs struct{ DHCP, PXE, TFTP, HTTP, DHCP6, TFTP6 netip.AddrPort }

// Addrs tells the addresses that New opened.
func (s *Server) Addrs() Addrs {
	at := func(a net.Addr) netip.AddrPort {
		p, err := netip.ParseAddrPort(a.String())
		if err != nil {
			return netip.AddrPort{}
		}
		return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
	}
	var a Addrs
	if s.dhcpConn != nil {
		a.DHCP = at(s.dhcpConn.LocalAddr())
	}
	if s.pxeConn != nil {
		a.PXE = at(s.pxeConn.LocalAddr())
	}
	if s.tftpConn != nil {
		a.TFTP = at(s.tftpConn.LocalAddr())
	}
	if s.dhcp6Conn != nil {
		a.DHCP6 = at(s.dhcp6Conn.LocalAddr())
	}
	if s.tftp6Conn != nil {
		a.TFTP6 = at(s.tftp6Conn.LocalAddr())
	}
	if s.httpListener != nil {
		a.HTTP = at(s.httpListener.Addr())
	}
	return a
}

// URL is the HTTP service's own, without a slash at the end.
func (s *Server) URL() string {
	u := s.scripts.FilesURL()
	return u[:len(u)-len("/files")]
}

// Handler is the HTTP service alone, for a process that has its own listener.
func (s *Server) Handler() http.Handler { return s.http.Handler }

// Run serves until ctx ends, or until one of the services fails; then it stops all of them, hands over the evidence
// that is left, and returns. It is nil after ctx ended.
func (s *Server) Run(ctx context.Context) error {
	defer s.Close()
	stop := make(chan struct{})
	handed := make(chan struct{})
	keep := context.WithoutCancel(ctx) // taken here: ctx is assigned anew below
	go func() {
		defer close(handed)
		s.evidence.run(keep, stop)
	}()
	defer func() {
		close(stop)
		<-handed
	}()

	g, ctx := errgroup.WithContext(ctx)
	if s.dhcpConn != nil || s.pxeConn != nil {
		g.Go(func() error { return s.dhcp.Serve(ctx, s.dhcpConn, s.pxeConn) })
	}
	if s.dhcp6Conn != nil {
		g.Go(func() error { return s.dhcp.Serve6(ctx, s.dhcp6Conn, s.cfg.Interface) })
	}
	if s.cfg.IPv6.Advertise {
		all, err := s.cfg.advertisers(s.log)
		if err != nil {
			return err
		}
		for _, a := range all {
			g.Go(func() error { return a.Serve(ctx) })
		}
	}
	for _, c := range []*net.UDPConn{s.tftpConn, s.tftp6Conn} {
		if c != nil {
			g.Go(func() error { return s.tftp.Serve(ctx, c) })
		}
	}
	if s.httpListener != nil {
		g.Go(func() error {
			if err := s.http.Serve(s.httpListener); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("http: %w", err)
			}
			return nil
		})
		g.Go(func() error {
			<-ctx.Done()
			grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			if s.http.Shutdown(grace) != nil {
				return s.http.Close() // a large transfer is cut; its client asks for the rest of it again
			}
			return nil
		})
	}
	a := s.Addrs()
	s.log.Info("pxe serves", "mode", string(s.cfg.Mode), "dhcp", a.DHCP, "pxe", a.PXE, "tftp", a.TFTP, "http", a.HTTP, "url", s.URL(), "subnets", strconv.Itoa(len(s.cfg.Subnets)))
	return g.Wait()
}

// Close closes the sockets and the folder. Run does so itself.
func (s *Server) Close() {
	for _, c := range []net.PacketConn{s.dhcpConn, s.pxeConn, s.dhcp6Conn} {
		if c != nil {
			c.Close()
		}
	}
	for _, c := range []*net.UDPConn{s.tftpConn, s.tftp6Conn} {
		if c != nil {
			c.Close()
		}
	}
	if s.httpListener != nil {
		s.httpListener.Close()
	}
	if s.files != nil {
		s.files.root.Close()
	}
}
