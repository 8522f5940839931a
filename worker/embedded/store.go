package embedded

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"time"

	"go.temporal.io/server/common/config"
	"go.temporal.io/server/common/headers"
	sqliteplugin "go.temporal.io/server/common/persistence/sql/sqlplugin/sqlite"
	"go.temporal.io/server/schema"
	sqliteschema "go.temporal.io/server/schema/sqlite"
	"google.golang.org/protobuf/types/known/durationpb"
)

const (
	// fileName is the database's file in the server's folder; -wal and -shm stand beside it.
	fileName = "temporal.db"

	// maxKeywords is how many keyword attributes SQLite visibility has columns for.
	maxKeywords = 10

	// cluster names this one-machine cluster in Temporal's records. Fixed for the life of a file.
	cluster = "active"
)

// keptIndexes are the visibility indexes that stay of the 58 the schema brings: the default order,
// lookups by workflow id, type and status, and the first two keyword attributes. Each index is
// written at every start and close of a workflow; without the rest a workflow costs a third less
// disk. Searches by other columns still work, by scanning.
var keptIndexes = []string{"default_idx", "by_workflow_id", "by_workflow_type", "by_status", "by_keyword_01", "by_keyword_02"}

// store is the server's SQLite file, its schema present and known.
type store struct {
	sql *config.SQL
}

// version is what the marker table says about a file.
type version struct{ history, visibility, server string }

func current() version {
	return version{history: sqliteschema.Version, visibility: sqliteschema.VisibilityVersion, server: headers.ServerVersion}
}

// SchemaError says that the file was not written by a version this binary can read. Temporal has no
// migrations for SQLite, so there is nothing to try.
type SchemaError struct {
	File string
	// Found and Want are "history/visibility" schema versions; Found is empty where the file holds
	// tables but no marker.
	Found, Want string
	// Server is the version of the Temporal server that made the file.
	Server string
}

func (e *SchemaError) Error() string {
	if e.Found == "" {
		return fmt.Sprintf("embedded temporal: %s holds tables, but wasn't made by gpupool (hint: give data_dir another folder)", e.File)
	}
	return fmt.Sprintf("embedded temporal: %s has schema %s, made by Temporal server %s; this gpupool reads %s only "+
		"(hint: let the older gpupool finish its running workflows, then move the file away; jobs and servers are in gpupool's own database)",
		e.File, e.Found, e.Server, e.Want)
}

// openStore makes the file's schema if there is none and checks it if there is.
func openStore(ctx context.Context, file string, sync Sync) (*store, error) {
	s := &store{sql: &config.SQL{
		PluginName: sqliteplugin.PluginName,
		// The plugin puts the name into a file: URI unescaped.
		DatabaseName: (&url.URL{Path: file}).EscapedPath(),
		// One connection: SQLite has one writer, and a second only adds SQLITE_BUSY.
		MaxConns:     1,
		MaxIdleConns: 1,
		ConnectAttributes: map[string]string{
			"mode":         "rwc",
			"journal_mode": "wal",
			"synchronous":  string(sync),
			"temp_store":   "memory",
			// Kibibytes when negative: 32 MiB of pages.
			"cache_size": "-32768",
			// Milliseconds to wait for a reader from outside, a backup for instance.
			"busy_timeout": "10000",
		},
	}}
	if err := private(file); err != nil {
		return nil, fmt.Errorf("embedded temporal: %w", err)
	}
	if err := prepare(ctx, file, s.dsn()); err != nil {
		var known *SchemaError
		if errors.As(err, &known) {
			return nil, err
		}
		return nil, fmt.Errorf("embedded temporal: %s: %w", file, err)
	}
	return s, nil
}

// private creates the file, where there is none, for its owner alone; SQLite gives what stands beside it the same mode.
func private(file string) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// dsn is the connection string for our own, short, use of the file before the server has it.
func (s *store) dsn() string {
	q := url.Values{"mode": {"rwc"}}
	for _, pragma := range []string{"busy_timeout", "journal_mode", "synchronous"} {
		q.Add("_pragma", pragma+"="+s.sql.ConnectAttributes[pragma])
	}
	return "file:" + s.sql.DatabaseName + "?" + q.Encode()
}

