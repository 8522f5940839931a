package demo_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gpupool/api/contract"
	"gpupool/cmd/gpupool/demo"
	"gpupool/deploy/lab"
	"gpupool/deploy/lab/device"
	"gpupool/schema"
)

// pace is how long the lab under faults waits for what: the times of its rules. wardSlack is how long a busy machine may take over
// anything beside them.
type pace struct {
	heartbeat, silent time.Duration
	watch             time.Duration // every fifth look at a BMC is a long one
	back              time.Duration // for an agent after a power cycle
	hang              time.Duration // of a driver, as the agents of a lab of wardSpeed have it, and a reading's own time
	between           time.Duration // two faults, at most
}

const (
	wardSpeed = 5
	wardSlack = time.Minute
)

// paceOf is for a lab of so many servers on a machine of two cores: what a hundred agents tell is heard at once.
func paceOf(servers int) pace {
	p := pace{heartbeat: 2 * time.Second, silent: 15 * time.Second, watch: 5 * time.Second, back: 20 * time.Second, hang: 45*time.Second/wardSpeed + 10*time.Second, between: 600 * time.Millisecond}
	if servers > 100 {
		p.heartbeat, p.silent, p.watch, p.back, p.between = 10*time.Second, 90*time.Second, time.Minute, 2*time.Minute, 4*time.Second
	}
	return p
}

// coldPlates is the model whose servers are cooled by water, and have detectors of leaks.
const coldPlates = "nvidia-gb200-186gb"

// ailment is a fault of the lab and what has to become of who has it.
type ailment struct {
	kind string
	also device.Kind // a second fault of the same part, which only the way back can show
	// out says that the device, or the server where the fault is a server's, is to be out of scheduling within the rule's own time.
	out    bool
	within func(pace) time.Duration // its rule's time beside the moment at which it is told; nil = none
	vendor schema.Vendor            // "" = any
	model  string                   // "" = any
	server bool                     // it is the server's, not a device's
	passes bool                     // nobody mends it: it ends by itself, or does no harm; the test takes it away
}

// ailments are every kind of fault that the lab knows. Each of lab.Kinds is among them; the test checks that.
var ailments = []ailment{
	{kind: string(device.XID79), out: true, vendor: schema.VendorNVIDIA},
	{kind: string(device.XID48), out: true, vendor: schema.VendorNVIDIA},
	{kind: string(device.ECC), out: true, within: func(p pace) time.Duration { return p.heartbeat }},
	{kind: string(device.RAS), out: true, vendor: schema.VendorAMD},
	{kind: string(device.Thermal), out: true, within: func(p pace) time.Duration { return 2 * p.heartbeat }},
	{kind: string(device.Absent), out: true, within: func(p pace) time.Duration { return 2 * p.heartbeat }},
	{kind: string(device.Hang), out: true, within: func(p pace) time.Duration { return p.hang + 2*p.heartbeat }, server: true},
	{kind: string(device.Link), out: true, within: func(p pace) time.Duration { return 2 * p.heartbeat }},
	{kind: string(device.XID63), out: true, vendor: schema.VendorNVIDIA},
	// Its reset succeeds, and only the proof can tell that it computes wrong results.
	{kind: string(device.XID95), also: device.BurnIn, out: true, vendor: schema.VendorNVIDIA},
	{kind: string(device.XID95), out: true, vendor: schema.VendorNVIDIA},
	{kind: string(device.XID119), out: true, vendor: schema.VendorNVIDIA},
	{kind: string(device.XID74), out: true, vendor: schema.VendorNVIDIA},
	{kind: string(device.Lost), out: true, vendor: schema.VendorNVIDIA},
	{kind: lab.AgentSilent, out: true, within: func(p pace) time.Duration { return p.silent + p.heartbeat }, server: true},
	{kind: "leak", out: true, within: func(p pace) time.Duration { return 5 * p.watch }, server: true, model: coldPlates},

	{kind: string(device.XID31), vendor: schema.VendorNVIDIA, passes: true},
	{kind: string(device.XID94), vendor: schema.VendorNVIDIA, passes: true},
	{kind: string(device.Idle), passes: true},
	{kind: "psu", server: true, passes: true},
	{kind: "fan", server: true, passes: true},
	{kind: lab.BMCDown, server: true, passes: true},
	{kind: lab.NoDHCP, server: true, passes: true},
	{kind: lab.KernelHang, server: true, passes: true},
	{kind: lab.InstallHang, server: true, passes: true},
	{kind: lab.DriveLying, server: true, passes: true},
	{kind: lab.DriveUnsupported, server: true, passes: true},
	// What may be cured by a power cycle does not come back from it.
	{kind: lab.BootHang, also: device.Lost, out: true, vendor: schema.VendorNVIDIA},
}

