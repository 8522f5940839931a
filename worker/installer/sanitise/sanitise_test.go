package sanitise_test

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"gpupool/schema"
	"gpupool/worker/installer/sanitise"
)

// cells are a simulated drive's media.
type cells struct {
	data                  []byte
	readOnly, dead, deaf  bool // refuses writes; refuses reads; takes writes and keeps none
	deadAfter, deafAfter  bool // so once it was told to forget
	lies, stuck, fails    bool // of its own command
	refuses, frozen, lost bool
	forgot                int
}

func newCells() *cells { return &cells{data: []byte(strings.Repeat("secret! ", 3<<20/8))} }

var errMedia = errors.New("input/output error")

func (c *cells) ReadAt(p []byte, off int64) (int, error) {
	if c.dead {
		return 0, errMedia
	}
	return copy(p, c.data[off:]), nil
}

func (c *cells) WriteAt(p []byte, off int64) (int, error) {
	if c.readOnly {
		return 0, errMedia
	}
	if !c.deaf {
		copy(c.data[off:], p)
	}
	return len(p), nil
}

func (c *cells) Flush() error { return nil }

// forget is the drive's own command, carried out.
func (c *cells) forget() {
	c.forgot++
	c.dead, c.deaf = c.deadAfter, c.deafAfter
	if !c.lies {
		clear(c.data)
	}
}

// nvme is a controller that speaks the admin command set.
type nvme struct {
	*cells
	sanicap uint32
	format  bool
	crypto  bool
	began   bool
}

func (n *nvme) Admin(c sanitise.NVMeCommand) error {
	switch c.Opcode {
	case 0x06:
		if c.CDW10 == 1 {
			copy(c.Data[4:], "NV1                 ")
			copy(c.Data[24:], "Simulated NVMe                          ")
			binary.LittleEndian.PutUint32(c.Data[328:], n.sanicap)
			if n.format {
				c.Data[256] = 1 << 1
			}
			if n.crypto {
				c.Data[524] = 1 << 2
			}
		}
		return nil
	case 0x84:
		if n.sanicap == 0 || n.refuses {
			return sanitise.NVMeStatus(0x1)
		}
		n.began = true
		return nil
	case 0x02:
		if c.CDW10&0xff != 0x81 || c.NSID != 0xffffffff || len(c.Data) != 512 || c.CDW10>>16 != 127 {
			return sanitise.NVMeStatus(0x2)
		}
		if n.lost {
			return errMedia
		}
		status := uint16(1)
		switch {
		case !n.began:
			status = 0
		case n.stuck:
			status = 2
			binary.LittleEndian.PutUint16(c.Data, 13000)
		case n.fails:
			status = 3
		default:
			n.forget()
		}
		binary.LittleEndian.PutUint16(c.Data[2:], status)
		return nil
	case 0x80:
		if !n.format || n.refuses || c.CDW10>>9&7 == 0 {
			return sanitise.NVMeStatus(0x10a)
		}
		n.forget()
		return nil
	}
	return sanitise.NVMeStatus(0x1)
}

// sas is a SCSI drive, and sata one that answers ATA PASS-THROUGH.
type sas struct {
	*cells
	sanitizes bool
	began     bool
}

func (s *sas) Command(c sanitise.SCSICommand) error {
	switch c.CDB[0] {
	case 0x12:
		copy(c.Data[8:], "SEAGATE ")
		return nil
	case 0x48:
		if !s.sanitizes {
			return sanitise.Sense{Key: 5, Code: 0x20}
		}
		if s.refuses {
			return sanitise.Sense{Key: 7, Code: 0x27}
		}
		if c.CDB[1]&0x80 == 0 {
			return sanitise.Sense{Key: 5, Code: 0x24} // the caller would wait for hours
		}
		s.began = true
		return nil
	}
	return sanitise.Sense{Key: 5, Code: 0x20}
}

func (s *sas) Sense() (sanitise.Sense, error) {
	switch {
	case s.lost:
		return sanitise.Sense{}, errMedia
	case s.stuck:
		return sanitise.Sense{Key: 2, Code: 0x04, Qualifier: 0x1b, Progress: 100}, nil
	case s.fails:
		return sanitise.Sense{Key: 3, Code: 0x31, Qualifier: 0x03}, nil
	}
	s.forget()
	return sanitise.Sense{}, nil
}

type sata struct {
	*cells
	security           uint16
	locked, prepared   bool
	password, keepLock bool
}

func (s *sata) Sense() (sanitise.Sense, error) { return sanitise.Sense{}, nil }

