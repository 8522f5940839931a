package bmc

import (
	"strings"
	"testing"
)

// TestTheEndOfAConsoleIsWordsAndHoldsNoToken: what a diagnosis shows of a console stands in the record, and in a workflow.
func TestTheEndOfAConsoleIsWordsAndHoldsNoToken(t *testing.T) {
	t.Parallel()
	got := lastLines("first\r\n\x1b[2J\x1b[01;01HBdsDxe: failed to load\x07\r\n\r\n  \n[    0.1] Command line: gpupool.user_data=http://10.1.0.2/b/c2VjcmV0LXNlY3JldC1zZWNyZXQ/user-data quiet\nlast\xff")
	if want := "first | BdsDxe: failed to load | [    0.1] Command line: gpupool.user_data=http://10.1.0.2/b/***/user-data quiet | last"; strings.TrimRight(got, "\uFFFD") != want {
		t.Errorf("it is %q, want %q", got, want)
	}
	if got := lastLines(strings.Repeat("line\n", 100) + strings.Repeat("x", 5000)); got != strings.Repeat("line | ", 5)+strings.Repeat("x", 160) {
		t.Errorf("it is not bounded: %d bytes", len(got))
	}
	if got := lastLines("\x1b[0m\n \n"); got != "" {
		t.Errorf("an empty console is %q", got)
	}
}