// inspected are faults of what a server is built of, which only an inspection of it can find, and of which no session of health
// knows: TestEachTroubleOnTheWayInIsToldAndARetrySucceedsOnceItIsLifted deals them.
var inspected = []string{lab.DIMMMissing, lab.NVMeMissing, lab.NVMeNarrow, lab.NICDown, lab.NICSlow, lab.OldFirmware}

// blow is a fault that the test has dealt.
type blow struct {
	ailment
	name, serial string // the server's name; the device's serial, "" = the server as a whole
	slot         string
	at           schema.Instant
	whileOut     bool // the server was out for another one
}

// ward is a lab under load and faults, with an operator and a technician.
type ward struct {
	way
	pace  pace
	rng   *rand.Rand
	mu    sync.Mutex
	blows []blow
	parts atomic.Int64 // new ones, so far
	jobs  atomic.Int64
}

func setting(t *testing.T, name string, def int) int {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return def
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q: want a number from 1", name, s)
	}
	return n
}

// TestFaultsInALabUnderLoad deals faults of every kind that the lab knows, to devices and servers at random, at random moments,
// while jobs run. A technician mends what waits for one, and an operator resets the breakers that open. At its end the record is
// compared with what was dealt: who was faulty was out of scheduling within the time of its rule, who was well was not taken out,
// nothing came back without a burn-in that passed on all of it after its last fault, no limit was exceeded, nothing was placed on
// what was out, and no job failed.
//
// 100 servers and 40 faults are the measure of every run; `make soak-health` is 1,000 and 200.
func TestFaultsInALabUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes")
	}
	for _, kind := range lab.Kinds() {
		if !slices.Contains(inspected, kind) && !slices.ContainsFunc(ailments, func(a ailment) bool { return a.kind == kind || string(a.also) == kind }) {
			t.Fatalf("the lab knows the fault %q, and this test does not deal it", kind)
		}
	}
	servers, faults := setting(t, "GPUPOOL_LAB_SERVERS", 100), setting(t, "GPUPOOL_LAB_FAULTS", 40)
	seed := uint64(setting(t, "GPUPOOL_SEED", int(time.Now().UnixNano()%1e9)+1))
	t.Logf("%d servers, %d faults; GPUPOOL_SEED=%d repeats which, where and when", servers, faults, seed)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(max(15, servers/10))*time.Minute)
	defer cancel()
	dir := t.TempDir()
	file := filepath.Join(dir, "lab.yaml")
	must(t, os.WriteFile(file, []byte(wardLab(servers)), 0o600))
	args := []string{"--lab", file}
	p := paceOf(servers)
	for _, set := range []string{"timing.agent_back=" + p.back.String(), "timing.phone_home=90s", "limits.installs_per_site=1000", "timing.suspect=5s", "timing.power_cut=" + p.silent.String(), "timing.power_rest=1s", "timing.drain=1m", "timing.device_reset=30s", "timing.inventory=30s", "timing.burn_in=2m",
		"timing.heartbeat=" + p.heartbeat.String(), "timing.agent_silent=" + p.silent.String(), "bmc.watch_interval=" + p.watch.String(), "bmc.resets_per_day=-1", "log.level=warn"} {
		args = append(args, "--set", set)
	}
	up, err := demo.Start(ctx, os.Args[0], dir, 0, args...)
	must(t, err)
	defer func() {
		up.Stop()
		if t.Failed() {
			if b, err := os.ReadFile(filepath.Join(dir, "up.log")); err == nil {
				t.Logf("the end of the server's log:\n%s", b[max(0, len(b)-4000):])
			}
		}
	}()
	hands, err := lab.Open(up.Lab)
	must(t, err)
	w := &ward{way: way{t: t, ctx: ctx, up: up, hands: hands}, pace: p, rng: rand.New(rand.NewPCG(seed, 8))}
	w.admit()
	w.treat(faults)
	up.Stop()
	w.audit(filepath.Join(dir, "data", "gpupool.db"))
}

