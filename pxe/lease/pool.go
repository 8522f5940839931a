package lease

import (
	"context"
	"hash/fnv"
	"net/netip"
	"slices"

	"gpupool/schema"
)

// Range is a run of addresses, both ends included.
type Range struct{ From, To netip.Addr }

func (r Range) size() uint64 { return uint64(num(r.To)) - uint64(num(r.From)) + 1 }

// Pool is what may be given out in one subnet.
type Pool struct {
	Subnet string // the subnet's CIDR: part of a lease's key
	Prefix netip.Prefix
	Ranges []Range
	// Reserved are addresses inside the ranges that belong to the network itself: its router, this server.
	Reserved []netip.Addr
}

// Contains reports whether a may be given out from p.
func (p Pool) Contains(a netip.Addr) bool {
	if !p.usable(a) {
		return false
	}
	for _, r := range p.Ranges {
		if r.From.Compare(a) <= 0 && a.Compare(r.To) <= 0 {
			return true
		}
	}
	return false
}

// usable excludes the network's own addresses: its number, its broadcast address, its router.
func (p Pool) usable(a netip.Addr) bool {
	if !a.Is4() || !p.Prefix.Contains(a) {
		return false
	}
	if p.Prefix.Bits() <= 30 && (a == p.Prefix.Masked().Addr() || a == Broadcast(p.Prefix)) {
		return false
	}
	for _, r := range p.Reserved {
		if a == r {
			return false
		}
	}
	return true
}

func (p Pool) size() uint64 {
	var n uint64
	for _, r := range p.Ranges {
		n += r.size()
	}
	return n
}

// at is the i-th address of the ranges laid end to end.
func (p Pool) at(i uint64) netip.Addr {
	for _, r := range p.Ranges {
		if i < r.size() {
			return addr(num(r.From) + uint32(i))
		}
		i -= r.size()
	}
	return netip.Addr{}
}

// home is where a MAC's search begins. It depends on nothing but the MAC, so that two servers on one database, and
// one server after a restart, tend to the same address for the same machine and to different ones for two.
func (p Pool) home(mac string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(mac))
	return h.Sum64() % p.size()
}

// Broadcast is the directed broadcast address of an IPv4 prefix.
func Broadcast(p netip.Prefix) netip.Addr {
	return addr(num(p.Masked().Addr()) | uint32(uint64(1)<<(32-p.Bits())-1))
}

func num(a netip.Addr) uint32 {
	b := a.As4()
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

func addr(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// Usage is how many of a pool's addresses are what, at one moment.
type Usage struct {
	Subnet      string
	Size        int // that may be given out: those of the ranges, without the network's own
	Leased      int // some machine's, now
	Quarantined int // declined, or found in use by something else
}

// Free is how many could be given to a machine that has none.
func (u Usage) Free() int { return u.Size - u.Leased - u.Quarantined }

// capacity is how many addresses may be given out.
func (p Pool) capacity() int {
	n := int(p.size())
	own := append([]netip.Addr{p.Prefix.Masked().Addr(), Broadcast(p.Prefix)}, p.Reserved...)
	slices.SortFunc(own, netip.Addr.Compare)
	for _, a := range slices.Compact(own) {
		if p.usable(a) { // the ends of a /31 are hosts (RFC 3021)
			continue
		}
		for _, r := range p.Ranges {
			if r.From.Compare(a) <= 0 && a.Compare(r.To) <= 0 {
				n--
			}
		}
	}
	return n
}

// Usage counts what p's addresses are.
func (b *Book) Usage(ctx context.Context, p Pool) (Usage, error) {
	rows, err := b.lists.Do(ctx, p.Subnet)
	if err != nil {
		return Usage{}, err
	}
	u, now := Usage{Subnet: p.Subnet, Size: p.capacity()}, b.o.Now()
	for _, l := range rows {
		ip, err := netip.ParseAddr(l.IP)
		if err != nil || !p.Contains(ip) || !Blocks(l, schema.Lease{}, now) {
			continue
		}
		if l.State == schema.LeaseDeclined {
			u.Quarantined++
		} else {
			u.Leased++
		}
	}
	return u, nil
}
