// Package schema is gpupool's vocabulary: the types every other package speaks, the lifecycle tables that say
// which change of state is allowed, the reason codes, the event kinds and the agent protocol.
//
// Invariant: it does no I/O and imports nothing of gpupool, so that every package may import it.
// Not here: how things are kept (schema/store), what happens next (workflows), who gets what (activities/allocator/engine).
package schema
