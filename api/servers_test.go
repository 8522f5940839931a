package api_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"gpupool/api/auth"
	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

func TestVerbsOfOnboardingReachTheProcessOrSayWhyNot(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	ctx := t.Context()
	in, err := p.store.EnrollServers(ctx, "test", storetest.Ring(t), []store.NewServer{storetest.NewServer(1, model, 8)})
	p.must(err)
	at := "/v1/servers/" + in[0].Name + "/actions/"
	wantProblem(t, p.op("POST", at+"retry", ""), schema.CodeConflict, "", "enrolled", "not onboarding")
	p.op("POST", at+"protect", "")
	wantProblem(t, p.op("POST", at+"onboard", ""), schema.CodeUnsafe, "", "protected")
	p.op("POST", at+"unprotect", "")
	if a := p.op("POST", at+"onboard", `{"profile":"debian-13"}`); a.status != http.StatusAccepted {
		t.Fatalf("onboard got %d %s", a.status, a.body)
	}
	_, err = p.store.BeginOnboarding(ctx, in[0].ID, "test")
	p.must(err)
	wantProblem(t, p.op("POST", at+"onboard", ""), schema.CodeConflict, "", "onboarding already")
	for _, c := range [][2]string{{"retry", ""}, {"skip", `{"step":"burn-in","reason":"bench machine"}`}, {"abort", ""}} {
		if a := p.op("POST", at+c[0], c[1]); a.status != http.StatusAccepted {
			t.Fatalf("%s got %d %s", c[0], a.status, a.body)
		}
	}
	p.verbs.mu.Lock()
	asked := strings.Join(p.verbs.asked, "; ")
	p.verbs.err = schema.Conflict("step inspect has not stopped", "wait for it")
	p.verbs.mu.Unlock()
	if want := `onboard r1s1 debian-13 op; retry r1s1 op; skip r1s1 burn-in "bench machine" op; abort r1s1 op`; asked != want {
		t.Errorf("the process was asked %s; want %s", asked, want)
	}
	wantProblem(t, p.op("POST", at+"retry", ""), schema.CodeConflict, "", "has not stopped", "wait for it")
	p.verbs.mu.Lock()
	p.verbs.err = errors.New("dial tcp 10.0.0.7:7233: connection refused")
	p.verbs.mu.Unlock()
	a := p.op("POST", at+"retry", "")
	got := wantProblem(t, a, schema.CodeInternal, "")
	if strings.Contains(string(a.body), "10.0.0.7") {
		t.Errorf("the answer shows an internal cause: %s", a.body)
	}
	if log := p.log.String(); !strings.Contains(log, "10.0.0.7") || !strings.Contains(log, got.RequestId) {
		t.Errorf("the log does not hold the cause with the request's id %s: %s", got.RequestId, log)
	}
}

