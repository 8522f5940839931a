package intel

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

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
	"gpupool/worker/agent/accelerator/sysfs"
)

var card = regexp.MustCompile(`^card(\d+)$`)

// models by PCI device id. Source: the PCI ID repository.
var models = map[string]string{
	"0BD4": "max-1550", "0BD5": "max-1550", "0BD6": "max-1550", "0BD7": "max-1350", "0BD8": "max-1350", "0BD9": "max-1100", "0BDA": "max-1100", "0BDB": "max-1100",
	"56C0": "flex-170", "56C1": "flex-140", "E211": "arc-pro-b60", "E212": "arc-pro-b50",
}

// gpus reads the devices of i915 and xe. A processor's own graphics is no accelerator of the pool: it is always device 2 of the
// first bus.
func (r *Reader) gpus(ctx context.Context) ([]agentproto.Device, error) {
	names, err := os.ReadDir(filepath.Join(r.root, "class/drm"))
	if err != nil {
		return nil, fmt.Errorf("i915, xe: %w", accelerator.ErrNoDriver)
	}
	type found struct {
		n         int
		path, dir string
	}
	var cards []found
	for _, e := range names {
		m := card.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		path := filepath.Join(r.root, "class/drm", e.Name())
		ue := sysfs.Pairs("=", path, "device/uevent")
		if n, err := strconv.Atoi(m[1]); err == nil && (ue["DRIVER"] == "i915" || ue["DRIVER"] == "xe") && ue["PCI_SLOT_NAME"] != "0000:00:02.0" {
			cards = append(cards, found{n, path, filepath.Join(path, "device")})
		}
	}
	slices.SortFunc(cards, func(a, b found) int { return a.n - b.n })
	var list []agentproto.Device
	for i, c := range cards {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		list = append(list, r.gpu(c.path, c.dir, i))
	}
	return list, nil
}

func (r *Reader) gpu(path, dir string, index int) agentproto.Device {
	ue := sysfs.Pairs("=", dir, "uevent")
	d := agentproto.Device{Vendor: schema.VendorIntel, PCI: strings.ToLower(ue["PCI_SLOT_NAME"]), Index: index, Samples: map[string]float64{}}
	_, id, _ := strings.Cut(ue["PCI_ID"], ":")
	name, ok := models[strings.ToUpper(id)]
	if !ok {
		name = strings.ToLower(id)
	}
	// i915 tells all of it, xe each tile's.
	memory, known := sysfs.Number(path, "lmem_total_bytes")
	if !known {
		for _, f := range glob(dir, "tile*/physical_vram_size_bytes") {
			if n, ok := sysfs.Number(f); ok {
				memory += n
			}
		}
	}
	d.MemoryBytes = int64(memory)
	d.Model = "intel-" + name
	if gib := math.Round(memory / (1 << 30)); gib > 0 {
		d.Model += fmt.Sprintf("-%.0fgb", gib)
	}
	d.Slot, _ = sysfs.Text(dir, "physical_slot")
	sysfs.Link(&d, dir)
	for _, hw := range glob(dir, "hwmon/hwmon*") {
		r.sensors(&d, hw)
	}
	engines(&d, path, dir)
	if len(d.Samples) == 0 {
		d.Error = "its driver lists it and says nothing of it"
	}
	return d
}

func glob(dir, pattern string) []string {
	found, _ := filepath.Glob(filepath.Join(dir, pattern)) // the patterns are right
	return found
}

// sensors reads hwmon (Linux, Documentation/ABI/testing/sysfs-driver-intel-i915-hwmon and -intel-xe-hwmon): energy in
// microjoules, power limits in microwatts, temperatures in millidegrees. Of several energies the card's own is taken, else the
// package's.
func (r *Reader) sensors(d *agentproto.Device, hw string) {
	for n := 1; n <= 4; n++ {
		t := fmt.Sprintf("temp%d_", n)
		v, ok := sysfs.Number(hw, t+"input")
		if !ok {
			continue
		}
		metric := accelerator.Temperature
		if label, _ := sysfs.Text(hw, t+"label"); label == "vram" || label == "mem" {
			metric = accelerator.TemperatureMemory
		}
		if old, had := d.Samples[metric]; !had || v/1000 > old {
			d.Samples[metric] = v / 1000
		}
		if limit, ok := sysfs.Number(hw, t+"crit"); ok && metric == accelerator.Temperature {
			d.Samples[accelerator.TemperatureLimit] = limit / 1000
		}
	}
	if v, ok := sysfs.Number(hw, "power1_max"); ok && v > 0 {
		d.Samples[accelerator.PowerLimit] = v / 1e6
	}
	for _, name := range []string{"energy1_input", "energy2_input"} {
		if v, ok := sysfs.Number(hw, name); ok && v > 0 {
			r.power(d, v/1e6)
			return
		}
	}
}

// heat are the reasons for which the hardware holds its clock down that are no mere power limit.
var heat = []string{"thermal", "prochot", "ratl", "vr_thermalert", "vr_tdc"}

// engines reads each tile's clock, throttle reasons and error counters: i915 under gt, xe under tile.
func engines(d *agentproto.Device, path, dir string) {
	for _, f := range append(glob(path, "gt/gt*/rps_act_freq_mhz"), glob(dir, "tile*/gt*/freq0/act_freq")...) {
		if v, ok := sysfs.Number(f); ok {
			d.Samples[accelerator.ClockCore] = max(d.Samples[accelerator.ClockCore], v*1e6)
		}
	}
	for _, reason := range heat {
		for _, f := range append(glob(path, "gt/gt*/throttle_reason_"+reason), glob(dir, "tile*/gt*/freq0/throttle/reason_"+reason)...) {
			if v, ok := sysfs.Number(f); ok {
				d.Samples[accelerator.Throttled] = max(d.Samples[accelerator.Throttled], v)
			}
		}
	}
	// Only the driver for data centre GPUs outside the kernel has these: correctable_*, fatal_*.
	files := glob(path, "gt/gt*/error_counter/*")
	if len(files) == 0 {
		d.NotApplicable = append(d.NotApplicable, accelerator.ECCCorrected, accelerator.ECCUncorrected)
	}
	for _, f := range files {
		metric := accelerator.ECCUncorrected
		switch name := filepath.Base(f); {
		case strings.HasPrefix(name, "correctable_"):
			metric = accelerator.ECCCorrected
		case !strings.HasPrefix(name, "fatal_") && !strings.HasPrefix(name, "uncorrectable_") && !strings.HasPrefix(name, "nonfatal_"):
			continue
		}
		if v, ok := sysfs.Number(f); ok && v >= 0 {
			d.Samples[metric] += v
		}
	}
}
