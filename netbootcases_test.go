package gpupool_test

import "testing"

const (
	dhcpTests = "pxe/dhcp"
	tftpTests = "pxe/tftp"
	realTests = "pxe/realclients"
)

// netbootCases are the cases on network boot (captures, and reported faults of other systems), by their number. Of TestScenarios
// the file is named.
var netbootCases = map[int][]held{
	12: {
		{"the capture of each message type, field by field", dhcpTests, "TestTheCaptureOfEveryMessageType"},
		{"the capture of an INFORM", dhcpTests, "TestTheCaptureOfAnInform"},
		{"the capture of a renewal, its key kept though its identifier is a text", dhcpTests, "TestTheCaptureOfARenewalWithATextualClientIdentifier"},
		{"full.txt: another server's REQUEST, INIT-REBOOT of a foreign network and of one unknown, DECLINE, RELEASE", dhcpTests, "TestScenarios"},
	},
	15: {
		{"boot.txt: each of iPXE's signs, a class of somebody else's, the fourth boot that led to no script", dhcpTests, "TestScenarios"},
		{"iPXE itself, from firmware of both kinds", realTests, "TestOVMFByTFTPThenIPXE"},
		{"in BIOS", realTests, "TestSeaBIOSWithQemusIPXE"},
	},
	16: {
		{"proxy.txt: the offer field by field, port 4011, who isn't answered", dhcpTests, "TestScenarios"},
		{"firmware beside dnsmasq, with a boot file of its own and without", realTests, "TestFirmwareWithAProxyBesideDnsmasq"},
	},
	18: {
		{"relay.txt: the pool by sub-option 5 and giaddr, 82 to the byte in OFFER, ACK and NAK, 11 as 54, an unknown relay", dhcpTests, "TestScenarios"},
		{"attack.txt: sub-options that are cut, and a relay that lies", dhcpTests, "TestScenarios"},
		{"a relay of others", realTests, "TestBehindARealRelay"},
		{"firmware behind it", realTests, "TestFirmwareBehindARelay"},
	},
	20: {
		{"a look at the size, an ERROR 8, the second request", tftpTests, "TestASizeProbeIsNoFailure"},
		{"what is acknowledged, and how long a block is", tftpTests, "TestOptionsAreAcknowledgedOnlyWhereAskedAndUnderstood"},
		{"no block is longer than its path", tftpTests, "TestBlocksFitThePath"},
		{"escapes and writing", tftpTests, "TestWhatIsRefused"},
		{"lost ACKs and a window's gap", tftpTests, "TestALostBlockIsSentAgainAndAGapMovesTheWindow"},
		{"duplicate ACKs", tftpTests, "TestADuplicateACKSendsNothingTwice"},
		{"a wrong TID", tftpTests, "TestAForeignPortGetsError5AndTheTransferGoesOn"},
		{"40 MB in blocks of 512 bytes", tftpTests, "TestBlockNumbersRollOver"},
		{"evidence with machine, file, bytes and result", "pxe", "TestWhatTFTPServesAndRefusesIsEvidence"},
	},
}

// TestEveryCaseOnNetworkBootHasItsTests: the page's numbers from 12 to 20 are on network boot.
func TestEveryCaseOnNetworkBootHasItsTests(t *testing.T) {
	t.Parallel()
	allHeld(t, netbootCases, "baremetal.md", `(?m)^\*\*(\d+)\.`, func(n int) bool { return n >= 12 && n <= 20 })
}
