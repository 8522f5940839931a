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
	byMAC map[macKey]string // to the IP
}

type macKey struct{ subnet, mac string }

// NewMemory returns an empty store.
func NewMemory() *Memory {
	return &Memory{byIP: map[string]schema.Lease{}, byMAC: map[macKey]string{}}
}

// Find implements Store.
func (m *Memory) Find(_ context.Context, keys []Key) ([]schema.Lease, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var all []schema.Lease
	for _, k := range keys {
		if ip, ok := m.byMAC[macKey{k.Subnet, k.MAC}]; ok {
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
	if old, ok := m.byIP[l.IP]; ok {
		if k := (macKey{old.Subnet, old.MAC}); m.byMAC[k] == l.IP {
			delete(m.byMAC, k)
		}
	}
	m.byIP[l.IP] = l
	if l.State == schema.LeaseDeclined || l.MAC == "" {
		return
	}
	k := macKey{l.Subnet, l.MAC}
	if ip, ok := m.byMAC[k]; ok && ip != l.IP {
		delete(m.byIP, ip)
	}
	m.byMAC[k] = l.IP
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
