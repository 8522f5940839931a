package console

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpupool/api/call"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

// queueRules are what people have laid down for the queue, beside the jobs themselves.
type queueRules struct {
	Stops   []schema.Stop
	Windows []schema.Window
	Arrays  []contract.Array
	All     bool              // also arrays whose jobs have all ended
	Names   map[string]string // servers' names; nil where the reader may not see servers
}

const shownArrays = 200 // the newest

func (v *visit) queueRules() (d queueRules, err error) {
	ctx := v.r.Context()
	stops, err := call.Do[contract.StopList](v.api.ListStops(ctx))
	if err != nil {
		return d, err
	}
	windows, err := call.Do[contract.WindowList](v.api.ListWindows(ctx))
	if err != nil {
		return d, err
	}
	d.Stops, d.Windows = stops.Items, windows.Items
	if v.may("GET", "/v1/arrays") {
		d.All = v.r.URL.Query().Get("arrays") == "all"
		arrays, err := call.Do[contract.ArrayList](v.api.ListArrays(ctx, &contract.ListArraysParams{Live: opt(!d.All), Limit: opt(shownArrays)}))
		if err != nil {
			return d, err
		}
		d.Arrays = arrays.Items
	}
	if v.may("GET", "/v1/servers") && len(d.Windows) > 0 {
		d.Names, err = v.servers()
	}
	return d, err
}

func queuePage(v *visit) { v.showQueue(nil) }

func (v *visit) showQueue(n *notice) {
	d, err := v.queueRules()
	if err != nil {
		v.fail(err)
		return
	}
	v.show(page{title: "Queue", path: "/ui/queue", at: "/ui/queue", notice: n}, queueView(v, d), queueForms(v))
}

// again is what the form said that was refused, so that it need not be typed again; empty on a page that is only read.
func (v *visit) again(field string) string { return v.r.PostFormValue(field) }

// moment reads a field of a form: a moment in UTC, or nothing.
func (v *visit) moment(field string) (schema.Instant, error) {
	text := v.again(field)
	if text == "" {
		return 0, nil
	}
	for _, form := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05"} {
		if t, err := time.Parse(form, text); err == nil {
			return schema.At(t), nil
		}
	}
	_, name, _ := strings.Cut(field, "_")
	return 0, schema.Invalid(name, text, "a date and a time, such as 2026-11-30T17:00")
}

// queueDo makes a stop, a maintenance window or a reservation.
func queueDo(v *visit) {
	ctx := v.r.Context()
	again := func(n *notice) { v.showQueue(n) }
	field := func(name string) string { return strings.TrimSpace(v.again(name)) }
	stop := contract.NewStop{Tenant: field("stop_tenant"), Project: field("stop_project"), Spec: field("stop_spec"), Region: field("stop_region"), Why: field("stop_why")}
	window := contract.NewWindow{Kind: schema.WindowMaintenance, Tenant: field("window_tenant"), Project: field("window_project"), Note: field("window_note"),
		Servers: strings.FieldsFunc(v.again("window_servers"), func(r rune) bool { return strings.ContainsRune(", \t\r\n", r) })}
	if window.Tenant != "" {
		window.Kind = schema.WindowReservation
	}
	var err error
	for name, to := range map[string]*schema.Instant{"stop_until": &stop.Until, "window_from": &window.From, "window_until": &window.Until} {
		if *to, err = v.moment(name); err != nil {
			again(problem(err))
			return
		}
	}
	// A form that narrows nothing stops everybody: that is said, not left out.
	narrow := stop.Tenant+stop.Project+stop.Spec+stop.Region != ""
	if everything := v.again("stop_all") != ""; v.r.PathValue("verb") == "stop" && narrow == everything {
		again(problem(&schema.Error{Code: schema.CodeInvalid, Message: "it is not said which queue", Hint: "a tenant, project, spec or region, or else the whole pool"}))
		return
	}
	v.do(map[string]func() (*http.Response, error){
		"stop":   func() (*http.Response, error) { return v.api.StopQueue(ctx, stop) },
		"window": func() (*http.Response, error) { return v.api.CreateWindow(ctx, window) },
	}, "/ui/queue", again)
}

func stopDo(v *visit) {
	v.do(map[string]func() (*http.Response, error){
		"start": func() (*http.Response, error) { return v.api.StartQueue(v.r.Context(), v.r.PathValue("stop")) },
	}, "/ui/queue", v.showQueue)
}

func windowDo(v *visit) {
	v.do(map[string]func() (*http.Response, error){
		"end": func() (*http.Response, error) { return v.api.DeleteWindow(v.r.Context(), v.r.PathValue("window")) },
	}, "/ui/queue", v.showQueue)
}