// wardLab is a data centre of racks of eight servers: five with H100, two with MI300X, one with GB200 and water.
func wardLab(servers int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "speed: %d\nservers:\n", wardSpeed)
	for i := range servers {
		kind := "profile: dgx-h100, devices: {model: nvidia-h100-80gb, count: 8}"
		switch {
		case i%8 == 1:
			kind = "profile: gb200, devices: {model: " + coldPlates + ", count: 4}"
		case i%4 == 3:
			kind = "profile: supermicro-mi300x, devices: {model: amd-mi300x-192gb, count: 8}"
		}
		fmt.Fprintf(&b, "  - {name: r%ds%d, rack: r%d, %s}\n", i/8, i%8, i/8, kind)
	}
	return b.String()
}

// servers are all by name, and the names of those with a live cordon.
func (w *ward) servers() (map[string]contract.Server, map[string]bool) {
	w.t.Helper()
	var l contract.ServerList
	w.do(http.MethodGet, "/v1/servers?limit=1000", nil, &l)
	var c contract.CordonList
	w.do(http.MethodGet, "/v1/cordons", nil, &c)
	out, names, cordoned := map[string]contract.Server{}, map[string]string{}, map[string]bool{}
	for _, v := range l.Items {
		out[v.Name], names[v.Id] = v, v.Name
	}
	for _, x := range c.Items {
		cordoned[names[x.Server]] = true
	}
	return out, cordoned
}

// patient waits for what is, for as long as the test has.
func (w *ward) patient(what string, every time.Duration, is func() (bool, string)) {
	w.t.Helper()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for told := time.Now(); ; {
		ok, seen := is()
		if ok {
			return
		}
		if time.Since(told) > 30*time.Second {
			w.t.Logf("waiting for %s: %s", what, seen[:min(len(seen), 2000)])
			told = time.Now()
		}
		select {
		case <-tick.C:
		case <-w.ctx.Done():
			w.t.Fatalf("%s did not come: %s", what, seen)
		}
	}
}

