package bmc

import (
	"context"
	"strings"

	"gpupool/schema"
)

// Drives lists the drives that a server's BMC shows, to tell of one that a sanitise run did not find. A BMC that shows none (many
// don't; IPMI can't) says nothing by that.
func (a *Activities) Drives(ctx context.Context, server string) ([]schema.DriveResult, error) {
	return beating(ctx, func(ctx context.Context) ([]schema.DriveResult, error) {
		c, _, err := a.controller(ctx, server)
		if err != nil {
			return nil, err
		}
		rf, ok := c.(*Client)
		if !ok {
			return nil, nil
		}
		return rf.drives(ctx)
	})
}

func (c *Client) drives(ctx context.Context) (out []schema.DriveResult, err error) {
	defer c.conn.named("list drives", &err)
	h, err := c.find(ctx)
	if err != nil {
		return nil, err
	}
	sys, err := c.conn.get(ctx, h.uri)
	if err != nil {
		return nil, err
	}
	list, err := c.conn.members(ctx, sys.link("Storage"))
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, m := range list {
		unit, err := c.conn.whole(ctx, m)
		if err != nil {
			if err := lenient(m.uri, err); err != nil {
				return nil, err
			}
			continue
		}
		for _, uri := range unit.links("Drives") {
			d, err := c.conn.get(ctx, uri)
			if err != nil {
				if err := lenient(uri, err); err != nil {
					return nil, err
				}
				continue
			}
			serial := d.word("SerialNumber")
			if serial == "" || seen[serial] || d.str("Status", "State") == "Absent" {
				continue
			}
			seen[serial] = true
			bytes, _ := d.num("CapacityBytes")
			out = append(out, schema.DriveResult{Serial: serial, Model: d.word("Model"), Name: d.word("Name"), Bus: strings.ToLower(d.str("Protocol")), Bytes: int64(bytes)})
		}
	}
	return out, nil
}
