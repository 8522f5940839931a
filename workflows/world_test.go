package workflows_test

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.temporal.io/sdk/interceptor"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.uber.org/goleak"

	"gpupool/activities/bmc"
	"gpupool/activities/bmc/credential"
	"gpupool/activities/bmc/record"
	"gpupool/activities/health"
	"gpupool/activities/install"
	"gpupool/activities/install/bootstore"
	"gpupool/activities/install/profiles"
	"gpupool/activities/node"
	"gpupool/activities/temporalerr"
	lab "gpupool/deploy/lab/bmc"
	"gpupool/pxe/boot"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/hardware"
	"gpupool/schema/secret"
	"gpupool/schema/store"
	"gpupool/workflows"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		// The recording build has a Temporal server in it, which leaves goroutines behind at its stop. gorm's cache of
		// prepared statements has one that nothing can end.
		if err := goleak.Find(goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"), goleak.IgnoreTopFunction("gorm.io/gorm/internal/lru.NewLRU[...].func1")); err != nil && !recording {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// world is one server in a data centre of its own: a record, a BMC that speaks Redfish, a machine behind it that boots
// what the record says it may, and an agent on its disk. Only the clock is the test's.
type world struct {
	t      testing.TB
	db     *store.Store
	keys   *secret.Ring
	boots  *bootstore.Store
	bmc    *lab.Server
	server schema.Server
	signal func(name string, arg any) // to server/<id>

	install *install.Activities
	node    *node.Activities
	health  *health.Activities
	site    *bmc.Activities

	mu        sync.Mutex
	changed   *sync.Cond // of power
	on        bool
	installs  int // how often the disk was wiped
	starts    int // how often an installed system started
	installed bool
	agentUp   bool
	drives    []schema.DriveResult // as a sanitise run tells of them
	shown     []schema.DriveResult // as the BMC tells of them
	sanitised int                  // how often one ran
	order     schema.SanitiseOrder // the last one's
	devices   []agentproto.Device
	parts     hardware.Read   // as the agent reads them
	tasks     map[string]bool // that the agent was given
	// What goes wrong; nil or false = nothing.
	dead     bool // no boot at all
	hung     bool // the installed system's agent says nothing
	evidence []schema.BootEvidence
	onceIn   func()
	answer   func(agentproto.Task) *agentproto.TaskReport // nil answer: the task never ends
}

// quick is for a BMC that switches in milliseconds.
var quick = bmc.Timing{Dial: 5 * time.Second, Call: 5 * time.Second, BulkCall: 10 * time.Second, Poll: 2 * time.Millisecond, Graceful: 100 * time.Millisecond,
	PowerChange: 4 * time.Second, PowerRetry: 60 * time.Millisecond, Settle: 2 * time.Millisecond, POSTWindow: 2 * time.Second, ReadBack: 250 * time.Millisecond, Busy: time.Second, TaskLost: time.Second}

const model = "nvidia-h100-80gb"

// newWorld enrols a server with eight accelerators. clock may be nil for the wall's.
func newWorld(t testing.TB, clock func() time.Time, timing install.Timing, repairs health.Timing) *world {
	t.Helper()
	w := &world{t: t, tasks: map[string]bool{}, signal: func(string, any) {}}
	w.changed = sync.NewCond(&w.mu)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	db, err := store.Open(context.Background(), store.Config{Driver: "sqlite", DSN: filepath.Join(t.TempDir(), "gpupool.db"), Clock: clock, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { must(t, db.Close()) })
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		t.Fatal(err)
	}
	if w.keys, err = secret.Parse("k1 " + base64.StdEncoding.EncodeToString(key)); err != nil {
		t.Fatal(err)
	}
	profile, err := lab.ByName(lab.DGXH100)
	if err != nil {
		t.Fatal(err)
	}
	w.on = true
	w.bmc = lab.New(profile, lab.Hooks{PowerOn: w.powerOn, PowerOff: w.powerOff}, lab.WithIdentity(lab.Identity{Serial: "SN-1"}), lab.WithPower(true))
	must(t, w.bmc.Start())
	t.Cleanup(func() { must(t, w.bmc.Close()) })
	user, password := w.bmc.Credential()
	servers, err := db.EnrollServers(context.Background(), "test", w.keys, []store.NewServer{{Name: "r1s1", Region: "north", Site: "hall-1", Rack: "r1", Unit: 4, Serial: "SN-1",
		MACs: []string{"0c:42:a1:00:00:01"}, BMCAddress: w.bmc.URL(), BMCUsername: user, BMCPassword: password, Model: model, Accelerators: 8, CPUs: 112, MemoryBytes: 2 << 40}})
	if err != nil {
		t.Fatal(err)
	}
	w.db, w.server, w.boots = db, servers[0], bootstore.New(db, time.Hour)
	w.devices, w.parts = newDevices(), newParts()
	if _, err := db.SetBuild(context.Background(), "test", model, ordered); err != nil {
		t.Fatal(err)
	}
	pool := bmc.NewPool(bmc.Config{Timing: quick, Log: log})
	t.Cleanup(func() { must(t, pool.Close(context.Background())) })
	w.site = &bmc.Activities{Store: db, Pool: pool, Credential: credential.NewStore(record.Rows{Store: db}, w.keys).For}
	w.install = &install.Activities{Store: db, Timing: timing}
	w.node = &node.Activities{Store: db}
	w.health = &health.Activities{Store: db, Timing: repairs}
	return w
}

func newDevices() []agentproto.Device {
	var all []agentproto.Device
	for i := range 8 {
		all = append(all, agentproto.Device{Vendor: schema.VendorNVIDIA, Model: model, Serial: fmt.Sprintf("GPU-%d", i+1), UUID: fmt.Sprintf("uuid-%d", i+1),
			PCI: fmt.Sprintf("0000:%02x:00.0", i+1), Slot: fmt.Sprintf("SXM%d", i+1), Index: i, MemoryBytes: 80 << 30, Firmware: "96.00.89.00.01", Samples: map[string]float64{"pcie_link_width": 16}})
	}
	return all
}

// ordered is what the server was ordered with, and newParts what it has.
var ordered = []hardware.Line{{Part: hardware.DIMM, Count: 2, Bytes: 1 << 40}, {Part: hardware.NVMe, Count: 2, Bytes: 3_840_000_000_000, Lanes: 4, Firmware: ">=GDC7302Q"},
	{Part: hardware.NIC, Count: 2, Gbps: 400, Lanes: 16, Firmware: ">=28.43"}, {Part: hardware.Accelerator, Count: 8, Lanes: 16, Firmware: "96.00.89.00.01"}, {Part: hardware.BIOS, Count: 1, Firmware: ">=1.0"},
	{Part: hardware.BMC, Count: 1, Firmware: ">=1.0"}}

func newParts() hardware.Read {
	r := hardware.Read{Parts: []hardware.Part{{Kind: hardware.BIOS, Name: "the system", Firmware: "1.6.7"}}}
	for i := range 2 {
		r.Parts = append(r.Parts, hardware.Part{Kind: hardware.DIMM, Name: fmt.Sprintf("DIMM%d", i), Bytes: 1 << 40},
			hardware.Part{Kind: hardware.NVMe, Name: fmt.Sprintf("nvme%d", i), Bytes: 3_840_755_982_336, Lanes: 4, Firmware: "GDC7302Q"},
			hardware.Part{Kind: hardware.NIC, Name: fmt.Sprintf("mlx5_%d/1", i), Gbps: 400, Lanes: 16, Firmware: "28.43.2026"})
	}
	return r
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// powerOff and powerOn are what the BMC does to the machine.
func (w *world) powerOff(bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.on, w.agentUp = false, false
	w.changed.Broadcast()
}

func (w *world) powerOn(b lab.Boot) {
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.on = true
		w.changed.Broadcast()
	}()
	w.mu.Lock()
	dead, seen := w.dead, w.evidence
	w.mu.Unlock()
	ctx := context.Background()
	if len(seen) > 0 {
		for i := range seen {
			seen[i].Server = w.server.ID
		}
		at := make([]time.Time, len(seen))
		for i := range at {
			at[i] = w.db.Now().Time()
		}
		must(w.t, w.boots.Record(ctx, at, seen))
	}
	if dead {
		return
	}
	if b.Network() && w.netboot(ctx) {
		return
	}
	w.bootDisk(ctx)
}

// netboot asks the record, as the boot service does, and installs if it may.
func (w *world) netboot(ctx context.Context) bool {
	m, found, err := w.boots.ByMAC(ctx, w.server.MACs)
	must(w.t, err)
	armed, _ := m.InstallAt(w.db.Now().Time())
	if !found || armed == nil {
		return false
	}
	if armed.Sanitise {
		w.sanitise(ctx, m, armed.Attempt)
		return true
	}
	w.mu.Lock()
	w.installs++
	w.installed = true
	w.mu.Unlock()
	token, err := w.boots.Mint(ctx, m.ID, armed.Attempt, schema.PurposeScript)
	must(w.t, err)
	if _, err := w.boots.Use(ctx, token, install.UserDataName); err != nil {
		w.t.Error(err)
	}
	all, err := profiles.Load("")
	must(w.t, err)
	doc, err := (&install.Installer{Profiles: all, APIURL: "https://api"}).Document(ctx, boot.DocumentRequest{Machine: m, Attempt: armed.Attempt, Name: install.UserDataName,
		PhoneHome: func(ctx context.Context) (string, error) {
			return w.boots.Mint(ctx, m.ID, armed.Attempt, schema.PurposePhoneHome)
		}})
	must(w.t, err)
	var data install.UserData
	must(w.t, json.Unmarshal(doc.Body, &data))
	w.mu.Lock()
	hung := w.hung
	w.mu.Unlock()
	if hung {
		return true
	}
	must(w.t, w.phoneHome(ctx, data.PhoneHome, data.Attempt))
	return true
}

// sanitise is the run that empties the disks, as the record lets it: it takes its order once, and says of each drive what w.drives
// says. Nothing of an agent's identity is given to it.
func (w *world) sanitise(ctx context.Context, m boot.Machine, attempt int) {
	all, err := profiles.Load("")
	must(w.t, err)
	installer := &install.Installer{Profiles: all, APIURL: "https://api", Sanitise: w.db.SanitiseOrder}
	plan, err := installer.Plan(ctx, m)
	must(w.t, err)
	if !strings.Contains(plan.Args, "gpupool.sanitise=1") || strings.Contains(plan.Args, "gpupool.image") {
		w.t.Errorf("it boots %q", plan.Args)
	}
	token, err := w.boots.Mint(ctx, m.ID, attempt, schema.PurposeScript)
	must(w.t, err)
	_, err = w.boots.Check(ctx, token)
	must(w.t, err)
	if _, err := w.boots.Mint(ctx, m.ID, attempt, schema.PurposePhoneHome); !schema.Is(err, schema.CodeStale) {
		w.t.Errorf("a retiring server gets a phone-home token: %v", err)
	}
	ask := func(name string) (boot.Document, error) {
		return installer.Document(ctx, boot.DocumentRequest{Machine: m, Attempt: attempt, Name: name, PhoneHome: func(context.Context) (string, error) {
			w.t.Error("a phone-home token was asked for")
			return "", nil
		}})
	}
	if _, err := ask(install.UserDataName); !errors.Is(err, boot.ErrNoSuch) {
		w.t.Errorf("user data of a sanitise run: %v", err)
	}
	doc, err := ask(schema.SanitiseName)
	must(w.t, err)
	var order schema.SanitiseOrder
	must(w.t, json.Unmarshal(doc.Body, &order))
	must(w.t, w.boots.Record(ctx, []time.Time{w.db.Now().Time()}, []schema.BootEvidence{{Kind: boot.KindReport, Server: m.ID, What: "running"}}))
	w.mu.Lock()
	w.sanitised++
	var told []schema.DriveResult
	for _, d := range w.drives {
		if !slices.Contains(order.Done, d.Serial) {
			told = append(told, d)
		}
	}
	stuck := w.hung
	w.order = order
	w.mu.Unlock()
	if stuck {
		return
	}
	for range 2 { // its answer was lost once
		must(w.t, w.boots.ReportInstall(ctx, m.ID, attempt, schema.InstallReport{State: schema.InstallDone, Text: "over", Drives: told}))
	}
	w.signal(workflows.SignalPhonedHome, workflows.PhonedHome{Attempt: attempt})
}

// phoneHome registers the agent, once more, twice as a lost answer makes it, and tells the process.
func (w *world) phoneHome(ctx context.Context, token string, attempt int) error {
	pub, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	r := agentproto.Register{Server: w.server.ID, Attempt: attempt, PublicKey: base64.StdEncoding.EncodeToString(pub), BootID: w.nextBoot(), Serial: "SN-1", Version: "test"}
	for range 2 {
		if err := w.db.RegisterAgent(ctx, store.HashToken(token), r); err != nil {
			return err
		}
		w.signal(workflows.SignalPhonedHome, workflows.PhonedHome{Attempt: attempt})
	}
	return nil
}

func (w *world) nextBoot() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.starts++
	w.agentUp = true
	return fmt.Sprintf("boot-%d", w.starts)
}