func prepare(ctx context.Context, file, dsn string) (err error) {
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(1)

	found, tables, err := readVersion(ctx, db)
	if err != nil {
		return err
	}
	want := current()
	switch {
	case tables == 0:
		return createSchema(ctx, db, want)
	case found == nil:
		return &SchemaError{File: file}
	case found.history != want.history || found.visibility != want.visibility:
		return &SchemaError{
			File:   file,
			Found:  found.history + "/" + found.visibility,
			Want:   want.history + "/" + want.visibility,
			Server: found.server,
		}
	}
	return nil
}

// readVersion returns the marker, nil if absent, and how many tables there are at all.
func readVersion(ctx context.Context, db *sql.DB) (*version, int, error) {
	var tables, marker int
	err := db.QueryRowContext(ctx, `SELECT count(*), count(*) FILTER (WHERE name = 'gpupool_schema') FROM sqlite_master WHERE type = 'table'`).Scan(&tables, &marker)
	if err != nil || marker == 0 {
		return nil, tables, err
	}
	var v version
	err = db.QueryRowContext(ctx, `SELECT history, visibility, server FROM gpupool_schema`).Scan(&v.history, &v.visibility, &v.server)
	if err != nil {
		return nil, tables, fmt.Errorf("read schema marker: %w", err)
	}
	return &v, tables, nil
}

// createSchema writes both schemas, drops the indexes nobody uses and leaves the marker, in one
// transaction: a kill in the middle leaves an empty file.
func createSchema(ctx context.Context, db *sql.DB, v version) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit a no-op

	for _, name := range []string{"sqlite/v3/temporal/schema.sql", "sqlite/v3/visibility/schema.sql"} {
		text, err := fs.ReadFile(schema.Assets(), name)
		if err != nil {
			return fmt.Errorf("read schema: %w", err)
		}
		if _, err := tx.ExecContext(ctx, string(text)); err != nil {
			return fmt.Errorf("create %s: %w", name, err)
		}
	}
	if err := dropIndexes(ctx, tx); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `CREATE TABLE gpupool_schema (history TEXT NOT NULL, visibility TEXT NOT NULL, server TEXT NOT NULL, created TEXT NOT NULL)`); err != nil {
		return fmt.Errorf("create schema marker: %w", err)
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO gpupool_schema VALUES (?, ?, ?, ?)`, v.history, v.visibility, v.server, time.Now().UTC().Format(time.RFC3339)); err != nil {
		return fmt.Errorf("write schema marker: %w", err)
	}
	return tx.Commit()
}

func dropIndexes(ctx context.Context, tx *sql.Tx) error {
	keep := "'" + strings.Join(keptIndexes, "','") + "'"
	// sql is null for the indexes SQLite makes for primary keys.
	rows, err := tx.QueryContext(ctx, `SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = 'executions_visibility' AND sql IS NOT NULL AND name NOT IN (`+keep+`)`)
	if err != nil {
		return fmt.Errorf("list visibility indexes: %w", err)
	}
	defer rows.Close()
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return fmt.Errorf("list visibility indexes: %w", err)
		}
		names = append(names, name)
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("list visibility indexes: %w", err)
	}
	for _, name := range names {
		if _, err := tx.ExecContext(ctx, `DROP INDEX "`+name+`"`); err != nil {
			return fmt.Errorf("drop visibility index %s: %w", name, err)
		}
	}
	return nil
}

// register writes the namespace before the server runs, so that it is there when the server's
// caches fill; afterwards it would take seconds to be seen. A namespace that exists stays as it is.
func (s *store) register(name string, retention time.Duration, keywords []string) error {
	ns, err := sqliteschema.NewNamespaceConfig(cluster, name, false, nil)
	if err != nil {
		return fmt.Errorf("embedded temporal: namespace %q: %w", name, err)
	}
	ns.Detail.Config.Retention = durationpb.New(retention)
	// The module's own way of giving columns to attributes goes by map order; ours is fixed, so that
	// the two indexed columns hold the attributes meant for them.
	ns.Detail.Config.CustomSearchAttributeAliases = make(map[string]string, len(keywords))
	for i, keyword := range keywords {
		ns.Detail.Config.CustomSearchAttributeAliases[fmt.Sprintf("Keyword%02d", i+1)] = keyword
	}
	if err := sqliteschema.CreateNamespaces(s.sql, ns); err != nil {
		return fmt.Errorf("embedded temporal: namespace %q: %w", name, err)
	}
	return nil
}
