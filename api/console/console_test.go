package console_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"image"
	"image/jpeg"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/cookiejar"
	"net/textproto"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"gpupool/api/testpool"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

func TestMain(m *testing.M) {
	// gorm's cache of statements has a goroutine without an end.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1"))
}

// visitor is a browser without script: it keeps cookies and follows redirects.
type visitor struct {
	t    *testing.T
	pool *testpool.Pool
	http *http.Client
}

func start(t *testing.T) *testpool.Pool {
	t.Helper()
	p, err := testpool.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func visit(t *testing.T, p *testpool.Pool) *visitor {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return &visitor{t, p, &http.Client{Jar: jar, Transport: tr}}
}

func (v *visitor) do(method, path string, form url.Values, header ...string) (*http.Response, string) {
	v.t.Helper()
	if form != nil {
		header = append([]string{"Content-Type", "application/x-www-form-urlencoded", "Origin", v.pool.URL}, header...)
	}
	return v.send(method, path, strings.NewReader(form.Encode()), header...)
}

func (v *visitor) send(method, path string, body io.Reader, header ...string) (*http.Response, string) {
	v.t.Helper()
	r, err := http.NewRequestWithContext(v.t.Context(), method, v.pool.URL+path, body)
	if err != nil {
		v.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := v.http.Do(r)
	if err != nil {
		v.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	return resp, string(text)
}

func (v *visitor) signIn(role schema.Role, tenant, project string) *visitor {
	v.t.Helper()
	token, err := v.pool.NewToken(v.t.Context(), "v-"+string(role)+tenant+project, role, tenant, project)
	if err != nil {
		v.t.Fatal(err)
	}
	if resp, body := v.do("POST", "/login", url.Values{"token": {token}}); resp.StatusCode != 200 {
		v.t.Fatalf("signing in answers %d: %s", resp.StatusCode, body)
	}
	return v
}

func TestAStrangerIsLedToTheLoginAndBack(t *testing.T) {
	t.Parallel()
	p := start(t)
	v := visit(t, p)
	resp, body := v.do("GET", "/ui/servers?phase=enrolled", nil, "Accept", "text/html")
	if got := resp.Request.URL.RequestURI(); got != "/login?next=%2Fui%2Fservers%3Fphase%3Denrolled" || !strings.Contains(body, `name="next" value="/ui/servers?phase=enrolled"`) {
		t.Fatalf("a stranger is at %s with %d: %s", got, resp.StatusCode, body)
	}
	if resp, body := v.do("POST", "/login", url.Values{"token": {"gpt_wrong"}}); resp.StatusCode != 401 || !strings.Contains(body, "not an API token of this pool") {
		t.Fatalf("a wrong token answers %d: %s", resp.StatusCode, body)
	}
	resp, _ = v.do("POST", "/login", url.Values{"token": {p.Token}, "next": {"/ui/servers?phase=enrolled"}})
	if got := resp.Request.URL.RequestURI(); got != "/ui/servers?phase=enrolled" || resp.StatusCode != 200 {
		t.Fatalf("after the login it is at %s with %d", got, resp.StatusCode)
	}
	if resp, _ = v.do("POST", "/logout", url.Values{}); resp.Request.URL.Path != "/login" {
		t.Fatalf("after the logout it is at %s", resp.Request.URL)
	}
	if resp, _ = v.do("GET", "/ui/", nil, "Accept", "text/html"); resp.Request.URL.Path != "/login" {
		t.Fatalf("after the logout the pool is shown: %s", resp.Request.URL)
	}
}

func TestALoginLeadsToNoOtherSite(t *testing.T) {
	t.Parallel()
	p := start(t)
	for _, next := range []string{"https://evil.example", "//evil.example/ui/", "/\\evil.example/ui/", "/ui/\\..\\..", "javascript:alert(1)", "/v1/tokens", "ui/"} {
		v := visit(t, p)
		v.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		resp, _ := v.do("POST", "/login", url.Values{"token": {p.Token}, "next": {next}})
		if got := resp.Header.Get("Location"); resp.StatusCode != 303 || got != "/" {
			t.Errorf("next=%s leads to %s (%d)", next, got, resp.StatusCode)
		}
	}
}

func TestAFormOfAnotherSiteDoesNothing(t *testing.T) {
	t.Parallel()
	p := start(t)
	id := enrolled(t, p)
	v := visit(t, p).signIn(schema.RoleOperator, "", "")
	for _, h := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}} {
		if resp, body := v.do("POST", "/ui/servers/"+id+"/protect", url.Values{}, h...); resp.StatusCode != 403 {
			t.Errorf("%v answers %d: %s", h, resp.StatusCode, body)
		}
	}
	if s, err := p.Store.Server(t.Context(), id); err != nil || s.Protected {
		t.Fatalf("protected %v, %v", s.Protected, err)
	}
	if resp, body := v.do("POST", "/ui/servers/"+id+"/protect", url.Values{}); resp.StatusCode != 200 || !strings.Contains(body, "Protected: nothing will wipe") {
		t.Fatalf("its own form answers %d: %s", resp.StatusCode, body)
	}
}

func TestARoleMayDoWhatTheAPILetsItAndIsOfferedNothingElse(t *testing.T) {
	t.Parallel()
	p := start(t)
	id := enrolled(t, p)
	v := visit(t, p).signIn(schema.RoleTechnician, "", "")
	_, body := v.do("GET", "/ui/servers/"+id, nil)
	if !strings.Contains(body, "r1s1") || strings.Contains(body, "<form method=\"post\" action=\"/ui/") {
		t.Fatalf("a technician's page of a server: %s", body)
	}
	resp, body := v.do("POST", "/ui/servers/"+id+"/onboard", url.Values{})
	if resp.StatusCode != 200 || !strings.Contains(body, "The role technician may not do this.") || !strings.Contains(body, `role="alert"`) {
		t.Fatalf("it answers %d: %s", resp.StatusCode, body)
	}
	if s, err := p.Store.Server(t.Context(), id); err != nil || s.Phase != schema.PhaseEnrolled {
		t.Fatalf("it is %s, %v", s.Phase, err)
	}
	tenant(t, p)
	v = visit(t, p).signIn(schema.RoleTenantMember, "vision", "")
	for _, path := range []string{"/ui/servers", "/ui/servers/" + id, "/ui/repairs"} {
		if _, body := v.do("GET", path, nil); !strings.Contains(body, "may not do this") || strings.Contains(body, "r1s1") {
			t.Errorf("a tenant's %s: %s", path, body)
		}
	}
	if resp, body := v.do("GET", "/ui/", nil); resp.Request.URL.Path != "/ui/jobs" || strings.Contains(body, `href="/ui/servers"`) {
		t.Errorf("a tenant's start is %s: %s", resp.Request.URL.Path, body)
	}
}

func TestAnotherTenantsJobIsNoJob(t *testing.T) {
	t.Parallel()
	p := start(t)
	enrolled(t, p)
	job := tenant(t, p)
	v := visit(t, p).signIn(schema.RoleTenantMember, "vision", "")
	_, foreign := v.do("GET", "/ui/jobs/"+job, nil)
	_, none := v.do("GET", "/ui/jobs/job_nothing", nil)
	if strings.Replace(foreign, job, "job_nothing", -1) != none || strings.Contains(foreign, "train") {
		t.Fatalf("a foreign job's page differs from that of none:\n%s\n%s", foreign, none)
	}
	if _, body := v.do("POST", "/ui/jobs/"+job+"/cancel", url.Values{}); !strings.Contains(body, "No job") {
		t.Fatalf("it can be cancelled: %s", body)
	}
}

func TestATenantSeesWhereAJobRanByTheServersName(t *testing.T) {
	t.Parallel()
	p := start(t)
	v := storetest.Available(t, p.Store, 1, "nvidia-h100-80gb", 8)
	job := tenant(t, p)
	w := p.Store.Watch(store.TopicJob(job))
	defer w.Close()
	for end := time.After(time.Minute); ; {
		j, err := p.Store.Job(t.Context(), job)
		if err != nil {
			t.Fatal(err)
		}
		if j.Attempt > 0 {
			break
		}
		select {
		case <-w.C:
		case <-end:
			t.Fatalf("it is %s", j.State)
		}
	}
	_, body := visit(t, p).signIn(schema.RoleTenantMember, "research", "").do("GET", "/ui/jobs/"+job, nil)
	if !strings.Contains(body, v.Name+" (8)") || strings.Contains(body, v.ID) {
		t.Fatalf("where it ran is not told by the name %s alone:\n%s", v.Name, body)
	}
}

func TestTextOfTenantsIsTextOnAPage(t *testing.T) {
	t.Parallel()
	p := start(t)
	enrolled(t, p)
	job := tenant(t, p)
	v := visit(t, p).signIn(schema.RoleOperator, "", "")
	for _, path := range []string{"/ui/jobs", "/ui/jobs/" + job} {
		resp, body := v.do("GET", path, nil)
		if strings.Contains(body, "<script>alert") || !strings.Contains(body, "&lt;script&gt;alert") {
			t.Errorf("%s: %s", path, body)
		}
		csp := resp.Header.Get("Content-Security-Policy")
		if !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: its policy is %q", path, csp)
		}
		if got := resp.Header.Get("Cache-Control"); got != "no-store" {
			t.Errorf("%s: Cache-Control is %q", path, got)
		}
	}
}

