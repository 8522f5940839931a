package api_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"go.uber.org/goleak"

	"gpupool/api"
	"gpupool/api/auth"
	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1")) // gorm's cache of statements has no end
}

// verbs is a small Processes: it keeps what it was asked, and refuses with err where that is set.
type verbs struct {
	mu    sync.Mutex
	asked []string
	err   error
}

func (v *verbs) do(format string, args ...any) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.err != nil {
		return v.err
	}
	v.asked = append(v.asked, fmt.Sprintf(format, args...))
	return nil
}

func (v *verbs) StartOnboarding(_ context.Context, s schema.Server, by string, o api.OnboardOptions) error {
	return v.do("onboard %s %s %s", s.Name, o.Profile, by)
}
func (v *verbs) Reinstall(_ context.Context, s schema.Server, by, reason string, o api.OnboardOptions) error {
	return v.do("reinstall %s %s %q %s", s.Name, o.Profile, reason, by)
}
func (v *verbs) RetryStep(_ context.Context, s schema.Server, by string) error {
	return v.do("retry %s %s", s.Name, by)
}
func (v *verbs) SkipStep(_ context.Context, s schema.Server, step schema.Step, reason, by string) error {
	return v.do("skip %s %s %q %s", s.Name, step, reason, by)
}
func (v *verbs) AbortOnboarding(_ context.Context, s schema.Server, by string) error {
	return v.do("abort %s %s", s.Name, by)
}

func (v *verbs) AcceptDifferences(_ context.Context, s schema.Server, ids []string, reason, by string) error {
	return v.do("accept %s %v %q %s", s.Name, ids, reason, by)
}
func (v *verbs) PauseOnboarding(_ context.Context, s schema.Server, before schema.Step, reason, by string) error {
	return v.do("pause %s %s %q %s", s.Name, before, reason, by)
}
func (v *verbs) ContinueOnboarding(_ context.Context, s schema.Server, by string) error {
	return v.do("continue %s %s", s.Name, by)
}

// ruleBook is rules of which there is one.
type ruleBook struct{}

func (ruleBook) Rules(context.Context) ([]schema.HealthRule, error) {
	return []schema.HealthRule{{Name: "xid-79", Kind: "xid", Action: schema.ActionReset, Mode: "enforce"}}, nil
}

func (ruleBook) ChangeRule(_ context.Context, c schema.RuleChange, by string) (schema.HealthRule, error) {
	if c.Rule != "xid-79" {
		return schema.HealthRule{}, schema.NotFound("rule", c.Rule)
	}
	return schema.HealthRule{Name: c.Rule, Mode: c.Mode, Changed: by}, nil
}

func (ruleBook) Replay(_ context.Context, since schema.Instant, c *schema.RuleChange) (schema.Replay, error) {
	r := schema.Replay{Since: since, Actions: []schema.ActionCount{}, Differ: []schema.ReplayedFault{}}
	if c != nil {
		r.Differ = []schema.ReplayedFault{{Rule: c.Rule, Verdict: c.Action}}
	}
	return r, nil
}

func (v *verbs) CouldNotFix(context.Context, schema.Repair, string, string) error { return nil }

func (v *verbs) RepairDone(_ context.Context, r schema.Repair, d api.RepairDone) error {
	return v.do("done %s %+v", r.ID, d)
}

func (v *verbs) BurnIn(_ context.Context, s schema.Server, by string) (schema.Repair, error) {
	return schema.Repair{ID: "rep_1", Server: s.ID, State: schema.RepairVerifying}, v.do("burn-in %s %s", s.Name, by)
}

