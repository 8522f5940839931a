package console_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"gpupool/api/testpool"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// says fails where a page lacks one of some texts, or has one that begins with "!".
func (v *visitor) says(body string, texts ...string) {
	v.t.Helper()
	for _, s := range texts {
		if want, has := strings.CutPrefix(s, "!"); has == strings.Contains(body, want) {
			v.t.Fatalf("of %q, the page says:\n%s", s, body)
		}
	}
}

func TestAnOperatorStopsAndStartsAQueueFromItsPage(t *testing.T) {
	t.Parallel()
	p := start(t)
	enrolled(t, p)
	tenant(t, p)
	v := visit(t, p).signIn(schema.RoleOperator, "", "")
	_, body := v.do("GET", "/ui/queue", nil)
	v.says(body, "No queue is stopped", "None now and none to come", "No arrays", `action="/ui/queue/stop"`)

	_, body = v.do("POST", "/ui/queue/stop", url.Values{"stop_why": {"the store's filers are swapped"}})
	v.says(body, "It is not said which queue", `value="the store&#39;s filers are swapped"`, "the whole pool", `hx-get="/ui/queue?shape="`)
	_, body = v.do("POST", "/ui/queue/stop", url.Values{"stop_why": {"x"}, "stop_tenant": {"research"}, "stop_all": {"on"}})
	v.says(body, "It is not said which queue")
	_, body = v.do("POST", "/ui/queue/stop", url.Values{"stop_why": {"x"}, "stop_tenant": {"research"}, "stop_until": {"soon"}})
	v.says(body, "Until: &#34;soon&#34; is not valid", `value="research"`)
	_, body = v.do("POST", "/ui/queue/stop", url.Values{"stop_why": {"x"}, "stop_tenant": {"nobody"}})
	v.says(body, "No tenant", `role="alert"`)
	if stops, err := p.Store.Stops(t.Context()); err != nil || len(stops) != 0 {
		t.Fatalf("refused forms have made %+v, %v", stops, err)
	}

	until := time.Now().UTC().Add(48 * time.Hour).Truncate(time.Minute)
	_, body = v.do("POST", "/ui/queue/stop", url.Values{"stop_why": {"filers <b>"}, "stop_tenant": {"research"}, "stop_until": {until.Format("2006-01-02T15:04")}})
	v.says(body, "The queue is stopped", "tenant research", "filers &lt;b&gt;", until.Format("2006-01-02 15:04:05Z"), `href="/ui/jobs?show=waiting&amp;tenant=research"`)
	stops, err := p.Store.Stops(t.Context())
	if err != nil || len(stops) != 1 || stops[0].Until.Time() != until || stops[0].By != "v-operator" {
		t.Fatalf("%+v, %v", stops, err)
	}
	_, body = v.do("POST", "/ui/queue/stop", url.Values{"stop_why": {"again"}, "stop_tenant": {"research"}})
	v.says(body, "is stopped by v-operator")
	_, body = v.do("POST", "/ui/queue/stops/"+stops[0].ID+"/start", url.Values{})
	v.says(body, "The queue is started", "No queue is stopped")
	_, body = v.do("POST", "/ui/queue/stop", url.Values{"stop_why": {"all of it"}, "stop_all": {"on"}})
	v.says(body, "The queue is stopped", "everything")
}

func TestAnOperatorKeepsServersFreeFromTheQueuesPage(t *testing.T) {
	t.Parallel()
	p := start(t)
	id := enrolled(t, p)
	tenant(t, p)
	v := visit(t, p).signIn(schema.RoleOperator, "", "")
	_, body := v.do("POST", "/ui/queue/window", url.Values{"window_servers": {"r1s1, r9s9"}, "window_note": {"new fans"}})
	v.says(body, "No server &#34;r9s9&#34;.", "!That did not work") // the page, with what was typed
	_, body = v.do("POST", "/ui/queue/window", url.Values{"window_servers": {"r1s1"}, "window_note": {"new fans"}})
	v.says(body, "The window is made", "maintenance", ">now<", "new fans", "it is ended", `href="/ui/servers/`+id+`">r1s1<`)
	_, body = v.do("POST", "/ui/queue/window", url.Values{"window_servers": {"r1s1"}, "window_tenant": {"research"}, "window_from": {"2099-01-01T00:00"}})
	v.says(body, "reservation", "2099-01-01 00:00:00Z", "research")
	windows, err := p.Store.Windows(t.Context())
	if err != nil || len(windows) != 2 || windows[0].Kind != schema.WindowMaintenance || windows[1].Tenant != "research" {
		t.Fatalf("%+v, %v", windows, err)
	}
	_, body = v.do("POST", "/ui/queue/windows/"+windows[0].ID+"/end", url.Values{})
	v.says(body, "The window is gone", "!new fans")
	if left, err := p.Store.Windows(t.Context()); err != nil || len(left) != 1 {
		t.Fatalf("%+v, %v", left, err)
	}
}

