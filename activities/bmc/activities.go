package bmc

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/worker"

	"gpupool/activities/temporalerr"
	"gpupool/schema"
	"gpupool/schema/hardware"
	"gpupool/schema/secret"
	"gpupool/schema/store"
)

// Activities are what a server's process asks of its BMC. They run on the queue of the server's site. Each is
// idempotent: a machine that is as asked gets no request, so an activity that is tried again does nothing twice.
type Activities struct {
	Store *store.Store
	Pool  *Pool
	// Credential is the way into a server's BMC; it is asked at each login.
	Credential func(server string) Credential
	// Renew gives a BMC a new password. nil leaves a factory password to an operator.
	Renew func(ctx context.Context, c Account, server string) error
	// Keys open the password of a probe that logs in. nil logs in to nothing.
	Keys *secret.Ring
}

// Register adds the activities to a site's worker.
func Register(w worker.ActivityRegistry, a *Activities) { w.RegisterActivity(a) }

// reasons are the words for a failure that a person reads beside its text.
var reasons = map[error]schema.FailureCode{
	ErrUnreachable: schema.FailBMC, ErrBusy: schema.FailBMC, ErrBody: schema.FailBMC,
	ErrCredential: schema.FailCredential, ErrPasswordChange: schema.FailCredential, ErrUntrusted: schema.FailUntrusted,
	ErrModeReverted: schema.FailBootMode, ErrTooOften: schema.FailUnsafe, ErrForeign: schema.FailIdentity,
}

// wrap makes an error of a BMC one that Temporal understands, with its reason.
func wrap(err error) error {
	var e *Error
	if !errors.As(err, &e) {
		return temporalerr.Wrap(err)
	}
	reason, ok := reasons[e.Kind]
	if !ok {
		reason = schema.FailBMCRefused
	}
	return temporalerr.WithReason(err, string(reason))
}

// heartbeat is how often a call to a BMC tells that it lives; see workflows for the timeout.
const heartbeat = 5 * time.Second

