package lab

import (
	"fmt"
	"slices"

	"gpupool/schema/hardware"
)

// What every server of the lab is built of, beside its devices: what its agent reads while nothing of it is at fault.
const (
	labMemory     = 2 << 40 // where a server's is not told
	labDIMMs      = 32
	labNVMes      = drivesOf
	labNVMeBytes  = 3_840_755_982_336
	labFabric     = 8 // ports
	labFabricGbps = 400
	labStorage    = 2 // ports
	labNIC        = "28.43.2026"
	labNVMe       = "GDC7302Q"
	labBIOS       = "1.6.7" // where the BMC tells none
)

// Build is the order of the lab's servers with so many accelerators and the usual memory: what they have. Their BIOS is their BMC profile's.
func Build(accelerators int) []hardware.Line {
	return []hardware.Line{
		{Part: hardware.Accelerator, Count: accelerators, Lanes: 16},
		{Part: hardware.DIMM, Count: labDIMMs, Bytes: labMemory / labDIMMs},
		{Part: hardware.NVMe, Count: labNVMes, Bytes: 3_840_000_000_000, Lanes: 4, Firmware: ">=" + labNVMe},
		{Part: hardware.NIC, Count: labFabric, Gbps: labFabricGbps, Lanes: 16, Firmware: ">=28.43"},
		{Part: hardware.NIC, Count: labStorage, Gbps: 25, Lanes: 8},
	}
}

// parts are what the agent reads.
func (m *machine) parts() hardware.Read {
	m.mu.Lock()
	faults := slices.Clone(m.st.Faults)
	m.mu.Unlock()
	has := func(kind string) bool { return slices.Contains(faults, kind) }
	bios, told := m.bmc.Resource(m.bmc.SystemPath())["BiosVersion"].(string)
	if !told {
		bios = labBIOS
	}
	r := hardware.Read{Parts: []hardware.Part{{Kind: hardware.BIOS, Name: "the system", Firmware: bios}}}
	for i := range labDIMMs {
		p := hardware.Part{Kind: hardware.DIMM, Name: fmt.Sprintf("DIMM%d", i+1), Bytes: m.cfg.Memory / labDIMMs, Serial: fmt.Sprintf("%s-D%d", m.cfg.Serial, i+1)}
		if i == 5 && has(DIMMMissing) {
			p.Bytes, p.Serial = 0, ""
		}
		r.Parts = append(r.Parts, p)
	}
	for i := range labNVMes {
		p := hardware.Part{Kind: hardware.NVMe, Name: fmt.Sprintf("nvme%d", i), Bytes: labNVMeBytes, Lanes: 4, Firmware: labNVMe, Serial: fmt.Sprintf("%s-NVME%d", m.cfg.Serial, i)}
		if i == 1 && has(NVMeNarrow) {
			p.Lanes = 2
		}
		if i != 2 || !has(NVMeMissing) {
			r.Parts = append(r.Parts, p)
		}
	}
	for i := range labFabric {
		p := hardware.Part{Kind: hardware.NIC, Name: fmt.Sprintf("mlx5_%d/1", i), Gbps: labFabricGbps, Lanes: 16, Firmware: labNIC}
		switch {
		case i == 2 && has(NICDown):
			p.Gbps = 0
		case i == 4 && has(NICSlow):
			p.Gbps /= 4
		case i == 7 && has(OldFirmware):
			p.Firmware = "28.39.1002"
		}
		r.Parts = append(r.Parts, p)
	}
	for i := range labStorage {
		r.Parts = append(r.Parts, hardware.Part{Kind: hardware.NIC, Name: fmt.Sprintf("eno%d", i+1), Gbps: 25, Lanes: 8, Firmware: "22.31.6"})
	}
	return r
}
