package cli

import (
	"bytes"
	"io"
	"unicode/utf8"

	"gpupool/api/words"
)

// tame writes what a job printed to a terminal. It passes text, colours and what redraws the current line; every other
// control, with which a job could ask the terminal to type, fill the clipboard or write over what stands above, shows as
// "?" and its letters. A program that reads the output gets it as it is: tame is for terminals only.
type tame struct {
	w    io.Writer
	held []byte // the beginning of a sequence or of a character that is not whole yet
}

const (
	escape      = 0x1b
	maxSequence = 64    // bytes; a longer one is none
	passed      = "mKG" // of ECMA-48's control sequences: SGR (colour), EL (erase in line), CHA (column)
)

func (t *tame) Write(p []byte) (int, error) {
	b := append(t.held, p...)
	var out bytes.Buffer
	for len(b) > 0 {
		if b[0] == escape {
			n, whole := sequence(b)
			if !whole {
				break
			}
			if n == 0 {
				out.WriteByte('?')
				n = 1
			} else {
				out.Write(b[:n])
			}
			b = b[n:]
			continue
		}
		if !utf8.FullRune(b) {
			break
		}
		r, n := utf8.DecodeRune(b)
		if r == '\r' {
			out.WriteRune(r)
		} else {
			out.WriteString(words.Printable(string(r), true))
		}
		b = b[n:]
	}
	t.held = bytes.Clone(b)
	if _, err := t.w.Write(out.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// sequence is the length of the control sequence that b begins with, 0 where it is none that passes. Not whole: more
// bytes must tell.
func sequence(b []byte) (n int, whole bool) {
	for i, c := range b {
		switch {
		case i == 0, i == 1 && c == '[', i > 1 && (c >= '0' && c <= '9' || c == ';' || c == ':'):
		case i > 1 && bytes.IndexByte([]byte(passed), c) >= 0:
			return i + 1, true
		default:
			return 0, true
		}
		if i >= maxSequence {
			return 0, true
		}
	}
	return 0, false
}
