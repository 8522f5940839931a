package bmc

import (
	"net/http"
	"time"
)

// The built-in machines. What each differs in was seen in captures of such machines or in the reports named; the values
// are our own.

var openBMCResets = []string{"On", "ForceOff", "GracefulShutdown", "GracefulRestart", "ForceRestart", "Nmi", "ForceOn", "PowerCycle"}

// eventTypes are those that HPE's and Supermicro's subscriptions name.
var eventTypes = []string{"StatusChange", "ResourceUpdated", "ResourceAdded", "ResourceRemoved", "Alert"}

// quirksAMI: override only on the settings resource, behind its own entity tag; Manager.Reset wants If-Match: *;
// the account locks after 5 failed logins for 30 s; sessions end after 30 s idle.
func quirksAMI() Quirks {
	return Quirks{
		BootOnSettingsOnly: true, IfMatch: IfMatchRequired, ResetIfMatch: IfMatchAny, AlreadyStatus: http.StatusBadRequest,
		SessionTimeout: 30 * time.Second, MaxSessions: 16, LockoutThreshold: 5, LockoutDuration: 30 * time.Second, LockoutWindow: 30 * time.Second,
	}
}

func buildDGX() (Tree, Quirks) {
	m := machine{
		vendor: "AMI", product: "AMI Redfish Server", maker: "NVIDIA", model: "DGXH100", serial: "1660000000001", sku: "920-23687-2531-000",
		system: "DGX", chassis: "DGX", manager: "BMC", uuid: "b11d0000-bfde-1000-02bc-000000000001", bios: "1.1.3", bmc: "23.11.09",
		tags: true, resets: []string{"ForceOff", "ForceRestart", "GracefulShutdown", "On"}, led: "IndicatorLED",
		nics: numbered("EthernetInterface%d", 0, 4), lockout: [3]int{5, 30, 30}, session: 30, sse: root + "/EventService/SSE",
		// The system itself shows no allowable values and a null mode; both live in the settings resource.
		boot: Doc{propEnabled: "Disabled", propTarget: "None", propMode: nil, propURI: nil, "BootNext": nil,
			"BootOrder": list("Boot0026", "Boot000B", "Boot0006"), "BootOrderPropertySelection": "BootOrder"},
		settings: "SD",
		settingsBoot: Doc{propEnabled: "Disabled", propTarget: "None", propMode: nil, propURI: nil,
			"BootOrder":             list("Boot0026", "Boot000B", "Boot0006"),
			propEnabled + allowable: list("Disabled", "Once", "Continuous"), propMode + allowable: list("UEFI"),
			propTarget + allowable: list("None", "Pxe", "Floppy", "Cd", "Usb", "Hdd", "BiosSetup", "UefiShell", "UefiTarget", "UefiHttp", "UefiBootNext")},
		extraSystems: []string{"HGX_Baseboard_0"}, extraManagers: []string{"HGX_BMC_0"},
		plant: plant{supplies: 6, supplyMin: 3, newSupplies: true, fans: 12, fanMin: 8},
	}
	b := m.base()
	b.baseboard("HGX_Baseboard_0", "NVIDIA", "H100 80GB HBM3", "GPU_SXM_%d", "SXM%d", 1, 8)
	b.hgxManager()
	return b.docs, quirksAMI()
}

// hgxManager adds the baseboard's own BMC, whose state says whether the GPUs can be judged yet.
func (b *builder) hgxManager() {
	b.add(root+"/Managers/HGX_BMC_0", "Manager.v1_18_0.Manager",
		Doc{"ManagerType": "BMC", "FirmwareVersion": "HGX-22.10-1", "Status": status()})
}

// quirksSupermicro: the mode falls back to Legacy unless it is sent with the target (Redfishtool #106), Pxe reads back as
// UefiBootNext; 3 failed logins lock for 30 s.
func quirksSupermicro() Quirks {
	return Quirks{
		BootNeedsMode: true, PxeIsBootNext: true, AlreadyStatus: 0,
		SessionTimeout: 5 * time.Minute, MaxSessions: 16, LockoutThreshold: 3, LockoutDuration: 30 * time.Second, LockoutWindow: 30 * time.Second,
	}
}