func (w *world) bootDisk(ctx context.Context) {
	w.mu.Lock()
	up := w.installed && !w.hung
	w.mu.Unlock()
	if !up {
		return
	}
	w.nextBoot()
	w.beat(ctx)
	w.signal(workflows.SignalAgentUp, workflows.AgentUp{})
}

// beat is the agent's heartbeat, with what it reads.
func (w *world) beat(ctx context.Context, evidence ...agentproto.Evidence) {
	w.mu.Lock()
	h := agentproto.Heartbeat{Apart: true, BootID: fmt.Sprintf("boot-%d", w.starts), Devices: slices.Clone(w.devices), Evidence: evidence}
	w.mu.Unlock()
	_, err := w.db.Heartbeat(ctx, w.server.ID, h)
	must(w.t, err)
}

// settled waits until the machine has followed its BMC.
func (w *world) settled(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.on != on {
		w.changed.Wait()
	}
}

// agentTurn is the agent at work: it takes what there is and tells what came of it.
func (w *world) agentTurn(ctx context.Context) {
	w.mu.Lock()
	up, answer := w.agentUp && !w.hung, w.answer
	w.mu.Unlock()
	if !up {
		return
	}
	w.beat(ctx)
	tasks, err := w.db.ClaimTasks(ctx, w.server.ID)
	must(w.t, err)
	for _, t := range tasks {
		if w.took(t) {
			continue
		}
		var r *agentproto.TaskReport
		if answer != nil {
			r = answer(t)
		} else {
			r = w.goodAnswer(t)
		}
		if r == nil {
			continue
		}
		r.Task, r.Seq = t.ID, 1
		_, err := w.db.Report(ctx, w.server.ID, agentproto.Report{Tasks: []agentproto.TaskReport{*r}})
		must(w.t, err)
		for range 2 { // delivered at least once
			w.signal(workflows.SignalTaskEnded, workflows.TaskEnded{Task: t.ID, Kind: t.Kind, State: r.State})
		}
	}
}

