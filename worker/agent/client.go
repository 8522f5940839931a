package agent

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"gpupool/schema/agentproto"
)

// RefusedError is an answer that asking again won't change.
type RefusedError struct {
	What   string // what was asked
	Status int
	Reason string // the API's own words
}

func (e *RefusedError) Error() string {
	hint := "look at the server in the pool: was it enrolled again, retired, or installed by a later attempt?"
	if e.Status == http.StatusConflict {
		hint = "this install's token was used by another key: onboard the server again"
	}
	return fmt.Sprintf("the API refused to %s (%d): %s (hint: %s)", e.What, e.Status, e.Reason, hint)
}

// client speaks agentproto. It holds no state of its own besides its connections.
type client struct {
	http   *http.Client
	base   string
	server string
	key    ed25519.PrivateKey
	now    func() time.Time
	signed atomic.Int64 // the moment of the last signature, in ms
}

// NewHTTP is an HTTP client for the API, for so many agents that share it; ca is PEM, empty for the system's authorities.
func NewHTTP(ca string, agents int) (*http.Client, error) {
	tr := http.DefaultTransport.(*http.Transport).Clone()
	tr.MaxIdleConns, tr.MaxIdleConnsPerHost = 0, 3*max(agents, 1) // a poll, a report and a heartbeat each
	if ca != "" {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM([]byte(ca)) {
			return nil, errors.New("phone-home file: ca holds no certificate in PEM")
		}
		tr.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	}
	return &http.Client{Transport: tr}, nil
}

// callTimeout is how long the API may take over a call that it doesn't hold on purpose.
const callTimeout = 30 * time.Second

func (c *client) register(ctx context.Context, token string, r agentproto.Register) (agentproto.Registered, error) {
	var out agentproto.Registered
	body, err := json.Marshal(r)
	if err != nil {
		return out, err
	}
	return out, c.do(ctx, callTimeout, "register", http.MethodPost, agentproto.PathRegister, "Bearer "+token, body, &out)
}

func (c *client) heartbeat(ctx context.Context, h agentproto.Heartbeat) (agentproto.HeartbeatReply, error) {
	var out agentproto.HeartbeatReply
	return out, c.post(ctx, "take a heartbeat", agentproto.PathHeartbeat, h, &out)
}

func (c *client) report(ctx context.Context, r agentproto.Report) (agentproto.ReportReply, error) {
	var out agentproto.ReportReply
	return out, c.post(ctx, "take a report", agentproto.PathReport, r, &out)
}

// tasks waits up to wait for work. again asks also for what was given out before and has not ended: after a restart,
// or when an answer may have been lost.
func (c *client) tasks(ctx context.Context, wait time.Duration, again bool) ([]agentproto.Task, error) {
	path := agentproto.PathTasks + "?wait=" + wait.String()
	if again {
		path += "&again=true"
	}
	var out []agentproto.Task
	return out, c.do(ctx, wait+callTimeout, "give out tasks", http.MethodGet, path, c.sign(http.MethodGet, path, nil), nil, &out)
}

func (c *client) post(ctx context.Context, what, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	return c.do(ctx, callTimeout, what, http.MethodPost, path, c.sign(http.MethodPost, path, body), body, out)
}

// sign signs each request at a moment of its own: the API takes none twice.
func (c *client) sign(method, path string, body []byte) string {
	now := c.now().UnixMilli()
	for {
		last := c.signed.Load()
		at := max(now, last+1)
		if at > now+agentproto.MaxSkew.Milliseconds()/2 {
			at = now // the clock was set back
		}
		if c.signed.CompareAndSwap(last, at) {
			return agentproto.Sign(c.key, c.server, method, path, body, time.UnixMilli(at))
		}
	}
}

// maxAnswer bounds what is read of an answer: a poll may carry many tasks with large environments.
const maxAnswer = 64 << 20

func (c *client) do(ctx context.Context, timeout time.Duration, what, method, path, auth string, body []byte, out any) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", auth)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("ask the API to %s: %w", what, err)
	}
	switch resp.StatusCode {
	case http.StatusOK, http.StatusCreated, http.StatusAccepted:
	case http.StatusNoContent:
		return nil
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusConflict:
		return &RefusedError{What: what, Status: resp.StatusCode, Reason: problem(b)}
	default:
		return fmt.Errorf("ask the API to %s: it answered %s: %s", what, resp.Status, problem(b))
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("ask the API to %s: its answer could not be read: %w", what, err)
	}
	return nil
}

// problem is the detail of a problem+json answer (RFC 9457), or the beginning of whatever it is.
func problem(b []byte) string {
	var p struct{ Title, Detail string }
	if json.Unmarshal(b, &p) == nil && (p.Detail != "" || p.Title != "") {
		if p.Detail != "" {
			return p.Detail
		}
		return p.Title
	}
	s := strings.TrimSpace(string(b))
	if len(s) > 200 {
		s = s[:200] + "…"
	}
	if s == "" {
		s = "no reason was given"
	}
	return s
}

// backoff doubles from min to max; each wait is between half of it and all of it, so that servers that lost the API
// together don't come back together.
type backoff struct {
	min, max, next time.Duration
}

func (b *backoff) wait(ctx context.Context) error {
	if b.next == 0 {
		b.next = b.min
	}
	d := b.next/2 + rand.N(b.next/2+1)
	b.next = min(2*b.next, b.max)
	return pause(ctx, d)
}

func (b *backoff) reset() { b.next = 0 }

// after is wait, at its longest where the API refused: a server that was retired may ask on, but not often.
func (b *backoff) after(ctx context.Context, err error) error {
	var refused *RefusedError
	if errors.As(err, &refused) {
		b.next = b.max
	}
	return b.wait(ctx)
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