// admit brings every server into the pool, through the whole onboarding.
func (w *ward) admit() {
	w.t.Helper()
	begun := time.Now()
	machines, err := w.hands.State(w.ctx)
	must(w.t, err)
	var enrol bytes.Buffer
	must(w.t, lab.WriteEnrollment(&enrol, machines, "eu-north", "lab"))
	w.do(http.MethodPost, "/v1/servers/bulk", enrol.Bytes(), nil, "Content-Type", "application/yaml")
	for _, m := range machines {
		w.do(http.MethodPost, "/v1/servers/"+m.Name+"/actions/onboard", map[string]any{}, nil)
	}
	w.patient("every server's way into the pool", 2*time.Second, func() (bool, string) {
		count := map[string]int{}
		have, _ := w.servers()
		for name, v := range have {
			count[string(v.Phase)]++
			if v.Failure != nil && v.Failure.Retryable { // the machine is busy: the operator tries once more
				w.t.Logf("%s stopped at %s: %s", name, v.Step, v.Failure.Text)
				if _, err := ask(w.ctx, w.up, http.MethodPost, "/v1/servers/"+name+"/actions/retry", map[string]any{}); err != nil && !schema.Is(err, schema.CodeConflict) {
					w.t.Fatal(err)
				}
			}
		}
		return count[string(schema.PhaseAvailable)] == len(machines), fmt.Sprint(count)
	})
	for _, s := range []contract.NewSpec{
		{Name: "h100x1", Model: "nvidia-h100-80gb", Accelerators: 1, Cpus: 8, MemoryBytes: 128 << 30}, {Name: "h100x4", Model: "nvidia-h100-80gb", Accelerators: 4, Cpus: 32, MemoryBytes: 512 << 30},
		{Name: "h100x8", Model: "nvidia-h100-80gb", Accelerators: 8, Cpus: 96, MemoryBytes: 1 << 40},
		{Name: "mi300x1", Model: "amd-mi300x-192gb", Accelerators: 1, Cpus: 8, MemoryBytes: 128 << 30}, {Name: "mi300x8", Model: "amd-mi300x-192gb", Accelerators: 8, Cpus: 96, MemoryBytes: 1 << 40},
	} {
		w.do(http.MethodPost, "/v1/specs", s, nil)
	}
	w.do(http.MethodPost, "/v1/tenants", contract.NewTenant{Name: "blue", MaxPriority: 100}, nil)
	w.do(http.MethodPost, "/v1/tenants/blue/projects", contract.NewProject{Name: "main"}, nil)
	w.t.Logf("%d servers are in the pool after %s", len(machines), time.Since(begun).Round(time.Second))
}

// treat deals the faults under load, and waits until all is well again.
func (w *ward) treat(faults int) {
	w.t.Helper()
	all, _ := w.servers()
	servers := len(all)
	ctx, cancel := context.WithCancel(w.ctx)
	w.ctx = ctx
	stopLoad := make(chan struct{})
	var load, staff sync.WaitGroup
	defer func() { cancel(); load.Wait(); staff.Wait() }()
	for i := range min(servers/3, 60) {
		rng := rand.New(rand.NewPCG(w.rng.Uint64(), uint64(i)))
		load.Go(func() { w.work(rng, stopLoad) })
	}
	staffCtx, goHome := context.WithCancel(w.ctx)
	for _, do := range []func(context.Context) error{w.technician, w.operator} {
		staff.Go(func() {
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for {
				if err := do(staffCtx); err != nil && staffCtx.Err() == nil && !w.t.Failed() {
					w.t.Errorf("%v", err)
				}
				select {
				case <-tick.C:
				case <-staffCtx.Done():
					return
				}
			}
		})
	}
	begun := time.Now()
	w.deal(faults)
	w.t.Logf("%d faults were dealt within %s", len(w.blows), time.Since(begun).Round(time.Second))
	w.patient("the return of every server", time.Second, func() (bool, string) {
		if w.t.Failed() {
			return true, ""
		}
		out, seen := 0, ""
		have, cordoned := w.servers()
		for name, v := range have {
			if v.Phase != schema.PhaseAvailable || cordoned[name] {
				out++
				seen += fmt.Sprintf("%s %s; ", name, v.Phase)
			}
		}
		waits, seenWaits := w.unseen()
		return out+waits == 0, seen + seenWaits
	})
	w.t.Logf("all are in the pool again after %s", time.Since(begun).Round(time.Second))
	close(stopLoad)
	load.Wait()
	goHome()
	staff.Wait()
	w.t.Logf("%d jobs ran meanwhile", w.jobs.Load())
}

