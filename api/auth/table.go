package auth

import (
	"net/http"
	"strings"

	"gpupool/schema"
)

// Who is a set of kinds of callers.
type Who uint8

// The kinds of callers. A viewer of one tenant is another kind than a viewer of the pool.
const (
	Operator Who = 1 << iota
	Technician
	Viewer
	TenantAdmin
	TenantMember
	TenantViewer
	Agent  // a server's agent, by its key or its phone-home token; a server's BMC, by the secret in its address
	Public // anyone, without a credential
)

// Sets that the table is written with.
const (
	staff   = Operator | Technician | Viewer
	tenants = TenantAdmin | TenantMember | TenantViewer
	people  = staff | tenants
	workers = Operator | TenantAdmin | TenantMember // who may run jobs
)

// Rule says who may use one route. Path is gin's: /v1/servers/:id.
type Rule struct {
	Method, Path string
	Who          Who
}

// Table is every route there is. A test walks the router and proves that neither holds one that the other doesn't.
var Table = []Rule{
	{"GET", "/v1/whoami", people},
	{"GET", "/v1/overview", staff},

	{"GET", "/v1/servers", staff},
	{"POST", "/v1/servers", Operator},
	{"POST", "/v1/servers/bulk", Operator},
	{"GET", "/v1/servers/:id", staff},
	{"GET", "/v1/servers/:id/steps", staff},
	{"POST", "/v1/servers/:id/install-preview", Operator},
	{"POST", "/v1/servers/:id/actions/onboard", Operator},
	{"POST", "/v1/servers/:id/actions/reinstall", Operator},
	{"POST", "/v1/servers/:id/actions/retry", Operator},
	{"POST", "/v1/servers/:id/actions/skip", Operator},
	{"POST", "/v1/servers/:id/actions/abort", Operator},
	{"POST", "/v1/servers/:id/actions/accept", Operator},
	{"GET", "/v1/servers/:id/differences", staff},
	{"POST", "/v1/servers/:id/actions/retire", Operator},
	{"GET", "/v1/servers/:id/retirement", staff},
	{"POST", "/v1/servers/:id/actions/pause", Operator},
	{"POST", "/v1/servers/:id/actions/continue", Operator},
	{"POST", "/v1/servers/:id/actions/cordon", Operator},
	{"POST", "/v1/servers/:id/actions/uncordon", Operator},
	{"POST", "/v1/servers/:id/actions/drain", Operator},
	{"POST", "/v1/servers/:id/actions/undrain", Operator},
	{"POST", "/v1/servers/:id/actions/burn-in", Operator},
	{"POST", "/v1/servers/:id/actions/protect", Operator},
	{"POST", "/v1/servers/:id/actions/unprotect", Operator},
	{"GET", "/v1/install-profiles", staff},
	{"GET", "/v1/install-choices", staff},
	{"PUT", "/v1/install-choices", Operator},
	{"DELETE", "/v1/install-choices", Operator},
	{"GET", "/v1/found-bmcs", staff},
	{"POST", "/v1/found-bmcs", Operator},
	{"GET", "/v1/servers/:id/bmc", staff},
	{"GET", "/v1/servers/:id/bmc/acts", Operator},
	{"POST", "/v1/servers/:id/bmc/acts", Operator},
	{"POST", "/v1/servers/:id/actions/bmc-credential", Operator},
	{"POST", "/v1/servers/:id/actions/bmc-trust", Operator},
	{"GET", "/v1/allowed-serials", staff},
	{"PUT", "/v1/allowed-serials", Operator},
	{"POST", "/v1/bmc-probes", Operator},
	{"GET", "/v1/bmc-probes/:probe", Operator},
	{"GET", "/v1/bmc-acts/:act", Operator},
	{"GET", "/v1/bmc-acts/:act/file", Operator},
	{"GET", "/v1/accelerators", staff},
	{"GET", "/v1/cordons", staff},
	{"GET", "/v1/faults", staff},

	{"GET", "/v1/repairs", staff},
	{"GET", "/v1/repairs/:repair", staff},
	{"GET", "/v1/repairs/:repair/evidence", Operator | Technician},
	{"POST", "/v1/repairs/:repair/actions/done", Operator | Technician},
	{"POST", "/v1/repairs/:repair/actions/claim", Operator | Technician},
	{"POST", "/v1/repairs/:repair/actions/could-not-fix", Operator | Technician},
	{"POST", "/v1/repairs/:repair/actions/drain-now", Operator},
	{"POST", "/v1/repairs/:repair/actions/light", Operator | Technician},
	{"GET", "/v1/repairs/:repair/light", staff},
	{"GET", "/v1/repairs/:repair/photos", staff},
	{"POST", "/v1/repairs/:repair/photos", Operator | Technician},
	{"GET", "/v1/repairs/:repair/photos/:photo", staff},
	{"DELETE", "/v1/repairs/:repair/photos/:photo", Operator},
	{"GET", "/v1/rmas", staff},
	{"POST", "/v1/rmas", Operator | Technician},
	{"PATCH", "/v1/rmas/:rma", Operator | Technician},
	{"GET", "/v1/health/rules", staff},
	{"PUT", "/v1/health/rules/:rule", Operator},
	{"POST", "/v1/health/replay", Operator},
	{"GET", "/v1/health/silences", staff},
	{"POST", "/v1/health/silences", Operator},
	{"DELETE", "/v1/health/silences/:silence", Operator},
	{"GET", "/v1/health/breakers", staff},
	{"POST", "/v1/health/breakers/:breaker/actions/reset", Operator},
	{"GET", "/v1/health/times", staff},
	{"GET", "/v1/health/history", staff},
	{"GET", "/v1/health/lemons", staff},

	{"GET", "/v1/jobs", Operator | Viewer | tenants},
	{"POST", "/v1/jobs", workers},
	{"POST", "/v1/jobs/actions/dry-run", workers},
	{"GET", "/v1/jobs/:job", Operator | Viewer | tenants},
	{"GET", "/v1/jobs/:job/attempts", Operator | Viewer | tenants},
	{"GET", "/v1/jobs/:job/events", Operator | Viewer | tenants},
	{"GET", "/v1/jobs/:job/logs", Operator | tenants}, // what a tenant prints is not the pool viewer's
	{"POST", "/v1/jobs/:job/actions/cancel", workers},
	{"POST", "/v1/jobs/:job/actions/hold", workers},
	{"POST", "/v1/jobs/:job/actions/release", workers},
	{"POST", "/v1/jobs/:job/actions/checkpoint", workers},
	{"POST", "/v1/jobs/:job/actions/time-limit", workers},

	{"GET", "/v1/arrays", Operator | Viewer | tenants},
	{"POST", "/v1/arrays", workers},
	{"GET", "/v1/arrays/:array", Operator | Viewer | tenants},
	{"POST", "/v1/arrays/:array/actions/cancel", workers},
	{"POST", "/v1/arrays/:array/actions/hold", workers},
	{"POST", "/v1/arrays/:array/actions/release", workers},
	{"POST", "/v1/arrays/:array/actions/limit", workers},
	{"POST", "/v1/arrays/:array/actions/scale", workers},

	{"GET", "/v1/usage", Operator | Viewer | tenants},
	{"GET", "/v1/usage/live", Operator | Viewer | tenants},
	{"GET", "/v1/usage/statement", Operator | Viewer | tenants},
	{"GET", "/v1/usage/focus", Operator | Viewer | tenants},
	{"GET", "/v1/usage/trace", Operator | Viewer},
	{"GET", "/v1/usage/audit", Operator | Viewer},
	{"GET", "/v1/usage/findings", staff},
	{"POST", "/v1/usage/adjustments", Operator},
	{"GET", "/v1/capacity", Operator | Viewer},
	{"GET", "/v1/report", Operator | Viewer | tenants},
	{"GET", "/v1/forecast", Operator | Viewer},
	{"GET", "/v1/events", staff | tenants},

	{"GET", "/v1/builds", people},
	{"GET", "/v1/builds/:build", people},
	{"PUT", "/v1/builds/:build", Operator},
	{"DELETE", "/v1/builds/:build", Operator},
	{"GET", "/v1/specs", people},
	{"POST", "/v1/specs", Operator},
	{"GET", "/v1/specs/:spec", people},
	{"DELETE", "/v1/specs/:spec", Operator},
	{"POST", "/v1/specs/:spec/actions/retire", Operator},
	{"GET", "/v1/volumes", people},
	{"POST", "/v1/volumes", Operator},
	{"DELETE", "/v1/volumes/:volume", Operator},
	{"GET", "/v1/tenants", Operator | Viewer | tenants},
	{"POST", "/v1/tenants", Operator},
	{"GET", "/v1/tenants/:tenant", Operator | Viewer | tenants},
	{"PATCH", "/v1/tenants/:tenant", Operator},
	{"GET", "/v1/tenants/:tenant/projects", Operator | Viewer | tenants},
	{"POST", "/v1/tenants/:tenant/projects", Operator | TenantAdmin},
	{"PATCH", "/v1/tenants/:tenant/projects/:project", Operator | TenantAdmin},
	{"GET", "/v1/quotas", Operator | Viewer | tenants},
	{"PUT", "/v1/quotas", Operator},
	{"DELETE", "/v1/quotas", Operator},

	{"GET", "/v1/windows", people},
	{"POST", "/v1/windows", Operator},
	{"DELETE", "/v1/windows/:window", Operator},

	{"GET", "/v1/queue/stops", people},
	{"POST", "/v1/queue/stops", Operator},
	{"DELETE", "/v1/queue/stops/:stop", Operator},

	{"GET", "/v1/budgets", Operator | Viewer | tenants},
	{"PUT", "/v1/budgets", Operator},
	{"DELETE", "/v1/budgets/:budget", Operator},
	{"GET", "/v1/prices", Operator | Viewer | tenants},
	{"PUT", "/v1/prices", Operator},
	{"GET", "/v1/charging", Operator | Viewer | tenants},
	{"PUT", "/v1/charging", Operator},

	{"GET", "/v1/webhooks", Operator | TenantAdmin}, // an address may hold a secret
	{"POST", "/v1/webhooks", Operator | TenantAdmin},
	{"GET", "/v1/webhooks/:webhook", Operator | TenantAdmin},
	{"DELETE", "/v1/webhooks/:webhook", Operator | TenantAdmin},
	{"GET", "/v1/webhooks/:webhook/deliveries", Operator | TenantAdmin},
	{"GET", "/v1/webhooks/:webhook/deliveries/:delivery", Operator | TenantAdmin},
	{"POST", "/v1/webhooks/:webhook/actions/test", Operator | TenantAdmin},
	{"POST", "/v1/webhooks/:webhook/actions/enable", Operator | TenantAdmin},

	{"GET", "/v1/tokens", Operator | TenantAdmin},
	{"POST", "/v1/tokens", Operator | TenantAdmin},
	{"DELETE", "/v1/tokens/:token", Operator | TenantAdmin},

	{"GET", "/healthz", Public},
	{"GET", "/readyz", Public},
	{"GET", "/metrics", Operator | Viewer},
	{"GET", "/openapi.yaml", Public},

	{"POST", "/agent/v1/register", Agent},
	{"POST", "/agent/v1/heartbeat", Agent},
	{"GET", "/agent/v1/tasks", Agent},
	{"POST", "/agent/v1/report", Agent},
	{"POST", "/bmc-events/:server/:secret", Agent},

	// The console signs its callers in itself, and reads and does everything by asking the routes above as them.
	{"GET", "/", Public},
	{"GET", "/login", Public},
	{"POST", "/login", Public},
	{"POST", "/logout", Public},
	{"GET", "/static/*path", Public},
	{"GET", "/ui/*path", Public},
	{"POST", "/ui/*path", Public},
}