// took reports whether the agent has had the task before: it does each once, however often it is given out.
func (w *world) took(t agentproto.Task) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := fmt.Sprint(t.ID, t.Stop)
	if w.tasks[key] {
		return true
	}
	w.tasks[key] = true
	return false
}

// goodAnswer is what a healthy server's agent answers.
func (w *world) goodAnswer(t agentproto.Task) *agentproto.TaskReport {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &agentproto.TaskReport{State: schema.TaskDone, NoneLeft: true, Text: "did " + string(t.Kind)}
	switch t.Kind {
	case schema.TaskInventory:
		r.Result = marshal(agentproto.Inventory{Serial: "SN-1", Devices: w.devices, Hardware: &w.parts})
	case schema.TaskBurnIn:
		res := agentproto.BurnInResult{Outcome: "passed", Tests: []string{"memory", "compute"}}
		var order agentproto.BurnIn
		must(w.t, json.Unmarshal(t.Payload, &order))
		for _, d := range w.devices {
			if len(order.Only) == 0 || slices.Contains(order.Only, d.Serial) {
				res.Devices = append(res.Devices, d.Serial)
			}
		}
		r.Result = marshal(res)
	default: // the rest has no result
	}
	return r
}

func marshal(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// siteActs and agentActs are the product's own activities, after which the test waits for the machine or lets the agent
// work: time in the test's environment jumps whenever no activity runs.
type siteActs struct {
	*bmc.Activities
	w *world
}

func (a *siteActs) PowerOff(ctx context.Context, act bmc.Act) (string, error) {
	s, err := a.Activities.PowerOff(ctx, act)
	if err == nil {
		a.w.settled(false)
	}
	return s, err
}

func (a *siteActs) PowerOn(ctx context.Context, act bmc.Act) (string, error) {
	s, err := a.Activities.PowerOn(ctx, act)
	if err == nil {
		a.w.settled(true)
	}
	return s, err
}

// Drives are those that the test says the BMC shows; nil = what it really does.
func (a *siteActs) Drives(ctx context.Context, server string) ([]schema.DriveResult, error) {
	if a.w.shown != nil {
		return a.w.shown, nil
	}
	return a.Activities.Drives(ctx, server)
}

type agentActs struct {
	*node.Activities
	w *world
}

func (a *agentActs) AskAgent(ctx context.Context, in node.Ask) (node.State, error) {
	s, err := a.Activities.AskAgent(ctx, in)
	if err == nil && !s.Ended {
		a.w.agentTurn(ctx)
	}
	return s, err
}

// installActs lets a test do something at the moment in which the server has come into the pool.
type installActs struct {
	*install.Activities
	w *world
}

func (a *installActs) FinishOnboarding(ctx context.Context, in install.EndInput) (schema.StepOutcome, error) {
	out, err := a.Activities.FinishOnboarding(ctx, in)
	if f := a.w.onceIn; err == nil && f != nil {
		f()
	}
	return out, err
}

func (w *world) register(core, site worker.Registry) {
	core.RegisterWorkflow(workflows.OnboardServer)
	core.RegisterWorkflow(workflows.RepairServer)
	core.RegisterWorkflow(workflows.RetireServer)
	core.RegisterActivity(&installActs{w.install, w})
	core.RegisterActivity(w.health)
	core.RegisterActivity(&agentActs{w.node, w})
	site.RegisterActivity(&siteActs{w.site, w})
}

// env is a world whose time is skipped.
type env struct {
	*world
	*testsuite.TestWorkflowEnvironment
	runs bool // the workflow: before that nobody takes a signal
}

func newEnv(t *testing.T, with ...interceptor.WorkerInterceptor) *env {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError})))
	e := suite.NewTestWorkflowEnvironment()
	e.SetStartTime(time.Date(2026, 3, 1, 8, 0, 0, 0, time.UTC))
	e.SetTestTimeout(20 * time.Second)
	e.SetWorkerOptions(worker.Options{Interceptors: with})
	w := newWorld(t, e.Now, install.Timing{}, health.Timing{})
	w.signal = e.SignalWorkflow
	w.register(envRegistry{e}, envRegistry{e})
	return &env{world: w, TestWorkflowEnvironment: e}
}

