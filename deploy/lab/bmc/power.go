package bmc

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// power is the machine's electrical state. Guarded by Server.mu.
type power struct {
	on      bool
	pending string      // reset type that is under way, ""
	timer   *time.Timer // its next edge
	epoch   int         // edges of an older epoch are void
	offAt   time.Time   // when it last went off
	onAt    time.Time   // when it last went on
}

func (p *power) stop() {
	p.epoch++
	if p.timer != nil {
		p.timer.Stop()
	}
}

func (p *power) state() string {
	if p.on {
		return "On"
	}
	return "Off"
}

// PowerOn reports whether the machine has power.
func (s *Server) PowerOn() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.power.on
}

// MachineOff is the machine's own power-off: an OS that halts, a breaker that trips. No hook is called.
func (s *Server) MachineOff() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.power.stop()
	s.power.pending = ""
	s.power.on, s.power.offAt = false, time.Now()
	s.showPower()
}

// SetBootProgress shows how far the machine's boot has come (BootProgress.LastState: OSRunning, ...), where the tree
// has that property.
func (s *Server) SetBootProgress(state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sys := s.own(s.sysPath)
	if bp, ok := sys["BootProgress"].(map[string]any); ok {
		bp["LastState"] = state
		s.etags[s.sysPath]++
	}
}

// resetTypes lists what the host's reset action takes: inline, or from its ActionInfo.
func (s *Server) resetTypes() []string {
	action := dig(s.doc(s.sysPath), "Actions", "#ComputerSystem.Reset")
	if list := strs(dig(action, "ResetType@Redfish.AllowableValues")); len(list) > 0 {
		return list
	}
	info := s.doc(clean(digString(action, "@Redfish.ActionInfo")))
	params, _ := info["Parameters"].([]any)
	for _, p := range params {
		if digString(p, "Name") == "ResetType" {
			return strs(dig(p, "AllowableValues"))
		}
	}
	return nil
}

// reset carries out a ComputerSystem.Reset on the host. The caller holds mu.
func (s *Server) reset(kind string) *reply {
	allowed := s.resetTypes()
	if len(allowed) > 0 && !slices.Contains(allowed, kind) {
		return refuse(http.StatusBadRequest, "ActionParameterValueNotInList",
			fmt.Sprintf("The value '%s' for the parameter ResetType in the action Reset is not in the list of acceptable values.", kind))
	}
	already := kind == "ForceOff" && !s.power.on || (kind == "On" || kind == "ForceOn") && s.power.on && s.power.pending == ""
	if already {
		switch s.quirks.AlreadyStatus {
		case 0:
			return noContent()
		case http.StatusConflict:
			return refuse(http.StatusConflict, "ActionParameterValueConflict",
				fmt.Sprintf("The parameter 'ResetType' with the requested value of '%s' does not meet the constraints of the implementation.", kind))
		}
		return refuse(s.quirks.AlreadyStatus, "InvalidOperationForSystemState", "The operation was denied because the server is already "+s.power.state()+".")
	}
	q := s.quirks
	switch kind {
	case "On", "ForceOn", "PushPowerButton":
		if kind == "PushPowerButton" && s.power.on {
			s.shutdownGracefully(nil)
			break
		}
		if q.OnIgnoredAfterOff > 0 && time.Since(s.power.offAt) < q.OnIgnoredAfterOff {
			break // accepted, lost
		}
		s.edge(kind, q.PowerOnDelay, s.turnOn)
	case "ForceOff":
		s.edge(kind, q.PowerOffDelay, func() { s.turnOff(false) })
	case "GracefulShutdown":
		s.shutdownGracefully(nil)
	case "GracefulRestart":
		s.shutdownGracefully(func() { s.edge(kind, q.PowerOnDelay, s.turnOn) })
	case "FullPowerCycle":
		s.loseAC()
	case "ForceRestart", "PowerCycle":
		s.edge(kind, q.PowerOffDelay, func() {
			s.turnOff(false)
			if kind == "ForceRestart" && q.ForceRestartHangs {
				return
			}
			s.edge(kind, q.PowerOnDelay, s.turnOn)
		})
	case "Nmi":
	}
	return noContent()
}

