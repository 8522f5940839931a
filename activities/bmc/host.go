package bmc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

func isKind(err, kind error) bool { return errors.Is(err, kind) }

// host is the member of Systems that is the server itself, and what was found with it. It doesn't change while a machine
// lives, so it is looked for once.
type host struct {
	found    time.Time
	uri      string
	settings string   // resource that takes the boot override, "" for the system itself
	others   []string // systems that can't be reset: GPU baseboards
	reset    string   // target of ComputerSystem.Reset
	resets   []string // allowed types; nil when the BMC doesn't say
	make     Make
	model    string
	quirks   []Quirk
	manners  manners
	chassis  []string
	managers []string
	noReset  bool // named by SystemID and without a reset: nothing may be powered
	shares   bool // the BMC serves other servers too, or may: its system was named
}

// hostFor is how long what was found holds: a firmware update may change it.
const hostFor = 15 * time.Minute

// find returns the host. What was found is kept with the connection, for every caller.
func (c *Client) find(ctx context.Context) (*host, error) {
	which := c.which()
	c.conn.mu.Lock()
	h := c.conn.hosts[which]
	c.conn.mu.Unlock()
	if h != nil && now().Sub(h.found) < hostFor {
		return h, nil
	}
	h, err := c.look(ctx)
	if err != nil {
		return nil, err
	}
	h.found = now()
	c.conn.mu.Lock()
	defer c.conn.mu.Unlock()
	c.conn.hosts[which] = h
	return h, nil
}

// which names the server among those of its BMC.
func (c *Client) which() string { return c.systemID + "\x00" + c.serial }

// ours says, of the system as it was read just now, that it is still the server that is meant: a blade may have been moved, the
// only system left in the list may be the neighbour, an address may have gone to another machine. Nothing is changed at a
// system that shows another serial. One that shows none is known by its id alone.
func (c *Client) ours(system *resource) error {
	shown := system.word("SerialNumber")
	if c.serial == "" || shown == "" || hasSerial(system, c.serial) {
		return nil
	}
	c.conn.mu.Lock()
	delete(c.conn.hosts, c.which()) // looked for again the next time
	c.conn.mu.Unlock()
	return &Error{Kind: ErrForeign, Address: c.conn.address, URI: system.uri, Detail: fmt.Sprintf("the system shows serial %q, the server was enrolled with %q", shown, c.serial),
		Hint: "nothing was changed. Was the server moved or replaced, or is the BMC's address another machine's now?"}
}

// holds reports whether a chassis is the host's: where the BMC serves several servers its alone, else not known to be another's.
func (h *host) holds(chassis *resource) bool {
	hosts := chassis.links("Links", "ComputerSystems")
	if len(hosts) == 0 {
		return !h.shares || slices.ContainsFunc(h.chassis, func(u string) bool { return sameURI(u, chassis.uri) })
	}
	own := func(u string) bool {
		return sameURI(u, h.uri) || slices.ContainsFunc(h.others, func(o string) bool { return sameURI(o, u) })
	}
	if h.shares {
		return !slices.ContainsFunc(hosts, func(u string) bool { return !own(u) })
	}
	return slices.ContainsFunc(hosts, own)
}

// baseboards are the systems that can't be reset and belong to the host: where the BMC serves several servers, those in a chassis
// of the host's that no other of them is in.
func baseboards(systems []*resource, best *resource, shares bool) (out []string) {
	in := func(s *resource, chassis []string) bool {
		return slices.ContainsFunc(s.links("Links", "Chassis"), func(u string) bool {
			return slices.ContainsFunc(chassis, func(c string) bool { return sameURI(u, c) })
		})
	}
	for _, s := range systems {
		if s.uri == best.uri || s.at("Actions", "#ComputerSystem.Reset") != nil {
			continue
		}
		others := slices.ContainsFunc(systems, func(o *resource) bool {
			return o.uri != best.uri && o.at("Actions", "#ComputerSystem.Reset") != nil && in(s, o.links("Links", "Chassis"))
		})
		if !shares || in(s, best.links("Links", "Chassis")) && !others {
			out = append(out, s.uri)
		}
	}
	return out
}

