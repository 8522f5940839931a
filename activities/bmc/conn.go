package bmc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stmcginnis/gofish/schemas"
	"golang.org/x/time/rate"
)

const (
	// maxBody bounds one resource. The largest captured is 1.3 MB (Dell's attribute registry).
	maxBody = 16 << 20
	// busyTries is how often a 503 is waited out.
	busyTries = 4
)

// conn is the one connection to a BMC. Lock order: auth, then mu.
//
// auth is a slot, not a mutex, so that waiting for a login ends with the caller's context. Two lanes bound what the BMC
// gets at once: verbs don't queue behind a firmware inventory that takes minutes.
type conn struct {
	pool    *Pool
	base    *url.URL
	address string
	http    *http.Client
	limit   *rate.Limiter
	reach   breaker
	lanes   [2]chan struct{} // verbs, bulk
	auth    chan struct{}

	mu         sync.Mutex
	credential Credential
	pin        string
	told       bool // the endpoint named the key: no other will do
	token      Secret
	sessionURI string
	basic      *Login // SessionService is absent: Basic, one request at a time
	service    *resource
	hosts      map[string]*host // by the SystemID or serial asked for
	plans      map[string]*plan // where power and cooling are shown, likewise
}

type lane int

const (
	verbs lane = iota
	bulk
)

type laneKey struct{}

// inBulk marks requests of a long read.
func inBulk(ctx context.Context) context.Context { return context.WithValue(ctx, laneKey{}, bulk) }

func laneOf(ctx context.Context) lane {
	if l, ok := ctx.Value(laneKey{}).(lane); ok {
		return l
	}
	return verbs
}

func newConn(p *Pool, base *url.URL) *conn {
	c := &conn{
		pool: p, base: base, address: base.String(), limit: p.limiter(),
		lanes: [2]chan struct{}{make(chan struct{}, 2), make(chan struct{}, 1)}, auth: make(chan struct{}, 1),
		hosts: map[string]*host{}, plans: map[string]*plan{},
	}
	t, dial := p.cfg.Timing, p.cfg.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: t.Dial}).DialContext
	}
	c.http = &http.Client{
		Transport: &http.Transport{
			Proxy:               nil, // a BMC network is not behind a web proxy
			DialContext:         dial,
			TLSHandshakeTimeout: t.Dial,
			TLSClientConfig:     c.tlsConfig(),
			DisableCompression:  true, // gzip turns entity tags weak on some (sushy), HPE answers 406 to others
			MaxConnsPerHost:     4,    // the lanes' three and an event stream
			IdleConnTimeout:     20 * time.Second,
			ForceAttemptHTTP2:   false,
		},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) > 3 || via[0].Method != http.MethodGet || r.URL.Host != via[0].URL.Host || r.URL.Scheme != via[0].URL.Scheme {
				return http.ErrUseLastResponse // the token stays with the BMC that gave it
			}
			return nil
		},
	}
	return c
}

func (c *conn) setEndpoint(ep Endpoint) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.credential = ep.Credential
	if ep.TLSPin != "" {
		c.pin, c.told = strings.ToLower(ep.TLSPin), true
	}
}

// named gives an error of this package the verb that met it.
func (c *conn) named(op string, err *error) {
	var e *Error
	if errors.As(*err, &e) {
		if e.Op == "" {
			e.Op = op
		}
		return
	}
	if *err != nil {
		*err = fmt.Errorf("%s %s: %w", op, c.address, *err)
	}
}

// answer is one response with its body read.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// exchange sends one request as it is and reads the answer, within the lane's time.
func (c *conn) exchange(ctx context.Context, method, uri string, header http.Header, body []byte) (*answer, error) {
	u, err := c.base.Parse(uri)
	if err != nil || u.Host != c.base.Host || u.Scheme != c.base.Scheme {
		return nil, &Error{Kind: ErrBody, Address: c.address, URI: uri, Detail: "the link leads away from this bmc"}
	}
	if err := c.reach.allow(now()); err != nil {
		return nil, &Error{Kind: ErrUnreachable, Address: c.address, URI: uri, Err: err}
	}
	if err := c.limit.Wait(ctx); err != nil {
		return nil, fmt.Errorf("%s%s: waiting for this bmc's request rate: %w", c.address, uri, err)
	}
	limit := c.pool.cfg.Timing.Call
	if laneOf(ctx) == bulk {
		limit = c.pool.cfg.Timing.BulkCall
	}
	call, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(call, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, &Error{Kind: ErrBody, Address: c.address, URI: uri, Err: err}
	}
	if req.Header = header.Clone(); req.Header == nil {
		req.Header = http.Header{}
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("User-Agent", "gpupool")
	req.Header.Set("OData-Version", "4.0")
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, uri, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return nil, c.unreachable(ctx, uri, fmt.Errorf("body cut off after %d bytes: %w", len(b), err))
	}
	c.reached(nil)
	if len(b) > maxBody {
		return nil, &Error{Kind: ErrBody, Address: c.address, URI: uri, Status: resp.StatusCode, Detail: "the body is larger than 16 MiB"}
	}
	return &answer{status: resp.StatusCode, header: resp.Header, body: b}, nil
}

// unreachable judges a transport's failure: the caller's own cancel is not the BMC's fault.
func (c *conn) unreachable(ctx context.Context, uri string, err error) error {
	var e *Error
	if errors.As(err, &e) {
		return e // a changed TLS key, seen inside the handshake
	}
	if ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s%s: %w", c.address, uri, context.Cause(ctx))
	}
	c.reached(err)
	return &Error{Kind: ErrUnreachable, Address: c.address, URI: uri, Err: unwrapURL(err)}
}

