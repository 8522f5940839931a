package console

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"gpupool/api/call"
	"gpupool/api/contract"
	"gpupool/schema"
)

const pageSize = 100

func serversPage(v *visit) {
	q := v.r.URL.Query()
	p := contract.ListServersParams{Phase: opt(schema.Phase(q.Get("phase"))), Model: opt(q.Get("model")), Rack: opt(q.Get("rack")), After: opt(q.Get("after")), Limit: opt(pageSize)}
	l, err := call.Do[contract.ServerList](v.api.ListServers(v.r.Context(), &p))
	if err != nil {
		v.fail(err)
		return
	}
	cordons, err := call.Do[contract.CordonList](v.api.ListCordons(v.r.Context(), &contract.ListCordonsParams{}))
	if err != nil {
		v.fail(err)
		return
	}
	off := map[string][]schema.Cordon{}
	for _, c := range cordons.Items {
		off[c.Server] = append(off[c.Server], c)
	}
	v.show(page{title: "Servers", path: "/ui/servers"}, serversView(v, l, off, q.Get("phase")), nil)
}

// dot is one step of a server's onboarding as a small square with a word for those who can't see it.
type dot struct{ Step, State string }

// dots tells the steps from the one that runs or stopped: those before it are behind, those after it still to come.
func dots(s contract.Server) []dot {
	steps := schema.StepsIn(s.Phase)
	at := slices.Index(steps, s.Step)
	out := make([]dot, len(steps))
	for i, step := range steps {
		state := "pending"
		switch {
		case i < at:
			state = "done"
		case i == at && s.Failure != nil:
			state = "failed"
		case i == at:
			state = "running"
		}
		out[i] = dot{string(step), state}
	}
	return out
}

// stepRow is a step of the server's page; those not yet begun are pending.
type stepRow struct {
	schema.StepRun
	Class string
	Mark  string
}

func stepRows(phase schema.Phase, runs []schema.StepRun) []stepRow {
	marks := map[schema.StepState]string{schema.StepRunning: "▸", schema.StepDone: "✓", schema.StepFailed: "✗", schema.StepSkipped: "↷", schema.StepUndone: "↶"}
	var out []stepRow
	for _, step := range schema.StepsIn(phase) {
		row := stepRow{StepRun: schema.StepRun{Step: step}, Class: "pending", Mark: "·"}
		for _, r := range runs {
			if r.Step == step {
				row = stepRow{StepRun: r, Class: string(r.State), Mark: marks[r.State]}
			}
		}
		out = append(out, row)
	}
	return out
}

// serverDetail is all that a server's page shows.
type serverDetail struct {
	contract.Server
	Steps   contract.StepList
	Devices []schema.Accelerator // in it
	Gone    []schema.Accelerator // taken out: faults are told of them still
	Cordons []schema.Cordon
	Faults  []schema.Fault
	Repairs []schema.Repair
	Out     contract.RetirementReport
	// Differences are those of its serial from the order.
	Differences []schema.Difference
	// Breakers hold faults of the server back.
	Breakers []schema.Breaker
}

// operators reports whether an operator's cordon of the whole server is there, which is what the button lifts.
func (d serverDetail) cordoned() bool {
	return slices.ContainsFunc(d.Cordons, func(c schema.Cordon) bool { return c.Owner == schema.CordonOperator && c.Accelerator == "" })
}

// unproven reports whether an accelerator of a server in the pool takes no jobs for want of a passed burn-in.
func (d serverDetail) unproven() bool {
	return slices.ContainsFunc(d.Devices, func(a schema.Accelerator) bool {
		return a.Health == schema.HealthUnknown || a.Health == schema.HealthSuspect
	})
}

// mayBurnIn reports whether the burn-in is offered: where something is unproven, and where an operator drains what he
// doubts. That it holds no job is checked when it is asked for.
func (d serverDetail) mayBurnIn() bool {
	return !d.Protected && (d.Phase == schema.PhaseAvailable && d.unproven() || d.Phase == schema.PhaseDraining)
}

func (d serverDetail) burnInClass() string {
	if d.unproven() {
		return "main"
	}
	return ""
}

// stopped reports whether a step of an onboarding waits for a person; any other failure belongs to a repair.
func (d serverDetail) stopped() bool { return stopped(d.Server) }

