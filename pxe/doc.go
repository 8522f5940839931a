// Package pxe is the network boot service: DHCP, TFTP and HTTP boot for the servers of one provisioning network. It
// runs without Temporal, in a process of its own (gpupool pxe) or inside another.
//
// It decides what a booting machine gets: an address (pxe/dhcp, pxe/lease), a first program by its architecture
// (pxe/dhcp, pxe/tftp, pxe/httpboot), and a script (pxe/script): to install where an onboarding attempt has armed
// it, to go on to its disk otherwise. What happened is evidence, from which an onboarding's failure is explained.
//
// Invariant: a machine that no attempt has armed is never told to install anything, and gets no secret. Why a script
// may carry a secret at all is written in pxe/script.
//
// Not here: which attempt arms a machine (workflows), tokens' storage and install profiles (activities/install), the
// database (schema/store): see pxe/boot for the interfaces they meet this service at.
package pxe
