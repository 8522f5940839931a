package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// screen shows a block of lines that changes. On a terminal the block is drawn again in place; elsewhere only the
// lines that were not in the last block are written, so that a log reads as a history. One goroutine at a time.
type screen struct {
	w     io.Writer
	live  bool
	width int
	drawn int
	last  map[string]bool
}

func newScreen(w io.Writer) *screen {
	s := &screen{w: w, live: terminal(w), last: map[string]bool{}}
	if f, ok := w.(*os.File); ok && s.live {
		if cols, _, err := term.GetSize(int(f.Fd())); err == nil {
			s.width = cols
		}
	}
	return s
}

// show draws the block. Each line's stable is what decides whether it is new where lines are only added: a line whose
// ticking part alone changed is not written again.
func (s *screen) show(lines []line) {
	if !s.live {
		now := map[string]bool{}
		for _, l := range lines {
			now[l.stable] = true
			if !s.last[l.stable] {
				fmt.Fprintln(s.w, l.text())
			}
		}
		s.last = now
		return
	}
	var b strings.Builder
	if s.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\x1b[J", s.drawn)
	}
	for _, l := range lines {
		b.WriteString(cut(l.text(), s.width) + "\n")
	}
	s.drawn = len(lines)
	io.WriteString(s.w, b.String())
}

// line is text with a part that ticks (a duration).
type line struct{ stable, ticks string }

func (l line) text() string {
	if l.ticks == "" {
		return l.stable
	}
	return l.stable + "  " + l.ticks
}

// cut keeps a line on one row of the terminal, else moving up would miss.
func cut(s string, width int) string {
	if width <= 1 || utf8.RuneCountInString(s) < width {
		return s
	}
	return string([]rune(s)[:width-2]) + "…"
}
