// Package script decides what a machine's boot loader is told to do, and hands out what an install needs.
//
// There are two answers. A machine that an onboarding attempt has armed is told to install, with that attempt's
// fresh boot token in the URLs it is given. Every other one (installed, in repair, unknown) is told to go on to its
// disk, and that script holds no secret.
//
// # Why a script may carry a token
//
// A boot loader has no credential and its network is not encrypted, so the first secret must rest on what the
// network itself says. The chain is:
//
//  1. The inventory says which MACs a server has; the platform's own workflow arms the server and then switches it
//     on through its BMC. Outside that time there is nothing to get.
//  2. DHCP gives the address to that MAC, and commits the lease. The script's URL holds the MAC, which is no secret.
//  3. The script with the token is given only to the address that is leased to that MAC: to the one place on the
//     network where answers to that lease arrive. A neighbour can't take part in a TCP conversation from an address
//     that isn't routed to it without being seen: it must answer ARP for an address that is in use.
//  4. It is given once for each DHCP exchange. A machine that reboots has a new exchange and gets a new token, which
//     revokes the earlier one of the attempt. If a neighbour took the first script, the machine itself is refused,
//     the attempt fails, and the evidence says why: taking a token can't go unnoticed.
//  5. What is secret (the phone-home token, user data) is fetched with the token, once, from that same address, and
//     only while the attempt is still armed. The phone-home token in it enrols the agent once and ends the attempt.
//
// Someone who controls the provisioning switch can still impersonate a server while it is being installed; what
// closes that is a signed boot chain and a TPM, not a secret sent over the same wire.
//
// Tokens stand in paths, never in query strings, which proxies and servers log; evidence and logs redact them.
package script
