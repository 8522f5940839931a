// Package amd reads AMD accelerators from the amdgpu driver's sysfs: identity, hwmon, RAS counters and gpu_metrics. It
// links no library and needs no privilege, except for the kernel log.
package amd

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
	"gpupool/worker/agent/accelerator/kmsg"
	"gpupool/worker/agent/accelerator/sysfs"
)

// Reader is AMD's accelerator.Reader.
type Reader struct {
	root string
	kmsg string
	boot time.Time
}

// New reads under root, which stands for /sys; "" is /sys. kernelLog is kmsg.Path, or "" to read none; boot is when the
// kernel's clock began.
func New(root, kernelLog string, boot time.Time) *Reader {
	if root == "" {
		root = "/sys"
	}
	return &Reader{root, kernelLog, boot}
}

// Vendor implements accelerator.Reader.
func (r *Reader) Vendor() schema.Vendor { return schema.VendorAMD }

// Driver implements accelerator.Reader: the out-of-tree driver has a version, the kernel's own has the kernel's.
func (r *Reader) Driver(context.Context) (string, error) {
	if v, ok := sysfs.Text(r.root, "module/amdgpu/version"); ok && v != "" {
		return v, nil
	}
	if _, err := os.Stat(filepath.Join(r.root, "module/amdgpu")); err != nil {
		return "", fmt.Errorf("amdgpu: %w", accelerator.ErrNoDriver)
	}
	v, _ := sysfs.Text("/proc/sys/kernel/osrelease")
	return "in-kernel " + v, nil
}

// Watch implements accelerator.Reader.
func (r *Reader) Watch(ctx context.Context, emit func(accelerator.Sign)) error {
	if r.kmsg == "" {
		return nil
	}
	return kmsg.Watch(ctx, r.kmsg, r.boot, func(s accelerator.Sign) bool {
		return s.Kind == "ras" || s.Kind == "gpu-reset" || s.Kind == "bad-pages"
	}, emit)
}

// card is one device of the driver. More than ten of them is usual where devices are partitioned.
var card = regexp.MustCompile(`^card(\d+)$`)

// Read implements accelerator.Reader.
func (r *Reader) Read(ctx context.Context) ([]agentproto.Device, error) {
	names, err := os.ReadDir(filepath.Join(r.root, "class/drm"))
	if err != nil {
		return nil, fmt.Errorf("amdgpu: %w", accelerator.ErrNoDriver)
	}
	type found struct {
		n   int
		dir string
	}
	var cards []found
	for _, e := range names {
		m := card.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		dir := filepath.Join(r.root, "class/drm", e.Name(), "device")
		if sysfs.Pairs("=", dir, "uevent")["DRIVER"] == "amdgpu" {
			n, err := strconv.Atoi(m[1])
			if err != nil {
				continue
			}
			cards = append(cards, found{n, dir})
		}
	}
	slices.SortFunc(cards, func(a, b found) int { return a.n - b.n })
	list := []agentproto.Device{}
	for i, c := range cards {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		list = append(list, device(c.dir, i))
	}
	return list, nil
}

// models by PCI device id. Source: the PCI ID repository.
var models = map[string]string{
	"74A0": "mi300a", "74A1": "mi300x", "74A2": "mi308x", "74A5": "mi325x", "74A9": "mi300x-hf", "75A0": "mi350x", "75A3": "mi355x",
	"738C": "mi100", "7408": "mi250x", "740C": "mi250x", "740F": "mi210", "66A1": "mi50",
}

