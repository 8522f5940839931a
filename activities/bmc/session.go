package bmc

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/stmcginnis/gofish/schemas"
)

const defaultSessions = "/redfish/v1/SessionService/Sessions"

// lock takes the auth slot, or ends with the context.
func (c *conn) lock(ctx context.Context) error {
	select {
	case c.auth <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: waiting for another login: %w", c.address, context.Cause(ctx))
	}
}

func (c *conn) unlock() { <-c.auth }

// root reads the service root, which needs no login (DSP0266 13.3.1), once.
func (c *conn) root(ctx context.Context) (*resource, error) {
	c.mu.Lock()
	r := c.service
	c.mu.Unlock()
	if r != nil {
		return r, nil
	}
	var a *answer
	for busy := 0; ; busy++ {
		var err error
		if a, err = c.exchange(ctx, http.MethodGet, "/redfish/v1/", http.Header{}, nil); err != nil {
			return nil, err
		}
		wait := min(retryAfter(a.header), c.pool.cfg.Timing.Busy)
		if a.status != http.StatusServiceUnavailable || busy == busyTries || wait == 0 {
			break
		}
		if err := sleep(ctx, wait); err != nil { // it is starting
			return nil, err
		}
	}
	if a.status != http.StatusOK {
		e := c.refusal("", "/redfish/v1/", asGofish(a))
		if errors.Is(e.Kind, ErrNotFound) {
			e.Hint = "no Redfish service at this address; is it the BMC's, and is Redfish switched on?"
		}
		return nil, e
	}
	r, err := c.decode("/redfish/v1/", a)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.service = r
	c.mu.Unlock()
	return r, nil
}

// maxRefusal bounds what is read of a refusal: its message, and not the web page that some send.
const maxRefusal = 64 << 10

func asGofish(a *answer) *schemas.Error {
	err := schemas.ConstructError(a.status, a.body[:min(len(a.body), maxRefusal)])
	var e *schemas.Error
	if errors.As(err, &e) {
		return e
	}
	return &schemas.Error{HTTPReturnedStatusCode: a.status, Message: err.Error()}
}

// session returns the token of the shared session, opening one if there is none. "" means Basic.
func (c *conn) session(ctx context.Context) (Secret, error) {
	c.mu.Lock()
	token, basic := c.token, c.basic
	c.mu.Unlock()
	if token != "" || basic != nil {
		return token, nil
	}
	root, err := c.root(ctx)
	if err != nil {
		return "", err
	}
	if err := c.lock(ctx); err != nil {
		return "", err
	}
	defer c.unlock()
	c.mu.Lock()
	token, basic = c.token, c.basic
	c.mu.Unlock()
	if token != "" || basic != nil {
		return token, nil // another caller logged in meanwhile
	}
	for {
		// Another process may have a session, or be about to.
		err = c.pool.shared.Update(ctx, c.address, func(s *State) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.token, c.sessionURI = s.Token, s.SessionURI
			token = s.Token
			return nil
		})
		if err != nil || token != "" {
			return token, err
		}
		if token, err = c.login(ctx, root); !errors.Is(err, errTrying) {
			return token, err
		}
		if err := sleep(ctx, min(c.pool.cfg.Timing.Poll, 100*time.Millisecond)); err != nil {
			return "", err
		}
	}
}

// login opens a session with the credential's secret, then with its pending one, as far as the budget goes. The caller
// holds the auth slot.
func (c *conn) login(ctx context.Context, root *resource) (Secret, error) {
	c.mu.Lock()
	credential := c.credential
	c.mu.Unlock()
	l, err := credential(ctx)
	if err != nil {
		return "", fmt.Errorf("credential of bmc %s: %w", c.address, err)
	}
	var refused error
	for _, try := range c.order(ctx, l) {
		err := c.loginWith(ctx, root, try)
		switch {
		case err == nil:
			return c.tokenNow(), nil
		case !errors.Is(err, ErrCredential):
			return "", err
		case refused == nil:
			refused = err
		}
	}
	return "", refused
}

// order is in which order the secrets of a login are tried. The pending one comes first where a try of it was cut off: then it
// was being proven, so the BMC has most likely taken it, and the budget has no room for the old one before it.
func (c *conn) order(ctx context.Context, l Login) []Login {
	if l.Pending == nil {
		return []Login{l}
	}
	cutOff := false
	// Without the shared state no login is permitted either: that error is the login's.
	_ = c.pool.shared.Update(ctx, c.address, func(s *State) error { cutOff = s.cutOff(l.Pending.revision()); return nil })
	if cutOff {
		return []Login{*l.Pending, l}
	}
	return []Login{l, *l.Pending}
}

func (c *conn) tokenNow() Secret {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.token
}

// errNoSessions says that the BMC has no session service: Basic is the only way in.
var errNoSessions = errors.New("no session service")

