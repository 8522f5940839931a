package bmc

import (
	"math"
	"testing"
)

// Case 18 of the cases on health, second part: durations as a GB300's BMC writes them, and errors by lane.
func TestDurationsAndLanesOfACapturedGB300(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]float64{"P1DT17H41M2.268611840S": 150_062.26861184, "PT0S": 0, "PT1M": 60, "PT23H59M34.146524704S": 86_374.146524704, "P1DT44.840902144S": 86_444.840902144, "P2D": 172_800} {
		if got, ok := isoSeconds(text); !ok || math.Abs(got-want) > 1e-6 {
			t.Errorf("%s is %v s (%v), want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "P", "PT", "P1Y", "P1M", "1D", "PT1.5M", "PT-1S", "PT1S "} {
		if got, ok := isoSeconds(text); ok {
			t.Errorf("%q is %v s", text, got)
		}
	}
	lanes := func(body string) []float64 {
		t.Helper()
		r, err := decodeBody("/p", []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		var m GPUMetrics
		m.lanes(r)
		return m.PCIeLanes
	}
	if got := lanes(`{"Oem":{"Nvidia":{"RXErrorsPerLane":[0,1,2,2,0,0,0,0,16,1,0,0,4,395,10,9]}}}`); len(got) != 16 || got[13] != 395 {
		t.Errorf("lanes %v", got)
	}
	for _, body := range []string{`{}`, `{"Oem":{"Nvidia":{"RXErrorsPerLane":null}}}`, `{"Oem":{"Nvidia":{"RXErrorsPerLane":[0,"x"]}}}`, `{"Oem":{"Nvidia":{"RXErrorsPerLane":[-1]}}}`} {
		if got := lanes(body); got != nil {
			t.Errorf("%s: lanes %v", body, got)
		}
	}
}
