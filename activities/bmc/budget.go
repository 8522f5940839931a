package bmc

import (
	"context"
	"fmt"
	"time"
)

// The reset budget. A machine that needs its power cut again and again is not cured by it: contactors and disks wear, and a
// process that loops would go on for ever. So how often each server lost its power by us is counted over a day, by all
// processes together, and over the limit it is left alone until hands have looked (the reset_rate_limit of NVIDIA's infra
// controller). What a person asks for is counted and not refused.

const resetWindow = 24 * time.Hour

// Regardless lets a power change pass the daily limit: a person asked for it, or it ends a danger. It is counted all the same.
func Regardless() PowerOption { return func(p *powerPlan) { p.regardless = true } }

// spend counts that a server's power is about to be taken away, or refuses. host tells servers of one BMC apart. Each wish is
// counted once, however many requests it takes.
func (p *Pool) spend(ctx context.Context, address, host string, plan *powerPlan) error {
	if plan.spent {
		return nil
	}
	plan.spent = true
	limit := p.cfg.ResetsPerDay
	return p.shared.Update(ctx, address, func(s *State) error {
		t := now()
		var recent []time.Time
		for _, at := range s.Resets[host] {
			if t.Sub(at) < resetWindow {
				recent = append(recent, at)
			}
		}
		if limit > 0 && len(recent) >= limit && !plan.regardless {
			return &Error{Kind: ErrTooOften, Address: address, URI: host,
				Detail: fmt.Sprintf("its power was taken away %d times within a day, and the limit is %d; the next may be at %s", len(recent), limit, recent[len(recent)-limit].Add(resetWindow).UTC().Format(time.RFC3339)),
				Hint:   "a reset doesn't cure it: have someone look at the machine; what a person asks for is not held back (gpupool bmc power)"}
		}
		if keep := max(limit, keptResets); len(recent) >= keep {
			recent = recent[len(recent)-keep+1:]
		}
		if s.Resets == nil {
			s.Resets = map[string][]time.Time{}
		}
		s.Resets[host] = append(recent, t.UTC().Truncate(time.Second))
		return nil
	})
}

// keptResets bounds how many moments are kept of one server.
const keptResets = 100
