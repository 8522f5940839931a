package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
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
	EntryPenalty  string `yaml:"entry_penalty"`  // accelerator-time charged to fair share at a start; default 5m, 0s = none
	MinRunTime    string `yaml:"min_run_time"`   // before a job may be preempted; default 0s
	Grace         string `yaml:"grace"`          // of a victim; default 30s, 0s = none
	AssumedLimit  string `yaml:"assumed_limit"`  // of jobs without a time limit, for planned starts; default 24h
	Preemption    *bool  `yaml:"preemption"`     // default true
	Backfill      *bool  `yaml:"backfill"`       // default true
	Preemptible   bool   `yaml:"preemptible"`    // takes every job of the trace for preemptible; default false
	Reservations  *int   `yaml:"reservations"`   // planned starts per pool; default 4, 0 or -1 = none
	BackfillDepth *int   `yaml:"backfill_depth"` // default 64
	Quotas        []struct {
		Tenant     string `yaml:"tenant"`
		Project    string `yaml:"project"`
		Model      string `yaml:"model"`
		Guaranteed int64  `yaml:"guaranteed"`
		Limit      *int64 `yaml:"limit"` // absent = none
	} `yaml:"quotas"`
	Accounts []struct {
		Tenant         string   `yaml:"tenant"`
		Project        string   `yaml:"project"`
		Weight         *float64 `yaml:"weight"`           // in fair share; default 1
		MaxRunningJobs int      `yaml:"max_running_jobs"` // 0 = no limit
		MaxPriority    *int     `yaml:"max_priority"`     // absent = no cap
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
		NoPreemption: y.Preemption != nil && !*y.Preemption, NoBackfill: y.Backfill != nil && !*y.Backfill,
	}}
	for _, read := range []func(*Policy) error{y.config, y.quotas, y.accounts, y.budgets, y.windows} {
		if err := read(&p); err != nil {
			return p, err
		}
	}
	return p, nil
}

// wrong says what is wrong with a field, and what would be right.
func wrong(field string, value any, want string) error {
	if text, ok := value.(string); ok {
		value = strconv.Quote(text)
	}
	return fmt.Errorf("%w: %s: %v: want %s", ErrPolicy, field, value, want)
}

const year = 366 * 24 * time.Hour

func (y *policyYAML) config(p *Policy) error {
	c := &p.Config
	if !slices.Contains([]engine.Order{"", engine.FairShare, engine.FIFO}, c.Order) {
		return wrong("order", y.Order, "fair-share or fifo")
	}
	if !slices.Contains([]engine.Placement{"", engine.LeastFragmentation, engine.BestFit, engine.Spread}, c.Placement) {
		return wrong("placement", y.Placement, "least-fragmentation, best-fit or spread")
	}
	for _, d := range []struct {
		name, text  string
		least, most time.Duration
		to          *time.Duration
	}{
		{"half_life", y.HalfLife, time.Minute, year, &c.HalfLife}, {"entry_penalty", y.EntryPenalty, 0, 24 * time.Hour, &c.EntryPenalty},
		{"min_run_time", y.MinRunTime, 0, year, &c.MinRunTime}, {"grace", y.Grace, 0, 24 * time.Hour, &c.Grace},
		{"assumed_limit", y.AssumedLimit, time.Second, year, &c.AssumedLimit},
	} {
		if d.text == "" {
			continue
		}
		v, err := time.ParseDuration(d.text)
		if err != nil || v < d.least || v > d.most {
			return wrong(d.name, d.text, fmt.Sprintf("a duration from %s to %s, such as 30s or 168h", d.least, d.most))
		}
		if *d.to = v; v == 0 {
			*d.to = -1 // none: to the engine 0 is its default
		}
	}
	c.MinRunTime = max(c.MinRunTime, 0)
	for _, n := range []struct {
		name              string
		is                *int
		least, most, none int
		to                *int
	}{{"reservations", y.Reservations, -1, 1000, 0, &c.Reservations}, {"backfill_depth", y.BackfillDepth, 1, 100_000, -1, &c.BackfillDepth}} {
		if n.is == nil {
			continue
		}
		if *n.is < n.least || *n.is > n.most {
			return wrong(n.name, *n.is, fmt.Sprintf("%d to %d", n.least, n.most))
		}
		if *n.to = *n.is; *n.is == n.none {
			*n.to = -1
		}
	}
	return nil
}

