package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"gpupool/api"
	"gpupool/api/auth"
	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// start places a job on a server's first accelerators, as the allocator would, and dispatches it.
func (p *pool) start(job string, attempt int, v schema.Server) {
	p.Helper()
	ctx := p.Context()
	epoch, err := p.store.TakeEpoch(ctx, "eu", "test")
	p.must(err)
	accs, err := p.store.Accelerators(ctx, store.AcceleratorFilter{Server: v.ID})
	p.must(err)
	place := store.Place{Server: v.ID}
	for _, a := range accs {
		place.Accelerators = append(place.Accelerators, a.ID)
	}
	refused, err := p.store.CommitCycle(ctx, "eu", epoch, store.Cycle{Number: 1, Starts: []store.Start{{Job: job, Attempt: attempt, Places: []store.Place{place}}}})
	p.must(err)
	if len(refused) > 0 {
		p.Fatalf("the start was refused: %+v", refused)
	}
	p.must(p.store.DispatchAttempt(ctx, job, attempt))
}

func TestASubmittedJobIsTheSameForTheSameKey(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	storetest.Available(t, p.store, 1, model, 8)
	first := p.submit(aJob, "Idempotency-Key: k1")
	if first.Tenant != "acme" || first.Nodes != 1 || first.Accelerators != 8 || first.Reason == nil || first.Reason.Code != schema.ReasonNotEvaluated {
		t.Fatalf("the job is %+v", first)
	}
	// other spacing and order is the same request
	again := read[contract.Job](t, p.member("POST", "/v1/jobs", `{ "command":["true"], "nodes":1, "spec":"h100x8", "project":"main" }`, "Idempotency-Key: k1"), http.StatusOK)
	if again.Id != first.Id {
		t.Errorf("the same key made %s and %s", first.Id, again.Id)
	}
	wantProblem(t, p.member("POST", "/v1/jobs", strings.Replace(aJob, "true", "false", 1), "Idempotency-Key: k1"), schema.CodeReused, "Idempotency-Key", first.Id)
	wantProblem(t, p.member("POST", "/v1/jobs", aJob, "Idempotency-Key: a b"), schema.CodeInvalid, "Idempotency-Key")
	// another tenant's same key is another job
	other := read[contract.Job](t, p.send(p.globex(), "POST", "/v1/jobs", aJob, "Idempotency-Key: k1"), http.StatusCreated)
	if other.Id == first.Id || other.Tenant != "globex" {
		t.Errorf("globex got %+v", other)
	}
	if list := read[contract.JobList](t, p.op("GET", "/v1/jobs", ""), http.StatusOK); len(list.Items) != 2 {
		t.Errorf("there are %d jobs, want 2", len(list.Items))
	}
}

