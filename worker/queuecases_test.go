package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gpupool/activities/cluster/kube/kubetest"
	"gpupool/activities/cluster/slurm/slurmtest"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
	"gpupool/worker"
	"gpupool/worker/agent"
	"gpupool/worker/agent/accelerator"
)

// The cases of docs/explanation/queue-cases.md that a backend has a part in, through a whole process with its real allocator,
// on each backend: one suite, run on a real Slurm, on a real Kubernetes, and on a server's own agent.

func TestQueueCasesOnSlurm(t *testing.T) {
	c := slurmtest.Start(t, []string{"h1"}, nil, 8)
	b := newBackend(t, fmt.Sprintf("[{name: alps, kind: slurm, url: '%s', jwt_key_file: %s, user: %s, conf: %s, partition: pool, log_dir: %s}]", c.URL, c.KeyFile, c.User, c.Conf, c.LogDir))
	b.server("h1", "slurm", "alps")
	b.hold = func() { c.Must("scontrol", "update", "partitionname=pool", "state=down") }
	b.release = func() { c.Must("scontrol", "update", "partitionname=pool", "state=up") }
	b.away = func() { c.Saved(); c.Kill("slurmctld") }
	b.back = c.StartController
	queueCases(t, b)
}

func TestQueueCasesOnKubernetes(t *testing.T) {
	c := kubetest.Start(t)
	var devices []string
	for _, d := range storetest.Devices("k1", h100, 8) {
		devices = append(devices, d.UUID)
	}
	c.Node("k1", devices)
	b := newBackend(t, fmt.Sprintf("[{name: prod, kind: kubernetes, kubeconfig: %s, image: 'example.net/train:1'}]", c.Kubeconfig))
	b.server("k1", "kubernetes", "prod")
	b.hold = func() { c.Kill("scheduler") }
	b.release = func() { c.StartScheduler(500) }
	b.away = func() { c.Kill("apiserver") }
	b.back = c.StartAPI
	queueCases(t, b)
}

func TestQueueCasesOnAServersAgent(t *testing.T) {
	b := newBackend(t, "")
	s := b.process.Store
	as := storetest.NewServer(1, h100, 8)
	in, err := s.EnrollServers(t.Context(), "test", storetest.Ring(t), []store.NewServer{as})
	b.must(err)
	v, err := s.BeginOnboarding(t.Context(), in[0].ID, "test")
	b.must(err)
	b.must(s.Arm(t.Context(), v.ID, v.Attempt, time.Hour, 0))
	b.must(s.MintBootToken(t.Context(), v.ID, v.Attempt, schema.PurposePhoneHome, store.HashToken("once"), time.Hour))
	cfg := agent.Config{
		PhoneHome: agent.PhoneHome{Server: v.ID, Attempt: v.Attempt, API: b.process.URL, Token: "once"}, StateDir: filepath.Join(t.TempDir(), "agent"), Version: "test",
		Readers: []accelerator.Reader{gpus(storetest.Devices(as.Name, h100, 8))}, Settle: -1, Progress: 50 * time.Millisecond, RetryMin: 10 * time.Millisecond, RetryMax: 200 * time.Millisecond,
		Log:     slog.New(slog.DiscardHandler),
		Runtime: func(context.Context) (string, error) { return "containerd 2.1.4", nil },
		Machine: func() agent.Machine {
			return agent.Machine{BootID: "boot-1", Serial: as.Serial, Hostname: as.Name, CPUs: as.CPUs, MemoryBytes: as.MemoryBytes}
		},
	}
	var stop func()
	b.release = func() {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := agent.New(cfg).Run(ctx); err != nil && ctx.Err() == nil {
				t.Errorf("the agent: %v", err)
			}
		}()
		stop = sync.OnceFunc(func() { cancel(); <-done })
	}
	b.hold = func() { stop() }
	b.release()
	t.Cleanup(func() { stop() })
	b.until("the agent has told its devices", func() bool {
		a, err := b.process.Store.Accelerators(t.Context(), store.AcceleratorFilter{Server: v.ID})
		return err == nil && len(a) == 8
	})
	b.must(s.SetStep(t.Context(), v.ID, v.Attempt, schema.StepBurnIn, schema.StepRunning, "testing"))
	b.must(s.SetStep(t.Context(), v.ID, v.Attempt, schema.StepBurnIn, schema.StepDone, "passed"))
	b.must(s.FinishOnboarding(t.Context(), v.ID, v.Attempt))
	b.name = v.ID
	queueCases(t, b)
}

