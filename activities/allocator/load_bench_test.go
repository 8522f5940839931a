package allocator

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"gpupool/activities/allocator/engine"
	"gpupool/schema/store"
	"gpupool/schema/usage"
)

const (
	loadServers = 10000
	loadPer     = 8
	loadQueued  = 100000
	loadTenants = 20
)

// loads measures an allocator of 80,000 accelerators, all of them held by 10,000 jobs, with 100,000 jobs that wait: how long
// from rows in the record to the first committed cycle, and to each job's reason; then what a cycle costs in its parts when
// 100 jobs end and 100 come.
func loads(b *testing.B, f *figures, c store.Config) {
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
	ok(fullPool(ctx, db, c))

	began := time.Now()
	l, err := load(ctx, db, "eu", "bench", engine.Config{}, true)
	ok(err)
	if l.servers != loadServers || l.queued != loadQueued {
		b.Fatalf("loaded are %d servers and %d queued jobs", l.servers, l.queued)
	}
	_, more, err := l.cycle(ctx)
	ok(err)
	f.add(b, "load of 100,000 queued jobs until the first cycle is committed", time.Since(began).Seconds(), "s")
	f.goal(10)
	for more {
		_, more, err = l.cycle(ctx)
		ok(err)
	}
	f.add(b, "load until every job has its reason in the record", time.Since(began).Seconds(), "s")
	ok(l.pool.Check())
	ok(db.CatchUpUsage(ctx)) // as the meter has done of all that is not quite new
	began = time.Now()
	counts, err := db.FourCounts(ctx, store.CountsQuery{By: "model", Queues: true, Periods: []usage.Period{{Name: "hour", Interval: usage.Interval{Start: db.Now().Add(-time.Hour), End: db.Now()}}}})
	ok(err)
	if len(counts) != 1 || counts[0].Waiting != loadQueued || counts[0].Queue == nil || counts[0].Queue.Waited != time.Hour.Milliseconds() {
		b.Fatalf("the report of a full queue is %+v", counts)
	}
	f.add(b, "usage report of the last hour, 80,000 accelerators held and 100,000 jobs queued", time.Since(began).Seconds()*1000, "ms")

	const cycles, churn = 9, 100
	var reading, deciding []time.Duration
	started := 0
	for n := range cycles {
		for i := range churn {
			_, err := db.SettleAttempt(ctx, fmt.Sprintf("job_run%d", n*churn+i), 1, nil)
			ok(err)
			_, _, err = db.SubmitJob(ctx, "bench", "", "", store.NewJob{Tenant: "tenant1", Project: "main", Spec: "x4", Nodes: 1, Command: []string{"true"}, TimeLimit: time.Hour})
			ok(err)
		}
		began := time.Now()
		_, err := l.catchUp(ctx)
		ok(err)
		read := time.Now()
		_, _, err = l.cycle(ctx)
		ok(err)
		reading, deciding = append(reading, read.Sub(began)), append(deciding, time.Since(read))
	}
	live, err := db.LiveAttempts(ctx, "eu")
	ok(err)
	for _, a := range live {
		if a.Attempt.AllocatedAt > 1 { // not one of those that ran before
			started++
		}
	}
	if started < cycles*churn {
		b.Fatalf("%d jobs have started where %d have ended", started, cycles*churn)
	}
	median := func(d []time.Duration) float64 {
		slices.Sort(d)
		return float64(d[len(d)/2].Microseconds()) / 1000
	}
	f.add(b, "reading what 100 ends and 100 submits have changed, p50", median(reading), "ms")
	f.add(b, fmt.Sprintf("deciding and committing, %d starts, p50", started/cycles), median(deciding), "ms")
}

// fullPool writes the rows by hand: brought in by its verbs, a pool of this size takes longer than all that is measured.
func fullPool(ctx context.Context, db *store.Store, c store.Config) error {
	for _, k := range []int64{1, 2, 4, 8} {
		if _, err := db.CreateSpec(ctx, "bench", store.NewSpec{Name: fmt.Sprint("x", k), Model: "h100", Accelerators: k}); err != nil {
			return err
		}
	}
	for i := range loadTenants {
		name := fmt.Sprint("tenant", i)
		if _, err := db.CreateTenant(ctx, "bench", name, 1); err != nil {
			return err
		}
		if _, err := db.CreateProject(ctx, "bench", name, "main"); err != nil {
			return err
		}
	}
	rows, err := openRows(c)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	count := func(n int) string {
		return fmt.Sprintf("WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < %d) ", n)
	}
	job := `INSERT INTO jobs (id, seq, tenant, project, name, spec, model, nodes, per_node, priority, asked_priority, preemptible, region, command, env, requeue_limit, state, attempt, submitted_by, submitted_at, time_limit) `
	for _, q := range []string{
		count(loadServers) + `INSERT INTO servers (id, name, region, site, rack, serial, arch, bmc_address, bmc_place, bmc_protocol, model, accelerators, cpus, memory_bytes, profile, backend, phase, created_at, updated_at)
			SELECT 'srv_' || i, 's' || i, 'eu', 'site', 'rack' || (i / 32), 'serial' || i, 'x86_64', 'bmc' || i, 'bmc' || i, 'redfish', 'h100', 8, 112, 2199023255552, 'none', 'node', 'available', 1, 1 FROM n`,
		count(loadServers*loadPer) + `INSERT INTO accelerators (id, identity, vendor, model, serial, uuid, pci, slot, device_index, memory_bytes, firmware, server, health, health_why, health_at, first_seen, last_seen, installed_at)
			SELECT 'acc_' || i, 'acc' || i, 'nvidia', 'h100', '', '', '', '', i % 8, 85899345920, '', 'srv_' || (i / 8), 'healthy', '', 1, 1, 1, 1 FROM n`,
		count(loadServers) + job + `SELECT 'job_run' || i, i + 1, 'tenant' || (i % 20), 'main', '', 'x8', 'h100', 1, 8, 1, 1, TRUE, 'eu', '["true"]', '{}', 3, 'running', 1, 'bench', 1, 3600000 FROM n`,
		count(loadServers) + `INSERT INTO attempts (job, attempt, epoch, allocated_at, running_at) SELECT 'job_run' || i, 1, 1, 1, 1 FROM n`,
		count(loadServers*loadPer) + `INSERT INTO allocations (job, attempt, accelerator, server, region, allocated_at)
			SELECT 'job_run' || (i / 8), 1, 'acc_' || i, 'srv_' || (i / 8), 'eu', 1 FROM n`,
		count(loadQueued) + job + `SELECT 'job_q' || i, 10001 + i, 'tenant' || (i % 20), 'main', '', CASE i % 4 WHEN 0 THEN 'x1' WHEN 1 THEN 'x2' WHEN 2 THEN 'x4' ELSE 'x8' END, 'h100', 1,
			CASE i % 4 WHEN 0 THEN 1 WHEN 1 THEN 2 WHEN 2 THEN 4 ELSE 8 END, 1, 1, TRUE, 'eu', '["true"]', '{}', 3, 'queued', 0, 'bench', 1, 3600000 * (1 + i % 8) FROM n`,
		`UPDATE job_seq SET seq = 110001`,
		`ANALYZE`,
	} {
		if _, err := rows.ExecContext(ctx, q); err != nil {
			return fmt.Errorf("%.60s: %w", q[len(q)-min(len(q), 400):], err)
		}
	}
	return nil
}
