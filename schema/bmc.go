package schema

import (
	"encoding/json"
	"strings"
)

// PathBMCEvents is where BMCs push events to, below the API's address: /bmc-events/SERVER/SECRET.
const PathBMCEvents = "/bmc-events"

// BMCVerb is what an operator can ask of a server's BMC.
type BMCVerb string

const (
	BMCIdentify BMCVerb = "identify" // what it says the server is
	BMCPower    BMCVerb = "power"    // args: want (on, off, cycle, ac-cycle; empty reads it), hard
	BMCBoot     BMCVerb = "boot"     // args: from (network, disk = no override; empty reads it)
	BMCLight    BMCVerb = "light"    // args: lit
	BMCLogs     BMCVerb = "logs"     // args: most
	BMCSensors  BMCVerb = "sensors"  //
	BMCDoctor   BMCVerb = "doctor"   // checks everything between us and a usable BMC
	BMCCapture  BMCVerb = "capture"  // a redacted tree, as a file
	BMCConsole  BMCVerb = "console"  // args: seconds; the serial console's tail
	BMCLogin    BMCVerb = "login"    // forgets refused logins and tries again
	BMCRotate   BMCVerb = "rotate"   // gives the account a new password
	BMCReset    BMCVerb = "reset"    // restarts the BMC itself, not the server
	BMCFirmware BMCVerb = "firmware" // versions of everything that has one
	BMCMetrics  BMCVerb = "metrics"  // the accelerators' counters
	BMCOrder    BMCVerb = "order"    // args: first (the entries to boot before all others, for good; empty reads the order)
	BMCBIOS     BMCVerb = "bios"     // args: attributes (those wanted; empty reads them)
	BMCMedia    BMCVerb = "media"    // args: image (into the virtual CD drive, and the next boot from it), eject; neither reads it
)

// BMCVerbs are all of them.
var BMCVerbs = []BMCVerb{BMCIdentify, BMCPower, BMCBoot, BMCLight, BMCLogs, BMCSensors, BMCDoctor, BMCCapture, BMCConsole, BMCLogin, BMCRotate, BMCReset,
	BMCFirmware, BMCMetrics, BMCOrder, BMCBIOS, BMCMedia}

// PasswordAttribute reports whether a BIOS attribute holds a password, which belongs in no record.
func PasswordAttribute(name string) bool {
	name = strings.ToLower(name)
	return strings.Contains(name, "password") || strings.Contains(name, "passphrase") || strings.Contains(name, "pswd")
}

// BMCArgs are a verb's arguments; each verb reads its own.
type BMCArgs struct {
	Want    string `json:"want,omitempty"`
	Hard    bool   `json:"hard,omitempty"`
	From    string `json:"from,omitempty"`
	Lit     bool   `json:"lit,omitempty"`
	Most    int    `json:"most,omitempty"`
	Seconds int    `json:"seconds,omitempty"`

	First      []string          `json:"first,omitempty"`      // boot option references: Boot0003
	Attributes map[string]string `json:"attributes,omitempty"` // numbers and booleans in words: what the BMC shows says which they are
	Image      string            `json:"image,omitempty"`      // an http, https, nfs or cifs URI that the BMC reaches
	Eject      bool              `json:"eject,omitempty"`
}

// BMCAct is one thing that a person asked of a BMC, and what came of it.
type BMCAct struct {
	ID        string          `gorm:"primaryKey" json:"id"`
	Server    string          `json:"server"`
	Verb      BMCVerb         `json:"verb"`
	Args      BMCArgs         `gorm:"serializer:json" json:"args"`
	By        string          `json:"by"`
	Reason    string          `json:"reason,omitempty"`
	AskedAt   Instant         `json:"asked_at"`
	StartedAt Instant         `json:"started_at"` // a worker of the site took it
	EndedAt   Instant         `json:"ended_at"`
	Result    json.RawMessage `gorm:"serializer:document" json:"result,omitempty"` // by verb
	// FailureCode is empty where it went well, else the error's code.
	FailureCode ErrorCode `json:"failure_code,omitempty"`
	Failure     string    `json:"failure,omitempty"`
	Hint        string    `json:"hint,omitempty"`
	Version     int64     `json:"version"`
}

