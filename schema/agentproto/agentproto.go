// Package agentproto is what a server's agent and the API say to each other over HTTPS: messages, paths and the
// signature that proves who speaks.
//
// Invariant: after registering (with the attempt's one-time phone-home token) an agent holds nothing but its own
// Ed25519 key; every request is signed over method, path, moment and body, so that a recorded request can't be
// sent for another path, with another body, or more than MaxSkew later, and the process that took it takes it no second time; TLS
// keeps it from being recorded. Not here: HTTP itself (worker/agent, api).
package agentproto

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"gpupool/schema"
	"gpupool/schema/hardware"
)

// Paths of the agent's API. Register is authorised by `Authorization: Bearer <phone-home token>`, all others by Sign.
const (
	PathRegister  = "/agent/v1/register"  // POST Register -> Registered
	PathHeartbeat = "/agent/v1/heartbeat" // POST Heartbeat -> HeartbeatReply
	PathTasks     = "/agent/v1/tasks"     // GET ?wait=30s -> []Task: claims them; again after a restart for those claimed and not ended
	PathReport    = "/agent/v1/report"    // POST Report -> ReportReply; several tasks at once
)

// Refused begins the text of a task that an agent did not begin: for what was asked for, or for what its server lacks.
const Refused = "refused: "

// Register is an installed OS saying that it is up. It also is the phone-home of the install.
type Register struct {
	Server    string `json:"server"`     // server id, from the boot script
	Attempt   int    `json:"attempt"`    // onboarding attempt, from the boot script
	PublicKey string `json:"public_key"` // base64 (std) Ed25519
	BootID    string `json:"boot_id"`    // /proc/sys/kernel/random/boot_id
	Serial    string `json:"serial"`     // chassis serial by SMBIOS
	UUID      string `json:"uuid"`       // SMBIOS UUID
	Version   string `json:"version"`    // agent's version
	Hostname  string `json:"hostname"`
}

// Registered is the answer to Register.
type Registered struct {
	Server         string `json:"server"`
	HeartbeatEvery int64  `json:"heartbeat_every_ms"`
}

// Device is one accelerator as the agent reads it now.
type Device struct {
	Vendor      schema.Vendor `json:"vendor"`
	Model       string        `json:"model"` // normalised: nvidia-h100-80gb, amd-mi300x-192gb
	Serial      string        `json:"serial"`
	UUID        string        `json:"uuid"`
	PCI         string        `json:"pci"`
	Slot        string        `json:"slot"`
	Index       int           `json:"index"`
	MemoryBytes int64         `json:"memory_bytes"`
	Firmware    string        `json:"firmware"`
	// Samples are metric name -> value; a metric that is missing is unknown, one in NotApplicable can't be said.
	Samples       map[string]float64 `json:"samples,omitempty"`
	NotApplicable []string           `json:"not_applicable,omitempty"`
	Error         string             `json:"error,omitempty"` // the device is listed but could not be read
}

// Evidence is one fault as the agent saw it.
type Evidence struct {
	Device   string          `json:"device"` // serial, else UUID, else PCI; empty = the server
	Kind     string          `json:"kind"`   // xid, ras, ecc-uncorrectable, absent, thermal, ...
	Code     string          `json:"code"`
	Part     string          `json:"part,omitempty"`  // of the device or server, where there are several of a kind: a port, a fan
	Value    float64         `json:"value,omitempty"` // what was measured, in the kind's unit; 0 = nothing was
	Severity schema.Severity `json:"severity"`
	Text     string          `json:"text"`
	At       schema.Instant  `json:"at"`
	Clear    bool            `json:"clear,omitempty"` // it is over: earlier evidence of this device, kind, code and part is cleared
	ID       string          `json:"id"`              // unique on this server and boot: boot id + source + sequence
}

// Heartbeat is sent every HeartbeatEvery, and at once when there is new evidence.
type Heartbeat struct {
	BootID   string     `json:"boot_id"`
	Version  string     `json:"version"`
	Devices  []Device   `json:"devices"`          // nil = not read this time; empty = read, none there
	Evidence []Evidence `json:"evidence"`         // kept by the agent until acknowledged
	Running  []string   `json:"running"`          // ids of the tasks whose processes live
	Apart    bool       `json:"apart"`            // jobs of this server are kept apart from each other
	Shared   string     `json:"shared,omitempty"` // why they are not
}