// look picks the host by what it can do, never by its place in the list: DGX H100, GH200 and GB200 list their GPU
// baseboard as a system as well, which has neither a reset nor a boot, and asking it for one is a 500
// (https://github.com/dsx-ai-factory/libredfish/pull/124).
func (c *Client) look(ctx context.Context) (*host, error) {
	root, err := c.conn.root(ctx)
	if err != nil {
		return nil, err
	}
	var unread error
	systems, err := c.conn.collect(ctx, orDefault(root.link("Systems"), "/redfish/v1/Systems"), func(uri string, err error) error {
		unread = err // the host may be the one that could not be read
		return lenient(uri, err)
	})
	if err != nil {
		return nil, err
	}
	var best *resource
	var names []string
	var ties []*resource
	score, resettable := 0, 0
	h := &host{}
	for _, s := range systems {
		names = append(names, s.uri)
		p := 0
		if s.at("Actions", "#ComputerSystem.Reset") != nil {
			p += 4
			resettable++
		}
		if _, ok := s.at("Boot").(map[string]any); ok {
			p += 2
		}
		if t := s.str("SystemType"); t == "" || t == "Physical" {
			p++
		}
		if c.systemID != "" {
			if lastSegment(s.uri) != c.systemID && !sameURI(s.uri, c.systemID) {
				continue
			}
			p += 100
		} else if p < 4 {
			continue
		}
		switch {
		case p > score:
			best, score, ties = s, p, []*resource{s}
		case p == score:
			ties = append(ties, s)
		}
	}
	if len(ties) > 1 && c.serial != "" {
		if mine := slices.DeleteFunc(slices.Clone(ties), func(s *resource) bool { return !hasSerial(s, c.serial) }); len(mine) == 1 {
			best, ties = mine[0], mine
		}
	}
	switch {
	case best == nil && unread != nil:
		return nil, unread
	case best == nil && c.systemID != "":
		return nil, &Error{Kind: ErrNoHost, Address: c.conn.address, Detail: fmt.Sprintf("no system %q, it lists %s", c.systemID, few(names))}
	case best == nil:
		return nil, &Error{Kind: ErrNoHost, Address: c.conn.address, Detail: fmt.Sprintf("none of its %d systems has a #ComputerSystem.Reset action: %s", len(names), few(names))}
	case len(ties) > 1:
		return nil, &Error{Kind: ErrNoHost, Address: c.conn.address, Detail: fmt.Sprintf("%d systems could be the server: %s", len(ties), few(names)),
			Hint: "enroll the server with the serial number that one of them shows"}
	}
	h.uri, h.shares = best.uri, resettable > 1 || c.systemID != ""
	h.others = baseboards(systems, best, h.shares && resettable > 1)
	h.chassis, h.managers = best.links("Links", "Chassis"), best.links("Links", "ManagedBy")
	h.make = makeOf(root, best)
	h.model = best.word("Model")
	firmware := ""
	if len(h.managers) > 0 && firmwareMatters(h.make) {
		m, err := c.conn.get(ctx, h.managers[0])
		if err := lenient("", err); err != nil {
			return nil, err
		}
		firmware = m.word("FirmwareVersion")
	}
	h.quirks = quirksOf(h.make, h.model, firmware)
	for _, q := range h.quirks {
		q.apply(&h.manners)
	}
	if err := c.readReset(ctx, h, best); err != nil {
		return nil, err
	}
	return h, c.readSettings(ctx, h, best)
}

// hasSerial reports whether a system shows a serial as its own.
func hasSerial(system *resource, serial string) bool {
	return slices.ContainsFunc([]string{"SerialNumber", "SKU", "UUID"}, func(key string) bool { return strings.EqualFold(system.word(key), serial) })
}

