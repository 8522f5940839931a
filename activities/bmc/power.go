package bmc

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/stmcginnis/gofish/schemas"
)

// PowerState is whether the host has power.
type PowerState string

// The states. Unknown is what a BMC in transit shows (null, Reset): it is neither on nor off.
const (
	PowerOn         PowerState = "on"
	PowerOff        PowerState = "off"
	PowerTurningOn  PowerState = "powering-on"
	PowerTurningOff PowerState = "powering-off"
	PowerUnknown    PowerState = "unknown"
)

// Want is a power change to bring about.
type Want string

// What SetPower can be asked for. Cycle ends with the machine on and having been off; ACCycle with the standby power having
// been away too, and the BMC restarted by it: the last resort for hardware that a cycle doesn't bring back.
const (
	On      Want = "on"
	Off     Want = "off"
	Cycle   Want = "cycle"
	ACCycle Want = "ac-cycle"
)

// Valid reports whether w is known.
func (w Want) Valid() bool { return w == On || w == Off || w == Cycle || w == ACCycle }

// powerPlan is how SetPower goes about it.
type powerPlan struct {
	graceful   time.Duration // 0: cut the power at once
	regardless bool          // of the daily limit
	spent      bool          // it is counted
	wish       string        // see As
}

// PowerOption changes how SetPower goes about it.
type PowerOption func(*powerPlan)

// Hard cuts the power without asking the OS: for a machine with nothing to lose.
func Hard() PowerOption { return func(p *powerPlan) { p.graceful = 0 } }

// GracefulFor gives the OS this long to shut down before the power is cut. The default is Timing.Graceful.
func GracefulFor(d time.Duration) PowerOption { return func(p *powerPlan) { p.graceful = d } }

// Power reads the host's power state.
func (c *Client) Power(ctx context.Context) (_ PowerState, err error) {
	defer c.conn.named("read power of", &err)
	h, err := c.find(ctx)
	if err != nil {
		return PowerUnknown, err
	}
	return c.power(ctx, h)
}

func (c *Client) power(ctx context.Context, h *host) (PowerState, error) {
	r, err := c.conn.get(ctx, h.uri)
	if err == nil {
		err = c.ours(r)
	}
	if err != nil {
		return PowerUnknown, err
	}
	return powerOf(r), nil
}

func powerOf(r *resource) PowerState {
	switch schemas.PowerState(r.str("PowerState")) {
	case schemas.OnPowerState:
		return PowerOn
	case schemas.OffPowerState:
		return PowerOff
	case schemas.PoweringOnPowerState:
		return PowerTurningOn
	case schemas.PoweringOffPowerState:
		return PowerTurningOff
	}
	return PowerUnknown
}

// SetPower brings the host to a power state and returns nil only when a read shows it. It is idempotent: a machine that is
// there already gets no request. Off asks the OS first and cuts the power when that takes too long. Cycle is off, a
// pause, on: never a ForceRestart, which some machines don't come back from (Lenovo SR675), and a PowerCycle, which some
// lack (DGX H100), only where the power can't be cut otherwise.
func (c *Client) SetPower(ctx context.Context, want Want, opts ...PowerOption) (err error) {
	defer c.conn.named("power "+string(want), &err)
	plan := powerPlan{graceful: c.conn.pool.cfg.Timing.Graceful}
	for _, o := range opts {
		o(&plan)
	}
	h, err := c.find(ctx)
	if err != nil {
		return err
	}
	if h.noReset {
		return &Error{Kind: ErrUnsupported, Address: c.conn.address, URI: h.uri, Detail: "this system has no reset action"}
	}
	switch want {
	case On:
		return c.turnOn(ctx, h)
	case Off:
		_, err := c.turnOff(ctx, h, plan)
		return err
	case Cycle:
		if !h.allows(schemas.ForceOffResetType) && h.allows(schemas.PowerCycleResetType) {
			return c.cycleAtOnce(ctx, h, plan)
		}
		if _, begun, err := c.conn.pool.begun(ctx, c.conn.address, plan); err != nil || begun {
			if err == nil {
				err = c.turnOn(ctx, h)
			}
			return err
		}
		wasOn, err := c.turnOff(ctx, h, plan)
		if err == nil {
			err = c.conn.pool.begin(ctx, c.conn.address, plan, "")
		}
		if err != nil {
			return err
		}
		if wasOn {
			if err := sleep(ctx, c.settle(h)); err != nil {
				return err
			}
		}
		return c.turnOn(ctx, h)
	case ACCycle:
		return c.acCycle(ctx, h, plan)
	}
	return &Error{Kind: ErrUnsupported, Address: c.conn.address, Detail: fmt.Sprintf("power %q: want on, off, cycle or ac-cycle", want)}
}

