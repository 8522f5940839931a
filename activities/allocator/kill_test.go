package allocator

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/schema/store"
	"gpupool/schema/store/storetest"
)

// childEnv makes the test's binary an allocator of its own process on the record that it names: "driver dsn".
const childEnv = "GPUPOOL_TEST_ALLOCATOR"

func TestMain(m *testing.M) {
	if record := os.Getenv(childEnv); record != "" {
		os.Exit(child(record))
	}
	os.Exit(m.Run())
}

// stale is how a child ends that another has taken over from.
const stale = 3

// child serves until it is killed, its standard input ends, or another takes over.
func child(record string) int {
	driver, dsn, _ := strings.Cut(record, " ")
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	db, err := store.Open(ctx, store.Config{Driver: driver, DSN: dsn, MaxConnections: 4})
	if err == nil {
		a := &Activities{Store: db, Holder: fmt.Sprint("process ", os.Getpid()), Log: slog.New(slog.NewTextHandler(os.Stdout, nil))}
		err = a.Serve(ctx, "eu")
	}
	switch {
	case ctx.Err() != nil:
		return 0
	case schema.Is(err, schema.CodeStale):
		return stale
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

// gate stops whoever writes a start, in the middle of its transaction.
type gate interface {
	shut(t *testing.T, table string) // from now on, at the first row that the transaction writes in table
	reached(t *testing.T)            // waits until somebody is stopped there
	open(t *testing.T)               // who was stopped has been killed, or goes on
}

// allocators are a record and the processes that allocate on it.
type allocators struct {
	t       *testing.T
	db      *store.Store
	raw     *sql.DB
	record  string
	rnd     *rand.Rand
	jobs    int
	settled map[string]bool
}

const (
	killServers = 4
	killPer     = 8
)

func newAllocators(t *testing.T, c store.Config) *allocators {
	t.Helper()
	db, err := store.Open(t.Context(), c)
	must(t, err)
	t.Cleanup(func() { must(t, db.Close()) })
	raw, err := openRows(c)
	must(t, err)
	t.Cleanup(func() { must(t, raw.Close()) })
	for i := range killServers {
		storetest.Available(t, db, i+1, h100, killPer)
	}
	_, err = db.CreateSpec(t.Context(), "test", store.NewSpec{Name: "x2", Model: h100, Accelerators: 2})
	must(t, err)
	_, err = db.CreateTenant(t.Context(), "test", "blue", 1)
	must(t, err)
	_, err = db.CreateProject(t.Context(), "test", "blue", "main")
	must(t, err)
	return &allocators{t: t, db: db, raw: raw, record: c.Driver + " " + c.DSN, rnd: rand.New(rand.NewPCG(3, 1)), settled: map[string]bool{}}
}

// process is one allocator's.
type process struct {
	cmd *exec.Cmd
	log *bufio.Reader
}

// start begins a process; serves waits until it has the epoch and knows the record.
func (a *allocators) start() *process {
	a.t.Helper()
	cmd := exec.CommandContext(a.t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+a.record)
	cmd.Stderr = a.t.Output()
	_, err := cmd.StdinPipe()
	must(a.t, err)
	out, err := cmd.StdoutPipe()
	must(a.t, err)
	must(a.t, cmd.Start())
	return &process{cmd, bufio.NewReader(out)}
}

func (a *allocators) serves(p *process) {
	a.t.Helper()
	for {
		line, err := p.log.ReadString('\n')
		if err != nil {
			a.t.Fatalf("the allocator's process did not begin to serve: %v, %v", err, p.cmd.Wait())
		}
		if strings.Contains(line, "allocator serves") {
			return
		}
	}
}

// kill is kill -9.
func (a *allocators) kill(p *process) {
	a.t.Helper()
	must(a.t, p.cmd.Process.Kill())
	_ = p.cmd.Wait()
}

func (a *allocators) submit(n int) {
	a.t.Helper()
	for range n {
		a.jobs++
		_, _, err := a.db.SubmitJob(a.t.Context(), "test", "", "", store.NewJob{Tenant: "blue", Project: "main", Spec: "x2", Nodes: 1 + a.jobs%2, Command: []string{"true"}})
		must(a.t, err)
	}
}

// until waits for the record to show something, and looks at it whole each time.
func (a *allocators) until(what string, ok func() bool) {
	a.t.Helper()
	w := a.db.Watch(store.TopicAll)
	defer w.Close()
	tick := time.NewTicker(20 * time.Millisecond) // another process's commits on SQLite are not heard of
	defer tick.Stop()
	deadline := time.After(2 * time.Minute)
	for !ok() {
		select {
		case <-w.C:
		case <-tick.C:
		case <-deadline:
			a.t.Fatalf("waited for %s", what)
		}
	}
}

func (a *allocators) live() []store.LiveAttempt {
	a.t.Helper()
	all, err := a.db.LiveAttempts(a.t.Context(), "eu")
	must(a.t, err)
	return all
}

// settle ends n of what runs.
func (a *allocators) settle(n int) {
	a.t.Helper()
	for _, l := range a.live() {
		if n--; n < 0 {
			return
		}
		_, err := a.db.SettleAttempt(a.t.Context(), l.Job.ID, l.Attempt.Attempt, nil)
		must(a.t, err)
	}
}

// number is the one number that a query gives.
func (a *allocators) number(query string) (n int) {
	a.t.Helper()
	must(a.t, a.raw.QueryRowContext(a.t.Context(), query).Scan(&n))
	return n
}

// check holds that nothing is half committed and nothing was ever given twice.
func (a *allocators) check() {
	a.t.Helper()
	for wrong, query := range map[string]string{
		"attempts that do not hold, or did not, what their job asks for": `SELECT count(*) FROM attempts t JOIN jobs j ON j.id = t.job
			WHERE (SELECT count(*) FROM allocations l WHERE l.job = t.job AND l.attempt = t.attempt) <> j.nodes * j.per_node`,
		"allocations of no attempt":                             `SELECT count(*) FROM allocations l WHERE NOT EXISTS (SELECT 1 FROM attempts t WHERE t.job = l.job AND t.attempt = l.attempt)`,
		"jobs that start without an attempt, or wait with one":  `SELECT count(*) FROM jobs j WHERE (j.state = 'starting') <> EXISTS (SELECT 1 FROM attempts t WHERE t.job = j.id AND t.released_at = 0)`,
		"attempts that were not told of once":                   `SELECT count(*) FROM attempts t WHERE (SELECT count(*) FROM events e WHERE e.job = t.job AND e.job <> '' AND e.kind = 'job.allocated') <> t.attempt`,
		"allocations that meet another of the same accelerator": `SELECT count(*) FROM allocations a JOIN allocations b ON a.accelerator = b.accelerator AND (a.job <> b.job OR a.attempt <> b.attempt) AND a.allocated_at < CASE b.released_at WHEN 0 THEN 9000000000000 ELSE b.released_at END AND b.allocated_at < CASE a.released_at WHEN 0 THEN 9000000000000 ELSE a.released_at END`,
		"released allocations without their one ledger row":     `SELECT count(*) FROM allocations l WHERE l.released_at > 0 AND (SELECT count(*) FROM ledger r WHERE r.job = l.job AND r.attempt = l.attempt AND r.accelerator = l.accelerator AND r.start_at = l.allocated_at AND r.end_at = l.released_at) <> 1`,
		"ledger rows of what is held or never was":              `SELECT count(*) FROM ledger r WHERE NOT EXISTS (SELECT 1 FROM allocations l WHERE l.job = r.job AND l.attempt = r.attempt AND l.accelerator = r.accelerator AND l.released_at > 0)`,
		"starts under an epoch after a later one has started": `SELECT count(*) FROM attempts t JOIN events e ON e.job = t.job AND e.job <> '' AND e.kind = 'job.allocated'
			WHERE EXISTS (SELECT 1 FROM attempts u JOIN events f ON f.job = u.job AND f.job <> '' AND f.kind = 'job.allocated' WHERE u.epoch < t.epoch AND f.seq > e.seq)`,
	} {
		if n := a.number(query); n > 0 {
			a.t.Errorf("%d %s", n, wrong)
		}
	}
	if a.t.Failed() {
		a.t.FailNow()
	}
}

// TestAllocatorsThatAreKilledAndRace: real processes allocate on one record. They are killed (SIGKILL) in the middle of a
// batch's transaction, at each kind of row that it writes; they meet, one whose epoch has passed and one that takes over while
// the other commits; and they are killed at random while they work. Nothing is ever allocated twice, nothing is half
// committed, and the ledger has each accelerator's time once.
func TestAllocatorsThatAreKilledAndRace(t *testing.T) {
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		a := newAllocators(t, store.Config{Driver: "sqlite", DSN: filepath.Join(t.TempDir(), "gpupool.db")})
		race(a, &sqliteGate{a.raw})
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		a := newAllocators(t, store.Config{Driver: "postgres", DSN: storetest.Database(t, storetest.Postgres(t)), MaxConnections: 8})
		race(a, newPostgresGate(t, a.raw))
	})
}