func TestAnotherTenantsJobReadsLikeOneThatDoesNotExist(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	storetest.Available(t, p.store, 1, model, 8)
	j := p.submit(aJob)
	missing := "job_00000000000000000000000000"
	other := p.token(store.NewToken{Name: "m2", Role: schema.RoleTenantMember, Tenant: "acme", Project: "other"})
	globex := p.globex()
	for _, path := range []string{"GET /v1/jobs/%s", "GET /v1/jobs/%s?wait=10s", "GET /v1/jobs/%s/attempts", "GET /v1/jobs/%s/events", "GET /v1/jobs/%s/logs", "POST /v1/jobs/%s/actions/cancel",
		"POST /v1/jobs/%s/actions/hold", "POST /v1/jobs/%s/actions/release", "POST /v1/jobs/%s/actions/time-limit", "GET /v1/events?job=%s"} {
		method, at, _ := strings.Cut(path, " ")
		body := ""
		if strings.HasSuffix(at, "time-limit") {
			body = `{"time_limit_ms":1000}`
		}
		for who, token := range map[string]string{"another tenant": globex, "another project": other} {
			a, b := p.send(token, method, fmt.Sprintf(at, j.Id), body), p.send(token, method, fmt.Sprintf(at, missing), body)
			wantProblem(t, a, schema.CodeNotFound, "")
			if got, want := strings.ReplaceAll(string(a.body), j.Id, "ID"), strings.ReplaceAll(string(b.body), missing, "ID"); got != want {
				t.Errorf("%s, %s: a foreign job reads %s, a missing one %s", path, who, got, want)
			}
		}
	}
	for _, token := range []string{globex, other} {
		if list := read[contract.JobList](t, p.send(token, "GET", "/v1/jobs", ""), http.StatusOK); len(list.Items) != 0 {
			t.Errorf("the list shows %+v", list.Items)
		}
	}
	wantProblem(t, p.send(globex, "GET", "/v1/jobs?tenant=acme", ""), schema.CodeNotFound, "")
	wantProblem(t, p.send(globex, "GET", "/v1/usage?tenant=acme", ""), schema.CodeNotFound, "")
	wantProblem(t, p.send(globex, "GET", "/v1/events?tenant=acme", ""), schema.CodeNotFound, "")
	wantProblem(t, p.send(globex, "GET", "/v1/quotas?tenant=acme", ""), schema.CodeNotFound, "")
	wantProblem(t, p.send(globex, "GET", "/v1/tenants/acme/projects", ""), schema.CodeNotFound, "")
	wantProblem(t, p.send(globex, "POST", "/v1/tenants/acme/projects", `{"name":"x"}`), schema.CodeNotFound, "")
	wantProblem(t, p.send(globex, "POST", "/v1/jobs", `{"tenant":"acme",`+aJob[1:]), schema.CodeNotFound, "")
	if j := read[contract.Job](t, p.member("GET", "/v1/jobs/"+j.Id, ""), http.StatusOK); j.State != schema.JobQueued || j.Held {
		t.Errorf("a stranger's call changed the job: %+v", j)
	}
}

func TestTheEnvironmentIsTheTenantsAndTheOperators(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	storetest.Available(t, p.store, 1, model, 8)
	j := p.submit(`{"project":"main","spec":"h100x8","command":["true"],"env":{"KEY":"s3cret"}}`)
	for who, sees := range map[auth.Who]bool{auth.Operator: true, auth.Viewer: false, auth.TenantMember: true, auth.TenantViewer: true} {
		if a := p.send(p.tokens[who], "GET", "/v1/jobs/"+j.Id, ""); a.status != http.StatusOK || strings.Contains(string(a.body), "s3cret") != sees {
			t.Errorf("%s got %d %s; sees the environment: want %v", who, a.status, a.body, sees)
		}
	}
}

func TestJobsAreListedInPagesThatMissNone(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	storetest.Available(t, p.store, 1, model, 8)
	want := map[string]bool{}
	for range 7 {
		want[p.submit(aJob).Id] = true
	}
	after, pages := "", 0
	for {
		list := read[contract.JobList](t, p.member("GET", "/v1/jobs?limit=3&after="+after, ""), http.StatusOK)
		pages++
		for _, j := range list.Items {
			if !want[j.Id] {
				t.Fatalf("%s came twice", j.Id)
			}
			delete(want, j.Id)
		}
		if after = list.Next; after == "" {
			break
		}
	}
	if len(want) != 0 || pages != 3 {
		t.Errorf("%d jobs were missed in %d pages", len(want), pages)
	}
}

