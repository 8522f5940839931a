package qemu

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"gpupool/deploy/lab/bmc"
)

// Firmware is what the machine starts with.
type Firmware string

// The firmwares.
const (
	BIOS Firmware = "bios" // SeaBIOS, with qemu's iPXE as the network card's boot ROM
	UEFI Firmware = "uefi" // OVMF, with its own network stack
	// SecureBoot is OVMF with the keys of Microsoft: it starts nothing that they, or whom they trust, did not sign.
	SecureBoot Firmware = "secure-boot"
	// OwnKeys is OVMF with the keys of one owner, who is the test key of Debian's package ovmf: it starts nothing else.
	OwnKeys Firmware = "own-keys"
	// ARM64 is AAVMF on a virtual machine of that architecture.
	ARM64 Firmware = "arm64"
)

// Files of the Debian packages ovmf and qemu-efi-aarch64: the code, and the variables to begin with.
var firmwareFiles = map[Firmware][2]string{
	UEFI:       {"/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"},
	SecureBoot: {"/usr/share/OVMF/OVMF_CODE_4M.ms.fd", "/usr/share/OVMF/OVMF_VARS_4M.ms.fd"},
	OwnKeys:    {"/usr/share/OVMF/OVMF_CODE_4M.snakeoil.fd", "/usr/share/OVMF/OVMF_VARS_4M.snakeoil.fd"},
	ARM64:      {"/usr/share/AAVMF/AAVMF_CODE.fd", "/usr/share/AAVMF/AAVMF_VARS.fd"},
}

// Config is a machine. Name, Dir, Tap, MAC and BMC have no default.
type Config struct {
	Name     string
	Dir      string // keeps disk, console and firmware variables; made where it is missing
	Firmware Firmware
	Tap      string // network interface, see ip-tuntap; it is there already
	MAC      string
	BMC      string // address to serve the BMC at, host:port
	Serial   string // chassis; empty = made of Name
	UUID     string // SMBIOS
	Memory   int    // MiB; 0 = 1024
	CPUs     int    // 0 = 2
	Disk     int64  // bytes; 0 = 2 GiB
	// HTTPBoot makes UEFI boot by HTTP instead of PXE.
	HTTPBoot bool
	// NetworkFirst is a boot order with the network before the disk. What the BMC is told for one boot changes nothing.
	NetworkFirst bool

	User, Password string // of the BMC; empty = admin, gpupool-lab
	Log            *slog.Logger
}

// Machine is one server. Its BMC is reached while it exists, whether the machine has power or not.
//
// mu guards all below it. The BMC calls the hooks one after the other, so only one starts or ends a process at a time.
type Machine struct {
	cfg Config
	bmc *bmc.Server
	ln  net.Listener
	web *http.Server
	wg  sync.WaitGroup

	mu    sync.Mutex
	run   *running // nil = no power
	boots int
}

// running is a machine that has power.
type running struct {
	cmd   *exec.Cmd
	qmp   *monitor
	ended chan struct{}
}

