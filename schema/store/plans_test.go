package store_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
	"gpupool/schema/usage"
)

// grows are the tables that grow for as long as a pool is used.
var grows = []string{"jobs", "attempts", "allocations", "ledger", "events", "tasks", "attempt_facts"}

// readsAll is what the planners say of a read of a whole table or index.
var readsAll = regexp.MustCompile(`Seq Scan on (\w+)(?: (\w+))?|SCAN (\w+)(?: USING (?:COVERING )?INDEX (\w+))?`)

// few are the partial indexes that only hold what is live: to read one of them all is to read what there is to do.
var few = []string{"jobs_live", "allocations_live", "allocations_server_live", "jobs_live_seq", "jobs_live_tenant", "tasks_open", "tasks_cluster_open", "events_capacity"}

// TestNoServingQueryReadsHistory: what is asked for while the pool serves costs as much after years as on the first day. Each
// statement that the store sends is shown to the database's planner, and none may read a table that grows from end to end.
func TestNoServingQueryReadsHistory(t *testing.T) {
	t.Parallel()
	b := newBench(t, 4)
	ctx := t.Context()
	history(b, 20_000)

	var mu sync.Mutex
	seen, of, verb := map[string]store.Statement{}, map[string]string{}, ""
	b.must(b.Record(func(s store.Statement) {
		mu.Lock()
		defer mu.Unlock()
		if _, is := seen[s.SQL]; !is {
			seen[s.SQL], of[s.SQL] = s, verb
		}
	}))
	as := func(name string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	say := func(name string) { mu.Lock(); verb = name; mu.Unlock() }

	// A job's way, from submitted to settled.
	say("submit")
	j := b.submit(1)
	_, _, err := b.SubmitArray(ctx, "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "h100x2", Nodes: 1, Command: []string{"true"}, Array: "sweep"}, []int{0, 1, 2})
	as("submit array", err)
	say("array")
	a, err := b.Array(ctx, "blue", "main", "sweep")
	as("array", err)
	as("limit array", b.SetArrayLimit(ctx, a, 2, "test"))
	_, err = b.QueuedOfArray(ctx, "blue", "main", "sweep")
	as("array", err)
	say("queued")
	_, err = b.QueuedJobs(ctx, "eu", []string{j.ID, "job_x"})
	as("queued", err)
	say("queued after")
	_, err = b.QueuedAfter(ctx, "eu", 0, 100)
	as("queued after", err)
	say("ended states")
	_, err = b.EndedStates(ctx, []string{"job_old1"})
	as("ended", err)
	place := b.place(0, 0)
	say("commit")
	if no := b.commit(b.start(j, place)); len(no) != 0 {
		t.Fatalf("refused: %+v", no)
	}
	say("live attempts")
	_, err = b.LiveAttempts(ctx, "eu")
	as("live", err)
	_, err = b.LiveAttempt(ctx, j.ID)
	as("live", err)
	say("dispatch")
	as("dispatch", b.DispatchAttempt(ctx, j.ID, 1))
	say("claim")
	_, err = b.ClaimTasks(ctx, b.servers[0].ID)
	as("claim", err)
	say("report")
	as("report", b.part(j.ID, 1, 0, agentproto.TaskReport{Seq: 1, State: schema.TaskRunning})())
	say("status")
	_, err = b.AttemptStatus(ctx, j.ID, 1)
	as("status", err)
	say("elsewhere")
	_, err = b.Elsewhere(ctx, "us", []string{"blue"})
	as("elsewhere", err)
	say("live usage")
	_, err = b.LiveUsage(ctx, "blue", "", "")
	as("live usage", err)
	say("idle jobs")
	_, err = b.IdleJobs(ctx, usage.Policy{})
	as("idle", err)
	zero := 0
	as("report", b.part(j.ID, 1, 0, agentproto.TaskReport{Seq: 2, State: schema.TaskDone, ExitCode: &zero, NoneLeft: true})())
	say("settle")
	_, err = b.SettleAttempt(ctx, j.ID, 1, nil)
	as("settle", err)

	// What people and screens read.
	say("jobs")
	for _, f := range []store.JobFilter{{}, {Tenant: "blue"}, {Live: true}, {Tenant: "blue", Live: true}, {State: schema.JobQueued}, {Tenant: "blue", State: schema.JobRunning}, {Region: "eu", State: schema.JobQueued, Oldest: true}, {Tenant: "blue", Array: "sweep"}, {Before: 500}} {
		_, err = b.Jobs(ctx, f)
		as("jobs", err)
	}
	say("job")
	_, err = b.Job(ctx, j.ID)
	as("job", err)
	_, err = b.JobsNamed(ctx, "blue", "main", "x")
	as("named", err)
	_, err = b.Attempts(ctx, j.ID)
	as("attempts", err)
	_, err = b.JobAllocations(ctx, j.ID)
	as("allocations", err)
	_, err = b.JobDevices(ctx, j.ID)
	as("devices", err)
	_, err = b.JobTasks(ctx, j.ID, 0)
	as("tasks", err)
	_, err = b.Ledger(ctx, j.ID)
	as("ledger", err)
	say("held jobs")
	_, err = b.HeldJobs(ctx)
	as("held", err)
	say("events")
	for _, f := range []store.EventFilter{{Job: j.ID}, {Tenant: "blue"}, {Server: b.servers[0].ID}} {
		_, _, err = b.Events(ctx, 0, 100, f)
		as("events", err)
	}
	head, err := b.Head(ctx)
	as("head", err)
	for _, f := range []store.EventFilter{{}, {Kinds: []schema.EventKind{schema.EventJobState, schema.EventJobSubmitted}}} { // as who follows them all
		_, _, err = b.Events(ctx, head-10, 100, f)
		as("events", err)
	}
	say("overview")
	_, err = b.PoolOverview(ctx)
	as("overview", err)
	say("arrays")
	_, err = b.Arrays(ctx, store.ArrayFilter{Tenant: "blue", Live: true})
	as("arrays", err)
	say("repairs")
	as("nudge", b.NudgeIdle(ctx))
	say("cluster")
	_, err = b.ClusterNews(ctx, "c")
	as("cluster", err)
	say("ends")
	_, err = b.FailedJobs(ctx, b.Now().Add(-time.Hour))
	as("failed", err)
	say("counts")
	now := b.Now()
	_, err = b.FourCounts(ctx, store.CountsQuery{Tenant: "blue", Periods: []usage.Period{{Name: "h", Interval: usage.Interval{Start: now.Add(-time.Hour), End: now + 1}}}})
	as("counts", err)
	_, err = b.FourCounts(ctx, store.CountsQuery{By: "model", Queues: true, Periods: []usage.Period{{Name: "h", Interval: usage.Interval{Start: now.Add(-time.Hour), End: now + 1}}}})
	as("queues", err)
	say("usage")
	_, err = b.Usage(ctx, store.UsageQuery{Tenant: "blue", From: now.Add(-2 * time.Hour), To: now + 1, By: []string{"model"}, Live: true})
	as("usage", err)
	say("")

	looked := 0
	for _, q := range slices.Sorted(func(yield func(string) bool) {
		for q := range seen {
			if !yield(q) {
				return
			}
		}
	}) {
		s := seen[q]
		if head := strings.ToUpper(strings.TrimSpace(q)); !strings.HasPrefix(head, "SELECT") && !strings.HasPrefix(head, "UPDATE") && !strings.HasPrefix(head, "WITH") {
			continue
		}
		plan, err := b.Plan(ctx, s)
		if err != nil {
			t.Fatalf("%s: %v", q, err)
		}
		looked++
		for _, line := range plan {
			for _, m := range readsAll.FindAllStringSubmatch(line, -1) {
				if table := tableOf(q, m[1]+m[3]); slices.Contains(grows, table) && !slices.Contains(few, m[4]) && !newest.MatchString(q) {
					t.Errorf("%s reads all of %s: %s\n\t%s", of[q], table, q, strings.Join(plan, "\n\t"))
				}
			}
		}
		for words, index := range byIndex {
			if all := strings.Join(plan, "\n\t"); strings.Contains(q, words) && !strings.Contains(all, index) && !strings.HasPrefix(q, "INSERT") {
				t.Errorf("%s does not use %s: %s\n\t%s", of[q], index, q, all)
			}
		}
	}
	if looked < 60 {
		t.Fatalf("%d statements were looked at", looked)
	}
}

// newest is a list of the newest of all, which ends at its limit.
var newest = regexp.MustCompile("^SELECT \\* FROM [`\"]jobs[`\"] ORDER BY seq DESC LIMIT \\S+$")

// byIndex are conditions for which the wrong index is no better than none.
var byIndex = map[string]string{"array_name <> '' AND": "jobs_array", "job <> ''": "events_job", "server <> ''": "events_server", "tenant <> ''": "events_tenant"}

// tableOf is the table that a planner names, by another name where the statement gives it one.
func tableOf(q, name string) string {
	for _, table := range grows {
		if regexp.MustCompile(`\b` + table + `"? (?:AS )?` + name + `\b`).MatchString(q) {
			return table
		}
	}
	return name
}

// history gives the pool n jobs of the past, each of two accelerators.
func history(b *bench, n int) {
	b.t.Helper()
	count := fmt.Sprintf("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d) ", n)
	accs, err := b.Accelerators(b.t.Context(), store.AcceleratorFilter{Server: b.servers[0].ID})
	b.must(err)
	at := int64(b.Now()) - 90*24*time.Hour.Milliseconds()
	moment := func(after int) string { return fmt.Sprintf("%d + i * 1000 + %d", at, after) }
	statements := []string{
		fmt.Sprintf("UPDATE job_seq SET seq = seq + %d", n),
		count + `INSERT INTO jobs (id, seq, tenant, project, name, spec, model, nodes, per_node, priority, asked_priority, preemptible, region, command, env, requeue_limit, state, attempt, submitted_by, submitted_at, ended_at)
			SELECT 'job_old' || i, i, 'blue', 'main', 'old' || (i % 50), 'h100x2', 'nvidia-h100-80gb', 1, 2, 1, 1, TRUE, 'eu', '["true"]', '{}', 3, 'completed', 1, 'test', ` + moment(0) + `, ` + moment(900) + ` FROM n`,
		count + `INSERT INTO attempts (job, attempt, epoch, allocated_at, running_at, released_at, outcome) SELECT 'job_old' || i, 1, 1, ` + moment(10) + `, ` + moment(20) + `, ` + moment(900) + `, 'completed' FROM n`,
		count + `INSERT INTO tasks (id, server, workflow, kind, job, attempt, epoch, payload, state, created, ended) SELECT 'job/old' || i, '` + b.servers[0].ID + `', 'w', 'run', 'job_old' || i, 1, 1, '{}', 'done', 1, ` + moment(900) + ` FROM n`,
		count + `INSERT INTO attempt_facts (job, attempt, tenant, project, spec, model, region, queued_at, allocated_at, wait_ms, reason) SELECT 'job_old' || i, 1, 'blue', 'main', 'h100x2', 'nvidia-h100-80gb', 'eu', 1, ` + moment(10) + `, 10, 'CAPACITY' FROM n`,
	}
	for _, a := range accs[:2] {
		statements = append(statements,
			count+`INSERT INTO allocations (job, attempt, accelerator, server, region, allocated_at, released_at) SELECT 'job_old' || i, 1, '`+a.ID+`', '`+b.servers[0].ID+`', 'eu', `+moment(10)+`, `+moment(900)+` FROM n`,
			count+`INSERT INTO ledger (id, kind, job, attempt, accelerator, server, tenant, project, spec, model, region, queued_at, start_at, running_at, stopping_at, end_at, outcome)
				SELECT 'job_old' || i || '/1/`+a.ID+`/0', 'usage', 'job_old' || i, 1, '`+a.ID+`', '`+b.servers[0].ID+`', 'blue', 'main', 'h100x2', 'nvidia-h100-80gb', 'eu', 1, `+moment(10)+`, `+moment(20)+`, 0, `+moment(900)+`, 'completed' FROM n`)
	}
	for kind := range 3 {
		statements = append(statements, count+fmt.Sprintf(`INSERT INTO events (seq, at, kind, subject, job, tenant, data) SELECT (SELECT seq FROM event_seq) + %d * %d + i, %s, 'job.running', 'job_old' || i, 'job_old' || i, CASE WHEN i %% 20 = 0 THEN 'blue' ELSE 'green' END, '{"attempt":1}' FROM n`, kind, n, moment(20)))
	}
	statements = append(statements, fmt.Sprintf("UPDATE event_seq SET seq = seq + 3 * %d", n))
	if os.Getenv(storetest.PostgresEnv) != "" {
		statements = append(statements, "ANALYZE") // as its autovacuum does
	}
	for _, q := range statements {
		if err := b.Exec(b.t.Context(), q); err != nil {
			b.t.Fatalf("%.90s: %v", q[strings.Index(q, "INSERT")+1:], err)
		}
	}
}
