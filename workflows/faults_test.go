package workflows_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gpupool/activities/bmc"
	"gpupool/activities/temporalerr"
	lab "gpupool/deploy/lab/bmc"
	"gpupool/pxe/boot"
	"gpupool/schema"
	"gpupool/schema/agentproto"
	"gpupool/schema/hardware"
	"gpupool/workflows"
)

// trouble is one way in which an onboarding stops: what is broken, how the failure reads, and how it is lifted.
type trouble struct {
	step  schema.Step
	code  schema.FailureCode
	words []string
	set   func(*env)
	lift  func(*env) // nil = healed
	// twice says that the retry installs it again: nobody can know that the disk was written.
	twice bool
}

// healed makes the machine, its agent and its BMC good again.
func healed(e *env) {
	e.bmc.ClearFaults()
	e.reached()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dead, e.hung, e.evidence, e.answer, e.devices = false, false, nil, e.goodAnswer, newDevices()
	e.parts = newParts()
}

// reached waits until the pool asks the BMC again: its breaker goes by the wall's clock, the process by the test's.
func (e *env) reached() {
	user, password := e.bmc.Credential()
	c, err := e.site.Pool.Client(bmc.Endpoint{Address: e.bmc.URL(), Credential: bmc.Static(user, password)})
	must(e.t, err)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(time.Minute); ; {
		if _, err = c.Identify(context.Background()); err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			e.t.Errorf("the BMC is not asked again: %v", err)
			return
		}
	}
}

// atBMC has requests that match answered as told until it is lifted.
func atBMC(f lab.Fault) func(*env) { return func(e *env) { e.bmc.AddFault(f) } }

// boots no further than the evidence shows.
func boots(seen ...schema.BootEvidence) func(*env) {
	return func(e *env) {
		e.dead = true
		for i := range seen {
			seen[i].Attempt = 1
		}
		e.evidence = seen
	}
}

// answers of the agent for tasks of a kind; nil = the agent never ends it.
func answers(kind schema.TaskKind, r *agentproto.TaskReport) func(*env) {
	return func(e *env) {
		e.answer = func(t agentproto.Task) *agentproto.TaskReport {
			switch {
			case t.Stop:
				return &agentproto.TaskReport{State: schema.TaskCancelled, NoneLeft: true}
			case t.Kind == kind && r == nil:
				return nil
			case t.Kind == kind:
				c := *r
				return &c
			}
			return e.goodAnswer(t)
		}
	}
}

func failedWith(text string) *agentproto.TaskReport {
	return &agentproto.TaskReport{State: schema.TaskFailed, Text: text, NoneLeft: true}
}

func ended(result any) *agentproto.TaskReport {
	return &agentproto.TaskReport{State: schema.TaskDone, Result: marshal(result), NoneLeft: true, Text: "as told"}
}

// without leaves the devices as change makes them.
func without(change func([]agentproto.Device) []agentproto.Device) func(*env) {
	return func(e *env) { e.devices = change(e.devices) }
}

// part has a part otherwise than was ordered.
func part(name string, change func(*hardware.Part)) func(*env) {
	return func(e *env) {
		for i := range e.parts.Parts {
			if e.parts.Parts[i].Name == name {
				change(&e.parts.Parts[i])
			}
		}
	}
}

// tells has the BMC tell a version of the BIOS.
func tells(bios string) func(*env) {
	return func(e *env) { must(e.t, e.bmc.Patch(e.bmc.SystemPath(), map[string]any{"BiosVersion": bios})) }
}

func serialIs(serial string) func(*env) {
	return func(e *env) { must(e.t, e.bmc.Patch(e.bmc.SystemPath(), map[string]any{"SerialNumber": serial})) }
}

var allSerials = []string{"GPU-1", "GPU-2", "GPU-3", "GPU-4", "GPU-5", "GPU-6", "GPU-7", "GPU-8"}