func (s *sata) Command(c sanitise.SCSICommand) error {
	aborted := sanitise.Sense{Key: 0xb}
	if c.CDB[0] == 0x12 {
		copy(c.Data[8:], "ATA     ")
		return nil
	}
	if c.CDB[0] != 0x85 {
		return sanitise.Sense{Key: 5, Code: 0x20}
	}
	switch c.CDB[14] {
	case 0xec:
		w := s.security
		if s.frozen {
			w |= 1 << 3
		}
		if s.password || s.locked {
			w |= 1 << 1
		}
		binary.LittleEndian.PutUint16(c.Data[256:], w)
		return nil
	case 0xf1:
		if s.frozen || s.refuses || len(c.Data) != 512 {
			return aborted
		}
		s.password = true
		return nil
	case 0xf3:
		s.prepared = true
		return nil
	case 0xf4:
		if !s.prepared || !s.password || s.fails {
			return aborted
		}
		s.forget()
		s.password = s.keepLock
		return nil
	}
	return aborted
}

var poll = sanitise.Poll{Every: time.Millisecond, Stuck: 20 * time.Millisecond}

func ofNVMe(t *testing.T, n *nvme) sanitise.Drive {
	serial, model, methods, err := sanitise.NVMeDrive(n, 1, poll)
	if err != nil || serial != "NV1" || model != "Simulated NVMe" {
		t.Fatalf("identified as %q %q, %v", serial, model, err)
	}
	return sanitise.Drive{Serial: serial, Model: model, Name: "nvme0n1", Bus: "nvme", Bytes: int64(len(n.data)), Media: n.cells, Methods: methods}
}

func ofSCSI(t *testing.T, s sanitise.SCSI, c *cells) sanitise.Drive {
	methods, err := sanitise.SCSIDrive(s, poll)
	if err != nil {
		t.Fatal(err)
	}
	return sanitise.Drive{Serial: "S1", Model: "Simulated", Name: "sda", Bus: "scsi", Bytes: int64(len(c.data)), Media: c, Methods: methods}
}

