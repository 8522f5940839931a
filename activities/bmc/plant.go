package bmc

import (
	"context"
	"fmt"
	"time"

	"github.com/stmcginnis/gofish/schemas"
)

// Plant is what keeps a server's power and cooling up: what it has several of and may lose one of, and the detectors that
// watch its coolant.
type Plant struct {
	Units []Unit
	Spare []Redundancy
	Leaks []Leak
}

// UnitKind is a sort of Unit, as the health rules call it.
type UnitKind string

// The sorts.
const (
	PowerSupply UnitKind = "power-supply"
	Fan         UnitKind = "fan"
)

// Unit is one power supply or fan.
type Unit struct {
	Kind   UnitKind
	Name   string // as its label says where it has one; no two of a kind are called the same
	State  string // Redfish Status.State, "" unknown
	Health string // OK, Warning, Critical, "" unknown
}

// There reports whether the unit is fitted and switched on, as far as its BMC says.
func (u Unit) There() bool {
	return u.State != string(schemas.AbsentState) && u.State != string(schemas.DisabledState)
}

// Failed reports whether the BMC says that the unit doesn't do its work. Where it says nothing that is unknown.
func (u Unit) Failed() bool { return u.There() && u.Health == string(schemas.CriticalHealth) }

// Redundancy is a BMC's judgement of whether the units of a kind still have one to spare.
type Redundancy struct {
	Kind   UnitKind
	Name   string
	State  string
	Health string // Critical: the next failure is one too many
}

// Lost reports whether nothing is to spare any more. A redundancy that is switched off has not been lost.
func (r Redundancy) Lost() bool {
	return Unit{State: r.State}.There() && r.State != string(schemas.UnavailableOfflineState) && r.Health == string(schemas.CriticalHealth)
}

// Leak is one leak detector.
type Leak struct {
	URI    string `json:"uri"`
	Name   string `json:"name"`
	State  string `json:"state"` // DetectorState: OK, Warning, Critical; "" unknown
	Health string `json:"health"`
	Status string `json:"status"` // Status.State
}

// level is what the detector says: its own state before its resource's health.
func (l Leak) level() string {
	if l.Status == string(schemas.AbsentState) {
		return ""
	}
	switch l.State {
	case string(schemas.OKHealth), string(schemas.WarningHealth), string(schemas.CriticalHealth):
		return l.State
	case "LeakDetected": // no word of the specification's
		return string(schemas.CriticalHealth)
	}
	return l.Health
}

// Leaking reports whether it says that there is liquid: a stop-and-power-off class of signal.
func (l Leak) Leaking() bool { return l.level() == string(schemas.CriticalHealth) }

// Moist reports whether it says that there may be.
func (l Leak) Moist() bool { return l.level() == string(schemas.WarningHealth) }

// Dry reports whether it says that there is none.
func (l Leak) Dry() bool { return l.level() == string(schemas.OKHealth) }

// source is one place where a BMC shows part of the plant.
type source struct {
	uri  string // a collection, or the resource that holds list
	list string // property with the units; "" where uri is a collection of them
	kind UnitKind
	is   sourceOf
}

type sourceOf int

const (
	ofUnits sourceOf = iota
	ofRedundancy
	ofLeaks
)

// plan is where a BMC shows its plant. A tray of NVIDIA's lists sixty chassis of which one has fans: looking through all of
// them is not done for each read.
type plan struct {
	found   time.Time
	sources []source
}

// planFor is how long a plan holds: something may be fitted later.
const planFor = time.Hour

// Plant reads power supplies, fans and leak detectors. What one place gets wrong is left out, and unknown.
func (c *Client) Plant(ctx context.Context) (_ Plant, err error) {
	defer c.conn.named("read power and cooling of", &err)
	ctx = inBulk(ctx)
	p, err := c.planned(ctx)
	if err != nil {
		return Plant{}, err
	}
	var out Plant
	bodies := map[string]*resource{} // one resource may hold units and their redundancy
	for _, s := range p.sources {
		list, err := c.readSource(ctx, s, bodies)
		if err != nil {
			return Plant{}, err
		}
		for _, r := range list {
			switch s.is {
			case ofUnits:
				out.Units = append(out.Units, unitOf(s.kind, r))
			case ofRedundancy:
				out.Spare = append(out.Spare, Redundancy{Kind: s.kind, Name: r.str("Name"), State: r.str("Status", "State"), Health: r.str("Status", "Health")})
			case ofLeaks:
				out.Leaks = append(out.Leaks, Leak{URI: normalURI(r.uri), Name: orDefault(r.str("Name"), lastSegment(r.uri)), State: r.str("DetectorState"),
					Health: r.str("Status", "Health"), Status: r.str("Status", "State")})
			}
		}
	}
	nameApart(out.Units)
	return out, nil
}

// readSource reads the resources of one source. One that is gone makes the plan be made anew the next time.
func (c *Client) readSource(ctx context.Context, s source, bodies map[string]*resource) ([]*resource, error) {
	if s.list == "" {
		list, err := c.conn.collect(ctx, s.uri, lenient)
		if err != nil {
			err = lenient(s.uri, err)
		}
		return list, err
	}
	r := bodies[s.uri]
	if r == nil {
		var err error
		if r, err = c.conn.get(ctx, s.uri); err != nil {
			if isKind(err, ErrNotFound) {
				c.conn.forgetPlans()
			}
			return nil, lenient(s.uri, err)
		}
		bodies[s.uri] = r
	}
	return r.inline(s.list), nil
}

