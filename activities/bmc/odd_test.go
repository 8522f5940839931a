package bmc_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpupool/activities/bmc"
	lab "gpupool/deploy/lab/bmc"
	"gpupool/schema"
)

// oddTree shows another tree as firmware that nobody has seen would: other names of the system, its chassis and manager,
// properties that are missing, null or of another type, no entity tags, no allowable values, systems that are none of ours.
// The same seed gives the same tree.
type oddTree struct {
	lab.Tree
	seed   uint64
	spoil  float64 // share of the resources that have something wrong with them
	keep   map[string]bool
	rename *strings.Replacer
	back   *strings.Replacer
	noTags bool
	noList bool // no allowable values
	extra  map[string]lab.Doc
}

// strange are values that a property may have instead of its own.
var strange = []any{nil, "", "N/A", 7.0, -1.0, true, []any{}, []any{nil, 7.0, "x"}, map[string]any{}, map[string]any{"@odata.id": "/redfish/v1/Nowhere"}, map[string]any{"@odata.id": 7.0}, "/redfish/v1/Nowhere"}

func (t *oddTree) rng(path string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(path))
	return rand.New(rand.NewPCG(t.seed, h.Sum64()))
}

func (t *oddTree) Paths() []string {
	var out []string
	for _, p := range t.Tree.Paths() {
		out = append(out, t.rename.Replace(p + "/")[:len(t.rename.Replace(p+"/"))-1])
	}
	for p := range t.extra {
		out = append(out, p)
	}
	return out
}

func (t *oddTree) Read(path string) ([]byte, bool) {
	if d, ok := t.extra[path]; ok {
		b, err := json.Marshal(d)
		return b, err == nil
	}
	orig := strings.TrimSuffix(t.back.Replace(path+"/"), "/")
	b, ok := t.Tree.Read(orig)
	if !ok {
		return nil, false
	}
	var d map[string]any
	if json.Unmarshal(b, &d) != nil {
		return b, true
	}
	d = t.odd(d).(map[string]any)
	if list, isList := d["Members"].([]any); isList && path == "/redfish/v1/Systems" {
		for p := range t.extra {
			if strings.Count(p, "/") == 4 {
				list = append(list, map[string]any{"@odata.id": p})
			}
		}
		d["Members"] = list
	}
	rng := t.rng(path)
	if !t.keep[path] && rng.Float64() < t.spoil {
		t.spoilOne(d, rng)
	}
	b, err := json.Marshal(d)
	return b, err == nil
}

// odd renames and drops throughout.
func (t *oddTree) odd(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if t.noTags && k == "@odata.etag" || t.noList && strings.HasSuffix(k, "@Redfish.AllowableValues") {
				delete(v, k)
				continue
			}
			v[k] = t.odd(x)
		}
	case []any:
		for i, x := range v {
			v[i] = t.odd(x)
		}
	case string:
		if strings.HasPrefix(v, "/redfish/") {
			return strings.TrimSuffix(t.rename.Replace(v+"/"), "/")
		}
	}
	return v
}

// spoilOne takes a few properties away, or puts something strange in their place, at any depth.
func (t *oddTree) spoilOne(d map[string]any, rng *rand.Rand) {
	for range 1 + rng.IntN(3) {
		keys := slices.Sorted(func(yield func(string) bool) {
			for k := range d {
				if !yield(k) {
					return
				}
			}
		})
		if len(keys) == 0 {
			return
		}
		k := keys[rng.IntN(len(keys))]
		if k == "@odata.id" {
			continue
		}
		if in, ok := d[k].(map[string]any); ok && rng.IntN(2) == 0 {
			t.spoilOne(in, rng)
			continue
		}
		if rng.IntN(2) == 0 {
			delete(d, k)
		} else {
			d[k] = strange[rng.IntN(len(strange))]
		}
	}
}

