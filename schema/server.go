package schema

// Phase is where a server is in its life; see Phases for what may follow what.
type Phase string

const (
	PhaseEnrolled   Phase = "enrolled"
	PhaseOnboarding Phase = "onboarding"
	PhaseAvailable  Phase = "available"
	PhaseDraining   Phase = "draining"
	PhaseRepairing  Phase = "repairing"
	PhaseRetiring   Phase = "retiring"
	PhaseRetired    Phase = "retired"
)

// Step is one step of onboarding, in Steps' order.
type Step string

const (
	StepVerifyBMC Step = "verify-bmc"
	StepInspect   Step = "inspect"
	StepProvision Step = "provision"
	StepDrivers   Step = "drivers"
	StepRuntime   Step = "runtime"
	StepBurnIn    Step = "burn-in"
	StepRegister  Step = "register"
)

// Steps is the order of onboarding.
var Steps = []Step{StepVerifyBMC, StepInspect, StepProvision, StepDrivers, StepRuntime, StepBurnIn, StepRegister}

// Steps of a server's way out, beside StepVerifyBMC.
const (
	StepDeregister Step = "deregister"
	StepSanitise   Step = "sanitise"
	StepPowerOff   Step = "power-off"
)

// RetireSteps is the order of a retirement, once the server's jobs have ended.
var RetireSteps = []Step{StepVerifyBMC, StepDeregister, StepSanitise, StepPowerOff}

// StepsIn are the steps that a server in a phase goes through: its way in, or its way out.
func StepsIn(p Phase) []Step {
	if p == PhaseRetiring || p == PhaseRetired {
		return RetireSteps
	}
	return Steps
}

// StepState is how far a step has come.
type StepState string

const (
	StepRunning StepState = "running"
	StepDone    StepState = "done"
	StepFailed  StepState = "failed"
	StepSkipped StepState = "skipped"
	StepUndone  StepState = "undone"
)

// Server is one bare-metal machine. Credentials of its BMC are not in it: see store.BMCCredential.
type Server struct {
	ID     string `gorm:"primaryKey" json:"id"`
	Name   string `json:"name"`   // unique; what people call it
	Region string `json:"region"` //
	Site   string `json:"site"`   // one provisioning network
	Rack   string `json:"rack"`
	Unit   int    `json:"unit"` // rack unit, 0 = not told

	Serial       string `json:"serial"` // chassis serial as ordered; unique
	UUID         string `json:"uuid"`   // SMBIOS UUID, read from the BMC
	Manufacturer string `json:"manufacturer"`
	Product      string `json:"product"`
	MACs         string `gorm:"column:macs" json:"macs"` // comma-separated, lower case, colon form; each unique over all servers
	Arch         string `json:"arch"`                    // x86_64, arm64

	BMCAddress  string `gorm:"column:bmc_address" json:"bmc_address"`   // https://host[:port]
	BMCProtocol string `gorm:"column:bmc_protocol" json:"bmc_protocol"` // redfish, ipmi
	BMCSystem   string `gorm:"column:bmc_system" json:"bmc_system"`     // the Redfish system that it is, where its BMC serves several servers; else empty
	BMCPlace    string `gorm:"column:bmc_place" json:"-"`               // address#system, else address#serial; unique

	Model        string `json:"model"`        // accelerator model ordered, e.g. nvidia-h100-80gb
	Accelerators int    `json:"accelerators"` // how many were ordered
	CPUs         int    `gorm:"column:cpus" json:"cpus"`
	MemoryBytes  int64  `json:"memory_bytes"` //
	Build        string `json:"build"`        // what else it was ordered with; empty = the build named as Model, if there is one
	Profile      string `json:"profile"`      // install profile of its own; empty = its rack's, its model's or the default
	Backend      string `json:"backend"`      // node, slurm, kubernetes
	Cluster      string `json:"cluster"`      // the cluster it is a node of, under its name; empty with backend node
	NVLinkDomain string `gorm:"column:nvlink_domain" json:"nvlink_domain"`

	Phase     Phase `json:"phase"`
	Attempt   int   `json:"attempt"`   // onboarding attempt; each start takes the next
	Step      Step  `json:"step"`      // of the onboarding that runs or stopped
	Protected bool  `json:"protected"` // refuses every destructive step

	// Failure is set while an in-progress phase has stopped and waits for a person.
	FailureCode      string `json:"failure_code,omitempty"`
	FailureText      string `json:"failure_text,omitempty"` // what was proven, what was not, what to do
	FailureRetryable bool   `json:"failure_retryable,omitempty"`

	Pause Pause `gorm:"embedded;embeddedPrefix:pause_" json:"pause,omitzero"`

	Epoch     int64   `json:"epoch"`      // rises whenever the hardware may have changed hands: repair, reinstall
	AgentSeen Instant `json:"agent_seen"` // last heartbeat stored; coarse (see store.SeenEvery)
	BootID    string  `json:"boot_id"`
	Shared    string  `json:"shared,omitempty"` // why its agent does not keep jobs apart; empty = it does, or runs none
	CreatedAt Instant `gorm:"autoCreateTime:false" json:"created_at"`
	UpdatedAt Instant `gorm:"autoUpdateTime:false" json:"updated_at"`
	Version   int64   `json:"version"` // optimistic lock: rises with every write
}

