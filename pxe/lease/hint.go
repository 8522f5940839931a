package lease

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"

	"gpupool/schema"
)

// load fills the subnet's hint from the store: once, or anew. It returns the rows where it read them.
func (b *Book) load(ctx context.Context, p Pool, anew bool) ([]schema.Lease, error) {
	b.mu.Lock()
	_, ok := b.used[p.Subnet]
	b.mu.Unlock()
	if ok && !anew {
		return nil, nil
	}
	rows, err := b.lists.Do(ctx, p.Subnet)
	if err != nil {
		return nil, err
	}
	used := make(map[netip.Addr]struct{}, len(rows))
	for _, l := range rows {
		if ip, err := netip.ParseAddr(l.IP); err == nil {
			used[ip] = struct{}{}
		}
	}
	b.mu.Lock()
	b.used[p.Subnet] = used
	b.mu.Unlock()
	return rows, nil
}

// next walks the pool from k's home, from the i-th step on, to an address that can be given out and that, as far as is
// known here, nobody has or is offered. It returns the step it is at; ok is false where there is none.
func (b *Book) next(p Pool, k macKey, i uint64) (ip netip.Addr, at uint64, ok bool) {
	size := p.size()
	if size == 0 {
		return netip.Addr{}, 0, false
	}
	home, now := p.home(k.mac), b.o.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	used := b.used[p.Subnet]
	for ; i < size; i++ {
		ip := p.at((home + i) % size)
		if _, ok := used[ip]; ok || !p.usable(ip) {
			continue
		}
		if other, ok := b.held[ip]; ok && other != k && now.Before(b.offers[other].until) {
			continue
		}
		return ip, i, true
	}
	return netip.Addr{}, 0, false
}

func (b *Book) hint(p Pool, ip netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used[p.Subnet] != nil {
		b.used[p.Subnet][ip] = struct{}{}
	}
}

// longestRunOut tries the rows that block nobody, the one that ran out longest ago first, until take accepts one.
func longestRunOut(rows []schema.Lease, p Pool, now time.Time, take func(netip.Addr) bool) (netip.Addr, bool) {
	rows = slices.Clone(rows)
	slices.SortFunc(rows, func(a, b schema.Lease) int { return cmp.Compare(a.ExpiresAt, b.ExpiresAt) })
	for _, l := range rows {
		if Blocks(l, schema.Lease{}, now) {
			continue
		}
		if ip, err := netip.ParseAddr(l.IP); err == nil && p.Contains(ip) && take(ip) {
			return ip, true
		}
	}
	return netip.Addr{}, false
}
