package node

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/hardware"
)

func vendorOf(model string) string {
	vendor, _, _ := strings.Cut(model, "-")
	return vendor
}

// inventory compares what the agent reads with what was ordered, and after a repair with what the technician said. What can't be
// taken as it is, whoever says so, is a failure: another machine, a part that is not the one told, a device that can't be read.
func inventory(in Ask, v schema.Server, t schema.Task) (*schema.StepOutcome, []schema.Difference) {
	var inv agentproto.Inventory
	if err := json.Unmarshal([]byte(t.Result), &inv); err != nil {
		return failed(schema.FailTask, true, "the inventory can't be read: %v", err), nil
	}
	if inv.Serial != "" && !strings.EqualFold(inv.Serial, v.Serial) {
		return failed(schema.FailIdentity, false, "the installed system runs on a machine with serial %q, server %s was enrolled with %q: is the BMC cabled to another machine?", inv.Serial, v.Name, v.Serial), nil
	}
	var good, unread, others []string
	serials := map[string]bool{}
	slots := map[string]bool{}
	for _, d := range inv.Devices {
		serials[d.Serial] = d.Serial != ""
		slots[d.Slot] = true
		name := d.Slot + " (serial " + orNone(d.Serial) + ")"
		switch {
		case d.Error != "":
			unread = append(unread, name+" could not be read: "+d.Error)
		case d.Model != v.Model:
			others = append(others, name+" is a "+orNone(d.Model)+", ordered "+v.Model)
		default:
			good = append(good, d.Slot)
		}
	}
	if in.NewSerial != "" && !serials[in.NewSerial] {
		return failed(schema.FailHardware, true, "the new part %s is not seen: is it seated? is the serial right? Seen: %s", in.NewSerial, listed(inv.Devices)), nil
	}
	if in.NewSerial != "" && in.OldSerial != "" && serials[in.OldSerial] {
		return failed(schema.FailHardware, true, "the failed part %s is still in: was the right one replaced?", in.OldSerial), nil
	}
	if len(unread) > 0 {
		return failed(schema.FailHardware, true, "%s. Seen: %s", strings.Join(append(unread, others...), "; "), listed(inv.Devices)), nil
	}
	out := &schema.StepOutcome{Detail: fmt.Sprintf("%d %s", len(good), v.Model)}
	if len(good) >= v.Accelerators && others == nil {
		return out, nil
	}
	var found []string
	if missing := missingSlots(inv.Devices, v.Accelerators); len(missing) > 0 {
		found = append(found, "missing: "+strings.Join(missing, ", "))
	}
	found = append(found, others...)
	text := fmt.Sprintf("%d of the %d %s ordered are there", len(good), v.Accelerators, v.Model)
	if len(found) > 0 {
		text += "; " + strings.Join(found, "; ")
	}
	if len(good) == 0 { // nothing is left that could be lent
		return failed(schema.FailHardware, true, "%s. Seen: %s", text, listed(inv.Devices)), nil
	}
	return out, []schema.Difference{{Item: schema.ItemAccelerators, Ordered: fmt.Sprintf("%d %s", v.Accelerators, v.Model), Found: strings.TrimSuffix(fmt.Sprintf("%d; %s", len(good), strings.Join(found, "; ")), "; "),
		Missing: max(v.Accelerators-len(good), 0), Words: text + ". Seen: " + listed(inv.Devices)}}
}

// parts compares what the agent reads of a server's parts with the build that it was ordered as. What the BMC alone tells is not asked of it.
func parts(lines []hardware.Line, v schema.Server, t schema.Task) []schema.Difference {
	var inv agentproto.Inventory
	if len(lines) == 0 || json.Unmarshal([]byte(t.Result), &inv) != nil { // what can't be read has failed before
		return nil
	}
	read := hardware.Read{Unread: map[hardware.Kind]string{}}
	if inv.Hardware != nil {
		read.Parts = slices.Clone(inv.Hardware.Parts)
		maps.Copy(read.Unread, inv.Hardware.Unread)
	} else {
		for _, k := range []hardware.Kind{hardware.DIMM, hardware.NVMe, hardware.NIC, hardware.BIOS} {
			read.Unread[k] = "the agent is of a version that does not read it"
		}
	}
	for _, d := range inv.Devices {
		if d.Model == v.Model {
			read.Parts = append(read.Parts, hardware.Part{Kind: hardware.Accelerator, Name: strings.TrimSpace(d.Slot + " " + d.PCI), Model: d.Model, Serial: d.Serial, Lanes: int(d.Samples[linkWidth]), Firmware: d.Firmware})
		}
	}
	// How many accelerators there are is weighed by the order itself, with the slots that lack one.
	lines = slices.Clone(lines)
	for i, l := range lines {
		if l.Part == hardware.Accelerator {
			lines[i].Count = min(l.Count, len(inv.Devices))
		}
	}
	return hardware.Differ(lines, read, hardware.Accelerator, hardware.DIMM, hardware.NVMe, hardware.NIC, hardware.BIOS)
}