// troubles are the faults of each step, by what is wrong.
func troubles() map[string]trouble {
	const mac = "0c:42:a1:00:00:01"
	const reset, bootPath = "/redfish/v1/Systems/*/Actions/ComputerSystem.Reset", "/redfish/v1/Systems/**"
	type ev = schema.BootEvidence
	discover, ack := ev{Kind: boot.KindDiscover, MAC: mac, Result: "ok"}, ev{Kind: boot.KindAck, MAC: mac, IP: "10.1.0.7"}
	tftp := ev{Kind: boot.KindTFTP, MAC: mac, What: "snponly.efi", Bytes: 200_000, Result: "ok"}
	script := ev{Kind: boot.KindScript, MAC: mac, What: "script.ipxe: install", Result: "ok"}
	kernel := ev{Kind: boot.KindHTTP, MAC: mac, What: "image/x86_64/initrd.img", Bytes: 9 << 20, Result: "ok"}
	document := ev{Kind: boot.KindDocument, MAC: mac, What: "user-data", Result: "ok"}
	v, i, p, d, r, b := schema.StepVerifyBMC, schema.StepInspect, schema.StepProvision, schema.StepDrivers, schema.StepRuntime, schema.StepBurnIn
	return map[string]trouble{
		"bmc: another server's":                    {v, schema.FailIdentity, []string{"SN-OTHER", "SN-1"}, serialIs("SN-OTHER"), serialIs("SN-1"), false},
		"bmc: drops every connection":              {v, schema.FailBMC, []string{"no success at the BMC", "Not proven: that the BMC works"}, atBMC(lab.Fault{Drop: true}), nil, false},
		"bmc: 500 to everything":                   {v, "", []string{"500"}, atBMC(lab.Fault{Status: 500}), nil, false},
		"bmc: 503 to everything":                   {v, schema.FailBMC, []string{"503"}, atBMC(lab.Fault{Status: 503}), nil, false},
		"bmc: a page in the place of JSON":         {v, schema.FailBMC, []string{"To do:"}, atBMC(lab.Fault{Method: "GET", Replace: []byte("<html>busy</html>")}), nil, false},
		"bmc: its tree has no systems":             {v, "", nil, atBMC(lab.Fault{Method: "GET", Path: "/redfish/v1/Systems/**", Status: 404}), nil, false},
		"bmc: its services die after the login":    {v, "", nil, atBMC(lab.Fault{Method: "GET", Path: "/redfish/v1/Systems/**", Status: 500}), nil, false},
		"power: the reset is refused":              {p, schema.FailBMCRefused, []string{"400"}, atBMC(lab.Fault{Method: "POST", Path: reset, Status: 400}), nil, false},
		"power: the reset is forbidden":            {p, "", []string{"403"}, atBMC(lab.Fault{Method: "POST", Path: reset, Status: 403}), nil, false},
		"power: the reset fails within":            {p, "", []string{"500"}, atBMC(lab.Fault{Method: "POST", Path: reset, Status: 500}), nil, false},
		"power: the reset's connection is dropped": {step: p, words: []string{"the power is still on", "EOF", "look at the machine"}, set: atBMC(lab.Fault{Method: "POST", Path: reset, Drop: true})},
		"boot: the override is refused":            {p, schema.FailBMCRefused, []string{"400"}, atBMC(lab.Fault{Method: "PATCH", Path: bootPath, Status: 400}), nil, false},
		"boot: the override fails within":          {p, "", []string{"500"}, atBMC(lab.Fault{Method: "PATCH", Path: bootPath, Status: 500}), nil, false},
		"boot: the override's answer never comes":  {p, schema.FailBMC, []string{"no success at the BMC"}, atBMC(lab.Fault{Method: "PATCH", Path: bootPath, Drop: true}), nil, false},
		"boot: the override is taken and not kept": {p, "", nil, atBMC(lab.Fault{Method: "PATCH", Path: bootPath, Status: 204}), nil, false},

		"install: no sign of a boot":                {p, schema.FailNoBoot, []string{"no DHCP message of its MACs", "Is the cable"}, boots(), nil, false},
		"install: no answer to DHCP":                {p, schema.FailNoBoot, []string{"asked for an address (MAC " + mac, "another DHCP server"}, boots(discover), nil, false},
		"install: no address is free":               {p, schema.FailNoBoot, []string{"no free address"}, boots(ev{Kind: boot.KindDiscover, MAC: mac, Result: "no free address"}), nil, false},
		"install: the offer is not taken":           {p, schema.FailNoBoot, []string{"Not proven: that an answer reached it"}, boots(discover, ev{Kind: boot.KindOffer, MAC: mac, IP: "10.1.0.7"}), nil, false},
		"install: TFTP is closed":                   {p, schema.FailNoBoot, []string{"has address 10.1.0.7", "UDP 69"}, boots(discover, ack), nil, false},
		"install: its boot loader is not there":     {p, schema.FailNoBoot, []string{"asked for its boot loader own.efi", "pxe.boot_dir"}, boots(discover, ack, ev{Kind: boot.KindTFTP, MAC: mac, What: "own.efi", Result: "no such file"}), nil, false},
		"install: the firmware refuses the loader":  {p, schema.FailInstall, []string{"fetched snponly.efi", "Secure Boot"}, boots(discover, ack, tftp), nil, false},
		"install: the loader loops":                 {p, schema.FailBootLoop, []string{"again and again"}, boots(discover, ack, tftp, ev{Kind: boot.KindLoop, MAC: mac}), nil, false},
		"install: it is handed to its disk":         {p, schema.FailNoBoot, []string{"told to boot from disk"}, boots(discover, ack, tftp, ev{Kind: boot.KindScript, MAC: mac, What: "script.ipxe: boot from disk", Result: "ok: no attempt has armed it"}), nil, false},
		"install: HTTP is closed behind the script": {p, schema.FailInstall, []string{"took its install script", "is HTTP to the boot service open"}, boots(discover, ack, tftp, script), nil, false},
		"install: its kernel is not there":          {p, schema.FailInstall, []string{"asked for image/x86_64/vmlinuz", "pxe.boot_dir"}, boots(discover, ack, tftp, script, ev{Kind: boot.KindHTTP, MAC: mac, What: "image/x86_64/vmlinuz", Result: "no such file"}), nil, false},
		"install: the kernel hangs":                 {p, schema.FailInstall, []string{"fetched image/x86_64/initrd.img", "asked for no document", "console"}, boots(discover, ack, tftp, script, kernel), nil, false},
		"install: the installer hangs":              {p, schema.FailInstall, []string{"the installer ran and fetched user-data", "nobody phoned home"}, boots(discover, ack, tftp, script, kernel, document), nil, false},
		"install: someone else took the script":     {p, schema.FailInstall, []string{"already given out", "10.1.0.9"}, boots(discover, ack, ev{Kind: boot.KindRefused, MAC: mac, IP: "10.1.0.9", What: "script.ipxe", Result: "the install script of this DHCP exchange was already given out"}), nil, false},
		"install: the disk's system is mute":        {p, "", []string{"no phone-home within 30m"}, func(e *env) { e.hung = true }, nil, true},

		"drivers: no module for the kernel":         {d, schema.FailTask, []string{"no module for this kernel"}, answers(schema.TaskDrivers, failedWith("no module for this kernel")), nil, false},
		"drivers: it lists no device":               {d, schema.FailTask, []string{"lists no device"}, answers(schema.TaskDrivers, failedWith("the nvidia driver 570 answers, but lists no device")), nil, false},
		"drivers: a device does not answer it":      {d, schema.FailTask, []string{"SXM3"}, answers(schema.TaskDrivers, failedWith("device GPU-3 (SXM3) does not answer")), nil, false},
		"drivers: the driver hangs":                 {d, schema.FailTask, []string{"was not done within 30m", "the agent took it"}, answers(schema.TaskDrivers, nil), nil, false},
		"drivers: cancelled by the agent":           {d, schema.FailTask, []string{"ended as cancelled"}, answers(schema.TaskDrivers, &agentproto.TaskReport{State: schema.TaskCancelled, Text: "stopped", NoneLeft: true}), nil, false},
		"runtime: there is none":                    {r, schema.FailTask, []string{"no container runtime"}, answers(schema.TaskRuntime, failedWith("no container runtime: none of containerd, docker, podman answers")), nil, false},
		"runtime: it hangs":                         {r, schema.FailTask, []string{"was not done within 30m"}, answers(schema.TaskRuntime, nil), nil, false},
		"inventory: a device is missing":            {b, schema.FailHardware, []string{"7 of the 8", "missing: SXM5"}, without(func(l []agentproto.Device) []agentproto.Device { return append(l[:4:4], l[5:]...) }), nil, false},
		"inventory: none is there":                  {b, schema.FailHardware, []string{"0 of the 8", "no device at all"}, without(func([]agentproto.Device) []agentproto.Device { return nil }), nil, false},
		"inventory: another model":                  {b, schema.FailHardware, []string{"SXM2", "nvidia-a100-80gb", "ordered " + model}, without(func(l []agentproto.Device) []agentproto.Device { l[1].Model = "nvidia-a100-80gb"; return l }), nil, false},
		"inventory: one can't be read":              {b, schema.FailHardware, []string{"SXM4", "could not be read: lost"}, without(func(l []agentproto.Device) []agentproto.Device { l[3].Error = "lost"; return l }), nil, false},
		"inventory: another machine":                {b, schema.FailIdentity, []string{"SN-9", "SN-1", "cabled"}, answers(schema.TaskInventory, ended(agentproto.Inventory{Serial: "SN-9"})), nil, false},
		"inventory: a driver does not answer":       {b, schema.FailTask, []string{"has not answered"}, answers(schema.TaskInventory, failedWith("the devices could not be read: a driver has not answered yet")), nil, false},
		"inventory: it hangs":                       {b, schema.FailTask, []string{"inventory was not done within 5m"}, answers(schema.TaskInventory, nil), nil, false},
		"inventory: it can't be read":               {b, schema.FailTask, []string{"can't be read"}, answers(schema.TaskInventory, &agentproto.TaskReport{State: schema.TaskDone, Result: json.RawMessage(`"{"`), NoneLeft: true}), nil, false},
		"burn-in: a device fails":                   {b, schema.FailBurnIn, []string{"SXM3", "GPU-3", "memory"}, answers(schema.TaskBurnIn, ended(agentproto.BurnInResult{Outcome: "failed", Tests: []string{"memory"}, Devices: allSerials, Failed: []agentproto.BurnInFailure{{Device: "GPU-3", Slot: "SXM3", Test: "memory", Text: "bad pattern"}}})), nil, false},
		"burn-in: a counter grows though it passes": {b, schema.FailBurnIn, []string{"SXM6", "counters", "grew by 1"}, answers(schema.TaskBurnIn, ended(agentproto.BurnInResult{Outcome: "passed", Tests: []string{"counters"}, Devices: allSerials, Failed: []agentproto.BurnInFailure{{Device: "GPU-6", Slot: "SXM6", Test: "counters", Text: "ecc grew by 1"}}})), nil, false},
		"burn-in: a tool is missing":                {b, schema.FailInconclusive, []string{"dcgmi is not installed"}, answers(schema.TaskBurnIn, &agentproto.TaskReport{State: schema.TaskDone, Text: "inconclusive: dcgmi is not installed", NoneLeft: true, Result: marshal(agentproto.BurnInResult{Outcome: "inconclusive", Devices: allSerials})}), nil, false},
		"burn-in: every test is skipped":            {b, schema.FailInconclusive, []string{"no test was run"}, answers(schema.TaskBurnIn, ended(agentproto.BurnInResult{Outcome: "passed", Devices: allSerials})), nil, false},
		"burn-in: it hangs":                         {b, schema.FailInconclusive, []string{"burn-in was not done within 6h"}, answers(schema.TaskBurnIn, nil), nil, false},
		"burn-in: its result is cut off":            {b, schema.FailInconclusive, []string{"can't be read"}, answers(schema.TaskBurnIn, &agentproto.TaskReport{State: schema.TaskDone, Result: json.RawMessage(`"{\"outcome\":\"pas"`), NoneLeft: true}), nil, false},
		"burn-in: seven of eight are tested":        {b, schema.FailHardware, []string{"7 of the 8"}, answers(schema.TaskBurnIn, ended(agentproto.BurnInResult{Outcome: "passed", Tests: []string{"memory"}, Devices: allSerials[:7]})), nil, false},
		"parts: a DIMM is missing":                  {b, schema.FailHardware, []string{"1 of the 2 dimm of 1024 GiB", "empty: DIMM1"}, part("DIMM1", func(p *hardware.Part) { p.Bytes = 0 }), nil, false},
		"parts: a smaller DIMM":                     {b, schema.FailHardware, []string{"dimm size: ordered 1024 GiB, found 512 GiB at DIMM0"}, part("DIMM0", func(p *hardware.Part) { p.Bytes = 512 << 30 }), nil, false},
		"parts: a drive is missing":                 {b, schema.FailHardware, []string{"1 of the 2 nvme of 3.84 TB"}, part("nvme1", func(p *hardware.Part) { p.Kind = "" }), nil, false},
		"parts: a smaller drive":                    {b, schema.FailHardware, []string{"nvme size: ordered 3.84 TB, found 1.92 TB at nvme0"}, part("nvme0", func(p *hardware.Part) { p.Bytes /= 2 }), nil, false},
		"parts: a drive at half its lanes":          {b, schema.FailHardware, []string{"nvme link width: ordered x4, found x2 at nvme1"}, part("nvme1", func(p *hardware.Part) { p.Lanes = 2 }), nil, false},
		"parts: a drive with old firmware":          {b, schema.FailHardware, []string{"nvme firmware: ordered >=GDC7302Q, found GDC5302Q at nvme1"}, part("nvme1", func(p *hardware.Part) { p.Firmware = "GDC5302Q" }), nil, false},
		"parts: a network port is missing":          {b, schema.FailHardware, []string{"1 of the 2 nic of 400 Gbit/s"}, part("mlx5_1/1", func(p *hardware.Part) { p.Kind = "" }), nil, false},
		"parts: a network port has no link":         {b, schema.FailHardware, []string{"nic speed: ordered 400 Gbit/s, found no link at mlx5_0/1"}, part("mlx5_0/1", func(p *hardware.Part) { p.Gbps = 0 }), nil, false},
		"parts: a network port is slow":             {b, schema.FailHardware, []string{"found 100 Gbit/s at mlx5_1/1"}, part("mlx5_1/1", func(p *hardware.Part) { p.Gbps = 100 }), nil, false},
		"parts: a device at half its lanes":         {b, schema.FailHardware, []string{"accelerator link width: ordered x16, found x8 at SXM3"}, without(func(l []agentproto.Device) []agentproto.Device { l[2].Samples["pcie_link_width"] = 8; return l }), nil, false},
		"parts: a device with other firmware":       {b, schema.FailHardware, []string{"accelerator firmware: ordered 96.00.89.00.01, found 96.00.30.00.01 at SXM8"}, without(func(l []agentproto.Device) []agentproto.Device { l[7].Firmware = "96.00.30.00.01"; return l }), nil, false},
		"parts: the DIMMs can't be read":            {b, schema.FailHardware, []string{"could not be read: permission denied"}, func(e *env) { e.parts.Unread = map[hardware.Kind]string{hardware.DIMM: "permission denied"} }, nil, false},
		"parts: an old BIOS, as the system says":    {b, schema.FailHardware, []string{"bios firmware: ordered >=1.0, found 0.9"}, part("the system", func(p *hardware.Part) { p.Firmware = "0.9" }), nil, false},
		"parts: an old BIOS, as the BMC says":       {i, schema.FailHardware, []string{"bios firmware: ordered >=1.0, found 0.9"}, tells("0.9"), tells("1.5"), false},
		"inspect: a device is absent":               {i, schema.FailHardware, []string{"absent"}, func(e *env) { must(e.t, e.bmc.SetGPU(2, lab.GPU{Serial: "X", State: "Absent", Health: "Critical"})) }, func(e *env) { must(e.t, e.bmc.SetGPU(2, lab.GPU{Serial: "X", State: "Enabled", Health: "OK"})) }, false},
		"inspect: a device is critical": {i, schema.FailHardware, []string{"critical", "BAD-1"}, func(e *env) {
			must(e.t, e.bmc.SetGPU(2, lab.GPU{Serial: "BAD-1", State: "Enabled", Health: "Critical"}))
		}, func(e *env) { must(e.t, e.bmc.SetGPU(2, lab.GPU{Serial: "X", State: "Enabled", Health: "OK"})) }, false},
	}
}

