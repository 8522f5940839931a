//go:build cgo && linux

package nvidia

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
	"gpupool/worker/agent/accelerator/kmsg"
	"gpupool/worker/agent/accelerator/sysfs"
)

// Reader is NVIDIA's accelerator.Reader.
//
// mu guards what follows it, and is not held while the library is called: NVML is safe for many threads.
type Reader struct {
	kmsg string
	boot time.Time

	mu    sync.Mutex
	up    bool                      // the library is initialised
	known map[int]agentproto.Device // who each device is, for when it no longer says
	busy  map[int]bool              // its reading has not come back
}

// New reads XIDs from kernelLog (kmsg.Path, or "" to read none); boot is when the kernel's clock began.
func New(kernelLog string, boot time.Time) *Reader {
	return &Reader{kmsg: kernelLog, boot: boot, known: map[int]agentproto.Device{}, busy: map[int]bool{}}
}

// init loads the library, again after each failure: a driver may be installed while the agent runs.
func (r *Reader) init() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.up {
		return nil
	}
	switch ret := nvml.Init(); ret {
	case nvml.SUCCESS:
		r.up = true
		return nil
	case nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED:
		return fmt.Errorf("no NVIDIA driver: %w", accelerator.ErrNoDriver)
	default:
		return fmt.Errorf("the NVIDIA driver's library could not be initialised: %s", word(ret))
	}
}

// Vendor implements accelerator.Reader.
func (r *Reader) Vendor() schema.Vendor { return schema.VendorNVIDIA }

// Driver implements accelerator.Reader.
func (r *Reader) Driver(context.Context) (string, error) {
	if err := r.init(); err != nil {
		return "", err
	}
	v, ret := nvml.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		return "", fmt.Errorf("NVIDIA driver version: %s", word(ret))
	}
	return v, nil
}

// Watch implements accelerator.Reader. XIDs are read from the kernel's log: NVML's own event tells only one code at a
// time, and none while the agent was down.
func (r *Reader) Watch(ctx context.Context, emit func(accelerator.Sign)) error {
	if r.kmsg == "" {
		return nil
	}
	return kmsg.Watch(ctx, r.kmsg, r.boot, func(s accelerator.Sign) bool { return s.Kind == "xid" || s.Kind == "sxid" }, emit)
}

// perDevice is how long one device may take before the others are told without it.
const perDevice = 4 * time.Second

// Read implements accelerator.Reader. Each device is read in a goroutine of its own; one that hangs is listed by what is
// known of it, and its goroutine ends when the driver lets it.
func (r *Reader) Read(ctx context.Context) ([]agentproto.Device, error) {
	if err := r.init(); err != nil {
		return nil, err
	}
	n, ret := nvml.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("count NVIDIA devices: %s", word(ret))
	}
	ctx, cancel := context.WithTimeout(ctx, perDevice)
	defer cancel()
	answers := make([]chan agentproto.Device, n)
	for i := range answers {
		if !r.take(i) {
			continue // one goroutine at a time hangs in a driver
		}
		ch := make(chan agentproto.Device, 1)
		answers[i] = ch
		go func() {
			defer r.give(i)
			ch <- r.device(i)
		}()
	}
	list := make([]agentproto.Device, n)
	for i, ch := range answers {
		select {
		case list[i] = <-ch: // a nil channel never answers
		case <-ctx.Done():
			select {
			case list[i] = <-ch: // it had answered before another kept us waiting
				continue
			default:
			}
			list[i] = r.silent(i, fmt.Sprintf("no answer within %s", perDevice))
		}
	}
	return list, nil
}

func (r *Reader) take(i int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.busy[i]
	r.busy[i] = true
	return !was
}

func (r *Reader) give(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.busy[i] = false
}

// silent is a device by what was known of it, and why it says nothing now.
func (r *Reader) silent(i int, why string) agentproto.Device {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.known[i]
	d.Vendor, d.Index, d.Error = schema.VendorNVIDIA, i, why
	return d
}