// What one heartbeat may hold: far more than a server has, and little enough that a server which was taken over can't fill the
// record. 64 partitions are the most that eight MI300X show.
const (
	MaxDevices  = 256
	MaxEvidence = 1000
	MaxWord     = 200  // bytes of a name, kind, code or identity
	MaxText     = 4000 // bytes of an evidence's text that are kept; the rest is cut off
)

// Check refuses a heartbeat that no agent makes. Text that is too long is no reason: a kernel's line may be.
func (h Heartbeat) Check() error {
	for _, c := range []struct {
		field   string
		n, most int
	}{{"devices", len(h.Devices), MaxDevices}, {"evidence", len(h.Evidence), MaxEvidence}, {"running", len(h.Running), MaxEvidence}} {
		if c.n > c.most {
			return schema.Invalid(c.field, fmt.Sprintf("a list of %d", c.n), fmt.Sprintf("at most %d", c.most))
		}
	}
	word := func(field, w string, most int) error {
		if len(w) > most {
			return schema.Invalid(field, fmt.Sprintf("%.40q... (%d bytes)", w, len(w)), fmt.Sprintf("at most %d bytes", most))
		}
		return nil
	}
	for i, d := range h.Devices {
		for field, w := range map[string]string{"vendor": string(d.Vendor), "model": d.Model, "serial": d.Serial, "uuid": d.UUID, "pci": d.PCI, "slot": d.Slot, "firmware": d.Firmware} {
			if err := word(fmt.Sprintf("devices[%d].%s", i, field), w, MaxWord); err != nil {
				return err
			}
		}
	}
	for i, e := range h.Evidence {
		for field, w := range map[string]string{"device": e.Device, "kind": e.Kind, "code": e.Code, "part": e.Part} {
			if err := word(fmt.Sprintf("evidence[%d].%s", i, field), w, MaxWord); err != nil {
				return err
			}
		}
		if err := word(fmt.Sprintf("evidence[%d].id", i), e.ID, 2*MaxWord); err != nil {
			return err
		}
	}
	return nil
}

// HeartbeatReply acknowledges evidence by id.
type HeartbeatReply struct {
	Acknowledged []string `json:"acknowledged"`
	// Unknown are ids in Running that the platform has ended or never gave out: the agent kills their processes.
	Unknown []string `json:"unknown"`
}

// Task is one piece of work. The agent does each id at most once, over its restarts too.
type Task struct {
	ID      string          `json:"id"` // workflow id + step + attempt: job/<id>/<attempt>/<server>, server/<id>/<attempt>/<step>/<try>
	Kind    schema.TaskKind `json:"kind"`
	Epoch   int64           `json:"epoch"` // refuse it where a device was given out under a higher one
	Payload json.RawMessage `json:"payload"`
	Stop    bool            `json:"stop,omitempty"` // stop the task of this id: signal, grace, kill, and report its end
	Signal  string          `json:"signal,omitempty"`
	GraceMS int64           `json:"grace_ms,omitempty"`
}

// Run is the payload of a run task: this node's part of a job.
type Run struct {
	Job     string            `json:"job"`
	Attempt int               `json:"attempt"`
	Command []string          `json:"command"`
	Env     map[string]string `json:"env"`
	WorkDir string            `json:"work_dir"`
	Devices []string          `json:"devices"` // accelerator identities: serial, else UUID, else PCI
	Rank    int               `json:"rank"`    // this node's place in the gang, from 0
	Nodes   int               `json:"nodes"`
	Peers   []string          `json:"peers"` // names of the gang's servers, in rank order
	// Limits of this node's part, of the spec; 0 = none. A server that can't keep jobs apart can't hold them.
	CPUs        int   `json:"cpus,omitempty"`
	MemoryBytes int64 `json:"memory_bytes,omitempty"`
	// User owns the files of the job's volumes; 0 = one that is this job's alone.
	User   int      `json:"user,omitempty"`
	Mounts []Mount  `json:"mounts,omitempty"` // folders of the server that the job asked for
	Allow  []string `json:"allow,omitempty"`  // folders that mounts may be of, or lie in: the operator's list
	// Network is host (also when empty), or none.
	Network string `json:"network,omitempty"`
	Image   string `json:"image,omitempty"` // container image that the command runs in; empty = the server's own system
}

