package engine

import (
	"slices"
	"strings"
)

// window is a Window with its moments as the engine counts them.
type window struct {
	Window
	from, until int64
}

// admits says whether the window is for jobs of a project.
func (w *window) admits(tenant, project string) bool {
	return w.Tenant != "" && w.Tenant == tenant && (w.Project == "" || w.Project == project)
}

// SetWindow adds a maintenance window or a reservation, or changes it.
func (s *State) SetWindow(in Window) {
	s.RemoveWindow(in.ID)
	in.Servers = slices.Clone(in.Servers)
	w := &window{Window: in, from: ns(in.From), until: far}
	if !in.Until.IsZero() {
		w.until = ns(in.Until)
	}
	if w.until <= s.now {
		return
	}
	s.windows[in.ID] = w
	s.apply(w, func(srv *server) { srv.windows = append(srv.windows, w) })
	s.timers.add(w.from, timerWindow, w)
	s.timers.add(w.until, timerWindow, w)
}

// RemoveWindow ends a window at once.
func (s *State) RemoveWindow(id string) {
	w := s.windows[id]
	if w == nil {
		return
	}
	delete(s.windows, id)
	s.apply(w, func(srv *server) {
		srv.windows = slices.DeleteFunc(srv.windows, func(o *window) bool { return o == w })
	})
}

// kindClaim is the kind of a window that is none of a person's: see reclaim.
const kindClaim = "one-tenant"

// reclaim keeps a server whose jobs are not kept apart to the tenant whose jobs run there, as a reservation until they are
// expected to end: so plans and reasons know of it. A server that two tenants' jobs are on already is nobody's.
func (s *State) reclaim(srv *server) {
	if !srv.OneTenant && srv.claim == nil {
		return
	}
	want := Window{ID: kindClaim + "/" + srv.ID, Kind: kindClaim}
	until := int64(0)
	if srv.OneTenant {
		for i, al := range srv.allocs {
			if want.Tenant = al.Tenant; i > 0 && srv.allocs[0].Tenant != al.Tenant {
				want.Tenant = ""
				until = far
				break
			}
			if until = max(until, al.end); al.end <= s.now {
				until = far // it has not ended, and nobody can say when it will
			}
		}
	}
	switch was := srv.claim; {
	case was == nil && until == 0:
		return
	case was != nil && was.Tenant == want.Tenant && was.until == until:
		return
	case was != nil:
		delete(s.windows, was.ID)
		srv.windows = slices.DeleteFunc(srv.windows, func(o *window) bool { return o == was })
		srv.claim = nil
	}
	if until != 0 {
		srv.claim = &window{Window: want, until: until}
		s.windows[want.ID] = srv.claim
		srv.windows = append(srv.windows, srv.claim)
	}
	s.rewindow(srv)
}

func (s *State) apply(w *window, change func(*server)) {
	s.dirty = true
	for _, id := range w.Servers {
		if srv := s.servers[id]; srv != nil {
			change(srv)
			s.rewindow(srv)
			s.refresh(srv)
		}
	}
}

func (s *State) turnWindow(w *window) {
	if s.windows[w.ID] == w && w.until <= s.now {
		s.RemoveWindow(w.ID)
	}
}

// rewindow interns the set of windows over a server, so that servers under the same windows stay of one class.
func (s *State) rewindow(srv *server) {
	slices.SortFunc(srv.windows, func(a, b *window) int { return strings.Compare(a.ID, b.ID) })
	ids := make([]string, len(srv.windows))
	for i, w := range srv.windows {
		if ids[i] = w.ID; w.Kind == kindClaim {
			continue // of this server alone, so that its set may change
		}
		// The moments are part of the set's identity: a window that was moved makes a new one.
		ids[i] += w.From.UTC().String() + w.Until.UTC().String()
	}
	srv.winset = s.winsets.id(strings.Join(ids, "\n"))
	for len(s.sets) <= srv.winset {
		s.sets = append(s.sets, nil)
	}
	s.sets[srv.winset] = slices.Clone(srv.windows)
}
