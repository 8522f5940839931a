package schema

// Sources of what is read of devices.
const (
	SourceAgent   = "agent"   // in band: the server's agent, by the vendor's driver
	SourceRedfish = "redfish" // out of band: the server's BMC
)

// MetricHour is what was read of one metric of a device within an hour. An hour without a reading has none: it is unknown.
type MetricHour struct {
	Hour    Instant `json:"hour"` // its beginning
	Server  string  `json:"server"`
	Device  string  `json:"device"` // id of the accelerator
	Slot    string  `json:"slot,omitempty"`
	Serial  string  `json:"serial,omitempty"`
	Metric  string  `json:"metric"`
	Source  string  `json:"source"` // SourceAgent or SourceRedfish
	Min     float64 `json:"min"`
	Mean    float64 `json:"mean"`
	Max     float64 `json:"max"`
	Last    float64 `json:"last"`
	LastAt  Instant `json:"last_at"`
	Samples int64   `json:"samples"`
	// Differs says that the other source read something else in that hour: see [Disagree].
	Differs bool `json:"differs,omitempty"`
}

// apart is how far two sources may be apart in a metric that both tell, in its unit. They read minutes apart and at other
// places of the device, so that only what no such distance explains is a difference. A metric that is not here is not
// compared: sources begin its count at different moments, or it changes faster than a BMC is read.
var apart = map[string]float64{
	"temperature_celsius":        15,
	"utilization_ratio":          0.5, // a BMC that says 0 of a device which works (iDRAC 1.30.30.50 on GB200) is the case
	"ecc_uncorrected_life_total": 0,
	"remapped_rows_total":        0,
	"remap_pending":              0,
	"remap_failed":               0,
	"sram_threshold_exceeded":    0,
}

// Disagree reports whether two sources can't both be right about a metric in an hour: what one read lies, from its least to its
// greatest, further from what the other read than their distance in time and place explains.
func Disagree(a, b MetricHour) bool {
	by, compared := apart[a.Metric]
	return compared && a.Metric == b.Metric && a.Source != b.Source && (a.Min > b.Max+by || b.Min > a.Max+by)
}
