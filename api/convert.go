package api

import (
	"encoding/json"
	"strings"

	"gpupool/api/auth"
	"gpupool/api/contract"
	"gpupool/schema"
	"gpupool/schema/store"
)

func toServer(v schema.Server) contract.Server {
	out := contract.Server{Id: v.ID, Name: v.Name, Region: v.Region, Site: v.Site, Rack: v.Rack, Unit: v.Unit, Serial: v.Serial, Uuid: v.UUID, Manufacturer: v.Manufacturer, Product: v.Product,
		Macs: []string{}, Arch: v.Arch, BmcAddress: v.BMCAddress, BmcProtocol: v.BMCProtocol, BmcSystem: v.BMCSystem, Model: v.Model, Accelerators: v.Accelerators, Cpus: v.CPUs, MemoryBytes: v.MemoryBytes, Build: v.Build,
		Profile: v.Profile, Backend: v.Backend, Cluster: v.Cluster, NvlinkDomain: v.NVLinkDomain, Phase: v.Phase, Attempt: v.Attempt, Step: v.Step, Protected: v.Protected, Epoch: v.Epoch,
		AgentSeen: v.AgentSeen, BootId: v.BootID, CreatedAt: v.CreatedAt, UpdatedAt: v.UpdatedAt, Version: v.Version}
	if v.OneTenant() {
		out.Shared = &v.Shared
	}
	if v.MACs != "" {
		out.Macs = strings.Split(v.MACs, ",")
	}
	if v.FailureCode != "" {
		out.Failure = &contract.Failure{Step: v.Step, Code: v.FailureCode, Text: v.FailureText, Retryable: v.FailureRetryable}
	}
	if v.Pause.At != 0 {
		out.Pause = &v.Pause
	}
	return out
}

func toServers(vs []schema.Server) []contract.Server { return each(vs, toServer) }

func each[A, B any](in []A, f func(A) B) []B {
	out := make([]B, len(in))
	for i, a := range in {
		out[i] = f(a)
	}
	return out
}

// some is never nil, so that an empty list is [] and not null.
func some[A any](in []A) []A {
	if in == nil {
		return []A{}
	}
	return in
}

func fromNewServer(n contract.NewServer) store.NewServer {
	return store.NewServer{Name: n.Name, Region: n.Region, Site: n.Site, Rack: n.Rack, Unit: n.Unit, Serial: n.Serial, MACs: n.Macs, Arch: n.Arch, BMCAddress: n.BmcAddress, BMCProtocol: n.BmcProtocol, BMCSystem: n.BmcSystem,
		BMCUsername: n.BmcUsername, BMCPassword: n.BmcPassword, Model: n.Model, Accelerators: n.Accelerators, CPUs: n.Cpus, MemoryBytes: n.MemoryBytes, Build: n.Build, Profile: n.Profile, Backend: n.Backend, Cluster: n.Cluster, NVLinkDomain: n.NvlinkDomain, Again: n.Again}
}

// toJob shows a job to id. The environment often holds secrets: it is the tenant's and the operator's only.
func toJob(j schema.Job, id auth.Identity) contract.Job {
	out := contract.Job{Id: j.ID, Tenant: j.Tenant, Project: j.Project, Name: j.Name, Kind: j.Kind, Restarts: j.Restarts, Spec: j.Spec, Model: j.Model, Nodes: j.Nodes, PerNode: j.PerNode, Accelerators: j.Accelerators(), Priority: j.Priority,
		Preemptible: j.Preemptible, Same: j.Same, SameRequired: j.SameRequired, Region: j.Region, Command: []string{}, Env: map[string]string{}, WorkDir: j.WorkDir, Mounts: j.Mounts, TimeLimitMs: j.TimeLimit,
		MaxQueueMs: j.MaxQueue, GraceMs: j.Grace, NotBefore: j.NotBefore, Held: j.Held, HeldBy: j.HeldBy, DependsOn: some(j.DependsOn), Array: j.Array, ArrayLimit: j.ArrayLimit, ArrayIndex: j.ArrayIndex, RequeueLimit: j.RequeueLimit, State: j.State, Attempt: j.Attempt, Requeues: j.Requeues,
		Cause: j.Cause, ExitCode: j.ExitCode, SubmittedBy: j.SubmittedBy, SubmittedAt: j.SubmittedAt, StartedAt: j.StartedAt, EndedAt: j.EndedAt, Version: j.Version}
	if j.Image != "" {
		out.Image = &j.Image
	}
	if j.Network != "" {
		out.Network = &j.Network
	}
	_ = json.Unmarshal([]byte(j.Command), &out.Command) // written by SubmitJob; an unreadable one shows as none
	if !id.Pool() || id.Role == schema.RoleOperator {
		_ = json.Unmarshal([]byte(j.Env), &out.Env)
	}
	// While its servers are handed it, a job waits as well: for DISPATCHING.
	if r, ok := store.Reason(j.Reason); ok && (j.State == schema.JobQueued || j.State == schema.JobStarting && r.Code == schema.ReasonDispatching) {
		if !id.Pool() {
			r = redact(r, id.Tenant)
		}
		out.Reason = &r
	}
	return out
}

