package bmc_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"gpupool/activities/bmc"
	lab "gpupool/deploy/lab/bmc"
)

// An AC cycle takes the machine's own way where it shows one, after the power is off, and is proven by the BMC's restart.
func TestAnACCycleTakesTheMachinesOwnWayAndIsProven(t *testing.T) {
	t.Parallel()
	ways := map[string]string{lab.HPE: "AuxCycle", lab.Lenovo: "ACPowerCycle", lab.GB200: "AuxPowerCycle", lab.Dell: "FullPowerCycle"}
	for _, name := range lab.ProfileNames() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			offs := make(chan bool, 4)
			s := serve(t, profile(t, name), lab.Hooks{PowerOff: func(g bool) { offs <- g }}, lab.WithQuirks(func(q *lab.Quirks) { q.BMCResetTime = 30 * time.Millisecond }))
			c := dial(t, s)
			err := c.SetPower(t.Context(), bmc.ACCycle)
			if ways[name] == "" {
				if !errors.Is(err, bmc.ErrUnsupported) || len(sent(s)) != 0 || !s.PowerOn() {
					t.Fatalf("%v; sent %v", err, sent(s))
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !s.PowerOn() || !<-offs {
				t.Fatal("the machine is off, or its OS was not asked first")
			}
			got := strings.Join(sent(s), "\n")
			if strings.Count(got, `"`+ways[name]+`"`) != 1 || strings.Index(got, "GracefulShutdown") > strings.Index(got, ways[name]) {
				t.Fatalf("sent %s", got)
			}
			if n := s.ACCycles(); n != 1 {
				t.Fatalf("%d losses of power", n)
			}
		})
	}
}

func TestAnACCycleWithoutEffectIsNotProven(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.HPE), lab.Hooks{})
	s.AddFault(lab.Fault{Method: "POST", Path: "/redfish/v1/Systems/1/Actions/Oem/**", Status: 200})
	short := quick
	short.TaskLost = 100 * time.Millisecond
	if err := dial(t, s, bmc.WithTiming(short)).SetPower(t.Context(), bmc.ACCycle); !errors.Is(err, bmc.ErrNotProven) {
		t.Fatalf("error %v", err)
	}
}

// A chassis's action cuts off everything in it: where a BMC serves several servers it is not taken for one of them.
func TestAnACCycleOfOneOfSeveralServersLeavesTheChassisAlone(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.GB200), lab.Hooks{})
	user, password := s.Credential()
	c, err := bmc.Dial(t.Context(), bmc.Endpoint{Address: s.URL(), SystemID: "System_0", Credential: bmc.Static(user, password)}, bmc.WithTiming(quick))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.SetPower(t.Context(), bmc.ACCycle), c.Close(t.Context())); !errors.Is(err, bmc.ErrUnsupported) || s.ACCycles() != 0 {
		t.Fatalf("%v, %d cycles", err, s.ACCycles())
	}
}
