package bmc

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/stmcginnis/gofish/schemas"

	"gpupool/schema"
)

// Finding is what one check of a doctor's visit came to.
type Finding struct {
	Check string       `json:"check"`
	State FindingState `json:"state"`
	Text  string       `json:"text"`
	Hint  string       `json:"hint,omitempty"`
	Took  int64        `json:"took_ms"`
}

// FindingState is how a check ended.
type FindingState string

// The states. Skipped is what could not be looked at, because of an earlier failure.
const (
	FindingOK      FindingState = "ok"
	FindingWarning FindingState = "warning"
	FindingFailed  FindingState = "failed"
	FindingSkipped FindingState = "skipped"
)

// Diagnosis is everything that stands between us and a BMC that we can work with, check by check.
type Diagnosis struct {
	Usable   bool      `json:"usable"` // no check failed
	Findings []Finding `json:"findings"`
}

// visit collects findings. After a failed check that the rest needs, the rest is skipped.
type visit struct {
	ctx  context.Context
	out  Diagnosis
	stop string
}

// check runs one. It returns words and, for a warning, a hint; essential checks that fail stop the rest.
func (v *visit) check(name string, essential bool, f func(context.Context) (text, hint string, err error)) {
	if v.stop != "" {
		v.out.Findings = append(v.out.Findings, Finding{Check: name, State: FindingSkipped, Text: "not looked at: " + v.stop + " failed"})
		return
	}
	start := time.Now()
	text, hint, err := f(v.ctx)
	x := Finding{Check: name, State: FindingOK, Text: text, Hint: hint, Took: time.Since(start).Milliseconds()}
	switch {
	case err != nil:
		x.State, x.Text = FindingFailed, err.Error()
		var e *Error
		if errors.As(err, &e) && e.Hint != "" {
			bare := *e
			bare.Hint, x.Hint = "", e.Hint
			x.Text = bare.Error()
		}
		v.out.Usable = false
		if essential {
			v.stop = name
		}
	case hint != "":
		x.State = FindingWarning
	}
	v.out.Findings = append(v.out.Findings, x)
}

