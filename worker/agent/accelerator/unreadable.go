package accelerator

import (
	"log/slog"
	"maps"
	"sync"
)

// unreadable counts what a driver or its tool said and no reader could make anything of. mu guards the maps.
var unreadable struct {
	mu    sync.Mutex
	count map[string]int64
	told  map[string]bool
}

// Unreadable notes that a source (amd, intel, gaudi, ascend, ...) said something that begins as it should and can't be read. It
// is no fault, and nothing is known by it; the first of each what is logged, all are counted.
func Unreadable(source, what string) {
	unreadable.mu.Lock()
	defer unreadable.mu.Unlock()
	if unreadable.count == nil {
		unreadable.count, unreadable.told = map[string]int64{}, map[string]bool{}
	}
	unreadable.count[source]++
	if key := source + " " + what; !unreadable.told[key] && len(unreadable.told) < 1000 {
		unreadable.told[key] = true
		slog.Warn("what a driver says can't be read: it counts as unknown", "source", source, "what", what)
	}
}

// UnreadableCounts are the counts since the process began, by source.
func UnreadableCounts() map[string]int64 {
	unreadable.mu.Lock()
	defer unreadable.mu.Unlock()
	return maps.Clone(unreadable.count)
}