func TestOnlyTheLivePartIsReadAnewAndTheWholePageWhenItsFormsChange(t *testing.T) {
	t.Parallel()
	p := start(t)
	id := enrolled(t, p)
	v := visit(t, p).signIn(schema.RoleOperator, "", "")
	resp, body := v.do("GET", "/ui/servers/"+id+"?shape=enrolled-retirable", nil, "HX-Request", "true")
	if resp.StatusCode != 200 || !strings.HasPrefix(body, `<section id="live"`) || strings.Contains(body, "<html") || resp.Header.Get("HX-Refresh") != "" {
		t.Fatalf("%d: %s", resp.StatusCode, body)
	}
	if err := p.Store.Protect(t.Context(), id, true, "test"); err != nil {
		t.Fatal(err)
	}
	if resp, body = v.do("GET", "/ui/servers/"+id+"?shape=enrolled-retirable", nil, "HX-Request", "true"); resp.Header.Get("HX-Refresh") != "true" || body != "" {
		t.Fatalf("%v: %s", resp.Header, body)
	}
	v.do("POST", "/logout", url.Values{})
	if resp, _ = v.do("GET", "/ui/servers/"+id, nil, "HX-Request", "true"); resp.StatusCode != 401 {
		t.Fatalf("a refresh without a session answers %d; the page can't know that it has ended", resp.StatusCode)
	}
}