func supermicro(model, serial string) machine {
	return machine{
		maker: "Supermicro", model: model, serial: serial, sku: "0x1D1415D9",
		system: "1", chassis: "1", manager: "1", uuid: "00000000-0000-0000-0000-7cc255000001", bios: "1.4", bmc: "01.01.11",
		tags: true, resets: openBMCResets, led: "LocationIndicatorActive", bootProgress: true, events: eventTypes,
		nics: append(numbered("%d", 1, 4), "ToManager"), lockout: [3]int{3, 30, 30}, session: 300, plant: plant{supplies: 8, supplyMin: 4, fans: 10, fanMin: 8},
		boot: Doc{propEnabled: "Disabled", propTarget: "None", propMode: "UEFI", "BootNext": nil, "BootOrder": list("Boot0019", "Boot001A"),
			propTarget + allowable: list("None", "Pxe", "Floppy", "Cd", "Usb", "Hdd", "BiosSetup", "UsbCd", "UefiBootNext", "UefiHttp")},
	}
}

func buildSupermicroHGX() (Tree, Quirks) {
	m := supermicro("SYS-821GE-TNHR", "S880000X0000001")
	m.extraChassis = []string{"UBB_1"}
	b := m.base()
	ch := root + "/Chassis/1/PCIeDevices"
	b.collection(ch, "PCIeDevice", numbered("GPU%d", 1, 8)...)
	for i, n := range numbered("GPU%d", 1, 8) {
		b.pcieGPU(ch+"/"+n, "NVIDIA", "H100 80GB HBM3", i+1)
	}
	b.add(root+"/Chassis/UBB_1", "Chassis.v1_11_0.Chassis", Doc{"Name": "GPU Baseboard", "ChassisType": "Zone",
		"Manufacturer": "NVIDIA", "Model": "HGX_H100", "SerialNumber": "1660000000002"})
	return b.docs, quirksSupermicro()
}

// buildSupermicroMI300X is an AS-8125GS-TNMR2: the baseboard with the eight accelerator modules is a system of its own.
func buildSupermicroMI300X() (Tree, Quirks) {
	m := supermicro("AS-8125GS-TNMR2", "S881000X0000001")
	m.extraSystems = []string{"UBB"}
	b := m.base()
	b.baseboard("UBB", "AMD", "AMD Instinct MI300X OAM", "OAM_%d", "OAM%d", 0, 8)
	return b.docs, quirksSupermicro()
}

// quirksDell: On when on and ForceOff when off are 409 ActionParameterValueConflict; no entity tags.
func quirksDell() Quirks {
	return Quirks{AlreadyStatus: http.StatusConflict, SessionTimeout: 30 * time.Minute, MaxSessions: 8}
}

func buildDell() (Tree, Quirks) {
	m := machine{
		vendor: "Dell", product: "Integrated Dell Remote Access Controller", maker: "Dell Inc.", model: "PowerEdge R760xa",
		serial: "CN000000000001", sku: "LAB0001", system: "System.Embedded.1", chassis: "System.Embedded.1", manager: "iDRAC.Embedded.1",
		uuid: "4c4c4544-0000-4110-8041-000000000001", bios: "2.1.5", bmc: "7.10.30.00", resetInline: true, led: "LocationIndicatorActive",
		resets: []string{"On", "ForceOff", "ForceRestart", "GracefulRestart", "GracefulShutdown", "PushPowerButton", "Nmi", "PowerCycle", "FullPowerCycle"},
		plant:  plant{supplies: 2, supplyMin: 1, fans: 6, fanMin: 4},
		nics:   []string{"NIC.Embedded.1-1-1", "NIC.Embedded.2-1-1"}, session: 1800, events: []string{"Alert", "MetricReport", "Other"},
		boot: Doc{propEnabled: "Disabled", propTarget: "None", propMode: "UEFI", "UefiTargetBootSourceOverride": nil, propURI: nil,
			"BootOrder": list("Boot0000", "Boot0001"), propTarget + allowable: list("None", "Pxe", "Cd", "Hdd", "BiosSetup", "UefiTarget", "UefiHttp")},
	}
	b := m.base()
	sys := root + "/Systems/System.Embedded.1/Processors"
	gpus := []string{"Video.Slot.31-1", "Video.Slot.33-1", "Video.Slot.36-1", "Video.Slot.38-1"}
	b.collection(sys, "Processor", append([]string{"CPU0", "CPU1"}, gpus...)...)
	for _, g := range gpus {
		b.gpu(sys+"/"+g, "NVIDIA Corporation", "NVIDIA H100 PCIe", g, "")
	}
	return b.docs, quirksDell()
}

