package bmc

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/stmcginnis/gofish/schemas"
)

const (
	propEnabled = "BootSourceOverrideEnabled"
	propTarget  = "BootSourceOverrideTarget"
	propMode    = "BootSourceOverrideMode"
	propURI     = "HttpBootUri"
	allowable   = "@Redfish.AllowableValues"
)

// NetBoot is a way to boot from the network.
type NetBoot string

// The ways.
const (
	PXE      NetBoot = "pxe"
	UEFIHTTP NetBoot = "uefi-http"
)

func (m NetBoot) target() schemas.BootSource {
	switch m {
	case PXE:
		return schemas.PxeBootSource
	case UEFIHTTP:
		return schemas.UefiHTTPBootSource
	}
	return ""
}

// BootSetting is a boot override as the BMC shows it. Empty fields are what it doesn't show.
type BootSetting struct {
	Target  string `json:"target"`  // Redfish BootSource: None, Pxe, UefiHttp, UefiBootNext, Hdd, ...
	Enabled string `json:"enabled"` // Disabled, Once, Continuous
	Mode    string `json:"mode,omitempty"`
	HTTPURI string `json:"http_uri,omitempty"`
	URI     string `json:"uri"`     // resource that shows it
	Changed bool   `json:"changed"` // a request was needed
}

// BootOption adds to a network boot.
type BootOption func(*override)

// FromURI names what UEFI HTTP boot fetches, where the firmware takes it from the BMC; otherwise DHCP names it.
func FromURI(uri string) BootOption { return func(o *override) { o.uri = uri } }

// override is what the Boot object shall show.
type override struct {
	target  string
	enabled string
	mode    string // "" leaves the mode alone
	uri     string
}

// Boot reads the override in force: the one of the settings resource where the firmware keeps it there, else the
// system's own.
func (c *Client) Boot(ctx context.Context) (_ BootSetting, err error) {
	defer c.conn.named("read boot override of", &err)
	h, err := c.find(ctx)
	if err != nil {
		return BootSetting{}, err
	}
	r, err := c.conn.get(ctx, h.bootURI())
	if err != nil {
		return BootSetting{}, err
	}
	return settingOf(r), nil
}

func (h *host) bootURI() string { return orDefault(h.settings, h.uri) }

func settingOf(r *resource) BootSetting {
	return BootSetting{Target: r.str("Boot", propTarget), Enabled: r.str("Boot", propEnabled), Mode: r.str("Boot", propMode),
		HTTPURI: r.str("Boot", propURI), URI: r.uri}
}

// BootOnceFromNetwork makes the next boot, and only that, one from the network. The setting is compared first and sent
// only when it differs, as enabled, mode and target together (Supermicro turns to Legacy otherwise), to the resource that
// the firmware takes it at, under that resource's own entity tag. It returns nil only when a read shows it. It doesn't
// touch the power. A boot mode that falls back to Legacy is put right once; then it is ErrModeReverted.
func (c *Client) BootOnceFromNetwork(ctx context.Context, method NetBoot, opts ...BootOption) (_ BootSetting, err error) {
	defer c.conn.named("set network boot of", &err)
	want := override{target: string(method.target()), enabled: string(schemas.OnceBootSourceOverrideEnabled), mode: string(schemas.UEFIBootSourceOverrideMode)}
	if want.target == "" {
		return BootSetting{}, &Error{Kind: ErrUnsupported, Address: c.conn.address, Detail: fmt.Sprintf("network boot %q: want %s or %s", method, PXE, UEFIHTTP)}
	}
	for _, o := range opts {
		o(&want)
	}
	return c.setOverride(ctx, want)
}

// ClearBootOverride lets the machine boot by its own order again. It returns nil only when a read shows it.
func (c *Client) ClearBootOverride(ctx context.Context) (err error) {
	defer c.conn.named("clear boot override of", &err)
	_, err = c.setOverride(ctx, override{target: string(schemas.NoneBootSource), enabled: string(schemas.DisabledBootSourceOverrideEnabled)})
	return err
}

func (c *Client) setOverride(ctx context.Context, want override) (BootSetting, error) {
	h, err := c.find(ctx)
	if err != nil {
		return BootSetting{}, err
	}
	settings, err := c.conn.get(ctx, h.bootURI())
	if err != nil {
		return BootSetting{}, err
	}
	system := settings
	if h.settings != "" {
		if system, err = c.conn.get(ctx, h.uri); err != nil {
			return BootSetting{}, err
		}
	}
	if err := c.ours(system); err != nil {
		return BootSetting{}, err
	}
	if object(settings.at("Boot"))[propEnabled] == nil && object(system.at("Boot"))[propEnabled] == nil {
		return BootSetting{}, &Error{Kind: ErrUnsupported, Address: c.conn.address, URI: h.uri, Detail: "this system has no boot override"}
	}
	if err := c.checkAllowed(h, &want, settings, system); err != nil {
		return BootSetting{}, err
	}
	if got := settingOf(settings); h.equal(got, want) {
		return got, nil // some firmware refuses a PATCH of equal values
	}
	change := map[string]any{propEnabled: want.enabled, propTarget: want.target}
	if want.mode != "" {
		change[propMode] = want.mode
	}
	if _, shown := object(settings.at("Boot"))[propURI]; shown && want.uri != "" {
		change[propURI] = want.uri
	}
	for resync := false; ; resync = true {
		if err := c.patchBoot(ctx, h, change); err != nil {
			return BootSetting{}, err
		}
		got, err := c.readBack(ctx, h, want)
		if err != nil {
			return got, err
		}
		got.Changed = true
		if want.mode == string(schemas.UEFIBootSourceOverrideMode) && got.Mode == string(schemas.LegacyBootSourceOverrideMode) {
			if !resync {
				c.conn.pool.log.WarnContext(ctx, "boot mode fell back to Legacy, setting it again", "bmc", c.conn.address)
				continue
			}
			return got, &Error{Kind: ErrModeReverted, Address: c.conn.address, URI: got.URI, Detail: "the boot mode shows Legacy though UEFI was set twice",
				Hint: "set the boot mode to UEFI in the BIOS; the power was left alone"}
		}
		return got, nil
	}
}

