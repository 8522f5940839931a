package engine_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"gpupool/activities/allocator/engine"
	"gpupool/schema"
)

// epoch is when every scenario begins.
var epoch = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

// TestScenarios plays testdata/scenarios: a command, ----, and everything the engine says. See script for the commands.
//
// Faults that people reported of other schedulers are replayed in caseNN_*.txt, which says what is right. Of those that
// no scenario can hold, 11 is TestImpossibleRequestsTouchNobody, 20 is simulate's TestConcurrentJobsAreNotMultiplied,
// 23 (what is set aside and settled) is budget.txt, and 25 is simulate's tests of the published traces.
func TestScenarios(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		sc := newScript(engine.Config{Order: engine.FIFO})
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return sc.run(t, d)
		})
	})
}

// script is one scenario's pool and the facts its commands have told, so that they can be changed by name.
type script struct {
	pool    *engine.State
	now     time.Time
	seq     int64
	servers map[string]engine.Server
	jobs    map[string]engine.Job
	live    map[string]engine.Start
	sliced  map[string]bool   // specs that share an accelerator
	held    map[string]string // accelerator -> job: what the script itself believes, against double allocation
}

func newScript(cfg engine.Config) *script {
	return &script{
		pool: engine.New(cfg), now: epoch, servers: map[string]engine.Server{}, jobs: map[string]engine.Job{},
		live: map[string]engine.Start{}, held: map[string]string{}, sliced: map[string]bool{},
	}
}

type args map[string]string

func (a args) num(key string, def int) int {
	if v, ok := a[key]; ok {
		n, err := strconv.Atoi(v)
		if err != nil {
			panic(fmt.Sprintf("%s=%s: want a number", key, v))
		}
		return n
	}
	return def
}

func (a args) span(key string) time.Duration {
	if v, ok := a[key]; ok {
		d, err := time.ParseDuration(v)
		if err != nil {
			panic(fmt.Sprintf("%s=%s: want a duration", key, v))
		}
		return d
	}
	return 0
}

func (sc *script) when(a args, key string) time.Time {
	if _, ok := a[key]; !ok {
		return time.Time{}
	}
	return epoch.Add(a.span(key))
}

// names spreads s1..s4 into s1, s2, s3, s4, and lists separated by commas.
func names(in string) []string {
	var out []string
	for _, part := range strings.Split(in, ",") {
		lo, hi, ok := strings.Cut(part, "..")
		if !ok {
			out = append(out, part)
			continue
		}
		stem := strings.TrimRight(lo, "0123456789")
		from, _ := strconv.Atoi(lo[len(stem):])
		to, _ := strconv.Atoi(strings.TrimPrefix(hi, stem))
		for i := from; i <= to; i++ {
			out = append(out, stem+strconv.Itoa(i))
		}
	}
	return out
}