// pool is a real API over a real store, with callers of every kind.
type pool struct {
	*testing.T
	store  *store.Store
	server *api.Server
	url    string
	verbs  *verbs
	log    *lockedBuffer
	http   *http.Transport
	// tokens by kind of caller
	tokens map[auth.Who]string
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// oneProfile is a small Installs: it knows the profile image, which has no values. worker has tests of the real one.
type oneProfile struct{}

func (oneProfile) Profiles() []contract.InstallProfile {
	return []contract.InstallProfile{{Name: "image", Arch: []string{"x86_64"}, Documents: []string{}, Values: []contract.InstallValue{}}}
}

func (oneProfile) Check(profile string, values map[string]string) error {
	if profile != "image" || len(values) > 0 {
		return schema.Invalid("profile", profile, "image, without values")
	}
	return nil
}

func (o oneProfile) Preview(v schema.Server, profile string, values map[string]string) (contract.InstallPreview, error) {
	return contract.InstallPreview{Server: v.Name, Profile: "image"}, o.Check(cmp.Or(profile, "image"), values)
}

const model = "nvidia-h100-80gb"

func newPool(t *testing.T, change ...func(*api.Config)) *pool {
	t.Helper()
	p := &pool{T: t, store: storetest.Open(t), verbs: &verbs{}, log: &lockedBuffer{}, http: &http.Transport{MaxIdleConnsPerHost: 8}, tokens: map[auth.Who]string{}}
	c := api.Config{Store: p.store, Health: ruleBook{}, Ring: storetest.Ring(t), Processes: p.verbs, Installs: oneProfile{}, Log: slog.New(slog.NewTextHandler(p.log, nil)),
		Console: func(http.Handler, *auth.Authenticator) http.Handler { return http.NotFoundHandler() }}
	for _, f := range change {
		f(&c)
	}
	p.store = c.Store
	var err error
	if p.server, err = api.New(c); err != nil {
		t.Fatal(err)
	}
	hs := httptest.NewServer(p.server.Handler())
	p.url = hs.URL
	t.Cleanup(func() {
		p.server.Close() // ends waits, so that the listener's close does not wait for them
		p.http.CloseIdleConnections()
		hs.Close()
	})
	ctx := t.Context()
	for _, name := range []string{"acme", "globex"} {
		p.must(p.store.CreateTenant(ctx, "test", name, 100))
		p.must(p.store.CreateProject(ctx, "test", name, "main"))
	}
	p.must(p.store.CreateProject(ctx, "test", "acme", "other"))
	p.must(p.store.CreateSpec(ctx, "test", store.NewSpec{Name: "h100x8", Model: model, Accelerators: 8}))
	for who, n := range map[auth.Who]store.NewToken{
		auth.Operator:     {Name: "op", Role: schema.RoleOperator},
		auth.Technician:   {Name: "tech", Role: schema.RoleTechnician},
		auth.Viewer:       {Name: "view", Role: schema.RoleViewer},
		auth.TenantAdmin:  {Name: "acme-admin", Role: schema.RoleTenantAdmin, Tenant: "acme"},
		auth.TenantMember: {Name: "acme-member", Role: schema.RoleTenantMember, Tenant: "acme"},
		auth.TenantViewer: {Name: "acme-viewer", Role: schema.RoleViewer, Tenant: "acme"},
	} {
		_, secret, err := p.store.CreateToken(ctx, "test", n)
		if err != nil {
			t.Fatal(err)
		}
		p.tokens[who] = secret
	}
	return p
}

// must ends the test where the last of results is an error.
func (p *pool) must(results ...any) {
	p.Helper()
	if err, ok := results[len(results)-1].(error); ok && err != nil {
		p.Fatal(err)
	}
}

func (p *pool) token(n store.NewToken) string {
	p.Helper()
	_, secret, err := p.store.CreateToken(p.Context(), "test", n)
	p.must(err)
	return secret
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) problem(t *testing.T) contract.Problem {
	t.Helper()
	if ct := a.header.Get("Content-Type"); ct != "application/problem+json" {
		t.Fatalf("a failure came as %s: %d %s", ct, a.status, a.body)
	}
	var p contract.Problem
	if err := json.Unmarshal(a.body, &p); err != nil {
		t.Fatal(err)
	}
	if p.Status != a.status || p.Title == "" || p.Detail == "" || p.Type == "" {
		t.Fatalf("the problem is not whole: %+v, status %d", p, a.status)
	}
	return p
}

func read[T any](t *testing.T, a answer, status int) T {
	t.Helper()
	var v T
	if a.status != status {
		t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	if err := json.Unmarshal(a.body, &v); err != nil {
		t.Fatalf("%v in %s", err, a.body)
	}
	return v
}

// send makes a request; headers are "Name: value" lines. Both sides are checked against the contract where it is about them.
func (p *pool) send(token, method, path, body string, headers ...string) answer {
	p.Helper()
	req, err := http.NewRequestWithContext(p.Context(), method, p.url+path, strings.NewReader(body))
	p.must(err)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	resp, err := p.http.RoundTrip(req)
	p.must(err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	p.must(err)
	conforms(p.T, req, resp, b)
	return answer{resp.StatusCode, resp.Header, b}
}

func (p *pool) op(method, path, body string, headers ...string) answer {
	p.Helper()
	return p.send(p.tokens[auth.Operator], method, path, body, headers...)
}

func (p *pool) member(method, path, body string, headers ...string) answer {
	p.Helper()
	return p.send(p.tokens[auth.TenantMember], method, path, body, headers...)
}

func (p *pool) globex() string {
	p.Helper()
	return p.token(store.NewToken{Name: "globex-admin", Role: schema.RoleTenantAdmin, Tenant: "globex"})
}

// wantProblem checks a refusal: its code, and that it names what it should.
func wantProblem(t *testing.T, a answer, code schema.ErrorCode, field string, names ...string) contract.Problem {
	t.Helper()
	p := a.problem(t)
	if p.Code != code || p.Status != schema.Outcomes[code].HTTP || p.Field != field {
		t.Fatalf("got %d %s field %q: %s; want %s field %q", p.Status, p.Code, p.Field, p.Detail, code, field)
	}
	for _, n := range names {
		if !strings.Contains(p.Detail+" "+p.Hint, n) {
			t.Fatalf("%q (%q) does not name %q", p.Detail, p.Hint, n)
		}
	}
	return p
}

var contractRouter = sync.OnceValues(func() (routers.Router, error) {
	openapi3.DefineStringFormatValidator("date-time", openapi3.NewCallbackValidator(func(v string) error {
		_, err := time.Parse(time.RFC3339Nano, v)
		return err
	}))
	doc, err := openapi3.NewLoader().LoadFromFile("openapi.yaml")
	if err != nil {
		return nil, err
	}
	return gorillamux.NewRouter(doc)
})

// conforms checks an answer against the contract: status, content type and the body's schema.
func conforms(t *testing.T, req *http.Request, resp *http.Response, body []byte) {
	t.Helper()
	if !strings.HasPrefix(req.URL.Path, "/v1/") {
		return
	}
	r, err := contractRouter()
	if err != nil {
		t.Fatalf("reading the contract: %v", err)
	}
	u := *req.URL
	u.Host, u.Scheme = "", ""
	find := req.Clone(context.Background())
	find.URL = &u
	route, params, err := r.FindRoute(find)
	if err != nil {
		return // not in the contract: then it is a 404 or 405 of the router
	}
	in := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: find, PathParams: params, Route: route},
		Status:                 resp.StatusCode, Header: resp.Header,
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true},
	}
	in.SetBodyBytes(body)
	if resp.StatusCode == http.StatusNotModified || resp.StatusCode == http.StatusNoContent || strings.HasPrefix(resp.Header.Get("Content-Type"), "text/") {
		return // no body, or one that is only text
	}
	if err := openapi3filter.ValidateResponse(context.Background(), in); err != nil {
		t.Fatalf("%s %s %d is not what the contract says: %v\n%s", req.Method, req.URL.Path, resp.StatusCode, err, body)
	}
}