func (r *Reader) device(i int) agentproto.Device {
	h, ret := nvml.DeviceGetHandleByIndex(i)
	if ret != nvml.SUCCESS {
		return r.silent(i, word(ret))
	}
	d := agentproto.Device{Vendor: schema.VendorNVIDIA, Index: i}
	q := &query{d: &d}
	if pci, ret := h.GetPciInfo(); q.ok(ret) {
		d.PCI = kmsg.Address(fmt.Sprintf("%04x:%02x:%02x.0", pci.Domain, pci.Bus, pci.Device))
	}
	d.UUID, _ = h.GetUUID() // "" where it has none
	d.Serial, _ = h.GetSerial()
	d.Firmware, _ = h.GetVbiosVersion()
	name, ret := h.GetName()
	q.ok(ret)
	d.Model = ModelName(name, 0)
	r.learn(i, &d)
	d.Samples = map[string]float64{}
	if m, ret := h.GetMemoryInfo(); q.is(ret, accelerator.MemoryUsed) {
		d.MemoryBytes = int64(m.Total)
		d.Samples[accelerator.MemoryUsed] = float64(m.Used)
	}
	d.Model = ModelName(name, d.MemoryBytes)
	if q.lost == nvml.SUCCESS {
		r.learn(i, &d)
	}
	q.read(h)
	if q.lost != nvml.SUCCESS {
		return r.silent(i, word(q.lost))
	}
	return d
}

// learn remembers who a device is, before it is asked what may hang. What was known in full stays.
func (r *Reader) learn(i int, d *agentproto.Device) {
	if d.UUID == "" && d.Serial == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if old := r.known[i]; d.MemoryBytes == 0 && old.MemoryBytes != 0 && old.UUID == d.UUID {
		return
	}
	k := *d
	k.Samples, k.NotApplicable = nil, nil
	r.known[i] = k
}

// query collects what one device says.
type query struct {
	d    *agentproto.Device
	lost nvml.Return // why nothing more can be had of it; SUCCESS = it answers
}

func (q *query) ok(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED, nvml.ERROR_IRQ_ISSUE, nvml.ERROR_INSUFFICIENT_POWER:
		q.lost = ret
	}
	return ret == nvml.SUCCESS
}

// is reports whether the metrics were answered; what the hardware can't say is noted as not applicable.
func (q *query) is(ret nvml.Return, metrics ...string) bool {
	if ret == nvml.ERROR_NOT_SUPPORTED {
		q.d.NotApplicable = append(q.d.NotApplicable, metrics...)
	}
	return q.ok(ret)
}

func number[T ~uint32 | ~uint64 | ~int | ~int32](q *query, metric string, scale float64, get func() (T, nvml.Return)) {
	if v, ret := get(); q.is(ret, metric) {
		q.d.Samples[metric] = float64(v) * scale
	}
}

// has reports whether the driver's library has a function: a call of one that it lacks would end the process.
func has(symbol string) bool { return nvml.Extensions().LookupSymbol(symbol) == nil }