// arrayPath is where an array's page is.
func arrayPath(tenant, project, name string) string {
	return "/ui/arrays/" + url.PathEscape(tenant) + "/" + url.PathEscape(project) + "/" + url.PathEscape(name)
}

func arrayPage(v *visit) { v.showArray(nil) }

func (v *visit) showArray(n *notice) {
	tenant, project := v.r.PathValue("tenant"), v.r.PathValue("project")
	a, err := call.Do[contract.Array](v.api.GetArray(v.r.Context(), v.r.PathValue("array"), &contract.GetArrayParams{Tenant: &tenant, Project: &project}))
	if err != nil {
		v.fail(err)
		return
	}
	queued := a.States[string(schema.JobQueued)]
	shape := fmt.Sprintf("limit-%d", a.Limit)
	if a.Kind == schema.JobService {
		shape = fmt.Sprintf("replicas-%d", words.Live(a.States))
	}
	for _, s := range []struct {
		is   bool
		name string
	}{{!a.EndedAt.IsZero(), "-ended"}, {a.Held > 0, "-held"}, {queued > a.Held, "-queued"}} {
		if s.is {
			shape += s.name
		}
	}
	v.show(page{title: a.Name, path: "/ui/queue", at: arrayPath(a.Tenant, a.Project, a.Name), shape: shape, notice: n}, arrayView(v, a), arrayForms(v, a))
}

func arrayDo(v *visit) {
	ctx, name := v.r.Context(), v.r.PathValue("array")
	t, p := v.r.PathValue("tenant"), v.r.PathValue("project")
	limit, err := strconv.Atoi(cmp.Or(v.again("limit"), "0"))
	if err != nil {
		v.showArray(problem(schema.Invalid("limit", v.again("limit"), "a whole number, 0 for no limit")))
		return
	}
	replicas, err := strconv.Atoi(cmp.Or(v.again("replicas"), "0"))
	if err != nil {
		v.showArray(problem(schema.Invalid("replicas", v.again("replicas"), "a whole number, 1 or more")))
		return
	}
	v.do(map[string]func() (*http.Response, error){
		"cancel-all": func() (*http.Response, error) {
			return v.api.CancelArray(ctx, name, &contract.CancelArrayParams{Tenant: &t, Project: &p})
		},
		"hold-all": func() (*http.Response, error) {
			return v.api.HoldArray(ctx, name, &contract.HoldArrayParams{Tenant: &t, Project: &p})
		},
		"release-all": func() (*http.Response, error) {
			return v.api.ReleaseArray(ctx, name, &contract.ReleaseArrayParams{Tenant: &t, Project: &p})
		},
		"scale": func() (*http.Response, error) {
			return v.api.ScaleArray(ctx, name, &contract.ScaleArrayParams{Tenant: &t, Project: &p}, contract.Replicas{Replicas: replicas})
		},
		"limit": func() (*http.Response, error) {
			return v.api.LimitArray(ctx, name, &contract.LimitArrayParams{Tenant: &t, Project: &p}, contract.ArrayLimit{Limit: limit})
		},
	}, arrayPath(t, p, name), v.showArray)
}

// holding is how many of an array's jobs hold accelerators.
func holding(a contract.Array) int {
	n := 0
	for _, s := range []schema.JobState{schema.JobStarting, schema.JobRunning, schema.JobStopping} {
		n += a.States[string(s)]
	}
	return n
}

// atOnce is how many of an array's jobs hold accelerators, of how many that may.
func atOnce(a contract.Array) string {
	if a.Limit == 0 {
		return fmt.Sprintf("%d, no limit", holding(a))
	}
	return fmt.Sprintf("%d of at most %d", holding(a), a.Limit)
}

// limitTyped is what stands in the form of an array's limit.
func limitTyped(v *visit, a contract.Array) string { return cmp.Or(v.again("limit"), itoa(a.Limit)) }

// jobsOf is the address of a list of jobs.
func jobsOf(show, tenant, project, array string) string {
	q := url.Values{"show": {show}}
	for k, x := range map[string]string{"tenant": tenant, "project": project, "array": array} {
		if x != "" {
			q.Set(k, x)
		}
	}
	return "/ui/jobs?" + q.Encode()
}

// serverName is a server's name, or its id where it is not listed any more.
func serverName(names map[string]string, id string) string { return cmp.Or(names[id], id) }

// until is when a rule ends.
func (v *visit) until(t schema.Instant, by string) string {
	if t.IsZero() {
		return by
	}
	return v.at(t) + " (" + v.ago(t) + ")"
}

// ruled reports whether it is a rule on the queue's page that keeps a job waiting.
func ruled(r schema.ReasonCode) bool {
	return slices.Contains([]schema.ReasonCode{schema.ReasonQueueStopped, schema.ReasonWindow}, r)
}