// linkWidth is the metric of a device's PCIe lanes, as the agent names it.
const linkWidth = "pcie_link_width"

// missingSlots names the slots that a row of numbered ones lacks: SXM1, SXM2, SXM4 of 4 lacks SXM3. Where the names are
// not such a row it names none: a wrong name would send a technician to a good part.
func missingSlots(devices []agentproto.Device, ordered int) []string {
	prefix, first, have := "", 1, map[int]bool{}
	for i, d := range devices {
		cut := len(strings.TrimRight(d.Slot, "0123456789"))
		var n int
		if _, err := fmt.Sscanf(d.Slot[cut:], "%d", &n); err != nil || i > 0 && d.Slot[:cut] != prefix {
			return nil
		}
		prefix, have[n] = d.Slot[:cut], true
		if n == 0 {
			first = 0
		}
	}
	if len(have) == 0 {
		return nil
	}
	var missing []string
	for n := first; n < first+ordered; n++ {
		if !have[n] {
			missing = append(missing, fmt.Sprintf("%s%d", prefix, n))
		}
	}
	if prefix == "OAM" && first == 1 && len(devices)+1 == ordered && have[ordered-1] && !have[ordered] {
		return []string{"OAM0"} // OAM modules are numbered from 0: the one that would prove it is the one that is missing
	}
	return missing
}

func listed(devices []agentproto.Device) string {
	if len(devices) == 0 {
		return "no device at all"
	}
	var out []string
	for _, d := range devices {
		out = append(out, strings.TrimSpace(d.Slot+" "+d.Serial))
	}
	return strings.Join(out, ", ")
}

func orNone(s string) string {
	if s == "" {
		return "not shown"
	}
	return s
}

// burnIn has three outcomes. Failed needs a device and a test that are named; everything that is not clearly passed or
// failed is inconclusive: a tool that is missing, a deadline, an answer that was cut off, tests that were skipped.
func burnIn(v schema.Server, t schema.Task, only []string) (_ *schema.StepOutcome, inconclusive bool) {
	var r agentproto.BurnInResult
	err := json.Unmarshal([]byte(t.Result), &r)
	unsure := func(format string, args ...any) (*schema.StepOutcome, bool) {
		return failed(schema.FailInconclusive, true, "burn-in proved nothing either way: "+format, args...), true
	}
	if err == nil && len(r.Failed) > 0 {
		var words []string
		for _, f := range r.Failed {
			words = append(words, strings.TrimSpace(fmt.Sprintf("%s (%s) failed %s: %s", orNone(f.Slot), orNone(f.Device), f.Test, f.Text)))
		}
		return failed(schema.FailBurnIn, false, "%s", strings.Join(words, "; ")), false
	}
	switch {
	case t.State != schema.TaskDone:
		return unsure("it ended as %s: %s", t.State, said(t))
	case err != nil:
		return unsure("its result can't be read (%v)", err)
	case r.Outcome != "passed":
		return unsure("outcome %q: %s", r.Outcome, said(t))
	case len(r.Tests) == 0:
		return unsure("no test was run")
	}
	devices := slices.Compact(slices.Sorted(slices.Values(r.Devices)))
	for _, id := range only {
		if !slices.Contains(devices, id) {
			return failed(schema.FailHardware, true, "burn-in did not cover %s, which it was to test (%s)", id, strings.Join(devices, ", ")), false
		}
	}
	if len(only) == 0 && len(devices) < v.Accelerators {
		return failed(schema.FailHardware, true, "burn-in covered %d of the %d devices ordered (%s): find the missing one", len(devices), v.Accelerators, strings.Join(devices, ", ")), false
	}
	return &schema.StepOutcome{Detail: fmt.Sprintf("passed: %s on %d devices%s", strings.Join(r.Tests, ", "), len(devices), evidence(r, t))}, false
}

// evidence names what a verdict rests on: the suite, and the hash of the result as it is kept with every program's output.
func evidence(r agentproto.BurnInResult, t schema.Task) string {
	if len(r.Evidence) == 0 {
		return ""
	}
	h := sha256.Sum256([]byte(t.Result))
	return fmt.Sprintf("; suite %s, evidence sha256:%s", r.Suite, hex.EncodeToString(h[:8]))
}
