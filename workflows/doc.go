// Package workflows holds the durable processes: OnboardServer and RepairServer (under server/<id>), RunJob (job/<id>),
// Allocator (allocator/<region>), Deliver and Meter. Each reads like the process it models.
//
// Invariant: it is deterministic: no clock, no I/O, no randomness, no map order; what has an effect is an activity.
// What is true stands in the record; a signal only says that it is time to look. Not here: the effects (activities).
package workflows