func TestADrainedServerIsBurntInFromItsPage(t *testing.T) {
	t.Parallel()
	p := start(t)
	id := enrolled(t, p)
	v := visit(t, p).signIn(schema.RoleOperator, "", "")
	page := "/ui/servers/" + id
	burnIn := `action="` + page + `/burnin"`
	offered := func(want bool) {
		t.Helper()
		if _, body := v.do("GET", page, nil); strings.Contains(body, burnIn) != want {
			t.Fatalf("the burn-in is offered: %v, want %v: %s", !want, want, body)
		}
	}
	in := func(phase schema.Phase) { t.Helper(); inPhase(t, p, id, phase) }
	offered(false)
	v.do("POST", page+"/onboard", url.Values{})
	in(schema.PhaseAvailable)
	offered(false) // it is proven, and may hold jobs: drain it first
	v.do("POST", page+"/drain", url.Values{"reason": {"doubted"}})
	offered(true)
	if resp, body := v.do("POST", page+"/burnin", url.Values{}); resp.StatusCode != 200 {
		t.Fatalf("the burn-in answers %d: %s", resp.StatusCode, body)
	}
	in(schema.PhaseAvailable)
	repairs, err := p.Store.Repairs(t.Context(), store.RepairFilter{Server: id})
	if err != nil || len(repairs) != 1 || repairs[0].State != schema.RepairReturned {
		t.Fatalf("%v, %+v", err, repairs)
	}
}

func TestAChangeIsToldToOpenPages(t *testing.T) {
	t.Parallel()
	p := start(t)
	v := visit(t, p).signIn(schema.RoleOperator, "", "")
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	r, err := http.NewRequestWithContext(ctx, "GET", p.URL+"/ui/changes", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := v.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := resp.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Fatalf("it is %q", got)
	}
	lines := bufio.NewScanner(resp.Body)
	if !lines.Scan() || lines.Text() != ": here" {
		t.Fatalf("it begins with %q", lines.Text())
	}
	enrolled(t, p)
	for lines.Scan() {
		if lines.Text() == "event: changed" {
			return
		}
	}
	t.Fatalf("the change was not told: %v", lines.Err())
}

func TestAnOpenPageDoesNotHoldUpTheEnd(t *testing.T) {
	t.Parallel()
	p, err := testpool.Start()
	if err != nil {
		t.Fatal(err)
	}
	v := visit(t, p).signIn(schema.RoleOperator, "", "")
	resp, err := v.http.Get(p.URL + "/ui/changes")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	begin := time.Now()
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > 5*time.Second {
		t.Fatalf("the end took %s", d)
	}
}

