package accelerator

// Metric names of a device's Samples. Units are the base unit in the name; _total only rises until its source is reset.
const (
	Temperature       = "temperature_celsius"        // hottest of core and junction
	TemperatureMemory = "temperature_memory_celsius" //
	TemperatureLimit  = "temperature_limit_celsius"  // where the hardware slows itself down
	Power             = "power_watts"                // now, or over the last second where the vendor only says that
	PowerLimit        = "power_limit_watts"          //
	Utilization       = "utilization_ratio"          // 0..1: share of the last period in which some kernel ran
	MemoryUsed        = "memory_used_bytes"          //
	ClockCore         = "clock_core_hertz"           //
	Throttled         = "throttled"                  // 1 = the hardware holds its clock down for heat or power now
	ECCCorrected      = "ecc_corrected_total"        // device memory and caches, since driver load
	ECCUncorrected    = "ecc_uncorrected_total"      // the same
	ECCLifeUncorrect  = "ecc_uncorrected_life_total" // over the device's life; goes with it to another server
	RemappedRows      = "remapped_rows_total"        // NVIDIA row remaps, AMD retired pages
	RemapPending      = "remap_pending"              // 1 = a reset is needed before a remap takes effect
	RemapFailed       = "remap_failed"               // 1 = no spare row was left
	PCIeReplays       = "pcie_replay_total"          //
	PCIeGen           = "pcie_link_gen"              // of the link now; idle devices lower it
	PCIeGenMax        = "pcie_link_gen_max"          //
	PCIeWidth         = "pcie_link_width"            // lanes now
	PCIeWidthMax      = "pcie_link_width_max"        //
	LinksUp           = "fabric_links_up"            // NVLink or XGMI links that are up
	LinksTotal        = "fabric_links"               // those that should be
	LinkErrors        = "fabric_errors_total"        // CRC, replay and recovery
)

// ErrorCounters must not grow while a device is tested: any growth is a failure, whatever the test itself says.
var ErrorCounters = []string{ECCUncorrected, ECCLifeUncorrect, RemappedRows, RemapFailed, LinkErrors}
