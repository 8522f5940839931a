package bmc

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

const sessionsPath = "/redfish/v1/SessionService/Sessions"

type session struct {
	id, user string
	used     time.Time
	busy     int // requests under way: it is not idle
}

// loginGuard counts failed logins over every way in, as the real account service does.
type loginGuard struct {
	failures []time.Time // within the window
	total    int
	until    time.Time // locked until
}

// FailedLogins is how many logins were refused since the start, over sessions and Basic together.
func (s *Server) FailedLogins() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.login.total
}

// Locked reports whether the account is locked now.
func (s *Server) Locked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.login.until)
}

// OpenSessions is how many sessions are alive.
func (s *Server) OpenSessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	return len(s.sessions)
}

// DropSessions ends every session, as a BMC reset does.
func (s *Server) DropSessions() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.sessions)
}

func (s *Server) expire() {
	if s.quirks.SessionTimeout <= 0 {
		return
	}
	for token, x := range s.sessions {
		if x.busy == 0 && time.Since(x.used) > s.quirks.SessionTimeout {
			delete(s.sessions, token)
		}
	}
}

// hold keeps a request's session from timing out while the request is under way, until the function returned is called.
func (s *Server) hold(r *http.Request) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire()
	x := s.sessions[r.Header.Get("X-Auth-Token")]
	if x == nil {
		return func() {}
	}
	x.busy++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		x.busy, x.used = x.busy-1, time.Now()
	}
}

// verify checks a login and keeps the lockout's count. The caller holds mu.
func (s *Server) verify(user, password string) bool {
	now := time.Now()
	q := s.quirks
	if now.Before(s.login.until) {
		s.login.total++
		return false // a locked account refuses the right password too
	}
	if user == s.user && password == s.password {
		s.login.failures = nil
		return true
	}
	s.login.total++
	if q.LockoutThreshold > 0 {
		keep := s.login.failures[:0]
		for _, t := range s.login.failures {
			if q.LockoutWindow <= 0 || now.Sub(t) < q.LockoutWindow {
				keep = append(keep, t)
			}
		}
		s.login.failures = append(keep, now)
		if len(s.login.failures) >= q.LockoutThreshold {
			s.login.until, s.login.failures = now.Add(q.LockoutDuration), nil
		}
	}
	return false
}

// authenticate answers nil for a request that may pass. The caller holds mu.
func (s *Server) authenticate(r *http.Request) *reply {
	if r.Context().Value(passed{}) != nil {
		return nil
	}
	s.expire()
	if token := r.Header.Get("X-Auth-Token"); token != "" {
		if x, ok := s.sessions[token]; ok {
			x.used = time.Now()
			return nil
		}
		return unauthorized()
	}
	if user, password, ok := r.BasicAuth(); ok && s.verify(user, password) {
		return nil
	}
	return unauthorized()
}

func unauthorized() *reply {
	return refuse(http.StatusUnauthorized, "NoValidSession", "There is no valid session established with the implementation.")
}

// openSession answers POST of a session. The caller holds mu.
func (s *Server) openSession(body Doc) *reply {
	if s.quirks.NoSessions {
		return notFound(sessionsPath)
	}
	s.expire()
	user, password := digString(body, "UserName"), digString(body, "Password")
	if !s.verify(user, password) {
		return refuse(http.StatusUnauthorized, "ResourceAtUriUnauthorized", "Invalid username or password.")
	}
	if n := s.quirks.MaxSessions; n > 0 && len(s.sessions) >= n {
		return refuse(http.StatusServiceUnavailable, "SessionLimitExceeded",
			"The session establishment failed due to the number of simultaneous sessions exceeding the limit of the implementation.")
	}
	s.nextID++
	token := rand.Text()
	x := &session{id: strconv.Itoa(s.nextID), user: user, used: time.Now()}
	s.sessions[token] = x
	d := s.sessionDoc(x)
	if s.mustSet {
		d["@Message.ExtendedInfo"] = extended("PasswordChangeRequired", "The password provided for this account must be changed before access is granted.")
	}
	return &reply{status: http.StatusCreated, doc: d, header: http.Header{
		"X-Auth-Token": {token}, "Location": {sessionsPath + "/" + x.id},
	}}
}

func (s *Server) sessionDoc(x *session) Doc {
	return Doc{
		"@odata.id": sessionsPath + "/" + x.id, "@odata.type": "#Session.v1_3_0.Session",
		"Id": x.id, "Name": "User Session", "UserName": x.user,
	}
}

// closeSession answers DELETE of a session. The caller holds mu.
func (s *Server) closeSession(id string) *reply {
	for token, x := range s.sessions {
		if x.id == id {
			delete(s.sessions, token)
			return noContent()
		}
	}
	return notFound(sessionsPath + "/" + id)
}

// listSessions answers GET of the collection. The caller holds mu.
func (s *Server) listSessions() *reply {
	list := []any{}
	for _, x := range s.sessions {
		list = append(list, Doc{"@odata.id": sessionsPath + "/" + x.id})
	}
	return &reply{status: http.StatusOK, doc: Doc{
		"@odata.id": sessionsPath, "@odata.type": "#SessionCollection.SessionCollection", "Name": "Sessions",
		"Members": list, "Members@odata.count": len(list),
	}}
}

func extended(id, message string) []any {
	return []any{Doc{"@odata.type": "#Message.v1_1_1.Message", "MessageId": "Base.1.13." + id, "Message": message, "Severity": "Critical"}}
}

func notFound(path string) *reply {
	return refuse(http.StatusNotFound, "ResourceMissingAtURI", fmt.Sprintf("The resource at the URI '%s' was not found.", path))
}