func device(dir string, index int) agentproto.Device {
	ue := sysfs.Pairs("=", dir, "uevent")
	d := agentproto.Device{Vendor: schema.VendorAMD, PCI: strings.ToLower(ue["PCI_SLOT_NAME"]), Index: index, Samples: map[string]float64{}}
	_, id, _ := strings.Cut(ue["PCI_ID"], ":")
	if n, ok := sysfs.Number(dir, "mem_info_vram_total"); ok {
		d.MemoryBytes = int64(n)
	}
	name, ok := models[strings.ToUpper(id)]
	if !ok {
		name = strings.ToLower(id)
	}
	d.Model = "amd-" + name
	if gib := math.Round(float64(d.MemoryBytes) / (1 << 30)); gib > 0 {
		d.Model += fmt.Sprintf("-%.0fgb", gib)
	}
	d.Serial, _ = sysfs.Text(dir, "serial_number")
	if u, _ := sysfs.Text(dir, "unique_id"); u != "" && strings.Trim(u, "0") != "" {
		d.UUID = u
	}
	d.Firmware, _ = sysfs.Text(dir, "vbios_version")
	d.Slot, _ = sysfs.Text(dir, "physical_slot")

	set := func(metric string, scale float64, parts ...string) bool {
		n, ok := sysfs.Number(parts...)
		if ok {
			d.Samples[metric] = n * scale
		}
		return ok
	}
	set(accelerator.MemoryUsed, 1, dir, "mem_info_vram_used")
	set(accelerator.Utilization, 0.01, dir, "gpu_busy_percent")
	set(accelerator.UtilizationMemory, 0.01, dir, "mem_busy_percent")
	set(accelerator.PCIeReplays, 1, dir, "pcie_replay_count")
	sysfs.Link(&d, dir)
	if hw, err := filepath.Glob(filepath.Join(dir, "hwmon/hwmon*")); err == nil && len(hw) > 0 {
		sensors(&d, hw[0], set)
	}
	// pcie_bw is left out: to read it takes a second on some devices.
	counters(&d, filepath.Join(dir, "ras"))
	if b, err := os.ReadFile(filepath.Join(dir, "gpu_metrics")); err == nil {
		m, wrong := parseMetrics(b)
		if wrong != "" {
			accelerator.Unreadable("amd", "gpu_metrics of "+d.PCI+": "+wrong)
		}
		fill(&d, m)
	}
	if len(d.Samples) == 0 {
		d.Error = "its driver lists it and says nothing of it"
	}
	return d
}

// sensors reads hwmon. Edge, junction (the hottest spot) and memory stand under whichever numbers the driver gave them;
// MI300 has no edge.
func sensors(d *agentproto.Device, hw string, set func(string, float64, ...string) bool) {
	for n := range 8 {
		t := fmt.Sprintf("temp%d_", n+1)
		switch label, _ := sysfs.Text(hw, t+"label"); label {
		case "junction":
			set(accelerator.Temperature, 1e-3, hw, t+"input")
			set(accelerator.TemperatureLimit, 1e-3, hw, t+"crit")
		case "edge":
			if _, ok := d.Samples[accelerator.Temperature]; !ok {
				set(accelerator.Temperature, 1e-3, hw, t+"input")
				set(accelerator.TemperatureLimit, 1e-3, hw, t+"crit")
			}
		case "mem":
			set(accelerator.TemperatureMemory, 1e-3, hw, t+"input")
		}
	}
	if !set(accelerator.Power, 1e-6, hw, "power1_input") {
		set(accelerator.Power, 1e-6, hw, "power1_average")
	}
	set(accelerator.PowerLimit, 1e-6, hw, "power1_cap")
	set(accelerator.ClockCore, 1, hw, "freq1_input")
}

// counters adds up the blocks' RAS counters. Newer devices have aca_<block> in place of <block>_err_count, and a block
// that can't be asked answers EINVAL: it adds nothing, and is not "no error". Without a ras folder there is no RAS.
func counters(d *agentproto.Device, ras string) {
	files, err := filepath.Glob(filepath.Join(ras, "*"))
	if err != nil || len(files) == 0 {
		d.NotApplicable = append(d.NotApplicable, accelerator.ECCUncorrected, accelerator.ECCCorrected, accelerator.RemappedRows)
		return
	}
	for _, f := range files {
		name := filepath.Base(f)
		if !strings.HasSuffix(name, "_err_count") && !strings.HasPrefix(name, "aca_") {
			continue
		}
		for k, v := range sysfs.Pairs(":", f) {
			n, err := strconv.ParseFloat(v, 64)
			if err != nil {
				continue
			}
			switch k {
			case "ue":
				d.Samples[accelerator.ECCUncorrected] += n
			case "ce":
				d.Samples[accelerator.ECCCorrected] += n
			}
		}
	}
	if s, ok := sysfs.Text(ras, "gpu_vram_bad_pages"); ok {
		n := 0.0
		for line := range strings.Lines(s) {
			if strings.Contains(line, " : R") || strings.Contains(line, ": R") {
				n++
			}
		}
		d.Samples[accelerator.RemappedRows] = n
	}
}

// fill adds what sysfs's other files didn't tell.
func fill(d *agentproto.Device, m map[string]float64) {
	for k, v := range m {
		if _, ok := d.Samples[k]; !ok {
			d.Samples[k] = v
		}
	}
}
