package auth

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"gpupool/schema"
	"gpupool/schema/secret"
	"gpupool/schema/store"
)

// Figures of the authenticator.
const (
	CacheFor    = 2 * time.Second // how long another process's revocation may go unseen
	SessionFor  = 12 * time.Hour
	CookieName  = "gpupool_session"
	maxEntries  = 10_000 // of each map; the oldest go
	failBurst   = 20     // wrong credentials in a row from one address
	failsPerSec = 1
	AtOnce      = 1000 // reads of one token in flight, streams and long-polls among them
)

// Config of an Authenticator.
type Config struct {
	Tokens func(ctx context.Context, hash string) (schema.Token, error) // store.TokenByHash
	Ring   *secret.Ring                                                 // seals the console's cookie
	// Rate and Burst bound the requests a second of one token; 0 = no bound.
	Rate, Burst int
	Clock       func() time.Time // nil = time.Now
	Secure      bool             // the cookie goes over HTTPS only
}

// Authenticator turns a request's credential into an Identity. Safe for concurrent use; mu guards all maps.
type Authenticator struct {
	c  Config
	mu sync.Mutex
	// known is by the secret's hash: a good token, until it must be looked up again.
	known map[string]entry
	pace  map[string]*rate.Limiter // by token id
	fails map[string]*rate.Limiter // by address
	// flying is how many reads of each token, by its id, are being answered.
	flying map[string]int
}

type entry struct {
	id    Identity
	until time.Time
}

// New makes an Authenticator.
func New(c Config) *Authenticator {
	if c.Clock == nil {
		c.Clock = time.Now
	}
	return &Authenticator{c: c, known: map[string]entry{}, pace: map[string]*rate.Limiter{}, fails: map[string]*rate.Limiter{}, flying: map[string]int{}}
}

// Authenticate reads the request's bearer token or, where there is none, the console's cookie. address is the caller's.
func (a *Authenticator) Authenticate(r *http.Request, address string) (Identity, error) {
	if h := r.Header.Get("Authorization"); h != "" {
		token, ok := bearer(h)
		if !ok {
			return Identity{}, a.Failed(address, "authorization is not of the form \"Bearer gpt_...\"")
		}
		return a.Token(r.Context(), token, address)
	}
	if c, err := r.Cookie(CookieName); err == nil {
		hash, ok := a.open(c.Value)
		if !ok {
			return Identity{}, a.Failed(address, "the session has ended")
		}
		id, err := a.byHash(r.Context(), hash, address)
		id.Session = true
		return id, err
	}
	return Identity{}, &schema.Error{Code: schema.CodeUnauthenticated, Message: "no credential was sent", Hint: "send an API token: Authorization: Bearer gpt_..."}
}

func bearer(h string) (string, bool) {
	scheme, token, ok := strings.Cut(h, " ")
	return strings.TrimSpace(token), ok && strings.EqualFold(scheme, "Bearer")
}

// Token is who holds the secret.
func (a *Authenticator) Token(ctx context.Context, secret, address string) (Identity, error) {
	if !store.LooksLikeToken(secret) {
		return Identity{}, a.Failed(address, "that is not an API token of this pool")
	}
	return a.byHash(ctx, store.HashToken(secret), address)
}

// byHash compares by looking up the hash: an index lookup on SHA-256 of a 256-bit secret tells a guesser nothing by its time.
func (a *Authenticator) byHash(ctx context.Context, hash, address string) (Identity, error) {
	now := a.c.Clock()
	a.mu.Lock()
	e, ok := a.known[hash]
	a.mu.Unlock()
	if !ok || now.After(e.until) {
		if !ok && a.exhausted(address) {
			return Identity{}, tooMany("too many wrong credentials from this address", "wait a minute")
		}
		t, err := a.c.Tokens(ctx, hash)
		switch {
		case schema.Is(err, schema.CodeNotFound):
			return Identity{}, a.Failed(address, "the credential is not known here")
		case err != nil:
			return Identity{}, err
		case t.RevokedAt != 0:
			a.forget(hash)
			return Identity{}, a.Failed(address, "the token was revoked")
		}
		e = entry{id: Identity{Token: t.ID, Name: t.Name, Role: t.Role, Tenant: t.Tenant, Project: t.Project, ExpiresAt: t.ExpiresAt}, until: now.Add(CacheFor)}
		a.mu.Lock()
		room(a.known, func(e entry) bool { return now.After(e.until) })
		a.known[hash] = e
		a.mu.Unlock()
	}
	if e.id.ExpiresAt != 0 && e.id.ExpiresAt <= schema.At(now) {
		return Identity{}, a.Failed(address, "the token has expired")
	}
	if a.c.Rate > 0 && !a.limiter(e.id.Token).AllowN(now, 1) {
		return Identity{}, tooMany("too many requests with this token", "send fewer, or wait with ?wait= instead of asking again")
	}
	return e.id, nil
}

// Forget drops a token, by its id, from memory: it was revoked here.
func (a *Authenticator) Forget(tokenID string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for hash, e := range a.known {
		if e.id.Token == tokenID {
			delete(a.known, hash)
		}
	}
}