// beating runs f with heartbeats. They are how a cancel reaches f while a BMC takes its time.
func beating[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		t := time.NewTicker(heartbeat)
		defer t.Stop()
		for {
			activity.RecordHeartbeat(ctx)
			select {
			case <-t.C:
			case <-stop:
				return
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	v, err := f(ctx)
	return v, wrap(err)
}

// endpoint is where a server's BMC is and how to get in.
func (a *Activities) endpoint(v schema.Server) Endpoint {
	return Endpoint{Address: v.BMCAddress, SystemID: v.BMCSystem, Serial: v.Serial, Protocol: Protocol(v.BMCProtocol), Credential: a.Credential(v.ID)}
}

// controller opens the server's BMC, by the protocol it was enrolled with.
func (a *Activities) controller(ctx context.Context, server string) (Controller, schema.Server, error) {
	v, err := a.Store.Server(ctx, server)
	if err != nil {
		return nil, v, err
	}
	c, err := a.Pool.Controller(a.endpoint(v))
	return c, v, err
}

// VerifyIdentity compares what the BMC says the server is with what was enrolled, and records it. A BMC that was cabled
// to another machine must never be told to wipe that machine.
func (a *Activities) VerifyIdentity(ctx context.Context, server string) (schema.StepOutcome, error) {
	return beating(ctx, func(ctx context.Context) (schema.StepOutcome, error) {
		c, v, err := a.controller(ctx, server)
		if err != nil {
			return schema.StepOutcome{}, err
		}
		id, err := c.Identify(ctx)
		if rf, ok := c.(*Client); ok && errors.Is(err, ErrPasswordChange) && a.Renew != nil {
			// A factory password is good for one thing. Its successor is kept before the BMC learns it.
			if err := a.Renew(ctx, rf, v.ID); err != nil {
				return schema.StepOutcome{}, err
			}
			id, err = c.Identify(ctx)
		}
		if err != nil {
			return schema.StepOutcome{}, err
		}
		if err := id.Mismatch(Identity{Serial: v.Serial}); err != nil {
			return schema.StepOutcome{Failure: &schema.StepFailure{Code: schema.FailIdentity, Text: fmt.Sprintf(
				"the BMC at %s says serial %q; server %s was enrolled with serial %q. Nothing was changed. Is the BMC address right? Is the BMC cabled to this server?",
				v.BMCAddress, id.Serial, v.Name, v.Serial)}}, nil
		}
		if err := a.Store.Identified(ctx, v.ID, id.UUID, id.Manufacturer, id.Model); err != nil {
			return schema.StepOutcome{}, err
		}
		return schema.StepOutcome{Detail: strings.TrimSpace(fmt.Sprintf("%s %s, serial %s", id.Manufacturer, id.Model, id.Serial))}, nil
	})
}

// Inspect compares the accelerators that the BMC shows with those ordered. A BMC that can't say (it shows none, the
// power is off, a baseboard's own BMC still starts) leaves the question to the inventory that the agent takes later.
func (a *Activities) Inspect(ctx context.Context, server string) (schema.StepOutcome, error) {
	return beating(ctx, func(ctx context.Context) (schema.StepOutcome, error) {
		c, v, err := a.controller(ctx, server)
		if err != nil {
			return schema.StepOutcome{}, err
		}
		power, err := c.Power(ctx)
		if err != nil {
			return schema.StepOutcome{}, err
		}
		id, err := c.Identify(ctx)
		if err != nil {
			return schema.StepOutcome{}, err
		}
		lines, err := a.Store.Ordered(ctx, v)
		if err != nil {
			return schema.StepOutcome{}, err
		}
		detail, seen := inspect(v, power, id)
		seen = append(seen, firmware(lines, id)...)
		open, accepted, err := a.Store.WeighDifferences(ctx, v.ID, v.Attempt, schema.StepInspect, seen)
		if err != nil {
			return schema.StepOutcome{}, err
		}
		return schema.Weighed(detail, open, accepted), nil
	})
}

// inspect is the judgement of Inspect: what it saw in words, and what is not as it was ordered.
func inspect(v schema.Server, power PowerState, id Identity) (string, []schema.Difference) {
	detail, seen := inspectAccelerators(v, power, id)
	// Memory that is set aside for the platform is not shown by some: 5 % (facts on burn-in, inventory match).
	if gib := float64(v.MemoryBytes) / (1 << 30); id.MemoryGiB > 0 && id.MemoryGiB < 0.95*gib {
		found := fmt.Sprintf("%.0f GiB", id.MemoryGiB)
		seen = append(seen, schema.Difference{Item: "memory-by-bmc", Ordered: fmt.Sprintf("%.0f GiB", gib), Found: found,
			Words: fmt.Sprintf("the BMC shows %s of the %.0f GiB of memory ordered: find the DIMM that is missing or mapped out", found, gib)})
	}
	if id.Cores > 0 && id.Cores < v.CPUs {
		seen = append(seen, schema.Difference{Item: "cores-by-bmc", Ordered: strconv.Itoa(v.CPUs), Found: strconv.Itoa(id.Cores),
			Words: fmt.Sprintf("the BMC shows %d of the %d CPU cores ordered", id.Cores, v.CPUs)})
	}
	return detail, seen
}

// firmware compares what the BMC tells of its own and the BIOS's version with the build ordered. A BMC that does not tell the BIOS's
// leaves it to the agent; its own nobody else tells.
func firmware(lines []hardware.Line, id Identity) []schema.Difference {
	read := hardware.Read{Parts: []hardware.Part{{Kind: hardware.BIOS, Name: "the system", Firmware: id.BIOS}, {Kind: hardware.BMC, Name: "the BMC", Firmware: id.BMCFirmware}}}
	kinds := []hardware.Kind{hardware.BMC}
	if id.BIOS != "" {
		kinds = append(kinds, hardware.BIOS)
	}
	return hardware.Differ(lines, read, kinds...)
}

func inspectAccelerators(v schema.Server, power PowerState, id Identity) (string, []schema.Difference) {
	unknown := func(why string) (string, []schema.Difference) {
		return "power " + string(power) + "; accelerators unknown out of band (" + why + "): the agent's inventory decides", nil
	}
	switch {
	case power != PowerOn:
		return unknown("the server is not on")
	case !id.BaseboardsReady:
		return unknown("the GPU baseboard's BMC is starting")
	case id.Accelerators() == NotApplicable:
		return unknown("the BMC shows none")
	}
	var bad []string
	there := 0
	for _, g := range id.GPUs {
		switch {
		case g.State == "Absent":
			bad = append(bad, g.Slot+" is absent")
		case g.Health == "Critical":
			bad = append(bad, g.Slot+" is critical (serial "+orDefault(g.Serial, "not shown")+")")
		default:
			there++
		}
	}
	if there < v.Accelerators && bad == nil && id.Accelerators() != Known {
		return unknown(fmt.Sprintf("%d could not be read", len(id.Unread)))
	}
	if there < v.Accelerators {
		found := strconv.Itoa(there)
		if bad != nil {
			found += ": " + strings.Join(bad, ", ")
		}
		return "power on", []schema.Difference{{Item: "accelerators-by-bmc", Ordered: strconv.Itoa(v.Accelerators), Found: found, Missing: v.Accelerators - there,
			Words: fmt.Sprintf("the BMC shows %d of the %d accelerators ordered%s", there, v.Accelerators, strings.TrimPrefix(found, strconv.Itoa(there)))}}
	}
	return fmt.Sprintf("power on; %d accelerators seen out of band", there), nil
}

// Act names the server that a change of power or boot is for, and by what right.
type Act struct {
	Server string `json:"server"`
	// Attempt is the onboarding attempt that acts; 0 = a repair or retirement.
	Attempt int `json:"attempt,omitempty"`
	// SilentFor, if set, lets a repair cut the power of a server whose jobs can't end any more: its agent must not have
	// been heard of for that long.
	SilentFor time.Duration `json:"silent_for,omitempty"`
}

// may asks the record, at the moment of the act, whether the server may be powered or booted by this right.
func (a *Activities) may(ctx context.Context, act Act) error {
	switch {
	case act.Attempt > 0:
		return a.Store.MayDestroy(ctx, act.Server, act.Attempt)
	case act.SilentFor > 0:
		return a.Store.MayCutPower(ctx, act.Server, act.SilentFor)
	}
	return a.Store.MayReboot(ctx, act.Server)
}

// act runs f on the server's BMC if it may, asking again right before. An attempt that has installed its server already
// has nothing left to do there.
func (a *Activities) act(ctx context.Context, act Act, f func(context.Context, Controller) (string, error)) (string, error) {
	return beating(ctx, func(ctx context.Context) (string, error) {
		c, _, err := a.controller(ctx, act.Server)
		if err != nil {
			return "", err
		}
		if err := c.Login(ctx); err != nil { // slow things first, so that the question is as fresh as it can be
			return "", err
		}
		if err := a.may(ctx, act); err != nil {
			// An answer that was lost is asked for again: what it was for may be done by then, and is not undone.
			if home, herr := a.Store.PhonedHome(ctx, act.Server, act.Attempt); act.Attempt > 0 && herr == nil && home {
				return "left alone: this attempt has installed it", nil
			}
			return "", err
		}
		return f(ctx, c)
	})
}

// PowerOff brings the power off, proven by a read. The power is cut at once: what is on the disk is to be wiped, or the
// system doesn't answer.
func (a *Activities) PowerOff(ctx context.Context, act Act) (string, error) {
	return a.act(ctx, act, func(ctx context.Context, c Controller) (string, error) {
		opts := []PowerOption{Hard()}
		if act.SilentFor > 0 { // it ends what may still run there
			opts = append(opts, Regardless())
		}
		return "off", c.SetPower(ctx, Off, opts...)
	})
}

// PowerOn brings the power on, proven by a read.
func (a *Activities) PowerOn(ctx context.Context, act Act) (string, error) {
	return a.act(ctx, act, func(ctx context.Context, c Controller) (string, error) {
		return "on", c.SetPower(ctx, On)
	})
}

// BootFromNetwork makes the next boot one from the network, proven by a read: by PXE, or by UEFI HTTP where the firmware
// has no PXE.
func (a *Activities) BootFromNetwork(ctx context.Context, act Act) (string, error) {
	return a.act(ctx, act, func(ctx context.Context, c Controller) (string, error) {
		set, err := c.BootOnceFromNetwork(ctx, PXE)
		if errors.Is(err, ErrUnsupported) {
			set, err = c.BootOnceFromNetwork(ctx, UEFIHTTP)
		}
		return strings.TrimSpace(set.Target + " " + set.Enabled + " " + set.Mode), err
	})
}

// ClearBootOverride lets the server boot by its own order again: the undo of BootFromNetwork. It takes no right: it only
// takes danger away.
func (a *Activities) ClearBootOverride(ctx context.Context, server string) error {
	_, err := beating(ctx, func(ctx context.Context) (string, error) {
		c, _, err := a.controller(ctx, server)
		if err != nil {
			return "", err
		}
		return "", c.ClearBootOverride(ctx)
	})
	return err
}

// LocateLight turns the locator light on or off. A machine without one is no failure.
func (a *Activities) LocateLight(ctx context.Context, server string, on bool) error {
	_, err := beating(ctx, func(ctx context.Context) (string, error) {
		c, _, err := a.controller(ctx, server)
		if err != nil {
			return "", err
		}
		if err := c.LocateLED(ctx, on); !errors.Is(err, ErrUnsupported) {
			return "", err
		}
		return "", nil
	})
	return err
}

// Look is a server as its BMC shows it at one moment, for a diagnosis. What it doesn't say is empty.
type Look struct {
	Power    PowerState `json:"power"`
	Progress string     `json:"progress,omitempty"` // Redfish BootProgress.LastState
	Health   string     `json:"health,omitempty"`   // Redfish Status.Health of the system
	Override string     `json:"override,omitempty"` // the boot override that still stands
	Error    string     `json:"error,omitempty"`    // why the BMC could not be asked
	Console  string     `json:"console,omitempty"`  // the last lines of what the BMC kept of the serial console
}

// LookAtServer reads it. An unreachable BMC is an answer here, not an error: the diagnosis goes on without it.
func (a *Activities) LookAtServer(ctx context.Context, server string) (Look, error) {
	return beating(ctx, func(ctx context.Context) (Look, error) {
		c, _, err := a.controller(ctx, server)
		if err != nil {
			return Look{Power: PowerUnknown, Error: err.Error()}, nil
		}
		look, err := c.Look(ctx)
		if ctx.Err() != nil {
			return look, ctx.Err()
		}
		if err != nil {
			look = Look{Power: PowerUnknown, Error: err.Error()}
		}
		if redfish, ok := c.(*Client); ok && err == nil {
			// A console that can't be read takes nothing from the rest.
			if kept, _, err := redfish.keptConsole(ctx); err == nil {
				look.Console = lastLines(kept.Text)
			}
		}
		return look, nil
	})
}

// Look reads power, boot progress, health and the boot override that stands.
func (c *Client) Look(ctx context.Context) (l Look, err error) {
	defer c.conn.named("look at", &err)
	h, err := c.find(ctx)
	if err != nil {
		return l, err
	}
	sys, err := c.conn.get(ctx, h.uri)
	if err != nil {
		return l, err
	}
	if err := c.ours(sys); err != nil {
		return l, err
	}
	l = Look{Power: powerOf(sys), Progress: sys.str("BootProgress", "LastState"), Health: sys.str("Status", "Health")}
	if set, err := c.Boot(ctx); err == nil && set.Enabled != "" && set.Enabled != "Disabled" {
		l.Override = set.Target + " " + set.Enabled
	}
	return l, nil
}
