package installer

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Disk is a whole disk of the server.
type Disk struct {
	Name      string // nvme0n1
	Bytes     int64
	Sector    int64  // logical, bytes
	Bus       string // nvme, virtio, scsi (SATA and SAS alike), or "" where not known
	Model     string
	Serial    string
	Removable bool
	ReadOnly  bool
}

func (d Disk) String() string {
	s := fmt.Sprintf("%s (%s", d.Name, size(d.Bytes))
	if d.Model != "" {
		s += ", " + d.Model
	}
	if d.Serial != "" {
		s += ", serial " + d.Serial
	}
	return s + ")"
}

// Path is its device file.
func (d Disk) Path() string { return "/dev/" + d.Name }

// partition is the device file of a partition: nvme0n1p2, sda2.
func (d Disk) partition(n int) string {
	if c := d.Name[len(d.Name)-1]; c >= '0' && c <= '9' {
		return fmt.Sprintf("/dev/%sp%d", d.Name, n)
	}
	return fmt.Sprintf("/dev/%s%d", d.Name, n)
}

// Disks lists the disks that the kernel shows under root ("/"), by name. Loop devices, RAM disks, optical drives and
// what stands for several disks (md, dm) are none.
func Disks(root string) ([]Disk, error) {
	dir := filepath.Join(root, "sys/block")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list disks: %w", err)
	}
	var disks []Disk
	for _, e := range entries {
		name := e.Name()
		if slices.ContainsFunc([]string{"loop", "ram", "zram", "sr", "fd", "md", "dm-", "nbd", "mtdblock"}, func(p string) bool { return strings.HasPrefix(name, p) }) {
			continue
		}
		read := func(file string) string {
			b, err := os.ReadFile(filepath.Join(dir, name, file))
			if err != nil {
				return ""
			}
			return strings.TrimSpace(string(b))
		}
		sectors, err := strconv.ParseInt(read("size"), 10, 64) // always in units of 512 bytes
		if err != nil || sectors == 0 {
			continue // a card reader without a card
		}
		if read("hidden") == "1" {
			continue // one path of a multipath NVMe disk
		}
		d := Disk{Name: name, Bytes: sectors << 9, Model: read("device/model"), Serial: read("device/serial"), Removable: read("removable") == "1", ReadOnly: read("ro") == "1"}
		if d.Sector, err = strconv.ParseInt(read("queue/logical_block_size"), 10, 64); err != nil {
			d.Sector = 512
		}
		if d.Serial == "" {
			d.Serial = serialOfVPD(filepath.Join(dir, name, "device/vpd_pg80"))
		}
		if d.Serial == "" {
			d.Serial = read("serial") // virtio-blk
		}
		switch {
		case strings.HasPrefix(name, "nvme"):
			d.Bus = "nvme"
		case strings.HasPrefix(name, "vd"):
			d.Bus = "virtio"
		case strings.HasPrefix(name, "sd"):
			d.Bus = "scsi"
		}
		disks = append(disks, d)
	}
	return disks, nil
}

// serialOfVPD reads a SCSI disk's unit serial number page (SPC-4 section 7.8.15): 4 bytes of header, then the serial.
func serialOfVPD(file string) string {
	b, err := os.ReadFile(file)
	if err != nil || len(b) < 4 {
		return ""
	}
	return strings.Trim(string(b[4:]), " \x00\n")
}

// Rule says which disk is overwritten: conditions that it must meet, all of them. Without Smallest exactly one disk may
// meet them: a server with several is never guessed about.
type Rule struct {
	Serial, Model, Bus string // Model is a pattern as of a shell
	Min, Max           int64  // bytes; 0 = no bound
	Smallest           bool   // of several the smallest, by serial where two are alike
}

