package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"

	"modernc.org/sqlite"
)

// openSQLite opens a pool whose connections keep their compiled statements. gorm's own cache does not help where it
// matters: what it prepares within a transaction belongs to that transaction, so each write would be parsed anew.
//
// whole says that a statement once begun is not interrupted by its context, which would cost a goroutine for each: it is
// for the writer, whose statements are short. Waiting for the writer's connection still ends with the context.
func openSQLite(dsn string, whole bool) (*sql.DB, error) {
	c, err := sqlite.NewConnector(dsn + "&_texttotime=1&_inttotime=1&_time_format=sqlite")
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(keeper{c, whole}), nil
}

type keeper struct {
	driver.Connector
	whole bool
}

func (c keeper) Connect(ctx context.Context) (driver.Conn, error) {
	in, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	full, ok := in.(sqliteConn)
	if !ok {
		return nil, errors.Join(errors.New("the SQLite driver's connection lacks a method that it should have"), in.Close())
	}
	return &keeping{sqliteConn: full, whole: c.whole, idle: map[string]*statement{}}, nil
}

// sqliteConn is what keeping passes on. driver.ExecerContext and QueryerContext are not among it, so that all goes through
// PrepareContext.
type sqliteConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// maxIdle is how many statements a connection keeps. The store has about 200; those with lists of ids come in as many
// lengths as there are.
const maxIdle = 400

// keeping is one connection with its idle statements by their text. database/sql calls it from one goroutine at a time.
type keeping struct {
	sqliteConn
	whole bool
	idle  map[string]*statement
}

// PrepareContext takes an idle statement out, or compiles one: so a statement whose rows are still read is not used twice.
func (c *keeping) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if s, ok := c.idle[query]; ok {
		delete(c.idle, query)
		return s, nil
	}
	in, err := c.sqliteConn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	full, ok := in.(sqliteStmt)
	if !ok {
		return nil, errors.Join(errors.New("the SQLite driver's statement lacks a method that it should have"), in.Close())
	}
	return &statement{sqliteStmt: full, conn: c, query: query}, nil
}

func (c *keeping) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

// Unwrap lets the driver's own functions see through.
func (c *keeping) Unwrap() driver.Conn { return c.sqliteConn }

func (c *keeping) Close() error {
	var errs []error
	for _, s := range c.idle {
		errs = append(errs, s.sqliteStmt.Close())
	}
	clear(c.idle)
	return errors.Join(append(errs, c.sqliteConn.Close())...)
}

type sqliteStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

type statement struct {
	sqliteStmt
	conn  *keeping
	query string
}

// Close gives the statement back; where another of the same text is idle, or there are too many, one goes.
func (s *statement) Close() error {
	c := s.conn
	if _, ok := c.idle[s.query]; ok {
		return s.sqliteStmt.Close()
	}
	c.idle[s.query] = s
	if len(c.idle) > maxIdle {
		for q, old := range c.idle { // any: the frequent ones are back at once
			delete(c.idle, q)
			return old.sqliteStmt.Close()
		}
	}
	return nil
}

func (s *statement) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.sqliteStmt.ExecContext(s.context(ctx), args)
}

func (s *statement) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.sqliteStmt.QueryContext(s.context(ctx), args)
}

func (s *statement) context(ctx context.Context) context.Context {
	if s.conn.whole {
		return context.WithoutCancel(ctx)
	}
	return ctx
}
