package sanitise

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"time"
)

// NVMeCommand is an admin command (NVM Express Base Specification, figure 92 on).
type NVMeCommand struct {
	Opcode  uint8
	NSID    uint32
	CDW10   uint32
	CDW11   uint32
	Timeout time.Duration
	Data    []byte // of a command that reads
}

// NVMeStatus is a command's status field that is not zero: status code and its type.
type NVMeStatus uint16

func (s NVMeStatus) Error() string {
	return fmt.Sprintf("the drive answered with NVMe status %#x", uint16(s))
}

// NVMe sends admin commands to a drive's controller. An error is an NVMeStatus where the drive answered.
type NVMe interface {
	Admin(c NVMeCommand) error
}

const (
	nvmeLogPage, nvmeIdentify, nvmeFormat, nvmeSanitize = 0x02, 0x06, 0x80, 0x84

	allNamespaces = 0xffffffff
	sanitizeLog   = 0x81
)

// Poll is how often a drive is asked how far it is, and how long it may show no progress.
type Poll struct{ Every, Stuck time.Duration }

// DefaultPoll is for real drives: large disks move by 1/65536 in some seconds.
var DefaultPoll = Poll{Every: 2 * time.Second, Stuck: 30 * time.Minute}

// NVMeDrive asks a controller who it is and what it can do. nsid is the namespace that is looked at.
func NVMeDrive(n NVMe, nsid uint32, poll Poll) (serial, model string, methods []Method, err error) {
	id := make([]byte, 4096)
	if err := n.Admin(NVMeCommand{Opcode: nvmeIdentify, CDW10: 1, Data: id}); err != nil {
		return "", "", nil, fmt.Errorf("identify controller: %w", err)
	}
	serial, model = strings.TrimSpace(string(id[4:24])), strings.TrimSpace(string(id[24:64]))
	capable, optional, fna := binary.LittleEndian.Uint32(id[328:]), binary.LittleEndian.Uint16(id[256:]), id[524]
	// Block erase wipes every cell. A crypto erase forgets the key that made them readable.
	for _, m := range []struct {
		bit    uint32
		action uint32
		name   string
	}{{1 << 1, 2, "nvme sanitize, block erase"}, {1 << 0, 4, "nvme sanitize, crypto erase"}, {1 << 2, 3, "nvme sanitize, overwrite"}} {
		if capable&m.bit != 0 {
			methods = append(methods, Method{Name: m.name, Run: func(ctx context.Context) error { return nvmeSanitise(ctx, n, m.action, poll) }})
		}
	}
	if optional&(1<<1) != 0 {
		ns := make([]byte, 4096)
		if err := n.Admin(NVMeCommand{Opcode: nvmeIdentify, NSID: nsid, CDW10: 0, Data: ns}); err != nil {
			return serial, model, methods, fmt.Errorf("identify namespace %d: %w", nsid, err)
		}
		lbaf := uint32(ns[26] & 0xf)
		const rest = "what the drive keeps outside its namespaces (spare blocks, a controller's memory buffer), as far as its maker's format leaves that"
		if fna&(1<<2) != 0 {
			methods = append(methods, Method{Name: "nvme format, crypto erase", NotReached: rest, Run: func(context.Context) error { return nvmeFormatted(n, nsid, fna, lbaf, 2) }})
		}
		methods = append(methods, Method{Name: "nvme format, user data erase", NotReached: rest, Run: func(context.Context) error { return nvmeFormatted(n, nsid, fna, lbaf, 1) }})
	}
	return serial, model, methods, nil
}

func nvmeFormatted(n NVMe, nsid uint32, fna uint8, lbaf, secure uint32) error {
	if fna&(1<<1) != 0 { // an erase is of all namespaces
		nsid = allNamespaces
	}
	return n.Admin(NVMeCommand{Opcode: nvmeFormat, NSID: nsid, CDW10: lbaf | secure<<9, Timeout: 12 * time.Hour})
}

// nvmeSanitise starts a sanitize operation and waits for its end (section 8.1.24 of the Base Specification): the command only
// begins it.
func nvmeSanitise(ctx context.Context, n NVMe, action uint32, poll Poll) error {
	if err := n.Admin(NVMeCommand{Opcode: nvmeSanitize, CDW10: action}); err != nil {
		return err
	}
	last, moved := -1, time.Now()
	for {
		b := make([]byte, 512)
		if err := n.Admin(NVMeCommand{Opcode: nvmeLogPage, NSID: allNamespaces, CDW10: sanitizeLog | (512/4-1)<<16, Data: b}); err != nil {
			return fmt.Errorf("%w: its progress can't be read: %w", ErrBegun, err)
		}
		progress, status := int(binary.LittleEndian.Uint16(b)), binary.LittleEndian.Uint16(b[2:])
		switch status & 7 {
		case 1, 4:
			return nil
		case 3:
			return fmt.Errorf("%w: the drive says so (sanitize status %#x)", ErrBegun, status)
		case 2:
			if progress != last {
				last, moved = progress, time.Now()
			}
		default:
			return fmt.Errorf("%w: the drive took the command and tells of no sanitize operation (status %#x)", ErrBegun, status)
		}
		if time.Since(moved) >= poll.Stuck {
			return fmt.Errorf("%w: at %d %% for %s", ErrStuck, 100*last/65536, poll.Stuck)
		}
		if err := wait(ctx, poll.Every); err != nil {
			return fmt.Errorf("%w: at %d %%", ErrStuck, 100*last/65536)
		}
	}
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