func TestAnArrayIsSteeredFromItsPage(t *testing.T) {
	t.Parallel()
	p := start(t)
	enrolled(t, p)
	tenant(t, p)
	sweep(t, p, "research")
	v := visit(t, p).signIn(schema.RoleTenantMember, "research", "")
	_, body := v.do("GET", "/ui/queue", nil)
	v.says(body, `href="/ui/arrays/research/llm/sweep"`, "0 of at most 2", "5 queued", `!action="/ui/queue/stop"`)
	page := "/ui/arrays/research/llm/sweep"
	_, body = v.do("POST", page+"/limit", url.Values{"limit": {"3"}})
	v.says(body, "The array&#39;s limit is changed", "0 of at most 3", `value="3"`)
	_, body = v.do("POST", page+"/limit", url.Values{"limit": {"-1"}})
	v.says(body, `role="alert"`, `value="-1"`, "0 of at most 3")
	_, body = v.do("POST", page+"/limit", url.Values{"limit": {"many"}})
	v.says(body, "a whole number", "0 of at most 3")
	_, body = v.do("POST", page+"/hold-all", url.Values{})
	v.says(body, "queued jobs are held", "5 queued (5 held)", page+"/release-all", "!"+page+"/hold-all")
	_, body = v.do("POST", page+"/release-all", url.Values{})
	v.says(body, "jobs may start", page+"/hold-all", "!"+page+"/release-all")
	_, body = v.do("GET", "/ui/jobs?show=all&tenant=research&project=llm&array=sweep", nil)
	v.says(body, "sweep-4", "Only of tenant research, project llm, array sweep", "!train")
	_, body = v.do("POST", page+"/cancel-all", url.Values{})
	v.says(body, "being cancelled", "5 cancelled", "!"+page+"/cancel-all")
	_, body = v.do("GET", "/ui/queue", nil)
	v.says(body, "No arrays")
	_, body = v.do("GET", "/ui/queue?arrays=all", nil)
	v.says(body, "5 cancelled")
}

