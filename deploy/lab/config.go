package lab

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"gpupool/deploy/lab/bmc"
	"gpupool/deploy/lab/device"
)

// Config is a lab.
type Config struct {
	Dir     string         `yaml:"dir"` // keeps the world; one lab at a time
	Servers []ServerConfig `yaml:"servers"`

	// DHCP is where the network's DHCP server listens, host:port; empty = there is none, nothing boots from the network.
	DHCP string `yaml:"dhcp"`
	// TFTPPort is the TFTP server's port, on the address that DHCP tells; 0 = 69.
	TFTPPort int `yaml:"tftp_port"`
	// Relay is the loopback address that the servers' DHCP relay speaks from. The addresses that it may be answered
	// with are loopback's too. Empty = 127.77.0.1, for a subnet 127.77.0.0/16.
	Relay string `yaml:"relay"`
	// BMCNet is the loopback network of which each BMC takes an address; empty = 127.66.0.0/16.
	BMCNet string `yaml:"bmc_net"`
	// User and Password are the BMCs' account; empty = admin, gpupool-lab.
	User     string `yaml:"user"`
	Password string `yaml:"password"`
	// Speed is how fast the hardware's time goes: at 1 a server POSTs in 0.5 s, writes its disk in 2 s, starts its
	// operating system in 0.5 s, a burn-in test lasts 1 s, and a driver that does not come back is called hung after 45 s. 0 = 1.
	Speed float64 `yaml:"speed"`

	Log *slog.Logger     `yaml:"-" json:"-"` // nil = slog.Default
	Now func() time.Time `yaml:"-" json:"-"` // nil = time.Now
}

// ServerConfig is one server. Only Name, Profile (or Tree) and Devices have no default.
type ServerConfig struct {
	Name    string   `yaml:"name"`
	Profile string   `yaml:"profile"` // of the BMC; see bmc.ProfileNames
	Tree    string   `yaml:"tree"`    // captured Redfish tree to serve instead of the profile's: a folder, or a .tar.xz or .tar.gz of one
	Serial  string   `yaml:"serial"`  // chassis; empty = made of the name
	UUID    string   `yaml:"uuid"`    // SMBIOS; empty = made of the serial
	MACs    []string `yaml:"macs"`    // the first boots; empty = two, made of the serial
	Arch    string   `yaml:"arch"`    // x86_64, arm64; empty = x86_64
	Devices Devices  `yaml:"devices"`
	CPUs    int      `yaml:"cpus"`   // 0 = 112
	Memory  int64    `yaml:"memory"` // bytes; 0 = 2 TiB
	// Order is the firmware's own boot order: network, disk; empty = disk, network.
	Order []string `yaml:"order"`
	// Faults are there when the server is first built: "burnin SXM4", "no-dhcp".
	Faults []string `yaml:"faults"`
	Rack   string   `yaml:"rack"` // told in State, for whoever enrols it
}

// Devices are a server's accelerators.
type Devices struct {
	Model string `yaml:"model"` // see device.ModelNames
	Count int    `yaml:"count"`
}

// ReadConfig reads a lab's YAML file. Unknown fields are errors.
func ReadConfig(path string) (Config, error) {
	var c Config
	b, err := os.ReadFile(path)
	if err != nil {
		return c, err
	}
	if err := yaml.UnmarshalWithOptions(b, &c, yaml.Strict()); err != nil {
		return c, fmt.Errorf("lab file %s: %w", path, err)
	}
	return c, nil
}

// Demo is the data centre of the demo: four servers with 8 H100 (two DGX, two Supermicro) and two with 8 MI300X. One of
// them fails its burn-in.
func Demo() []ServerConfig {
	h100, mi300 := Devices{"nvidia-h100-80gb", 8}, Devices{"amd-mi300x-192gb", 8}
	return []ServerConfig{
		{Name: "r1s1", Profile: bmc.DGXH100, Devices: h100, Rack: "r1"},
		{Name: "r1s2", Profile: bmc.DGXH100, Devices: h100, Rack: "r1"},
		{Name: "r1s3", Profile: bmc.SupermicroHGX, Devices: h100, Rack: "r1"},
		{Name: "r2s1", Profile: bmc.SupermicroHGX, Devices: h100, Rack: "r2", Faults: []string{"burnin SXM6"}},
		{Name: "r2s2", Profile: bmc.SupermicroMI300X, Devices: mi300, Rack: "r2"},
		{Name: "r2s3", Profile: bmc.SupermicroMI300X, Devices: mi300, Rack: "r2"},
	}
}

// resolved is a Config with nothing left open.
type resolved struct {
	Config
	relay  netip.Addr
	dhcp   netip.AddrPort
	bmcNet netip.Prefix
}

