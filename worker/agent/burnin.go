package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
	"gpupool/worker/agent/burnin"
)

// Tester puts one device under load.
type Tester interface {
	// Test runs the named test on one device for about d and returns what it measured. A *TestFailure blames the device;
	// any other error says that nothing was learnt of it: a tool that is missing, a time-out, output that made no sense.
	Test(ctx context.Context, name string, dev agentproto.Device, d time.Duration) (map[string]float64, error)
}

// TestFailure is a device that failed its test.
type TestFailure struct{ Text string }

func (e *TestFailure) Error() string { return e.Text }

// CheckKind is how a check learns what it says.
type CheckKind string

const (
	CheckInventory CheckKind = "inventory" // the devices that were ordered are there, and answer
	CheckLoad      CheckKind = "load"      // a Tester's test, on all devices at once
	CheckThermal   CheckKind = "thermal"   // by readings taken under the load: below the limit, and alike
	CheckLinks     CheckKind = "links"     // by the same readings: full width and speed, all fabric links up
	CheckCounters  CheckKind = "counters"  // no error counter grew since the beginning
	CheckTool      CheckKind = "tool"      // a test program's word on each device; see burnin
)

// Check is one line of a suite.
type Check struct {
	Name    string
	Kind    CheckKind
	Seconds float64 // of a load
	Tool    burnin.Test
}

// Toolbox runs test programs: *burnin.Box.
type Toolbox interface {
	Run(ctx context.Context, t burnin.Test, model string, devices []agentproto.Device) (burnin.Findings, error)
}

// ToolSuites are the suites that prove a vendor's servers by test programs: what burnin lists, between the count of the
// devices and the judgement of what was read of them meanwhile.
func ToolSuites(vendor string) map[string][]Check {
	byName, version := burnin.Suites()
	out := map[string][]Check{}
	for name, tests := range byName(vendor) {
		list := []Check{{Name: "inventory", Kind: CheckInventory}}
		for _, t := range tests {
			list = append(list, Check{Name: t.Tool, Kind: CheckTool, Seconds: t.Seconds, Tool: t})
		}
		list = append(list, Check{Name: "thermal", Kind: CheckThermal}, Check{Name: "links", Kind: CheckLinks}, Check{Name: "counters", Kind: CheckCounters})
		out[fmt.Sprintf("%s/%s/%d", name, vendor, version)] = list
	}
	return out
}

// suite finds a suite by its name for a model: the vendor's own, where the agent has one, goes before the general one.
func (t *tasks) suite(name, model string) (string, []Check, bool) {
	vendor, _, _ := strings.Cut(model, "-")
	for _, full := range slices.Backward(slices.Sorted(maps.Keys(t.cfg.Suites))) { // the newest version
		if strings.HasPrefix(full, name+"/"+vendor+"/") {
			return full, t.cfg.Suites[full], true
		}
	}
	list, ok := t.cfg.Suites[name]
	return name, list, ok
}

// Suites are the burn-in suites by name. Durations follow what operators run as a quick gate and before first use;
// longer soaks are a suite of their own.
var Suites = map[string][]Check{
	"quick": {
		{Name: "inventory", Kind: CheckInventory},
		{Name: "memory", Kind: CheckLoad, Seconds: 60}, {Name: "compute", Kind: CheckLoad, Seconds: 60},
		{Name: "thermal", Kind: CheckThermal}, {Name: "links", Kind: CheckLinks}, {Name: "counters", Kind: CheckCounters},
	},
	"standard": {
		{Name: "inventory", Kind: CheckInventory},
		{Name: "memory", Kind: CheckLoad, Seconds: 900}, {Name: "compute", Kind: CheckLoad, Seconds: 900},
		{Name: "thermal", Kind: CheckThermal}, {Name: "links", Kind: CheckLinks}, {Name: "counters", Kind: CheckCounters},
	},
}

// maxSpread is how far apart the hottest and the coolest device of one server may be under the same load: more is a
// cooler that sits badly or a fan that stands.
const maxSpread = 25 // degrees

// burn is one burn-in as it goes on. mu guards what follows it: devices are tested at once.
type burn struct {
	order   agentproto.BurnIn
	targets []agentproto.Device
	before  map[string]agentproto.Device
	peaks   map[string]map[string]float64 // highest value of each metric under load, by device

	mu      sync.Mutex
	passed  map[string]int // check -> devices that passed it
	failed  []agentproto.BurnInFailure
	unknown []string
	figures map[string]float64

	suite    string
	evidence []agentproto.BurnInEvidence
}

