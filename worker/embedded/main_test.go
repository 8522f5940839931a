package embedded

import (
	"os"
	"testing"
)

// TestMain lets the test binary be the process that is killed: TestSurvivesKill starts it again with
// childEnv set. goleak has no place here: the Temporal server leaves pools and tickers behind at
// Stop, one server to a process being its use.
func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		os.Exit(child(dir))
	}
	os.Exit(m.Run())
}
