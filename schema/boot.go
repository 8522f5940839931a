package schema

// BootPurpose is what a boot token may be used for.
type BootPurpose string

const (
	PurposeScript    BootPurpose = "script"     // fetch this attempt's install script, files and user data
	PurposePhoneHome BootPurpose = "phone-home" // enrol the agent; used once
)

// BootToken is one attempt's secret, kept as hex SHA-256 only. It is bound to server, attempt and purpose.
type BootToken struct {
	Hash      string      `gorm:"primaryKey" json:"-"`
	Server    string      `json:"server"`
	Attempt   int         `json:"attempt"`
	Purpose   BootPurpose `json:"purpose"`
	MintedAt  Instant     `json:"minted_at"`
	ExpiresAt Instant     `json:"expires_at"`
	UsedAt    Instant     `json:"used_at"`    // for single-use purposes
	RevokedAt Instant     `json:"revoked_at"` // a newer one was minted, or the attempt ended
}

// Armed says that a server's onboarding attempt wants it to boot from the network and be installed. The row is
// there only between the provision step's start and the phone-home (or the step's end).
type Armed struct {
	Server    string  `gorm:"primaryKey" json:"server"`
	Attempt   int     `json:"attempt"`
	Profile   string  `json:"profile"`
	Vals      string  `json:"vals,omitempty"` // the profile's values that were set, a JSON object; empty = none
	At        Instant `json:"at"`
	ExpiresAt Instant `json:"expires_at"`
	// InstalledAt is when the installer said that the disk is written: from then on the server is handed to its disk,
	// though nobody has phoned home yet. Failure is what an installer said that gave up.
	InstalledAt Instant `json:"installed_at"`
	Failure     string  `json:"failure,omitempty"`
	// Sanitise says that no system is installed: every disk of a retiring server is made to forget.
	Sanitise bool `json:"sanitise,omitempty"`
	// Overwrite lets that be done by overwriting, where a drive has no command of its own.
	Overwrite bool `json:"overwrite,omitempty"`
}

// Running is the system that a server's last finished install put there: what its agent registered from. Where that lives in
// memory, it is what the server is given again whenever it boots.
type Running struct {
	Server  string  `gorm:"primaryKey" json:"server"`
	Attempt int     `json:"attempt"`
	Profile string  `json:"profile"`
	Vals    string  `json:"vals,omitempty"` // as Armed's
	At      Instant `json:"at"`             // when it was first registered from
}

// TableName is where it is kept.
func (Running) TableName() string { return "running_systems" }

// InstallState is how far an installer has come.
type InstallState string

const (
	InstallRunning InstallState = "running"
	InstallDone    InstallState = "installed" // the disk is written and was read back; the server restarts
	InstallFailed  InstallState = "failed"    // it has given up and waits to be switched off
)

// Valid reports whether s is one of them.
func (s InstallState) Valid() bool {
	return s == InstallRunning || s == InstallDone || s == InstallFailed
}

// InstallReport is what an installer tells of an attempt: POST to the attempt's own URL, under InstallReportName.
type InstallReport struct {
	State InstallState `json:"state"`
	Text  string       `json:"text"` // for people, at most 2,000 bytes
	// Drives is what a sanitise run that is over says of each drive.
	Drives []DriveResult `json:"drives,omitempty"`
}

// InstallReportName is the report's name beneath an attempt's own URL.
const InstallReportName = "report"

// LeaseState is what an address is to the DHCP service.
type LeaseState string

const (
	LeaseOffered  LeaseState = "offered"
	LeaseBound    LeaseState = "bound"
	LeaseReleased LeaseState = "released"
	LeaseDeclined LeaseState = "declined" // quarantined until ExpiresAt
)

// Lease is one address of one subnet. A machine keeps one address across firmware, iPXE, installer and OS.
type Lease struct {
	IP        string     `gorm:"primaryKey;column:ip" json:"ip"`
	Subnet    string     `json:"subnet"`
	MAC       string     `gorm:"column:mac" json:"mac"`
	ClientID  string     `json:"client_id,omitempty"` // hex
	Server    string     `json:"server,omitempty"`    // inventory id, where known
	State     LeaseState `json:"state"`
	OfferedAt Instant    `json:"offered_at"`
	BoundAt   Instant    `json:"bound_at"`
	ExpiresAt Instant    `json:"expires_at"`
}

// BootEvidence is one DHCP message, file or script of a boot: what the failure text of an onboarding is written from.
type BootEvidence struct {
	Kind    string `json:"kind"` // dhcp-discover, dhcp-offer, dhcp-ack, dhcp-nak, tftp, http, script, token-refused, chain-loop, ...
	MAC     string `json:"mac,omitempty"`
	IP      string `json:"ip,omitempty"`
	Server  string `json:"server,omitempty"`
	Attempt int    `json:"attempt,omitempty"`
	What    string `json:"what,omitempty"` // file or path, without any token
	Bytes   int64  `json:"bytes,omitempty"`
	Result  string `json:"result,omitempty"` // ok, or what went wrong in words
}

// TableName is where it is kept: the plural that would be guessed is wrong.
func (Armed) TableName() string { return "armed" }