// acActions are makers' actions that take the standby power away, with the value that each takes.
var acActions = map[string]string{
	"Oem/Hpe/HpeComputerSystemExt.SystemReset": "AuxCycle", "Oem/LenovoComputerSystem.SystemReset": "ACPowerCycle",
	"Oem/OemSystemExtensions.Reset": "ACCycle", "Oem/NvidiaChassis.AuxPowerReset": "AuxPowerCycle",
}

// knows reports whether a resource shows an action with this target.
func (s *Server) knows(d Doc, action string) bool {
	places := []any{dig(d, "Actions", "Oem")}
	oem, _ := d["Oem"].(map[string]any)
	for _, maker := range oem {
		places = append(places, dig(maker, "Actions"))
	}
	for _, p := range places {
		m, _ := p.(map[string]any)
		for _, a := range m {
			if strings.HasSuffix(digString(a, "target"), "/Actions/"+action) {
				return true
			}
		}
	}
	return false
}

// loseAC takes all power away for a moment: the host is off, and the BMC starts again. The caller holds mu.
func (s *Server) loseAC() {
	s.power.stop()
	s.turnOff(false)
	clear(s.sessions)
	s.acCycles++
	s.bmcDown = time.Now().Add(s.quirks.BMCResetTime)
}

// Restart restarts the BMC, as its watchdog or an upgrade does: sessions and subscriptions end, and it is busy for a while.
func (s *Server) Restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restart()
}

// restart is Restart. The caller holds mu.
func (s *Server) restart() {
	clear(s.sessions)
	s.forgetSubscriptions()
	s.bmcDown = time.Now().Add(s.quirks.BMCResetTime)
}

// ACCycles is how often all power was taken away.
func (s *Server) ACCycles() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acCycles
}

// edge lets then happen after a delay unless another reset comes first. The caller holds mu; then runs with it.
func (s *Server) edge(kind string, after time.Duration, then func()) {
	s.power.stop()
	s.power.pending = kind
	epoch := s.power.epoch
	run := func() {
		if s.closed || s.power.epoch != epoch {
			return
		}
		s.power.pending = ""
		then()
	}
	if after <= 0 {
		run()
		return
	}
	s.power.timer = time.AfterFunc(after, func() { // one that fires after Close finds closed set and does nothing
		s.mu.Lock()
		defer s.mu.Unlock()
		run()
	})
}

func (s *Server) turnOn() {
	if s.power.on {
		return
	}
	s.power.on, s.power.onAt = true, time.Now()
	s.showPower()
	boot := s.consumeBoot()
	if h := s.hooks.PowerOn; h != nil {
		s.enqueue(func() { h(boot) })
	}
}

func (s *Server) turnOff(graceful bool) {
	if !s.power.on {
		return
	}
	s.power.on, s.power.offAt = false, time.Now()
	s.showPower()
	if h := s.hooks.PowerOff; h != nil {
		s.enqueue(func() { h(graceful) })
	}
}

// shutdownGracefully asks the OS; after it has gone, then runs with mu held.
func (s *Server) shutdownGracefully(then func()) {
	if s.quirks.IgnoresShutdown || !s.power.on {
		return
	}
	finish := func() {
		s.turnOff(true)
		if then != nil {
			then()
		}
	}
	ask := s.hooks.Shutdown
	if ask == nil {
		s.edge("GracefulShutdown", s.quirks.PowerOffDelay, finish)
		return
	}
	epoch := s.power.epoch
	s.enqueue(func() {
		if !ask() {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.power.epoch == epoch {
			s.edge("GracefulShutdown", s.quirks.PowerOffDelay, finish)
		}
	})
}

// showPower puts the state into the host's resource. Others' PowerState is filled in as they are read.
func (s *Server) showPower() {
	s.own(s.sysPath)["PowerState"] = s.power.state()
	s.etags[s.sysPath]++
}
