package store

import (
	"cmp"
	"context"
	"slices"
	"time"

	"gpupool/schema"
)

// RuleFigures is what came of a rule's verdicts.
type RuleFigures struct {
	Rule                         string
	Met, Repairs, FalsePositives int
}

// falsePositive is a repair whose hardware passed its proof at once, with nothing done to it, and that was not opened again.
const falsePositive = `r.state = 'returned' AND r.tried = '' AND r.new_serial = '' AND r.did IN ('', 'nothing-found') AND r.returns = 0
	AND NOT EXISTS (SELECT 1 FROM repairs n WHERE n.server = r.server AND n.accelerator = r.accelerator AND n.opened_at > r.closed_at AND n.opened_at < r.closed_at + 2592000000)`

// RuleFigures are those of each rule that decided something since a moment.
func (s *Store) RuleFigures(ctx context.Context, since schema.Instant) (map[string]RuleFigures, error) {
	var rows []RuleFigures
	err := s.read(ctx).Raw(`SELECT f.rule, count(*) AS met, count(DISTINCT CASE WHEN f.repair <> '' THEN f.repair END) AS repairs,
		count(DISTINCT CASE WHEN `+falsePositive+` THEN f.repair END) AS false_positives
		FROM faults f LEFT JOIN repairs r ON r.id = f.repair WHERE f.rule <> '' AND f.seen_at >= ? GROUP BY f.rule`, since).Scan(&rows).Error
	out := map[string]RuleFigures{}
	for _, r := range rows {
		out[r.Rule] = r
	}
	return out, err
}

// HealthTimes measures the repairs that were opened since a moment.
func (s *Store) HealthTimes(ctx context.Context, since schema.Instant) (schema.HealthTimes, error) {
	out := schema.HealthTimes{Since: since, Steps: []schema.StepTimes{}, LostByCause: []schema.Lost{}}
	var rows []struct {
		schema.Repair
		Rule          string
		Accelerators  int
		Again         schema.Instant
		FalsePositive bool
	}
	err := s.read(ctx).Raw(`SELECT r.*, s.accelerators, COALESCE((SELECT f.rule FROM faults f WHERE f.repair = r.id ORDER BY f.seen_at, f.id LIMIT 1), '') AS rule,
		COALESCE((SELECT min(n.opened_at) FROM repairs n WHERE n.server = r.server AND n.opened_at > r.closed_at AND r.closed_at > 0 AND n.part <> ?), 0) AS again,
		CASE WHEN `+falsePositive+` THEN 1 = 1 ELSE 1 = 0 END AS false_positive
		FROM repairs r JOIN servers s ON s.id = r.server WHERE r.opened_at >= ? AND r.part <> ? ORDER BY r.opened_at, r.id`, schema.PartNone, since, schema.PartNone).Scan(&rows).Error
	if err != nil {
		return out, err
	}
	out.Repairs = len(rows)
	steps := []string{"detect", "drain", "reset", "wait", "hands-on", "prove", "whole"}
	took := map[string][]float64{}
	put := func(step string, from, to schema.Instant) {
		if from > 0 && to >= from {
			took[step] = append(took[step], to.Sub(from).Seconds())
		}
	}
	lost := map[string]*schema.Lost{}
	returned, first, again7, again30, falsePos, resets := 0, 0, 0, 0, 0, 0
	for _, r := range rows {
		put("detect", r.FirstSignAt, r.OpenedAt)
		put("drain", r.OpenedAt, r.DrainedAt)
		switch {
		case r.WaitingAt == 0:
			put("reset", r.DrainedAt, r.DoneAt) // and no technician was needed, so far
		default:
			put("reset", r.DrainedAt, r.WaitingAt)
			put("wait", r.WaitingAt, r.ClaimedAt)
			if r.ClaimedAt < r.DoneAt { // who says done without a claim before tells nothing of how long it took
				put("hands-on", r.ClaimedAt, r.DoneAt)
			}
		}
		until := s.Now()
		if r.ClosedAt > 0 {
			put("prove", r.DoneAt, r.ClosedAt)
			put("whole", r.OpenedAt, r.ClosedAt)
			until = r.ClosedAt
		}
		l := lost[r.Rule]
		if l == nil {
			l = &schema.Lost{Rule: r.Rule}
			lost[r.Rule] = l
		}
		l.Repairs++
		// A cordoned suspect is one device; from the drain's end on the whole server is out.
		whole := until
		if r.DrainedAt > 0 {
			whole = r.DrainedAt
		}
		hours := whole.Sub(r.OpenedAt).Hours() + float64(r.Accelerators)*until.Sub(whole).Hours()
		l.GPUHours += hours
		out.LostGPUHours += hours
		if r.State != schema.RepairReturned {
			continue
		}
		returned++
		if r.Returns == 0 {
			first++
		}
		if r.Again > 0 && r.Again.Sub(r.ClosedAt) <= 7*24*time.Hour {
			again7++
		}
		if r.Again > 0 && r.Again.Sub(r.ClosedAt) <= 30*24*time.Hour {
			again30++
		}
		if r.FalsePositive {
			falsePos++
		}
		if r.Did == "" {
			resets++
		}
	}
	share := func(n int) float64 {
		if returned == 0 {
			return 0
		}
		return float64(n) / float64(returned)
	}
	out.Returned = returned
	out.FirstPass, out.Repeat7d, out.Repeat30d, out.FalsePos, out.ResetsAlone = share(first), share(again7), share(again30), share(falsePos), share(resets)
	for _, step := range steps {
		out.Steps = append(out.Steps, stepTimes(step, took[step]))
	}
	for _, l := range lost {
		out.LostByCause = append(out.LostByCause, *l)
	}
	slices.SortFunc(out.LostByCause, func(a, b schema.Lost) int {
		return cmp.Or(cmp.Compare(b.GPUHours, a.GPUHours), cmp.Compare(a.Rule, b.Rule))
	})
	if out.Repairs > 0 {
		// A server counts from when it joined: when the first of its accelerators had passed.
		var joined []schema.Instant
		if err := s.read(ctx).Raw(`SELECT min(a.installed_at) FROM servers s JOIN accelerators a ON a.server = s.id AND a.installed_at > 0
			WHERE s.phase IN ('available','draining','repairing') GROUP BY s.id`).Scan(&joined).Error; err != nil {
			return out, err
		}
		hours := 0.0
		for _, at := range joined {
			hours += s.Now().Sub(max(since, at)).Hours()
		}
		out.MTBFHours = hours / float64(out.Repairs)
	}
	return out, nil
}

