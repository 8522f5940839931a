package bmc

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Config is what all BMCs of a pool have in common. The zero value is usable.
type Config struct {
	Timing Timing
	// Rate is how many requests a second one BMC gets from this pool, and Burst how many at once; 0 means 50 and 100. It is not
	// shared between processes: one process of a site watches (workflows.WatchBMCs), and what people and onboarding ask for
	// beside it is a few dozen requests an act. What a BMC locks out for, logins and silence, is shared: see Shared.
	Rate  float64
	Burst int
	// ResetsPerDay is how often a server's power is taken away within 24 h, by all processes together, before that is refused;
	// 0 = as often as it is asked for. See Regardless.
	ResetsPerDay int
	// Shared holds sessions and login budgets; nil keeps them within this pool.
	Shared Shared
	// CA, if set, signs the certificates of BMCs: what it signed for the address is trusted, and nothing on first use.
	CA *x509.CertPool
	// OnPin is told of the TLS key trusted on first use, to be kept for the next start.
	OnPin func(address, pin string)
	// OnLogin is told which secret got in, so that a rotation that was cut off can be finished.
	OnLogin func(address string, l Login)
	// Dial, if set, opens the connections to Redfish BMCs instead of the network: through a jump host, or to one in memory.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	Log  *slog.Logger // nil is slog.Default
}

// Pool holds one connection to each BMC, shared by every caller. Safe for concurrent use; Close it to log out.
type Pool struct {
	cfg    Config
	shared Shared
	log    *slog.Logger

	mu     sync.Mutex
	conns  map[string]*conn
	ipmi   map[string]chan struct{} // by address: one IPMI session at a time
	closed bool
}

// NewPool makes an empty pool.
func NewPool(cfg Config) *Pool {
	cfg.Timing = cfg.Timing.withDefaults()
	if cfg.Rate <= 0 {
		cfg.Rate, cfg.Burst = 50, 100
	}
	if cfg.Burst <= 0 {
		cfg.Burst = max(1, int(cfg.Rate))
	}
	p := &Pool{cfg: cfg, shared: cfg.Shared, log: cfg.Log, conns: map[string]*conn{}, ipmi: map[string]chan struct{}{}}
	if p.shared == nil {
		p.shared = NewShared()
	}
	if p.log == nil {
		p.log = slog.Default()
	}
	return p
}

// errPoolClosed is a caller's mistake.
var errPoolClosed = errors.New("bmc pool is closed")

// Client returns a client for a BMC. It sends nothing: the first verb connects. Clients of one address share session,
// limiter and breakers; the latest endpoint's credential and pin are the ones used.
func (p *Pool) Client(ep Endpoint) (*Client, error) {
	if ep.Credential == nil {
		return nil, fmt.Errorf("bmc %s: no credential", ep.Address)
	}
	if ep.Protocol == IPMI {
		return nil, fmt.Errorf("bmc %s: protocol ipmi has its own client, see Pool.IPMI", ep.Address)
	}
	base, err := parseAddress(ep.Address)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errPoolClosed
	}
	address := base.String()
	c := p.conns[address]
	if c == nil {
		c = newConn(p, base)
		p.conns[address] = c
	}
	c.setEndpoint(ep)
	return &Client{conn: c, systemID: ep.SystemID, serial: ep.Serial}, nil
}

// Forget logs out of a BMC and drops its connection: for a server that was retired or got another address.
func (p *Pool) Forget(ctx context.Context, address string) error {
	base, err := parseAddress(address)
	if err != nil {
		return err
	}
	p.mu.Lock()
	c := p.conns[base.String()]
	delete(p.conns, base.String())
	p.mu.Unlock()
	if c == nil {
		return nil
	}
	return c.close(ctx)
}

// AllowLogin forgets refused logins of a BMC: the operator's "I mended it, try again".
func (p *Pool) AllowLogin(ctx context.Context, address string) error {
	base, err := parseAddress(address)
	if err != nil {
		return err
	}
	return p.shared.Update(ctx, base.String(), func(s *State) error { s.Refused = nil; return nil })
}

// TrustKey accepts another TLS key at a BMC: the operator's acknowledgement of a change. An empty pin trusts the next seen.
func (p *Pool) TrustKey(ctx context.Context, address, pin string) error {
	base, err := parseAddress(address)
	if err != nil {
		return err
	}
	err = p.shared.Update(ctx, base.String(), func(s *State) error { s.Pin, s.Offered = pin, ""; return nil })
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.conns[base.String()]; c != nil && err == nil {
		c.setPin(pin)
	}
	return err
}

// Close logs out of every BMC, a few at a time, within ctx. What can't be logged out is in the error; its session ends
// by the BMC's own timeout.
func (p *Pool) Close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	conns := p.conns
	p.conns = map[string]*conn{}
	p.mu.Unlock()

	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
		slot = make(chan struct{}, 64)
	)
	for _, c := range conns {
		slot <- struct{}{}
		wg.Go(func() {
			defer func() { <-slot }()
			if err := c.close(ctx); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Dial connects to one BMC with a pool of its own and proves that the credential works. Close the client to log out.
func Dial(ctx context.Context, ep Endpoint, opts ...Option) (*Client, error) {
	var cfg Config
	for _, o := range opts {
		o(&cfg)
	}
	p := NewPool(cfg)
	c, err := p.Client(ep)
	if err != nil {
		return nil, err
	}
	c.own = p
	if err := c.Login(ctx); err != nil {
		return nil, errors.Join(err, p.Close(context.WithoutCancel(ctx)))
	}
	return c, nil
}

// Option sets part of the Config of Dial.
type Option func(*Config)

// WithTiming sets how long things may take.
func WithTiming(t Timing) Option { return func(c *Config) { c.Timing = t } }

// WithRate sets how many requests a second the BMC gets, and how many at once.
func WithRate(perSecond float64, burst int) Option {
	return func(c *Config) { c.Rate, c.Burst = perSecond, burst }
}

// WithLog sets where the client logs.
func WithLog(l *slog.Logger) Option { return func(c *Config) { c.Log = l } }

// Client is one caller's view of a BMC. Safe for concurrent use.
type Client struct {
	conn     *conn
	own      *Pool // set by Dial
	systemID string
	serial   string
}

// Address is the BMC's base URL.
func (c *Client) Address() string { return c.conn.address }

// Login proves that the BMC answers and lets us in.
func (c *Client) Login(ctx context.Context) (err error) {
	defer c.conn.named("log in to", &err)
	if _, err := c.conn.root(ctx); err != nil {
		return err
	}
	_, err = c.conn.session(ctx)
	return err
}

// Close logs out if the client came from Dial. A Pool's client needs no Close.
func (c *Client) Close(ctx context.Context) error {
	if c.own == nil {
		return nil
	}
	return c.own.Close(ctx)
}

func (p *Pool) limiter() *rate.Limiter { return rate.NewLimiter(rate.Limit(p.cfg.Rate), p.cfg.Burst) }

// now is the wall clock. What takes minutes is tested at its full length in a bubble of testing/synctest, see Config.Dial.
func now() time.Time { return time.Now() }
