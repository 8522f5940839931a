// Package tftp serves boot files by TFTP: RFC 1350 with the options of 2347, 2348, 2349 and 7440 (windowsize).
//
// Read only. Invariants: only options that were asked for and understood are acknowledged; a block is never sent in
// more than one datagram's worth of IP packet (blksize is clamped to the path's MTU, since firmware drops
// fragments); a duplicate ACK never causes a second copy of a block; a packet from a foreign port gets ERROR 5 and
// doesn't end the transfer; a client that asks for the size and goes away is a probe, not a failure; one address, and
// all together, have only so many transfers at once, and who never answers holds none that another could have.
//
// pin/tftp is used for what it does as the rules say: it translates texts (netascii), and is the foreign client of this
// package's tests. The server is our own. pin's (v3.2.0) agrees neither windowsize nor timeout nor a block size under 512,
// answers every error with code 1 and a packet from a foreign port with nothing, serves a repeated request twice, and starts
// a goroutine for each request without bound; its single-port mode is slower by far than a port for each transfer. All of
// that lies between the socket and its handler, where a handler of ours can't reach; errors, foreign packets, repeats and
// the bound concern every request, so there is none that could be left to it, with our own for the rest.
// TestWhatPinsServerDoesNotDo holds all but the last two against it, so that the day it can do them shows.
//
// Not here: which files there are (see Files).
package tftp
