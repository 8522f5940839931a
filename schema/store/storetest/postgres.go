package storetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"gpupool/schema"
	"gpupool/schema/store"
)

// PostgresEnv names a PostgreSQL server on which tests may make databases, as a URL. Where it is set, Open gives stores
// on it instead of on SQLite.
const PostgresEnv = "GPUPOOL_TEST_POSTGRES"

// Postgres is the URL of a PostgreSQL server for tests: the one that PostgresEnv names, else one that is started here on
// loopback and ends with the test. Where none is installed the test is skipped.
func Postgres(t testing.TB) string {
	t.Helper()
	if u := os.Getenv(PostgresEnv); u != "" {
		return u
	}
	// What a power cut would lose is not what tests are about, so nothing is flushed.
	return postgres(t, "-c", "fsync=off", "-c", "full_page_writes=off", "-c", "synchronous_commit=off")
}

// AgainOnPostgres runs all tests of the package once more, with their stores on a PostgreSQL server. In that run it does nothing.
func AgainOnPostgres(t *testing.T) {
	t.Helper()
	if os.Getenv(PostgresEnv) != "" {
		return
	}
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.timeout=5m")
	cmd.Env = append(os.Environ(), PostgresEnv+"="+Postgres(t))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// DurablePostgres is a server started here that flushes as in production, for measuring.
func DurablePostgres(t testing.TB) string {
	t.Helper()
	return postgres(t)
}

func postgres(t testing.TB, flags ...string) string {
	t.Helper()
	bin := postgresBin(t)
	// Not t.TempDir: the path of a socket has at most 107 bytes.
	dir, err := os.MkdirTemp("", "gpupool-pg-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	as := unprivileged(t, dir)
	data := filepath.Join(dir, "data")
	initdb := exec.Command(filepath.Join(bin, "initdb"), "-D", data, "-U", "gpupool", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "-N")
	initdb.Dir, initdb.SysProcAttr = dir, as
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	// The port is free when it is chosen and may be taken when it is bound.
	for range 5 {
		u, err := startPostgres(t, bin, dir, data, as, flags)
		if err == nil {
			return u
		}
		t.Log(err)
	}
	t.Fatal("PostgreSQL did not start")
	return ""
}

func startPostgres(t testing.TB, bin, dir, data string, as *syscall.SysProcAttr, flags []string) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return "", err
	}
	args := append([]string{"-D", data, "-h", "127.0.0.1", "-p", strconv.Itoa(port), "-k", dir, "-c", "max_connections=200", "-c", "shared_buffers=64MB"}, flags...)
	cmd := exec.Command(filepath.Join(bin, "postgres"), args...)
	cmd.Dir, cmd.SysProcAttr = dir, as
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	u := fmt.Sprintf("postgres://gpupool@127.0.0.1:%d/postgres?sslmode=disable", port)
	tick, deadline := time.NewTicker(20*time.Millisecond), time.NewTimer(30*time.Second)
	defer tick.Stop()
	defer deadline.Stop()
	for {
		err := ping(t.Context(), u)
		if err == nil {
			break
		}
		select {
		case exit := <-ended:
			return "", fmt.Errorf("PostgreSQL ended at its start: %w\n%s", exit, &said)
		case <-deadline.C:
			err = errors.Join(err, cmd.Process.Signal(syscall.SIGQUIT), <-ended)
			return "", fmt.Errorf("PostgreSQL does not answer: %w\n%s", err, &said)
		case <-tick.C:
		}
	}
	t.Cleanup(func() {
		// SIGINT is a fast stop: sessions that a killed process left are ended.
		_ = cmd.Process.Signal(syscall.SIGINT)
		<-ended
	})
	return u, nil
}

func ping(ctx context.Context, u string) error {
	c, err := pgx.Connect(ctx, u)
	if err != nil {
		return err
	}
	return c.Close(ctx)
}

// postgresBin is the folder of the newest server that is installed.
func postgresBin(t testing.TB) string {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil {
		t.Fatal(err)
	}
	version := func(path string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path)))) // 0 where it is no number
		return n
	}
	if len(found) > 0 {
		return filepath.Dir(slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) }))
	}
	path, err := exec.LookPath("postgres")
	if err != nil {
		t.Skip("PostgreSQL is not installed (Debian: postgresql; `make test` installs it where it may)")
	}
	return filepath.Dir(path)
}

// unprivileged gives dir to the user that PostgreSQL is to run as: it refuses to run as root. The server ends with the
// test's process, however that ends.
func unprivileged(t testing.TB, dir string) *syscall.SysProcAttr {
	t.Helper()
	as := &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	if os.Geteuid() != 0 {
		return as
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			t.Skip("there is neither a user postgres nor nobody, and PostgreSQL refuses to run as root")
		}
	}
	uid, uidErr := strconv.Atoi(u.Uid)
	gid, gidErr := strconv.Atoi(u.Gid)
	if err := errors.Join(uidErr, gidErr, os.Chown(dir, uid, gid)); err != nil {
		t.Fatal(err)
	}
	as.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return as
}

// Database makes a database on the server and gives its URL; it goes with the test.
func Database(t testing.TB, server string) string {
	t.Helper()
	name := store.NewID("test", schema.At(time.Now()))
	run := func(q string) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		c, err := pgx.Connect(ctx, server)
		if err != nil {
			return err
		}
		_, err = c.Exec(ctx, q)
		return errors.Join(err, c.Close(ctx))
	}
	if err := run("CREATE DATABASE " + name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := run("DROP DATABASE " + name + " WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}
