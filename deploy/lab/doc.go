// Package lab is a data centre in a process, on loopback, without root: servers with a Redfish BMC each, a firmware
// that boots from the network or from its disk, an installer, an operating system with the real node agent, and
// accelerators that heat, err and die. It speaks the real protocols to whatever it is pointed at and is told nothing
// else: no product code asks whether it runs in the lab.
//
// Only the hardware is simulated. The agent is worker/agent, and the jobs' processes are real ones.
//
// Invariant: what a server is lives in its folder (power, disk, boot order, parts and their faults), and is written
// before it is acted upon. The process may be killed at any moment: the next one finds the same world, jobs that
// were running are adopted by their agents, and a boot that was under way begins again.
//
// Not here: the BMC's Redfish (deploy/lab/bmc), DHCP and TFTP (netboot), the script language (ipxe), the devices
// (device).
package lab