const aJob = `{"project":"main","spec":"h100x8","command":["true"]}`

// submit stores a job of acme; region r1 exists once a server does.
func (p *pool) submit(body string, headers ...string) contract.Job {
	p.Helper()
	return read[contract.Job](p.T, p.member("POST", "/v1/jobs", body, headers...), http.StatusCreated)
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("%s did not happen within 10 s", what)
		case <-tick.C:
		}
	}
}

// fuzzPool is one pool for all inputs of a fuzz run.
func fuzzPool(f *testing.F) *pool {
	f.Helper()
	s := storetest.Open(f)
	_, secret, err := s.CreateToken(f.Context(), "test", store.NewToken{Name: "op", Role: schema.RoleOperator})
	if err != nil {
		f.Fatal(err)
	}
	server, err := api.New(api.Config{Store: s, Ring: storetest.Ring(f), RatePerToken: -1})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(server.Close)
	return &pool{store: s, server: server, tokens: map[auth.Who]string{auth.Operator: secret}}
}

// raw enrols without a network between, as fast as a fuzzer wants.
func (p *pool) raw(t *testing.T, kind, body string) answer {
	t.Helper()
	req := httptest.NewRequest("POST", "/v1/servers/bulk", strings.NewReader(body))
	req.Header.Set("Content-Type", kind)
	req.Header.Set("Authorization", "Bearer "+p.tokens[auth.Operator])
	w := httptest.NewRecorder()
	p.server.Handler().ServeHTTP(w, req)
	return answer{w.Code, w.Header(), w.Body.Bytes()}
}
