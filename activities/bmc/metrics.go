package bmc

import (
	"context"
	"strings"
)

// GPUMetrics are an accelerator's counters as the BMC has them. A nil field is unknown: not shown, null, or behind a
// baseboard that still starts.
type GPUMetrics struct {
	GPU
	TemperatureC *float64 `json:"temperature_c"`
	PowerW       *float64 `json:"power_w"`
	// Utilization is the share of time in which it worked, 0 to 1, as the BMC says: some say 0 of one that works.
	Utilization *float64 `json:"utilization,omitempty"`
	// Lifetime counts of the memory's ECC errors.
	CorrectableECC   *float64 `json:"correctable_ecc"`
	UncorrectableECC *float64 `json:"uncorrectable_ecc"`
	// Of the on-chip caches.
	CacheCorrectableECC   *float64 `json:"cache_correctable_ecc"`
	CacheUncorrectableECC *float64 `json:"cache_uncorrectable_ecc"`
	// Rows remapped for life, and whether a remap waits for a reset or can't be done.
	RemapCorrectable   *float64 `json:"remap_correctable"`
	RemapUncorrectable *float64 `json:"remap_uncorrectable"`
	RemapPending       *bool    `json:"remap_pending"`
	RemapFailed        *bool    `json:"remap_failed"`
	PCIeReplays        *float64 `json:"pcie_replays"`
	PCIeFatal          *float64 `json:"pcie_fatal"`
	PCIeNonFatal       *float64 `json:"pcie_non_fatal"`
	PCIeCorrectable    *float64 `json:"pcie_correctable"`
	SRAMThreshold      *bool    `json:"sram_threshold"` // SRAM error threshold exceeded
	Throttle           []string `json:"throttle,omitempty"`
	// Seconds that it was held back over its life: by its hardware, for its power limit, for heat.
	HardwareThrottled *float64 `json:"hardware_throttled_seconds"`
	PowerThrottled    *float64 `json:"power_throttled_seconds"`
	ThermalThrottled  *float64 `json:"thermal_throttled_seconds"`
	// PCIeLanes are the errors received over each lane of its PCIe port. A bad lane shows here while all totals are 0.
	PCIeLanes []float64 `json:"pcie_lanes,omitempty"`
}

// GPUMetrics reads the counters of each accelerator of an identity. It doesn't look for accelerators again.
func (c *Client) GPUMetrics(ctx context.Context, id Identity) (_ []GPUMetrics, err error) {
	defer c.conn.named("read gpu metrics of", &err)
	ctx = inBulk(ctx)
	out := make([]GPUMetrics, 0, len(id.GPUs))
	for _, g := range id.GPUs {
		r, err := c.conn.get(ctx, g.URI)
		if err != nil {
			if err := lenient(g.URI, err); err != nil {
				return nil, err
			}
			out = append(out, GPUMetrics{GPU: GPU{URI: g.URI, Slot: g.Slot, Vendor: g.Vendor, Model: g.Model, Serial: g.Serial}})
			continue
		}
		m := GPUMetrics{GPU: gpuOf(r)}
		if !strings.Contains(g.URI, "/PCIeDevices/") {
			if err := c.processorMetrics(ctx, r, &m); err != nil {
				return nil, err
			}
		}
		out = append(out, m)
	}
	return out, nil
}

