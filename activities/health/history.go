package health

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/store"
)

const (
	flushEvery  = 5 * time.Minute
	maxMetrics  = 64 // of one device: an agent's mistake must not fill the record
	maxNameSize = 64
)

// History keeps what agents, or BMCs, read of devices, by the hour. The long history at full resolution is the operator's
// Prometheus's; this is what a repair looks back on. mu guards hours.
type History struct {
	Store  *store.Store
	Source string        // who reads; "" = schema.SourceAgent
	Keep   time.Duration // 0 = 90 days
	Log    *slog.Logger  // nil = slog.Default

	mu     sync.Mutex
	writer string
	hours  map[hourKey]*store.DeviceHour
	dirty  map[hourKey]bool
}

type hourKey struct {
	hour     schema.Instant
	identity string
}

// Seen takes the devices of one heartbeat, or of one look at a BMC. A device that gave no answer adds nothing: that time is unknown.
func (h *History) Seen(server string, devices []agentproto.Device) {
	now := h.Store.Now()
	hour := now - now%schema.Instant(time.Hour.Milliseconds())
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hours == nil {
		h.hours, h.dirty, h.writer = map[hourKey]*store.DeviceHour{}, map[hourKey]bool{}, store.NewID("wrt", now)
	}
	for _, d := range devices {
		if d.Error != "" || len(d.Samples) == 0 {
			continue
		}
		k := hourKey{hour, schema.IdentityOf(d.Vendor, d.Serial, d.UUID, d.PCI, server)}
		x := h.hours[k]
		if x == nil {
			x = &store.DeviceHour{Hour: hour, Identity: k.identity, Writer: h.writer, Server: server, Source: h.Source, Metrics: map[string]store.MetricSum{}}
			h.hours[k] = x
		}
		h.dirty[k] = true
		for name, v := range d.Samples {
			m, known := x.Metrics[name]
			if math.IsNaN(v) || math.IsInf(v, 0) || !known && (len(x.Metrics) >= maxMetrics || !validName(name)) {
				continue
			}
			m.Add(v, now)
			x.Metrics[name] = m
		}
	}
}

func validName(s string) bool {
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return s != "" && len(s) <= maxNameSize
}

// Run keeps what was gathered every few minutes until ctx ends, and what is left then.
func (h *History) Run(ctx context.Context) error {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			last, done := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer done()
			h.Flush(last)
			return nil
		case <-tick.C:
			h.Flush(ctx)
		}
	}
}

// Flush keeps what was gathered, and forgets what is too old. What can't be kept now is tried again with the next.
func (h *History) Flush(ctx context.Context) {
	now := h.Store.Now()
	h.mu.Lock()
	var list []store.DeviceHour
	var keys []hourKey
	for k := range h.dirty {
		x := *h.hours[k]
		x.Metrics = make(map[string]store.MetricSum, len(h.hours[k].Metrics))
		for name, m := range h.hours[k].Metrics {
			x.Metrics[name] = m
		}
		list, keys = append(list, x), append(keys, k)
	}
	h.dirty = map[hourKey]bool{}
	h.mu.Unlock()
	keep := h.Keep
	if keep == 0 {
		keep = 90 * 24 * time.Hour
	}
	err := h.Store.PutDeviceHours(ctx, list)
	if err == nil {
		err = h.Store.ForgetDeviceHours(ctx, now.Add(-keep))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		for _, k := range keys {
			h.dirty[k] = true
		}
		log := h.Log
		if log == nil {
			log = slog.Default()
		}
		log.WarnContext(ctx, "the devices' hours were not kept; again at the next turn", "err", err)
	}
	for k := range h.hours { // an hour that is over, and kept
		if !h.dirty[k] && now.Sub(k.hour) > 2*time.Hour {
			delete(h.hours, k)
		}
	}
}
