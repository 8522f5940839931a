// Package console is the web console: pages for operators, technicians and tenants at the API's address.
//
// It is a client of the API in the same process: every page is read, and every form is done, by a request to the API's
// own handler with the caller's own credential. So roles, tenants' borders, redaction, validation and the audit are the
// API's, and there is nothing of them here to get wrong.
//
// Invariants: no request leaves the page's own address; no inline script or style (the content security policy forbids
// them); what can be done without script is links and forms, script only keeps a page fresh; a form from another site is
// refused. Not here: what a role may do (api/auth), what a thing is (the API).
package console

import (
	"embed"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"gpupool/api/auth"
)

//go:generate go tool templ generate

//go:embed static
var files embed.FS

// Config of a console.
type Config struct {
	API  http.Handler        // the API's handler, guard and all: what the pages are read from
	Auth *auth.Authenticator // makes and reads the session's cookie
	// Watch returns a channel that gets something whenever anything has happened (store.Watch), at most one at a time,
	// and what ends the watch. A page then reads itself anew.
	Watch func() (<-chan struct{}, func())
	// Done is closed when the process stops, so that pages' streams end; nil = never.
	Done <-chan struct{}
	// Address is the caller's, for counting wrong tokens; nil = RemoteAddr's host.
	Address func(*http.Request) string
	Log     *slog.Logger
	// Calm is the least time between two refreshes of a page; 0 = 1 s.
	Calm time.Duration
}

type console struct {
	Config
	static http.Handler
}

// New makes the console's handler. It serves /, /login, /logout, /static/ and /ui/.
func New(c Config) http.Handler {
	if c.Calm == 0 {
		c.Calm = time.Second
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Address == nil {
		c.Address = func(r *http.Request) string {
			host, _, err := net.SplitHostPort(r.RemoteAddr)
			if err != nil {
				return r.RemoteAddr
			}
			return host
		}
	}
	sub, err := fs.Sub(files, "static")
	if err != nil {
		panic(err) // the folder is embedded: a programming error
	}
	s := &console{Config: c, static: http.StripPrefix("/static/", http.FileServerFS(sub))}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /static/", s.asset)
	mux.HandleFunc("GET /login", s.loginPage)
	mux.HandleFunc("POST /login", s.login)
	mux.HandleFunc("POST /logout", s.logout)
	for pattern, page := range map[string]func(*visit){
		"GET /{$}":    home,
		"GET /ui/{$}": overviewPage,

		"GET /ui/servers":                  serversPage,
		"GET /ui/servers/{server}":         serverPage,
		"POST /ui/servers/{server}/{verb}": serverDo,

		"GET /ui/jobs":               jobsPage,
		"GET /ui/jobs/{job}":         jobPage,
		"POST /ui/jobs/{job}/{verb}": jobDo,

		"GET /ui/queue":                                     queuePage,
		"POST /ui/queue/{verb}":                             queueDo,
		"POST /ui/queue/stops/{stop}/{verb}":                stopDo,
		"POST /ui/queue/windows/{window}/{verb}":            windowDo,
		"GET /ui/arrays/{tenant}/{project}/{array}":         arrayPage,
		"POST /ui/arrays/{tenant}/{project}/{array}/{verb}": arrayDo,

		"GET /ui/breakers/{breaker}":         breakerPage,
		"POST /ui/breakers/{breaker}/{verb}": breakerDo,

		"GET /ui/repairs":                  repairsPage,
		"GET /ui/parts":                    partsPage,
		"GET /ui/parts/{rma}":              rmaPage,
		"POST /ui/parts/{rma}/{verb}":      rmaDo,
		"GET /ui/times":                    timesPage,
		"GET /ui/repairs/{repair}":         repairPage,
		"POST /ui/repairs/{repair}/{verb}": repairDo,

		"GET /ui/usage":        usagePage,
		"GET /ui/usage/{file}": usageFile,
		"GET /ui/changes":      changes,
		"GET /ui/":             func(v *visit) { v.missing() },
	} {
		most := int64(smallForm)
		if strings.HasPrefix(pattern, "POST /ui/repairs/{repair}/") {
			most = photoForm
		}
		mux.HandleFunc(pattern, s.visited(page, most))
	}
	return secure(http.NewCrossOriginProtection().Handler(mux))
}

// secure puts the headers that keep a page to itself on every answer.
func secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		if !strings.HasPrefix(r.URL.Path, "/static/") {
			h.Set("Cache-Control", "no-store")
		}
		next.ServeHTTP(w, r)
	})
}

// asset serves the embedded files. Their addresses carry the build's number, so that they may be kept for long.
func (s *console) asset(w http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/") {
		http.NotFound(w, r)
		return
	}
	if r.URL.Query().Get("v") == version {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	s.static.ServeHTTP(w, r)
}
