package cli

import (
	"strings"
	"testing"
)

// A last column that has no room beside the others stands below, and its heading with it.
func TestAColumnThatStandsBelowKeepsItsHeading(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	tab := newTable("ID", "LOCATION", "CAUSE")
	tab.row(strings.Repeat("i", 40), strings.Repeat("l", 40), strings.Repeat("why ", 20))
	tab.row("2", "there", "")
	tab.write(&out, "")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 5 || !strings.HasPrefix(lines[0], "ID ") || lines[1] != "    CAUSE" || !strings.HasPrefix(lines[3], "    why") || !strings.HasPrefix(lines[4], "2 ") {
		t.Fatalf("the table is\n%s", out.String())
	}
}
