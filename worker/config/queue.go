package config

import (
	"slices"
	"time"
)

// Queue is the policy of the regions' allocators: who comes first, where jobs go, what is taken back.
type Queue struct {
	Order        string        `yaml:"order" help:"How jobs of one priority are ordered: fair-share (the least used, with decay, first; then by submit) or fifo (by submit)." zero:"fair-share" example:"fifo"`
	Placement    string        `yaml:"placement" help:"Which of the servers that fit is taken: least-fragmentation, best-fit (the fullest) or spread (the emptiest)." zero:"least-fragmentation" example:"best-fit"`
	HalfLife     time.Duration `yaml:"half_life" help:"How long it takes until past usage weighs half in fair share, 1h to 720h." zero:"168h" example:"24h"`
	EntryPenalty time.Duration `yaml:"entry_penalty" help:"Accelerator time that a start costs in fair share at once, beside what the job uses, so that a burst of submits can't take everything before its usage shows; at most 24h, negative for none. Usage and budgets don't know of it." zero:"5m" example:"15m"`
	MinRunTime   time.Duration `yaml:"min_run_time" help:"How long a job is protected from being preempted after it started, 0 to 168h." zero:"not at all" example:"30m"`
	Reservations int           `yaml:"reservations" help:"How many waiting kinds of jobs get a planned start that later jobs may not delay, of each pool of accelerators, 1 to 64." zero:"4" example:"8"`
	NoPreemption bool          `yaml:"no_preemption" help:"Never end a job for another: neither for a higher priority nor to take back what is guaranteed." zero:"false" example:"true"`
}

func (q Queue) validate(v *checks) {
	v.that(slices.Contains([]string{"", "fair-share", "fifo"}, q.Order), "queue.order", q.Order, "fair-share or fifo")
	v.that(slices.Contains([]string{"", "least-fragmentation", "best-fit", "spread"}, q.Placement), "queue.placement", q.Placement, "least-fragmentation, best-fit or spread")
	v.that(q.HalfLife == 0 || q.HalfLife >= time.Hour && q.HalfLife <= 720*time.Hour, "queue.half_life", q.HalfLife, "1h to 720h")
	v.that(q.EntryPenalty <= 24*time.Hour, "queue.entry_penalty", q.EntryPenalty, "at most 24h, negative for none")
	v.that(q.MinRunTime >= 0 && q.MinRunTime <= 168*time.Hour, "queue.min_run_time", q.MinRunTime, "0 to 168h")
	v.that(q.Reservations >= 0 && q.Reservations <= 64, "queue.reservations", q.Reservations, "1 to 64")
}
