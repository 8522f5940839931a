// Package parts reads what a server is built of beside its accelerators: DIMMs from its SMBIOS table, NVMe drives and network ports
// from /sys, with their PCIe links and firmware, and the BIOS's version.
//
// Invariant: a kind that can't be read is told as unread, with why; it is never told as none. Virtual devices, virtual functions and
// what hangs on USB (a BMC's own network) are no parts. Not here: accelerators (accelerator), what was ordered (schema/hardware).
package parts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/siderolabs/go-smbios/smbios"
	"golang.org/x/sys/unix"

	"gpupool/schema/hardware"
	"gpupool/worker/agent/accelerator/sysfs"
)

// ThisMachine reads the machine that the agent runs on.
func ThisMachine() hardware.Read { return Read("/sys", driverFirmware) }

// Read reads under root, which stands for /sys. firmware asks a network interface's driver for its firmware's version, which /sys
// does not show; "" = it tells none.
func Read(root string, firmware func(iface string) string) hardware.Read {
	r := hardware.Read{Unread: map[hardware.Kind]string{}}
	for kind, read := range map[hardware.Kind]func() ([]hardware.Part, error){
		hardware.DIMM: func() ([]hardware.Part, error) { return dimms(root) },
		hardware.NVMe: func() ([]hardware.Part, error) { return drives(root) },
		hardware.NIC:  func() ([]hardware.Part, error) { return ports(root, firmware) },
		hardware.BIOS: func() ([]hardware.Part, error) { return bios(root) },
	} {
		parts, err := read()
		if err != nil {
			r.Unread[kind] = err.Error()
			continue
		}
		r.Parts = append(r.Parts, parts...)
	}
	return r
}

