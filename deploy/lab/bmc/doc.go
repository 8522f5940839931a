// Package bmc is the lab's baseboard management controller: a real HTTP Redfish service on loopback, one for each
// simulated server, with the manners and the faults of the machines that it stands for.
//
// It decides what a server's firmware would answer: which resource takes a boot override, which reset types exist, when
// an entity tag is required, when a session is one too many, when an account locks. What the machine then does (boot,
// run an agent, die) is the caller's, told through [Hooks].
//
// A [Profile] is a tree of resources and a set of [Quirks]. The built-in ones are generated here; [FromTree] serves a
// captured tree. Trees are immutable and shared: a server keeps only what differs (its [Identity], what was patched),
// so thousands fit in a process.
//
// Invariant: the request log is complete and in order, and holds no password; a test may judge a client by it alone.
//
// Not here: IPMI, DHCP, the boot client. Nothing in the product imports this package or asks whether it is talking to it.
package bmc
