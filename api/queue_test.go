package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"gpupool/activities/allocator"
	"gpupool/api/auth"
	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// queue is the API over a record that a real allocator serves: what is asked and seen here goes through the API alone.
type queue struct {
	*pool
	servers map[string]schema.Server // by name
}

// newQueue has servers r1s1, r1s2 and so on, each of eight accelerators of one rack, and serves region eu; with none,
// there is a server and nobody serves the region.
func newQueue(t *testing.T, servers int) *queue {
	t.Helper()
	q := &queue{newPool(t), map[string]schema.Server{}}
	for n := range max(servers, 1) {
		v := storetest.Available(t, q.store, n+1, model, 8)
		q.servers[v.Name] = v
	}
	q.op("POST", "/v1/specs", `{"name":"h100x1","model":"`+model+`","accelerators":1}`)
	if servers > 0 {
		q.serve("eu")
	}
	return q
}

// serve runs a region's allocator until the test ends.
func (q *queue) serve(region string) {
	q.Helper()
	ctx, stop := context.WithCancel(q.Context())
	a := &allocator.Activities{Store: q.store, Holder: "test", Log: slog.New(slog.DiscardHandler)}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := a.Serve(ctx, region); !errors.Is(err, context.Canceled) {
			q.Errorf("the allocator of %s ended: %v", region, err)
		}
	})
	q.Cleanup(func() { stop(); wg.Wait() })
}

// job submits one for project main of acme; fields are JSON that is added to a job of spec h100x8.
func (q *queue) job(fields string) string {
	q.Helper()
	if fields != "" {
		fields = "," + fields
	}
	body := `{"project":"main","command":["true"]` + fields
	if !strings.Contains(fields, `"spec"`) {
		body += `,"spec":"h100x8"`
	}
	return q.submit(body + "}").Id
}

func (q *queue) read(job string) contract.Job {
	q.Helper()
	return read[contract.Job](q.T, q.op("GET", "/v1/jobs/"+job, ""), http.StatusOK)
}

// waits is why a job waits, once it is for a code; detail is "name=value" of the reason's detail, as JSON writes the value.
func (q *queue) waits(job string, code schema.ReasonCode, detail ...string) schema.ReasonDoc {
	q.Helper()
	var j contract.Job
	missing := ""
	q.eventually(func() string {
		j = q.read(job)
		if j.State != schema.JobQueued || j.Reason == nil || j.Reason.Code != code {
			return fmt.Sprintf("job %s to wait with %s", job, code)
		}
		got := map[string]json.RawMessage{}
		q.must(json.Unmarshal(j.Reason.Detail, &got))
		for _, d := range detail {
			name, want, _ := strings.Cut(d, "=")
			if string(got[name]) != want {
				missing = fmt.Sprintf("%s of %s is %s, want %s", name, code, got[name], want)
				return missing
			}
		}
		return ""
	}, func() string { return fmt.Sprintf("%s: it is %s with %s", missing, j.State, show(j.Reason)) })
	if j.Reason.ClearsWhen == "" || j.Reason.Class == "" || j.Reason.Cycle == 0 || j.Reason.Since == 0 {
		q.Fatalf("the reason is not whole: %s", show(j.Reason))
	}
	return *j.Reason
}

// starts waits until a job has its accelerators.
func (q *queue) starts(job string) {
	q.Helper()
	var j contract.Job
	q.eventually(func() string {
		if j = q.read(job); j.State != schema.JobStarting {
			return "job " + job + " to start"
		}
		return ""
	}, func() string { return fmt.Sprintf("it is %s with %s", j.State, show(j.Reason)) })
}

// eventually waits until missing says that nothing is.
func (q *queue) eventually(missing func() string, seen func() string) {
	q.Helper()
	what := ""
	w := q.store.Watch(store.TopicAll)
	defer w.Close()
	deadline := time.After(30 * time.Second)
	for {
		if what = missing(); what == "" {
			return
		}
		select {
		case <-w.C:
		case <-deadline:
			q.Fatalf("waited for %s; %s", what, seen())
		}
	}
}