// dimms reads the memory devices of the SMBIOS table (DMTF DSP0134, 7.18): each socket, with the size of what is in it. They are read
// by their offsets: the library cuts the size of a DIMM of 64 GiB and more.
func dimms(root string) ([]hardware.Part, error) {
	f, err := os.Open(filepath.Join(root, "firmware/dmi/tables/DMI"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	table, err := smbios.Decode(f, smbios.Version{Major: 3})
	if err != nil {
		return nil, fmt.Errorf("the SMBIOS table: %w", err)
	}
	const memoryDevice, size, locator, serial, partNumber, extendedSize = 17, 0x0c, 0x10, 0x18, 0x1a, 0x1c
	var out []hardware.Part
	for _, d := range table.Structures {
		if d.Header.Type != memoryDevice {
			continue
		}
		p := hardware.Part{Kind: hardware.DIMM, Name: smbios.GetStringOrEmpty(d, locator)}
		const unknown, extended, kilo = 0xffff, 0x7fff, 0x8000
		switch n := int64(smbios.GetWord(d, size)); {
		case n == unknown:
			return nil, fmt.Errorf("the SMBIOS table: the size of %s is not known", p.Name)
		case n == extended:
			p.Bytes = int64(smbios.GetDWord(d, extendedSize)&0x7fffffff) << 20
		case n&kilo != 0:
			p.Bytes = (n &^ kilo) << 10
		default:
			p.Bytes = n << 20
		}
		if p.Bytes > 0 {
			p.Model, p.Serial = smbios.GetStringOrEmpty(d, partNumber), smbios.GetStringOrEmpty(d, serial)
		}
		out = append(out, p)
	}
	if out == nil {
		return nil, errors.New("the SMBIOS table lists no memory devices")
	}
	return out, nil
}

// drives are the NVMe controllers on PCI. Their size is that of their namespaces together.
func drives(root string) ([]hardware.Part, error) {
	dirs, err := entries(root, "class/nvme")
	if err != nil {
		return nil, err
	}
	var out []hardware.Part
	for _, dir := range dirs {
		if transport, ok := sysfs.Text(dir, "transport"); ok && transport != "pcie" {
			continue // a drive elsewhere, over a network
		}
		p := hardware.Part{Kind: hardware.NVMe, Name: filepath.Base(dir), Lanes: lanes(filepath.Join(dir, "device"))}
		p.Model, _ = sysfs.Text(dir, "model")
		p.Serial, _ = sysfs.Text(dir, "serial")
		p.Firmware, _ = sysfs.Text(dir, "firmware_rev")
		spaces, err := filepath.Glob(filepath.Join(dir, "nvme*n*"))
		if err != nil {
			return nil, err
		}
		for _, s := range spaces {
			sectors, ok := sysfs.Number(s, "size")
			if !ok {
				return nil, fmt.Errorf("the size of %s can't be read", filepath.Base(s))
			}
			p.Bytes += int64(sectors) * 512 // the kernel's unit, whatever the drive's
		}
		out = append(out, p)
	}
	return out, nil
}

const infiniband = "32" // ARPHRD_INFINIBAND: the port is listed among those of class/infiniband

// ports are the network ports on PCI: Ethernet's by their interfaces, InfiniBand's by their devices.
func ports(root string, firmware func(string) string) ([]hardware.Part, error) {
	nets, err := entries(root, "class/net")
	if err != nil {
		return nil, err
	}
	var out []hardware.Part
	for _, dir := range nets {
		at, ok := onPCI(dir)
		if kind, _ := sysfs.Text(dir, "type"); !ok || kind == infiniband {
			continue
		}
		name := filepath.Base(dir)
		p := hardware.Part{Kind: hardware.NIC, Name: name + " (" + filepath.Base(at) + ")", Lanes: lanes(at), Firmware: firmware(name)}
		p.Serial, _ = sysfs.Text(dir, "address")
		if mbps, ok := sysfs.Number(dir, "speed"); ok && mbps > 0 { // it can't be read, or is -1, where there is no link
			p.Gbps = mbps / 1000
		}
		out = append(out, p)
	}
	hcas, err := entries(root, "class/infiniband")
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	for _, dir := range hcas {
		at, ok := onPCI(dir)
		if !ok {
			continue
		}
		of, err := entries(dir, "ports")
		if err != nil {
			return nil, err
		}
		for _, port := range of {
			if layer, _ := sysfs.Text(port, "link_layer"); layer != "InfiniBand" {
				continue // its Ethernet interface is listed
			}
			p := hardware.Part{Kind: hardware.NIC, Name: fmt.Sprintf("%s/%s (%s)", filepath.Base(dir), filepath.Base(port), filepath.Base(at)), Lanes: lanes(at)}
			p.Model, _ = sysfs.Text(dir, "board_id")
			p.Firmware, _ = sysfs.Text(dir, "fw_ver")
			if state, _ := sysfs.Text(port, "state"); strings.HasSuffix(state, "ACTIVE") { // 4: ACTIVE
				rate, _ := sysfs.Text(port, "rate") // 400 Gb/sec (4X NDR)
				n, _, _ := strings.Cut(rate, " ")
				if p.Gbps, err = strconv.ParseFloat(n, 64); err != nil {
					return nil, fmt.Errorf("the rate of %s is %q", p.Name, rate)
				}
			}
			out = append(out, p)
		}
	}
	return out, nil
}

func bios(root string) ([]hardware.Part, error) {
	v, ok := sysfs.Text(root, "class/dmi/id/bios_version")
	if !ok || v == "" {
		return nil, errors.New("the system shows no BIOS version")
	}
	return []hardware.Part{{Kind: hardware.BIOS, Name: "the system", Firmware: v}}, nil
}

// entries are the things in a folder, by name.
func entries(root, dir string) ([]string, error) {
	list, err := os.ReadDir(filepath.Join(root, dir))
	var out []string
	for _, e := range list {
		out = append(out, filepath.Join(root, dir, e.Name()))
	}
	return out, err
}

var address = regexp.MustCompile(`^[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// onPCI is the PCI function that a class's entry belongs to; false where it is none, a virtual one, or one behind USB.
func onPCI(dir string) (string, bool) {
	at, err := filepath.EvalSymlinks(filepath.Join(dir, "device"))
	if err != nil || strings.Contains(at, "/usb") {
		return "", false
	}
	if !address.MatchString(filepath.Base(at)) {
		at = filepath.Dir(at) // virtio's device lies in its function's
	}
	if _, err := os.Lstat(filepath.Join(at, "physfn")); err == nil {
		return "", false
	}
	return at, address.MatchString(filepath.Base(at))
}

// lanes of a PCI function's link as trained; 0 = it tells none (a bridge's inside, a virtual machine).
func lanes(dir string) int {
	n, ok := sysfs.Number(dir, "current_link_width")
	if !ok || n >= 255 {
		return 0
	}
	return int(n)
}

// driverFirmware asks by ETHTOOL_GDRVINFO.
func driverFirmware(iface string) string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, iface)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(unix.ByteSliceToString(info.Fw_version[:]))
}
