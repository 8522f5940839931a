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
		// The moments are part of the set's identity: a window that was moved makes a new one.
		ids[i] = w.ID + w.From.UTC().String() + w.Until.UTC().String()
	}
	srv.winset = s.winsets.id(strings.Join(ids, "\n"))
	for len(s.sets) <= srv.winset {
		s.sets = append(s.sets, nil)
	}
	s.sets[srv.winset] = slices.Clone(srv.windows)
}