// envRegistry lets the environment stand for a worker.
type envRegistry struct {
	*testsuite.TestWorkflowEnvironment
}

// verb is a person's update and what came of it.
type verb struct {
	rejected error
	done     bool
	err      error
}

// say sends an update once d has passed.
func (e *env) say(d time.Duration, name string, arg any) *verb {
	v := &verb{}
	e.RegisterDelayedCallback(func() {
		e.UpdateWorkflow(name, fmt.Sprintf("%s-%s", name, d), &testsuite.TestUpdateCallback{
			OnReject: func(err error) { v.rejected = err }, OnAccept: func() {}, OnComplete: func(_ any, err error) { v.done, v.err = true, err },
		}, arg)
	}, d)
	return v
}

// sayAtOnce sends the same update n times in one moment.
func (e *env) sayAtOnce(d time.Duration, n int, name string, arg any) []*verb {
	verbs := make([]*verb, n)
	for i := range verbs {
		verbs[i] = &verb{}
	}
	e.RegisterDelayedCallback(func() {
		for i, v := range verbs {
			e.UpdateWorkflow(name, fmt.Sprintf("%s-%s-%d", name, d, i), &testsuite.TestUpdateCallback{
				OnReject: func(err error) { v.rejected = err }, OnAccept: func() {}, OnComplete: func(_ any, err error) { v.done, v.err = true, err },
			}, arg)
		}
	}, d)
	return verbs
}