func TestALongPollReturnsWhenTheJobChangesAndNotBefore(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	storetest.Available(t, p.store, 1, model, 8)
	j, other := p.submit(aJob), p.submit(aJob)
	for _, c := range []struct{ name, at, verb string }{{"since a version", fmt.Sprintf("?wait=20s&since=%d", j.Version), "hold"}, {"since now", "?wait=20s", "release"}} {
		t.Run(c.name, func(t *testing.T) {
			got := make(chan answer, 1)
			go func() { got <- p.member("GET", "/v1/jobs/"+j.Id+c.at, "") }()
			p.waiting(1)
			if a := p.member("POST", "/v1/jobs/"+other.Id+"/actions/hold", ""); a.status != http.StatusOK { // news of another job is no news
				t.Fatal(a.status)
			}
			select {
			case a := <-got:
				t.Fatalf("it came back without a change: %s", a.body)
			case <-time.After(50 * time.Millisecond):
			}
			p.member("POST", "/v1/jobs/"+j.Id+"/actions/"+c.verb, "")
			select {
			case a := <-got:
				if now := read[contract.Job](t, a, http.StatusOK); now.Held != (c.verb == "hold") {
					t.Errorf("it came back with %+v", now)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the change did not end the wait")
			}
			p.member("POST", "/v1/jobs/"+other.Id+"/actions/release", "")
			j = read[contract.Job](t, p.member("GET", "/v1/jobs/"+j.Id, ""), http.StatusOK)
		})
	}
	begin := time.Now()
	a := p.member("GET", fmt.Sprintf("/v1/jobs/%s?wait=100ms&since=%d", j.Id, j.Version), "")
	if d := time.Since(begin); a.status != http.StatusOK || d < 100*time.Millisecond || d > 5*time.Second {
		t.Errorf("a wait of 100 ms for nothing took %s and gave %d", d, a.status)
	}
	if a := p.member("GET", "/v1/jobs/"+j.Id, "", "If-None-Match: "+a.header.Get("ETag")); a.status != http.StatusNotModified || len(a.body) != 0 {
		t.Errorf("an unchanged job gave %d %s", a.status, a.body)
	}
	p.member("POST", "/v1/jobs/"+j.Id+"/actions/cancel", "")
	begin = time.Now()
	if now := read[contract.Job](t, p.member("GET", "/v1/jobs/"+j.Id+"?wait=20s", ""), http.StatusOK); now.State != schema.JobCancelled || time.Since(begin) > 5*time.Second {
		t.Errorf("an ended job was waited for: %s after %s", now.State, time.Since(begin))
	}
	if a := p.member("POST", "/v1/jobs/"+j.Id+"/actions/cancel", ""); a.status != http.StatusAccepted { // again is no error
		t.Errorf("cancelling again gave %d %s", a.status, a.body)
	}
	wantProblem(t, p.member("POST", "/v1/jobs/"+j.Id+"/actions/hold", ""), schema.CodeConflict, "", "cancelled")
}

// waiting waits until n requests wait.
func (p *pool) waiting(n int) {
	p.Helper()
	eventually(p.T, fmt.Sprintf("%d requests waiting", n), func() bool {
		return strings.Contains(string(p.op("GET", "/metrics", "").body), fmt.Sprintf("gpupool_api_waiting %d\n", n))
	})
}

// sse reads a stream of events until stop says so, or the stream ends.
func (p *pool) sse(token, path string, headers []string, stop func(e schema.Event) bool) (events []schema.Event, ended bool) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", p.url+path, nil)
	p.must(err)
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Accept", "text/event-stream")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	resp, err := p.http.RoundTrip(req)
	p.must(err)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		p.Fatalf("%s answered %d %s", path, resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	in := bufio.NewScanner(resp.Body)
	var id, kind string
	for in.Scan() {
		name, value, _ := strings.Cut(in.Text(), ": ")
		switch name {
		case "id":
			id = value
		case "event":
			kind = value
		case "data":
			if kind == "end" {
				return events, true
			}
			var e schema.Event
			p.must(json.Unmarshal([]byte(value), &e))
			if fmt.Sprint(e.Seq) != id || string(e.Kind) != kind {
				p.Fatalf("event %d %s came as id %s event %s", e.Seq, e.Kind, id, kind)
			}
			events = append(events, e)
			if stop(e) {
				return events, false
			}
		}
	}
	if ctx.Err() != nil {
		p.Fatalf("the stream gave %d events and then nothing", len(events))
	}
	return events, false
}

func TestAStreamTellsAJobsStoryOnceAndEnds(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	storetest.Available(t, p.store, 1, model, 8)
	j := p.submit(aJob)
	whole := make(chan []schema.Event, 1)
	go func() {
		ev, ended := p.sse(p.tokens[auth.TenantMember], "/v1/jobs/"+j.Id+"/events", nil, func(schema.Event) bool { return false })
		if !ended {
			t.Error("the stream did not say its end")
		}
		whole <- ev
	}()
	p.waiting(1)
	for _, verb := range []string{"hold", "release", "cancel"} {
		p.member("POST", "/v1/jobs/"+j.Id+"/actions/"+verb, "")
	}
	all := <-whole
	var kinds []string
	for _, e := range all {
		kinds = append(kinds, string(e.Kind))
	}
	if got, want := strings.Join(kinds, " "), "job.submitted job.held job.unheld job.stop job.state"; got != want {
		t.Fatalf("the story was %s, want %s", got, want)
	}
	// a stream that was cut goes on behind the last event that was got
	rest, _ := p.sse(p.tokens[auth.TenantMember], "/v1/jobs/"+j.Id+"/events", []string{fmt.Sprintf("Last-Event-ID: %d", all[1].Seq)}, func(schema.Event) bool { return false })
	if len(rest) != 3 || rest[0].Seq != all[2].Seq {
		t.Errorf("the rest is %+v", rest)
	}
	// the same as pages
	var paged []schema.Event
	for after := int64(0); ; {
		list := read[contract.EventList](t, p.member("GET", fmt.Sprintf("/v1/jobs/%s/events?limit=2&after=%d", j.Id, after), ""), http.StatusOK)
		if after = list.Next; len(list.Items) == 0 {
			break
		}
		paged = append(paged, list.Items...)
	}
	if len(paged) != len(all) {
		t.Errorf("pages gave %d events, the stream %d", len(paged), len(all))
	}
}

func TestATenantsStreamHoldsItsOwnEventsOnly(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	storetest.Available(t, p.store, 1, model, 8)
	globex := p.globex()
	got := make(chan []schema.Event, 1)
	go func() {
		ev, _ := p.sse(globex, "/v1/events?tail=true", nil, func(e schema.Event) bool { return e.Kind == schema.EventJobSubmitted })
		got <- ev
	}()
	p.waiting(1)
	p.submit(aJob)
	read[contract.Job](t, p.send(globex, "POST", "/v1/jobs", aJob), http.StatusCreated)
	for _, e := range <-got {
		if e.Tenant != "globex" {
			t.Errorf("globex got %s of tenant %q", e.Kind, e.Tenant)
		}
	}
	for _, e := range read[contract.EventList](t, p.send(p.tokens[auth.Technician], "GET", "/v1/events?limit=1000", ""), http.StatusOK).Items {
		if strings.HasPrefix(string(e.Kind), "job.") || e.Kind == schema.EventAudit || e.Kind == schema.EventPolicyChanged {
			t.Errorf("the technician got %s", e.Kind)
		}
	}
}

func TestAStopEndsWaitsAndStreamsAndKeepsTheAudit(t *testing.T) {
	t.Parallel()
	s := storetest.Open(t)
	_, secret, err := s.CreateToken(t.Context(), "test", store.NewToken{Name: "op", Role: schema.RoleOperator})
	if err != nil {
		t.Fatal(err)
	}
	server, err := api.New(api.Config{Store: s, Ring: storetest.Ring(t)})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	go func() { ran <- server.Run(ctx, ln) }()
	p := &pool{T: t, store: s, url: "http://" + ln.Addr().String(), http: &http.Transport{}, tokens: map[auth.Who]string{auth.Operator: secret}}
	defer p.http.CloseIdleConnections()
	p.op("POST", "/v1/tenants", `{"name":"t1"}`)
	var wg sync.WaitGroup
	wg.Go(func() {
		p.sse(secret, "/v1/events?tail=true", nil, func(e schema.Event) bool { return e.Kind != schema.EventAudit && e.Kind != schema.EventPolicyChanged })
	})
	wg.Go(func() {
		if a := p.op("GET", "/v1/events?kind=none&wait=60s", ""); a.status != http.StatusOK {
			t.Errorf("the wait ended with %d %s", a.status, a.body)
		}
	})
	p.waiting(2)
	begin := time.Now()
	stop()
	wg.Wait()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	if d := time.Since(begin); d > 8*time.Second {
		t.Errorf("stopping took %s", d)
	}
	ev, _, err := s.Events(t.Context(), 0, 100, store.EventFilter{Kinds: []schema.EventKind{schema.EventAudit}})
	if err != nil || len(ev) != 2 { // the token's making, and the call
		t.Errorf("the audit holds %d events, %v", len(ev), err)
	}
}

func TestAThousandWaitForTheirOwnJobs(t *testing.T) {
	t.Parallel()
	p := newPool(t, func(c *api.Config) { c.RatePerToken = -1 })
	storetest.Available(t, p.store, 1, model, 8)
	const n = 1000
	p.http.MaxIdleConnsPerHost = n
	var jobs [5]contract.Job
	for i := range jobs {
		jobs[i] = p.submit(aJob)
	}
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			j := jobs[i%len(jobs)]
			if now := read[contract.Job](t, p.member("GET", fmt.Sprintf("/v1/jobs/%s?wait=30s&since=%d", j.Id, j.Version), ""), http.StatusOK); !now.Held {
				t.Errorf("%s came back unchanged", j.Id)
			}
		})
	}
	p.waiting(n)
	for _, j := range jobs {
		p.member("POST", "/v1/jobs/"+j.Id+"/actions/hold", "")
	}
	wg.Wait()
}

