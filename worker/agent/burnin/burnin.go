// Package burnin runs the test programs of vendors and of Linux on a server and reads, from what they print, what each
// device did: DCGM's diagnostics, gpu-burn, nvbandwidth, nccl-tests, RVS, stress-ng, fio.
//
// Invariants: a device passes by an explicit word of its own in output that could be read whole, never by an exit code;
// what is missing, skipped, cut off or late is no verdict at all; a program that is late is killed with everything it
// started; what was printed is kept with its hash. A measured figure passes only against a floor of its model (floors.yaml),
// each of which has a source and is held against the data sheet when it is loaded.
//
// Not here: which tests make a suite's outcome, counters, temperatures and links (worker/agent).
package burnin

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpupool/schema/agentproto"
)

// Test is one run of a program.
type Test struct {
	Tool    string            `yaml:"tool"`    // see Tools
	Seconds float64           `yaml:"seconds"` // under load
	Options map[string]string `yaml:"options"` // of the tool: DCGM's level, a size
}

// Findings are what a run showed.
type Findings struct {
	Passed   []agentproto.Device // each said so by itself
	Failed   []Failure
	Figures  map[string]float64 // "DEVICE/figure", or "figure" of the server
	Evidence agentproto.BurnInEvidence
}

// Failure is a device that failed. A zero Device is the server itself.
type Failure struct {
	Device agentproto.Device
	Text   string
}

// Unproven says that a run learnt nothing: the tool is missing, late, was cut off, or skipped what was asked.
type Unproven struct{ Text string }

func (e *Unproven) Error() string { return e.Text }

func unproven(format string, args ...any) error { return &Unproven{fmt.Sprintf(format, args...)} }

// Box runs tools. The zero Box finds them by PATH.
type Box struct {
	// Path gives a program's file; nil = exec.LookPath.
	Path func(name string) (string, error)
	// Scratch is a folder that fio writes in; empty = /var/tmp.
	Scratch string
	// Grace is between the word to stop and the kill; 0 = 5 s.
	Grace time.Duration
}

// order is a test as a tool sees it.
type order struct {
	Test
	model   string
	devices []agentproto.Device
	scratch string
}

func (o order) option(name, otherwise string) string {
	if v := o.Options[name]; v != "" {
		return v
	}
	return otherwise
}

// tool is one program: how it is started, how long beyond its load it may take, and what its output says.
type tool struct {
	program string
	version []string // asked for its version by these arguments; nil = it has none
	args    func(order) []string
	spare   time.Duration
	read    func(o order, out []byte, code int) (Findings, error)
	host    bool // it tests the server and not its devices
}

var tools = map[string]tool{
	"dcgm": dcgm, "gpu-burn": gpuBurn, "nvbandwidth": nvbandwidth, "nccl": nccl, "rccl": rccl, "rvs": rvs,
	"stress-ng-cpu": stressCPU, "stress-ng-memory": stressMemory, "fio": fio,
}

// Tools are the names that Test.Tool may have.
func Tools() []string { return slices.Sorted(maps.Keys(tools)) }

// IsHost reports whether a tool tests the server as a whole.
func IsHost(name string) bool { return tools[name].host }

// Run runs a test on all devices at once. Its error is an *Unproven, or ctx's; findings that come with it hold the evidence.
func (b *Box) Run(ctx context.Context, t Test, model string, devices []agentproto.Device) (Findings, error) {
	k, ok := tools[t.Tool]
	if !ok {
		return Findings{}, unproven("there is no tool %q; there are %s", t.Tool, strings.Join(Tools(), ", "))
	}
	path := b.Path
	if path == nil {
		path = exec.LookPath
	}
	file, err := path(k.program)
	if err != nil {
		return Findings{}, unproven("%s is not installed", k.program)
	}
	o := order{Test: t, model: model, devices: devices, scratch: b.Scratch}
	if o.scratch == "" {
		o.scratch = "/var/tmp"
	}
	limit := time.Duration(2*t.Seconds*float64(time.Second)) + k.spare
	args := k.args(o)
	r := run(ctx, limit, b.grace(), file, args...)
	if ctx.Err() != nil {
		return Findings{}, ctx.Err()
	}
	e := evidence(k, file, args, r)
	if k.version != nil {
		v := run(ctx, 10*time.Second, b.grace(), file, k.version...)
		e.Version = firstLine(v.out)
	}
	if r.late {
		return Findings{Evidence: e}, unproven("%s did not end within %s and was killed with all that it had started", k.program, limit)
	}
	if r.code < 0 {
		return Findings{Evidence: e}, unproven("%s: %v", k.program, r.err)
	}
	f, err := k.read(o, r.out, r.code)
	f.Evidence = e
	return f, err
}