// burnIn runs a suite. Its error is for an order that makes no sense; a burn-in that was run has one of three outcomes.
func (t *tasks) burnIn(ctx context.Context, payload json.RawMessage) (any, string, error) {
	b := &burn{peaks: map[string]map[string]float64{}, passed: map[string]int{}, figures: map[string]float64{}, before: map[string]agentproto.Device{}}
	if err := json.Unmarshal(payload, &b.order); err != nil {
		return nil, "", fmt.Errorf("the task's payload could not be read: %w", err)
	}
	name := orElse(b.order.Suite, "quick")
	full, suite, ok := t.suite(name, b.order.Model)
	b.suite = full
	if !ok {
		b.inconclusive("this agent knows no suite %q; it knows %s", name, strings.Join(slices.Sorted(maps.Keys(t.cfg.Suites)), ", "))
		return b.result(nil)
	}
	list, known := t.devices.read(ctx)
	if !known {
		b.inconclusive("the devices could not be read: a driver has not answered")
		return b.result(suite)
	}
	b.aim(list)
	for _, c := range suite {
		switch c.Kind {
		case CheckInventory:
			b.inventory(c, list)
		case CheckLoad:
			b.load(ctx, t, c)
		case CheckTool:
			b.tool(ctx, t, c)
		case CheckThermal:
			b.thermal(c)
		case CheckLinks:
			b.links(c)
		case CheckCounters:
			after, known := t.devices.read(ctx)
			b.counters(c, after, known)
		}
		if ctx.Err() != nil {
			return nil, "", ctx.Err()
		}
		if c.Kind == CheckInventory && len(b.failed) > 0 {
			return b.result(suite) // what is not there can't be tested, and the rest would only heat
		}
	}
	return b.result(suite)
}

// aim chooses the devices that are tested in depth.
func (b *burn) aim(list []agentproto.Device) {
	for _, d := range list {
		b.before[accelerator.Identity(d)] = d
		if b.order.Model == "" || d.Model == b.order.Model {
			if len(b.order.Only) == 0 {
				b.targets = append(b.targets, d)
			}
		}
	}
	for _, id := range b.order.Only {
		d, ok := accelerator.Find(list, id)
		if !ok {
			b.fail(agentproto.Device{Serial: id}, "inventory", "it is not in this server")
			continue
		}
		b.targets = append(b.targets, d)
	}
}

// inventory compares what is there with what was ordered, and names the slot that is empty where the slots' own
// numbering shows it.
func (b *burn) inventory(c Check, list []agentproto.Device) {
	seen := map[string]bool{}
	var there []agentproto.Device
	for _, d := range list {
		id := accelerator.Identity(d)
		switch {
		case b.order.Model != "" && d.Model != b.order.Model && sameVendor(d.Model, b.order.Model):
			b.fail(d, c.Name, fmt.Sprintf("it is a %s, ordered was %s", d.Model, b.order.Model))
		case b.order.Model != "" && d.Model != b.order.Model:
			continue // a network card's GPU, a display: not what was ordered, and not in its place
		case seen[id]:
			b.fail(d, c.Name, "two devices have this serial")
		case d.Error != "":
			b.fail(d, c.Name, "it does not answer: "+d.Error)
		default:
			b.pass(c.Name)
		}
		seen[id] = true
		there = append(there, d)
	}
	if n := b.order.Devices; len(there) < n {
		slots := emptySlots(there, n)
		if len(slots) == 0 {
			slots = []string{""}
		}
		for _, s := range slots {
			b.fail(agentproto.Device{Slot: s}, c.Name, fmt.Sprintf("%d of %d devices are there", len(there), n))
		}
	} else if n > 0 && len(there) > n {
		b.fail(agentproto.Device{}, c.Name, fmt.Sprintf("%d devices are there, %d were ordered", len(there), n))
	}
}

func sameVendor(a, b string) bool {
	va, _, _ := strings.Cut(a, "-")
	vb, _, _ := strings.Cut(b, "-")
	return va == vb
}

var trailingNumber = regexp.MustCompile(`^(.*?)(\d+)$`)

