package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// postgresEnv names a PostgreSQL database to measure on, as a DSN; it is filled. Without it a server is started here.
const postgresEnv = "GPUPOOL_BENCH_POSTGRES"

// postgres gives a database on PostgreSQL and what ends it.
func postgres(ctx context.Context) (dsn string, stop func(), err error) {
	if dsn := os.Getenv(postgresEnv); dsn != "" {
		return dsn, func() {}, nil
	}
	return ownPostgres(ctx)
}

// ownPostgres starts a server that is reached by a socket in its folder alone.
func ownPostgres(ctx context.Context) (dsn string, stop func(), err error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(found) == 0 {
		return "", nil, fmt.Errorf("PostgreSQL is not installed here (Debian: postgresql); or name a database by %s", postgresEnv)
	}
	bin := slices.Max(found)
	dir, err := os.MkdirTemp("", "gpupool-bench-")
	if err != nil {
		return "", nil, err
	}
	gone := func() { _ = os.RemoveAll(dir) }
	as := &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	if os.Geteuid() == 0 { // PostgreSQL refuses to run as root
		u, err := user.Lookup("postgres")
		if err != nil {
			gone()
			return "", nil, err
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err := errors.Join(err1, err2, os.Chown(dir, uid, gid)); err != nil {
			gone()
			return "", nil, err
		}
		as.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", filepath.Join(dir, "data"), "-U", "gpupool", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8")
	initdb.Dir, initdb.SysProcAttr = dir, as
	if out, err := initdb.CombinedOutput(); err != nil {
		gone()
		return "", nil, fmt.Errorf("initdb: %w: %s", err, out)
	}
	srv := exec.Command(filepath.Join(bin, "postgres"), "-D", filepath.Join(dir, "data"), "-h", "", "-k", dir, "-c", "shared_buffers=256MB", "-c", "max_wal_size=4GB", "-c", "synchronous_commit=on")
	srv.Dir, srv.SysProcAttr = dir, as
	if err := srv.Start(); err != nil {
		gone()
		return "", nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Wait() }()
	stop = func() {
		_ = srv.Process.Signal(syscall.SIGINT)
		<-ended
		gone()
	}
	dsn = "host=" + dir + " user=gpupool dbname=postgres sslmode=disable"
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	limit, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		c, err := pgx.Connect(limit, dsn)
		if err == nil {
			return dsn, stop, c.Close(ctx)
		}
		select {
		case exit := <-ended:
			gone()
			return "", nil, fmt.Errorf("PostgreSQL ended at its start: %w", exit)
		case <-limit.Done():
			stop()
			return "", nil, fmt.Errorf("PostgreSQL does not answer: %w", err)
		case <-tick.C:
		}
	}
}
