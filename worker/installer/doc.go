// Package installer puts an operating system image on a server's disk, or into its memory. It is the program of the install environment that
// an armed server boots from the network (cmd/gpupool-installer is its init), and knows of the platform only what the
// kernel's command line and the attempt's documents tell it.
//
// It decides which disk is overwritten, by a rule that must name exactly one; and when the disk becomes bootable: the
// first MiB, with boot code and partition table, is written last, after everything else was read back and compared.
//
// A system that lives in memory is the same program's work: it is fetched, compared, mounted with memory over it, and
// started in this one's place.
//
// Invariants: a disk that the rule doesn't name is never opened for writing. A power cut at any moment leaves a disk
// that firmware passes over, so that the server boots from the network again and is installed anew under the same
// attempt. Nothing is told as installed that wasn't read back.
//
// Not here: which server may be installed (pxe/boot), the agent that registers afterwards (worker/agent).
package installer
