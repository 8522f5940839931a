package api_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"gpupool/api"
	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// starts are verbs that begin an onboarding in the record, as the product's do.
type starts struct {
	*verbs
	store *store.Store
}

func (s starts) StartOnboarding(ctx context.Context, v schema.Server, by string, o api.OnboardOptions) error {
	_, err := s.store.BeginOnboardingWith(ctx, v.ID, o.Profile, by)
	return err
}

const atOnce = 8

// together makes the same call atOnce times in one moment.
func (p *pool) together(method, path, body string, headers ...string) []answer {
	p.Helper()
	out := make([]answer, atOnce)
	var wg sync.WaitGroup
	gate := make(chan struct{})
	for i := range out {
		wg.Go(func() {
			<-gate
			out[i] = p.op(method, path, body, headers...)
		})
	}
	close(gate)
	wg.Wait()
	return out
}

// TestOfManyCallsAtOnceTheEffectIsOne fires each verb many times in one moment. A verb that takes a step is taken once, and
// the others are told why not; one that sets something is no error again, and happens once.
func TestOfManyCallsAtOnceTheEffectIsOne(t *testing.T) {
	t.Parallel()
	p := newPool(t, func(c *api.Config) { c.Processes = starts{&verbs{}, c.Store} })
	ctx := t.Context()
	for n := range 3 {
		storetest.Available(t, p.store, n+1, model, 8)
	}
	servers := read[contract.ServerList](t, p.op("GET", "/v1/servers", ""), 200).Items
	in, err := p.store.EnrollServers(ctx, "test", storetest.Ring(t), []store.NewServer{storetest.NewServer(9, model, 8)})
	p.must(err)
	job := p.submit(aJob)
	p.must(p.op("PUT", "/v1/quotas", `{"tenant":"acme","model":"`+model+`","limit":8}`).status, nil)
	at := func(i int, verb string) string { return "/v1/servers/" + servers[i].Name + "/actions/" + verb }
	for _, c := range []struct {
		method, path, body string
		taken              int // how many are answered with a success
		refused            schema.ErrorCode
		kind               schema.EventKind // of which exactly one more is there afterwards; "" = not asked
	}{
		{"POST", "/v1/servers/" + in[0].Name + "/actions/onboard", `{"profile":"image"}`, 1, schema.CodeConflict, schema.EventServerPhase},
		{"POST", at(0, "drain"), `{"reason":"r"}`, 1, schema.CodeConflict, schema.EventServerPhase},
		{"POST", at(0, "undrain"), "", 1, schema.CodeConflict, schema.EventServerPhase},
		{"POST", at(1, "cordon"), `{"reason":"r"}`, atOnce, "", schema.EventServerCordoned},
		{"POST", at(1, "uncordon"), "", 1, schema.CodeConflict, schema.EventServerUncordoned},
		{"POST", at(2, "protect"), "", atOnce, "", schema.EventServerProtected},
		{"POST", at(2, "unprotect"), "", atOnce, "", schema.EventServerProtected},
		{"POST", "/v1/jobs/" + job.Id + "/actions/hold", "", atOnce, "", schema.EventJobHeld},
		{"POST", "/v1/jobs/" + job.Id + "/actions/release", "", atOnce, "", schema.EventJobUnheld},
		{"POST", "/v1/jobs/" + job.Id + "/actions/cancel", "", atOnce, "", schema.EventJobStop},
		{"POST", "/v1/specs", `{"name":"one","model":"` + model + `","accelerators":1}`, 1, schema.CodeConflict, schema.EventPolicyChanged},
		{"POST", "/v1/specs/one/actions/retire", "", atOnce, "", schema.EventPolicyChanged},
		{"POST", "/v1/tenants", `{"name":"one"}`, 1, schema.CodeConflict, schema.EventPolicyChanged},
		{"POST", "/v1/tenants/one/projects", `{"name":"one"}`, 1, schema.CodeConflict, schema.EventPolicyChanged},
		{"POST", "/v1/tokens", `{"name":"one","role":"viewer"}`, 1, schema.CodeConflict, ""},
		{"DELETE", "/v1/tokens/one", "", atOnce, "", ""},
		{"DELETE", "/v1/quotas?tenant=acme&model=" + model, "", 1, schema.CodeNotFound, schema.EventPolicyChanged},
	} {
		t.Run(c.method+" "+c.path, func(t *testing.T) {
			p := &pool{T: t, store: p.store, server: p.server, url: p.url, http: p.http, tokens: p.tokens}
			head, err := p.store.Head(ctx)
			p.must(err)
			taken := 0
			for _, a := range p.together(c.method, c.path, c.body) {
				if a.status < 300 {
					taken++
					continue
				}
				if got := a.problem(t); got.Code != c.refused || got.Detail == "" {
					t.Errorf("refused as %s %q, want %s", got.Code, got.Detail, c.refused)
				}
			}
			if taken != c.taken {
				t.Errorf("%d of %d were taken, want %d", taken, atOnce, c.taken)
			}
			if c.kind == "" {
				return
			}
			events, _, err := p.store.Events(ctx, head, 100, store.EventFilter{Kinds: []schema.EventKind{c.kind}})
			p.must(err)
			if len(events) != 1 {
				t.Errorf("%s happened %d times, want once", c.kind, len(events))
			}
		})
	}
}

