package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent"
	"gpupool/worker/agent/accelerator"
	"gpupool/worker/agent/agenttest"
	"gpupool/worker/agent/burnin"
)

// tester answers each test as its case says, and keeps the devices at work meanwhile.
type tester func(ctx context.Context, name string, d agentproto.Device) error

func (f tester) Test(ctx context.Context, name string, d agentproto.Device, _ time.Duration) (map[string]float64, error) {
	err := f(ctx, name, d)
	return map[string]float64{"figure": 1}, err
}

func passes(context.Context, string, agentproto.Device) error {
	<-time.After(60 * time.Millisecond) // a load lasts; readings are taken meanwhile
	return nil
}

func TestABurnInHasThreeOutcomes(t *testing.T) {
	t.Parallel()
	type change = func(d []agentproto.Device) []agentproto.Device
	for name, c := range map[string]struct {
		before  change // the devices when it begins
		during  change // what happens to them under load
		test    tester
		order   agentproto.BurnIn
		outcome string
		text    string
		slot    string
	}{
		"all tests on all devices": {outcome: "passed", text: "6 tests on 8 devices"},
		"a device that fails a test": {test: func(ctx context.Context, n string, d agentproto.Device) error {
			_ = passes(ctx, n, d)
			return fails(n == "compute" && d.Serial == "S3")
		}, outcome: "failed", slot: "SXM4", text: "compute"},
		"seven of eight, all of them good":     {before: func(d []agentproto.Device) []agentproto.Device { return slices.Delete(d, 4, 5) }, outcome: "failed", slot: "SXM5", text: "7 of 8"},
		"the last of eight is missing":         {before: func(d []agentproto.Device) []agentproto.Device { return d[:7] }, outcome: "failed", slot: "SXM8", text: "7 of 8"},
		"a device of another model":            {before: func(d []agentproto.Device) []agentproto.Device { d[2].Model = "nvidia-a100-80gb"; return d }, outcome: "failed", slot: "SXM3", text: "ordered was"},
		"a device that does not answer":        {before: func(d []agentproto.Device) []agentproto.Device { d[2].Error = "lost"; return d }, outcome: "failed", slot: "SXM3", text: "does not answer"},
		"an error counter that grew meanwhile": {during: func(d []agentproto.Device) []agentproto.Device { d[5].Samples[accelerator.ECCUncorrected]++; return d }, outcome: "failed", slot: "SXM6", text: "grew by 1"},
		"errors of long ago are no failure":    {before: func(d []agentproto.Device) []agentproto.Device { d[5].Samples[accelerator.RemappedRows] = 9; return d }, outcome: "passed"},
		"a device that vanished meanwhile":     {during: func(d []agentproto.Device) []agentproto.Device { return d[:7] }, outcome: "failed", slot: "SXM8", text: "vanished"},
		"half the lanes":                       {before: func(d []agentproto.Device) []agentproto.Device { d[0].Samples[accelerator.PCIeWidth] = 8; return d }, outcome: "failed", slot: "SXM1", text: "PCIe lanes under load: 8 of 16"},
		"a fabric link that is down":           {before: func(d []agentproto.Device) []agentproto.Device { d[0].Samples[accelerator.LinksUp] = 17; return d }, outcome: "failed", slot: "SXM1", text: "fabric links"},
		"case 22: no link is up, and every program passes": {before: func(d []agentproto.Device) []agentproto.Device {
			d[3].Samples[accelerator.LinksUp] = 0
			return d
		}, outcome: "failed", slot: "SXM4", text: "fabric links under load: 0 of 18"},
		"a row that could not be remapped long ago": {before: func(d []agentproto.Device) []agentproto.Device { d[3].Samples[accelerator.RemapFailed] = 1; return d }, outcome: "failed", slot: "SXM4", text: "no spare"},
		"one much hotter than those beside it":      {before: func(d []agentproto.Device) []agentproto.Device { d[7].Samples[accelerator.Temperature] = 75; return d }, outcome: "failed", slot: "SXM8", text: "more than the coolest"},
		"a tool that is missing":                    {test: func(context.Context, string, agentproto.Device) error { return errors.New("dcgmi is not installed") }, outcome: "inconclusive", text: "dcgmi is not installed"},
		"a test that was not run on one": {test: func(ctx context.Context, n string, d agentproto.Device) error {
			_ = passes(ctx, n, d)
			if d.Serial == "S1" {
				return errors.New("skipped")
			}
			return nil
		}, outcome: "inconclusive", text: "memory on S1: skipped"},
		"a counter that is not told": {before: func(d []agentproto.Device) []agentproto.Device {
			for i := range d {
				delete(d[i].Samples, accelerator.ECCUncorrected)
				delete(d[i].Samples, accelerator.RemappedRows)
			}
			return d
		}, outcome: "inconclusive", text: "no error counter"},
		"a temperature that is not told": {before: func(d []agentproto.Device) []agentproto.Device {
			delete(d[3].Samples, accelerator.Temperature)
			return d
		}, outcome: "inconclusive", text: "S3 tells no temperature"},
		"what the hardware can't say is not held": {before: func(d []agentproto.Device) []agentproto.Device {
			for i := range d {
				delete(d[i].Samples, accelerator.LinksUp)
				d[i].NotApplicable = []string{accelerator.LinksUp}
			}
			return d
		}, outcome: "passed"},
		"a suite that nobody knows":        {order: agentproto.BurnIn{Suite: "heroic"}, outcome: "inconclusive", text: `no suite "heroic"`},
		"only the part that was swapped":   {order: agentproto.BurnIn{Only: []string{"S6"}}, outcome: "passed", text: "on 1 devices"},
		"a swapped part that is not there": {order: agentproto.BurnIn{Only: []string{"NEW"}}, outcome: "failed", text: "not in this server"},
		"a failure outweighs what is not known": {test: func(ctx context.Context, n string, d agentproto.Device) error {
			if d.Serial == "S1" {
				return fails(true)
			}
			return errors.New("skipped")
		}, outcome: "failed", slot: "SXM2"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.test == nil {
				c.test = passes
			}
			var w *world
			w = newWorld(t, func(cfg *agent.Config) {
				cfg.BurnIn = tester(func(ctx context.Context, n string, d agentproto.Device) error {
					err := c.test(ctx, n, d)
					if c.during != nil && n == "compute" && d.Serial == "S0" {
						w.reader.change(c.during)
					}
					return err
				})
			})
			if c.before != nil {
				w.reader.change(c.before)
			}
			w.start()
			order := c.order
			order.Seconds = 0.04
			order.Model, order.Devices = "nvidia-h100-80gb", 8
			w.api.Give(w.server, agenttest.Look("burn", schema.TaskBurnIn, order))
			r := w.end("burn")
			var got agentproto.BurnInResult
			if err := json.Unmarshal(r.Result, &got); err != nil {
				t.Fatalf("%v in %+v", err, r)
			}
			if r.State != schema.TaskDone || got.Outcome != c.outcome || !strings.Contains(r.Text, c.text) {
				t.Errorf("it is %s %q, want %s with %q", got.Outcome, r.Text, c.outcome, c.text)
			}
			if c.slot != "" && (len(got.Failed) == 0 || got.Failed[0].Slot != c.slot) {
				t.Errorf("it blames %+v, not %s", got.Failed, c.slot)
			}
		})
	}
}

