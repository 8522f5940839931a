package intel

import (
	"context"
	"errors"
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

// smiEvery is how often hl-smi is asked: it costs far more than sysfs, and what only it tells changes slowly.
const smiEvery = time.Minute

// smiQuery are the columns asked of hl-smi (Gaudi documentation, "System Management Interface Tool").
var smiQuery = []string{"bus_id", "name", "serial", "uuid", "memory.total", "memory.used", "utilization.aip", "temperature.aip", "power.draw",
	"ecc.errors.uncorrected.volatile.total", "ecc.errors.corrected.volatile.total", "ecc.errors.uncorrected.aggregate.total"}

type smiRow map[string]string

var accel = regexp.MustCompile(`^(?:accel|hl)(\d+)$`)

// gaudis reads the devices of habanalabs (Linux, Documentation/ABI/testing/sysfs-driver-habanalabs): in class accel, and in older
// drivers class habanalabs.
func (r *Reader) gaudis(ctx context.Context) ([]agentproto.Device, error) {
	type found struct {
		n         int
		path, dir string // its attributes, and the PCI device
	}
	var cards []found
	for _, class := range []string{"class/accel", "class/habanalabs"} {
		names, err := os.ReadDir(filepath.Join(r.root, class))
		if err != nil {
			continue
		}
		for _, e := range names {
			m := accel.FindStringSubmatch(e.Name())
			path := filepath.Join(r.root, class, e.Name())
			if m == nil {
				continue
			}
			if _, ok := sysfs.Text(path, "device/device_type"); ok {
				path = filepath.Join(path, "device")
			} else if _, ok := sysfs.Text(path, "device_type"); !ok {
				continue // an accelerator of another kind
			}
			address, _ := sysfs.Text(path, "pci_addr")
			n, err := strconv.Atoi(m[1])
			if err != nil || slices.ContainsFunc(cards, func(f found) bool { return f.n == n }) {
				continue
			}
			cards = append(cards, found{n, path, filepath.Join(r.root, "bus/pci/devices", kmsg.Address(address))})
		}
	}
	if len(cards) == 0 {
		return nil, fmt.Errorf("habanalabs: %w", accelerator.ErrNoDriver)
	}
	slices.SortFunc(cards, func(a, b found) int { return a.n - b.n })
	rows := r.ask(ctx)
	var list []agentproto.Device
	for _, c := range cards {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		list = append(list, gaudi(c.path, c.dir, c.n, rows))
	}
	return list, nil
}

// ask has hl-smi's table, by PCI address: a new one where the last is old. Without the tool there is none.
func (r *Reader) ask(ctx context.Context) map[string]smiRow {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if r.none || !r.smiAt.IsZero() && now.Sub(r.smiAt) < smiEvery {
		return r.smi
	}
	r.smiAt = now
	out, err := accelerator.AskTool(ctx, r.tool, "-Q", strings.Join(smiQuery, ","), "-f", "csv,noheader,nounits")
	if err != nil {
		r.none = errors.Is(err, accelerator.ErrNoDriver)
		r.smi = identities(r.smi)
		return r.smi
	}
	rows, bad := parseSMI(out)
	if bad > 0 {
		accelerator.Unreadable("gaudi", "hl-smi's table")
	}
	r.smi = rows
	return rows
}

// identities are what stays true of rows that are old.
func identities(rows map[string]smiRow) map[string]smiRow {
	out := map[string]smiRow{}
	for k, row := range rows {
		out[k] = smiRow{"bus_id": row["bus_id"], "serial": row["serial"], "uuid": row["uuid"], "memory.total": row["memory.total"]}
	}
	return out
}

// parseSMI reads the rows, by PCI address; bad counts lines that are none.
func parseSMI(out string) (rows map[string]smiRow, bad int) {
	rows = map[string]smiRow{}
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		cells := strings.Split(line, ",")
		address := kmsg.Address(strings.TrimSpace(cells[0]))
		if len(cells) != len(smiQuery) || strings.Count(address, ":") != 2 {
			bad++
			continue
		}
		row := smiRow{}
		for i, name := range smiQuery {
			row[name] = strings.TrimSpace(cells[i])
		}
		rows[address] = row
	}
	return rows, bad
}