func TestARequestUnderTheSameKeyIsDoneOnceAndAnsweredTheSame(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	storetest.Available(t, p.store, 1, model, 8)
	v := read[contract.ServerList](t, p.op("GET", "/v1/servers", ""), 200).Items[0]
	drain := "/v1/servers/" + v.Name + "/actions/drain"

	all := p.together("POST", drain, `{"reason":"r"}`, "Idempotency-Key: k1")
	replayed := 0
	for _, a := range all {
		if a.status != all[0].status || string(a.body) != string(all[0].body) {
			t.Fatalf("one was answered %d %s, another %d %s", all[0].status, all[0].body, a.status, a.body)
		}
		if a.header.Get("Idempotent-Replayed") == "true" {
			replayed++
		}
	}
	if all[0].status != http.StatusAccepted || replayed != atOnce-1 {
		t.Fatalf("answered %d, and %d of %d as a repeat", all[0].status, replayed, atOnce)
	}
	// Later too, though the state would refuse it now; and without the key, or with a new one, it does.
	if a := p.op("POST", drain, `{"reason":"r"}`, "Idempotency-Key: k1"); string(a.body) != string(all[0].body) {
		t.Fatalf("later it was answered %d %s", a.status, a.body)
	}
	wantProblem(t, p.op("POST", drain, `{"reason":"r"}`), schema.CodeConflict, "")
	refused := p.op("POST", drain, `{"reason":"r"}`, "Idempotency-Key: k2")
	wantProblem(t, refused, schema.CodeConflict, "")
	if a := p.op("POST", drain, `{"reason":"r"}`, "Idempotency-Key: k2"); string(a.body) != string(refused.body) || a.header.Get("Content-Type") != "application/problem+json" {
		t.Fatalf("a refusal came again as %s", a.body)
	}

	// Another body, another operation, another caller.
	wantProblem(t, p.op("POST", drain, `{"reason":"other"}`, "Idempotency-Key: k1"), schema.CodeReused, "Idempotency-Key", "k1")
	wantProblem(t, p.op("POST", "/v1/servers/"+v.Name+"/actions/undrain", "", "Idempotency-Key: k1"), schema.CodeReused, "Idempotency-Key")
	other := p.token(store.NewToken{Name: "op2", Role: schema.RoleOperator})
	wantProblem(t, p.send(other, "POST", drain, `{"reason":"r"}`, "Idempotency-Key: k1"), schema.CodeConflict, "")

	wantProblem(t, p.op("POST", drain, `{"reason":"r"}`, "Idempotency-Key: a b"), schema.CodeInvalid, "Idempotency-Key")
	wantProblem(t, p.op("POST", "/v1/tokens", `{"name":"x","role":"viewer"}`, "Idempotency-Key: k3"), schema.CodeInvalid, "Idempotency-Key")

	// What could not be done is not kept: trying again can help.
	p.verbs.err = &schema.Error{Code: schema.CodeUnavailable, Message: "the process does not answer", Hint: "try again"}
	in, err := p.store.EnrollServers(t.Context(), "test", storetest.Ring(t), []store.NewServer{storetest.NewServer(9, model, 8)})
	p.must(err)
	onboard := "/v1/servers/" + in[0].Name + "/actions/onboard"
	wantProblem(t, p.op("POST", onboard, "", "Idempotency-Key: k4"), schema.CodeUnavailable, "")
	p.verbs.err = nil
	for range 3 {
		if a := p.op("POST", onboard, "", "Idempotency-Key: k4"); a.status != http.StatusAccepted {
			t.Fatalf("answered %d %s", a.status, a.body)
		}
	}
	if n := strings.Count(fmt.Sprint(p.verbs.asked), "onboard r1s9"); n != 1 {
		t.Fatalf("it was begun %d times", n)
	}
}
