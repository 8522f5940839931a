package bmc

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// BootEntry is one entry that the machine can boot.
type BootEntry struct {
	Ref     string `json:"ref"` // Boot0001
	Name    string `json:"name"`
	Path    string `json:"path"` // UEFI device path
	Enabled *bool  `json:"enabled,omitempty"`
}

// Network reports whether it boots from a network card: by its device path, or by its name where the path is a vendor's
// own (Dell's VenHw).
func (o BootEntry) Network() bool {
	if strings.Contains(strings.ToLower(o.Path), "mac(") {
		return true
	}
	n := strings.ToLower(o.Name)
	return strings.Contains(n, "pxe") || strings.HasPrefix(n, "http device") || n == "network" // Lenovo names classes, not devices
}

// On reports whether it boots from the card with this MAC.
func (o BootEntry) On(mac string) bool {
	return strings.Contains(strings.ToLower(o.Path), "mac("+strings.ToLower(strings.NewReplacer(":", "", "-", "").Replace(mac)))
}

// BootEntries lists what the machine can boot, in the order of the next boot; entries that aren't in the order come last.
func (c *Client) BootEntries(ctx context.Context) (_ []BootEntry, err error) {
	defer c.conn.named("read boot options of", &err)
	h, err := c.find(ctx)
	if err != nil {
		return nil, err
	}
	sys, err := c.conn.get(ctx, h.uri)
	if err != nil {
		return nil, err
	}
	list, err := c.conn.collect(ctx, sys.link("Boot", "BootOptions"), lenient)
	if err != nil {
		return nil, err
	}
	byRef := map[string]BootEntry{}
	var refs []string
	for _, r := range list {
		o := BootEntry{Ref: orDefault(r.str("BootOptionReference"), lastSegment(r.uri)), Name: orDefault(r.str("DisplayName"), r.str("Name")),
			Path: r.str("UefiDevicePath"), Enabled: flag(r, "BootOptionEnabled")}
		byRef[o.Ref] = o
		refs = append(refs, o.Ref)
	}
	var out []BootEntry
	_, order, err := c.shownOrder(ctx, h, sys)
	if err != nil && !isKind(err, ErrUnsupported) {
		return nil, err
	}
	for _, ref := range slices.Concat(order, refs) {
		key, _, _ := strings.Cut(ref, ":") // "Boot0019: Ubuntu" on some NVIDIA firmware
		o, ok := byRef[key]
		if !ok {
			if o, ok = byRef[ref]; !ok {
				continue
			}
		}
		if !slices.ContainsFunc(out, func(x BootEntry) bool { return x.Ref == o.Ref }) {
			out = append(out, o)
		}
	}
	return out, nil
}

// SetBootOrder sets the persistent boot order, for firmware that forgets a one-time override. It must name each entry of
// the present order once. It takes effect at the next boot; nil means that the pending order reads so.
func (c *Client) SetBootOrder(ctx context.Context, refs []string) (err error) {
	defer c.conn.named("set boot order of", &err)
	h, err := c.find(ctx)
	if err != nil {
		return err
	}
	sys, err := c.conn.get(ctx, h.uri)
	if err != nil {
		return err
	}
	if err := c.ours(sys); err != nil {
		return err
	}
	uri, shown, err := c.shownOrder(ctx, h, sys)
	if err != nil {
		return err
	}
	a, b := slices.Sorted(slices.Values(shown)), slices.Sorted(slices.Values(refs))
	if !slices.Equal(a, b) {
		return &Error{Kind: ErrUnsupported, Address: c.conn.address, URI: uri,
			Detail: fmt.Sprintf("the order %v doesn't name each of %v once", refs, shown)}
	}
	if slices.Equal(shown, refs) {
		return nil
	}
	if err := c.conn.patch(ctx, uri, map[string]any{"Boot": map[string]any{"BootOrder": refs}}); err != nil {
		return err
	}
	ok, err := c.until(ctx, c.conn.pool.cfg.Timing.ReadBack, func(ctx context.Context) (bool, error) {
		r, err := c.conn.get(ctx, uri)
		if err != nil {
			return false, err
		}
		shown = stringsOf(r.at("Boot", "BootOrder"))
		return slices.Equal(shown, refs), nil
	})
	if err == nil && !ok {
		err = &Error{Kind: ErrNotProven, Address: c.conn.address, URI: uri, Detail: fmt.Sprintf("it shows %v", shown)}
	}
	return err
}

// shownOrder is the boot order that the next boot will use, and the resource that takes another: the settings resource where the
// firmware keeps it there.
func (c *Client) shownOrder(ctx context.Context, h *host, sys *resource) (uri string, refs []string, err error) {
	uri, refs = h.uri, stringsOf(sys.at("Boot", "BootOrder"))
	if s := sys.link("@Redfish.Settings", "SettingsObject"); s != "" {
		r, err := c.conn.get(ctx, s)
		if err := lenient(s, err); err != nil {
			return "", nil, err
		}
		if pending := stringsOf(r.at("Boot", "BootOrder")); pending != nil {
			uri, refs = s, pending
		}
	}
	if refs == nil {
		return "", nil, &Error{Kind: ErrUnsupported, Address: c.conn.address, URI: uri, Detail: "the bmc shows no boot order"}
	}
	return uri, refs, nil
}

// BootFirst moves entries before all others of the persistent boot order, in the sequence given; the others keep theirs.
func (c *Client) BootFirst(ctx context.Context, first []string) (err error) {
	defer c.conn.named("set boot order of", &err)
	h, err := c.find(ctx)
	if err != nil {
		return err
	}
	sys, err := c.conn.get(ctx, h.uri)
	if err != nil {
		return err
	}
	uri, shown, err := c.shownOrder(ctx, h, sys)
	if err != nil {
		return err
	}
	var order, rest []string
	for _, ref := range shown {
		key, _, _ := strings.Cut(ref, ":") // "Boot0019: Ubuntu" on some NVIDIA firmware
		if !slices.Contains(first, ref) && !slices.Contains(first, key) {
			rest = append(rest, ref)
		}
	}
	for _, want := range first {
		i := slices.IndexFunc(shown, func(ref string) bool { key, _, _ := strings.Cut(ref, ":"); return ref == want || key == want })
		if i < 0 || slices.Contains(order, shown[i]) {
			return &Error{Kind: ErrUnsupported, Address: c.conn.address, URI: uri, Detail: fmt.Sprintf("boot option %q: want each once of %s", want, few(shown))}
		}
		order = append(order, shown[i])
	}
	return c.SetBootOrder(ctx, append(order, rest...))
}