func toAttempt(a schema.Attempt, devices []contract.Allocation) contract.Attempt {
	return contract.Attempt{Job: a.Job, Attempt: a.Attempt, Outcome: a.Outcome, Cause: a.Cause, ExitCode: a.ExitCode, Epoch: a.Epoch, AllocatedAt: a.AllocatedAt, RunningAt: a.RunningAt,
		StoppingAt: a.StoppingAt, StopWhy: a.StopWhy, ReleasedAt: a.ReleasedAt, CheckpointAt: a.CheckpointAt, Devices: some(devices)}
}

func toAllocation(a schema.Allocation, n store.DeviceName) contract.Allocation {
	return contract.Allocation{Id: a.ID(), Job: a.Job, Attempt: a.Attempt, Accelerator: a.Accelerator, Server: a.Server, ServerName: n.Server, Slot: n.Slot, Region: a.Region,
		AllocatedAt: a.AllocatedAt, ReleasedAt: a.ReleasedAt}
}

func counts[K ~string](in map[K]int) map[string]int {
	out := make(map[string]int, len(in))
	for k, n := range in {
		out[string(k)] = n
	}
	return out
}

func toOverview(o store.Overview) contract.Overview {
	return contract.Overview{At: o.At, Servers: counts(o.Phases), Jobs: counts(o.Jobs), Queue: counts(o.Reasons), Failures: toServers(o.Failures), Paused: toServers(o.Paused), Repairs: some(o.Repairs), Breakers: some(o.Breakers),
		Models: each(o.Models, func(m store.ModelOverview) contract.ModelOverview {
			return contract.ModelOverview{Model: m.Model, Installed: m.Installed, Allocated: m.Allocated, Idle: m.Idle, Cordoned: m.Cordoned, Draining: m.Draining, Repairing: m.Repairing, Unhealthy: m.Unhealthy}
		})}
}

func toUsageRow(r store.UsageRow) contract.UsageRow {
	out := contract.UsageRow{Keys: r.Keys, GpuSeconds: seconds(r.Charged()), GpuMs: r.Charged(), UsedGpuMs: r.Used(), AdjustmentGpuMs: r.Adjust, CostMicros: r.Cost, Currency: opt(r.Currency), LaunchGpuMs: r.Launch, RunningGpuMs: r.Run, DrainGpuMs: r.Drain, CreditGpuMs: r.Credit, Intervals: int(r.Rows)}
	if p := r.Parts; p != nil {
		out.WaitedMs, out.KnownGpuMs, out.IdleGpuMs = &p.Waited, &p.Known, &p.Idle
	}
	return out
}

// seconds of milliseconds. JSON writes the shortest number that reads the same, so three decimals stay three.
func seconds(ms int64) float64 { return float64(ms) / 1000 }

// val is what p points to, or the zero value.
func val[A any](p *A) A {
	if p == nil {
		var zero A
		return zero
	}
	return *p
}

// opt is a pointer to v, or nil where v is the zero value: how the contract says "absent".
func opt[A comparable](v A) *A {
	var zero A
	if v == zero {
		return nil
	}
	return &v
}
