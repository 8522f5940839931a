package bmc

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// SetBIOS sets BIOS attributes that differ from what is wanted, all in one request, and says whether a reboot is needed
// for them. Attributes that the firmware doesn't know are an error before anything is sent. Nil means that the pending
// settings read so; where they can't be read, that the request was accepted.
func (c *Client) SetBIOS(ctx context.Context, want map[string]any) (reboot bool, err error) {
	defer c.conn.named("set bios of", &err)
	h, err := c.find(ctx)
	if err != nil {
		return false, err
	}
	sys, err := c.conn.get(ctx, h.uri)
	if err != nil {
		return false, err
	}
	if err := c.ours(sys); err != nil {
		return false, err
	}
	bios, err := c.conn.get(ctx, sys.link("Bios"))
	if err != nil {
		return false, err
	}
	uri := orDefault(bios.link("@Redfish.Settings", "SettingsObject"), bios.uri)
	pending := bios
	if uri != bios.uri {
		if pending, err = c.conn.get(ctx, uri); err != nil {
			if err := lenient(uri, err); err != nil {
				return false, err
			}
		}
	}
	diff := map[string]any{}
	var unknown []string
	for _, k := range slices.Sorted(maps.Keys(want)) {
		current, known := object(bios.at("Attributes"))[k]
		next, queued := object(pending.at("Attributes"))[k]
		switch {
		case !known && !queued:
			unknown = append(unknown, k)
		case queued && same(next, want[k]) && uri != bios.uri:
			reboot = reboot || !same(current, want[k])
		case !same(current, want[k]) || queued && !same(next, want[k]):
			diff[k] = want[k]
		}
	}
	if unknown != nil {
		return false, &Error{Kind: ErrUnsupported, Address: c.conn.address, URI: bios.uri, Detail: "no bios attribute " + strings.Join(unknown, ", ")}
	}
	if len(diff) == 0 {
		return reboot, nil
	}
	if err := c.conn.patch(ctx, uri, map[string]any{"Attributes": diff}); err != nil {
		return false, err
	}
	var odd string
	ok, err := c.until(ctx, c.conn.pool.cfg.Timing.ReadBack, func(ctx context.Context) (bool, error) {
		r, err := c.conn.get(ctx, uri)
		if err != nil {
			return false, err
		}
		shown, readable := r.at("Attributes").(map[string]any)
		odd = ""
		for k, v := range diff {
			if got, ok := shown[k]; ok && !same(got, v) {
				odd = fmt.Sprintf("%s shows %v", k, got)
			}
		}
		return !readable || odd == "", nil
	})
	if err == nil && !ok {
		err = &Error{Kind: ErrNotProven, Address: c.conn.address, URI: uri, Detail: odd}
	}
	return true, err
}

// same compares attribute values as JSON has them: 1 is 1.0.
func same(a, b any) bool { return fmt.Sprint(a) == fmt.Sprint(b) }