// Trees of makes that nobody has seen: whatever is odd about them, nothing panics or hangs, nothing but the host is ever
// changed, and what is reported as done is done.
func TestOfOddTreesNothingPanicsAndOnlyTheHostIsEverChanged(t *testing.T) {
	t.Parallel()
	seeds := 6
	if s := os.Getenv("ODD_TREES"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		seeds = n
	}
	hasty := quick
	hasty.Graceful, hasty.PowerChange, hasty.PowerRetry, hasty.POSTWindow, hasty.ReadBack, hasty.TaskLost = 40*time.Millisecond, 400*time.Millisecond, 50*time.Millisecond, 200*time.Millisecond, 60*time.Millisecond, 200*time.Millisecond
	bases := map[string]lab.Profile{}
	for _, name := range lab.ProfileNames() {
		bases[name] = profile(t, name)
	}
	for _, name := range capturedNames {
		bases[name] = captured(t, name)
	}
	var done, refused int
	slot := make(chan struct{}, 2)
	for name, base := range bases {
		t.Run(name, func(t *testing.T) {
			slot <- struct{}{}
			defer func() { <-slot }()
			for seed := range seeds {
				d, r := driveOdd(t, name, base, uint64(seed), hasty)
				done, refused = done+d, refused+r
			}
		})
	}
	t.Logf("%d verbs were done, %d refused", done, refused)
	if done < len(bases)*seeds {
		t.Errorf("only %d verbs were done on %d trees: the trees are too odd to tell anything", done, len(bases)*seeds)
	}
}