// unwrapURL drops net/http's repetition of method and URL.
func unwrapURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// do sends an authenticated request: once more after a session that ended, again after "not now", once more for a GET
// whose idle connection the BMC had dropped (HPE).
func (c *conn) do(ctx context.Context, method, uri string, header http.Header, body []byte) (*answer, error) {
	slot := c.lanes[laneOf(ctx)]
	select {
	case slot <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("%s%s: waiting for this bmc's other requests: %w", c.address, uri, context.Cause(ctx))
	}
	defer func() { <-slot }()

	relogged, redialled := 0, false
	for busy := 0; ; {
		a, token, err := c.authenticated(ctx, method, uri, header, body)
		if err != nil {
			if method == http.MethodGet && !redialled && ctx.Err() == nil &&
				(errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) {
				redialled = true
				continue
			}
			return nil, err
		}
		switch {
		case a.status == http.StatusUnauthorized && token != "" && relogged < 2:
			relogged++ // twice: the session taken up may be another process's, and dead too
			if err := c.dropSession(ctx, token); err != nil {
				return nil, err
			}
		case a.status == http.StatusServiceUnavailable && busy < busyTries && retryAfter(a.header) > 0:
			busy++
			wait := min(retryAfter(a.header), c.pool.cfg.Timing.Busy)
			if err := sleep(ctx, wait); err != nil {
				return nil, err
			}
		default:
			return a, nil
		}
	}
}

// authenticated sends one request under the session, or under Basic where there are none. token is the session's.
func (c *conn) authenticated(ctx context.Context, method, uri string, header http.Header, body []byte) (a *answer, token Secret, err error) {
	token, err = c.session(ctx)
	if err != nil {
		return nil, "", err
	}
	h := header.Clone()
	if h == nil {
		h = http.Header{}
	}
	if token != "" {
		h.Set("X-Auth-Token", string(token))
		a, err = c.exchange(ctx, method, uri, h, body)
		return a, token, err
	}
	a, err = c.basicExchange(ctx, method, uri, h, body)
	return a, "", err
}

// sleep waits, or ends with the context.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// retryAfter reads a Retry-After header (RFC 9110 section 10.2.3); 0 when there is none.
func retryAfter(h http.Header) time.Duration {
	v := h.Get("Retry-After")
	if s, err := strconv.Atoi(v); err == nil && s >= 0 {
		return max(time.Duration(s)*time.Second, 100*time.Millisecond)
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(time.Until(t), 100*time.Millisecond)
	}
	return 0
}

// Gofish is the BMC as gofish's schema packages see it, for reads that have no verb here. It goes through the same
// session, limiter and breakers.
func (c *Client) Gofish(ctx context.Context) schemas.Client { return &gofishClient{ctx, c.conn} }

// gofishClient implements schemas.Client: an answer that isn't 2xx is a *schemas.Error.
type gofishClient struct {
	ctx  context.Context
	conn *conn
}

func (g *gofishClient) send(method, uri string, payload any, header map[string]string) (*http.Response, error) {
	var body []byte
	if payload != nil {
		b, err := json.Marshal(payload)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", method, uri, err)
		}
		body = b
	}
	h := http.Header{}
	for k, v := range header {
		h.Set(k, v)
	}
	a, err := g.conn.do(g.ctx, method, uri, h, body)
	if err != nil {
		return nil, err
	}
	if a.status < 200 || a.status > 299 {
		return nil, asGofish(a)
	}
	return &http.Response{StatusCode: a.status, Header: a.header, Body: io.NopCloser(bytes.NewReader(a.body))}, nil
}

func (g *gofishClient) GetSettings() schemas.ClientSettings { return schemas.ClientSettings{} }
func (g *gofishClient) Get(u string) (*http.Response, error) {
	return g.send(http.MethodGet, u, nil, nil)
}
func (g *gofishClient) GetWithHeaders(u string, h map[string]string) (*http.Response, error) {
	return g.send(http.MethodGet, u, nil, h)
}
func (g *gofishClient) Post(u string, p any) (*http.Response, error) {
	return g.send(http.MethodPost, u, p, nil)
}
func (g *gofishClient) PostWithHeaders(u string, p any, h map[string]string) (*http.Response, error) {
	return g.send(http.MethodPost, u, p, h)
}
func (g *gofishClient) Patch(u string, p any) (*http.Response, error) {
	return g.send(http.MethodPatch, u, p, nil)
}
func (g *gofishClient) PatchWithHeaders(u string, p any, h map[string]string) (*http.Response, error) {
	return g.send(http.MethodPatch, u, p, h)
}
func (g *gofishClient) Put(u string, p any) (*http.Response, error) {
	return g.send(http.MethodPut, u, p, nil)
}
func (g *gofishClient) PutWithHeaders(u string, p any, h map[string]string) (*http.Response, error) {
	return g.send(http.MethodPut, u, p, h)
}
func (g *gofishClient) Delete(u string) (*http.Response, error) {
	return g.send(http.MethodDelete, u, nil, nil)
}
func (g *gofishClient) DeleteWithHeaders(u string, h map[string]string) (*http.Response, error) {
	return g.send(http.MethodDelete, u, nil, h)
}

// errMultipart: firmware upload has no verb here.
var errMultipart = errors.New("multipart uploads are not sent by this client")

func (g *gofishClient) PostMultipart(string, map[string]io.Reader) (*http.Response, error) {
	return nil, errMultipart
}
func (g *gofishClient) PostMultipartWithHeaders(string, map[string]io.Reader, map[string]string) (*http.Response, error) {
	return nil, errMultipart
}
