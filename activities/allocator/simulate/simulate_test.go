package simulate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpupool/activities/allocator/engine"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// small is a trace with known answers: two accelerators, a gang that needs both, and one that waits behind it.
const small = `id,tenant,spec,model,accelerators,nodes,submit,run,limit
a,red,one,gpu,1,1,0,100,100
b,red,one,gpu,1,2,10,50,60
c,blue,one,gpu,1,1,20,30,30
d,blue,one,gpu,1,1,21,300,300
`

func TestReplayOfASmallTraceComesOutAsByHand(t *testing.T) {
	t.Parallel()
	tr, err := ReadTrace(strings.NewReader(small))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Replay(tr, Flat(2, "gpu"), Policy{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	// a runs 0-100; b is planned for 100 and runs 100-150; c fits before that and runs 20-50; d would not, and runs
	// 150-450.
	if r.Completed != 4 || r.WaitMax != 129 || r.Backfilled != 1 {
		t.Errorf("completed %d, longest wait %g s, backfilled %d: want 4, 129, 1", r.Completed, r.WaitMax, r.Backfilled)
	}
	if got, want := r.GPUHours*3600, 100+2*50+30+300.0; got != want {
		t.Errorf("%g GPU-seconds, want %g", got, want)
	}
	if got, want := r.GPUHoursByTenant["red"]*3600, 200.0; got != want {
		t.Errorf("red has %g GPU-seconds, want %g", got, want)
	}
	if got, want := r.AllocatedShare, 530.0/900; got != want {
		t.Errorf("allocated share %g, want %g", got, want)
	}
}

// TestATraceWithoutModelsRunsOnAnyPool: the column is optional, and a job without one takes what there is.
func TestATraceWithoutModelsRunsOnAnyPool(t *testing.T) {
	t.Parallel()
	tr, err := ReadTrace(strings.NewReader("submit,run,accelerators\n0,100,8\n0,100,8\n"))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := ReadPool(strings.NewReader("servers: [{count: 1, model: h100, accelerators: 8}]"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Replay(tr, pool, Policy{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Completed != 2 || r.WaitMax != 100 {
		t.Errorf("completed %d, longest wait %g s: want 2, 100", r.Completed, r.WaitMax)
	}
}

// TestConcurrentJobsAreNotMultiplied is case 20: usage is the sum of amount x time, never the product of sums.
func TestConcurrentJobsAreNotMultiplied(t *testing.T) {
	t.Parallel()
	text := "id,model,accelerators,submit,run\n"
	for _, id := range []string{"a", "b", "c", "d"} {
		text += id + ",gpu,1,2026-01-31T23:58:00Z,300\n"
	}
	tr, err := ReadTrace(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Replay(tr, Flat(4, "gpu"), Policy{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.total.milliSeconds(); got != 1200_000 {
		t.Errorf("%d GPU-ms, want 1200000", got)
	}
	if a, b := r.months["2026-01"].milliSeconds(), r.months["2026-02"].milliSeconds(); a != 480_000 || b != 720_000 {
		t.Errorf("by month %d and %d GPU-ms, want 480000 and 720000", a, b)
	}
}

func TestPreemptedWorkIsRunAgainAndCharged(t *testing.T) {
	t.Parallel()
	tr, err := ReadTrace(strings.NewReader(`id,tenant,model,accelerators,priority,preemptible,submit,run,limit
low,red,gpu,1,0,true,0,1000,2000
high,blue,gpu,1,5,false,100,50,100
`))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Replay(tr, Flat(1, "gpu"), Policy{Config: engine.Config{Grace: 10 * time.Second}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Preemptions != 1 || r.Completed != 2 {
		t.Fatalf("%d preemptions, %d completed: want 1, 2", r.Preemptions, r.Completed)
	}
	// low runs 0-110, high 110-160, low again 160-1160.
	if got, want := r.GPUHours*3600, 110+50+1000.0; got != want {
		t.Errorf("%g GPU-seconds, want %g", got, want)
	}
}

// TestBadInputIsRefusedByName: each field of each file, with the value that it has and what would be right.
func TestBadInputIsRefusedByName(t *testing.T) {
	t.Parallel()
	const philly = "timestamp,duration,num_gpus,gpu_time,cluster\n"
	const openb = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time\n"
	const nodes = "sn,cpu_milli,memory_mib,gpu,model\n"
	trace := func(text string) error { _, err := ReadTrace(strings.NewReader(text)); return err }
	pool := func(text string) error {
		_, err := ReadPool(strings.NewReader(text))
		if err != nil && !errors.Is(err, ErrPool) && !errors.Is(err, ErrFormat) {
			return fmt.Errorf("not ErrPool: %w", err)
		}
		return err
	}
	policy := func(text string) error {
		p, err := ReadPolicy(strings.NewReader(text))
		if err == nil {
			err = p.check(Flat(2, "gpu"))
		}
		if err != nil && !errors.Is(err, ErrPolicy) {
			return fmt.Errorf("not ErrPolicy: %w", err)
		}
		return err
	}
	const day1, day2 = "from: 2026-01-01T00:00:00Z, until: 2026-01-02T00:00:00Z", "from: 2026-01-01T12:00:00Z, until: 2026-01-03T00:00:00Z"
	for name, c := range map[string]struct {
		read func(string) error
		text string
		want []string
	}{
		"a trace of an unknown format":    {trace, "a,b\n1,2\n", []string{"unknown columns", "a,b"}},
		"an empty trace":                  {trace, "", []string{"empty"}},
		"a column twice":                  {trace, "submit,run,accelerators,run\n0,1,1,2\n", []string{`"run"`, "twice"}},
		"a line too short":                {trace, "submit,run,accelerators\n0,1\n", []string{"line 2", "number of fields"}},
		"a count of -1":                   {trace, philly + "2017-10-09 07:01:55,1,-1,1,x\n", []string{`line 2: num_gpus="-1"`, "1 to"}},
		"no count":                        {trace, philly + "2017-10-09 07:01:55,1,,1,x\n", []string{`line 2: num_gpus=""`}},
		"a count past int64":              {trace, philly + "2017-10-09 07:01:55,1,9223372036854775808,1,x\n", []string{"num_gpus", "9223372036854775808"}},
		"a duration of NaN":               {trace, philly + "2017-10-09 07:01:55,NaN,1,1,x\n", []string{`duration="NaN"`, "seconds"}},
		"a duration of 1e400":             {trace, philly + "2017-10-09 07:01:55,1e400,1,1,x\n", []string{"duration", "1e400"}},
		"a duration with a unit":          {trace, philly + "2017-10-09 07:01:55,5m,1,1,x\n", []string{`duration="5m"`, "seconds"}},
		"no duration":                     {trace, philly + "2017-10-09 07:01:55,,1,1,x\n", []string{`duration=""`}},
		"no such time":                    {trace, philly + "yesterday,1,1,1,x\n", []string{`timestamp="yesterday"`, "2017-10-09 07:01:55"}},
		"a time that no clock holds":      {trace, philly + "9999-10-09 07:01:55,1,1,1,x\n", []string{`timestamp="9999-10-09 07:01:55"`}},
		"a spec that changes":             {trace, "submit,run,accelerators,spec\n0,1,1,s\n0,1,2,s\n", []string{`line 3: spec="s"`}},
		"preemptible of perhaps":          {trace, "submit,run,accelerators,preemptible\n0,1,1,perhaps\n", []string{`preemptible="perhaps"`, "true or false"}},
		"a job twice":                     {trace, "id,submit,run,accelerators\na,0,1,1\na,0,1,1\n", []string{`line 3: id="a"`, "line 2"}},
		"no submit":                       {trace, "submit,run,accelerators\n,1,1\n", []string{`submit=""`}},
		"a submit that is no time":        {trace, "submit,run,accelerators\nsoon,1,1\n", []string{`submit="soon"`, "2026-03-01T00:00:00Z", "seconds"}},
		"a submit before the trace":       {trace, "submit,run,accelerators\n-5,1,1\n", []string{`submit="-5"`}},
		"a submit in the year 9999":       {trace, "submit,run,accelerators\n9999-01-01T00:00:00Z,1,1\n", []string{`submit="9999-01-01T00:00:00Z"`}},
		"a run of -1":                     {trace, "submit,run,accelerators\n0,-1,1\n", []string{`run="-1"`}},
		"no accelerators":                 {trace, "submit,run,accelerators\n0,1,0\n", []string{`accelerators="0"`}},
		"a gang of -1":                    {trace, "submit,run,accelerators,nodes\n0,1,1,-1\n", []string{`nodes="-1"`}},
		"a limit of Inf":                  {trace, "submit,run,accelerators,limit\n0,1,1,Inf\n", []string{`limit="Inf"`}},
		"a priority of 1e9":               {trace, "submit,run,accelerators,priority\n0,1,1,1e9\n", []string{`priority="1e9"`, "whole number"}},
		"a pod that ends before":          {trace, openb + "a,1,1,1,1000,5,4,\n", []string{`deletion_time="4"`, "after creation_time"}},
		"a pod that starts after its end": {trace, openb + "a,1,1,1,1000,1,4,5\n", []string{`scheduled_time="5"`}},
		"a pod without a name":            {trace, openb + ",1,1,1,1000,1,4,1\n", []string{`name=""`}},
		"a pod twice":                     {trace, openb + "a,1,1,1,1000,1,4,1\na,1,1,1,1000,1,4,1\n", []string{`line 3: name="a"`}},
		"more than a whole accelerator":   {trace, openb + "a,1,1,1,1001,1,4,1\n", []string{`gpu_milli="1001"`, "0 to 1000"}},
		"a node twice":                    {pool, nodes + "a,1,1,1,x\na,1,1,1,x\n", []string{`line 3: sn="a"`, "line 2"}},
		"a node of -1":                    {pool, nodes + "a,1,1,-1,x\n", []string{`gpu="-1"`}},
		"no node":                         {pool, nodes, []string{"no servers"}},
		"a pool with an unknown field":    {pool, "servers:\n- count: 1\n  gpus: 8\n", []string{"gpus"}},
		"a pool without servers":          {pool, "servers: []\n", []string{"no servers"}},
		"a pool of 0 servers":             {pool, "servers:\n- {count: 0, model: a, accelerators: 8}\n", []string{"servers[0].count: 0", "1 or more"}},
		"a pool too large":                {pool, "servers:\n- {count: 1000000, model: a, accelerators: 1024}\n", []string{"servers[0].count: 1000000", "at most"}},
		"a server without accelerators":   {pool, "servers:\n- {count: 1, model: a}\n", []string{"servers[0].accelerators: 0", "1 to 1024"}},
		"a server of no model":            {pool, "servers:\n- {count: 1, accelerators: 8}\n", []string{"servers[0].model"}},
		"memory past int64":               {pool, "servers:\n- {count: 1, model: a, accelerators: 8, memory_gib: 8589934592}\n", []string{"servers[0].memory_gib: 8589934592", "GiB"}},
		"cores of -1":                     {pool, "servers:\n- {count: 1, model: a, accelerators: 8, cpu: -1}\n", []string{"servers[0].cpu: -1"}},
		"racks of -1":                     {pool, "servers:\n- {count: 1, model: a, accelerators: 8, per_rack: -1}\n", []string{"servers[0].per_rack: -1"}},
		"an unknown order":                {policy, "order: random\n", []string{`order: "random"`, "fair-share or fifo"}},
		"an unknown placement":            {policy, "placement: anywhere\n", []string{`placement: "anywhere"`, "best-fit"}},
		"an unknown field":                {policy, "ordre: fifo\n", []string{"ordre"}},
		"a grace of soon":                 {policy, "grace: soon\n", []string{`grace: "soon"`, "30s"}},
		"a grace of -30s":                 {policy, "grace: -30s\n", []string{`grace: "-30s"`, "0s to"}},
		"a half-life of nothing":          {policy, "half_life: 0s\n", []string{`half_life: "0s"`, "1m0s"}},
		"a half-life without a unit":      {policy, "half_life: 168\n", []string{`half_life: "168"`, "168h"}},
		"a penalty of a year":             {policy, "entry_penalty: 9000h\n", []string{`entry_penalty: "9000h"`, "24h"}},
		"a protection of -1":              {policy, "min_run_time: -1s\n", []string{`min_run_time: "-1s"`}},
		"no assumed limit":                {policy, "assumed_limit: 0s\n", []string{`assumed_limit: "0s"`}},
		"reservations of -2":              {policy, "reservations: -2\n", []string{"reservations: -2", "-1 to 1000"}},
		"a depth of 0":                    {policy, "backfill_depth: 0\n", []string{"backfill_depth: 0", "1 to"}},
		"a quota without a tenant":        {policy, "quotas:\n- {limit: 3}\n", []string{"quotas[0].tenant"}},
		"a guarantee of -1":               {policy, "quotas:\n- {tenant: a, guaranteed: -1}\n", []string{"quotas[0].guaranteed: -1"}},
		"a guarantee over the limit":      {policy, "quotas:\n- {tenant: a, guaranteed: 4, limit: 3}\n", []string{"quotas[0].guaranteed: 4", "the limit"}},
		"a limit of -1":                   {policy, "quotas:\n- {tenant: a, limit: -1}\n", []string{"quotas[0].limit: -1"}},
		"a limit past what there is":      {policy, "quotas:\n- {tenant: a, limit: 9007199254740993}\n", []string{"quotas[0].limit: 9007199254740993"}},
		"a quota twice":                   {policy, "quotas:\n- {tenant: a, limit: 1}\n- {tenant: a, limit: 2}\n", []string{`quotas[1]: "a"`, "quotas[0]"}},
		"a quota of no model of the pool": {policy, "quotas:\n- {tenant: a, model: h100, limit: 1}\n", []string{`quotas[0].model: "h100"`, "(gpu)"}},
		"an account without a tenant":     {policy, "accounts:\n- {weight: 3}\n", []string{"accounts[0].tenant"}},
		"an account twice":                {policy, "accounts:\n- {tenant: a}\n- {tenant: a}\n", []string{`accounts[1]: "a"`}},
		"a weight of 0":                   {policy, "accounts:\n- {tenant: a, weight: 0}\n", []string{"accounts[0].weight: 0", "more than 0"}},
		"a weight of NaN":                 {policy, "accounts:\n- {tenant: a, weight: .nan}\n", []string{"accounts[0].weight: NaN"}},
		"a job limit of -1":               {policy, "accounts:\n- {tenant: a, max_running_jobs: -1}\n", []string{"accounts[0].max_running_jobs: -1"}},
		"a priority past all":             {policy, "accounts:\n- {tenant: a, max_priority: 1000001}\n", []string{"accounts[0].max_priority: 1000001"}},
		"a budget without a tenant":       {policy, "budgets:\n- {gpu_hours: 3}\n", []string{"budgets[0].tenant"}},
		"a budget in no time zone":        {policy, "budgets:\n- {tenant: a, gpu_hours: 3, time_zone: Mars}\n", []string{`budgets[0].time_zone: "Mars"`, "Europe/Berlin"}},
		"a budget by whoever's clock":     {policy, "budgets:\n- {tenant: a, gpu_hours: 3, time_zone: Local}\n", []string{`budgets[0].time_zone: "Local"`}},
		"a budget of NaN":                 {policy, "budgets:\n- {tenant: a, gpu_hours: .nan}\n", []string{"budgets[0].gpu_hours: NaN"}},
		"a budget of -1":                  {policy, "budgets:\n- {tenant: a, gpu_hours: -1}\n", []string{"budgets[0].gpu_hours: -1"}},
		"a budget twice":                  {policy, "budgets:\n- {tenant: a, project: b, gpu_hours: 1}\n- {tenant: a, project: b, gpu_hours: 2}\n", []string{`budgets[1]: "a b"`}},
		"a budget of no model":            {policy, "budgets:\n- {tenant: a, model: x, gpu_hours: 1}\n", []string{`budgets[0].model: "x"`}},
		"a window of no kind":             {policy, "windows:\n- {servers: [gpu000000], " + day1 + "}\n", []string{`windows[0].kind: ""`, "maintenance or reservation"}},
		"a window that ends before":       {policy, "windows:\n- {kind: maintenance, servers: [gpu000000], from: 2026-01-02T00:00:00Z, until: 2026-01-01T00:00:00Z}\n", []string{"windows[0].until", "2026-01-01T00:00:00Z", "after from"}},
		"a window from no time":           {policy, "windows:\n- {kind: maintenance, servers: [gpu000000], from: monday, until: 2026-01-01T00:00:00Z}\n", []string{`windows[0].from: "monday"`}},
		"a window over nothing":           {policy, "windows:\n- {kind: maintenance, " + day1 + "}\n", []string{"windows[0].servers"}},
		"a window over no server":         {policy, "windows:\n- {kind: maintenance, servers: [gpu000000, r1s1], " + day1 + "}\n", []string{`windows[0].servers[1]: "r1s1"`, "gpu000000"}},
		"a reservation for nobody":        {policy, "windows:\n- {kind: reservation, servers: [gpu000000], " + day1 + "}\n", []string{"windows[0].tenant"}},
		"maintenance for somebody":        {policy, "windows:\n- {kind: maintenance, tenant: a, servers: [gpu000000], " + day1 + "}\n", []string{`windows[0].tenant: "a"`}},
		"a window twice":                  {policy, "windows:\n- {id: w, kind: maintenance, servers: [gpu000000], " + day1 + "}\n- {id: w, kind: maintenance, servers: [gpu000001], " + day1 + "}\n", []string{`windows[1].id: "w"`}},
		"a server reserved for two":       {policy, "windows:\n- {kind: reservation, tenant: a, servers: [gpu000000], " + day1 + "}\n- {kind: reservation, tenant: b, servers: [gpu000001, gpu000000], " + day2 + "}\n", []string{`windows[1].servers[1]: "gpu000000"`, "window 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := c.read(c.text)
			if err == nil {
				t.Fatal("it is taken")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %v, want one with %q", err, want)
				}
			}
		})
	}
}

// TestNoneIsNotTheDefault: 0 in a policy file means none, where to the engine 0 is its default.
func TestNoneIsNotTheDefault(t *testing.T) {
	t.Parallel()
	p, err := ReadPolicy(strings.NewReader("entry_penalty: 0s\ngrace: 0s\nmin_run_time: 0s\nreservations: 0\n"))
	if want := (engine.Config{EntryPenalty: -1, Grace: -1, Reservations: -1}); err != nil || p.Config != want {
		t.Errorf("%+v, %v; want %+v", p.Config, err, want)
	}
	p, err = ReadPolicy(strings.NewReader("name: x\n"))
	if err != nil || p.Config != (engine.Config{}) {
		t.Errorf("with nothing said the engine is told %+v, %v", p.Config, err)
	}
}

func TestRunComparesPoliciesAndDraws(t *testing.T) {
	t.Parallel()
	trace := write(t, "trace.csv", small)
	fifo := write(t, "fifo.yaml", "order: fifo\nbackfill: false\nquotas:\n- {tenant: blue, limit: 1}\n")
	fair := write(t, "fair.yaml", "order: fair-share\nhalf_life: 24h\n")
	pool := write(t, "pool.yaml", "servers:\n- {count: 2, model: gpu, accelerators: 1, per_rack: 1}\n")
	picture := filepath.Join(t.TempDir(), "out.svg")
	report := filepath.Join(t.TempDir(), "out.json")
	var out bytes.Buffer
	err := Run(Options{Trace: trace, Pool: pool, Policies: []string{fifo, fair}, Picture: picture, Report: report}, &out)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"fifo", "fair", "gpu_hours", "wait_seconds_max", "allocated_share", "fragmentation", "preemptions"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %s:\n%s", want, out.String())
		}
	}
	svg, err := os.ReadFile(picture)
	if err != nil || bytes.Count(svg, []byte("<polyline")) != 2 || !bytes.HasSuffix(svg, []byte("</svg>\n")) {
		t.Errorf("the picture is not one of two panels: %v\n%s", err, svg)
	}
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var reports []Report
	if err := json.Unmarshal(text, &reports); err != nil || len(reports) != 2 {
		t.Fatalf("%d reports: %v", len(reports), err)
	}
	if reports[0].GPUHours != reports[1].GPUHours || reports[0].Completed != 4 {
		t.Errorf("the policies run different work: %+v %+v", reports[0].GPUHours, reports[1].GPUHours)
	}
	if reports[0].Backfilled != 0 || reports[1].Backfilled == 0 {
		t.Errorf("backfilled %d and %d, want none without and some with backfill", reports[0].Backfilled, reports[1].Backfilled)
	}
}

// TestAGangIsNotStarvedByAStreamOfSmallJobs is case 12: ten servers full of jobs of ten minutes, a gang of eight whole
// servers, and for six hours a small job every five seconds. The gang starts when the longest that ran at its submit has
// ended; what is over before that still starts.
func TestAGangIsNotStarvedByAStreamOfSmallJobs(t *testing.T) {
	t.Parallel()
	for _, priority := range []int{0, 5} {
		var b strings.Builder
		b.WriteString("id,tenant,spec,model,accelerators,nodes,priority,submit,run,limit\n")
		for i := range 79 { // one accelerator is free
			fmt.Fprintf(&b, "first%d,t,g1,gpu,1,1,0,0,600,600\n", i)
		}
		fmt.Fprintf(&b, "gang,t,g8,gpu,8,8,%d,1,60,600\n", priority)
		for sec := 5; sec < 6*3600; sec += 5 {
			fmt.Fprintf(&b, "long%d,t,g1,gpu,1,1,0,%d,600,600\n", sec, sec)
			if sec%30 == 0 {
				fmt.Fprintf(&b, "brief%d,t,g1,gpu,1,1,0,%d,30,30\n", sec, sec)
			}
		}
		tr, err := ReadTrace(strings.NewReader(b.String()))
		if err != nil {
			t.Fatal(err)
		}
		pool, err := ReadPool(strings.NewReader("servers:\n- {count: 10, model: gpu, accelerators: 8}\n"))
		if err != nil {
			t.Fatal(err)
		}
		r, err := Replay(tr, pool, Policy{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if w := r.bySpec["g8 x 8"]; len(w) != 1 || w[0] > 10*time.Minute {
			t.Errorf("priority %d: the gang waited %v, want at most 10m", priority, w)
		}
		if r.Backfilled == 0 || r.Completed != len(tr.Jobs) {
			t.Errorf("priority %d: %d backfilled, %d of %d completed", priority, r.Backfilled, r.Completed, len(tr.Jobs))
		}
	}
}

// TestAPolicyIsAppliedWhole: limits, caps, budgets and windows of the file reach the engine, and what never started is
// told with its reason.
func TestAPolicyIsAppliedWhole(t *testing.T) {
	t.Parallel()
	policy, err := ReadPolicy(strings.NewReader(`
preemptible: true
accounts:
- {tenant: red, max_running_jobs: 1}
budgets:
- {tenant: blue, gpu_hours: 0.1}
windows:
- {kind: maintenance, servers: [gpu000000, gpu000001], from: 2023-01-01T00:10:00Z, until: 2023-01-01T01:00:00Z}
`))
	if err != nil {
		t.Fatal(err)
	}
	tr, err := ReadTrace(strings.NewReader(`id,tenant,model,accelerators,submit,run,limit
r1,red,gpu,1,0,60,60
r2,red,gpu,1,0,60,60
late,green,gpu,1,0,900,900
poor,blue,gpu,1,0,600,600
`))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Replay(tr, Flat(2, "gpu"), policy, nil)
	if err != nil {
		t.Fatal(err)
	}
	// r2 waits for r1 to end; late would run into the window, and starts when it is over; poor asks for ten minutes of a
	// budget of six, in any month.
	if w := r.bySpec["gpu-x1"]; len(w) != 3 || w[0] != 0 || w[1] != time.Minute || w[2] != time.Hour {
		t.Errorf("waits %v, want 0, 1m and 1h", w)
	}
	if r.Unstarted != 1 || r.UnstartedBy["BUDGET"] != 1 {
		t.Errorf("%d unstarted, %v: want one for BUDGET", r.Unstarted, r.UnstartedBy)
	}
	if r.Span != 4500 {
		t.Errorf("the replay spans %g s, want the 4500 in which something happened", r.Span)
	}
}

func TestRunRefusesOptionsThatDoNotGoTogether(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{
		"no trace":      {GPUs: 1},
		"no pool":       {Trace: "x"},
		"two pools":     {Trace: "x", Pool: "y", GPUs: 1},
		"negative fill": {Trace: "x", GPUs: 1, Fill: -1},
		"fill of NaN":   {Trace: "x", GPUs: 1, Fill: math.NaN()},
		"negative gpus": {Trace: "x", GPUs: -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := Run(o, &bytes.Buffer{}); !errors.Is(err, ErrOptions) {
				t.Errorf("error %v, want %v", err, ErrOptions)
			}
		})
	}
}

func TestFillTurnsAwayWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	tr, err := ReadTrace(strings.NewReader("submit,run,accelerators\n0,1,3\n"))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := ReadPool(strings.NewReader("servers:\n- {count: 2, model: gpu, accelerators: 4}\n"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Fill(tr, pool, Policy{}, 1.5, 1)
	if err != nil {
		t.Fatal(err)
	}
	if r.AllocatedShare != 0.75 || r.TurnedAway != 2 || r.Fragmentation != 0.25 {
		t.Errorf("allocated %g, turned away %d, fragmented %g: want 0.75, 2, 0.25", r.AllocatedShare, r.TurnedAway, r.Fragmentation)
	}
}

// steady is n jobs of a spec, one each gap, that run as long as said.
func steady(tr *Trace, spec, model string, n int, gap, run time.Duration) {
	tr.Specs = append(tr.Specs, engine.Spec{Name: spec, Model: model, Accelerators: 1})
	for i := range n {
		tr.Jobs = append(tr.Jobs, Job{Run: run, Job: engine.Job{ID: fmt.Sprintf("%s-%d", spec, i), Tenant: "red", Spec: spec, Nodes: 1, Attempt: 1, Submitted: origin.Add(time.Duration(i) * gap)}})
	}
	slices.SortStableFunc(tr.Jobs, func(a, b Job) int { return a.Submitted.Compare(b.Submitted) })
}

func TestGrowthIsThatMuchMoreOfTheSame(t *testing.T) {
	t.Parallel()
	tr := &Trace{}
	steady(tr, "one", "gpu", 1000, time.Hour, time.Hour)
	for _, times := range []float64{1, 1.25, 2, 3.5} {
		g, err := Grow(tr, times, 7)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for i, j := range g.Jobs {
			seen[j.ID] = true
			if j.Submitted.Before(tr.Jobs[0].Submitted) || j.Submitted.After(tr.Jobs[999].Submitted) || i > 0 && j.Submitted.Before(g.Jobs[i-1].Submitted) {
				t.Fatalf("%g: job %d comes at %v, outside the trace or out of order", times, i, j.Submitted)
			}
		}
		if got := float64(len(g.Jobs)) / 1000; len(seen) != len(g.Jobs) || got < times-0.05 || got > times+0.05 || times == float64(int(times)) && got != times {
			t.Errorf("%g: %d jobs of %d names", times, len(g.Jobs), len(seen))
		}
	}
	for _, bad := range []float64{0.5, -1, 1e6} {
		if _, err := Grow(tr, bad, 1); !errors.Is(err, ErrOptions) {
			t.Errorf("growth %g: %v", bad, err)
		}
	}
}

// TestForecastNamesTheGrowthThatASpecDoesNotStand: one spec uses half of its four accelerators, so that twice its demand
// is all of them and more than that queues without end; another, of another model, is hardly used.
func TestForecastNamesTheGrowthThatASpecDoesNotStand(t *testing.T) {
	t.Parallel()
	tr := &Trace{}
	steady(tr, "busy", "a", 1000, 30*time.Minute, time.Hour)
	steady(tr, "light", "b", 20, 24*time.Hour, time.Minute)
	steady(tr, "huge", "none", 3, time.Hour, time.Minute)
	pool, err := ReadPool(strings.NewReader("servers: [{count: 4, model: a, accelerators: 1}, {count: 2, model: b, accelerators: 1}]"))
	if err != nil {
		t.Fatal(err)
	}
	var tried []float64
	out, err := Forecast(tr, pool, Policy{}, 6*time.Hour, 1, func(g float64) { tried = append(tried, g) })
	if err != nil {
		t.Fatal(err)
	}
	if len(out) != 3 || out[0].Spec != "busy" || out[1].Spec != "huge" || out[2].Spec != "light" {
		t.Fatalf("%+v", out)
	}
	if b := out[0]; b.Growth != 2.5 || b.Now != 0 || b.Then <= 6*3600 || b.Jobs != 1000 {
		t.Errorf("busy: %+v, want it to wait for hours at 2.5 times", b)
	}
	if h := out[1]; h.Never != 3 || h.Growth != 0 {
		t.Errorf("a model that is not there: %+v, want 3 jobs that never start and no growth blamed", h)
	}
	if l := out[2]; l.Growth != 0 || l.Never != 0 {
		t.Errorf("light: %+v, want no growth that it does not stand", l)
	}
	if len(tried) != len(Growths) {
		t.Errorf("tried %v: the light one stands all", tried)
	}
	again, err := Forecast(tr, pool, Policy{}, 6*time.Hour, 1, nil)
	if err != nil || fmt.Sprint(again) != fmt.Sprint(out) {
		t.Errorf("the same seed gives %+v (%v)", again, err)
	}
	if _, err := Forecast(&Trace{}, pool, Policy{}, time.Hour, 1, nil); !errors.Is(err, ErrNoHistory) {
		t.Errorf("no jobs: %v", err)
	}
}
