package bmc_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"gpupool/activities/bmc"
	lab "gpupool/deploy/lab/bmc"
)

func TestPowerIsBroughtThereAndProvenOnEveryMachine(t *testing.T) {
	t.Parallel()
	for _, name := range lab.ProfileNames() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			offs := make(chan bool, 4)
			s := serve(t, profile(t, name), lab.Hooks{PowerOff: func(g bool) { offs <- g }}, lab.WithQuirks(func(q *lab.Quirks) {
				q.PowerOffDelay, q.PowerOnDelay = 15*time.Millisecond, 15*time.Millisecond
			}))
			c := dial(t, s)
			for _, step := range []struct {
				want bmc.Want
				on   bool
			}{{bmc.On, true}, {bmc.Off, false}, {bmc.Off, false}, {bmc.On, true}, {bmc.Cycle, true}} {
				if err := c.SetPower(t.Context(), step.want); err != nil {
					t.Fatal(err)
				}
				if s.PowerOn() != step.on {
					t.Fatalf("after %s the power is %v", step.want, s.PowerOn())
				}
			}
			if first, second := <-offs, <-offs; !first || !second {
				t.Fatal("the OS was not asked first")
			}
			if bad := refusals(s); bad != nil {
				t.Fatalf("refused: %v", bad)
			}
		})
	}
}

func TestAnOSThatDoesNotShutDownLosesItsPower(t *testing.T) {
	t.Parallel()
	offs := make(chan bool, 1)
	s := serve(t, profile(t, lab.DGXH100), lab.Hooks{PowerOff: func(g bool) { offs <- g }}, lab.WithQuirks(func(q *lab.Quirks) { q.IgnoresShutdown = true }))
	if err := dial(t, s).SetPower(t.Context(), bmc.Off); err != nil {
		t.Fatal(err)
	}
	if graceful := <-offs; graceful {
		t.Fatal("it went gracefully")
	}
	got := strings.Join(sent(s), "\n")
	if !strings.Contains(got, "GracefulShutdown") || !strings.Contains(got, "ForceOff") {
		t.Fatalf("sent %s", got)
	}
}

// Case 11: an On that comes too early is lost and has to be said again.
func TestAnOnThatIsLostIsSentAgain(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.Dell), lab.Hooks{}, lab.WithQuirks(func(q *lab.Quirks) { q.OnIgnoredAfterOff = 150 * time.Millisecond }))
	c := dial(t, s)
	if err := c.SetPower(t.Context(), bmc.Cycle, bmc.Hard()); err != nil {
		t.Fatal(err)
	}
	if !s.PowerOn() {
		t.Fatal("off")
	}
}

// Case 11: another hand was faster, and the BMC refuses what is so already.
func TestAlreadySoIsSuccessAfterAReadBack(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 409} {
		s := serve(t, profile(t, lab.Dell), lab.Hooks{}, lab.WithQuirks(func(q *lab.Quirks) { q.AlreadyStatus = status }))
		c := dial(t, s)
		// The first read shows On though the machine is off.
		s.MachineOff()
		s.AddFault(lab.Fault{Method: "GET", Path: s.SystemPath(), Merge: lab.Doc{"PowerState": "On"}, Count: 2})
		if err := c.SetPower(t.Context(), bmc.Off, bmc.Hard()); err != nil {
			t.Fatalf("status %d: %v", status, err)
		}
	}
}

// A BMC that hangs up on a reset has done it, or not: the power tells, and each way ends as it was wished.
func TestAResetWhoseAnswerIsLostIsJudgedByThePower(t *testing.T) {
	t.Parallel()
	for _, done := range []bool{true, false} {
		for _, want := range []bmc.Want{bmc.Off, bmc.Cycle} {
			s := serve(t, profile(t, lab.Dell), lab.Hooks{})
			s.AddFault(lab.Fault{Method: "POST", Path: "/redfish/v1/Systems/*/Actions/**", Drop: true, AfterApply: done, Count: 1})
			if err := dial(t, s).SetPower(t.Context(), want); err != nil {
				t.Fatalf("%s, done %v: %v", want, done, err)
			}
			if s.PowerOn() != (want == bmc.Cycle) {
				t.Errorf("%s, done %v: power on %v", want, done, s.PowerOn())
			}
			resets := 0
			for _, x := range sent(s) {
				if strings.Contains(x, "GracefulShutdown") {
					resets++
				}
			}
			if resets != 1 {
				t.Errorf("%s, done %v: the system was asked to shut down %d times", want, done, resets)
			}
		}
	}
}

