package sanitise

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"time"
)

// Direction is which way a SCSI command's data goes.
type Direction int

// The directions.
const (
	None Direction = iota
	FromDrive
	ToDrive
)

// SCSICommand is one command (SPC-4, SBC-4; an ATA command in it by SAT-4).
type SCSICommand struct {
	CDB       []byte
	Direction Direction
	Data      []byte
	Timeout   time.Duration
}

// Sense is a command's answer that it did not succeed (SPC-4 section 4.5).
type Sense struct {
	Key, Code, Qualifier uint8
	Progress             uint16 // in 1/65536, where it is told
}

func (s Sense) Error() string {
	return fmt.Sprintf("the drive answered with sense %x/%02x/%02x", s.Key, s.Code, s.Qualifier)
}

// SCSI sends commands to a drive. An error is a Sense where the drive answered with one.
type SCSI interface {
	Command(c SCSICommand) error
	// Sense asks for the drive's present state: REQUEST SENSE.
	Sense() (Sense, error)
}

const (
	illegalRequest, notReady = 0x5, 0x2

	sanitizeCDB, inquiry, ataPassThrough = 0x48, 0x12, 0x85
)

// SCSIDrive asks a drive who it is and what it can do: a SATA drive by its own IDENTIFY DEVICE, any other by what it answers.
func SCSIDrive(s SCSI, poll Poll) (methods []Method, err error) {
	inq := make([]byte, 96)
	if err := s.Command(SCSICommand{CDB: []byte{inquiry, 0, 0, 0, byte(len(inq)), 0}, Direction: FromDrive, Data: inq}); err != nil {
		return nil, fmt.Errorf("inquiry: %w", err)
	}
	if strings.TrimSpace(string(inq[8:16])) == "ATA" {
		return ataDrive(s)
	}
	for _, m := range []struct {
		action byte
		name   string
	}{{2, "scsi sanitize, block erase"}, {3, "scsi sanitize, crypto erase"}} {
		methods = append(methods, Method{Name: m.name, Run: func(ctx context.Context) error { return scsiSanitise(ctx, s, m.action, poll) }})
	}
	return methods, nil
}

// scsiSanitise is SANITIZE with IMMED (SBC-4 section 5.33), whose progress is asked for by REQUEST SENSE.
func scsiSanitise(ctx context.Context, s SCSI, action byte, poll Poll) error {
	if err := s.Command(SCSICommand{CDB: []byte{sanitizeCDB, 0x80 | action, 0, 0, 0, 0, 0, 0, 0, 0}}); err != nil {
		if sense, ok := err.(Sense); ok && sense.Key == illegalRequest && (sense.Code == 0x20 || sense.Code == 0x24) { //nolint:errorlint // SCSI's contract
			return ErrUnsupported
		}
		return err
	}
	last, moved := -1, time.Now()
	for {
		sense, err := s.Sense()
		switch {
		case err != nil:
			return fmt.Errorf("%w: its progress can't be read: %w", ErrBegun, err)
		case sense.Key == 0:
			return nil
		case sense.Key == notReady && sense.Code == 0x04 && sense.Qualifier == 0x1b: // sanitize in progress
			if p := int(sense.Progress); p != last {
				last, moved = p, time.Now()
			}
		default:
			return fmt.Errorf("%w: %w", ErrBegun, sense)
		}
		if time.Since(moved) >= poll.Stuck {
			return fmt.Errorf("%w: at %d %% for %s", ErrStuck, 100*last/65536, poll.Stuck)
		}
		if err := wait(ctx, poll.Every); err != nil {
			return fmt.Errorf("%w: at %d %%", ErrStuck, 100*last/65536)
		}
	}
}

// ata is one ATA command as ATA PASS-THROUGH(16) (SAT-4 section 12.2.2).
func ata(command byte, d Direction, data []byte, timeout time.Duration) SCSICommand {
	cdb := make([]byte, 16)
	cdb[0], cdb[14] = ataPassThrough, command
	switch d {
	case FromDrive:
		cdb[1], cdb[2], cdb[6] = 4<<1, 0x0e, byte(len(data)/512) // PIO in, length in blocks in the count
	case ToDrive:
		cdb[1], cdb[2], cdb[6] = 5<<1, 0x06, byte(len(data)/512)
	case None:
		cdb[1] = 3 << 1
	}
	return SCSICommand{CDB: cdb, Direction: d, Data: data, Timeout: timeout}
}

const (
	ataIdentify, ataSetPassword, ataErasePrepare, ataErase = 0xec, 0xf1, 0xf3, 0xf4
	secSupported, secEnabled, secLocked                    = 1 << 0, 1 << 1, 1 << 2
	secFrozen, secEnhanced                                 = 1 << 3, 1 << 5
)

// ataDrive knows a SATA drive's security feature set (ACS-4 section 4.18).
func ataDrive(s SCSI) ([]Method, error) {
	words := make([]byte, 512)
	if err := s.Command(ata(ataIdentify, FromDrive, words, 0)); err != nil {
		return nil, fmt.Errorf("identify device: %w", err)
	}
	security := binary.LittleEndian.Uint16(words[2*128:])
	if security&secSupported == 0 {
		return nil, nil
	}
	var methods []Method
	if security&secEnhanced != 0 {
		methods = append(methods, Method{Name: "ata security erase, enhanced", NotReached: "what the drive's maker doesn't count as user data", Run: func(context.Context) error { return ataErased(s, true) }})
	}
	return append(methods, Method{Name: "ata security erase", NotReached: "blocks that the drive has remapped", Run: func(context.Context) error { return ataErased(s, false) }}), nil
}

// password locks the drive from its setting on until the erase has ended, which takes it away again. It is told here: who finds a
// drive that lost its power in between can unlock it.
const password = "gpupool"

func ataErased(s SCSI, enhanced bool) error {
	words := make([]byte, 512)
	if err := s.Command(ata(ataIdentify, FromDrive, words, 0)); err != nil {
		return fmt.Errorf("identify device: %w", err)
	}
	switch security := binary.LittleEndian.Uint16(words[2*128:]); {
	case security&secFrozen != 0:
		return fmt.Errorf("%w: its security is frozen until its next power cycle", ErrFrozen)
	case security&(secEnabled|secLocked) != 0:
		return fmt.Errorf("%w: a password is set that we don't know", ErrFrozen)
	}
	secret := make([]byte, 512) // word 0: 0 = the user's password
	copy(secret[2:34], password)
	if err := s.Command(ata(ataSetPassword, ToDrive, secret, 0)); err != nil {
		return fmt.Errorf("set the password: %w", err)
	}
	if err := s.Command(ata(ataErasePrepare, None, nil, 0)); err != nil {
		return fmt.Errorf("%w: prepare: %w", ErrBegun, err)
	}
	if enhanced {
		secret[0] = 1 << 1
	}
	if err := s.Command(ata(ataErase, ToDrive, secret, 24*time.Hour)); err != nil {
		return fmt.Errorf("%w: erase: %w", ErrBegun, err)
	}
	if err := s.Command(ata(ataIdentify, FromDrive, words, 0)); err != nil {
		return fmt.Errorf("%w: identify device after the erase: %w", ErrBegun, err)
	}
	if binary.LittleEndian.Uint16(words[2*128:])&secEnabled != 0 {
		return fmt.Errorf("%w: the password is still set after the erase", ErrBegun)
	}
	return nil
}