func TestAServerIsCordonedDrainedAndTakenBack(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	v := storetest.Available(t, p.store, 1, model, 8)
	at := "/v1/servers/" + v.Name + "/actions/"
	c := read[contract.Cordon](t, p.op("POST", at+"cordon", `{"accelerator":"r1s1-G3","reason":"noisy fan"}`), http.StatusOK)
	if c.Owner != schema.CordonOperator || c.Accelerator == "" || c.By != "op" {
		t.Errorf("the cordon is %+v", c)
	}
	wantProblem(t, p.op("POST", at+"cordon", `{"accelerator":"r1s1-G9","reason":"x"}`), schema.CodeNotFound, "", "r1s1-G9")
	wantProblem(t, p.op("POST", at+"uncordon", ""), schema.CodeConflict, "", "no cordon")
	if list := read[contract.CordonList](t, p.op("GET", "/v1/cordons?server="+v.Name, ""), http.StatusOK); len(list.Items) != 1 {
		t.Errorf("cordons: %+v", list.Items)
	}
	read[contract.Server](t, p.op("POST", at+"uncordon", `{"accelerator":"r1s1-G3"}`), http.StatusOK)
	if d := read[contract.Server](t, p.op("POST", at+"drain", `{"reason":"new rails"}`), http.StatusAccepted); d.Phase != schema.PhaseDraining {
		t.Errorf("draining: %s", d.Phase)
	}
	wantProblem(t, p.op("POST", at+"onboard", ""), schema.CodeConflict, "", "draining")
	if d := read[contract.Server](t, p.op("POST", at+"undrain", ""), http.StatusOK); d.Phase != schema.PhaseAvailable {
		t.Errorf("undrained: %s", d.Phase)
	}
	acc := read[contract.AcceleratorList](t, p.op("GET", "/v1/accelerators?limit=5&server="+v.Name, ""), http.StatusOK)
	rest := read[contract.AcceleratorList](t, p.op("GET", "/v1/accelerators?limit=5&server="+v.Name+"&after="+acc.Next, ""), http.StatusOK)
	if len(acc.Items) != 5 || len(rest.Items) != 3 || rest.Next != "" {
		t.Errorf("accelerators come as %d and %d", len(acc.Items), len(rest.Items))
	}
	o := read[contract.Overview](t, p.op("GET", "/v1/overview", ""), http.StatusOK)
	if len(o.Models) != 1 || o.Models[0].Installed != 8 || o.Models[0].Idle != 8 || o.Servers["available"] != 1 {
		t.Errorf("the overview is %+v", o)
	}
	steps := read[contract.StepList](t, p.op("GET", "/v1/servers/"+v.ID+"/steps", ""), http.StatusOK)
	if steps.Attempt != 1 || len(steps.Items) == 0 {
		t.Errorf("steps: %+v", steps)
	}
	wantProblem(t, p.op("GET", "/v1/servers/"+v.ID+"/steps?attempt=2", ""), schema.CodeInvalid, "attempt")
}

func TestAServersWaitEndsWithItsNextChange(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	v := storetest.Available(t, p.store, 1, model, 8)
	got := make(chan answer, 1)
	go func() { got <- p.op("GET", fmt.Sprintf("/v1/servers/%s?wait=20s&since=%d", v.Name, v.Version), "") }()
	p.waiting(1)
	begin := time.Now()
	p.op("POST", "/v1/servers/"+v.Name+"/actions/protect", "")
	if now := read[contract.Server](t, <-got, http.StatusOK); !now.Protected || time.Since(begin) > 5*time.Second {
		t.Errorf("after %s: %+v", time.Since(begin), now)
	}
}

func TestDoneIsRefusedForARepairThatDoesNotWait(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	ctx := t.Context()
	_, v := p.agent(1)
	tech := p.tokens[auth.Technician]
	wantProblem(t, p.send(tech, "POST", "/v1/repairs/rep_none/actions/done", "{}"), schema.CodeNotFound, "")
	wantProblem(t, p.send(tech, "POST", "/v1/repairs/"+v.Name+"/actions/done", "{}"), schema.CodeConflict, "", v.Name, "not in repair", "available")
	j := p.submit(aJob)
	p.start(j.Id, 1, v) // it keeps the server from being drained
	accs, err := p.store.Accelerators(ctx, store.AcceleratorFilter{Server: v.ID})
	p.must(err)
	p.must(p.store.ReportFault(ctx, v.ID, schema.Fault{Accelerator: accs[0].ID, Source: "agent", Kind: "xid", Code: "79", Severity: schema.SeverityCritical, Text: "fell off the bus", Dedupe: "d1", At: p.store.Now()}))
	faults := read[contract.FaultList](t, p.send(tech, "GET", "/v1/faults?server="+v.Name, ""), http.StatusOK)
	if len(faults.Items) != 1 {
		t.Fatalf("faults: %+v", faults)
	}
	_, err = p.store.Judge(ctx, faults.Items[0].ID, store.Verdict{Action: schema.ActionRepair, Why: "xid 79"})
	p.must(err)
	list := read[contract.RepairList](t, p.send(tech, "GET", "/v1/repairs?open=true", ""), http.StatusOK)
	if len(list.Items) != 1 {
		t.Fatalf("repairs: %+v", list)
	}
	if r := read[schema.Repair](t, p.send(tech, "GET", "/v1/repairs/"+v.Name, ""), http.StatusOK); r.ID != list.Items[0].ID {
		t.Errorf("the server's repair is %s, want %s", r.ID, list.Items[0].ID)
	}
	wantProblem(t, p.send(tech, "POST", "/v1/repairs/"+v.Name+"/actions/done", "{}"), schema.CodeConflict, "", list.Items[0].ID, "draining")
	at := "/v1/repairs/" + list.Items[0].ID + "/actions/done"
	wantProblem(t, p.send(tech, "POST", at, `{"old_serial":"r1s1-G0","new_serial":"NEW1"}`), schema.CodeConflict, "", "draining")
	wantProblem(t, p.send(tech, "POST", at, `{"old_serail":"r1s1-G0"}`), schema.CodeInvalid, "old_serail")
	p.verbs.mu.Lock()
	asked := len(p.verbs.asked)
	p.verbs.mu.Unlock()
	if asked != 0 {
		t.Error("a refused word reached the process")
	}
}

