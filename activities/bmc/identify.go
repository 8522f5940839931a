package bmc

import (
	"cmp"
	"context"
	"errors"
	"regexp"
	"slices"
	"sort"
	"strings"

	"github.com/stmcginnis/gofish/schemas"

	"gpupool/schema"
)

// Identity is what a BMC says the server is. Empty fields are what it doesn't say.
type Identity struct {
	SystemID        string   `json:"system_id"` // path of the host system
	Make            Make     `json:"make"`      // whose manners its firmware has
	Manufacturer    string   `json:"manufacturer"`
	Model           string   `json:"model"`
	Serial          string   `json:"serial"`
	UUID            string   `json:"uuid"` // lower case
	SKU             string   `json:"sku,omitempty"`
	PartNumber      string   `json:"part_number,omitempty"`
	BIOS            string   `json:"bios,omitempty"`
	BMCFirmware     string   `json:"bmc_firmware,omitempty"`
	MACs            []string `json:"macs"` // of the host's network cards, lower case, colons, sorted
	MemoryGiB       float64  `json:"memory_gib,omitempty"`
	CPUs            int      `json:"cpus,omitempty"`  // sockets
	Cores           int      `json:"cores,omitempty"` // of all of them; 0 = not told
	GPUs            []GPU    `json:"gpus"`
	BaseboardsReady bool     `json:"baseboards_ready"` // false while a GPU baseboard's BMC still starts: missing GPUs mean nothing yet
	// Unread are resources that should be there and could not be read: what is missing from GPUs is then not absent.
	Unread []string `json:"unread,omitempty"`
	Quirks []string `json:"quirks,omitempty"`
}

// Knowledge is how much a BMC says of something.
type Knowledge string

// The three: what a BMC doesn't show by its nature is not what it failed to show this time.
const (
	Known         Knowledge = "known"
	Unknown       Knowledge = "unknown"
	NotApplicable Knowledge = "not-applicable"
)

// Accelerators says what GPUs is worth: Known is the whole list, Unknown may lack some, NotApplicable is of a BMC that shows
// no accelerators at all.
func (id Identity) Accelerators() Knowledge {
	switch {
	case !id.BaseboardsReady || len(id.Unread) > 0:
		return Unknown
	case len(id.GPUs) == 0:
		return NotApplicable
	}
	return Known
}

// GPU is one accelerator as the BMC shows it.
type GPU struct {
	URI      string        `json:"uri"`
	Slot     string        `json:"slot"`
	Vendor   schema.Vendor `json:"vendor"`
	Model    string        `json:"model"`
	Serial   string        `json:"serial"`
	UUID     string        `json:"uuid,omitempty"`
	Part     string        `json:"part,omitempty"`
	Firmware string        `json:"firmware,omitempty"`
	State    string        `json:"state"`  // Redfish Status.State, "" unknown
	Health   string        `json:"health"` // OK, Warning, Critical, "" unknown
}

// Identify reads what the server is, with its network cards and accelerators. What one resource gets wrong (a null serial,
// a broken body, a 404 behind a link) costs that field, not the identity.
func (c *Client) Identify(ctx context.Context) (_ Identity, err error) {
	defer c.conn.named("identify", &err)
	h, err := c.find(ctx)
	if err != nil {
		return Identity{}, err
	}
	sys, err := c.conn.get(ctx, h.uri)
	if err != nil {
		return Identity{}, err
	}
	id := Identity{
		SystemID: normalURI(h.uri), Make: h.make, Manufacturer: sys.word("Manufacturer"), Model: sys.word("Model"), Serial: sys.word("SerialNumber"),
		UUID: strings.ToLower(sys.word("UUID")), SKU: sys.word("SKU"), PartNumber: sys.word("PartNumber"), BIOS: sys.word("BiosVersion"),
		BaseboardsReady: true,
	}
	id.MemoryGiB, _ = sys.num("MemorySummary", "TotalSystemMemoryGiB")
	if n, ok := sys.num("ProcessorSummary", "Count"); ok {
		id.CPUs = int(n)
	}
	if n, ok := sys.num("ProcessorSummary", "CoreCount"); ok {
		id.Cores = int(n)
	}
	for _, q := range h.quirks {
		id.Quirks = append(id.Quirks, q.Name)
	}
	for _, read := range []func(context.Context, *host, *resource, *Identity) error{c.fromChassis, c.fromManagers, c.readMACs, c.readGPUs} {
		if err := read(ctx, h, sys, &id); err != nil {
			return id, err
		}
	}
	return id, nil
}