// whose is the tenant and project, and if need be the model, that a row of the policy is of.
type whose struct{ tenant, project, model string }

// row checks what a row is of: a tenant must be named, and no two rows are of the same.
func (w whose) row(field string, before map[whose]string) error {
	if w.tenant == "" {
		return wrong(field+".tenant", "", "a tenant")
	}
	if first, ok := before[w]; ok {
		return wrong(field, strings.Join(slices.DeleteFunc([]string{w.tenant, w.project, w.model}, func(s string) bool { return s == "" }), " "), "another tenant, project or model than "+first)
	}
	before[w] = field
	return nil
}

func (y *policyYAML) quotas(p *Policy) error {
	before := map[whose]string{}
	for i, q := range y.Quotas {
		field := fmt.Sprintf("quotas[%d]", i)
		if err := (whose{q.Tenant, q.Project, q.Model}).row(field, before); err != nil {
			return err
		}
		limit := int64(engine.NoLimit)
		if q.Limit != nil {
			limit = *q.Limit
			if limit < 0 || limit > maxAccelerators {
				return wrong(field+".limit", limit, fmt.Sprintf("0 to %d accelerators, or no limit: leave it out", maxAccelerators))
			}
		}
		if q.Guaranteed < 0 || q.Guaranteed > maxAccelerators || q.Limit != nil && q.Guaranteed > limit {
			return wrong(field+".guaranteed", q.Guaranteed, fmt.Sprintf("0 to the limit, at most %d accelerators", maxAccelerators))
		}
		p.Quotas = append(p.Quotas, engine.Quota{Tenant: q.Tenant, Project: q.Project, Model: q.Model, Guaranteed: q.Guaranteed, Limit: limit})
	}
	return nil
}

func (y *policyYAML) accounts(p *Policy) error {
	before := map[whose]string{}
	for i, a := range y.Accounts {
		field := fmt.Sprintf("accounts[%d]", i)
		if err := (whose{tenant: a.Tenant, project: a.Project}).row(field, before); err != nil {
			return err
		}
		out := engine.Account{Tenant: a.Tenant, Project: a.Project, MaxRunningJobs: a.MaxRunningJobs, MaxPriority: a.MaxPriority}
		if a.Weight != nil {
			if out.Weight = *a.Weight; !(out.Weight > 0 && out.Weight <= 1e6) {
				return wrong(field+".weight", out.Weight, "more than 0, at most 1e6")
			}
		}
		if a.MaxRunningJobs < 0 {
			return wrong(field+".max_running_jobs", a.MaxRunningJobs, "1 or more, or 0 for no limit")
		}
		if m := a.MaxPriority; m != nil && (*m < -maxPriority || *m > maxPriority) {
			return wrong(field+".max_priority", *m, fmt.Sprintf("%d to %d", -maxPriority, maxPriority))
		}
		p.Accounts = append(p.Accounts, out)
	}
	return nil
}

func (y *policyYAML) budgets(p *Policy) error {
	before := map[whose]string{}
	for i, b := range y.Budgets {
		field := fmt.Sprintf("budgets[%d]", i)
		if err := (whose{b.Tenant, b.Project, b.Model}).row(field, before); err != nil {
			return err
		}
		zone, err := time.LoadLocation(b.Zone)
		if err != nil || b.Zone == "Local" {
			return wrong(field+".time_zone", b.Zone, "an IANA time zone such as Europe/Berlin")
		}
		if !(b.Hours >= 0 && b.Hours <= maxHours) {
			return wrong(field+".gpu_hours", b.Hours, fmt.Sprintf("0 to %g", float64(maxHours)))
		}
		p.Budgets = append(p.Budgets, engine.Budget{
			ID: fmt.Sprintf("budget %d of %s", i+1, b.Tenant), Tenant: b.Tenant, Project: b.Project, Model: b.Model,
			Amount: time.Duration(b.Hours * float64(time.Hour)), Zone: zone,
		})
	}
	return nil
}

