package schema

// Severity is how fast a fault must take its hardware out of scheduling.
type Severity string

const (
	SeverityInfo     Severity = "info"     // kept, nothing done
	SeverityWarning  Severity = "warning"  // suspect: cordon, let jobs end
	SeverityCritical Severity = "critical" // cordon and drain now: jobs on it are lost anyway
)

// Fault is evidence that hardware is failing, as one source reported it.
type Fault struct {
	ID          string   `gorm:"primaryKey" json:"id"`
	Server      string   `json:"server"`
	Accelerator string   `json:"accelerator,omitempty"` // empty: about the server
	Source      string   `json:"source"`                // agent, redfish, operator, job
	Kind        string   `json:"kind"`                  // xid, ecc-uncorrectable, absent, thermal, ras, job-failures, ...
	Code        string   `json:"code,omitempty"`        // e.g. 79
	Severity    Severity `json:"severity"`
	Text        string   `json:"text"`
	Dedupe      string   `json:"-"`     // unique: the same event through two paths, or twice, is one row
	Epoch       int64    `json:"epoch"` // the server's epoch when it happened; older than the server's = history
	At          Instant  `json:"at"`    // when it happened, by the source's clock
	SeenAt      Instant  `json:"seen_at"`
	Verdict     string   `json:"verdict"` // "" until judged; observe, cordon, drain, repair, stale, limited
	Repair      string   `json:"repair,omitempty"`
	ClearedAt   Instant  `json:"cleared_at"`
}

// RepairState is where a repair is; see RepairStates.
type RepairState string

const (
	RepairDraining  RepairState = "draining"
	RepairWaiting   RepairState = "waiting" // for the technician
	RepairVerifying RepairState = "verifying"
	RepairReturned  RepairState = "returned"
	RepairCancelled RepairState = "cancelled"
)

// PartNone is the part of a repair in which nothing is replaced: the server is only to be proven. It waits for a
// technician where the proof fails.
const PartNone = "none: burn-in only"

// Repair is one visit of a server to repair: what is wrong, where it is, what was done, and whether it was proven.
type Repair struct {
	ID          string      `gorm:"primaryKey" json:"id"`
	Server      string      `json:"server"`
	Accelerator string      `json:"accelerator,omitempty"`
	State       RepairState `json:"state"`
	Cause       string      `json:"cause"`    // in words, from the first fault
	Part        string      `json:"part"`     // what to look at: "accelerator SXM3"
	Location    string      `json:"location"` // site/rack/unit/slot
	OldSerial   string      `json:"old_serial,omitempty"`
	NewSerial   string      `json:"new_serial,omitempty"`
	Note        string      `json:"note,omitempty"`
	DoneBy      string      `json:"done_by,omitempty"`
	Returns     int         `json:"returns"` // how often the proof failed and it went back to waiting
	WaitingWhy  string      `json:"waiting_why,omitempty"`
	OpenedAt    Instant     `json:"opened_at"`
	DrainedAt   Instant     `json:"drained_at"`
	DoneAt      Instant     `json:"done_at"`
	ClosedAt    Instant     `json:"closed_at"`
	Version     int64       `json:"version"`
}
