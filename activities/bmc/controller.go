package bmc

import "context"

// Controller is what both protocols can do. [Client] can more.
type Controller interface {
	Identify(context.Context) (Identity, error)
	Power(context.Context) (PowerState, error)
	SetPower(context.Context, Want, ...PowerOption) error
	BootOnceFromNetwork(context.Context, NetBoot, ...BootOption) (BootSetting, error)
	ClearBootOverride(context.Context) error
	LocateLED(context.Context, bool) error
	Sensors(context.Context) ([]Reading, error)
}

var (
	_ Controller = (*Client)(nil)
	_ Controller = (*IPMIClient)(nil)
)

// Controller returns a BMC by its endpoint's protocol. It sends nothing.
func (p *Pool) Controller(ep Endpoint) (Controller, error) {
	if ep.Protocol == IPMI {
		return p.IPMI(ep)
	}
	return p.Client(ep)
}