func race(a *allocators, g gate) {
	t := a.t
	t.Helper()
	const most = killServers * killPer / 2 / 2 // jobs of one and two servers that fit at least
	for _, table := range []string{"allocations", "attempts", "jobs", "events"} {
		a.submit(most)
		before := a.number("SELECT count(*) FROM attempts")
		g.shut(t, table)
		p := a.start()
		a.serves(p)
		g.reached(t)
		a.kill(p)
		next := a.start() // on PostgreSQL it meets the dead one's transaction, which its server still holds
		g.open(t)
		a.serves(next)
		a.until("what was cut short to be started by the next", func() bool {
			a.check()
			return a.number("SELECT count(*) FROM attempts") > before
		})
		a.kill(next)
		a.settle(killServers * killPer)
		a.check()
	}

	// One serves while jobs come, and another takes over: the first must end by itself.
	first := a.start()
	a.serves(first)
	a.submit(most)
	second := a.start()
	a.submit(most)
	a.serves(second)
	epoch := a.number("SELECT epoch FROM allocator_epochs")
	news := a.number("SELECT max(seq) FROM job_seq")
	a.submit(most)
	a.until("the one whose epoch has passed to be refused, and the other to go on", func() bool {
		a.check()
		a.settle(1 + a.rnd.IntN(4))
		return a.number(fmt.Sprintf("SELECT count(*) FROM jobs j JOIN attempts t ON t.job = j.id WHERE j.seq > %d", news)) > 0
	})
	ended := make(chan error, 1)
	go func() { ended <- first.cmd.Wait() }()
	select {
	case err := <-ended:
		if first.cmd.ProcessState.ExitCode() != stale {
			t.Fatalf("the allocator whose epoch has passed ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the allocator whose epoch has passed goes on")
	}
	if n := a.number(fmt.Sprintf("SELECT count(*) FROM jobs j JOIN attempts t ON t.job = j.id WHERE j.seq > %d AND t.epoch <> %d", news, epoch)); n > 0 {
		t.Fatalf("%d jobs that came after the take-over were started by the one before", n)
	}

	// At random, sometimes with the next one already on its way.
	running := []*process{second}
	for range 6 {
		begun := a.number("SELECT count(*) FROM attempts")
		a.submit(most)
		if a.rnd.IntN(2) == 0 {
			running = append(running, a.start())
		}
		a.until("a start", func() bool {
			a.settle(1 + a.rnd.IntN(4)) // one server's may not do for who is first
			return a.number("SELECT count(*) FROM attempts") > begun
		})
		for _, p := range running {
			a.kill(p)
		}
		running = []*process{a.start()}
		a.check()
	}
	a.serves(running[0])
	a.until("every job to be settled", func() bool {
		a.check()
		a.settle(killServers * killPer)
		return a.number("SELECT count(*) FROM jobs WHERE ended_at = 0") == 0
	})
	a.kill(running[0])
	a.check()
	if n := a.number("SELECT count(*) FROM jobs"); n != a.jobs {
		t.Fatalf("%d jobs in the record of %d submitted", n, a.jobs)
	}
	if n, want := a.number("SELECT count(*) FROM ledger"), a.number("SELECT sum(nodes * per_node) FROM jobs"); n != want {
		t.Fatalf("%d ledger rows, want %d: each job ran once", n, want)
	}
	epochs := a.number("SELECT count(DISTINCT epoch) FROM attempts")
	if epochs < 8 {
		t.Fatalf("the jobs were started under %d epochs", epochs)
	}
	t.Logf("%d jobs, started under %d of %d epochs", a.jobs, epochs, a.number("SELECT epoch FROM allocator_epochs"))
	a.conserved()
}

// conserved is the product's own check, once the hours are over.
func (a *allocators) conserved() {
	a.t.Helper()
	driver, dsn, _ := strings.Cut(a.record, " ")
	later, err := store.Open(a.t.Context(), store.Config{Driver: driver, DSN: dsn, MaxConnections: 2, Clock: func() time.Time { return time.Now().Add(2 * time.Hour) }})
	must(a.t, err)
	defer func() { must(a.t, later.Close()) }()
	hours, found, err := later.CheckHours(a.t.Context(), 100)
	must(a.t, err)
	if hours == 0 || len(found) > 0 {
		a.t.Fatalf("of %d hours, what does not balance: %+v", hours, found)
	}
}

// until waits for ok by asking again and again.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited for %s", what)
		}
	}
}

