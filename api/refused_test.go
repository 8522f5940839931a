package api_test

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store/storetest"
)

// TestWhatWouldDoNothingOrTooMuchIsRefusedByName has requests that are well formed and were taken, though what they name
// is not there, or what they ask for can't be meant.
func TestWhatWouldDoNothingOrTooMuchIsRefusedByName(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	v := storetest.Available(t, p.store, 1, model, 8)
	soon := p.store.Now().Add(3600e9).String()
	silence := func(what string) string { return `{"reason":"r","until":"` + soon + `",` + what + `}` }
	for name, c := range map[string]struct {
		method, path, body string
		code               schema.ErrorCode
		field              string
	}{
		"a silence without an end":          {"POST", "/v1/health/silences", `{"kind":"xid","reason":"r","until":"9999-12-31T00:00:00Z"}`, schema.CodeInvalid, "until"},
		"a silence of a misspelt rule":      {"POST", "/v1/health/silences", silence(`"rule":"xid-97"`), schema.CodeNotFound, ""},
		"a silence of a misspelt kind":      {"POST", "/v1/health/silences", silence(`"kind":"xld"`), schema.CodeInvalid, "kind"},
		"a silence of no accelerator":       {"POST", "/v1/health/silences", silence(`"accelerator":"none"`), schema.CodeNotFound, ""},
		"a silence of another's slot":       {"POST", "/v1/health/silences", silence(`"server":"` + v.Name + `","accelerator":"none"`), schema.CodeNotFound, ""},
		"a replay of a misspelt rule":       {"POST", "/v1/health/replay", `{"rule":"xid-97"}`, schema.CodeNotFound, ""},
		"a budget for a misspelt model":     {"PUT", "/v1/budgets", `{"tenant":"acme","gpu_ms":1000,"model":"nvidia-h100-08gb"}`, schema.CodeInvalid, "model"},
		"a correction in no region":         {"POST", "/v1/usage/adjustments", `{"key":"k","tenant":"acme","gpu_ms":1,"note":"n","region":"nowhere"}`, schema.CodeInvalid, "region"},
		"a profile for a misspelt model":    {"PUT", "/v1/install-choices", `{"scope":"model","name":"nvidia-h100-08gb","profile":"image"}`, schema.CodeInvalid, "name"},
		"a terminal's command in a note":    {"POST", "/v1/windows", `{"kind":"maintenance","servers":["` + v.Name + `"],"note":"\u001b[2J"}`, schema.CodeInvalid, "note"},
		"the same in one character":         {"POST", "/v1/windows", `{"kind":"maintenance","servers":["` + v.Name + `"],"note":"\u009b2J"}`, schema.CodeInvalid, "note"},
		"a time over the spec's longest":    {"POST", "/v1/jobs", `{"tenant":"acme","project":"main","spec":"short","command":["true"],"time_limit_ms":60001}`, schema.CodeInvalid, "time_limit_ms"},
		"the same of an array's jobs":       {"POST", "/v1/arrays", `{"indices":"0-1","job":{"tenant":"acme","project":"main","spec":"short","command":["true"],"time_limit_ms":60001}}`, schema.CodeInvalid, "job.time_limit_ms"},
		"an array's job that waits for one": {"POST", "/v1/arrays", `{"indices":"0-1","job":{"tenant":"acme","project":"main","spec":"short","command":["true"],"depends_on":[{"job":"none"}]}}`, schema.CodeInvalid, "job.depends_on[0].job"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.field == "time_limit_ms" || strings.HasPrefix(c.field, "job.") {
				p.op("POST", "/v1/specs", `{"name":"short","model":"`+model+`","accelerators":1,"max_time_ms":60000}`)
			}
			wantProblem(t, p.op(c.method, c.path, c.body), c.code, c.field)
		})
	}
	if l := read[contract.SilenceList](t, p.op("GET", "/v1/health/silences?all=true", ""), http.StatusOK); len(l.Items) > 0 {
		t.Errorf("silences that were refused: %+v", l.Items)
	}
	serial := read[contract.AcceleratorList](t, p.op("GET", "/v1/accelerators", ""), http.StatusOK).Items[0]
	if x := read[schema.Silence](t, p.op("POST", "/v1/health/silences", silence(`"accelerator":"`+serial.Serial+`"`)), http.StatusCreated); x.Accelerator != serial.ID {
		t.Errorf("a silence by serial is of %q, want %q: evidence has the id", x.Accelerator, serial.ID)
	}
}

func TestTheTimesOfRepairsTakeAMoment(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	if h := read[schema.HealthTimes](t, p.op("GET", "/v1/health/times?since=2026-01-02T03:04:05Z", ""), http.StatusOK); h.Since.String() != "2026-01-02T03:04:05.000Z" {
		t.Errorf("since %s", h.Since)
	}
}