// Doctor looks at everything that we need of a BMC and says what is wrong, with what would be right. It changes nothing,
// and logs in at most once. want is what was enrolled.
func (c *Client) Doctor(ctx context.Context, want schema.Server) Diagnosis {
	v := &visit{ctx: ctx, out: Diagnosis{Usable: true}}
	var root *resource
	v.check("reach", true, func(ctx context.Context) (string, string, error) {
		c.conn.mu.Lock()
		c.conn.service = nil // asked anew: what was kept proves nothing about now
		c.conn.mu.Unlock()
		var err error
		if root, err = c.conn.root(ctx); err != nil {
			return "", "", err
		}
		words := "Redfish " + orDefault(root.str("RedfishVersion"), "of a version not told")
		if who := strings.TrimSpace(root.str("Vendor") + " " + root.str("Product")); who != "" {
			words += ", " + who
		}
		return words, "", nil
	})
	v.check("key", false, func(context.Context) (string, string, error) {
		c.conn.mu.Lock()
		pin := c.conn.pin
		c.conn.mu.Unlock()
		switch {
		case c.conn.base.Scheme == "http":
			return "plain HTTP: passwords cross the network readable", "switch HTTPS on at the BMC and enrol it by https://", nil
		case pin == "":
			return "signed by the operator's authority", "", nil
		}
		return "the key " + pin + " is trusted", "", nil
	})
	v.check("login", true, func(ctx context.Context) (string, string, error) {
		if err := c.Login(ctx); err != nil {
			return "", "", err
		}
		c.conn.mu.Lock()
		defer c.conn.mu.Unlock()
		if c.conn.basic != nil {
			return "in by Basic: it has no session service", "each request is a login of its own; see whether its firmware has sessions", nil
		}
		return "in by a session", "", nil
	})
	v.check("account", true, func(ctx context.Context) (string, string, error) {
		r, err := c.conn.get(ctx, orDefault(root.link("AccountService"), "/redfish/v1/AccountService"))
		if err != nil {
			if isKind(err, ErrPasswordChange) {
				return "", "", err
			}
			return "its account service can't be read, so that passwords can't be changed", "give the account administrator rights", lenient("", err)
		}
		n, told := r.num("AccountLockoutThreshold")
		switch {
		case !told:
			return "no lockout told", "", nil
		case n > 0 && n <= maxRefusals:
			return fmt.Sprintf("it locks accounts after %.0f wrong passwords", n), fmt.Sprintf("raise AccountLockoutThreshold above %d, else our own tries can lock it", maxRefusals), nil
		case n == 0:
			return "it never locks accounts", "", nil
		}
		return fmt.Sprintf("it locks accounts after %.0f wrong passwords; we stop at %d", n, maxRefusals), "", nil
	})
	var h *host
	v.check("host", true, func(ctx context.Context) (string, string, error) {
		var err error
		if h, err = c.look(ctx); err != nil {
			return "", "", err
		}
		words := normalURI(h.uri) + ", make " + string(h.make)
		for _, q := range h.quirks {
			words += ", quirk " + q.Name
		}
		return words, "", nil
	})
	var id Identity
	v.check("identity", false, func(ctx context.Context) (string, string, error) {
		var err error
		if id, err = c.Identify(ctx); err != nil {
			return "", "", err
		}
		if err := id.Mismatch(Identity{Serial: want.Serial, UUID: want.UUID}); err != nil {
			return "", "", &Error{Kind: ErrRefused, Address: c.conn.address, Detail: err.Error(), Hint: "is the BMC cabled to another server, or was the serial typed wrong?"}
		}
		return strings.TrimSpace(fmt.Sprintf("%s %s, serial %s, BMC firmware %s", id.Manufacturer, id.Model, id.Serial, orDefault(id.BMCFirmware, "not told"))), "", nil
	})
	v.check("clock", false, func(ctx context.Context) (string, string, error) { return c.checkClock(ctx, h) })
	v.check("power", false, func(ctx context.Context) (string, string, error) {
		state, err := c.power(ctx, h)
		if err != nil {
			return "", "", err
		}
		switch off := h.allows(schemas.ForceOffResetType); {
		case !h.allows(schemas.OnResetType) && !h.allows(schemas.ForceOnResetType), !off && !h.allows(schemas.PowerCycleResetType):
			return "", "", &Error{Kind: ErrUnsupported, Address: c.conn.address, URI: h.uri, Detail: "it takes only " + strings.Join(h.resets, ", "), Hint: "On and ForceOff are needed; is the account an administrator's?"}
		case !off:
			return fmt.Sprintf("%s; it takes %s, and no ForceOff", state, strings.Join(h.resets, ", ")), "it can be cycled, and be switched off only by its system; is the account an administrator's?", nil
		}
		return fmt.Sprintf("%s; it takes %s", state, orDefault(strings.Join(h.resets, ", "), "resets it doesn't list")), "", nil
	})
	v.check("boot", false, func(ctx context.Context) (string, string, error) { return c.checkBoot(ctx, h) })
	v.check("accelerators", false, func(ctx context.Context) (string, string, error) {
		switch {
		case id.SystemID == "":
			return "unknown: the identity could not be read", "see identity", nil
		case id.Accelerators() == NotApplicable:
			return "it shows none: only the agent will see them", "", nil
		case id.Accelerators() == Unknown:
			return fmt.Sprintf("%d shown, and not all could be read", len(id.GPUs)), "wait until the GPU baseboard's BMC has started", nil
		case want.Accelerators > 0 && len(id.GPUs) != want.Accelerators:
			return fmt.Sprintf("%d shown, %d ordered", len(id.GPUs), want.Accelerators), "reseat or replace what is missing, or correct the order", nil
		}
		return fmt.Sprintf("%d shown", len(id.GPUs)), "", nil
	})
	v.check("events", false, func(ctx context.Context) (string, string, error) {
		r, err := c.conn.get(ctx, orDefault(root.link("EventService"), "/redfish/v1/EventService"))
		if err != nil {
			return "none: it is polled", "", lenient("", err)
		}
		on := flag(r, "ServiceEnabled")
		switch uri := r.str("ServerSentEventUri"); {
		case uri != "" && on != nil && !*on:
			return "it could send events and has them switched off: it is polled", "", nil
		case uri != "":
			return "sent as a stream", "", nil
		}
		return "no stream: it is polled", "", nil
	})
	v.check("logs", false, func(ctx context.Context) (string, string, error) {
		list, err := c.LogServices(ctx)
		if err != nil {
			return "", "", err
		}
		return c.checkLogs(ctx, list)
	})
	slow := int64(0)
	for _, x := range v.out.Findings[:min(5, len(v.out.Findings))] {
		slow = max(slow, x.Took)
	}
	v.check("speed", false, func(context.Context) (string, string, error) {
		if slow > 10_000 {
			return fmt.Sprintf("a check took %d s", slow/1000), "restart the BMC (gpupool bmc reset) or update its firmware", nil
		}
		return fmt.Sprintf("the slowest of the first checks took %d ms", slow), "", nil
	})
	return v.out
}

// wrongClock is how far a BMC's clock may be off before its logs mislead people. Ours judge by order and not by time.
const wrongClock = 5 * time.Minute

