// Package engine decides which accelerators a job gets, when, and why it waits.
//
// It is pure: no clock, no database, no network, no goroutine. Facts go in through Set, Remove and Release; one
// call of Cycle at a moment the caller names gives decisions out. The same facts in the same order give the same
// decisions, so the allocator activity and the simulator run this very code.
//
// Invariants, which Check verifies and the property tests hold up:
//   - an accelerator is in at most one live allocation (slices of one accelerator never add up to more than it);
//   - a tenant or project never holds more than its limit, counted from live allocations alone;
//   - a waiting job always has exactly one primary reason, whose numbers recompute from the facts of that cycle;
//   - the planned start of the first waiting job of a pool never moves later without a named cause.
//
// Cost follows shapes, not jobs: jobs that ask for the same thing (spec, nodes, tenant, project, priority,
// constraints) form one shape that is planned once a cycle, and servers in the same state form one class that is
// scored once a decision.
//
// Not here: who told the facts and what happens to a decision (activities/allocator), dispatch
// (activities/cluster), the ledger (activities/meter). A State is owned by one goroutine.
package engine
