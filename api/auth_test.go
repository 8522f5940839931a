package api_test

import (
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gpupool/api"
	"gpupool/api/auth"
	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store"
)

func TestTheTableOfRolesHoldsEveryRouteAndNoOther(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	routes := map[string]bool{}
	for _, r := range p.server.Routes() {
		routes[r.Method+" "+r.Path] = true
	}
	table := map[string]bool{}
	for _, r := range auth.Table {
		at := r.Method + " " + r.Path
		if table[at] {
			t.Errorf("%s is in the table twice", at)
		}
		if r.Who == 0 {
			t.Errorf("%s is allowed to nobody", at)
		}
		table[at] = true
		if !routes[at] {
			t.Errorf("%s is in the table and is no route", at)
		}
	}
	for at := range routes {
		if !table[at] {
			t.Errorf("%s is a route and not in the table: it would be refused to all", at)
		}
	}
}

func TestEachKindOfCallerGetsExactlyTheRoutesThatTheTableGives(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	path := strings.NewReplacer(":id", "none", ":job", "none", ":repair", "none", ":spec", "none", ":tenant", "acme", ":token", "none", "*path", "x")
	for _, r := range auth.Table {
		if r.Who == auth.Public || r.Who == auth.Agent {
			if a := p.send(p.tokens[auth.Operator], r.Method, path.Replace(r.Path), ""); r.Who == auth.Agent && a.status != http.StatusUnauthorized && a.status != http.StatusBadRequest && a.status != http.StatusForbidden {
				t.Errorf("%s %s answered %d to an operator's token: it is for agents", r.Method, r.Path, a.status)
			}
			continue
		}
		at := path.Replace(r.Path)
		if a := p.send("", r.Method, at, ""); a.status != http.StatusUnauthorized {
			t.Errorf("%s %s answered %d without a credential", r.Method, r.Path, a.status)
		}
		for who, token := range p.tokens {
			a := p.send(token, r.Method, at, "")
			refused := a.status == http.StatusForbidden
			if allowed := r.Who&who != 0; allowed == refused {
				t.Errorf("%s %s answered %d to a %s; the table says allowed=%v: %s", r.Method, r.Path, a.status, who, allowed, a.body)
			}
			if a.status >= 500 {
				t.Errorf("%s %s answered %d to a %s: %s", r.Method, r.Path, a.status, who, a.body)
			}
		}
	}
}

func TestEveryErrorCodeHasATitle(t *testing.T) {
	t.Parallel()
	for code := range schema.Outcomes {
		if api.Titles[code] == "" {
			t.Errorf("%s has no title", code)
		}
	}
}

func TestARevokedTokenIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	made := read[contract.TokenSecret](t, p.op("POST", "/v1/tokens", `{"name":"temp","role":"viewer"}`), http.StatusCreated)
	if a := p.send(made.Secret, "GET", "/v1/whoami", ""); a.status != http.StatusOK {
		t.Fatalf("the new token got %d", a.status)
	}
	if a := p.op("DELETE", "/v1/tokens/temp", ""); a.status != http.StatusNoContent {
		t.Fatalf("revoking got %d: %s", a.status, a.body)
	}
	wantProblem(t, p.send(made.Secret, "GET", "/v1/whoami", ""), schema.CodeUnauthenticated, "", "revoked")
	list := string(p.op("GET", "/v1/tokens", "").body)
	if strings.Contains(list, made.Secret) || strings.Contains(list, store.HashToken(made.Secret)) {
		t.Error("the list of tokens shows a secret or its hash")
	}
}

func TestATokenExpires(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p := newPool(t, func(c *api.Config) { c.Clock = func() time.Time { return now } })
	secret := p.token(store.NewToken{Name: "short", Role: schema.RoleViewer, ExpiresAt: schema.At(now.Add(time.Hour))})
	if a := p.send(secret, "GET", "/v1/whoami", ""); a.status != http.StatusOK {
		t.Fatalf("before its end it got %d", a.status)
	}
	now = now.Add(61 * time.Minute)
	wantProblem(t, p.send(secret, "GET", "/v1/whoami", ""), schema.CodeUnauthenticated, "", "expired")
}

func TestATenantsAdminMakesTokensOfItsOwnTenantOnly(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	admin := p.tokens[auth.TenantAdmin]
	for name, c := range map[string]struct {
		body  string
		code  schema.ErrorCode
		field string
	}{
		"an operator":                  {`{"name":"x","role":"operator"}`, schema.CodeForbidden, "role"},
		"a technician":                 {`{"name":"x","role":"technician"}`, schema.CodeForbidden, "role"},
		"a member of another tenant":   {`{"name":"x","role":"tenant-member","tenant":"globex"}`, schema.CodeNotFound, ""},
		"a member of a tenant of none": {`{"name":"x","role":"tenant-member","tenant":"nobody"}`, schema.CodeNotFound, ""},
	} {
		t.Run(name, func(t *testing.T) { wantProblem(t, p.send(admin, "POST", "/v1/tokens", c.body), c.code, c.field) })
	}
	// a viewer made by a tenant's admin is the tenant's, though it did not say so
	v := read[contract.TokenSecret](t, p.send(admin, "POST", "/v1/tokens", `{"name":"v","role":"viewer"}`), http.StatusCreated)
	if v.Token.Tenant != "acme" {
		t.Fatalf("the viewer is of tenant %q", v.Token.Tenant)
	}
	wantProblem(t, p.send(p.globex(), "DELETE", "/v1/tokens/v", ""), schema.CodeNotFound, "")
	if got := read[contract.TokenList](t, p.send(admin, "GET", "/v1/tokens", ""), http.StatusOK); len(got.Items) != 4 {
		t.Errorf("acme's admin sees %d tokens, want its tenant's 4", len(got.Items))
	}
}

