package store

import (
	"context"
	"errors"
	"slices"

	"gorm.io/gorm"

	"gpupool/schema"
)

// ReadPhoto says what a picture is.
var ReadPhoto = readPhoto

// Exec runs a statement past the store's own rules, for tests of the database's.
func (s *Store) Exec(ctx context.Context, q string) error {
	_, err := s.write(ctx, func(tx *Tx) error { _, err := tx.exec(q); return err })
	return err
}

// CreateOne commits one event about a job.
func (s *Store) CreateOne(ctx context.Context, job string) error {
	return s.Write(ctx, func(tx *Tx) error {
		tx.Emit(schema.Event{Kind: schema.EventAudit, Subject: "test", Job: job}, nil)
		return nil
	})
}

// Pass is where a listener goes on that has come to at, with own as the commits of its process.
func Pass(own map[int64]int64, at int64) int64 {
	h := newHub()
	h.own = own
	return h.pass(at)
}

// Statement is what the store has sent to its database.
type Statement struct {
	SQL  string
	Args []any
}

// Record calls f with each statement that the store runs from now on.
func (s *Store) Record(f func(Statement)) error {
	note := func(db *gorm.DB) { f(Statement{db.Statement.SQL.String(), slices.Clone(db.Statement.Vars)}) }
	var errs []error
	for i, db := range []*gorm.DB{s.r, s.w} {
		if i == 1 && s.r == s.w {
			break
		}
		c := db.Callback()
		errs = append(errs, c.Query().After("gorm:query").Register("test:record", note), c.Row().After("gorm:row").Register("test:record", note), c.Raw().After("gorm:raw").Register("test:record", note),
			c.Create().After("gorm:create").Register("test:record", note), c.Update().After("gorm:update").Register("test:record", note))
	}
	return errors.Join(errs...)
}

// Plan is how the database would run a statement, by its planner; nil where it has no plan for one.
func (s *Store) Plan(ctx context.Context, st Statement) (lines []string, err error) {
	db, err := s.w.DB()
	if err != nil {
		return nil, err
	}
	if s.postgres {
		rows, err := db.QueryContext(ctx, "EXPLAIN "+st.SQL, st.Args...)
		if err != nil {
			return nil, err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				return nil, err
			}
			lines = append(lines, line)
		}
		return lines, rows.Err()
	}
	rows, err := db.QueryContext(ctx, "EXPLAIN QUERY PLAN "+st.SQL, st.Args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var id, parent, unused int64
		var line string
		if err := rows.Scan(&id, &parent, &unused, &line); err != nil {
			return nil, err
		}
		lines = append(lines, line)
	}
	return lines, rows.Err()
}