func TestAMachineThatStaysOffIsNotProvenInBoundedTime(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.Dell), lab.Hooks{}, lab.WithPower(false), lab.WithQuirks(func(q *lab.Quirks) { q.OnIgnoredAfterOff = time.Hour }))
	s.MachineOff()
	slow := quick
	slow.PowerChange = 200 * time.Millisecond
	err := dial(t, s, bmc.WithTiming(slow)).SetPower(t.Context(), bmc.On)
	if !errors.Is(err, bmc.ErrNotProven) || !strings.Contains(err.Error(), "still off") {
		t.Fatalf("error %v", err)
	}
}

func TestTheLightIsSetAndReadBackOnEveryMachine(t *testing.T) {
	t.Parallel()
	for _, name := range lab.ProfileNames() {
		lit := make(chan bool, 4)
		s := serve(t, profile(t, name), lab.Hooks{Locate: func(on bool) { lit <- on }})
		c := dial(t, s)
		for _, on := range []bool{true, true, false} {
			if err := c.LocateLED(t.Context(), on); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if !<-lit || <-lit {
			t.Fatalf("%s: the light was not lit and then put out", name)
		}
	}
}

// A BMC that lists PowerCycle and no ForceOff: the system is asked first, and the cycle is sent once.
func TestAMachineWithoutForceOffIsCycledByPowerCycle(t *testing.T) {
	t.Parallel()
	without := func(t *testing.T, q func(*lab.Quirks)) (*lab.Server, *bmc.Client) {
		t.Helper()
		s := serve(t, profile(t, lab.Dell), lab.Hooks{}, lab.WithQuirks(q))
		if err := s.Patch("/redfish/v1/Systems/System.Embedded.1", lab.Doc{"Actions": lab.Doc{"#ComputerSystem.Reset": lab.Doc{"ResetType@Redfish.AllowableValues": []any{"On", "GracefulShutdown", "PowerCycle"}}}}); err != nil {
			t.Fatal(err)
		}
		c := dial(t, s)
		if err := c.SetPower(t.Context(), bmc.On); err != nil {
			t.Fatal(err)
		}
		s.ClearRequests()
		return s, c
	}
	for name, try := range map[string]struct {
		hangs bool
		opts  []bmc.PowerOption
		want  string
	}{
		"the system goes":        {false, nil, "GracefulShutdown On"},
		"the system hangs":       {true, nil, "GracefulShutdown PowerCycle"},
		"the system isn't asked": {false, []bmc.PowerOption{bmc.Hard()}, "PowerCycle"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := without(t, func(q *lab.Quirks) {
				q.IgnoresShutdown, q.PowerOffDelay, q.PowerOnDelay = try.hangs, 15*time.Millisecond, 30*time.Millisecond
			})
			if err := c.SetPower(t.Context(), bmc.Cycle, try.opts...); err != nil {
				t.Fatal(err)
			}
			var types []string
			for _, r := range sent(s) {
				if _, kind, ok := strings.Cut(r, `"ResetType":"`); ok {
					kind, _, _ = strings.Cut(kind, `"`)
					types = append(types, kind)
				}
			}
			if got := strings.Join(types, " "); got != try.want || !s.PowerOn() {
				t.Fatalf("sent %q, want %q; power %v", got, try.want, s.PowerOn())
			}
			if bad := refusals(s); bad != nil {
				t.Fatalf("refused: %v", bad)
			}
		})
	}
	t.Run("one that only says yes is not believed", func(t *testing.T) {
		t.Parallel()
		s, c := without(t, func(*lab.Quirks) {})
		s.AddFault(lab.Fault{Method: "POST", Path: "/redfish/v1/Systems/*/Actions/**", Status: 204})
		if err := c.SetPower(t.Context(), bmc.Cycle, bmc.Hard()); !errors.Is(err, bmc.ErrNotProven) {
			t.Fatalf("%v, want not proven", err)
		}
	})
	t.Run("off is the system's to do", func(t *testing.T) {
		t.Parallel()
		s, c := without(t, func(*lab.Quirks) {})
		if err := c.SetPower(t.Context(), bmc.Off, bmc.Hard()); err != nil || s.PowerOn() {
			t.Fatalf("%v, power %v", err, s.PowerOn())
		}
	})
}