// loginWith tries one secret, within the budget, and takes up what it opens.
func (c *conn) loginWith(ctx context.Context, root *resource, l Login) error {
	token, uri, err := c.try(ctx, root, l, false)
	switch {
	case err != nil:
		return err
	case token == "":
		c.mu.Lock()
		c.basic = &l
		c.mu.Unlock()
		return c.settle(ctx, func(s *State) { s.proven() })
	}
	return c.loggedIn(ctx, l, token, uri)
}

// try logs in with one secret, within the budget. An empty token means that Basic worked. beside is a login that is wanted
// though the shared session is open.
func (c *conn) try(ctx context.Context, root *resource, l Login, beside bool) (token Secret, uri string, err error) {
	rev := l.revision()
	if err := c.permit(ctx, rev, beside); err != nil {
		return "", "", err
	}
	token, uri, err = c.openSession(ctx, root, l)
	if errors.Is(err, errNoSessions) {
		token, uri, err = "", "", c.proveBasic(ctx, l)
	}
	switch {
	case err == nil:
		return token, uri, nil
	case isKind(err, ErrCredential):
		c.pool.log.WarnContext(ctx, "bmc refused the login", "bmc", c.address, "user", l.User)
		return "", "", errors.Join(err, c.settle(ctx, (*State).over)) // stays counted
	}
	// No answer, or "not now", is no refusal. If it was judged after all, the next try is counted anew: at worst one login
	// more than the budget in a case where the BMC died with the password in its mouth.
	return "", "", errors.Join(err, c.settle(ctx, func(s *State) { s.takeBack(rev) }))
}

// openSession opens a session.
func (c *conn) openSession(ctx context.Context, root *resource, l Login) (Secret, string, error) {
	uri := orDefault(root.link("Links", "Sessions"), defaultSessions)
	body, err := marshalSecret(map[string]any{"UserName": l.User, "Password": string(l.Password)})
	if err != nil {
		return "", "", err
	}
	a, err := c.exchange(ctx, http.MethodPost, uri, http.Header{}, body)
	if err != nil {
		return "", "", err
	}
	switch {
	case a.status >= 200 && a.status < 300:
		token := Secret(a.header.Get("X-Auth-Token"))
		if token == "" {
			return "", "", &Error{Kind: ErrBody, Address: c.address, URI: uri, Status: a.status, Detail: "a session without X-Auth-Token"}
		}
		return token, sessionPath(a), nil
	case a.status == http.StatusNotFound || a.status == http.StatusMethodNotAllowed || a.status == http.StatusNotImplemented:
		return "", "", errNoSessions
	}
	e := c.refusal("", uri, asGofish(a))
	switch {
	case has(strings.Split(e.MessageID, ","), "SessionLimitExceeded"):
		e.Kind, e.Hint = ErrBusy, "all sessions of the bmc are taken; they end by its own timeout, or log others out"
	case errors.Is(e.Kind, ErrRefused) && a.status == http.StatusForbidden, errors.Is(e.Kind, ErrCredential):
		e.Kind, e.Hint = ErrCredential, hintPassword
	}
	return "", "", e
}

// hintPassword is what an operator can do about a refused login.
const hintPassword = "put the right password; it is taken up without a restart"

// proveBasic proves a secret by Basic, for BMCs without sessions.
func (c *conn) proveBasic(ctx context.Context, l Login) error {
	const uri = "/redfish/v1/Systems"
	a, err := c.exchange(ctx, http.MethodGet, uri, basicHeader(http.Header{}, l), nil)
	if err != nil {
		return err
	}
	if a.status != http.StatusUnauthorized && a.status != http.StatusForbidden {
		return nil
	}
	e := c.refusal("", uri, asGofish(a))
	if errors.Is(e.Kind, ErrRefused) || errors.Is(e.Kind, ErrCredential) {
		e.Kind, e.Hint = ErrCredential, hintPassword
	}
	return e
}

// permit takes one login from the budget. Where another process opened the shared session since it was looked for there is
// nothing to log in for: that is errTrying too, and the next look finds it.
func (c *conn) permit(ctx context.Context, rev string, beside bool) error {
	err := c.pool.shared.Update(ctx, c.address, func(s *State) error {
		if s.Token != "" && !beside {
			return errTrying
		}
		return s.permit(rev, now(), c.pool.cfg.Timing.Call)
	})
	var open *errBreaker
	if errors.As(err, &open) {
		return &Error{Kind: ErrCredential, Address: c.address, Err: open, Hint: hintPassword}
	}
	return err
}

// settle writes the shared state even if the caller has gone.
func (c *conn) settle(ctx context.Context, change func(*State)) error {
	return c.pool.shared.Update(context.WithoutCancel(ctx), c.address, func(s *State) error { change(s); return nil })
}

