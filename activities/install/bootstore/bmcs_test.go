package bootstore_test

import (
	"slices"
	"testing"
	"time"

	"gpupool/activities/install/bootstore"
	"gpupool/pxe/boot"
	"gpupool/schema"
	"gpupool/schema/store/storetest"
)

func TestStrangersThatLookLikeBMCsAreFound(t *testing.T) {
	t.Parallel()
	db := storetest.Open(t)
	s := bootstore.New(db, time.Hour)
	var at []time.Time
	var evidence []schema.BootEvidence
	for mac, what := range map[string]string{
		"0c:42:a1:00:00:01": `operating system, class "iDRAC"`, "0c:42:a1:00:00:02": `operating system, class "CPQRIB3"`, "0c:42:a1:00:00:03": `operating system, class "udhcp 1.31.1"`,
		"0c:42:a1:00:00:04": `UEFI, x86-64, class "PXEClient:Arch:00007:UNDI:003016"`, "0c:42:a1:00:00:05": "operating system", "0c:42:a1:00:00:06": `operating system, class "MSFT 5.0"`,
		// Of a maker of servers: without a class it may be a BMC; one that boots, or names an operating system, is none.
		"7c:c2:55:00:00:01": "operating system", "7c:c2:55:00:00:02": `UEFI, x86-64, class "PXEClient:Arch:00007:UNDI:003016"`, "7c:c2:55:00:00:03": `operating system, class "MSFT 5.0"`,
		"7c:c2:55:00:00:04": `operating system, class "udhcp 1.31.1"`, "7c:c2:55": "operating system",
	} {
		at = append(at, time.Now())
		evidence = append(evidence, schema.BootEvidence{Kind: boot.KindUnknown, MAC: mac, What: what})
	}
	at = append(at, time.Now())
	evidence = append(evidence, schema.BootEvidence{Kind: "dhcp-ack", MAC: "0c:42:a1:00:00:07", What: `operating system, class "iDRAC"`}) // a server of ours
	for range 2 {
		if err := s.Record(t.Context(), at, evidence); err != nil {
			t.Fatal(err)
		}
	}
	list, err := db.BMCsFound(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range list {
		got = append(got, f.Address+" "+f.Vendor+" "+f.Via)
	}
	if !slices.Equal(got, []string{"mac:0c:42:a1:00:00:01 Dell dhcp", "mac:0c:42:a1:00:00:02 HPE dhcp", "mac:0c:42:a1:00:00:03  dhcp", "mac:7c:c2:55:00:00:01 Supermicro dhcp", "mac:7c:c2:55:00:00:04 Supermicro dhcp"}) {
		t.Fatalf("found %v", got)
	}
}