func TestTheQueuesPageShowsEachItsOwnAndNoButtonsThatAreNotTheirs(t *testing.T) {
	t.Parallel()
	p := start(t)
	id := enrolled(t, p)
	tenant(t, p)
	sweep(t, p, "research")
	ctx := t.Context()
	for _, s := range []schema.Stop{{Tenant: "research", Why: "research-secret"}, {Spec: "h100x8", Why: "for-all-to-read"}} {
		if _, err := p.Store.StopQueue(ctx, "test", s); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range []schema.Window{
		{Kind: schema.WindowReservation, Servers: []string{id}, Tenant: "research", Note: "secret-conference"},
		{Kind: schema.WindowMaintenance, Servers: []string{id}, Note: "open-maintenance", From: schema.At(time.Now().Add(time.Hour))},
	} {
		if _, err := p.Store.CreateWindow(ctx, "test", w); err != nil {
			t.Fatal(err)
		}
	}
	const button, form = "<button>", `method="post" action="/ui/`
	for _, c := range []struct {
		role   schema.Role
		tenant string
		says   []string
	}{
		{schema.RoleOperator, "", []string{"research-secret", "secret-conference", "sweep", button, form, "/start", "/end"}},
		{schema.RoleViewer, "", []string{"research-secret", "secret-conference", "sweep", ">r1s1<", "!" + button, "!" + form}},
		{schema.RoleTechnician, "", []string{"research-secret", "secret-conference", ">r1s1<", "!sweep", "!" + button, "!" + form}},
		{schema.RoleTenantAdmin, "research", []string{"research-secret", "secret-conference", "sweep", "1 server", "!r1s1", "!" + id, "!" + button, "!" + form}},
		{schema.RoleTenantMember, "vision", []string{"for-all-to-read", "open-maintenance", "1 server", "!secret", "!research", "!sweep", "!r1s1", "!" + id, "!" + button, "!" + form}},
	} {
		v := visit(t, p).signIn(c.role, c.tenant, "")
		resp, body := v.do("GET", "/ui/queue", nil)
		if resp.StatusCode != 200 {
			t.Fatalf("%s: %d", c.role, resp.StatusCode)
		}
		v.says(body, c.says...)
		if c.role == schema.RoleOperator {
			continue
		}
		for path, form := range map[string]url.Values{"/ui/queue/stop": {"stop_why": {"mine"}, "stop_all": {"on"}}, "/ui/queue/window": {"window_servers": {"r1s1"}}} {
			if _, body := v.do("POST", path, form); !strings.Contains(body, "may not do this") {
				t.Fatalf("%s, %s: %s", c.role, path, body)
			}
		}
	}
	v := visit(t, p).signIn(schema.RoleViewer, "research", "")
	_, body := v.do("GET", "/ui/arrays/research/llm/sweep", nil)
	v.says(body, "0 of at most 2", "!"+form)
	v = visit(t, p).signIn(schema.RoleTenantMember, "vision", "llm")
	_, body = v.do("GET", "/ui/arrays/research/llm/sweep", nil)
	v.says(body, "No tenant", "!at most")
	for _, verb := range []string{"cancel-all", "hold-all", "limit"} {
		_, body = v.do("POST", "/ui/arrays/research/llm/sweep/"+verb, url.Values{"limit": {"9"}})
		v.says(body, "No tenant")
	}
	if a, err := p.Store.Array(ctx, "research", "llm", "sweep"); err != nil || a.Limit != 2 || a.Held != 0 || a.States[schema.JobQueued] != 5 {
		t.Fatalf("another tenant changed it: %+v, %v", a, err)
	}
	if stops, err := p.Store.Stops(ctx); err != nil || len(stops) != 2 {
		t.Fatalf("%+v, %v", stops, err)
	}
}

func TestABreakerIsResetFromItsPage(t *testing.T) {
	t.Parallel()
	p := start(t)
	ctx := t.Context()
	id := breaker(t, p)
	open, err := p.Store.Breakers(ctx, true)
	if err != nil || len(open) != 1 || open[0].ID != id || len(open[0].Held) != 1 {
		t.Fatalf("%+v, %v", open, err)
	}
	page, server := "/ui/breakers/"+id, open[0].Held[0].Server
	form := `action="` + page + `/reset"`

	viewer := visit(t, p).signIn(schema.RoleViewer, "", "")
	_, body := viewer.do("GET", page, nil)
	viewer.says(body, "code xid/79", "fell off the bus", `href="/ui/servers/`+server+`"`, "!"+form)
	_, body = viewer.do("POST", page+"/reset", url.Values{"reason": {"mine"}})
	viewer.says(body, "may not do this")

	v := visit(t, p).signIn(schema.RoleOperator, "", "")
	for _, at := range []string{"/ui/", "/ui/servers/" + server} {
		_, body = v.do("GET", at, nil)
		v.says(body, `href="`+page+`"`, "then reset it")
	}
	_, body = v.do("POST", page+"/reset", url.Values{"reason": {" "}})
	v.says(body, `role="alert"`, form)
	if open, err = p.Store.Breakers(ctx, true); err != nil || len(open) != 1 {
		t.Fatalf("refused, and yet %+v, %v", open, err)
	}
	_, body = v.do("POST", page+"/reset", url.Values{"reason": {"a bad driver, rolled back"}})
	v.says(body, "The breaker is reset", "a bad driver, rolled back", "v-operator", "!"+form)
	if open, err = p.Store.Breakers(ctx, true); err != nil || len(open) != 0 {
		t.Fatalf("%+v, %v", open, err)
	}
	_, body = v.do("GET", "/ui/breakers/brk_none", nil)
	v.says(body, "No breaker")
}

// sweep is an array of five waiting jobs, at most two of them at once.
func sweep(t *testing.T, p *testpool.Pool, tenant string) {
	t.Helper()
	in := store.NewJob{Tenant: tenant, Project: "llm", Spec: "h100x8", Nodes: 1, Array: "sweep", ArrayLimit: 2, Command: []string{"true"}}
	a, _, err := p.Store.SubmitArray(t.Context(), "alice", "", "", in, []int{0, 1, 2, 3, 4})
	if err != nil || a.Jobs != 5 {
		t.Fatal(fmt.Sprintf("%+v", a), err)
	}
}

// breaker has as many servers fail alike as open a breaker, and answers its id.
func breaker(t *testing.T, p *testpool.Pool) string {
	t.Helper()
	ctx := t.Context()
	for n := range store.DefaultLimits.Alike {
		s := storetest.Available(t, p.Store, n+10, "nvidia-h100-80gb", 8)
		if err := p.Store.ReportFault(ctx, s.ID, schema.Fault{Source: "agent", Kind: "xid", Code: "79", Severity: schema.SeverityCritical, Text: "fell off the bus", Dedupe: s.ID, At: p.Store.Now()}); err != nil {
			t.Fatal(err)
		}
		faults, err := p.Store.Faults(ctx, s.ID)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Store.Judge(ctx, faults[0].ID, store.Verdict{Rule: "xid-79", Action: schema.ActionRepair, Why: "it is gone"}); err != nil {
			t.Fatal(err)
		}
	}
	open, err := p.Store.Breakers(ctx, true)
	if err != nil || len(open) == 0 {
		t.Fatalf("%+v, %v", open, err)
	}
	return open[0].ID
}
