//go:build netns

package realclients

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpupool/pxe"
	"gpupool/pxe/boot"
	"gpupool/schema"
)

// vm is a machine under qemu's own emulation: no KVM, so that it runs anywhere.
type vm struct {
	mac  string
	uefi bool // OVMF's own network stack, without qemu's iPXE ROM
	http bool // UEFI HTTP boot only
	six  bool // over IPv6 only
	sb   bool // Secure Boot with the keys of Microsoft enrolled
	arm  bool // arm64, with AAVMF's own network stack
	boot bool // arm64, with U-Boot in the place of UEFI
	tap  string
	keys string // what is typed at its console
}

// typist is a keyboard on which somebody types the same again every two seconds.
type typist struct {
	keys string
	ctx  context.Context
}

// Read implements io.Reader.
func (k typist) Read(b []byte) (int, error) {
	select {
	case <-time.After(2 * time.Second):
		return copy(b, k.keys), nil
	case <-k.ctx.Done():
		return 0, io.EOF
	}
}

// plainDHCP is a server beside, dnsmasq, that gives addresses and, but for what more says, knows nothing of booting.
func (s *site) plainDHCP(t *testing.T, more ...string) {
	t.Helper()
	need(t, "dnsmasq", "dnsmasq-base")
	other := s.host(t, 30, "br0")
	other.run("ip address add 10.77.0.2/24 dev eth0")
	other.daemon(append([]string{"dnsmasq", "-k", "-p", "0", "--dhcp-range=10.77.0.200,10.77.0.220,255.255.255.0,1h", "--dhcp-leasefile=/dev/null", "--log-facility=-", "--user=root", "--pid-file=", "--interface=eth0", "--bind-interfaces"}, more...)...)
	other.waitUp(67)
}

// newSite6 is a site whose machines have nothing but IPv6: no DHCPv4, and somebody that sends them to DHCPv6: a router,
// radvd, or the service itself.
func newSite6(t *testing.T, advertise bool) *site {
	t.Helper()
	s := newSite(t, func(c *pxe.Config) {
		ip(t, "address add 2001:db8:77::1/64 dev br0 nodad")
		c.DHCP, c.PXE = pxe.Off, pxe.Off
		c.IPv6 = pxe.IPv6{Address: "2001:db8:77::1", Advertise: advertise, Subnets: []pxe.Subnet6{{CIDR: "2001:db8:77::/64", DNS: []string{"2001:db8:77::53"}}}}
	})
	if !advertise {
		s.host(t, 32, "br0").radvd("on")
	}
	return s
}

// radvd makes the host the network's router, which says whether addresses are managed: on or off.
func (h *host) radvd(managed string) {
	h.t.Helper()
	need(h.t, "radvd", "radvd")
	dir := h.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "radvd.conf"), []byte("interface eth0 { AdvSendAdvert on; MinRtrAdvInterval 3; MaxRtrAdvInterval 4; AdvManagedFlag "+managed+"; AdvOtherConfigFlag "+managed+"; prefix 2001:db8:77::/64 { AdvAutonomous off; }; };"), 0o600); err != nil {
		h.t.Fatal(err)
	}
	h.linkLocal()
	h.run("ip address add 2001:db8:77::fe/64 dev eth0 nodad")
	h.run("sysctl -qw net.ipv6.conf.all.forwarding=1")
	h.daemon("radvd", "-n", "-m", "stderr", "-C", filepath.Join(dir, "radvd.conf"), "-p", filepath.Join(dir, "pid"))
}