func stopped(s contract.Server) bool {
	return s.Failure != nil && (s.Phase == schema.PhaseOnboarding || s.Phase == schema.PhaseRetiring)
}

// toAccept are the differences that stop it now, and may be accepted.
func (d serverDetail) toAccept() (open []schema.Difference) {
	for _, x := range d.Differences {
		if d.stopped() && x.There && x.AcceptedAt == 0 && x.Step == d.Failure.Step {
			open = append(open, x)
		}
	}
	return open
}

// toCome are the steps before which a running onboarding can still be stopped.
func (d serverDetail) toCome() []schema.Step {
	return schema.Steps[slices.Index(schema.Steps, d.Step)+1:]
}

// mayRetire reports whether the way out is offered.
func (d serverDetail) mayRetire() bool {
	leaving := d.Out.Retirement != nil && d.Out.Retirement.ClosedAt == 0
	waits := slices.ContainsFunc(d.Repairs, func(r schema.Repair) bool { return r.State == schema.RepairWaiting })
	return !d.Protected && (d.Phase == schema.PhaseRepairing && waits || !leaving && slices.Contains([]schema.Phase{schema.PhaseAvailable, schema.PhaseDraining, schema.PhaseEnrolled}, d.Phase))
}

// stepsOf is what the steps are those of.
func (d serverDetail) stepsOf() string {
	if d.Phase == schema.PhaseRetiring || d.Phase == schema.PhaseRetired {
		return "Retirement"
	}
	return "Onboarding"
}

func (d serverDetail) pausable() bool {
	return d.Phase == schema.PhaseOnboarding && d.Pause == nil && (d.Step != schema.StepRegister || d.Failure != nil)
}

// slot says an accelerator's id as people know it.
func (d serverDetail) slot(id string) string {
	for _, a := range slices.Concat(d.Devices, d.Gone) {
		if a.ID == id {
			return strings.TrimSpace(a.Slot + " " + a.Serial)
		}
	}
	return id
}

func (v *visit) server(id string) (d serverDetail, err error) {
	ctx := v.r.Context()
	if d.Server, err = call.Do[contract.Server](v.api.GetServer(ctx, id, &contract.GetServerParams{})); err != nil {
		return d, err
	}
	if d.Steps, err = call.Do[contract.StepList](v.api.ListSteps(ctx, d.Id, &contract.ListStepsParams{})); err != nil {
		return d, err
	}
	acc, err := call.Do[contract.AcceleratorList](v.api.ListAccelerators(ctx, &contract.ListAcceleratorsParams{Server: &d.Id, Removed: opt(true), Limit: opt(1000)}))
	if err != nil {
		return d, err
	}
	cordons, err := call.Do[contract.CordonList](v.api.ListCordons(ctx, &contract.ListCordonsParams{Server: &d.Id}))
	if err != nil {
		return d, err
	}
	faults, err := call.Do[contract.FaultList](v.api.ListFaults(ctx, &contract.ListFaultsParams{Server: &d.Id}))
	if err != nil {
		return d, err
	}
	repairs, err := call.Do[contract.RepairList](v.api.ListRepairs(ctx, &contract.ListRepairsParams{Server: &d.Id}))
	if err != nil {
		return d, err
	}
	differ, err := call.Do[contract.DifferenceList](v.api.ListDifferences(ctx, d.Id))
	if err != nil {
		return d, err
	}
	d.Differences = differ.Items
	if d.Out, err = call.Do[contract.RetirementReport](v.api.GetRetirement(ctx, d.Id)); err != nil {
		return d, err
	}
	if v.may("GET", "/v1/health/breakers") {
		l, err := call.Do[contract.BreakerList](v.api.ListBreakers(ctx, &contract.ListBreakersParams{}))
		if err != nil {
			return d, err
		}
		for _, b := range l.Items {
			if slices.ContainsFunc(b.Held, func(h schema.HeldFault) bool { return h.Server == d.Id }) {
				d.Breakers = append(d.Breakers, b)
			}
		}
	}
	for _, a := range acc.Items {
		if a.RemovedAt.IsZero() {
			d.Devices = append(d.Devices, a)
		} else {
			d.Gone = append(d.Gone, a)
		}
	}
	d.Cordons, d.Faults, d.Repairs = cordons.Items, faults.Items, repairs.Items
	slices.SortFunc(d.Devices, func(a, b schema.Accelerator) int { return strings.Compare(a.Slot+a.PCI, b.Slot+b.PCI) })
	return d, nil
}

