package store

import (
	"context"

	"gpupool/schema"
)

// RepairKind is what makes repairs alike: what the evidence asked for, and the cure.
type RepairKind struct {
	Action schema.Action
	Cure   schema.Cure
}

// OpenRepairs are the repairs of the servers that are not closed; of all servers where ids is nil.
func (s *Store) OpenRepairs(ctx context.Context, ids []string) ([]schema.Repair, error) {
	var out []schema.Repair
	if ids == nil {
		return out, s.read(ctx).Where("closed_at = 0").Order("opened_at").Find(&out).Error
	}
	return out, inParts(ids, func(part []string) error {
		var rows []schema.Repair
		err := s.read(ctx).Where("closed_at = 0 AND server IN ?", part).Order("opened_at").Find(&rows).Error
		out = append(out, rows...)
		return err
	})
}

// pastRepairs is how many repairs of all kinds are looked back on: the newest tell best how long one takes now.
const pastRepairs = 2000

// RepairTimes is how long past repairs took from being opened to being closed, in ms by kind, the newest first.
func (s *Store) RepairTimes(ctx context.Context) (map[RepairKind][]int64, error) {
	var rows []struct {
		Action schema.Action
		Cure   schema.Cure
		Took   int64
	}
	if err := s.read(ctx).Raw("SELECT action, cure, closed_at - opened_at AS took FROM repairs WHERE closed_at > 0 ORDER BY closed_at DESC LIMIT ?", pastRepairs).Scan(&rows).Error; err != nil {
		return nil, err
	}
	out := map[RepairKind][]int64{}
	for _, r := range rows {
		k := RepairKind{r.Action, r.Cure}
		out[k] = append(out[k], r.Took)
	}
	return out, nil
}
