// Package realclients holds the tests of the boot service with clients that other people wrote: udhcpc, dhclient,
// dhcpcd, dnsmasq as a relay and as the DHCP server beside the proxy, radvd, tftp-hpa, curl, nmap, rdisc6, and SeaBIOS,
// OVMF, AAVMF and U-Boot under qemu. It has no code of its own.
//
// They need root, Linux namespaces and Debian's packages, and so a build tag:
//
//	make netns
//
// A test whose program is missing is skipped, and says which package has it. How fast the service is beside others is
// measured by `make bench ONLY=pxe`.
package realclients
