// Package standin makes programs that stand in tests for tools of vendors.
package standin

import (
	"os"
	"syscall"
	"testing"
)

// Program writes a shell script that can be run at once. A child that another goroutine forks while the file is open for writing
// would hold it open until its exec, and the program would be refused as busy meanwhile (go.dev/issue/22315): no one forks then.
func Program(t testing.TB, path, script string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
}