// loggedIn takes up a session that was opened.
func (c *conn) loggedIn(ctx context.Context, l Login, token Secret, uri string) error {
	var theirs Secret
	err := c.settle(ctx, func(s *State) {
		s.proven()
		if theirs = s.Token; theirs != "" {
			return // another process was faster: one session is enough
		}
		s.Token, s.SessionURI, s.Revision = token, uri, l.revision()
	})
	if err != nil || theirs != "" {
		c.logout(context.WithoutCancel(ctx), token, uri)
		token, uri = theirs, ""
	}
	c.mu.Lock()
	c.token, c.sessionURI = token, uri
	c.mu.Unlock()
	if err == nil && c.pool.cfg.OnLogin != nil {
		c.pool.cfg.OnLogin(c.address, l)
	}
	return err
}

// sessionPath is where a session can be deleted: Location, which may be absolute, or the body's @odata.id.
func sessionPath(a *answer) string {
	if u, err := url.Parse(a.header.Get("Location")); err == nil && u.Path != "" {
		return u.RequestURI()
	}
	var d struct {
		ID string `json:"@odata.id"`
	}
	if json.Unmarshal(a.body, &d) != nil {
		return ""
	}
	return d.ID
}

// dropSession forgets a session that the BMC no longer knows.
func (c *conn) dropSession(ctx context.Context, dead Secret) error {
	c.mu.Lock()
	if c.token == dead {
		c.token, c.sessionURI = "", ""
	}
	c.mu.Unlock()
	return c.pool.shared.Update(ctx, c.address, func(s *State) error {
		if s.Token == dead {
			s.Token, s.SessionURI = "", ""
		}
		return nil
	})
}

// logout deletes a session. That it may be gone already is no error.
func (c *conn) logout(ctx context.Context, token Secret, uri string) {
	if uri == "" || token == "" {
		return
	}
	h := http.Header{"X-Auth-Token": {string(token)}}
	if _, err := c.exchange(ctx, http.MethodDelete, uri, h, nil); err != nil {
		c.pool.log.DebugContext(ctx, "bmc session not closed", "bmc", c.address, "err", err)
	}
}

// close logs out if this pool's is the last word on the session, and drops idle connections.
func (c *conn) close(ctx context.Context) error {
	c.mu.Lock()
	token, uri := c.token, c.sessionURI
	c.token, c.sessionURI, c.basic = "", "", nil
	c.mu.Unlock()
	defer c.http.CloseIdleConnections()
	if token == "" {
		return nil
	}
	if err := c.dropSession(ctx, token); err != nil {
		return err
	}
	c.logout(ctx, token, uri)
	return nil
}

// basicExchange sends one request with the password. Each is a login of its own to the BMC's lockout, so there is one at
// a time, and the first refusal ends Basic until the secret has been judged again.
func (c *conn) basicExchange(ctx context.Context, method, uri string, h http.Header, body []byte) (*answer, error) {
	if err := c.lock(ctx); err != nil {
		return nil, err
	}
	defer c.unlock()
	c.mu.Lock()
	l := c.basic
	c.mu.Unlock()
	if l == nil {
		return nil, &Error{Kind: ErrCredential, Address: c.address, URI: uri, Detail: "refused to another request a moment ago"}
	}
	a, err := c.exchange(ctx, method, uri, basicHeader(h, *l), body)
	if err != nil || a.status != http.StatusUnauthorized {
		return a, err
	}
	c.mu.Lock()
	c.basic = nil
	c.mu.Unlock()
	rev := l.revision()
	return a, c.settle(ctx, func(s *State) {
		if s.Refused == nil {
			s.Refused = map[string]Refusal{}
		}
		s.Refused[rev] = Refusal{Count: s.Refused[rev].Count + 1, Last: now()}
	})
}

func basicHeader(h http.Header, l Login) http.Header {
	h.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(l.User+":"+string(l.Password))))
	return h
}

// TryLogin proves a secret by logging in with it and out again, within the BMC's login budget. It leaves the shared
// session alone.
func (c *Client) TryLogin(ctx context.Context, l Login) (err error) {
	defer c.conn.named("try a login at", &err)
	root, err := c.conn.root(ctx)
	if err != nil {
		return err
	}
	if err := c.conn.lock(ctx); err != nil {
		return err
	}
	defer c.conn.unlock()
	for {
		token, uri, err := c.conn.try(ctx, root, l, true)
		if err == nil {
			err = c.conn.settle(ctx, (*State).proven) // before the logout: a kill in it shall not leave the try open
			c.conn.logout(context.WithoutCancel(ctx), token, uri)
			return err
		}
		if !errors.Is(err, errTrying) {
			return err
		}
		if err := sleep(ctx, min(c.conn.pool.cfg.Timing.Poll, 100*time.Millisecond)); err != nil {
			return err
		}
	}
}
