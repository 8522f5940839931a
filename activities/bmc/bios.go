package bmc

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gpupool/schema"
)

// SetBIOS sets BIOS attributes that differ from what is wanted, all in one request, and says whether a reboot is needed
// for them. Attributes that the firmware doesn't know are an error before anything is sent. Nil means that the pending
// settings read so; where they can't be read, that the request was accepted.
func (c *Client) SetBIOS(ctx context.Context, want map[string]any) (reboot bool, err error) {
	defer c.conn.named("set bios of", &err)
	bios, pending, uri, err := c.bios(ctx)
	if err != nil {
		return false, err
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

// bios reads the attributes in force and those of the next boot; uri is the resource that takes a change. pending reads as empty
// where it can't be read.
func (c *Client) bios(ctx context.Context) (bios, pending *resource, uri string, err error) {
	h, err := c.find(ctx)
	if err != nil {
		return nil, nil, "", err
	}
	sys, err := c.conn.get(ctx, h.uri)
	if err != nil {
		return nil, nil, "", err
	}
	if err := c.ours(sys); err != nil {
		return nil, nil, "", err
	}
	if bios, err = c.conn.get(ctx, sys.link("Bios")); err != nil {
		return nil, nil, "", err
	}
	uri = orDefault(bios.link("@Redfish.Settings", "SettingsObject"), bios.uri)
	if uri == bios.uri {
		return bios, bios, uri, nil
	}
	pending, err = c.conn.get(ctx, uri)
	return bios, pending, uri, lenient(uri, err)
}

// BIOSAttribute is one attribute of the firmware's set-up.
type BIOSAttribute struct {
	Name  string `json:"name"`
	Value any    `json:"value"`          // in force; nil where the BMC shows none
	Next  any    `json:"next,omitempty"` // what the next boot sets, where that is another
}

// BIOS lists the attributes by name. Those that hold a password are left out.
func (c *Client) BIOS(ctx context.Context) (_ []BIOSAttribute, err error) {
	defer c.conn.named("read bios of", &err)
	bios, pending, _, err := c.bios(ctx)
	if err != nil {
		return nil, err
	}
	now, next := object(bios.at("Attributes")), object(pending.at("Attributes"))
	names := slices.Sorted(maps.Keys(now))
	for k := range next {
		if _, known := now[k]; !known {
			names = append(names, k)
		}
	}
	out := []BIOSAttribute{}
	for _, k := range names {
		if schema.PasswordAttribute(k) {
			continue
		}
		a := BIOSAttribute{Name: k, Value: now[k]}
		if v, queued := next[k]; queued && !same(v, a.Value) {
			a.Next = v
		}
		out = append(out, a)
	}
	return out, nil
}

// SetBIOSWords is [Client.SetBIOS] of attributes in words: where the BMC shows a number or a boolean, the word must be one.
func (c *Client) SetBIOSWords(ctx context.Context, want map[string]string) (reboot bool, err error) {
	defer c.conn.named("set bios of", &err)
	bios, pending, _, err := c.bios(ctx)
	if err != nil {
		return false, err
	}
	typed := map[string]any{}
	for _, k := range slices.Sorted(maps.Keys(want)) {
		shown, known := object(bios.at("Attributes"))[k]
		if !known {
			shown = object(pending.at("Attributes"))[k]
		}
		v, ok := like(shown, want[k])
		if !ok {
			return false, &Error{Kind: ErrUnsupported, Address: c.conn.address, URI: bios.uri, Detail: fmt.Sprintf("bios attribute %s is %v, and %q is no %T", k, shown, want[k], shown)}
		}
		typed[k] = v
	}
	return c.SetBIOS(ctx, typed)
}

// like is a word as the type of what is shown.
func like(shown any, word string) (any, bool) {
	switch shown.(type) {
	case bool:
		b, err := strconv.ParseBool(word)
		return b, err == nil
	case float64:
		f, err := strconv.ParseFloat(word, 64)
		return f, err == nil
	}
	return word, true
}
