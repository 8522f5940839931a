// Package health turns evidence into verdicts, and does what a repair asks of the record.
//
// It decides by the rules (activities/health/rules) what a fault means; the store applies that once, within the blast
// radius. Invariant: evidence is stored first and judged once; completion never returns hardware by itself: only
// Return does, and the store checks its proof. Not here: the order of a repair's steps (workflows).
package health

import (
	"context"
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

// Judge decides what a stored fault means and applies it. Judging twice is judging once.
func Judge(ctx context.Context, s *store.Store, fault string) error {
	return JudgeBy(ctx, s, rules.Table, fault)
}

// JudgeBy is Judge by another table of rules.
func JudgeBy(ctx context.Context, s *store.Store, table []rules.Rule, fault string) error {
	f, err := s.Fault(ctx, fault)
	if err != nil || f.Verdict != "" {
		return err
	}
	recent, err := s.Faults(ctx, f.Server)
	if err != nil {
		return err
	}
	v := rules.Decide(table, f, recent)
	if v.Rule == "" {
		Unknown.Add(1)
		slog.WarnContext(ctx, "no rule knows this evidence: it is only observed", "fault", f.ID, "kind", f.Kind, "code", f.Code, "severity", f.Severity, "text", f.Text)
	}
	_, err = s.Judge(ctx, f.ID, store.Action(v.Action), v.Why)
	return err
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
