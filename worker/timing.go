package worker

import (
	"time"

	"gpupool/activities/health"
	"gpupool/activities/install"
	"gpupool/worker/config"
	"gpupool/workflows"
)

// waits are the configured times as the processes take them.
func waits(t config.Timing) (install.Timing, health.Timing, workflows.RunJobInput) {
	return install.Timing{PhoneHome: t.PhoneHome, BMC: t.BMC, Setup: t.Setup, Inventory: t.Inventory, BurnIn: t.BurnIn, AgentSilent: t.AgentSilent, AgentBack: t.AgentBack, Undo: t.Undo, Sanitise: t.Sanitise, Leave: t.Leave},
		health.Timing{Idle: t.Suspect, Reset: t.DeviceReset, Off: t.PowerRest, Drain: t.Drain, Silent: t.PowerCut, Technician: t.Technician, BMC: t.BMC, AgentBack: t.AgentBack, Inventory: t.Inventory, BurnIn: t.BurnIn},
		workflows.RunJobInput{LaunchTimeout: t.JobLaunch, ReleaseMargin: t.JobRelease}
}

// seenEvery is how often the record keeps that an agent was heard of: a quarter of what makes it silent, and as much again
// for a heartbeat, are far from it.
func seenEvery(t config.Timing) time.Duration { return t.AgentSilent / 4 }

// tokensLive is how long a boot token is good: as long as its attempt is armed.
func tokensLive(t config.Timing) time.Duration { return 2 * t.PhoneHome }
