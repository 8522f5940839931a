// Package embedded runs a Temporal server inside this process, on a SQLite file of its own.
//
// It decides how that server is stored, tuned and reached; it is the only package that links
// go.temporal.io/server, so that everything else builds and tests without it (a test at the
// repository root holds that).
//
// Invariants:
//   - A folder is opened by at most one process: a lock is taken before the file is touched, and the
//     kernel drops it with the process, however that ends.
//   - The file holds either nothing or a whole schema of a known version: schema and version marker
//     are written in one transaction. A version this binary doesn't know is refused with words.
//   - What the server acknowledged survives SIGKILL. With [SyncFull], the default, it survives a
//     power cut as well.
//
// Not here: gpupool's own database (another file, another lock), an external Temporal (see
// worker/config and worker/namespace), workers, workflows.
//
// The server listens on loopback without authorisation: whoever may run a program on this machine
// may talk to it. That is the price of the one-machine mode and stands in the operator's docs.
package embedded