// gpus are devices that are well.
type gpus []agentproto.Device

func (g gpus) Vendor() schema.Vendor                               { return schema.VendorNVIDIA }
func (g gpus) Driver(context.Context) (string, error)              { return "570.86.15", nil }
func (g gpus) Read(context.Context) ([]agentproto.Device, error)   { return g, nil }
func (g gpus) Watch(context.Context, func(accelerator.Sign)) error { return nil }

// backend is a process, and one server of eight accelerators of one backend.
type backend struct {
	*testing.T
	dir, clusters, listen string
	process               *worker.Process
	name, kind, cluster   string

	hold, release func() // what it was given is not begun until release
	away, back    func() // it does not answer; nil = it can't be told from hold
}

func newBackend(t *testing.T, clusters string) *backend {
	l, err := net.Listen("tcp", "127.0.0.1:0") // the agent finds the process that comes after where this one was
	if err != nil {
		t.Fatal(err)
	}
	b := &backend{T: t, dir: t.TempDir(), clusters: clusters, listen: l.Addr().String(), kind: "node"}
	b.must(l.Close())
	b.start()
	t.Cleanup(func() { b.process.Stop() })
	s := b.process.Store
	for _, n := range []int{1, 2, 4, 8} {
		_, err := s.CreateSpec(t.Context(), "test", store.NewSpec{Name: fmt.Sprint("x", n), Model: h100, Accelerators: int64(n), CPUs: int64(n), MemoryBytes: int64(n) << 28})
		b.must(err)
	}
	_, err = s.CreateTenant(t.Context(), "test", "blue", 100)
	b.must(err)
	_, err = s.CreateProject(t.Context(), "test", "blue", "main")
	b.must(err)
	return b
}

func (b *backend) start() {
	b.Helper()
	set := []string{"data_dir=" + b.dir, "regions=eu", "roles=api,worker,allocator", "api.listen=" + b.listen, "durability=normal", "timing.heartbeat=1s"}
	if b.clusters != "" {
		// No agent runs on the cluster's server: that it is silent is not what these cases are about.
		set = append(set, "clusters="+b.clusters, "timing.agent_silent=1h", "timing.power_cut=2h")
	}
	b.process = startWith(b.T, set...)
}

func (b *backend) server(name, kind, cluster string) {
	in := storetest.NewServer(1, h100, 8)
	in.Name, in.Backend, in.Cluster = name, kind, cluster
	b.name, b.kind, b.cluster = storetest.AvailableAs(b.T, b.process.Store, in).ID, kind, cluster
}

func (b *backend) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// in is the backend as a subtest has it: when that ends, no job is live and nothing is held.
func (b *backend) in(t *testing.T) *backend {
	of := *b
	of.T = t
	return &of
}

func (b *backend) submit(spec, command string, change func(*store.NewJob)) schema.Job {
	b.Helper()
	in := store.NewJob{Tenant: "blue", Project: "main", Name: "test", Spec: spec, Nodes: 1, Command: []string{"bash", "-c", command}, Grace: time.Minute, TimeLimit: time.Hour}
	if change != nil {
		change(&in)
	}
	j, _, err := b.process.Store.SubmitJob(context.Background(), "test", "", "", in)
	b.must(err)
	return j
}

func (b *backend) job(id string) schema.Job {
	b.Helper()
	j, err := b.process.Store.Job(context.Background(), id)
	b.must(err)
	return j
}

// reason is why a job waits, with its numbers; it never is none.
func (b *backend) reason(id string) (code schema.ReasonCode, detail map[string]any) {
	b.Helper()
	j := b.job(id)
	doc, waits := store.Reason(j.Reason)
	if !waits {
		if j = b.job(id); j.State == schema.JobQueued || j.State == schema.JobStarting {
			b.Fatalf("job %s is %s and has no reason", id, j.State)
		}
		return "", nil
	}
	if len(doc.Detail) > 0 {
		b.must(json.Unmarshal(doc.Detail, &detail))
	}
	return doc.Code, detail
}

