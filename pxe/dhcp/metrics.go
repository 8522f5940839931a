package dhcp

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Metrics counts what was received and answered since the start.
type Metrics struct {
	strangers atomic.Int64
	limited   atomic.Int64 // refused by a bucket
	overrun   atomic.Int64 // dropped, oldest first, because every worker was behind

	mu       sync.Mutex
	byReason map[Garbage]int64
	byKind   map[string]int64
}

func (m *Metrics) dropped(g Garbage) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byReason == nil {
		m.byReason = map[Garbage]int64{}
	}
	m.byReason[g]++
}

func (m *Metrics) answered(kind string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byKind == nil {
		m.byKind = map[string]int64{}
	}
	m.byKind[kind]++
}

// Counts is a snapshot of Metrics.
type Counts struct {
	Garbage                     map[Garbage]int64
	Messages                    map[string]int64 // by kind of evidence
	Strangers, Limited, Overrun int64
}

// Read returns the counts so far.
func (m *Metrics) Read() Counts {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Counts{maps.Clone(m.byReason), maps.Clone(m.byKind), m.strangers.Load(), m.limited.Load(), m.overrun.Load()}
}
