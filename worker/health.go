package worker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"gpupool/activities/health"
	"gpupool/activities/health/rules"
	"gpupool/schema"
	"gpupool/schema/store"
)

// healthRules is the API's way to the rules: api.Health.
type healthRules struct{ store *store.Store }

const figuresOver = 30 * 24 * time.Hour

// Rules are those in force, with what came of them over 30 days.
func (h healthRules) Rules(ctx context.Context) ([]schema.HealthRule, error) {
	table, err := health.Rules(ctx, h.store, nil)
	if err != nil {
		return nil, err
	}
	changes, err := h.store.RuleChanges(ctx)
	if err != nil {
		return nil, err
	}
	changed := map[string]string{}
	for _, c := range changes {
		changed[c.Rule] = fmt.Sprintf("%s by %s: %s", c.At, c.By, c.Reason)
	}
	figures, err := h.store.RuleFigures(ctx, h.store.Now().Add(-figuresOver))
	if err != nil {
		return nil, err
	}
	out := make([]schema.HealthRule, len(table))
	for i, r := range table {
		f := figures[r.Name]
		out[i] = schema.HealthRule{Name: r.Name, Kind: r.Kind, Codes: r.Codes, Severity: r.Severity, Above: r.Above, Count: r.Count, Within: r.Within.Milliseconds(), Across: r.Across, Beside: r.Beside,
			Action: r.Action, Cure: r.Cure, Corrupts: r.Corrupts, Mode: string(r.Mode), Why: r.Why, Source: r.Source, Changed: changed[r.Name], Met: f.Met, Repairs: f.Repairs, FalsePositives: f.FalsePositives}
	}
	return out, nil
}

// ChangeRule checks a change against the built-in rule and keeps it.
func (h healthRules) ChangeRule(ctx context.Context, c schema.RuleChange, by string) (schema.HealthRule, error) {
	if _, err := rules.Check(rules.Table, health.ChangeOf(c)); err != nil {
		return schema.HealthRule{}, err
	}
	if err := h.store.ChangeRule(ctx, c, by); err != nil {
		return schema.HealthRule{}, err
	}
	all, err := h.Rules(ctx)
	for _, r := range all {
		if r.Name == c.Rule {
			return r, err
		}
	}
	return schema.HealthRule{}, err
}

const (
	replayMost  = 200_000 // faults
	replayShown = 200
)

// actions counts what was asked for, by rule and action, the most frequent first.
func actions(judged []rules.Outcome) []schema.ActionCount {
	type key struct {
		rule   string
		action schema.Action
	}
	count, servers := map[key]int{}, map[key]map[string]bool{}
	for _, o := range judged {
		k := key{o.Verdict.Rule, o.Verdict.Action}
		count[k]++
		if servers[k] == nil {
			servers[k] = map[string]bool{}
		}
		servers[k][o.Fault.Server] = true
	}
	out := make([]schema.ActionCount, 0, len(count))
	for k, n := range count {
		out = append(out, schema.ActionCount{Rule: k.rule, Action: k.action, Faults: n, Servers: len(servers[k])})
	}
	slices.SortFunc(out, func(a, b schema.ActionCount) int {
		return cmp.Or(cmp.Compare(b.Faults, a.Faults), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Action, b.Action))
	})
	return out
}

// Replay judges the faults since a moment by the rules in force, with a change laid over them where one is given.
func (h healthRules) Replay(ctx context.Context, since schema.Instant, c *schema.RuleChange) (schema.Replay, error) {
	out := schema.Replay{Since: since, Actions: []schema.ActionCount{}, Differ: []schema.ReplayedFault{}}
	table, err := health.Rules(ctx, h.store, nil)
	if err != nil {
		return out, err
	}
	faults, err := h.store.FaultsSince(ctx, since, replayMost)
	if err != nil {
		return out, err
	}
	out.Faults, out.Cut = len(faults), len(faults) == replayMost
	then := func(i int) string { return faults[i].Verdict }
	if c != nil {
		if _, err := rules.Check(table, health.ChangeOf(*c)); err != nil {
			return out, err
		}
		before := rules.Replay(table, faults)
		out.Before = actions(before)
		then = func(i int) string { return string(before[i].Verdict.Action) }
		table = rules.With(table, []rules.Change{health.ChangeOf(*c)})
	}
	judged := rules.Replay(table, faults)
	out.Actions = actions(judged)
	for i, o := range judged {
		f := o.Fault
		if then(i) == string(o.Verdict.Action) || then(i) == "" {
			continue
		}
		if len(out.Differ) == replayShown {
			out.Cut = true
			break
		}
		out.Differ = append(out.Differ, schema.ReplayedFault{Fault: f.ID, Server: f.Server, At: f.At, Text: f.Text, Then: then(i), Rule: o.Verdict.Rule, Verdict: o.Verdict.Action})
	}
	return out, nil
}
