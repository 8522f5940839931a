package allocator

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"gpupool/activities/allocator/engine"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// figuresEnv names a file for the figures, in the form of `gpupool bench --json`.
const figuresEnv = "GPUPOOL_BENCH_FIGURES"

// figure is one line of `gpupool bench`. A goal is of the value, or of the ratio where there is a peer; 0 = none.
type figure struct {
	Group     string   `json:"group"`
	Name      string   `json:"name"`
	Value     float64  `json:"value"`
	Unit      string   `json:"unit"`
	Peer      string   `json:"peer,omitempty"`
	PeerValue *float64 `json:"peer_value,omitempty"`
	Ratio     *float64 `json:"ratio,omitempty"`
	Goal      *float64 `json:"goal,omitempty"`
	Holds     *bool    `json:"holds,omitempty"`
}

// figures are those of one run, in their order.
type figures struct{ list []figure }

func (f *figures) add(b *testing.B, name string, value float64, unit string) {
	b.ReportMetric(value, strings.ReplaceAll(name, " ", "-")+"-"+unit)
	f.list = append(f.list, figure{Group: "commit", Name: name + ", " + strings.TrimPrefix(strings.TrimPrefix(where(b), "load "), "submit "), Value: value, Unit: unit})
}

// where is the part of the benchmark that runs: which database.
func where(b *testing.B) string {
	return strings.ReplaceAll(b.Name()[strings.LastIndex(b.Name(), "/")+1:], "_", " ")
}

// goal sets that of the figure added last: a floor, or a ceiling of what takes time.
func (f *figures) goal(goal float64) {
	last := &f.list[len(f.list)-1]
	holds := last.Value >= goal
	if last.Unit == "s" || last.Unit == "ms" {
		holds = last.Value <= goal
	}
	last.Goal, last.Holds = &goal, &holds
}

// beside compares a value with a peer's.
func (f *figures) beside(value float64, name, peer string, theirs float64) {
	ratio := value / theirs
	f.list = append(f.list, figure{Group: "commit", Name: name, Value: value, Unit: "1/s", Peer: peer, PeerValue: &theirs, Ratio: &ratio})
}

func (f *figures) write(b *testing.B) {
	path := os.Getenv(figuresEnv)
	if path == "" {
		return
	}
	doc, err := json.MarshalIndent(f.list, "", "  ")
	if err == nil {
		err = os.WriteFile(path, append(doc, '\n'), 0o644)
	}
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkCommit measures the commit path: jobs are in the record, and the allocator reads them, decides and commits
// in batches, each in one durable transaction. Beside it, in the same run, the peers that are installed here start the
// same trivial jobs. `make bench ONLY=commit` runs it.
func BenchmarkCommit(b *testing.B) {
	var f figures
	defer f.write(b)
	sqlite := func(b *testing.B, sync string) store.Config {
		return store.Config{Driver: "sqlite", DSN: filepath.Join(b.TempDir(), "gpupool.db"), Sync: sync}
	}
	postgres := func(b *testing.B) store.Config {
		return store.Config{Driver: "postgres", DSN: storetest.Database(b, storetest.DurablePostgres(b)), MaxConnections: 8}
	}
	rates := map[string]float64{}
	once := func(name string, run func(b *testing.B)) {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				run(b)
			}
			b.ReportMetric(0, "ns/op") // it says nothing here
		})
	}
	commit := func(name string, c func(b *testing.B) store.Config) {
		once(name, func(b *testing.B) { rates[name] = commits(b, &f, c(b)) })
	}
	commit("SQLite", func(b *testing.B) store.Config { return sqlite(b, "") })
	commit("SQLite flushed", func(b *testing.B) store.Config { return sqlite(b, "full") })
	commit("PostgreSQL flushed", postgres)
	once("submit SQLite flushed", func(b *testing.B) { submits(b, &f, sqlite(b, "full")) })
	once("submit PostgreSQL flushed", func(b *testing.B) { submits(b, &f, postgres(b)) })
	once("load SQLite", func(b *testing.B) { loads(b, &f, sqlite(b, "")) })
	once("load PostgreSQL", func(b *testing.B) { loads(b, &f, postgres(b)) })
	peer := func(name, what string, measure func(b *testing.B) float64) {
		once(name, func(b *testing.B) {
			theirs := measure(b)
			b.ReportMetric(theirs, what)
			for _, ours := range []string{"SQLite flushed", "PostgreSQL flushed"} {
				if rates[ours] > 0 {
					f.beside(rates[ours], "allocations a second, "+ours, name+", "+what, theirs)
				}
			}
		})
	}
	peer("Slurm", "starts/s", slurmStarts)
	peer("kube-scheduler", "binds/s", kubeBinds)
}

const (
	commitServers = 64
	commitPer     = 64 // accelerators a server: few servers are quicker to bring in
	commitBatch   = 256
	commitClients = 8
)

