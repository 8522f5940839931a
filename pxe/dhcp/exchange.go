package dhcp

import (
	"sync"
	"time"

	"gpupool/pxe/boot"
)

// exchanges remembers whose a DISCOVER was for the REQUEST that takes its offer: both are of one transaction (RFC 2131
// section 4.4.1), moments apart, and the inventory is asked once for the two. Nothing that is decided by how a machine stands
// is decided here: its scripts and documents ask the inventory for each.
type exchanges struct {
	mu    sync.Mutex
	byMAC map[string]exchange
}

type exchange struct {
	xid uint32
	m   boot.Machine
	at  time.Time
}

const (
	// exchangeHold is a little longer than the slowest firmware gathers offers, which is what it waits before it sends its
	// first DISCOVER again.
	exchangeHold = 5 * time.Second
	// exchangeMost bounds what is kept of machines that never take an offer.
	exchangeMost = 16384
)

// began keeps whose a DISCOVER was.
func (x *exchanges) began(mac string, xid uint32, m boot.Machine, now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.byMAC) >= exchangeMost {
		clear(x.byMAC)
	}
	x.byMAC[mac] = exchange{xid, m, now}
}

// ends is whose the REQUEST of a transaction is; once.
func (x *exchanges) ends(mac string, xid uint32, now time.Time) (boot.Machine, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e, ok := x.byMAC[mac]
	delete(x.byMAC, mac)
	return e.m, ok && e.xid == xid && now.Sub(e.at) < exchangeHold && !now.Before(e.at)
}