// fromChassis fills in what the system leaves null: on GB200 and GH200 maker, model and serial are the chassis's. The
// enclosure speaks before a board in it, of several alike the one that the system names, then the first by name: whatever the order
// of the list, a server is the same.
func (c *Client) fromChassis(ctx context.Context, h *host, _ *resource, id *Identity) error {
	if id.Manufacturer != "" && id.Model != "" && id.Serial != "" {
		return nil
	}
	all, err := c.chassisOf(ctx, h)
	if err != nil {
		return err
	}
	named := func(r *resource) int {
		if slices.ContainsFunc(h.chassis, func(u string) bool { return sameURI(u, r.uri) }) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(all, func(a, b *resource) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(named(a), named(b)), cmp.Compare(natural(a.uri), natural(b.uri)))
	})
	for _, r := range all {
		if rank(r) > 1 && id.Serial != "" {
			break // a component's words are a last resort, for the serial only
		}
		if id.Serial == "" {
			id.Serial = r.word("SerialNumber")
		}
		id.Manufacturer = orDefault(id.Manufacturer, r.word("Manufacturer"))
		id.Model = orDefault(id.Model, r.word("Model"))
		if id.Serial == "" {
			if err := c.fromAssembly(ctx, r, id); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Client) fromAssembly(ctx context.Context, chassis *resource, id *Identity) error {
	uri := chassis.link("Assembly")
	if uri == "" {
		return nil
	}
	r, err := c.conn.get(ctx, uri)
	if err != nil {
		return lenient(uri, err)
	}
	list, _ := r.at("Assemblies").([]any)
	for _, a := range list {
		part := &resource{}
		part.body, _ = a.(map[string]any)
		id.Serial = orDefault(id.Serial, part.word("SerialNumber"))
		id.Model = orDefault(id.Model, part.word("Model"))
		id.Manufacturer = orDefault(id.Manufacturer, part.word("Vendor"))
	}
	return nil
}

// rank orders chassis by how likely their serial is the server's.
func rank(r *resource) int {
	switch schemas.ChassisType(r.str("ChassisType")) {
	case schemas.RackMountChassisType, schemas.BladeChassisType, schemas.SledChassisType, schemas.StandAloneChassisType:
		return 0
	case schemas.ShelfChassisType, schemas.EnclosureChassisType:
		return 1
	case schemas.ComponentChassisType, schemas.ModuleChassisType, schemas.ZoneChassisType:
		return 3
	}
	return 2
}

// chassisOf reads the chassis that hold the host: those it links to, and those that link to it.
func (c *Client) chassisOf(ctx context.Context, h *host) ([]*resource, error) {
	root, err := c.conn.root(ctx)
	if err != nil {
		return nil, err
	}
	all, err := c.conn.collect(ctx, orDefault(root.link("Chassis"), "/redfish/v1/Chassis"), lenient)
	if err != nil {
		return nil, err
	}
	var out []*resource
	for _, r := range all {
		mine := slices.ContainsFunc(h.chassis, func(u string) bool { return sameURI(u, r.uri) }) ||
			slices.ContainsFunc(r.links("Links", "ComputerSystems"), func(u string) bool { return sameURI(u, h.uri) })
		if mine && (!h.shares || h.holds(r)) {
			out = append(out, r)
		}
	}
	return out, nil
}

// fromManagers reads the BMC's firmware, and whether a baseboard's own BMC is up.
func (c *Client) fromManagers(ctx context.Context, h *host, _ *resource, id *Identity) error {
	root, err := c.conn.root(ctx)
	if err != nil {
		return err
	}
	all, err := c.conn.collect(ctx, orDefault(root.link("Managers"), "/redfish/v1/Managers"), lenient)
	if err != nil {
		return err
	}
	for _, m := range all {
		mine := slices.ContainsFunc(h.managers, func(u string) bool { return sameURI(u, m.uri) }) ||
			slices.ContainsFunc(m.links("Links", "ManagerForServers"), func(u string) bool { return sameURI(u, h.uri) })
		if mine && id.BMCFirmware == "" {
			id.BMCFirmware = m.word("FirmwareVersion")
		}
		if !mine && m.str("Status", "State") == string(schemas.StartingState) {
			id.BaseboardsReady = false
		}
	}
	if id.BMCFirmware == "" && len(all) == 1 {
		id.BMCFirmware = all[0].word("FirmwareVersion")
	}
	return nil
}

var macPattern = regexp.MustCompile(`^([0-9a-f]{2}:){5}[0-9a-f]{2}$`)

// readMACs reads the host's network cards: its EthernetInterfaces, or where it has none (GB200) the ports of the adapters
// in its chassis. The card between host and BMC is not one.
func (c *Client) readMACs(ctx context.Context, h *host, sys *resource, id *Identity) error {
	seen := map[string]bool{}
	add := func(mac string) {
		mac = strings.ToLower(strings.ReplaceAll(mac, "-", ":"))
		if macPattern.MatchString(mac) && mac != "00:00:00:00:00:00" && mac != "ff:ff:ff:ff:ff:ff" && !seen[mac] {
			seen[mac] = true
			id.MACs = append(id.MACs, mac)
		}
	}
	nics, err := c.conn.collect(ctx, sys.link("EthernetInterfaces"), lenient)
	if err != nil {
		return err
	}
	for _, n := range nics {
		if lastSegment(n.uri) == "ToManager" || strings.Contains(strings.ToLower(n.str("Description")), "host to bmc") {
			continue
		}
		add(orDefault(n.word("MACAddress"), n.word("PermanentMACAddress")))
	}
	if len(id.MACs) == 0 {
		if err := c.adapterMACs(ctx, h, add); err != nil {
			return err
		}
	}
	sort.Strings(id.MACs)
	return nil
}

func (c *Client) adapterMACs(ctx context.Context, h *host, add func(string)) error {
	chassis, err := c.chassisOf(ctx, h)
	if err != nil {
		return err
	}
	for _, ch := range chassis {
		adapters, err := c.conn.collect(ctx, ch.link("NetworkAdapters"), lenient)
		if err != nil {
			return err
		}
		for _, a := range adapters {
			for _, part := range []string{"NetworkDeviceFunctions", "Ports"} {
				list, err := c.conn.collect(ctx, a.link(part), lenient)
				if err != nil {
					return err
				}
				for _, f := range list {
					add(f.word("Ethernet", "MACAddress"))
					for _, mac := range stringsOf(f.at("Ethernet", "AssociatedMACAddresses")) {
						add(mac)
					}
				}
			}
		}
	}
	return nil
}

// readGPUs lists the accelerators: processors of the host and of its baseboards, or where none shows as a processor, the
// PCIe devices of its chassis that are GPUs (Supermicro).
func (c *Client) readGPUs(ctx context.Context, h *host, sys *resource, id *Identity) error {
	seen := map[string]bool{}
	for i, uri := range append([]string{h.uri}, h.others...) {
		s := sys
		if i > 0 {
			var err error
			if s, err = c.conn.get(ctx, uri); err != nil {
				if err := id.noteUnread(uri, err); err != nil {
					return err
				}
				continue
			}
		}
		list, err := c.conn.collect(ctx, s.link("Processors"), id.noteUnread)
		if err != nil {
			return err
		}
		for _, p := range list {
			t := schemas.ProcessorType(p.str("ProcessorType"))
			if t != schemas.GPUProcessorType && t != schemas.AcceleratorProcessorType || seen[normalURI(p.uri)] {
				continue
			}
			seen[normalURI(p.uri)] = true
			id.GPUs = append(id.GPUs, gpuOf(p))
		}
	}
	if len(id.GPUs) == 0 {
		if err := c.pcieGPUs(ctx, h, id); err != nil {
			return err
		}
	}
	sort.SliceStable(id.GPUs, func(i, j int) bool { return natural(id.GPUs[i].URI) < natural(id.GPUs[j].URI) })
	return nil
}

var gpuName = regexp.MustCompile(`(?i)^(gpu|oam|sxm)[ _-]?\d+`)

func (c *Client) pcieGPUs(ctx context.Context, h *host, id *Identity) error {
	for _, uri := range h.chassis {
		ch, err := c.conn.get(ctx, uri)
		if err != nil {
			if err := lenient(uri, err); err != nil {
				return err
			}
			continue
		}
		if h.shares && !h.holds(ch) {
			continue
		}
		// Read only what is named as a GPU: the other devices are many.
		list, err := c.conn.members(ctx, ch.link("PCIeDevices"))
		if err != nil {
			return err
		}
		if list == nil {
			for _, u := range ch.links("Links", "PCIeDevices") {
				list = append(list, &resource{uri: u, body: map[string]any{"@odata.id": u}})
			}
		}
		for _, m := range list {
			if !gpuName.MatchString(lastSegment(m.uri)) {
				continue
			}
			d, err := c.conn.whole(ctx, m)
			if err != nil {
				if err := id.noteUnread(m.uri, err); err != nil {
					return err
				}
				continue
			}
			id.GPUs = append(id.GPUs, gpuOf(d))
		}
	}
	return nil
}

// noteUnread is lenient, and remembers what was passed over.
func (id *Identity) noteUnread(uri string, err error) error {
	if err := lenient(uri, err); err != nil {
		return err
	}
	id.Unread = append(id.Unread, normalURI(uri))
	return nil
}

// gpuOf reads an accelerator from a Processor or a PCIeDevice.
func gpuOf(r *resource) GPU {
	g := GPU{
		URI: normalURI(r.uri), Model: r.word("Model"), Serial: r.word("SerialNumber"), UUID: strings.ToLower(r.word("UUID")), Part: r.word("PartNumber"),
		Firmware: r.word("FirmwareVersion"), State: r.str("Status", "State"), Health: r.str("Status", "Health"),
		Slot: r.word("Location", "PartLocation", "ServiceLabel"),
	}
	if g.Slot == "" || !strings.Contains(g.URI, "/PCIeDevices/") && duplicateLabel(g) {
		g.Slot = lastSegment(g.URI)
	}
	g.Vendor = vendorOf(r.str("Manufacturer") + " " + g.Model + " " + r.str("Oem", "Supermicro", "GPUVendor"))
	return g
}

// duplicateLabel spots GB200, where GPU_1 and GPU_3 carry the label of the board's first and second site.
func duplicateLabel(g GPU) bool {
	return strings.HasPrefix(g.Slot, "GPU_") && g.Slot != lastSegment(g.URI)
}

func vendorOf(words string) schema.Vendor {
	words = strings.ToLower(words)
	for _, v := range []struct {
		word   string
		vendor schema.Vendor
	}{{"nvidia", schema.VendorNVIDIA}, {"h100", schema.VendorNVIDIA}, {"amd", schema.VendorAMD}, {"advanced micro", schema.VendorAMD}, {"instinct", schema.VendorAMD},
		{"intel", schema.VendorIntel}, {"huawei", schema.VendorHuawei}, {"ascend", schema.VendorHuawei}} {
		if strings.Contains(words, v.word) {
			return v.vendor
		}
	}
	return schema.VendorOther
}

var digits = regexp.MustCompile(`\d+`)

// natural pads numbers so that slot 10 sorts after slot 9.
func natural(s string) string {
	return digits.ReplaceAllStringFunc(s, func(d string) string {
		if len(d) >= 10 {
			return d
		}
		return strings.Repeat("0", 10-len(d)) + d
	})
}

// Mismatch compares what was ordered with what is there: an error that says which, or nil. Empty fields of want are not
// compared.
func (id Identity) Mismatch(want Identity) error {
	var wrong []string
	for _, f := range []struct{ name, want, got string }{
		{"serial", want.Serial, id.Serial}, {"uuid", strings.ToLower(want.UUID), id.UUID}, {"manufacturer", want.Manufacturer, id.Manufacturer}, {"model", want.Model, id.Model},
	} {
		if f.want != "" && !strings.EqualFold(f.want, f.got) {
			wrong = append(wrong, f.name+" is "+orDefault(f.got, "not shown")+", ordered "+f.want)
		}
	}
	for _, mac := range want.MACs { // a BMC that shows no card at all (GB200) proves nothing
		if len(id.MACs) > 0 && !slices.Contains(id.MACs, strings.ToLower(mac)) {
			wrong = append(wrong, "network card "+mac+" is not there")
		}
	}
	if wrong == nil {
		return nil
	}
	return errors.New(strings.Join(wrong, "; "))
}