// until waits for a condition, for a minute, and tells what is known where it does not come.
func (b *backend) until(what string, ok func() bool) {
	b.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); <-time.After(20 * time.Millisecond) {
		if time.Now().Before(deadline) {
			continue
		}
		jobs, _ := b.process.Store.Jobs(context.Background(), store.JobFilter{Live: true, Limit: 50})
		for _, j := range jobs {
			b.Logf("job %s %s attempt %d: %s %s", j.ID, j.State, j.Attempt, j.Cause, j.Reason)
		}
		cordons, _ := b.process.Store.Cordons(context.Background(), b.name)
		for _, c := range cordons {
			if c.LiftedAt == 0 {
				b.Logf("cordoned by %s %s: %s", c.Owner, c.Accelerator, c.Reason)
			}
		}
		b.Fatal("not within a minute: ", what)
	}
}

func (b *backend) is(id string, state schema.JobState) schema.Job {
	b.Helper()
	var j schema.Job
	b.until(fmt.Sprintf("job %s is %s", id, state), func() bool {
		if j = b.job(id); j.State.Ended() && j.State != state {
			b.Fatalf("job %s is %s after attempt %d, not %s: %s", id, j.State, j.Attempt, state, j.Cause)
		}
		return j.State == state
	})
	return j
}

// dispatching waits until jobs are allocated and wait for the backend.
func (b *backend) dispatching(jobs ...schema.Job) {
	b.Helper()
	for _, j := range jobs {
		b.until("job "+j.ID+" waits for the backend", func() bool { code, _ := b.reason(j.ID); return code == schema.ReasonDispatching })
	}
}

// sums demands that the ledger has each accelerator of each attempt of a job once, for exactly as long as it was held, and
// nothing is held any more; it gives the sum in GPU-milliseconds.
func (b *backend) sums(id string) (sum int64) {
	b.Helper()
	s := b.process.Store
	ctx := context.Background()
	j := b.job(id)
	attempts, err := s.Attempts(ctx, id)
	b.must(err)
	rows, err := s.Ledger(ctx, id)
	b.must(err)
	want := int64(0)
	for i, a := range attempts {
		want += int64(a.ReleasedAt-a.AllocatedAt) * int64(j.PerNode)
		if i > 0 && a.AllocatedAt < attempts[i-1].ReleasedAt {
			b.Errorf("job %s: attempt %d began before the one before it had ended", id, a.Attempt)
		}
	}
	for _, r := range rows {
		sum += r.Milliseconds()
		if r.Start < r.Queued {
			b.Errorf("job %s: %s was paid for from %s, queued at %s", id, r.Accelerator, r.Start, r.Queued)
		}
	}
	if len(rows) != len(attempts)*j.PerNode || sum != want {
		b.Errorf("job %s: the ledger has %d GPU-ms in %d rows, its %d attempts have %d", id, sum, len(rows), len(attempts), want)
	}
	if live, err := s.LiveUsage(ctx, "", "", id); err != nil || len(live) != 0 {
		b.Errorf("job %s is over and uses %+v (%v)", id, live, err)
	}
	return sum
}

func (b *backend) outcomes(id string) (out []schema.AttemptOutcome) {
	b.Helper()
	attempts, err := b.process.Store.Attempts(context.Background(), id)
	b.must(err)
	for _, a := range attempts {
		out = append(out, a.Outcome)
	}
	return out
}

func (b *backend) cancel(jobs ...schema.Job) {
	b.Helper()
	for _, j := range jobs {
		if err := b.process.Store.RequestStop(context.Background(), j.ID, 0, schema.AttemptCancelled, "test", ""); err != nil && !schema.Is(err, schema.CodeConflict) {
			b.Fatal(err)
		}
	}
}

// lines are what jobs have written to a book, sorted by what: how often each.
func lines(t testing.TB, book string) map[string]int {
	t.Helper()
	text, err := os.ReadFile(book)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	out := map[string]int{}
	for line := range strings.Lines(string(text)) {
		out[strings.TrimSpace(line)]++
	}
	return out
}

