package worker_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	enumspb "go.temporal.io/api/enums/v1"

	"gpupool/activities/job"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
	"gpupool/worker"
	"gpupool/worker/config"
	"gpupool/workflows"
)

const h100 = "nvidia-h100-80gb"

// start runs a whole process without API and boot service on a fresh folder.
func start(t testing.TB) *worker.Process {
	t.Helper()
	t.Helper()
	p := startWith(t, "data_dir="+t.TempDir(), "regions=eu", "roles=api,worker,allocator", "api.listen=127.0.0.1:0", "durability=normal")
	t.Cleanup(p.Stop)
	return p
}

// startWith runs a process with such settings; the test stops it.
func startWith(t testing.TB, set ...string) *worker.Process {
	t.Helper()
	c, err := config.Load(config.Source{Set: set})
	if err != nil {
		t.Fatal(err)
	}
	p, err := worker.Start(t.Context(), c, slog.New(slog.NewTextHandler(testLog{t}, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

type testLog struct{ t testing.TB }

func (l testLog) Write(b []byte) (int, error) { fmt.Fprint(os.Stderr, string(b)); return len(b), nil }

// obey is an agent that does each run task at once, as an agent of this protocol would report it.
func obey(ctx context.Context, s *store.Store, server string) {
	w := s.Watch(store.TopicTasks(server))
	defer w.Close()
	for {
		tasks, err := s.ClaimTasks(ctx, server)
		if err == nil && len(tasks) > 0 {
			var r agentproto.Report
			zero := 0
			for _, t := range tasks {
				r.Tasks = append(r.Tasks, agentproto.TaskReport{Task: t.ID, Seq: 1, State: schema.TaskDone, ExitCode: &zero, NoneLeft: true})
			}
			_, err = s.Report(ctx, server, r)
		}
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			panic(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-w.C:
		case <-time.After(time.Second):
		}
	}
}

// pool makes n servers of 8 H100 with obedient agents, a tenant with a project, and the specs h100x1 and h100x8.
func pool(t testing.TB, s *store.Store, n int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	for i := range n {
		v := storetest.Available(t, s, i+1, h100, 8)
		wg.Go(func() { obey(ctx, s, v.ID) })
	}
	for _, k := range []int{1, 8} {
		if _, err := s.CreateSpec(ctx, "test", store.NewSpec{Name: fmt.Sprintf("h100x%d", k), Model: h100, Accelerators: int64(k), CPUs: int64(8 * k), MemoryBytes: int64(k) << 36}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.CreateTenant(ctx, "test", "blue", 100); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CreateProject(ctx, "test", "blue", "train"); err != nil {
		t.Fatal(err)
	}
}

// await waits until every job has ended, and fails with what is known where they don't in time.
func await(t testing.TB, s *store.Store, limit time.Duration) {
	t.Helper()
	deadline := time.Now().Add(limit)
	w := s.Watch(store.TopicAll)
	defer w.Close()
	for {
		live, err := s.Jobs(t.Context(), store.JobFilter{Live: true, Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		if len(live) == 0 {
			return
		}
		if time.Now().After(deadline) {
			for _, j := range live {
				t.Logf("%s %s attempt %d %s %s", j.Name, j.State, j.Attempt, j.Cause, j.Reason)
			}
			t.Fatalf("%d jobs are live after %s", len(live), limit)
		}
		select {
		case <-w.C:
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func TestWhatAProcessKeepsIsItsOwnersAlone(t *testing.T) {
	p := start(t)
	for _, name := range []string{"gpupool.db", "gpupool.db-wal", "temporal/temporal.db", "temporal/temporal.db-wal", "payload.keys", "secrets.keys"} {
		i, err := os.Stat(filepath.Join(p.Config.DataDir, name))
		if err != nil {
			t.Fatal(err)
		}
		if i.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %o, want 600", name, i.Mode().Perm())
		}
	}
}

func TestJobsRunFromSubmitToSettledAndTheLedgerSums(t *testing.T) {
	p := start(t)
	pool(t, p.Store, 2)
	const n = 60
	for i := range n {
		spec := "h100x1"
		if i%10 == 0 {
			spec = "h100x8"
		}
		if _, _, err := p.Store.SubmitJob(t.Context(), "test", "", "", store.NewJob{Tenant: "blue", Project: "train", Name: fmt.Sprint("j", i), Spec: spec, Nodes: 1 + i%20/19, Command: []string{"true"}}); err != nil {
			t.Fatal(err)
		}
	}
	await(t, p.Store, 20*time.Second)
	jobs, err := p.Store.Jobs(t.Context(), store.JobFilter{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for _, j := range jobs {
		if j.State != schema.JobCompleted || j.Attempt != 1 {
			t.Fatalf("job %s is %s after attempt %d: %s", j.Name, j.State, j.Attempt, j.Cause)
		}
		rows += j.Accelerators()
	}
	ledger, err := p.Store.Ledger(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if len(ledger) != rows {
		t.Fatalf("%d ledger rows for %d accelerators of %d jobs", len(ledger), rows, len(jobs))
	}
}

func BenchmarkJobs(b *testing.B) {
	p := start(b)
	pool(b, p.Store, 4)
	b.ResetTimer()
	for i := range b.N {
		if _, _, err := p.Store.SubmitJob(b.Context(), "test", "", "", store.NewJob{Tenant: "blue", Project: "train", Name: fmt.Sprint("j", i), Spec: "h100x1", Nodes: 1, Command: []string{"true"}}); err != nil {
			b.Fatal(err)
		}
	}
	await(b, p.Store, 5*time.Minute)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
}

// A process that somebody terminated is missed, and the job is taken up where it was.
func TestAJobWhoseProcessIsGoneIsTakenUp(t *testing.T) {
	p := start(t)
	storetest.Available(t, p.Store, 1, h100, 8)
	v, err := p.Store.Server(t.Context(), storetest.NewServer(1, h100, 8).Name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Store.CreateSpec(t.Context(), "test", store.NewSpec{Name: "h100x1", Model: h100, Accelerators: 1}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Store.CreateTenant(t.Context(), "test", "blue", 100); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Store.CreateProject(t.Context(), "test", "blue", "train"); err != nil {
		t.Fatal(err)
	}
	j, _, err := p.Store.SubmitJob(t.Context(), "test", "", "", store.NewJob{Tenant: "blue", Project: "train", Spec: "h100x1", Nodes: 1, Command: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	running := func() bool {
		d, err := p.Client.DescribeWorkflowExecution(t.Context(), workflows.JobID(j.ID), "")
		return err == nil && d.GetWorkflowExecutionInfo().GetStatus() == enumspb.WORKFLOW_EXECUTION_STATUS_RUNNING
	}
	until(t, "its process runs and has dispatched it", func() bool {
		tasks, err := p.Store.JobTasks(t.Context(), j.ID, 1)
		return err == nil && len(tasks) == 1 && running()
	})
	if err := p.Client.TerminateWorkflow(t.Context(), workflows.JobID(j.ID), "", "the test"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer func() { cancel(); wg.Wait() }()
	wg.Go(func() { _ = job.Attend(ctx, p.Store, p.Client, 200*time.Millisecond) })
	until(t, "it has another", running)
	wg.Go(func() { obey(ctx, p.Store, v.ID) })
	await(t, p.Store, 30*time.Second)
	if j, err = p.Store.Job(t.Context(), j.ID); err != nil || j.State != schema.JobCompleted || j.Attempt != 1 {
		t.Fatalf("the job is %s after attempt %d (%v)", j.State, j.Attempt, err)
	}
}

// until waits for a condition, for half a minute.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal("not within half a minute: ", what)
		}
		<-time.After(20 * time.Millisecond)
	}
}

// A port that is taken is told before Temporal has started: nothing else is said, and nothing is left running.
func TestAPortThatIsTakenIsToldFirst(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for field, set := range map[string][]string{
		"api.listen": {"roles=api,worker,allocator", "api.listen=" + taken.Addr().String()},
		"pxe": {"roles=api,worker,allocator,pxe", "sites=s1", "api.listen=127.0.0.1:0", "pxe.mode=relay", "pxe.server_id=127.0.0.1", "pxe.dhcp_listen=127.0.0.1:0", "pxe.tftp_listen=127.0.0.1:0",
			"pxe.http_listen=" + taken.Addr().String(), "pxe.subnets=[{cidr: 127.77.0.0/16, range: 127.77.1.1-127.77.1.9}]"},
	} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "boot"), 0o700); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(config.Source{Set: append([]string{"data_dir=" + dir, "regions=eu", "durability=normal"}, set...)})
		if err != nil {
			t.Fatal(err)
		}
		var said strings.Builder
		p, err := worker.Start(t.Context(), c, slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn})))
		if err == nil {
			p.Stop()
			t.Fatalf("%s: it starts on a port that is taken", field)
		}
		if !strings.Contains(err.Error(), field) || !strings.Contains(err.Error(), "in use") || said.Len() > 0 {
			t.Errorf("%s: it ends with %v, after\n%s", field, err, said.String())
		}
		if _, err := os.Stat(c.TemporalDir()); !os.IsNotExist(err) {
			t.Errorf("%s: Temporal was started (%v)", field, err)
		}
	}
}
