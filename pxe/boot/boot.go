// Package boot is what the PXE service needs to know about the rest of the platform, and what it tells it: a
// machine, the attempt that armed it, the tokens of that attempt, and the evidence of each boot.
//
// The interfaces here are small on purpose. Whoever owns the database implements [Inventory] and [Tokens], whoever
// owns the install profiles implements [Installer], and [Recorder] is the event log. Nothing here does I/O.
//
// Not here: leases (see pxe/lease), and how any protocol looks on the wire.
package boot

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"gpupool/schema"
)

// Machine is a server as the boot service sees it.
type Machine struct {
	ID        string // inventory id
	Name      string // sent as host name (option 12) where it is a valid one
	Phase     schema.Phase
	Protected bool   // refuses every destructive step, so no install script whatever else is set
	Arch      string // x86_64, arm64, as ordered; empty = not known. What is booted follows the firmware; a difference is evidence
	Armed     *schema.Armed
	Runs      *schema.Running // the system that it has; nil = none, or it may not boot it
}

// Holding is m as if it were armed for the system that it runs, for an [Installer] to say what it boots.
func (m Machine) Holding() Machine {
	if r := m.Runs; r != nil {
		m.Armed = &schema.Armed{Server: r.Server, Attempt: r.Attempt, Profile: r.Profile, Vals: r.Vals, At: r.At}
	}
	return m
}

// InstallAt returns the attempt that may install m at now, or why none may. It is the one place where the boot
// service decides that a machine's disk may be overwritten, and it is asked again for each script and document.
func (m Machine) InstallAt(now time.Time) (*schema.Armed, string) {
	switch {
	case m.Armed == nil:
		return nil, "no attempt has armed it"
	case m.Protected:
		return nil, "it is protected"
	case m.Armed.Sanitise != (m.Phase == schema.PhaseRetiring):
		return nil, "its phase is " + string(m.Phase) + "; a retiring server is sanitised and nothing else, and no other is"
	case m.Phase != schema.PhaseOnboarding && m.Phase != schema.PhaseRepairing && m.Phase != schema.PhaseRetiring:
		return nil, "its phase is " + string(m.Phase) + "; only an onboarding or repairing server is installed"
	case m.Armed.InstalledAt != 0:
		return nil, "its disk was written by this attempt at " + m.Armed.InstalledAt.String()
	case m.Armed.ExpiresAt != 0 && !now.Before(m.Armed.ExpiresAt.Time()):
		return nil, "the attempt's arming ended at " + m.Armed.ExpiresAt.String()
	}
	return m.Armed, ""
}

// Inventory finds machines. Both calls must show an arming at once: the machine is powered on right after it.
type Inventory interface {
	// ByMAC finds the machine that has that boot interface. mac is in [MAC] form. found is false, with a nil
	// error, for a MAC that the inventory doesn't know.
	ByMAC(ctx context.Context, mac string) (m Machine, found bool, err error)
	// ByID finds a machine by its inventory id.
	ByID(ctx context.Context, id string) (m Machine, found bool, err error)
}

// Lister is an Inventory that can name all its boot interfaces. With it the boot service tells servers from strangers
// without asking for each packet, so that a flood of made-up MACs costs no look-up and delays nobody.
type Lister interface {
	// MACs returns every known MAC of the site, in MAC form. It is called every few seconds.
	MACs(ctx context.Context) ([]string, error)
}

// ByUUID is an Inventory that finds a machine by its SMBIOS UUID too: over IPv6 a machine may say nothing else.
type ByUUID interface {
	// ByUUID finds the one machine that has one of the UUIDs, each in lower case, and its first boot interface. found
	// is false where none has, or more than one.
	ByUUID(ctx context.Context, uuids ...string) (m Machine, mac string, found bool, err error)
}

// MAC is how a hardware address is written as a key everywhere in the boot service: lower case, colons.
func MAC(hw net.HardwareAddr) string { return strings.ToLower(hw.String()) }

// Errors of Tokens.
var (
	ErrToken     = errors.New("boot token is unknown, expired or revoked")
	ErrTokenUsed = errors.New("boot token was already used for this")
	ErrNoSuch    = errors.New("no such document")
)

