package bmc

import (
	"encoding/json"
	"fmt"
	"strings"
)

// builder collects the resources of a generated tree.
type builder struct {
	docs mapTree
	tags bool // resources carry entity tags
}

const root = "/redfish/v1"

// add puts a resource, filling in what every resource has.
func (b *builder) add(path, typ string, d Doc) {
	d["@odata.id"], d["@odata.type"] = path, "#"+typ
	if d["Id"] == nil {
		d["Id"] = path[strings.LastIndexByte(path, '/')+1:]
	}
	if d["Name"] == nil {
		d["Name"] = d["Id"]
	}
	if b.tags {
		d["@odata.etag"] = fmt.Sprintf(`"%x"`, 0x66000000+len(b.docs))
	}
	raw, err := json.Marshal(d)
	if err != nil {
		panic(fmt.Sprintf("lab bmc: %s: %v", path, err)) // our own literals
	}
	b.docs[path] = raw
}

// change merges into a resource that is there.
func (b *builder) change(path string, with Doc) {
	var d Doc
	mustDecode(b.docs[path], &d)
	merge(d, with)
	raw, err := json.Marshal(d)
	if err != nil {
		panic(fmt.Sprintf("lab bmc: %s: %v", path, err)) // our own literals
	}
	b.docs[path] = raw
}

// collection puts a collection of members given by full path or by last segment.
func (b *builder) collection(path, typ string, names ...string) {
	list := []any{}
	for _, n := range names {
		if !strings.HasPrefix(n, "/") {
			n = path + "/" + n
		}
		list = append(list, link(n))
	}
	b.add(path, typ+"Collection."+typ+"Collection", Doc{"Members": list, "Members@odata.count": len(list)})
}

func link(path string) Doc { return Doc{"@odata.id": path} }

func status() Doc { return Doc{"State": "Enabled", "Health": "OK", "HealthRollup": "OK"} }

func list[T any](v ...T) []any {
	out := make([]any, len(v))
	for i, x := range v {
		out[i] = x
	}
	return out
}