// makeOf tells the make by the service root's Vendor, its Oem keys, and the system's own words. Vendor may be null
// (Supermicro) or the firmware's maker rather than the machine's (AMI on a DGX H100), which is what manners follow.
func makeOf(root, system *resource) Make {
	words := strings.ToLower(root.str("Vendor") + " " + root.str("Product"))
	if oem, ok := root.at("Oem").(map[string]any); ok {
		for k := range oem {
			words += " " + strings.ToLower(k)
		}
	}
	for _, w := range []string{words, strings.ToLower(system.str("Manufacturer"))} {
		for _, m := range []struct {
			word string
			make Make
		}{{"ami", MakeAMI}, {"dell", MakeDell}, {"hpe", MakeHPE}, {"lenovo", MakeLenovo}, {"supermicro", MakeSupermicro}, {"nvidia", MakeNVIDIA}} {
			for _, part := range strings.FieldsFunc(w, func(r rune) bool { return r < 'a' || r > 'z' }) {
				if part == m.word {
					return m.make
				}
			}
		}
	}
	return MakeUnknown
}

// readReset finds where a reset goes and which types it takes: inline, or in an ActionInfo (Supermicro and NVIDIA give
// only that).
func (c *Client) readReset(ctx context.Context, h *host, system *resource) error {
	action := system.at("Actions", "#ComputerSystem.Reset")
	if action == nil {
		h.noReset = true
		return nil
	}
	h.reset, _ = at(action, "target").(string)
	if h.reset == "" {
		h.reset = strings.TrimRight(h.uri, "/") + "/Actions/ComputerSystem.Reset" // the target that the schema prescribes
	}
	var err error
	h.resets, err = c.resetTypes(ctx, action)
	return err
}

// resetTypes are the ResetTypes that an action takes; nil where the BMC doesn't say.
func (c *Client) resetTypes(ctx context.Context, action any) ([]string, error) {
	if list := stringsOf(at(action, "ResetType@Redfish.AllowableValues")); list != nil {
		return list, nil
	}
	info, _ := at(action, "@Redfish.ActionInfo").(string)
	if info == "" {
		return nil, nil
	}
	r, err := c.conn.get(ctx, info)
	if err != nil {
		return nil, lenient(info, err) // then the BMC doesn't say
	}
	params, _ := r.at("Parameters").([]any)
	for _, p := range params {
		if text(at(p, "Name")) == "ResetType" {
			return stringsOf(at(p, "AllowableValues")), nil
		}
	}
	return nil, nil
}

// readSettings decides where the boot override is written: the settings resource if it holds one (DGX H100, GB200), else
// the system itself (Lenovo's settings resource holds only the boot order).
func (c *Client) readSettings(ctx context.Context, h *host, system *resource) error {
	uri := system.link("@Redfish.Settings", "SettingsObject")
	if uri == "" {
		return nil
	}
	r, err := c.conn.get(ctx, uri)
	if err != nil {
		return lenient(uri, err) // named and not there
	}
	boot, _ := r.at("Boot").(map[string]any)
	if _, ok := boot[propEnabled]; ok {
		h.settings = uri
	}
	return nil
}

// few lists the first names, and says how many more there are.
func few(names []string) string {
	const most = 8
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

func orDefault(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

// until reads a state again and again until ok, or until the time is up; then it is false. An error of a single read is
// kept and tried over: BMCs drop out for moments while they switch power.
func (c *Client) until(ctx context.Context, limit time.Duration, ok func(context.Context) (bool, error)) (bool, error) {
	return poll(ctx, c.conn.pool.cfg.Timing.Poll, limit, ok)
}

func poll(ctx context.Context, every, limit time.Duration, ok func(context.Context) (bool, error)) (bool, error) {
	deadline := now().Add(limit)
	for {
		done, err := ok(ctx)
		switch {
		case done:
			return true, nil
		case err != nil && (ctx.Err() != nil || isKind(err, ErrCredential) || isKind(err, ErrUntrusted) || isKind(err, ErrNotFound)):
			return false, err
		}
		left := deadline.Sub(now())
		if left <= 0 {
			return false, err
		}
		if err := sleep(ctx, min(every, left)); err != nil {
			return false, err
		}
	}
}
