package watch

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"gpupool/activities/bmc"
	"gpupool/activities/health/rules"
)

// Entries as captured machines and the registries word them: "" is known to be no evidence, or unknown and not critical.
func TestWhatALogEntryIsEvidenceOf(t *testing.T) {
	t.Parallel()
	yes := true
	gpu := bmc.GPU{Slot: "SXM5", Serial: "A", URI: "/redfish/v1/Systems/HGX_Baseboard_0/Processors/GPU_SXM_5"}
	const errors = "ResourceEvent.1.0.ResourceErrorsDetected"
	for _, c := range []struct {
		e    bmc.LogEntry
		want string
	}{
		{bmc.LogEntry{MessageID: "Environmental.1.1.0.LeakDetectedCritical", Severity: "Critical", Message: "Leak detector 'cold plate 1' reports a critical level leak."}, "leak critical  "},
		{bmc.LogEntry{MessageID: "Environmental.1.1.LeakDetectedNormal", Severity: "OK", Message: "Leak detector 'cold plate 1' has returned to normal."}, ""},
		{bmc.LogEntry{Severity: "Critical", Message: "Leakage detected at manifold 2"}, "leak critical  "},
		{bmc.LogEntry{Severity: "Critical", Message: "Leak detection cleared at manifold 2"}, ""},
		{bmc.LogEntry{MessageID: "OpenBMC.0.4.PowerSupplyFailed", Severity: "Warning", Message: "Power supply 3 failed."}, "power-supply warning  "},
		{bmc.LogEntry{MessageID: "0xF1FFFF", Severity: "Critical", Message: "[PWR-0001] PS5 Status, Power Supply Failure detected"}, "power-supply warning  "},
		{bmc.LogEntry{MessageID: "0xF3FFFF", Severity: "Critical", Message: "[PWR-0003] PS5 Status, Power Supply input lost (AC/DC)"}, "power-supply warning  "},
		{bmc.LogEntry{Severity: "Critical", Message: "Chassis_0_FAN_2_FRONT critical low threshold assert. Reading=0.000000 Threshold=2204.000000."}, "fan warning  "},
		{bmc.LogEntry{Severity: "Critical", Message: "Chassis_0_FAN_2_FRONT critical low threshold deassert. Reading=9000 Threshold=2204."}, ""},
		{bmc.LogEntry{MessageID: "Environmental.1.0.FanFailed", Severity: "Critical", Message: "Fan 'FAN1' has failed."}, "fan warning  "},
		{bmc.LogEntry{MessageID: "OpenBMC.0.1.CPUThermalTrip", Severity: "Critical", Message: "CPU 1 Thermal Trip."}, "thermal critical  "},
		{bmc.LogEntry{Severity: "Critical", Message: "CPU 2 thermal trip"}, "thermal critical  "},
		{bmc.LogEntry{MessageID: "OpenBMC.0.1.MemoryECCUncorrectable", Severity: "Critical", Message: "Memory ECC uncorrectable error. Socket=0 Channel=A DIMM=1 Rank=0."}, "mce critical  "},
		{bmc.LogEntry{Severity: "Critical", Message: "Uncorrectable ECC error, DIMM P1-A1"}, "mce critical  "},
		{bmc.LogEntry{MessageID: errors, Severity: "Critical", Args: []string{"GPU_SXM_5 Memory", "Uncorrectable ECC error"},
			Message: "The resource property GPU_SXM_5 Memory has detected errors of type 'Uncorrectable ECC error'."}, "ecc-uncorrectable critical SXM5 A"},
		{bmc.LogEntry{MessageID: errors, Severity: "Critical", Origin: "/redfish/v1/Chassis/HGX_GPU_SXM_5", Message: "Row Remapping Failure"}, "remap-failed critical SXM5 A"},
		{bmc.LogEntry{MessageID: errors, Severity: "Critical", Origin: "/redfish/v1/Chassis/HGX_GPU_SXM_7", Message: "row remapping pending"}, "remap-pending critical GPU_SXM_7 "},
		{bmc.LogEntry{MessageID: errors, Severity: "Critical", Message: "Correctable ECC error, DIMM P1-A1"}, "bmc-log warning  "},
		{bmc.LogEntry{MessageID: errors, Severity: "Warning", Args: []string{"GPU_SXM_5 ThrottleReason", "SWPowerCap"}, Message: "The resource property GPU_SXM_5 ThrottleReason has detected errors of type 'SWPowerCap'."}, ""},
		{bmc.LogEntry{MessageID: errors, Severity: "Critical", Message: "The resource property CPU_0 Firmware has detected errors of type 'EC_STRAP_MISMATCH'."}, "bmc-log warning  "},
		{bmc.LogEntry{MessageID: errors, Severity: "Critical", Message: "SXID 0 NVSWITCH SMBPBI server is online"}, ""},
		{bmc.LogEntry{MessageID: "0x018000", Severity: "Critical", Message: "[GS-0001] NVSwitch Temp, 1 is not present"}, "bmc-log warning  "},
		{bmc.LogEntry{MessageID: "OpenBMC.0.4.SensorThresholdWarningHighGoingHigh", Severity: "Warning", Message: "CPU sensor crossed a warning high threshold going high. Reading=80.419451 Threshold=80.000000."}, ""},
		{bmc.LogEntry{MessageID: "OpenBMC.0.4.PowerSupplyFailed", History: true}, ""},
		{bmc.LogEntry{MessageID: "IPMI.Fan/Lower Critical - going low", Severity: "Critical", Message: "Fan sensor 65: Lower Critical - going low"}, "fan warning  "},
		{bmc.LogEntry{MessageID: "IPMI.Temperature/Upper Critical - going high", Severity: "Critical", Message: "Temperature sensor 1: Upper Critical - going high"}, "thermal warning  "},
		{bmc.LogEntry{MessageID: "IPMI.Temperature/Upper Non-recoverable - going high", Severity: "Critical", Message: "Temperature sensor 1: Upper Non-recoverable - going high"}, "thermal critical  "},
		{bmc.LogEntry{MessageID: "IPMI.Memory/Uncorrectable ECC / other uncorrectable memory error", Severity: "Critical", Message: "Memory sensor 4: Uncorrectable ECC / other uncorrectable memory error"}, "mce critical  "},
		{bmc.LogEntry{MessageID: "IPMI.Power Supply/Power Supply Failure detected", Severity: "Critical", Message: "Power Supply sensor 81: Power Supply Failure detected"}, "power-supply warning  "},
		{bmc.LogEntry{MessageID: "IPMI.Voltage/Lower Critical - going low", Severity: "Critical", Message: "Voltage sensor 12: Lower Critical - going low"}, "bmc-log warning  "},
		{bmc.LogEntry{MessageID: "OpenBMC.0.4.PowerSupplyFailed", Resolved: &yes}, ""},
	} {
		c.e.Service, c.e.ID = "/s", "1"
		var m Memory
		got := ""
		for _, x := range m.signs(Snapshot{At: time.Now(), Identity: &bmc.Identity{GPUs: []bmc.GPU{gpu}}, Entries: []bmc.LogEntry{c.e}}, time.Hour) {
			got += fmt.Sprintf("%s %s %s %s", x.Kind, x.Severity, x.Slot, x.Serial)
			if x.Text != c.e.Message || x.Key == "" {
				t.Errorf("%+v", x)
			}
		}
		if got != c.want {
			t.Errorf("%s %q: %q, want %q", c.e.MessageID, c.e.Message, got, c.want)
		}
	}
}

