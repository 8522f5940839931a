package migrations

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pressly/goose/v3"
)

// lean takes from what is written at each start what guards nothing. An allocation is told by its job, attempt and
// accelerator: a name made of them is the same again, in the row and in an index. That jobs and accelerators are there is
// known when they are allocated, since the transaction has just read them, and they stay: that is guarded where one would be
// deleted, and not looked up again for each row, which took longer than writing it.
func lean(dialect string) *goose.Migration {
	return goose.NewGoMigration(80, &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
		steps := []string{
			`CREATE TABLE lean (job TEXT NOT NULL, attempt INTEGER NOT NULL, accelerator TEXT NOT NULL, server TEXT NOT NULL, region TEXT NOT NULL,
				allocated_at BIGINT NOT NULL, released_at BIGINT NOT NULL DEFAULT 0, PRIMARY KEY (job, attempt, accelerator))`,
			`INSERT INTO lean (job, attempt, accelerator, server, region, allocated_at, released_at)
				SELECT job, attempt, accelerator, server, region, allocated_at, released_at FROM allocations`,
			`DROP TABLE allocations`,
			`ALTER TABLE lean RENAME TO allocations`,
			`CREATE UNIQUE INDEX allocations_live ON allocations (accelerator) WHERE released_at = 0`,
			`CREATE INDEX allocations_server_live ON allocations (server) WHERE released_at = 0`,
		}
		if dialect == "postgres" {
			steps = append(steps, `ALTER TABLE attempts DROP CONSTRAINT attempts_job_fkey`)
		}
		for _, table := range []string{"jobs", "accelerators"} {
			steps = append(steps, kept(dialect, table)...)
		}
		for _, q := range steps {
			if _, err := tx.ExecContext(ctx, q); err != nil {
				return fmt.Errorf("making a start's rows lean: %w", err)
			}
		}
		return nil
	}}, nil)
}

func kept(dialect, table string) []string {
	if dialect == "postgres" {
		return []string{
			fmt.Sprintf(`CREATE FUNCTION %[1]s_kept() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION '%[1]s are never deleted'; END $$`, table),
			fmt.Sprintf(`CREATE TRIGGER %[1]s_kept BEFORE DELETE ON %[1]s FOR EACH ROW EXECUTE FUNCTION %[1]s_kept()`, table),
		}
	}
	return []string{fmt.Sprintf(`CREATE TRIGGER %[1]s_kept BEFORE DELETE ON %[1]s BEGIN SELECT RAISE(ABORT, '%[1]s are never deleted'); END`, table)}
}
