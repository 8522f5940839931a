package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
)

// printable makes text that came from outside one that both databases take: PostgreSQL refuses NUL bytes and what is not
// UTF-8. What is replaced shows as U+FFFD.
func printable(s string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", "\ufffd"), "\ufffd")
}

// openPostgres opens a database whose connections make every text they send printable: names, reasons and logs come from
// people, BMCs and jobs, and none of them may fail a transaction by a NUL byte.
func openPostgres(dsn string) (*sql.DB, error) {
	c, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(connector{stdlib.GetConnector(*c)}), nil
}

type connector struct{ driver.Connector }

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	inner, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	p, ok := inner.(*stdlib.Conn)
	if !ok {
		return nil, fmt.Errorf("the PostgreSQL driver gave a %T", inner)
	}
	return conn{p}, nil
}

type conn struct{ *stdlib.Conn }

// CheckNamedValue is driver.NamedValueChecker: database/sql asks it about every argument.
func (c conn) CheckNamedValue(v *driver.NamedValue) error {
	switch s := v.Value.(type) {
	case string:
		v.Value = printable(s)
	case []string:
		all := make([]string, len(s))
		for i, text := range s {
			all[i] = printable(text)
		}
		v.Value = all
	}
	return c.Conn.CheckNamedValue(v)
}
