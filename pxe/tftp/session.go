package tftp

import (
	"bytes"
	"container/list"
	"context"
	"net/netip"
	"sync"
)

// sessions are the transfers that are under way: for one client's port one, so many for one address, so many for all.
//
// Requests cost their sender nothing, and their source can be made up, so a place is held only by a client that has
// answered: where there is none left, the one that has been silent for longest gives up its own. What comes in another's
// name can so keep nobody from booting.
type sessions struct {
	perClient, total int

	mu     sync.Mutex
	active map[netip.AddrPort]*session
	byIP   map[netip.Addr]map[*session]struct{}
	silent list.List // of *session, the oldest first: those whose client has not answered yet
}

// session is one transfer.
type session struct {
	src     netip.AddrPort
	request []byte // as it came, to tell a repeated one from another
	ctx     context.Context
	end     context.CancelCauseFunc // its cause is a Result
	silent  *list.Element           // nil = the client has answered
}

// Error makes a Result the cause of an end.
func (r Result) Error() string { return string(r) }

func newSessions(perClient, total int) sessions {
	return sessions{perClient: perClient, total: total, active: map[netip.AddrPort]*session{}, byIP: map[netip.Addr]map[*session]struct{}{}}
}

type admission int

const (
	admitted admission = iota
	again
	tooMany
)

// admit finds a place for a request; the caller releases it.
func (s *sessions) admit(ctx context.Context, src netip.AddrPort, request []byte) (*session, admission) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.active[src]; ok {
		if bytes.Equal(old.request, request) {
			return nil, again
		}
		s.stop(old, Replaced) // some firmware looks for the size, says nothing, and asks for the file from the same port
	}
	if len(s.byIP[src.Addr()]) >= s.perClient && !s.makeRoom(src.Addr()) {
		return nil, tooMany
	}
	if len(s.active) >= s.total {
		oldest := s.silent.Front()
		if oldest == nil {
			return nil, tooMany
		}
		s.stop(oldest.Value.(*session), Crowded)
	}
	n := &session{src: src, request: bytes.Clone(request)}
	n.ctx, n.end = context.WithCancelCause(ctx)
	n.silent = s.silent.PushBack(n)
	s.active[src] = n
	if s.byIP[src.Addr()] == nil {
		s.byIP[src.Addr()] = map[*session]struct{}{}
	}
	s.byIP[src.Addr()][n] = struct{}{}
	return n, admitted
}

// makeRoom ends the oldest transfer that claims an address and has heard nothing from it; the caller holds mu.
func (s *sessions) makeRoom(ip netip.Addr) bool {
	for e := s.silent.Front(); e != nil; e = e.Next() {
		if o := e.Value.(*session); o.src.Addr() == ip {
			s.stop(o, Crowded)
			return true
		}
	}
	return false
}

// heard notes that the client has answered.
func (s *sessions) heard(n *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.speak(n)
}

func (s *sessions) speak(n *session) {
	if n.silent != nil {
		s.silent.Remove(n.silent)
		n.silent = nil
	}
}

// release gives the place back once the transfer has ended.
func (s *sessions) release(n *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop(n, stopped)
}

// stop ends a transfer and takes its place; the caller holds mu.
func (s *sessions) stop(n *session, why Result) {
	n.end(why)
	s.speak(n)
	if s.active[n.src] != n {
		return
	}
	delete(s.active, n.src)
	ip := n.src.Addr()
	if delete(s.byIP[ip], n); len(s.byIP[ip]) == 0 {
		delete(s.byIP, ip)
	}
}
