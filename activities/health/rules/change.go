package rules

import (
	"fmt"
	"slices"
	"time"

	"gpupool/schema"
)

// Change is what an operator changes of a rule; zero fields leave the rule's own.
type Change struct {
	Rule   string
	Mode   Mode
	Count  int
	Within time.Duration
	Above  float64
	Action schema.Action
	Cure   schema.Cure
}

// Find is the rule of this name.
func Find(table []Rule, name string) (Rule, bool) {
	i := slices.IndexFunc(table, func(r Rule) bool { return r.Name == name })
	if i < 0 {
		return Rule{}, false
	}
	return table[i], true
}

// With is the table with changes laid over it. A change of a rule that is not there is left out: an older release may have
// had it.
func With(table []Rule, changes []Change) []Rule {
	out := slices.Clone(table)
	for _, c := range changes {
		for i := range out {
			if out[i].Name == c.Rule {
				out[i] = out[i].with(c)
			}
		}
	}
	return out
}

func (r Rule) with(c Change) Rule {
	if c.Mode != "" {
		r.Mode = c.Mode
	}
	if c.Count != 0 {
		r.Count = c.Count
	}
	if c.Within != 0 {
		r.Within = c.Within
	}
	if c.Above != 0 {
		r.Above = c.Above
	}
	if c.Action != "" {
		r.Action = c.Action
	}
	if c.Cure != "" {
		r.Cure = c.Cure
	}
	return r
}

// longestWindow is how far back evidence is looked at.
const longestWindow = 30 * day

// Check refuses a change that makes no rule.
func Check(table []Rule, c Change) (Rule, error) {
	r, ok := Find(table, c.Rule)
	if !ok {
		return r, schema.NotFound("rule", c.Rule)
	}
	n := r.with(c)
	switch {
	case !n.Mode.Valid():
		return r, schema.Invalid("mode", string(n.Mode), "off, observe or enforce")
	case n.Count < 0 || n.Count > 1000:
		return r, schema.Invalid("count", fmt.Sprint(n.Count), "from 1 to 1000")
	case n.Within < 0 || n.Within > longestWindow:
		return r, schema.Invalid("within", n.Within.String(), "at most 30 days")
	case n.Count > 1 && n.Within == 0:
		return r, schema.Invalid("within", "", "a time, where a count is asked for")
	case n.Above < 0:
		return r, schema.Invalid("above", fmt.Sprint(n.Above), "a positive number, in the unit of "+r.Kind)
	case !n.Action.Valid():
		return r, schema.Invalid("action", string(n.Action), "observe, cordon, reset or repair")
	case !n.Cure.Valid():
		return r, schema.Invalid("cure", string(n.Cure), "burn-in, device, baseboard, reboot, power-cycle or technician")
	case n.Action == schema.ActionReset && (n.Cure == "" || n.Cure == schema.CureTechnician || n.Cure == schema.CureBurnIn):
		return r, schema.Invalid("cure", string(n.Cure), "device, baseboard, reboot or power-cycle, for a reset")
	}
	return n, nil
}

// Outcome is what a table made of one fault of the past.
type Outcome struct {
	Fault   schema.Fault
	Verdict Verdict
}

// Replay judges faults of the past, the oldest first, as if the table had been in force: each with what had come before it.
// What the platform did about them then is not changed by it; so a replay says what a rule would have found, not what would
// have come of it.
func Replay(table []Rule, faults []schema.Fault) []Outcome {
	by := map[string][]schema.Fault{}
	out := make([]Outcome, 0, len(faults))
	for _, f := range faults {
		out = append(out, Outcome{f, Decide(table, f, by[f.Server])})
		by[f.Server] = append(by[f.Server], f)
	}
	return out
}