// power starts the machine with its network on a bridge, and returns where its console goes.
func (s *site) power(t *testing.T, v vm, bridge string) (console string) {
	t.Helper()
	qemu := need(t, "qemu-system-x86_64", "qemu-system-x86")
	ip(t, "tuntap add "+v.tap+" mode tap")
	t.Cleanup(func() { exec.Command("ip", "link", "del", v.tap).Run() })
	ip(t, "link set "+v.tap+" master "+bridge+" up")
	machine, code, empty := "q35,accel=tcg,graphics=off", "/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"
	if v.sb {
		machine, code, empty = machine+",smm=on", "/usr/share/OVMF/OVMF_CODE_4M.ms.fd", "/usr/share/OVMF/OVMF_VARS_4M.ms.fd"
	}
	cpu := "qemu64"
	if v.arm || v.boot {
		qemu = need(t, "qemu-system-aarch64", "qemu-system-arm")
		machine, cpu, code, empty = "virt,accel=tcg", "cortex-a57", "/usr/share/AAVMF/AAVMF_CODE.fd", "/usr/share/AAVMF/AAVMF_VARS.fd"
		if v.sb {
			code, empty = "/usr/share/AAVMF/AAVMF_CODE.ms.fd", "/usr/share/AAVMF/AAVMF_VARS.ms.fd"
		}
	}
	args := []string{"-machine", machine, "-cpu", cpu, "-m", "512", "-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot",
		"-uuid", "11111111-2222-3333-4444-555555555502", "-netdev", "tap,id=n0,ifname=" + v.tap + ",script=no,downscript=no", "-device", "virtio-rng-pci"}
	nic := "virtio-net-pci,netdev=n0,bootindex=1,mac=" + v.mac
	if v.boot {
		const uboot = "/usr/lib/u-boot/qemu_arm64/u-boot.bin"
		if _, err := os.Stat(uboot); err != nil {
			t.Skipf("%v (Debian package u-boot-qemu)", err)
		}
		args = append(args, "-bios", uboot)
		nic = "e1000,netdev=n0,mac=" + v.mac // U-Boot 2023.01 reads a wrong MAC from virtio-net
	}
	if v.uefi {
		vars := filepath.Join(t.TempDir(), "vars.fd")
		b, err := os.ReadFile(empty)
		if err != nil {
			t.Skipf("%v (Debian packages ovmf, qemu-efi-aarch64)", err)
		}
		if err := os.WriteFile(vars, b, 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "-drive", "if=pflash,format=raw,unit=0,readonly=on,file="+code, "-drive", "if=pflash,format=raw,unit=1,file="+vars)
		nic += ",romfile="
		if v.sb && !v.arm {
			args = append(args, "-global", "driver=cfi.pflash01,property=secure,value=on", "-global", "ICH9-LPC.disable_s3=1")
		}
		for opt, off := range map[string]bool{"IPv4PXESupport": v.http || v.six, "IPv6PXESupport": v.http || !v.six} {
			if off {
				args = append(args, "-fw_cfg", "name=opt/org.tianocore/"+opt+",string=n")
			}
		}
	}
	args = append(args, "-device", nic)
	console = filepath.Join(t.TempDir(), "console")
	out, err := os.Create(console)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(qemu, args...)
	c.Stdout, c.Stderr = out, out
	if v.keys != "" { // pressed over and over until the machine ends: who asks for them takes what it needs
		c.Stdin = typist{v.keys, t.Context()}
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
		out.Close()
		if t.Failed() {
			b, _ := os.ReadFile(console)
			t.Logf("console: %s", strings.ToValidUTF8(string(b), "?"))
		}
	})
	return console
}

const bootTime = 150 * time.Second // of emulated firmware on a busy machine; 15 to 40 s on an idle one

// reaches waits until the machine has its script, and says from which evidence on.
func (s *site) reaches(mac, what string) {
	s.t.Helper()
	e := s.wait(bootTime, boot.KindScript, mac, nil)
	if !strings.Contains(e.What, what) || !strings.HasPrefix(e.Result, "ok") {
		s.t.Fatalf("script: %+v, want %s", e, what)
	}
	for _, e := range s.Evidence() {
		if e.Kind == boot.KindNak || e.Kind == boot.KindLoop || e.Kind == boot.KindDecline {
			s.t.Fatalf("on the way: %+v", e)
		}
	}
}

func TestSeaBIOSWithQemusIPXE(t *testing.T) {
	s := newSite(t, nil)
	v := vm{mac: "52:54:00:77:03:01", tap: "tap1"}
	s.Put(boot.Machine{ID: "srv-bios", Name: "bios", Phase: schema.PhaseAvailable}, v.mac)
	s.power(t, v, "br0")
	s.reaches(v.mac, "boot from disk")
}

func TestOVMFByTFTPThenIPXE(t *testing.T) {
	s := newSite(t, nil)
	v := vm{mac: "52:54:00:77:03:02", tap: "tap2", uefi: true}
	s.Put(boot.Machine{ID: "srv-uefi", Name: "uefi"}, v.mac)
	s.Arm("srv-uefi", 7)
	s.power(t, v, "br0")
	s.reaches(v.mac, "install")
	// It probed the size first; that is no failure.
	s.wait(time.Second, boot.KindTFTP, v.mac, func(e schema.BootEvidence) bool { return strings.HasPrefix(e.Result, "size probe") })
	s.wait(time.Second, boot.KindTFTP, v.mac, func(e schema.BootEvidence) bool {
		return e.Result == "ok" && e.What == "snponly.efi" && e.Attempt == 7
	})
}