func TestUsageIsTheLedgersAndReadsAsCSV(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	v := storetest.Available(t, p.store, 1, model, 8)
	j := p.submit(aJob)
	p.start(j.Id, 1, v)
	p.must(p.store.RequestStop(t.Context(), j.Id, 1, schema.AttemptCancelled, "test", "enough"))
	_, err := p.store.SettleAttempt(t.Context(), j.Id, 1, nil)
	p.must(err)
	rows, err := p.store.Ledger(t.Context(), j.Id)
	p.must(err)
	var sum int64
	for _, r := range rows {
		sum += r.Milliseconds()
	}
	u := read[contract.Usage](t, p.member("GET", "/v1/usage?by=tenant,spec,job", ""), http.StatusOK)
	if len(rows) != 8 || u.TotalGpuMs != sum || len(u.Items) != 1 || u.Items[0].Keys["job"] != j.Id || u.Items[0].Intervals != 8 {
		t.Errorf("usage is %+v; the ledger's %d rows sum to %d", u, len(rows), sum)
	}
	a := p.member("GET", "/v1/usage?by=tenant,spec", "", "Accept: text/csv")
	lines := strings.Split(strings.TrimSpace(string(a.body)), "\n")
	if a.status != http.StatusOK || len(lines) != 2 || !strings.HasPrefix(lines[0], "tenant,spec,gpu_ms") || !strings.HasPrefix(lines[1], fmt.Sprintf("acme,h100x8,%d,", u.Items[0].GpuMs)) {
		t.Errorf("as CSV: %d %s", a.status, a.body)
	}
	if other := read[contract.Usage](t, p.send(p.globex(), "GET", "/v1/usage", ""), http.StatusOK); other.TotalGpuMs != 0 || len(other.Items) != 0 {
		t.Errorf("globex sees %+v", other)
	}
}

