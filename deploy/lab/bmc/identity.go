package bmc

import (
	"encoding/json"
	"fmt"
	"io"
	"log"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"sync"
)

// quietLog swallows what net/http says of clients that hang up: the lab makes them do so on purpose.
var quietLog = log.New(io.Discard, "", 0)

// treeIndex is what identity needs to know of a tree, found once for each.
type treeIndex struct {
	lower   map[string]string // path in lower case -> path: some firmware doesn't mind the case, and links so
	gpus    [][]string        // resources of each accelerator, in slot order
	nics    []string          // EthernetInterfaces of the host system
	plant   []string          // resources that show power supplies, fans or leak detectors
	account string            // the account that we log in with
}

var indexes sync.Map // Tree of a profile, by name and pointer -> *treeIndex

func indexOf(p Profile) *treeIndex {
	key := fmt.Sprintf("%s|%p", p.Name, p.Tree)
	if x, ok := indexes.Load(key); ok {
		return x.(*treeIndex)
	}
	x := buildIndex(p)
	indexes.Store(key, x)
	return x
}

var gpuDevice = regexp.MustCompile(`^/redfish/v1/Chassis/[^/]+/PCIeDevices/GPU[^/]*$`)

var showsPlant = regexp.MustCompile(`^/redfish/v1/Chassis/[^/]+/(Power|Thermal|PowerSubsystem|ThermalSubsystem|PowerSubsystem/PowerSupplies/[^/]+|ThermalSubsystem/Fans/[^/]+|ThermalSubsystem/LeakDetection/LeakDetectors/[^/]+)$`)

func buildIndex(p Profile) *treeIndex {
	x := &treeIndex{lower: map[string]string{}}
	byName := map[string][]string{}
	paths := p.Tree.Paths()
	sort.Strings(paths)
	for _, path := range paths {
		parts := strings.Split(path, "/")
		x.lower[strings.ToLower(path)] = path
		if showsPlant.MatchString(path) {
			x.plant = append(x.plant, path)
		}
		switch {
		case len(parts) == 7 && parts[3] == "Systems" && parts[5] == "Processors":
			if digString(readDoc(p.Tree, path), "ProcessorType") == "GPU" {
				byName[parts[6]] = append(byName[parts[6]], path)
			}
		case gpuDevice.MatchString(path):
			byName[parts[6]] = append(byName[parts[6]], path)
		case len(parts) == 6 && parts[3] == "AccountService" && parts[4] == "Accounts":
			d := readDoc(p.Tree, path)
			name := digString(d, "UserName")
			better := x.account == "" || name == "admin" || name == "root"
			if d["Enabled"] == true && digString(d, "RoleId") == "Administrator" && better {
				x.account = path
			}
		}
	}
	names := make([]string, 0, len(byName))
	for n := range byName {
		names = append(names, n)
	}
	sort.Slice(names, func(i, j int) bool { return natural(names[i]) < natural(names[j]) })
	for _, n := range names {
		x.gpus = append(x.gpus, byName[n])
	}
	nics := digString(readDoc(p.Tree, p.system), "EthernetInterfaces", "@odata.id")
	for _, m := range members(readDoc(p.Tree, clean(nics))) {
		if !strings.HasSuffix(m, "/ToManager") { // the card between the host and its BMC
			x.nics = append(x.nics, m)
		}
	}
	return x
}

var digits = regexp.MustCompile(`\d+`)

// natural pads numbers so that GPU10 sorts after GPU9.
func natural(s string) string {
	return digits.ReplaceAllStringFunc(s, func(d string) string {
		n, err := strconv.Atoi(d)
		if err != nil {
			return d
		}
		return fmt.Sprintf("%09d", n)
	})
}