// New makes the machine, switched off, and serves its BMC until Close.
func New(cfg Config) (*Machine, error) {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	orDefault(&cfg.Serial, strings.ToUpper(cfg.Name))
	orDefault(&cfg.Memory, 1024)
	orDefault(&cfg.CPUs, 2)
	orDefault(&cfg.Disk, 2<<30)
	orDefault(&cfg.User, "admin")
	orDefault(&cfg.Password, "gpupool-lab")
	if err := os.MkdirAll(cfg.Dir, 0o755); err != nil {
		return nil, err
	}
	m := &Machine{cfg: cfg}
	if err := m.files(); err != nil {
		return nil, err
	}
	p, err := bmc.ByName(bmc.SupermicroHGX)
	if err != nil {
		return nil, err
	}
	id := bmc.Identity{Serial: cfg.Serial, UUID: cfg.UUID, MACs: []string{cfg.MAC}}
	for i := range 8 { // as the image's libnvidia-ml.so.1 tells them
		id.GPUs = append(id.GPUs, bmc.GPU{Serial: fmt.Sprintf("%s-GPU%d", cfg.Serial, i), Health: "OK", State: "Enabled"})
	}
	m.bmc = bmc.New(p, bmc.Hooks{PowerOn: m.powerOn, PowerOff: func(bool) { m.powerOff() }, Shutdown: m.shutdown},
		bmc.WithIdentity(id), bmc.WithCredential(cfg.User, cfg.Password), bmc.WithPower(false), bmc.WithLogCap(1000), bmc.WithHostLogger())
	cert, err := bmc.SelfSigned()
	if err != nil {
		return nil, err
	}
	if m.ln, err = net.Listen("tcp", cfg.BMC); err != nil {
		return nil, fmt.Errorf("%s: its BMC's address: %w", cfg.Name, err)
	}
	m.web = &http.Server{Handler: http.HandlerFunc(m.serve), ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	m.wg.Go(func() {
		if err := m.web.Serve(tls.NewListener(m.ln, cert)); !errors.Is(err, http.ErrServerClosed) {
			cfg.Log.Error("BMC", "vm", cfg.Name, "err", err)
		}
	})
	return m, nil
}

// keptLines is what the BMC keeps of the console, in lines.
const keptLines = 200

// serve is the BMC, which reads what the console has said when it is asked for that.
func (m *Machine) serve(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, m.bmc.HostLogger()) {
		text, err := m.Console(32 << 10)
		if err == nil {
			lines := strings.FieldsFunc(text, func(c rune) bool { return c == '\n' || c == '\r' })
			err = m.bmc.ReplaceLog(m.bmc.HostLogger(), lines[max(0, len(lines)-keptLines):])
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			m.cfg.Log.Error("console", "vm", m.cfg.Name, "err", err)
		}
	}
	m.bmc.ServeHTTP(w, r)
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// files makes the disk and the firmware's variables, where the folder has none.
func (m *Machine) files() error {
	disk, err := os.OpenFile(m.Disk(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	st, err := disk.Stat()
	if err == nil && st.Size() == 0 {
		err = disk.Truncate(m.cfg.Disk)
	}
	if err := errors.Join(err, disk.Close()); err != nil {
		return err
	}
	if m.cfg.Firmware == BIOS {
		return nil
	}
	f, ok := firmwareFiles[m.cfg.Firmware]
	if !ok {
		return fmt.Errorf("firmware %q: want bios, uefi, secure-boot, own-keys or arm64", m.cfg.Firmware)
	}
	if _, err := os.Stat(m.path("vars.fd")); err == nil {
		return nil
	}
	b, err := os.ReadFile(f[1])
	if err != nil {
		return err
	}
	return os.WriteFile(m.path("vars.fd"), b, 0o600)
}

func (m *Machine) path(name string) string { return filepath.Join(m.cfg.Dir, name) }

// Disk is the file that is the machine's disk.
func (m *Machine) Disk() string { return m.path("disk.img") }

// BMC is the machine's BMC, for a test to look at or to spoil.
func (m *Machine) BMC() *bmc.Server { return m.bmc }

// Address is the BMC's, as a server is enrolled with.
func (m *Machine) Address() string { return "https://" + m.ln.Addr().String() }

// Serial is the chassis's.
func (m *Machine) Serial() string { return m.cfg.Serial }

// Boots counts how often the machine was switched on.
func (m *Machine) Boots() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.boots
}

// Console is the end of what the serial console said since the machine was made, at most n bytes.
func (m *Machine) Console(n int64) (string, error) {
	f, err := os.Open(m.path("console.log"))
	if err != nil {
		return "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(io.NewSectionReader(f, max(0, st.Size()-n), n))
	return strings.ToValidUTF8(string(b), "\uFFFD"), err
}

// Close cuts the power and takes the BMC away.
func (m *Machine) Close() error {
	err := errors.Join(m.web.Close(), m.bmc.Close())
	m.powerOff()
	m.wg.Wait()
	return err
}

// Boot indices: the lower goes first. The disk's is between the two that the network card can have.
const (
	networkFirst = 5
	diskIndex    = 10
	networkLast  = 20
)

// args are qemu's. The network card goes first in a boot order that says so, or for the boot that the BMC was told of.
func (m *Machine) args(network bool) []string {
	c := m.cfg
	index := networkLast
	if network || c.NetworkFirst {
		index = networkFirst
	}
	nic := fmt.Sprintf("virtio-net-pci,id=nic0,netdev=n0,mac=%s,bootindex=%d", c.MAC, index)
	a := []string{
		"-name", c.Name, "-smp", fmt.Sprint(c.CPUs), "-m", fmt.Sprint(c.Memory), "-nodefaults", "-display", "none", "-S",
		"-qmp", "unix:" + m.path("qmp") + ",server=on,wait=off",
		"-chardev", "file,id=console,path=" + m.path("console.log") + ",append=on", "-serial", "chardev:console",
		"-uuid", c.UUID, "-smbios", "type=1,serial=" + c.Serial + ",manufacturer=gpupool,product=qemu", "-device", "virtio-rng-pci",
		"-netdev", "tap,id=n0,ifname=" + c.Tap + ",script=no,downscript=no",
		// cache=unsafe: a host that dies takes the test with it. What the guest wrote survives the death of qemu.
		"-drive", "if=none,id=d0,format=raw,discard=unmap,cache=unsafe,file=" + m.Disk(), "-device", fmt.Sprintf("nvme,drive=d0,serial=%s-NVME0,bootindex=%d", c.Serial, diskIndex),
	}
	machine, cpu := "q35,accel=tcg,graphics=off", "qemu64"
	switch c.Firmware {
	case BIOS:
		return append(a, "-machine", "pc,accel=tcg,graphics=off", "-cpu", cpu, "-device", nic)
	case SecureBoot, OwnKeys:
		machine += ",smm=on"
		a = append(a, "-global", "driver=cfi.pflash01,property=secure,value=on", "-global", "ICH9-LPC.disable_s3=1")
	case ARM64:
		machine, cpu = "virt,accel=tcg", "cortex-a57"
	case UEFI:
	}
	for opt, off := range map[string]bool{"IPv4PXESupport": c.HTTPBoot, "IPv6PXESupport": true} {
		if off {
			a = append(a, "-fw_cfg", "name=opt/org.tianocore/"+opt+",string=n")
		}
	}
	return append(a, "-machine", machine, "-cpu", cpu, "-device", nic+",romfile=",
		"-drive", "if=pflash,format=raw,unit=0,readonly=on,file="+firmwareFiles[c.Firmware][0], "-drive", "if=pflash,format=raw,unit=1,file="+m.path("vars.fd"))
}

func (m *Machine) program() string {
	if m.cfg.Firmware == ARM64 {
		return "qemu-system-aarch64"
	}
	return "qemu-system-x86_64"
}

// powerOn is the BMC's hook.
func (m *Machine) powerOn(b bmc.Boot) {
	if err := m.start(b); err != nil {
		m.cfg.Log.Error("power on", "vm", m.cfg.Name, "err", err)
		m.bmc.MachineOff()
	}
}

func (m *Machine) start(b bmc.Boot) error {
	m.powerOff()
	out, err := os.OpenFile(m.path("qemu.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	r := &running{cmd: exec.Command(m.program(), m.args(b.Network())...), ended: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = out, out
	dieWithParent(r.cmd)
	if err := os.Remove(m.path("qmp")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := r.cmd.Start(); err != nil {
		return err
	}
	m.wg.Go(func() {
		_ = r.cmd.Wait() // killed, or the guest has switched itself off
		close(r.ended)
		m.mu.Lock()
		own := m.run == r
		if own {
			m.run = nil
		}
		m.mu.Unlock()
		if own {
			m.bmc.MachineOff()
		}
	})
	m.mu.Lock()
	m.run = r
	m.boots++
	m.mu.Unlock()
	m.bmc.SetBootProgress("SystemHardwareInitializationComplete")
	if r.qmp, err = dial(m.path("qmp"), r.ended); err != nil {
		return err
	}
	if err := r.qmp.do("cont", nil); err != nil {
		return err
	}
	if b.Network() && b.Once && !m.cfg.NetworkFirst {
		// For the next reset, which may be the guest's own: firmware reads the order anew there.
		return r.qmp.do("qom-set", map[string]any{"path": "/machine/peripheral/nic0", "property": "bootindex", "value": networkLast})
	}
	return nil
}

// powerOff is the BMC's hook, and a pulled cord: nothing of what ran goes on.
func (m *Machine) powerOff() {
	m.mu.Lock()
	r := m.run
	m.run = nil
	m.mu.Unlock()
	if r == nil {
		return
	}
	if err := r.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		m.cfg.Log.Error("power off", "vm", m.cfg.Name, "err", err)
	}
	<-r.ended
}

// Cut is a power cut: it comes back by itself, and boots by its own order, whatever the BMC had been told for one boot.
func (m *Machine) Cut() error {
	m.powerOff()
	return m.start(bmc.Boot{Target: "None"})
}

// shutdown presses the power button, and says whether the system went down.
func (m *Machine) shutdown() bool {
	m.mu.Lock()
	r := m.run
	m.mu.Unlock()
	if r == nil || r.qmp == nil || r.qmp.do("system_powerdown", nil) != nil {
		return false
	}
	select {
	case <-r.ended:
		return true
	case <-time.After(time.Minute):
		return false
	}
}
