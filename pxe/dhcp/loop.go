package dhcp

import (
	"slices"
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
	told    bool
}

// booted counts a boot that was given its first stage in a transaction.
func (l *loops) booted(k chainKey, attempt int, xid uint32, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.byMAC[k]
	if c == nil || c.attempt != attempt || now.Sub(c.at) > loopWindow {
		c = &chain{attempt: attempt}
		l.byMAC[k] = c
	}
	if len(c.xids) < loopLimit && !slices.Contains(c.xids, xid) {
		c.xids, c.at = append(c.xids, xid), now
	}
}

// stopped reports whether a machine has had enough first stages, and whether that is found out just now. A boot that was
// counted may go on to its end.
func (l *loops) stopped(k chainKey, attempt int, xid uint32, now time.Time) (stopped, justNow bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.byMAC[k]
	if c == nil || c.attempt != attempt || now.Sub(c.at) > loopWindow || len(c.xids) < loopLimit || slices.Contains(c.xids, xid) {
		return false, false
	}
	justNow, c.told = !c.told, true
	return true, justNow
}

// progressed forgets a MAC's chain: it fetched its script.
func (l *loops) progressed(mac string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.byMAC, chainKey{mac, false})
	delete(l.byMAC, chainKey{mac, true})
}