func driveOdd(t *testing.T, name string, base lab.Profile, seed uint64, timing bmc.Timing) (done, refused int) {
	t.Helper()
	plain := lab.New(base, lab.Hooks{})
	was := plain.SystemPath()
	host := "/redfish/v1/Systems/Node.0-" + strconv.Itoa(int(seed))
	rng := rand.New(rand.NewPCG(seed, 1))
	tree := &oddTree{Tree: base.Tree, seed: seed, spoil: []float64{0, 0.05, 0.3}[seed%3], noTags: rng.IntN(3) == 0, noList: rng.IntN(3) == 0, keep: map[string]bool{}, extra: map[string]lab.Doc{}}
	tree.rename = strings.NewReplacer(was+"/", host+"/")
	tree.back = strings.NewReplacer(host+"/", was+"/")
	// Systems that are not the host: a baseboard, a container of the BMC's own, and one that is no system at all.
	for i, d := range []lab.Doc{
		{"SystemType": "Physical", "PowerState": "On", "Boot": lab.Doc{}},
		{"SystemType": "OS", "Name": "BMC", "Boot": lab.Doc{"BootSourceOverrideEnabled": "Disabled", "BootSourceOverrideTarget": "None"}},
		{"Actions": nil},
	}[:rng.IntN(4)] {
		p := fmt.Sprintf("/redfish/v1/Systems/Aux%d", i)
		d["@odata.id"], d["Id"] = p, fmt.Sprintf("Aux%d", i)
		tree.extra[p] = d
	}
	// With a second server behind the BMC nobody can say which one is meant.
	twin := seed%6 == 5
	if twin {
		p := "/redfish/v1/Systems/Twin"
		var d lab.Doc
		b, _ := base.Tree.Read(was)
		if err := json.Unmarshal(b, &d); err != nil {
			t.Fatal(err)
		}
		d["@odata.id"], d["Id"] = p, "Twin"
		d["Actions"] = lab.Doc{"#ComputerSystem.Reset": lab.Doc{"target": p + "/Actions/ComputerSystem.Reset"}}
		tree.extra[p] = d
		tree.keep[host] = true
	}
	p, err := lab.NewProfile(fmt.Sprintf("%s-odd-%d", name, seed), tree)
	if err != nil {
		return 0, 0 // it was spoilt so that no lab can tell which system is meant
	}
	if p.Quirks.LockoutThreshold, p.Quirks.PowerOffDelay = 2, time.Millisecond; rng.IntN(2) == 0 {
		p.Quirks.IfMatch = []lab.IfMatch{lab.IfMatchOptional, lab.IfMatchRequired, lab.IfMatchStrong, lab.IfMatchAny}[rng.IntN(4)]
	}
	opts := []lab.Option{lab.WithLogCap(100000)}
	if rng.IntN(2) == 0 {
		opts = append(opts, lab.WithMembersReversed())
	}
	s := lab.New(p, lab.Hooks{}, opts...)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	user, password := s.Credential()
	pool := bmc.NewPool(bmc.Config{Timing: timing, Rate: 1e6, Burst: 1000, Log: testLog(t)})
	c, err := pool.Client(bmc.Endpoint{Address: s.URL(), Credential: bmc.Static(user, password)})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	real := s.SystemPath()
	label := fmt.Sprintf("%s, seed %d", name, seed)
	did := func(verb string, err error, proof func() bool) {
		t.Helper()
		var e *bmc.Error
		switch {
		case err == nil && proof != nil && !proof():
			t.Errorf("%s: %s returned, and it isn't so", label, verb)
		case err == nil:
			done++
		case !errors.As(err, &e):
			t.Errorf("%s: %s: an error of no kind: %v", label, verb, err)
		default:
			refused++
		}
	}
	id, err := c.Identify(ctx)
	did("identify", err, nil)
	if err == nil {
		_, err = c.GPUMetrics(ctx, id)
		did("gpu metrics", err, nil)
	}
	_, err = c.BootOnceFromNetwork(ctx, bmc.PXE)
	did("boot", err, func() bool { return s.BootOverride().Network() || s.BootOverride().Target == "UefiBootNext" })
	did("off", c.SetPower(ctx, bmc.Off), func() bool { return !s.PowerOn() })
	did("on", c.SetPower(ctx, bmc.On), s.PowerOn)
	did("clear boot", c.ClearBootOverride(ctx), nil)
	did("light", c.LocateLED(ctx, true), nil)
	_, err = c.BootEntries(ctx)
	did("boot entries", err, nil)
	_, err = c.SetBIOS(ctx, map[string]any{"NoSuchAttribute": 1})
	if err == nil {
		t.Errorf("%s: an attribute that there is not was set", label)
	}
	_, err = c.Look(ctx)
	did("look", err, nil)
	_, err = c.Plant(ctx)
	did("power and cooling", err, nil)
	_ = c.Doctor(ctx, schema.Server{})
	if seed%4 == 0 { // the long reads
		_, err = c.Log(ctx, 10)
		did("log", err, nil)
		_, err = c.Sensors(ctx)
		did("sensors", err, nil)
		_, err = c.Firmware(ctx)
		did("firmware", err, nil)
		did("subscribe", c.Subscribe(ctx, "ours", keeps("https://192.0.2.1/x")), nil)
	}
	if err := pool.Close(ctx); err != nil {
		t.Errorf("%s: %v", label, err)
	}
	if n := s.OpenSessions(); n != 0 {
		t.Errorf("%s: %d sessions left", label, n)
	}
	for _, r := range s.Requests() {
		changes := r.Method == "PATCH" || r.Method == "POST" && !strings.Contains(r.Path, "/Sessions") && !strings.Contains(r.Path, "/Subscriptions")
		if !changes {
			continue
		}
		if strings.HasPrefix(r.Path, "/redfish/v1/Systems/") && !strings.HasPrefix(r.Path+"/", real+"/") {
			t.Errorf("%s: %s %s is about a system that is not the host %s", label, r.Method, r.Path, real)
		}
		if twin && strings.HasPrefix(r.Path, "/redfish/v1/Systems/") {
			t.Errorf("%s: %s %s, and nobody had said which of two servers is meant", label, r.Method, r.Path)
		}
	}
	if s.Locked() || s.FailedLogins() != 0 {
		t.Errorf("%s: %d refused logins", label, s.FailedLogins())
	}
	return done, refused
}
