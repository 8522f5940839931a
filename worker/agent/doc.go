// Package agent is the node agent: what runs on a server of the pool, tells the platform of its devices and their
// faults, and does what the platform asks of the server.
//
// It registers once with its install's phone-home token and a key of its own; after that it holds no other secret.
// It asks for work by long poll and answers in batches, so no connection ever goes to the server.
//
// Invariants:
//   - A task runs at most once, whatever dies: that it was begun is on the disk before its process is.
//   - A job lives on when the agent dies, is found again by its mark in /proc, and ends as if nothing had been.
//   - A device is in at most one live run task, and never goes to one of an older epoch than its last.
//   - "No process is left" is said only after /proc has shown it.
//   - Evidence of a fault is kept on the disk until the platform has it.
//
// Not here: how a vendor's devices are read (accelerator/<vendor>), what evidence means (activities/health), who gets
// which device (activities/allocator). Only a run task changes anything on the server, and a reset, which is refused while a
// job holds the device: the other kinds look and report. So all but run tasks are simply done again when the agent died
// under them.
package agent