// TestTheDriveMatrix is every way in which a drive of each kind may disappoint: what is said of it is what is so, and data is left
// only where that is said.
func TestTheDriveMatrix(t *testing.T) {
	t.Parallel()
	c := func(change func(*cells)) *cells {
		x := newCells()
		if change != nil {
			change(x)
		}
		return x
	}
	const both = 1<<0 | 1<<1
	stuck, lies, fails, lost := func(c *cells) { c.stuck = true }, func(c *cells) { c.lies = true }, func(c *cells) { c.fails = true }, func(c *cells) { c.lost = true }
	refuses, frozen := func(c *cells) { c.refuses = true }, func(c *cells) { c.frozen = true }
	good, over, failed := schema.DriveSanitised, schema.DriveOverwritten, schema.DriveFailed
	const sec, enh = uint16(1), uint16(1 | 1<<5)
	for name, m := range map[string]struct {
		drive     any
		overwrite bool
		outcome   schema.DriveOutcome
		trouble   schema.DriveTrouble
		method    string
		words     string
	}{
		"nvme: sanitize":                            {&nvme{cells: c(nil), sanicap: both}, false, good, "", "nvme sanitize, block erase", "done, by the drive's word"},
		"nvme: crypto erase alone":                  {&nvme{cells: c(nil), sanicap: 1}, false, good, "", "nvme sanitize, crypto erase", ""},
		"nvme: format alone":                        {&nvme{cells: c(nil), format: true}, false, good, "", "nvme format, user data erase", ""},
		"nvme: format with crypto erase":            {&nvme{cells: c(nil), format: true, crypto: true}, false, good, "", "nvme format, crypto erase", ""},
		"nvme: sanitize refused, format taken":      {&nvme{cells: c(nil), sanicap: 0, format: true}, false, good, "", "nvme format", ""},
		"nvme: unsupported":                         {&nvme{cells: c(nil)}, false, failed, schema.DriveUnsupported, "", "overwriting was not allowed"},
		"nvme: unsupported, overwritten":            {&nvme{cells: c(nil)}, true, over, "", "overwrite", "overwritten with zeros"},
		"nvme: refuses all":                         {&nvme{cells: c(refuses), sanicap: both, format: true}, false, failed, schema.DriveRefused, "", "refused: the drive answered with NVMe status"},
		"nvme: stuck":                               {&nvme{cells: c(stuck), sanicap: both}, true, failed, schema.DriveStuck, "nvme sanitize, block erase", "does not come to an end: at 19 %"},
		"nvme: begun and failed":                    {&nvme{cells: c(fails), sanicap: both}, true, failed, schema.DriveRefused, "nvme sanitize, block erase", "begun and failed"},
		"nvme: lost while it works":                 {&nvme{cells: c(lost), sanicap: both}, true, failed, schema.DriveRefused, "nvme sanitize, block erase", "its progress can't be read"},
		"nvme: lying":                               {&nvme{cells: c(lies), sanicap: both}, true, failed, schema.DriveLying, "nvme sanitize, block erase", "still hold their mark"},
		"nvme: format lies":                         {&nvme{cells: c(lies), format: true}, false, failed, schema.DriveLying, "nvme format", "still hold their mark"},
		"nvme: can't be read back":                  {&nvme{cells: c(func(c *cells) { c.deadAfter = true }), sanicap: both}, true, failed, schema.DriveUnreadable, "", "can't be read back"},
		"any: dead":                                 {&nvme{cells: c(func(c *cells) { c.dead = true }), sanicap: both}, true, failed, schema.DriveUnreadable, "", "can't be written to and read"},
		"any: read-only":                            {&nvme{cells: c(func(c *cells) { c.readOnly = true }), sanicap: both}, true, failed, schema.DriveUnreadable, "", "can't be written to"},
		"any: keeps no writes":                      {&nvme{cells: c(func(c *cells) { c.deaf = true })}, true, failed, schema.DriveUnreadable, "", "not what is read there"},
		"scsi: sanitize":                            {&sas{cells: c(nil), sanitizes: true}, false, good, "", "scsi sanitize, block erase", ""},
		"scsi: unsupported":                         {&sas{cells: c(nil)}, false, failed, schema.DriveUnsupported, "", "has no such command"},
		"scsi: unsupported, overwritten":            {&sas{cells: c(nil)}, true, over, "", "overwrite", ""},
		"scsi: refuses (write protected)":           {&sas{cells: c(refuses), sanitizes: true}, false, failed, schema.DriveRefused, "", "sense 7/27"},
		"scsi: stuck":                               {&sas{cells: c(stuck), sanitizes: true}, true, failed, schema.DriveStuck, "scsi sanitize, block erase", "does not come to an end"},
		"scsi: begun and failed":                    {&sas{cells: c(fails), sanitizes: true}, true, failed, schema.DriveRefused, "", "sense 3/31"},
		"scsi: lying":                               {&sas{cells: c(lies), sanitizes: true}, true, failed, schema.DriveLying, "", "still hold their mark"},
		"scsi: lost while it works":                 {&sas{cells: c(lost), sanitizes: true}, false, failed, schema.DriveRefused, "", "its progress can't be read"},
		"sata: enhanced erase":                      {&sata{cells: c(nil), security: enh}, false, good, "", "ata security erase, enhanced", ""},
		"sata: erase":                               {&sata{cells: c(nil), security: sec}, false, good, "", "ata security erase", ""},
		"sata: unsupported":                         {&sata{cells: c(nil)}, false, failed, schema.DriveUnsupported, "", "no command to sanitise"},
		"sata: frozen":                              {&sata{cells: c(frozen), security: enh}, false, failed, schema.DriveFrozen, "", "until its next power cycle"},
		"sata: frozen, overwritten where it may be": {&sata{cells: c(frozen), security: enh}, true, over, "", "overwrite", "frozen"},
		"sata: a password that we don't know":       {&sata{cells: c(nil), security: sec, locked: true}, false, failed, schema.DriveFrozen, "", "a password is set"},
		"sata: refuses the password":                {&sata{cells: c(refuses), security: sec}, false, failed, schema.DriveRefused, "", "set the password"},
		"sata: begun and failed":                    {&sata{cells: c(fails), security: sec}, true, failed, schema.DriveRefused, "", "begun and failed"},
		"sata: lying":                               {&sata{cells: c(lies), security: sec}, true, failed, schema.DriveLying, "", "still hold their mark"},
		"sata: says it is done and stays locked":    {&sata{cells: c(nil), security: sec, keepLock: true}, false, failed, schema.DriveRefused, "", "still set after the erase"},
		"sata: can't be read back":                  {&sata{cells: c(func(c *cells) { c.deadAfter = true }), security: sec}, false, failed, schema.DriveUnreadable, "", "can't be read back"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var d sanitise.Drive
			var media *cells
			switch x := m.drive.(type) {
			case *nvme:
				d, media = ofNVMe(t, x), x.cells
			case *sas:
				d, media = ofSCSI(t, x, x.cells), x.cells
			case *sata:
				d, media = ofSCSI(t, x, x.cells), x.cells
			}
			r := sanitise.Run(t.Context(), d, sanitise.Policy{Overwrite: m.overwrite, Now: time.Now}, func(string) {})
			if r.Outcome != m.outcome || r.Trouble != m.trouble || !strings.Contains(r.Method, m.method) || !strings.Contains(r.Words, m.words) {
				t.Fatalf("%s %q by %q: %s\nwant %s %q by %q: ...%s", r.Outcome, r.Trouble, r.Method, r.Words, m.outcome, m.trouble, m.method, m.words)
			}
			if r.Serial != d.Serial || r.Started == 0 || r.Ended == 0 || r.Bytes != d.Bytes {
				t.Errorf("the certificate lacks who and when: %+v", r)
			}
			if left := strings.Contains(string(media.data), "secret!"); r.Outcome.Good() && left {
				t.Error("told as good, and the old data is there")
			}
			if r.Outcome.Good() != (r.Verified != "") {
				t.Errorf("%s, verified %q", r.Outcome, r.Verified)
			}
			if r.Outcome == over && r.NotReached == "" {
				t.Error("overwriting claims to reach everything")
			}
		})
	}
}
