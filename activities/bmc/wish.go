package bmc

import (
	"context"
	"time"
)

// A wish that takes the power away and gives it back is not idempotent by what a read shows: a machine that is on may have been
// off for it already. So a process keeps, where all others see it and before it goes on, that the power was seen off. Whoever is
// asked for the same wish again, because that process was killed, only brings the power back.

// As names the wish that a power change comes from, for all processes: a wish that is asked for again under its name takes the
// power away once in all.
func As(wish string) PowerOption { return func(p *powerPlan) { p.wish = wish } }

// Wish is what is kept of one whose power is away, or may be.
type Wish struct {
	At time.Time `json:"at"`
	// Before is what was so before a reset that can't be seen: the time of the last one, or the session's revision.
	Before string `json:"before,omitempty"`
}

// begun tells what an earlier process kept of a wish.
func (p *Pool) begun(ctx context.Context, address string, plan powerPlan) (w Wish, ok bool, err error) {
	if plan.wish == "" {
		return w, false, nil
	}
	err = p.shared.Update(ctx, address, func(s *State) error { w, ok = s.Wishes[plan.wish]; return nil })
	return w, ok, err
}

// begin keeps that the power is away for a wish, or is just about to be.
func (p *Pool) begin(ctx context.Context, address string, plan powerPlan, before string) error {
	if plan.wish == "" {
		return nil
	}
	return p.shared.Update(ctx, address, func(s *State) error {
		kept := map[string]Wish{plan.wish: {At: now().UTC().Truncate(time.Second), Before: before}}
		for name, w := range s.Wishes {
			if now().Sub(w.At) < resetWindow {
				kept[name] = w
			}
		}
		s.Wishes = kept
		return nil
	})
}
