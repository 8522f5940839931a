package allocator

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpupool/activities/allocator/engine"
	"gpupool/activities/cluster/slurm/slurmtest"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// BenchmarkCommit measures the commit path: jobs are in the record, and the allocator reads them, decides and commits
// in batches, each in one durable transaction. Beside it, in the same run, the peers that are installed here start the
// same number of trivial jobs. `make bench ONLY=commit` runs it.
func BenchmarkCommit(b *testing.B) {
	b.Run("SQLite", func(b *testing.B) {
		for range b.N {
			commits(b, store.Config{Driver: "sqlite", DSN: filepath.Join(b.TempDir(), "gpupool.db")})
		}
	})
	b.Run("SQLite,flushed", func(b *testing.B) {
		for range b.N {
			commits(b, store.Config{Driver: "sqlite", DSN: filepath.Join(b.TempDir(), "gpupool.db"), Sync: "full"})
		}
	})
	b.Run("PostgreSQL,flushed", func(b *testing.B) {
		for range b.N {
			commits(b, store.Config{Driver: "postgres", DSN: storetest.Database(b, storetest.DurablePostgres(b)), MaxConnections: 8})
		}
	})
	b.Run("Slurm", slurmStarts)
	b.Run("kube-scheduler", func(b *testing.B) {
		if _, err := exec.LookPath("kube-scheduler"); err != nil {
			b.Skip("kube-scheduler is not installed: not measured")
		}
		b.Skip("kube-scheduler is installed, and needs an API server of its own to be measured: not measured")
	})
}

const (
	commitServers = 64
	commitPer     = 64 // accelerators a server: few servers are quicker to bring in
	commitBatch   = 256
)

func commits(b *testing.B, c store.Config) {
	ctx := b.Context()
	ok := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	db, err := store.Open(ctx, c)
	ok(err)
	b.Cleanup(func() { ok(db.Close()) })
	const model = "nvidia-h100-80gb"
	for i := range commitServers {
		storetest.Available(b, db, i+1, model, commitPer)
	}
	_, err = db.CreateSpec(ctx, "bench", store.NewSpec{Name: "x1", Model: model, Accelerators: 1})
	ok(err)
	_, err = db.CreateTenant(ctx, "bench", "blue", 1)
	ok(err)
	_, err = db.CreateProject(ctx, "bench", "blue", "main")
	ok(err)
	l, err := load(ctx, db, "eu", "bench", engine.Config{}, false)
	ok(err)
	var spent, submitting time.Duration
	for range commitServers * commitPer / commitBatch {
		began := time.Now()
		for range commitBatch {
			_, _, err := db.SubmitJob(ctx, "bench", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "x1", Nodes: 1, Command: []string{"true"}})
			ok(err)
		}
		submitting += time.Since(began)
		began = time.Now()
		_, err := l.catchUp(ctx)
		ok(err)
		_, _, err = l.cycle(ctx)
		ok(err)
		spent += time.Since(began)
	}
	live, err := db.LiveAttempts(ctx, "eu")
	ok(err)
	if len(live) != commitServers*commitPer {
		b.Fatalf("%d allocations in the record, want %d", len(live), commitServers*commitPer)
	}
	b.ReportMetric(float64(len(live))/spent.Seconds(), "allocations/s")
	b.ReportMetric(float64(len(live))/submitting.Seconds(), "submits/s")
	b.ReportMetric(0, "ns/op") // it says nothing here

	began := time.Now()
	again, err := load(ctx, db, "eu", "bench", engine.Config{}, false)
	ok(err)
	b.ReportMetric(time.Since(began).Seconds(), "s-to-load")
	if err := again.pool.Check(); err != nil {
		b.Fatal(err)
	}
}

// slurmStarts is how many trivial jobs of one accelerator Slurm starts a second, until none is pending.
func slurmStarts(b *testing.B) {
	const jobs = 300
	for range b.N {
		c := slurmtest.Start(b, []string{"h1", "h2", "h3", "h4"}, nil, 8)
		c.Must("scontrol", "update", "partitionname=pool", "state=DOWN")
		c.Must("sbatch", "--array=1-300", "--gres=gpu:1", "--output=/dev/null", "--wrap=true")
		began := time.Now()
		c.Must("scontrol", "update", "partitionname=pool", "state=UP")
		deadline := time.NewTimer(2 * time.Minute)
		defer deadline.Stop()
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for strings.TrimSpace(c.Must("squeue", "-h", "-r", "-t", "PENDING", "-o", "%i")) != "" {
			select {
			case <-tick.C:
			case <-deadline.C:
				b.Fatalf("Slurm has not started %d jobs in 2 minutes", jobs)
			}
		}
		b.ReportMetric(jobs/time.Since(began).Seconds(), "starts/s")
		b.ReportMetric(0, "ns/op")
	}
}