// TestAAVMFByTFTP: an arm64 server begins with GRUB, since Debian 12 has no iPXE for it, and is told what an armed one is
// told; so does one with Secure Boot, by way of the shim.
func TestAAVMFByTFTP(t *testing.T) {
	for i, c := range []struct {
		name string
		sb   bool
		by   []string
	}{
		{"GRUB", false, []string{"grubaa64.efi"}},
		{"shim and GRUB under Secure Boot", true, []string{"shimaa64.efi", "grubaa64.efi"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t, func(cfg *pxe.Config) { cfg.SecureBoot = c.sb })
			s.needFiles(t, c.by...)
			v := vm{mac: fmt.Sprintf("52:54:00:77:07:%02x", i), tap: fmt.Sprintf("tap7%d", i), uefi: true, arm: true, sb: c.sb}
			s.Put(boot.Machine{ID: "srv-arm", Name: "arm", Arch: "arm64"}, v.mac)
			s.Arm("srv-arm", 4)
			s.power(t, v, "br0")
			for _, f := range c.by {
				s.wait(2*bootTime, boot.KindTFTP, v.mac, func(e schema.BootEvidence) bool { return e.Result == "ok" && e.What == f && e.Attempt == 4 })
			}
			s.reaches(v.mac, "grub.cfg: install")
			s.wait(time.Second, boot.KindDiscover, v.mac, func(e schema.BootEvidence) bool { return e.What == "pxe, UEFI arm64" })
		})
	}
}

// needFiles skips where a boot file is missing.
func (s *site) needFiles(t *testing.T, names ...string) {
	t.Helper()
	for _, f := range names {
		if _, err := os.Stat(filepath.Join(s.root, f)); err != nil {
			t.Skipf("no %s in build/boot-files (deploy/pxe/boot-files.sh says why)", f)
		}
	}
}

func TestOVMFByHTTP(t *testing.T) {
	s := newSite(t, nil)
	v := vm{mac: "52:54:00:77:03:03", tap: "tap3", uefi: true, http: true}
	s.Put(boot.Machine{ID: "srv-http", Name: "http", Phase: schema.PhaseAvailable}, v.mac)
	s.power(t, v, "br0")
	s.reaches(v.mac, "boot from disk")
	s.wait(time.Second, boot.KindHTTP, v.mac, func(e schema.BootEvidence) bool { return e.Result == "ok" && e.What == "snponly.efi" })
}

// TestFirmwareWithAProxyBesideDnsmasq (no commas in the names: qemu would read them in its files' paths): dnsmasq gives the addresses, and knows nothing of booting, or names a file of its own,
// which EDK2 and iPXE think less of than of a proxy's answer.
func TestFirmwareWithAProxyBesideDnsmasq(t *testing.T) {
	need(t, "dnsmasq", "dnsmasq-base")
	for i, c := range []struct {
		name string
		uefi bool
		more []string
	}{
		{"OVMF beside addresses only", true, nil},
		{"OVMF beside a boot file of another", true, []string{"--dhcp-boot=elsewhere.efi"}},
		{"SeaBIOS beside addresses only", false, nil},
		{"SeaBIOS beside a boot file of another", false, []string{"--dhcp-boot=elsewhere.0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t, func(c *pxe.Config) { c.Mode = "proxy" })
			s.plainDHCP(t, c.more...)
			v := vm{mac: fmt.Sprintf("52:54:00:77:04:%02x", i), tap: fmt.Sprintf("tap4%d", i), uefi: c.uefi}
			s.Put(boot.Machine{ID: "srv-proxy", Name: "proxy", Phase: schema.PhaseAvailable}, v.mac)
			s.power(t, v, "br0")
			s.reaches(v.mac, "boot from disk")
			if rows, _ := s.leases.List(t.Context(), "10.77.0.0/24"); len(rows) != 0 {
				t.Fatalf("a proxy gave addresses: %v", rows)
			}
		})
	}
}

func TestFirmwareBehindARelay(t *testing.T) {
	need(t, "dnsmasq", "dnsmasq-base")
	for i, c := range []struct {
		name string
		uefi bool
	}{{"OVMF", true}, {"SeaBIOS", false}} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t, func(c *pxe.Config) {
				c.Mode = "relay"
				c.Subnets = append(c.Subnets, pxe.Subnet{CIDR: "10.88.0.0/24", Range: "10.88.0.100-10.88.0.110", Routers: []string{"10.88.0.1"}})
			})
			s.relay(t)
			v := vm{mac: fmt.Sprintf("52:54:00:77:05:%02x", i), tap: fmt.Sprintf("tap5%d", i), uefi: c.uefi}
			s.Put(boot.Machine{ID: "srv-relay", Name: "relayed", Phase: schema.PhaseAvailable}, v.mac)
			s.power(t, v, "br1")
			s.reaches(v.mac, "boot from disk")
			rows, err := s.leases.List(t.Context(), "10.88.0.0/24")
			if err != nil || len(rows) != 1 || rows[0].MAC != v.mac {
				t.Fatalf("leases of the relayed network: %+v %v", rows, err)
			}
		})
	}
}

