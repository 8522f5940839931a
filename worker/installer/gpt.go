package installer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// head is how much of the disk's start is kept back until the end: boot code and partition table with room to spare.
const head = 1 << 20

// gpt is a disk's GUID partition table (UEFI 2.10 section 5.3), as an image's first bytes hold it. Only what the
// installer changes is read: where partitions are, and where the table believes the disk to end.
type gpt struct {
	sector  int64
	header  []byte // 92 bytes or more, one sector's
	entries []byte
	size    int // of an entry
}

// partition is one entry, in bytes of the disk.
type partition struct {
	number     int // from 1
	start, end int64
}

var errNoGPT = errors.New("the image has no GPT: the installer writes only disks that are partitioned with it")

// readGPT reads the table in the first MiB of an image made for sectors of that size.
func readGPT(first []byte, sector int64) (*gpt, error) {
	if int64(len(first)) < 34*sector || !bytes.Equal(first[sector:sector+8], []byte("EFI PART")) {
		return nil, errNoGPT
	}
	g := &gpt{sector: sector, header: bytes.Clone(first[sector : 2*sector])}
	length := g.u32(12)
	if length < 92 || int64(length) > sector || crc32.ChecksumIEEE(g.zeroed(16, int(length))) != g.u32(16) {
		return nil, errors.New("the image's GPT is damaged: its header's checksum is wrong")
	}
	at, n := int64(g.u64(72))*sector, int64(g.u32(80))*int64(g.u32(84))
	g.size = int(g.u32(84))
	if g.size < 128 || n > 64<<10 || at+n > int64(len(first)) {
		return nil, fmt.Errorf("the image's GPT has %d entries of %d bytes at %d: more than the first MiB holds", g.u32(80), g.size, at)
	}
	g.entries = bytes.Clone(first[at : at+n])
	if crc32.ChecksumIEEE(g.entries) != g.u32(88) {
		return nil, errors.New("the image's GPT is damaged: its entries' checksum is wrong")
	}
	return g, nil
}

func (g *gpt) u32(at int) uint32 { return binary.LittleEndian.Uint32(g.header[at:]) }
func (g *gpt) u64(at int) uint64 { return binary.LittleEndian.Uint64(g.header[at:]) }

// zeroed is the header's first n bytes with the 4 at a place as 0: what its checksum is of.
func (g *gpt) zeroed(at, n int) []byte {
	b := bytes.Clone(g.header[:n])
	clear(b[at : at+4])
	return b
}

// partitions are those in use, by number.
func (g *gpt) partitions() []partition {
	var list []partition
	for i := 0; (i+1)*g.size <= len(g.entries); i++ {
		e := g.entries[i*g.size:]
		if !bytes.Equal(e[:16], make([]byte, 16)) {
			list = append(list, partition{i + 1, int64(binary.LittleEndian.Uint64(e[32:])) * g.sector, int64(binary.LittleEndian.Uint64(e[40:])+1) * g.sector})
		}
	}
	return list
}

// root is the partition with the root file system: the one of that number, or for 0 the last on the disk.
func (g *gpt) root(number int) (partition, error) {
	var last partition
	for _, p := range g.partitions() {
		if p.number == number {
			return p, nil
		}
		if p.start >= last.start {
			last = p
		}
	}
	if number != 0 || last.number == 0 {
		return last, fmt.Errorf("the image has no partition %d", number)
	}
	return last, nil
}

// grow makes the table one of a disk of so many bytes, and the partition as large as it can be; a partition that
// another follows stays as it is.
func (g *gpt) grow(disk int64, number int) {
	sectors := disk / g.sector
	table := (int64(len(g.entries)) + g.sector - 1) / g.sector
	usable := sectors - 2 - table // the backup's entries and header are at the end
	binary.LittleEndian.PutUint64(g.header[32:], uint64(sectors-1))
	binary.LittleEndian.PutUint64(g.header[48:], uint64(usable))
	list := g.partitions()
	for _, p := range list {
		if p.number != number {
			continue
		}
		for _, other := range list {
			if other.start > p.start {
				return
			}
		}
		end := (usable + 1) &^ 7 // ends on 4 KiB where sectors have 512 bytes
		binary.LittleEndian.PutUint64(g.entries[(number-1)*g.size+40:], uint64(end-1))
	}
}

// primary puts the table into the first MiB of a disk.
func (g *gpt) primary(first []byte) {
	sectors := g.u64(32) + 1
	// The protective MBR's one entry covers the whole disk, or as much of it as it can say (section 5.2.3).
	binary.LittleEndian.PutUint32(first[446+12:], uint32(min(sectors-1, 0xffffffff)))
	copy(first[g.sector:], g.sealed(1, sectors-1, g.u64(72)))
	copy(first[int64(g.u64(72))*g.sector:], g.entries)
}

// backup is the end of the disk: entries, then header. at is where it begins.
func (g *gpt) backup() (b []byte, at int64) {
	last := g.u64(32)
	table := (int64(len(g.entries)) + g.sector - 1) / g.sector
	b = make([]byte, (table+1)*g.sector)
	copy(b, g.entries)
	copy(b[table*g.sector:], g.sealed(last, 1, last-uint64(table)))
	return b, (int64(last) - table) * g.sector
}

// sealed is the header that lies at my, whose twin is at other and whose entries are at from, with its checksums.
func (g *gpt) sealed(my, other, from uint64) []byte {
	h := gpt{header: bytes.Clone(g.header)}
	binary.LittleEndian.PutUint64(h.header[24:], my)
	binary.LittleEndian.PutUint64(h.header[32:], other)
	binary.LittleEndian.PutUint64(h.header[72:], from)
	binary.LittleEndian.PutUint32(h.header[88:], crc32.ChecksumIEEE(g.entries))
	n := int(h.u32(12))
	binary.LittleEndian.PutUint32(h.header[16:], crc32.ChecksumIEEE(h.zeroed(16, n)))
	return h.header
}
