package bmc_test

import (
	"slices"
	"testing"

	"gpupool/activities/bmc"
	lab "gpupool/deploy/lab/bmc"
)

// Each quirk names a machine that it was seen on; here is one that shows it, or the test is missing.
func TestEveryQuirkIsDetectedOnAMachineAndNamesItsSource(t *testing.T) {
	t.Parallel()
	machines := map[string]struct {
		profile string
		model   string
	}{
		"pxe-reads-back-as-boot-next":   {lab.SupermicroHGX, ""},
		"manager-reset-any-tag":         {lab.DGXH100, ""},
		"off-before-on":                 {lab.DGXH100, ""},
		"undeclared-uefi-http":          {lab.GB200, "GH200 144G HBM3e"},
		"stays-off-after-force-restart": {lab.Lenovo, ""},
	}
	for _, q := range bmc.Quirks {
		m, ok := machines[q.Name]
		if !ok || q.Why == "" || q.Source == "" {
			t.Errorf("quirk %s has no machine, reason or source", q.Name)
			continue
		}
		s := serve(t, profile(t, m.profile), lab.Hooks{}, lab.WithIdentity(lab.Identity{Model: m.model}))
		id, err := dial(t, s).Identify(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(id.Quirks, q.Name) {
			t.Errorf("%s: %s shows %v", q.Name, m.profile, id.Quirks)
		}
	}
}

func TestAGH200BootsOverHTTPThoughItDoesNotListIt(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.GB200), lab.Hooks{}, lab.WithIdentity(lab.Identity{Model: "GH200 144G HBM3e"}), lab.WithQuirks(func(q *lab.Quirks) { q.UndeclaredHTTP = true }))
	if _, err := dial(t, s).BootOnceFromNetwork(t.Context(), bmc.UEFIHTTP); err != nil {
		t.Fatal(err)
	}
	if b := s.BootOverride(); b.Target != "UefiHttp" {
		t.Fatalf("override %+v", b)
	}
}