// Grant is what a valid token stands for.
type Grant struct {
	Server  string
	Attempt int
	Purpose schema.BootPurpose
}

// Tokens makes and checks boot tokens. Only hashes are stored; the boot service sees a token when it is minted and
// when a machine shows it, and keeps it nowhere.
type Tokens interface {
	// Mint makes a new token bound to server, attempt and purpose, and revokes the earlier one with the same
	// binding, in one transaction. It fails where that attempt isn't the armed one any more.
	Mint(ctx context.Context, server string, attempt int, purpose schema.BootPurpose) (token string, err error)
	// Check says what token stands for and leaves it as it is. ErrToken where it stands for nothing.
	Check(ctx context.Context, token string) (Grant, error)
	// Use is Check, and marks item as fetched with this token, in one transaction: of any number of calls with
	// the same token and item exactly one succeeds, the others get ErrTokenUsed.
	Use(ctx context.Context, token, item string) (Grant, error)
}

// Plan is what an armed machine boots: files beneath the boot files' root, and the kernel's arguments.
type Plan struct {
	Kernel string
	Initrd []string
	// Args is the kernel command line. {{base}} stands for the attempt's own URL (http://host/b/<token>), {{files}}
	// for the public files' URL, {{server}}, {{name}}, {{attempt}}, {{mac}} for what they say.
	Args string
}

// Document is one text that an installer fetches.
type Document struct {
	ContentType string
	Body        []byte
	Secret      bool // served once for each token
}

// DocumentRequest asks for one document of an attempt.
type DocumentRequest struct {
	Machine Machine
	Attempt int
	Name    string // user-data, meta-data, preseed.cfg, ...
	Base    string // the attempt's own URL, with the token in its path
	Files   string // the public files' URL
	// PhoneHome mints the attempt's one-time phone-home token, for a document that carries it.
	PhoneHome func(context.Context) (string, error)
}

// Installer turns an armed attempt's install profile into what is booted and fetched.
type Installer interface {
	Plan(ctx context.Context, m Machine) (Plan, error)
	// Document returns ErrNoSuch for a name that the profile doesn't have.
	Document(ctx context.Context, r DocumentRequest) (Document, error)
	// InMemory reports whether a profile's system lives in memory and leaves the disks alone, so that a machine which
	// runs it is given it again at each boot, and needs no arming for that.
	InMemory(profile string) bool
}

// Reports takes what installers tell of their attempts.
type Reports interface {
	// ReportInstall keeps a report. Once an attempt is told to be installed, [Inventory] shows it at once.
	ReportInstall(ctx context.Context, server string, attempt int, r schema.InstallReport) error
}

// Kinds of evidence. Where a kind is about DHCP, its result says what came of the message.
const (
	KindDiscover   = "dhcp-discover"
	KindOffer      = "dhcp-offer"
	KindRequest    = "dhcp-request"
	KindAck        = "dhcp-ack"
	KindNak        = "dhcp-nak"
	KindDecline    = "dhcp-decline"
	KindRelease    = "dhcp-release"
	KindInform     = "dhcp-inform"
	KindProxy      = "dhcp-proxy" // the exchange on port 4011
	KindUnknown    = "dhcp-unknown-mac"
	KindRelay      = "dhcp-unknown-relay"
	KindConflict   = "dhcp-address-conflict"
	KindExhausted  = "dhcp-no-free-address"
	KindLoop       = "chain-loop"
	KindTFTP       = "tftp"
	KindTFTPDenied = "tftp-refused"
	KindHTTP       = "http"
	KindScript     = "script"
	KindDocument   = "document"
	KindReport     = "install-report"
	KindToken      = "token-refused"
	KindRefused    = "script-refused"
)

// Recorder keeps boot evidence. Record is called from one goroutine, with what came since the last call, oldest
// first; it may be slow, since the boot itself never waits for it.
type Recorder interface {
	Record(ctx context.Context, at []time.Time, evidence []schema.BootEvidence) error
}