// oneTaken fails the test unless exactly one of the verbs was taken and the others were refused as conflicts.
func oneTaken(t testing.TB, what string, verbs []*verb) {
	t.Helper()
	taken := 0
	for _, v := range verbs {
		switch {
		case v.done && v.err == nil:
			taken++
		case !schema.Is(temporalerr.Unwrap(cmp.Or(v.rejected, v.err)), schema.CodeConflict):
			t.Errorf("%s was answered %+v, want a conflict", what, v)
		}
	}
	if taken != 1 {
		t.Errorf("%s: %d of %d were taken, want one", what, taken, len(verbs))
	}
}

// at runs f once d has passed.
func (e *env) at(d time.Duration, f func()) { e.RegisterDelayedCallback(f, d) }

func (e *env) now(t testing.TB) schema.Server {
	t.Helper()
	v, err := e.db.Server(t.Context(), e.server.ID)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (e *env) stepOf(t testing.TB, name schema.Step) schema.StepRun {
	t.Helper()
	runs, err := e.db.StepRuns(t.Context(), e.server.ID, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range runs {
		if r.Step == name {
			return r
		}
	}
	return schema.StepRun{}
}

// inPool brings the server into the pool, as a finished onboarding leaves it.
func (w *world) inPool(t testing.TB) {
	t.Helper()
	ctx := t.Context()
	signal := w.signal // no process runs yet
	w.signal = func(string, any) {}
	defer func() { w.signal = signal }()
	v, err := w.db.BeginOnboarding(ctx, w.server.ID, "ann")
	if err != nil {
		t.Fatal(err)
	}
	must(t, w.db.Arm(ctx, v.ID, v.Attempt, time.Hour, 0))
	token, err := w.boots.Mint(ctx, v.ID, v.Attempt, schema.PurposePhoneHome)
	must(t, err)
	must(t, w.phoneHome(ctx, token, v.Attempt))
	w.installed = true
	w.beat(ctx)
	must(t, w.db.SetStep(ctx, v.ID, v.Attempt, schema.StepBurnIn, schema.StepDone, "passed"))
	must(t, w.db.FinishOnboarding(ctx, v.ID, v.Attempt))
}

// runJob gives all eight accelerators to a job that runs.
func (w *world) runJob(t testing.TB) schema.Job {
	t.Helper()
	ctx := t.Context()
	_, err := w.db.CreateTenant(ctx, "ann", "ml", 100)
	must(t, err)
	_, err = w.db.CreateProject(ctx, "ann", "ml", "vision")
	must(t, err)
	_, err = w.db.CreateSpec(ctx, "ann", store.NewSpec{Name: "h100x8", Model: model, Accelerators: 8, CPUs: 64, MemoryBytes: 1 << 40})
	must(t, err)
	j, _, err := w.db.SubmitJob(ctx, "bob", "", "", store.NewJob{Tenant: "ml", Project: "vision", Name: "train", Spec: "h100x8", Nodes: 1, Region: "north", Command: []string{"train"}})
	if err != nil {
		t.Fatal(err)
	}
	all, err := w.db.Accelerators(ctx, store.AcceleratorFilter{Server: w.server.ID})
	must(t, err)
	place := store.Place{Server: w.server.ID}
	for _, a := range all {
		place.Accelerators = append(place.Accelerators, a.ID)
	}
	epoch, err := w.db.TakeEpoch(ctx, "north", "test")
	must(t, err)
	refused, err := w.db.CommitCycle(ctx, "north", epoch, store.Cycle{Number: 1, Starts: []store.Start{{Job: j.ID, Attempt: 1, Places: []store.Place{place}}}})
	if err != nil || len(refused) > 0 {
		t.Fatal(refused, err)
	}
	must(t, w.db.DispatchAttempt(ctx, j.ID, 1))
	tasks, err := w.db.ClaimTasks(ctx, w.server.ID)
	must(t, err)
	for _, task := range tasks {
		w.took(task)
		_, err := w.db.Report(ctx, w.server.ID, agentproto.Report{Tasks: []agentproto.TaskReport{{Task: task.ID, Seq: 1, State: schema.TaskRunning}}})
		must(t, err)
	}
	return j
}

// endJob is the job's process when its attempt has ended: it settles, and so gives the accelerators back.
func (w *world) endJob(t testing.TB, j schema.Job) {
	t.Helper()
	tasks, err := w.db.JobTasks(t.Context(), j.ID, 1)
	must(t, err)
	for _, task := range tasks { // the agent has killed what was left
		_, err := w.db.Report(t.Context(), w.server.ID, agentproto.Report{Tasks: []agentproto.TaskReport{{Task: task.ID, Seq: task.Seq + 1, State: schema.TaskCancelled, NoneLeft: true}}})
		must(t, err)
	}
	_, err = w.db.SettleAttempt(t.Context(), j.ID, 1, nil)
	must(t, err)
	w.signal(workflows.SignalDrained, workflows.Drained{})
}

// fail has the agent report on SXM3 what only a new part mends, and the fault judged, as the delivery does.
func (w *world) fail(t testing.TB) schema.Repair {
	t.Helper()
	w.beat(t.Context(), agentproto.Evidence{Device: "GPU-3", Kind: "xid", Code: "64", Severity: schema.SeverityCritical, Text: "row remapper: no spare is left", At: w.db.Now(), ID: "boot-1/kmsg/1"})
	return w.judged(t)
}

func (w *world) judged(t testing.TB) schema.Repair {
	t.Helper()
	faults, err := w.db.Faults(t.Context(), w.server.ID)
	must(t, err)
	for _, f := range faults {
		must(t, health.Judge(t.Context(), w.db, f.ID))
	}
	r, ok, err := w.db.OpenRepair(t.Context(), w.server.ID)
	if err != nil || !ok {
		t.Fatalf("no repair was opened: %v", err)
	}
	return r
}

// swap is the technician's hands: the device in a slot gets another serial.
func (w *world) swap(slot, serial string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.devices {
		if w.devices[i].Slot == slot {
			w.devices[i].Serial, w.devices[i].UUID = serial, "uuid-"+serial
		}
	}
}
