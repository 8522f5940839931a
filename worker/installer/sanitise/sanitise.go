// Package sanitise makes a drive forget what was written to it, by the strongest means that the drive itself has, and says
// honestly what came of it: NVMe sanitize and format, ATA security erase, SCSI sanitize, and overwriting where that is allowed.
//
// Invariants: nothing is told as sanitised that was not read back; a drive that says it is done while old data is there is told as
// lying; what stood in the way (no such command, frozen, stuck, unreadable) is told apart. Each method says what it doesn't reach.
//
// Not here: which server may be sanitised, and when (schema/store); the ioctls (worker/installer).
package sanitise

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"gpupool/schema"
)

// Media is a drive's blocks.
type Media interface {
	io.ReaderAt
	io.WriterAt
	// Flush writes what is buffered to the drive and forgets what was read from it.
	Flush() error
}

// Errors of a drive's methods.
var (
	ErrUnsupported = errors.New("the drive has no such command")
	ErrFrozen      = errors.New("the drive's security is frozen or locked")
	ErrStuck       = errors.New("it does not come to an end")
	ErrBegun       = errors.New("it was begun and failed") // the drive is in no state to try another
)

// Method is one way in which a drive forgets.
type Method struct {
	Name       string
	NotReached string // what it doesn't reach; empty = it reaches all media of the drive, by its maker's word
	Run        func(ctx context.Context) error
}

// Drive is one drive. Methods are tried in order, the strongest first.
type Drive struct {
	Serial, Model, Name, Bus string
	Bytes                    int64
	Media                    Media
	Methods                  []Method
	// Trouble is what was found wrong when its methods were asked for.
	Trouble error
}

// Policy is what is allowed.
type Policy struct {
	Overwrite bool // where the drive has no command of its own
	Now       func() time.Time
}

const (
	markBytes = 4096
	marks     = 256
)

// Run sanitises one drive.
func Run(ctx context.Context, d Drive, p Policy, tell func(string)) schema.DriveResult {
	r := schema.DriveResult{Serial: d.Serial, Model: d.Model, Name: d.Name, Bus: d.Bus, Bytes: d.Bytes, Outcome: schema.DriveFailed, Started: schema.At(p.Now())}
	var said []string
	say := func(format string, args ...any) {
		said = append(said, fmt.Sprintf(format, args...))
		tell(d.Name + ": " + said[len(said)-1])
	}
	run(ctx, d, p, &r, say)
	r.Ended, r.Words = schema.At(p.Now()), strings.Join(said, "; ")
	return r
}

func run(ctx context.Context, d Drive, p Policy, r *schema.DriveResult, say func(string, ...any)) {
	if d.Serial == "" {
		say("the drive tells no serial: this is told by its name only")
	}
	if d.Trouble != nil {
		r.Trouble = troubleOf(d.Trouble)
		say("it could not be asked for its methods: %v", d.Trouble)
	}
	marked, err := mark(d)
	if err != nil {
		// Without marks nothing can be proven of a command that only the drive vouches for.
		r.Trouble = schema.DriveUnreadable
		say("it can't be written to and read: %v", err)
		return
	}
	for _, m := range d.Methods {
		r.Method, r.NotReached = m.Name, m.NotReached
		switch err := m.Run(ctx); {
		case err == nil:
			say("%s: done, by the drive's word", m.Name)
			if verify(d, marked, r, say) {
				r.Outcome, r.Trouble = schema.DriveSanitised, ""
			}
			return
		case errors.Is(err, ErrUnsupported), errors.Is(err, ErrFrozen):
			if r.Trouble != schema.DriveFrozen {
				r.Trouble = troubleOf(err)
			}
			say("%s: %v", m.Name, err)
		case errors.Is(err, ErrStuck), errors.Is(err, ErrBegun), ctx.Err() != nil:
			r.Trouble = troubleOf(err)
			say("%s: %v", m.Name, err)
			return
		default:
			r.Trouble = troubleOf(err)
			say("%s: refused: %v", m.Name, err)
		}
	}
	if len(d.Methods) == 0 && d.Trouble == nil {
		r.Trouble = schema.DriveUnsupported
		say("it has no command to sanitise it")
	}
	r.Method, r.NotReached = "", ""
	if !p.Overwrite {
		say("overwriting was not allowed")
		return
	}
	overwrite(ctx, d, r, say)
}