// sqliteGate is a trigger that never ends: its process counts until it is killed, in the middle of its transaction.
type sqliteGate struct{ raw *sql.DB }

func (g *sqliteGate) shut(t *testing.T, table string) {
	t.Helper()
	when, cond := "INSERT", ""
	switch table {
	case "jobs":
		when = "UPDATE"
	case "events":
		cond = " WHEN NEW.kind = 'job.allocated'"
	}
	_, err := g.raw.ExecContext(t.Context(), fmt.Sprintf(`CREATE TRIGGER gate AFTER %s ON %s%s BEGIN
		SELECT count(*) FROM (WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n); END`, when, table, cond))
	must(t, err)
}

func (g *sqliteGate) reached(t *testing.T) {
	t.Helper()
	c, err := g.raw.Conn(t.Context())
	must(t, err)
	defer func() { must(t, c.Close()) }()
	_, err = c.ExecContext(t.Context(), "PRAGMA busy_timeout = 0")
	must(t, err)
	held := 0 // how often in a row: no other transaction lasts
	until(t, "a transaction to hold the database and keep it", func() bool {
		if _, err := c.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
			if held++; !strings.Contains(err.Error(), "locked") {
				t.Fatal(err)
			}
			return held > 20
		}
		held = 0
		_, err := c.ExecContext(t.Context(), "ROLLBACK")
		must(t, err)
		return false
	})
	_, err = c.ExecContext(t.Context(), "PRAGMA busy_timeout = 10000")
	must(t, err)
}