// What the watch tells, a rule knows: of each kind that is in its tables, and of each that it names itself.
func TestEveryKindThatIsToldHasARule(t *testing.T) {
	t.Parallel()
	kinds := map[string]bool{"xid": true, "absent": true, "bmc-log": true, "baseboard-starting": true, "ecc-uncorrectable": true, "remap": true, "pcie": true, "sram-threshold": true}
	for _, m := range meanings {
		kinds[m.kind] = true
	}
	for _, p := range phrases {
		kinds[p.kind] = true
	}
	for _, sensor := range []string{"Fan", "Power Supply", "Temperature", "Voltage"} {
		kinds[ofSensor(sensor).kind] = true
	}
	delete(kinds, "") // known to be none
	for kind := range kinds {
		if !slices.ContainsFunc(rules.Table, func(r rules.Rule) bool { return r.Kind == kind }) {
			t.Errorf("no rule knows %s", kind)
		}
	}
}

// A sort that nobody knows is told once and counted each time, in bounded space; a leak that its detector told isn't told again.
func TestUnknownEntriesAreCountedAndToldOnce(t *testing.T) {
	t.Parallel()
	var m Memory
	told := 0
	for i := range 1000 {
		e := bmc.LogEntry{Service: "/s", ID: fmt.Sprint(i), Severity: "Critical", MessageID: fmt.Sprintf("Vendor.1.%d.Odd%d", i, i%200), Message: "odd"}
		told += len(m.signs(Snapshot{At: time.Now(), Entries: []bmc.LogEntry{e}}, time.Hour))
	}
	n := 0
	for _, v := range m.Unknown {
		n += v
	}
	if n != 1000 || told != unknownKinds+1 || len(m.Unknown) != told || m.Unknown["Vendor.Odd0"] != 5 {
		t.Fatalf("counted %d in %d sorts, told %d", n, len(m.Unknown), told)
	}
	leak := bmc.LogEntry{Service: "/s", ID: "1", Severity: "Critical", MessageID: "Environmental.1.1.LeakDetectedCritical"}
	got := m.signs(Snapshot{At: time.Now(), Plant: &bmc.Plant{Leaks: []bmc.Leak{{URI: "/l", Name: "l", State: "Critical"}}}, Entries: []bmc.LogEntry{leak}}, time.Hour)
	if len(got) != 1 || got[0].Kind != "leak" {
		t.Fatalf("%+v", got)
	}
}

func FuzzEntry(f *testing.F) {
	f.Add("Environmental.1.1.LeakDetectedCritical", "Critical", "Leak detector 'cold plate 1' reports a critical level leak.", "")
	f.Add("ResourceEvent.1.0.ResourceErrorsDetected", "Critical", "GPU_SXM_5 Memory has detected errors of type 'Uncorrectable ECC error'.", "/redfish/v1/Chassis/HGX_GPU_SXM_5")
	f.Fuzz(func(t *testing.T, id, severity, message, origin string) {
		var m Memory
		e := bmc.LogEntry{Service: "/s", ID: "1", MessageID: id, Severity: severity, Message: message, Origin: origin, Args: []string{message}}
		s := Snapshot{At: time.Now(), Identity: &bmc.Identity{GPUs: []bmc.GPU{{Slot: "SXM5", Serial: "A", URI: "/redfish/v1/GPU_SXM_5"}}}, Entries: []bmc.LogEntry{e}}
		for _, x := range m.signs(s, time.Hour) {
			if x.Kind == "" || x.Severity == "" || x.Serial != "" && x.Serial != "A" {
				t.Errorf("%+v gave %+v", e, x)
			}
		}
	})
}
