package bmc_test

import (
	"testing"

	"gpupool/activities/bmc"
)

// Case 20 of the cases on health: a detector says that it leaks in its own words, and whatever rolls health up says OK. The
// detector's word counts; a word that nobody knows is no leak, and the detector's health then says.
func TestALeakIsTheDetectorsOwnWord(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		leak    bmc.Leak
		leaking bool
	}{
		"in its own words":                 {bmc.Leak{State: "LeakDetected", Health: "Critical", Status: "Enabled"}, true},
		"in its own words, health OK":      {bmc.Leak{State: "LeakDetected", Health: "OK", Status: "Enabled"}, true},
		"in the specification's":           {bmc.Leak{State: "Critical", Health: "OK", Status: "Enabled"}, true},
		"a word that nobody knows":         {bmc.Leak{State: "Sweating", Health: "OK", Status: "Enabled"}, false},
		"an unknown word, health critical": {bmc.Leak{State: "Sweating", Health: "Critical", Status: "Enabled"}, true},
		"without a state":                  {bmc.Leak{Health: "Critical", Status: "Enabled"}, true},
		"dry":                              {bmc.Leak{State: "OK", Health: "Critical", Status: "Enabled"}, false},
		"a detector that is not there":     {bmc.Leak{State: "Critical", Health: "Critical", Status: "Absent"}, false},
	} {
		if got := c.leak.Leaking(); got != c.leaking {
			t.Errorf("%s: leaking %v, want %v", name, got, c.leaking)
		}
	}
}