func troubleOf(err error) schema.DriveTrouble {
	switch {
	case errors.Is(err, ErrUnsupported):
		return schema.DriveUnsupported
	case errors.Is(err, ErrFrozen):
		return schema.DriveFrozen
	case errors.Is(err, ErrStuck), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return schema.DriveStuck
	}
	return schema.DriveRefused
}

// at are the places of the marks: the first and the last of the drive, and evenly in between.
func at(d Drive) []int64 {
	n := min(int64(marks), d.Bytes/markBytes)
	out := make([]int64, n)
	for i := range out {
		out[i] = (d.Bytes/markBytes - 1) * int64(i) / max(n-1, 1) * markBytes
	}
	return out
}

// mark writes what must not be readable afterwards, and reads it back: a drive that doesn't keep it proves nothing.
func mark(d Drive) ([]byte, error) {
	m := make([]byte, markBytes)
	if _, err := rand.Read(m); err != nil {
		return nil, err
	}
	for _, off := range at(d) {
		if _, err := d.Media.WriteAt(m, off); err != nil {
			return nil, err
		}
	}
	if err := d.Media.Flush(); err != nil {
		return nil, err
	}
	b := make([]byte, markBytes)
	for _, off := range at(d) {
		if _, err := d.Media.ReadAt(b, off); err != nil {
			return nil, err
		}
		if !bytes.Equal(b, m) {
			return nil, fmt.Errorf("what was written at byte %d is not what is read there", off)
		}
	}
	return m, nil
}

// verify reads the marks' places again.
func verify(d Drive, marked []byte, r *schema.DriveResult, say func(string, ...any)) bool {
	if err := d.Media.Flush(); err != nil {
		r.Trouble = schema.DriveUnreadable
		say("it can't be read back: %v", err)
		return false
	}
	b := make([]byte, markBytes)
	left := 0
	places := at(d)
	for _, off := range places {
		if _, err := d.Media.ReadAt(b, off); err != nil {
			r.Trouble = schema.DriveUnreadable
			say("it can't be read back at byte %d: %v", off, err)
			return false
		}
		if bytes.Equal(b, marked) {
			left++
		}
	}
	if left > 0 {
		r.Trouble = schema.DriveLying
		say("%d of %d places that were marked before still hold their mark", left, len(places))
		return false
	}
	r.Verified = fmt.Sprintf("none of the marks of %d bytes that were written at %d places, the first and the last of the drive among them, is read any more", markBytes, len(places))
	return true
}

// overwrite writes zeros over all that can be addressed, and reads all of it back.
func overwrite(ctx context.Context, d Drive, r *schema.DriveResult, say func(string, ...any)) {
	r.Method = "overwrite"
	r.NotReached = "blocks that the drive has set aside or remapped, and its caches"
	const chunk = 4 << 20
	zeros, b := make([]byte, chunk), make([]byte, chunk)
	for off := int64(0); off < d.Bytes; off += chunk {
		if ctx.Err() != nil {
			r.Trouble = schema.DriveStuck
			say("overwriting was stopped at byte %d of %d", off, d.Bytes)
			return
		}
		if _, err := d.Media.WriteAt(zeros[:min(chunk, d.Bytes-off)], off); err != nil {
			r.Trouble = schema.DriveRefused
			say("overwriting failed at byte %d of %d: %v", off, d.Bytes, err)
			return
		}
	}
	if err := d.Media.Flush(); err != nil {
		r.Trouble = schema.DriveRefused
		say("what was overwritten could not be brought to the drive: %v", err)
		return
	}
	for off := int64(0); off < d.Bytes; off += chunk {
		part := b[:min(chunk, d.Bytes-off)]
		if _, err := d.Media.ReadAt(part, off); err != nil {
			r.Trouble = schema.DriveUnreadable
			say("it can't be read back at byte %d: %v", off, err)
			return
		}
		if !bytes.Equal(part, zeros[:len(part)]) {
			r.Trouble = schema.DriveLying
			say("overwritten, and byte %d or one of the %d behind it is not zero", off, len(part))
			return
		}
	}
	r.Outcome, r.Trouble = schema.DriveOverwritten, ""
	r.Verified = fmt.Sprintf("all %d bytes were read back as zeros", d.Bytes)
	say("overwritten with zeros")
}