// settle is how long the power stays off in a cycle. A scaled Timing scales a quirk's too.
func (c *Client) settle(h *host) time.Duration {
	t := c.conn.pool.cfg.Timing.Settle
	if h.manners.settle > DefaultTiming.Settle {
		t = time.Duration(float64(h.manners.settle) * float64(t) / float64(DefaultTiming.Settle))
	}
	return t
}

func (c *Client) turnOn(ctx context.Context, h *host) error {
	s, err := c.power(ctx, h)
	if err != nil || s == PowerOn {
		return err
	}
	kind := schemas.OnResetType
	if !h.allows(kind) && h.allows(schemas.ForceOnResetType) {
		kind = schemas.ForceOnResetType
	}
	return c.drive(ctx, h, kind, PowerOn)
}

// turnOff brings the power off; wasOn says whether it was on before.
func (c *Client) turnOff(ctx context.Context, h *host, plan powerPlan) (wasOn bool, err error) {
	s, err := c.power(ctx, h)
	if err != nil || s == PowerOff {
		return false, err
	}
	if err := c.conn.pool.spend(ctx, c.conn.address, normalURI(h.uri), &plan); err != nil {
		return false, err
	}
	if !h.allows(schemas.ForceOffResetType) { // to ask the OS is all that there is
		plan.graceful = max(plan.graceful, c.conn.pool.cfg.Timing.Graceful)
	}
	if off, err := c.shutDown(ctx, h, plan); off || err != nil {
		return true, err
	}
	return true, c.drive(ctx, h, schemas.ForceOffResetType, PowerOff)
}

// shutDown asks the OS to switch the machine off, where the plan and the BMC have it, and says whether it did in time.
func (c *Client) shutDown(ctx context.Context, h *host, plan powerPlan) (off bool, err error) {
	if plan.graceful <= 0 || !h.allows(schemas.GracefulShutdownResetType) {
		return false, nil
	}
	refused := c.reset(ctx, h, schemas.GracefulShutdownResetType)
	unheard := isKind(refused, ErrUnreachable) // a bmc that hangs up may have heard us: the power tells
	if refused != nil && !unheard {
		if isKind(refused, ErrRefused) || isKind(refused, ErrBusy) {
			return false, nil
		}
		return false, refused
	}
	off, err = c.until(ctx, plan.graceful, c.shows(h, PowerOff))
	if off || err != nil && ctx.Err() != nil {
		return off, err
	}
	c.conn.pool.log.WarnContext(ctx, "the os did not shut down in time, cutting the power", "bmc", c.conn.address, "waited", plan.graceful)
	return false, nil
}

// cycleAtOnce cycles a machine whose BMC lists PowerCycle and no ForceOff. PowerCycle is sent once: sent again it would cut
// off what has just started. It is proven by the power having been seen away, or by the time of the last reset.
func (c *Client) cycleAtOnce(ctx context.Context, h *host, plan powerPlan) error {
	s, err := c.power(ctx, h)
	if err != nil {
		return err
	}
	was, begun, err := c.conn.pool.begun(ctx, c.conn.address, plan)
	if err != nil {
		return err
	}
	if begun && s != PowerOff {
		return c.cycled(ctx, h, was.Before)
	}
	if s != PowerOff {
		if err := c.conn.pool.spend(ctx, c.conn.address, normalURI(h.uri), &plan); err != nil {
			return err
		}
	}
	if s != PowerOff && (h.allows(schemas.OnResetType) || h.allows(schemas.ForceOnResetType)) {
		off, err := c.shutDown(ctx, h, plan)
		if err != nil {
			return err
		}
		if off {
			if err := c.conn.pool.begin(ctx, c.conn.address, plan, ""); err != nil {
				return err
			}
			if err := sleep(ctx, c.settle(h)); err != nil {
				return err
			}
			s = PowerOff
		}
	}
	if s == PowerOff {
		return c.turnOn(ctx, h)
	}
	before, err := c.conn.get(ctx, h.uri)
	if err != nil {
		return err
	}
	if err := c.conn.pool.begin(ctx, c.conn.address, plan, before.str("LastResetTime")); err != nil {
		return err
	}
	if err := c.reset(ctx, h, schemas.PowerCycleResetType); err != nil && !isKind(err, ErrUnreachable) {
		return err
	}
	return c.cycled(ctx, h, before.str("LastResetTime"))
}