// checkAllowed fits a wish to what the firmware lists, or says what it lists. Nothing listed allows everything.
func (c *Client) checkAllowed(h *host, want *override, resources ...*resource) error {
	listed := func(prop string) []string {
		for _, r := range resources {
			if list := stringsOf(r.at("Boot", prop+allowable)); len(list) > 0 {
				return list
			}
		}
		return nil
	}
	targets := listed(propTarget)
	if len(targets) > 0 && !slices.Contains(targets, want.target) {
		undeclared := want.target == string(schemas.UefiHTTPBootSource) && h.manners.undeclaredHTTP
		if !undeclared {
			return &Error{Kind: ErrUnsupported, Address: c.conn.address, URI: h.bootURI(),
				Detail: fmt.Sprintf("boot target %s; it takes %s", want.target, strings.Join(targets, ", "))}
		}
	}
	if list := listed(propEnabled); len(list) > 0 && !slices.Contains(list, want.enabled) {
		return &Error{Kind: ErrUnsupported, Address: c.conn.address, URI: h.bootURI(),
			Detail: fmt.Sprintf("boot override %s; it takes %s", want.enabled, strings.Join(list, ", "))}
	}
	// The mode is sent where the firmware knows one, even if it shows null (DGX H100); GB200 knows none.
	hasMode := len(listed(propMode)) > 0
	shown := ""
	for _, r := range resources {
		if v, ok := object(r.at("Boot"))[propMode]; ok {
			hasMode = true
			shown = orDefault(shown, text(v))
		}
	}
	switch {
	case !hasMode:
		want.mode = ""
	case want.mode == "" && want.enabled == string(schemas.DisabledBootSourceOverrideEnabled):
		want.mode = shown // sent along, so that clearing doesn't revert it either
	}
	return nil
}

// equal compares an override with a wish, as this firmware shows it.
func (h *host) equal(got BootSetting, want override) bool {
	if want.enabled == string(schemas.DisabledBootSourceOverrideEnabled) {
		return got.Enabled == want.enabled // the target that is left over means nothing then
	}
	target := got.Target == want.target || h.manners.targetAlias[want.target] != "" && got.Target == h.manners.targetAlias[want.target]
	return target && got.Enabled == want.enabled && (want.mode == "" || got.Mode == want.mode) && (want.uri == "" || got.HTTPURI == want.uri)
}

// patchBoot sends the override, waiting out a POST.
func (c *Client) patchBoot(ctx context.Context, h *host, change map[string]any) error {
	deadline := now().Add(c.conn.pool.cfg.Timing.POSTWindow)
	for {
		err := c.conn.patch(ctx, h.bootURI(), map[string]any{"Boot": change})
		if err == nil || !inPOST(err) && !isKind(err, ErrBusy) {
			return err
		}
		if now().After(deadline) {
			return &Error{Kind: ErrBusy, Address: c.conn.address, URI: h.bootURI(), Err: err,
				Detail: fmt.Sprintf("still refused after %s: %v", c.conn.pool.cfg.Timing.POSTWindow, err), Hint: "the machine hangs in its POST; look at its console"}
		}
		if err := sleep(ctx, c.conn.pool.cfg.Timing.Poll); err != nil {
			return err
		}
	}
}

// inPOST reports a refusal that ends with the POST (HPE iLO).
func inPOST(err error) bool {
	return messageIs(err, "UnableToModifyDuringSystemPOST", "InvalidOperationForSystemState")
}

// readBack waits until the setting shows: in the settings resource, or already in the system. A mode that shows as Legacy
// is returned for the caller to judge.
func (c *Client) readBack(ctx context.Context, h *host, want override) (BootSetting, error) {
	var got BootSetting
	loose := want
	loose.mode, loose.uri = "", ""
	ok, err := c.until(ctx, c.conn.pool.cfg.Timing.ReadBack, func(ctx context.Context) (bool, error) {
		for _, uri := range []string{h.bootURI(), h.uri} {
			r, err := c.conn.get(ctx, uri)
			if err != nil {
				return false, err
			}
			seen := settingOf(r)
			if uri == h.bootURI() {
				got = seen
			}
			legacy := want.mode != "" && seen.Mode == string(schemas.LegacyBootSourceOverrideMode) && h.equal(seen, loose)
			// Of a make that can't be told, what Supermicro shows is taken for the answer to a change, never for a setting found.
			next := h.make == MakeUnknown && want.target == string(schemas.PxeBootSource) && seen.Target == string(schemas.UefiBootNextBootSource) && seen.Enabled == want.enabled &&
				(want.mode == "" || seen.Mode == want.mode)
			if h.equal(seen, want) || legacy || next {
				got = seen
				return true, nil
			}
			if h.settings == "" {
				break
			}
		}
		return false, nil
	})
	switch {
	case err != nil:
		return got, err
	case !ok:
		return got, &Error{Kind: ErrNotProven, Address: c.conn.address, URI: h.bootURI(), Status: http.StatusOK,
			Detail: fmt.Sprintf("asked for %s %s %s, it shows %s %s %s", want.enabled, want.target, want.mode, orDefault(got.Enabled, "nothing"), got.Target, got.Mode),
			Hint:   "another boot order in the BIOS or a lockdown mode may win; set the persistent order instead"}
	}
	return got, nil
}