func (b *Box) grace() time.Duration {
	if b.Grace > 0 {
		return b.Grace
	}
	return 5 * time.Second
}

// maxKept is what is kept of a program's output as evidence: its end says most. The hash is over all of it.
const maxKept = 16 << 10

func evidence(k tool, file string, args []string, r result) agentproto.BurnInEvidence {
	h := sha256.Sum256(r.out)
	e := agentproto.BurnInEvidence{Command: strings.Join(append([]string{file}, args...), " "), ExitCode: r.code, SHA256: hex.EncodeToString(h[:]), Bytes: len(r.out), Output: string(r.out)}
	if len(r.out) > maxKept {
		e.Output = string(r.out[len(r.out)-maxKept:])
	}
	e.Output = strings.ToValidUTF8(strings.ReplaceAll(e.Output, "\x00", ""), "�")
	return e
}

func firstLine(b []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	if len(line) > 100 {
		line = line[:100]
	}
	return strings.ToValidUTF8(line, "�")
}

// byIndex finds the device that a tool numbers so.
func (o order) byIndex(i int) (agentproto.Device, bool) {
	k := slices.IndexFunc(o.devices, func(d agentproto.Device) bool { return d.Index == i })
	if k < 0 {
		return agentproto.Device{}, false
	}
	return o.devices[k], true
}

// settle makes findings of each device's own words: one that said nothing leaves the run unproven, whatever the others said.
func (o order) settle(name string, said map[int][]error) (Findings, error) {
	var f Findings
	var silent []string
	for _, d := range o.devices {
		words := said[d.Index]
		if len(words) == 0 {
			silent = append(silent, nameOf(d))
			continue
		}
		var bad []string
		for _, w := range words {
			var u *Unproven
			switch {
			case w == nil:
			case errors.As(w, &u):
				silent = append(silent, nameOf(d)+" ("+u.Text+")")
			default:
				bad = append(bad, w.Error())
			}
		}
		if len(bad) > 0 {
			f.Failed = append(f.Failed, Failure{Device: d, Text: strings.Join(bad, "; ")})
		} else if !slices.ContainsFunc(words, func(w error) bool { return w != nil }) {
			f.Passed = append(f.Passed, d)
		}
	}
	if len(silent) > 0 && len(f.Failed) == 0 {
		return f, unproven("%s says nothing clear of %s", name, strings.Join(silent, ", "))
	}
	return f, nil
}

func nameOf(d agentproto.Device) string {
	switch {
	case d.Slot != "":
		return d.Slot
	case d.Serial != "":
		return d.Serial
	}
	return "device " + strconv.Itoa(d.Index)
}

func (o order) seconds() string { return strconv.Itoa(max(1, int(o.Seconds))) }

// floor holds a measured figure against the model's floor. Without one there is no verdict.
func (o order) floor(metric string, value float64) error {
	fl, ok := Floors.of(o.model, metric)
	if !ok {
		return unproven("there is no floor of %s for %s", metric, o.model)
	}
	if value < fl.Min {
		return fmt.Errorf("%s is %.4g %s, the floor is %.4g (%s)", metric, value, fl.Unit, fl.Min, fl.Source)
	}
	return nil
}
