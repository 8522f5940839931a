package lab

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gpupool/deploy/lab/bmc"
	"gpupool/deploy/lab/ipxe"
	"gpupool/deploy/lab/netboot"
	"gpupool/schema"
	"gpupool/worker/agent"
)

// How long a machine takes at speed 1.
const (
	postTime    = 500 * time.Millisecond
	installTime = 2 * time.Second
	startTime   = 500 * time.Millisecond
	dhcpUnit    = time.Second // not sped up: it is the server's time that is waited for
)

// next is what follows a way of booting.
type next string

const (
	nextOption next = "next"   // the firmware tries its next boot option
	nextReboot next = "reboot" //
	nextDisk   next = "disk"   // hand over to the disk at once
	nextHalt   next = "halt"   // stays as it is until the power goes
)

// firmware boots the machine until it is switched off: by the override for this power-on, then by its own order.
func (m *machine) firmware(ctx context.Context, b bmc.Boot) {
	for ctx.Err() == nil {
		m.change(func(s *state) { s.Stage = StagePOST; s.Boots++ })
		m.bmc.SetBootProgress("SystemHardwareInitializationComplete")
		m.print("%s POST, %d devices", m.cfg.Name, len(m.st.Parts))
		if m.waitFault(ctx, BootHang, false) != nil || m.sleep(ctx, postTime) != nil {
			return
		}
		switch m.options(ctx, b) {
		case nextReboot:
			b = bmc.Boot{Target: "None"} // what was asked for this boot was done
		default:
			<-ctx.Done()
		}
	}
}

// options goes through the boot options.
func (m *machine) options(ctx context.Context, b bmc.Boot) next {
	order := m.cfg.Order
	switch {
	case b.Network():
		order = append([]string{bootNetwork}, order...)
	case b.Target == "Hdd":
		order = []string{bootDisk}
	case b.Target != "None" && b.Target != "":
		m.print("boot override %s: there is nothing to boot there", b.Target)
	}
	for i, o := range order {
		var n next
		if o == bootDisk {
			n = m.bootDisk(ctx)
		} else {
			n = m.bootNetwork(ctx, i == 0 && b.Target == "UefiHttp", b.HTTPURI)
		}
		if n == nextDisk {
			n = m.bootDisk(ctx)
		}
		if n != nextOption || ctx.Err() != nil {
			return n
		}
	}
	m.print("No bootable device")
	m.change(func(s *state) { s.Stage = StageHalted })
	return nextHalt
}

func (m *machine) bootDisk(ctx context.Context) next {
	m.mu.Lock()
	d := m.st.Disk
	m.mu.Unlock()
	if d == nil {
		m.print("disk: nothing on it")
		return nextOption
	}
	m.change(func(s *state) { s.Stage = StageStart })
	m.runOS(ctx, true)
	return nextHalt
}

// bootNetwork boots from the first network card.
func (m *machine) bootNetwork(ctx context.Context, overHTTP bool, uri string) next {
	m.change(func(s *state) { s.Stage = StageNetwork })
	m.bmc.SetBootProgress("OSBootStarted")
	if m.hasFault(NoDHCP) || m.lab.relay == nil {
		m.print("network: link down")
		return nextOption
	}
	c, err := m.client()
	if err != nil {
		m.print("network: %v", err)
		return nextOption
	}
	p := netboot.Firmware
	if overHTTP {
		p = netboot.HTTPBoot
	}
	l, err := c.Lease(ctx, p)
	if err != nil {
		m.print("%s: %v", p, err)
		return nextOption
	}
	m.print("%s: %s, boot file %q from %s", p, l.Addr, l.File, l.Server)
	if uri == "" {
		uri = l.File
	}
	var n int64
	switch {
	case uri == "":
		m.print("%s: the answer names no boot file", p)
		return nextOption
	case strings.Contains(uri, "://"):
		n, err = netboot.Skip(ctx, l.Addr, uri)
	default:
		n, err = netboot.TFTP(ctx, l.Addr, netip.AddrPortFrom(l.Server, uint16(m.lab.cfg.TFTPPort)), uri)
	}
	if err != nil || n == 0 {
		m.print("%s: boot file %s: %d bytes, %v", p, uri, n, err)
		return nextOption
	}
	m.print("%s: started %s (%d bytes)", p, uri, n)
	return m.bootIPXE(ctx, c)
}

func (m *machine) client() (*netboot.Client, error) {
	mac, err := net.ParseMAC(m.cfg.MACs[0])
	return &netboot.Client{Relay: m.lab.relay, MAC: mac, UUID: netboot.ParseUUID(m.cfg.UUID), Arch: m.cfg.Arch, Port: "lab/" + m.cfg.Name, Unit: dhcpUnit}, err
}

