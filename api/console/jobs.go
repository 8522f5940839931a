package console

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"gpupool/api/call"
	"gpupool/api/client"
	"gpupool/api/contract"
	"gpupool/api/words"
	"gpupool/schema"
)

// jobFilters are the tabs of the job list; the first is shown when none is picked.
var jobFilters = []struct{ Key, Name, None string }{
	{"waiting", "Waiting", "No job waits."},
	{"running", "Running", "No job runs."},
	{"live", "All live", "There are no live jobs."},
	{"all", "All", "There are no jobs yet."},
}

func jobsPage(v *visit) {
	q := v.r.URL.Query()
	show := q.Get("show")
	i := max(slices.IndexFunc(jobFilters, func(f struct{ Key, Name, None string }) bool { return f.Key == show }), 0)
	show = jobFilters[i].Key
	p := contract.ListJobsParams{Tenant: opt(q.Get("tenant")), Project: opt(q.Get("project")), Array: opt(q.Get("array")), After: opt(q.Get("after")), Limit: opt(pageSize)}
	switch show {
	case "waiting":
		p.State, p.Limit = opt(schema.JobQueued), opt(500)
	case "running":
		p.State = opt(schema.JobRunning)
	case "live":
		p.Live = opt(true)
	}
	l, err := call.Do[contract.JobList](v.api.ListJobs(v.r.Context(), &p))
	if err != nil {
		v.fail(err)
		return
	}
	if show == "waiting" { // a queue is read from its head
		slices.Reverse(l.Items)
		slices.SortStableFunc(l.Items, func(a, b contract.Job) int { return b.Priority - a.Priority })
	}
	v.show(page{title: "Jobs", path: "/ui/jobs"}, jobsView(v, l, i), nil)
}

// asked is a filter of a list, as the address has it.
func (v *visit) asked(filter string) string { return v.r.URL.Query().Get(filter) }

// narrowed says what a list of jobs is narrowed to; empty where it is not.
func (v *visit) narrowed() string {
	var parts []string
	for _, k := range []string{"tenant", "project", "array"} {
		if x := v.asked(k); x != "" {
			parts = append(parts, k+" "+x)
		}
	}
	return strings.Join(parts, ", ")
}

// why is a job's reason in words; nil where it does not wait.
func (v *visit) why(j contract.Job) *words.Why {
	if j.Reason == nil {
		return nil
	}
	r := *j.Reason
	if words.NamesServers(r) && v.may("GET", "/v1/servers") {
		if v.names == nil {
			v.names, _ = v.servers() // without them it is read by ids
		}
		r = words.Named(r, v.names)
	}
	w := words.Reason(r, v.now)
	return &w
}

// ran is how long a job waited or ran.
func (v *visit) ran(j contract.Job) string {
	switch {
	case !j.StartedAt.IsZero():
		return words.Between(j.StartedAt, j.EndedAt, v.now)
	default:
		return words.Between(j.SubmittedAt, j.EndedAt, v.now)
	}
}

// jobDetail is all that a job's page shows.
type jobDetail struct {
	contract.Job
	Attempts []contract.Attempt
	History  []change
	Output   string
	Cut      bool // there is more output before what is shown
	Rank     int
	Spent    int64 // GPU-milliseconds held so far
	NoOutput string
	Idle     *contract.LiveUsage // nil where it is not idle
}

// change is one line of a job's history.
type change struct {
	At   schema.Instant
	Text string
}

func (v *visit) job(id string) (d jobDetail, err error) {
	ctx := v.r.Context()
	if d.Job, err = call.Do[contract.Job](v.api.GetJob(ctx, id, &contract.GetJobParams{})); err != nil {
		return d, err
	}
	attempts, err := call.Do[contract.AttemptList](v.api.ListAttempts(ctx, d.Id))
	if err != nil {
		return d, err
	}
	d.Attempts = attempts.Items
	for _, a := range d.Attempts {
		for _, dev := range a.Devices {
			end := dev.ReleasedAt
			if end.IsZero() {
				end = v.now
			}
			d.Spent += max(int64(end-dev.AllocatedAt), 0)
		}
	}
	if d.State == schema.JobRunning && v.may("GET", "/v1/usage/live") {
		live, err := call.Do[contract.LiveUsageList](v.api.GetLiveUsage(ctx, &contract.GetLiveUsageParams{Job: &d.Id}))
		if err != nil {
			return d, err
		}
		if len(live.Items) == 1 && !live.Items[0].IdleSince.IsZero() {
			d.Idle = &live.Items[0]
		}
	}
	if d.History, err = v.history(d.Id); err != nil {
		return d, err
	}
	return d, v.output(&d)
}

// history is what happened to a job, newest first.
func (v *visit) history(id string) ([]change, error) {
	var out []change
	after := int64(0)
	for range 20 { // of 500 events each: far more than a job has
		l, err := call.Do[contract.EventList](v.api.ListJobEvents(v.r.Context(), id, &contract.ListJobEventsParams{After: &after, Limit: opt(500)}))
		if err != nil {
			return nil, err
		}
		for _, e := range l.Items {
			if t := v.eventWords(e); t != "" {
				out = append(out, change{e.At, t})
			}
		}
		if after = l.Next; len(l.Items) < 500 {
			break
		}
	}
	slices.Reverse(out)
	return out[:min(len(out), 100)], nil
}