var byRoute = func() map[string]map[string]Who {
	m := map[string]map[string]Who{}
	for _, r := range Table {
		if m[r.Method] == nil {
			m[r.Method] = map[string]Who{}
		}
		m[r.Method][r.Path] = r.Who
	}
	return m
}()

// Allowed is who may use the route; 0 (nobody) where it is not in the table. HEAD is GET.
func Allowed(method, path string) Who {
	if method == http.MethodHead {
		method = http.MethodGet
	}
	return byRoute[method][path]
}

// Kind is the kind of caller that a role is; a viewer's depends on whether the token is of a tenant.
func Kind(role schema.Role, tenant string) Who {
	switch role {
	case schema.RoleOperator:
		return Operator
	case schema.RoleTechnician:
		return Technician
	case schema.RoleTenantAdmin:
		return TenantAdmin
	case schema.RoleTenantMember:
		return TenantMember
	case schema.RoleViewer:
		if tenant != "" {
			return TenantViewer
		}
		return Viewer
	}
	return 0
}

// May reports whether the caller may use the route, as the guard does: the console asks it before it shows a button
// and before it does what a form says.
func May(id Identity, method, path string) bool {
	return Allowed(method, path)&Kind(id.Role, id.Tenant) != 0
}

// String names the kinds, for error messages.
func (w Who) String() string {
	var out []string
	for i, name := range []string{"operator", "technician", "viewer", "tenant-admin", "tenant-member", "viewer of a tenant", "agent", "anyone"} {
		if w&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	return strings.Join(out, ", ")
}
