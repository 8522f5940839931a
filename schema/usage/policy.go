package usage

import (
	"fmt"
	"time"

	"gpupool/schema"
)

// Payer is who pays for a part of an attempt's time.
type Payer string

const (
	PayerTenant Payer = "tenant"
	PayerPool   Payer = "pool"
)

// Loss says what is credited where hardware ended an attempt.
type Loss string

const (
	LossSinceGood Loss = "since-good" // from the first sign of the fault, else from the order to stop
	LossAll       Loss = "all"        // the whole attempt
	LossNone      Loss = "none"
)

// Policy says what of the time that accelerators were held is charged. The time itself is always in the ledger; what the
// pool pays for is a credit beside it.
type Policy struct {
	Launch         Payer `json:"launch"`               // of an attempt that ran, from allocation to running
	Drain          Payer `json:"drain"`                // from the order to stop to the release, but for a preemption
	PreemptedRun   Payer `json:"preempted_run"`        // what a preempted attempt ran
	PreemptedDrain Payer `json:"preempted_drain"`      // its grace period
	Unstarted      int64 `json:"unstarted_charged_ms"` // an attempt that the backend never started is charged this much at most
	Lost           Loss  `json:"lost"`                 // to hardware

	Zone           string `json:"zone"`               // IANA time zone of months that close and of statements
	CloseAfterDays int    `json:"close_after_days"`   // a month is closed this many days after its end: later credits are adjustments in the open month
	IdleBelow      int    `json:"idle_below_percent"` // an allocated accelerator with a utilization under this is idle
	IdleWarn       int64  `json:"idle_warn_ms"`       // a job idle for as long is told of; 0 = never
	IdleReclaim    int64  `json:"idle_reclaim_ms"`    // a job idle for as long is stopped; 0 = never
}

// DefaultPolicy: tenants pay for what they hold; the pool pays for grace periods that it imposes, for launches that fail
// and for what hardware takes.
func DefaultPolicy() Policy {
	return Policy{Launch: PayerTenant, Drain: PayerTenant, PreemptedRun: PayerTenant, PreemptedDrain: PayerPool, Lost: LossSinceGood,
		Zone: "UTC", CloseAfterDays: 5, IdleBelow: 5, IdleWarn: (2 * time.Hour).Milliseconds()}
}

// Check is an error that names the field, the value and what would be right.
func (p Policy) Check() error {
	for _, f := range []struct {
		field string
		v     Payer
	}{{"launch", p.Launch}, {"drain", p.Drain}, {"preempted_run", p.PreemptedRun}, {"preempted_drain", p.PreemptedDrain}} {
		if f.v != PayerTenant && f.v != PayerPool {
			return schema.Invalid(f.field, f.v, "tenant or pool")
		}
	}
	switch p.Lost {
	case LossSinceGood, LossAll, LossNone:
	default:
		return schema.Invalid("lost", p.Lost, "since-good, all or none")
	}
	if p.Unstarted < 0 {
		return schema.Invalid("unstarted_charged_ms", p.Unstarted, "0 or more milliseconds")
	}
	if p.Zone == "" {
		return schema.Invalid("zone", p.Zone, zoneRight)
	}
	if _, err := Zone(p.Zone); err != nil {
		return err
	}
	if p.CloseAfterDays < 0 || p.CloseAfterDays > 3650 {
		return schema.Invalid("close_after_days", p.CloseAfterDays, "0 to 3650 days")
	}
	if p.IdleBelow < 0 || p.IdleBelow > 100 {
		return schema.Invalid("idle_below_percent", p.IdleBelow, "0 to 100 per cent")
	}
	if p.IdleWarn < 0 {
		return schema.Invalid("idle_warn_ms", p.IdleWarn, "0 for never, or milliseconds")
	}
	if p.IdleReclaim < 0 || p.IdleReclaim > 0 && (p.IdleWarn == 0 || p.IdleReclaim <= p.IdleWarn) {
		return schema.Invalid("idle_reclaim_ms", p.IdleReclaim, "0 for never, or more milliseconds than idle_warn_ms: nobody is stopped unwarned")
	}
	return nil
}