// inline are the objects of a list property, as resources.
func (r *resource) inline(key string) []*resource {
	list, _ := r.at(key).([]any)
	var out []*resource
	for _, x := range list {
		if body := object(x); len(body) > 0 {
			out = append(out, &resource{uri: linkOf(x), body: body})
		}
	}
	return out
}

func unitOf(kind UnitKind, r *resource) Unit {
	name := r.word("Location", "PartLocation", "ServiceLabel")
	if name == "" {
		name = orDefault(r.word("Name"), r.word("FanName")) // FanName: Thermal before v1.1
	}
	return Unit{Kind: kind, Name: orDefault(name, string(kind)), State: r.str("Status", "State"), Health: r.str("Status", "Health")}
}

// nameApart numbers the units of one name: HPE calls each power supply HpeServerPowerSupply.
func nameApart(units []Unit) {
	type named struct {
		kind UnitKind
		name string
	}
	all, nth := map[named]int{}, map[named]int{}
	for _, u := range units {
		all[named{u.Kind, u.Name}]++
	}
	for i, u := range units {
		if k := (named{u.Kind, u.Name}); all[k] > 1 {
			nth[k]++
			units[i].Name = fmt.Sprintf("%s %d", u.Name, nth[k])
		}
	}
}

// forgetPlans makes the plans be made anew.
func (c *conn) forgetPlans() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.plans)
}

// planned finds where the plant is shown, or remembers it.
func (c *Client) planned(ctx context.Context) (*plan, error) {
	c.conn.mu.Lock()
	p := c.conn.plans[c.which()]
	c.conn.mu.Unlock()
	if p != nil && now().Sub(p.found) < planFor {
		return p, nil
	}
	root, err := c.conn.root(ctx)
	if err != nil {
		return nil, err
	}
	chassis, err := c.conn.collect(ctx, orDefault(root.link("Chassis"), "/redfish/v1/Chassis"), lenient)
	if err != nil {
		return nil, err
	}
	h, err := c.find(ctx)
	if err != nil && !isKind(err, ErrNoHost) {
		return nil, err
	}
	p = &plan{found: now()}
	for _, ch := range chassis {
		if h != nil && !h.holds(ch) {
			continue // of another server of the same enclosure
		}
		found, err := c.sourcesOf(ctx, ch)
		if err != nil {
			return nil, err
		}
		p.sources = append(p.sources, found...)
	}
	c.conn.mu.Lock()
	defer c.conn.mu.Unlock()
	c.conn.plans[c.which()] = p
	return p, nil
}

// sourcesOf finds the sources of one chassis. The older Power and Thermal show all units in one request; where they don't
// list a kind the newer PowerSubsystem and ThermalSubsystem may (a DGX H100's power supplies).
func (c *Client) sourcesOf(ctx context.Context, chassis *resource) (out []source, err error) {
	optional := func(uri string) (*resource, error) {
		if uri == "" {
			return nil, nil
		}
		r, err := c.conn.get(ctx, uri)
		if err != nil {
			return nil, lenient(uri, err)
		}
		return r, nil
	}
	for _, x := range []struct {
		kind                                  UnitKind
		old, oldList, sub, members, redundant string
	}{
		{PowerSupply, "Power", "PowerSupplies", "PowerSubsystem", "PowerSupplies", "PowerSupplyRedundancy"},
		{Fan, "Thermal", "Fans", "ThermalSubsystem", "Fans", "FanRedundancy"},
	} {
		old, err := optional(chassis.link(x.old))
		if err != nil {
			return nil, err
		}
		shown := len(old.inline(x.oldList)) > 0
		if shown {
			out = append(out, source{uri: old.uri, list: x.oldList, kind: x.kind})
			if len(old.inline("Redundancy")) > 0 {
				out = append(out, source{uri: old.uri, list: "Redundancy", kind: x.kind, is: ofRedundancy})
			}
		}
		if shown && x.kind == PowerSupply {
			continue
		}
		sub, err := optional(chassis.link(x.sub))
		if err != nil {
			return nil, err
		}
		if !shown {
			list, err := c.conn.members(ctx, sub.link(x.members))
			if err := lenient("", err); err != nil {
				return nil, err
			}
			if len(list) > 0 {
				out = append(out, source{uri: sub.link(x.members), kind: x.kind})
			}
			if len(sub.inline(x.redundant)) > 0 {
				out = append(out, source{uri: sub.uri, list: x.redundant, kind: x.kind, is: ofRedundancy})
			}
		}
		if x.kind == Fan {
			leaks, err := c.leakSource(ctx, sub)
			if err != nil {
				return nil, err
			}
			out = append(out, leaks...)
		}
	}
	return out, nil
}

func (c *Client) leakSource(ctx context.Context, thermal *resource) ([]source, error) {
	uri := thermal.link("LeakDetection")
	if uri == "" {
		return nil, nil
	}
	detection, err := c.conn.get(ctx, uri)
	if err != nil {
		return nil, lenient(uri, err)
	}
	list, err := c.conn.members(ctx, detection.link("LeakDetectors"))
	if err := lenient("", err); err != nil || len(list) == 0 {
		return nil, err
	}
	return []source{{uri: detection.link("LeakDetectors"), is: ofLeaks}}, nil
}
