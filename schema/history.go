package schema

// MetricHour is what was read of one metric of a device within an hour. An hour without a reading has none: it is unknown.
type MetricHour struct {
	Hour    Instant `json:"hour"` // its beginning
	Server  string  `json:"server"`
	Device  string  `json:"device"` // id of the accelerator
	Slot    string  `json:"slot,omitempty"`
	Serial  string  `json:"serial,omitempty"`
	Metric  string  `json:"metric"`
	Min     float64 `json:"min"`
	Mean    float64 `json:"mean"`
	Max     float64 `json:"max"`
	Last    float64 `json:"last"`
	LastAt  Instant `json:"last_at"`
	Samples int64   `json:"samples"`
}