func (q *query) read(h nvml.Device) {
	s := q.d.Samples
	number(q, accelerator.Temperature, 1, func() (uint32, nvml.Return) { return h.GetTemperature(nvml.TEMPERATURE_GPU) })
	number(q, accelerator.TemperatureLimit, 1, func() (uint32, nvml.Return) {
		return h.GetTemperatureThreshold(nvml.TEMPERATURE_THRESHOLD_SLOWDOWN)
	})
	number(q, accelerator.Power, 1e-3, h.GetPowerUsage)
	number(q, accelerator.PowerLimit, 1e-3, h.GetEnforcedPowerLimit)
	number(q, accelerator.ClockCore, 1e6, func() (uint32, nvml.Return) { return h.GetClockInfo(nvml.CLOCK_SM) })
	number(q, accelerator.PCIeReplays, 1, h.GetPcieReplayCounter)
	number(q, accelerator.PCIeGen, 1, h.GetCurrPcieLinkGeneration)
	number(q, accelerator.PCIeGenMax, 1, h.GetMaxPcieLinkGeneration)
	number(q, accelerator.PCIeWidth, 1, h.GetCurrPcieLinkWidth)
	number(q, accelerator.PCIeWidthMax, 1, h.GetMaxPcieLinkWidth)
	if u, ret := h.GetUtilizationRates(); q.is(ret, accelerator.Utilization) {
		s[accelerator.Utilization] = float64(u.Gpu) / 100
		s[accelerator.UtilizationMemory] = float64(u.Memory) / 100
	}
	for metric, c := range map[string]struct {
		kind   nvml.MemoryErrorType
		window nvml.EccCounterType
	}{
		accelerator.ECCUncorrected: {nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC}, accelerator.ECCCorrected: {nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC},
		accelerator.ECCLifeUncorrect: {nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.AGGREGATE_ECC},
	} {
		number(q, metric, 1, func() (uint64, nvml.Return) { return h.GetTotalEccErrors(c.kind, c.window) })
	}
	if has("nvmlDeviceGetRemappedRows") {
		if corr, unc, pending, failed, ret := h.GetRemappedRows(); q.is(ret, accelerator.RemappedRows, accelerator.RemapPending, accelerator.RemapFailed) {
			s[accelerator.RemappedRows] = float64(corr + unc)
			s[accelerator.RemapPending], s[accelerator.RemapFailed] = one(pending), one(failed)
		}
	}
	if has("nvmlDeviceGetSramEccErrorStatus") {
		if sram, ret := h.GetSramEccErrorStatus(); q.is(ret, accelerator.SRAMThreshold) {
			s[accelerator.SRAMThreshold] = one(sram.BThresholdExceeded != 0)
		}
	}
	if has("nvmlDeviceGetTotalEnergyConsumption") {
		number(q, accelerator.Energy, 1e-3, h.GetTotalEnergyConsumption)
	}
	const slow = nvml.ClocksThrottleReasonHwSlowdown | nvml.ClocksThrottleReasonHwThermalSlowdown | nvml.ClocksThrottleReasonHwPowerBrakeSlowdown | nvml.ClocksThrottleReasonSwThermalSlowdown
	if why, ret := h.GetCurrentClocksThrottleReasons(); q.is(ret, accelerator.Throttled) {
		s[accelerator.Throttled] = one(why&uint64(slow) != 0)
	}
	sysfs.AER(q.d, "/sys/bus/pci/devices", q.d.PCI)
	q.links(h)
}

func (q *query) links(h nvml.Device) {
	up, all, errs := 0.0, 0.0, 0.0
	for l := range nvml.NVLINK_MAX_LINKS {
		st, ret := h.GetNvLinkState(l)
		if !q.ok(ret) {
			continue // this model has no such link
		}
		all++
		up += one(st == nvml.FEATURE_ENABLED)
		for _, c := range []nvml.NvLinkErrorCounter{nvml.NVLINK_ERROR_DL_CRC_FLIT, nvml.NVLINK_ERROR_DL_REPLAY, nvml.NVLINK_ERROR_DL_RECOVERY} {
			if n, ret := h.GetNvLinkErrorCounter(l, c); q.ok(ret) {
				errs += float64(n)
			}
		}
	}
	if all == 0 {
		q.d.NotApplicable = append(q.d.NotApplicable, accelerator.LinksUp, accelerator.LinksTotal, accelerator.LinkErrors)
		return
	}
	q.d.Samples[accelerator.LinksUp], q.d.Samples[accelerator.LinksTotal], q.d.Samples[accelerator.LinkErrors] = up, all, errs
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// word is NVML's own word for a failure. The library that says it may be the one that is missing.
func word(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_GPU_IS_LOST:
		return "the GPU is lost: it has fallen off the bus, or is otherwise inaccessible"
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return "libnvidia-ml.so.1 was not found"
	}
	return fmt.Sprintf("%s (NVML %d)", ret.Error(), int32(ret))
}