// eventWords says an event of a job; empty for those that say nothing new to its reader.
func (v *visit) eventWords(e schema.Event) string {
	var d struct {
		From, To, Cause, Code, Why, Outcome string
		Attempt, Restarts                   int
		Since                               schema.Instant
		Reclaim                             schema.Instant `json:"reclaim_at"`
	}
	_ = json.Unmarshal(e.Data, &d) // what is missing is left out
	n := strconv.Itoa(d.Attempt)
	switch e.Kind {
	case schema.EventJobSubmitted:
		return "submitted by " + e.By
	case schema.EventJobAllocated:
		return "attempt " + n + " was given its accelerators"
	case schema.EventJobReason:
		if d.Code == "" {
			return ""
		}
		return "waits: " + d.Code
	case schema.EventJobStop:
		return strings.TrimSuffix("asked to stop: "+words.Outcome(schema.AttemptOutcome(d.Why)), ": ")
	case schema.EventJobReleased:
		return "attempt " + n + " ended: " + words.Outcome(schema.AttemptOutcome(d.Outcome))
	case schema.EventJobState:
		return strings.TrimSuffix("now "+d.To+": "+d.Cause, ": ")
	case schema.EventJobRestarted:
		return strings.TrimSuffix("begun again where it ran, restart "+strconv.Itoa(d.Restarts)+" of attempt "+n+": "+d.Why, ": ")
	case schema.EventJobHeld:
		return "held by " + e.By
	case schema.EventJobUnheld:
		return "released by " + e.By
	case schema.EventJobLimit:
		return "time limit changed by " + e.By
	case schema.EventJobIdle:
		s := "told that its accelerators do nothing since " + v.at(d.Since)
		if !d.Reclaim.IsZero() {
			s += ", and that it is stopped at " + v.at(d.Reclaim)
		}
		return s
	default:
		return ""
	}
}

const shownOutput = 32 << 10 // bytes of a job's output on its page; the whole is a link

// output reads the end of the latest attempt's output.
func (v *visit) output(d *jobDetail) error {
	if !v.may("GET", "/v1/jobs/:job/logs") {
		d.NoOutput = "Your role may not read jobs' output."
		return nil
	}
	if d.Attempt == 0 {
		d.NoOutput = "It has not started yet."
		return nil
	}
	d.Rank, _ = strconv.Atoi(v.r.URL.Query().Get("rank"))
	if d.Rank < 0 || d.Rank >= d.Nodes {
		d.Rank = 0
	}
	var after int64
	for range 200 {
		l, err := call.Do[contract.OutputList](v.api.GetLogs(v.r.Context(), d.Id, &contract.GetLogsParams{Rank: opt(d.Rank), After: &after}, asJSON))
		if schema.Is(err, schema.CodeNotFound) {
			break
		}
		if err != nil {
			return err
		}
		for _, o := range l.Items {
			d.Output += o.Output
		}
		if over := len(d.Output) - shownOutput; over > 0 {
			d.Output, d.Cut = strings.ToValidUTF8(d.Output[over:], ""), true
		}
		if len(l.Items) == 0 || l.Next == after {
			break
		}
		after = l.Next
	}
	if d.Output == "" {
		if d.NoOutput = "Nothing was printed yet."; d.State.Ended() {
			d.NoOutput = "Nothing was printed."
		}
	}
	return nil
}

var asJSON client.RequestEditorFn = func(_ context.Context, r *http.Request) error {
	r.Header.Set("Accept", "application/json")
	return nil
}

func jobPage(v *visit) { v.showJob(v.r.PathValue("job"), nil) }

func (v *visit) showJob(id string, n *notice) {
	d, err := v.job(id)
	if err != nil {
		v.fail(err)
		return
	}
	shape := "live"
	switch {
	case d.State.Ended():
		shape = "ended"
	case d.Held:
		shape = "held"
	case d.State == schema.JobQueued:
		shape = "queued"
	}
	title := d.Name
	if title == "" {
		title = d.Id
	}
	v.show(page{title: title, path: "/ui/jobs", at: "/ui/jobs/" + d.Id, shape: shape, notice: n}, jobView(v, d), jobForms(v, d))
}

func jobDo(v *visit) {
	ctx, id := v.r.Context(), v.r.PathValue("job")
	verbs := map[string]func() (*http.Response, error){
		"cancel":  func() (*http.Response, error) { return v.api.CancelJob(ctx, id) },
		"hold":    func() (*http.Response, error) { return v.api.HoldJob(ctx, id) },
		"release": func() (*http.Response, error) { return v.api.ReleaseJob(ctx, id) },
	}
	v.do(verbs, "/ui/jobs/"+id, func(n *notice) { v.showJob(id, n) })
}

// placed is an attempt's devices by server: "r1s1 (8)".
func (d jobDetail) placed(a contract.Attempt) string {
	per := map[string]int{}
	var order []string
	for _, dev := range a.Devices {
		if per[dev.ServerName]++; per[dev.ServerName] == 1 {
			order = append(order, dev.ServerName)
		}
	}
	for i, name := range order {
		order[i] = name + " (" + strconv.Itoa(per[name]) + ")"
	}
	return strings.Join(order, ", ")
}
