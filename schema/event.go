package schema

import "encoding/json"

// EventKind names what happened. The part before the dot is the subject's kind.
type EventKind string

const (
	EventServerEnrolled   EventKind = "server.enrolled"
	EventServerPhase      EventKind = "server.phase"       // data: from, to, why
	EventServerStep       EventKind = "server.step"        // data: attempt, step, state, detail
	EventServerFailure    EventKind = "server.failure"     // data: code, text, retryable
	EventServerCordoned   EventKind = "server.cordoned"    // data: owner, by, reason, accelerator
	EventServerUncordoned EventKind = "server.uncordoned"  //
	EventServerProtected  EventKind = "server.protected"   // data: protected
	EventServerIdentified EventKind = "server.identified"  // what the BMC says it is
	EventServerPhonedHome EventKind = "server.phoned-home" // data: attempt. Delivered to server/<id>
	EventServerInstall    EventKind = "server.install"     // data: attempt, state (installed, failed), text. Delivered to server/<id>
	EventServerAgent      EventKind = "server.agent"       // data: boot_id; the agent of a booted OS is up. Delivered
	EventServerDrained    EventKind = "server.drained"     // no live allocation is left. Delivered
	EventServerDifference EventKind = "server.difference"  // it is not as ordered, or somebody accepts that; data: item, ordered, found, accepted, reason
	EventServerPause      EventKind = "server.pause"       // data: state (asked, held, lifted), before, reason
	EventServerRetire     EventKind = "server.retire"      // data: state (asked, left, taken-back), reason. Delivered: starts RetireServer
	EventServerDrive      EventKind = "server.drive"       // a drive's certificate; data: serial, name, outcome, trouble, method
	EventServerDiscovered EventKind = "server.discovered"  // an unknown MAC asked to boot

	EventServerBMC EventKind = "server.bmc" // data: what (seen, credential-set, password-rotated, key-trusted) and what belongs to it
	EventBMCAsked  EventKind = "bmc.asked"  // data: verb, args, site. Delivered: starts ActOnBMC
	EventBMCEnded  EventKind = "bmc.ended"  // data: verb, failure, code

	EventAcceleratorSeen      EventKind = "accelerator.seen"      // first time, or on another server
	EventAcceleratorHealth    EventKind = "accelerator.health"    // data: from, to, why
	EventAcceleratorInstalled EventKind = "accelerator.installed" // proven: from now on it is capacity
	EventAcceleratorGone      EventKind = "accelerator.gone"      // taken out of a server

	EventFault        EventKind = "fault.reported" // evidence stored. Delivered to activities/health
	EventFaultCleared EventKind = "fault.cleared"  // data: kind, code, part, accelerator, why
	EventBreaker      EventKind = "breaker.state"  // automatic cordons of a scope stopped, or go on; data: scope, open, why
	EventRepairOpened EventKind = "repair.opened"  // Delivered: starts RepairServer
	EventRepairState  EventKind = "repair.state"   // data: from, to, why
	EventRepairNews   EventKind = "repair.news"    // its evidence changed: more of it, or some cleared. data: action, cure, why. Delivered
	EventRepairDone   EventKind = "repair.done"    // the technician's word; data: old_serial, new_serial, note, by

	EventRepairPhoto EventKind = "repair.photo" // data: what, photo (its SHA-256), note

	EventRMA EventKind = "rma.state" // data: state, serial_out, serial_in, vendor_case

	EventTaskQueued   EventKind = "task.queued" // work for a server's agent. Wakes its long-poll
	EventTaskProgress EventKind = "task.progress"
	EventTaskEnded    EventKind = "task.ended" // data: task, kind, state. Delivered to the task's workflow

	EventJobSubmitted    EventKind = "job.submitted"
	EventJobAllocated    EventKind = "job.allocated" // data: attempt, epoch. Delivered to job/<id>: starts RunJob
	EventJobRunning      EventKind = "job.running"
	EventJobStop         EventKind = "job.stop"          // data: attempt, why. Delivered to job/<id>
	EventJobAttemptEnded EventKind = "job.attempt-ended" // data: attempt; no process is left. Delivered to job/<id>
	EventJobReleased     EventKind = "job.released"      // data: attempt, outcome; accelerators are free again
	EventJobState        EventKind = "job.state"         // data: from, to, cause
	EventJobReason       EventKind = "job.reason"        // data: code
	EventJobRestarted    EventKind = "job.restarted"     // a service was begun again where it runs; data: JobRestart of the store
	EventJobHeld         EventKind = "job.held"
	EventJobUnheld       EventKind = "job.unheld"
	EventJobLimit        EventKind = "job.limit" // its time limit was changed; data: time_limit_ms, attempt. Delivered to job/<id>

	EventArrayLimit EventKind = "array.limit" // an array's running limit was changed; subject: its name; data: project, limit

	EventUsageAdjusted EventKind = "usage.adjusted" // a correction was booked; subject: the ledger row's id
	EventUsageAlarm    EventKind = "usage.alarm"    // the books don't balance, or the clock was set; data: usage.Finding
	EventUsageClosed   EventKind = "usage.closed"   // a month's sums don't change any more; subject: the tenant; data: ClosedMonth of the store
	EventBudgetWarning EventKind = "budget.warning" // a budget's threshold was passed; data: threshold, spent, amount
	EventJobIdle       EventKind = "job.idle"       // its accelerators have done nothing for as long as the policy warns of; data: since

	EventJobCheckpoint EventKind = "job.checkpoint" // data: attempt; it has saved its work

	EventJobUnattended EventKind = "job.unattended" // data: attempt, state; its process is gone, or waits while it is over. Delivered to job/<id>
	EventJobDevices    EventKind = "job.devices"    // data: attempt; the backend bound other devices, and the record follows

	EventClusterState EventKind = "cluster.state" // data: down, why
	EventClusterCan   EventKind = "cluster.can"   // data: can, in words: what its jobs can have beside what is usual for its kind
	EventClusterDrift EventKind = "cluster.drift" // data: drift (see ClusterDrift), text

	EventWebhook EventKind = "webhook.state" // data: name, act (made, removed, tested, enabled, disabled), why

	EventPolicyChanged EventKind = "policy.changed" // specs, tenants, projects, quotas, budgets, windows, stops
	EventBoot          EventKind = "boot.evidence"  // a DHCP message, file or script served; data: BootEvidence
	EventAudit         EventKind = "audit.act"      // who did what by the API; data: route, status
)

