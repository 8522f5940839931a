package httpboot

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// How many connections one address may have, and all together: one that opens connections and holds them can't keep
// servers from booting. An installer fetches many files at once, and one address may hide many machines.
const (
	perClient = 256
	total     = 8192
)

// connections counts what is open, and closes at once what comes beyond the bounds.
type connections struct {
	perClient, total int

	mu   sync.Mutex
	open map[net.Conn]netip.Addr
	byIP map[netip.Addr]int
}

func newConnections(perClient, total int) *connections {
	return &connections{perClient: perClient, total: total, open: map[net.Conn]netip.Addr{}, byIP: map[netip.Addr]int{}}
}

// state is an http.Server's ConnState.
func (s *connections) state(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch state {
	case http.StateNew:
		var from netip.Addr
		if a, err := netip.ParseAddrPort(c.RemoteAddr().String()); err == nil {
			from = a.Addr().Unmap()
		}
		if len(s.open) >= s.total || s.byIP[from] >= s.perClient {
			c.Close()
			return
		}
		s.open[c] = from
		s.byIP[from]++
	case http.StateClosed, http.StateHijacked:
		from, counted := s.open[c]
		if !counted {
			return
		}
		delete(s.open, c)
		if s.byIP[from]--; s.byIP[from] == 0 {
			delete(s.byIP, from)
		}
	case http.StateActive, http.StateIdle:
	}
}
