package script

import (
	"fmt"
	"net/netip"
	"time"

	"gpupool/pxe/boot"
)

const (
	guesses   = 10          // refusals of one address
	per       = time.Minute // in this time, before it is answered no more
	manyAddrs = 4096        // addresses remembered; a scan from more only shortens the memory
)

// refusals counts one address's refusals within a window.
type refusals struct {
	n     int
	since time.Time
}

// refuse records a refusal, counts it against the client, and is the error for it. Each is an audit event; the
// token itself is in none.
func (s *Service) refuse(client netip.Addr, kind, mac string, m boot.Machine, what, why string) error {
	s.mu.Lock()
	now := s.Now()
	r := s.guess[client]
	if r == nil || now.Sub(r.since) > per {
		if len(s.guess) >= manyAddrs {
			clear(s.guess)
		}
		r = &refusals{since: now}
		s.guess[client] = r
	}
	r.n++
	s.mu.Unlock()
	s.Record(s.evidence(kind, client, mac, m, what, why))
	return fmt.Errorf("%w: %s", ErrRefused, why)
}

// limited reports whether a client has been refused too often to be looked at. A token has 256 bits, so this is not
// what makes guessing hopeless; it keeps guessing from loading the database and flooding the audit log.
func (s *Service) limited(client netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.guess[client]
	return r != nil && r.n >= guesses && s.Now().Sub(r.since) <= per
}
