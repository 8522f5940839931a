package schema

// RMAState is where a part is on its way back to its maker.
type RMAState string

const (
	RMAOpen     RMAState = "open"     // out of its server, not yet sent
	RMAShipped  RMAState = "shipped"  // on its way, under the maker's case
	RMAReplaced RMAState = "replaced" // another part came
	RMARepaired RMAState = "repaired" // the same part came back
	RMADenied   RMAState = "denied"   // the maker does not take it
)

// RMAStates is its life.
var RMAStates = Lifecycle[RMAState]{"RMA state", map[RMAState][]RMAState{
	RMAOpen:     {RMAShipped, RMADenied},
	RMAShipped:  {RMAReplaced, RMARepaired, RMADenied},
	RMAReplaced: {}, RMARepaired: {}, RMADenied: {},
}}

// RMA is a part that goes back to its maker (return merchandise authorisation). Its history stays under its serial.
type RMA struct {
	ID          string   `gorm:"primaryKey" json:"id"`
	Repair      string   `json:"repair,omitempty"` // that took it out
	Accelerator string   `json:"accelerator,omitempty"`
	Vendor      string   `json:"vendor,omitempty"`
	Model       string   `json:"model,omitempty"`
	SerialOut   string   `json:"serial_out"`
	SerialIn    string   `json:"serial_in,omitempty"`   // of the part that came for it
	VendorCase  string   `json:"vendor_case,omitempty"` // the maker's number
	State       RMAState `json:"state"`
	Note        string   `json:"note,omitempty"`
	OpenedBy    string   `json:"opened_by"`
	OpenedAt    Instant  `json:"opened_at"`
	ShippedAt   Instant  `json:"shipped_at"`
	ClosedAt    Instant  `json:"closed_at"`
	Version     int64    `json:"version"`
}

// TableName is where it is kept.
func (RMA) TableName() string { return "rmas" }
