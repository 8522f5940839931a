package workflows

import (
	"encoding/json"

	"gpupool/activities/deliver"
	"gpupool/schema"
)

// RouteServer is deliver's table for servers' processes. An event that no process waits for has none.
//
// An onboarding that began and a repair that was opened start their process where the server has none. Where one runs it
// is signalled, and looks for what is next before it ends.
func RouteServer(e schema.Event) (deliver.Delivery, bool) {
	d := deliver.Delivery{Workflow: ServerID(e.Server), Queue: CoreQueue}
	switch e.Kind {
	case schema.EventServerPhonedHome, schema.EventServerInstall:
		var v PhonedHome
		_ = json.Unmarshal(e.Data, &v) // a wake-up: what is true stands in the record
		d.Signal, d.Arg = SignalPhonedHome, v
	case schema.EventServerAgent:
		var v AgentUp
		_ = json.Unmarshal(e.Data, &v)
		d.Signal, d.Arg = SignalAgentUp, v
	case schema.EventTaskEnded:
		var v TaskEnded
		_ = json.Unmarshal(e.Data, &v)
		d.Signal, d.Arg = SignalTaskEnded, v
	case schema.EventServerDrained:
		d.Signal, d.Arg = SignalDrained, Drained{}
	case schema.EventRepairOpened:
		in := RepairInput{Repair: e.Subject}
		d.Signal, d.Arg, d.Revive, d.ReviveArg = SignalRepairOpened, RepairOpened{Repair: e.Subject}, RepairServer, in
	case schema.EventServerRetire:
		in := RetireInput{Server: e.Server}
		d.Signal, d.Arg, d.Revive, d.ReviveArg = SignalRetire, in, RetireServer, in
	case schema.EventRepairNews:
		d.Signal, d.Arg = SignalRepairOpened, RepairOpened{Repair: e.Subject} // it is time to look
	case schema.EventServerPhase:
		var v struct {
			To      schema.Phase `json:"to"`
			Attempt int          `json:"attempt"`
		}
		if json.Unmarshal(e.Data, &v) != nil || v.To != schema.PhaseOnboarding || v.Attempt == 0 {
			return deliver.Delivery{}, false
		}
		// With its attempt, so that an event which comes again when that attempt is over begins nothing.
		in := OnboardInput{Server: e.Server, By: e.By, Attempt: v.Attempt}
		d.Signal, d.Arg, d.Revive, d.ReviveArg = SignalOnboard, in, OnboardServer, in
	default:
		return deliver.Delivery{}, false
	}
	return d, true
}
