package bmc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"
)

// The login budget. A refused secret is tried once more after a pause (some BMCs refuse good ones while they boot), then
// never again until it changes; and a BMC sees at most two refused logins in the window, whatever the secrets. The lowest
// lockout seen in captures is 3 tries in 30 s. A try whose process died before it could tell what came of it counts as
// one of those two; but it is no refusal: the next try follows at once, and two such tries hold a secret up for the window,
// not for ever.
const (
	maxRefusals   = 2
	refusalWindow = 10 * time.Minute
)

// Shared is what all processes of a site know together of one BMC: its session and its login budget. An implementation
// over a database makes them share both; it must keep Token as it keeps passwords.
type Shared interface {
	// Update lets change alter a BMC's state, atomically over every process. An error of change is returned, and then
	// nothing is written.
	Update(ctx context.Context, address string, change func(*State) error) error
}

// State is the shared state of one BMC. The zero value is a BMC never spoken to.
type State struct {
	Token      Secret // X-Auth-Token of the shared session, "" for none
	SessionURI string
	Revision   string // of the login that opened it
	Refused    map[string]Refusal
	Trying     string    // revision of the login that is under way in some process
	TryingTill time.Time // at most until then; zero for none
	Pin        string    // the TLS key trusted: on first use, or by an operator's word
	Offered    string    // another key, seen and refused: what an operator can acknowledge
	DownTill   time.Time // some process's breaker is open until then
	DownWhy    string
	Resets     map[string][]time.Time // by system: when its power was taken away within the last day
	Wishes     map[string]Wish        // of the last day, see As
}

// Refusal counts how often one secret was refused. It is counted up before the try and forgotten after a success, so
// that two processes, or one that dies in between, can't exceed the budget.
type Refusal struct {
	Count int
	Lost  int `json:",omitempty"` // of Count: those whose process died, so that nobody knows what came of them
	Last  time.Time
}

// memory is Shared within one process.
type memory struct {
	mu sync.Mutex
	m  map[string]State
}

// NewShared returns a Shared for callers within one process.
func NewShared() Shared { return &memory{m: map[string]State{}} }

func (s *memory) Update(_ context.Context, address string, change func(*State) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.m[address]
	st.Refused, st.Resets = maps.Clone(st.Refused), maps.Clone(st.Resets)
	if err := change(&st); err != nil {
		return err
	}
	s.m[address] = st
	return nil
}

// errBreaker is why a login isn't even tried.
type errBreaker struct {
	until time.Time // zero: until the secret changes
	why   string
}

func (e *errBreaker) Error() string {
	if e.until.IsZero() {
		return e.why + "; it is not tried again until it changes"
	}
	return fmt.Sprintf("%s; not tried again before %s", e.why, e.until.UTC().Format(time.TimeOnly+"Z"))
}

// errTrying is why a login has to wait: another process's is under way.
var errTrying = errors.New("another login is under way")

// permit counts one try of a secret, or says why there is none left. The try is over with settled, or after limit.
func (s *State) permit(revision string, now time.Time, limit time.Duration) error {
	if now.Before(s.TryingTill) {
		return errTrying
	}
	if r, ok := s.Refused[s.Trying]; ok && !s.TryingTill.IsZero() { // its process died
		r.Lost++
		s.Refused[s.Trying] = r
	}
	s.over()
	if err := s.count(revision, now); err != nil {
		return err
	}
	s.Trying, s.TryingTill = revision, now.Add(limit)
	return nil
}

// cutOff reports whether a secret was tried, nobody knows what came of it, and it was never refused.
func (s *State) cutOff(revision string) bool {
	r := s.Refused[revision]
	if s.Trying == revision && !s.TryingTill.IsZero() {
		r.Lost++ // under way, or its process died and nobody has found that out yet
	}
	return r.Count > 0 && r.Count <= r.Lost
}

// proven forgets every refusal: a login succeeded.
func (s *State) proven() {
	s.over()
	s.Refused = nil
}

// over ends the try that is under way.
func (s *State) over() { s.Trying, s.TryingTill = "", time.Time{} }

