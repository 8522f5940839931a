// Package sysfstest makes trees of small files that stand for /sys in the tests of readers.
package sysfstest

import (
	"os"
	"path/filepath"
	"testing"
)

// Tree writes files, by their paths in it, under a new root.
func Tree(t testing.TB, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}
