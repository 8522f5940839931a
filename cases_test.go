package gpupool_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestEveryQueueCaseIsHeld: the page of faults of other queues names the scenarios and tests that hold each, and those are there.
func TestEveryQueueCaseIsHeld(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("docs/explanation/queue-cases.md")
	if err != nil {
		t.Fatal(err)
	}
	var cases []int
	faults, _, _ := strings.Cut(string(page), "\n## On each backend\n")
	for line := range strings.Lines(faults) {
		cells := strings.Split(line, " | ")
		n, err := strconv.Atoi(strings.TrimPrefix(cells[0], "| "))
		if err != nil {
			continue // not a row of the table
		}
		cases = append(cases, n)
		held := quoted.FindAllStringSubmatch(cells[len(cells)-1], -1)
		if len(held) == 0 {
			t.Errorf("case %d is held by nothing", n)
		}
		for _, by := range held {
			if name := by[1]; strings.HasSuffix(name, ".txt") {
				if _, err := os.Stat(filepath.Join("activities/allocator/engine/testdata/scenarios", name)); err != nil {
					t.Errorf("case %d: %v", n, err)
				}
			} else if folder, test, ok := strings.Cut(name, "."); !ok || !hasTest(t, folder, test) {
				t.Errorf("case %d: %s has no such test", n, name)
			}
		}
	}
	if want := []int{1, 2, 4, 7, 9, 11, 12, 13, 15, 17, 18, 20, 21, 23, 24, 25}; !slices.Equal(cases, want) {
		t.Errorf("the page has the cases %v, want %v", cases, want)
	}
}

// TestEveryQueueCaseIsHeldOnEachBackend: the cases that a backend may have a part in are each in the suite that runs on all three, or
// the page says why not.
func TestEveryQueueCaseIsHeldOnEachBackend(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("docs/explanation/queue-cases.md")
	if err != nil {
		t.Fatal(err)
	}
	suite, err := os.ReadFile("worker/queuecases_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, backends, _ := strings.Cut(string(page), "\n## On each backend\n")
	var cases []int
	for line := range strings.Lines(backends) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		n, err := strconv.Atoi(cells[0])
		if err != nil {
			continue // not a row of the table
		}
		if cases = append(cases, n); len(cells) != 4 {
			t.Errorf("case %d has %d columns, want the case and three backends", n, len(cells))
			continue
		}
		for _, cell := range cells[1:] {
			if why, not := strings.CutPrefix(cell, "does not apply: "); not && len(why) > 0 {
				continue
			}
			held := quoted.FindAllStringSubmatch(cell, -1)
			if len(held) == 0 {
				t.Errorf("case %d: %q names no test and gives no reason", n, cell)
			}
			for _, by := range held {
				if folder, test, ok := strings.Cut(by[1], "."); !ok || !hasTest(t, folder, test) {
					t.Errorf("case %d: %s has no such test", n, by[1])
				}
			}
			if !regexp.MustCompile(`\{"[^"]*\bcase ` + cells[0] + `\b`).Match(suite) {
				t.Errorf("case %d is not in the suite that runs on each backend", n)
			}
		}
	}
	if want := []int{7, 9, 11, 15, 17, 18, 20, 21, 23, 24}; !slices.Equal(cases, want) {
		t.Errorf("the page has the cases %v on each backend, want %v", cases, want)
	}
}

// quoted is what the page has as code.
var quoted = regexp.MustCompile("`([^`]+)`")

// hasTest says whether a folder's package has a test of a name.
func hasTest(t *testing.T, folder, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(filepath.FromSlash(folder), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "\nfunc "+name+"(t *testing.T) {") {
			return true
		}
	}
	return false
}