func serverPage(v *visit) { v.showServer(v.r.PathValue("server"), nil) }

func (v *visit) showServer(id string, n *notice) {
	d, err := v.server(id)
	if err != nil {
		v.fail(err)
		return
	}
	shape := string(d.Phase)
	if d.stopped() {
		shape += "-stopped-" + string(d.Failure.Step)
	}
	if d.mayRetire() {
		shape += "-retirable"
	}
	if d.Pause != nil {
		shape += "-paused"
	}
	if d.pausable() {
		shape += "-pausable-" + string(d.Step)
	}
	for _, x := range d.toAccept() {
		shape += "-" + x.ID
	}
	if d.cordoned() {
		shape += "-cordoned"
	}
	if d.mayBurnIn() {
		shape += "-burnin"
	}
	if d.Protected {
		shape += "-protected"
	}
	v.show(page{title: d.Name, path: "/ui/servers", at: "/ui/servers/" + d.Id, shape: shape, notice: n}, serverView(v, d), serverForms(v, d))
}

// serverDo does what a form of a server's page says, through the API's route of the same name.
func serverDo(v *visit) {
	ctx, id, reason := v.r.Context(), v.r.PathValue("server"), strings.TrimSpace(v.r.PostFormValue("reason"))
	verbs := map[string]func() (*http.Response, error){
		"onboard": func() (*http.Response, error) { return v.api.OnboardServer(ctx, id, contract.OnboardOptions{}) },
		"retry":   func() (*http.Response, error) { return v.api.RetryStep(ctx, id) },
		"skip": func() (*http.Response, error) {
			return v.api.SkipStep(ctx, id, contract.SkipStep{Step: schema.Step(v.r.PostFormValue("step")), Reason: reason})
		},
		"accept": func() (*http.Response, error) {
			return v.api.AcceptDifferences(ctx, id, contract.AcceptDifferences{Reason: reason, Differences: v.r.PostForm["difference"]})
		},
		"pause": func() (*http.Response, error) {
			return v.api.PauseOnboarding(ctx, id, contract.PauseOnboarding{Before: schema.Step(v.r.PostFormValue("before")), Reason: reason})
		},
		"retire": func() (*http.Response, error) {
			return v.api.RetireServer(ctx, id, contract.RetireOptions{Reason: reason, Overwrite: v.r.PostFormValue("overwrite") != ""})
		},
		"continue":  func() (*http.Response, error) { return v.api.ContinueOnboarding(ctx, id) },
		"abort":     func() (*http.Response, error) { return v.api.AbortOnboarding(ctx, id) },
		"cordon":    func() (*http.Response, error) { return v.api.CordonServer(ctx, id, contract.NewCordon{Reason: reason}) },
		"uncordon":  func() (*http.Response, error) { return v.api.UncordonServer(ctx, id, contract.Uncordon{}) },
		"drain":     func() (*http.Response, error) { return v.api.DrainServer(ctx, id, contract.Why{Reason: reason}) },
		"burnin":    func() (*http.Response, error) { return v.api.BurnInServer(ctx, id) },
		"undrain":   func() (*http.Response, error) { return v.api.UndrainServer(ctx, id) },
		"protect":   func() (*http.Response, error) { return v.api.ProtectServer(ctx, id) },
		"unprotect": func() (*http.Response, error) { return v.api.UnprotectServer(ctx, id) },
	}
	v.do(verbs, "/ui/servers/"+id, func(n *notice) { v.showServer(id, n) })
}

// do runs the form's verb; where it is refused the page is shown again with the reason, and the status is the API's.
func (v *visit) do(verbs map[string]func() (*http.Response, error), where string, again func(*notice)) {
	verb := v.r.PathValue("verb")
	act, ok := verbs[verb]
	if !ok {
		v.missing()
		return
	}
	resp, err := act()
	if err := call.Check(resp, err); err != nil {
		if schema.Is(err, schema.CodeUnauthenticated) || v.r.Context().Err() == context.Canceled {
			v.fail(err)
			return
		}
		again(problem(err))
		return
	}
	resp.Body.Close()
	v.back(where, verb)
}
