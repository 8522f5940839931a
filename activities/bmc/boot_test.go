package bmc_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"gpupool/activities/bmc"
	lab "gpupool/deploy/lab/bmc"
)

// Case 3: Supermicro takes the triple, shows Pxe as UefiBootNext, and its mode may fall back.
func TestSupermicroGetsTheTripleAndItsAliasIsAccepted(t *testing.T) {
	t.Parallel()
	for name, p := range map[string]func() lab.Profile{
		"built in": func() lab.Profile { return profile(t, lab.SupermicroHGX) },
		"captured": func() lab.Profile { return captured(t, "supermicro") },
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, p(), lab.Hooks{})
			c := dial(t, s)
			id, err := c.Identify(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if id.Make != bmc.MakeSupermicro {
				t.Fatalf("make %s, though the service root's vendor is null", id.Make)
			}
			got, err := c.BootOnceFromNetwork(t.Context(), bmc.PXE)
			if err != nil {
				t.Fatal(err)
			}
			if got.Target != "UefiBootNext" || got.Mode != "UEFI" || !got.Changed {
				t.Fatalf("setting %+v", got)
			}
			if got, err = c.BootOnceFromNetwork(t.Context(), bmc.PXE); err != nil || got.Changed {
				t.Fatalf("second time %+v, %v; want nothing sent", got, err)
			}
			want := []string{`PATCH /redfish/v1/Systems/1 {"Boot":{"BootSourceOverrideEnabled":"Once","BootSourceOverrideMode":"UEFI","BootSourceOverrideTarget":"Pxe"}} 204`}
			if seen := sent(s); len(seen) != 1 || seen[0] != want[0] {
				t.Fatalf("sent %q, want %q", seen, want)
			}
			if b := s.BootOverride(); b.Target != "Pxe" || !b.Once {
				t.Fatalf("the machine would boot %+v", b)
			}
			if bad := refusals(s); bad != nil {
				t.Fatalf("refused: %v", bad)
			}
		})
	}
}

func TestABootModeThatRevertsIsPutRightOnceAndThenRefusedWithoutPoweringOn(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.SupermicroHGX), lab.Hooks{}, lab.WithPower(false), lab.WithQuirks(func(q *lab.Quirks) { q.ModeAlwaysReverts = true }))
	c := dial(t, s)
	_, err := c.BootOnceFromNetwork(t.Context(), bmc.PXE)
	if !errors.Is(err, bmc.ErrModeReverted) || !strings.Contains(err.Error(), "boot-mode-reverted") {
		t.Fatalf("error %v, want boot-mode-reverted", err)
	}
	if n := len(sent(s)); n != 2 {
		t.Fatalf("%d requests sent, want the first and one more: %v", n, sent(s))
	}
	if s.PowerOn() {
		t.Fatal("powered on")
	}
}

func TestClearingTheOverrideLeavesTheModeAlone(t *testing.T) {
	t.Parallel()
	for _, name := range lab.ProfileNames() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, profile(t, name), lab.Hooks{})
			c := dial(t, s)
			if _, err := c.BootOnceFromNetwork(t.Context(), bmc.PXE); err != nil {
				t.Fatal(err)
			}
			if err := c.ClearBootOverride(t.Context()); err != nil {
				t.Fatal(err)
			}
			if b := s.BootOverride(); b.Target != "None" || b.Mode == "Legacy" {
				t.Fatalf("left %+v", b)
			}
			if err := c.ClearBootOverride(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := len(sent(s)); n != 2 {
				t.Fatalf("%d requests, want a set and a clear: %v", n, sent(s))
			}
			if bad := refusals(s); bad != nil {
				t.Fatalf("refused: %v", bad)
			}
		})
	}
}

func TestLenovoRefusesHTTPBootByNameBeforeAnyRequest(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.Lenovo), lab.Hooks{})
	_, err := dial(t, s).BootOnceFromNetwork(t.Context(), bmc.UEFIHTTP)
	if !errors.Is(err, bmc.ErrUnsupported) || !strings.Contains(err.Error(), "it takes None, Pxe") {
		t.Fatalf("error %v, want what it takes", err)
	}
	if seen := sent(s); seen != nil {
		t.Fatalf("sent %v", seen)
	}
}

func TestAnOverrideThatIsNotKeptIsNotProven(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.Dell), lab.Hooks{}, lab.WithQuirks(func(q *lab.Quirks) { q.IgnoreOverride = true }))
	_, err := dial(t, s).BootOnceFromNetwork(t.Context(), bmc.PXE)
	if !errors.Is(err, bmc.ErrNotProven) || !strings.Contains(err.Error(), "it shows Disabled None UEFI") {
		t.Fatalf("error %v", err)
	}
}

// Case 11, first half: a boot setting during POST waits for its end.
func TestABootSettingDuringPOSTIsWaitedOut(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.HPE), lab.Hooks{}, lab.WithPower(false), lab.WithQuirks(func(q *lab.Quirks) { q.POSTWindow = 150 * time.Millisecond }))
	c := dial(t, s)
	if err := c.SetPower(t.Context(), bmc.On); err != nil {
		t.Fatal(err)
	}
	if _, err := c.BootOnceFromNetwork(t.Context(), bmc.PXE); err != nil {
		t.Fatal(err)
	}
	if b := s.BootOverride(); b.Target != "Pxe" {
		t.Fatalf("override %+v", b)
	}
}

func TestEveryTagMannerIsMet(t *testing.T) {
	t.Parallel()
	for _, manner := range []lab.IfMatch{lab.IfMatchOptional, lab.IfMatchRequired, lab.IfMatchStrong, lab.IfMatchRefused, lab.IfMatchAny} {
		t.Run("if-match "+string(manner), func(t *testing.T) {
			t.Parallel()
			s := serve(t, profile(t, lab.HPE), lab.Hooks{}, lab.WithQuirks(func(q *lab.Quirks) { q.IfMatch = manner }))
			if _, err := dial(t, s).BootOnceFromNetwork(t.Context(), bmc.PXE); err != nil {
				t.Fatal(err)
			}
			if b := s.BootOverride(); b.Target != "Pxe" {
				t.Fatalf("override %+v", b)
			}
		})
	}
}

func TestASystemWithoutAnOverrideSaysSoBeforeAnyRequest(t *testing.T) {
	t.Parallel()
	for _, boot := range []any{nil, "none"} {
		s := serve(t, profile(t, lab.Dell), lab.Hooks{})
		s.AddFault(lab.Fault{Path: s.SystemPath(), Merge: lab.Doc{"Boot": boot}})
		if _, err := dial(t, s).BootOnceFromNetwork(t.Context(), bmc.PXE); !errors.Is(err, bmc.ErrUnsupported) {
			t.Fatalf("boot %v: %v", boot, err)
		}
		if seen := sent(s); seen != nil {
			t.Fatalf("sent %v", seen)
		}
	}
}
