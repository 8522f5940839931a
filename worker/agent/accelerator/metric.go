package accelerator

// Metric names of a device's Samples; Metrics says what each is.
const (
	Temperature       = "temperature_celsius"
	TemperatureMemory = "temperature_memory_celsius"
	TemperatureLimit  = "temperature_limit_celsius"
	Power             = "power_watts"
	PowerLimit        = "power_limit_watts"
	Energy            = "energy_joules_total"
	Utilization       = "utilization_ratio"
	UtilizationMemory = "utilization_memory_ratio"
	MemoryUsed        = "memory_used_bytes"
	ClockCore         = "clock_core_hertz"
	Throttled         = "throttled"
	ECCCorrected      = "ecc_corrected_total"
	ECCUncorrected    = "ecc_uncorrected_total"
	ECCLifeUncorrect  = "ecc_uncorrected_life_total"
	RemappedRows      = "remapped_rows_total"
	RemapPending      = "remap_pending"
	RemapFailed       = "remap_failed"
	SRAMThreshold     = "sram_threshold_exceeded"
	PCIeReplays       = "pcie_replay_total"
	PCIeCorrected     = "pcie_corrected_total"
	PCIeNonFatal      = "pcie_nonfatal_total"
	PCIeFatal         = "pcie_fatal_total"
	PCIeGen           = "pcie_link_gen"
	PCIeGenMax        = "pcie_link_gen_max"
	PCIeWidth         = "pcie_link_width"
	PCIeWidthMax      = "pcie_link_width_max"
	LinksUp           = "fabric_links_up"
	LinksTotal        = "fabric_links"
	LinkErrors        = "fabric_errors_total"
	VendorHealth      = "vendor_health"
)

// Values of VendorHealth.
const (
	VendorWell   = 0
	VendorWarns  = 1
	VendorFailed = 2
)

// Metric is one line of the schema that all vendors' readers speak.
type Metric struct {
	Name string // in samples; on /metrics it has the prefix gpupool_device_
	// Unit is the base unit, as the name says it too; "" = a count or a state.
	Unit string
	// Counter says that it only rises until its source is reset: by a load of the driver, or never where it is of a device's life.
	Counter bool
	Help    string
	OTel    string // OpenTelemetry's name for the same; "" = it has none
}

// Metrics is the schema, in the order in which documents list it.
var Metrics = []Metric{
	{Temperature, "Cel", false, "hottest of core and junction", "hw.temperature"},
	{TemperatureMemory, "Cel", false, "device memory", "hw.temperature"},
	{TemperatureLimit, "Cel", false, "where the hardware slows itself down", "hw.temperature.limit"},
	{Power, "W", false, "draw now, or over the last second where the vendor only says that", "hw.power"},
	{PowerLimit, "W", false, "what the device holds itself to", ""},
	{Energy, "J", true, "energy since the driver was loaded", "hw.energy"},
	{Utilization, "1", false, "share of the last period in which some kernel ran", "hw.gpu.utilization"},
	{UtilizationMemory, "1", false, "share of the last period in which device memory was read or written", "hw.gpu.memory.utilization"},
	{MemoryUsed, "By", false, "device memory in use", "hw.gpu.memory.usage"},
	{ClockCore, "Hz", false, "clock of the compute engines", ""},
	{Throttled, "", false, "1 = the hardware holds its clock down for heat or power now", ""},
	{ECCCorrected, "", true, "corrected errors of device memory and caches, since driver load", "hw.errors"},
	{ECCUncorrected, "", true, "uncorrected errors of device memory and caches, since driver load", "hw.errors"},
	{ECCLifeUncorrect, "", true, "the same over the device's life; goes with it to another server", "hw.errors"},
	{RemappedRows, "", true, "NVIDIA row remaps, AMD retired pages", ""},
	{RemapPending, "", false, "1 = a reset is needed before a remap takes effect", ""},
	{RemapFailed, "", false, "1 = no spare row was left", ""},
	{SRAMThreshold, "", false, "1 = the device's own limit of SRAM errors is exceeded", ""},
	{PCIeReplays, "", true, "PCIe packets sent again", "hw.errors"},
	{PCIeCorrected, "", true, "PCIe AER: corrected errors", "hw.errors"},
	{PCIeNonFatal, "", true, "PCIe AER: uncorrected errors that the link outlived", "hw.errors"},
	{PCIeFatal, "", true, "PCIe AER: fatal errors", "hw.errors"},
	{PCIeGen, "", false, "generation of the PCIe link now; idle devices lower it", ""},
	{PCIeGenMax, "", false, "generation that the link could have", ""},
	{PCIeWidth, "", false, "lanes now", ""},
	{PCIeWidthMax, "", false, "lanes that the link could have", ""},
	{LinksUp, "", false, "NVLink, XGMI or other links between devices that are up", ""},
	{LinksTotal, "", false, "those that there are", ""},
	{VendorHealth, "", false, "what the driver calls the device: 0 = well, 1 = it warns, 2 = failed", "hw.status"},
	{LinkErrors, "", true, "CRC errors, replays and recoveries of those links", "hw.errors"},
}

// ErrorCounters must not grow while a device is tested: any growth is a failure, whatever the test itself says.
var ErrorCounters = []string{ECCUncorrected, ECCLifeUncorrect, RemappedRows, RemapFailed, SRAMThreshold, PCIeFatal, LinkErrors}
