package store

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"gpupool/schema"
)

const (
	roomHint = "free space there; nothing was written, and the pool goes on by itself"
	waitHint = "try again; the database's own log says more"
)

// Trouble says in words that the database can't work now, where that is what err means: its disk is full, it can't be
// written, it is restarting. Nothing of the transaction was kept. Nil = err says something else.
//
// SQLite's result codes: https://www.sqlite.org/rescode.html. PostgreSQL's classes 08, 53, 57 and code 25006:
// https://www.postgresql.org/docs/current/errcodes-appendix.html.
func Trouble(err error) *schema.Error {
	say := func(what, hint string) *schema.Error {
		return &schema.Error{Code: schema.CodeUnavailable, Message: what, Hint: hint, Err: err}
	}
	var lite *sqlite.Error
	if errors.As(err, &lite) {
		switch lite.Code() & 0xff { // the rest tells kinds of these apart
		case sqlite3.SQLITE_FULL:
			return say("the disk of the pool's database is full", roomHint)
		case sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY:
			return say("the pool's database can't be read or written", "look at the disk that data_dir is on")
		case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
			return say("the pool's database is in use by another program", "no other program may hold it open for long")
		}
		return nil
	}
	var dial *pgconn.ConnectError
	if errors.As(err, &dial) {
		return say("the pool's database does not answer", waitHint)
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return nil
	}
	switch {
	case pg.Code == "53100":
		return say("the disk of the pool's database is full", roomHint)
	case pg.Code == "25006":
		return say("the pool's database is a standby that only reads", waitHint)
	case strings.HasPrefix(pg.Code, "53"), strings.HasPrefix(pg.Code, "08"), strings.HasPrefix(pg.Code, "57P"):
		return say("the pool's database can't work now", waitHint)
	}
	return nil
}
