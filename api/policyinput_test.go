package api_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"gpupool/api/auth"
	"gpupool/schema"
	"gpupool/schema/store/storetest"
)

// TestBadPolicyIsRefusedByNameAndNothingIsWritten attacks everything that steers the queue: what is missing, negative, no number,
// too big, unknown, twice, the wrong way round, or in no calendar is refused by its field, and changes nothing.
func TestBadPolicyIsRefusedByNameAndNothingIsWritten(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	v := storetest.Available(t, p.store, 1, model, 8)
	quota := func(rest string) string { return `{"tenant":"acme","model":"` + model + `"` + rest + `}` }
	budget := func(rest string) string { return `{"tenant":"acme"` + rest + `}` }
	window := func(kind, rest string) string {
		return `{"kind":"` + kind + `","servers":["` + v.Name + `"]` + rest + `}`
	}
	stop := func(rest string) string { return `{"why":"w"` + rest + `}` }
	price := func(rest string) string { return `{"spec":"h100x8"` + rest + `}` }
	job := func(rest string) string {
		return `{"tenant":"acme","project":"main","spec":"h100x8","command":["true"]` + rest + `}`
	}
	const never = "9999-12-31T00:00:00Z"
	cases := map[string]struct {
		method, path, body string
		code               schema.ErrorCode
		field              string
		names              []string
	}{
		"a quota of nobody":                  {"PUT", "/v1/quotas", strings.Replace(quota(`,"limit":1`), "acme", "nobody", 1), schema.CodeNotFound, "", []string{"tenant", "nobody"}},
		"a quota of no tenant":               {"PUT", "/v1/quotas", `{"model":"` + model + `","limit":1}`, schema.CodeInvalid, "tenant", nil},
		"a quota of no project":              {"PUT", "/v1/quotas", quota(`,"project":"mian","limit":1`), schema.CodeNotFound, "", []string{"project", "mian"}},
		"a quota of no model":                {"PUT", "/v1/quotas", `{"tenant":"acme","model":"nvidia-h100-08gb","limit":1}`, schema.CodeInvalid, "model", []string{"nvidia-h100-08gb"}},
		"a quota without a limit":            {"PUT", "/v1/quotas", quota(`,"guaranteed":1`), schema.CodeInvalid, "limit", nil},
		"a limit of -2":                      {"PUT", "/v1/quotas", quota(`,"limit":-2`), schema.CodeInvalid, "limit", []string{"-2", "-1"}},
		"a limit of 1.5":                     {"PUT", "/v1/quotas", quota(`,"limit":1.5`), schema.CodeInvalid, "limit", []string{"1.5", "whole"}},
		"a limit of NaN":                     {"PUT", "/v1/quotas", quota(`,"limit":NaN`), schema.CodeInvalid, "body", []string{"JSON"}},
		"a limit of a million and one":       {"PUT", "/v1/quotas", quota(`,"limit":1000001`), schema.CodeInvalid, "limit", []string{"1000001", "1000000"}},
		"a limit in words":                   {"PUT", "/v1/quotas", quota(`,"limit":"8 GPUs"`), schema.CodeInvalid, "limit", []string{"whole number"}},
		"a limit twice":                      {"PUT", "/v1/quotas", quota(`,"limit":1,"limit":2`), schema.CodeInvalid, "limit", []string{"twice"}},
		"a guarantee of -1":                  {"PUT", "/v1/quotas", quota(`,"guaranteed":-1,"limit":1`), schema.CodeInvalid, "guaranteed", []string{"-1"}},
		"a guarantee over the limit":         {"PUT", "/v1/quotas", quota(`,"guaranteed":2,"limit":1`), schema.CodeInvalid, "guaranteed", []string{"2", "limit"}},
		"no quota to remove":                 {"DELETE", "/v1/quotas?tenant=acme&model=" + model, "", schema.CodeNotFound, "", []string{model}},
		"a budget of nobody":                 {"PUT", "/v1/budgets", `{"tenant":"nobody","gpu_ms":1}`, schema.CodeNotFound, "", []string{"nobody"}},
		"a budget of no tenant":              {"PUT", "/v1/budgets", `{"gpu_ms":1}`, schema.CodeInvalid, "tenant", nil},
		"a budget of no project":             {"PUT", "/v1/budgets", budget(`,"project":"mian","gpu_ms":1`), schema.CodeNotFound, "", []string{"mian"}},
		"a budget of nothing":                {"PUT", "/v1/budgets", budget(``), schema.CodeInvalid, "gpu_ms", nil},
		"a budget of -1":                     {"PUT", "/v1/budgets", budget(`,"gpu_ms":-1`), schema.CodeInvalid, "gpu_ms", []string{"-1"}},
		"a budget past 2^53":                 {"PUT", "/v1/budgets", budget(`,"gpu_ms":9007199254740993`), schema.CodeInvalid, "gpu_ms", []string{"9007199254740993"}},
		"a budget in hours":                  {"PUT", "/v1/budgets", budget(`,"gpu_hours":5`), schema.CodeInvalid, "gpu_hours", []string{"no such field"}},
		"a budget on Mars":                   {"PUT", "/v1/budgets", budget(`,"gpu_ms":1,"zone":"Mars/Phobos"`), schema.CodeInvalid, "zone", []string{"Mars/Phobos"}},
		"a budget by the server's own clock": {"PUT", "/v1/budgets", budget(`,"gpu_ms":1,"zone":"Local"`), schema.CodeInvalid, "zone", []string{"Local"}},
		"a budget that warns at 0 %":         {"PUT", "/v1/budgets", budget(`,"gpu_ms":1,"warn":[0]`), schema.CodeInvalid, "warn[0]", []string{"0", "1"}},
		"no budget to remove":                {"DELETE", "/v1/budgets/none", "", schema.CodeNotFound, "", []string{"none"}},
		"a window of no kind":                {"POST", "/v1/windows", window("party", ""), schema.CodeInvalid, "kind", []string{"party", "maintenance"}},
		"a window over nothing":              {"POST", "/v1/windows", `{"kind":"maintenance","servers":[]}`, schema.CodeInvalid, "servers", nil},
		"a window over no server":            {"POST", "/v1/windows", `{"kind":"maintenance","servers":["` + v.Name + `","none"]}`, schema.CodeNotFound, "", []string{"server", "none"}},
		"a window in a thousand years":       {"POST", "/v1/windows", window("maintenance", `,"from":"2999-01-02T00:00:00Z","until":"2999-01-03T00:00:00Z"`), schema.CodeInvalid, "from", []string{"2999-01-02", "2200"}},
		"a window that ends before":          {"POST", "/v1/windows", window("maintenance", `,"from":"2199-01-02T00:00:00Z","until":"2199-01-01T00:00:00Z"`), schema.CodeInvalid, "until", []string{"2199-01-01", "after from"}},
		"a window that is over":              {"POST", "/v1/windows", window("maintenance", `,"until":"2001-01-01T00:00:00Z"`), schema.CodeInvalid, "until", []string{"2001-01-01", "to come"}},
		"a window until the year 9999":       {"POST", "/v1/windows", window("maintenance", `,"until":"`+never+`"`), schema.CodeInvalid, "until", []string{"9999-12-31", "2200"}},
		"a window of the year 1":             {"POST", "/v1/windows", window("maintenance", `,"from":"0001-02-01T00:00:00Z"`), schema.CodeInvalid, "from", []string{"0001-02-01", "1970"}},
		"a window of no zone":                {"POST", "/v1/windows", window("maintenance", `,"until":"2199-01-01T00:00:00"`), schema.CodeInvalid, "until", []string{"2199-01-01T00:00:00"}},
		"a reservation for nobody":           {"POST", "/v1/windows", window("reservation", ""), schema.CodeInvalid, "tenant", nil},
		"a reservation for no tenant":        {"POST", "/v1/windows", window("reservation", `,"tenant":"nobody"`), schema.CodeNotFound, "", []string{"nobody"}},
		"a reservation for no project":       {"POST", "/v1/windows", window("reservation", `,"tenant":"acme","project":"mian"`), schema.CodeNotFound, "", []string{"mian"}},
		"maintenance for somebody":           {"POST", "/v1/windows", window("maintenance", `,"tenant":"acme"`), schema.CodeInvalid, "tenant", []string{"acme"}},
		"no window to end":                   {"DELETE", "/v1/windows/none", "", schema.CodeNotFound, "", []string{"none"}},
		"a stop without a reason":            {"POST", "/v1/queue/stops", `{"why":" "}`, schema.CodeInvalid, "why", nil},
		"a stop of nobody":                   {"POST", "/v1/queue/stops", stop(`,"tenant":"nobody"`), schema.CodeNotFound, "", []string{"nobody"}},
		"a stop of a project of none":        {"POST", "/v1/queue/stops", stop(`,"project":"main"`), schema.CodeInvalid, "project", []string{"main", "tenant"}},
		"a stop of no spec":                  {"POST", "/v1/queue/stops", stop(`,"spec":"h100x9"`), schema.CodeNotFound, "", []string{"h100x9"}},
		"a stop of no region":                {"POST", "/v1/queue/stops", stop(`,"region":"mars"`), schema.CodeInvalid, "region", []string{"mars"}},
		"a stop that is over":                {"POST", "/v1/queue/stops", stop(`,"until":"2001-01-01T00:00:00Z"`), schema.CodeInvalid, "until", []string{"2001-01-01"}},
		"a stop until the year 9999":         {"POST", "/v1/queue/stops", stop(`,"until":"` + never + `"`), schema.CodeInvalid, "until", []string{"9999-12-31", "2200"}},
		"no stop to end":                     {"DELETE", "/v1/queue/stops/none", "", schema.CodeNotFound, "", []string{"none"}},
		"a weight of 0":                      {"PATCH", "/v1/tenants/acme", `{"weight":0}`, schema.CodeInvalid, "weight", []string{"0", "1"}},
		"a weight of -1":                     {"PATCH", "/v1/tenants/acme/projects/main", `{"weight":-1}`, schema.CodeInvalid, "weight", []string{"-1"}},
		"a weight of 0.5":                    {"PATCH", "/v1/tenants/acme", `{"weight":0.5}`, schema.CodeInvalid, "weight", []string{"0.5", "whole"}},
		"a job limit of -1":                  {"PATCH", "/v1/tenants/acme", `{"max_running_jobs":-1}`, schema.CodeInvalid, "max_running_jobs", []string{"-1"}},
		"a priority class of 1001":           {"PATCH", "/v1/tenants/acme", `{"max_priority":1001}`, schema.CodeInvalid, "max_priority", []string{"1001", "1000"}},
		"a priority class of -1":             {"POST", "/v1/tenants", `{"name":"new","max_priority":-1}`, schema.CodeInvalid, "max_priority", []string{"-1"}},
		"a change of nothing":                {"PATCH", "/v1/tenants/acme", `{}`, schema.CodeInvalid, "body", []string{"weight"}},
		"a change of nobody":                 {"PATCH", "/v1/tenants/nobody", `{"weight":2}`, schema.CodeNotFound, "", []string{"nobody"}},
		"a price of nothing":                 {"PUT", "/v1/prices", price(`,"currency":"EUR"`), schema.CodeInvalid, "micros_per_hour", nil},
		"a price of -1":                      {"PUT", "/v1/prices", price(`,"currency":"EUR","micros_per_hour":-1`), schema.CodeInvalid, "micros_per_hour", []string{"-1"}},
		"a price in gold":                    {"PUT", "/v1/prices", price(`,"currency":"gold","micros_per_hour":1`), schema.CodeInvalid, "currency", []string{"gold", "EUR"}},
		"a price of no spec":                 {"PUT", "/v1/prices", `{"spec":"none","currency":"EUR","micros_per_hour":1}`, schema.CodeNotFound, "", []string{"none"}},
		"a price from half past":             {"PUT", "/v1/prices", price(`,"currency":"EUR","micros_per_hour":1,"from":"2199-01-01T00:30:00Z"`), schema.CodeInvalid, "from", []string{"00:30", "whole hour"}},
		"a correction of nobody":             {"POST", "/v1/usage/adjustments", `{"key":"k","tenant":"nobody","gpu_ms":1,"note":"n"}`, schema.CodeNotFound, "", []string{"nobody"}},
		"a correction of 2^53+1":             {"POST", "/v1/usage/adjustments", `{"key":"k","tenant":"acme","gpu_ms":9007199254740993,"note":"n"}`, schema.CodeInvalid, "gpu_ms", []string{"9007199254740993"}},
		"a correction of no job":             {"POST", "/v1/usage/adjustments", `{"key":"k","tenant":"acme","job":"job_none","gpu_ms":1,"note":"n"}`, schema.CodeNotFound, "", []string{"job_none"}},
		"a correction without a key":         {"POST", "/v1/usage/adjustments", `{"key":"","tenant":"acme","gpu_ms":1,"note":"n"}`, schema.CodeInvalid, "key", nil},
		"a breaker that is not":              {"POST", "/v1/health/breakers/none/actions/reset", `{"reason":"r"}`, schema.CodeNotFound, "", []string{"none"}},
		"a breaker without a reason":         {"POST", "/v1/health/breakers/none/actions/reset", `{"reason":" "}`, schema.CodeInvalid, "reason", nil},
		"a job not before the year 9999":     {"POST", "/v1/jobs", job(`,"not_before":"` + never + `"`), schema.CodeInvalid, "not_before", []string{"9999-12-31", "2200"}},
		"a job not before the year 1":        {"POST", "/v1/jobs", job(`,"not_before":"0001-02-01T00:00:00Z"`), schema.CodeInvalid, "not_before", []string{"0001-02-01"}},
		"a job after one that is not":        {"POST", "/v1/jobs", job(`,"depends_on":[{"job":"job_none"}]`), schema.CodeInvalid, "depends_on[0].job", []string{"job_none"}},
		"a queue time of -1":                 {"POST", "/v1/jobs", job(`,"max_queue_ms":-1`), schema.CodeInvalid, "max_queue_ms", []string{"-1"}},
		"a priority of -1":                   {"POST", "/v1/jobs", job(`,"priority":-1`), schema.CodeInvalid, "priority", []string{"-1"}},
		"a gang over no level":               {"POST", "/v1/jobs", job(`,"nodes":2,"same":"moon"`), schema.CodeInvalid, "same", []string{"moon", "rack"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			before := p.policies()
			wantProblem(t, p.op(c.method, c.path, c.body), c.code, c.field, c.names...)
			if after := p.policies(); after != before {
				t.Errorf("before %s, after %s: something was written", before, after)
			}
		})
	}
	// What is right for an operator is not for a tenant: neither its own admin's, nor another's.
	right := map[string][3]string{
		"quota":  {"PUT", "/v1/quotas", quota(`,"limit":1`)},
		"budget": {"PUT", "/v1/budgets", budget(`,"gpu_ms":1`)},
		"window": {"POST", "/v1/windows", window("maintenance", "")},
		"stop":   {"POST", "/v1/queue/stops", stop("")},
		"weight": {"PATCH", "/v1/tenants/acme", `{"weight":2}`},
		"price":  {"PUT", "/v1/prices", price(`,"currency":"EUR","micros_per_hour":1`)},
		"amends": {"POST", "/v1/usage/adjustments", `{"key":"k","tenant":"acme","gpu_ms":1,"note":"n"}`},
	}
	globex := p.globex()
	for name, c := range right {
		t.Run("a tenant's "+name, func(t *testing.T) {
			before := p.policies()
			wantProblem(t, p.send(p.tokens[auth.TenantAdmin], c[0], c[1], c[2]), schema.CodeForbidden, "")
			wantProblem(t, p.send(globex, c[0], c[1], c[2]), schema.CodeForbidden, "")
			if after := p.policies(); after != before {
				t.Errorf("before %s, after %s: something was written", before, after)
			}
		})
	}
	// A tenant's admin may change its own projects and no other's, which do not exist for it.
	wantProblem(t, p.send(globex, "PATCH", "/v1/tenants/acme/projects/main", `{"weight":2}`), schema.CodeNotFound, "", "acme")
}

// policies is everything that steers the queue, as it is listed.
func (p *pool) policies() string {
	p.Helper()
	var b strings.Builder
	for _, at := range []string{"/v1/quotas", "/v1/budgets", "/v1/windows", "/v1/queue/stops", "/v1/prices", "/v1/tenants", "/v1/tenants/acme/projects", "/v1/jobs", "/v1/health/breakers"} {
		var list struct{ Items []json.RawMessage }
		p.must(json.Unmarshal(p.op("GET", at, "").body, &list))
		fmt.Fprintf(&b, "%s %s\n", at, list.Items)
	}
	return b.String()
}
