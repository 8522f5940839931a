package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/goccy/go-yaml"

	"gpupool/activities/allocator/engine"
)

// ErrPolicy says that a policy file is wrong.
var ErrPolicy = errors.New("policy")

// policyYAML is a policy file. Durations are written like 30s, 10m, 168h.
type policyYAML struct {
	Name          string `yaml:"name"`
	Order         string `yaml:"order"`          // fair-share (default) or fifo
	Placement     string `yaml:"placement"`      // least-fragmentation (default), best-fit or spread
	HalfLife      string `yaml:"half_life"`      // of past usage; default 168h
	EntryPenalty  string `yaml:"entry_penalty"`  // accelerator-time charged to fair share at a start; default 5m
	MinRunTime    string `yaml:"min_run_time"`   // before a job may be preempted; default 0
	Grace         string `yaml:"grace"`          // of a victim; default 30s
	AssumedLimit  string `yaml:"assumed_limit"`  // of jobs without a time limit, for planned starts; default 24h
	Preemption    *bool  `yaml:"preemption"`     // default true
	Backfill      *bool  `yaml:"backfill"`       // default true
	Preemptible   bool   `yaml:"preemptible"`    // takes every job of the trace for preemptible; default false
	Reservations  int    `yaml:"reservations"`   // planned starts per pool; default 4, -1 = none
	BackfillDepth int    `yaml:"backfill_depth"` // default 64
	Quotas        []struct {
		Tenant     string `yaml:"tenant"`
		Project    string `yaml:"project"`
		Model      string `yaml:"model"`
		Guaranteed int64  `yaml:"guaranteed"`
		Limit      *int64 `yaml:"limit"` // absent = none
	} `yaml:"quotas"`
	Accounts []struct {
		Tenant         string  `yaml:"tenant"`
		Project        string  `yaml:"project"`
		Weight         float64 `yaml:"weight"`           // in fair share; default 1
		MaxRunningJobs int     `yaml:"max_running_jobs"` // 0 = no limit
		MaxPriority    *int    `yaml:"max_priority"`     // absent = no cap
	} `yaml:"accounts"`
	Budgets []struct {
		Tenant  string  `yaml:"tenant"`
		Project string  `yaml:"project"`
		Model   string  `yaml:"model"`
		Hours   float64 `yaml:"gpu_hours"` // per calendar month
		Zone    string  `yaml:"time_zone"` // IANA; default UTC
	} `yaml:"budgets"`
	Windows []struct {
		ID      string   `yaml:"id"`
		Kind    string   `yaml:"kind"` // maintenance or reservation
		Servers []string `yaml:"servers"`
		From    string   `yaml:"from"` // RFC 3339
		Until   string   `yaml:"until"`
		Tenant  string   `yaml:"tenant"`
		Project string   `yaml:"project"`
	} `yaml:"windows"`
}