func fails(b bool) error {
	if b {
		return &agent.TestFailure{Text: "wrong result"}
	}
	return nil
}

func TestABurnInCanBeStopped(t *testing.T) {
	begun := make(chan struct{}, 16)
	w := newWorld(t, func(cfg *agent.Config) {
		cfg.BurnIn = tester(func(ctx context.Context, _ string, _ agentproto.Device) error {
			begun <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		})
	})
	w.start()
	w.api.Give(w.server, agenttest.Look("burn", schema.TaskBurnIn, agentproto.BurnIn{Devices: 8}))
	<-begun
	w.api.Give(w.server, agentproto.Task{ID: "burn", Kind: schema.TaskBurnIn, Stop: true})
	if r := w.end("burn"); r.State != schema.TaskCancelled {
		t.Errorf("it ended as %+v", r)
	}
}

func TestAnAgentThatDiesDuringABurnInDoesItAgain(t *testing.T) {
	begun := make(chan struct{}, 64)
	hang := true
	w := newWorld(t, func(cfg *agent.Config) {
		cfg.BurnIn = tester(func(ctx context.Context, n string, d agentproto.Device) error {
			begun <- struct{}{}
			if hang {
				<-ctx.Done()
				return ctx.Err()
			}
			return passes(ctx, n, d)
		})
	})
	stop := w.start()
	w.api.Give(w.server, agenttest.Look("burn", schema.TaskBurnIn, agentproto.BurnIn{Devices: 8, Seconds: 0.04}))
	<-begun
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	hang = false
	w.start()
	if r := w.end("burn"); r.State != schema.TaskDone || !strings.Contains(r.Text, "passed") {
		t.Errorf("it ended as %+v", r)
	}
}

// box is a Toolbox that finds as its case says, and keeps the devices at work meanwhile.
type box func(run int, t burnin.Test, devices []agentproto.Device) (burnin.Findings, error)

