package installer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"gpupool/schema"
	"gpupool/worker/installer/sanitise"
)

// Sanitise makes every disk of this server forget what is on it, and tells the platform of each what came of it. When it returns
// nil the platform knows; the machine waits to be switched off. Any error was reported, and printed.
func Sanitise(ctx context.Context, cfg Config, log *slog.Logger) error {
	return reported(ctx, cfg, log, (*session).sanitise)
}

func (s *session) sanitise(ctx context.Context) error {
	var order schema.SanitiseOrder
	b, err := s.fetch(ctx, s.cfg.Base()+"/"+schema.SanitiseName, 1<<20)
	if err == nil {
		err = json.Unmarshal(b, &order)
	}
	if err != nil {
		return fmt.Errorf("the order to sanitise: %w", err)
	}
	if err := isOrdered(order, machineSerial("/")); err != nil {
		return err
	}
	disks, err := s.settled(ctx)
	if err != nil {
		return err
	}
	if err := s.report(ctx, schema.InstallReport{State: schema.InstallRunning, Text: fmt.Sprintf("sanitises %d disks", len(disks))}); err != nil {
		return err
	}
	results := make([]schema.DriveResult, 0, len(disks))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, d := range disks {
		if d.Serial != "" && slices.Contains(order.Done, d.Serial) {
			continue
		}
		wg.Go(func() {
			r := sanitiseDisk(ctx, d, order.Overwrite, func(text string) {
				mu.Lock()
				defer mu.Unlock()
				s.log.Info(text)
				if err := s.reportOnce(ctx, schema.InstallReport{State: schema.InstallRunning, Text: text}); err != nil {
					s.log.Warn("progress could not be reported", "err", redact(err.Error()))
				}
			})
			mu.Lock()
			defer mu.Unlock()
			results = append(results, r)
		})
	}
	wg.Wait()
	slices.SortFunc(results, func(a, b schema.DriveResult) int { return strings.Compare(a.Name, b.Name) })
	return s.report(ctx, schema.InstallReport{State: schema.InstallDone, Text: fmt.Sprintf("the sanitise run of %d disks is over; this server waits to be switched off", len(results)), Drives: results})
}

// isOrdered refuses a machine that says that it is another. One that says nothing was told apart by its network card.
func isOrdered(o schema.SanitiseOrder, serial string) error {
	if serial != "" && !strings.EqualFold(serial, o.Serial) {
		return fmt.Errorf("this machine's serial is %q and the order is for %q (server %s): nothing was touched", serial, o.Serial, o.Server)
	}
	return nil
}

func machineSerial(root string) string {
	b, err := os.ReadFile(root + "sys/class/dmi/id/product_serial")
	s := strings.TrimSpace(string(b))
	if err != nil || slices.Contains([]string{"Not Specified", "Default string", "To be filled by O.E.M.", "None", "0"}, s) {
		return ""
	}
	return s
}

