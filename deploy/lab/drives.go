package lab

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gpupool/deploy/lab/netboot"
	"gpupool/schema"
	"gpupool/worker/installer/sanitise"
)

// driveBytes is a simulated drive's size: what matters is what it says, not how long it takes.
const driveBytes = 1 << 20

// drivesOf is how many drives a server has: one that its system is on, and its data's.
const drivesOf = 3

// nvme is a simulated drive that speaks the NVMe admin command set.
type nvme struct {
	serial             string
	media              []byte
	lying, unsupported bool
	began              bool
}

func (n *nvme) ReadAt(p []byte, off int64) (int, error)  { return copy(p, n.media[off:]), nil }
func (n *nvme) WriteAt(p []byte, off int64) (int, error) { return copy(n.media[off:], p), nil }
func (n *nvme) Flush() error                             { return nil }

// Admin implements sanitise.NVMe: identify, sanitize and its log page.
func (n *nvme) Admin(c sanitise.NVMeCommand) error {
	switch {
	case c.Opcode == 0x06 && c.CDW10 == 1:
		copy(c.Data[4:24], fmt.Sprintf("%-20s", n.serial))
		copy(c.Data[24:64], fmt.Sprintf("%-40s", "Lab NVMe 1M"))
		if !n.unsupported {
			binary.LittleEndian.PutUint32(c.Data[328:], 1<<1)
		}
	case c.Opcode == 0x84 && !n.unsupported:
		n.began = true
	case c.Opcode == 0x02 && c.CDW10&0xff == 0x81:
		if n.began {
			if !n.lying {
				clear(n.media)
			}
			binary.LittleEndian.PutUint16(c.Data[2:], 1)
		}
	default:
		return sanitise.NVMeStatus(0x1)
	}
	return nil
}

// sanitise is the run that empties the server's drives, with the installer's own code on simulated drives.
func (m *machine) sanitise(ctx context.Context, from netip.Addr, base string) next {
	b, err := netboot.Get(ctx, from, base+schema.SanitiseName)
	var order schema.SanitiseOrder
	if err == nil {
		err = json.Unmarshal(b, &order)
	}
	if err == nil && order.Serial != m.cfg.Serial {
		err = fmt.Errorf("the order is for serial %q, this is %q", order.Serial, m.cfg.Serial)
	}
	if err != nil {
		m.print("installer: order to sanitise: %v", err)
		return m.halt(ctx)
	}
	if err := netboot.Post(ctx, from, base+schema.InstallReportName, schema.InstallReport{State: schema.InstallRunning, Text: fmt.Sprintf("sanitises %d disks", drivesOf)}); err != nil {
		m.print("installer: report: %v", err)
	}
	if m.waitFault(ctx, InstallHang, false) != nil || m.sleep(ctx, installTime) != nil {
		return nextHalt
	}
	var results []schema.DriveResult
	for i := range drivesOf {
		d := &nvme{serial: fmt.Sprintf("%s-NVME%d", m.cfg.Serial, i), media: []byte(strings.Repeat("tenant's ", driveBytes/9+1))[:driveBytes], lying: i == 1 && m.hasFault(DriveLying), unsupported: i == 2 && m.hasFault(DriveUnsupported)}
		serial, model, methods, err := sanitise.NVMeDrive(d, 1, sanitise.Poll{Every: 10 * time.Millisecond, Stuck: time.Second})
		results = append(results, sanitise.Run(ctx, sanitise.Drive{Serial: serial, Model: model, Name: fmt.Sprintf("nvme%dn1", i), Bus: "nvme", Bytes: driveBytes, Media: d, Methods: methods, Trouble: err},
			sanitise.Policy{Overwrite: order.Overwrite, Now: m.lab.cfg.Now}, func(line string) { m.print("installer: %s", line) }))
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(m.dir, "disk")), netboot.Post(ctx, from, base+schema.InstallReportName, schema.InstallReport{State: schema.InstallDone, Text: "the sanitise run is over", Drives: results})); err != nil {
		m.print("installer: %v", err)
	}
	m.change(func(s *state) { s.Disk = nil })
	m.print("installer: waits to be switched off")
	return m.halt(ctx)
}
