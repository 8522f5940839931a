package cli

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"gpupool/api/words"
)

// table is rows of cells under headings. Columns are as wide as they must be; the last is not padded. The cells' text
// is made harmless for the terminal.
type table struct {
	head []string
	rows [][]string
}

func newTable(head ...string) *table { return &table{head: head} }

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

// write prints the table, or none, in words, where it has no rows.
func (t *table) write(w io.Writer, none string) {
	if len(t.rows) == 0 {
		fmt.Fprintln(w, none)
		return
	}
	width := make([]int, len(t.head))
	all := append([][]string{t.head}, t.rows...)
	for _, r := range all {
		for i := range r {
			r[i] = words.Printable(words.Or(r[i]), false)
			width[i] = max(width[i], utf8.RuneCountInString(r[i]))
		}
	}
	for _, r := range all {
		var b strings.Builder
		for i, c := range r {
			b.WriteString(c)
			if i < len(r)-1 {
				b.WriteString(strings.Repeat(" ", width[i]-utf8.RuneCountInString(c)+2))
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

// csv writes the table for a spreadsheet. A cell that a spreadsheet would take for a formula gets a leading quote.
func (t *table) csv(w io.Writer) error {
	c := csv.NewWriter(w)
	for _, r := range append([][]string{t.head}, t.rows...) {
		safe := make([]string, len(r))
		for i, s := range r {
			if s != "" && strings.ContainsRune("=+@\t\r", rune(s[0])) {
				s = "'" + s
			}
			safe[i] = s
		}
		if err := c.Write(safe); err != nil {
			return err
		}
	}
	c.Flush()
	return c.Error()
}

// fields is a list of names and values, one a line, for a single thing. Empty values are left out.
type fields struct{ w io.Writer }

func (f fields) put(name, value string) {
	if value == "" || value == words.None {
		return
	}
	lines := strings.Split(words.Printable(value, true), "\n")
	fmt.Fprintf(f.w, "%-14s %s\n", name+":", lines[0])
	for _, l := range lines[1:] {
		fmt.Fprintf(f.w, "%-14s %s\n", "", l)
	}
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// jsonLine writes one value as one line, for streams.
func jsonLine(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
