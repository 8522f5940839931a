package config

import (
	"fmt"
	"time"
)

// Timing is how long things may take before something else is done about them. The defaults are for machines of metal;
// every process of a pool should be given the same.
type Timing struct {
	BMC         time.Duration `yaml:"bmc" help:"One act at a BMC (power, boot override, reading), all tries together." zero:"15m" example:"10m"`
	PhoneHome   time.Duration `yaml:"phone_home" help:"From power on to the word of the installed system: POST, network boot, installation. When it has passed the boot is diagnosed and the onboarding stops for a person. An attempt stays armed for twice as long, and for three times timing.bmc before it, since its power is switched meanwhile; its boot tokens are good for twice as long." zero:"30m" example:"45m"`
	Setup       time.Duration `yaml:"setup" help:"Drivers, and container runtime, each." zero:"30m" example:"1h"`
	Inventory   time.Duration `yaml:"inventory" help:"Reading a server's devices." zero:"5m" example:"10m"`
	BurnIn      time.Duration `yaml:"burn_in" help:"The whole burn-in of a server." zero:"6h" example:"30m"`
	AgentBack   time.Duration `yaml:"agent_back" help:"For an agent to be heard of after its server's power was switched on." zero:"20m" example:"30m"`
	Undo        time.Duration `yaml:"undo" help:"One act of undoing when an onboarding is aborted, all tries together." zero:"10m" example:"5m"`
	Sanitise    time.Duration `yaml:"sanitise" help:"For the run that empties all disks of a server that is retired: overwriting a large disk takes a day." zero:"48h" example:"96h"`
	Leave       time.Duration `yaml:"leave" help:"For a cluster to let a node go whose server is retired." zero:"1h" example:"4h"`
	Heartbeat   time.Duration `yaml:"heartbeat" help:"How often an agent reports, as it is told when it registers; 100ms to a quarter of agent_silent." zero:"5s" example:"10s"`
	AgentSilent time.Duration `yaml:"agent_silent" help:"An agent that was not heard of for this long is silent: its server is a fault in the pool, and is not let into it." zero:"1m" example:"2m"`
	Suspect     time.Duration `yaml:"suspect" help:"For a server with a suspect device to become idle by itself; then it takes no more work at all." zero:"24h" example:"8h"`
	DeviceReset time.Duration `yaml:"device_reset" help:"A reset of devices by their server's agent." zero:"5m" example:"10m"`
	PowerRest   time.Duration `yaml:"power_rest" help:"How long a server stays off in a power cycle that is to cure it: so long that nothing in it keeps its charge." zero:"30s" example:"2m"`
	Drain       time.Duration `yaml:"drain" help:"For a server's jobs to end when it is taken out for repair, before a person is called." zero:"15m" example:"1h"`
	PowerCut    time.Duration `yaml:"power_cut" help:"A server that is to be repaired, still holds jobs, and whose agent was silent for this long, has its power cut: that proves that the jobs have ended. At least agent_silent." zero:"10m" example:"20m"`
	Technician  time.Duration `yaml:"technician" help:"How long a repair waits for its technician before it is told of as overdue, and again each time as long." zero:"24h" example:"8h"`
	JobLaunch   time.Duration `yaml:"job_launch" help:"For an allocated job to run on all its servers; then it goes back to the queue." zero:"5m" example:"10m"`
	JobRelease  time.Duration `yaml:"job_release" help:"How long after a job's own grace its end may stay unconfirmed before its servers are cordoned." zero:"30s" example:"2m"`
}

// DefaultTiming is what is meant where nothing is set.
var DefaultTiming = Timing{BMC: 15 * time.Minute, PhoneHome: 30 * time.Minute, Setup: 30 * time.Minute, Inventory: 5 * time.Minute, BurnIn: 6 * time.Hour,
	AgentBack: 20 * time.Minute, Undo: 10 * time.Minute, Sanitise: 48 * time.Hour, Leave: time.Hour, Heartbeat: 5 * time.Second, AgentSilent: time.Minute, Drain: 15 * time.Minute, PowerCut: 10 * time.Minute,
	Suspect: 24 * time.Hour, DeviceReset: 5 * time.Minute, PowerRest: 30 * time.Second, Technician: 24 * time.Hour, JobLaunch: 5 * time.Minute, JobRelease: 30 * time.Second}

// Bounds of what a wait may be set to. Temporal's timers are no finer than a second.
const (
	shortestWait = time.Second
	longestWait  = 30 * 24 * time.Hour
)

// each visits the waits with their defaults, in the order of the file.
func (t *Timing) each(visit func(name string, have *time.Duration, left time.Duration)) {
	d := DefaultTiming
	for _, f := range []struct {
		name string
		have *time.Duration
		left time.Duration
	}{
		{"bmc", &t.BMC, d.BMC}, {"phone_home", &t.PhoneHome, d.PhoneHome}, {"setup", &t.Setup, d.Setup}, {"inventory", &t.Inventory, d.Inventory}, {"burn_in", &t.BurnIn, d.BurnIn},
		{"agent_back", &t.AgentBack, d.AgentBack}, {"undo", &t.Undo, d.Undo}, {"sanitise", &t.Sanitise, d.Sanitise}, {"leave", &t.Leave, d.Leave}, {"heartbeat", &t.Heartbeat, d.Heartbeat}, {"agent_silent", &t.AgentSilent, d.AgentSilent},
		{"suspect", &t.Suspect, d.Suspect}, {"device_reset", &t.DeviceReset, d.DeviceReset}, {"power_rest", &t.PowerRest, d.PowerRest},
		{"drain", &t.Drain, d.Drain}, {"power_cut", &t.PowerCut, d.PowerCut}, {"technician", &t.Technician, d.Technician}, {"job_launch", &t.JobLaunch, d.JobLaunch}, {"job_release", &t.JobRelease, d.JobRelease},
	} {
		visit(f.name, f.have, f.left)
	}
}

func (t *Timing) fill() {
	t.each(func(_ string, have *time.Duration, left time.Duration) {
		if *have == 0 {
			*have = left
		}
	})
}

func (t Timing) validate(v *checks) {
	t.each(func(name string, have *time.Duration, _ time.Duration) {
		if name != "heartbeat" {
			v.that(*have >= shortestWait && *have <= longestWait, "timing."+name, *have, fmt.Sprintf("%s to %s", shortestWait, longestWait))
		}
	})
	v.that(t.Heartbeat >= 100*time.Millisecond && t.Heartbeat <= t.AgentSilent/4, "timing.heartbeat", t.Heartbeat, fmt.Sprintf("100ms to %s, a quarter of timing.agent_silent", t.AgentSilent/4))
	v.that(t.PowerCut >= t.AgentSilent, "timing.power_cut", t.PowerCut, fmt.Sprintf("%s or more, which is timing.agent_silent", t.AgentSilent))
}
