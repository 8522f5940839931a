package schema

// DriveOutcome is what became of a drive that was to be sanitised.
type DriveOutcome string

const (
	// DriveSanitised: the drive's own command was carried out, and what had been written before was not read back.
	DriveSanitised DriveOutcome = "sanitised"
	// DriveOverwritten: every block that can be addressed was overwritten and read back. What the drive keeps elsewhere was not
	// reached.
	DriveOverwritten DriveOutcome = "overwritten"
	// DriveFailed: it may still hold data. Why says what stood in the way.
	DriveFailed DriveOutcome = "failed"
	// DriveMissing: it is known to be the server's, and the sanitise run did not find it.
	DriveMissing DriveOutcome = "missing"
)

// Good reports whether no data can be read from the drive in the ordinary way.
func (o DriveOutcome) Good() bool { return o == DriveSanitised || o == DriveOverwritten }

// DriveTrouble is why a drive could not be sanitised.
type DriveTrouble string

const (
	DriveUnsupported DriveTrouble = "unsupported" // it has no command for it, and overwriting was not allowed
	DriveFrozen      DriveTrouble = "frozen"      // its security is frozen or locked: a power cycle, or its password, is needed
	DriveStuck       DriveTrouble = "stuck"       // it began and does not come to an end
	DriveRefused     DriveTrouble = "refused"     // it has the command and did not carry it out
	DriveLying       DriveTrouble = "lying"       // it says that it did, and the old data is there
	DriveUnreadable  DriveTrouble = "unreadable"  // it can't be read back: nothing is proven
	DriveInUse       DriveTrouble = "in-use"      // something holds it
)

// DriveResult is what a sanitise run says of one drive. It is told as it was: nothing in it is assumed.
type DriveResult struct {
	Serial  string       `json:"serial"`
	Model   string       `json:"model"`
	Name    string       `json:"name"` // as the kernel named it: nvme0n1
	Bus     string       `json:"bus"`  // nvme, scsi, virtio
	Bytes   int64        `json:"bytes"`
	Method  string       `json:"method,omitempty"` // that was carried out, or tried last
	Outcome DriveOutcome `json:"outcome"`
	Trouble DriveTrouble `json:"trouble,omitempty"`
	// Verified says how it was read back; empty = it was not.
	Verified string `json:"verified,omitempty"`
	// NotReached says what the method does not reach.
	NotReached string  `json:"not_reached,omitempty"`
	Words      string  `json:"words"` // what was tried, in order, and what came of it
	Started    Instant `json:"started"`
	Ended      Instant `json:"ended"`
}

// DriveCertificate is what is kept of a drive when its server is retired: one for each drive and run.
type DriveCertificate struct {
	ID           string `gorm:"primaryKey" json:"id"`
	Server       string `json:"server"`
	ServerName   string `json:"server_name"`
	ServerSerial string `json:"server_serial"`
	Attempt      int    `json:"attempt"`
	DriveResult  `gorm:"embedded"`
	At           Instant `json:"at"`
}

// SanitiseOrder is the document that tells a sanitise run what it may do; under SanitiseName beneath the attempt's own URL.
type SanitiseOrder struct {
	Server    string   `json:"server"` // its name
	Attempt   int      `json:"attempt"`
	Serial    string   `json:"serial"` // of the machine: another one is left alone
	Overwrite bool     `json:"overwrite"`
	Done      []string `json:"done,omitempty"` // drives, by serial, that an earlier run of this retirement has done
}

// SanitiseName is the order's name, and that of the built-in install profile that boots the run.
const SanitiseName = "sanitise"

// Retirement is a server's way out for good. There is one for each server that was ever asked to go.
type Retirement struct {
	Server    string  `gorm:"primaryKey" json:"server"`
	Reason    string  `json:"reason"`
	By        string  `gorm:"column:asked_by" json:"by"`
	At        Instant `json:"at"`
	Overwrite bool    `json:"overwrite"` // drives that have no command of their own may be overwritten
	Attempt   int     `json:"attempt"`   // under which it is sanitised; 0 = its jobs have not ended yet
	LeftAt    Instant `json:"left_at"`   // when its cluster had let it go
	ClosedAt  Instant `json:"closed_at"` // 0 = under way
	Outcome   string  `json:"outcome,omitempty"`
}