// Mount is a folder of the server that a job sees at Target.
type Mount struct {
	Source   string `json:"source"` // empty = it is a claim, which only a cluster can show
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
	// What a cluster shows: Folder of the claim, or of the volume's own folder on the server.
	Claim  string `json:"claim,omitempty"`
	Volume string `json:"volume,omitempty"`
	Folder string `json:"folder,omitempty"`
}

// BurnIn is the payload of a burn-in task.
type BurnIn struct {
	Suite   string   `json:"suite"`
	Model   string   `json:"model"`
	Devices int      `json:"devices"`           // how many must be there
	Only    []string `json:"only,omitempty"`    // identities to test in depth; empty = all
	Seconds float64  `json:"seconds,omitempty"` // how long each test lasts; 0 = the suite's own
}

// Reset is the payload of a reset task. No job may run on what is reset.
type Reset struct {
	Devices []string `json:"devices,omitempty"` // identities; empty = all, with what links them
}

// BurnInResult is a burn-in's outcome. Only "passed" opens the gate.
type BurnInResult struct {
	Outcome string             `json:"outcome"` // passed, failed, inconclusive
	Failed  []BurnInFailure    `json:"failed,omitempty"`
	Tests   []string           `json:"tests"`
	Devices []string           `json:"devices"`
	Figures map[string]float64 `json:"figures,omitempty"`
	// Suite is what was run, with its version: "standard/1". Evidence is what each program printed.
	Suite    string           `json:"suite,omitempty"`
	Evidence []BurnInEvidence `json:"evidence,omitempty"`
}

// BurnInEvidence is one run of a test program: what a verdict was read from.
type BurnInEvidence struct {
	Test     string `json:"test"`
	Command  string `json:"command"`
	Version  string `json:"version,omitempty"` // as the program says it
	ExitCode int    `json:"exit_code"`         // -1 = killed, or never started
	SHA256   string `json:"sha256"`            // hex, of all that it printed
	Bytes    int    `json:"bytes"`
	Output   string `json:"output"` // its end, at most 16 KiB
}

// BurnInFailure names the device and the test.
type BurnInFailure struct {
	Device string `json:"device"`
	Slot   string `json:"slot"`
	Test   string `json:"test"`
	Text   string `json:"text"`
}

// Setup is the payload of a drivers or runtime task: the steps of a versioned setup profile. They are taken in order; what
// they were to bring is proven afterwards, by reading the devices or running a container.
type Setup struct {
	Profile string      `json:"profile"` // with its version: nvidia/1
	Vendor  string      `json:"vendor"`
	Steps   []SetupStep `json:"steps,omitempty"`
}

// SetupStep is one command of a setup, for /bin/sh, as root.
type SetupStep struct {
	Name    string `json:"name"`
	Unless  string `json:"unless,omitempty"` // a command: where it exits with 0 the step has nothing to do
	Run     string `json:"run"`
	Reboot  bool   `json:"reboot,omitempty"` // the server restarts after it, and goes on with the next step
	LimitMS int64  `json:"limit_ms"`
}

// SetupResult is the result of a drivers or runtime task.
type SetupResult struct {
	Profile string     `json:"profile"`
	Steps   []SetupRun `json:"steps,omitempty"`
	Proof   string     `json:"proof,omitempty"` // what was read of the devices, or what the container said; empty = it did not come to that
}

// SetupRun is what came of one step.
type SetupRun struct {
	Name     string         `json:"name"`
	Skipped  bool           `json:"skipped,omitempty"` // there was nothing to do
	ExitCode int            `json:"exit_code"`         // -1 = killed, or never started
	Began    schema.Instant `json:"began"`
	Ended    schema.Instant `json:"ended"`
	Output   string         `json:"output,omitempty"` // the last 16 KiB of both streams
	SHA256   string         `json:"sha256,omitempty"` // of all of it
	Boot     string         `json:"boot"`             // id of the boot in which it ran
	Reboot   bool           `json:"reboot,omitempty"` // the server was restarted after it
}

