package bootstore

import (
	"cmp"
	"regexp"
	"strings"

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

// bmcMakers are the makers of MACs (IEEE MA-L, the first three bytes) that build servers and little else. Of such a MAC a client that
// neither boots nor names its class may be a BMC: many give no class. Dell's and HPE's give theirs, and Dell's and HPE's MACs
// are in every office.
var bmcMakers = map[string]string{
	"00:25:90": "Supermicro", "00:30:48": "Supermicro", "0c:c4:7a": "Supermicro", "3c:ec:ef": "Supermicro", "7c:c2:55": "Supermicro", "ac:1f:6b": "Supermicro",
	"00:40:d9": "AMI", "5c:fe:9e": "Wiwynn",
	"6c:92:bf": "Inspur", "9c:c2:c4": "Inspur", "b4:05:5d": "Inspur",
}

// unclassed is what the evidence says of a client that doesn't boot from the network and gives no class.
const unclassed = "operating system"

// bmcsAmong are the strangers among the evidence that look like BMCs. Each is known by its MAC: it was given no address.
func bmcsAmong(evidence []schema.BootEvidence) []schema.BMCFound {
	var out []schema.BMCFound
	for _, e := range evidence {
		if e.Kind != boot.KindUnknown || e.MAC == "" {
			continue
		}
		if vendor, is := bmcBy(e); is {
			out = append(out, schema.BMCFound{Address: "mac:" + e.MAC, Vendor: vendor, MAC: e.MAC, Via: "dhcp"})
		}
	}
	return out
}

// bmcBy says whether a stranger looks like a BMC, and whose: by its class, else by its MAC's maker.
func bmcBy(e schema.BootEvidence) (vendor string, is bool) {
	maker := ""
	if len(e.MAC) == len("00:00:00:00:00:00") {
		maker = bmcMakers[strings.ToLower(e.MAC[:len("00:00:00")])]
	}
	for _, c := range bmcClasses {
		if c.class.MatchString(e.What) {
			return cmp.Or(c.vendor, maker), true
		}
	}
	return maker, maker != "" && e.What == unclassed
}
