// Package migrations holds the database's schema as goose migrations, for SQLite and PostgreSQL.
//
// Invariant: a migration that has been released is never edited; a change is a new file with the next number.
// Not here: queries (schema/store).
package migrations

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"embed"
	"errors"
	"fmt"

	"github.com/pressly/goose/v3"
)

//go:embed *.sql
var files embed.FS

// Up brings db to the newest schema. dialect is "sqlite" or "postgres".
func Up(ctx context.Context, db *sql.DB, dialect string) error {
	d, ok := map[string]goose.Dialect{"sqlite": goose.DialectSQLite3, "postgres": goose.DialectPostgres}[dialect]
	if !ok {
		return fmt.Errorf("database driver %q is not known (sqlite or postgres)", dialect)
	}
	if dialect == "postgres" {
		unlock, err := exclusive(ctx, db)
		if err != nil {
			return fmt.Errorf("waiting to migrate the database: %w", err)
		}
		defer unlock()
	}
	p, err := goose.NewProvider(d, db, files, goose.WithDisableGlobalRegistry(true), goose.WithGoMigrations(guards(dialect), room(dialect), lean(dialect)))
	if err != nil {
		return fmt.Errorf("reading the migrations: %w", err)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrating the database: %w", err)
	}
	return nil
}

// lockID is the PostgreSQL advisory lock of migrations.
const lockID = 0x67707570 // "gpup"

// exclusive waits for its turn: processes of a pool start at the same moment, one migrates, the others find it done. The
// lock goes with its connection, so a process that dies leaves none behind.
func exclusive(ctx context.Context, db *sql.DB) (unlock func(), err error) {
	c, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := c.ExecContext(ctx, "SELECT pg_advisory_lock($1)", lockID); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return func() {
		// Not given back to the pool but closed, whatever became of ctx: with the session the lock ends.
		_ = c.Raw(func(any) error { return driver.ErrBadConn })
		_ = c.Close()
	}, nil
}

// guards makes the ledger and the event log append-only in the database itself.
func guards(dialect string) *goose.Migration {
	return goose.NewGoMigration(2, &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
		for _, table := range []string{"ledger", "events"} {
			for _, q := range appendOnly(dialect, table) {
				if _, err := tx.ExecContext(ctx, q); err != nil {
					return fmt.Errorf("making %s append-only: %w", table, err)
				}
			}
		}
		return nil
	}}, nil)
}

func appendOnly(dialect, table string) []string {
	if dialect == "postgres" {
		return []string{
			fmt.Sprintf(`CREATE FUNCTION %[1]s_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION '%[1]s is append-only'; END $$`, table),
			fmt.Sprintf(`CREATE TRIGGER %[1]s_append_only BEFORE UPDATE OR DELETE ON %[1]s FOR EACH ROW EXECUTE FUNCTION %[1]s_append_only()`, table),
		}
	}
	return []string{
		fmt.Sprintf(`CREATE TRIGGER %[1]s_no_update BEFORE UPDATE ON %[1]s BEGIN SELECT RAISE(ABORT, '%[1]s is append-only'); END`, table),
		fmt.Sprintf(`CREATE TRIGGER %[1]s_no_delete BEFORE DELETE ON %[1]s BEGIN SELECT RAISE(ABORT, '%[1]s is append-only'); END`, table),
	}
}

// room leaves space in the pages of tables whose rows change several times in their lives. PostgreSQL writes a changed row
// anew; where that is in the same page, and no indexed column changed, the table's indexes are left as they are.
func room(dialect string) *goose.Migration {
	return goose.NewGoMigration(53, &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
		if dialect != "postgres" {
			return nil // SQLite changes rows in place
		}
		for table, percent := range map[string]int{"jobs": 60, "attempts": 70, "tasks": 70} {
			if _, err := tx.ExecContext(ctx, fmt.Sprintf("ALTER TABLE %s SET (fillfactor = %d)", table, percent)); err != nil {
				return fmt.Errorf("leaving room in %s: %w", table, err)
			}
		}
		return nil
	}}, nil)
}
