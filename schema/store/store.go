// Package store is the record: inventory, jobs, allocations, ledger, events, in SQLite or PostgreSQL.
//
// Invariants: every change of state is checked against its lifecycle table in the transaction that makes it; a change
// and the event that tells of it share one transaction; event sequence numbers become visible in order.
// Not here: what happens next (workflows), who gets what (activities/allocator/engine).
//
// On SQLite a transaction is the only writer. On PostgreSQL (read committed) what a transaction rests on is locked before it
// is read: servers, then jobs, then attempts, then tasks, each kind in the order of ids. What several transactions change is
// under the lock of the server or job that it belongs to; who meets them in another order may be chosen as a deadlock's
// victim, and runs again.
package store

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/libtnb/sqlite"
	"github.com/oklog/ulid/v2"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/clause"
	"gorm.io/gorm/logger"

	"gpupool/schema"
	"gpupool/schema/migrations"
)

// Config says where the record is kept.
type Config struct {
	Driver string // "sqlite" or "postgres"
	DSN    string // sqlite: the file's path; postgres: a URL or key=value string
	// Sync is SQLite's synchronous setting, "normal" (default: a kill of the process loses nothing, a power cut may
	// lose the last moments) or "full" (a power cut loses nothing).
	Sync           string
	MaxConnections int              // open PostgreSQL connections; 0 = 20
	Limits         Limits           // what may be taken out of the pool automatically; zero fields are DefaultLimits'
	SeenEvery      time.Duration    // how often it is kept that an agent and its devices were seen unchanged; 0 = 15 s
	Clock          func() time.Time // nil = time.Now
	Log            *slog.Logger
}

// Store is safe for concurrent use. SQLite has one writer connection; PostgreSQL a pool.
type Store struct {
	r, w     *gorm.DB
	postgres bool
	seen     time.Duration // Config.SeenEvery
	limits   Limits
	clock    func() time.Time
	log      *slog.Logger

	hub  *hub
	stop context.CancelFunc
	wg   sync.WaitGroup
}

