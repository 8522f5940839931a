package lease

import (
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
	rows, err := b.store.List(ctx, p.Subnet)
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

func (b *Book) hinted(p Pool, ip netip.Addr) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.used[p.Subnet][ip]
	return ok
}

func (b *Book) hint(p Pool, ip netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used[p.Subnet] != nil {
		b.used[p.Subnet][ip] = struct{}{}
	}
}

// longestRunOut tries the rows that have run out, the longest ago first, until take accepts one.
func longestRunOut(rows []schema.Lease, p Pool, now time.Time, take func(netip.Addr) bool) (netip.Addr, bool) {
	rows = slices.Clone(rows)
	slices.SortFunc(rows, func(a, b schema.Lease) int { return int(a.ExpiresAt - b.ExpiresAt) })
	for _, l := range rows {
		if now.Before(l.ExpiresAt.Time()) {
			break
		}
		if ip, err := netip.ParseAddr(l.IP); err == nil && p.Contains(ip) && take(ip) {
			return ip, true
		}
	}
	return netip.Addr{}, false
}
