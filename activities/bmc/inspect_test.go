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
	with := func(id Identity, change func(*Identity)) Identity {
		change(&id)
		return id
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
		"a DIMM is mapped out":                         {PowerOn, with(eight(nil), func(id *Identity) { id.MemoryGiB = 1920 }), "1920 GiB of the 2048 GiB"},
		"what the platform sets aside is no DIMM":      {PowerOn, with(eight(nil), func(id *Identity) { id.MemoryGiB = 2000 }), ""},
		"fewer cores":                                  {PowerOn, with(eight(nil), func(id *Identity) { id.Cores = 96 }), "96 of the 112 CPU cores"},
		"a baseboard that still starts proves nothing": {PowerOn, starting, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			detail, seen := inspect(schema.Server{Accelerators: 8, CPUs: 112, MemoryBytes: 2 << 40}, c.power, c.id)
			out := schema.Weighed(detail, seen, nil)
			switch {
			case c.fails == "" && out.Failure != nil:
				t.Fatalf("it fails: %s", out.Failure.Text)
			case c.fails != "" && (out.Failure == nil || out.Failure.Code != schema.FailHardware || !strings.Contains(out.Failure.Text, c.fails)):
				t.Fatalf("the outcome is %+v, want a failure that says %q", out, c.fails)
			}
		})
	}
}
