package bmc

import (
	"context"
	"fmt"
	"slices"

	"github.com/stmcginnis/gofish/schemas"
)

// LocateLED turns the light by which a technician finds the server on or off. The property is the one that the machine
// has, on the system or else on its chassis; it is compared first and read back.
func (c *Client) LocateLED(ctx context.Context, on bool) (err error) {
	defer c.conn.named("set locator light of", &err)
	h, err := c.find(ctx)
	if err != nil {
		return err
	}
	var last error
	for _, uri := range append([]string{h.uri}, h.chassis...) {
		r, err := c.conn.get(ctx, uri)
		if err == nil && uri == h.uri {
			err = c.ours(r)
		}
		if err != nil {
			return err
		}
		if uri != h.uri && h.shares && !h.holds(r) {
			continue // an enclosure's light finds no server in it
		}
		change, lit, ok := light(r, on)
		if !ok {
			continue
		}
		if lit == on {
			return nil
		}
		if last = c.conn.patch(ctx, uri, change); last != nil {
			if isKind(last, ErrRefused) {
				continue // shown there, settable elsewhere
			}
			return last
		}
		seen, err := c.until(ctx, c.conn.pool.cfg.Timing.ReadBack, func(ctx context.Context) (bool, error) {
			r, err := c.conn.get(ctx, uri)
			if err != nil {
				return false, err
			}
			_, lit, _ := light(r, on)
			return lit == on, nil
		})
		if err != nil {
			return err
		}
		if !seen {
			return &Error{Kind: ErrNotProven, Address: c.conn.address, URI: uri, Detail: fmt.Sprintf("the light does not show as %v", on)}
		}
		return nil
	}
	if last != nil {
		return last
	}
	return &Error{Kind: ErrUnsupported, Address: c.conn.address, URI: h.uri, Detail: "neither the system nor its chassis has a locator light"}
}

// light finds the light of a resource: how to set it, and whether it is lit.
func light(r *resource, on bool) (change map[string]any, lit, ok bool) {
	if v, is := r.at("LocationIndicatorActive").(bool); is {
		return map[string]any{"LocationIndicatorActive": on}, v, true
	}
	led := schemas.IndicatorLED(r.str("IndicatorLED"))
	if led == "" {
		return nil, false, false
	}
	value := schemas.OffIndicatorLED
	if on {
		value = schemas.BlinkingIndicatorLED
		if list := stringsOf(r.at("IndicatorLED" + allowable)); len(list) > 0 && !slices.Contains(list, string(value)) {
			value = schemas.LitIndicatorLED
		}
	}
	// Lit is a resting state on some (Dell shows it always): only Blinking locates.
	lit = led == schemas.BlinkingIndicatorLED || led == schemas.LitIndicatorLED && value == schemas.LitIndicatorLED
	return map[string]any{"IndicatorLED": string(value)}, lit, true
}
