package bmc_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"gpupool/activities/bmc"
	lab "gpupool/deploy/lab/bmc"
)

// Case 2: a DGX H100 takes the override on its settings resource, under that resource's own tag, and has no PowerCycle. The
// whole of what is sent is one full triple, off, on, and the restart of the BMC with If-Match: *; the firmware refuses none of it,
// as served and with the collections' members reversed.
func TestADGXIsSetOnItsSettingsResourceAndCycledByOffAndOn(t *testing.T) {
	t.Parallel()
	const system, settings = "/redfish/v1/Systems/DGX", "/redfish/v1/Systems/DGX/SD"
	override := map[bmc.NetBoot]string{bmc.PXE: "Pxe", bmc.UEFIHTTP: "UefiHttp"}
	for name, tree := range map[string]func() lab.Profile{
		"built in": func() lab.Profile { return profile(t, lab.DGXH100) },
		"captured": func() lab.Profile { return captured(t, "nvidia_viking") },
	} {
		for method, target := range override {
			for _, hard := range []bool{false, true} {
				for _, reversed := range []bool{false, true} {
					p := tree()
					t.Run(strings.Join([]string{name, target, map[bool]string{false: "graceful", true: "hard"}[hard], map[bool]string{false: "as served", true: "reversed"}[reversed]}, " "), func(t *testing.T) {
						t.Parallel()
						boots := make(chan lab.Boot, 1)
						opts := []lab.Option{lab.WithQuirks(func(q *lab.Quirks) { q.BMCResetTime = 50 * time.Millisecond })}
						if reversed {
							opts = append(opts, lab.WithMembersReversed())
						}
						s := serve(t, p, lab.Hooks{PowerOn: func(b lab.Boot) { boots <- b }}, opts...)
						c := dial(t, s)
						got, err := c.BootOnceFromNetwork(t.Context(), method)
						if err != nil {
							t.Fatal(err)
						}
						if got.URI != settings || got.Enabled != "Once" || got.Mode != "UEFI" || got.Target != target {
							t.Fatalf("read back %+v", got)
						}
						var how []bmc.PowerOption
						off := "GracefulShutdown"
						if hard {
							how, off = append(how, bmc.Hard()), "ForceOff"
						}
						if err := c.SetPower(t.Context(), bmc.Cycle, how...); err != nil {
							t.Fatal(err)
						}
						if b := <-boots; b.Target != target || b.Mode != "UEFI" {
							t.Fatalf("booted %+v, want %s", b, target)
						}
						if err := c.ResetBMC(t.Context()); err != nil {
							t.Fatal(err)
						}
						if bad := refusals(s); bad != nil {
							t.Fatalf("refused: %v", bad)
						}
						reset := system + "/Actions/ComputerSystem.Reset"
						want := []string{
							`PATCH ` + settings + ` {"Boot":{"BootSourceOverrideEnabled":"Once","BootSourceOverrideMode":"UEFI","BootSourceOverrideTarget":"` + target + `"}} 204`,
							`POST ` + reset + ` {"ResetType":"` + off + `"} 204`, `POST ` + reset + ` {"ResetType":"On"} 204`,
						}
						seen := sent(s)
						if len(seen) != 4 || !slices.Equal(seen[:3], want) || !strings.Contains(seen[3], "/Actions/Manager.Reset ") {
							t.Fatalf("sent %q, want %q and the manager's reset", seen, want)
						}
						for _, r := range s.Requests() {
							switch {
							case r.Method == "PATCH" && (r.IfMatch == "" || r.IfMatch == "*"):
								t.Errorf("%s %s has the tag %q, want the settings resource's own", r.Method, r.Path, r.IfMatch)
							case strings.HasSuffix(r.Path, "/Actions/Manager.Reset") && r.IfMatch != "*":
								t.Errorf("%s has the tag %q, want *", r.Path, r.IfMatch)
							}
						}
					})
				}
			}
		}
	}
}
