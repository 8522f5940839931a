// Package migrations holds the database's schema as goose migrations, for SQLite and PostgreSQL.
//
// Invariant: a migration that has been released is never edited; a change is a new file with the next number.
// Not here: queries (schema/store).
package migrations

import (
	"context"
	"database/sql"
	"embed"
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
	p, err := goose.NewProvider(d, db, files, goose.WithDisableGlobalRegistry(true), goose.WithGoMigrations(guards(dialect)))
	if err != nil {
		return fmt.Errorf("reading the migrations: %w", err)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrating the database: %w", err)
	}
	return nil
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