func (g *sqliteGate) open(t *testing.T) {
	t.Helper()
	_, err := g.raw.ExecContext(t.Context(), "DROP TRIGGER gate")
	must(t, err)
}

// postgresGate is an advisory lock that triggers take, and that the test holds while the gate is shut. PostgreSQL goes on with
// a statement whose client has died: what it would do next is what is tested.
type postgresGate struct {
	raw  *sql.DB
	hold *sql.Conn
}

func newPostgresGate(t *testing.T, raw *sql.DB) *postgresGate {
	t.Helper()
	hold, err := raw.Conn(t.Context())
	must(t, err)
	t.Cleanup(func() { _ = hold.Close() })
	_, err = raw.ExecContext(t.Context(), `CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NULL; END $$`)
	must(t, err)
	return &postgresGate{raw, hold}
}

func (g *postgresGate) shut(t *testing.T, table string) {
	t.Helper()
	when, cond := "INSERT", ""
	switch table {
	case "jobs":
		when = "UPDATE"
	case "events":
		cond = " WHEN (NEW.kind = 'job.allocated')"
	}
	_, err := g.hold.ExecContext(t.Context(), "SELECT pg_advisory_lock(7)")
	must(t, err)
	_, err = g.raw.ExecContext(t.Context(), fmt.Sprintf("CREATE TRIGGER gate AFTER %s ON %s FOR EACH ROW%s EXECUTE FUNCTION gate()", when, table, cond))
	must(t, err)
}

func (g *postgresGate) reached(t *testing.T) {
	t.Helper()
	until(t, "a transaction to wait at the gate", func() bool {
		var n int
		must(t, g.raw.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 7 AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())").Scan(&n))
		return n > 0
	})
}

func (g *postgresGate) open(t *testing.T) {
	t.Helper()
	_, err := g.hold.ExecContext(t.Context(), "SELECT pg_advisory_unlock(7)")
	must(t, err)
}