// stopsWithin is longer than any step tries, burn-in's two runs included.
const stopsWithin = 20 * time.Hour

// TestEveryFaultStopsAtItsStepInItsWordsAndIsRetriedOrUndone is the table of what goes wrong: the process stops at the step
// where the fault shows, says what it is, and does nothing until a person speaks. Then, once with each fault: after it
// is lifted a retry brings the server into the pool, installed once; an abort in its place leaves it enrolled, not
// armed, with no override and no token that would still be taken.
func TestEveryFaultStopsAtItsStepInItsWordsAndIsRetriedOrUndone(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes about a minute")
	}
	all := troubles()
	if len(all) < 40 {
		t.Fatalf("the table has %d faults", len(all))
	}
	var said atomic.Int64
	for name, f := range all {
		for _, end := range []string{"retry", "abort"} {
			t.Run(name+"/"+end, func(t *testing.T) {
				t.Parallel()
				e := newEnv(t)
				f.set(e)
				lift := f.lift
				if lift == nil {
					lift = healed
				}
				e.at(stopsWithin, func() {
					v := e.now(t)
					text := fmt.Sprintf("%s at %s, failure %s: %s", v.Phase, v.Step, v.FailureCode, v.FailureText)
					if v.Phase != schema.PhaseOnboarding || v.Step != f.step || v.FailureCode == "" || f.code != "" && v.FailureCode != string(f.code) || v.FailureCode == string(schema.FailInternal) {
						t.Errorf("%s; want %s at %s", text, f.code, f.step)
					}
					for _, w := range f.words {
						if !strings.Contains(v.FailureText, w) {
							t.Errorf("%q is not said: %s", w, text)
						}
					}
					if st := e.stepOf(t, f.step); st.State != schema.StepFailed {
						t.Errorf("the step is %s", st.State)
					}
					said.Add(1)
					lift(e)
				})
				var word *verb
				if end == "retry" {
					word = e.say(stopsWithin+time.Hour, workflows.UpdateRetry, workflows.Retry{By: "ann"})
				} else {
					word = e.say(stopsWithin+time.Hour, workflows.UpdateAbort, workflows.Abort{By: "ann", Reason: "enough"})
				}
				e.onboard(t)
				if word.rejected != nil || word.err != nil || !word.done {
					t.Fatalf("the word was answered %v, %v", word.rejected, temporalerr.Unwrap(word.err))
				}
				v := e.now(t)
				_, armed, err := e.db.Armed(t.Context(), v.ID)
				must(t, err)
				if armed {
					t.Error("it is armed at the end")
				}
				if end == "retry" {
					installs := 1
					if f.twice {
						installs = 2
					}
					if v.Phase != schema.PhaseAvailable || e.installs != installs {
						t.Fatalf("after the retry it is %s with %d installs: %s", v.Phase, e.installs, v.FailureText)
					}
					return
				}
				if v.Phase != schema.PhaseEnrolled || v.FailureCode != "" {
					t.Fatalf("after the abort it is %s with failure %q", v.Phase, v.FailureCode)
				}
				if _, err := e.boots.Mint(t.Context(), v.ID, 1, schema.PurposeScript); !schema.Is(err, schema.CodeStale) {
					t.Errorf("an aborted attempt still gets tokens: %v", err)
				}
				if o := e.bmc.BootOverride(); o.Network() {
					t.Errorf("the boot override still stands: %+v", o)
				}
			})
		}
	}
	t.Cleanup(func() {
		if n := said.Load(); n != int64(2*len(all)) && !t.Failed() {
			t.Errorf("%d of %d onboardings stopped", n, 2*len(all))
		}
	})
}