func TestFilesAreKeptByTheirContent(t *testing.T) {
	t.Parallel()
	p := start(t)
	v := visit(t, p)
	_, body := v.do("GET", "/login", nil)
	_, rest, ok := strings.Cut(body, `href="/static/app.css`)
	if !ok {
		t.Fatal(body)
	}
	query, _, _ := strings.Cut(rest, `"`)
	if resp, css := v.do("GET", "/static/app.css"+query, nil); !strings.Contains(resp.Header.Get("Cache-Control"), "immutable") || !strings.Contains(css, ":root") {
		t.Fatalf("%v", resp.Header)
	}
	if resp, _ := v.do("GET", "/static/app.css?v=old", nil); resp.Header.Get("Cache-Control") != "" {
		t.Fatalf("an old address is kept: %v", resp.Header)
	}
	for _, path := range []string{"/static/", "/static/../console.go", "/static/nothing.js"} {
		if resp, body := v.do("GET", path, nil); resp.StatusCode != 404 {
			t.Errorf("%s answers %d: %s", path, resp.StatusCode, body)
		}
	}
}

// A technician's whole work at a server, as a browser without script sends it.
func TestATechnicianClaimsLightsPhotographsAndGivesUp(t *testing.T) {
	t.Parallel()
	p := start(t)
	id := enrolled(t, p)
	op := visit(t, p).signIn(schema.RoleOperator, "", "")
	op.do("POST", "/ui/servers/"+id+"/onboard", url.Values{})
	inPhase(t, p, id, schema.PhaseAvailable)
	r, err := p.Break(t.Context(), "r1s1", "SXM4")
	if err != nil {
		t.Fatal(err)
	}
	v := visit(t, p).signIn(schema.RoleTechnician, "", "")
	page := "/ui/repairs/" + r.ID
	if _, body := v.do("GET", page, nil); strings.Contains(body, "/done") || strings.Contains(body, "/drain-now") {
		t.Fatalf("before it waits it offers: %s", body)
	}
	if _, err := p.Store.RepairDrained(t.Context(), r.ID, store.Until{}); err != nil {
		t.Fatal(err)
	}
	says := func(what, body, want string) {
		t.Helper()
		if !strings.Contains(body, want) {
			t.Fatalf("after %s it does not say %q: %s", what, want, body)
		}
	}
	_, body := v.do("POST", page+"/claim", url.Values{})
	says("the claim", body, "It is yours.")
	says("the claim", body, "By you since")
	_, other := op.do("GET", page, nil)
	says("the claim", other, "Take it over from v-technician")
	_, body = v.do("POST", page+"/light-on", url.Values{})
	says("the light", body, "being switched on for v-technician")

	_, body = v.upload(page+"/done", map[string]string{"note": "seated twice", "did": "reseated", "new_serial": "NEW"}, "label.png", "not a picture")
	says("a photo that is none", body, "not those of a picture")
	says("a photo that is none", body, "seated twice")
	_, body = v.upload(page+"/done", map[string]string{"note": "seated twice", "did": "reseated", "new_serial": "NEW"}, "label.png", pixel)
	says("a word that contradicts itself", body, "Did: &#34;reseated&#34; is not valid")
	says("a word that contradicts itself", body, `<option value="reseated" selected`)
	says("a photo", body, `<img src="/v1/repairs/`+r.ID+`/photos/`)
	_, body = v.do("POST", page+"/photo", url.Values{})
	says("no photo", body, "no photo was chosen")

	_, body = v.do("POST", page+"/could-not-fix", url.Values{"why": {" "}})
	says("no reason", body, "what was tried and why it did not help")
	_, body = v.do("POST", page+"/could-not-fix", url.Values{"why": {"no spare is here"}})
	says("giving up", body, "Operators are called. The server stays out.")
	says("giving up", body, "no spare is here")
	_, body = v.do("GET", "/ui/repairs", nil)
	says("giving up", body, "Could not be fixed: operators decide")
	if s, err := p.Store.Server(t.Context(), id); err != nil || s.Phase != schema.PhaseRepairing || s.FailureCode == "" {
		t.Fatalf("the server is %s with failure %q, %v", s.Phase, s.FailureCode, err)
	}
}

