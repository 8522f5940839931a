package rules

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"gpupool/schema"
)

// XID is what is done about one of NVIDIA's error numbers, and what others do about it: they disagree.
type XID struct {
	Code    string        `json:"code"`
	Meaning string        `json:"meaning"`
	NVIDIA  string        `json:"nvidia"`         // the catalogue's immediate action
	Gpud    string        `json:"gpud,omitempty"` // "" = no word on it
	DCGM    string        `json:"dcgm,omitempty"`
	AWS     string        `json:"aws,omitempty"` // of the driver r590's table
	Action  schema.Action `json:"action"`
	Cure    schema.Cure   `json:"cure,omitempty"`
	// Again, if not 0, is the time within which a second one on the same device, over resets too, goes to a technician.
	Again    time.Duration `json:"again,omitempty"`
	Corrupts bool          `json:"corrupts,omitempty"`
	Why      string        `json:"why"` // why this, of what the sources say
}

const day = 24 * time.Hour

// XIDs is the one table of XID actions. Numbers and immediate actions are those of NVIDIA's catalogue
// (https://docs.nvidia.com/deploy/xid-errors/); a code that isn't here is observed and counted as unknown.
var XIDs = []XID{
	{Code: "13", Meaning: "graphics engine exception", NVIDIA: "RESTART_APP", Gpud: "warn", DCGM: "warn", AWS: "monitor", Action: schema.ActionObserve,
		Why: "most often the application's own fault"},
	{Code: "31", Meaning: "memory page fault", NVIDIA: "RESTART_APP", Gpud: "warn", DCGM: "warn", AWS: "monitor", Action: schema.ActionObserve,
		Why: "most often the application's own fault; that it repeats on one device is a rule of its own"},
	{Code: "43", Meaning: "the application's channel was stopped", NVIDIA: "IGNORE", DCGM: "warn", AWS: "monitor", Action: schema.ActionObserve,
		Why: "follows another error, or the application's own end"},
	{Code: "45", Meaning: "clean-up after an earlier error", NVIDIA: "IGNORE", DCGM: "warn", AWS: "monitor", Action: schema.ActionObserve,
		Why: "follows another error: the other is acted on"},
	{Code: "46", Meaning: "the GPU stopped processing", NVIDIA: "RESET_GPU", Gpud: "fatal", DCGM: "fail", AWS: "reset", Action: schema.ActionReset, Cure: schema.CureDevice, Again: 7 * day,
		Why: "all say reset"},
	{Code: "48", Meaning: "an uncorrectable memory error", NVIDIA: "WORKFLOW_XID_48", Gpud: "fatal, reboot", DCGM: "fail", AWS: "reset", Action: schema.ActionReset, Cure: schema.CureDevice, Again: 30 * day, Corrupts: true,
		Why: "NVIDIA's workflow: what comes beside it decides, 63 a reset, 64 a new part; alone, a reset and a test"},
	{Code: "61", Meaning: "an internal microcontroller's breakpoint", NVIDIA: "RESET_GPU", Gpud: "fatal", AWS: "reset", Action: schema.ActionReset, Cure: schema.CureDevice, Again: 7 * day,
		Why: "DCGM calls it thermal, against the catalogue; the catalogue is followed"},
	{Code: "62", Meaning: "an internal microcontroller's halt", NVIDIA: "RESET_GPU", Gpud: "fatal", AWS: "reset", Action: schema.ActionReset, Cure: schema.CureDevice, Again: 7 * day,
		Why: "DCGM calls it thermal, against the catalogue; the catalogue is followed"},
	{Code: "63", Meaning: "a memory row is to be remapped at the next reset", NVIDIA: "IGNORE", Gpud: "fatal, reboot", DCGM: "warn", AWS: "monitor", Action: schema.ActionCordon, Cure: schema.CureDevice,
		Why: "work that runs is not affected: it is let end, and the device reset when it is idle. No job is stopped for it"},
	{Code: "64", Meaning: "a memory row could not be remapped", NVIDIA: "RESET_GPU", Gpud: "fatal, reboot", DCGM: "fail", AWS: "isolate", Action: schema.ActionRepair, Corrupts: true,
		Why: "the spares of its bank are gone, which NVIDIA's RMA policy takes as reason enough"},
	{Code: "69", Meaning: "graphics engine class error", NVIDIA: "RESTART_APP", Action: schema.ActionObserve,
		Why: "most often the application's own fault"},
	{Code: "74", Meaning: "an NVLink error", NVIDIA: "WORKFLOW_NVLINK_ERR", Gpud: "fatal, reboot", DCGM: "fail", AWS: "reset", Action: schema.ActionCordon, Cure: schema.CureBaseboard, Again: 7 * day,
		Why: "links recover by themselves at times: work is let end, then the baseboard's links are trained anew"},
	{Code: "79", Meaning: "the GPU has fallen off the bus", NVIDIA: "RESTART_BM", Gpud: "fatal, reboot", DCGM: "fail", AWS: "reboot", Action: schema.ActionReset, Cure: schema.CurePower, Again: 30 * day,
		Why: "only a power cycle trains the link anew; a second within 30 days is a bad card or slot"},
	{Code: "92", Meaning: "many correctable memory errors", NVIDIA: "IGNORE", Gpud: "ignore", AWS: "monitor", Action: schema.ActionObserve,
		Why: "the measured rate decides, by a rule of its own"},
	{Code: "94", Meaning: "a contained memory error", NVIDIA: "RESTART_APP", Gpud: "fatal, overridden", DCGM: "warn", AWS: "monitor", Action: schema.ActionObserve,
		Why: "only the process that met it ended; three within a day are a rule of their own"},
	{Code: "95", Meaning: "an uncontained memory error", NVIDIA: "RESET_GPU", Gpud: "fatal, reboot", DCGM: "fail", AWS: "reset", Action: schema.ActionReset, Cure: schema.CureDevice, Again: day, Corrupts: true,
		Why: "other processes on the device may be affected"},
	{Code: "109", Meaning: "a context switch timed out", NVIDIA: "RESET_GPU", Gpud: "fatal", AWS: "reset", Action: schema.ActionReset, Cure: schema.CureDevice, Again: 7 * day, Why: "all say reset"},
	{Code: "110", Meaning: "a security fault", NVIDIA: "RESET_GPU", Gpud: "fatal", AWS: "reset", Action: schema.ActionReset, Cure: schema.CureDevice, Again: 7 * day, Why: "all say reset"},
	{Code: "119", Meaning: "the GPU's system processor did not answer", NVIDIA: "RESET_GPU", Gpud: "fatal, reboot", DCGM: "fail", AWS: "reset", Action: schema.ActionReset, Cure: schema.CureDevice, Again: 7 * day,
		Why: "a reset; a second within a week is the driver, or the card"},
	{Code: "120", Meaning: "the GPU's system processor failed", NVIDIA: "RESET_GPU", Gpud: "fatal, reboot", DCGM: "fail", AWS: "reset", Action: schema.ActionReset, Cure: schema.CureDevice, Again: 7 * day, Why: "as 119"},
	{Code: "121", Meaning: "a chip-to-chip link's corrected error", NVIDIA: "IGNORE", Gpud: "fatal", DCGM: "warn", AWS: "monitor", Action: schema.ActionObserve, Why: "corrected by the hardware"},
	{Code: "136", Meaning: "a link's training failed", NVIDIA: "RESET_GPU", Action: schema.ActionReset, Cure: schema.CureBaseboard, Again: 7 * day, Why: "the links of a baseboard are trained together"},
	{Code: "137", Meaning: "an NVLink privilege error", NVIDIA: "IGNORE", Gpud: "warn", DCGM: "warn", AWS: "monitor", Action: schema.ActionObserve, Why: "the application's"},
	{Code: "140", Meaning: "an unrecovered memory error", NVIDIA: "RESET_GPU", Gpud: "fatal", DCGM: "fail", AWS: "reset", Action: schema.ActionReset, Cure: schema.CureDevice, Again: day, Corrupts: true, Why: "as 95"},
	{Code: "143", Meaning: "the GPU could not be initialised", NVIDIA: "RESET_GPU", Action: schema.ActionReset, Cure: schema.CureDevice, Again: 7 * day, Why: "nothing runs on it anyway"},
	{Code: "144", Meaning: "an error of NVLink 5, told by its SAW unit", NVIDIA: "by its status", Action: schema.ActionObserve, Why: "the catalogue decides by the status in its text, and the driver says what comes of that as XID 154, which is acted on"},
	{Code: "145", Meaning: "an error of NVLink 5, told by its RLW unit", NVIDIA: "by its status", Action: schema.ActionObserve, Why: "as 144"},
	{Code: "146", Meaning: "an error of NVLink 5, told by its TLW unit", NVIDIA: "by its status", Action: schema.ActionObserve, Why: "as 144"},
	{Code: "147", Meaning: "an error of NVLink 5, told by its TREX unit", NVIDIA: "by its status", Action: schema.ActionObserve, Why: "as 144"},
	{Code: "148", Meaning: "an error of NVLink 5, told by its NVLPW_CTRL unit", NVIDIA: "by its status", Action: schema.ActionObserve, Why: "as 144"},
	{Code: "149", Meaning: "an error of NVLink 5, told by its NETIR unit", NVIDIA: "by its status", Action: schema.ActionObserve, Why: "as 144"},
	{Code: "150", Meaning: "an error of NVLink 5, told by its MSE unit", NVIDIA: "by its status", Action: schema.ActionObserve, Why: "as 144"},
	{Code: "154", Meaning: "the action that the driver asks for has changed", NVIDIA: "informational", AWS: "by its text", Action: schema.ActionObserve,
		Why: "what it asks for is in its text: one of the codes below. None is the end of an action"},
	{Code: "154-gpu-reset", Meaning: "the driver asks for a reset of the GPU", NVIDIA: "RESET_GPU", AWS: "reset", Action: schema.ActionReset, Cure: schema.CureDevice, Why: "the driver knows best"},
	{Code: "154-node-reboot", Meaning: "the driver asks for a reboot", NVIDIA: "RESTART_BM", AWS: "reboot", Action: schema.ActionReset, Cure: schema.CureReboot, Why: "the driver knows best"},
	{Code: "154-drain-and-reset", Meaning: "the driver asks for a reset once work has ended", NVIDIA: "RESET_GPU", AWS: "reset", Action: schema.ActionCordon, Cure: schema.CureDevice, Why: "the driver knows best"},
	{Code: "154-drain-p2p", Meaning: "the driver asks that peers leave the GPU", NVIDIA: "RESET_GPU", AWS: "reset", Action: schema.ActionCordon, Cure: schema.CureBaseboard, Why: "the driver knows best"},
}