// firstSlot is where makers begin to number, by the slots' common name.
var firstSlot = map[string]int{"SXM": 1, "OAM": 0}

// emptySlots finds the holes in slots that are numbered alike: SXM1, SXM3 of three leaves SXM2. It names none where it
// isn't sure: a wrong name sends a technician to a good part.
func emptySlots(there []agentproto.Device, n int) []string {
	prefix, highest := "", 0
	used := map[int]bool{}
	for i, d := range there {
		m := trailingNumber.FindStringSubmatch(d.Slot)
		if m == nil || i > 0 && m[1] != prefix {
			return nil
		}
		prefix = m[1]
		k, err := strconv.Atoi(m[2])
		if err != nil {
			return nil
		}
		used[k] = true
		highest = max(highest, k)
	}
	first, known := firstSlot[prefix]
	switch {
	case len(there) == 0:
		return nil
	case known:
	case used[0]:
		first = 0
	case highest == n:
		first = 1
	default:
		return nil
	}
	var empty []string
	for k := first; k < first+n; k++ {
		if !used[k] {
			empty = append(empty, prefix+strconv.Itoa(k))
		}
	}
	if len(there)+len(empty) != n {
		return nil // the numbering is another one
	}
	return empty
}

// load tests all targets at once, as a job would use them, and reads them meanwhile.
func (b *burn) load(ctx context.Context, t *tasks, c Check) {
	if t.cfg.BurnIn == nil {
		b.inconclusive("%s: this agent has nothing that could put a device under load", c.Name)
		return
	}
	seconds := c.Seconds
	if b.order.Seconds > 0 {
		seconds = b.order.Seconds
	}
	d := time.Duration(seconds * float64(time.Second))
	ctx, cancel := context.WithTimeout(ctx, 3*d+30*time.Second)
	defer cancel()
	sampled := make(chan struct{})
	sampling, stop := context.WithCancel(ctx)
	go func() {
		defer close(sampled)
		for pause(sampling, min(max(d/4, 10*time.Millisecond), 5*time.Second)) == nil {
			list, _ := t.devices.read(sampling)
			b.peak(list)
		}
	}()
	var wg sync.WaitGroup
	for _, dev := range b.targets {
		wg.Go(func() {
			figures, err := t.cfg.BurnIn.Test(ctx, c.Name, dev, d)
			b.mu.Lock()
			for k, v := range figures {
				b.figures[c.Name+"/"+accelerator.Identity(dev)+"/"+k] = v
			}
			b.mu.Unlock()
			var failure *TestFailure
			switch {
			case err == nil:
				b.pass(c.Name)
			case errors.As(err, &failure):
				b.fail(dev, c.Name, failure.Text)
			case errors.Is(err, context.DeadlineExceeded):
				b.inconclusive("%s on %s did not end within %s", c.Name, accelerator.Identity(dev), 3*d+30*time.Second)
			default:
				b.inconclusive("%s on %s: %v", c.Name, accelerator.Identity(dev), err)
			}
		})
	}
	wg.Wait()
	stop()
	<-sampled
}

// sampling reads the devices for as long as f runs.
func (b *burn) sampling(ctx context.Context, t *tasks, every time.Duration, f func()) {
	ctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for pause(ctx, every) == nil {
			list, _ := t.devices.read(ctx)
			b.peak(list)
		}
	}()
	f()
	stop()
	<-done
}

// tool runs a test program over all targets, and once more by itself where one failed: a single failure may be what the
// test before left behind (DCGM after gpu-burn is known for it), two are the device's own.
func (b *burn) tool(ctx context.Context, t *tasks, c Check) {
	if t.cfg.Tools == nil {
		b.inconclusive("%s: this agent runs no test programs", c.Name)
		return
	}
	if b.order.Seconds > 0 {
		c.Tool.Seconds = b.order.Seconds
	}
	f, err := b.once(ctx, t, c)
	passed := map[string]bool{}
	mark := func(list []agentproto.Device) {
		for _, d := range list {
			passed[accelerator.Identity(d)+d.Slot] = true
		}
	}
	mark(f.Passed)
	if first := f.Failed; len(first) > 0 && ctx.Err() == nil {
		f, err = b.once(ctx, t, c)
		mark(f.Passed)
		for _, x := range f.Failed {
			delete(passed, accelerator.Identity(x.Device)+x.Device.Slot)
			if slices.ContainsFunc(first, func(y burnin.Failure) bool {
				return accelerator.Identity(y.Device)+y.Device.Slot == accelerator.Identity(x.Device)+x.Device.Slot
			}) {
				b.fail(x.Device, c.Name, x.Text+" (twice)")
			}
		}
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		b.inconclusive("%s: %v", c.Name, err)
	case burnin.IsHost(c.Tool.Tool) && len(passed) > 0:
		b.mu.Lock()
		b.passed[c.Name] = len(b.targets) // it stands for all that are in the server
		b.mu.Unlock()
	case !burnin.IsHost(c.Tool.Tool):
		for range passed {
			b.pass(c.Name)
		}
	}
}