// TestTestProgramsDecideADevicesFateByTheirSecondWord is the second half of case 22 of the cases on health: what fails once is run once more by itself; only what fails twice is
// the device's fault; who passed only sometimes has not passed.
func TestTestProgramsDecideADevicesFateByTheirSecondWord(t *testing.T) {
	pass := func(devices []agentproto.Device, but ...string) burnin.Findings {
		f := burnin.Findings{Evidence: agentproto.BurnInEvidence{SHA256: "00", Output: "as told"}, Figures: map[string]float64{"speed": 1}}
		for _, d := range devices {
			if slices.Contains(but, d.Serial) {
				f.Failed = append(f.Failed, burnin.Failure{Device: d, Text: "row 7"})
			} else {
				f.Passed = append(f.Passed, d)
			}
		}
		return f
	}
	for name, c := range map[string]struct {
		tool    box
		outcome string
		text    string
		slot    string
		runs    int
	}{
		"all pass": {func(_ int, _ burnin.Test, d []agentproto.Device) (burnin.Findings, error) { return pass(d), nil }, "passed", "5 tests on 8 devices", "", 2},
		"one fails once": {func(run int, _ burnin.Test, d []agentproto.Device) (burnin.Findings, error) {
			if run == 1 {
				return pass(d, "S3"), nil
			}
			return pass(d), nil
		}, "passed", "", "", 3},
		"one fails twice": {func(_ int, x burnin.Test, d []agentproto.Device) (burnin.Findings, error) {
			if x.Tool == "dcgm" {
				return pass(d, "S3"), nil
			}
			return pass(d), nil
		}, "failed", "row 7 (twice)", "SXM4", 3},
		"another one fails in each": {func(run int, x burnin.Test, d []agentproto.Device) (burnin.Findings, error) {
			if x.Tool == "dcgm" {
				return pass(d, fmt.Sprintf("S%d", run)), nil
			}
			return pass(d), nil
		}, "inconclusive", "dcgm was passed by 7 of 8", "", 3},
		"one says nothing": {func(_ int, _ burnin.Test, d []agentproto.Device) (burnin.Findings, error) { return pass(d[:7]), nil }, "inconclusive", "passed by 7 of 8", "", 2},
		"a tool is missing": {func(int, burnin.Test, []agentproto.Device) (burnin.Findings, error) {
			return burnin.Findings{}, &burnin.Unproven{Text: "dcgmi is not installed"}
		}, "inconclusive", "dcgmi is not installed", "", 2},
		"the server's memory": {func(_ int, x burnin.Test, d []agentproto.Device) (burnin.Findings, error) {
			if burnin.IsHost(x.Tool) {
				return burnin.Findings{Failed: []burnin.Failure{{Device: agentproto.Device{Slot: "server"}, Text: "3 bit errors"}}}, nil
			}
			return pass(d), nil
		}, "failed", "3 bit errors (twice)", "server", 3},
	} {
		t.Run(name, func(t *testing.T) {
			runs := 0
			w := newWorld(t, func(cfg *agent.Config) {
				cfg.Suites = map[string][]agent.Check{"quick/nvidia/3": {{Name: "inventory", Kind: agent.CheckInventory},
					{Name: "dcgm", Kind: agent.CheckTool, Tool: burnin.Test{Tool: "dcgm", Seconds: 0.05}}, {Name: "memory", Kind: agent.CheckTool, Tool: burnin.Test{Tool: "stress-ng-memory", Seconds: 0.05}},
					{Name: "thermal", Kind: agent.CheckThermal}, {Name: "counters", Kind: agent.CheckCounters}}}
				cfg.Tools = boxFunc(func(ctx context.Context, x burnin.Test, _ string, d []agentproto.Device) (burnin.Findings, error) {
					runs++
					_ = passes(ctx, "", agentproto.Device{})
					return c.tool(runs, x, d)
				})
			})
			w.start()
			w.api.Give(w.server, agenttest.Look("burn", schema.TaskBurnIn, agentproto.BurnIn{Model: "nvidia-h100-80gb", Devices: 8}))
			report := w.end("burn")
			text := report.Text
			var r agentproto.BurnInResult
			if err := json.Unmarshal(report.Result, &r); err != nil {
				t.Fatalf("%v in %+v", err, report)
			}
			if r.Outcome != c.outcome || !strings.Contains(text, c.text) || runs != c.runs || r.Suite != "quick/nvidia/3" {
				t.Fatalf("%s after %d runs of %s: %s; want %s after %d with %q", r.Outcome, runs, r.Suite, text, c.outcome, c.runs, c.text)
			}
			if c.slot != "" && (len(r.Failed) != 1 || r.Failed[0].Slot != c.slot) {
				t.Errorf("failed: %+v, want %s", r.Failed, c.slot)
			}
			if name != "a tool is missing" && name != "the server's memory" && (len(r.Evidence) != runs || r.Evidence[0].Test != "dcgm" || r.Figures["dcgm/speed"] != 1) {
				t.Errorf("evidence %+v, figures %v", r.Evidence, r.Figures)
			}
		})
	}
}

type boxFunc func(ctx context.Context, t burnin.Test, model string, devices []agentproto.Device) (burnin.Findings, error)

func (f boxFunc) Run(ctx context.Context, t burnin.Test, model string, devices []agentproto.Device) (burnin.Findings, error) {
	return f(ctx, t, model, devices)
}