func (s *State) count(revision string, now time.Time) error {
	r := s.Refused[revision]
	known, fresh := r.Count-r.Lost, now.Sub(r.Last) < refusalWindow
	switch {
	case r.Count >= maxRefusals && known > 0:
		return &errBreaker{why: fmt.Sprintf("this password was refused %s", times(known))}
	case r.Count >= maxRefusals && fresh:
		return &errBreaker{until: r.Last.Add(refusalWindow), why: fmt.Sprintf("%d logins were cut off, refused or not", r.Count)}
	case known > 0 && fresh:
		return &errBreaker{until: r.Last.Add(refusalWindow), why: "this password was refused"}
	case !fresh:
		r = Refusal{Count: known}
	}
	recent, oldest := 0, now
	for rev, r := range s.Refused {
		if rev != revision && now.Sub(r.Last) >= refusalWindow {
			delete(s.Refused, rev) // a secret of the past
			continue
		}
		if now.Sub(r.Last) < refusalWindow {
			recent++
			if r.Last.Before(oldest) {
				oldest = r.Last
			}
		}
	}
	if recent >= maxRefusals {
		return &errBreaker{until: oldest.Add(refusalWindow), why: fmt.Sprintf("%d logins were refused", recent)}
	}
	if s.Refused == nil {
		s.Refused = map[string]Refusal{}
	}
	s.Refused[revision] = Refusal{Count: r.Count + 1, Lost: r.Lost, Last: now}
	return nil
}

func times(n int) string {
	if n == 1 {
		return "once, and another try of it was cut off"
	}
	return fmt.Sprintf("%d times", n)
}

// takeBack uncounts a try that never reached the BMC's judgement.
func (s *State) takeBack(revision string) {
	s.over()
	r := s.Refused[revision]
	if r.Count--; r.Count <= 0 {
		delete(s.Refused, revision)
		return
	}
	r.Last = r.Last.Add(-refusalWindow)
	s.Refused[revision] = r
}

func (l Login) revision() string {
	if l.Revision != "" {
		return l.Revision
	}
	sum := sha256.Sum256([]byte(l.User + "\x00" + string(l.Password)))
	return hex.EncodeToString(sum[:8])
}

// breaker keeps callers from queueing at a BMC that doesn't answer. After a few failures in a row it answers for it,
// for a while that grows; then the next caller finds out.
type breaker struct {
	mu       sync.Mutex
	failures int
	until    time.Time
	last     error
}

const (
	breakerAfter = 3
	breakerFirst = 5 * time.Second
	breakerMost  = time.Minute
)

// allow returns the last failure while the breaker is open.
func (b *breaker) allow(now time.Time) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Before(b.until) {
		return fmt.Errorf("not tried again before %s, after %d failures, the last: %w", b.until.UTC().Format(time.TimeOnly+"Z"), b.failures, b.last)
	}
	return nil
}

// record counts an outcome. changed says that the breaker opened or closed by it, which other processes are to know; first
// that it was the first failure after a success, when another process may know more.
func (b *breaker) record(err error, now time.Time) (until time.Time, changed, first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		changed = b.failures >= breakerAfter || !b.until.IsZero()
		b.failures, b.until, b.last = 0, time.Time{}, nil
		return b.until, changed, false
	}
	if b.failures++; b.failures >= breakerAfter {
		pause := min(breakerFirst<<min(b.failures-breakerAfter, 10), breakerMost)
		b.until, changed = now.Add(pause), true
	}
	var open *errBreaker
	if !errors.As(err, &open) {
		b.last = err
	}
	return b.until, changed, b.failures == 1
}

// adopt opens the breaker for as long as another process's is.
func (b *breaker) adopt(until time.Time, why string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if until.After(b.until) {
		b.failures, b.until, b.last = max(b.failures, breakerAfter-1), until, errors.New(why)
	}
}

// reached records an answer, or that there was none, and shares what that means with the site's other processes: a BMC that
// is down is found out once, not once by each.
func (c *conn) reached(err error) {
	until, changed, first := c.reach.record(err, now())
	if !changed && !first {
		return
	}
	// What can't be shared now costs the others a few tries of their own.
	_ = c.pool.shared.Update(context.Background(), c.address, func(s *State) error {
		switch {
		case err == nil:
			s.DownTill, s.DownWhy = time.Time{}, ""
		case changed && until.After(s.DownTill):
			s.DownTill, s.DownWhy = until, unwrapURL(err).Error()
		case s.DownTill.After(now()):
			c.reach.adopt(s.DownTill, s.DownWhy)
		}
		return nil
	})
}
