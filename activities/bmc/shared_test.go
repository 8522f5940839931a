package bmc_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"gpupool/activities/bmc"
	"gpupool/activities/bmc/watch"
	lab "gpupool/deploy/lab/bmc"
)

// enclosure is one BMC of n servers with the serials NODE-1, NODE-2, ...
func enclosure(t *testing.T, of string, n int, opts ...lab.Option) *lab.Enclosure {
	t.Helper()
	var ids []lab.Identity
	for i := range n {
		ids = append(ids, lab.Identity{Serial: fmt.Sprintf("NODE-%d", i+1), UUID: fmt.Sprintf("00000000-0000-0000-0000-%012d", i+1), MACs: []string{fmt.Sprintf("52:54:00:00:00:%02x", i+1)}})
	}
	e, err := lab.NewEnclosure(profile(t, of), ids, nil, opts...)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// Several servers behind one BMC: each is told by its system's id, or by its serial, and every verb of one leaves the others as
// they were. All share one session.
func TestAVerbNeverReachesTheNeighbourBehindTheSameBMC(t *testing.T) {
	t.Parallel()
	for _, of := range lab.ProfileNames() {
		t.Run(of, func(t *testing.T) {
			t.Parallel()
			const nodes = 3
			e := enclosure(t, of, nodes, lab.WithQuirks(func(q *lab.Quirks) { q.MaxSessions = 1 }))
			p := pool(t, bmc.Config{Rate: 1e6, Burst: 1000})
			for i := range nodes {
				for _, by := range []string{"id", "serial"} {
					ep := bmc.Endpoint{Address: e.URL(), Credential: bmc.Static(e.Credential()), Serial: fmt.Sprintf("NODE-%d", i+1)}
					if by == "id" {
						ep.SystemID = fmt.Sprintf("Node%d", i+1)
					}
					c, err := p.Client(ep)
					if err != nil {
						t.Fatal(err)
					}
					id, err := c.Identify(t.Context())
					if err != nil || id.Serial != ep.Serial || !strings.HasSuffix(id.SystemID, fmt.Sprintf("/Node%d", i+1)) {
						t.Fatalf("node %d by %s is %s %s: %v", i+1, by, id.SystemID, id.Serial, err)
					}
					e.ClearRequests()
					if _, err := c.BootOnceFromNetwork(t.Context(), bmc.PXE); err != nil {
						t.Fatal(err)
					}
					for _, want := range []bmc.Want{bmc.Off, bmc.On, bmc.Cycle, bmc.Off} {
						if err := c.SetPower(t.Context(), want, bmc.Hard()); err != nil {
							t.Fatalf("node %d by %s: %v", i+1, by, err)
						}
						for j := range nodes {
							if on := e.Node(j).PowerOn(); on != (j != i || want != bmc.Off) {
								t.Fatalf("after %s of node %d the power of node %d is %v", want, i+1, j+1, on)
							}
						}
					}
					for _, f := range []func() error{
						func() error { return c.SetPower(t.Context(), bmc.On) },
						func() error { return c.ClearBootOverride(t.Context()) },
						func() error { return c.LocateLED(t.Context(), true) },
						func() error { return c.LocateLED(t.Context(), false) },
						func() error { return c.InsertMedia(t.Context(), "http://192.0.2.1/x.iso") },
						func() error { return c.SetPower(t.Context(), bmc.ACCycle) },
						func() error { return c.SetPower(t.Context(), bmc.On) },
					} {
						if err := f(); err != nil && !errors.Is(err, bmc.ErrUnsupported) {
							t.Fatal(err)
						}
					}
					mine := fmt.Sprintf("/Node%d", i+1)
					for _, r := range sent(e.Server) {
						if !strings.Contains(r, mine) {
							t.Errorf("node %d: %s", i+1, r)
						}
					}
				}
			}
			if e.OpenSessions() != 1 {
				t.Errorf("%d sessions", e.OpenSessions())
			}
		})
	}
}

// A blade that was moved, or that is gone from the list, is not the one that is there now: nothing is sent to that.
func TestASystemThatShowsAnotherSerialIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, ep := range map[string]bmc.Endpoint{
		"moved to another slot":                         {SystemID: "Node1", Serial: "NODE-2"},
		"gone, and the neighbour is all that is left":   {Serial: "NODE-7"},
		"the address is another machine's, known by id": {SystemID: "Node1", Serial: "NODE-7"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := 1
			if ep.Serial == "NODE-2" {
				n = 2
			}
			e := enclosure(t, lab.Dell, n)
			ep.Address, ep.Credential = e.URL(), bmc.Static(e.Credential())
			c, err := pool(t, bmc.Config{}).Client(ep)
			if err != nil {
				t.Fatal(err)
			}
			_, vitals := c.Vitals(t.Context())
			_, boot := c.BootOnceFromNetwork(t.Context(), bmc.PXE)
			_, bios := c.SetBIOS(t.Context(), map[string]any{"AcPwrRcvry": "On"})
			for what, err := range map[string]error{"vitals": vitals, "boot": boot, "bios": bios, "off": c.SetPower(t.Context(), bmc.Off), "cycle": c.SetPower(t.Context(), bmc.Cycle, bmc.Hard()),
				"ac-cycle": c.SetPower(t.Context(), bmc.ACCycle), "light": c.LocateLED(t.Context(), true), "media": c.InsertMedia(t.Context(), "http://192.0.2.1/x.iso")} {
				if !errors.Is(err, bmc.ErrForeign) && !errors.Is(err, bmc.ErrUnsupported) || what != "ac-cycle" && errors.Is(err, bmc.ErrUnsupported) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if got := sent(e.Server); len(got) != 0 || !e.PowerOn() {
				t.Fatalf("sent %v, power %v", got, e.PowerOn())
			}
			if id, err := c.Identify(t.Context()); err != nil || id.Serial == ep.Serial {
				t.Fatalf("who it is can still be asked: %s, %v", id.Serial, err)
			}
		})
	}
}

