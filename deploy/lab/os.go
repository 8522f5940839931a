package lab

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"time"

	"gpupool/deploy/lab/device"
	"gpupool/worker/agent"
	"gpupool/worker/agent/accelerator"
)

// driverHang is the agent's own watchdog of drivers, at speed 1.
const driverHang = 45 * time.Second

// runtimeVersion is the container runtime that an installed disk has.
const runtimeVersion = "containerd 2.1.4"

// runOS is the installed operating system, from its start (fresh) or from where an earlier process left it.
func (m *machine) runOS(ctx context.Context, fresh bool) {
	m.mu.Lock()
	d := m.st.Disk
	m.mu.Unlock()
	if d == nil {
		m.print("disk: %v", errNoDisk)
		return
	}
	if fresh {
		m.bmc.SetBootProgress("OSBootStarted")
		if m.sleep(ctx, startTime) != nil {
			return
		}
		m.killProcesses() // a warm reboot ends them too
	}
	p, err := agent.ParsePhoneHome(d.PhoneHome)
	if err != nil {
		m.print("disk: %v", err)
		return
	}
	m.mu.Lock()
	boot := m.st.BootID
	if fresh || boot == "" {
		boot = newBootID()
	}
	m.set = device.NewSet(m.model, m.st.Parts, boot, m.lab.cfg.Now, m.lab.load.of(d.Server))
	m.changeLocked(func(s *state) { s.Stage, s.BootID = StageOS, boot })
	set := m.set
	m.mu.Unlock()
	m.bmc.SetBootProgress("OSRunning")
	m.print("%s login:", m.cfg.Name)
	for ctx.Err() == nil {
		if m.waitFault(ctx, AgentSilent, false) != nil {
			return
		}
		err := m.runAgent(ctx, p, boot, set)
		if ctx.Err() != nil {
			return
		}
		m.print("gpupool-agent: %v", err)
		m.log.Warn("agent ended; it is started again", "err", err)
		if m.hasFault(AgentSilent) {
			continue
		}
		if m.sleep(ctx, 10*time.Second) != nil { // as its unit says
			return
		}
	}
}

// errSilenced ends the agent for a fault.
var errSilenced = errors.New("killed")

func (m *machine) runAgent(ctx context.Context, p agent.PhoneHome, boot string, set *device.Set) error {
	h, err := m.lab.http(p.CA)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silenced := make(chan struct{})
	go func() {
		defer close(silenced)
		if m.waitFault(ctx, AgentSilent, true) == nil {
			cancel(errSilenced)
		}
	}()
	err = agent.New(agent.Config{
		Settle:    2 * time.Second, // its drivers come up with its system
		Hang:      time.Duration(float64(driverHang) / m.lab.cfg.Speed),
		PhoneHome: p, StateDir: filepath.Join(m.dir, "disk", "agent"), Version: "lab",
		Readers: []accelerator.Reader{set}, BurnIn: set, Suites: m.lab.suites(), HTTP: h, Table: m.lab.table, Now: m.lab.cfg.Now, Log: m.log, Play: play,
		Runtime: func(context.Context) (string, error) { return runtimeVersion, nil },
		Parts:   m.parts,
		Machine: func() agent.Machine {
			return agent.Machine{BootID: boot, Serial: m.cfg.Serial, UUID: m.cfg.UUID, Hostname: m.cfg.Name, CPUs: m.cfg.CPUs, MemoryBytes: m.cfg.Memory}
		},
	}).Run(ctx)
	if c := context.Cause(ctx); errors.Is(c, errSilenced) {
		err = c
	}
	cancel(nil)
	<-silenced
	return err
}

// Program is what only a lab's servers have on their disks: `lab-sleep SECONDS [EXIT-CODE]` takes its time and ends, without
// being a process of the machine that the lab is on. Every other command of a job is one.
const Program = "lab-sleep"

// play is the agent.Player of a lab's servers.
func play(command []string) func(context.Context) int {
	if command[0] != Program {
		return nil
	}
	return func(ctx context.Context) int {
		const usage = 2 // as shells have it
		if len(command) < 2 || len(command) > 3 {
			return usage
		}
		seconds, err := strconv.ParseFloat(command[1], 64)
		if err != nil || seconds < 0 {
			return usage
		}
		code := 0
		if len(command) == 3 {
			if code, err = strconv.Atoi(command[2]); err != nil {
				return usage
			}
		}
		t := time.NewTimer(time.Duration(seconds * float64(time.Second)))
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
		return code
	}
}

// suites are the agent's, with loads that last as long as the lab's hardware needs to show its faults.
func (l *Lab) suites() map[string][]agent.Check {
	all := map[string][]agent.Check{}
	for name, checks := range agent.Suites {
		for _, c := range checks {
			if c.Seconds > 0 {
				c.Seconds = max(1/l.cfg.Speed, 0.2) // readings must be had meanwhile
			}
			all[name] = append(all[name], c)
		}
	}
	return all
}
