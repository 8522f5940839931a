// Package exporter takes what another exporter on the server has read already: NVIDIA's dcgm-exporter, AMD's Device Metrics
// Exporter. It is for servers on which the agent can't reach the vendor's library itself.
//
// Invariant: a blank value is unknown and one that the hardware can't say is not applicable, whatever number the exporter shows for
// it. A gauge that shows the last XID tells that there was one, never when or how many: the kernel's log tells that.
package exporter

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
	"gpupool/worker/agent/accelerator/kmsg"
	"gpupool/worker/agent/accelerator/nvidia"
)

// maxPage bounds what is read of one page: dcgm-exporter shows about 100 KiB for eight devices.
const maxPage = 8 << 20

// Reader is an accelerator.Reader of one exporter's page. mu guards what follows it.
type Reader struct {
	url  string
	http *http.Client
	wake chan struct{} // there is an XID that was not told

	mu     sync.Mutex
	driver string
	seen   map[string]bool // XIDs told, by device and code
	fresh  []accelerator.Sign
}

// New reads the page at url, such as http://127.0.0.1:9400/metrics.
func New(url string) *Reader {
	return &Reader{url: url, http: &http.Client{Timeout: 8 * time.Second}, wake: make(chan struct{}, 1), seen: map[string]bool{}}
}

// Vendor implements accelerator.Reader: the page may be of several vendors; its devices carry their own.
func (r *Reader) Vendor() schema.Vendor { return "exporter" }

// Driver implements accelerator.Reader.
func (r *Reader) Driver(context.Context) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.driver == "" {
		return "", accelerator.ErrNoDriver
	}
	return r.driver, nil
}

// Watch implements accelerator.Reader: it tells each XID that the gauge shows once.
func (r *Reader) Watch(ctx context.Context, emit func(accelerator.Sign)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		}
		r.mu.Lock()
		list := r.fresh
		r.fresh = nil
		r.mu.Unlock()
		for _, s := range list {
			emit(s)
		}
	}
}

