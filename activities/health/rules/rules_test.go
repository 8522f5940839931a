package rules_test

import (
	"testing"
	"time"

	"gpupool/activities/health/rules"
	"gpupool/schema"
)

const hour = schema.Instant(60 * 60 * 1000)

func TestTheTableIsWhole(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, r := range rules.Table {
		if r.Name == "" || names[r.Name] || r.Kind == "" || !r.Action.Valid() || r.Why == "" || r.Source == "" {
			t.Errorf("rule %+v: a name of its own, a kind, a known action, why and whence", r)
		}
		if r.Count > 1 && r.Within == 0 {
			t.Errorf("rule %s counts for ever: counts need a window", r.Name)
		}
		if r.Mode != rules.Off && r.Mode != rules.Watch && r.Mode != rules.Enforce {
			t.Errorf("rule %s has mode %q", r.Name, r.Mode)
		}
		names[r.Name] = true
	}
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	xid := func(code string, at schema.Instant) schema.Fault {
		return schema.Fault{ID: code + "-" + at.String(), Accelerator: "acc", Kind: "xid", Code: code, Severity: schema.SeverityWarning, At: at, Epoch: 2}
	}
	other := xid("94", 2*hour)
	other.Accelerator = "acc-2"
	before := xid("94", 2*hour)
	before.Epoch = 1
	cases := map[string]struct {
		f      schema.Fault
		recent []schema.Fault
		action rules.Action
		rule   string
	}{
		"off the bus":                         {xid("79", hour), nil, rules.Repair, "xid-fell-off-bus"},
		"double bit":                          {xid("48", hour), nil, rules.Repair, "xid-double-bit-ecc"},
		"a row to be remapped kills no job":   {xid("63", hour), nil, rules.Cordon, "xid-row-remapped"},
		"no row left to remap to":             {xid("64", hour), nil, rules.Repair, "xid-row-remap-failed"},
		"an application's fault":              {xid("31", hour), nil, rules.Observe, "xid-application"},
		"contained once":                      {xid("94", hour), nil, rules.Observe, "xid-contained-ecc"},
		"contained three times in a day":      {xid("94", 3*hour), []schema.Fault{xid("94", hour), xid("94", 2*hour), xid("94", 3*hour)}, rules.Cordon, "xid-contained-ecc-again"},
		"contained three times in two days":   {xid("94", 60*hour), []schema.Fault{xid("94", hour), xid("94", 59*hour)}, rules.Observe, "xid-contained-ecc"},
		"the same event twice counts once":    {xid("94", 3*hour), []schema.Fault{xid("94", 3*hour), xid("94", 2*hour)}, rules.Observe, "xid-contained-ecc"},
		"another device's don't count":        {xid("94", 3*hour), []schema.Fault{xid("94", hour), other}, rules.Observe, "xid-contained-ecc"},
		"those before the repair don't count": {xid("94", 3*hour), []schema.Fault{xid("94", hour), before}, rules.Observe, "xid-contained-ecc"},
		"nobody knows it":                     {xid("999", hour), nil, rules.Observe, ""},
		"a rule on trial does nothing":        {xid("31", 5*hour), []schema.Fault{xid("31", hour), xid("31", 2*hour), xid("31", 3*hour), xid("31", 4*hour)}, rules.Observe, "xid-application"},
		"warm is not hot":                     {schema.Fault{Kind: "thermal", Severity: schema.SeverityWarning}, nil, rules.Cordon, "thermal"},
		"hot":                                 {schema.Fault{Kind: "thermal", Severity: schema.SeverityCritical}, nil, rules.Repair, "thermal-critical"},
		"thermal information":                 {schema.Fault{Kind: "thermal", Severity: schema.SeverityInfo}, nil, rules.Observe, ""},
		"an uncorrectable RAS error":          {schema.Fault{Kind: "ras", Severity: schema.SeverityCritical}, nil, rules.Repair, "ras-uncorrectable"},
		"a corrected RAS error":               {schema.Fault{Kind: "ras", Severity: schema.SeverityInfo}, nil, rules.Observe, "ras-correctable"},
		"a device that is gone":               {schema.Fault{Kind: "absent", Severity: schema.SeverityCritical}, nil, rules.Repair, "absent"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := rules.Decide(rules.Table, c.f, c.recent)
			if v.Action != c.action || v.Rule != c.rule || v.Why == "" {
				t.Fatalf("rule %q says %s (%s), want %q and %s", v.Rule, v.Action, v.Why, c.rule, c.action)
			}
		})
	}
}

func TestARuleThatIsOffIsNotAsked(t *testing.T) {
	t.Parallel()
	f := schema.Fault{Kind: "xid", Code: "79", Severity: schema.SeverityCritical}
	for mode, want := range map[rules.Mode]rules.Action{rules.Off: rules.Observe, rules.Watch: rules.Observe, rules.Enforce: rules.Repair} {
		v := rules.Decide([]rules.Rule{{Name: "r", Kind: "xid", Action: rules.Repair, Mode: mode, Within: time.Hour}}, f, nil)
		if v.Action != want || (v.Rule == "") != (mode == rules.Off) {
			t.Errorf("mode %s: %+v", mode, v)
		}
	}
}
