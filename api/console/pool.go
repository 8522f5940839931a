package console

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"

	"gpupool/api/call"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

// home leads each role to what it comes for.
func home(v *visit) {
	to := "/ui/jobs"
	switch {
	case v.me.Role == schema.RoleTechnician:
		to = "/ui/repairs"
	case v.may("GET", "/v1/overview"):
		to = "/ui/"
	}
	http.Redirect(v.w, v.r, to, http.StatusSeeOther)
}

// overviewPage is the pool at one look: what is stuck and what to do, then what there is.
func overviewPage(v *visit) {
	if !v.may("GET", "/v1/overview") {
		home(v)
		return
	}
	o, err := call.Do[contract.Overview](v.api.GetOverview(v.r.Context()))
	if err != nil {
		v.fail(err)
		return
	}
	names, err := v.servers()
	if err != nil {
		v.fail(err)
		return
	}
	// A server that called for a person is told of once.
	o.Repairs = slices.DeleteFunc(o.Repairs, func(r schema.Repair) bool {
		return r.State != schema.RepairWaiting || slices.ContainsFunc(o.Failures, func(s contract.Server) bool { return s.Id == r.Server })
	})
	v.show(page{title: "Pool", path: "/ui/"}, overviewView(v, o, names), nil)
}

// servers are all servers' names by id.
func (v *visit) servers() (map[string]string, error) {
	names := map[string]string{}
	after := ""
	for {
		l, err := call.Do[contract.ServerList](v.api.ListServers(v.r.Context(), &contract.ListServersParams{After: opt(after), Limit: opt(1000)}))
		if err != nil {
			return nil, err
		}
		for _, s := range l.Items {
			names[s.Id] = s.Name
		}
		if after = l.Next; after == "" || len(l.Items) == 0 {
			return names, nil
		}
	}
}

// part is one piece of a model's bar. X and Width are per cent of what is installed.
type part struct {
	Name     string
	Count    int
	X, Width string
}

func parts(m contract.ModelOverview) []part {
	all := []part{{Name: "allocated", Count: m.Allocated}, {Name: "idle", Count: m.Idle}, {Name: "cordoned", Count: m.Cordoned}, {Name: "draining", Count: m.Draining}, {Name: "repairing", Count: m.Repairing}, {Name: "unhealthy", Count: m.Unhealthy}}
	x, per := 0.0, 100/float64(max(m.Installed, 1))
	for i := range all {
		w := float64(all[i].Count) * per
		all[i].X, all[i].Width = percent(x), percent(w)
		x += w
	}
	return all
}

func percent(f float64) string { return strconv.FormatFloat(f, 'f', 2, 64) + "%" }

// counted is a name with how many.
type counted struct {
	Name  string
	Count int
}

var phaseOrder = []schema.Phase{schema.PhaseAvailable, schema.PhaseOnboarding, schema.PhaseDraining, schema.PhaseRepairing, schema.PhaseEnrolled, schema.PhaseRetiring, schema.PhaseRetired}

func phases(m map[string]int) []counted {
	var out []counted
	for _, p := range phaseOrder {
		if m[string(p)] > 0 {
			out = append(out, counted{string(p), m[string(p)]})
		}
	}
	return out
}

func reasons(m map[string]int) []counted {
	var out []counted
	for _, c := range schema.ReasonCodes {
		if m[string(c)] > 0 {
			out = append(out, counted{string(c), m[string(c)]})
		}
	}
	slices.SortStableFunc(out, func(a, b counted) int { return cmp.Compare(b.Count, a.Count) })
	return out
}

// share is a row's part of the total, for its bar.
func share(row, total int64) string {
	if total <= 0 || row <= 0 {
		return percent(0)
	}
	return percent(100 * float64(row) / float64(total))
}

// opt is a pointer to v, or nil where v is the zero value: how the generated client says "not given".
func opt[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}

// badge is the colour class of a state; the state's word is always beside it.
func badge(state string) string {
	switch state {
	case "available", "healthy", "completed", "returned", "done", "running":
		return "badge ok"
	case "failed", "absent", "lost", "timeout", "critical", "repairing":
		return "badge bad"
	case "onboarding", "starting", "verifying", "stopping":
		return "badge info"
	case "draining", "suspect", "unknown", "expired", "waiting", "warning", "preempted", "skipped", "cancelled", "queued", "held":
		return "badge warn"
	}
	return "badge"
}

func hours(ms int64) string { return words.GPUHours(ms) }
