package store

import (
	"context"
	"fmt"
	"time"

	"gpupool/schema"
)

// LeaseByMAC is the row of a MAC in a subnet, bound, released or run out; never a declined one.
func (s *Store) LeaseByMAC(ctx context.Context, subnet, mac string) (schema.Lease, bool, error) {
	return s.lease(ctx, "subnet = ? AND mac = ? AND state <> ?", subnet, mac, schema.LeaseDeclined)
}

// LeaseByIP is the row of an address in whatever state.
func (s *Store) LeaseByIP(ctx context.Context, ip string) (schema.Lease, bool, error) {
	return s.lease(ctx, "ip = ?", ip)
}

func (s *Store) lease(ctx context.Context, where string, args ...any) (schema.Lease, bool, error) {
	var l schema.Lease
	err := s.read(ctx).Raw("SELECT * FROM leases WHERE "+where+" ORDER BY bound_at DESC LIMIT 1", args...).Scan(&l).Error
	return l, l.IP != "", err
}

// Leases is every row of a subnet.
func (s *Store) Leases(ctx context.Context, subnet string) ([]schema.Lease, error) {
	var out []schema.Lease
	return out, s.read(ctx).Where("subnet = ?", subnet).Find(&out).Error
}

// CommitLeases makes a batch durable in one transaction. taken[i] says that nothing of batch[i] was written, since its
// address has a row that has not run out at now and is another MAC's or is declined. Otherwise the row is replaced, and
// the MAC's other rows in that subnet go, but for those that are declined.
//
// The condition stands in the statement itself, so that two servers on one database can't both win an address.
func (s *Store) CommitLeases(ctx context.Context, now time.Time, batch []schema.Lease) (taken []bool, err error) {
	at := schema.At(now)
	err = s.Write(ctx, func(tx *Tx) error {
		taken = make([]bool, len(batch))
		for i, l := range batch {
			if l.IP == "" || l.Subnet == "" || l.MAC == "" && l.State != schema.LeaseDeclined {
				return schema.Invalid("lease", fmt.Sprintf("%+v", l), "an address, a MAC and a subnet")
			}
			n, err := tx.exec(`INSERT INTO leases (ip, subnet, mac, client_id, server, state, offered_at, bound_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
				ON CONFLICT (ip) DO UPDATE SET subnet = excluded.subnet, mac = excluded.mac, client_id = excluded.client_id, server = excluded.server, state = excluded.state,
					offered_at = excluded.offered_at, bound_at = excluded.bound_at, expires_at = excluded.expires_at
				WHERE leases.expires_at <= ? OR (leases.state <> ? AND leases.mac = excluded.mac)`,
				l.IP, l.Subnet, l.MAC, l.ClientID, l.Server, l.State, l.OfferedAt, l.BoundAt, l.ExpiresAt, at, schema.LeaseDeclined)
			if err != nil {
				return err
			}
			taken[i] = n == 0
			if n == 0 || l.State == schema.LeaseDeclined {
				continue
			}
			if _, err := tx.exec("DELETE FROM leases WHERE subnet = ? AND mac = ? AND ip <> ? AND state <> ?", l.Subnet, l.MAC, l.IP, schema.LeaseDeclined); err != nil {
				return err
			}
		}
		return nil
	})
	return taken, err
}