func (sc *script) run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	a := args{}
	for _, arg := range d.CmdArgs {
		a[arg.Key] = strings.Join(arg.Vals, ",")
	}
	switch d.Cmd {
	case "policy":
		fresh := newScript(engine.Config{
			Order: engine.Order(a["order"]), Placement: engine.Placement(a["placement"]),
			Grace: a.span("grace"), MinRunTime: a.span("min-run"), HalfLife: a.span("half-life"),
			EntryPenalty: a.span("entry-penalty"), AssumedLimit: a.span("assumed"),
			NoPreemption: a["preemption"] == "off", NoBackfill: a["backfill"] == "off", Reservations: a.num("reservations", 0),
		})
		*sc = *fresh
	case "server":
		for _, id := range names(a["id"]) {
			s := engine.Server{
				ID: id, Region: cmp.Or(a["region"], "eu"), Site: a["site"], Rack: a["rack"], NVLinkDomain: a["nvlink"], Cluster: a["cluster"],
				CPU: int64(a.num("cpu", 128)), MemoryBytes: int64(a.num("mem", 1024)), Schedulable: a["down"] == "", WhyNot: a["down"],
				OneTenant: a["one-tenant"] != "", Lacks: lacks[a["lacks"]],
			}
			model := a["model"]
			if model == "" {
				model = "h100"
			}
			for i := range a.num("gpus", 8) {
				s.Accelerators = append(s.Accelerators, engine.Accelerator{
					ID: fmt.Sprintf("%s-%d", id, i), Model: model, Index: i, Schedulable: true,
				})
			}
			sc.servers[id] = s
			sc.pool.SetServer(s)
		}
	case "health":
		for _, id := range names(a["id"]) {
			s := sc.servers[id]
			s.Accelerators = slices.Clone(s.Accelerators)
			if gpu, ok := a["gpu"]; ok {
				i, _ := strconv.Atoi(gpu)
				s.Accelerators[i].Schedulable, s.Accelerators[i].WhyNot, s.Accelerators[i].Back = a["why"] == "", a["why"], sc.when(a, "back")
				s.Accelerators[i].Stuck = a["decide"]
			} else {
				s.Schedulable, s.WhyNot, s.Back, s.Stuck = a["why"] == "", a["why"], sc.when(a, "back"), a["decide"]
			}
			sc.servers[id] = s
			sc.pool.SetServer(s)
		}
	case "remove-server":
		for _, id := range names(a["id"]) {
			sc.pool.RemoveServer(id)
		}
	case "spec":
		model := a["model"]
		if model == "" {
			model = "h100"
		}
		if model == "any" {
			model = ""
		}
		var others []string
		if v, ok := a["other"]; ok {
			others = names(v)
		}
		for _, name := range names(a["name"]) {
			sc.sliced[name] = a.num("milli", 0) > 0
			k := a.num("gpus", -1)
			if k < 0 {
				k, _ = strconv.Atoi(strings.TrimLeft(name, "abcdefghijklmnopqrstuvwxyz-"))
			}
			sc.pool.SetSpec(engine.Spec{
				Name: name, Model: model, OtherModels: others, Accelerators: k, Milli: int64(a.num("milli", 0)), CPU: int64(a.num("cpu", 0)),
				MemoryBytes: int64(a.num("mem", 0)), MaxTime: a.span("max"), RetiredAt: sc.when(a, "retired"),
			})
		}
	case "quota":
		sc.pool.SetQuota(engine.Quota{
			Tenant: a["tenant"], Project: a["project"], Model: a["model"], Guaranteed: int64(a.num("guaranteed", 0)),
			Limit: int64(a.num("limit", engine.NoLimit)),
		})
	case "account":
		acc := engine.Account{Tenant: a["tenant"], Project: a["project"], MaxRunningJobs: a.num("running", 0), Weight: float64(a.num("weight", 0))}
		if _, ok := a["max-prio"]; ok {
			top := a.num("max-prio", 0)
			acc.MaxPriority = &top
		}
		sc.pool.SetAccount(acc)
	case "budget":
		zone, err := time.LoadLocation(a["zone"])
		if err != nil {
			return err.Error()
		}
		sc.pool.SetBudget(engine.Budget{
			ID: a["id"], Tenant: a["tenant"], Project: a["project"], Model: a["model"], Amount: a.span("amount"),
			Spent: a.span("spent"), At: sc.now, Zone: zone,
		})
	case "window":
		sc.pool.SetWindow(engine.Window{
			ID: a["id"], Kind: a["kind"], Servers: names(a["servers"]), From: sc.when(a, "from"), Until: sc.when(a, "until"),
			Tenant: a["tenant"], Project: a["project"],
		})
	case "end-window":
		sc.pool.RemoveWindow(a["id"])
	case "stop":
		sc.pool.SetStop(engine.Stop{
			ID: a["id"], Tenant: a["tenant"], Project: a["project"], Spec: a["spec"], By: a["by"], Until: sc.when(a, "until"),
		})
	case "open":
		sc.pool.RemoveStop(a["id"])
	case "submit", "change":
		for _, id := range names(a["job"]) {
			sc.pool.SetJob(sc.job(id, a, d.Cmd == "change"))
		}
	case "dry-run":
		sc.seq++
		j := sc.job(a["job"], a, true)
		delete(sc.jobs, a["job"])
		j.Seq = 0
		got := sc.pool.DryRun(j, sc.now)
		if got.Starts {
			return a["job"] + " would start " + places(got.Places) + "\n"
		}
		text := show(*got.Reason)
		if _, ok := a["full"]; ok {
			text += full(*got.Reason)
		}
		for _, v := range got.Victims {
			text += fmt.Sprintf("%s would have to end by %s (%s, loses %s)\n", v.Job, clock(v.GraceUntil), v.Why, v.LostWork)
		}
		return text
	case "cancel":
		for _, id := range names(a["job"]) {
			sc.pool.RemoveJob(id)
			delete(sc.jobs, id)
		}
	case "ended":
		sc.pool.Ended(a["job"], a["state"])
	case "checkpoint":
		st := sc.live[a["job"]]
		sc.pool.SetCheckpoint(st.Job, st.Attempt, sc.now)
	case "run":
		// A live allocation as it is told at load.
		for _, id := range names(a["job"]) {
			sc.load(id, a)
		}
	case "end", "requeue", "refuse":
		for _, id := range names(a["job"]) {
			sc.over(d.Cmd, id)
		}
	case "cycle":
		if by, ok := a["after"]; ok {
			step, err := time.ParseDuration(by)
			if err != nil {
				return err.Error()
			}
			sc.now = sc.now.Add(step)
		}
		return sc.cycle(t)
	case "why":
		var b strings.Builder
		for _, id := range names(a["job"]) {
			r, ok := sc.pool.Explain(id)
			if !ok {
				fmt.Fprintf(&b, "%s does not wait\n", id)
				continue
			}
			b.WriteString(show(r))
			if _, ok := a["full"]; ok {
				b.WriteString(full(r))
			}
		}
		return b.String()
	default:
		t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
	}
	return ""
}