func (y *policyYAML) windows(p *Policy) error {
	for i, w := range y.Windows {
		field := fmt.Sprintf("windows[%d]", i)
		in := engine.Window{ID: cmp.Or(w.ID, fmt.Sprintf("window %d", i+1)), Kind: w.Kind, Servers: w.Servers, Tenant: w.Tenant, Project: w.Project}
		switch {
		case w.Kind != "maintenance" && w.Kind != "reservation":
			return wrong(field+".kind", w.Kind, "maintenance or reservation")
		case w.Kind == "reservation" && w.Tenant == "":
			return wrong(field+".tenant", "", "the tenant that the reservation is for")
		case w.Kind == "maintenance" && (w.Tenant != "" || w.Project != ""):
			return wrong(field+".tenant", w.Tenant, "none: maintenance is for nobody")
		case len(w.Servers) == 0:
			return wrong(field+".servers", "", "servers of the pool")
		case slices.ContainsFunc(p.Windows, func(o engine.Window) bool { return o.ID == in.ID }):
			return wrong(field+".id", in.ID, "an id of its own")
		}
		var ok bool
		if in.From, ok = moment(w.From); !ok {
			return wrong(field+".from", w.From, "a time such as 2026-03-01T00:00:00Z")
		}
		if in.Until, ok = moment(w.Until); !ok || !in.Until.After(in.From) {
			return wrong(field+".until", w.Until, "a time after from, such as 2026-03-01T00:00:00Z")
		}
		for _, o := range p.Windows {
			if w.Kind == "reservation" && o.Kind == w.Kind && (o.Tenant != in.Tenant || o.Project != in.Project) && in.From.Before(o.Until) && o.From.Before(in.Until) {
				if k := slices.IndexFunc(in.Servers, func(srv string) bool { return slices.Contains(o.Servers, srv) }); k >= 0 {
					return wrong(fmt.Sprintf("%s.servers[%d]", field, k), in.Servers[k], "a server that is not reserved for somebody else meanwhile: "+o.ID)
				}
			}
		}
		p.Windows = append(p.Windows, in)
	}
	return nil
}

// moment reads a time that a clock of nanoseconds holds.
func moment(text string) (time.Time, bool) {
	t, err := time.Parse(time.RFC3339, text)
	return t, err == nil && t.Year() >= 1970 && t.Year() < 2200
}

// check holds a policy against the pool that it is to rule: what names nothing of it would change nothing, unsaid.
func (p *Policy) check(pool *Pool) error {
	servers, models := map[string]bool{}, map[string]bool{"": true}
	for _, s := range pool.Servers {
		servers[s.ID] = true
		for _, a := range s.Accelerators {
			models[a.Model] = true
		}
	}
	known := "a model of the pool (" + strings.Join(slices.Sorted(maps.Keys(models))[1:], ", ") + "), or none for all"
	for i, q := range p.Quotas {
		if !models[q.Model] {
			return wrong(fmt.Sprintf("quotas[%d].model", i), q.Model, known)
		}
	}
	for i, b := range p.Budgets {
		if !models[b.Model] {
			return wrong(fmt.Sprintf("budgets[%d].model", i), b.Model, known)
		}
	}
	for i, w := range p.Windows {
		for k, id := range w.Servers {
			if !servers[id] {
				return wrong(fmt.Sprintf("windows[%d].servers[%d]", i, k), id, "a server of the pool, such as "+pool.Servers[0].ID)
			}
		}
	}
	return nil
}

// maxHours bounds a budget: what a duration holds.
const maxHours = 2e6
