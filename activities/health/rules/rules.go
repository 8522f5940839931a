// Package rules says what evidence of a failing device means. Rules are data: a signal, how often within what time, what
// to do, and where that comes from.
//
// Invariant: it is pure; the strongest rule that is met decides; evidence that no rule knows is observed, never acted on
// and never dropped. Not here: applying a verdict, the blast radius (schema/store), collecting (worker/agent, bmc).
package rules

import (
	"slices"
	"time"

	"gpupool/schema"
)

// Action is what a verdict does, from the weakest to the strongest.
type Action string

const (
	Observe Action = "observe" // keep it, do nothing
	Cordon  Action = "cordon"  // no new jobs on the device; jobs go on
	Repair  Action = "repair"  // cordon, drain now, repair
)

// Valid reports whether a is known.
func (a Action) Valid() bool { return a == Observe || a == Cordon || a == Repair }

// Mode says whether a rule acts.
type Mode string

const (
	Off     Mode = "off"
	Watch   Mode = "observe" // its verdicts are counted, and nothing is done: for a rule on trial
	Enforce Mode = "enforce"
)

// Rule is one line of the table.
type Rule struct {
	Name  string   `json:"name"`
	Kind  string   `json:"kind"`            // of the evidence: xid, ras, absent, ...
	Codes []string `json:"codes,omitempty"` // empty = any
	// Severity, if set, is the least that the source must have given it.
	Severity schema.Severity `json:"severity,omitempty"`
	// Count within Within on one device, this evidence included. 0 and 1 are the same: once is enough.
	Count  int           `json:"count,omitempty"`
	Within time.Duration `json:"within,omitempty"`
	Action Action        `json:"action"`
	Mode   Mode          `json:"mode"`
	Why    string        `json:"why"`    // what it means, for a person
	Source string        `json:"source"` // who says so
}

// Verdict is what the rules make of a piece of evidence.
type Verdict struct {
	Rule   string // "" = no rule knows this evidence
	Action Action
	Why    string
}

// Decide judges a fault by the first rule met of those with the strongest action. recent are earlier faults of the same
// device, in any order; f itself may be among them.
func Decide(table []Rule, f schema.Fault, recent []schema.Fault) Verdict {
	best := Verdict{Action: Observe, Why: "no rule knows " + f.Kind + " " + f.Code}
	known := false
	for _, r := range table {
		if r.Mode == Off || !r.fits(f) || r.count(f, recent) < max(r.Count, 1) {
			continue
		}
		v := Verdict{Rule: r.Name, Action: r.Action, Why: r.Why}
		if r.Mode == Watch {
			v.Action, v.Why = Observe, r.Why+" (the rule only observes; it would "+string(r.Action)+")"
		}
		if !known || rank(v.Action) > rank(best.Action) {
			best, known = v, true
		}
	}
	return best
}

func (r Rule) fits(f schema.Fault) bool {
	return r.Kind == f.Kind && (len(r.Codes) == 0 || slices.Contains(r.Codes, f.Code)) && severity(f.Severity) >= severity(r.Severity)
}

// count is how often the rule's evidence came within its window that ends with f. Evidence of an earlier epoch (before
// the last repair) is another part's history, or what was repaired.
func (r Rule) count(f schema.Fault, recent []schema.Fault) int {
	n := 1
	for _, o := range recent {
		if o.ID != f.ID && o.Epoch == f.Epoch && o.Accelerator == f.Accelerator && r.fits(o) && o.At <= f.At && (r.Within == 0 || f.At.Sub(o.At) <= r.Within) {
			n++
		}
	}
	return n
}

func rank(a Action) int { return slices.Index([]Action{Observe, Cordon, Repair}, a) }

func severity(s schema.Severity) int {
	return slices.Index([]schema.Severity{schema.SeverityInfo, schema.SeverityWarning, schema.SeverityCritical}, s)
}
