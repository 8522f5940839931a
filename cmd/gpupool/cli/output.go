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

// maxWidth is what a table keeps to: a terminal of 100 columns.
const maxWidth = 100

// table is rows of cells under headings. Columns are as wide as they must be, and cut at maxCell; the last one is wrapped
// where the table would be wider than maxWidth, or stands under its row where there is no room beside it. The cells' text is
// made harmless for the terminal.
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
	last := len(t.head) - 1
	width := make([]int, len(t.head))
	all := append([][]string{t.head}, t.rows...)
	for _, r := range all {
		for i := range r {
			r[i] = words.Printable(words.Or(r[i]), false)
			if i < last {
				r[i] = shorten(r[i], maxCell)
			}
			width[i] = max(width[i], utf8.RuneCountInString(r[i]))
		}
	}
	before := 0 // columns that stand before the last one
	for _, n := range width[:last] {
		before += n + 2
	}
	least := minLast
	for _, r := range t.rows {
		if strings.HasPrefix(r[last], "gpupool ") { // a command is copied as it stands
			least = max(least, utf8.RuneCountInString(r[last]))
		}
	}
	below := before+width[last] > maxWidth && maxWidth-before < least
	for n, r := range all {
		var b strings.Builder
		for i, c := range r[:last] {
			b.WriteString(c + strings.Repeat(" ", width[i]-utf8.RuneCountInString(c)+2))
		}
		if !below {
			for i, l := range wrap(r[last], maxWidth-before) {
				if i > 0 {
					b.WriteString("\n" + strings.Repeat(" ", before))
				}
				b.WriteString(l)
			}
			fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
			continue
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
		if r[last] == words.None && n > 0 {
			continue
		}
		for _, l := range wrap(r[last], maxWidth-len(indent)) {
			if strings.TrimSpace(l) != "" {
				fmt.Fprintln(w, indent+l)
			}
		}
	}
}

const (
	maxCell = 40
	minLast = 24 // less room than this is none
	indent  = "    "
)

func shorten(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// wrap breaks text into lines of at most n characters, between words where it can.
func wrap(s string, n int) []string {
	var lines []string
	r := []rune(s)
	for len(r) > n {
		at := n
		for i := n; i > n/2; i-- {
			if r[i] == ' ' {
				at = i
				break
			}
		}
		lines = append(lines, string(r[:at]))
		r = r[at:]
		for len(r) > 0 && r[0] == ' ' {
			r = r[1:]
		}
	}
	return append(lines, string(r))
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
	var lines []string
	for _, l := range strings.Split(words.Printable(value, true), "\n") {
		if strings.HasPrefix(l, "gpupool ") { // a command is copied as it stands
			lines = append(lines, l)
			continue
		}
		lines = append(lines, wrap(l, maxWidth-15)...)
	}
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
