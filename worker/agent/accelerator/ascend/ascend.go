// Package ascend reads Huawei's Ascend accelerators by what npu-smi prints: the summary of all at each reading, each one's board
// once, and its error counters from time to time. The driver has no files to read.
package ascend

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/worker/agent/accelerator"
	"gpupool/worker/agent/accelerator/kmsg"
	"gpupool/worker/agent/accelerator/sysfs"
)

// errorsEvery is how often the error counters are asked for: the tool takes a second for each device.
const errorsEvery = time.Minute

// Reader is Huawei's accelerator.Reader. mu guards what follows it.
type Reader struct {
	root string // stands for /sys
	tool string // npu-smi, or a path
	now  func() time.Time

	mu      sync.Mutex
	version string
	serials map[int]string
	errors  map[int]map[string]float64
	askedAt time.Time
}

// New reads under root, which stands for /sys; "" is /sys.
func New(root string) *Reader {
	if root == "" {
		root = "/sys"
	}
	return &Reader{root: root, tool: "npu-smi", now: time.Now, serials: map[int]string{}, errors: map[int]map[string]float64{}}
}

// Vendor implements accelerator.Reader.
func (r *Reader) Vendor() schema.Vendor { return schema.VendorHuawei }

// Driver implements accelerator.Reader.
func (r *Reader) Driver(ctx context.Context) (string, error) {
	if _, err := r.Read(ctx); err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.version, nil
}

// Watch implements accelerator.Reader: the tool tells no events.
func (r *Reader) Watch(context.Context, func(accelerator.Sign)) error { return nil }