func touch(t testing.TB, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

func queueCases(t *testing.T, b *backend) {
	type named struct {
		name string
		test func(t *testing.T, b *backend)
	}
	for _, c := range []named{
		{"case 7: a job that is being started counts once", startingCountsOnce},
		{"case 9: wherever a launch breaks its accelerators are free again", launchesThatBreak},
		{"case 15: what the first victim frees is kept", victimsThatEndApart},
		{"case 17 and case 21: an earlier run's end does not touch the next, and each is used once", earlierEnds},
		{"case 18: what waits for a backend says so", whyABackendIsWaitedFor},
		{"case 20: concurrent jobs are not multiplied", concurrentJobs},
		{"case 23: the queue is not billed and what was committed is given back", queueAndBudget},
		{"case 24: a submit that is tried again is one run, whatever restarts", submitsAgain},
	} {
		if !t.Run(c.name, func(t *testing.T) {
			b := b.in(t)
			c.test(t, b)
			live, err := b.process.Store.Jobs(t.Context(), store.JobFilter{Live: true, Limit: 100})
			if b.must(err); len(live) != 0 {
				t.Errorf("%d jobs are live at its end", len(live))
			}
		}) {
			return // the rest would tell of this one's remains
		}
	}
}

func startingCountsOnce(t *testing.T, b *backend) {
	s := b.process.Store
	_, err := s.SetQuota(t.Context(), "test", "blue", "", h100, 0, 4)
	b.must(err)
	defer func() { b.must(s.DeleteQuota(context.Background(), "test", "blue", "", h100)) }()
	b.hold()
	var jobs []schema.Job
	for range 3 {
		jobs = append(jobs, b.submit("x1", "true", nil))
	}
	b.dispatching(jobs...)
	jobs = append(jobs, b.submit("x1", "true", nil))
	b.dispatching(jobs[3])
	over := b.submit("x1", "true", nil)
	var detail map[string]any
	b.until("the fifth waits for the quota", func() bool {
		var code schema.ReasonCode
		code, detail = b.reason(over.ID)
		return code == schema.ReasonQuota
	})
	if detail["used"] != 4.0 || detail["limit"] != 4.0 {
		t.Errorf("it is said to wait because %v, want 4 used of 4", detail)
	}
	b.release()
	for _, j := range append(jobs, over) {
		if j = b.is(j.ID, schema.JobCompleted); j.Attempt != 1 {
			t.Errorf("job %s had %d attempts", j.ID, j.Attempt)
		}
		b.sums(j.ID)
	}
}

func launchesThatBreak(t *testing.T, b *backend) {
	book := filepath.Join(t.TempDir(), "book")
	env := func(n *store.NewJob) { n.Env = map[string]string{"BOOK": book} }
	const command = `echo "$GPUPOOL_JOB/$GPUPOOL_ATTEMPT" >>"$BOOK"; `
	r := rand.New(rand.NewPCG(1, uint64(len(b.kind))))
	var broken []schema.Job
	for range 12 {
		j := b.submit("x2", command+"exec sleep 300", env)
		broken = append(broken, j)
		<-time.After(time.Duration(r.IntN(500)) * time.Millisecond) // it may be anywhere on its way
		b.cancel(j)
	}
	for _, j := range broken {
		b.is(j.ID, schema.JobCancelled)
		if j = b.job(j.ID); j.Attempt > 0 {
			b.sums(j.ID)
		}
	}
	// Two of half the server each that wait for each other: all eight are free, and the right ones.
	dir := t.TempDir()
	var pair []schema.Job
	for i := range 2 {
		pair = append(pair, b.submit("x4", command+fmt.Sprintf(`touch %[1]s/%[2]d; until [ -e %[1]s/%[3]d ]; do sleep 0.1; done`, dir, i, 1-i), env))
	}
	for _, j := range pair {
		if j = b.is(j.ID, schema.JobCompleted); j.Attempt != 1 {
			t.Errorf("job %s had %d attempts", j.ID, j.Attempt)
		}
		b.sums(j.ID)
	}
	for run, n := range lines(t, book) {
		if n != 1 {
			t.Errorf("%s was begun %d times", run, n)
		}
	}
}

func victimsThatEndApart(t *testing.T, b *backend) {
	dir := t.TempDir()
	victim := func(name, onTerm string) schema.Job {
		return b.submit("x4", fmt.Sprintf(`[ "$GPUPOOL_ATTEMPT" = 1 ] || exit 0; trap %s TERM; touch %s/%s; while :; do sleep 0.1; done`, `'`+onTerm+`'`, dir, name), func(n *store.NewJob) { n.Preemptible = true })
	}
	soon := victim("soon", "exit 0")
	late := victim("late", fmt.Sprintf("until [ -e %s/go ]; do sleep 0.1; done; exit 0", dir))
	exists := func(name string) func() bool {
		return func() bool { _, err := os.Stat(filepath.Join(dir, name)); return err == nil }
	}
	b.until("both run", func() bool { return exists("soon")() && exists("late")() })
	for _, j := range []schema.Job{soon, late} {
		b.is(j.ID, schema.JobRunning)
	}
	owner := b.submit("x8", fmt.Sprintf("until [ -e %s/done ]; do sleep 0.1; done", dir), func(n *store.NewJob) { n.Priority = 100 })
	b.is(soon.ID, schema.JobQueued)
	// Its half is free now. It stays kept through many cycles: another job that would fit comes, and does not get it either.
	small := b.submit("x1", "true", nil)
	b.until("the newcomer is judged", func() bool { code, _ := b.reason(small.ID); return code != schema.ReasonNotEvaluated })
	for _, j := range []schema.Job{soon, small} {
		if code, detail := b.reason(j.ID); code != schema.ReasonBehind || detail["ahead_jobs"] == 0.0 {
			t.Errorf("job %s waits %s %v, want BEHIND the one that it made room for", j.ID, code, detail)
		}
	}
	if code, detail := b.reason(owner.ID); code != schema.ReasonPreempting {
		t.Errorf("the preemptor waits %s %v", code, detail)
	}
	touch(t, filepath.Join(dir, "go"))
	b.is(owner.ID, schema.JobRunning)
	if j := b.job(soon.ID); j.Attempt != 1 {
		t.Errorf("the first victim was let in again, in attempt %d", j.Attempt)
	}
	touch(t, filepath.Join(dir, "done"))
	for _, j := range []schema.Job{owner, small} {
		b.is(j.ID, schema.JobCompleted)
		b.sums(j.ID)
	}
	for _, j := range []schema.Job{soon, late} {
		b.is(j.ID, schema.JobCompleted)
		if o := b.outcomes(j.ID); len(o) != 2 || o[0] != schema.AttemptPreempted || o[1] != schema.AttemptCompleted {
			t.Errorf("job %s: its attempts ended as %v, want one preemption", j.ID, o)
		}
		b.sums(j.ID)
	}
}

// earlierEnds has a job killed for others twice, on a requeue limit of none, and tells of the earlier ends again. What it used is
// case 21: the sum of its attempts, each once.
func earlierEnds(t *testing.T, b *backend) {
	none := 0
	j := b.submit("x8", `[ "$GPUPOOL_ATTEMPT" = 3 ] && exit 0; trap '' TERM; while :; do sleep 0.1; done`, func(n *store.NewJob) {
		n.Preemptible, n.RequeueLimit, n.Grace = true, &none, time.Second
	})
	for attempt := 1; attempt <= 2; attempt++ {
		b.until("it runs", func() bool { j := b.job(j.ID); return j.Attempt == attempt && j.State == schema.JobRunning })
		for old := 1; old < attempt; old++ {
			for range 2 {
				b.tell(j.ID, old)
			}
		}
		if now := b.job(j.ID); now.Attempt != attempt || now.State != schema.JobRunning {
			t.Fatalf("it is %s in attempt %d after an earlier one's end was told again", now.State, now.Attempt)
		}
		above := b.submit("x8", "true", func(n *store.NewJob) { n.Priority = 100 })
		b.is(above.ID, schema.JobCompleted)
	}
	b.is(j.ID, schema.JobCompleted)
	if o := b.outcomes(j.ID); len(o) != 3 || o[0] != schema.AttemptPreempted || o[1] != schema.AttemptPreempted || o[2] != schema.AttemptCompleted {
		t.Errorf("its attempts ended as %v", o)
	}
	sum := b.sums(j.ID)
	rows, err := b.process.Store.Usage(t.Context(), store.UsageQuery{By: []string{"job"}, Live: true})
	b.must(err)
	for _, r := range rows {
		if r.Keys["job"] == j.ID && r.Used() != sum {
			t.Errorf("the report says %d GPU-ms of it, the ledger %d", r.Used(), sum)
		}
	}
}

// tell reports the end of an attempt that is over, as its backend's word that comes late.
func (b *backend) tell(job string, attempt int) {
	b.Helper()
	r := agentproto.TaskReport{Task: store.RunTaskID(job, attempt, 0), Seq: 99, State: schema.TaskFailed, Signal: "KILL", Text: "late", NoneLeft: true}
	s := b.process.Store
	var err error
	if b.cluster == "" {
		_, err = s.Report(b.Context(), b.name, agentproto.Report{Tasks: []agentproto.TaskReport{r}})
	} else {
		var cl schema.Cluster
		cl, err = s.Cluster(b.Context(), b.cluster)
		b.must(err)
		err = s.Connector(b.cluster, cl.Epoch).Report(b.Context(), []agentproto.TaskReport{r})
	}
	if err != nil && !schema.Is(err, schema.CodeStale) {
		b.Fatal(err)
	}
}

func whyABackendIsWaitedFor(t *testing.T, b *backend) {
	b.hold()
	first := b.submit("x8", "true", nil)
	b.dispatching(first)
	_, detail := b.reason(first.ID)
	if detail["backend"] != b.kind || b.cluster != "" && detail["cluster"] != b.cluster {
		t.Errorf("it waits for %v, want %s %s", detail, b.kind, b.cluster)
	}
	if b.cluster != "" {
		b.until("the cluster's own words are told", func() bool { _, d := b.reason(first.ID); w, _ := d["native_reason"].(string); return w != "" })
	}
	b.release()
	b.is(first.ID, schema.JobCompleted)
	if b.away == nil {
		return
	}
	b.away()
	on := b.submit("x1", "true", nil)
	b.until("what was given to it says that it is down", func() bool {
		code, d := b.reason(on.ID)
		return code == schema.ReasonDispatching && d["backend_down"] == true && d["cluster"] == b.cluster
	})
	next := b.submit("x1", "true", nil)
	b.until("what comes later has a reason that is no queue", func() bool {
		code, d := b.reason(next.ID)
		if code == schema.ReasonBehind && d["ahead_jobs"] == 0.0 {
			t.Fatalf("it is BEHIND nobody: %v", d)
		}
		return code == schema.ReasonUnhealthy || code == schema.ReasonCapacity
	})
	if doc := b.job(next.ID).Reason; !strings.Contains(doc, "does not answer") && !strings.Contains(doc, "cluster") {
		t.Errorf("its reason does not say what is wrong: %s", doc)
	}
	b.back()
	for _, j := range []schema.Job{on, next} {
		if j = b.is(j.ID, schema.JobCompleted); j.Attempt != 1 {
			t.Errorf("job %s had %d attempts: a backend that is away has not lost it", j.ID, j.Attempt)
		}
		b.sums(j.ID)
	}
}

func (b *backend) used() int64 {
	b.Helper()
	rows, err := b.process.Store.Usage(context.Background(), store.UsageQuery{By: []string{"project"}, Live: true})
	b.must(err)
	sum := int64(0)
	for _, r := range rows {
		sum += r.Used()
	}
	return sum
}

func concurrentJobs(t *testing.T, b *backend) {
	before := b.used()
	dir := t.TempDir()
	var jobs []schema.Job
	for i := range 4 {
		jobs = append(jobs, b.submit("x1", fmt.Sprintf("touch %[1]s/%[2]d; until [ $(ls %[1]s | wc -l) = 4 ]; do sleep 0.1; done", dir, i), nil))
	}
	sum := int64(0)
	for _, j := range jobs {
		b.is(j.ID, schema.JobCompleted)
		sum += b.sums(j.ID)
	}
	if got := b.used() - before; got != sum {
		t.Errorf("four jobs at once used %d GPU-ms by the project's report, want the sum of their intervals, %d", got, sum)
	}
}

func queueAndBudget(t *testing.T, b *backend) {
	s := b.process.Store
	const limit = 4 * time.Hour
	bud, err := s.SetBudget(t.Context(), "test", store.Budget{Tenant: "blue", Amount: (1000 * time.Hour).Milliseconds()})
	b.must(err)
	defer func() { b.must(s.DeleteBudget(context.Background(), "test", bud.ID)) }()
	state := func() store.BudgetState {
		all, err := s.BudgetStates(t.Context(), "blue")
		if b.must(err); len(all) != 1 {
			t.Fatalf("budgets %+v", all)
		}
		return all[0]
	}
	spent := state().Spent
	dir := t.TempDir()
	first := b.submit("x8", fmt.Sprintf("until [ -e %s/go ]; do sleep 0.1; done", dir), nil)
	b.is(first.ID, schema.JobRunning)
	dies := b.submit("x8", "sleep 1; exit 1", func(n *store.NewJob) { n.TimeLimit = limit })
	b.until("it waits", func() bool {
		code, _ := b.reason(dies.ID)
		return code == schema.ReasonCapacity || code == schema.ReasonBehind
	})
	touch(t, filepath.Join(dir, "go"))
	b.is(dies.ID, schema.JobRunning)
	if got, want := state().Committed, 8*limit.Milliseconds(); got < want {
		t.Errorf("while it runs %d GPU-ms are committed, want %d or more", got, want)
	}
	b.is(first.ID, schema.JobCompleted)
	b.is(dies.ID, schema.JobFailed)
	sum := b.sums(first.ID) + b.sums(dies.ID)
	after := state()
	if after.Committed != 0 || after.Spent-spent != sum {
		t.Errorf("after the end %d are committed and %d spent, want 0 and %d", after.Committed, after.Spent-spent, sum)
	}
	rows, err := s.Ledger(t.Context(), dies.ID)
	b.must(err)
	before, err := s.Attempts(t.Context(), first.ID)
	b.must(err)
	for _, r := range rows {
		if r.Queued >= r.Start || r.Start < before[0].ReleasedAt {
			t.Errorf("it is billed from %s; it was queued at %s, and what it waited for ended at %s", r.Start, r.Queued, before[0].ReleasedAt)
		}
	}
}

func submitsAgain(t *testing.T, b *backend) {
	book := filepath.Join(t.TempDir(), "book")
	in := store.NewJob{Tenant: "blue", Project: "main", Spec: "x2", Nodes: 1, Command: []string{"bash", "-c", `echo "$GPUPOOL_JOB" >>"$BOOK"; until [ -e "$BOOK.go" ]; do sleep 0.1; done; exit 5`}, Env: map[string]string{"BOOK": book}, TimeLimit: time.Hour}
	submit := func(key, hash string) (schema.Job, error) {
		j, _, err := b.process.Store.SubmitJob(context.Background(), "test", key, hash, in)
		return j, err
	}
	var wg sync.WaitGroup
	ids := make([]string, 20)
	for i := range ids {
		wg.Go(func() {
			j, err := submit("k", "one")
			if err != nil {
				t.Error(err)
			}
			ids[i] = j.ID
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Fatalf("one key is jobs %s and %s", ids[0], id)
		}
	}
	if _, err := submit("k", "another"); !schema.Is(err, schema.CodeReused) {
		t.Errorf("the same key with another body: %v", err)
	}
	b.until("it runs", func() bool { return lines(t, book)[ids[0]] > 0 })
	b.is(ids[0], schema.JobRunning)
	// One is stored as the process ends, the other ends while there is none.
	stored, err := submit("late", "one")
	b.must(err)
	b.process.Stop()
	touch(t, book+".go")
	b.start()
	if j, err := submit("k", "one"); err != nil || j.ID != ids[0] {
		t.Errorf("after a restart the key is %s (%v), was %s", j.ID, err, ids[0])
	}
	for _, id := range []string{ids[0], stored.ID} {
		j := b.is(id, schema.JobFailed)
		if j.ExitCode == nil || *j.ExitCode != 5 || j.Attempt != 1 || lines(t, book)[id] != 1 {
			t.Errorf("job %s: exit code %v after attempt %d, run %d times; want 5, 1, 1", id, j.ExitCode, j.Attempt, lines(t, book)[id])
		}
		if b.cluster != "" {
			if runs, err := b.process.Store.ClusterRuns(t.Context(), id); err != nil || len(runs) != 1 {
				t.Errorf("job %s: runs %+v (%v)", id, runs, err)
			}
		}
		b.sums(id)
	}
}
