package installer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// Manifest describes an image, beside which it lies: deploy/image/manifest.sh writes it.
type Manifest struct {
	Image  string `json:"image"`  // the disk's content, compressed with zstd; a URL, or a name beside the manifest
	Size   int64  `json:"size"`   // bytes, not compressed
	SHA256 string `json:"sha256"` // of the content, hex
	// RootPartition is the number of the partition with the root file system; 0 = the last one.
	RootPartition int `json:"root_partition,omitempty"`
	Extras
}

// Extras are what a manifest adds to its system.
type Extras struct {
	// Overlay is a tar archive that is unpacked over the root file system: the agent, and what a site adds.
	Overlay       string `json:"overlay,omitempty"`
	OverlaySHA256 string `json:"overlay_sha256,omitempty"`
	// AuthorizedKeys are SSH public keys of root.
	AuthorizedKeys []string `json:"authorized_keys,omitempty"`
}

func (e Extras) check(what string) error {
	if e.Overlay != "" && !isSum(e.OverlaySHA256) {
		return fmt.Errorf("%s: overlay_sha256 %q: want 64 hex digits", what, e.OverlaySHA256)
	}
	return nil
}

// isSum reports whether s is a SHA-256 in hex.
func isSum(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == sha256.Size
}

func (m Manifest) check() error {
	switch {
	case m.Image == "":
		return errors.New("image manifest: image is empty: want the image's file name")
	case m.Size <= head:
		return fmt.Errorf("image manifest: size %d: want the image's bytes, not compressed; more than a MiB", m.Size)
	case !isSum(m.SHA256):
		return fmt.Errorf("image manifest: sha256 %q: want 64 hex digits", m.SHA256)
	case m.RootPartition < 0:
		return fmt.Errorf("image manifest: root_partition %d: want a number from 1, or 0 for the last", m.RootPartition)
	}
	return m.Extras.check("image manifest")
}

func (s *session) manifest(ctx context.Context) (Manifest, error) {
	var m Manifest
	b, err := s.fetch(ctx, s.cfg.Image, 1<<20)
	if err != nil {
		return m, fmt.Errorf("image manifest: %w", err)
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("image manifest %s: %w", s.cfg.Image, err)
	}
	return m, m.check()
}

// chunk is what is written and read at a time.
const chunk = 4 << 20

// write puts the image on the disk, all but its first MiB, which it returns. That of the disk is zeroed before anything
// else, and the end where an old table's backup may be: from here on firmware finds nothing to boot.
func (s *session) write(ctx context.Context, disk *os.File, d Disk, m Manifest) (first []byte, err error) {
	for _, at := range []int64{0, d.Bytes - head} {
		if err := zero(disk, at, head); err != nil {
			return nil, fmt.Errorf("clear %s: %w", d, err)
		}
	}
	if err := disk.Sync(); err != nil {
		return nil, fmt.Errorf("clear %s: %w", d, err)
	}
	if err := ioctl[int](disk, unix.BLKRRPART, nil); err != nil && !errors.Is(err, unix.ENOTTY) && !errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("clear %s: the kernel keeps its old partitions: %w", d, err)
	}
	url, err := beside(s.cfg.Image, m.Image)
	if err != nil {
		return nil, err
	}
	stream := s.open(ctx, url)
	defer stream.Close()
	z, err := zstd.NewReader(stream, zstd.WithDecoderMaxWindow(128<<20))
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", m.Image, err)
	}
	defer z.Close()
	first = make([]byte, head)
	if _, err := io.ReadFull(z, first); err != nil {
		return nil, fmt.Errorf("image %s: %w", m.Image, err)
	}
	buf, empty := make([]byte, chunk), make([]byte, chunk)
	for at := int64(head); at < m.Size; {
		n, err := io.ReadFull(z, buf[:min(chunk, m.Size-at)])
		if err != nil {
			return nil, fmt.Errorf("image %s: it ends or breaks off at byte %d of %d: %w", m.Image, at+int64(n), m.Size, err)
		}
		if bytes.Equal(buf[:n], empty[:n]) {
			err = zero(disk, at, int64(n))
		} else {
			_, err = disk.WriteAt(buf[:n], at)
		}
		if err != nil {
			return nil, fmt.Errorf("write %s at byte %d: %w", d, at, err)
		}
		at += int64(n)
		s.progress(ctx, "writing", at, m.Size)
	}
	if n, err := z.Read(buf[:1]); n > 0 || err != io.EOF { //nolint:errorlint // io.EOF is never wrapped by a Reader
		return nil, fmt.Errorf("image %s: it holds more than the %d bytes that its manifest says", m.Image, m.Size)
	}
	if err := disk.Sync(); err != nil {
		return nil, fmt.Errorf("write %s: %w", d, err)
	}
	return first, nil
}

// verify reads back what was written, from the disk and not from memory, and compares the whole with the manifest.
func (s *session) verify(ctx context.Context, disk *os.File, d Disk, m Manifest, first []byte) error {
	if err := dropCache(disk); err != nil {
		return fmt.Errorf("read back %s: %w", d, err)
	}
	h := sha256.New()
	h.Write(first)
	buf := make([]byte, chunk)
	for at := int64(head); at < m.Size; {
		n := min(chunk, m.Size-at)
		if _, err := disk.ReadAt(buf[:n], at); err != nil {
			return fmt.Errorf("read back %s at byte %d: %w", d, at, err)
		}
		h.Write(buf[:n])
		at += n
		s.progress(ctx, "reading back", at, m.Size)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != m.SHA256 {
		return fmt.Errorf("read back %s: SHA-256 is %s, the manifest says %s: the image was changed on its way, the manifest is another image's, or the disk does not keep what is written", d, got, m.SHA256)
	}
	return nil
}

// seal writes what makes the disk bootable: the backup of the table, then the first MiB, each read back.
func seal(disk *os.File, d Disk, g *gpt, first []byte) error {
	g.primary(first)
	backup, at := g.backup()
	for _, w := range []struct {
		b  []byte
		at int64
	}{{backup, at}, {first, 0}} {
		if _, err := disk.WriteAt(w.b, w.at); err != nil {
			return fmt.Errorf("write the partition table of %s: %w", d, err)
		}
		if err := disk.Sync(); err != nil {
			return fmt.Errorf("write the partition table of %s: %w", d, err)
		}
		if err := dropCache(disk); err != nil {
			return fmt.Errorf("read back %s: %w", d, err)
		}
		got := make([]byte, len(w.b))
		if _, err := disk.ReadAt(got, w.at); err != nil {
			return fmt.Errorf("read back %s: %w", d, err)
		}
		if !bytes.Equal(got, w.b) {
			return fmt.Errorf("read back %s: the partition table at byte %d is not what was written: the disk does not keep what is written", d, w.at)
		}
	}
	return nil
}

// zero makes a range of a disk read as zeroes, by the disk itself where it can.
func zero(f *os.File, at, n int64) error {
	r := [2]uint64{uint64(at), uint64(n)}
	if err := ioctl(f, unix.BLKZEROOUT, &r); err == nil {
		return nil
	}
	empty := make([]byte, min(n, chunk))
	for done := int64(0); done < n; {
		w, err := f.WriteAt(empty[:min(n-done, chunk)], at+done)
		if err != nil {
			return err
		}
		done += int64(w)
	}
	return nil
}

// dropCache sees to it that the next read comes from the disk. What is no block device has no cache of its own kind.
func dropCache(f *os.File) error {
	err := ioctl[int](f, unix.BLKFLSBUF, nil)
	if errors.Is(err, unix.ENOTTY) {
		return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
	return err
}
