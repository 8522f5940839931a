package bmc

import (
	"fmt"
	"strings"
)

// Unit is a sort of what a server has several of, or of what watches it.
type Unit string

// The sorts.
const (
	PSU  Unit = "psu"
	Fan  Unit = "fan"
	Leak Unit = "leak"
)

// plant is the power supplies and fans of a generated machine.
type plant struct {
	supplies, supplyMin int
	fans, fanMin        int
	// newSupplies and newFans show them as PowerSubsystem and ThermalSubsystem do, a resource each, else Power and Thermal do.
	newSupplies, newFans bool
}

// plant adds power supplies and fans to a chassis.
func (b *builder) plant(chassis string, p plant) {
	ch := root + "/Chassis/" + chassis
	if p.supplies > 0 {
		b.units(ch, "PSU%d", p.supplies, p.supplyMin, p.newSupplies, unitNames{"Power", "PowerSubsystem", "PowerSupplies", "PowerSupply", "PowerSupplyRedundancy"})
	}
	if p.fans > 0 {
		b.units(ch, "FAN%d", p.fans, p.fanMin, p.newFans, unitNames{"Thermal", "ThermalSubsystem", "Fans", "Fan", "FanRedundancy"})
	}
}

type unitNames struct{ old, sub, list, typ, redundancy string }

func (b *builder) units(ch, name string, n, least int, fresh bool, x unitNames) {
	old, sub := ch+"/"+x.old, ch+"/"+x.sub
	if fresh {
		var set []any
		for _, u := range numbered(name, 1, n) {
			path := sub + "/" + x.list + "/" + u
			b.add(path, x.typ+".v1_5_0."+x.typ, Doc{"Status": Doc{"State": "Enabled", "Health": "OK"}, "Location": Doc{"PartLocation": Doc{"ServiceLabel": u, "LocationType": "Bay"}}})
			set = append(set, link(path))
		}
		b.collection(sub+"/"+x.list, x.typ, numbered(name, 1, n)...)
		b.add(sub, x.sub+".v1_1_0."+x.sub, Doc{x.list: link(sub + "/" + x.list), "Status": status(),
			x.redundancy: list(Doc{"RedundancyType": "NPlusM", "MinNeededInGroup": least, "MaxSupportedInGroup": n, "RedundancyGroup": set, "Status": Doc{"State": "Enabled", "Health": "OK"}})})
		b.change(ch, Doc{x.sub: link(sub)})
		return
	}
	var all, set []any
	for i, u := range numbered(name, 1, n) {
		id := fmt.Sprintf("%s#/%s/%d", old, x.list, i)
		all = append(all, Doc{"@odata.id": id, "MemberId": fmt.Sprint(i), "Name": u, "Status": Doc{"State": "Enabled", "Health": "OK"}})
		set = append(set, link(id))
	}
	b.add(old, x.old+".v1_7_0."+x.old, Doc{x.list: all,
		"Redundancy": list(Doc{"@odata.id": old + "#/Redundancy/0", "MemberId": "0", "Name": x.typ + " Redundancy", "Mode": "N+m", "MinNumNeeded": least, "MaxNumSupported": n,
			"RedundancySet": set, "Status": Doc{"State": "Enabled", "Health": "OK"}})})
	b.change(ch, Doc{x.old: link(old)})
}

// unitKinds say how a sort of unit is shown, and what is logged when one fails.
var unitKinds = map[Unit]struct {
	list, typ           string
	messageID, says     string
	redundancies, least []string
}{
	PSU: {"PowerSupplies", "#PowerSupply.", "Power.1.0.PowerSupplyFailed", "Power supply '%s' has failed.", []string{"Redundancy", "PowerSupplyRedundancy"}, []string{"MinNumNeeded", "MinNeededInGroup"}},
	Fan: {"Fans", "#Fan.", "Environmental.1.1.FanFailed", "Fan '%s' has failed.", []string{"Redundancy", "FanRedundancy"}, []string{"MinNumNeeded", "MinNeededInGroup"}},
	Leak: {"", "#LeakDetector.", "Environmental.1.1.LeakDetectedCritical", "Leak detector '%s' reports a critical level leak.",
		nil, nil},
}

// SetUnit makes a power supply or a fan fail, or a leak detector report, and logs it; health is OK, Warning or Critical. name
// is the unit's, as a technician reads it there; "" is the first one. It returns the name.
func (s *Server) SetUnit(kind Unit, name, health string) (string, error) {
	x, ok := unitKinds[kind]
	if !ok {
		return "", fmt.Errorf("lab bmc %s: no unit %q", s.profile.Name, kind)
	}
	s.mu.Lock()
	set, all := s.setUnit(kind, name, health)
	s.mu.Unlock()
	if set == "" {
		return "", fmt.Errorf("lab bmc %s: no %s %q, it has %s", s.profile.Name, kind, name, strings.Join(all, ", "))
	}
	if health != "Critical" {
		return set, nil
	}
	_, err := s.AddLogEntry(s.sysPath+"/LogServices/EventLog", Doc{"Severity": health, "MessageId": x.messageID, "MessageArgs": []any{set}, "Message": fmt.Sprintf(x.says, set)})
	return set, err
}

// setUnit changes the unit and its redundancy, and lists the names there are. The caller holds mu.
func (s *Server) setUnit(kind Unit, name, health string) (set string, all []string) {
	x := unitKinds[kind]
	change := func(d Doc) {
		n := digString(d, "Name")
		all = append(all, n)
		if set != "" || name != "" && n != name {
			return
		}
		set = n
		merge(d, Doc{"Status": Doc{"Health": health}})
		if kind == Leak {
			d["DetectorState"] = health
		}
	}
	var redundant []Doc
	for _, path := range s.index.plant {
		d := s.own(path)
		if strings.HasPrefix(digString(d, "@odata.type"), x.typ) {
			change(d)
			s.etags[path]++
		}
		if list, ok := d[x.list].([]any); ok && x.list != "" {
			for _, u := range list {
				if u, ok := u.(map[string]any); ok {
					change(u)
				}
			}
			s.etags[path]++
		}
		for _, key := range x.redundancies {
			if list, ok := d[key].([]any); ok && (key != "Redundancy" || d[x.list] != nil) {
				for _, r := range list {
					if r, ok := r.(map[string]any); ok {
						redundant = append(redundant, r)
					}
				}
				s.etags[path]++
			}
		}
	}
	s.judgeRedundancy(kind, redundant, len(all))
	return set, all
}

// judgeRedundancy shows what is left of it: a warning while there is one to spare, critical where not.
func (s *Server) judgeRedundancy(kind Unit, redundant []Doc, all int) {
	x, failed := unitKinds[kind], 0
	for _, path := range s.index.plant {
		d := s.own(path)
		if strings.HasPrefix(digString(d, "@odata.type"), x.typ) && digString(d, "Status", "Health") == "Critical" {
			failed++
		}
		list, _ := d[x.list].([]any)
		for _, u := range list {
			if digString(u, "Status", "Health") == "Critical" {
				failed++
			}
		}
	}
	for _, r := range redundant {
		health := "OK"
		for _, key := range x.least {
			least, ok := number(r[key])
			switch {
			case !ok || failed == 0:
			case all-failed <= least:
				health = "Critical"
			default:
				health = "Warning"
			}
		}
		merge(r, Doc{"Status": Doc{"Health": health}})
	}
}

func number(v any) (int, bool) {
	f, ok := v.(float64)
	return int(f), ok
}
