package words

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"gpupool/schema"
)

// Phase says what a server's phase means for the reader.
func Phase(p schema.Phase) string {
	switch p {
	case schema.PhaseEnrolled:
		return "known, not yet onboarded"
	case schema.PhaseOnboarding:
		return "being onboarded"
	case schema.PhaseAvailable:
		return "in the pool"
	case schema.PhaseDraining:
		return "its jobs end, it takes no new ones"
	case schema.PhaseRepairing:
		return "out for repair"
	case schema.PhaseRetiring:
		return "being taken out for good"
	case schema.PhaseRetired:
		return "gone for good"
	}
	return string(p)
}

// PausedBefore says before which step an onboarding is to stop.
func PausedBefore(step schema.Step) string {
	if step == "" {
		return "its next step"
	}
	return string(step)
}

// Paused says who stopped an onboarding, where, and why.
func Paused(p schema.Pause, now schema.Instant) string {
	if p.HeldAt == 0 {
		return fmt.Sprintf("is to stop before %s, by %s: %s", PausedBefore(p.Before), p.By, p.Reason)
	}
	return fmt.Sprintf("is paused before %s since %s, by %s: %s", PausedBefore(p.Before), Clock(p.HeldAt, now), p.By, p.Reason)
}

// Retired says how far a server's way out has come.
func Retired(r schema.Retirement, now schema.Instant) string {
	asked := fmt.Sprintf("asked for by %s %s: %s", r.By, Ago(r.At, now), r.Reason)
	switch {
	case r.ClosedAt != 0:
		return fmt.Sprintf("%s %s; %s", r.Outcome, Ago(r.ClosedAt, now), asked)
	case r.Attempt == 0:
		return "waits for its jobs to end; " + asked
	}
	return "under way; " + asked
}

// Differs says what is with a difference of a server from its order.
func Differs(d schema.Difference, now schema.Instant) string {
	switch {
	case d.AcceptedAt != 0 && d.There:
		return fmt.Sprintf("accepted by %s %s: %s", d.AcceptedBy, Ago(d.AcceptedAt, now), d.Reason)
	case d.AcceptedAt != 0:
		return fmt.Sprintf("not seen any more; accepted by %s %s: %s", d.AcceptedBy, Ago(d.AcceptedAt, now), d.Reason)
	case d.There:
		return "stops the onboarding until it is put right or accepted"
	}
	return "not seen any more"
}

// Repair says what a repair waits for.
func Repair(r schema.Repair) string {
	switch r.State {
	case schema.RepairCordoned:
		return "a suspect takes no new work; what runs on the server may end"
	case schema.RepairResetting:
		return "a reset is tried that may cure it; don't touch the server yet"
	case schema.RepairDraining:
		return "waits for running jobs to end; don't touch the server yet"
	case schema.RepairWaiting:
		switch {
		case r.Owner == schema.OwnerOperators:
			return "could not be fixed: waits for an operator to decide"
		case r.Returns > 0 && r.DoneBy != "" && r.DoneBy != schema.OwnerPlatform:
			return fmt.Sprintf("waits for a technician again: the proof failed %s", times(r.Returns))
		case r.Returns > 0:
			return fmt.Sprintf("waits for a technician: the proof failed %s after what was tried by itself", times(r.Returns))
		}
		return "waits for a technician"
	case schema.RepairVerifying:
		return "being inspected and burnt in; nothing to do"
	case schema.RepairReturned:
		return "proven and back in the pool"
	case schema.RepairCancelled:
		return "cancelled"
	}
	return string(r.State)
}

// Breaker says what an open breaker keeps from being done, and why.
func Breaker(b schema.Breaker) string {
	servers := map[string]bool{}
	for _, h := range b.Held {
		servers[h.ServerName] = true
	}
	out := fmt.Sprintf("no server is taken out automatically any more (%s): %s", b.Scope, b.Why)
	if len(servers) > 0 {
		out += fmt.Sprintf("; %s held back on %s", Count(len(b.Held), "fault"), strings.Join(slices.Sorted(maps.Keys(servers)), ", "))
	}
	return out
}

// Verdict says what came of a fault.
func Verdict(f schema.Fault) string {
	if f.ClearedAt != 0 {
		return verdict(f) + "; it is over"
	}
	return verdict(f)
}

func verdict(f schema.Fault) string {
	switch f.Verdict {
	case "":
		return "not judged yet"
	case string(schema.ActionObserve):
		return "observed"
	case string(schema.ActionCordon):
		return "cordoned"
	case schema.HeldLimited:
		return "held back: a breaker is open"
	case schema.HeldSilenced:
		return "silenced by an operator"
	case schema.HeldStale:
		return "of before a repair"
	}
	return f.Verdict
}

func times(n int) string {
	switch n {
	case 1:
		return "once"
	case 2:
		return "twice"
	}
	return fmt.Sprintf("%d times", n)
}

// Outcome says how an attempt ended.
func Outcome(o schema.AttemptOutcome) string {
	switch o {
	case schema.AttemptLive:
		return "live"
	case schema.AttemptLost:
		return "lost to hardware"
	case schema.AttemptUnstarted:
		return "never started"
	default:
		return string(o)
	}
}

// Gang is a job's size: "8 × 1 node", or "2 nodes × 8 = 16".
func Gang(nodes, perNode int) string {
	if nodes == 1 {
		return fmt.Sprintf("%d", perNode)
	}
	return fmt.Sprintf("%d (%d x %d)", nodes*perNode, nodes, perNode)
}

// Detail says what a step of an onboarding does, for a line that names the step already.
func Detail(s schema.StepRun) string {
	return strings.TrimPrefix(s.Detail, string(s.Step)+": ")
}

// Live is how many of an array's jobs have not ended.
func Live(states map[string]int) int {
	n := 0
	for s, jobs := range states {
		if !schema.JobState(s).Ended() {
			n += jobs
		}
	}
	return n
}

// States is how many of an array's jobs are in each state, in the order of a job's life: "3 running, 96 queued (2 held)".
func States(states map[string]int, held int) string {
	var parts []string
	for _, s := range schema.JobStates.States() {
		n := states[string(s)]
		if n == 0 {
			continue
		}
		part := fmt.Sprintf("%d %s", n, s)
		if s == schema.JobQueued && held > 0 {
			part += fmt.Sprintf(" (%d held)", held)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

// Idle says of a job since when its accelerators do nothing, and when it is stopped if that goes on; reclaim 0 = never.
func Idle(since, reclaim, now schema.Instant) string {
	if since.IsZero() {
		return ""
	}
	s := fmt.Sprintf("Its accelerators have done nothing since %s (%s).", Clock(since, now), Ago(since, now))
	if !reclaim.IsZero() {
		s += fmt.Sprintf(" If that goes on, it is stopped at %s.", Clock(reclaim, now))
	}
	return s
}