// finish plays the processes of a job to their good end.
func (q *queue) finish(job string) {
	q.Helper()
	ctx := q.Context()
	j, err := q.store.Job(ctx, job)
	q.must(err)
	q.must(q.store.DispatchAttempt(ctx, job, j.Attempt))
	tasks, err := q.store.JobTasks(ctx, job, j.Attempt)
	q.must(err)
	zero := 0
	for _, t := range tasks {
		q.must(q.store.ClaimTasks(ctx, t.Server))
		q.must(q.store.Report(ctx, t.Server, agentproto.Report{Tasks: []agentproto.TaskReport{{Task: t.ID, Seq: 1, State: schema.TaskDone, ExitCode: &zero, NoneLeft: true}}}))
	}
	q.must(q.store.SettleAttempt(ctx, job, j.Attempt, nil))
}

func show(r *schema.ReasonDoc) string {
	b, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func TestAStoppedQueueStartsNothingUntilItIsStarted(t *testing.T) {
	t.Parallel()
	q := newQueue(t, 2)
	stop := read[schema.Stop](t, q.op("POST", "/v1/queue/stops", `{"tenant":"acme","spec":"h100x8","why":"a driver that loses work"}`), http.StatusCreated)
	job := q.job("")
	why := q.waits(job, schema.ReasonQueueStopped, `scope="tenant acme, spec h100x8"`, `by="op"`, `note="a driver that loses work"`, "until=null")
	if want := "the queue of tenant acme, spec h100x8 is started again"; why.ClearsWhen != want {
		t.Errorf("it clears when %q, want %q", why.ClearsWhen, want)
	}
	q.starts(q.job(`"spec":"h100x1"`)) // another spec's queue is open
	other := read[contract.Job](t, q.send(q.globex(), "POST", "/v1/jobs", aJob), http.StatusCreated)
	q.starts(other.Id)
	if l := read[contract.StopList](t, q.member("GET", "/v1/queue/stops", ""), http.StatusOK); len(l.Items) != 1 || l.Items[0] != stop {
		t.Errorf("acme sees stops %+v", l.Items)
	}
	if l := read[contract.StopList](t, q.send(q.token(store.NewToken{Name: "g", Role: schema.RoleTenantMember, Tenant: "globex"}), "GET", "/v1/queue/stops", ""), http.StatusOK); len(l.Items) != 0 {
		t.Errorf("globex sees acme's stops %+v", l.Items)
	}
	wantProblem(t, q.member("DELETE", "/v1/queue/stops/"+stop.ID, ""), schema.CodeForbidden, "")
	wantProblem(t, q.op("POST", "/v1/queue/stops", `{"tenant":"acme","spec":"h100x8","why":"again"}`), schema.CodeConflict, "", stop.ID, "a driver that loses work")
	wantProblem(t, q.op("POST", "/v1/queue/stops", `{"spec":"nope","why":"x"}`), schema.CodeNotFound, "", "nope")
	wantProblem(t, q.op("POST", "/v1/queue/stops", `{"project":"main","why":"x"}`), schema.CodeInvalid, "project")
	wantProblem(t, q.op("POST", "/v1/queue/stops", `{"why":"x","until":"2001-01-01T00:00:00Z"}`), schema.CodeInvalid, "until")
	wantProblem(t, q.op("POST", "/v1/queue/stops", `{"why":"x","region":"mars"}`), schema.CodeInvalid, "region", "eu")
	if a := q.op("DELETE", "/v1/queue/stops/"+stop.ID, ""); a.status != http.StatusNoContent {
		t.Fatalf("the stop is ended with %d %s", a.status, a.body)
	}
	q.finish(other.Id)
	q.starts(job)
	wantProblem(t, q.op("DELETE", "/v1/queue/stops/"+stop.ID, ""), schema.CodeNotFound, "")
}

func TestAStopEndsByItself(t *testing.T) {
	t.Parallel()
	q := newQueue(t, 1)
	until := q.store.Now().Add(1500 * time.Millisecond)
	read[schema.Stop](t, q.op("POST", "/v1/queue/stops", `{"region":"eu","why":"a switch is changed","until":"`+until.String()+`"}`), http.StatusCreated)
	job := q.job("")
	q.waits(job, schema.ReasonQueueStopped, `scope="region eu"`)
	q.starts(job)
	if now := q.store.Now(); now < until {
		t.Errorf("it started at %s, the queue is stopped until %s", now, until)
	}
}

func TestASpecBoundsItsJobsTimeAndIsDeletedWhenNoneIsLeft(t *testing.T) {
	t.Parallel()
	q := newQueue(t, 1)
	sp := read[schema.Spec](t, q.op("POST", "/v1/specs", `{"name":"short","model":"`+model+`","accelerators":8,"max_time_ms":7200000}`), http.StatusCreated)
	if sp.MaxTime != 7200000 {
		t.Fatalf("the spec is %+v", sp)
	}
	wantProblem(t, q.member("POST", "/v1/jobs", `{"project":"main","spec":"short","command":["true"],"time_limit_ms":7200001}`), schema.CodeInvalid, "time_limit_ms", "2h", "short")
	job := q.job(`"spec":"short"`)
	if j := q.read(job); j.TimeLimitMs != 7200000 {
		t.Errorf("a job without a limit has %d ms, its spec's longest is 7200000", j.TimeLimitMs)
	}
	wantProblem(t, q.member("POST", "/v1/jobs/"+job+"/actions/time-limit", `{"time_limit_ms":7200001}`), schema.CodeInvalid, "time_limit_ms", "2h")
	q.starts(job)
	waits := q.job(`"spec":"short","time_limit_ms":60000`)
	q.waits(waits, schema.ReasonCapacity, "free=0", "needed=8")
	wantProblem(t, q.op("DELETE", "/v1/specs/short", ""), schema.CodeConflict, "", "short: 2")
	wantProblem(t, q.member("DELETE", "/v1/specs/short", ""), schema.CodeForbidden, "")
	read[schema.Spec](t, q.op("POST", "/v1/specs/short/actions/retire", ""), http.StatusOK)
	q.waits(waits, schema.ReasonSpecUnavailable, `spec="short"`, `known_specs=["h100x1","h100x8"]`)
	q.finish(job)
	read[contract.Job](t, q.member("POST", "/v1/jobs/"+waits+"/actions/cancel", ""), http.StatusAccepted)
	if a := q.op("DELETE", "/v1/specs/short", ""); a.status != http.StatusNoContent {
		t.Fatalf("the spec is deleted with %d %s", a.status, a.body)
	}
	wantProblem(t, q.op("GET", "/v1/specs/short", ""), schema.CodeNotFound, "")
	wantProblem(t, q.op("DELETE", "/v1/specs/short", ""), schema.CodeNotFound, "")
	wantProblem(t, q.member("POST", "/v1/jobs", `{"project":"main","spec":"short","command":["true"]}`), schema.CodeInvalid, "spec", "h100x8")
}

// dryRun asks what would become of a job of acme's project main.
func (q *queue) dryRun(token, fields string) contract.DryRun {
	q.Helper()
	return read[contract.DryRun](q.T, q.send(token, "POST", "/v1/jobs/actions/dry-run", `{"project":"main","command":["true"],`+fields+`}`), http.StatusOK)
}

func TestADryRunSaysWhatASubmitWouldDoAndMakesNoJob(t *testing.T) {
	t.Parallel()
	q := newQueue(t, 2)
	member := q.tokens[auth.TenantMember]
	q.must(q.op("PATCH", "/v1/tenants/acme", `{"max_priority":50}`))

	// It starts at once, where it says.
	would := q.dryRun(member, `"spec":"h100x8","nodes":2,"priority":70`)
	if !would.Starts || len(would.Places) != 2 || would.Reason != nil || len(would.Victims) != 0 || would.Priority != 50 || would.Region != "eu" || would.At == 0 {
		t.Fatalf("of an idle pool the dry run says %+v", would)
	}
	for i, p := range would.Places {
		if p.Server != fmt.Sprintf("r1s%d", i+1) || len(p.Slots) != 8 {
			t.Errorf("place %d is %+v", i, p)
		}
	}
	if l := read[contract.JobList](t, q.op("GET", "/v1/jobs", ""), http.StatusOK); len(l.Items) != 0 {
		t.Fatalf("a dry run made jobs: %+v", l.Items)
	}

	// It waits, by the reason that a submitted job then has.
	big := q.job(`"nodes":2,"preemptible":true,"time_limit_ms":3600000`)
	q.starts(big)
	would = q.dryRun(q.globex(), `"spec":"h100x1"`)
	if would.Starts || would.Reason == nil || would.Reason.Code != schema.ReasonCapacity || len(would.Places) != 0 {
		t.Fatalf("of a full pool the dry run says %+v", would)
	}
	if b := show(would.Reason); strings.Contains(b, big) || !strings.Contains(b, `"free":0`) || !strings.Contains(b, `"needed":1`) {
		t.Errorf("the reason shown to another tenant is %s", b)
	}
	of := q.dryRun(member, `"spec":"h100x1"`).Reason
	small := q.job(`"spec":"h100x1"`)
	is := q.waits(small, schema.ReasonCapacity)
	if of == nil || of.Code != is.Code || string(of.Detail) != string(is.Detail) || of.ClearsWhen != is.ClearsWhen {
		t.Errorf("the dry run waits with %s, the job with %s", show(of), show(&is))
	}
	if next := q.dryRun(member, `"spec":"h100x1"`).Reason; next == nil || next.Code != schema.ReasonBehind || !strings.Contains(string(next.Detail), small) {
		t.Errorf("one more would wait with %s, want BEHIND %s", show(next), small)
	}

	// Others would be stopped for it; nobody is.
	would = q.dryRun(member, `"spec":"h100x8","priority":9`)
	if would.Starts || len(would.Victims) != 1 || would.Victims[0].Job != big || would.Victims[0].Why != contract.Priority || would.Victims[0].Accelerators != 16 {
		t.Fatalf("of a job of a higher priority the dry run says %+v", would)
	}
	would = q.dryRun(q.token(store.NewToken{Name: "g", Role: schema.RoleTenantMember, Tenant: "globex"}), `"spec":"h100x8","priority":9`)
	if len(would.Victims) != 1 || would.Victims[0].Job != "another tenant's job" || would.Victims[0].Tenant != "" || would.Victims[0].Accelerators != 16 {
		t.Errorf("another tenant sees the victims %+v", would.Victims)
	}
	if j := q.read(big); j.State != schema.JobStarting {
		t.Fatalf("after dry runs the job that runs is %s", j.State)
	}

	// Limits bind, with their numbers.
	q.must(q.op("PUT", "/v1/quotas", `{"tenant":"acme","model":"`+model+`","limit":18}`))
	q.eventually(func() string {
		if would = q.dryRun(member, `"spec":"h100x8"`); would.Reason == nil || would.Reason.Code != schema.ReasonQuota {
			return "the quota to bind"
		}
		return ""
	}, func() string { return fmt.Sprintf("it says %+v", would) })
	for _, want := range []string{`"used":16`, `"asked":8`, `"limit":18`, `"over_by":6`} {
		if !strings.Contains(string(would.Reason.Detail), want) {
			t.Errorf("the quota's reason does not say %s: %s", want, would.Reason.Detail)
		}
	}
	wantProblem(t, q.member("POST", "/v1/jobs/actions/dry-run", `{"project":"main","command":["true"],"spec":"nope"}`), schema.CodeInvalid, "spec", "h100x8")
	wantProblem(t, q.send(q.tokens[auth.Viewer], "POST", "/v1/jobs/actions/dry-run", aJob), schema.CodeForbidden, "")
}

func TestADryRunWithoutAnAllocatorSaysSo(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	storetest.Available(t, p.store, 1, model, 8)
	wantProblem(t, p.member("POST", "/v1/jobs/actions/dry-run", aJob), schema.CodeUnavailable, "", "region eu")
}

func TestAnArrayIsSubmittedHeldLimitedAndCancelledAsOne(t *testing.T) {
	t.Parallel()
	q := newQueue(t, 2)
	const sweep = `{"indices":"0-8:2,11","job":{"project":"main","spec":"h100x1","name":"train","array":"sweep","array_limit":2,"command":["true"],"env":{"LR":"3"}}}`
	a := read[contract.Array](t, q.member("POST", "/v1/arrays", sweep, "Idempotency-Key: a1"), http.StatusCreated)
	if a.Name != "sweep" || a.Jobs != 6 || a.Limit != 2 || a.Tenant != "acme" || a.Project != "main" || a.States["queued"] != 6 {
		t.Fatalf("the array is %+v", a)
	}
	if again := read[contract.Array](t, q.member("POST", "/v1/arrays", sweep, "Idempotency-Key: a1"), http.StatusOK); again.Jobs != 6 || again.Name != "sweep" {
		t.Errorf("the same key answers %+v", again)
	}
	wantProblem(t, q.member("POST", "/v1/arrays", strings.Replace(sweep, "0-8", "0-9", 1), "Idempotency-Key: a1"), schema.CodeReused, "Idempotency-Key")
	wantProblem(t, q.member("POST", "/v1/arrays", sweep, "Idempotency-Key: a2"), schema.CodeConflict, "", "sweep")
	jobs := func() []contract.Job {
		return read[contract.JobList](t, q.member("GET", "/v1/jobs?array=sweep", ""), http.StatusOK).Items
	}
	in := func(state schema.JobState) (n int) {
		for _, j := range jobs() {
			if j.State == state {
				n++
			}
		}
		return n
	}
	list := jobs()
	for i, want := range []int{11, 8, 6, 4, 2, 0} {
		j := list[i]
		if j.ArrayIndex == nil || *j.ArrayIndex != want || j.Env["GPUPOOL_ARRAY_INDEX"] != fmt.Sprint(want) || j.Env["GPUPOOL_ARRAY"] != "sweep" || j.Env["GPUPOOL_ARRAY_SIZE"] != "6" || j.Env["LR"] != "3" || j.Name != fmt.Sprintf("train-%d", want) {
			t.Errorf("job %d of the array is %s, index %v, with %v", i, j.Name, j.ArrayIndex, j.Env)
		}
	}
	// Two run, the others wait for them.
	for _, j := range list[:4] {
		q.waits(j.Id, schema.ReasonJobLimit, `level="array acme/main/sweep"`, "running=2", "limit=2")
	}
	if n := in(schema.JobStarting); n != 2 {
		t.Fatalf("%d of the array run, its limit is 2", n)
	}
	a = read[contract.Array](t, q.member("POST", "/v1/arrays/sweep/actions/limit", `{"limit":3}`), http.StatusOK)
	q.eventually(func() string {
		if in(schema.JobStarting) != 3 {
			return "3 of the array to run"
		}
		return ""
	}, func() string {
		return fmt.Sprintf("%d run; the next waits with %s", in(schema.JobStarting), show(q.read(list[3].Id).Reason))
	})
	// Held, none more starts.
	a = read[contract.Array](t, q.member("POST", "/v1/arrays/sweep/actions/hold", ""), http.StatusOK)
	if a.Held != 3 || a.States["queued"] != 3 || a.States["starting"] != 3 {
		t.Fatalf("the held array is %+v", a)
	}
	q.waits(list[0].Id, schema.ReasonHeld, `by="user"`)
	q.finish(list[5].Id)
	a = read[contract.Array](t, q.member("POST", "/v1/arrays/sweep/actions/release", ""), http.StatusOK)
	if a.Held != 0 {
		t.Fatalf("the released array is %+v", a)
	}
	q.starts(list[2].Id)
	// Others neither see nor change it.
	for _, path := range []string{"GET /v1/arrays/sweep", "POST /v1/arrays/sweep/actions/cancel"} {
		method, at, _ := strings.Cut(path, " ")
		wantProblem(t, q.send(q.token(store.NewToken{Name: "globex-" + strings.ToLower(method), Role: schema.RoleTenantMember, Tenant: "globex"}), method, at, ""), schema.CodeNotFound, "", "sweep")
	}
	a = read[contract.Array](t, q.member("POST", "/v1/arrays/sweep/actions/cancel", ""), http.StatusAccepted)
	if a.States["queued"] != 0 || a.States["cancelled"] != 2 || a.States["stopping"] != 3 || a.States["completed"] != 1 {
		t.Fatalf("the cancelled array is %+v", a)
	}
	read[contract.Array](t, q.member("POST", "/v1/arrays/sweep/actions/cancel", ""), http.StatusAccepted)
	if l := read[contract.ArrayList](t, q.member("GET", "/v1/arrays", ""), http.StatusOK); len(l.Items) != 1 || l.Items[0].Jobs != 6 {
		t.Errorf("arrays: %+v", l.Items)
	}
}

func TestAnArrayIsAllOrNothing(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	storetest.Available(t, p.store, 1, model, 8)
	for body, field := range map[string]string{
		`{"indices":"5-1","job":` + aJob + `}`:                                        "indices",
		`{"indices":"0-10000","job":` + aJob + `}`:                                    "indices",
		`{"indices":"1,1","job":` + aJob + `}`:                                        "indices",
		`{"indices":"-1","job":` + aJob + `}`:                                         "indices",
		`{"indices":"0-9%3","job":` + aJob + `}`:                                      "indices",
		`{"indices":"0-4294967296","job":` + aJob + `}`:                               "indices",
		`{"indices":"0-9:0","job":` + aJob + `}`:                                      "indices",
		`{"indices":"0-9","job":{"project":"main","spec":"nope","command":["true"]}}`: "job.spec",
		`{"indices":"0-9","job":{"project":"main","spec":"h100x8","command":["true"],"env":{"GPUPOOL_ARRAY_INDEX":"1"}}}`: "job.env",
	} {
		wantProblem(t, p.member("POST", "/v1/arrays", body), schema.CodeInvalid, field)
	}
	if l := read[contract.JobList](t, p.op("GET", "/v1/jobs", ""), http.StatusOK); len(l.Items) != 0 {
		t.Fatalf("refused arrays made jobs: %+v", l.Items)
	}
	a := read[contract.Array](t, p.member("POST", "/v1/arrays", `{"indices":"0-9999","job":`+aJob+`}`), http.StatusCreated)
	if a.Jobs != 10_000 || !strings.HasPrefix(a.Name, "arr_") {
		t.Fatalf("the array is %+v", a)
	}
}

func TestAServiceIsSubmittedScaledAndCancelledAsOne(t *testing.T) {
	t.Parallel()
	q := newQueue(t, 2)
	const chat = `{"indices":"0-1","job":{"project":"main","spec":"h100x1","kind":"service","array":"chat","command":["serve"]}}`
	a := read[contract.Array](t, q.member("POST", "/v1/arrays", chat, "Idempotency-Key: s1"), http.StatusCreated)
	if a.Kind != schema.JobService || a.Jobs != 2 {
		t.Fatalf("the service is %+v", a)
	}
	if again := read[contract.Array](t, q.member("POST", "/v1/arrays", chat, "Idempotency-Key: s1"), http.StatusOK); again.Name != "chat" || again.Jobs != 2 {
		t.Errorf("the same key answers %+v", again)
	}
	j := read[contract.JobList](t, q.member("GET", "/v1/jobs?array=chat", ""), http.StatusOK).Items[0]
	if j.Kind != schema.JobService || j.Restarts != 0 || j.TimeLimitMs != 0 {
		t.Errorf("a replica is %+v", j)
	}
	if got := read[contract.Array](t, q.member("POST", "/v1/arrays/chat/actions/scale", `{"replicas":5}`), http.StatusAccepted); got.Jobs != 5 {
		t.Errorf("scaled it is %+v", got)
	}
	wantProblem(t, q.member("POST", "/v1/arrays/chat/actions/scale", `{"replicas":0}`), schema.CodeInvalid, "replicas")
	wantProblem(t, q.member("POST", "/v1/arrays/chat/actions/limit", `{"limit":1}`), schema.CodeConflict, "")
	wantProblem(t, q.member("POST", "/v1/jobs", strings.Replace(aJob, `"spec"`, `"kind":"daemon","spec"`, 1)), schema.CodeInvalid, "kind")
	services := read[contract.ArrayList](t, q.member("GET", "/v1/arrays?kind=service", ""), http.StatusOK).Items
	if batch := read[contract.ArrayList](t, q.member("GET", "/v1/arrays?kind=batch", ""), http.StatusOK).Items; len(services) != 1 || len(batch) != 0 {
		t.Errorf("%d services and %d arrays of batch jobs are listed", len(services), len(batch))
	}
	if got := read[contract.Array](t, q.member("POST", "/v1/arrays/chat/actions/cancel", ""), http.StatusAccepted); got.States["stopping"]+got.States["cancelled"] != 5 {
		t.Errorf("cancelled it is %+v", got)
	}
}
