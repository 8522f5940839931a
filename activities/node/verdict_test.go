package node

import (
	"testing"

	"gpupool/schema/agentproto"

	"github.com/google/go-cmp/cmp"
)

func TestMissingSlotsAreNamedOnlyWhereTheyAreSure(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		slots []string
		of    int
		want  []string
	}{
		"one of a row":             {[]string{"SXM1", "SXM2", "SXM4"}, 4, []string{"SXM3"}},
		"the last of a row":        {[]string{"SXM1", "SXM2", "SXM3"}, 4, []string{"SXM4"}},
		"the first of a row":       {[]string{"SXM2", "SXM3", "SXM4"}, 4, []string{"SXM1"}},
		"numbered from zero":       {[]string{"OAM0", "OAM1", "OAM3"}, 4, []string{"OAM2"}},
		"OAM0 itself":              {[]string{"OAM1", "OAM2", "OAM3"}, 4, []string{"OAM0"}},
		"names that are no row":    {[]string{"Slot A", "Slot B"}, 4, nil},
		"two kinds of names":       {[]string{"SXM1", "OAM2"}, 4, nil},
		"nothing there, no guess":  {nil, 4, nil},
		"PCIe slots with a hyphen": {[]string{"PCI-1", "PCI-2"}, 3, []string{"PCI-3"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var devices []agentproto.Device
			for _, s := range c.slots {
				devices = append(devices, agentproto.Device{Slot: s})
			}
			if diff := cmp.Diff(c.want, missingSlots(devices, c.of)); diff != "" {
				t.Fatal(diff)
			}
		})
	}
}
