package dhcp

import (
	"sync"
	"time"
)

// Limits keep a flood from costing more than a look at a map.
type Limits struct {
	// PerMAC is how many packets a second one MAC may go on sending, after Burst at once; 0 = 4 and 16.
	PerMAC float64
	Burst  float64
	// Strangers is how many packets a second are looked up in the inventory for MACs that it is not known to
	// have, all together; 0 = 200.
	Strangers float64
	// Workers is how many packets are worked on at once; 0 = 1024. Each waits for a query or a commit that it shares
	// with others, or for a probe, so they are many.
	Workers int
}

func (l Limits) defaults() Limits {
	set := func(v *float64, d float64) {
		if *v == 0 {
			*v = d
		}
	}
	set(&l.PerMAC, 4)
	set(&l.Burst, 16)
	set(&l.Strangers, 200)
	if l.Workers == 0 {
		l.Workers = 1024
	}
	return l
}

// bucket is a token bucket.
type bucket struct {
	tokens float64
	at     time.Time
}

func (b *bucket) take(now time.Time, rate, burst float64) bool {
	b.tokens = min(burst, b.tokens+now.Sub(b.at).Seconds()*rate)
	b.at = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// gate decides which packets are worked on. A MAC that was found in the inventory has a bucket of its own; all
// others share one, so that a flood of made-up MACs can't push out the servers that are really there.
type gate struct {
	l         Limits
	mu        sync.Mutex
	known     map[string]*bucket
	strangers bucket
}

func newGate(l Limits, now time.Time) *gate {
	return &gate{l: l, known: map[string]*bucket{}, strangers: bucket{l.Strangers, now}}
}

func (g *gate) admit(mac string, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if b, ok := g.known[mac]; ok {
		return b.take(now, g.l.PerMAC, g.l.Burst)
	}
	return g.strangers.take(now, g.l.Strangers, g.l.Strangers)
}

// learn gives known MACs their own bucket. Known machines are few (a site's), so nothing is ever evicted but by
// forget.
func (g *gate) learn(now time.Time, macs ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, mac := range macs {
		if g.known[mac] == nil {
			g.known[mac] = &bucket{g.l.Burst, now}
		}
	}
}

func (g *gate) forget(mac string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.known, mac)
}