func stepTimes(step string, took []float64) schema.StepTimes {
	t := schema.StepTimes{Step: step, Count: len(took)}
	if len(took) == 0 {
		return t
	}
	slices.Sort(took)
	sum := 0.0
	for _, v := range took {
		sum += v
	}
	at := func(q float64) float64 { return took[min(int(q*float64(len(took))), len(took)-1)] }
	t.Mean, t.P50, t.P90, t.Max = sum/float64(len(took)), at(0.5), at(0.9), took[len(took)-1]
	return t
}

// lemonWindow is over how long devices and slots are scored (Meta: 28 days).
const lemonWindow = 28 * 24 * time.Hour

// Lemons are the devices, and the slots, that were repaired over the last 28 days, the worst first.
func (s *Store) Lemons(ctx context.Context) ([]schema.Lemon, error) {
	since := s.Now().Add(-lemonWindow)
	var out []schema.Lemon
	for _, q := range []string{
		`SELECT a.serial, 1 AS devices, count(DISTINCT f.repair) AS repairs, count(*) AS faults,
			COALESCE((SELECT sum(r.returns) FROM repairs r WHERE r.accelerator = a.id AND r.opened_at >= ?), 0) AS unproven
			FROM faults f JOIN accelerators a ON a.id = f.accelerator WHERE f.repair <> '' AND f.at >= ? GROUP BY a.id, a.serial`,
		`SELECT s.name AS server, a.slot, count(DISTINCT a.id) AS devices, count(DISTINCT f.repair) AS repairs, count(*) AS faults,
			COALESCE((SELECT sum(r.returns) FROM repairs r JOIN accelerators x ON x.id = r.accelerator WHERE r.server = s.id AND x.slot = a.slot AND r.opened_at >= ?), 0) AS unproven
			FROM faults f JOIN accelerators a ON a.id = f.accelerator JOIN servers s ON s.id = f.server WHERE f.repair <> '' AND f.at >= ? AND a.slot <> '' GROUP BY s.id, s.name, a.slot`,
	} {
		var rows []schema.Lemon
		if err := s.read(ctx).Raw(q, since, since).Scan(&rows).Error; err != nil {
			return nil, err
		}
		out = append(out, rows...)
	}
	for i := range out {
		out[i].Score = 3*out[i].Repairs + 2*out[i].Unproven + out[i].Faults
	}
	slices.SortFunc(out, func(a, b schema.Lemon) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(a.Serial, b.Serial), cmp.Compare(a.Server, b.Server), cmp.Compare(a.Slot, b.Slot))
	})
	return out[:min(len(out), 200)], nil
}