func TestAReasonKeepsItsCountsAndLosesOthersNames(t *testing.T) {
	t.Parallel()
	own, foreign, unknown := "job_"+strings.Repeat("a", 26), "job_"+strings.Repeat("b", 26), "job_"+strings.Repeat("c", 26)
	machine := "srv_" + strings.Repeat("d", 26)
	r := schema.ReasonDoc{Code: schema.ReasonCapacity, ClearsWhen: "8 more are free, as when " + foreign + " ends",
		Detail:   json.RawMessage(`{"free":3,"needed":8,"next_release":{"job":"` + foreign + `","at":null},"holders":["` + own + `","` + unknown + `"],"servers_by_cause":{"cordoned":["` + machine + `"]}}`),
		Blockers: json.RawMessage(`[{"kind":"job","id":"` + foreign + `","gpus":8,"tenant":"globex"},{"kind":"job","id":"` + own + `","gpus":2.5,"tenant":"acme"},{"kind":"server","id":"srv_1","gpus":5}]`),
		Also:     json.RawMessage(`[{"code":"BEHIND","detail":{"head_job":"` + foreign + `","ahead_gpus":16}}]`)}
	b, err := json.Marshal(api.Redact(r, "acme"))
	if err != nil {
		t.Fatal(err)
	}
	got := string(b)
	for _, name := range []string{foreign, unknown, "globex", "srv_1", machine} {
		if strings.Contains(got, name) {
			t.Errorf("%s shows %s", got, name)
		}
	}
	for _, kept := range []string{own, `"free":3`, `"gpus":8`, `"gpus":2.5`, `"ahead_gpus":16`, "another tenant's job", `"cordoned":["a server"]`} {
		if !strings.Contains(got, kept) {
			t.Errorf("%s lost %s", got, kept)
		}
	}
	dep := api.Redact(schema.ReasonDoc{Code: schema.ReasonDependency, Detail: json.RawMessage(`{"jobs":["` + own + `"]}`), Blockers: json.RawMessage(`[{"kind":"job","id":"` + own + `","gpus":0}]`)}, "acme")
	if !strings.Contains(string(dep.Detail), own) {
		t.Errorf("a job's own dependency was hidden: %s", dep.Detail)
	}
}

