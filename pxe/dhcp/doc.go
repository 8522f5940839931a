// Package dhcp answers DHCP: addresses and boot instructions for servers the inventory knows, in three modes.
//
//   - full: the only DHCP server of its subnets, for direct and relayed clients;
//   - relay: as full, but nothing is broadcast: clients reach it through relays, or by unicast to renew;
//   - proxy: another server gives the addresses, this one only says what to boot (ports 67 and 4011).
//
// [Server.Answer] is the core: one packet in, at most one out. Which client state a message is from
// (RFC 2131 section 4.3.2) is decided in state.go, what is answered in answer.go, what is booted in stage.go.
//
// Invariants: no ACK before its lease is durable; no NAK to a client for the address it was offered; no answer to a
// MAC the inventory doesn't know; no address and no NAK in proxy mode; never two answers to one packet; a reply
// never exceeds what the client said it takes, and option 82 comes back to the byte.
//
// DHCPv6 (six.go) serves UEFI's network boot over IPv6, RFC 8415 and 5970, for the same machines by the same rules.
//
// Not here: which address (pxe/lease), what a script says (pxe/script).
package dhcp
