package embedded

import (
	"context"
	"database/sql"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"

	"gpupool/worker/namespace"
)

func start(t *testing.T, o Options) *Server {
	t.Helper()
	if o.Logger == nil {
		o.Logger = quiet()
	}
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func dial(t *testing.T, s *Server) client.Client {
	t.Helper()
	c, err := client.Dial(client.Options{HostPort: s.HostPort(), Namespace: namespace.Default, Logger: quietSDK()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestRunsWorkflowsAndFindsThem(t *testing.T) {
	t.Parallel()
	// A folder name that would end a URI early or decode to another one.
	dir := filepath.Join(t.TempDir(), "a b?c#d%41")
	s := start(t, Options{Dir: dir, Sync: SyncNormal})
	c := dial(t, s)
	stop, err := startWorker(c)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()

	o := options("server/r1s1")
	o.TypedSearchAttributes = temporal.NewSearchAttributes(
		temporal.NewSearchAttributeKeyKeyword(namespace.AttributeServer).ValueSet("r1s1"),
		temporal.NewSearchAttributeKeyKeyword(namespace.AttributeState).ValueSet("onboarding"),
	)
	if _, err := c.SignalWithStartWorkflow(t.Context(), o.ID, "go", nil, o, "process"); err != nil {
		t.Fatal(err)
	}
	waitFor(t, 20*time.Second, func() (bool, string) {
		n := count(t, c, `GpupoolServer = 'r1s1' AND GpupoolState = 'onboarding' AND ExecutionStatus = 'Completed'`)
		return n == 1, "the workflow isn't found as completed by its attributes"
	})

	if _, err := os.Stat(filepath.Join(dir, fileName)); err != nil {
		t.Fatalf("the file isn't where it was asked for: %v", err)
	}
	if err := namespace.Ensure(t.Context(), c, namespace.Default, 0); err != nil {
		t.Fatalf("Ensure on a namespace that is complete: %v", err)
	}
	if err := namespace.Ensure(t.Context(), c, "another", 24*time.Hour); err != nil {
		t.Fatalf("Ensure on a namespace that doesn't exist: %v", err)
	}
	if err := namespace.Ensure(t.Context(), c, "another", 0); err != nil {
		t.Fatalf("Ensure again: %v", err)
	}
}

func TestStopFreesTheFolderAndTheNextStartGoesOn(t *testing.T) {
	t.Parallel()
	o := Options{Dir: t.TempDir(), Logger: quiet()}
	first, err := Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, first)
	if _, err := c.ExecuteWorkflow(t.Context(), options("job/1"), "process"); err != nil {
		t.Fatal(err)
	}
	if err := first.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := first.Stop(); err != nil {
		t.Fatalf("a second Stop: %v", err)
	}

	second := dial(t, start(t, o))
	d, err := second.DescribeWorkflowExecution(t.Context(), "job/1", "")
	if err != nil {
		t.Fatalf("the workflow is gone: %v", err)
	}
	if got := d.GetWorkflowExecutionInfo().GetStatus().String(); got != "Running" {
		t.Fatalf("the workflow is %s", got)
	}
}

func TestFolderInUseIsRefusedWithTheHolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	start(t, Options{Dir: dir})
	_, err := Start(t.Context(), Options{Dir: dir, Logger: quiet()})
	var locked *LockedError
	if !errors.As(err, &locked) {
		t.Fatalf("got %v, want a LockedError", err)
	}
	if locked.PID != os.Getpid() || !strings.Contains(err.Error(), dir) {
		t.Fatalf("the error doesn't name holder and folder: %v", err)
	}
}

func TestTakenPorts(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", address(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	port := taken.Addr().(*net.TCPAddr).Port

	// Each service binds at its own moment; all must lead to another try, none to the end of this process.
	for name, steal := range map[string]func(*ports){
		"the frontend's port taken after the choice: others are chosen": func(p *ports) { p.frontend = port },
		"history's port taken after the choice: others are chosen":      func(p *ports) { p.history = port },
		"matching's port taken after the choice: others are chosen":     func(p *ports) { p.matching = port },
		"the worker's port taken after the choice: others are chosen":   func(p *ports) { p.worker = port },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tries := 0
			s := start(t, Options{Dir: t.TempDir(), Sync: SyncNormal, reserve: func(frontend int) (ports, error) {
				p, err := reservePorts(frontend)
				if tries++; tries == 1 {
					steal(&p)
				}
				return p, err
			}})
			if tries != 2 {
				t.Fatalf("%d tries, want 2", tries)
			}
			if _, err := dial(t, s).ExecuteWorkflow(t.Context(), options("job/1"), "process"); err != nil {
				t.Fatal(err)
			}
		})
	}

	t.Run("a fixed port that is taken is an error that names it", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		_, err := Start(t.Context(), Options{Dir: dir, Port: port, Logger: quiet()})
		if err == nil || !strings.Contains(err.Error(), "is taken") {
			t.Fatalf("got %v", err)
		}
		// The failed start left the folder free.
		start(t, Options{Dir: dir})
	})
}

func TestFilesItCannotReadAreRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare string
		want    SchemaError
	}{
		"another program's database": {
			prepare: `CREATE TABLE executions (x)`,
			want:    SchemaError{},
		},
		"a schema of a later version": {
			prepare: `CREATE TABLE gpupool_schema (history TEXT, visibility TEXT, server TEXT, created TEXT);
			          INSERT INTO gpupool_schema VALUES ('9.9', '0.1', '9.0.0', '')`,
			want: SchemaError{Found: "9.9/0.1", Want: current().history + "/" + current().visibility, Server: "9.0.0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := filepath.Join(dir, fileName)
			execute(t, file, c.prepare)
			before, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, err = Start(t.Context(), Options{Dir: dir, Logger: quiet()})
			var refused *SchemaError
			if !errors.As(err, &refused) {
				t.Fatalf("got %v, want a SchemaError", err)
			}
			c.want.File = file
			if diff := cmp.Diff(c.want, *refused); diff != "" {
				t.Fatal(diff)
			}
			// Journal mode is the one thing opening changes: two bytes of the header, and the counters beside them.
			after, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(before[100:], after[100:]) {
				t.Fatal("the refused file was changed")
			}
		})
	}
}

func TestSchemaIsWrittenWhollyOrNotAtAll(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), fileName)
	// Taking the context away in the middle of creation is a crash as far as the file can tell. Each
	// try gets a little further.
	interrupted := 0
	for limit := time.Duration(0); ; limit += 200 * time.Microsecond {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		_, err := openStore(ctx, file, SyncNormal)
		cancel()
		if err == nil {
			break
		}
		interrupted++
		if n := query(t, file, `SELECT count(*) FROM sqlite_master`); n != "0" {
			t.Fatalf("interrupted after %s it left %s tables and indexes", limit, n)
		}
	}
	if interrupted < 3 {
		t.Fatalf("only %d interruptions: nothing was proven", interrupted)
	}
	got := strings.Split(query(t, file, `SELECT group_concat(name) FROM (SELECT name FROM sqlite_master
		WHERE type = 'index' AND tbl_name = 'executions_visibility' AND sql IS NOT NULL ORDER BY name)`), ",")
	want := slices.Sorted(slices.Values(keptIndexes))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("visibility indexes:\n%s", diff)
	}
}

func TestOptionsOutOfRangeAreRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"no folder":          {Options{}, "Dir"},
		"unknown sync":       {Options{Dir: "x", Sync: "off"}, `Sync is "off"`},
		"retention too low":  {Options{Dir: "x", Retention: time.Minute}, "Retention is 1m0s"},
		"port out of range":  {Options{Dir: "x", Port: 65536}, "Port is 65536"},
		"too many keywords":  {Options{Dir: "x", SearchAttributes: make([]string, 11)}, "room for 10"},
		"negative retention": {Options{Dir: "x", Retention: -time.Hour}, "Retention is -1h0m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Start(t.Context(), c.o)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, want %q in it", err, c.want)
			}
		})
	}
}

func execute(t *testing.T, file, text string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout=5000")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(text); err != nil {
		t.Fatal(err)
	}
}

func query(t *testing.T, file, text string) (s string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=busy_timeout=5000")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRow(text).Scan(&s); err != nil {
		t.Fatal(err)
	}
	return s
}