// ReadPolicy reads a policy file. An unknown field is an error that names it.
func ReadPolicy(r io.Reader) (Policy, error) {
	text, err := io.ReadAll(r)
	if err != nil {
		return Policy{}, fmt.Errorf("reading the policy: %w", err)
	}
	var y policyYAML
	if err := yaml.UnmarshalWithOptions(text, &y, yaml.Strict()); err != nil {
		return Policy{}, fmt.Errorf("%w: %w", ErrPolicy, err)
	}
	p := Policy{Name: y.Name, Preemptible: y.Preemptible, Config: engine.Config{
		Order: engine.Order(y.Order), Placement: engine.Placement(y.Placement),
		Reservations: y.Reservations, BackfillDepth: y.BackfillDepth,
		NoPreemption: y.Preemption != nil && !*y.Preemption, NoBackfill: y.Backfill != nil && !*y.Backfill,
	}}
	switch p.Config.Order {
	case "", engine.FairShare, engine.FIFO:
	default:
		return p, fmt.Errorf("%w: order: %q: want fair-share or fifo", ErrPolicy, y.Order)
	}
	switch p.Config.Placement {
	case "", engine.LeastFragmentation, engine.BestFit, engine.Spread:
	default:
		return p, fmt.Errorf("%w: placement: %q: want least-fragmentation, best-fit or spread", ErrPolicy, y.Placement)
	}
	for _, d := range []struct {
		name, text string
		to         *time.Duration
	}{
		{"half_life", y.HalfLife, &p.Config.HalfLife}, {"entry_penalty", y.EntryPenalty, &p.Config.EntryPenalty},
		{"min_run_time", y.MinRunTime, &p.Config.MinRunTime}, {"grace", y.Grace, &p.Config.Grace},
		{"assumed_limit", y.AssumedLimit, &p.Config.AssumedLimit},
	} {
		if d.text == "" {
			continue
		}
		if *d.to, err = time.ParseDuration(d.text); err != nil {
			return p, fmt.Errorf("%w: %s: %q: want a duration such as 30s or 168h", ErrPolicy, d.name, d.text)
		}
	}
	for i, q := range y.Quotas {
		if q.Tenant == "" {
			return p, fmt.Errorf("%w: quotas[%d].tenant: empty: want a tenant", ErrPolicy, i)
		}
		limit := int64(engine.NoLimit)
		if q.Limit != nil {
			limit = *q.Limit
		}
		p.Quotas = append(p.Quotas, engine.Quota{
			Tenant: q.Tenant, Project: q.Project, Model: q.Model, Guaranteed: q.Guaranteed, Limit: limit,
		})
	}
	for i, a := range y.Accounts {
		if a.Tenant == "" {
			return p, fmt.Errorf("%w: accounts[%d].tenant: empty: want a tenant", ErrPolicy, i)
		}
		p.Accounts = append(p.Accounts, engine.Account(a))
	}
	for i, b := range y.Budgets {
		zone, err := time.LoadLocation(b.Zone)
		switch {
		case b.Tenant == "":
			return p, fmt.Errorf("%w: budgets[%d].tenant: empty: want a tenant", ErrPolicy, i)
		case err != nil:
			return p, fmt.Errorf("%w: budgets[%d].time_zone: %q: want an IANA time zone such as Europe/Berlin", ErrPolicy, i, b.Zone)
		case !(b.Hours >= 0 && b.Hours <= maxHours):
			return p, fmt.Errorf("%w: budgets[%d].gpu_hours: %g: want 0 to %g", ErrPolicy, i, b.Hours, maxHours)
		}
		p.Budgets = append(p.Budgets, engine.Budget{
			ID: fmt.Sprintf("budget %d of %s", i+1, b.Tenant), Tenant: b.Tenant, Project: b.Project, Model: b.Model,
			Amount: time.Duration(b.Hours * float64(time.Hour)), Zone: zone,
		})
	}
	for i, w := range y.Windows {
		in := engine.Window{ID: cmp.Or(w.ID, fmt.Sprintf("window %d", i+1)), Kind: w.Kind, Servers: w.Servers, Tenant: w.Tenant, Project: w.Project}
		switch w.Kind {
		case "maintenance", "reservation":
		default:
			return p, fmt.Errorf("%w: windows[%d].kind: %q: want maintenance or reservation", ErrPolicy, i, w.Kind)
		}
		if len(w.Servers) == 0 {
			return p, fmt.Errorf("%w: windows[%d].servers: none: want servers of the pool", ErrPolicy, i)
		}
		if in.From, err = time.Parse(time.RFC3339, w.From); err != nil {
			return p, fmt.Errorf("%w: windows[%d].from: %q: want a time such as 2026-03-01T00:00:00Z", ErrPolicy, i, w.From)
		}
		if in.Until, err = time.Parse(time.RFC3339, w.Until); err != nil || !in.Until.After(in.From) {
			return p, fmt.Errorf("%w: windows[%d].until: %q: want a time after from", ErrPolicy, i, w.Until)
		}
		p.Windows = append(p.Windows, in)
	}
	return p, nil
}

// maxHours bounds a budget: what a duration holds.
const maxHours = 2e6