func TestLogsAreFollowedToTheEndOfTheAttempt(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	a, v := p.agent(1)
	j := p.submit(aJob)
	text := make(chan string, 1)
	go func() {
		text <- string(p.member("GET", "/v1/jobs/"+j.Id+"/logs?follow=true", "", "Accept: text/plain").body)
	}()
	p.waiting(1) // it follows a job that has not started
	p.start(j.Id, 1, v)
	var tasks []agentproto.Task
	a.call(http.MethodGet, agentproto.PathTasks+"?wait=10s", nil, http.StatusOK, &tasks)
	if len(tasks) != 1 || tasks[0].Kind != schema.TaskRun {
		t.Fatalf("the agent got %+v", tasks)
	}
	zero := 0
	for i, r := range []agentproto.TaskReport{{State: schema.TaskRunning, Output: "one\n"}, {State: schema.TaskRunning, Output: "two\n"}, {State: schema.TaskDone, ExitCode: &zero, NoneLeft: true, Output: "three\n"}} {
		r.Task, r.Seq = tasks[0].ID, int64(i+1)
		var reply agentproto.ReportReply
		a.call(http.MethodPost, agentproto.PathReport, agentproto.Report{Tasks: []agentproto.TaskReport{r}}, http.StatusOK, &reply)
		if len(reply.Accepted) != 1 {
			t.Fatalf("report %d: %+v", i, reply)
		}
	}
	if got := <-text; got != "one\ntwo\nthree\n" {
		t.Errorf("followed: %q", got)
	}
	page := read[contract.OutputList](t, p.member("GET", "/v1/jobs/"+j.Id+"/logs?after=1", "", "Accept: application/json"), http.StatusOK)
	if len(page.Items) != 2 || page.Items[0].Output != "two\n" || page.Next != 3 || page.Attempt != 1 {
		t.Errorf("the page is %+v", page)
	}
	att := read[contract.AttemptList](t, p.member("GET", "/v1/jobs/"+j.Id+"/attempts", ""), http.StatusOK)
	if len(att.Items) != 1 || len(att.Items[0].Devices) != 8 {
		t.Errorf("attempts: %+v", att)
	}
	wantProblem(t, p.member("GET", "/v1/jobs/"+j.Id+"/logs?rank=1", ""), schema.CodeInvalid, "rank")
	wantProblem(t, p.member("GET", "/v1/jobs/"+j.Id+"/logs?attempt=2", ""), schema.CodeInvalid, "attempt")
}