func (sc *script) job(id string, a args, change bool) engine.Job {
	j, ok := sc.jobs[id]
	if !ok || !change {
		sc.seq++
		j = engine.Job{ID: id, Tenant: "t", Project: "p", Seq: sc.seq, Submitted: sc.now, Attempt: 1, Nodes: 1}
	}
	set := func(key string, to *string) {
		if v, ok := a[key]; ok {
			*to = v
		}
	}
	set("tenant", &j.Tenant)
	set("project", &j.Project)
	set("spec", &j.Spec)
	set("array", &j.Array)
	set("cluster", &j.Cluster)
	set("site", &j.Site)
	set("region", &j.Region)
	j.Nodes = a.num("nodes", j.Nodes)
	j.Priority = a.num("prio", j.Priority)
	j.ArrayLimit = a.num("array-limit", j.ArrayLimit)
	if _, ok := a["limit"]; ok {
		j.TimeLimit = a.span("limit")
	}
	if _, ok := a["grace"]; ok {
		j.Grace = a.span("grace")
	}
	if _, ok := a["max-queue"]; ok {
		j.MaxQueue = a.span("max-queue")
	}
	if _, ok := a["not-before"]; ok {
		j.NotBefore = sc.when(a, "not-before")
	}
	if _, ok := a["preemptible"]; ok {
		j.Preemptible = true
	}
	j.Needs = lacks[a["needs"]]
	if _, ok := a["service"]; ok {
		j.Service, j.Needs = true, schema.CanServe
	}
	if v, ok := a["same"]; ok {
		level, must := strings.CutSuffix(v, "!")
		j.Same, j.SameRequired = engine.Level(level), must
	}
	if v, ok := a["servers"]; ok {
		j.Servers = names(v)
	}
	if v, ok := a["hold"]; ok {
		j.Held = nil
		if v != "" {
			j.Held = &engine.Hold{By: v, Why: "asked for"}
		}
	}
	if v, ok := a["after"]; ok {
		on, cond, _ := strings.Cut(v, ":")
		j.DependsOn = []engine.Dependency{{Job: on, Condition: engine.Condition(cond), State: a["was"]}}
	}
	sc.jobs[id] = j
	return j
}

func (sc *script) load(id string, a args) {
	al := engine.Allocation{
		Job: id, Attempt: 1, Tenant: "t", Project: "p", Spec: a["spec"], Priority: a.num("prio", 0),
		Started: sc.now, TimeLimit: a.span("limit"), GraceUntil: sc.when(a, "ends-by"), For: a["for"],
	}
	if v, ok := a["tenant"]; ok {
		al.Tenant = v
	}
	_, al.Preemptible = a["preemptible"]
	_, al.Service = a["service"]
	for _, server := range names(a["on"]) {
		p := engine.Place{Server: server}
		for _, g := range strings.Split(a["gpus"], ",") {
			dev := server + "-" + g
			p.Accelerators = append(p.Accelerators, dev)
			sc.held[dev] = id
		}
		al.Places = append(al.Places, p)
	}
	sc.jobs[id] = engine.Job{
		ID: id, Tenant: al.Tenant, Project: al.Project, Spec: al.Spec, Priority: al.Priority, Preemptible: al.Preemptible,
		TimeLimit: al.TimeLimit, Attempt: 1, Nodes: len(al.Places), Submitted: sc.now,
	}
	sc.live[id] = engine.Start{Job: id, Attempt: 1, Places: al.Places}
	sc.pool.SetAllocation(al)
}

// over ends a live allocation: for good, to wait again, or because the database refused it.
func (sc *script) over(how, id string) {
	st := sc.live[id]
	delete(sc.live, id)
	for _, p := range st.Places {
		for _, dev := range p.Accelerators {
			if sc.held[dev] == id {
				delete(sc.held, dev)
			}
		}
	}
	switch how {
	case "refuse":
		sc.pool.Revert(id, st.Attempt)
	case "end":
		sc.pool.Release(id, st.Attempt, sc.now)
		delete(sc.jobs, id)
	case "requeue":
		sc.pool.Release(id, st.Attempt, sc.now)
		j := sc.jobs[id]
		j.Attempt++
		sc.jobs[id] = j
		sc.pool.SetJob(j)
	}
}

