package bmc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Server is one BMC. It is safe for concurrent use. Lock order: mu is the only lock and is never held in a hook.
//
// It owns the goroutines of its listener, one for hooks while any are queued, and the timers of power changes; Close
// waits for all of them.
type Server struct {
	profile Profile
	hooks   Hooks
	id      Identity
	index   *treeIndex
	rewrite map[string]string // a tree's value -> this server's, where that is unambiguous
	macHex  map[string]string // the same for MACs inside UEFI device paths
	tls     *tls.Config
	reverse bool
	sysPath string
	// sessionsAt is where the tree says that sessions are: old iDRACs have them at /redfish/v1/Sessions.
	sessionsAt string
	setPath    string // settings resource that takes the boot override, "" when there is none

	mu         sync.Mutex
	user       string
	password   string
	mustSet    bool // PasswordChangeRequired
	docs       map[string]Doc
	etags      map[string]int
	power      power
	sessions   map[string]*session
	nextID     int
	login      loginGuard
	faults     []*faultRule
	log        []Request
	logCap     int
	hostLogger bool // the system has a log of its console
	acCycles   int  // losses of all power
	served     int  // requests, those that the log forgot included
	busy       int
	quirks     Quirks
	clockOff   time.Duration // of the BMC's clock
	tasks      map[string]*task
	hearers    map[chan []byte]bool // of the event stream
	pushes     map[string]bool      // subscriptions made here, by path
	bmcDown    time.Time            // Manager.Reset: 503 until then

	behind func(*http.Request) *Server // of an enclosure: the server behind this BMC that a request is about; nil = this one

	queue   []func()
	running bool
	closed  bool
	wg      sync.WaitGroup
	ending  context.Context // ends with Close
	end     context.CancelFunc

	http *http.Server
	url  string
}

// Option changes a server from its profile's defaults.
type Option func(*Server)

// WithIdentity makes the server a machine of its own.
func WithIdentity(id Identity) Option { return func(s *Server) { s.id = id } }

// WithCredential sets the account that may log in; the default is "admin", "gpupool-lab".
func WithCredential(user, password string) Option {
	return func(s *Server) { s.user, s.password = user, password }
}

// WithTLS serves HTTPS with this configuration, see [SelfSigned]. The default is plain HTTP.
func WithTLS(c *tls.Config) Option { return func(s *Server) { s.tls = c } }

// WithMembersReversed lists every collection backwards.
func WithMembersReversed() Option { return func(s *Server) { s.reverse = true } }

// WithQuirks replaces the profile's quirks, after change has seen them.
func WithQuirks(change func(*Quirks)) Option { return func(s *Server) { change(&s.quirks) } }

// WithPower sets the power state to begin with; the default is on, as a machine that was left running.
func WithPower(on bool) Option { return func(s *Server) { s.power.on = on } }

// WithPasswordChangeRequired makes every request but the account's own PATCH a 403 until the password was changed.
func WithPasswordChangeRequired() Option { return func(s *Server) { s.mustSet = true } }

// WithLogCap bounds the request log; the oldest entries go first. The default is 10,000.
func WithLogCap(n int) Option { return func(s *Server) { s.logCap = n } }

// WithHostLogger gives the host system a log of its serial console, as OpenBMC has one; see [Server.HostLogger].
func WithHostLogger() Option { return func(s *Server) { s.hostLogger = true } }

// New makes a BMC. It serves nothing until [Server.Start], and is an [http.Handler] without it.
func New(p Profile, h Hooks, opts ...Option) *Server {
	s := &Server{
		profile: p, hooks: h, quirks: p.Quirks, sysPath: p.system, index: indexOf(p),
		user: "admin", password: "gpupool-lab", logCap: 10000,
		docs: map[string]Doc{}, etags: map[string]int{}, sessions: map[string]*session{}, rewrite: map[string]string{}, macHex: map[string]string{},
		tasks: map[string]*task{}, hearers: map[chan []byte]bool{}, pushes: map[string]bool{},
	}
	s.ending, s.end = context.WithCancel(context.Background())
	s.power.on = true
	for _, o := range opts {
		o(s)
	}
	if s.sessionsAt = clean(digString(readDoc(p.Tree, root), "Links", "Sessions", "@odata.id")); !strings.HasSuffix(s.sessionsAt, "/Sessions") {
		s.sessionsAt = sessionsPath
	}
	sys := s.doc(s.sysPath)
	if set := clean(digString(sys, "@Redfish.Settings", "SettingsObject", "@odata.id")); set != "" {
		// Lenovo's settings resource holds the boot order alone: the override is the system's own there.
		if dig(readDoc(p.Tree, set), "Boot", propEnabled) != nil {
			s.setPath = set
		}
	}
	s.applyIdentity()
	if s.hostLogger {
		s.addHostLogger()
	}
	return s
}

// Start listens on a free port of 127.0.0.1.
func (s *Server) Start() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("start lab bmc %s: %w", s.profile.Name, err)
	}
	s.Serve(l)
	return nil
}

// Serve answers what a listener accepts, from now on. It is Start for a network of the caller's own.
func (s *Server) Serve(l net.Listener) {
	s.url = "http://" + l.Addr().String()
	if s.tls != nil {
		l, s.url = tls.NewListener(l, s.tls), "https://"+l.Addr().String()
	}
	s.http = &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second, ErrorLog: quietLog}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		if err := s.http.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
			quietLog.Print(err)
		}
	}()
}

// URL is the server's address, "" before Start.
func (s *Server) URL() string { return s.url }

// Close stops listening, drops every connection, waits for hooks that run, and forgets those that wait.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.end()
	s.queue = nil
	s.power.stop()
	s.mu.Unlock()
	var err error
	if s.http != nil {
		err = s.http.Close()
	}
	s.wg.Wait()
	return err
}

// Shutdown is Close that first lets running requests end.
func (s *Server) Shutdown(ctx context.Context) error {
	if s.http != nil {
		if err := s.http.Shutdown(ctx); err != nil {
			return errors.Join(err, s.Close())
		}
	}
	return s.Close()
}

// enqueue runs f after those before it, outside the lock. The caller holds mu.
func (s *Server) enqueue(f func()) {
	if s.closed {
		return
	}
	s.queue = append(s.queue, f)
	if s.running {
		return
	}
	s.running = true
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		for {
			s.mu.Lock()
			if len(s.queue) == 0 {
				s.running = false
				s.mu.Unlock()
				return
			}
			f := s.queue[0]
			s.queue = s.queue[1:]
			s.mu.Unlock()
			f()
		}
	}()
}

// Credential returns the account that may log in now.
func (s *Server) Credential() (user, password string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.user, s.password
}

// SetPassword changes the password at the machine, as a person at the front would: open sessions stay.
func (s *Server) SetPassword(password string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.password = password
}

// Patch changes a resource from within, as firmware does when a sensor trips: no rule of the HTTP side applies.
func (s *Server) Patch(path string, change Doc) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.own(clean(path))
	if d == nil {
		return fmt.Errorf("patch lab bmc %s: no resource %s", s.profile.Name, path)
	}
	merge(d, clone(change).(Doc))
	s.etags[clean(path)]++
	return nil
}

// Resource returns a copy of a resource as a client would read it, nil when there is none.
func (s *Server) Resource(path string) Doc {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.doc(clean(path))
	if d == nil {
		return nil
	}
	return clone(d).(Doc)
}

// SystemPath is the path of the host system in this tree.
func (s *Server) SystemPath() string { return s.sysPath }
