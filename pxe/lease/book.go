package lease

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"gpupool/pxe/batch"
	"gpupool/schema"
)

// ErrExhausted says that a pool has no address left to offer.
var ErrExhausted = errors.New("no free address")

// Prober asks the network whether something already uses an address. It must answer within its own bound (half a
// second; RFC 2131 section 3.1 step 2 asks for a probe, and a client waits 4 s for its first offer).
type Prober interface {
	// InUse reports whether something else than mac answers at a.
	InUse(ctx context.Context, a netip.Addr, mac string) bool
}

// Options of a Book.
type Options struct {
	OfferHold  time.Duration // how long an offered address waits for its REQUEST; 0 = 60 s
	Quarantine time.Duration // how long a declined or conflicting address isn't used; 0 = 1 h
	Prober     Prober        // nil = addresses are not probed
	Now        func() time.Time
	// Conflict is told of an address that something else was found to use; nil = nobody is.
	Conflict func(a netip.Addr, mac string)
}

// Book hands out addresses on a Store. Its methods are safe for concurrent use.
//
// Lock order: mu is never held while the store or the network is asked.
type Book struct {
	store   Store
	o       Options
	commits batch.Group[schema.Lease, error]
	finds   batch.Group[Key, []schema.Lease]
	lists   batch.Group[string, []schema.Lease] // by subnet: where a pool is used up, each DISCOVER looks through all of it

	mu     sync.Mutex
	offers map[macKey]offer
	held   map[netip.Addr]macKey              // the same offers by address
	used   map[string]map[netip.Addr]struct{} // subnet -> addresses that have a row: a hint for the search
	probed map[netip.Addr]time.Time           // found free at
	last   map[macKey]exchange
}

type offer struct {
	ip    netip.Addr
	until time.Time
}

// exchange is the last ACK's transaction, to tell a repeated REQUEST from a new exchange.
type exchange struct {
	xid uint32
	at  schema.Instant
}