// The machine is changed behind the address while a verb is under way: the next request that would change something is not sent.
func TestASerialThatChangesInTheMiddleStopsTheVerb(t *testing.T) {
	t.Parallel()
	e := enclosure(t, lab.Dell, 2)
	c, err := pool(t, bmc.Config{}).Client(bmc.Endpoint{Address: e.URL(), Credential: bmc.Static(e.Credential()), SystemID: "Node1", Serial: "NODE-1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetPower(t.Context(), bmc.On); err != nil {
		t.Fatal(err)
	}
	if err := e.Patch("/redfish/v1/Systems/Node1", lab.Doc{"SerialNumber": "NODE-9", "SKU": "NODE-9"}); err != nil {
		t.Fatal(err)
	}
	if err := c.SetPower(t.Context(), bmc.Off, bmc.Hard()); !errors.Is(err, bmc.ErrForeign) {
		t.Fatal(err)
	}
	if got := sent(e.Server); len(got) != 0 {
		t.Fatalf("sent %v", got)
	}
}

// The watch sees each of a BMC's servers as itself: what fails in one is told of it alone, and they listen to the BMC's events once.
func TestTheWatchTellsServersOfOneBMCApart(t *testing.T) {
	t.Parallel()
	const nodes = 4
	e := enclosure(t, lab.Dell, nodes)
	e.Node(1).MachineOff()
	if _, err := e.Node(2).SetUnit(lab.PSU, "", "Critical"); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	power, failed, reads := map[string]bmc.PowerState{}, map[string]int{}, map[string]int{}
	var targets []watch.Target
	for i := range nodes {
		targets = append(targets, watch.Target{Server: fmt.Sprint(i), Endpoint: bmc.Endpoint{Address: e.URL(), Credential: bmc.Static(e.Credential()), SystemID: fmt.Sprintf("Node%d", i+1), Serial: fmt.Sprintf("NODE-%d", i+1)}})
	}
	w := watch.New(pool(t, bmc.Config{Rate: 1e6, Burst: 1000}), watch.Config{Interval: 100 * time.Millisecond, Deep: 1, Events: true, Log: testLog(t), Sink: func(_ context.Context, s watch.Snapshot, _ []watch.Sign, _ []byte) error {
		mu.Lock()
		defer mu.Unlock()
		if s.Err != nil || s.Plant == nil {
			t.Errorf("%s: %v", s.Server, s.Err)
			return nil
		}
		power[s.Server], reads[s.Server], failed[s.Server] = s.Vitals.Power, reads[s.Server]+1, 0
		for _, u := range s.Plant.Units {
			if u.Failed() {
				failed[s.Server]++
			}
		}
		return nil
	}})
	w.Set(targets)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	eventually(t, "each was read three times", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for i := range nodes {
			if reads[fmt.Sprint(i)] < 3 {
				return false
			}
		}
		return true
	})
	if n := e.Hearers(); n > 1 {
		t.Errorf("%d listen to one BMC", n)
	}
	cancel()
	<-done
	for i := range nodes {
		s := fmt.Sprint(i)
		if (power[s] == bmc.PowerOff) != (i == 1) || (failed[s] == 1) != (i == 2) {
			t.Errorf("node %d: power %s, %d failed units", i+1, power[s], failed[s])
		}
	}
}