// TestSecureBootThroughShimAndGRUB: firmware that runs only what Microsoft has signed gets to its own GRUB script.
func TestSecureBootThroughShimAndGRUB(t *testing.T) {
	s := newSite(t, func(c *pxe.Config) { c.SecureBoot = true })
	s.needFiles(t, "shimx64.efi", "grubx64.efi")
	v := vm{mac: "52:54:00:77:03:06", tap: "tap6", uefi: true, sb: true}
	s.Put(boot.Machine{ID: "srv-sb", Name: "secure"}, v.mac)
	s.Arm("srv-sb", 2)
	s.power(t, v, "br0")
	s.reaches(v.mac, "grub.cfg: install")
}

// TestSecureBootRefusesWhatIsNotSigned: the same firmware fetches iPXE, which nobody has signed, and doesn't run it.
func TestSecureBootRefusesWhatIsNotSigned(t *testing.T) {
	s := newSite(t, nil)
	v := vm{mac: "52:54:00:77:03:09", tap: "tap9", uefi: true, sb: true}
	s.Put(boot.Machine{ID: "srv-unsigned", Name: "unsigned"}, v.mac)
	s.Arm("srv-unsigned", 2)
	console := s.power(t, v, "br0")
	s.wait(bootTime, boot.KindTFTP, v.mac, func(e schema.BootEvidence) bool { return e.Result == "ok" && e.What == "snponly.efi" })
	for end := time.Now().Add(bootTime); ; <-time.After(200 * time.Millisecond) {
		b, err := os.ReadFile(console)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "Access Denied") || strings.Contains(string(b), "Security Violation") {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the firmware doesn't say that it refused the program")
		}
	}
	for _, e := range s.Evidence() {
		if e.Kind == boot.KindScript {
			t.Fatalf("a program that isn't signed ran: %+v", e)
		}
	}
}

// TestOVMFOverIPv6 boots by DHCPv6 alone (RFC 5970): by HTTP where radvd is the network's router, and by TFTP where the
// service itself sends clients to DHCPv6.
func TestOVMFOverIPv6(t *testing.T) {
	for i, c := range []struct {
		name string
		vm   vm
		kind string
	}{
		{"by HTTP", vm{uefi: true, six: true, http: true}, boot.KindHTTP},
		{"by TFTP", vm{uefi: true, six: true}, boot.KindTFTP},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite6(t, !c.vm.http)
			v := c.vm
			v.mac, v.tap = fmt.Sprintf("52:54:00:77:06:%02x", i), fmt.Sprintf("tap6%d", i)
			s.Put(boot.Machine{ID: "srv-six", Name: "six", Phase: schema.PhaseAvailable}, v.mac)
			// OVMF tries HTTP over IPv4 first and can't be told not to: an address without a boot file ends that soonest.
			s.plainDHCP(t)
			s.power(t, v, "br0")
			e := s.wait(2*bootTime, c.kind, v.mac, func(e schema.BootEvidence) bool { return e.Result == "ok" && e.What == "snponly.efi" })
			if want := fmt.Sprintf("2001:db8:77:0:5254:67:7077:6%02x", i); e.IP != want {
				t.Fatalf("it fetched from %s, want %s", e.IP, want)
			}
			s.reaches(v.mac, "boot from disk")
		})
	}
}

// TestUBoot boots it in the ways that it has: by its own boot order, which takes for UEFI's what it is given as one and so
// comes to GRUB, and by its PXE command, which asks for an extlinux.conf under its MAC.
func TestUBoot(t *testing.T) {
	for i, c := range []struct{ name, keys, script string }{
		{"boot order", "", "grub.cfg: install"},
		{"pxe get", "setenv autoload no; dhcp && pxe get && pxe boot\n", "extlinux.conf: install"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t, nil)
			s.needFiles(t, "grubaa64.efi")
			v := vm{mac: fmt.Sprintf("52:54:00:77:08:%02x", i), tap: fmt.Sprintf("tap8%d", i), boot: true, keys: c.keys}
			s.Put(boot.Machine{ID: "srv-uboot", Name: "uboot"}, v.mac)
			s.Arm("srv-uboot", 3)
			s.power(t, v, "br0")
			s.reaches(v.mac, c.script)
			s.wait(time.Second, boot.KindDiscover, v.mac, func(e schema.BootEvidence) bool { return e.What == "u-boot, U-Boot arm64" })
		})
	}
}