// xidRules are the rules that the table of XIDs makes.
func xidRules() []Rule {
	var all []Rule
	for _, x := range XIDs {
		source := "NVIDIA XID catalogue: " + x.NVIDIA
		all = append(all, Rule{Name: "xid-" + x.Code, Kind: "xid", Codes: []string{x.Code}, Action: x.Action, Cure: x.Cure, Corrupts: x.Corrupts, Mode: Enforce,
			Why: fmt.Sprintf("%s (XID %s)", x.Meaning, x.Code), Source: source})
		if x.Again > 0 {
			all = append(all, Rule{Name: "xid-" + x.Code + "-again", Kind: "xid", Codes: []string{x.Code}, Count: 2, Within: x.Again, Across: true, Action: schema.ActionRepair, Corrupts: x.Corrupts, Mode: Enforce,
				Why: fmt.Sprintf("%s (XID %s), again on the same device within %s", x.Meaning, x.Code, days(x.Again)), Source: source + "; the window is proposed"})
		}
	}
	return append(all,
		Rule{Name: "xid-48-with-64", Kind: "xid", Codes: []string{"48"}, Beside: "64", Within: time.Minute, Action: schema.ActionRepair, Corrupts: true, Mode: Enforce,
			Why: "an uncorrectable memory error whose row could not be remapped (XID 48 with 64)", Source: "NVIDIA XID catalogue: WORKFLOW_XID_48; the window is proposed"},
		Rule{Name: "xid-94-again", Kind: "xid", Codes: []string{"94"}, Count: 3, Within: day, Action: schema.ActionCordon, Cure: schema.CureDevice, Mode: Enforce,
			Why: "three contained memory errors (XID 94) on one device within a day", Source: "DCGM health: warning; the count is proposed"},
		Rule{Name: "xid-31-again", Kind: "xid", Codes: []string{"31"}, Count: 5, Within: day, Action: schema.ActionCordon, Cure: schema.CureBurnIn, Mode: Watch,
			Why: "five memory page faults (XID 31) on one device within a day", Source: "NVSentinel: twice on one GPU is suspect; more is asked here"},
		Rule{Name: "xid-13-again", Kind: "xid", Codes: []string{"13"}, Count: 5, Within: day, Action: schema.ActionCordon, Cure: schema.CureBurnIn, Mode: Watch,
			Why: "five graphics engine exceptions (XID 13) on one device within a day", Source: "NVSentinel: twice in one unit of one GPU is suspect; more is asked here"},
	)
}

// asked finds the new action in XID 154's text: "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)". The
// numbers are NVML's nvmlDeviceGpuRecoveryAction_t.
var asked = regexp.MustCompile(`(?i)recovery action changed from .* to 0x([0-9a-f]+)\b`)

var askedCodes = map[string]string{"1": "154-gpu-reset", "2": "154-node-reboot", "3": "154-drain-p2p", "4": "154-drain-and-reset"}

// code is a fault's code as rules know it: XID 154 by what it asks for.
func code(f schema.Fault) string {
	if f.Kind != "xid" || f.Code != "154" {
		return f.Code
	}
	m := asked.FindStringSubmatch(f.Text)
	if m == nil {
		return f.Code
	}
	if c := askedCodes[strings.TrimLeft(m[1], "0")]; c != "" {
		return c
	}
	return f.Code
}

func days(d time.Duration) string {
	if n := int(d / day); n != 1 {
		return fmt.Sprintf("%d days", n)
	}
	return "a day"
}
