package store

import (
	"context"
	"slices"
	"strings"
	"time"

	"gpupool/schema"
)

// RepairEvidence is everything that is known of a repair: what was told, seen, tried and tested.
type RepairEvidence struct {
	Repair  schema.Repair
	Faults  []schema.Fault       // of its server since the first sign, also those that were only observed
	Devices []schema.Accelerator // of its server, and those that it took out
	BurnIns []schema.Task        // and other work that its proofs asked of the agent, with their results
	Events  []schema.Event       // of its server, from its beginning to its end
	// Readings are what was read of the suspect's metrics, of all devices of a whole server, by the hour: from a day before its
	// first sign to its end.
	Readings []schema.MetricHour
}

// leadUp is how far the readings of a bundle go back behind the first sign.
const leadUp = 24 * time.Hour

// RepairEvidence reads it.
func (s *Store) RepairEvidence(ctx context.Context, repair string) (RepairEvidence, error) {
	var e RepairEvidence
	var err error
	if e.Repair, err = s.Repair(ctx, repair); err != nil {
		return e, err
	}
	r := e.Repair
	until := r.ClosedAt
	if until == 0 {
		until = s.Now()
	}
	if err := s.read(ctx).Where("server = ? AND (repair = ? OR at >= ? AND at <= ?)", r.Server, r.ID, min(r.FirstSignAt, r.OpenedAt), until).Order("at, id").Limit(2000).Find(&e.Faults).Error; err != nil {
		return e, err
	}
	if err := s.read(ctx).Where("server = ? AND (removed_at = 0 OR removed_at >= ?)", r.Server, r.OpenedAt).Order("device_index, id").Find(&e.Devices).Error; err != nil {
		return e, err
	}
	if err := s.read(ctx).Where("server = ? AND id LIKE ?", r.Server, "server/"+r.Server+"/repair/"+r.ID+"/%").Order("created, id").Find(&e.BurnIns).Error; err != nil {
		return e, err
	}
	since := r.OpenedAt
	if r.FirstSignAt > 0 {
		since = min(since, r.FirstSignAt)
	}
	if e.Readings, err = s.DeviceHistory(ctx, HistoryFilter{Server: r.Server, Device: r.Accelerator, Since: since.Add(-leadUp)}); err != nil && !schema.Is(err, schema.CodeNotFound) {
		return e, err
	}
	e.Readings = slices.DeleteFunc(e.Readings, func(m schema.MetricHour) bool { return m.Hour > until })
	err = s.read(ctx).Where("server = ? AND at >= ? AND at <= ? AND kind NOT LIKE ?", r.Server, r.OpenedAt, until, "boot.%").Order("seq").Limit(2000).Find(&e.Events).Error
	for i := range e.Events {
		if strings.HasPrefix(string(e.Events[i].Kind), "job.") {
			e.Events[i].Tenant, e.Events[i].Data = "", nil // what runs there is its tenants' own
		}
	}
	return e, err
}
