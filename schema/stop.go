package schema

import "strings"

// Stop closes a queue: none of the jobs it is about starts. What runs goes on, and jobs are still submitted. An empty field
// narrows nothing, so the zero scope is the whole pool.
type Stop struct {
	ID        string  `gorm:"primaryKey" json:"id"`
	Tenant    string  `json:"tenant"`
	Project   string  `json:"project"` // of Tenant
	Spec      string  `json:"spec"`
	Region    string  `json:"region"`
	Why       string  `json:"why"`
	Until     Instant `gorm:"column:until_at" json:"until"` // 0 = until it is removed
	By        string  `json:"by"`
	CreatedAt Instant `gorm:"autoCreateTime:false" json:"created_at"`
}

// Holds reports whether the stop is about a job, at a moment.
func (s Stop) Holds(j Job, now Instant) bool {
	is := func(scope, of string) bool { return scope == "" || scope == of }
	return is(s.Tenant, j.Tenant) && is(s.Project, j.Project) && is(s.Spec, j.Spec) && is(s.Region, j.Region) && (s.Until == 0 || now < s.Until)
}

// Scope is what is stopped, in words: "tenant blue, spec h100x8", or "everything".
func (s Stop) Scope() string {
	var parts []string
	for _, p := range []struct{ kind, name string }{{"tenant", s.Tenant}, {"project", s.Project}, {"spec", s.Spec}, {"region", s.Region}} {
		if p.name != "" {
			parts = append(parts, p.kind+" "+p.name)
		}
	}
	if len(parts) == 0 {
		return "everything"
	}
	return strings.Join(parts, ", ")
}
