// Package qemu is a server that is real down to its firmware: a virtual machine under qemu's own emulation, without KVM,
// so that it runs wherever tests do, with a Redfish BMC in front of it that starts and ends the qemu process, presses
// its power button and chooses what it boots. Its disk, its console and its firmware's variables are files in a folder.
//
// It decides only what wires and buttons decide. Firmware, boot loaders, kernels and what is installed are Debian's own,
// and the platform meets it as it meets any server: by Redfish, DHCP, TFTP, HTTP and its agent.
//
// image.sh builds the operating system that is installed on it. Not here: the network it is in (whoever makes the tap
// makes the bridge), simulated servers by the thousand (deploy/lab).
package qemu
