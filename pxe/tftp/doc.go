// Package tftp serves boot files by TFTP: RFC 1350 with the options of 2347, 2348, 2349 and 7440 (windowsize).
//
// Read only. Invariants: only options that were asked for and understood are acknowledged; a block is never sent in
// more than one datagram's worth of IP packet (blksize is clamped to the path's MTU, since firmware drops
// fragments); a duplicate ACK never causes a second copy of a block; a packet from a foreign port gets ERROR 5 and
// doesn't end the transfer; a client that asks for the size and goes away is a probe, not a failure.
//
// It is our own rather than pin/tftp's server: that one has no windowsize and no timeout option, refuses block sizes
// under 512, answers every error with code 1, doesn't send ERROR 5, and starts a goroutine for each request without
// bound. pin/tftp is the foreign client of this package's tests.
//
// Not here: which files there are (see Files).
package tftp