// bootIPXE is the first stage: iPXE asks for an address of its own, and runs the script it is told.
func (m *machine) bootIPXE(ctx context.Context, c *netboot.Client) next {
	w := &wire{m: m, c: c}
	set, err := w.DHCP(ctx)
	if err != nil {
		m.print("iPXE: %v", err)
		return nextOption
	}
	url := set["filename"]
	b, err := w.Fetch(ctx, url)
	if err != nil {
		m.print("iPXE: %q: %v", url, err)
		return nextOption
	}
	arch := map[string]string{"x86_64": "x86_64", "arm64": "arm64"}[m.cfg.Arch]
	vars := map[string]string{"mac": m.cfg.MACs[0], "uuid": m.cfg.UUID, "serial": m.cfg.Serial, "platform": "efi", "buildarch": arch, "product": m.cfg.Profile, "hostname": m.cfg.Name}
	for k, v := range set {
		vars[k] = v
	}
	r, err := ipxe.Run(ctx, w, url, b, vars)
	if err != nil {
		m.print("iPXE: %v", err)
		return nextOption
	}
	m.print("iPXE: %s %s", r.Action, r.Why)
	switch r.Action {
	case ipxe.Boot:
		return m.install(ctx, w.lease.Addr, r)
	case ipxe.Disk:
		return nextDisk
	case ipxe.Reboot:
		return nextReboot
	case ipxe.Shell, ipxe.PowerOff:
		return nextHalt
	default:
		return nextOption
	}
}

// wire is the network as a script sees it.
type wire struct {
	m     *machine
	c     *netboot.Client
	lease netboot.Lease
}

func (w *wire) DHCP(ctx context.Context) (map[string]string, error) {
	l, err := w.c.Lease(ctx, netboot.IPXE)
	if err != nil {
		return nil, err
	}
	w.lease = l
	return map[string]string{"ip": l.Addr.String(), "filename": l.File, "next-server": l.Server.String()}, nil
}

func (w *wire) Fetch(ctx context.Context, url string) ([]byte, error) {
	return netboot.Get(ctx, w.lease.Addr, url)
}

func (w *wire) Skip(ctx context.Context, url string) (int64, error) {
	n, err := netboot.Skip(ctx, w.lease.Addr, url)
	if err == nil {
		w.m.print("%s... ok (%d bytes)", url[strings.LastIndexByte(url, '/')+1:], n)
	}
	return n, err
}

func (w *wire) Print(line string) { w.m.print("%s", line) }

func (w *wire) Sleep(ctx context.Context, d time.Duration) error { return w.m.sleep(ctx, d) }

// userData is the kernel argument that names the user data, by its absolute URL.
const userData = "gpupool.user_data="

// install is the kernel that was loaded: an installer, if its arguments say where the user data is. It asks who it is,
// writes the disk, and reboots.
func (m *machine) install(ctx context.Context, from netip.Addr, r ipxe.Result) next {
	m.bmc.SetBootProgress("OSRunning")
	var url string
	for _, a := range strings.Fields(r.Args) {
		if v, ok := strings.CutPrefix(a, userData); ok {
			url = v
		}
	}
	if url == "" {
		m.print("kernel: no %s in its arguments: it has nothing to install", userData)
		m.change(func(s *state) { s.Stage = StageHalted })
		return nextHalt
	}
	m.change(func(s *state) { s.Stage = StageInstall })
	if m.waitFault(ctx, KernelHang, false) != nil {
		return nextHalt
	}
	if strings.Contains(r.Args, "gpupool.sanitise=1") {
		return m.sanitise(ctx, from, strings.TrimSuffix(url, "user-data"))
	}
	b, err := netboot.Get(ctx, from, url)
	if err != nil {
		m.print("installer: user data: %v", err)
		return m.halt(ctx)
	}
	p, err := agent.ParsePhoneHome(b)
	if err != nil {
		m.print("installer: user data: %v", err)
		return m.halt(ctx)
	}
	m.print("installer: server %s, attempt %d: writing the disk", p.Server, p.Attempt)
	if m.waitFault(ctx, InstallHang, false) != nil || m.sleep(ctx, installTime) != nil {
		return nextHalt
	}
	// What was on the disk is gone, the old agent's key with it.
	if err := os.RemoveAll(filepath.Join(m.dir, "disk")); err != nil {
		m.print("installer: %v", err)
		return m.halt(ctx)
	}
	d := &disk{PhoneHome: json.RawMessage(b), Attempt: p.Attempt, Server: p.Server, Kernel: r.Kernel.Bytes, At: m.lab.cfg.Now().UTC()}
	for _, i := range r.Initrd {
		d.Initrd += i.Bytes
	}
	m.change(func(s *state) { s.Disk = d; s.Installs++; s.Stage, s.Boot = StagePOST, bmc.Boot{Target: "None"} })
	report := strings.TrimSuffix(url, "user-data") + schema.InstallReportName
	if err := netboot.Post(ctx, from, report, schema.InstallReport{State: schema.InstallDone, Text: "image written; restarts"}); err != nil {
		m.print("installer: report: %v", err)
	}
	m.print("installer: done, rebooting")
	return nextReboot
}

func (m *machine) halt(ctx context.Context) next {
	if ctx.Err() == nil {
		m.change(func(s *state) { s.Stage = StageHalted })
	}
	return nextHalt
}

// newBootID is what /proc/sys/kernel/random/boot_id would say.
func newBootID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

var errNoDisk = errors.New("the disk is empty")