// Read implements accelerator.Reader.
func (r *Reader) Read(ctx context.Context) ([]agentproto.Device, error) {
	out, err := accelerator.AskTool(ctx, r.tool, "info")
	if err != nil {
		return nil, err
	}
	s := parseInfo(out)
	if s.bad > 0 {
		accelerator.Unreadable("ascend", "npu-smi's table")
	}
	if s.version == "" && len(s.devices) == 0 {
		return nil, fmt.Errorf("npu-smi info can't be read: %.200q", out)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.version = s.version
	again := r.askedAt.IsZero() || r.now().Sub(r.askedAt) >= errorsEvery
	if again {
		r.askedAt = r.now()
	}
	list := make([]agentproto.Device, 0, len(s.devices))
	for _, x := range s.devices {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		list = append(list, r.device(ctx, x, again))
	}
	return list, nil
}

// device adds what the tool tells of one device alone.
func (r *Reader) device(ctx context.Context, x npu, again bool) agentproto.Device {
	d := x.Device
	if r.serials[x.id] == "" {
		if out, err := accelerator.AskTool(ctx, r.tool, "info", "-t", "board", "-i", strconv.Itoa(x.id)); err == nil {
			r.serials[x.id] = serial(out)
		}
	}
	d.Serial = r.serials[x.id]
	if x.chip > 0 && d.Serial != "" { // several chips on one board have its serial in common
		d.Serial += fmt.Sprintf("/%d", x.chip)
	}
	if again {
		delete(r.errors, x.id<<8|x.chip) // what isn't answered now is not known
		if out, err := accelerator.AskTool(ctx, r.tool, "info", "-t", "ecc", "-i", strconv.Itoa(x.id)); err == nil {
			r.errors[x.id<<8|x.chip] = parseECC(out, x.chip)
		}
	}
	for k, v := range r.errors[x.id<<8|x.chip] {
		d.Samples[k] = v
	}
	sysfs.Link(&d, r.root+"/bus/pci/devices/"+d.PCI)
	d.Slot, _ = sysfs.Text(r.root, "bus/pci/devices", d.PCI, "physical_slot")
	return d
}

type npu struct {
	agentproto.Device
	id, chip int
}

type summary struct {
	version string
	devices []npu
	bad     int // rows that begin as a device's do and can't be read
}

var versionLine = regexp.MustCompile(`npu-smi\s+(\S+)\s+Version:\s*(\S+)`)

// parseInfo reads the table: two rows for each chip, the first with the board's number, name, health, power and temperature, the
// second with the chip's number, PCI address, load and memory. A list of processes follows, and has other columns.
func parseInfo(out string) summary {
	var s summary
	var first []string
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if m := versionLine.FindStringSubmatch(line); m != nil {
			s.version = m[2]
			continue
		}
		if strings.Contains(line, "Process id") {
			break
		}
		if !strings.HasPrefix(line, "|") || len(line) < 2 {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		head := strings.Fields(cells[0])
		if len(cells) != 3 || len(head) == 0 {
			continue
		}
		if _, err := strconv.Atoi(head[0]); err != nil {
			continue // a title
		}
		if first == nil {
			first = cells
			continue
		}
		d, ok := device(first, cells, len(s.devices))
		first = nil
		if !ok {
			s.bad++
			continue
		}
		s.devices = append(s.devices, d)
	}
	if first != nil {
		s.bad++ // cut off
	}
	return s
}

// models by the name that npu-smi gives, with the memory in the normalised name.
func modelOf(name string, bytes int64) string {
	m := "huawei-ascend-" + strings.ToLower(strings.TrimPrefix(name, "Ascend"))
	if gib := math.Round(float64(bytes) / (1 << 30)); gib > 0 {
		m += fmt.Sprintf("-%.0fgb", gib)
	}
	return m
}

var usage = regexp.MustCompile(`(\d+)\s*/\s*(\d+)`)

func device(a, b []string, index int) (npu, bool) {
	head, chip := strings.Fields(a[0]), strings.Fields(b[0])
	id, err1 := strconv.Atoi(head[0])
	n, err2 := strconv.Atoi(chip[0])
	if err1 != nil || err2 != nil || len(head) < 2 || id < 0 || id > 255 || n < 0 || n > 255 {
		return npu{}, false
	}
	d := npu{id: id, chip: n, Device: agentproto.Device{Vendor: schema.VendorHuawei, Index: index, PCI: kmsg.Address(strings.TrimSpace(b[1])), Samples: map[string]float64{}}}
	if strings.Count(d.PCI, ":") != 2 {
		return npu{}, false
	}
	set := func(metric, text string, scale float64) {
		switch v, ok, na := accelerator.ToolNumber(text); {
		case na:
			d.NotApplicable = append(d.NotApplicable, metric)
		case ok && v >= 0:
			d.Samples[metric] = v * scale
		}
	}
	if f := strings.Fields(a[2]); len(f) >= 2 {
		set(accelerator.Power, f[0], 1)
		set(accelerator.Temperature, f[1], 1)
	}
	if f := strings.Fields(b[2]); len(f) >= 1 {
		set(accelerator.Utilization, f[0], 0.01)
	}
	// "Memory-Usage / total, HBM-Usage / total", in MB: the last is the device's own, where it has HBM.
	for _, m := range usage.FindAllStringSubmatch(b[2], -1) {
		used, _ := strconv.ParseFloat(m[1], 64)
		total, _ := strconv.ParseFloat(m[2], 64)
		if total > 0 && total < 1<<30 && used <= total {
			d.MemoryBytes, d.Samples[accelerator.MemoryUsed] = int64(total)<<20, used*(1<<20)
		}
	}
	d.Model = modelOf(head[1], d.MemoryBytes)
	slices.Sort(d.NotApplicable)
	// Its own word: OK, Warning, Alarm, Critical, UNKNOWN.
	switch health := strings.TrimSpace(a[1]); strings.ToUpper(health) {
	case "OK":
		d.Samples[accelerator.VendorHealth] = accelerator.VendorWell
	case "WARNING":
		d.Samples[accelerator.VendorHealth] = accelerator.VendorWarns
	case "ALARM", "CRITICAL":
		d.Samples[accelerator.VendorHealth] = accelerator.VendorFailed
	default:
		d.Samples, d.NotApplicable, d.Error = map[string]float64{}, nil, "npu-smi says: "+health
	}
	return d, true
}

// serial reads "Serial Number : 2102..." of a board.
func serial(out string) string {
	for line := range strings.Lines(out) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "Serial Number" {
			if v = strings.TrimSpace(v); v != "NA" && v != "N/A" {
				return v
			}
		}
	}
	return ""
}

// eccNames are the counters of the device's own memory.
var eccNames = map[string]string{
	"HBM Single Bit Error Count": accelerator.ECCCorrected, "HBM Double Bit Error Count": accelerator.ECCUncorrected,
	"HBM Double Bit Aggregate Total Err Cnt": accelerator.ECCLifeUncorrect, "HBM Double Bit Isolated Pages Count": accelerator.RemappedRows,
}

// parseECC reads a chip's counters. "Chip ID" follows the counters of each chip where a board has several.
func parseECC(out string, chip int) map[string]float64 {
	m, numbered := map[string]float64{}, false
	for line := range strings.Lines(out) {
		k, v, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		k = strings.TrimSpace(k)
		if k == "Chip ID" {
			if n, err := strconv.Atoi(strings.TrimSpace(v)); err == nil && n == chip {
				return m
			}
			m, numbered = map[string]float64{}, true
			continue
		}
		if metric, known := eccNames[k]; known {
			if n, err := strconv.ParseUint(strings.TrimSpace(v), 10, 64); err == nil {
				m[metric] = float64(n)
			}
		}
	}
	if numbered || chip > 0 {
		return map[string]float64{} // those of another chip, or cut off
	}
	return m
}
