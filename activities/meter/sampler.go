package meter

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
	"gpupool/schema/usage"
)

// utilization is the metric's name in an agent's samples: the share of the last period in which some kernel ran.
const utilization = "utilization_ratio"

// maxGap is the longest time between two heartbeats that a sample speaks for. What lies further apart is unknown.
const maxGap = 30 * time.Second

// Sampler gathers what heartbeats tell of utilization and keeps it every minute. A sample speaks for the time since the one
// before; a device that says nothing of its utilization is unknown, never idle.
type Sampler struct {
	Store *store.Store
	Log   *slog.Logger

	mu      sync.Mutex
	last    map[string]schema.Instant // by identity
	pending map[string][]store.Sampled
}

// Seen takes one heartbeat's devices.
func (s *Sampler) Seen(server string, devices []agentproto.Device) {
	now := s.Store.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		s.last, s.pending = map[string]schema.Instant{}, map[string][]store.Sampled{}
	}
	for _, d := range devices {
		id := schema.IdentityOf(d.Vendor, d.Serial, d.UUID, d.PCI, server)
		before := s.last[id]
		busy, ok := d.Samples[utilization]
		if !ok || d.Error != "" || busy != busy {
			delete(s.last, id)
			continue
		}
		s.last[id] = now
		if before == 0 || now <= before || now.Sub(before) > maxGap {
			continue
		}
		list := s.pending[server]
		in := usage.Interval{Start: before, End: now}
		for i := len(list) - 1; i >= 0; i-- { // as long as it goes on the same, one interval grows
			if list[i].Identity == id {
				if list[i].End == before && list[i].Busy == busy {
					list[i].End, in.End = now, in.Start
				}
				break
			}
		}
		if in.Milliseconds() > 0 {
			s.pending[server] = append(list, store.Sampled{Identity: id, Interval: in, Busy: min(max(busy, 0), 1)})
		}
	}
}

// Run keeps what was gathered every so often until ctx ends, and what is left then.
func (s *Sampler) Run(ctx context.Context, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.Flush(ctx)
		}
	}
}

// Flush keeps what was gathered. What can't be kept is dropped: that time is unknown.
func (s *Sampler) Flush(ctx context.Context) {
	s.mu.Lock()
	pending := s.pending
	s.pending = map[string][]store.Sampled{}
	s.mu.Unlock()
	if len(pending) == 0 {
		return
	}
	p, unread := s.Store.ChargePolicy(ctx)
	for server, list := range pending {
		err := unread
		if err == nil {
			err = s.Store.AddUtilization(ctx, server, list, float64(p.IdleBelow)/100)
		}
		if err != nil && ctx.Err() == nil && s.Log != nil {
			s.Log.WarnContext(ctx, "utilization was not kept: that time counts as unknown", "server", server, "err", err)
		}
	}
}
