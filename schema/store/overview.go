package store

import (
	"context"

	"gpupool/schema"
)

// ModelOverview counts one model's accelerators; the parts sum to Installed.
type ModelOverview struct {
	Model     string `json:"model"`
	Installed int    `json:"installed"`
	Allocated int    `json:"allocated"`
	Idle      int    `json:"idle"`
	Cordoned  int    `json:"cordoned"`  // healthy and free, on a cordoned server
	Draining  int    `json:"draining"`  // free, on a draining server
	Repairing int    `json:"repairing"` // on a server in repair or retiring
	Unhealthy int    `json:"unhealthy"` // failed, suspect, absent or unknown, elsewhere
}

// Overview is the pool at one glance.
type Overview struct {
	At       schema.Instant            `json:"at"`
	Models   []ModelOverview           `json:"models"`
	Phases   map[schema.Phase]int      `json:"phases"`
	Jobs     map[schema.JobState]int   `json:"jobs"`     // live ones
	Reasons  map[schema.ReasonCode]int `json:"reasons"`  // of queued jobs
	Failures []schema.Server           `json:"failures"` // servers that stopped and wait for a person
	Paused   []schema.Server           `json:"paused"`   // servers whose onboarding a person has paused
	Repairs  []schema.Repair           `json:"repairs"`  // open ones
	Breakers []schema.Breaker          `json:"breakers"` // open ones
}

// PoolOverview reads it.
func (s *Store) PoolOverview(ctx context.Context) (Overview, error) {
	o := Overview{At: s.Now(), Models: []ModelOverview{}, Phases: map[schema.Phase]int{}, Jobs: map[schema.JobState]int{}, Reasons: map[schema.ReasonCode]int{}}
	var accs []struct {
		Model    string
		Health   schema.Health
		Phase    schema.Phase
		Live     int
		Cordoned int
	}
	if err := s.read(ctx).Raw(`SELECT a.model, a.health, s.phase,
		(SELECT count(*) FROM allocations x WHERE x.accelerator = a.id AND x.released_at = 0) AS live,
		(SELECT count(*) FROM cordons c WHERE c.server = a.server AND c.lifted_at = 0 AND c.accelerator IN ('', a.id)) AS cordoned
		FROM accelerators a JOIN servers s ON s.id = a.server WHERE a.installed_at > 0 AND a.removed_at = 0 ORDER BY a.model`).Scan(&accs).Error; err != nil {
		return o, err
	}
	for _, a := range accs {
		if n := len(o.Models); n == 0 || o.Models[n-1].Model != a.Model {
			o.Models = append(o.Models, ModelOverview{Model: a.Model})
		}
		m := &o.Models[len(o.Models)-1]
		m.Installed++
		switch {
		case a.Live > 0:
			m.Allocated++
		case a.Phase == schema.PhaseRepairing || a.Phase == schema.PhaseRetiring || a.Phase == schema.PhaseRetired:
			m.Repairing++
		case a.Health != schema.HealthHealthy:
			m.Unhealthy++
		case a.Phase != schema.PhaseAvailable:
			m.Draining++
		case a.Cordoned > 0:
			m.Cordoned++
		default:
			m.Idle++
		}
	}
	type count struct {
		Key string
		N   int
	}
	var rows []count
	if err := s.read(ctx).Raw("SELECT phase AS key, count(*) AS n FROM servers GROUP BY phase").Scan(&rows).Error; err != nil {
		return o, err
	}
	for _, r := range rows {
		o.Phases[schema.Phase(r.Key)] = r.N
	}
	var live []struct {
		State  schema.JobState
		Reason string
	}
	if err := s.read(ctx).Raw("SELECT state, reason FROM jobs WHERE ended_at = 0").Scan(&live).Error; err != nil {
		return o, err
	}
	for _, j := range live {
		o.Jobs[j.State]++
		if j.State == schema.JobQueued {
			o.Reasons[reasonCode(j.Reason)]++
		}
	}
	var err error
	if o.Failures, err = s.Servers(ctx, ServerFilter{Failed: true}); err != nil {
		return o, err
	}
	if o.Paused, err = s.Servers(ctx, ServerFilter{Paused: true}); err != nil {
		return o, err
	}
	if o.Repairs, err = s.Repairs(ctx, RepairFilter{Open: true}); err != nil {
		return o, err
	}
	o.Breakers, err = s.Breakers(ctx, true)
	return o, err
}

// reasonCode reads the code out of a kept reason; NOT_EVALUATED where there is none.
func reasonCode(doc string) schema.ReasonCode {
	r, ok := Reason(doc)
	if !ok {
		return schema.ReasonNotEvaluated
	}
	return r.Code
}
