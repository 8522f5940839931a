package pxetest

import (
	"context"
	"time"

	"gpupool/pxe/lease"
	"gpupool/schema"
	"gpupool/schema/store"
)

// Leases is the platform's database as a lease.Store, for tests of the promises that only a real one can break.
type Leases struct{ *store.Store }

var _ lease.Store = Leases{}

// ByMAC implements lease.Store.
func (s Leases) ByMAC(ctx context.Context, subnet, mac string) (schema.Lease, bool, error) {
	return s.LeaseByMAC(ctx, subnet, mac)
}

// ByIP implements lease.Store.
func (s Leases) ByIP(ctx context.Context, ip string) (schema.Lease, bool, error) {
	return s.LeaseByIP(ctx, ip)
}

// List implements lease.Store.
func (s Leases) List(ctx context.Context, subnet string) ([]schema.Lease, error) {
	return s.Store.Leases(ctx, subnet)
}

// Commit implements lease.Store.
func (s Leases) Commit(ctx context.Context, now time.Time, batch []schema.Lease) ([]error, error) {
	taken, err := s.CommitLeases(ctx, now, batch)
	if err != nil {
		return nil, err
	}
	errs := make([]error, len(taken))
	for i, t := range taken {
		if t {
			errs[i] = lease.ErrTaken
		}
	}
	return errs, nil
}