// NewBook returns a Book on store.
func NewBook(store Store, o Options) *Book {
	if o.OfferHold == 0 {
		o.OfferHold = time.Minute
	}
	if o.Quarantine == 0 {
		o.Quarantine = time.Hour
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Conflict == nil {
		o.Conflict = func(netip.Addr, string) {}
	}
	b := &Book{
		store: store, o: o,
		offers: map[macKey]offer{}, held: map[netip.Addr]macKey{},
		used: map[string]map[netip.Addr]struct{}{}, probed: map[netip.Addr]time.Time{}, last: map[macKey]exchange{},
	}
	b.commits.Call = func(ctx context.Context, leases []schema.Lease) ([]error, error) {
		return store.Commit(ctx, o.Now(), leases)
	}
	b.finds.Call = func(ctx context.Context, keys []Key) ([][]schema.Lease, error) {
		rows, err := store.Find(ctx, keys)
		answers := make([][]schema.Lease, len(keys))
		for i := range answers {
			answers[i] = rows // each finds its own in them
		}
		return answers, err
	}
	b.lists.Call = func(ctx context.Context, subnets []string) ([][]schema.Lease, error) {
		read := map[string][]schema.Lease{}
		answers := make([][]schema.Lease, len(subnets))
		for i, n := range subnets {
			if _, ok := read[n]; !ok {
				rows, err := store.List(ctx, n)
				if err != nil {
					return nil, err
				}
				read[n] = rows
			}
			answers[i] = read[n] // shared: nobody changes them
		}
		return answers, nil
	}
	return b
}

// Of returns the row of a MAC in a subnet: its lease, or the address it last had. Only the store says so, never a
// memory, since what hangs on it is a NAK.
func (b *Book) Of(ctx context.Context, p Pool, mac string) (schema.Lease, bool, error) {
	rows, err := b.finds.Do(ctx, Key{Subnet: p.Subnet, MAC: mac})
	if err != nil {
		return schema.Lease{}, false, err
	}
	l, ok := ofMAC(rows, p.Subnet, mac)
	return l, ok, nil
}

// Quarantined is how many addresses of a subnet a MAC has declined that are not used yet again.
func (b *Book) Quarantined(ctx context.Context, p Pool, mac string) (int, error) {
	rows, err := b.finds.Do(ctx, Key{Subnet: p.Subnet, MAC: mac})
	n, now := 0, b.o.Now()
	for _, r := range rows {
		if r.MAC == mac && r.Subnet == p.Subnet && r.State == schema.LeaseDeclined && Blocks(r, schema.Lease{}, now) {
			n++
		}
	}
	return n, err
}

// commit makes one row durable, together with others'.
func (b *Book) commit(ctx context.Context, l schema.Lease) error {
	taken, err := b.commits.Do(ctx, l)
	return errors.Join(err, taken)
}

// ofMAC finds a MAC's row in a subnet.
func ofMAC(rows []schema.Lease, subnet, mac string) (l schema.Lease, ok bool) {
	for _, r := range rows {
		if r.MAC == mac && r.Subnet == subnet && r.State != schema.LeaseDeclined && (!ok || r.BoundAt > l.BoundAt) {
			l, ok = r, true
		}
	}
	return l, ok
}

// atIP finds an address's row.
func atIP(rows []schema.Lease, ip netip.Addr) (schema.Lease, bool) {
	for _, r := range rows {
		if r.IP == ip.String() {
			return r, true
		}
	}
	return schema.Lease{}, false
}

// At returns the live lease of an address: who may be believed to speak from it.
func (b *Book) At(ctx context.Context, ip netip.Addr) (schema.Lease, bool, error) {
	rows, err := b.finds.Do(ctx, Key{IPs: []string{ip.String()}})
	if err != nil {
		return schema.Lease{}, false, err
	}
	l, ok := atIP(rows, ip)
	if !ok || !Live(l, b.o.Now()) {
		return schema.Lease{}, false, nil
	}
	return l, true, nil
}

// Offered returns the address that waits for this MAC's REQUEST.
func (b *Book) Offered(p Pool, mac string) (netip.Addr, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	o, ok := b.offers[macKey{p.Subnet, mac}]
	if !ok || b.o.Now().After(o.until) {
		return netip.Addr{}, false
	}
	return o.ip, true
}

// Forget frees an offer whose client chose another server.
func (b *Book) Forget(p Pool, mac string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drop(macKey{p.Subnet, mac})
}

func (b *Book) drop(k macKey) {
	if o, ok := b.offers[k]; ok {
		delete(b.offers, k)
		if b.held[o.ip] == k {
			delete(b.held, o.ip)
		}
	}
}

// hold reserves ip for k in memory; false where another MAC's offer holds it.
func (b *Book) hold(k macKey, ip netip.Addr) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.o.Now()
	if other, ok := b.held[ip]; ok && other != k {
		if o := b.offers[other]; o.ip == ip && now.Before(o.until) {
			return false
		}
		b.drop(other)
	}
	if o, ok := b.offers[k]; ok && o.ip != ip {
		b.drop(k)
	}
	b.offers[k] = offer{ip, now.Add(b.o.OfferHold)}
	b.held[ip] = k
	return true
}

// probesPerOffer bounds how long one DISCOVER can keep a worker: each probe may take half a second.
const probesPerOffer = 3

// Offer chooses the address for a DISCOVER, in the order of RFC 2131 section 4.3.1: what the machine has or had,
// what it asks for, else a free one. wanted is the zero Addr where it asks for none.
func (b *Book) Offer(ctx context.Context, p Pool, mac string, wanted netip.Addr) (netip.Addr, error) {
	k := macKey{p.Subnet, mac}
	// Whatever may be offered is asked for at once.
	ask := Key{Subnet: p.Subnet, MAC: mac}
	offered, again := b.Offered(p, mac)
	guess, _, _ := b.next(p, k, 0)
	for _, ip := range []netip.Addr{offered, wanted, guess} {
		if ip.IsValid() {
			ask.IPs = append(ask.IPs, ip.String())
		}
	}
	rows, err := b.finds.Do(ctx, ask)
	if err != nil {
		return netip.Addr{}, err
	}
	// Offers are this process's own; another one may have given the address away since.
	if again && p.Contains(offered) && b.freeIn(rows, offered, mac) && b.hold(k, offered) {
		return offered, nil
	}
	probes := probesPerOffer
	if row, ok := ofMAC(rows, p.Subnet, mac); ok {
		ip, _ := netip.ParseAddr(row.IP)
		// The machine's own live lease isn't probed: it would find the machine itself.
		if p.Contains(ip) && b.hold(k, ip) && (Live(row, b.o.Now()) || b.clear(ctx, p, k, ip, &probes)) {
			return ip, nil
		}
	}
	if wanted.IsValid() && p.Contains(wanted) && b.freeIn(rows, wanted, mac) && b.hold(k, wanted) && b.clear(ctx, p, k, wanted, &probes) {
		return wanted, nil
	}
	return b.search(ctx, p, k, &probes, func(ctx context.Context, ip netip.Addr) (bool, error) {
		if ip == guess {
			return b.freeIn(rows, ip, mac), nil
		}
		return b.free(ctx, ip, mac)
	})
}