// checkLogs counts what the event logs hold, by one request each.
func (c *Client) checkLogs(ctx context.Context, services []string) (string, string, error) {
	events := EventLogs(services)
	if len(events) == 0 {
		return fmt.Sprintf("%d, none of them for events", len(services)), "what it would log of its hardware is seen only by its sensors and states", nil
	}
	entries, unread := 0, 0
	for _, uri := range events {
		n, err := c.countEntries(ctx, uri)
		if err := lenient(uri, err); err != nil {
			return "", "", err
		}
		if err != nil {
			unread++
		}
		entries += n
	}
	words := fmt.Sprintf("%d, of which %d are read for events; entries in these: %d", len(services), len(events), entries)
	if unread > 0 {
		return words, fmt.Sprintf("%d of them can't be read: see gpupool bmc logs", unread), nil
	}
	return words, "", nil
}

func (c *Client) checkClock(ctx context.Context, h *host) (string, string, error) {
	if len(h.managers) == 0 {
		return "no manager is named: its clock is unknown", "", nil
	}
	r, err := c.conn.get(ctx, h.managers[0])
	if err != nil {
		return "unknown", "", lenient("", err)
	}
	t := parseTime(r.str("DateTime"))
	if t.IsZero() {
		return "it doesn't tell its time", "", nil
	}
	off := time.Since(t).Round(time.Second)
	if off.Abs() > wrongClock {
		return fmt.Sprintf("its clock says %s, it is %s off", t.UTC().Format(time.RFC3339), roughly(off.Abs())), "set NTP at the BMC: people read its logs by time", nil
	}
	return fmt.Sprintf("right within %s", off.Abs()), "", nil
}

// roughly is a time in days where it has some.
func roughly(d time.Duration) string {
	if day := 24 * time.Hour; d >= 2*day {
		return fmt.Sprintf("%d days", d/day)
	}
	return d.String()
}

func (c *Client) checkBoot(ctx context.Context, h *host) (string, string, error) {
	r, err := c.conn.get(ctx, h.bootURI())
	if err != nil {
		return "", "", err
	}
	sys, err := c.conn.get(ctx, h.uri)
	if err != nil {
		return "", "", err
	}
	var can []string
	for _, m := range []NetBoot{PXE, UEFIHTTP} {
		want := override{target: string(m.target()), enabled: string(schemas.OnceBootSourceOverrideEnabled), mode: string(schemas.UEFIBootSourceOverrideMode)}
		if c.checkAllowed(h, &want, r, sys) == nil {
			can = append(can, string(m))
		}
	}
	if can == nil {
		return "", "", &Error{Kind: ErrUnsupported, Address: c.conn.address, URI: h.bootURI(), Status: http.StatusOK, Detail: "it takes no boot from the network, once",
			Hint: "switch network boot on in the BIOS, or set the persistent boot order"}
	}
	set := settingOf(r)
	if set.Enabled == string(schemas.ContinuousBootSourceOverrideEnabled) {
		return fmt.Sprintf("once from the network by %s; now %s %s", strings.Join(can, ", "), set.Target, set.Enabled), "an override that stands for ever hides the boot order: gpupool bmc boot NAME disk", nil
	}
	return "once from the network by " + strings.Join(can, ", "), "", nil
}

// Doctor looks at what we need of a BMC without Redfish.
func (c *IPMIClient) Doctor(ctx context.Context, want schema.Server) Diagnosis {
	v := &visit{ctx: ctx, out: Diagnosis{Usable: true}}
	v.check("login", true, func(ctx context.Context) (string, string, error) { return "in", "", c.Login(ctx) })
	v.check("identity", false, func(ctx context.Context) (string, string, error) {
		id, err := c.Identify(ctx)
		if err != nil {
			return "", "", err
		}
		if err := id.Mismatch(Identity{Serial: want.Serial, UUID: want.UUID}); err != nil {
			return "", "", &Error{Kind: ErrRefused, Address: c.address, Detail: err.Error(), Hint: "is the BMC cabled to another server, or was the serial typed wrong?"}
		}
		return strings.TrimSpace(fmt.Sprintf("%s %s, serial %s", id.Manufacturer, id.Model, id.Serial)), "", nil
	})
	v.check("power", false, func(ctx context.Context) (string, string, error) {
		p, err := c.Power(ctx)
		return string(p), "", err
	})
	v.check("boot", false, func(ctx context.Context) (string, string, error) {
		l, err := c.Look(ctx)
		return "override: " + orDefault(l.Override, "none"), "", err
	})
	v.check("logs", false, func(ctx context.Context) (string, string, error) {
		list, err := c.Log(ctx, 1)
		return fmt.Sprintf("the event log can be read (%d shown)", len(list)), "", err
	})
	return v.out
}
