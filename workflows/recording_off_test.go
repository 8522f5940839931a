//go:build !record

package workflows_test

// recording says that this build records histories; see record_test.go.
const recording = false
