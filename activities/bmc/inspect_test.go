package bmc

import (
	"strings"
	"testing"

	"gpupool/schema"
)

func TestInspectionJudgesOnlyWhatTheBMCCanSay(t *testing.T) {
	t.Parallel()
	eight := func(change func([]GPU)) Identity {
		gpus := make([]GPU, 8)
		for i := range gpus {
			gpus[i] = GPU{Slot: "SXM" + string(rune('1'+i)), State: "Enabled", Health: "OK"}
		}
		if change != nil {
			change(gpus)
		}
		return Identity{GPUs: gpus, BaseboardsReady: true}
	}
	starting := eight(func(g []GPU) { g[0].State = "Absent" })
	starting.BaseboardsReady = false
	cases := map[string]struct {
		power PowerState
		id    Identity
		fails string
	}{
		"all there":                                    {PowerOn, eight(nil), ""},
		"one is absent":                                {PowerOn, eight(func(g []GPU) { g[2].State = "Absent" }), "SXM3 is absent"},
		"one is critical":                              {PowerOn, eight(func(g []GPU) { g[4].Health, g[4].Serial = "Critical", "S5" }), "SXM5 is critical (serial S5)"},
		"fewer are listed":                             {PowerOn, Identity{GPUs: make([]GPU, 7), BaseboardsReady: true}, "7 of the 8"},
		"a BMC that shows none is no failure":          {PowerOn, Identity{BaseboardsReady: true}, ""},
		"a server that is off shows nothing":           {PowerOff, eight(func(g []GPU) { g[0].State = "Absent" }), ""},
		"a baseboard that still starts proves nothing": {PowerOn, starting, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := inspect(schema.Server{Accelerators: 8}, c.power, c.id)
			switch {
			case c.fails == "" && out.Failure != nil:
				t.Fatalf("it fails: %s", out.Failure.Text)
			case c.fails != "" && (out.Failure == nil || out.Failure.Code != schema.FailHardware || !strings.Contains(out.Failure.Text, c.fails)):
				t.Fatalf("the outcome is %+v, want a failure that says %q", out, c.fails)
			}
		})
	}
}
