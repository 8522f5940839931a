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

// Find implements lease.Store.
func (s Leases) Find(ctx context.Context, keys []lease.Key) ([]schema.Lease, error) {
	var macs, ips []string
	for _, k := range keys {
		if k.MAC != "" {
			macs = append(macs, k.MAC)
		}
		ips = append(ips, k.IPs...)
	}
	return s.FindLeases(ctx, macs, ips)
}

// List implements lease.Store.
func (s Leases) List(ctx context.Context, subnet string) ([]schema.Lease, error) {
	return s.Store.Leases(ctx, subnet)
}

// Commit implements lease.Store.
func (s Leases) Commit(ctx context.Context, now time.Time, batch []schema.Lease) ([]error, error) {
	taken, err := s.CommitLeases(ctx, now, lease.Skew, batch)
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