// settled lists the disks once their number has not changed for a while: controllers come up after the kernel.
func (s *session) settled(ctx context.Context) ([]Disk, error) {
	const quiet = 5 * time.Second
	var last []Disk
	for same, end := time.Now(), time.Now().Add(time.Minute); ; {
		all, err := Disks("/")
		if err != nil {
			return nil, err
		}
		all = slices.DeleteFunc(all, func(d Disk) bool { return d.Removable })
		if len(all) != len(last) {
			same = time.Now()
		}
		last = all
		if len(last) > 0 && time.Since(same) > quiet || time.Now().After(end) {
			return last, nil
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func sanitiseDisk(ctx context.Context, d Disk, overwrite bool, tell func(string)) schema.DriveResult {
	out := sanitise.Drive{Serial: d.Serial, Model: d.Model, Name: d.Name, Bus: d.Bus, Bytes: d.Bytes}
	f, err := claim(d)
	if err != nil {
		now := schema.At(time.Now())
		return schema.DriveResult{Serial: d.Serial, Model: d.Model, Name: d.Name, Bus: d.Bus, Bytes: d.Bytes, Outcome: schema.DriveFailed, Trouble: schema.DriveInUse,
			Words: fmt.Sprintf("it could not be opened: %v", err), Started: now, Ended: now}
	}
	defer f.Close()
	out.Media = blocks{f}
	switch d.Bus {
	case "nvme":
		nsid, err := unix.IoctlRetInt(int(f.Fd()), nvmeID)
		if err != nil {
			out.Trouble = err
			break
		}
		_, _, out.Methods, out.Trouble = sanitise.NVMeDrive(controller{f}, uint32(nsid), sanitise.DefaultPoll)
	case "scsi":
		out.Methods, out.Trouble = sanitise.SCSIDrive(target{f}, sanitise.DefaultPoll)
	}
	return sanitise.Run(ctx, out, sanitise.Policy{Overwrite: overwrite, Now: time.Now}, tell)
}

// blocks are a disk's, as the kernel gives them.
type blocks struct{ f *os.File }

func (b blocks) ReadAt(p []byte, off int64) (int, error)  { return b.f.ReadAt(p, off) }
func (b blocks) WriteAt(p []byte, off int64) (int, error) { return b.f.WriteAt(p, off) }

// Flush forgets what the kernel read before: it doesn't know that a drive's own command changed it.
func (b blocks) Flush() error {
	return errors.Join(b.f.Sync(), unix.IoctlSetInt(int(b.f.Fd()), unix.BLKFLSBUF, 0))
}

// controller is an NVMe controller by the ioctls of linux/nvme_ioctl.h.
type controller struct{ f *os.File }

const (
	nvmeID       = 0x4e40     // NVME_IOCTL_ID: _IO('N', 0x40)
	nvmeAdminCmd = 0xc0484e41 // NVME_IOCTL_ADMIN_CMD: _IOWR('N', 0x41, struct nvme_passthru_cmd)
)

// nvmePassthru is struct nvme_passthru_cmd.
type nvmePassthru struct {
	opcode, flags        uint8
	_                    uint16
	nsid, cdw2, cdw3     uint32
	metadata, addr       uint64
	metadataLen, dataLen uint32
	cdw                  [6]uint32 // 10 to 15
	timeoutMS, result    uint32
}

func (c controller) Admin(a sanitise.NVMeCommand) error {
	p := nvmePassthru{opcode: a.Opcode, nsid: a.NSID, timeoutMS: uint32(a.Timeout.Milliseconds())}
	p.cdw[0], p.cdw[1] = a.CDW10, a.CDW11
	var pin runtime.Pinner
	defer pin.Unpin()
	if len(a.Data) > 0 {
		pin.Pin(&a.Data[0])
		p.addr, p.dataLen = uint64(uintptr(unsafe.Pointer(&a.Data[0]))), uint32(len(a.Data))
	}
	status, _, errno := unix.Syscall(unix.SYS_IOCTL, c.f.Fd(), nvmeAdminCmd, uintptr(unsafe.Pointer(&p)))
	if errno != 0 {
		return errno
	}
	if status != 0 {
		return sanitise.NVMeStatus(status)
	}
	return nil
}

// target is a SCSI device by SG_IO (scsi/sg.h).
type target struct{ f *os.File }

const sgIO = 0x2285

// sgHeader is struct sg_io_hdr, version 3.
type sgHeader struct {
	interfaceID, direction int32
	cmdLen, maxSense       uint8
	_                      uint16 // parts of the data
	dataLen                uint32
	data, cmd, sense       unsafe.Pointer
	timeoutMS, _           uint32 // flags
	_                      int32
	_                      unsafe.Pointer
	status, _, _, senseLen uint8 // masked status, message
	hostStatus, _          uint16
	_                      int32
	_, _                   uint32
}

func (t target) Command(c sanitise.SCSICommand) error {
	sense := make([]byte, 64)
	timeout := c.Timeout
	if timeout == 0 {
		timeout = time.Minute
	}
	h := sgHeader{interfaceID: 'S', direction: map[sanitise.Direction]int32{sanitise.None: -1, sanitise.ToDrive: -2, sanitise.FromDrive: -3}[c.Direction],
		cmdLen: uint8(len(c.CDB)), maxSense: uint8(len(sense)), cmd: unsafe.Pointer(&c.CDB[0]), sense: unsafe.Pointer(&sense[0]), timeoutMS: uint32(timeout.Milliseconds())}
	if len(c.Data) > 0 {
		h.data, h.dataLen = unsafe.Pointer(&c.Data[0]), uint32(len(c.Data))
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	for _, b := range [][]byte{c.CDB, sense, c.Data} {
		if len(b) > 0 {
			pin.Pin(&b[0])
		}
	}
	if err := ioctl(t.f, sgIO, &h); err != nil {
		return err
	}
	switch {
	case h.hostStatus != 0:
		return fmt.Errorf("the drive's controller says %#x: it does not answer", h.hostStatus)
	case h.status != 0 && h.senseLen > 0:
		return parseSense(sense[:h.senseLen])
	case h.status != 0:
		return fmt.Errorf("SCSI status %#x", h.status)
	}
	return nil
}

func (t target) Sense() (sanitise.Sense, error) {
	b := make([]byte, 252)
	err := t.Command(sanitise.SCSICommand{CDB: []byte{0x03, 0, 0, 0, byte(len(b)), 0}, Direction: sanitise.FromDrive, Data: b})
	return parseSense(b), err
}

// parseSense reads sense data in fixed or descriptor format (SPC-4 section 4.5).
func parseSense(b []byte) (s sanitise.Sense) {
	if len(b) < 8 {
		return s
	}
	if b[0]&0x7f >= 0x72 {
		s.Key, s.Code, s.Qualifier = b[1]&0xf, b[2], b[3]
		for at := 8; at+8 <= len(b) && at < 8+int(b[7]); at += 2 + int(b[at+1]) {
			if b[at] == 0x02 && b[at+4]&0x80 != 0 { // sense key specific
				s.Progress = uint16(b[at+5])<<8 | uint16(b[at+6])
			}
		}
		return s
	}
	if s.Key = b[2] & 0xf; len(b) >= 18 {
		s.Code, s.Qualifier = b[12], b[13]
		if b[15]&0x80 != 0 {
			s.Progress = uint16(b[16])<<8 | uint16(b[17])
		}
	}
	return s
}