// cycled waits until a PowerCycle that was sent shows: the power away and back, or another last reset than before.
func (c *Client) cycled(ctx context.Context, h *host, before string) error {
	t := c.conn.pool.cfg.Timing
	gone, err := c.until(ctx, t.PowerChange, func(ctx context.Context) (bool, error) {
		r, err := c.conn.get(ctx, h.uri)
		if err != nil {
			return false, err
		}
		state, last := powerOf(r), r.str("LastResetTime")
		return state == PowerOff || state == PowerTurningOff || state == PowerTurningOn || last != "" && last != before, nil
	})
	if err == nil && gone {
		gone, err = c.until(ctx, t.PowerChange, c.shows(h, PowerOn))
	}
	if err == nil && !gone {
		err = &Error{Kind: ErrNotProven, Address: c.conn.address, URI: h.uri, Detail: fmt.Sprintf("PowerCycle was accepted, and within %s the power was not seen off and on again", t.PowerChange),
			Hint: "look at the machine: power supplies, interlock, a hung BMC"}
	}
	return err
}

// allows reports whether a reset type may be sent: it is listed, or nothing is.
func (h *host) allows(t schemas.ResetType) bool {
	return h.resets == nil || slices.Contains(h.resets, string(t))
}

func (c *Client) shows(h *host, want PowerState) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) {
		s, err := c.power(ctx, h)
		return err == nil && s == want, err
	}
}

// drive sends a reset until the state shows. One that was accepted and had no effect (On within seconds of the power going
// off is lost on some) is sent again after Timing.PowerRetry, until Timing.PowerChange is up. "Already so" is no failure:
// the read decides.
func (c *Client) drive(ctx context.Context, h *host, kind schemas.ResetType, want PowerState) error {
	t := c.conn.pool.cfg.Timing
	deadline := now().Add(t.PowerChange)
	var refused error
	for {
		refused = c.reset(ctx, h, kind)
		if refused != nil && !already(refused) && !isKind(refused, ErrBusy) && !isKind(refused, ErrUnreachable) {
			return refused
		}
		wait := t.PowerRetry
		if refused != nil {
			wait = t.Poll
		}
		ok, err := c.until(ctx, min(wait, max(deadline.Sub(now()), 0)), c.shows(h, want))
		if ok {
			return nil
		}
		if err != nil && (ctx.Err() != nil || !isKind(err, ErrUnreachable) && !isKind(err, ErrBusy)) {
			return err
		}
		if now().After(deadline) {
			break
		}
	}
	s, err := c.power(ctx, h)
	if err != nil {
		return err
	}
	if s == want {
		return nil
	}
	e := &Error{Kind: ErrNotProven, Address: c.conn.address, URI: h.uri, Err: refused,
		Detail: fmt.Sprintf("%s was accepted and the power is still %s after %s", kind, s, t.PowerChange),
		Hint:   "look at the machine: power supplies, interlock, a hung BMC"}
	if refused != nil {
		e.Detail = fmt.Sprintf("the power is still %s; the last %s: %v", s, kind, refused)
	}
	return e
}

// already reports whether a reset was refused in one of the ways that may mean "it is so already", or "not this moment".
// iDRAC10 answers 409 ActionParameterValueConflict to On in both cases.
func already(err error) bool {
	return messageIs(err, "ActionParameterValueConflict", "InvalidOperationForSystemState", "ActionParameterNotSupported", "NoOperation", "ResourceInUse", "ResourceExhaustion", "SYS518", "PSU501", "RAC0508") ||
		statusIs(err, http.StatusConflict) || statusIs(err, http.StatusBadRequest) && isAlreadyText(err)
}

func isAlreadyText(err error) bool {
	s := strings.ToLower(err.Error())
	return strings.Contains(s, "already") || strings.Contains(s, "invalid operation") || strings.Contains(s, "current state")
}

// reset sends one ComputerSystem.Reset to the host, if it takes that type.
func (c *Client) reset(ctx context.Context, h *host, kind schemas.ResetType) error {
	if !h.allows(kind) {
		return &Error{Kind: ErrUnsupported, Address: c.conn.address, URI: h.reset,
			Detail: fmt.Sprintf("reset type %s; it takes %s", kind, strings.Join(h.resets, ", "))}
	}
	c.conn.pool.log.InfoContext(ctx, "bmc reset", "bmc", c.conn.address, "system", h.uri, "type", kind)
	_, err := c.conn.post(ctx, h.reset, map[string]string{"ResetType": string(kind)}, nil)
	return err
}