// Inventory is the result of an inventory task.
type Inventory struct {
	Serial      string            `json:"serial"`
	UUID        string            `json:"uuid"`
	CPUs        int               `json:"cpus"`
	MemoryBytes int64             `json:"memory_bytes"`
	Devices     []Device          `json:"devices"`
	Drivers     map[string]string `json:"drivers"` // vendor -> driver version read from the devices
	Runtime     string            `json:"runtime"` // container runtime and version, read from it
	// Hardware are the parts beside the devices; nil = this agent reads none.
	Hardware *hardware.Read `json:"hardware,omitempty"`
}

// TaskReport tells how far one task has come. Reports of one task carry a rising Seq; a repeat is ignored.
type TaskReport struct {
	Task     string           `json:"task"`
	Seq      int64            `json:"seq"`
	State    schema.TaskState `json:"state"` // running, done, failed, cancelled
	ExitCode *int             `json:"exit_code,omitempty"`
	Signal   string           `json:"signal,omitempty"`  // the signal that ended the process
	Text     string           `json:"text,omitempty"`    // progress or cause, in words
	Output   string           `json:"output,omitempty"`  // new output since the last report
	Result   json.RawMessage  `json:"result,omitempty"`  // Inventory, BurnInResult
	NoneLeft bool             `json:"none_left"`         // proven: no process of the task is left
	Devices  []string         `json:"devices,omitempty"` // what was really bound
	// Of what runs on a cluster: which of a service's instances it is, and how many bytes its output had when Output was read.
	Instance   string         `json:"instance,omitempty"`
	OutputRead int64          `json:"output_read,omitempty"`
	Restarts   int            `json:"restarts,omitempty"` // how often a cluster has begun a service again by itself, in this task
	At         schema.Instant `json:"at"`
}

// Report carries several task reports at once.
type Report struct {
	Tasks []TaskReport `json:"tasks"`
}

// ReportReply lists the reports that were kept or were repeats; the agent forgets those.
type ReportReply struct {
	Accepted []string `json:"accepted"` // task ids
}

// Sign returns the Authorization header's value for a request of server at now. path includes the query.
func Sign(key ed25519.PrivateKey, server, method, path string, body []byte, now time.Time) string {
	ms := strconv.FormatInt(now.UnixMilli(), 10)
	sig := ed25519.Sign(key, signed(server, method, path, ms, body))
	return "Agent " + server + ":" + ms + ":" + base64.RawURLEncoding.EncodeToString(sig)
}

// MaxSkew is how far the agent's clock may be from the API's.
const MaxSkew = 5 * time.Minute

// Parse splits an Authorization header made by Sign; Verify checks it once the caller has the server's key.
func Parse(header string) (server string, at time.Time, sig []byte, err error) {
	rest, ok := strings.CutPrefix(header, "Agent ")
	parts := strings.Split(rest, ":")
	if !ok || len(parts) != 3 {
		return "", time.Time{}, nil, fmt.Errorf("authorization is not of the form \"Agent server:ms:signature\"")
	}
	ms, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return "", time.Time{}, nil, fmt.Errorf("authorization's moment is not a number of milliseconds")
	}
	sig, err = base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		return "", time.Time{}, nil, fmt.Errorf("authorization's signature is not base64url")
	}
	return parts[0], time.UnixMilli(ms), sig, nil
}

// Verify checks a signature made by Sign, and that it was made within MaxSkew of now.
func Verify(key ed25519.PublicKey, server, method, path string, body []byte, at time.Time, sig []byte, now time.Time) error {
	if d := now.Sub(at); d > MaxSkew || d < -MaxSkew {
		return fmt.Errorf("the request was signed %s away from now; at most %s is allowed: set the server's clock", d.Round(time.Second), MaxSkew)
	}
	if len(key) != ed25519.PublicKeySize || !ed25519.Verify(key, signed(server, method, path, strconv.FormatInt(at.UnixMilli(), 10), body), sig) {
		return fmt.Errorf("the signature does not fit the key that %s registered", server)
	}
	return nil
}

func signed(server, method, path, ms string, body []byte) []byte {
	h := sha256.Sum256(body)
	return []byte("gpupool-agent-1\n" + server + "\n" + method + "\n" + path + "\n" + ms + "\n" + hex.EncodeToString(h[:]))
}
