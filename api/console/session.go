package console

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"gpupool/schema"
)

func schemaError(err error) (*schema.Error, bool) { return errors.AsType[*schema.Error](err) }

// toLogin sends someone who is not signed in to the login page, which brings them back here.
func (s *console) toLogin(w http.ResponseWriter, r *http.Request, err error) {
	if !schema.Is(err, schema.CodeUnauthenticated) {
		s.renderLogin(w, r, err, "")
		return
	}
	if r.Header.Get("HX-Request") == "true" || strings.Contains(r.Header.Get("Accept"), "text/event-stream") {
		w.WriteHeader(http.StatusUnauthorized) // the page's script then loads the page anew
		return
	}
	to := "/login"
	if r.Method == http.MethodGet && r.URL.Path != "/" {
		to += "?next=" + url.QueryEscape(r.URL.RequestURI())
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}

func (s *console) loginPage(w http.ResponseWriter, r *http.Request) {
	s.renderLogin(w, r, nil, r.URL.Query().Get("next"))
}

func (s *console) renderLogin(w http.ResponseWriter, r *http.Request, err error, next string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if err != nil {
		w.WriteHeader(schema.Outcomes[schema.CodeOf(err)].HTTP)
	}
	if err := loginView(err, next).Render(r.Context(), w); err != nil && r.Context().Err() == nil {
		s.Log.WarnContext(r.Context(), "console: writing the login page", "error", err)
	}
}

func (s *console) login(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 1<<14)
	next := r.PostFormValue("next")
	cookie, _, err := s.Auth.Login(r.Context(), r.PostFormValue("token"), s.Address(r))
	if err != nil {
		s.renderLogin(w, r, err, next)
		return
	}
	http.SetCookie(w, cookie)
	http.Redirect(w, r, here(next), http.StatusSeeOther)
}

// here is next where it is a page of the console, else the start: a link must not lead to another site after a login.
func here(next string) string {
	u, err := url.Parse(next)
	if err != nil || u.IsAbs() || u.Host != "" || !strings.HasPrefix(u.Path, "/ui/") || strings.Contains(next, "\\") {
		return "/"
	}
	return u.RequestURI()
}

func (s *console) logout(w http.ResponseWriter, r *http.Request) {
	http.SetCookie(w, s.Auth.Logout())
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}