// applyIdentity sets this server's own values in the overlay. Called once, before anything is served.
func (s *Server) applyIdentity() {
	seen := map[string]string{}
	swap := func(d Doc, key, value string) {
		if value == "" {
			return
		}
		if old, _ := d[key].(string); len(strings.TrimSpace(old)) >= 6 {
			if was, dup := seen[old]; dup && was != value {
				delete(s.rewrite, old) // sanitised trees give many parts one serial
			} else if !dup {
				seen[old] = value
				s.rewrite[old] = value
			}
		}
		d[key] = value
	}
	sys := s.own(s.sysPath)
	swap(sys, "SerialNumber", s.id.Serial)
	swap(sys, "UUID", s.id.UUID)
	for key, v := range map[string]string{"Manufacturer": s.id.Manufacturer, "Model": s.id.Model} {
		if v != "" {
			sys[key] = v
		}
	}
	for i, path := range s.index.nics {
		if i >= len(s.id.MACs) {
			break
		}
		if d := s.own(path); d != nil {
			s.macHex[bareMAC(digString(d, "MACAddress"))] = bareMAC(s.id.MACs[i])
			swap(d, "MACAddress", s.id.MACs[i])
			if d["PermanentMACAddress"] != nil {
				d["PermanentMACAddress"] = s.id.MACs[i]
			}
		}
	}
	for i, paths := range s.index.gpus {
		if i >= len(s.id.GPUs) {
			break
		}
		for _, path := range paths {
			d := s.own(path)
			swap(d, "SerialNumber", s.id.GPUs[i].Serial)
			swap(d, "UUID", s.id.GPUs[i].UUID)
			setGPU(d, s.id.GPUs[i])
		}
	}
	if a := s.own(s.index.account); a != nil {
		a["UserName"] = s.user
		a["PasswordChangeRequired"] = s.mustSet
	}
}

func setGPU(d Doc, g GPU) {
	if g.Serial != "" {
		d["SerialNumber"] = g.Serial
	}
	if g.UUID != "" {
		d["UUID"] = g.UUID
	}
	if g.Model != "" {
		d["Model"] = g.Model
	}
	if g.Health == "" && g.State == "" {
		return
	}
	st, ok := d["Status"].(map[string]any)
	if !ok {
		st = Doc{}
		d["Status"] = st
	}
	if g.Health != "" {
		st["Health"] = g.Health
		if st["HealthRollup"] != nil {
			st["HealthRollup"] = g.Health
		}
	}
	if g.State != "" {
		st["State"] = g.State
	}
}

// canonical is the tree's spelling of a path.
func (s *Server) canonical(path string) string {
	if p, ok := s.index.lower[strings.ToLower(path)]; ok {
		return p
	}
	return path
}

// bareMAC is a MAC as UEFI device paths write it.
func bareMAC(mac string) string {
	return strings.ToUpper(strings.NewReplacer(":", "", "-", "").Replace(mac))
}

// GPUs is how many accelerators the tree shows.
func (s *Server) GPUs() int { return len(s.index.gpus) }

// SetGPU changes the accelerator in a slot (from 0): swapped by a technician, gone, sick. Empty fields stay.
func (s *Server) SetGPU(slot int, g GPU) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if slot < 0 || slot >= len(s.index.gpus) {
		return fmt.Errorf("lab bmc %s: no gpu slot %d, it has %d", s.profile.Name, slot, len(s.index.gpus))
	}
	for _, path := range s.index.gpus[slot] {
		d := s.own(path)
		if old, _ := d["SerialNumber"].(string); g.Serial != "" {
			for from, to := range s.rewrite { // what was rewritten to the old serial now shows the new one
				if to == old {
					s.rewrite[from] = g.Serial
				}
			}
		}
		setGPU(d, g)
		s.etags[path]++
	}
	return nil
}

// doc reads a resource as this server shows it: its own copy, or the tree's with its identity put in. Nil when absent
// or not an object. The caller holds mu (or is New) and doesn't change the result.
func (s *Server) doc(path string) Doc {
	if d, ok := s.docs[path]; ok {
		return d
	}
	b, ok := s.profile.Tree.Read(path)
	if !ok {
		return nil
	}
	var d Doc
	if json.Unmarshal(b, &d) != nil {
		return nil
	}
	s.rename(d)
	return d
}

// own is doc with a copy kept, to be changed.
func (s *Server) own(path string) Doc {
	d := s.doc(path)
	if d != nil {
		s.docs[path] = d
	}
	return d
}

// rename puts this server's identity into decoded JSON, in place.
func (s *Server) rename(v any) {
	if len(s.rewrite) == 0 {
		return
	}
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if str, ok := x.(string); ok {
				if to, ok := s.rewrite[str]; ok {
					v[k] = to
				}
				if k == "UefiDevicePath" {
					v[k] = s.devicePath(str)
				}
				continue
			}
			s.rename(x)
		}
	case []any:
		for i, x := range v {
			if str, ok := x.(string); ok {
				if to, ok := s.rewrite[str]; ok {
					v[i] = to
				}
				continue
			}
			s.rename(x)
		}
	}
}

// devicePath puts this server's network cards into a UEFI device path.
func (s *Server) devicePath(path string) string {
	for from, to := range s.macHex {
		if from != "" {
			path = strings.ReplaceAll(path, "MAC("+from, "MAC("+to)
		}
	}
	return path
}