// Pause is a person's word that an onboarding is to stop before a step, where nothing is half done.
type Pause struct {
	Before Step    `json:"before,omitempty"` // empty = before the next step, whichever it is
	By     string  `json:"by,omitempty"`
	Reason string  `json:"reason,omitempty"`
	At     Instant `json:"at,omitzero"`      // when it was asked for; 0 = there is none
	HeldAt Instant `json:"held_at,omitzero"` // since when the onboarding stands there; 0 = it has not come so far
}

// Difference is one way in which a server is not as it was ordered, as one witness (the BMC, the agent) tells it. Who accepts
// one accepts it for the machine of this serial; any other difference stops it again.
type Difference struct {
	ID         string  `gorm:"primaryKey" json:"id"`
	Serial     string  `json:"serial"`  // of the server
	Item       string  `json:"item"`    // accelerators-by-bmc, accelerators, memory-by-bmc, cores-by-bmc; of a build a part, or a part and what of it: nvme, nic link width
	Ordered    string  `json:"ordered"` // in words
	Found      string  `json:"found"`   // in words
	Missing    int     `json:"missing"` // accelerators that are not there
	Words      string  `json:"words"`   // for the step that stopped
	Server     string  `json:"server"`
	Attempt    int     `json:"attempt"` // that saw it last
	Step       Step    `json:"step"`
	There      bool    `json:"there"` // the last look saw it
	SeenAt     Instant `json:"seen_at"`
	AcceptedAt Instant `json:"accepted_at"` // 0 = nobody has
	AcceptedBy string  `json:"accepted_by,omitempty"`
	Reason     string  `json:"reason,omitempty"`
}

// ItemAccelerators is the difference in accelerators that the agent tells, which reads the devices themselves.
const ItemAccelerators = "accelerators"

// OneTenant reports whether jobs of several tenants must not meet on it: its agent, which runs them, does not keep them apart.
func (s Server) OneTenant() bool { return s.Backend == "node" && s.Shared != "" }

// StepRun is one run of one onboarding step.
type StepRun struct {
	Server  string    `gorm:"primaryKey" json:"server"`
	Attempt int       `gorm:"primaryKey" json:"attempt"`
	Step    Step      `gorm:"primaryKey" json:"step"`
	Try     int       `json:"try"` // counts retries of the step, from 1
	State   StepState `json:"state"`
	Detail  string    `json:"detail"` // what it does now, or what came of it, in words
	Started Instant   `json:"started"`
	Ended   Instant   `json:"ended"`
}

// CordonOwner says who put a cordon there; each owner lifts only its own.
type CordonOwner string

const (
	CordonOperator    CordonOwner = "operator"
	CordonFault       CordonOwner = "fault"
	CordonMaintenance CordonOwner = "maintenance"
	CordonRelease     CordonOwner = "release" // a job's end could not be confirmed
	CordonCluster     CordonOwner = "cluster" // its cluster is away, drained the node, or uses the device for other work
)

// Cordon keeps new jobs off a server, or off one accelerator of it. Cordons are a set: all must be lifted.
type Cordon struct {
	ID          string      `gorm:"primaryKey" json:"id"`
	Server      string      `json:"server"`
	Accelerator string      `json:"accelerator,omitempty"` // empty = the whole server
	Owner       CordonOwner `json:"owner"`
	By          string      `json:"by"`     // the person or component
	Reason      string      `json:"reason"` // in words
	At          Instant     `json:"at"`
	LiftedAt    Instant     `json:"lifted_at"`
	LiftedBy    string      `json:"lifted_by,omitempty"`
}
