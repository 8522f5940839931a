// Package rules says what evidence of a failing device means. Rules are data: a signal, how often within what time, what
// to do, what may cure it, and where that comes from.
//
// Invariant: it is pure; the strongest rule that is met decides; evidence that no rule knows is observed, never acted on
// and never dropped. Not here: applying a verdict, the blast radius (schema/store), collecting (worker/agent, bmc).
package rules

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gpupool/schema"
)

// Mode says whether a rule acts.
type Mode string

const (
	Off     Mode = "off"
	Watch   Mode = "observe" // its verdicts are counted, and nothing is done: for a rule on trial
	Enforce Mode = "enforce"
)

// Valid reports whether m is known.
func (m Mode) Valid() bool { return m == Off || m == Watch || m == Enforce }

// Rule is one line of the table.
type Rule struct {
	Name  string   `json:"name"`
	Kind  string   `json:"kind"`            // of the evidence: xid, ras, absent, ...
	Codes []string `json:"codes,omitempty"` // empty = any
	// Severity, if set, is the least that the source must have given it.
	Severity schema.Severity `json:"severity,omitempty"`
	// Above, if not 0, is what the evidence's value must at least be, in its kind's unit.
	Above float64 `json:"above,omitempty"`
	// Count within Within on one device, this evidence included. 0 and 1 are the same: once is enough.
	Count  int           `json:"count,omitempty"`
	Within time.Duration `json:"within,omitempty"`
	// Across counts over repairs, each time between two of them as one: a fault often comes in a burst, but what comes back
	// after a repair was not cured by it.
	Across bool `json:"across,omitempty"`
	// Beside, if set, is another code of the same kind that the device must have told within Within: 48 beside 64.
	Beside string `json:"beside,omitempty"`

	Action schema.Action `json:"action"`
	Cure   schema.Cure   `json:"cure,omitempty"` // the mildest that may help; of a cordon and a reset
	// Corrupts says that work on the device may be wrong by now: no limit on how much may be cordoned holds it back.
	Corrupts bool   `json:"corrupts,omitempty"`
	Mode     Mode   `json:"mode"`
	Why      string `json:"why"`    // what it means, for a person
	Source   string `json:"source"` // who says so
}

// Verdict is what the rules make of a piece of evidence.
type Verdict struct {
	Rule     string // "" = no rule knows this evidence
	Action   schema.Action
	Cure     schema.Cure
	Corrupts bool
	Silenced string // why it is not acted on though the rule is met; "" = it is not silenced
	Why      string
}

// Silence keeps evidence from being acted on until a moment. Empty fields fit everything; one must be set.
type Silence struct {
	Rule        string         `json:"rule,omitempty"`
	Kind        string         `json:"kind,omitempty"`
	Code        string         `json:"code,omitempty"`
	Server      string         `json:"server,omitempty"`
	Accelerator string         `json:"accelerator,omitempty"`
	Until       schema.Instant `json:"until"`
	By          string         `json:"by"`
	Reason      string         `json:"reason"`
}

func (s Silence) fits(rule string, f schema.Fault) bool {
	for _, m := range []struct{ want, have string }{{s.Rule, rule}, {s.Kind, f.Kind}, {s.Code, f.Code}, {s.Server, f.Server}, {s.Accelerator, f.Accelerator}} {
		if m.want != "" && m.want != m.have {
			return false
		}
	}
	return true
}

// Decide judges a fault by the first rule met of those with the strongest action, and there the strongest cure. recent are
// other faults of its server, in any order; f itself may be among them.
func Decide(table []Rule, f schema.Fault, recent []schema.Fault) Verdict {
	best := Verdict{Action: schema.ActionObserve, Why: "no rule knows " + strings.TrimSpace(f.Kind+" "+f.Code)}
	known := false
	for _, r := range table {
		if r.Mode == Off || !r.fits(f) || !r.beside(f, recent) || r.count(f, recent) < max(r.Count, 1) {
			continue
		}
		v := Verdict{Rule: r.Name, Action: r.Action, Cure: r.Cure, Corrupts: r.Corrupts, Why: r.Why}
		if r.Mode == Watch {
			v.Action, v.Cure, v.Why = schema.ActionObserve, "", r.Why+" (the rule only observes; it would "+string(r.Action)+")"
		}
		// Of rules that do the same one on trial is told, so that it can be seen what it would do.
		if !known || v.Action.Stronger(best.Action) || v.Action == best.Action && (v.Cure.Stronger(best.Cure) || r.Mode == Watch) {
			best, known = v, true
		}
	}
	return best
}

// DecideSilenced is Decide, but for what is silenced at now: that is observed, and says which silence it was.
func DecideSilenced(table []Rule, silences []Silence, f schema.Fault, recent []schema.Fault, now schema.Instant) Verdict {
	v := Decide(table, f, recent)
	if v.Action == schema.ActionObserve {
		return v
	}
	for _, s := range silences {
		if s.Until > now && s.fits(v.Rule, f) {
			v.Silenced = fmt.Sprintf("silenced until %s by %s: %s (it would %s)", s.Until, s.By, s.Reason, v.Action)
			v.Action, v.Cure, v.Why = schema.ActionObserve, "", v.Why+"; "+v.Silenced
			return v
		}
	}
	return v
}

func (r Rule) fits(f schema.Fault) bool {
	return r.Kind == f.Kind && (len(r.Codes) == 0 || slices.Contains(r.Codes, code(f))) && severity(f.Severity) >= severity(r.Severity) && (r.Above == 0 || f.Value >= r.Above)
}

// same reports whether o is of f's device and may be counted with it. Evidence of an earlier epoch (before the last repair)
// is another part's history, or what was repaired: only Across counts it.
func (r Rule) same(f, o schema.Fault) bool {
	return o.ID != f.ID && o.Accelerator == f.Accelerator && o.Server == f.Server && o.Part == f.Part && (r.Across || o.Epoch == f.Epoch)
}

// count is how often the rule's evidence came within its window that ends with f.
func (r Rule) count(f schema.Fault, recent []schema.Fault) int {
	n, epochs := 1, []int64{f.Epoch}
	for _, o := range recent {
		if !r.same(f, o) || !r.fits(o) || o.At > f.At || r.Within > 0 && f.At.Sub(o.At) > r.Within {
			continue
		}
		n++
		if !slices.Contains(epochs, o.Epoch) {
			epochs = append(epochs, o.Epoch)
		}
	}
	if r.Across {
		return len(epochs)
	}
	return n
}

// beside reports whether the other code that the rule asks for is there, before f or after it.
func (r Rule) beside(f schema.Fault, recent []schema.Fault) bool {
	if r.Beside == "" {
		return true
	}
	for _, o := range recent {
		if d := f.At.Sub(o.At); r.same(f, o) && o.Kind == r.Kind && code(o) == r.Beside && d <= r.Within && d >= -r.Within {
			return true
		}
	}
	return false
}

func severity(s schema.Severity) int {
	return slices.Index([]schema.Severity{schema.SeverityInfo, schema.SeverityWarning, schema.SeverityCritical}, s)
}