// TableName is gorm's.
func (BMCAct) TableName() string { return "bmc_acts" }

// BMCTrouble is why a BMC tells nothing about its server.
type BMCTrouble string

const (
	BMCFine        BMCTrouble = ""                 // it answers
	BMCUnreachable BMCTrouble = "unreachable"      // no answer
	BMCCredential  BMCTrouble = "credential-fault" // it refuses our login, or wants its password changed
	BMCUntrusted   BMCTrouble = "key-changed"      // its TLS key isn't the one trusted
	BMCUnusable    BMCTrouble = "unusable"         // it answers with what can't be read
)

// BMCSighting is what the watch last saw of a server through its BMC. Empty fields are what it doesn't say: unknown.
type BMCSighting struct {
	Server   string     `gorm:"primaryKey" json:"server"`
	Power    string     `json:"power"`    // on, off, powering-on, powering-off, unknown
	Progress string     `json:"progress"` // Redfish BootProgress.LastState
	Health   string     `json:"health"`   // Redfish Status.Health
	Trouble  BMCTrouble `json:"trouble"`
	Text     string     `json:"text"`  // the trouble in words
	Since    Instant    `json:"since"` // when trouble or power last changed
	At       Instant    `json:"at"`    // the last read told of; renewed every few minutes while nothing changes
}

// TableName is gorm's.
func (BMCSighting) TableName() string { return "bmc_sightings" }

// BMCFound is a BMC that answers and that no server is enrolled with. Nothing was logged in to.
type BMCFound struct {
	Address   string  `gorm:"primaryKey" json:"address"`
	Site      string  `json:"site"`
	Protocol  string  `json:"protocol"` // redfish, ipmi; "" for one only seen asking for an address
	Vendor    string  `json:"vendor"`
	Product   string  `json:"product"`
	UUID      string  `gorm:"column:uuid" json:"uuid"`
	Serial    string  `json:"serial"`
	MAC       string  `gorm:"column:mac" json:"mac"`
	TLSKey    string  `gorm:"column:tls_key" json:"tls_key"` // SHA-256 of its public key, hex
	Via       string  `json:"via"`                           // probe, dhcp
	Listed    Listed  `gorm:"-" json:"listed"`               // as the site's allow-list is when it is asked for
	Trouble   string  `gorm:"-" json:"trouble,omitempty"`    // why a login did not tell who it is; only in the probe's own list
	FirstSeen Instant `json:"first_seen"`
	LastSeen  Instant `json:"last_seen"`
}

// TableName is gorm's.
func (BMCFound) TableName() string { return "bmc_found" }

// Listed says whether a machine is on its site's allow-list of serials.
type Listed string

const (
	ListedNone    Listed = ""        // the site has no list
	ListedYes     Listed = "yes"     // its serial is on it
	ListedNo      Listed = "no"      // another serial
	ListedUnknown Listed = "unknown" // its serial is not known: nobody has logged in to it
)

// MostProbed is how many bits of an address a probed range may leave open: a /16 is a mistake, not a BMC network.
const MostProbed = 12

// BMCProbe is an address range that a worker of a site asks for BMCs, and what answered.
type BMCProbe struct {
	ID          string     `gorm:"primaryKey" json:"id"`
	Site        string     `json:"site"`
	Range       string     `gorm:"column:prefix" json:"range"` // 10.20.0.0/24
	Port        int        `json:"port"`                       // 0 = 443
	PlainHTTP   bool       `gorm:"column:plain_http" json:"plain_http"`
	LogsIn      bool       `json:"logs_in"` // once to each that answers, to read its serial; else nothing is logged in to
	By          string     `json:"by"`
	AskedAt     Instant    `json:"asked_at"`
	StartedAt   Instant    `json:"started_at"` // a worker of the site took it
	EndedAt     Instant    `json:"ended_at"`
	Found       []BMCFound `gorm:"serializer:json" json:"found"` // with those that a server is enrolled with
	FailureCode ErrorCode  `json:"failure_code,omitempty"`
	Failure     string     `json:"failure,omitempty"`
	Version     int64      `json:"version"`
}

// TableName is gorm's.
func (BMCProbe) TableName() string { return "bmc_probes" }
