package api

import (
	"context"
	_ "embed"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"

	"gpupool/api/auth"
	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/secret"
	"gpupool/schema/store"
)

//go:embed openapi.yaml
var contractFile []byte

// Limits of a request.
const (
	maxBody     = 1 << 20  // of one thing
	maxBulk     = 16 << 20 // of a bulk enrolment, or of an agent's report
	writeWithin = 30 * time.Second
	maxWait     = 60 * time.Second
)

// Config of a Server. Store and Ring are required.
type Config struct {
	Store     *store.Store
	Ring      *secret.Ring
	Health    Health    // nil = what needs the rules answers 503
	Processes Processes // nil = verbs that need a workflow answer 503
	Installs  Installs  // nil = verbs about install profiles answer 503
	Log       *slog.Logger
	// Samples is given the devices of each heartbeat, for what they tell of utilization; nil = it is not kept.
	Samples func(server string, devices []agentproto.Device)
	// ExternalURL is how people and agents reach the API; with https the console's cookie is marked Secure.
	ExternalURL string
	// TrustedProxies are addresses or networks whose X-Forwarded-For is believed; none by default.
	TrustedProxies []string
	// RatePerToken bounds the requests a second of one token; 0 = 2000, negative = no bound.
	RatePerToken int
	// CheckWebhook refuses the address of a webhook that must not be reached; nil = any is taken.
	CheckWebhook func(url string) error
	// HeartbeatEvery is told to agents; 0 = 5 s.
	HeartbeatEvery time.Duration
	// BodyWithin is how long a request's body may take to come; 0 = 30 s.
	BodyWithin time.Duration
	// Ready is asked by /readyz beside the database; nil = nothing else is needed.
	Ready func(ctx context.Context) error
	// Registry takes the API's metrics, and /metrics serves it; nil = one of its own.
	Registry *prometheus.Registry
	// Console makes the web console from the finished API and its authenticator; nil = no console.
	Console func(api http.Handler, a *auth.Authenticator) http.Handler
	Clock   func() time.Time // nil = time.Now
}

// Server answers the API's requests. It owns one goroutine, the audit's writer, which ends with Close.
type Server struct {
	c       Config
	engine  *gin.Engine
	auth    *auth.Authenticator
	audit   *auditor
	metrics *metrics
	keys    agentKeys
	replays replays
	csrf    *http.CrossOriginProtection
	waiting atomic.Int64  // long-polls and streams that wait now
	photos  chan struct{} // has room for as many photos as may be on their way at once
	turns   chan struct{} // has room for as many of them as may read at once, see inTurn

	stop     context.CancelFunc
	stopping chan struct{} // closed when long answers are to end
	stopOnce sync.Once
	wg       sync.WaitGroup
}

var _ contract.ServerInterface = (*Server)(nil)

// New makes a Server; its goroutine runs until Close.
func New(c Config) (*Server, error) {
	if c.Store == nil || c.Ring == nil {
		return nil, errors.New("api: Store and Ring are required")
	}
	if c.Health == nil {
		c.Health = noHealth{}
	}
	if c.Processes == nil {
		c.Processes = noProcesses{}
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.HeartbeatEvery == 0 {
		c.HeartbeatEvery = 5 * time.Second
	}
	if c.RatePerToken == 0 {
		c.RatePerToken = 2000
	}
	if c.BodyWithin == 0 {
		c.BodyWithin = 30 * time.Second
	}
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
	if _, err := operations(); err != nil {
		return nil, err
	}
	s := &Server{c: c, stopping: make(chan struct{}), photos: make(chan struct{}, photosAtOnce), turns: make(chan struct{}, max(2, runtime.GOMAXPROCS(0)/2)), csrf: http.NewCrossOriginProtection()}
	s.auth = auth.New(auth.Config{Tokens: c.Store.TokenByHash, Ring: c.Ring, Rate: max(c.RatePerToken, 0), Burst: 2 * max(c.RatePerToken, 0), Clock: c.Clock, Secure: isHTTPS(c.ExternalURL)})
	s.keys = agentKeys{known: map[string]agentKey{}}
	s.audit = newAuditor(c.Store, c.Log)
	var err error
	if s.metrics, err = newMetrics(c.Registry, &s.waiting); err != nil {
		return nil, err
	}
	if err = c.Registry.Register(&poolMetrics{store: c.Store}); err != nil {
		return nil, err
	}
	if s.engine, err = s.routes(); err != nil {
		return nil, err
	}
	bg, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.wg.Go(func() { s.audit.run(bg) })
	return s, nil
}

func isHTTPS(url string) bool { return len(url) >= 8 && url[:8] == "https://" }

// routes binds what the contract lists and what lies outside it.
func (s *Server) routes() (*gin.Engine, error) {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.HandleMethodNotAllowed = true
	e.RedirectTrailingSlash = false
	e.ContextWithFallback = true
	if err := e.SetTrustedProxies(s.c.TrustedProxies); err != nil {
		return nil, err
	}
	e.Use(s.guard)
	e.NoRoute(func(c *gin.Context) { s.fail(c, noRoute(c)) })
	e.NoMethod(func(c *gin.Context) { s.fail(c, noRoute(c)) })
	contract.RegisterHandlersWithOptions(e, s, contract.GinServerOptions{ErrorHandler: s.badParameter})

	e.GET("/healthz", s.healthz)
	e.GET("/readyz", s.readyz)
	e.GET("/metrics", s.serveMetrics)
	e.GET("/openapi.yaml", s.serveContract)
	s.agentRoutes(e)
	e.POST(schema.PathBMCEvents+"/:server/:secret", s.heardBMC)
	if s.c.Console != nil {
		pages := gin.WrapH(s.c.Console(e, s.auth))
		e.GET("/", pages)
		e.GET("/login", pages)
		e.POST("/login", pages)
		e.POST("/logout", pages)
		e.GET("/static/*path", pages)
		e.GET("/ui/*path", pages)
		e.POST("/ui/*path", pages)
	}
	return e, nil
}

// Handler answers requests until Close.
func (s *Server) Handler() http.Handler { return s.engine }

// Auth is the authenticator, for what else in the process asks who calls.
func (s *Server) Auth() *auth.Authenticator { return s.auth }

// Run serves on ln until ctx ends. It then ends long-polls and streams, lets the other requests finish for up to ten
// seconds, and closes the Server.
func (s *Server) Run(ctx context.Context, ln net.Listener) error {
	hs := &http.Server{
		Handler:           s.engine,
		ReadHeaderTimeout: 10 * time.Second, // bodies and answers have deadlines of their own: a stream lasts for hours
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.c.Log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- hs.Serve(ln) }()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
		s.endWaits()
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if err = hs.Shutdown(limit); err != nil {
			err = hs.Close()
		}
		<-served
	}
	s.Close()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// endWaits ends long-polls and streams: they answer with what there is.
func (s *Server) endWaits() { s.stopOnce.Do(func() { close(s.stopping) }) }

// Close ends waits and the Server's goroutine once the audit is written. Requests must have ended, or they lose their audit.
func (s *Server) Close() {
	s.endWaits()
	s.stop()
	s.wg.Wait()
}