// machine is what the generated trees have in common, and where they differ.
type machine struct {
	vendor, product           string // of the service root; "" is null
	maker, model, serial, sku string // of the system; "" is null
	system, chassis, manager  string // ids
	uuid, bios, bmc           string
	tags                      bool
	resetInline               bool
	resets                    []string
	boot                      Doc    // Boot of the system
	settings                  string // id of the settings resource, "" for none
	settingsBoot              Doc
	nics                      []string
	led                       string // IndicatorLED or LocationIndicatorActive
	lockout                   [3]int // threshold, duration s, reset after s
	session                   int    // seconds
	bootProgress              bool
	sse                       string   // ServerSentEventUri, "" is absent
	events                    []string // EventTypesForSubscription, nil is absent
	extraSystems              []string
	extraChassis              []string
	extraManagers             []string
	plant                     plant
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// base builds everything but the accelerators.
func (m machine) base() *builder {
	b := &builder{docs: mapTree{}, tags: m.tags}
	sys, ch, mgr := root+"/Systems/"+m.system, root+"/Chassis/"+m.chassis, root+"/Managers/"+m.manager

	svc := Doc{
		"Name": "Root Service", "Id": "RootService", "RedfishVersion": "1.15.0", "UUID": m.uuid,
		"Vendor": orNull(m.vendor), "Product": orNull(m.product),
		"Systems": link(root + "/Systems"), "Chassis": link(root + "/Chassis"), "Managers": link(root + "/Managers"),
		"SessionService": link(root + "/SessionService"), "AccountService": link(root + "/AccountService"),
		"UpdateService": link(root + "/UpdateService"), "Tasks": link(root + "/TaskService"),
		"EventService": link(root + "/EventService"),
		"Links":        Doc{"Sessions": link(sessionsPath)},
	}
	if m.maker == "Supermicro" {
		svc["Oem"] = Doc{"Supermicro": Doc{}}
	}
	b.add(root, "ServiceRoot.v1_13_0.ServiceRoot", svc)
	b.collection(root+"/Systems", "ComputerSystem", append([]string{m.system}, m.extraSystems...)...)
	b.collection(root+"/Chassis", "Chassis", append([]string{m.chassis}, m.extraChassis...)...)
	b.collection(root+"/Managers", "Manager", append([]string{m.manager}, m.extraManagers...)...)
	b.collection(root+"/TaskService/Tasks", "Task")
	b.add(root+"/TaskService", "TaskService.v1_1_3.TaskService", Doc{"ServiceEnabled": true, "Tasks": link(root + "/TaskService/Tasks")})

	reset := Doc{"target": sys + "/Actions/ComputerSystem.Reset"}
	if m.resetInline {
		reset["ResetType@Redfish.AllowableValues"] = list(m.resets...)
	} else {
		reset["@Redfish.ActionInfo"] = sys + "/ResetActionInfo"
		b.add(sys+"/ResetActionInfo", "ActionInfo.v1_1_2.ActionInfo", Doc{"Parameters": []any{
			Doc{"Name": "ResetType", "Required": true, "DataType": "String", "AllowableValues": list(m.resets...)},
		}})
	}
	system := Doc{
		"Name": "System", "SystemType": "Physical", "PowerState": "On", "Status": status(),
		"Manufacturer": orNull(m.maker), "Model": orNull(m.model), "SerialNumber": orNull(m.serial), "SKU": orNull(m.sku),
		"UUID": m.uuid, "BiosVersion": orNull(m.bios), "Boot": m.boot,
		"Processors": link(sys + "/Processors"), "Memory": link(sys + "/Memory"), "LogServices": link(sys + "/LogServices"),
		"EthernetInterfaces": link(sys + "/EthernetInterfaces"), "Bios": link(sys + "/Bios"),
		"MemorySummary":    Doc{"TotalSystemMemoryGiB": 2048, "Status": status()},
		"ProcessorSummary": Doc{"Count": 2, "CoreCount": 112, "Status": status()},
		"Links":            Doc{"Chassis": list(link(ch)), "ManagedBy": list(link(mgr))},
		"Actions":          Doc{"#ComputerSystem.Reset": reset},
	}
	m.boot["BootOptions"] = link(sys + "/BootOptions")
	if m.settings != "" {
		set := sys + "/" + m.settings
		system["@Redfish.Settings"] = Doc{"@odata.type": "#Settings.v1_3_5.Settings", "SettingsObject": link(set)}
		b.add(set, "ComputerSystem.v1_17_0.ComputerSystem", Doc{"Name": "Pending Settings", "Boot": m.settingsBoot})
	}
	if m.bootProgress {
		system["BootProgress"] = Doc{"LastState": "OSRunning"}
	}
	setLED(system, m.led)
	b.add(sys, "ComputerSystem.v1_17_0.ComputerSystem", system)

	b.collection(sys+"/Processors", "Processor", "CPU0", "CPU1")
	for _, cpu := range []string{"CPU0", "CPU1"} {
		b.add(sys+"/Processors/"+cpu, "Processor.v1_16_0.Processor", Doc{"ProcessorType": "CPU", "TotalCores": 56, "Status": status()})
	}
	b.collection(sys+"/Memory", "Memory")
	b.collection(sys+"/EthernetInterfaces", "EthernetInterface", m.nics...)
	for i, nic := range m.nics {
		b.add(sys+"/EthernetInterfaces/"+nic, "EthernetInterface.v1_9_0.EthernetInterface",
			Doc{"MACAddress": fmt.Sprintf("02:00:00:00:00:%02X", i+1), "LinkStatus": "LinkUp", "Status": status()})
	}
	b.collection(sys+"/LogServices", "LogService", "EventLog")
	b.logService(sys + "/LogServices/EventLog")

	var options []string
	for i, ref := range strs(m.boot["BootOrder"]) {
		mac := fmt.Sprintf("0200000000%02X", i+1)
		o := Doc{"BootOptionReference": ref, "BootOptionEnabled": true, "DisplayName": "UEFI: PXE IPv4 NIC " + fmt.Sprint(i+1),
			"UefiDevicePath": "PciRoot(0x0)/Pci(0x10,0x0)/MAC(" + mac + ",0x1)/IPv4(0.0.0.0)"}
		if i > 0 {
			o["DisplayName"], o["UefiDevicePath"] = "Debian", "HD(1,GPT,6634D938-1211-4F7A-89C6-A35A60BE1E4A)/\\EFI\\debian\\shimx64.efi"
		}
		b.add(sys+"/BootOptions/"+ref, "BootOption.v1_0_4.BootOption", o)
		options = append(options, ref)
	}
	b.collection(sys+"/BootOptions", "BootOption", options...)
	b.add(sys+"/Bios/Settings", "Bios.v1_2_0.Bios", Doc{"Attributes": Doc{}})
	b.add(sys+"/Bios", "Bios.v1_2_0.Bios", Doc{
		"@Redfish.Settings": Doc{"@odata.type": "#Settings.v1_3_5.Settings", "SettingsObject": link(sys + "/Bios/Settings")},
		"Attributes":        Doc{"SRIOVEnable": true, "BootMode": "Uefi", "NumaNodes": 2},
	})
	b.collection(mgr+"/VirtualMedia", "VirtualMedia", "CD")
	b.add(mgr+"/VirtualMedia/CD", "VirtualMedia.v1_6_0.VirtualMedia", Doc{
		"MediaTypes": list("CD", "DVD"), "Image": nil, "Inserted": false, "WriteProtected": true, "ConnectedVia": "NotConnected",
		"Actions": Doc{
			"#VirtualMedia.InsertMedia": Doc{"target": mgr + "/VirtualMedia/CD/Actions/VirtualMedia.InsertMedia"},
			"#VirtualMedia.EjectMedia":  Doc{"target": mgr + "/VirtualMedia/CD/Actions/VirtualMedia.EjectMedia"},
		},
	})

	chassis := Doc{
		"ChassisType": "RackMount", "Manufacturer": orNull(m.maker), "Model": orNull(m.model), "SerialNumber": orNull(m.serial),
		"PowerState": "On", "Status": status(), "PCIeDevices": link(ch + "/PCIeDevices"), "Sensors": link(ch + "/Sensors"),
		"Links": Doc{"ComputerSystems": list(link(sys)), "ManagedBy": list(link(mgr))},
	}
	setLED(chassis, m.led)
	b.add(ch, "Chassis.v1_22_0.Chassis", chassis)
	b.collection(ch+"/PCIeDevices", "PCIeDevice")
	b.collection(ch+"/Sensors", "Sensor", "Inlet_Temp", "PSU0_Power")
	b.add(ch+"/Sensors/Inlet_Temp", "Sensor.v1_7_0.Sensor", Doc{
		"ReadingType": "Temperature", "ReadingUnits": "Cel", "Reading": 24.5, "Status": status(),
		"Thresholds": Doc{"UpperCritical": Doc{"Reading": 45}},
	})
	b.add(ch+"/Sensors/PSU0_Power", "Sensor.v1_7_0.Sensor", Doc{
		"ReadingType": "Power", "ReadingUnits": "W", "Reading": 812, "Status": status(),
	})

	b.plant(m.chassis, m.plant)

	b.add(mgr, "Manager.v1_11_0.Manager", Doc{
		"VirtualMedia": link(mgr + "/VirtualMedia"),
		"ManagerType":  "BMC", "Name": "Manager", "FirmwareVersion": m.bmc, "Status": status(),
		"Links": Doc{"ManagerForServers": list(link(sys))},
		"Actions": Doc{"#Manager.Reset": Doc{
			"target": mgr + "/Actions/Manager.Reset", "ResetType@Redfish.AllowableValues": list("GracefulRestart", "ForceRestart")}},
	})

	b.add(root+"/SessionService", "SessionService.v1_1_8.SessionService",
		Doc{"ServiceEnabled": true, "SessionTimeout": m.session, "Sessions": link(sessionsPath)})
	b.add(root+"/AccountService", "AccountService.v1_12_0.AccountService", Doc{
		"AccountLockoutThreshold": m.lockout[0], "AccountLockoutDuration": m.lockout[1], "AccountLockoutCounterResetAfter": m.lockout[2],
		"MinPasswordLength": 8, "Accounts": link(root + "/AccountService/Accounts"),
	})
	b.collection(root+"/AccountService/Accounts", "ManagerAccount", "1")
	b.add(root+"/AccountService/Accounts/1", "ManagerAccount.v1_8_0.ManagerAccount", Doc{
		"UserName": "admin", "Password": nil, "RoleId": "Administrator", "Enabled": true, "Locked": false, "PasswordChangeRequired": false,
	})
	b.add(root+"/UpdateService", "UpdateService.v1_11_0.UpdateService",
		Doc{"ServiceEnabled": true, "FirmwareInventory": link(root + "/UpdateService/FirmwareInventory")})
	b.collection(root+"/UpdateService/FirmwareInventory", "SoftwareInventory", "BIOS", "BMC")
	b.add(root+"/UpdateService/FirmwareInventory/BIOS", "SoftwareInventory.v1_8_0.SoftwareInventory", Doc{"Version": m.bios, "Status": status()})
	b.add(root+"/UpdateService/FirmwareInventory/BMC", "SoftwareInventory.v1_8_0.SoftwareInventory", Doc{"Version": m.bmc, "Status": status()})
	events := Doc{"ServiceEnabled": true, "Subscriptions": link(subscriptionsPath)}
	if m.events != nil {
		events["EventTypesForSubscription"] = list(m.events...)
	}
	if m.sse != "" {
		events["ServerSentEventUri"] = m.sse
	}
	b.collection(subscriptionsPath, "EventDestination")
	b.add(root+"/EventService", "EventService.v1_9_0.EventService", events)
	return b
}

func setLED(d Doc, kind string) {
	switch kind {
	case "LocationIndicatorActive":
		d["LocationIndicatorActive"] = false
	case "IndicatorLED":
		d["IndicatorLED"] = "Off"
		d["IndicatorLED"+allowable] = list("Lit", "Blinking", "Off")
	}
}

func (b *builder) logService(path string) {
	b.add(path, "LogService.v1_3_0.LogService", Doc{"ServiceEnabled": true, "Entries": link(path + "/Entries")})
	b.collection(path+"/Entries", "LogEntry")
}

// baseboard adds a GPU baseboard as a system of its own, which has neither a reset nor a boot.
func (b *builder) baseboard(id, vendor, model, format, slot string, first, n int) {
	sys := root + "/Systems/" + id
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf(format, first+i)
		gpu, mem := sys+"/Processors/"+names[i], sys+"/Memory/"+names[i]+"_DRAM_0"
		b.gpu(gpu, vendor, model, fmt.Sprintf(slot, first+i), mem)
		b.add(mem, "Memory.v1_19_0.Memory", Doc{"MemoryType": "DRAM", "Status": status(), "Metrics": link(mem + "/MemoryMetrics")})
		b.add(mem+"/MemoryMetrics", "MemoryMetrics.v1_7_0.MemoryMetrics", Doc{
			"Name":     "Memory Metrics",
			"LifeTime": Doc{"CorrectableECCErrorCount": 0, "UncorrectableECCErrorCount": 0},
			"Oem": Doc{"Nvidia": Doc{"RowRemappingFailed": false,
				"RowRemapping": Doc{"CorrectableRowRemappingCount": 0, "UncorrectableRowRemappingCount": 0}}},
		})
	}
	b.collection(sys+"/Processors", "Processor", names...)
	mems := make([]string, n)
	for i := range mems {
		mems[i] = names[i] + "_DRAM_0"
	}
	b.collection(sys+"/Memory", "Memory", mems...)
	b.collection(sys+"/LogServices", "LogService", "EventLog")
	b.logService(sys + "/LogServices/EventLog")
	b.add(sys, "ComputerSystem.v1_17_0.ComputerSystem", Doc{
		"Name": id, "SystemType": "Physical", "PowerState": "On", "Manufacturer": vendor, "Model": nil, "SerialNumber": nil,
		"Status": status(), "Processors": link(sys + "/Processors"), "Memory": link(sys + "/Memory"), "LogServices": link(sys + "/LogServices"),
	})
}

