package engine

import (
	"time"

	"gpupool/schema"
)

// Placement is how a server is chosen among those that fit.
type Placement string

// Placements. The zero value is LeastFragmentation.
const (
	LeastFragmentation Placement = "least-fragmentation" // FGD (Weng et al., USENIX ATC 2023), ties by best fit
	BestFit            Placement = "best-fit"            // the fullest server that fits
	Spread             Placement = "spread"              // the emptiest server that fits
)

// Order is how jobs of one priority are ordered.
type Order string

// Orders. The zero value is FairShare.
const (
	FairShare Order = "fair-share" // lowest decayed usage over weight first, then submit order
	FIFO      Order = "fifo"       // submit order
)

// DefaultHalfLife is how long it takes past usage to weigh half where the policy says nothing.
const DefaultHalfLife = 168 * time.Hour

// Config is the policy. The zero Config is a usable one.
type Config struct {
	Order     Order
	Placement Placement

	// HalfLife is how long it takes past usage to weigh half. 0 = DefaultHalfLife (7 days). Negative = usage never decays.
	HalfLife time.Duration
	// EntryPenalty is the accelerator time charged to fair share (never to the ledger) the moment a job starts, so
	// that a burst of submits can't take everything before usage shows. 0 = 5 min. Negative = none.
	EntryPenalty time.Duration

	// NoPreemption turns preemption and reclaim off.
	NoPreemption bool
	// MinRunTime protects a job from preemption so long after its start. 0 = no protection.
	MinRunTime time.Duration
	// Grace is what a victim that asks for none is given between the signal and the kill. 0 = 30 s. Negative = none.
	Grace time.Duration
	// PreemptionTests bounds how many shapes search for victims in a cycle. 0 = 16.
	PreemptionTests int

	// NoBackfill keeps later jobs of a pool from starting past an earlier one that waits for capacity.
	NoBackfill bool
	// Reservations is how many waiting shapes of a pool get a planned start that later jobs may not delay. 0 = 4.
	// Negative = none: whatever fits starts, and large jobs may starve.
	Reservations int
	// BackfillDepth bounds how many jobs of one shape are tried for a gap before a planned start. 0 = 64.
	BackfillDepth int
	// AssumedLimit stands for the limit of a job without one when starts are planned. 0 = schema.AssumedLimit.
	AssumedLimit time.Duration

	// ReasonsPerCycle bounds Result.Reasons: first changed codes, then changed numbers, the rest in the cycles that
	// follow. Explain is exact at once for every job. 0 = 4096. Negative = no bound.
	ReasonsPerCycle int
	// Quiet leaves Result.Reasons empty, for replays that nobody reads them from; Explain works as always.
	Quiet bool
}

func (c Config) withDefaults() Config {
	if c.Order == "" {
		c.Order = FairShare
	}
	if c.Placement == "" {
		c.Placement = LeastFragmentation
	}
	setDuration(&c.HalfLife, DefaultHalfLife)
	setDuration(&c.EntryPenalty, 5*time.Minute)
	setDuration(&c.Grace, 30*time.Second)
	setDuration(&c.AssumedLimit, schema.AssumedLimit)
	setInt(&c.PreemptionTests, 16)
	setInt(&c.Reservations, 4)
	setInt(&c.BackfillDepth, 64)
	setInt(&c.ReasonsPerCycle, 4096)
	return c
}

// setDuration gives a zero value its default; a negative one means none.
func setDuration(d *time.Duration, def time.Duration) {
	switch {
	case *d == 0:
		*d = def
	case *d < 0:
		*d = 0
	}
}

func setInt(n *int, def int) {
	if *n == 0 {
		*n = def
	}
}