func TestAServerIsReservedForOneAtATime(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	one, two := storetest.Available(t, p.store, 1, model, 8), storetest.Available(t, p.store, 2, model, 8)
	window := func(server, rest string) answer {
		return p.op("POST", "/v1/windows", `{"kind":"reservation","servers":["`+server+`"],`+rest+`}`)
	}
	a, b := one.Name, two.Name
	const first = `"from":"2199-01-01T00:00:00Z","until":"2199-02-01T00:00:00Z"`
	w := read[schema.Window](t, window(a, `"tenant":"acme","project":"main",`+first), http.StatusCreated)
	for name, c := range map[string]struct {
		server, rest string
		taken        bool
	}{
		"another tenant, at the same time":    {a, `"tenant":"globex",` + first, true},
		"another tenant, from now on":         {a, `"tenant":"globex"`, true},
		"another tenant, until in the middle": {a, `"tenant":"globex","until":"2199-01-01T00:00:01Z"`, true},
		"another project of the tenant":       {a, `"tenant":"acme","project":"other",` + first, true},
		"another tenant, before":              {a, `"tenant":"globex","until":"2199-01-01T00:00:00Z"`, false},
		"another tenant, after":               {a, `"tenant":"globex","from":"2199-02-01T00:00:00Z"`, false},
		"another tenant, another server":      {b, `"tenant":"globex",` + first, false},
		"the whole tenant around it":          {a, `"tenant":"acme",` + first, false},
	} {
		t.Run(name, func(t *testing.T) {
			got := window(c.server, c.rest)
			if !c.taken {
				x := read[schema.Window](t, got, http.StatusCreated)
				if d := p.op("DELETE", "/v1/windows/"+x.ID, ""); d.status != http.StatusNoContent {
					t.Fatalf("removed: %d", d.status)
				}
				return
			}
			wantProblem(t, got, schema.CodeConflict, "")
			if d := got.problem(t).Detail; !strings.Contains(d, w.ID) || !strings.Contains(d, a) {
				t.Errorf("it does not say which: %s", d)
			}
		})
	}
	if x := p.op("POST", "/v1/windows", `{"kind":"maintenance","servers":["`+a+`"],`+first+`}`); x.status != http.StatusCreated {
		t.Errorf("maintenance of a reserved server is %d %s", x.status, x.body)
	}
}

func TestAnArrayHasOneLimitWhoeverJoins(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	storetest.Available(t, p.store, 1, model, 8)
	const job = `"project":"main","spec":"h100x8","command":["true"],"array":"sweep"`
	read[contract.Array](t, p.member("POST", "/v1/arrays", `{"indices":"0-1","job":{`+job+`,"array_limit":1}}`), http.StatusCreated)
	if j := p.submit(`{` + job + `}`); j.ArrayLimit != 1 {
		t.Errorf("a job that joins has limit %d, want the array's 1", j.ArrayLimit)
	}
	if j := p.submit(`{` + job + `,"array_limit":1}`); j.ArrayLimit != 1 {
		t.Errorf("a job that joins by the same limit has %d", j.ArrayLimit)
	}
	wantProblem(t, p.member("POST", "/v1/jobs", `{`+job+`,"array_limit":7}`), schema.CodeConflict, "")
	a := read[contract.Array](t, p.member("POST", "/v1/arrays/sweep/actions/limit", `{"limit":3}`), http.StatusOK)
	if a.Limit != 3 || a.Jobs != 4 {
		t.Errorf("the array: %+v", a)
	}
	if j := p.submit(`{` + job + `}`); j.ArrayLimit != 3 {
		t.Errorf("a job that joins later has limit %d, want 3", j.ArrayLimit)
	}
}

// lookedUp are texts of requests that are compared with what there is, or mean what a program makes of them; all others are
// kept and shown, so a control character in them would reach a terminal.
var lookedUp = []string{"command", "env", "work_dir", "image", "indices", "job", "tenant", "project", "spec", "region", "model", "zone", "currency", "servers", "key", "values"}

func TestATextThatIsKeptHasNoControlCharacters(t *testing.T) {
	t.Parallel()
	doc, err := openapi3.NewLoader().LoadFromFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	var walk func(at, name string, s *openapi3.Schema)
	walk = func(at, name string, s *openapi3.Schema) {
		switch {
		case s == nil || slices.Contains(lookedUp, name):
		case s.Type.Is("string"):
			seen++
			if s.Pattern == "" && len(s.Enum) == 0 && s.Format == "" {
				t.Errorf("%s: %s takes any text", at, name)
			} else if s.Pattern != "" && s.Validate(t.Context()) == nil && s.VisitJSON("x\u009by") == nil {
				t.Errorf("%s: %s takes control characters", at, name)
			}
		case s.Items != nil:
			walk(at, name, s.Items.Value)
		default:
			for _, n := range slices.Sorted(maps.Keys(s.Properties)) {
				walk(at, n, s.Properties[n].Value)
			}
			if values := s.AdditionalProperties.Schema; values != nil {
				walk(at, name, values.Value)
			}
		}
	}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			if op.RequestBody == nil {
				continue
			}
			if m := op.RequestBody.Value.Content.Get("application/json"); m != nil {
				walk(method+" "+path, "", m.Schema.Value)
			}
		}
	}
	if seen < 50 {
		t.Errorf("only %d texts were looked at", seen)
	}
}
