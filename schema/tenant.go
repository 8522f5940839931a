package schema

import (
	"math"
	"time"
)

// Spec is a standard spec: what one node of a job gets.
type Spec struct {
	Name         string  `gorm:"primaryKey" json:"name"`
	Model        string  `json:"model"`        // accelerator model
	Accelerators int     `json:"accelerators"` // per node, 1..16
	CPUs         int     `gorm:"column:cpus" json:"cpus"`
	MemoryBytes  int64   `json:"memory_bytes"`
	Description  string  `json:"description"`
	MaxTime      int64   `json:"max_time_ms"` // ms that a job may run; one without a time limit has this one. 0 = none
	CreatedAt    Instant `gorm:"autoCreateTime:false" json:"created_at"`
	RetiredAt    Instant `json:"retired_at"` // takes no new jobs from then on; 0 = in use
}

// Account is what holds for a tenant or a project whatever the model. For a job both hold, its project's and its tenant's.
type Account struct {
	Weight         int `json:"weight"`           // in fair share, among tenants or among a tenant's projects: 1 and up
	MaxRunningJobs int `json:"max_running_jobs"` // jobs that hold accelerators at once; 0 = no limit
	MaxPriority    int `json:"max_priority"`     // a waiting job's priority is capped to it
	// Idle limits of its jobs in ms: 0 = never, Inherit = what holds for the tenant, and above it for the pool.
	IdleWarn    int64 `json:"idle_warn_ms"`
	IdleReclaim int64 `json:"idle_reclaim_ms"`
}

// Inherit is the idle limit of an account that has none of its own.
const Inherit = -1

// Tenant is who is billed.
type Tenant struct {
	Name string `gorm:"primaryKey" json:"name"`
	Account
	CreatedAt Instant `gorm:"autoCreateTime:false" json:"created_at"`
}

// Project groups jobs within a tenant.
type Project struct {
	Tenant string `gorm:"primaryKey" json:"tenant"`
	Name   string `gorm:"primaryKey" json:"name"`
	Account
	CreatedAt Instant `gorm:"autoCreateTime:false" json:"created_at"`
}

// Quota bounds what a tenant (Project empty) or project may hold at once of one accelerator model.
type Quota struct {
	Tenant     string  `gorm:"primaryKey" json:"tenant"`
	Project    string  `gorm:"primaryKey" json:"project"`
	Model      string  `gorm:"primaryKey" json:"model"`
	Guaranteed int     `json:"guaranteed"`
	Limit      int     `gorm:"column:max" json:"limit"` // accelerators; -1 = none
	UpdatedAt  Instant `gorm:"autoUpdateTime:false" json:"updated_at"`
}

// Role is what a token may do; api/auth holds the table of what each may.
type Role string

const (
	RoleOperator     Role = "operator"
	RoleTechnician   Role = "technician"
	RoleTenantAdmin  Role = "tenant-admin"
	RoleTenantMember Role = "tenant-member"
	RoleViewer       Role = "viewer"
)

// Roles are all roles.
var Roles = []Role{RoleOperator, RoleTechnician, RoleTenantAdmin, RoleTenantMember, RoleViewer}

// Token is an API credential. The secret itself is shown once and never kept: Hash is hex SHA-256 of it.
type Token struct {
	ID        string  `gorm:"primaryKey" json:"id"`
	Name      string  `json:"name"`
	Hash      string  `json:"-"`
	Role      Role    `json:"role"`
	Tenant    string  `json:"tenant"`  // for tenant roles, and for a viewer that sees one tenant only
	Project   string  `json:"project"` // narrows a member to one project; empty = all of the tenant
	CreatedAt Instant `gorm:"autoCreateTime:false" json:"created_at"`
	ExpiresAt Instant `json:"expires_at"`
	RevokedAt Instant `json:"revoked_at"`
}

// TableName is where it is kept: the plural that would be guessed is wrong.
func (Quota) TableName() string { return "quotas" }

// AssumedLimit stands for the time limit of a job that has none, where starts are planned and in budgets.
const AssumedLimit = 24 * time.Hour

// CommittedUntil is until when an allocation counts in a budget: for its time limit from its start, or as long as assumed where
// it has none (0), and where it has been held for longer, until now. All are of one unit. It is not cut at the month's end:
// what a job takes into the next month fits into this one's budget, so that no month begins overdrawn.
func CommittedUntil[T ~int64](start, limit, assumed, now T) T {
	if limit <= 0 {
		limit = assumed
	}
	if limit > math.MaxInt64-max(start, 0) {
		return math.MaxInt64
	}
	return max(now, start+limit)
}