// gpu adds an accelerator as a Processor with its metrics.
func (b *builder) gpu(path, vendor, model, slot, memory string) {
	d := Doc{
		"ProcessorType": "GPU", "Manufacturer": vendor, "Model": model, "SerialNumber": nil, "UUID": nil,
		"FirmwareVersion": "96.00.89.00.01", "Status": status(), "Metrics": link(path + "/ProcessorMetrics"),
		"Location": Doc{"PartLocation": Doc{"LocationType": "Slot", "ServiceLabel": slot}},
	}
	if memory != "" {
		d["Links"] = Doc{"Memory": list(link(memory))}
	}
	b.add(path, "Processor.v1_16_0.Processor", d)
	b.add(path+"/ProcessorMetrics", "ProcessorMetrics.v1_6_0.ProcessorMetrics", Doc{
		"Name": "Processor Metrics", "TemperatureCelsius": 41, "ConsumedPowerWatt": 92, "OperatingSpeedMHz": 345,
		"CacheMetricsTotal": Doc{"LifeTime": Doc{"CorrectableECCErrorCount": 0, "UncorrectableECCErrorCount": 0}},
		"PCIeErrors":        Doc{"CorrectableErrorCount": 0, "NonFatalErrorCount": 0, "FatalErrorCount": 0, "ReplayCount": 0},
	})
}

// pcieGPU adds an accelerator as a PCIeDevice, which is how some makers show it.
func (b *builder) pcieGPU(path, vendor, model string, slot int) {
	b.add(path, "PCIeDevice.v1_5_0.PCIeDevice", Doc{
		"Description": fmt.Sprintf("GPU Device %d", slot), "Manufacturer": vendor, "Model": model, "SerialNumber": nil,
		"FirmwareVersion": "96.00.61.00.01", "DeviceType": "MultiFunction", "Status": status(),
		"PCIeInterface": Doc{"PCIeType": "Gen5", "LanesInUse": 16, "MaxLanes": 16},
		"Oem":           Doc{"Supermicro": Doc{"GPUSlot": slot, "GPUVendor": vendor}},
	})
}

func numbered(format string, first, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf(format, first+i)
	}
	return out
}

// mustDecode reads our own JSON back.
func mustDecode(b []byte, into any) {
	if err := json.Unmarshal(b, into); err != nil {
		panic(fmt.Sprintf("lab bmc: %v", err))
	}
}
