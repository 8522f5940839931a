package cli

import (
	"fmt"
	"strconv"
	"strings"
)

// batch decides which servers begin their onboarding, a few at a time, and when it is better that no more do.
type batch struct {
	waiting []string // in their order
	all     int      // how many there are, begun or not
	atOnce  int      // 0 = all
	percent int      // of all that may stop; -1 = whatever happens
}

// newBatch reads its flags.
func newBatch(atOnce int, maxFailed string) (*batch, error) {
	b := &batch{atOnce: atOnce, percent: -1}
	if atOnce < 0 {
		return nil, fmt.Errorf("--at-once: %d: want how many at a time, or 0 for all", atOnce)
	}
	if maxFailed == "" {
		return b, nil
	}
	n, err := strconv.Atoi(strings.TrimSuffix(maxFailed, "%"))
	if err != nil || n < 0 || n > 100 {
		return nil, fmt.Errorf("--max-failed: %q: want a share of all, 0%% to 100%%", maxFailed)
	}
	b.percent = n
	return b, nil
}

// inTurn reports whether servers are begun one after the other.
func (b *batch) inTurn() bool { return b.atOnce > 0 || b.percent >= 0 }

// next takes those servers whose turn it is while so many run and so many have stopped.
func (b *batch) next(running, stopped int) []string {
	if b.percent >= 0 && stopped*100 > b.percent*b.all {
		return nil
	}
	n := len(b.waiting)
	if b.atOnce > 0 {
		n = max(0, min(n, b.atOnce-running))
	}
	begin := b.waiting[:n]
	b.waiting = b.waiting[n:]
	return begin
}
