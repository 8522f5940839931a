package bmc

import (
	"net/http"
	"regexp"
	"strings"
	"time"
)

// Fault is a rule: requests that match misbehave. The first live rule that matches wins. The zero value of a field
// leaves that part of the answer alone, so a rule of only Latency is a slow BMC.
type Fault struct {
	Method string // "" any
	// Path is a glob over the request path: * within a segment, ** over any.
	Path    string
	Status  int           // answer this status with a Redfish error body, or Replace
	Latency time.Duration // before anything else; a client that hangs up ends it
	Replace []byte        // the body, verbatim: broken JSON, XHTML
	Merge   Doc           // merged into the resource's JSON
	Header  http.Header   // added to the answer
	Message string        // MessageId of the error body, for Status
	Count   int           // live for so many requests; 0 until cleared
	Hang    bool          // never answer
	Drop    bool          // close the connection without an answer
	// AfterApply lets the request take effect and then spoils the answer (a 202 whose body is lost, a 500 that worked).
	AfterApply bool
}

type faultRule struct {
	Fault
	id   int
	path *regexp.Regexp
	left int
}

// AddFault puts a rule before the others and returns its number for [Server.RemoveFault].
func (s *Server) AddFault(f Fault) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nextID++
	r := &faultRule{Fault: f, id: s.nextID, path: glob(f.Path), left: f.Count}
	s.faults = append([]*faultRule{r}, s.faults...)
	return r.id
}

// RemoveFault ends a rule. An unknown number is ignored.
func (s *Server) RemoveFault(id int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range s.faults {
		if r.id == id {
			s.faults = append(s.faults[:i], s.faults[i+1:]...)
			return
		}
	}
}

// ClearFaults ends every rule.
func (s *Server) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// fault takes the rule for a request, nil when none matches.
func (s *Server) fault(method, path string) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, r := range s.faults {
		if r.Method != "" && r.Method != method || !r.path.MatchString(path) {
			continue
		}
		if r.Count > 0 {
			if r.left--; r.left == 0 {
				s.faults = append(s.faults[:i:i], s.faults[i+1:]...)
			}
		}
		f := r.Fault
		return &f
	}
	return nil
}

func glob(pattern string) *regexp.Regexp {
	if pattern == "" {
		pattern = "/**"
	}
	var b strings.Builder
	b.WriteString("^")
	for i := 0; i < len(pattern); i++ {
		switch {
		case strings.HasPrefix(pattern[i:], "/**"):
			b.WriteString("(/.*)?")
			i += 2
		case strings.HasPrefix(pattern[i:], "**"):
			b.WriteString(".*")
			i++
		case pattern[i] == '*':
			b.WriteString("[^/]*")
		default:
			b.WriteString(regexp.QuoteMeta(pattern[i : i+1]))
		}
	}
	b.WriteString("$")
	return regexp.MustCompile(b.String())
}

// Limit changes what the BMC stands, 0 leaves a limit as it is: how many sessions at once, after how many wrong passwords the
// account locks (for ten minutes), and how far its clock is off.
func (s *Server) Limit(sessions, lockout int, clock time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sessions > 0 {
		s.quirks.MaxSessions = sessions
	}
	if lockout > 0 {
		s.quirks.LockoutThreshold, s.quirks.LockoutDuration, s.quirks.LockoutWindow = lockout, 10*time.Minute, 0
	}
	if clock != 0 {
		s.clockOff = clock
	}
}

// Unlimit takes back what Limit changed.
func (s *Server) Unlimit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.profile.Quirks
	s.quirks.MaxSessions, s.quirks.LockoutThreshold, s.quirks.LockoutDuration, s.quirks.LockoutWindow = q.MaxSessions, q.LockoutThreshold, q.LockoutDuration, q.LockoutWindow
	s.login, s.clockOff = loginGuard{total: s.login.total}, 0
}
