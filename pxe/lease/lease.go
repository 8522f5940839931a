// Package lease decides which address a machine has.
//
// Invariants: an address is promised only after its lease is durable (the ACK follows the commit); an address is
// never held by two MACs; a machine keeps one address over its firmware, boot loader, installer and operating
// system, since the key is subnet and MAC, whatever client identifiers they show.
//
// The store is the truth, not this process's memory, so that an active and a standby server on one database can
// both answer: what is kept in memory is only a hint about where to look for a free address, and offers, which are
// worth nothing once they are forgotten. Not here: packets (see pxe/dhcp).
package lease

import (
	"context"
	"errors"
	"time"

	"gpupool/schema"
)

// ErrTaken says that another machine holds the address, or that it is quarantined.
var ErrTaken = errors.New("address is held by another machine")

// Store keeps leases. It is safe for concurrent use by several processes.
type Store interface {
	// Find returns every row that a key asks for, in no order; it may return others of the same MACs too.
	Find(ctx context.Context, keys []Key) ([]schema.Lease, error)
	// Commit makes a batch durable before it returns; now is each lease's own BoundAt or, for the end of one, its
	// ExpiresAt. For each lease, in order: where the address has a row that Blocks it, that lease's error is ErrTaken and
	// nothing of it is written; otherwise the row
	// is replaced, and the MAC's other rows in that subnet that aren't declined are deleted. errs has one entry
	// for each lease; err is for what failed the batch as a whole.
	Commit(ctx context.Context, now time.Time, batch []schema.Lease) (errs []error, err error)
	// List returns every row of a subnet.
	List(ctx context.Context, subnet string) ([]schema.Lease, error)
}

// Key asks for rows: those of a MAC in a subnet, and those of addresses. An empty MAC asks for none.
type Key struct {
	Subnet, MAC string
	IPs         []string
}

// Blocks reports whether row stands in the way of l at now: the rule that Commit enforces. What has run out does not,
// what is another MAC's does, and so does a quarantine. A quarantine that begins later than now was made by a clock that
// has been set back since, and might last for years: it doesn't count, since an address is probed before it is offered.
// The stores here use it, and one written in SQL says the same in its WHERE clause.
func Blocks(row, l schema.Lease, now time.Time) bool {
	if !now.Before(row.ExpiresAt.Time()) {
		return false
	}
	if row.State == schema.LeaseDeclined {
		return row.BoundAt <= schema.At(now.Add(Skew))
	}
	return row.MAC != l.MAC
}

// Skew is how far the clocks of servers on one store may be apart.
const Skew = 5 * time.Minute

// Live reports whether l is bound and has not run out at now.
func Live(l schema.Lease, now time.Time) bool {
	return l.State == schema.LeaseBound && now.Before(l.ExpiresAt.Time())
}