func (sc *script) cycle(t *testing.T) string {
	t.Helper()
	r := sc.pool.Cycle(sc.now)
	var b strings.Builder
	for _, s := range r.Starts {
		how := ""
		if s.Backfilled {
			how = " (backfill)"
		}
		fmt.Fprintf(&b, "%s starts %s%s\n", s.Job, places(s.Places), how)
		sc.live[s.Job] = s
		for _, p := range s.Places {
			for _, dev := range p.Accelerators {
				if by, ok := sc.held[dev]; ok && !sc.sliced[s.Spec] {
					t.Errorf("%s is given to %s while %s holds it", dev, s.Job, by)
				}
				sc.held[dev] = s.Job
			}
		}
	}
	for _, v := range r.Victims {
		fmt.Fprintf(&b, "%s must end by %s for %s (%s, loses %s)\n", v.Job, clock(v.GraceUntil), v.For, v.Why, v.LostWork)
	}
	for _, e := range r.Expired {
		fmt.Fprintf(&b, "%s expired after %s\n", e.Job, e.MaxQueue)
		delete(sc.jobs, e.Job)
	}
	for _, p := range r.Reservations {
		switch {
		case p.Start.IsZero():
			fmt.Fprintf(&b, "%s has no planned start: %s\n", p.Job, p.Cause)
		case p.Cause != "":
			fmt.Fprintf(&b, "%s is planned for %s on %s: %s\n", p.Job, clock(p.Start), strings.Join(p.Places, " "), p.Cause)
		default:
			fmt.Fprintf(&b, "%s is planned for %s on %s\n", p.Job, clock(p.Start), strings.Join(p.Places, " "))
		}
	}
	slices.SortStableFunc(r.Reasons, func(x, y engine.Reason) int { return strings.Compare(x.Job, y.Job) })
	for _, why := range r.Reasons {
		b.WriteString(show(why))
	}
	if err := sc.pool.Check(); err != nil {
		fmt.Fprintf(&b, "BROKEN: %v\n", err)
	}
	if b.Len() == 0 {
		return "nothing\n"
	}
	return b.String()
}

// clock shows a moment as what has passed since the scenario began.
func clock(t time.Time) string { return "+" + t.Sub(epoch).String() }

func places(list []engine.Place) string {
	var out []string
	for _, p := range list {
		var idx []string
		for _, dev := range p.Accelerators {
			idx = append(idx, dev[strings.LastIndex(dev, "-")+1:])
		}
		out = append(out, fmt.Sprintf("%s(%s)", p.Server, strings.Join(idx, " ")))
	}
	return strings.Join(out, " ")
}

// show writes a reason on one line: the code and its numbers, by name.
func show(r engine.Reason) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s waits %s", r.Job, r.Code)
	for _, key := range sortedKeys(r.Detail) {
		v := r.Detail[key]
		if t, ok := v.(time.Time); ok {
			v = clock(t)
		}
		text, err := json.Marshal(v)
		if err != nil {
			text = []byte(err.Error())
		}
		fmt.Fprintf(&b, " %s=%s", key, strings.ReplaceAll(strings.Trim(string(text), `"`), `"`, ""))
	}
	return b.String() + "\n"
}

func full(r engine.Reason) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  class: %s\n  clears when: %s\n  position: project=%d spec=%d ahead_gpus=%g\n", r.Class, r.ClearsWhen,
		r.Position.Project, r.Position.Spec, r.Position.AheadGPUs)
	if r.ETA != nil {
		fmt.Fprintf(&b, "  eta: p50=%s p90=%s (%s)\n", clock(r.ETA.P50), clock(r.ETA.P90), r.ETA.Basis)
	} else {
		fmt.Fprintf(&b, "  eta: none, %s\n", r.NoETA)
	}
	for _, o := range r.Also {
		fmt.Fprintf(&b, "  also: %s\n", o.Code)
	}
	for _, o := range r.Blockers {
		fmt.Fprintf(&b, "  blocker: %s %s %g\n", o.Kind, o.ID, o.GPUs)
	}
	return b.String()
}

func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// lacks are the words by which scenarios name what servers lack and jobs need.
var lacks = map[string]schema.Ability{"services": schema.CanServe, "images": schema.CanImage, "folders": schema.CanFolder, "images,folders": schema.CanImage | schema.CanFolder}