func TestAJobNamesTheJobsItStartsAfter(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	storetest.Available(t, p.store, 1, model, 8)
	first := p.submit(`{"spec":"h100x8","project":"main","name":"prepare","command":["true"]}`)
	j := p.submit(`{"spec":"h100x8","project":"main","command":["true"],"depends_on":[{"job":"prepare"}],"array":"sweep","array_limit":2}`)
	if len(j.DependsOn) != 1 || j.DependsOn[0].Job != first.Id || j.DependsOn[0].Condition != schema.AfterOK || j.Array != "sweep" || j.ArrayLimit != 2 {
		t.Fatalf("the job is %+v", j)
	}
	// Another tenant's job is as good as none.
	for name, body := range map[string]string{
		"another tenant's job": `{"tenant":"globex","project":"main","spec":"h100x8","command":["true"],"depends_on":[{"job":"` + first.Id + `"}]}`,
		"no job":               `{"tenant":"acme","project":"main","spec":"h100x8","command":["true"],"depends_on":[{"job":"nothing"}]}`,
		"a job twice":          `{"tenant":"acme","project":"main","spec":"h100x8","command":["true"],"depends_on":[{"job":"prepare"},{"job":"` + first.Id + `"}]}`,
	} {
		a := p.op("POST", "/v1/jobs", body)
		if got := a.problem(t); a.status != http.StatusBadRequest || !strings.HasPrefix(got.Field, "depends_on[") {
			t.Errorf("%s was answered %d: %s", name, a.status, a.body)
		}
	}
}
