// Package health turns evidence into verdicts, and does what a repair asks of the record.
//
// It decides by the rules (activities/health/rules) what a fault means; the store applies that once, within the blast
// radius. Invariant: evidence is stored first and judged once; completion never returns hardware by itself: only
// Return does, and the store checks its proof. Not here: the order of a repair's steps (workflows).
package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"gpupool/activities/health/rules"
	"gpupool/schema"
	"gpupool/schema/store"
)

// Unknown counts evidence that no rule knows, since the process began. A rising count asks for a rule.
var Unknown atomic.Int64

// Judge decides what a stored fault means and applies it, by the built-in rules and what operators changed of them. Judging
// twice is judging once.
func Judge(ctx context.Context, s *store.Store, fault string) error {
	return Judger{Store: s}.Judge(ctx, fault)
}

// Judger judges faults.
type Judger struct {
	Store  *store.Store
	Table  []rules.Rule // nil = rules.Table
	Timing Timing       // zero fields are DefaultTiming's
}

// lookBack is how far evidence is counted: no rule has a longer window.
const lookBack = 30 * 24 * time.Hour

// Judge decides what a stored fault means and applies it.
func (j Judger) Judge(ctx context.Context, fault string) error {
	s := j.Store
	f, err := s.Fault(ctx, fault)
	if err != nil || f.Verdict != "" {
		return err
	}
	recent, err := s.FaultsOf(ctx, f.Server, f.At.Add(-lookBack))
	if err != nil {
		return err
	}
	table, err := Rules(ctx, s, j.Table)
	if err != nil {
		return err
	}
	silences, err := s.Silences(ctx, true)
	if err != nil {
		return err
	}
	var quiet []rules.Silence
	for _, x := range silences {
		quiet = append(quiet, rules.Silence{Rule: x.Rule, Kind: x.Kind, Code: x.Code, Server: x.Server, Accelerator: x.Accelerator, Until: x.Until, By: x.By, Reason: x.Reason})
	}
	v := rules.DecideSilenced(table, quiet, f, recent, s.Now())
	if v.Rule == "" {
		Unknown.Add(1)
		slog.WarnContext(ctx, "no rule knows this evidence: it is only observed", "fault", f.ID, "kind", f.Kind, "code", f.Code, "severity", f.Severity, "text", f.Text)
	}
	t := j.Timing.WithDefaults()
	_, err = s.Judge(ctx, f.ID, store.Verdict{Rule: v.Rule, Action: v.Action, Cure: v.Cure, Corrupts: v.Corrupts, Silenced: v.Silenced, Why: v.Why, Idle: t.Idle, Drain: t.Drain})
	return err
}

// Rules is a table, nil for the built-in one, with what operators changed of it.
func Rules(ctx context.Context, s *store.Store, table []rules.Rule) ([]rules.Rule, error) {
	if table == nil {
		table = rules.Table
	}
	changed, err := s.RuleChanges(ctx)
	if err != nil || len(changed) == 0 {
		return table, err
	}
	changes := make([]rules.Change, len(changed))
	for i, c := range changed {
		changes[i] = ChangeOf(c)
	}
	return rules.With(table, changes), nil
}

// ChangeOf is a kept change as the rules take it.
func ChangeOf(c store.RuleChange) rules.Change {
	return rules.Change{Rule: c.Rule, Mode: rules.Mode(c.Mode), Count: c.Count, Within: time.Duration(c.Within) * time.Millisecond, Above: c.Above, Action: c.Action, Cure: c.Cure}
}

// manySilent is the share of the watched servers above which their silence says something about the platform (its API,
// the network to it), not about them.
const manySilent = 0.5

// WatchSilence reports servers in the pool whose agent has not been heard of for longer than after, until ctx ends. It
// gives every agent that time anew when it begins: while the platform itself was down nobody could be heard.
func WatchSilence(ctx context.Context, s *store.Store, after time.Duration) error {
	t := time.NewTicker(max(after/4, 50*time.Millisecond))
	defer t.Stop()
	begun := s.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if s.Now().Sub(begun) <= after {
			continue
		}
		if err := reportSilent(ctx, s, after); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "looking for silent servers failed; again at the next turn", "error", err)
		}
	}
}

// idleEvery is how often suspects' servers are looked at.
const idleEvery = 5 * time.Second

// WatchIdle tells the repairs that wait for it that their server holds no job any more, and that a silent agent is heard of
// again, until ctx ends.
func WatchIdle(ctx context.Context, s *store.Store) error {
	t := time.NewTicker(idleEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if err := errors.Join(s.NudgeIdle(ctx), clearHeard(ctx, s)); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "looking at suspects' servers failed; again at the next turn", "error", err)
		}
	}
}

func clearHeard(ctx context.Context, s *store.Store) error {
	back, err := s.HeardAgain(ctx)
	for _, f := range back {
		if err := s.ClearFaults(ctx, f.Server, schema.Fault{Kind: f.Kind, At: s.Now(), Text: "the agent is heard of again"}); err != nil {
			return err
		}
	}
	return err
}

// outOfBand is what the BMC shows of a silent server: switched off, starting, hung and out of reach are mended in different
// ways.
func outOfBand(ctx context.Context, s *store.Store, server string) string {
	list, err := s.BMCSightings(ctx, server)
	if err != nil || len(list) == 0 {
		return "; nothing is known of it out of band"
	}
	switch x := list[0]; {
	case x.Trouble != schema.BMCFine:
		return fmt.Sprintf("; its BMC is no help either since %s (%s)", x.Since, x.Trouble)
	case x.Power == "on" && x.Progress != "" && x.Progress != "OSRunning" && x.Progress != "None":
		return "; its BMC shows power on and boot progress " + x.Progress
	case x.Power == "on":
		return "; its BMC shows power on: the system hangs, or its network is cut"
	default:
		return fmt.Sprintf("; its BMC shows power %s since %s", x.Power, x.Since)
	}
}

func reportSilent(ctx context.Context, s *store.Store, after time.Duration) error {
	silent, err := s.Silent(ctx, s.Now().Add(-after))
	if err != nil || len(silent) == 0 {
		return err
	}
	pool, err := s.Servers(ctx, store.ServerFilter{Phase: schema.PhaseAvailable})
	if err != nil {
		return err
	}
	if len(silent) > 1 && float64(len(silent)) > manySilent*float64(len(pool)) {
		slog.ErrorContext(ctx, "most servers are silent at once: the API or the network to it is the likelier cause; nothing is done", "silent", len(silent), "of", len(pool))
		return nil
	}
	for _, v := range silent {
		// One silence is one fault, however often it is seen: it has the moment it began in its key.
		err := s.ReportFault(ctx, v.ID, schema.Fault{Source: "platform", Kind: "agent-silent", Severity: schema.SeverityCritical, At: s.Now(),
			Text:   fmt.Sprintf("the agent of %s has not been heard of since %s%s", v.Name, v.AgentSeen, outOfBand(ctx, s, v.ID)),
			Dedupe: fmt.Sprintf("agent-silent/%s/%d/%d", v.ID, v.Epoch, v.AgentSeen)})
		if err != nil {
			return err
		}
	}
	return nil
}
