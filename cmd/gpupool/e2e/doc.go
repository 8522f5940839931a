// Package e2e holds the test in which a real virtual machine arrives: from POST .../actions/onboard, through its BMC, its
// firmware, DHCP, TFTP, HTTP, the installer and the agent, to a job that ran on it. Only GPUs are not real: a
// libnvidia-ml.so.1 of our own answers for eight.
//
// It runs in a network namespace of its own, so that the boot service has port 67 and nothing outside is touched. Root,
// qemu and Debian's packages (deploy/packages-e2e.txt) are needed; without them it skips, and says what is missing.
package e2e
