package installer

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// AgentConfig is where the installed system's agent reads who it is.
const AgentConfig = "etc/gpupool/agent.json"

// maxOverlay bounds what is held in memory of an overlay, compressed.
const maxOverlay = 512 << 20

// personalise grows the root file system to its partition and puts in it what makes this server of an image: its name,
// its agent, the attempt's secret. The secret is fetched last, when little can still go wrong: it is given once.
func (s *session) personalise(ctx context.Context, disk *os.File, d Disk, m Manifest, p partition) (err error) {
	if err := addPartition(disk, p); err != nil {
		return fmt.Errorf("partition %d of %s: %w", p.number, d, err)
	}
	defer func() { err = errors.Join(err, dropPartition(disk, p.number)) }()
	const at = "/mnt"
	if err := appears(ctx, d.partition(p.number)); err != nil {
		return err
	}
	if err := unix.Mount(d.partition(p.number), at, "ext4", 0, ""); err != nil {
		return fmt.Errorf("mount the root file system, partition %d of %s: %w (the installer knows ext4)", p.number, d, err)
	}
	defer func() {
		if uerr := unix.Unmount(at, 0); uerr != nil {
			err = errors.Join(err, fmt.Errorf("unmount the root file system: %w", uerr))
		}
		err = errors.Join(err, disk.Sync())
	}()
	if err := growFS(at, p); err != nil {
		return err
	}
	root, err := os.OpenRoot(at) // no name and no link in an archive leads out of it
	if err != nil {
		return err
	}
	defer root.Close()
	if err := s.dress(ctx, root, s.cfg.Image, m.Extras); err != nil {
		return err
	}
	folder, err := root.Open(".")
	if err != nil {
		return err
	}
	defer folder.Close()
	if err := unix.Syncfs(int(folder.Fd())); err != nil {
		return fmt.Errorf("write the root file system: %w", err)
	}
	return nil
}

// dress makes this server of a root file system: what the manifest adds, the server's name, and last the attempt's secret.
func (s *session) dress(ctx context.Context, root *os.Root, manifest string, m Extras) error {
	if m.Overlay != "" {
		if err := s.overlay(ctx, root, manifest, m); err != nil {
			return err
		}
	}
	if len(m.AuthorizedKeys) > 0 {
		if err := put(root, "root/.ssh/authorized_keys", []byte(strings.Join(m.AuthorizedKeys, "\n")+"\n"), 0o600, 0o700); err != nil {
			return err
		}
	}
	user, err := s.fetch(ctx, s.cfg.UserData, 1<<20)
	if err != nil {
		return fmt.Errorf("user data: %w", err)
	}
	var who struct {
		Hostname string `json:"hostname"`
	}
	if err := json.Unmarshal(user, &who); err != nil {
		return fmt.Errorf("user data: %w", err)
	}
	if err := identify(root, who.Hostname); err != nil {
		return err
	}
	return put(root, AgentConfig, user, 0o600, 0o755)
}

// appears waits for a device file: the kernel makes it a moment after it knows the device.
func appears(ctx context.Context, file string) error {
	for end := time.Now().Add(10 * time.Second); ; {
		_, err := os.Stat(file)
		if err == nil || !errors.Is(err, fs.ErrNotExist) || time.Now().After(end) || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// growFS lets the kernel grow the mounted ext4 file system to its partition.
func growFS(at string, p partition) error {
	f, err := os.Open(at)
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Statfs_t
	if err := unix.Statfs(at, &st); err != nil {
		return fmt.Errorf("grow the root file system: %w", err)
	}
	blocks := uint64((p.end - p.start) / st.Bsize)
	if err := ioctl(f, ext4Resize, &blocks); err != nil {
		return fmt.Errorf("grow the root file system to %s: %w", size(p.end-p.start), err)
	}
	return nil
}

// identify gives the system its name, and lets it make whatever of an identity an image must not carry.
func identify(root *os.Root, hostname string) error {
	if hostname != "" {
		if err := put(root, "etc/hostname", []byte(hostname+"\n"), 0o644, 0o755); err != nil {
			return err
		}
	}
	// Empty: systemd makes one at the first boot (machine-id(5)).
	if err := put(root, "etc/machine-id", nil, 0o444, 0o755); err != nil {
		return err
	}
	for _, old := range []string{"var/lib/gpupool-agent", "var/lib/dbus/machine-id", "var/lib/systemd/random-seed"} {
		if err := root.RemoveAll(old); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("image: %w", err)
		}
	}
	return nil
}

func put(root *os.Root, name string, b []byte, mode, dirMode fs.FileMode) error {
	if err := root.MkdirAll(path.Dir(name), dirMode); err != nil {
		return fmt.Errorf("write /%s: %w", name, err)
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) { // a link to elsewhere, or another mode
		return fmt.Errorf("write /%s: %w", name, err)
	}
	if err := root.WriteFile(name, b, mode); err != nil {
		return fmt.Errorf("write /%s: %w", name, err)
	}
	return nil
}

// overlay unpacks the manifest's overlay. It is checked whole before the first file is written.
func (s *session) overlay(ctx context.Context, root *os.Root, manifest string, m Extras) error {
	url, err := beside(manifest, m.Overlay)
	if err != nil {
		return err
	}
	stream := s.open(ctx, url)
	defer stream.Close()
	b, err := io.ReadAll(io.LimitReader(stream, maxOverlay+1))
	if err != nil {
		return fmt.Errorf("overlay: %w", err)
	}
	if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != m.OverlaySHA256 {
		return fmt.Errorf("overlay %s: SHA-256 is %x, the manifest says %s", m.Overlay, sum, m.OverlaySHA256)
	}
	var r io.Reader = bytes.NewReader(b)
	if strings.HasSuffix(m.Overlay, ".zst") {
		z, err := zstd.NewReader(r)
		if err != nil {
			return fmt.Errorf("overlay: %w", err)
		}
		defer z.Close()
		r = z
	}
	if err := unpack(root, tar.NewReader(r)); err != nil {
		return fmt.Errorf("overlay %s: %w", m.Overlay, err)
	}
	return nil
}

// unpack writes an archive's folders, files and links, as root's. Folders that are there keep their mode.
func unpack(root *os.Root, t *tar.Reader) error {
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if name == "" {
			continue
		}
		mode := h.FileInfo().Mode().Perm()
		switch h.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, mode)
		case tar.TypeSymlink:
			if err = root.MkdirAll(path.Dir(name), 0o755); err == nil {
				if err = root.Remove(name); err == nil || errors.Is(err, fs.ErrNotExist) {
					err = root.Symlink(h.Linkname, name)
				}
			}
		case tar.TypeReg:
			err = file(root, name, mode, t)
		default:
			err = fmt.Errorf("%s: only folders, files and symbolic links are taken", h.Name)
		}
		if err != nil {
			return err
		}
	}
}

func file(root *os.Root, name string, mode fs.FileMode, r io.Reader) error {
	if err := put(root, name, nil, 0o600, 0o755); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return errors.Join(err, f.Chmod(mode), f.Close())
}
