package worker

import (
	"gpupool/activities/allocator/engine"
	"gpupool/worker/config"
)

// policy is what the configuration says of the queue, as the engine takes it: what is left out has the engine's default.
func policy(q config.Queue) engine.Config {
	return engine.Config{
		Order: engine.Order(q.Order), Placement: engine.Placement(q.Placement), HalfLife: q.HalfLife, EntryPenalty: q.EntryPenalty,
		MinRunTime: q.MinRunTime, Reservations: q.Reservations, NoPreemption: q.NoPreemption,
	}
}
