package bmc

import (
	"context"

	"github.com/stmcginnis/gofish/schemas"
)

// Reading is one sensor. Value is nil when the BMC has no reading: that is unknown, not 0.
type Reading struct {
	URI      string   `json:"uri"`
	Name     string   `json:"name"`
	Chassis  string   `json:"chassis"`
	Kind     string   `json:"kind"` // Temperature, Power, Voltage, Rotational, ...
	Unit     string   `json:"unit"` // Cel, W, V, RPM, ...
	Value    *float64 `json:"value"`
	Critical *float64 `json:"critical,omitempty"` // upper critical threshold
	State    string   `json:"state"`              // Enabled, Absent, ...
	Health   string   `json:"health"`             // OK, Warning, Critical, "" unknown
}

// Alarms reports whether the sensor says that something is wrong. An absent part is no alarm, whatever its health: GB200
// lists the temperature of cards that aren't fitted as Critical.
func (r Reading) Alarms() bool {
	return r.Health == string(schemas.CriticalHealth) && r.State != string(schemas.AbsentState) && r.State != string(schemas.UnavailableOfflineState)
}

// Sensors reads every sensor of every chassis: the Sensors collections, and the kinds that a chassis doesn't have there
// from its older Thermal and Power resources. It is a long read (several hundred requests on a DGX).
func (c *Client) Sensors(ctx context.Context) (_ []Reading, err error) {
	defer c.conn.named("read sensors of", &err)
	ctx = inBulk(ctx)
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
	var out []Reading
	for _, ch := range chassis {
		if h != nil && h.shares && !h.holds(ch) {
			continue
		}
		list, err := c.conn.collect(ctx, ch.link("Sensors"), lenient)
		if err != nil {
			return nil, err
		}
		for _, s := range list {
			out = append(out, readingOf(s, ch.uri))
		}
		have := map[string]bool{}
		for _, x := range out[len(out)-len(list):] {
			have[x.Kind] = true
		}
		for _, old := range []struct {
			link, list, kind, unit, value string
		}{
			{"Thermal", "Temperatures", "Temperature", "Cel", "ReadingCelsius"}, {"Thermal", "Fans", "Rotational", "", "Reading"},
			{"Power", "PowerControl", "Power", "W", "PowerConsumedWatts"}, {"Power", "Voltages", "Voltage", "V", "ReadingVolts"},
		} {
			if have[old.kind] {
				continue
			}
			r, err := c.conn.get(ctx, ch.link(old.link))
			if err != nil {
				if err := lenient("", err); err != nil {
					return nil, err
				}
				continue
			}
			items, _ := r.at(old.list).([]any)
			for _, it := range items {
				body, _ := it.(map[string]any)
				s := &resource{uri: linkOf(it), body: body}
				x := Reading{URI: s.uri, Name: s.str("Name"), Chassis: normalURI(ch.uri), Kind: old.kind, Unit: orDefault(s.str("ReadingUnits"), old.unit),
					Value: number(s, old.value), Critical: number(s, "UpperThresholdCritical"), State: s.str("Status", "State"), Health: s.str("Status", "Health")}
				out = append(out, x)
			}
		}
	}
	return out, nil
}

func readingOf(s *resource, chassis string) Reading {
	return Reading{URI: normalURI(s.uri), Name: orDefault(s.str("Name"), lastSegment(s.uri)), Chassis: normalURI(chassis), Kind: s.str("ReadingType"),
		Unit: s.str("ReadingUnits"), Value: number(s, "Reading"), Critical: number(s, "Thresholds", "UpperCritical", "Reading"),
		State: s.str("Status", "State"), Health: s.str("Status", "Health")}
}

// number is a number property as a pointer; nil is unknown.
func number(r *resource, keys ...string) *float64 {
	if f, ok := r.num(keys...); ok {
		return &f
	}
	return nil
}