// unseen counts faults whose server was not out yet, and breakers that hold something.
func (w *ward) unseen() (int, string) {
	w.t.Helper()
	machines, err := w.hands.State(w.ctx)
	if err != nil {
		return 1, err.Error()
	}
	n, seen := 0, ""
	for _, m := range machines {
		for _, p := range m.Devices {
			if slices.ContainsFunc(p.Faults, func(k device.Kind) bool { return k != device.Idle }) {
				n++
				seen += fmt.Sprintf("%s %s %v; ", m.Name, p.Slot, p.Faults)
			}
		}
		for _, f := range m.Faults {
			kind, _, _ := strings.Cut(f, " ")
			if slices.ContainsFunc(ailments, func(a ailment) bool { return a.kind == kind && !a.passes }) {
				n++
				seen += fmt.Sprintf("%s %s; ", m.Name, f)
			}
		}
	}
	return n, seen
}

// work keeps one job after the other in the queue; each must complete, however often hardware fails under it.
func (w *ward) work(rng *rand.Rand, stop <-chan struct{}) {
	for w.ctx.Err() == nil && !w.t.Failed() {
		select {
		case <-stop:
			return
		default:
		}
		n := w.jobs.Add(1)
		spec := []string{"h100x1", "h100x1", "h100x4", "h100x8", "mi300x1", "mi300x8"}[rng.IntN(6)]
		var j contract.Job
		call := func(method, path string, body any, header ...string) bool {
			b, err := ask(w.ctx, w.up, method, path, body, header...)
			if err == nil {
				err = json.Unmarshal(b, &j)
			}
			if err != nil && w.ctx.Err() == nil {
				w.t.Errorf("%s %s: %v", method, path, err)
			}
			return err == nil
		}
		ok := call(http.MethodPost, "/v1/jobs", map[string]any{"tenant": "blue", "project": "main", "name": fmt.Sprint("load-", n), "spec": spec, "grace_ms": 500, "requeue_limit": 100,
			"command": []string{lab.Program, fmt.Sprint(1 + rng.IntN(6))}}, "Idempotency-Key", fmt.Sprint("load-", n))
		for ok && !j.State.Ended() {
			ok = call(http.MethodGet, "/v1/jobs/"+j.Id+"?wait=20s", nil)
		}
		if ok && j.State != schema.JobCompleted {
			w.t.Errorf("%s is %s: %s", j.Name, j.State, j.Cause)
		}
	}
}

// deal deals n faults: first one of each kind, then at random. Every sixth meets a server that is out already.
func (w *ward) deal(n int) {
	w.t.Helper()
	var order []ailment
	for len(order) < n {
		more := slices.Clone(ailments)
		w.rng.Shuffle(len(more), func(i, k int) { more[i], more[k] = more[k], more[i] })
		order = append(order, more...)
	}
	var healing sync.WaitGroup
	for i, a := range order[:n] {
		b, ok := w.target(a, i%6 == 5)
		if !ok {
			w.t.Fatalf("no server is left for %s", a.kind)
		}
		if b.serial != "" && a.also != "" {
			must(w.t, w.hands.Fault(w.ctx, b.name, b.serial, string(a.also)))
		}
		on := b.serial
		if slices.Contains([]string{lab.BootHang}, a.kind) {
			on = ""
		}
		must(w.t, w.hands.Fault(w.ctx, b.name, on, a.kind))
		w.mu.Lock()
		w.blows = append(w.blows, b)
		w.mu.Unlock()
		if a.passes {
			after := time.Duration(2000+w.rng.IntN(4000)) * time.Millisecond
			healing.Go(func() {
				select {
				case <-time.After(after):
					if err := w.hands.Clear(w.ctx, b.name, b.serial, a.kind); err != nil {
						w.t.Errorf("clear %s of %s: %v", a.kind, b.name, err)
					}
				case <-w.ctx.Done():
				}
			})
		}
		select {
		case <-time.After(time.Duration(w.rng.Int64N(int64(w.pace.between)))):
		case <-w.ctx.Done():
			w.t.Fatal(context.Cause(w.ctx))
		}
	}
	healing.Wait()
}