// search walks the pool from the MAC's home: first for an address that nobody ever had, then for the one that ran
// out longest ago, so that a machine that was off for long most likely finds its address again.
func (b *Book) search(ctx context.Context, p Pool, k macKey, probes *int, isFree func(context.Context, netip.Addr) (bool, error)) (netip.Addr, error) {
	size := p.size()
	if size == 0 {
		return netip.Addr{}, fmt.Errorf("%w in %s: it has no range", ErrExhausted, p.Subnet)
	}
	take := func(ip netip.Addr) bool { return b.hold(k, ip) && b.clear(ctx, p, k, ip, probes) }
	rows, err := b.load(ctx, p, false)
	for pass := 0; err == nil && pass < 2; pass++ {
		for ip, i, ok := b.next(p, k, 0); ok; ip, i, ok = b.next(p, k, i+1) {
			free, err := isFree(ctx, ip)
			if err != nil {
				return netip.Addr{}, err
			}
			if !free {
				b.hint(p, ip)
			} else if take(ip) {
				return ip, nil
			} else if *probes < 0 {
				return netip.Addr{}, fmt.Errorf("the first %d free addresses of %s all answered a probe: trying others at the next DISCOVER", probesPerOffer, p.Subnet)
			}
		}
		rows, err = b.load(ctx, p, true) // the hint may be old: rows of machines that moved are gone
	}
	if err != nil {
		return netip.Addr{}, err
	}
	if ip, ok := longestRunOut(rows, p, b.o.Now(), take); ok {
		return ip, nil
	}
	return netip.Addr{}, fmt.Errorf("%w in %s: %d addresses, all in use, quarantined or the network's own", ErrExhausted, p.Subnet, size)
}

// clear probes a held address. One that something answers on is quarantined and false is returned.
func (b *Book) clear(ctx context.Context, p Pool, k macKey, ip netip.Addr, probes *int) bool {
	if b.o.Prober == nil {
		return true
	}
	if b.probedFree(ip) {
		return true
	}
	if *probes--; *probes >= 0 && b.Vacant(ctx, p, k.mac, ip) {
		return true
	}
	b.mu.Lock()
	b.drop(k)
	b.mu.Unlock()
	return false
}

func (b *Book) probedFree(ip netip.Addr) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	at, ok := b.probed[ip]
	return ok && b.o.Now().Sub(at) < probeCache
}

// Vacant probes ip, unless it has just been found free, and reports whether nothing else than mac answers there. An
// address that something answers at is quarantined.
func (b *Book) Vacant(ctx context.Context, p Pool, mac string, ip netip.Addr) bool {
	if b.o.Prober == nil || b.probedFree(ip) {
		return true
	}
	if !b.o.Prober.InUse(ctx, ip, mac) {
		b.mu.Lock()
		if len(b.probed) > 4096 {
			clear(b.probed)
		}
		b.probed[ip] = b.o.Now()
		b.mu.Unlock()
		return true
	}
	b.o.Conflict(ip, mac)
	now := b.o.Now()
	// No MAC: it is not this machine's fault, nor is it known whose.
	_ = b.commit(ctx, schema.Lease{IP: ip.String(), Subnet: p.Subnet, State: schema.LeaseDeclined, BoundAt: schema.At(now), ExpiresAt: schema.At(now.Add(b.o.Quarantine))})
	b.hint(p, ip)
	return false
}