// IdleLimits are after how many ms of idleness a project's job is told and stopped; 0 = never. What the project says holds,
// else its tenant, else the pool. Nobody is stopped unwarned: a warning that would come too late, or never, comes at half
// the time.
func (p Policy) IdleLimits(tenant, project schema.Account) (warn, reclaim int64) {
	own := func(all int64, limits ...int64) int64 {
		for _, l := range limits {
			if l != schema.Inherit {
				return l
			}
		}
		return all
	}
	warn = own(p.IdleWarn, project.IdleWarn, tenant.IdleWarn)
	reclaim = own(p.IdleReclaim, project.IdleReclaim, tenant.IdleReclaim)
	if reclaim > 0 && (warn == 0 || warn >= reclaim) {
		warn = max(reclaim/2, 1)
	}
	return warn, reclaim
}

// OpenFrom is the begin of the oldest month that is still open at now, in zone.
func (p Policy) OpenFrom(now schema.Instant, zone *time.Location) schema.Instant {
	y, m, _ := now.Time().In(zone).AddDate(0, 0, -p.CloseAfterDays).Date()
	return begin(y, m, 1, zone)
}

// Credits are the rows that take back from a usage row what the pool pays for. good is the last moment at which the
// hardware was good (0 = not known: the order to stop is taken), fault names the evidence. What lies in a closed month
// (before open) becomes an adjustment booked at now: a closed month's sums don't change. Ids are made of the row's, so a
// repeat makes the same rows.
func (p Policy) Credits(r schema.LedgerRow, good schema.Instant, fault string, open, now schema.Instant) []schema.LedgerRow {
	if r.Kind != schema.LedgerUsage {
		return nil
	}
	ph := PhasesOf(r)
	type rule struct {
		name, note string
		of         Interval
	}
	var rules []rule
	add := func(name string, of Interval, note string) { rules = append(rules, rule{name, note, of}) }
	switch r.Outcome {
	case schema.AttemptUnstarted:
		add("unstarted", Interval{min(r.Start+schema.Instant(p.Unstarted), r.End), r.End}, "the backend never started it")
	case schema.AttemptLost:
		note := "lost to hardware"
		if fault != "" {
			note += ": " + fault
		}
		switch p.Lost {
		case LossAll:
			add("lost", Interval{r.Start, r.End}, note)
		case LossSinceGood:
			if good == 0 {
				good = ph.Drain.Start
			}
			add("lost", Interval{min(max(good, r.Start), r.End), r.End}, note)
		case LossNone:
		}
	case schema.AttemptPreempted:
		if p.PreemptedRun == PayerPool {
			add("preempted", ph.Run, "run that was preempted")
		}
		if p.PreemptedDrain == PayerPool {
			add("grace", ph.Drain, "grace period of a preemption")
		}
	case schema.AttemptLive, schema.AttemptCompleted, schema.AttemptFailed, schema.AttemptCancelled, schema.AttemptTimeout:
		if p.Drain == PayerPool {
			add("drain", ph.Drain, "drain")
		}
	}
	if p.Launch == PayerPool && r.Outcome != schema.AttemptUnstarted {
		add("launch", ph.Launch, "launch")
	}
	var out []schema.LedgerRow
	var taken []Interval
	for _, u := range rules {
		n := 0
		for _, part := range u.of.minus(taken) {
			if part.Milliseconds() == 0 {
				continue
			}
			c := r
			c.Running, c.Stopping, c.Queued, c.Note = 0, 0, 0, u.note
			closed, still := part.Cut(Interval{part.Start, open}), part.Cut(Interval{open, part.End})
			if ms := closed.Milliseconds(); ms > 0 {
				a := c
				a.ID, a.Kind, a.Start, a.End, a.Amount = fmt.Sprintf("%s/%s-%d-closed", r.ID, u.name, n), schema.LedgerAdjustment, now, now, -ms
				a.Note += fmt.Sprintf(" (from %s to %s, of a closed month)", closed.Start, closed.End)
				out = append(out, a)
			}
			if still.Milliseconds() > 0 {
				c.ID, c.Kind, c.Start, c.End = fmt.Sprintf("%s/%s-%d", r.ID, u.name, n), schema.LedgerCredit, still.Start, still.End
				out = append(out, c)
			}
			n++
		}
		taken = append(taken, u.of)
	}
	return out
}
