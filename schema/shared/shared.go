// Package shared finds, for tests, the data that lies beside the repository. Tests are skipped where it doesn't.
package shared

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Path is a file of the shared data.
func Path(t testing.TB, parts ...string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above the test")
		}
		dir = filepath.Dir(dir)
	}
	p := filepath.Join(append([]string{dir, "..", "shared"}, parts...)...)
	if _, err := os.Stat(p); err != nil {
		t.Skipf("the shared data is not here: %v", err)
	}
	return p
}

// Unpack unpacks a .tar.xz of the shared data and returns the folder.
func Unpack(t testing.TB, parts ...string) string {
	t.Helper()
	archive, dir := Path(t, parts...), t.TempDir()
	if out, err := exec.Command("tar", "-xJf", archive, "-C", dir).CombinedOutput(); err != nil {
		t.Skipf("tar with xz is not here: %v: %s", err, out)
	}
	return dir
}
