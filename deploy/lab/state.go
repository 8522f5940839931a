package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gpupool/deploy/lab/bmc"
	"gpupool/deploy/lab/device"
)

// Kinds of faults that a server as a whole can have. Those of its devices are device.Kinds.
const (
	BootHang    = "boot-hang"    // POST never ends
	NoDHCP      = "no-dhcp"      // the boot cable is out
	BMCDown     = "bmc-down"     // the BMC drops every connection
	AgentSilent = "agent-silent" // the OS is up, its agent is not; jobs live
	KernelHang  = "kernel-hang"  // the kernel is loaded and never comes to its installer
	InstallHang = "install-hang" // the installer starts and never ends

	DriveLying       = "drive-lying"       // a drive says that it is sanitised and is not
	DriveUnsupported = "drive-unsupported" // a drive has no command to sanitise it

	DIMMMissing = "dimm-missing" // a memory socket is empty
	NVMeMissing = "nvme-missing" // a drive is not there
	NICDown     = "nic-down"     // a port of the fabric has no link
	NICSlow     = "nic-slow"     // a port of the fabric is linked at a quarter of its speed
	NVMeNarrow  = "nvme-narrow"  // a drive's slot trained at half its lanes
	OldFirmware = "old-firmware" // a port of the fabric has an old firmware
)

var serverKinds = []string{BootHang, NoDHCP, BMCDown, AgentSilent, KernelHang, InstallHang, DriveLying, DriveUnsupported, DIMMMissing, NVMeMissing, NICDown, NICSlow, NVMeNarrow, OldFirmware}

// unitKinds are faults of what a server's BMC watches: its power supplies, fans and leak detectors, by the name that they have
// there, "-" for the first.
var unitKinds = []string{string(bmc.PSU), string(bmc.Fan), string(bmc.Leak)}

// Kinds lists every fault that a lab knows.
func Kinds() []string {
	all := slices.Concat(serverKinds, unitKinds)
	for _, k := range device.Kinds {
		all = append(all, string(k))
	}
	return all
}

func known(kind string) bool { return slices.Contains(Kinds(), kind) }

func checkKind(kind string) error {
	if !known(kind) {
		return fmt.Errorf("fault %q: want one of %s", kind, strings.Join(Kinds(), ", "))
	}
	return nil
}

const (
	bootNetwork = "network"
	bootDisk    = "disk"
)

// Stage is how far a server's boot has come.
type Stage string

const (
	StageOff     Stage = "off"
	StagePOST    Stage = "post"
	StageNetwork Stage = "network-boot"
	StageInstall Stage = "installing"
	StageStart   Stage = "starting" // its disk's operating system
	StageOS      Stage = "os"
	StageHalted  Stage = "halted" // nothing to boot; a person is wanted
)

// state is what a server is, as it lies in its folder.
type state struct {
	On       bool          `json:"on"`
	Stage    Stage         `json:"stage"`
	Boot     bmc.Boot      `json:"boot"`     // what this power-on was told to boot
	Override bmc.Boot      `json:"override"` // what the next one will be
	BootID   string        `json:"boot_id"`  // of the operating system that runs, or ran last
	Disk     *disk         `json:"disk,omitempty"`
	Installs int           `json:"installs"`
	Boots    int           `json:"boots"` // power-ons and reboots
	Parts    []device.Part `json:"parts"`
	Faults   []string      `json:"faults,omitempty"` // of the server itself
	Locator  bool          `json:"locator,omitempty"`
	BMC      string        `json:"bmc"` // address:port
	User     string        `json:"user,omitempty"`
	Password string        `json:"password,omitempty"` // where it was changed
}

// disk is what an installer wrote. The agent's own files lie beside it, in the folder that stands for the disk.
type disk struct {
	PhoneHome json.RawMessage `json:"phone_home"` // user data, as it came
	Attempt   int             `json:"attempt"`
	Server    string          `json:"server"`
	Kernel    int64           `json:"kernel_bytes"`
	Initrd    int64           `json:"initrd_bytes"`
	At        time.Time       `json:"at"`
}

func loadState(dir string) (state, bool, error) {
	var s state
	path := filepath.Join(dir, "machine.json")
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, false, nil
	}
	if err != nil {
		return s, false, err
	}
	if err := json.Unmarshal(b, &s); err != nil {
		return s, false, fmt.Errorf("%s is damaged: %w (hint: remove the lab's folder to build it anew)", path, err)
	}
	return s, true, nil
}

// save puts the state in place whole. It survives SIGKILL; the lab doesn't outlive the machine it runs on.
func (s state) save(dir string) error {
	b, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, ".machine.json")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, "machine.json"))
}

// ServerState is a server as it stands there.
type ServerState struct {
	Name     string        `json:"name"`
	Rack     string        `json:"rack,omitempty"`
	Serial   string        `json:"serial"`
	UUID     string        `json:"uuid"`
	MACs     []string      `json:"macs"`
	Arch     string        `json:"arch"`
	Model    string        `json:"model"` // of its devices
	BMC      string        `json:"bmc"`   // URL
	User     string        `json:"user"`
	Password string        `json:"password"`
	On       bool          `json:"on"`
	Stage    Stage         `json:"stage"`
	BootID   string        `json:"boot_id,omitempty"`
	Server   string        `json:"server,omitempty"`  // id that its installed disk has
	Attempt  int           `json:"attempt,omitempty"` // that installed it
	Installs int           `json:"installs"`
	Boots    int           `json:"boots"`
	Locator  bool          `json:"locator"`
	Faults   []string      `json:"faults,omitempty"`
	Devices  []device.Part `json:"devices"`
	Console  []string      `json:"console"`
}
