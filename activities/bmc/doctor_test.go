package bmc_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"gpupool/activities/bmc"
	lab "gpupool/deploy/lab/bmc"
	"gpupool/schema"
)

func TestADoctorFindsNothingWrongWithGoodBMCs(t *testing.T) {
	t.Parallel()
	for _, name := range lab.ProfileNames() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, profile(t, name), lab.Hooks{}, lab.WithIdentity(lab.Identity{Serial: "SN-1"}))
			d := dial(t, s, fast).Doctor(t.Context(), schema.Server{Serial: "SN-1"})
			if !d.Usable || len(d.Findings) < 12 {
				t.Fatalf("%+v", d)
			}
			if bad := refusals(s); bad != nil {
				t.Errorf("refused: %v", bad)
			}
		})
	}
}

func TestADoctorNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.DGXH100), lab.Hooks{}, lab.WithIdentity(lab.Identity{Serial: "SN-1"}))
	c := dial(t, s, fast)
	s.Limit(0, 0, -48*time.Hour)
	d := c.Doctor(t.Context(), schema.Server{Serial: "SN-2", Accelerators: 9})
	for check, want := range map[string]string{"identity": "ordered SN-2", "clock": "is 2 days off", "accelerators": "8 shown, 9 ordered"} {
		found := false
		for _, f := range d.Findings {
			if f.Check == check {
				found = strings.Contains(f.Text, want) && f.State != bmc.FindingOK && f.Hint != ""
				if !found {
					t.Errorf("%s: %+v, want %q and a hint", check, f, want)
				}
			}
		}
		if !found {
			t.Errorf("no finding of %s", check)
		}
	}
	if d.Usable {
		t.Error("a BMC of another server is usable")
	}
	s.AddFault(lab.Fault{Status: 500})
	d = c.Doctor(t.Context(), schema.Server{})
	if d.Usable || d.Findings[0].State != bmc.FindingFailed || d.Findings[len(d.Findings)-1].State != bmc.FindingSkipped {
		t.Fatalf("%+v", d)
	}
	s.ClearFaults() // so that the client can log out
}

// Trees of makes that nobody here has seen: optional properties are null or gone, members come in another order. The host is
// found, powered and booted all the same, and nothing is invented.
func TestATreeWithNothingOptionalIsStillDriven(t *testing.T) {
	t.Parallel()
	null := lab.Doc{"SerialNumber": nil, "UUID": nil, "Manufacturer": nil, "Model": nil, "SKU": nil, "PartNumber": nil, "BiosVersion": nil, "FirmwareVersion": nil, "MemorySummary": nil,
		"ProcessorSummary": nil, "Status": nil, "BootProgress": nil, "Reading": nil, "ReadingCelsius": nil, "Health": nil, "Location": nil, "Description": nil, "Vendor": nil, "Product": nil, "Oem": nil,
		"IndicatorLED": nil, "SystemType": nil, "ChassisType": nil}
	for _, name := range lab.ProfileNames() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			boots := make(chan lab.Boot, 2)
			s := serve(t, profile(t, name), lab.Hooks{PowerOn: func(b lab.Boot) { boots <- b }}, lab.WithMembersReversed())
			s.AddFault(lab.Fault{Method: "GET", Path: "/redfish/v1/**", Merge: null})
			c := dial(t, s, fast)
			id, err := c.Identify(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if id.Serial != "" || id.UUID != "" || id.Model != "" || id.CPUs != 0 || id.MemoryGiB != 0 {
				t.Fatalf("invented: %+v", id)
			}
			sensors, err := c.Sensors(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range sensors {
				if r.Alarms() {
					t.Fatalf("an alarm from nothing: %+v", r)
				}
			}
			if _, err := c.BootOnceFromNetwork(t.Context(), bmc.PXE); err != nil {
				t.Fatal(err)
			}
			if err := c.SetPower(t.Context(), bmc.Cycle); err != nil {
				t.Fatal(err)
			}
			if b := <-boots; b.Target != "Pxe" {
				t.Fatalf("booted %+v", b)
			}
		})
	}
}

func TestADoctorCountsWhatTheEventLogsHold(t *testing.T) {
	t.Parallel()
	s := serve(t, profile(t, lab.DGXH100), lab.Hooks{})
	c := dial(t, s, fast)
	services, err := c.LogServices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	logs := bmc.EventLogs(services)
	for n := range 3 {
		before := logsFinding(t, c)
		if !strings.HasSuffix(before, fmt.Sprintf(": %d", n)) {
			t.Fatalf("with %d entries it says %q", n, before)
		}
		if _, err := s.AddLogEntry(logs[n%len(logs)], lab.Doc{"Message": "m"}); err != nil {
			t.Fatal(err)
		}
	}
}

func logsFinding(t *testing.T, c *bmc.Client) string {
	t.Helper()
	for _, f := range c.Doctor(t.Context(), schema.Server{}).Findings {
		if f.Check == "logs" {
			return f.Text
		}
	}
	t.Fatal("no finding of the logs")
	return ""
}
