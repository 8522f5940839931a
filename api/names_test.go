package api_test

import (
	"net/http"
	"strings"
	"testing"

	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store/storetest"
)

func TestAJobIsFoundByItsNameAndNothingIsGuessed(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	storetest.Available(t, p.store, 1, model, 8)
	named := func(project, name string) contract.Job {
		return p.submit(`{"project":"` + project + `","name":"` + name + `","spec":"h100x8","command":["true"]}`)
	}
	end := func(j contract.Job) {
		t.Helper()
		p.must(p.store.RequestStop(t.Context(), j.Id, 0, schema.AttemptCancelled, "test", ""))
	}
	first := named("main", "train")
	for _, path := range []string{"", "/attempts", "/events", "/logs"} {
		if a := p.member("GET", "/v1/jobs/train"+path, ""); a.status != http.StatusOK {
			t.Fatalf("by name %s was answered %d %s", path, a.status, a.body)
		}
	}
	for _, verb := range []string{"hold", "release", "time-limit"} {
		body := ""
		if verb == "time-limit" {
			body = `{"time_limit_ms":60000}`
		}
		if got := read[contract.Job](t, p.member("POST", "/v1/jobs/train/actions/"+verb, body), 200); got.Id != first.Id {
			t.Fatalf("%s reached %s", verb, got.Id)
		}
	}
	if got := read[contract.EventList](t, p.member("GET", "/v1/events?job=train", ""), 200); len(got.Items) == 0 || got.Items[0].Job != first.Id {
		t.Fatalf("events by name: %+v", got)
	}
	// Another tenant's name does not exist, to the byte.
	globex := p.globex()
	other := p.send(globex, "GET", "/v1/jobs/train", "")
	none := p.send(globex, "GET", "/v1/jobs/none", "")
	if other.status != 404 || strings.ReplaceAll(string(none.body), "none", "train") != string(other.body) {
		t.Fatalf("another tenant's was answered %s, none %s", other.body, none.body)
	}
	// Two live ones: nothing is guessed.
	second := named("main", "train")
	wantProblem(t, p.member("POST", "/v1/jobs/train/actions/cancel", ""), schema.CodeConflict, "", first.Id, second.Id, "acme/main")
	if got := read[contract.Job](t, p.member("GET", "/v1/jobs/"+second.Id, ""), 200); got.State != schema.JobQueued {
		t.Fatalf("a refused cancel reached it: %s", got.State)
	}
	// One live and one that ended: the live one. Both ended: the newest. In two projects: nothing is guessed.
	end(second)
	if got := read[contract.Job](t, p.member("GET", "/v1/jobs/train", ""), 200); got.Id != first.Id {
		t.Fatalf("got %s, want the live one", got.Id)
	}
	end(first)
	if got := read[contract.Job](t, p.member("GET", "/v1/jobs/train", ""), 200); got.Id != second.Id {
		t.Fatalf("got %s, want the newest", got.Id)
	}
	end(named("other", "train"))
	wantProblem(t, p.member("GET", "/v1/jobs/train", ""), schema.CodeConflict, "", "acme/main", "acme/other")
}

func TestAnAcceleratorIsNamedByItsSlot(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	v := storetest.Available(t, p.store, 1, model, 8)
	at := "/v1/servers/" + v.Name + "/actions/"
	for _, name := range []string{"SXM3", v.Name + "/SXM3", "r1s1-G2"} {
		c := read[contract.Cordon](t, p.op("POST", at+"cordon", `{"accelerator":"`+name+`","reason":"noisy"}`), http.StatusOK)
		read[contract.Server](t, p.op("POST", at+"uncordon", `{"accelerator":"`+name+`"}`), http.StatusOK)
		if c.Accelerator == "" {
			t.Errorf("%s: %+v", name, c)
		}
	}
	wantProblem(t, p.op("POST", at+"cordon", `{"accelerator":"SXM9","reason":"x"}`), schema.CodeNotFound, "", "SXM9")
}
