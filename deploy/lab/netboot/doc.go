// Package netboot is the wire side of the lab's boot clients: a DHCP relay that many of them share, the DHCP client
// of a firmware, of iPXE and of UEFI HTTP boot, TFTP, and HTTP from the address that was leased.
//
// The clients stand behind a relay because that needs no privilege: the relay speaks from a port of its own and says
// so (RFC 8357). The addresses that the DHCP server leases must be this machine's loopback (127.0.0.0/8), since the
// clients speak from them.
//
// Not here: what is booted, in which order (deploy/lab), how a script is read (deploy/lab/ipxe).
package netboot