// gaudiModels by device_type, with the memory that each has.
var gaudiModels = map[string]string{"GAUDI": "gaudi", "GAUDI SEC": "gaudi", "GAUDI2": "gaudi2", "GAUDI2B": "gaudi2", "GAUDI2C": "gaudi2", "GAUDI2D": "gaudi2", "GAUDI3": "gaudi3"}

func gaudi(path, dir string, index int, rows map[string]smiRow) agentproto.Device {
	address, _ := sysfs.Text(path, "pci_addr")
	d := agentproto.Device{Vendor: schema.VendorIntel, PCI: kmsg.Address(address), Index: index, Samples: map[string]float64{}}
	kind, _ := sysfs.Text(path, "device_type")
	name, ok := gaudiModels[strings.ToUpper(kind)]
	if !ok {
		name = "gaudi-" + strings.ToLower(strings.ReplaceAll(kind, " ", "-"))
	}
	row := rows[d.PCI]
	text := func(column string) string {
		if v := row[column]; strings.ToUpper(v) != "N/A" {
			return v
		}
		return ""
	}
	d.Serial, d.UUID = text("serial"), text("uuid")
	if mib, ok, _ := accelerator.ToolNumber(row["memory.total"]); ok && mib > 0 {
		d.MemoryBytes = int64(mib) << 20
	}
	d.Model = "intel-" + name
	if gib := math.Round(float64(d.MemoryBytes) / (1 << 30)); gib > 0 {
		d.Model += fmt.Sprintf("-%.0fgb", gib)
	}
	d.Firmware, _ = sysfs.Text(path, "fuse_ver")
	d.Slot, _ = sysfs.Text(dir, "physical_slot")
	// What it says of itself: Operational, Malfunction, Needs reset; and while nothing can be said, In reset, In device creation and
	// others.
	switch status, ok := sysfs.Text(path, "status"); {
	case !ok:
		d.Error = "its driver does not say how it is"
		return d
	case strings.EqualFold(status, "Operational"):
		d.Samples[accelerator.VendorHealth] = accelerator.VendorWell
	case strings.EqualFold(status, "Malfunction"), strings.EqualFold(status, "Needs reset"):
		d.Samples[accelerator.VendorHealth] = accelerator.VendorFailed
	default:
		d.Error = "its driver says: " + status
		return d
	}
	for column, m := range map[string]struct {
		metric string
		scale  float64
	}{
		"memory.used": {accelerator.MemoryUsed, 1 << 20}, "utilization.aip": {accelerator.Utilization, 0.01}, "temperature.aip": {accelerator.Temperature, 1}, "power.draw": {accelerator.Power, 1},
		"ecc.errors.uncorrected.volatile.total": {accelerator.ECCUncorrected, 1}, "ecc.errors.corrected.volatile.total": {accelerator.ECCCorrected, 1}, "ecc.errors.uncorrected.aggregate.total": {accelerator.ECCLifeUncorrect, 1},
	} {
		switch v, ok, na := accelerator.ToolNumber(row[column]); {
		case na:
			d.NotApplicable = append(d.NotApplicable, m.metric)
		case ok && v >= 0:
			d.Samples[m.metric] = v * m.scale
		}
	}
	slices.Sort(d.NotApplicable)
	if v, ok := sysfs.Number(path, "clk_cur_freq_mhz"); ok {
		d.Samples[accelerator.ClockCore] = v * 1e6
	}
	if v, ok := sysfs.Number(path, "max_power"); ok && v > 0 {
		d.Samples[accelerator.PowerLimit] = v / 1000
	}
	for _, hw := range glob(dir, "hwmon/hwmon*") { // fresher than the tool's
		for n := 1; n <= 8; n++ {
			if v, ok := sysfs.Number(hw, fmt.Sprintf("temp%d_input", n)); ok && (n == 1 || v/1000 > d.Samples[accelerator.Temperature]) {
				d.Samples[accelerator.Temperature] = v / 1000
			}
		}
		if v, ok := sysfs.Number(hw, "power1_input"); ok {
			d.Samples[accelerator.Power] = v / 1e6
		}
	}
	sysfs.Link(&d, dir)
	return d
}
