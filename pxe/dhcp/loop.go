package dhcp

import (
	"sync"
	"time"
)

const (
	loopLimit  = 3                // first stages in a row that led to no script
	loopWindow = 10 * time.Minute // a machine that is left alone this long starts afresh
)

// loops counts, by MAC, the boots that were given a first stage and never came to fetch a script: firmware that
// loads iPXE, which is taken for firmware, which loads iPXE.
type loops struct {
	mu    sync.Mutex
	byMAC map[chainKey]*chain
}

type chainKey struct {
	mac     string
	pxePort bool
}

type chain struct {
	attempt int
	xids    []uint32 // each boot once, however often it repeats its packets
	at      time.Time
}

// first counts the boot of one transaction and reports whether it may have its first stage, and whether it is the
// one that was stopped just now.
func (l *loops) first(k chainKey, attempt int, xid uint32, now time.Time) (allowed, stopped bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.byMAC[k]
	if c == nil || c.attempt != attempt || now.Sub(c.at) > loopWindow {
		c = &chain{attempt: attempt}
		l.byMAC[k] = c
	}
	for i, x := range c.xids {
		if x == xid {
			return i < loopLimit, false
		}
	}
	if len(c.xids) > loopLimit { // stopped already; later transactions are refused without being remembered
		return false, false
	}
	c.xids, c.at = append(c.xids, xid), now
	return len(c.xids) <= loopLimit, len(c.xids) == loopLimit+1
}

// progressed forgets a MAC's chain: it fetched its script.
func (l *loops) progressed(mac string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.byMAC, chainKey{mac, false})
	delete(l.byMAC, chainKey{mac, true})
}