// target picks whom a fault meets: a server without one, or one that is out for another.
func (w *ward) target(a ailment, out bool) (blow, bool) {
	w.t.Helper()
	have, cordoned := w.servers()
	machines, err := w.hands.State(w.ctx)
	must(w.t, err)
	w.rng.Shuffle(len(machines), func(i, k int) { machines[i], machines[k] = machines[k], machines[i] })
	for _, wantOut := range []bool{out, false} {
		for _, m := range machines {
			v := have[m.Name]
			isOut := v.Phase != schema.PhaseAvailable || cordoned[m.Name]
			ill := len(m.Faults) > 0 || slices.ContainsFunc(m.Devices, func(p device.Part) bool { return len(p.Faults) > 0 })
			if a.vendor != "" && device.Models[m.Model].Vendor != a.vendor || a.model != "" && a.model != m.Model || isOut != wantOut || !wantOut && ill {
				continue
			}
			b := blow{ailment: a, name: m.Name, at: schema.At(time.Now()), whileOut: isOut}
			if !a.server || a.kind == string(device.Hang) {
				p := m.Devices[w.rng.IntN(len(m.Devices))]
				b.serial, b.slot = p.Serial, p.Slot
			}
			return b, true
		}
	}
	return blow{}, false
}

// technician mends what waits for one: every part of that server that is not well is replaced, what else is wrong is put right.
func (w *ward) technician(ctx context.Context) error {
	b, err := ask(ctx, w.up, http.MethodGet, "/v1/repairs?open=true", nil)
	if err != nil {
		return err
	}
	var list contract.RepairList
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	waiting := list.Items[:0]
	for _, r := range list.Items {
		if r.State == schema.RepairWaiting {
			waiting = append(waiting, r)
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	machines, err := w.hands.State(ctx)
	if err != nil {
		return err
	}
	byID := map[string]lab.ServerState{}
	for _, m := range machines {
		byID[m.Server] = m
	}
	for _, r := range waiting {
		m, done := byID[r.Server], contract.RepairDone{Note: "looked, and mended what was wrong"}
		for _, p := range m.Devices {
			if !slices.ContainsFunc(p.Faults, func(k device.Kind) bool { return k != device.Idle }) {
				continue
			}
			serial := fmt.Sprintf("SPARE-%d", w.parts.Add(1))
			if err := w.hands.Replace(ctx, m.Name, p.Slot, serial); err != nil {
				return err
			}
			if p.Serial == r.OldSerial {
				done.OldSerial, done.NewSerial = p.Serial, serial
			}
		}
		for _, f := range m.Faults {
			kind, unit, _ := strings.Cut(f, " ")
			if err := w.hands.Clear(ctx, m.Name, unit, kind); err != nil {
				return err
			}
		}
		if _, err := ask(ctx, w.up, http.MethodPost, "/v1/repairs/"+r.ID+"/actions/done", done); err != nil && !schema.Is(err, schema.CodeConflict) {
			return fmt.Errorf("done with %s: %w", r.ID, err)
		}
	}
	return nil
}

// operator resets what has opened: in this lab a person knows that the faults have nothing in common.
func (w *ward) operator(ctx context.Context) error {
	b, err := ask(ctx, w.up, http.MethodGet, "/v1/health/breakers", nil)
	if err != nil {
		return err
	}
	var list contract.BreakerList
	if err := json.Unmarshal(b, &list); err != nil {
		return err
	}
	for _, x := range list.Items {
		if _, err := ask(ctx, w.up, http.MethodPost, "/v1/health/breakers/"+x.ID+"/actions/reset", contract.WithReason{Reason: "each of them failed by itself"}); err != nil {
			return fmt.Errorf("reset of %s: %w", x.Scope, err)
		}
	}
	return nil
}
