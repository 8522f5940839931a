// Package bmc speaks to a server's baseboard management controller: Redfish over gofish's vocabulary, IPMI where there
// is no Redfish.
//
// It decides how a wish ("off", "boot from the network once") becomes requests that this make of firmware accepts, and
// when the wish is proven: every verb reads back what it wrote, and returns nil only then. Verbs are idempotent.
//
// Invariants:
//   - a BMC sees one session, one login budget and one limiter from all callers of a [Pool], whoever they are;
//   - a password that the BMC refuses is tried at most twice by everything together, below any lockout;
//   - a reset or a boot override goes only to the host system, never to a GPU baseboard that lists itself as a system;
//   - what the BMC doesn't say is unknown: never zero, never healthy, never faulty.
//
// Not here: where credentials are kept (see [Credential]), what evidence means (activities/health), Temporal.
package bmc