// quirksHPE: boot changes are refused during POST; weak entity tags; sessions end after 30 s idle.
func quirksHPE() Quirks {
	return Quirks{WeakETags: true, AlreadyStatus: http.StatusBadRequest, SessionTimeout: 30 * time.Second, MaxSessions: 12}
}

func buildHPE() (Tree, Quirks) {
	m := machine{
		vendor: "HPE", product: "ProLiant DL380a Gen11", maker: "HPE", model: "ProLiant DL380a Gen11", serial: "MXQ0000001", sku: "P54903-B21",
		system: "1", chassis: "1", manager: "1", uuid: "34383350-0000-584d-5130-000000000001", bios: "U58 v2.20", bmc: "iLO 6 v1.58",
		tags: true, resetInline: true, led: "IndicatorLED", nics: numbered("%d", 1, 4), session: 30, events: eventTypes,
		plant:  plant{supplies: 4, supplyMin: 2, fans: 6, fanMin: 4},
		resets: []string{"On", "ForceOff", "GracefulShutdown", "ForceRestart", "Nmi", "PushPowerButton", "GracefulRestart"},
		boot: Doc{propEnabled: "Disabled", propTarget: "None", propMode: "UEFI", "BootOrder": list("Boot000F", "Boot0010"),
			propTarget + allowable: list("None", "Cd", "Hdd", "Usb", "Utilities", "Diags", "BiosSetup", "Pxe", "UefiShell", "UefiHttp", "UefiTarget")},
	}
	b := m.base()
	sys := root + "/Systems/1/Processors"
	b.collection(sys, "Processor", append([]string{"CPU0", "CPU1"}, numbered("GPU%d", 1, 4)...)...)
	for _, g := range numbered("GPU%d", 1, 4) {
		b.gpu(sys+"/"+g, "NVIDIA", "NVIDIA H100 NVL", g, "")
	}
	b.change(root+"/Systems/1", Doc{"Oem": Doc{"Hpe": Doc{"Actions": Doc{"#HpeComputerSystemExt.SystemReset": Doc{
		"target": root + "/Systems/1/Actions/Oem/Hpe/HpeComputerSystemExt.SystemReset", "ResetType@Redfish.AllowableValues": list("ColdBoot", "AuxCycle")}}}}})
	return b.docs, quirksHPE()
}

// quirksLenovo: only a one-time override, none over HTTP; the machine stays off after ForceRestart.
func quirksLenovo() Quirks {
	return Quirks{ForceRestartHangs: true, AlreadyStatus: 0, SessionTimeout: 5 * time.Minute, MaxSessions: 16}
}

func buildLenovo() (Tree, Quirks) {
	m := machine{
		vendor: "Lenovo", maker: "Lenovo", model: "ThinkSystem SR675 V3", serial: "J1000001", sku: "7D9RCTO1WW",
		system: "1", chassis: "1", manager: "1", uuid: "6173ecec-0000-11ee-834a-000000000001", bios: "QGE120E", bmc: "QGX330",
		tags: true, resetInline: true, led: "IndicatorLED", nics: append(numbered("NIC%d", 1, 2), "ToManager"), session: 300, plant: plant{supplies: 4, supplyMin: 2, fans: 10, fanMin: 8},
		resets: []string{"On", "Nmi", "GracefulShutdown", "GracefulRestart", "ForceOn", "ForceOff", "ForceRestart"},
		boot: Doc{propEnabled: "Disabled", propTarget: "None", propMode: "UEFI", "UefiTargetBootSourceOverride": nil,
			"BootOrder": list("Boot0003", "Boot0002"), propEnabled + allowable: list("Once", "Disabled"),
			propTarget + allowable: list("None", "Pxe", "Cd", "Usb", "Hdd", "BiosSetup", "Diags", "UefiTarget")},
		settings: "Pending", settingsBoot: Doc{"BootOrder": list("Boot0003", "Boot0002")},
		lockout: [3]int{0, 60, 60}, sse: root + "/EventService/ServerSentEvent",
	}
	b := m.base()
	sys := root + "/Systems/1/Processors"
	b.collection(sys, "Processor", append([]string{"CPU0", "CPU1"}, numbered("GPU%d", 1, 8)...)...)
	for _, g := range numbered("GPU%d", 1, 8) {
		b.gpu(sys+"/"+g, "NVIDIA Corporation", "NVIDIA H100 NVL", g, "")
	}
	b.change(root+"/Systems/1", Doc{"Actions": Doc{"Oem": Doc{"#LenovoComputerSystem.SystemReset": Doc{
		"target": root + "/Systems/1/Actions/Oem/LenovoComputerSystem.SystemReset", "ResetType@Redfish.AllowableValues": list("ACPowerCycle")}}}})
	return b.docs, quirksLenovo()
}

