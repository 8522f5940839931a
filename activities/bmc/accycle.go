package bmc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/stmcginnis/gofish/schemas"
)

// acReset is a maker's action that takes even the standby power away, the BMC's included, as pulling the plugs does.
type acReset struct {
	action, value string
	chassis       bool // it is a chassis's action, not the system's
	source        string
}

// acResets are those known. Whether a machine has one is read from its resources, and the value is sent only where it is
// listed.
var acResets = []acReset{
	{"#HpeComputerSystemExt.SystemReset", "AuxCycle", false, "iLO 5 and 6, captured DL380a"},
	{"#LenovoComputerSystem.SystemReset", "ACPowerCycle", false, "XCC, captured SR675 V3"},
	{"#OemSystemExtensions.Reset", "ACCycle", false, "Supermicro, as driven by libredfish"},
	{"#NvidiaChassis.AuxPowerReset", "AuxPowerCycle", true, "captured GB200 tray"},
}

// acCycle takes the power away altogether for a moment, and brings the machine up again. The host is powered off first: some
// refuse otherwise, and none loses more. It is proven by the session, which no BMC keeps over a loss of its own power.
func (c *Client) acCycle(ctx context.Context, h *host, plan powerPlan) error {
	target, value, err := c.findACReset(ctx, h)
	if err != nil {
		return err
	}
	was, begun, err := c.conn.pool.begun(ctx, c.conn.address, plan)
	if err != nil {
		return err
	}
	if !begun {
		if err := c.conn.pool.spend(ctx, c.conn.address, normalURI(h.uri), &plan); err != nil {
			return err
		}
		if _, err := c.turnOff(ctx, h, plan); err != nil {
			return err
		}
	}
	before, err := c.conn.session(ctx)
	if err != nil {
		return err
	}
	session := Login{Password: before}.revision()
	if !begun {
		if err := c.conn.pool.begin(ctx, c.conn.address, plan, session); err != nil {
			return err
		}
		c.conn.pool.log.InfoContext(ctx, "bmc ac cycle", "bmc", c.conn.address, "target", target, "type", value)
		if _, err := c.conn.post(ctx, target, map[string]string{"ResetType": value}, nil); err != nil && !isKind(err, ErrUnreachable) {
			return err // one that goes down before it answers has heard us
		}
	}
	t := c.conn.pool.cfg.Timing
	gone := before == "" || begun && was.Before != session // under Basic there is nothing to lose
	back, err := c.until(ctx, t.TaskLost, func(ctx context.Context) (bool, error) {
		a, err := c.conn.exchange(ctx, http.MethodGet, h.uri, http.Header{"X-Auth-Token": {string(before)}}, nil)
		switch {
		case err != nil:
			return false, err
		case a.status == http.StatusUnauthorized:
			gone = true
		}
		return gone && (a.status == http.StatusUnauthorized || a.status == http.StatusOK), nil
	})
	if err == nil && !back {
		err = &Error{Kind: ErrNotProven, Address: c.conn.address, URI: target, Detail: fmt.Sprintf("%s was accepted and the bmc did not restart within %s", value, t.TaskLost),
			Hint: "switch the outlets of its PDU, or have someone pull the plugs"}
	}
	if err == nil {
		err = sleep(ctx, c.settle(h))
	}
	if err != nil && (!begun || ctx.Err() != nil) {
		return err
	}
	return errors.Join(err, c.turnOn(ctx, h)) // what was killed before it sent the reset left the machine off
}

// findACReset looks for the action and its value: the standard's own, then the makers'.
func (c *Client) findACReset(ctx context.Context, h *host) (target, value string, err error) {
	if h.shares { // and the BMC's own restart would be no proof
		return "", "", &Error{Kind: ErrUnsupported, Address: c.conn.address, URI: h.uri, Detail: "its BMC serves several servers, and none says what else loses its standby power",
			Hint: "pull the node out and put it back"}
	}
	if full := schemas.FullPowerCycleResetType; slices.Contains(h.resets, string(full)) {
		return h.reset, string(full), nil
	}
	sys, err := c.conn.get(ctx, h.uri)
	if err != nil {
		return "", "", err
	}
	places := []any{sys.at("Actions", "Oem")}
	for _, maker := range object(sys.at("Oem")) {
		places = append(places, at(maker, "Actions"))
	}
	system := len(places)
	root, err := c.conn.root(ctx)
	if err != nil {
		return "", "", err
	}
	list, err := c.conn.collect(ctx, orDefault(root.link("Chassis"), "/redfish/v1/Chassis"), lenient)
	if err != nil {
		return "", "", err
	}
	for _, ch := range list {
		places = append(places, ch.at("Actions", "Oem"))
	}
	for _, r := range acResets {
		for i, place := range places {
			if (i >= system) != r.chassis {
				continue
			}
			action := object(place)[r.action]
			target, _ := at(action, "target").(string)
			if target == "" {
				continue
			}
			values, err := c.resetTypes(ctx, action)
			if err != nil {
				return "", "", err
			}
			if slices.Contains(values, r.value) {
				return target, r.value, nil
			}
		}
	}
	return "", "", &Error{Kind: ErrUnsupported, Address: c.conn.address, URI: h.uri, Detail: "it shows no action that takes the standby power away",
		Hint: "switch the outlets of its PDU, or have someone pull the plugs"}
}