func (c *Client) processorMetrics(ctx context.Context, gpu *resource, m *GPUMetrics) error {
	// optional reads a resource that may not be there.
	optional := func(uri string) (*resource, error) {
		if uri == "" {
			return nil, nil
		}
		r, err := c.conn.get(ctx, uri)
		if err != nil {
			return nil, lenient(uri, err)
		}
		return r, nil
	}
	p, err := optional(gpu.link("Metrics"))
	if err != nil {
		return err
	}
	m.TemperatureC, m.PowerW = number(p, "TemperatureCelsius"), number(p, "ConsumedPowerWatt")
	if v := number(p, "BandwidthPercent"); v != nil {
		share := *v / 100
		m.Utilization = &share
	}
	m.CacheCorrectableECC = number(p, "CacheMetricsTotal", "LifeTime", "CorrectableECCErrorCount")
	m.CacheUncorrectableECC = number(p, "CacheMetricsTotal", "LifeTime", "UncorrectableECCErrorCount")
	m.PCIeReplays, m.PCIeFatal = number(p, "PCIeErrors", "ReplayCount"), number(p, "PCIeErrors", "FatalErrorCount")
	m.PCIeNonFatal, m.PCIeCorrectable = number(p, "PCIeErrors", "NonFatalErrorCount"), number(p, "PCIeErrors", "CorrectableErrorCount")
	m.SRAMThreshold = flag(p, "Oem", "Nvidia", "SRAMECCErrorThresholdExceeded")
	m.HardwareThrottled = duration(p, "Oem", "Nvidia", "HardwareViolationThrottleDuration")
	m.PowerThrottled, m.ThermalThrottled = duration(p, "PowerLimitThrottleDuration"), duration(p, "ThermalLimitThrottleDuration")
	for _, why := range stringsOf(p.at("Oem", "Nvidia", "ThrottleReasons")) {
		if why != "NA" && why != "None" {
			m.Throttle = append(m.Throttle, why)
		}
	}
	if m.TemperatureC == nil || m.PowerW == nil {
		env, err := optional(gpu.link("EnvironmentMetrics"))
		if err != nil {
			return err
		}
		if m.TemperatureC == nil {
			m.TemperatureC = number(env, "TemperatureCelsius", "Reading")
		}
		if m.PowerW == nil {
			m.PowerW = number(env, "PowerWatts", "Reading")
		}
	}
	memories := gpu.links("Links", "Memory")
	if len(memories) == 0 {
		r, err := optional(gpu.link("MemorySummary", "Metrics"))
		if err != nil {
			return err
		}
		m.memory(r, nil)
	}
	for _, uri := range memories {
		mem, err := optional(uri)
		if err != nil {
			return err
		}
		r, err := optional(mem.link("Metrics"))
		if err != nil {
			return err
		}
		m.memory(r, mem)
	}
	ports, err := optional(gpu.link("Ports"))
	if err != nil {
		return err
	}
	for _, uri := range ports.links("Members") {
		if !strings.Contains(uri[strings.LastIndexByte(uri, '/')+1:], "PCIe") {
			continue
		}
		port, err := optional(uri)
		if err != nil {
			return err
		}
		r, err := optional(port.link("Metrics"))
		if err != nil {
			return err
		}
		m.lanes(r)
	}
	return nil
}

// lanes takes the errors by lane of a PCIe port's metrics. A list with something else than counts in it says nothing.
func (m *GPUMetrics) lanes(port *resource) {
	list, _ := port.at("Oem", "Nvidia", "RXErrorsPerLane").([]any)
	lanes := make([]float64, 0, len(list))
	for _, x := range list {
		v, ok := x.(float64)
		if !ok || v < 0 {
			return
		}
		lanes = append(lanes, v)
	}
	if len(lanes) > 0 {
		m.PCIeLanes = lanes
	}
}

// memory adds what one memory of the device says. The metrics are null on a device whose BMC has not asked it yet.
func (m *GPUMetrics) memory(metrics, mem *resource) {
	add := func(sum **float64, keys ...string) {
		v := number(metrics, keys...)
		switch {
		case v == nil:
		case *sum == nil:
			*sum = v
		default:
			t := **sum + *v
			*sum = &t
		}
	}
	add(&m.CorrectableECC, "LifeTime", "CorrectableECCErrorCount")
	add(&m.UncorrectableECC, "LifeTime", "UncorrectableECCErrorCount")
	add(&m.RemapCorrectable, "Oem", "Nvidia", "RowRemapping", "CorrectableRowRemappingCount")
	add(&m.RemapUncorrectable, "Oem", "Nvidia", "RowRemapping", "UncorrectableRowRemappingCount")
	for _, r := range []*resource{metrics, mem} { // firmware generations differ in where these are
		if v := flag(r, "Oem", "Nvidia", "RowRemappingPending"); v != nil {
			m.RemapPending = v
		}
		if v := flag(r, "Oem", "Nvidia", "RowRemappingFailed"); v != nil {
			m.RemapFailed = v
		}
	}
}

// flag is a boolean property as a pointer; nil is unknown.
func flag(r *resource, keys ...string) *bool {
	if b, ok := r.at(keys...).(bool); ok {
		return &b
	}
	return nil
}
