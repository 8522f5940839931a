// Package simulate replays a trace of jobs through the placement engine on a virtual clock.
//
// It decides nothing itself: every start, victim and wait is the engine's, the same code that runs a pool. It is a
// pool whose jobs run exactly as long as the trace says. What it adds is the clock, the ledger of what ran
// (integers, one interval per attempt), and the figures a capacity planner asks for.
//
// Invariant: the ledger's sum is accelerators x run time over all attempts, exactly, whatever the policy.
//
// Not here: the engine (activities/allocator/engine), real jobs (activities/allocator), the command line's flags.
package simulate