// Open opens the database and brings it to the newest schema.
func Open(ctx context.Context, c Config) (*Store, error) {
	s := &Store{seen: cmp.Or(c.SeenEvery, SeenEvery), limits: c.Limits.WithDefaults(), clock: c.Clock, log: c.Log, hub: newHub()}
	if s.clock == nil {
		s.clock = time.Now
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	// Both drivers keep their statements by themselves: PrepareStmt would prepare what is within a transaction each time.
	gc := &gorm.Config{Logger: logger.Discard, SkipDefaultTransaction: true, DisableForeignKeyConstraintWhenMigrating: true}
	switch c.Driver {
	case "sqlite":
		if c.DSN == "" {
			return nil, schema.Invalid("database.dsn", c.DSN, "the path of the SQLite file")
		}
		sync := "NORMAL"
		switch c.Sync {
		case "", "normal":
		case "full":
			sync = "FULL"
		default:
			return nil, schema.Invalid("database.sync", c.Sync, "normal or full")
		}
		if err := private(c.DSN); err != nil {
			return nil, fmt.Errorf("creating the database: %w", err)
		}
		base := "file:" + c.DSN + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=synchronous(" + sync + ")&_pragma=foreign_keys(1)&_pragma=cache_size(-32000)"
		open := func(dsn string, connections int, whole bool) (*gorm.DB, error) {
			in, err := openSQLite(dsn, whole)
			if err != nil {
				return nil, fmt.Errorf("opening the database: %w", err)
			}
			db, err := gorm.Open(sqlite.New(sqlite.Config{Conn: in}), gc)
			if err != nil {
				return nil, errors.Join(fmt.Errorf("opening the database: %w", err), in.Close())
			}
			return db, pool(db, connections)
		}
		w, err := open(base+"&_txlock=immediate", 1, true)
		if err != nil {
			return nil, err
		}
		if err := migrate(ctx, w, "sqlite"); err != nil {
			return nil, err
		}
		r, err := open(base+"&_pragma=query_only(1)", 8, false)
		if err != nil {
			return nil, err
		}
		s.w, s.r = w, r
	case "postgres":
		inner, err := openPostgres(c.DSN)
		if err != nil { // its text hides the password
			return nil, &schema.Error{Code: schema.CodeInvalid, Field: "database.dsn", Message: "can't be read", Hint: "a postgres:// URL or key=value pairs", Err: err}
		}
		db, err := gorm.Open(postgres.New(postgres.Config{Conn: inner}), gc)
		if err != nil {
			_ = inner.Close()
			return nil, &schema.Error{Code: schema.CodeUnavailable, Field: "database.dsn", Message: "PostgreSQL does not answer", Hint: "is it running, and do user, password and database name fit?", Err: err}
		}
		if err := pool(db, cmp.Or(c.MaxConnections, 20)); err != nil {
			return nil, err
		}
		if err := migrate(ctx, db, "postgres"); err != nil {
			return nil, err
		}
		s.w, s.r, s.postgres = db, db, true
	default:
		return nil, schema.Invalid("database.driver", c.Driver, "sqlite or postgres")
	}
	bg, stop := context.WithCancel(context.Background())
	s.stop = stop
	if s.postgres {
		at, err := s.Head(ctx) // before anyone can watch: what is committed from here on is heard of
		if err != nil {
			stop()
			return nil, fmt.Errorf("opening the database: %w", err)
		}
		s.hub.own = map[int64]int64{}
		s.wg.Go(func() { s.listen(bg, at) })
	}
	return s, nil
}

// private creates the file, where there is none, for its owner alone: it holds hashes of tokens and sealed passwords. SQLite
// gives its write-ahead log the same mode. A file that is there keeps the mode it was given.
func private(path string) error {
	// Never opened where it is there: closing it would drop the locks that another handle of this process has on it.
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

func pool(db *gorm.DB, n int) error {
	d, err := db.DB()
	if err != nil {
		return err
	}
	d.SetMaxOpenConns(n)
	d.SetMaxIdleConns(n)
	return nil
}

func migrate(ctx context.Context, db *gorm.DB, dialect string) error {
	d, err := db.DB()
	if err != nil {
		return err
	}
	return migrations.Up(ctx, d, dialect)
}

// Close ends the store's goroutine and connections.
func (s *Store) Close() error {
	s.stop()
	s.wg.Wait()
	var errs []error
	for _, db := range []*gorm.DB{s.w, s.r} {
		if d, err := db.DB(); err == nil {
			errs = append(errs, d.Close())
		}
	}
	return errors.Join(errs...)
}

// Now is the store's clock.
func (s *Store) Now() schema.Instant { return schema.At(s.clock()) }

// Read is a handle for queries of other files; it never writes.
func (s *Store) read(ctx context.Context) *gorm.DB { return s.r.WithContext(ctx) }

// Tx is one write transaction. What Emit collects is written last, so that the sequence's lock is held briefly.
type Tx struct {
	db     *gorm.DB
	s      *Store
	now    schema.Instant
	events []schema.Event
}

// Now is one moment for the whole transaction.
func (tx *Tx) Now() schema.Instant { return tx.now }

// metered moves the transaction's moment to the ledger's clock, which never goes back: the process's clock, or the newest
// moment in the record where that is later (the clock was set back, another process's is ahead, or this transaction waited
// for a lock). Called once the locks are held, it makes two holders of one accelerator follow one another. What is counted
// in accelerator time begins and ends by it.
func (tx *Tx) metered() error {
	var newest schema.Instant
	if err := tx.db.Raw("SELECT at FROM event_seq WHERE one = 1").Scan(&newest).Error; err != nil {
		return err
	}
	tx.now = max(tx.s.Now(), tx.now, newest)
	return nil
}

// Emit adds an event to the transaction. At is filled in; data is marshalled.
func (tx *Tx) Emit(e schema.Event, data any) {
	e.At = tx.now
	if data != nil {
		b, err := json.Marshal(data)
		if err != nil {
			panic(fmt.Sprintf("event %s: its data can't be marshalled: %v", e.Kind, err)) // a programming error
		}
		e.Data = b
	}
	tx.events = append(tx.events, e)
}

// Write runs f in one transaction and then wakes those who wait for events. A transaction that lost a race on
// PostgreSQL (serialisation, deadlock) runs again, so f must have no effect but through tx.
func (s *Store) Write(ctx context.Context, f func(tx *Tx) error) error {
	for try := 0; ; try++ {
		events, err := s.write(ctx, f)
		if err == nil {
			s.hub.committed(events)
			return nil
		}
		var pg *pgconn.PgError
		if try < 8 && errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01") {
			continue
		}
		return err
	}
}

func (s *Store) write(ctx context.Context, f func(tx *Tx) error) ([]schema.Event, error) {
	var tx *Tx
	err := s.w.WithContext(ctx).Transaction(func(db *gorm.DB) error {
		tx = &Tx{db: db, s: s, now: s.Now()}
		if err := f(tx); err != nil {
			return err
		}
		return tx.flush()
	})
	if err != nil {
		return nil, err
	}
	return tx.events, nil
}

// flush takes sequence numbers by updating one row, whose lock is held until the commit: so numbers are handed out
// in commit order, and a reader that sees n sees all below it. All who write wait for that lock: on PostgreSQL one statement
// takes the numbers and writes the events, and only the commit is left.
func (tx *Tx) flush() error {
	n := len(tx.events)
	if n == 0 {
		return nil
	}
	if err := tx.recount(); err != nil {
		return fmt.Errorf("recording capacity: %w", err)
	}
	const (
		take    = "UPDATE event_seq SET seq = seq + ?, at = CASE WHEN at > ? THEN at ELSE ? END WHERE one = 1 RETURNING seq"
		columns = `INSERT INTO events (seq, at, kind, subject, server, job, tenant, "by", data) `
	)
	rows := make([]row, n)
	for i, e := range tx.events {
		var data any
		if len(e.Data) > 0 {
			data = string(e.Data)
		}
		rows[i] = row{int64(i + 1 - n), int64(e.At), string(e.Kind), e.Subject, e.Server, e.Job, e.Tenant, e.By, data}
	}
	var last int64
	if tx.s.postgres {
		const both = "WITH taken AS (" + take + "), written AS (" + columns + `SELECT taken.seq + v.behind, v.at, kind, subject, server, job, tenant, "by", data
			FROM taken, (?) AS v (behind, at, kind, subject, server, job, tenant, "by", data)) SELECT seq FROM taken`
		if err := tx.db.Raw(both, n, tx.now, tx.now, table{rows}).Scan(&last).Error; err != nil {
			return fmt.Errorf("writing events: %w", err)
		}
	} else if err := tx.db.Raw(take, n, tx.now, tx.now).Scan(&last).Error; err != nil {
		return fmt.Errorf("taking event numbers: %w", err)
	}
	for i := range tx.events {
		tx.events[i].Seq = last + int64(i+1-n)
		rows[i][0] = tx.events[i].Seq
	}
	if tx.s.postgres {
		return nil
	}
	if _, err := tx.writeRows(columns+"?", rows); err != nil {
		return fmt.Errorf("writing events: %w", err)
	}
	return nil
}

// lock reads one row for change: on PostgreSQL it is locked until the end; on SQLite the transaction is the only writer.
func (tx *Tx) lock(dst any, where string, args ...any) error {
	db := tx.db
	if tx.s.postgres {
		db = db.Clauses(clause.Locking{Strength: "UPDATE"})
	}
	return db.Where(where, args...).Take(dst).Error
}

// exclusive makes transactions that name the same thing wait for one another until they end, where there is no row to
// lock: a rule over many rows is checked by one at a time. On SQLite they do anyway.
func (tx *Tx) exclusive(name string) error {
	if !tx.s.postgres {
		return nil
	}
	return tx.db.Exec("SELECT pg_advisory_xact_lock(hashtextextended(?, 0))", name).Error
}

// lockAll reads rows for change, in the order of their ids, so that two transactions that need some of the same wait for
// one another and never deadlock.
func (tx *Tx) lockAll(dst any, where any, args ...any) error {
	db := tx.db
	if tx.s.postgres {
		db = db.Clauses(clause.Locking{Strength: "UPDATE"})
	}
	return db.Where(where, args...).Order("id").Find(dst).Error
}

// forUpdate ends a query by hand that reads rows for change, as lockAll does.
func (tx *Tx) forUpdate() string {
	if tx.s.postgres {
		return " FOR UPDATE"
	}
	return ""
}

// exec runs a statement and returns how many rows it changed.
func (tx *Tx) exec(q string, args ...any) (int64, error) {
	r := tx.db.Exec(q, args...)
	return r.RowsAffected, r.Error
}

// update is exec for a statement that changes the one row named.
func (tx *Tx) update(kind, name, q string, args ...any) error {
	n, err := tx.exec(q, args...)
	if err == nil && n != 1 {
		err = schema.NotFound(kind, name)
	}
	return err
}

// one turns gorm's not-found into the domain's.
func one(err error, kind, name string) error {
	if errors.Is(err, gorm.ErrRecordNotFound) {
		return schema.NotFound(kind, name)
	}
	return err
}

// unique reports whether err is a violation of a unique index, and which columns or index it names.
func unique(err error) (string, bool) {
	if err == nil {
		return "", false
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.ConstraintName, pg.Code == "23505"
	}
	msg := err.Error()
	if i := strings.Index(msg, "UNIQUE constraint failed: "); i >= 0 {
		return msg[i+len("UNIQUE constraint failed: "):], true
	}
	if errors.Is(err, gorm.ErrDuplicatedKey) {
		return msg, true
	}
	return "", false
}

var entropy = struct {
	sync.Mutex
	r *ulid.MonotonicEntropy
}{r: ulid.Monotonic(rand.Reader, 0)}

// NewID is a sortable id with a prefix that says what it is of: srv_, job_, rep_, flt_, acc_, tok_, crd_.
func NewID(prefix string, now schema.Instant) string {
	entropy.Lock()
	defer entropy.Unlock()
	return prefix + "_" + strings.ToLower(ulid.MustNew(uint64(now), entropy.r).String())
}

// isNoRows reports whether err is database/sql's or gorm's "nothing there".
func isNoRows(err error) bool {
	return errors.Is(err, sql.ErrNoRows) || errors.Is(err, gorm.ErrRecordNotFound)
}