func TestAPartIsFollowedToItsMakerAndBack(t *testing.T) {
	t.Parallel()
	p := start(t)
	m, err := p.Store.OpenRMA(t.Context(), "GPU-77", "dead on arrival", "op")
	if err != nil {
		t.Fatal(err)
	}
	v := visit(t, p).signIn(schema.RoleTechnician, "", "")
	page := "/ui/parts/" + m.ID
	for _, c := range []struct {
		form url.Values
		want string
	}{
		{url.Values{"state": {"shipped"}}, "the maker&#39;s case number"},
		{url.Values{"state": {"shipped"}, "vendor_case": {"C-20871"}}, "C-20871"},
		{url.Values{"state": {"replaced"}}, "the serial of the part that came"},
		{url.Values{"state": {"replaced"}, "serial_in": {"GPU-77"}}, "another serial than the one that went out"},
		{url.Values{"state": {"replaced"}, "serial_in": {"GPU-78"}}, "GPU-78"},
	} {
		if _, body := v.do("POST", page+"/set", c.form); !strings.Contains(body, c.want) {
			t.Fatalf("%v: it does not say %q: %s", c.form, c.want, body)
		}
	}
	if _, body := v.do("GET", "/ui/parts", nil); !strings.Contains(body, "GPU-78") || !strings.Contains(body, "Nothing was repaired.") {
		t.Fatalf("parts: %s", body)
	}
	if _, body := v.do("GET", "/ui/times", nil); !strings.Contains(body, "no repair yet") || !strings.Contains(body, "not known yet") {
		t.Fatalf("times: %s", body)
	}
	if m, err = p.Store.RMA(t.Context(), m.ID); err != nil || m.State != schema.RMAReplaced || m.ClosedAt == 0 {
		t.Fatalf("%+v, %v", m, err)
	}
}

// pixel is a JPEG of one.
var pixel = func() string {
	var b bytes.Buffer
	if err := jpeg.Encode(&b, image.NewGray(image.Rect(0, 0, 1, 1)), nil); err != nil {
		panic(err)
	}
	return b.String()
}()

// upload sends a form with a file, as a browser does.
func (v *visitor) upload(path string, fields map[string]string, name, content string) (*http.Response, string) {
	v.t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for k, x := range fields {
		if err := w.WriteField(k, x); err != nil {
			v.t.Fatal(err)
		}
	}
	part, err := w.CreatePart(textproto.MIMEHeader{"Content-Disposition": {`form-data; name="photo"; filename="` + name + `"`}, "Content-Type": {"image/jpeg"}})
	if err == nil {
		_, err = io.WriteString(part, content)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		v.t.Fatal(err)
	}
	return v.send("POST", path, &b, "Content-Type", w.FormDataContentType(), "Origin", v.pool.URL)
}

func inPhase(t *testing.T, p *testpool.Pool, id string, phase schema.Phase) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	for {
		s, err := p.Store.Server(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if s.Phase == phase {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("it stays %s, want %s", s.Phase, phase)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func enrolled(t *testing.T, p *testpool.Pool) string {
	t.Helper()
	s, err := p.Store.EnrollServers(t.Context(), "test", p.Ring, []store.NewServer{{
		Name: "r1s1", Region: testpool.Region, Site: "ams1", Rack: "r1", Unit: 11, Serial: "J1", MACs: []string{"02:00:00:00:00:01"},
		BMCAddress: "https://10.0.0.1", BMCUsername: "admin", BMCPassword: "secret", Model: "nvidia-h100-80gb", Accelerators: 8, CPUs: 96, MemoryBytes: 2 << 40,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return s[0].ID
}

// tenant makes the tenants research and vision, and a waiting job of research whose name is not harmless.
func tenant(t *testing.T, p *testpool.Pool) string {
	t.Helper()
	ctx := t.Context()
	if _, err := p.Store.CreateSpec(ctx, "test", store.NewSpec{Name: "h100x8", Model: "nvidia-h100-80gb", Accelerators: 8}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"research", "vision"} {
		if _, err := p.Store.CreateTenant(ctx, "test", name, 100); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Store.CreateProject(ctx, "test", name, "llm"); err != nil {
			t.Fatal(err)
		}
	}
	j, _, err := p.Store.SubmitJob(ctx, "alice", "", "", store.NewJob{Tenant: "research", Project: "llm", Name: "train<script>alert(1)</script>", Spec: "h100x8", Nodes: 1, Command: []string{"sleep", "1"}})
	if err != nil {
		t.Fatal(err)
	}
	return j.ID
}