const probeCache = 45 * time.Second

// Untaken reports whether nobody else holds ip now and it isn't quarantined, wherever it is.
func (b *Book) Untaken(ctx context.Context, ip netip.Addr, mac string) (bool, error) {
	return b.free(ctx, ip, mac)
}

// free asks the store whether mac could have ip now.
func (b *Book) free(ctx context.Context, ip netip.Addr, mac string) (bool, error) {
	rows, err := b.finds.Do(ctx, Key{IPs: []string{ip.String()}})
	if err != nil {
		return false, err
	}
	return b.freeIn(rows, ip, mac), nil
}

// freeIn is free, by rows in which the address's own is, if it has one.
func (b *Book) freeIn(rows []schema.Lease, ip netip.Addr, mac string) bool {
	row, ok := atIP(rows, ip)
	return !ok || !Blocks(row, schema.Lease{MAC: mac}, b.o.Now())
}

// Free reports whether mac could be given ip now: nobody's lease, quarantine or offer stands in the way.
func (b *Book) Free(ctx context.Context, p Pool, mac string, ip netip.Addr) (bool, error) {
	if !p.Contains(ip) {
		return false, nil
	}
	b.mu.Lock()
	other, ok := b.held[ip]
	ok = ok && other != macKey{p.Subnet, mac} && b.o.Now().Before(b.offers[other].until)
	b.mu.Unlock()
	if ok {
		return false, nil
	}
	return b.free(ctx, ip, mac)
}

// Claim is what Bind makes durable.
type Claim struct {
	MAC      string
	ClientID string // hex; told for the record, not part of the key
	Server   string
	IP       netip.Addr
	For      time.Duration
	XID      uint32
}

// Bind makes a lease durable and returns it: the ACK may be sent after it, and not before. ErrTaken where another
// machine got the address first. A repeat of the same exchange (same XID) keeps its BoundAt and another exchange has a
// later one, though it come in the same millisecond: BoundAt names the exchange.
func (b *Book) Bind(ctx context.Context, p Pool, c Claim) (schema.Lease, error) {
	now := b.o.Now()
	k := macKey{p.Subnet, c.MAC}
	l := schema.Lease{
		IP: c.IP.String(), Subnet: p.Subnet, MAC: c.MAC, ClientID: c.ClientID, Server: c.Server, State: schema.LeaseBound,
		OfferedAt: schema.At(now), BoundAt: schema.At(now), ExpiresAt: schema.At(now.Add(c.For)),
	}
	b.mu.Lock()
	if last, ok := b.last[k]; ok {
		if last.xid == c.XID && now.Sub(last.at.Time()) < time.Minute {
			l.BoundAt = last.at
		} else {
			l.BoundAt = max(l.BoundAt, last.at+1)
		}
	}
	b.mu.Unlock()
	if err := b.commit(ctx, l); err != nil {
		if errors.Is(err, ErrTaken) {
			b.Forget(p, c.MAC)
			b.hint(p, c.IP)
		}
		return schema.Lease{}, err
	}
	b.mu.Lock()
	b.drop(k)
	b.last[k] = exchange{c.XID, l.BoundAt}
	b.mu.Unlock()
	b.hint(p, c.IP)
	return l, nil
}

// Release ends a machine's own lease. The row stays, so that it finds the same address again.
func (b *Book) Release(ctx context.Context, l schema.Lease) error {
	l.State, l.ExpiresAt = schema.LeaseReleased, schema.At(b.o.Now())
	return b.commit(ctx, l)
}

// Decline quarantines an address that its client found in use.
func (b *Book) Decline(ctx context.Context, p Pool, mac string, ip netip.Addr) error {
	b.Forget(p, mac)
	now := b.o.Now()
	b.hint(p, ip)
	return b.commit(ctx, schema.Lease{
		IP: ip.String(), Subnet: p.Subnet, MAC: mac, State: schema.LeaseDeclined, BoundAt: schema.At(now), ExpiresAt: schema.At(now.Add(b.o.Quarantine)),
	})
}