func (c Config) resolve() (resolved, error) {
	r := resolved{Config: c}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("lab: "+format, args...)) }
	if c.Dir == "" {
		bad("dir: want a folder that keeps the lab's world")
	}
	if r.Relay == "" {
		r.Relay = "127.77.0.1"
	}
	if r.BMCNet == "" {
		r.BMCNet = "127.66.0.0/16"
	}
	if r.User == "" {
		r.User = "admin"
	}
	if r.Password == "" {
		r.Password = "gpupool-lab"
	}
	if r.TFTPPort == 0 {
		r.TFTPPort = 69
	}
	if r.Speed == 0 {
		r.Speed = 1
	}
	if r.Log == nil {
		r.Log = slog.Default()
	}
	if r.Now == nil {
		r.Now = time.Now
	}
	var err error
	if r.relay, err = netip.ParseAddr(r.Relay); err != nil || !r.relay.IsLoopback() || !r.relay.Is4() {
		bad("relay: %q: want an address of 127.0.0.0/8", r.Relay)
	}
	if r.bmcNet, err = netip.ParsePrefix(r.BMCNet); err != nil || !r.bmcNet.Addr().IsLoopback() {
		bad("bmc_net: %q: want a network of 127.0.0.0/8, as 127.66.0.0/16", r.BMCNet)
	}
	if r.DHCP != "" {
		if r.dhcp, err = netip.ParseAddrPort(r.DHCP); err != nil {
			bad("dhcp: %q: want address:port, as 127.0.0.1:6767", r.DHCP)
		}
	}
	if r.Speed < 0 {
		bad("speed: %v: want 1, or a larger number for a faster lab", r.Speed)
	}
	names, macs := map[string]bool{}, map[string]string{}
	r.Servers = nil
	for i, s := range c.Servers {
		s, err := s.resolve()
		if err != nil {
			bad("servers[%d]: %w", i, err)
			continue
		}
		if names[s.Name] {
			bad("servers[%d]: name: %q is taken", i, s.Name)
		}
		names[s.Name] = true
		for _, m := range s.MACs {
			if other := macs[m]; other != "" {
				bad("servers[%d]: macs: %s is %s's", i, m, other)
			}
			macs[m] = s.Name
		}
		r.Servers = append(r.Servers, s)
	}
	return r, errors.Join(errs...)
}

func (s ServerConfig) resolve() (ServerConfig, error) {
	if s.Name == "" || strings.ContainsAny(s.Name, "/\\ \t\n") || s.Name[0] == '.' {
		return s, fmt.Errorf("name: %q: want a host name", s.Name)
	}
	h := sha256.Sum256([]byte("gpupool lab " + s.Name))
	x := hex.EncodeToString(h[:])
	if s.Serial == "" {
		s.Serial = "LAB" + strings.ToUpper(x[:9])
	}
	if s.UUID == "" {
		s.UUID = fmt.Sprintf("%s-%s-4%s-8%s-%s", x[:8], x[8:12], x[13:16], x[17:20], x[20:32])
	}
	if len(s.MACs) == 0 {
		for i := range 2 { // locally administered
			s.MACs = append(s.MACs, net.HardwareAddr{0x02, 0x6c, h[20], h[21], h[22], h[23]&0xfe | byte(i)}.String())
		}
	}
	for i, m := range s.MACs {
		hw, err := net.ParseMAC(m)
		if err != nil || len(hw) != 6 {
			return s, fmt.Errorf("macs[%d]: %q: want a MAC, as 02:6c:00:00:00:01", i, m)
		}
		s.MACs[i] = hw.String()
	}
	switch s.Arch {
	case "":
		s.Arch = "x86_64"
	case "x86_64", "arm64":
	default:
		return s, fmt.Errorf("arch: %q: want x86_64 or arm64", s.Arch)
	}
	if _, ok := device.Models[s.Devices.Model]; !ok {
		return s, fmt.Errorf("devices: model: %q: want one of %s", s.Devices.Model, strings.Join(device.ModelNames(), ", "))
	}
	if s.Devices.Count < 0 || s.Devices.Count > 16 {
		return s, fmt.Errorf("devices: count: %d: want 0 to 16", s.Devices.Count)
	}
	if s.CPUs == 0 {
		s.CPUs = 112
	}
	if s.Memory == 0 {
		s.Memory = labMemory
	}
	if len(s.Order) == 0 {
		s.Order = []string{bootDisk, bootNetwork}
	}
	for _, o := range s.Order {
		if o != bootDisk && o != bootNetwork {
			return s, fmt.Errorf("order: %q: want disk or network", o)
		}
	}
	if s.Profile == "" && s.Tree == "" {
		return s, fmt.Errorf("profile: want one of %s, or a tree", strings.Join(bmc.ProfileNames(), ", "))
	}
	for _, f := range s.Faults {
		kind, _, _ := strings.Cut(f, " ")
		if !known(kind) {
			return s, fmt.Errorf("faults: %q: want one of %s, and a device", f, strings.Join(Kinds(), ", "))
		}
	}
	return s, nil
}

// profile is the BMC's.
func (s ServerConfig) profile() (bmc.Profile, error) {
	if s.Tree != "" {
		return bmc.FromTree(s.Tree)
	}
	return bmc.ByName(s.Profile)
}