// Read implements accelerator.Reader.
func (r *Reader) Read(ctx context.Context) ([]agentproto.Device, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url, nil)
	if err != nil {
		return nil, fmt.Errorf("exporter %s: %w", r.url, err)
	}
	resp, err := r.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("exporter: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("exporter %s answered %s", r.url, resp.Status)
	}
	p, err := parse(io.LimitReader(resp.Body, maxPage))
	if err != nil {
		accelerator.Unreadable("exporter", r.url)
		return nil, fmt.Errorf("exporter %s: %w", r.url, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.driver = p.driver
	for _, s := range p.signs {
		if r.seen[s.Key] {
			continue
		}
		r.seen[s.Key] = true
		r.fresh = append(r.fresh, s)
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
	return p.devices, nil
}

// column is how one of an exporter's metrics becomes one of ours.
type column struct {
	metric string
	scale  float64
	add    bool // several of the exporter's make one of ours
}

// dcgm by field name (NVIDIA, DCGM API: field identifiers); memory is in MiB, energy in mJ, clocks in MHz.
var dcgm = map[string]column{
	"DCGM_FI_DEV_GPU_TEMP": {accelerator.Temperature, 1, false}, "DCGM_FI_DEV_MEMORY_TEMP": {accelerator.TemperatureMemory, 1, false}, "DCGM_FI_DEV_SLOWDOWN_TEMP": {accelerator.TemperatureLimit, 1, false},
	"DCGM_FI_DEV_POWER_USAGE": {accelerator.Power, 1, false}, "DCGM_FI_DEV_POWER_MGMT_LIMIT": {accelerator.PowerLimit, 1, false}, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": {accelerator.Energy, 1e-3, false},
	"DCGM_FI_DEV_GPU_UTIL": {accelerator.Utilization, 0.01, false}, "DCGM_FI_DEV_MEM_COPY_UTIL": {accelerator.UtilizationMemory, 0.01, false}, "DCGM_FI_DEV_FB_USED": {accelerator.MemoryUsed, 1 << 20, false},
	"DCGM_FI_DEV_SM_CLOCK": {accelerator.ClockCore, 1e6, false}, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": {accelerator.ECCCorrected, 1, false}, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": {accelerator.ECCUncorrected, 1, false},
	"DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": {accelerator.ECCLifeUncorrect, 1, false}, "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": {accelerator.RemappedRows, 1, true}, "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": {accelerator.RemappedRows, 1, true},
	"DCGM_FI_DEV_ROW_REMAP_FAILURE": {accelerator.RemapFailed, 1, false}, "DCGM_FI_DEV_ROW_REMAP_PENDING": {accelerator.RemapPending, 1, false}, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": {accelerator.PCIeReplays, 1, false},
	"DCGM_FI_DEV_PCIE_LINK_GEN": {accelerator.PCIeGen, 1, false}, "DCGM_FI_DEV_PCIE_LINK_WIDTH": {accelerator.PCIeWidth, 1, false}, "DCGM_FI_DEV_PCIE_MAX_LINK_GEN": {accelerator.PCIeGenMax, 1, false}, "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": {accelerator.PCIeWidthMax, 1, false},
	"DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": {accelerator.LinkErrors, 1, true}, "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": {accelerator.LinkErrors, 1, true}, "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": {accelerator.LinkErrors, 1, true},
}

// amd by metric name (AMD Device Metrics Exporter: list of metrics); memory is in MB.
var amd = map[string]column{
	"gpu_junction_temperature": {accelerator.Temperature, 1, false}, "gpu_memory_temperature": {accelerator.TemperatureMemory, 1, false}, "gpu_package_power": {accelerator.Power, 1, false},
	"gpu_gfx_activity": {accelerator.Utilization, 0.01, false}, "gpu_umc_activity": {accelerator.UtilizationMemory, 0.01, false}, "gpu_used_vram": {accelerator.MemoryUsed, 1 << 20, false},
	"gpu_ecc_correct_total": {accelerator.ECCCorrected, 1, false}, "gpu_ecc_uncorrect_total": {accelerator.ECCUncorrected, 1, false}, "pcie_replay_count": {accelerator.PCIeReplays, 1, false},
}

// page is what an exporter showed.
type page struct {
	devices []agentproto.Device
	signs   []accelerator.Sign
	driver  string
}

// found is a device while the page is read.
type found struct {
	agentproto.Device
	free float64 // MiB
	used float64
}

func parse(r io.Reader) (page, error) {
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(r)
	if err != nil {
		return page{}, err
	}
	var out page
	by := map[string]*found{}
	for _, name := range slices.Sorted(maps.Keys(families)) {
		for _, m := range families[name].GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			v := value(m)
			switch {
			case strings.HasPrefix(name, "DCGM_FI_"):
				if labels["GPU_I_ID"] != "" {
					continue // a part of a device speaks for itself alone
				}
				if s := labels["DCGM_FI_DRIVER_VERSION"]; s != "" {
					out.driver = s
				}
				d := device(by, schema.VendorNVIDIA, labels["UUID"], labels["gpu"])
				if d == nil {
					continue
				}
				d.Model, d.PCI = labels["modelName"], address(labels["pci_bus_id"])
				if name == "DCGM_FI_DEV_XID_ERRORS" {
					out.signs = append(out.signs, xid(d.Device, labels, v)...)
					continue
				}
				known, na := blank(v)
				switch {
				case name == "DCGM_FI_DEV_FB_FREE" && known:
					d.free = v
				case name == "DCGM_FI_DEV_FB_USED" && known:
					d.used = v
				}
				put(d, dcgm[name], v, known, na)
			case amd[name].metric != "" || name == "gpu_total_vram" || name == "gpu_health":
				d := device(by, schema.VendorAMD, labels["gpu_uuid"], labels["gpu_id"])
				if d == nil {
					continue
				}
				d.Serial, d.Model, d.PCI = labels["serial_number"], labels["card_model"], address(labels["pcie_bus_id"])
				known := !math.IsNaN(v) && !math.IsInf(v, 0) && v >= 0
				switch {
				case name == "gpu_total_vram" && known:
					d.MemoryBytes = int64(v) << 20
				case name == "gpu_health" && v == 1:
					d.Samples[accelerator.VendorHealth] = accelerator.VendorWell
				case name == "gpu_health" && v == 0:
					d.Samples[accelerator.VendorHealth] = accelerator.VendorFailed
				}
				put(d, amd[name], v, known, false)
			}
		}
	}
	out.devices = []agentproto.Device{}
	for _, key := range slices.Sorted(maps.Keys(by)) {
		d := by[key]
		if d.Vendor == schema.VendorNVIDIA {
			if d.used+d.free > 0 {
				d.MemoryBytes = int64(d.used+d.free) << 20
			}
			d.Model = nvidia.ModelName(d.Model, d.MemoryBytes)
		} else {
			d.Model = "amd-" + strings.ToLower(strings.ReplaceAll(d.Model, " ", "-"))
		}
		if len(d.Samples) == 0 {
			d.Error = "its exporter lists it and says nothing of it"
		}
		slices.Sort(d.NotApplicable)
		out.devices = append(out.devices, d.Device)
	}
	slices.SortFunc(out.devices, func(a, b agentproto.Device) int { return a.Index - b.Index })
	return out, nil
}

// device is the one of these names. One without a UUID and an index can't be told from another.
func device(by map[string]*found, v schema.Vendor, uuid, index string) *found {
	n, err := strconv.Atoi(index)
	if err != nil || n < 0 {
		if uuid == "" {
			return nil
		}
		n = len(by)
	}
	key := string(v) + "/" + uuid
	if uuid == "" {
		key += index
	}
	if by[key] == nil {
		by[key] = &found{Device: agentproto.Device{Vendor: v, UUID: uuid, Index: n, Samples: map[string]float64{}}}
	}
	return by[key]
}

func address(s string) string {
	if s == "" {
		return ""
	}
	return kmsg.Address(s)
}

func put(d *found, c column, v float64, known, na bool) {
	switch {
	case c.metric == "":
	case na:
		if !slices.Contains(d.NotApplicable, c.metric) {
			d.NotApplicable = append(d.NotApplicable, c.metric)
		}
	case !known:
	case c.add:
		d.Samples[c.metric] += v * c.scale
	default:
		d.Samples[c.metric] = v * c.scale
	}
}

func value(m *dto.Metric) float64 {
	switch {
	case m.GetGauge() != nil:
		return m.GetGauge().GetValue()
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue()
	case m.GetUntyped() != nil:
		return m.GetUntyped().GetValue()
	}
	return math.NaN()
}

// blank sorts out DCGM's numbers that are none (dcgm_structs.h, DCGM_INT32_BLANK, DCGM_INT64_BLANK, DCGM_FP64_BLANK): blank, and
// from there on not found, not supported, not permitted. A 64-bit one can't be told from its neighbours in a float: it is unknown.
func blank(v float64) (known, na bool) {
	for _, base := range []float64{2147483632, 140737488355328} {
		if v >= base && v <= base+15 {
			return false, v == base+2
		}
	}
	return v >= 0 && v < 9.2e18, false
}

// xid is what the gauge of the last XID tells: there was one. 0 is none.
func xid(d agentproto.Device, labels map[string]string, v float64) []accelerator.Sign {
	if known, _ := blank(v); !known || v == 0 || v != math.Trunc(v) {
		return nil
	}
	code := strconv.FormatFloat(v, 'f', 0, 64)
	id := accelerator.Identity(d)
	if id == "" {
		return nil
	}
	return []accelerator.Sign{{Device: id, UUID: d.UUID, Kind: "xid-seen", Code: code, Severity: schema.SeverityInfo, Key: "gauge/" + id + "/" + code,
		Text: fmt.Sprintf("%s: dcgm-exporter shows XID %s, and not when it came or how often", labels["modelName"], code)}}
}
