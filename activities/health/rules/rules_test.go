package rules_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"gpupool/activities/health/rules"
	"gpupool/schema"
)

func TestTheTableIsWhole(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, r := range rules.Table {
		if r.Name == "" || names[r.Name] || r.Kind == "" || r.Why == "" || r.Source == "" {
			t.Errorf("rule %+v: a name of its own, a kind, why and whence", r)
		}
		if _, err := rules.Check(rules.Table, rules.Change{Rule: r.Name}); err != nil {
			t.Errorf("rule %s: %v", r.Name, err)
		}
		if r.Action == schema.ActionCordon && r.Cure == "" {
			t.Errorf("rule %s cordons, and nothing follows: a cordon has a next step", r.Name)
		}
		if r.Beside != "" && r.Within == 0 {
			t.Errorf("rule %s asks for %s beside it for ever", r.Name, r.Beside)
		}
		names[r.Name] = true
	}
	codes := map[string]bool{}
	for _, x := range rules.XIDs {
		if codes[x.Code] || x.Meaning == "" || x.NVIDIA == "" || x.Why == "" || !x.Action.Valid() || !x.Cure.Valid() {
			t.Errorf("XID %+v: once, with its meaning, the catalogue's action, and why", x)
		}
		codes[x.Code] = true
	}
}

// TestCases judges the evidence of testdata/*: in each case the lines above ----, one after the other, on one server.
//
//	TIME DEVICE KIND [CODE] [sev=info|warning|critical] [value=N] [part=P] [epoch=N] [text=TO THE LINE'S END]
//
// DEVICE is - for the server itself. An epoch begins with each repair.
func TestCases(t *testing.T) {
	t.Parallel()
	asked := map[string]bool{}
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "evidence" {
				t.Fatalf("%s: %q is no command; evidence is", d.Pos, d.Cmd)
			}
			var all []schema.Fault
			for i, line := range strings.Split(d.Input, "\n") {
				f, err := parse(line)
				if err != nil {
					t.Fatalf("%s: line %d: %v", d.Pos, i+1, err)
				}
				f.ID = fmt.Sprint("f", i)
				all = append(all, f)
			}
			var out strings.Builder
			for _, o := range rules.Replay(rules.Table, all) {
				asked[o.Verdict.Rule] = true
				fmt.Fprintf(&out, "%s %s", o.Fault.At.Sub(start), o.Verdict.Action)
				if o.Verdict.Cure != "" {
					fmt.Fprintf(&out, " cure=%s", o.Verdict.Cure)
				}
				rule := o.Verdict.Rule
				if rule == "" {
					rule = "no rule knows it"
				}
				fmt.Fprintf(&out, " (%s)\n", rule)
			}
			return out.String()
		})
	})
	var never []string
	for _, r := range rules.Table {
		if !asked[r.Name] {
			never = append(never, r.Name)
		}
	}
	if len(never) > 0 {
		t.Errorf("no case is decided by: %s", strings.Join(never, ", "))
	}
}

const start = schema.Instant(1_700_000_000_000)

func parse(line string) (schema.Fault, error) {
	f := schema.Fault{Severity: schema.SeverityCritical, Server: "s1", Epoch: 1}
	words := strings.Fields(line)
	if len(words) < 3 {
		return f, fmt.Errorf("%q: time, device and kind", line)
	}
	d, err := time.ParseDuration(words[0])
	if err != nil {
		return f, err
	}
	f.At, f.Kind = start.Add(d), words[2]
	if words[1] != "-" {
		f.Accelerator = words[1]
	}
	if i := strings.Index(line, " text="); i >= 0 {
		f.Text, words = line[i+len(" text="):], strings.Fields(line[:i])
	}
	for _, w := range words[3:] {
		k, v, pair := strings.Cut(w, "=")
		switch {
		case !pair:
			f.Code = w
		case k == "sev":
			f.Severity = schema.Severity(v)
		case k == "part":
			f.Part = v
		case k == "value":
			f.Value, err = strconv.ParseFloat(v, 64)
		case k == "epoch":
			f.Epoch, err = strconv.ParseInt(v, 10, 64)
		default:
			err = fmt.Errorf("%q is not known", w)
		}
		if err != nil {
			return f, err
		}
	}
	return f, nil
}

func TestARuleThatIsOffIsNotAskedAndOneOnTrialDoesNothing(t *testing.T) {
	t.Parallel()
	f := schema.Fault{Kind: "xid", Code: "79", Severity: schema.SeverityCritical}
	for mode, want := range map[rules.Mode]schema.Action{rules.Off: schema.ActionObserve, rules.Watch: schema.ActionObserve, rules.Enforce: schema.ActionRepair} {
		v := rules.Decide([]rules.Rule{{Name: "r", Kind: "xid", Action: schema.ActionRepair, Mode: mode, Within: time.Hour}}, f, nil)
		if v.Action != want || (v.Rule == "") != (mode == rules.Off) {
			t.Errorf("mode %s: %+v", mode, v)
		}
	}
}

func TestTheOrderInWhichEvidenceIsKeptDoesNotMatter(t *testing.T) {
	t.Parallel()
	var recent []schema.Fault
	for i := range 5 {
		recent = append(recent, schema.Fault{ID: fmt.Sprint(i), Server: "s1", Accelerator: "G1", Kind: "xid", Code: "94", At: start.Add(time.Duration(i) * time.Hour), Epoch: 1})
	}
	f := recent[4]
	want := rules.Decide(rules.Table, f, recent)
	slices.Reverse(recent)
	if got := rules.Decide(rules.Table, f, recent); got != want || got.Rule != "xid-94-again" {
		t.Errorf("%+v, and in the other order %+v", want, got)
	}
}

// FuzzVerdict: whatever evidence says of itself, it has one verdict; what no rule knows is only observed.
func FuzzVerdict(f *testing.F) {
	f.Add("xid", "154", "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", "info", 0.0)
	f.Add("ecc-correctable", "", "", "warning", 17_700.0)
	f.Fuzz(func(t *testing.T, kind, code, text, severity string, value float64) {
		x := schema.Fault{ID: "f", Server: "s", Kind: kind, Code: code, Text: text, Severity: schema.Severity(severity), Value: value, At: start}
		v := rules.Decide(rules.Table, x, []schema.Fault{x})
		if !v.Action.Valid() || v.Rule == "" && v.Action != schema.ActionObserve {
			t.Errorf("%+v is judged %+v", x, v)
		}
	})
}
