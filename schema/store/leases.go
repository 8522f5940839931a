package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"gpupool/schema"
)

// FindLeases is every row of the MACs, in whatever subnet, and of the addresses, in whatever state; each row once.
func (s *Store) FindLeases(ctx context.Context, macs, ips []string) ([]schema.Lease, error) {
	var parts []string
	var args []any
	for _, by := range []struct {
		column string
		values []string
	}{{"mac", padded(macs)}, {"ip", padded(ips)}} {
		if len(by.values) == 0 {
			continue
		}
		parts = append(parts, by.column+" IN ("+marks(len(by.values))+")")
		args = append(args, asAny(by.values)...)
	}
	if len(parts) == 0 {
		return nil, nil
	}
	rows, err := s.read(ctx).Raw("SELECT ip, subnet, mac, client_id, server, state, offered_at, bound_at, expires_at FROM leases WHERE "+strings.Join(parts, " OR "), args...).Rows()
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []schema.Lease
	for rows.Next() { // by hand: it is asked for each DISCOVER
		var l schema.Lease
		if err := rows.Scan(&l.IP, &l.Subnet, &l.MAC, &l.ClientID, &l.Server, &l.State, &l.OfferedAt, &l.BoundAt, &l.ExpiresAt); err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, rows.Err()
}

// padded repeats the last value up to the next power of four, so that lists of all lengths make few statements.
func padded(values []string) []string {
	if len(values) == 0 {
		return nil
	}
	n := 1
	for n < len(values) {
		n *= 4
	}
	return append(slices.Clone(values), slices.Repeat(values[len(values)-1:], n-len(values))...)
}

func marks(n int) string { return strings.TrimSuffix(strings.Repeat("?,", n), ",") }

// Leases is every row of a subnet.
func (s *Store) Leases(ctx context.Context, subnet string) ([]schema.Lease, error) {
	var out []schema.Lease
	return out, s.read(ctx).Where("subnet = ?", subnet).Find(&out).Error
}

// CommitLeases makes a batch durable in one transaction. taken[i] says that nothing of batch[i] was written, since its
// address has a row that has not run out at now and is another MAC's or is declined (see lease.Blocks, whose rule this is;
// skew is how much later than now a quarantine may begin and count). Otherwise the row is replaced, and the MAC's other rows
// in that subnet go, but for those that are declined.
//
// The condition stands in the statement itself, so that two servers on one database can't both win an address.
func (s *Store) CommitLeases(ctx context.Context, now time.Time, skew time.Duration, batch []schema.Lease) (taken []bool, err error) {
	for _, l := range batch {
		if l.IP == "" || l.Subnet == "" || l.MAC == "" && l.State != schema.LeaseDeclined {
			return nil, schema.Invalid("lease", fmt.Sprintf("%+v", l), "an address, a MAC and a subnet")
		}
	}
	at, begun := schema.At(now), schema.At(now.Add(skew))
	err = s.Write(ctx, func(tx *Tx) error {
		taken = make([]bool, 0, len(batch))
		for part := range leaseParts(batch) {
			t, err := tx.putLeases(at, begun, part)
			if err != nil {
				return err
			}
			taken = append(taken, t...)
		}
		return nil
	})
	return taken, err
}

// leaseParts cuts a batch, in its order, into parts that one statement can write: of one subnet, with no address and no
// MAC twice, and of few different sizes, so that there are few statements.
func leaseParts(batch []schema.Lease) func(yield func([]schema.Lease) bool) {
	return func(yield func([]schema.Lease) bool) {
		for len(batch) > 0 {
			n, seen := 0, map[string]bool{}
			for _, l := range batch {
				if l.Subnet != batch[0].Subnet || seen[l.IP] || seen[l.MAC] {
					break
				}
				seen[l.IP], seen[l.MAC] = true, true
				n++
			}
			size := 64
			for size > n {
				size /= 4
			}
			if !yield(batch[:size]) {
				return
			}
			batch = batch[size:]
		}
	}
}

// putLeases writes a part. All of it at once, and where one of it is refused then one after the other: what an earlier
// one gives up is there for a later one to have.
func (tx *Tx) putLeases(at, begun schema.Instant, part []schema.Lease) (taken []bool, err error) {
	args := make([]any, 0, 9*len(part)+3)
	for _, l := range part {
		args = append(args, l.IP, l.Subnet, l.MAC, l.ClientID, l.Server, l.State, l.OfferedAt, l.BoundAt, l.ExpiresAt)
	}
	n, err := tx.exec(`INSERT INTO leases (ip, subnet, mac, client_id, server, state, offered_at, bound_at, expires_at) VALUES `+strings.TrimSuffix(strings.Repeat("(?,?,?,?,?,?,?,?,?),", len(part)), ",")+`
		ON CONFLICT (ip) DO UPDATE SET subnet = excluded.subnet, mac = excluded.mac, client_id = excluded.client_id, server = excluded.server, state = excluded.state,
			offered_at = excluded.offered_at, bound_at = excluded.bound_at, expires_at = excluded.expires_at
		WHERE leases.expires_at <= ? OR CASE WHEN leases.state = ? THEN leases.bound_at > ? ELSE leases.mac = excluded.mac END`, append(args, at, schema.LeaseDeclined, begun)...)
	switch {
	case err != nil:
		return nil, err
	case n == int64(len(part)):
		return make([]bool, len(part)), tx.dropOthers(part)
	case len(part) == 1:
		return []bool{true}, nil
	}
	for _, l := range part {
		t, err := tx.putLeases(at, begun, []schema.Lease{l})
		if err != nil {
			return nil, err
		}
		taken = append(taken, t...)
	}
	return taken, nil
}

// dropOthers deletes what else the MACs of a part have in its subnet.
func (tx *Tx) dropOthers(part []schema.Lease) error {
	var macs, ips []string
	for _, l := range part {
		if l.State != schema.LeaseDeclined {
			macs, ips = append(macs, l.MAC), append(ips, l.IP)
		}
	}
	if len(macs) == 0 {
		return nil
	}
	macs, ips = padded(macs), padded(ips)
	args := []any{part[0].Subnet, schema.LeaseDeclined}
	for _, v := range append(macs, ips...) {
		args = append(args, v)
	}
	_, err := tx.exec("DELETE FROM leases WHERE subnet = ? AND state <> ? AND mac IN ("+marks(len(macs))+") AND ip NOT IN ("+marks(len(ips))+")", args...)
	return err
}