// quirksOpenBMC: as NVIDIA's own trays.
func quirksOpenBMC() Quirks {
	return Quirks{SessionTimeout: 30 * time.Minute, MaxSessions: 64}
}

// buildGB200 is a GB200 NVL tray: maker, model and serial are null on the system and live on the chassis; no mode.
func buildGB200() (Tree, Quirks) {
	boot := func() Doc {
		return Doc{propEnabled: "Disabled", propTarget: "None", "BootOrder": list("Boot0011", "Boot0002"),
			propEnabled + allowable: list("Once", "Continuous", "Disabled"),
			propTarget + allowable:  list("None", "Pxe", "Hdd", "Cd", "Diags", "BiosSetup", "Usb")}
	}
	m := machine{
		vendor: "NVIDIA", product: "GB200 NVL", maker: "NVIDIA", model: "GB200 NVL", serial: "1770000000001", bmc: "gb200nvl-bmc-1.00",
		system: "System_0", chassis: "Chassis_0", manager: "BMC_0", uuid: "501f0000-84ea-8579-cf52-000000000001",
		resets: openBMCResets, led: "LocationIndicatorActive", bootProgress: true, boot: boot(), settings: "Settings", settingsBoot: boot(),
		session: 1800, sse: root + "/EventService/SSE", extraSystems: []string{"HGX_Baseboard_0"}, extraManagers: []string{"HGX_BMC_0"},
		plant: plant{fans: 8, fanMin: 6, newFans: true}, // its power comes from the rack's shelves
	}
	b := m.base()
	var sys Doc
	mustDecode(b.docs[root+"/Systems/System_0"], &sys)
	sys["Manufacturer"], sys["Model"], sys["SerialNumber"], sys["BiosVersion"] = nil, nil, nil, nil
	delete(sys, "EthernetInterfaces")
	b.add(root+"/Systems/System_0", "ComputerSystem.v1_17_0.ComputerSystem", sys)
	b.baseboard("HGX_Baseboard_0", "NVIDIA", "GB200 186GB HBM3e", "GPU_%d", "GPU_%d", 0, 4)
	b.hgxManager()
	thermal := root + "/Chassis/Chassis_0/ThermalSubsystem"
	b.change(thermal, Doc{"LeakDetection": link(thermal + "/LeakDetection")})
	b.add(thermal+"/LeakDetection", "LeakDetection.v1_0_0.LeakDetection", Doc{"LeakDetectors": link(thermal + "/LeakDetection/LeakDetectors"), "Status": status()})
	leak := thermal + "/LeakDetection/LeakDetectors"
	b.collection(leak, "LeakDetector", "Chassis_0_LeakDetector_0_ColdPlate", "Chassis_0_LeakDetector_1_ColdPlate")
	for _, n := range []string{"Chassis_0_LeakDetector_0_ColdPlate", "Chassis_0_LeakDetector_1_ColdPlate"} {
		b.add(leak+"/"+n, "LeakDetector.v1_1_0.LeakDetector", Doc{"LeakDetectorType": "Moisture", "DetectorState": "OK", "Status": status()})
	}
	tray, info := root+"/Chassis/BMC_0", root+"/Chassis/BMC_0/Oem/Nvidia/AuxPowerResetActionInfo"
	b.add(tray, "Chassis.v1_22_0.Chassis", Doc{"Name": "BMC_0", "ChassisType": "Component", "Status": status(), "Actions": Doc{"Oem": Doc{
		"#NvidiaChassis.AuxPowerReset": Doc{"target": tray + "/Actions/Oem/NvidiaChassis.AuxPowerReset", "@Redfish.ActionInfo": info}}}})
	b.add(info, "ActionInfo.v1_2_0.ActionInfo", Doc{"Parameters": []any{Doc{"Name": "ResetType", "Required": true, "DataType": "String", "AllowableValues": list("AuxPowerCycle")}}})
	b.change(root+"/Chassis", Doc{"Members": list(link(root+"/Chassis/Chassis_0"), link(tray)), "Members@odata.count": 2})
	return b.docs, quirksOpenBMC()
}
