package simulate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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

func TestBadInputIsRefusedByName(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, want string }{
		"an unknown format":      {"a,b\n1,2\n", "unknown columns"},
		"an empty file":          {"", "empty"},
		"a negative count":       {"timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,1,-1,1,x\n", `line 2: num_gpus="-1"`},
		"a count past int64":     {"timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,1,9223372036854775808,1,x\n", "num_gpus"},
		"a duration of NaN":      {"timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,NaN,1,1,x\n", `duration="NaN"`},
		"a duration of 1e400":    {"timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,1e400,1,1,x\n", "duration"},
		"no such time":           {"timestamp,duration,num_gpus,gpu_time,cluster\nyesterday,1,1,1,x\n", `timestamp="yesterday"`},
		"a spec that changes":    {"submit,run,accelerators,spec\n0,1,1,s\n0,1,2,s\n", `spec="s"`},
		"preemptible of perhaps": {"submit,run,accelerators,preemptible\n0,1,1,perhaps\n", "preemptible"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ReadTrace(strings.NewReader(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
	for name, c := range map[string]struct {
		text string
		want error
	}{
		"a pool with an unknown field": {"servers:\n- count: 1\n  gpus: 8\n", ErrPool},
		"a pool without servers":       {"servers: []\n", ErrPool},
		"a pool of 0 servers":          {"servers:\n- {count: 0, model: a, accelerators: 8}\n", ErrPool},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := ReadPool(strings.NewReader(c.text)); !errors.Is(err, c.want) {
				t.Errorf("error %v, want %v", err, c.want)
			}
		})
	}
	for name, text := range map[string]string{
		"a policy with an unknown order": "order: random\n",
		"a policy with an unknown field": "ordre: fifo\n",
		"a policy with a bad duration":   "grace: soon\n",
		"a quota without a tenant":       "quotas:\n- {limit: 3}\n",
		"an account without a tenant":    "accounts:\n- {weight: 3}\n",
		"a budget without a tenant":      "budgets:\n- {gpu_hours: 3}\n",
		"a budget in no time zone":       "budgets:\n- {tenant: a, gpu_hours: 3, time_zone: Mars}\n",
		"a budget of NaN":                "budgets:\n- {tenant: a, gpu_hours: .nan}\n",
		"a window of no kind":            "windows:\n- {servers: [a], from: 2026-01-01T00:00:00Z, until: 2026-01-02T00:00:00Z}\n",
		"a window that ends before":      "windows:\n- {kind: maintenance, servers: [a], from: 2026-01-02T00:00:00Z, until: 2026-01-01T00:00:00Z}\n",
		"a window over nothing":          "windows:\n- {kind: maintenance, from: 2026-01-01T00:00:00Z, until: 2026-01-02T00:00:00Z}\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := ReadPolicy(strings.NewReader(text)); !errors.Is(err, ErrPolicy) {
				t.Errorf("error %v, want %v", err, ErrPolicy)
			}
		})
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