// Enter counts a read of a token, by its id, until leave is called. It refuses one more than AtOnce: what a token's callers
// keep open must not keep the others out.
func (a *Authenticator) Enter(tokenID string) (leave func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.flying[tokenID] >= AtOnce {
		return nil, tooMany(fmt.Sprintf("%d reads with this token are open", AtOnce), "end some: one stream of /v1/events tells of all jobs")
	}
	a.flying[tokenID]++
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.flying[tokenID]--; a.flying[tokenID] == 0 {
			delete(a.flying, tokenID)
		}
	}, nil
}

func (a *Authenticator) forget(hash string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.known, hash)
}

func (a *Authenticator) limiter(token string) *rate.Limiter {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.pace[token]
	if l == nil {
		room(a.pace, idle)
		l = rate.NewLimiter(rate.Limit(a.c.Rate), max(a.c.Burst, a.c.Rate))
		a.pace[token] = l
	}
	return l
}

// Failed counts a wrong credential of address and is the error to answer.
func (a *Authenticator) Failed(address, what string) error {
	a.mu.Lock()
	l := a.fails[address]
	if l == nil {
		room(a.fails, idle)
		l = rate.NewLimiter(failsPerSec, failBurst)
		a.fails[address] = l
	}
	a.mu.Unlock()
	if !l.AllowN(a.c.Clock(), 1) {
		return tooMany("too many wrong credentials from this address", "wait a minute")
	}
	return &schema.Error{Code: schema.CodeUnauthenticated, Message: what, Hint: "a token begins with gpt_; an operator or your tenant's admin makes one: gpupool token create. Requests carry it as Authorization: Bearer gpt_..."}
}

// exhausted reports whether address has sent so many wrong credentials that an unknown one is not even looked up. Tokens
// that were good before go on working, so that one bad client behind an address does not lock the others out.
func (a *Authenticator) exhausted(address string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.fails[address]
	return l != nil && l.TokensAt(a.c.Clock()) < 1
}

func tooMany(what, hint string) error {
	return &schema.Error{Code: schema.CodeLimited, Message: what, Hint: hint}
}

func idle(l *rate.Limiter) bool { return l.Tokens() >= float64(l.Burst()) }

// room keeps m below maxEntries: what is stale goes, and where nothing is, any.
func room[V any](m map[string]V, stale func(V) bool) {
	if len(m) < maxEntries {
		return
	}
	for k, v := range m {
		if stale(v) {
			delete(m, k)
		}
	}
	for k := range m {
		if len(m) < maxEntries {
			return
		}
		delete(m, k)
	}
}

// session is what the cookie holds, sealed: it works on every replica that has the key file, and ends with the token.
type session struct {
	Hash  string         `json:"h"`
	Until schema.Instant `json:"u"`
}

const sessionContext = "console session"

// Login makes the console's cookie for a token's secret.
func (a *Authenticator) Login(ctx context.Context, secret, address string) (*http.Cookie, Identity, error) {
	id, err := a.Token(ctx, strings.TrimSpace(secret), address)
	if err != nil {
		return nil, Identity{}, err
	}
	until := a.c.Clock().Add(SessionFor)
	plain, err := json.Marshal(session{Hash: store.HashToken(strings.TrimSpace(secret)), Until: schema.At(until)})
	if err != nil {
		return nil, Identity{}, err
	}
	keyID, sealed, err := a.c.Ring.Seal(plain, sessionContext)
	if err != nil {
		return nil, Identity{}, err
	}
	c := a.cookie(base64.RawURLEncoding.EncodeToString([]byte(keyID)) + "." + strings.TrimRight(strings.NewReplacer("+", "-", "/", "_").Replace(sealed), "="))
	c.Expires, c.MaxAge = until, int(SessionFor.Seconds())
	return c, id, nil
}

// Logout is the cookie that removes the console's.
func (a *Authenticator) Logout() *http.Cookie {
	c := a.cookie("")
	c.MaxAge = -1
	return c
}

func (a *Authenticator) cookie(value string) *http.Cookie {
	return &http.Cookie{Name: CookieName, Value: value, Path: "/", HttpOnly: true, Secure: a.c.Secure, SameSite: http.SameSiteStrictMode}
}

// open reads the cookie back to the token's hash.
func (a *Authenticator) open(value string) (hash string, ok bool) {
	id, sealed, ok := strings.Cut(value, ".")
	keyID, err := base64.RawURLEncoding.DecodeString(id)
	raw, err2 := base64.RawURLEncoding.DecodeString(sealed)
	if !ok || err != nil || err2 != nil {
		return "", false
	}
	plain, err := a.c.Ring.Open(string(keyID), base64.StdEncoding.EncodeToString(raw), sessionContext)
	if err != nil {
		return "", false
	}
	var s session
	if json.Unmarshal(plain, &s) != nil || s.Until <= schema.At(a.c.Clock()) {
		return "", false
	}
	return s.Hash, true
}
