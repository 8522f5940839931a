package bmc

import (
	"regexp"
	"strconv"
)

// iso is a duration as Redfish writes it (DSP0266 9.5.5, of ISO 8601: days, hours, minutes, seconds with a fraction; no months or years,
// whose length isn't fixed).
var iso = regexp.MustCompile(`^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?$`)

// isoSeconds reads "P1DT17H41M2.268611840S", which is 150,062.27 s. ok is false for whatever is no duration.
func isoSeconds(s string) (seconds float64, ok bool) {
	m := iso.FindStringSubmatch(s)
	if m == nil {
		return 0, false
	}
	for i, unit := range []float64{24 * 3600, 3600, 60, 1} {
		if m[i+1] == "" {
			continue
		}
		v, err := strconv.ParseFloat(m[i+1], 64)
		if err != nil {
			return 0, false
		}
		seconds, ok = seconds+v*unit, true
	}
	return seconds, ok
}

// duration is a duration property in seconds; nil when absent, null or no duration.
func duration(r *resource, keys ...string) *float64 {
	if v, ok := isoSeconds(r.str(keys...)); ok {
		return &v
	}
	return nil
}
