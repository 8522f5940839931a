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
	quoted := regexp.MustCompile("`([^`]+)`")
	var cases []int
	for line := range strings.Lines(string(page)) {
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
