package schema

// Vendor is who made an accelerator.
type Vendor string

const (
	VendorNVIDIA Vendor = "nvidia"
	VendorAMD    Vendor = "amd"
	VendorIntel  Vendor = "intel"
	VendorHuawei Vendor = "huawei"
	VendorOther  Vendor = "other"
)

// Health is what is known of an accelerator; see Healths for what may follow what.
type Health string

const (
	HealthUnknown Health = "unknown"
	HealthHealthy Health = "healthy"
	HealthSuspect Health = "suspect"
	HealthFailed  Health = "failed"
	HealthAbsent  Health = "absent"
)

// Accelerator is one device. Its identity is the serial, else the UUID, else vendor:bdf@server; never an index.
// History follows it from server to server.
type Accelerator struct {
	ID          string  `gorm:"primaryKey" json:"id"`
	Identity    string  `json:"identity"` // unique; see IdentityOf
	Vendor      Vendor  `json:"vendor"`
	Model       string  `json:"model"` // e.g. nvidia-h100-80gb, amd-mi300x-192gb
	Serial      string  `json:"serial"`
	UUID        string  `json:"uuid"`
	PCI         string  `gorm:"column:pci" json:"pci"`            // domain:bus:device.function
	Slot        string  `json:"slot"`                             // as printed on the machine: SXM1, OAM3
	Index       int     `gorm:"column:device_index" json:"index"` // the driver's index at last report; not an identity
	MemoryBytes int64   `json:"memory_bytes"`
	Firmware    string  `json:"firmware"`
	Server      string  `json:"server"` // where it was last seen
	Health      Health  `json:"health"`
	HealthWhy   string  `json:"health_why"`
	HealthAt    Instant `json:"health_at"`
	FirstSeen   Instant `json:"first_seen"`
	LastSeen    Instant `json:"last_seen"`
	InstalledAt Instant `json:"installed_at"` // in the pool since; 0 = not (yet) counted as installed
	RemovedAt   Instant `json:"removed_at"`   // 0 = still there
}

// IdentityOf is the identity of a device by the rule serial, then UUID, then vendor:bdf@server.
func IdentityOf(v Vendor, serial, uuid, pci, server string) string {
	switch {
	case serial != "":
		return string(v) + ":serial:" + serial
	case uuid != "":
		return string(v) + ":uuid:" + uuid
	default:
		return string(v) + ":" + pci + "@" + server
	}
}
