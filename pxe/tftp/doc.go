// Package tftp serves boot files by TFTP: RFC 1350 with the options of 2347, 2348, 2349 and 7440 (windowsize).
//
// Read only. Invariants: only options that were asked for and understood are acknowledged; a block is never sent in
// more than one datagram's worth of IP packet (blksize is clamped to the path's MTU, since firmware drops
// fragments); a duplicate ACK never causes a second copy of a block; a packet from a foreign port gets ERROR 5 and
// doesn't end the transfer; a client that asks for the size and goes away is a probe, not a failure; one address, and
// all together, have only so many transfers at once, and who never answers holds none that another could have.
//
// It is our own rather than pin/tftp's server, which is the foreign client of this package's tests: that one (v3.2.0)
// agrees neither windowsize nor timeout nor a block size under 512, answers every error with code 1 and a packet from a
// foreign port with nothing, serves a repeated request twice, and starts a goroutine for each request without bound;
// its single-port mode is slower by far than a port for each transfer. TestWhatPinsServerDoesNotDo holds all but the
// last two against it, so that the day it can do them shows.
//
// Not here: which files there are (see Files).
package tftp
