package bmc

import (
	"context"
	"time"

	"gpupool/schema"
)

// Controller is what both protocols can do. [Client] can more.
type Controller interface {
	Account
	Address() string
	Login(context.Context) error // proves that the BMC answers and lets us in
	Identify(context.Context) (Identity, error)
	Power(context.Context) (PowerState, error)
	SetPower(context.Context, Want, ...PowerOption) error
	BootOnceFromNetwork(context.Context, NetBoot, ...BootOption) (BootSetting, error)
	ClearBootOverride(context.Context) error
	LocateLED(context.Context, bool) error
	Sensors(context.Context) ([]Reading, error)
	Vitals(context.Context) (Vitals, error)
	Look(context.Context) (Look, error)
	Doctor(ctx context.Context, want schema.Server) Diagnosis
	// Console is what the serial console says for so long, or what the BMC kept of it.
	Console(ctx context.Context, d time.Duration) (Console, error)
	// Log reads the last entries of the machine's event log, newest last.
	Log(ctx context.Context, most int) ([]LogEntry, error)
}

// Account is what a change of password needs.
type Account interface {
	TryLogin(context.Context, Login) error
	SetPassword(ctx context.Context, user string, password Secret) error
	LongestPassword() int // in bytes, that every BMC of the protocol keeps as a whole
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
