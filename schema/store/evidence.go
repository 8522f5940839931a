package store

import (
	"context"
	"strings"

	"gpupool/schema"
)

// RepairEvidence is everything that is known of a repair: what was told, seen, tried and tested.
type RepairEvidence struct {
	Repair  schema.Repair
	Faults  []schema.Fault       // of its server since the first sign, also those that were only observed
	Devices []schema.Accelerator // of its server, and those that it took out
	BurnIns []schema.Task        // and other work that its proofs asked of the agent, with their results
	Events  []schema.Event       // of its server, from its beginning to its end
}

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
	err = s.read(ctx).Where("server = ? AND at >= ? AND at <= ? AND kind NOT LIKE ?", r.Server, r.OpenedAt, until, "boot.%").Order("seq").Limit(2000).Find(&e.Events).Error
	for i := range e.Events {
		if strings.HasPrefix(string(e.Events[i].Kind), "job.") {
			e.Events[i].Tenant, e.Events[i].Data = "", nil // what runs there is its tenants' own
		}
	}
	return e, err
}
