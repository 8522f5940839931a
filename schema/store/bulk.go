package store

import (
	"encoding/json"
	"fmt"
	"slices"

	"gorm.io/gorm"
	"gorm.io/gorm/clause"
)

// Many rows in one statement whose text is the same however many there are: a database compiles a text once, and compiling
// one with a thousand parameters costs more than running it.

// among is the condition that a column is one of ids.
type among struct {
	column string
	ids    []string
}

// Build implements clause.Expression.
func (a among) Build(to clause.Builder) {
	st := to.(*gorm.Statement)
	if st.Name() == "postgres" {
		put(st, a.column+" = ANY(", a.ids, ")")
		return
	}
	ids, err := json.Marshal(a.ids)
	if err != nil {
		_ = st.AddError(err)
		return
	}
	put(st, a.column+" IN (SELECT value FROM json_each(", string(ids), "))")
}

// put writes a parameter as it is: gorm would make a list of a slice.
func put(st *gorm.Statement, before string, value any, after string) {
	_, _ = st.WriteString(before)
	st.Vars = append(st.Vars, value)
	st.BindVarTo(st, st, value)
	_, _ = st.WriteString(after)
}

// row is the values of one row: strings, int64s, or nil where the column is text.
type row []any

// table is rows in the place where a statement has a query that gives them. It is a struct since gorm would make a list of
// a slice.
type table struct{ rows []row }

// Build implements clause.Expression. PostgreSQL is given an array for each column, SQLite a list of VALUES.
func (t table) Build(to clause.Builder) {
	st := to.(*gorm.Statement)
	if st.Name() != "postgres" {
		head := "VALUES ("
		for _, r := range t.rows {
			for _, v := range r {
				put(st, head, v, "")
				head = ","
			}
			head = "),("
		}
		_ = st.WriteByte(')')
		return
	}
	head := "SELECT * FROM unnest("
	for c := range t.rows[0] {
		array, cast, err := t.column(c)
		if err != nil {
			_ = st.AddError(err)
			return
		}
		put(st, head, array, cast)
		head = ", "
	}
	_ = st.WriteByte(')')
}

// column is the values of one column as an array, and what casts it; nil stands for NULL among texts. The kinds of array are
// those that the driver encodes without reflection, where there is no NULL.
func (t table) column(c int) (array any, cast string, err error) {
	numbers, texts, null := make([]int64, 0, len(t.rows)), make([]string, 0, len(t.rows)), false
	for _, r := range t.rows {
		switch v := r[c].(type) {
		case int64:
			numbers = append(numbers, v)
		case string:
			texts = append(texts, v)
		case nil:
			texts, null = append(texts, ""), true
		default:
			return nil, "", fmt.Errorf("column %d of rows to write: a %T", c, v)
		}
	}
	switch {
	case len(numbers) > 0 && len(texts) > 0:
		return nil, "", fmt.Errorf("column %d of rows to write: numbers and texts", c)
	case len(numbers) > 0:
		return numbers, "::bigint[]", nil
	case !null:
		return texts, "::text[]", nil
	}
	some := make([]*string, len(texts))
	for i, r := range t.rows {
		if v, is := r[c].(string); is {
			v = printable(v) // the connection looks into no pointers
			some[i] = &v
		}
	}
	return some, "::text[]", nil
}

// writeRows runs a statement over rows, which stand where it has its last "?", and returns how many rows of the database it
// changed: "INSERT INTO t (a, b) ?", or "WITH v (a, b) AS (?) UPDATE t ... FROM v". On SQLite it is run over so many at a
// time that few texts are kept.
func (tx *Tx) writeRows(q string, rows []row) (changed int64, err error) {
	for len(rows) > 0 {
		n := len(rows)
		if !tx.s.postgres {
			n = longest(n)
		}
		k, err := tx.exec(q, table{rows[:n]})
		if err != nil {
			return changed, err
		}
		changed, rows = changed+k, rows[n:]
	}
	return changed, nil
}

// longest is the length of a list of VALUES for n rows: with more than 128 a statement gains nothing.
func longest(n int) int {
	for _, k := range []int{128, 32, 8} {
		if n >= k {
			return k
		}
	}
	return 1
}

// each calls f for each row of a query, with what reads the row's columns. It is for many rows: gorm takes longer to fill a
// struct than a database to find it.
func each(q *gorm.DB, f func(scan func(...any) error) error) error {
	rows, err := q.Rows()
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := f(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// inParts runs f over ids in pieces that both databases take as a list of parameters.
func inParts(ids []string, f func(part []string) error) error {
	for part := range slices.Chunk(ids, 500) {
		if err := f(part); err != nil {
			return err
		}
	}
	return nil
}
