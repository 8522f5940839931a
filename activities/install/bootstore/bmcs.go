package bootstore

import (
	"regexp"

	"gpupool/pxe/boot"
	"gpupool/schema"
)

// bmcClasses are the vendor classes (DHCP option 60) that BMCs give themselves. Servers that boot from the network give
// PXEClient or HTTPClient; an operating system that gives one of these is found by mistake, which costs a line in a list.
var bmcClasses = []struct {
	class  *regexp.Regexp
	vendor string
}{
	{regexp.MustCompile(`class "(?i:idrac)`), "Dell"},
	{regexp.MustCompile(`class "CPQRIB`), "HPE"}, // Remote Insight Board, iLO's ancestor, and iLO's to this day
	{regexp.MustCompile(`class "(?i:udhcp|openbmc)`), ""},
}

// bmcsAmong are the strangers among the evidence that look like BMCs. Each is known by its MAC: it was given no address.
func bmcsAmong(evidence []schema.BootEvidence) []schema.BMCFound {
	var out []schema.BMCFound
	for _, e := range evidence {
		if e.Kind != boot.KindUnknown || e.MAC == "" {
			continue
		}
		for _, c := range bmcClasses {
			if c.class.MatchString(e.What) {
				out = append(out, schema.BMCFound{Address: "mac:" + e.MAC, Vendor: c.vendor, MAC: e.MAC, Via: "dhcp"})
				break
			}
		}
	}
	return out
}
