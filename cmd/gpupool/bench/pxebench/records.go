package pxebench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"gpupool/schema/secret"
	"gpupool/schema/store"
)

// The drivers of a record, as store.Config has them.
const (
	sqlite   = "sqlite"
	postgres = "postgres"
)

// Databases that those of each round are copies of.
const (
	seed    = "gpupool_seed"
	keaSeed = "kea_seed"
)

// records are the databases that services and peers are measured on: each round has new ones.
type records struct {
	n      int
	file   string          // SQLite with the servers enrolled
	server *pgx.ConnConfig // nil = there is no PostgreSQL
	kea    bool            // Kea's own scripts for PostgreSQL are here
}

// prepare enrols perfdhcp's machines, as those of a site of that many servers.
func (b *bench) prepare(database string) error {
	b.say(fmt.Sprintf("enrolling %d servers", clients))
	b.rec.file = b.path("seed.db")
	if err := enrol(b.ctx, store.Config{Driver: sqlite, DSN: b.rec.file}); err != nil {
		return err
	}
	if database == "" {
		return nil
	}
	var err error
	if b.rec.server, err = pgx.ParseConfig(database); err != nil {
		return err
	}
	if err := b.rec.do(b.ctx, "postgres", "CREATE DATABASE "+seed); err != nil {
		return err
	}
	if err := enrol(b.ctx, store.Config{Driver: postgres, DSN: b.rec.dsn(seed)}); err != nil {
		return err
	}
	script, err := os.ReadFile("/usr/share/kea/scripts/pgsql/dhcpdb_create.pgsql")
	if err != nil {
		b.say("Kea is not measured on PostgreSQL: " + err.Error())
		return nil
	}
	b.rec.kea = true
	if err := b.rec.do(b.ctx, "postgres", "CREATE DATABASE "+keaSeed); err != nil {
		return err
	}
	return b.rec.do(b.ctx, keaSeed, string(script))
}

func enrol(ctx context.Context, c store.Config) error {
	db, err := store.Open(ctx, c)
	if err != nil {
		return err
	}
	defer db.Close()
	keys, err := secret.New(secret.Keys{secret.NewKey()})
	if err != nil {
		return err
	}
	var all []store.NewServer
	for i := range clients + 10 {
		n := 0x01020304 + i // perfdhcp counts up from 00:0c:01:02:03:04
		all = append(all, store.NewServer{
			Name: fmt.Sprint("s", i), Region: "bench", Site: "bench", Rack: fmt.Sprint("r", i/40), Serial: fmt.Sprint("SN", i),
			MACs:       []string{fmt.Sprintf("00:0c:%02x:%02x:%02x:%02x", byte(n>>24), byte(n>>16), byte(n>>8), byte(n))},
			BMCAddress: fmt.Sprintf("https://10.99.%d.%d", i/250, 1+i%250), BMCUsername: "admin", BMCPassword: "secret",
			Model: "nvidia-h100-80gb", Accelerators: 8, CPUs: 112, MemoryBytes: 1 << 40,
		})
	}
	_, err = db.EnrollServers(ctx, "bench", keys, all)
	return err
}

// record makes a new record with the servers and returns its DSN.
func (b *bench) record(driver string) (string, error) {
	if driver == postgres {
		name, err := b.rec.database(b.ctx, seed)
		return b.rec.dsn(name), err
	}
	b.rec.n++
	to := b.path(fmt.Sprintf("record%d.db", b.rec.n))
	in, err := os.Open(b.rec.file)
	if err != nil {
		return "", err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return "", err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return "", err
	}
	return to, out.Close()
}

// database makes a copy of one on PostgreSQL and returns its name.
func (r *records) database(ctx context.Context, of string) (string, error) {
	r.n++
	name := fmt.Sprintf("round%d", r.n)
	return name, r.do(ctx, "postgres", "CREATE DATABASE "+name+" TEMPLATE "+of)
}

func (r *records) dsn(name string) string {
	return fmt.Sprintf("host=%s port=%d user=%s dbname=%s sslmode=disable", r.server.Host, r.server.Port, r.server.User, name)
}

// do runs a script in a database.
func (r *records) do(ctx context.Context, name, script string) error {
	c, err := pgx.Connect(ctx, r.dsn(name))
	if err != nil {
		return err
	}
	_, err = c.PgConn().Exec(ctx, script).ReadAll()
	return errors.Join(err, c.Close(ctx))
}

// tick is the unit of times in /proc: USER_HZ, 100 on every architecture that Go runs on.
const tick = 10 * time.Millisecond

// spent is the processor time of everything that this process has started and that runs now, with what of theirs has ended:
// the server that is measured, and its database.
func spent() (time.Duration, error) {
	var sum time.Duration
	all, err := family()
	for _, used := range all {
		sum += used
	}
	return sum, err
}

// family is everything that this process has started and that runs now, by process id, with the processor time of each.
func family() (map[string]time.Duration, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	parent, used := map[string]string{}, map[string]time.Duration{}
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		_, rest, ok := strings.Cut(string(b[strings.IndexByte(string(b), ')'):]), ") ")
		f := strings.Fields(rest)
		if !ok || len(f) < 15 {
			return nil, fmt.Errorf("%s: %q: want proc(5)'s fields", path, b)
		}
		if f[0] == "Z" {
			continue
		}
		pid := filepath.Base(filepath.Dir(path))
		parent[pid] = f[1]
		for _, t := range f[11:15] { // utime, stime, and those of children that have ended
			n, err := strconv.ParseInt(t, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
			used[pid] += time.Duration(n) * tick
		}
	}
	self := strconv.Itoa(os.Getpid())
	for pid := range parent {
		up := parent[pid]
		for up != self && up != "" && up != "0" {
			up = parent[up]
		}
		if up != self {
			delete(used, pid)
		}
	}
	return used, nil
}
