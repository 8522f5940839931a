package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store/storetest"
)

func TestBadInputIsRefusedByNameAndNothingIsWritten(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	storetest.Available(t, p.store, 1, model, 8)
	spec := func(n string) string { return `{"name":"s1","model":"nvidia-h100-80gb","accelerators":` + n + `}` }
	job := func(rest string) string {
		return `{"tenant":"acme","project":"main","spec":"h100x8","command":["true"]` + rest + `}`
	}
	for name, c := range map[string]struct {
		method, path, body string
		code               schema.ErrorCode
		field              string
		names              []string
	}{
		"a spec of no GPU":                    {"POST", "/v1/specs", spec("0"), schema.CodeInvalid, "accelerators", []string{"0", "1 to 16"}},
		"a spec of -1":                        {"POST", "/v1/specs", spec("-1"), schema.CodeInvalid, "accelerators", []string{"-1"}},
		"a spec of 2^31":                      {"POST", "/v1/specs", spec("2147483648"), schema.CodeInvalid, "accelerators", []string{"2147483648"}},
		"a spec of 2^53+1":                    {"POST", "/v1/specs", spec("9007199254740993"), schema.CodeInvalid, "accelerators", []string{"9007199254740993"}},
		"a spec of 2^63-1":                    {"POST", "/v1/specs", spec("9223372036854775807"), schema.CodeInvalid, "accelerators", []string{"9223372036854775807"}},
		"a spec of 2^63":                      {"POST", "/v1/specs", spec("9223372036854775808"), schema.CodeInvalid, "accelerators", []string{"9223372036854775808"}},
		"a spec of 1e400":                     {"POST", "/v1/specs", spec("1e400"), schema.CodeInvalid, "accelerators", []string{"1e400"}},
		"a spec of NaN":                       {"POST", "/v1/specs", spec("NaN"), schema.CodeInvalid, "body", []string{"not JSON"}},
		"a gang of 1e400":                     {"POST", "/v1/jobs", job(`,"nodes":1e400`), schema.CodeInvalid, "nodes", []string{"1e400"}},
		"a gang of -1":                        {"POST", "/v1/jobs", job(`,"nodes":-1`), schema.CodeInvalid, "nodes", []string{"-1"}},
		"a spec of 8.0":                       {"POST", "/v1/specs", spec("8.0"), schema.CodeInvalid, "accelerators", []string{"8.0", "whole"}},
		"a spec of 1e1":                       {"POST", "/v1/specs", spec("1e1"), schema.CodeInvalid, "accelerators", []string{"1e1"}},
		"a spec of \"8\"":                     {"POST", "/v1/specs", spec(`"8"`), schema.CodeInvalid, "accelerators", []string{"string", "whole number"}},
		"a field that is not known":           {"POST", "/v1/specs", `{"name":"s1","model":"m","acelerators":8}`, schema.CodeInvalid, "acelerators", []string{"no such field"}},
		"a field twice":                       {"POST", "/v1/specs", `{"name":"s1","name":"s2","model":"m","accelerators":8}`, schema.CodeInvalid, "name", []string{"twice"}},
		"a value behind the value":            {"POST", "/v1/specs", spec("8") + spec("8"), schema.CodeInvalid, "body", []string{"more behind"}},
		"half a body":                         {"POST", "/v1/specs", `{"name":"s1"`, schema.CodeInvalid, "body", nil},
		"no body":                             {"POST", "/v1/specs", ` `, schema.CodeInvalid, "body", []string{"empty"}},
		"a list for an object":                {"POST", "/v1/specs", `[]`, schema.CodeInvalid, "", nil},
		"a thousand levels":                   {"POST", "/v1/specs", `{"name":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `}`, schema.CodeInvalid, "body", []string{"deep"}},
		"a body of two megabytes":             {"POST", "/v1/specs", `{"name":"` + strings.Repeat("x", 2<<20) + `"}`, schema.CodeInvalid, "body", []string{"1048576"}},
		"a gang of no nodes":                  {"POST", "/v1/jobs", job(`,"nodes":0`), schema.CodeInvalid, "nodes", []string{"0"}},
		"a gang whose sum would overflow":     {"POST", "/v1/jobs", job(`,"nodes":9223372036854775807`), schema.CodeInvalid, "nodes", []string{"4096"}},
		"a spec that is not there":            {"POST", "/v1/jobs", strings.Replace(job(""), "h100x8", "h100x9", 1), schema.CodeInvalid, "spec", []string{"h100x8"}},
		"a project that is not there":         {"POST", "/v1/jobs", strings.Replace(job(""), "main", "mian", 1), schema.CodeInvalid, "project", []string{"mian"}},
		"no project":                          {"POST", "/v1/jobs", `{"tenant":"acme","spec":"h100x8","command":["true"]}`, schema.CodeInvalid, "project", nil},
		"no tenant, by an operator":           {"POST", "/v1/jobs", `{"project":"main","spec":"h100x8","command":["true"]}`, schema.CodeInvalid, "tenant", nil},
		"no command":                          {"POST", "/v1/jobs", `{"tenant":"acme","project":"main","spec":"h100x8","command":[]}`, schema.CodeInvalid, "command", nil},
		"NUL in an argument":                  {"POST", "/v1/jobs", strings.Replace(job(""), `"true"`, `"a\u0000b"`, 1), schema.CodeInvalid, "command[0]", []string{"NUL"}},
		"NUL in a variable":                   {"POST", "/v1/jobs", job(`,"env":{"A":"a\u0000b"}`), schema.CodeInvalid, "env.A", []string{"NUL"}},
		"NUL in a folder":                     {"POST", "/v1/jobs", job(`,"work_dir":"/a\u0000"`), schema.CodeInvalid, "work_dir", []string{"NUL"}},
		"NUL in a reason":                     {"POST", "/v1/servers/none/actions/cordon", `{"reason":"a\u0000b"}`, schema.CodeInvalid, "reason", []string{"NUL"}},
		"a negative time limit":               {"POST", "/v1/jobs", job(`,"time_limit_ms":-1`), schema.CodeInvalid, "time_limit_ms", nil},
		"a time limit that wraps in ns":       {"POST", "/v1/jobs", job(`,"time_limit_ms":9223372036854775807`), schema.CodeInvalid, "time_limit_ms", nil},
		"a moment that is none":               {"POST", "/v1/jobs", job(`,"not_before":"tomorrow"`), schema.CodeInvalid, "not_before", []string{"tomorrow"}},
		"a priority above all":                {"POST", "/v1/jobs", job(`,"priority":1001`), schema.CodeInvalid, "priority", nil},
		"a quota of 2^53+1":                   {"PUT", "/v1/quotas", `{"tenant":"acme","model":"m","limit":9007199254740993}`, schema.CodeInvalid, "limit", []string{"9007199254740993"}},
		"a limit of a list that is too big":   {"GET", "/v1/jobs?limit=1001", "", schema.CodeInvalid, "limit", []string{"1001"}},
		"a limit that is no number":           {"GET", "/v1/jobs?limit=ten", "", schema.CodeInvalid, "limit", []string{"ten"}},
		"a wait that is no time":              {"GET", "/v1/events?wait=soon", "", schema.CodeInvalid, "wait", []string{"soon"}},
		"a state that is none":                {"GET", "/v1/jobs?state=done", "", schema.CodeInvalid, "state", []string{"done", "completed"}},
		"a phase that is none":                {"GET", "/v1/servers?phase=up", "", schema.CodeInvalid, "phase", []string{"available"}},
		"a cursor that is none":               {"GET", "/v1/jobs?after=%20", "", schema.CodeInvalid, "after", nil},
		"usage by what there is not":          {"GET", "/v1/usage?by=colour", "", schema.CodeInvalid, "by", []string{"colour"}},
		"usage whose end is before its start": {"GET", "/v1/usage?from=2026-02-01T00:00:00Z&to=2026-01-01T00:00:00Z", "", schema.CodeInvalid, "from", nil},
		"a server that is not there":          {"GET", "/v1/servers/none", "", schema.CodeNotFound, "", []string{"none"}},
		"an operation that is not there":      {"GET", "/v1/nothing", "", schema.CodeNotFound, "", nil},
		"a method that is not there":          {"PUT", "/v1/specs", "", schema.CodeNotFound, "", nil},
		"a cordon without a reason":           {"POST", "/v1/servers/none/actions/cordon", `{"reason":" "}`, schema.CodeInvalid, "reason", nil},
		"a step that is none":                 {"POST", "/v1/servers/none/actions/skip", `{"step":"paint","reason":"r"}`, schema.CodeInvalid, "step", []string{"paint", "burn-in"}},
	} {
		t.Run(name, func(t *testing.T) {
			before := p.records()
			a := p.op(c.method, c.path, c.body)
			wantProblem(t, a, c.code, c.field, c.names...)
			if after := p.records(); after != before {
				t.Errorf("before %s, after %s: something was written", before, after)
			}
		})
	}
	wantProblem(t, p.op("POST", "/v1/specs", spec("8"), "Content-Type: text/plain"), schema.CodeInvalid, "Content-Type", "application/json")
}

// records counts what there is, but the audit.
func (p *pool) records() string {
	p.Helper()
	var b strings.Builder
	for _, at := range []string{"/v1/servers", "/v1/specs", "/v1/jobs", "/v1/quotas", "/v1/tenants", "/v1/tokens"} {
		var list struct{ Items []json.RawMessage }
		p.must(json.Unmarshal(p.op("GET", at, "").body, &list))
		fmt.Fprintf(&b, "%s %d ", at, len(list.Items))
	}
	return b.String()
}

const bulkYAML = `
servers:
  - name: r1s1
    region: eu
    site: ams1
    rack: r1
    unit: 4
    serial: "0012345"
    macs: [ "0c:42:a1:00:00:01", "11-22-33-44-55-66" ]
    bmc_address: https://192.0.2.11
    bmc_username: admin
    bmc_password: secret-1
    model: nvidia-h100-80gb
    accelerators: 8
    cpus: 128
    memory_bytes: 2199023255552
  - name: r1s2
    region: eu
    site: ams1
    rack: r1
    serial: SN2
    macs: ["0c:42:a1:00:00:02"]
    bmc_address: https://192.0.2.12
    bmc_username: admin
    bmc_password: secret-2
    model: nvidia-h100-80gb
    accelerators: 8
    cpus: 128
    memory_bytes: 2199023255552
`

const bulkCSV = "name,region,site,rack,unit,serial,macs,bmc_address,bmc_username,bmc_password,model,accelerators,cpus,memory_bytes\n" +
	"r1s1,eu,ams1,r1,4,0012345,0c:42:a1:00:00:01 10-22-33-44-55-66,https://192.0.2.11,admin,secret-1,nvidia-h100-80gb,8,128,2199023255552\n" +
	"r1s2,eu,ams1,r1,,SN2,0c:42:a1:00:00:02,https://192.0.2.12,admin,secret-2,nvidia-h100-80gb,8,128,2199023255552\n"

func TestBulkEnrolmentReadsTheSameServersFromYAMLCSVAndJSON(t *testing.T) {
	t.Parallel()
	yaml := strings.Replace(bulkYAML, "11-22", "10-22", 1)
	entry := `{"name":"r1s%d","region":"eu","site":"ams1","rack":"r1"%s,"serial":"%s","macs":[%s],"bmc_address":"https://192.0.2.1%d","bmc_username":"admin","bmc_password":"x","model":"nvidia-h100-80gb","accelerators":8,"cpus":128,"memory_bytes":2199023255552}`
	js := `{"servers":[` + fmt.Sprintf(entry, 1, `,"unit":4`, "0012345", `"0c:42:a1:00:00:01","10-22-33-44-55-66"`, 1) + "," + fmt.Sprintf(entry, 2, "", "SN2", `"0c:42:a1:00:00:02"`, 2) + `]}`
	var first string
	for _, c := range [][2]string{
		{"application/yaml", yaml}, {"application/yaml", "\xef\xbb\xbf" + strings.ReplaceAll(yaml, "\n", "\r\n")},
		{"text/csv", bulkCSV}, {"text/csv", "\xef\xbb\xbf" + strings.ReplaceAll(bulkCSV, "\n", "\r\n")},
		{"application/json; charset=utf-8", js}, {"application/json", "\xef\xbb\xbf" + js},
	} {
		p := newPool(t)
		list := read[contract.ServerList](t, p.op("POST", "/v1/servers/bulk", c[1], "Content-Type: "+c[0]), http.StatusCreated)
		var b strings.Builder
		for _, v := range list.Items {
			fmt.Fprintln(&b, v.Name, v.Region, v.Site, v.Rack, v.Unit, v.Serial, v.Macs, v.Arch, v.BmcAddress, v.Model, v.Accelerators, v.Cpus, v.MemoryBytes, v.Profile, v.Backend, v.Phase)
		}
		if first == "" {
			first = b.String()
			if want := "r1s1 eu ams1 r1 4 0012345 [0c:42:a1:00:00:01 10:22:33:44:55:66]"; !strings.HasPrefix(first, want) {
				t.Fatalf("got %s, want it to begin with %s", first, want)
			}
		}
		if b.String() != first {
			t.Errorf("%s gave\n%s\nand YAML\n%s", c[0], b.String(), first)
		}
	}
}

func TestABadBulkFileIsRefusedWholeAndNamesTheEntry(t *testing.T) {
	t.Parallel()
	p := newPool(t)
	good := strings.Replace(bulkYAML, "11-22", "10-22", 1)
	edit := func(from, to string) string {
		if !strings.Contains(good, from) {
			t.Fatalf("the file does not hold %q", from)
		}
		return strings.Replace(good, from, to, 1)
	}
	csv := func(from, to string) string { return strings.Replace(bulkCSV, from, to, 1) }
	for name, c := range map[string]struct {
		kind, body, field string
		names             []string
	}{
		"a serial twice":                            {"application/yaml", edit("SN2", `"0012345"`), "servers[1].serial", []string{"0012345", "servers[0]"}},
		"a serial twice, typed otherwise":           {"application/yaml", strings.NewReplacer(`"0012345"`, "AB12", "SN2", "ab12").Replace(good), "servers[1].serial", []string{"servers[0]"}},
		"a MAC twice":                               {"application/yaml", edit("0c:42:a1:00:00:02", "0C-42-A1-00-00-01"), "servers[1].macs", []string{"0c:42:a1:00:00:01"}},
		"a multicast MAC":                           {"application/yaml", bulkYAML, "servers[0].macs[1]", []string{"11-22-33-44-55-66"}},
		"a MAC of five bytes":                       {"application/yaml", edit("0c:42:a1:00:00:02", "0c:42:a1:00:00"), "servers[1].macs[0]", []string{"0c:42:a1:00:00"}},
		"an unknown field":                          {"application/yaml", edit("    serial: SN2", "    serail: SN2"), "servers[1].serail", []string{"no such field"}},
		"a field twice":                             {"application/yaml", edit("    serial: SN2", "    serial: SN2\n    serial: SN3"), "body", nil},
		"an unknown field at the top":               {"application/yaml", "sites: []\n" + good, "sites", nil},
		"an address with a password":                {"application/yaml", edit("https://192.0.2.12", "https://u:p@192.0.2.12"), "servers[1].bmc_address", nil},
		"more GPUs than a server has":               {"application/yaml", edit("accelerators: 8", "accelerators: 9007199254740993"), "servers[0].accelerators", []string{"9007199254740993"}},
		"a number that is no number":                {"application/yaml", edit("accelerators: 8", "accelerators: eight"), "servers[0].accelerators", nil},
		"a number with a fraction, by YAML":         {"application/yaml", edit("accelerators: 8", "accelerators: 8.0"), "servers[0].accelerators", []string{"8.0", "plain digits"}},
		"a number that may be octal":                {"application/yaml", edit("accelerators: 8", "accelerators: 010"), "servers[0].accelerators", []string{"010"}},
		"a number in base 16":                       {"application/yaml", edit("cpus: 128", "cpus: 0x80"), "servers[0].cpus", []string{"0x80"}},
		"a number in base 2":                        {"application/yaml", edit("cpus: 128", "cpus: 0b11"), "servers[0].cpus", []string{"0b11"}},
		"a number with underscores":                 {"application/yaml", edit("cpus: 128", "cpus: 1_28"), "servers[0].cpus", []string{"1_28"}},
		"no number":                                 {"application/yaml", edit("accelerators: 8", "accelerators: .nan"), "servers[0].accelerators", []string{".nan"}},
		"an infinite number":                        {"application/yaml", edit("unit: 4", "unit: .inf"), "servers[0].unit", []string{".inf"}},
		"a serial with zeros before it":             {"application/yaml", edit(`"0012345"`, "0012345"), "servers[0].serial", []string{"0012345", "quotes"}},
		"a MAC without its colons":                  {"application/yaml", edit(`"0c:42:a1:00:00:02"`, "021000000001"), "servers[1].macs[0]", []string{"021000000001", "quotes"}},
		"a serial that is read as one":              {"application/yaml", edit(`"0012345"`, "12345"), "servers[0].serial", []string{"text"}},
		"anchors":                                   {"application/yaml", "x: &a [1]\ny: *a\n", "body", []string{"anchor"}},
		"a hundred thousand entries in one another": {"application/yaml", "servers: " + strings.Repeat("[", 100_000), "body", []string{"deep"}},
		"the same without brackets":                 {"application/yaml", "servers:\n" + strings.Repeat("- ", 100_000), "body", []string{"deep"}},
		"two documents":                             {"application/yaml", good + "---\n" + good, "body", []string{"2 YAML documents"}},
		"no YAML":                                   {"application/yaml", "servers: [", "body", nil},
		"no servers":                                {"application/yaml", "servers: []", "servers", nil},
		"an unknown column":                         {"text/csv", csv("serial", "serail"), "serail", nil},
		"a column twice":                            {"text/csv", csv("rack", "site"), "site", []string{"twice"}},
		"a line that is too short":                  {"text/csv", bulkCSV + "r1s3,eu\n", "body", nil},
		"a number with a fraction":                  {"text/csv", csv("h100-80gb,8,", "h100-80gb,8.0,"), "servers[0].accelerators", []string{"8.0"}},
		"a serial twice, by CSV":                    {"text/csv", csv("SN2", "0012345"), "servers[1].serial", []string{"0012345"}},
		"nothing":                                   {"text/csv", "", "body", nil},
		"an unknown field, by JSON":                 {"application/json", `{"servers":[{"colour":"red"}]}`, "servers[0].colour", nil},
		"a kind that is not taken":                  {"application/xml", "<servers/>", "Content-Type", []string{"text/csv"}},
		"an unquoted password as number":            {"application/yaml", edit("secret-2", "12345678"), "servers[1].bmc_password", []string{"text"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := p.op("POST", "/v1/servers/bulk", c.body, "Content-Type: "+c.kind)
			got := wantProblem(t, a, schema.CodeInvalid, c.field, c.names...)
			if strings.Contains(string(a.body), "secret-") {
				t.Errorf("the answer shows a password: %+v", got)
			}
			if list := read[contract.ServerList](t, p.op("GET", "/v1/servers", ""), http.StatusOK); len(list.Items) != 0 {
				t.Errorf("%d servers were written", len(list.Items))
			}
		})
	}
}

func FuzzBodiesNeverPanicAndAreEitherTakenOrNamed(f *testing.F) {
	f.Add("application/json", `{"servers":[]}`)
	f.Add("application/yaml", bulkYAML)
	f.Add("text/csv", bulkCSV)
	f.Add("application/yaml", "servers: &a\n- *a\n")
	f.Add("application/yaml", "---\n---\n")
	f.Add("text/csv", "macs\n\"a b\"\n")
	p := fuzzPool(f)
	f.Fuzz(func(t *testing.T, kind, body string) {
		if strings.ContainsAny(kind, "\r\n\x00") {
			t.Skip("not a header")
		}
		a := p.raw(t, kind, body)
		if a.status >= 500 {
			t.Fatalf("%d: %s", a.status, a.body)
		}
		if a.status != http.StatusCreated && a.status != http.StatusBadRequest {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
		if a.status == http.StatusBadRequest && a.problem(t).Field == "" {
			t.Fatalf("%q names no field: %s", body, a.body)
		}
	})
}
