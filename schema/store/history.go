package store

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"

	"gpupool/schema"
)

// DeviceHour is what one process heard of a device within an hour.
type DeviceHour struct {
	Hour     schema.Instant
	Identity string // of the accelerator; see schema.IdentityOf
	Writer   string // the process
	Server   string
	Source   string // schema.SourceAgent where it is empty, or schema.SourceRedfish
	Metrics  map[string]MetricSum
}

// MetricSum adds up the readings of one metric.
type MetricSum struct {
	Min    float64        `json:"min"`
	Max    float64        `json:"max"`
	Sum    float64        `json:"sum"`
	N      int64          `json:"n"`
	Last   float64        `json:"last"`
	LastAt schema.Instant `json:"at"`
}

// Add takes one more reading.
func (m *MetricSum) Add(v float64, at schema.Instant) {
	m.merge(MetricSum{Min: v, Max: v, Sum: v, N: 1, Last: v, LastAt: at})
}

func (m *MetricSum) merge(o MetricSum) {
	if m.N == 0 {
		*m = o
		return
	}
	m.Min, m.Max, m.Sum, m.N = min(m.Min, o.Min), max(m.Max, o.Max), m.Sum+o.Sum, m.N+o.N
	if o.LastAt >= m.LastAt {
		m.Last, m.LastAt = o.Last, o.LastAt
	}
}

// hoursAtOnce are the rows of one statement.
const hoursAtOnce = 200

// PutDeviceHours keeps hours as their process knows them by now; the same hour of the same process again takes its place.
func (s *Store) PutDeviceHours(ctx context.Context, hours []DeviceHour) error {
	for part := range slices.Chunk(hours, hoursAtOnce) {
		var args []any
		for _, h := range part {
			b, err := json.Marshal(h.Metrics)
			if err != nil {
				return err
			}
			args = append(args, h.Hour, h.Identity, h.Writer, h.Server, cmp.Or(h.Source, schema.SourceAgent), string(b))
		}
		values := strings.TrimSuffix(strings.Repeat("(?, ?, ?, ?, ?, ?), ", len(part)), ", ")
		err := s.Write(ctx, func(tx *Tx) error {
			_, err := tx.exec("INSERT INTO device_hours (hour, identity, writer, server, source, metrics) VALUES "+values+" ON CONFLICT (hour, identity, writer) DO UPDATE SET metrics = excluded.metrics, server = excluded.server", args...)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// ForgetDeviceHours drops the hours before a moment.
func (s *Store) ForgetDeviceHours(ctx context.Context, before schema.Instant) error {
	return s.Write(ctx, func(tx *Tx) error {
		_, err := tx.exec("DELETE FROM device_hours WHERE hour < ?", before)
		return err
	})
}

// HistoryFilter chooses what is wanted of a server's devices. Empty = all.
type HistoryFilter struct {
	Server string // id; it must be given
	Device string // id, serial, UUID or slot
	Metric string
	Since  schema.Instant
}

// historyRows bounds how many hours of devices are read at once: eight devices over two months.
const historyRows = 12_000

// DeviceHistory is what was read of a server's devices by the hour, the oldest first, by its agent and by its BMC. Hours in which a device stood in another
// server are that server's.
func (s *Store) DeviceHistory(ctx context.Context, f HistoryFilter) ([]schema.MetricHour, error) {
	devices, err := s.Accelerators(ctx, AcceleratorFilter{Server: f.Server, Removed: true})
	if err != nil {
		return nil, err
	}
	by := map[string]schema.Accelerator{}
	for _, a := range devices {
		if f.Device == "" || f.Device == a.ID || f.Device == a.Serial || f.Device == a.UUID || strings.EqualFold(f.Device, a.Slot) {
			by[a.Identity] = a
		}
	}
	if f.Device != "" && len(by) == 0 {
		return nil, schema.NotFound("device", f.Device)
	}
	var rows []struct {
		Hour                      schema.Instant
		Identity, Source, Metrics string
	}
	if err := s.read(ctx).Raw("SELECT hour, identity, source, metrics FROM device_hours WHERE server = ? AND hour >= ? ORDER BY hour DESC, identity LIMIT ?", f.Server, f.Since, historyRows).Scan(&rows).Error; err != nil {
		return nil, err
	}
	type key struct {
		hour                     schema.Instant
		identity, metric, source string
	}
	sums := map[key]*MetricSum{}
	for _, r := range rows {
		if _, wanted := by[r.Identity]; !wanted && f.Device != "" {
			continue
		}
		var m map[string]MetricSum
		if err := json.Unmarshal([]byte(r.Metrics), &m); err != nil {
			return nil, err
		}
		for name, x := range m {
			if f.Metric != "" && name != f.Metric {
				continue
			}
			k := key{r.Hour, r.Identity, name, r.Source}
			if sums[k] == nil {
				sums[k] = &MetricSum{}
			}
			sums[k].merge(x)
		}
	}
	out := make([]schema.MetricHour, 0, len(sums))
	for k, m := range sums {
		a := by[k.identity]
		if a.Serial == "" { // it was taken out since
			a.Serial = k.identity
		}
		out = append(out, schema.MetricHour{Hour: k.hour, Server: f.Server, Device: a.ID, Slot: a.Slot, Serial: a.Serial, Metric: k.metric, Source: k.source, Min: m.Min, Mean: m.Sum / float64(m.N), Max: m.Max, Last: m.Last, LastAt: m.LastAt, Samples: m.N})
	}
	slices.SortFunc(out, func(a, b schema.MetricHour) int {
		return cmp.Or(cmp.Compare(a.Hour, b.Hour), cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.Serial, b.Serial), cmp.Compare(a.Metric, b.Metric), cmp.Compare(a.Source, b.Source))
	})
	for i := 1; i < len(out); i++ { // the two sources of one hour stand beside each other
		a, b := &out[i-1], &out[i]
		if a.Hour == b.Hour && a.Slot == b.Slot && a.Serial == b.Serial && schema.Disagree(*a, *b) {
			a.Differs, b.Differs = true, true
		}
	}
	return out, nil
}