// once runs a test program, reading the devices meanwhile, and keeps its evidence and figures.
func (b *burn) once(ctx context.Context, t *tasks, c Check) (f burnin.Findings, err error) {
	load := time.Duration(c.Tool.Seconds * float64(time.Second))
	b.sampling(ctx, t, min(max(load/4, 10*time.Millisecond), 5*time.Second), func() {
		f, err = t.cfg.Tools.Run(ctx, c.Tool, b.order.Model, b.targets)
	})
	if f.Evidence.SHA256 != "" {
		f.Evidence.Test = c.Name
		b.evidence = append(b.evidence, f.Evidence)
	}
	for k, v := range f.Figures {
		b.figures[c.Name+"/"+k] = v
	}
	return f, err
}

func (b *burn) peak(list []agentproto.Device) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range list {
		id := accelerator.Identity(d)
		if b.peaks[id] == nil {
			b.peaks[id] = map[string]float64{}
		}
		for k, v := range d.Samples {
			if old, ok := b.peaks[id][k]; !ok || v > old {
				b.peaks[id][k] = v
			}
		}
	}
}

// under is a metric's highest value under load. applies is false where the device says that it can't tell it.
func (b *burn) under(d agentproto.Device, metric string) (v float64, known, applies bool) {
	if slices.Contains(d.NotApplicable, metric) {
		return 0, false, false
	}
	v, known = b.peaks[accelerator.Identity(d)][metric]
	return v, known, true
}

// idle reports whether no reading found the device at work.
func (b *burn) idle(d agentproto.Device) bool {
	v, known, _ := b.under(d, accelerator.Utilization)
	return known && v < 0.1
}

func (b *burn) thermal(c Check) {
	lo, hi := map[string]float64{}, map[string]float64{}
	hottest := map[string]agentproto.Device{}
	for _, d := range b.targets {
		v, known, applies := b.under(d, accelerator.Temperature)
		if !applies {
			b.pass(c.Name)
			continue
		}
		if !known {
			b.inconclusive("%s: %s tells no temperature", c.Name, accelerator.Identity(d))
			continue
		}
		b.figures[c.Name+"/"+accelerator.Identity(d)+"/celsius"] = v
		if l, ok, _ := b.under(d, accelerator.TemperatureLimit); ok && v >= l {
			b.fail(d, c.Name, fmt.Sprintf("%.0f °C under load; it slows down at %.0f °C", v, l))
			continue
		}
		if old, ok := lo[d.Model]; !ok || v < old {
			lo[d.Model] = v
		}
		if old, ok := hi[d.Model]; !ok || v > old {
			hi[d.Model], hottest[d.Model] = v, d
		}
		b.pass(c.Name)
	}
	for model, h := range hi {
		if spread := h - lo[model]; spread > maxSpread {
			b.fail(hottest[model], c.Name, fmt.Sprintf("%.0f °C under load, %.0f °C more than the coolest beside it; %d is allowed", h, spread, maxSpread))
		}
	}
}

func (b *burn) links(c Check) {
	for _, d := range b.targets {
		ok := true
		for _, l := range []struct{ now, want, what string }{
			{accelerator.PCIeWidth, accelerator.PCIeWidthMax, "PCIe lanes"},
			{accelerator.PCIeGen, accelerator.PCIeGenMax, "PCIe generation"},
			{accelerator.LinksUp, accelerator.LinksTotal, "fabric links"},
		} {
			v, known, applies := b.under(d, l.now)
			want, knownWant, appliesWant := b.under(d, l.want)
			switch {
			case !applies || !appliesWant:
			case !known || !knownWant:
				ok = false
				b.inconclusive("%s: %s tells no %s", c.Name, accelerator.Identity(d), l.what)
			case v < want && b.idle(d):
				ok = false // an idle link saves power: that says nothing
				b.inconclusive("%s: %s was never read under load", c.Name, accelerator.Identity(d))
			case v < want:
				ok = false
				b.fail(d, c.Name, fmt.Sprintf("%s under load: %.0f of %.0f", l.what, v, want))
			}
		}
		if ok {
			b.pass(c.Name)
		}
	}
}