// EventKinds are all there are.
var EventKinds = []EventKind{
	EventServerEnrolled, EventServerPhase, EventServerStep, EventServerFailure, EventServerCordoned, EventServerUncordoned,
	EventServerProtected, EventServerIdentified, EventServerPhonedHome, EventServerInstall, EventServerAgent, EventServerDrained,
	EventServerDiscovered, EventServerBMC, EventBMCAsked, EventBMCEnded, EventAcceleratorSeen, EventAcceleratorHealth,
	EventAcceleratorInstalled, EventAcceleratorGone, EventFault, EventFaultCleared, EventBreaker, EventRepairOpened,
	EventRepairState, EventRepairNews, EventRepairDone, EventRepairPhoto, EventRMA, EventTaskQueued, EventTaskProgress,
	EventTaskEnded, EventJobSubmitted, EventJobAllocated, EventJobRunning, EventJobStop, EventJobAttemptEnded,
	EventJobReleased, EventJobState, EventJobReason, EventJobRestarted, EventJobHeld, EventJobUnheld, EventJobLimit,
	EventArrayLimit, EventUsageAdjusted, EventUsageAlarm, EventUsageClosed, EventBudgetWarning, EventJobIdle, EventJobCheckpoint,
	EventJobUnattended, EventJobDevices, EventClusterState, EventClusterCan, EventClusterDrift, EventPolicyChanged, EventBoot,
	EventAudit, EventWebhook, EventServerDifference, EventServerPause,
	EventServerRetire, EventServerDrive,
}

// Event is one row of the append-only log that long-polls, event streams, the allocator's wake-up, the delivery to
// workflows and the audit trail all read. Seq becomes visible in order: a reader that has seen n has seen all below.
type Event struct {
	Seq     int64           `gorm:"primaryKey;autoIncrement:false" json:"seq"`
	At      Instant         `json:"at"`
	Kind    EventKind       `json:"kind"`
	Subject string          `json:"subject"` // id of what Kind's first part names
	Server  string          `json:"server,omitempty"`
	Job     string          `json:"job,omitempty"`
	Tenant  string          `json:"tenant,omitempty"` // tenants read events of their own only
	By      string          `json:"by,omitempty"`     // the token's name or the component
	Data    json.RawMessage `gorm:"serializer:document" json:"data,omitempty"`
}
