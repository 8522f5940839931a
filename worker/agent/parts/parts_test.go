package parts_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpupool/schema/hardware"
	"gpupool/worker/agent/parts"
)

// tree is a /sys: files by path, and links where the content begins with "->".
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, content := range files {
		at := filepath.Join(root, path)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		if to, ok := strings.CutPrefix(content, "->"); ok && err == nil {
			err = os.Symlink(filepath.Join(root, to), at)
		} else if err == nil {
			err = os.WriteFile(at, []byte(content), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// memory is a memory device of an SMBIOS table (DSP0134, 7.18): its size and extended size as they are written there.
func memory(locator string, size uint16, extended uint32) []byte {
	b := make([]byte, 0x28)
	b[0], b[1] = 17, byte(len(b))
	binary.LittleEndian.PutUint16(b[0x0c:], size)
	b[0x10], b[0x18], b[0x1a] = 1, 2, 3
	binary.LittleEndian.PutUint32(b[0x1c:], extended)
	return append(b, locator+"\x00S-"+locator+"\x00M321R8GA0\x00\x00"...)
}

var table = string(slices.Concat(memory("A1", 0x7fff, 64<<10), memory("A2", 0, 0), memory("A3", 16<<10, 0), memory("A4", 0x7fff, 128<<10), memory("A5", 0x8000|512, 0), []byte{127, 4, 0, 0, 0, 0}))

const pci = "devices/pci0000:00/"

func server() map[string]string {
	return map[string]string{
		"firmware/dmi/tables/DMI":   table,
		"class/dmi/id/bios_version": "1.6.7\n",
		// A drive with two namespaces, one over a network, one whose link is not told.
		"class/nvme/nvme0": "->" + pci + "0000:01:00.0/nvme/nvme0", pci + "0000:01:00.0/nvme/nvme0/model": "KCD8XPUG3T84   ", pci + "0000:01:00.0/nvme/nvme0/serial": "N1", pci + "0000:01:00.0/nvme/nvme0/transport": "pcie",
		pci + "0000:01:00.0/nvme/nvme0/firmware_rev": "GDC7302Q", pci + "0000:01:00.0/nvme/nvme0/device": "->" + pci + "0000:01:00.0", pci + "0000:01:00.0/current_link_width": "4",
		pci + "0000:01:00.0/nvme/nvme0/nvme0n1/size": "7501476527", pci + "0000:01:00.0/nvme/nvme0/nvme0c0n2/size": "1000",
		"class/nvme/nvme1/transport": "tcp", "class/nvme/nvme1/model": "far away",
		// Ethernet with a link, one without, a virtual function, a bridge, the BMC's over USB, one of virtio.
		"class/net/eno1/device": "->" + pci + "0000:31:00.0", "class/net/eno1/type": "1", "class/net/eno1/speed": "25000", "class/net/eno1/address": "02:00:00:00:00:01", pci + "0000:31:00.0/current_link_width": "8",
		"class/net/eno2/device": "->" + pci + "0000:31:00.1", "class/net/eno2/type": "1", "class/net/eno2/speed": "-1", pci + "0000:31:00.1/current_link_width": "255",
		"class/net/eno1v0/device": "->" + pci + "0000:31:02.0", "class/net/eno1v0/type": "1", "class/net/eno1v0/speed": "25000", pci + "0000:31:02.0/physfn": "->" + pci + "0000:31:00.0",
		"class/net/br0/type": "1", "class/net/usb0/device": "->" + pci + "0000:00:14.0/usb1/1-1/1-1:1.0", pci + "0000:00:14.0/usb1/1-1/1-1:1.0/x": "", "class/net/usb0/type": "1",
		"class/net/ens3/device": "->" + pci + "0000:00:03.0/virtio0", pci + "0000:00:03.0/virtio0/x": "", "class/net/ens3/type": "1",
		// InfiniBand, up and down; its interface is not told twice. The Ethernet port's RDMA device isn't either.
		"class/net/ib0/device": "->" + pci + "0000:41:00.0", "class/net/ib0/type": "32",
		"class/infiniband/mlx5_0/device": "->" + pci + "0000:41:00.0", pci + "0000:41:00.0/current_link_width": "16", "class/infiniband/mlx5_0/fw_ver": "28.43.2026", "class/infiniband/mlx5_0/board_id": "MT_0838",
		"class/infiniband/mlx5_0/ports/1/link_layer": "InfiniBand", "class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE", "class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
		"class/infiniband/mlx5_1/device": "->" + pci + "0000:42:00.0", pci + "0000:42:00.0/x": "", "class/infiniband/mlx5_1/ports/1/link_layer": "InfiniBand", "class/infiniband/mlx5_1/ports/1/state": "1: DOWN", "class/infiniband/mlx5_1/ports/1/rate": "10 Gb/sec (4X SDR)",
		"class/infiniband/mlx5_2/device": "->" + pci + "0000:31:00.0", "class/infiniband/mlx5_2/ports/1/link_layer": "Ethernet", "class/infiniband/mlx5_2/ports/1/state": "4: ACTIVE",
	}
}

func firmware(iface string) string { return "fw of " + iface }

func TestAServersPartsAreReadFromSys(t *testing.T) {
	t.Parallel()
	const gib = 1 << 30
	dimm := func(name string, n int64) hardware.Part {
		return hardware.Part{Kind: hardware.DIMM, Name: name, Bytes: n, Model: "M321R8GA0", Serial: "S-" + name}
	}
	want := map[hardware.Kind][]hardware.Part{
		hardware.DIMM: {dimm("A1", 64*gib), {Kind: hardware.DIMM, Name: "A2"}, dimm("A3", 16*gib), dimm("A4", 128*gib), dimm("A5", 512<<10)},
		hardware.NVMe: {{Kind: hardware.NVMe, Name: "nvme0", Model: "KCD8XPUG3T84", Serial: "N1", Firmware: "GDC7302Q", Lanes: 4, Bytes: (7501476527 + 1000) * 512}},
		hardware.NIC: {
			{Kind: hardware.NIC, Name: "eno1 (0000:31:00.0)", Gbps: 25, Lanes: 8, Firmware: "fw of eno1", Serial: "02:00:00:00:00:01"}, {Kind: hardware.NIC, Name: "eno2 (0000:31:00.1)", Firmware: "fw of eno2"},
			{Kind: hardware.NIC, Name: "ens3 (0000:00:03.0)", Firmware: "fw of ens3"},
			{Kind: hardware.NIC, Name: "mlx5_0/1 (0000:41:00.0)", Gbps: 400, Lanes: 16, Firmware: "28.43.2026", Model: "MT_0838"}, {Kind: hardware.NIC, Name: "mlx5_1/1 (0000:42:00.0)"}},
		hardware.BIOS: {{Kind: hardware.BIOS, Name: "the system", Firmware: "1.6.7"}},
	}
	got := map[hardware.Kind][]hardware.Part{}
	r := parts.Read(tree(t, server()), firmware)
	for _, p := range r.Parts {
		got[p.Kind] = append(got[p.Kind], p)
	}
	if d := cmp.Diff(want, got); d != "" || len(r.Unread) > 0 {
		t.Errorf("%s\nunread: %v", d, r.Unread)
	}
}

// TestWhatCantBeReadIsUnreadNeverNone.
func TestWhatCantBeReadIsUnreadNeverNone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind   hardware.Kind
		words  string
		change func(files map[string]string)
	}{
		"no SMBIOS table":         {hardware.DIMM, "no such file", func(f map[string]string) { delete(f, "firmware/dmi/tables/DMI") }},
		"a table that is cut off": {hardware.DIMM, "SMBIOS", func(f map[string]string) { f["firmware/dmi/tables/DMI"] = table[:50] }},
		"a table without sockets": {hardware.DIMM, "no memory devices", func(f map[string]string) { f["firmware/dmi/tables/DMI"] = "\x7f\x04\x00\x00\x00\x00" }},
		"a DIMM of unknown size":  {hardware.DIMM, "size of A9", func(f map[string]string) { f["firmware/dmi/tables/DMI"] = string(memory("A9", 0xffff, 0)) + table }},
		"no driver for drives": {hardware.NVMe, "no such file", func(f map[string]string) {
			delete(f, "class/nvme/nvme0")
			delete(f, "class/nvme/nvme1/transport")
			delete(f, "class/nvme/nvme1/model")
		}},
		"a drive that hangs":       {hardware.NVMe, "size of nvme0n1", func(f map[string]string) { f[pci+"0000:01:00.0/nvme/nvme0/nvme0n1/size"] = "" }},
		"a rate that is no number": {hardware.NIC, "the rate of mlx5_0/1", func(f map[string]string) { f["class/infiniband/mlx5_0/ports/1/rate"] = "" }},
		"no BIOS version":          {hardware.BIOS, "no BIOS version", func(f map[string]string) { delete(f, "class/dmi/id/bios_version") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := server()
			c.change(files)
			r := parts.Read(tree(t, files), firmware)
			if why := r.Unread[c.kind]; !strings.Contains(why, c.words) || len(r.Unread) != 1 {
				t.Errorf("unread: %v", r.Unread)
			}
			if slices.ContainsFunc(r.Parts, func(p hardware.Part) bool { return p.Kind == c.kind }) {
				t.Error("some of its parts are told all the same")
			}
		})
	}
}

// TestThisMachineIsRead: on the machine of the test nothing panics, and what is told has a name.
func TestThisMachineIsRead(t *testing.T) {
	t.Parallel()
	r := parts.ThisMachine()
	for _, p := range r.Parts {
		if p.Name == "" {
			t.Errorf("a part without a name: %+v", p)
		}
	}
	for _, k := range []hardware.Kind{hardware.DIMM, hardware.NVMe, hardware.NIC, hardware.BIOS} {
		if why, unread := r.Unread[k]; unread && why == "" {
			t.Errorf("%s is unread for no reason", k)
		}
	}
}

func FuzzMemory(f *testing.F) {
	f.Add([]byte(table))
	f.Add([]byte(table[:30]))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<16 || bytes.Count(b, []byte{0}) > 1<<12 {
			return
		}
		r := parts.Read(tree(t, map[string]string{"firmware/dmi/tables/DMI": string(b)}), firmware)
		for _, p := range r.Parts {
			if p.Kind == hardware.DIMM && p.Bytes < 0 {
				t.Errorf("a DIMM of %d bytes", p.Bytes)
			}
		}
	})
}