func TestPolicyIsMadeChangedAndRead(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	read[contract.Spec](t, p.op("POST", "/v1/specs", `{"name":"mi300x.8","model":"amd-mi300x-192gb","accelerators":8,"cpus":96}`), http.StatusCreated)
	wantProblem(t, p.op("POST", "/v1/specs", `{"name":"mi300x.8","model":"amd-mi300x-192gb","accelerators":8}`), schema.CodeConflict, "")
	if s := read[contract.Spec](t, p.op("POST", "/v1/specs/mi300x.8/actions/retire", ""), http.StatusOK); s.RetiredAt == 0 {
		t.Error("the spec is not retired")
	}
	storetest.Available(t, p.store, 1, model, 8)
	w := read[schema.Window](t, p.op("POST", "/v1/windows", `{"kind":"reservation","servers":["r1s1"],"tenant":"acme","until":"2099-01-01T00:00:00Z"}`), http.StatusCreated)
	if l := read[contract.WindowList](t, p.member("GET", "/v1/windows", ""), http.StatusOK); len(l.Items) != 1 || l.Items[0].ID != w.ID || len(w.Servers) != 1 {
		t.Errorf("acme sees windows %+v", l.Items)
	}
	globex := p.globex()
	if l := read[contract.WindowList](t, p.send(globex, "GET", "/v1/windows", ""), http.StatusOK); len(l.Items) != 0 {
		t.Errorf("globex sees acme's windows %+v", l.Items)
	}
	m := read[schema.Window](t, p.op("POST", "/v1/windows", `{"kind":"maintenance","servers":["r1s1"],"from":"2098-01-01T00:00:00Z"}`), http.StatusCreated)
	if l := read[contract.WindowList](t, p.send(globex, "GET", "/v1/windows", ""), http.StatusOK); len(l.Items) != 1 || len(l.Items[0].Servers) != 0 || l.Items[0].Count != 1 {
		t.Errorf("globex sees of maintenance %+v, not just that it is of one server", l.Items)
	}
	if l := read[contract.WindowList](t, p.op("GET", "/v1/windows", ""), http.StatusOK); len(l.Items) != 2 || !slices.Equal(l.Items[1].Servers, m.Servers) {
		t.Errorf("an operator sees windows %+v", l.Items)
	}
	wantProblem(t, p.op("POST", "/v1/windows", `{"kind":"maintenance","servers":["r1s1","nobody"]}`), schema.CodeNotFound, "")
	wantProblem(t, p.op("POST", "/v1/windows", `{"kind":"maintenance","servers":["r1s1"],"until":"2000-01-01T00:00:00Z"}`), schema.CodeInvalid, "until")
	if a := p.op("DELETE", "/v1/windows/"+w.ID, ""); a.status != http.StatusNoContent {
		t.Errorf("the window is deleted with %d", a.status)
	}
	pr := read[schema.Project](t, p.op("PATCH", "/v1/tenants/acme/projects/main", `{"weight":3,"max_running_jobs":5}`), http.StatusOK)
	if pr.Weight != 3 || pr.MaxRunningJobs != 5 || pr.MaxPriority != 1000 {
		t.Fatalf("the project is %+v", pr)
	}
	if x := read[contract.Tenant](t, p.op("PATCH", "/v1/tenants/acme", `{"max_priority":7}`), http.StatusOK); x.MaxPriority != 7 {
		t.Errorf("the tenant is %+v", x)
	}
	read[contract.Quota](t, p.op("PUT", "/v1/quotas", `{"tenant":"acme","model":"`+model+`","limit":16}`), http.StatusOK)
	read[contract.Quota](t, p.op("PUT", "/v1/quotas", `{"tenant":"globex","model":"`+model+`","limit":8}`), http.StatusOK)
	if q := read[contract.QuotaList](t, p.member("GET", "/v1/quotas", ""), http.StatusOK); len(q.Items) != 1 || q.Items[0].Limit != 16 {
		t.Errorf("acme sees quotas %+v", q.Items)
	}
	if q := p.op("DELETE", "/v1/quotas?tenant=globex&model="+model, ""); q.status != http.StatusNoContent {
		t.Errorf("removing a quota got %d %s", q.status, q.body)
	}
	wantProblem(t, p.op("DELETE", "/v1/quotas?tenant=globex", ""), schema.CodeInvalid, "model")
	read[contract.Project](t, p.send(p.tokens[auth.TenantAdmin], "POST", "/v1/tenants/acme/projects", `{"name":"vision"}`), http.StatusCreated)
	if l := read[contract.ProjectList](t, p.member("GET", "/v1/tenants/acme/projects", ""), http.StatusOK); len(l.Items) != 3 {
		t.Errorf("projects: %+v", l.Items)
	}
	if l := read[contract.TenantList](t, p.member("GET", "/v1/tenants", ""), http.StatusOK); len(l.Items) != 1 || l.Items[0].Name != "acme" {
		t.Errorf("acme sees tenants %+v", l.Items)
	}
	if a := p.send("", "GET", "/openapi.yaml", ""); a.status != http.StatusOK || !strings.HasPrefix(string(a.body), "openapi: 3.1") {
		t.Errorf("the contract: %d", a.status)
	}
	for _, at := range []string{"/healthz", "/readyz"} {
		if a := p.send("", "GET", at, ""); a.status != http.StatusOK {
			t.Errorf("%s got %d", at, a.status)
		}
	}
}
