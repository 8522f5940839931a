package lease

import (
	"context"
	"sort"
	"sync"
	"time"

	"gpupool/schema"
)

// Memory is a Store that lives as long as the process: for tests, and for a lab.
type Memory struct {
	mu    sync.RWMutex
	byIP  map[string]schema.Lease
	byMAC map[macKey]map[string]struct{} // to the IPs
}

type macKey struct{ subnet, mac string }

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{byIP: map[string]schema.Lease{}, byMAC: map[macKey]map[string]struct{}{}}
}

// Find implements Store.
func (m *Memory) Find(_ context.Context, keys []Key) ([]schema.Lease, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var all []schema.Lease
	for _, k := range keys {
		for ip := range m.byMAC[macKey{k.Subnet, k.MAC}] {
			all = append(all, m.byIP[ip])
		}
		for _, ip := range k.IPs {
			if l, ok := m.byIP[ip]; ok {
				all = append(all, l)
			}
		}
	}
	return all, nil
}

// Commit implements Store.
func (m *Memory) Commit(_ context.Context, now time.Time, batch []schema.Lease) ([]error, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.apply(now, batch), nil
}

// apply holds Commit's rule; the caller holds mu.
func (m *Memory) apply(now time.Time, batch []schema.Lease) []error {
	errs := make([]error, len(batch))
	for i, l := range batch {
		if row, ok := m.byIP[l.IP]; ok && Blocks(row, l, now) {
			errs[i] = ErrTaken
			continue
		}
		m.put(l)
	}
	return errs
}

// put writes l without asking; the caller holds mu.
func (m *Memory) put(l schema.Lease) {
	m.drop(l.IP)
	m.byIP[l.IP] = l
	if l.MAC == "" {
		return
	}
	k := macKey{l.Subnet, l.MAC}
	if m.byMAC[k] == nil {
		m.byMAC[k] = map[string]struct{}{}
	}
	m.byMAC[k][l.IP] = struct{}{}
	if l.State == schema.LeaseDeclined {
		return
	}
	for ip := range m.byMAC[k] {
		if ip != l.IP && m.byIP[ip].State != schema.LeaseDeclined {
			m.drop(ip)
		}
	}
}

// drop deletes an address's row; the caller holds mu.
func (m *Memory) drop(ip string) {
	old, ok := m.byIP[ip]
	if !ok {
		return
	}
	delete(m.byIP, ip)
	k := macKey{old.Subnet, old.MAC}
	if delete(m.byMAC[k], ip); len(m.byMAC[k]) == 0 {
		delete(m.byMAC, k)
	}
}

// List implements Store.
func (m *Memory) List(_ context.Context, subnet string) ([]schema.Lease, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var all []schema.Lease
	for _, l := range m.byIP {
		if l.Subnet == subnet {
			all = append(all, l)
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i].IP < all[j].IP })
	return all, nil
}