// commits is how many allocations a second come to be in the record.
func commits(b *testing.B, f *figures, c store.Config) float64 {
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
	var spent, submitting, work time.Duration
	for range commitServers * commitPer / commitBatch {
		began := time.Now()
		var many errgroup.Group
		many.SetLimit(commitClients)
		for range commitBatch {
			many.Go(func() error {
				_, _, err := db.SubmitJob(ctx, "bench", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "x1", Nodes: 1, Command: []string{"true"}})
				return err
			})
		}
		ok(many.Wait())
		submitting += time.Since(began)
		began, worked := time.Now(), processorTime(b)
		_, err := l.catchUp(ctx)
		ok(err)
		_, _, err = l.cycle(ctx)
		ok(err)
		spent += time.Since(began)
		work += processorTime(b) - worked
	}
	live, err := db.LiveAttempts(ctx, "eu")
	ok(err)
	if len(live) != commitServers*commitPer {
		b.Fatalf("%d allocations in the record, want %d", len(live), commitServers*commitPer)
	}
	rate := float64(len(live)) / spent.Seconds()
	f.add(b, fmt.Sprintf("allocations in cycles of %d", commitBatch), rate, "1/s")
	f.goal(5000)
	f.add(b, "processor time of the allocator's process for an allocation", float64(work.Microseconds())/float64(len(live)), "us")
	f.add(b, fmt.Sprintf("submits, %d at a time", commitClients), float64(len(live))/submitting.Seconds(), "1/s")
	again, err := load(ctx, db, "eu", "bench", engine.Config{}, false)
	ok(err)
	ok(again.pool.Check())
	theirs, err := plainInserts(ctx, c)
	ok(err)
	f.beside(rate, "allocations a second, "+where(b), "INSERTs of the same rows with nothing else, transactions of "+strconv.Itoa(commitBatch), theirs)
	b.ReportMetric(rate/theirs, "of-plain-INSERTs")
	return rate
}

// plainInserts is how many allocations a second the database takes in when it is only given the rows that their commits have
// written, as flushed as they were: by statements of many rows, into tables without an index or a rule. It is what a commit
// could come to at the very best.
func plainInserts(ctx context.Context, c store.Config) (float64, error) {
	db, err := openRows(c)
	if err != nil {
		return 0, err
	}
	defer func() { _ = db.Close() }()
	tables := []struct {
		query string
		each  int // rows of an allocation
		rows  [][]any
	}{
		{query: "SELECT job, attempt, accelerator, server, region, allocated_at FROM allocations ORDER BY job", each: 1},
		{query: "SELECT job, attempt, epoch, allocated_at FROM attempts ORDER BY job", each: 1},
		{query: "SELECT id, state, attempt, reason FROM jobs ORDER BY id", each: 1},
		{query: `SELECT seq, at, kind, subject, server, job, tenant, "by", data FROM events WHERE kind IN ('job.allocated', 'job.state') ORDER BY seq`, each: 2},
	}
	for i := range tables {
		t := &tables[i]
		if t.rows, err = rowsOf(ctx, db, t.query); err != nil {
			return 0, err
		}
		if _, err := db.ExecContext(ctx, fmt.Sprintf("CREATE TABLE plain%d AS %s LIMIT 0", i, t.query)); err != nil {
			return 0, err
		}
	}
	all := len(tables[0].rows)
	began := time.Now()
	for at := 0; at < all; at += commitBatch {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return 0, err
		}
		for i, t := range tables {
			q, args := manyRows(fmt.Sprintf("INSERT INTO plain%d VALUES ", i), t.rows[at*t.each:(at+commitBatch)*t.each], c.Driver == "postgres")
			if _, err := tx.ExecContext(ctx, q, args...); err != nil {
				return 0, errors.Join(err, tx.Rollback())
			}
		}
		if err := tx.Commit(); err != nil {
			return 0, err
		}
	}
	return float64(all) / time.Since(began).Seconds(), nil
}

// openRows opens the database past the store, as durable as the store has it.
func openRows(c store.Config) (*sql.DB, error) {
	if c.Driver == "postgres" {
		return sql.Open("pgx", c.DSN)
	}
	return sql.Open("sqlite", "file:"+c.DSN+"?_pragma=busy_timeout(10000)&_pragma=synchronous("+cmp.Or(c.Sync, "normal")+")")
}

func rowsOf(ctx context.Context, db *sql.DB, query string) (all [][]any, err error) {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		row, to := make([]any, len(columns)), make([]any, len(columns))
		for i := range row {
			to[i] = &row[i]
		}
		if err := rows.Scan(to...); err != nil {
			return nil, err
		}
		all = append(all, row)
	}
	return all, rows.Err()
}

// manyRows is a statement with its list of VALUES, and their values.
func manyRows(head string, rows [][]any, numbered bool) (string, []any) {
	var q strings.Builder
	q.WriteString(head)
	var args []any
	for i, r := range rows {
		sep := ",("
		if i == 0 {
			sep = "("
		}
		for _, v := range r {
			args = append(args, v)
			q.WriteString(sep)
			if q.WriteByte('?'); numbered {
				q.WriteString(strconv.Itoa(len(args)))
			}
			sep = ","
		}
		q.WriteByte(')')
	}
	if numbered {
		return strings.ReplaceAll(q.String(), "?", "$"), args
	}
	return q.String(), args
}

// processorTime is that of this process.
func processorTime(b *testing.B) time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