// ParseRule reads a rule: "serial=S6XNN...", "bus=nvme,max=1T", "model=*BOSS*", "smallest", with commas between.
func ParseRule(s string) (Rule, error) {
	var r Rule
	for _, c := range strings.Split(s, ",") {
		key, v, has := strings.Cut(c, "=")
		var err error
		switch {
		case c == "":
			continue
		case c == "smallest":
			r.Smallest = true
			continue
		case !has || v == "":
			err = fmt.Errorf("%q: want key=value, or smallest", c)
		case key == "serial":
			r.Serial = v
		case key == "model":
			r.Model = v
			_, err = path.Match(v, "")
		case key == "bus":
			r.Bus = v
			if v != "nvme" && v != "virtio" && v != "scsi" {
				err = fmt.Errorf("bus %q: want nvme, scsi or virtio", v)
			}
		case key == "min":
			r.Min, err = parseSize(v)
		case key == "max":
			r.Max, err = parseSize(v)
		default:
			err = fmt.Errorf("%q: want serial, model, bus, min, max or smallest", key)
		}
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

func parseSize(s string) (int64, error) {
	n, unit := s, int64(1)
	if i := strings.IndexByte("KMGT", s[len(s)-1]); i >= 0 {
		n, unit = s[:len(s)-1], int64(1)<<(10*(i+1))
	}
	v, err := strconv.ParseInt(n, 10, 64)
	if err != nil || v <= 0 || v > 1<<62/unit {
		return 0, fmt.Errorf("size %q: want a number of bytes, with K, M, G or T for powers of 1024", s)
	}
	return v * unit, nil
}

// size is how disks are told to people.
func size(n int64) string {
	switch {
	case n >= 1<<40:
		return fmt.Sprintf("%.1f TiB", float64(n)/(1<<40))
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// why says why a disk is not the one; "" = it may be.
func (r Rule) why(d Disk, need int64) string {
	model, err := path.Match(r.Model, d.Model)
	switch {
	case d.ReadOnly:
		return "read-only"
	case d.Removable:
		return "removable"
	case d.Bytes < need:
		return "smaller than the image's " + size(need)
	case r.Serial != "" && d.Serial != r.Serial:
		return "another serial"
	case r.Model != "" && (err != nil || !model):
		return "another model"
	case r.Bus != "" && d.Bus != r.Bus:
		return "another bus"
	case r.Min > 0 && d.Bytes < r.Min:
		return "smaller than " + size(r.Min)
	case r.Max > 0 && d.Bytes > r.Max:
		return "larger than " + size(r.Max)
	}
	return ""
}

// Choose finds the disk that is overwritten among all; need is the image's size in bytes. The error names every disk,
// and why it is not the one.
func (r Rule) Choose(all []Disk, need int64) (Disk, error) {
	var fit []Disk
	var others []string
	for _, d := range all {
		if why := r.why(d, need); why != "" {
			others = append(others, d.String()+": "+why)
			continue
		}
		fit = append(fit, d)
	}
	if r.Smallest {
		slices.SortFunc(fit, func(a, b Disk) int {
			if a.Bytes != b.Bytes {
				return int(min(1, max(-1, a.Bytes-b.Bytes)))
			}
			return strings.Compare(a.Serial, b.Serial)
		})
		fit = fit[:min(len(fit), 1)]
	}
	switch len(fit) {
	case 1:
		return fit[0], nil
	case 0:
		if len(all) == 0 {
			return Disk{}, fmt.Errorf("no disk is there: is its controller's driver in the installer, is a RAID volume made?")
		}
		return Disk{}, fmt.Errorf("no disk is the one to install: %s", strings.Join(others, "; "))
	}
	var names []string
	for _, d := range fit {
		names = append(names, d.String())
	}
	return Disk{}, fmt.Errorf("%d disks could be the one to install: %s. Nothing was written. Say which in the install profile, as gpupool.disk=serial=%s or gpupool.disk=smallest",
		len(fit), strings.Join(names, "; "), orElse(fit[0].Serial, "..."))
}

func orElse(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