func (b *burn) counters(c Check, after []agentproto.Device, known bool) {
	for _, old := range b.targets {
		id := accelerator.Identity(old)
		d, there := accelerator.Find(after, id)
		if !known || there && d.Error != "" {
			b.inconclusive("%s: %s could not be read at the end: %s", c.Name, id, d.Error)
			continue
		}
		if !there {
			b.fail(old, c.Name, "it vanished during the burn-in")
			continue
		}
		ok, said := true, 0
		for _, m := range accelerator.ErrorCounters {
			was, k1 := b.before[id].Samples[m]
			is, k2 := d.Samples[m]
			if k1 != k2 {
				ok = false
				b.inconclusive("%s: %s told %s only once", c.Name, id, m)
				continue
			}
			if k1 || slices.Contains(d.NotApplicable, m) {
				said++
			}
			if k1 && is > was {
				ok = false
				b.fail(d, c.Name, fmt.Sprintf("%s grew by %.0f during the burn-in", m, is-was))
			}
		}
		for m, words := range map[string]string{accelerator.RemapFailed: "a row could not be remapped: no spare was left", accelerator.SRAMThreshold: "its own limit of SRAM errors is exceeded"} {
			if d.Samples[m] == 1 && b.before[id].Samples[m] == 1 { // what came meanwhile has grown
				ok = false
				b.fail(d, c.Name, words)
			}
		}
		if said == 0 {
			ok = false
			b.inconclusive("%s: %s tells no error counter", c.Name, id)
		}
		if ok {
			b.pass(c.Name)
		}
	}
}

func (b *burn) pass(check string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.passed[check]++
}

func (b *burn) fail(d agentproto.Device, check, text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed = append(b.failed, agentproto.BurnInFailure{Device: accelerator.Identity(d), Slot: d.Slot, Test: check, Text: text})
}

func (b *burn) inconclusive(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unknown = append(b.unknown, fmt.Sprintf(format, args...))
}

// result judges. Only every check on every device passes; a test that was not run is not one that passed.
func (b *burn) result(suite []Check) (any, string, error) {
	r := agentproto.BurnInResult{Failed: b.failed, Figures: b.figures, Suite: b.suite, Evidence: b.evidence, Tests: []string{}, Devices: []string{}}
	for _, d := range b.targets {
		r.Devices = append(r.Devices, accelerator.Identity(d))
	}
	for _, c := range suite {
		if b.passed[c.Name] > 0 || slices.ContainsFunc(b.failed, func(f agentproto.BurnInFailure) bool { return f.Test == c.Name }) {
			r.Tests = append(r.Tests, c.Name)
		}
	}
	if len(b.failed) > 0 {
		r.Outcome = "failed"
		f := b.failed[0]
		text := fmt.Sprintf("failed: %s: device %s (%s): %s", f.Test, orElse(f.Device, "?"), orElse(f.Slot, "slot unknown"), f.Text)
		if n := len(b.failed) - 1; n > 0 {
			text += fmt.Sprintf(" (and %d more)", n)
		}
		return r, text, nil
	}
	for _, c := range suite {
		if len(b.unknown) == 0 && b.passed[c.Name] < len(b.targets) {
			b.inconclusive("%s was passed by %d of %d devices", c.Name, b.passed[c.Name], len(b.targets))
		}
	}
	if len(b.unknown) == 0 && len(b.targets) == 0 {
		b.inconclusive("there was no device to test")
	}
	if len(b.unknown) > 0 {
		r.Outcome = "inconclusive"
		text := "inconclusive: " + b.unknown[0]
		if n := len(b.unknown) - 1; n > 0 {
			text += fmt.Sprintf(" (and %d more)", n)
		}
		return r, text, nil
	}
	r.Outcome = "passed"
	return r, fmt.Sprintf("passed: %d tests on %d devices", len(suite), len(b.targets)), nil
}