func TestWrongCredentialsFromOneAddressAreSlowedAndGoodOnesGoOn(t *testing.T) {
	t.Parallel()
	var shift atomic.Int64
	begin := time.Now()
	p := newPool(t, func(c *api.Config) { c.Clock = func() time.Time { return begin.Add(time.Duration(shift.Load())) } })
	if a := p.op("GET", "/v1/whoami", ""); a.status != http.StatusOK {
		t.Fatal(a.status)
	}
	wrong := store.TokenPrefix + strings.Repeat("A", 43)
	limited := false
	for range 30 {
		switch a := p.send(wrong, "GET", "/v1/whoami", ""); a.status {
		case http.StatusUnauthorized:
		case http.StatusTooManyRequests:
			limited = true
			if a.header.Get("Retry-After") == "" {
				t.Error("429 without Retry-After")
			}
		default:
			t.Fatalf("a wrong token got %d", a.status)
		}
	}
	if !limited {
		t.Error("thirty wrong tokens in a row were never slowed")
	}
	for _, after := range []time.Duration{0, auth.CacheFor + 1} { // from memory, and looked up again
		shift.Store(int64(after))
		for range 3 { // the wrong ones go on meanwhile
			p.send(wrong, "GET", "/v1/whoami", "")
		}
		if a := p.op("GET", "/v1/whoami", ""); a.status != http.StatusOK {
			t.Errorf("after %s a good token from the same address got %d", after, a.status)
		}
	}
}

func TestOneTokensRequestsAreBounded(t *testing.T) {
	t.Parallel()
	now := time.Now() // the clock stands: nothing is refilled
	p := newPool(t, func(c *api.Config) { c.RatePerToken = 5; c.Clock = func() time.Time { return now } })
	got := map[int]int{}
	for range 15 {
		got[p.op("GET", "/v1/whoami", "").status]++
	}
	if got[200] != 10 || got[429] != 5 {
		t.Errorf("of 15 requests: %v; want a burst of 10 and then 429", got)
	}
	if a := p.member("GET", "/v1/whoami", ""); a.status != http.StatusOK {
		t.Errorf("another token got %d", a.status)
	}
}

func TestTheConsolesCookieWorksForItsOwnSiteOnly(t *testing.T) {
	t.Parallel()
	p := newPool(t, func(c *api.Config) { c.ExternalURL = "https://pool.example" })
	cookie, id, err := p.server.Auth().Login(t.Context(), p.tokens[auth.Operator], "192.0.2.1")
	p.must(err)
	if id.Name != "op" || !cookie.HttpOnly || !cookie.Secure || cookie.SameSite != http.SameSiteStrictMode || strings.Contains(cookie.Value, p.tokens[auth.Operator]) {
		t.Fatalf("cookie %+v of %+v", cookie, id)
	}
	with := "Cookie: " + cookie.Name + "=" + url.QueryEscape(cookie.Value)
	if a := p.send("", "GET", "/v1/whoami", "", with); a.status != http.StatusOK {
		t.Fatalf("reading with the cookie got %d: %s", a.status, a.body)
	}
	body := `{"name":"t1"}`
	for _, foreign := range []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site", "Origin: https://evil.example"} {
		wantProblem(t, p.send("", "POST", "/v1/tenants", body, with, foreign), schema.CodeForbidden, "", "another site")
	}
	if a := p.send("", "POST", "/v1/tenants", body, with, "Sec-Fetch-Site: same-origin"); a.status != http.StatusCreated {
		t.Fatalf("the console's own form got %d: %s", a.status, a.body)
	}
	// one bit of the sealed text changed
	bad := []byte(cookie.Value)
	bad[len(bad)-5] ^= 1
	wantProblem(t, p.send("", "GET", "/v1/whoami", "", "Cookie: "+cookie.Name+"="+string(bad)), schema.CodeUnauthenticated, "")
	// the session ends with its token
	p.token(store.NewToken{Name: "op2", Role: schema.RoleOperator})
	if a := p.op("DELETE", "/v1/tokens/op", ""); a.status != http.StatusNoContent {
		t.Fatal(a.status)
	}
	wantProblem(t, p.send("", "GET", "/v1/whoami", "", with), schema.CodeUnauthenticated, "")
}

func TestEveryChangeIsInTheAuditWithWhoAndWhatCameOfIt(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	p.op("POST", "/v1/tenants", `{"name":"t1"}`)
	p.member("POST", "/v1/tenants", `{"name":"t2"}`)
	want := map[string]bool{`"status":201`: false, `"status":403`: false}
	eventually(t, "both calls in the audit", func() bool {
		ev, _, err := p.store.Events(t.Context(), 0, 1000, store.EventFilter{Kinds: []schema.EventKind{schema.EventAudit}})
		p.must(err)
		for _, e := range ev {
			for s := range want {
				if strings.Contains(string(e.Data), s) && strings.Contains(string(e.Data), `"route":"/v1/tenants"`) && (e.By == "op" || e.By == "acme-member") {
					want[s] = true
				}
			}
		}
		return want[`"status":201`] && want[`"status":403`]
	})
}
