package console

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/a-h/templ"

	"gpupool/api/auth"
	"gpupool/api/client"
	"gpupool/api/words"
	"gpupool/schema"
)

// visit is one request of a browser by someone who is signed in.
type visit struct {
	*console
	w     http.ResponseWriter
	r     *http.Request
	me    auth.Identity
	api   *client.Client
	now   schema.Instant
	names map[string]string // of servers by id, once a page asked for them
}

// smallForm is a form of text.
const smallForm = 1 << 16

// visited signs the caller in by the cookie, or sends them to where one signs in.
// Its form has most bytes at most.
func (s *console) visited(page func(*visit), most int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		me, ok := auth.From(r.Context())
		if !ok {
			var err error
			if me, err = s.Auth.Authenticate(r, s.Address(r)); err != nil {
				s.toLogin(w, r, err)
				return
			}
		}
		api, err := client.NewClient("http://"+r.Host, client.WithHTTPClient(inside{s.API, r}))
		if err != nil {
			s.Log.ErrorContext(r.Context(), "console: making a client", "error", err)
			http.Error(w, "internal error", http.StatusInternalServerError)
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, most)
		page(&visit{console: s, w: w, r: r, me: me, api: api, now: schema.At(time.Now())})
	}
}

// may reports whether the caller may use an API route: what they may not is not offered.
func (v *visit) may(method, path string) bool { return auth.May(v.me, method, path) }

// fragment reports whether only the live part of the page is wanted.
func (v *visit) fragment() bool { return v.r.Header.Get("HX-Request") == "true" }

// page is what every page has.
type page struct {
	*visit
	title  string
	path   string // of the navigation's entry that is current
	at     string // the page's own address where a form of it was refused, which has another; empty = the request's
	shape  string // what decides which forms there are; a page whose shape changed is read anew as a whole
	notice *notice
}

// notice is a message above a page.
type notice struct {
	kind  string // good, bad, warn, info
	title string
	lines []string
}

// show answers with the page, or with its live part where that is what was asked for.
func (v *visit) show(p page, live, forms templ.Component) {
	p.visit = v
	if v.fragment() && v.r.Method == http.MethodGet {
		if was, ok := v.r.URL.Query()["shape"]; ok && was[0] != p.shape {
			v.w.Header().Set("HX-Refresh", "true")
			return
		}
		v.render(http.StatusOK, liveSection(p, live))
		return
	}
	if forms == nil {
		forms = templ.NopComponent
	}
	if p.notice == nil {
		p.notice = v.flash()
	}
	v.render(http.StatusOK, layout(p, live, forms))
}

// refresh is the address that a page's live part is read from.
func (p page) refresh() string {
	q := p.r.URL.Query()
	q.Del("said")
	q.Set("shape", p.shape)
	return cmp.Or(p.at, p.r.URL.Path) + "?" + q.Encode()
}

func (v *visit) render(status int, c templ.Component) {
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.WriteHeader(status)
	if err := c.Render(v.r.Context(), v.w); err != nil && v.r.Context().Err() == nil {
		v.Log.WarnContext(v.r.Context(), "console: writing a page", "path", v.r.URL.Path, "error", err)
	}
}

// fail shows an error as a page of its own.
func (v *visit) fail(err error) {
	if schema.Is(err, schema.CodeUnauthenticated) {
		v.toLogin(v.w, v.r, err)
		return
	}
	status := schema.Outcomes[schema.CodeOf(err)].HTTP
	p := page{visit: v, title: "That did not work", notice: problem(err)}
	if v.fragment() {
		v.w.WriteHeader(status)
		return
	}
	v.render(status, layout(p, templ.NopComponent, templ.NopComponent))
}

func (v *visit) missing() { v.fail(schema.NotFound("page", v.r.URL.Path)) }

// problem says an error in a notice.
func problem(err error) *notice {
	n := &notice{kind: "bad", title: err.Error()}
	if e, ok := schemaError(err); ok {
		n.title = e.Message
		if e.Field != "" {
			n.title = e.Field + ": " + e.Message
		}
		if e.Hint != "" {
			n.lines = []string{e.Hint}
		}
	}
	n.title = sentence(n.title)
	return n
}

// back ends a form: on success it goes to where, where said is shown; on failure it shows the page again with why.
func (v *visit) back(where, said string) {
	q := url.Values{"said": {said}}
	http.Redirect(v.w, v.r, where+"?"+q.Encode(), http.StatusSeeOther)
}

// sayings are the messages that a page may show after a form. The address holds only which, so that no link can make
// the console say something.
var sayings = map[string]string{
	"onboard": "Onboarding has started.", "retry": "The step is tried again.", "skip": "Going on without the step.", "abort": "The onboarding is being undone.",
	"accept": "Taken as it is. The step looks again.", "pause": "The onboarding stops there.", "continue": "The onboarding goes on.",
	"retire": "The server is taken out for good once its jobs have ended.",
	"cordon": "No new jobs will start here.", "uncordon": "The operator's cordon is lifted.", "drain": "Running jobs may end; no new ones start.", "undrain": "The server is back in the pool.",
	"protect": "Protected: nothing will wipe, reinstall or power it off.", "unprotect": "No longer protected.",
	"cancel": "The job is being cancelled.", "hold": "The job is held.", "release": "The job may start.",
	"stop": "The queue is stopped. What runs goes on.", "start": "The queue is started.", "window": "The window is made.", "end": "The window is gone.",
	"cancel-all": "The array's jobs are being cancelled.", "hold-all": "The array's queued jobs are held.", "release-all": "The array's jobs may start.", "limit": "The array's limit is changed.",
	"reset": "The breaker is reset. What it held back is judged anew.",
	"done":  "Thank you. The hardware is now being proven; you can leave.",
	"claim": "It is yours.", "light-on": "The light is being switched on.", "light-off": "The light is being switched off.", "photo": "Kept with the repair.",
	"could-not-fix": "Operators are called. The server stays out.", "drain-now": "Its jobs were asked to end.", "set": "Kept.",
}

func (v *visit) flash() *notice {
	if s, ok := sayings[v.r.URL.Query().Get("said")]; ok {
		return &notice{kind: "good", title: s}
	}
	return nil
}

// sentence begins with a capital and ends with a full stop.
func sentence(s string) string {
	s = strings.TrimSpace(s)
	if s == "" {
		return s
	}
	s = strings.ToUpper(s[:1]) + s[1:]
	if !strings.HasSuffix(s, ".") && !strings.HasSuffix(s, "?") {
		s += "."
	}
	return s
}

// role is the caller's role in words.
func (v *visit) role() string {
	s := string(v.me.Role)
	if v.me.Tenant != "" {
		s += " of " + v.me.Tenant
	}
	return s
}

// ago and the like bind the visit's moment.
func (v *visit) ago(t schema.Instant) string        { return words.Ago(t, v.now) }
func (v *visit) at(t schema.Instant) string         { return words.Clock(t, v.now) }
func (v *visit) took(a, b schema.Instant) string    { return words.Between(a, b, v.now) }
func (v *visit) retired(r schema.Retirement) string { return words.Retired(r, v.now) }
func (v *visit) paused(p schema.Pause) string       { return words.Paused(p, v.now) }
func (v *visit) differs(d schema.Difference) string { return words.Differs(d, v.now) }

// stamp is a moment for the datetime attribute.
func stamp(t schema.Instant) string { return t.String() }

func itoa(n int) string { return fmt.Sprint(n) }
