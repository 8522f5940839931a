package installer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"gpupool/schema"
)

// LiveManifest describes a system that lives in memory, beside which it lies: deploy/image/live.sh writes it.
type LiveManifest struct {
	FileSystem string `json:"filesystem"` // the root file system, a squashfs; a URL, or a name beside the manifest
	Size       int64  `json:"size"`       // bytes
	SHA256     string `json:"sha256"`     // hex
	Extras
}

func (m LiveManifest) check() error {
	switch {
	case m.FileSystem == "":
		return errors.New("live manifest: filesystem is empty: want the file system's file name")
	case m.Size <= 0:
		return fmt.Errorf("live manifest: size %d: want the file system's bytes", m.Size)
	case !isSum(m.SHA256):
		return fmt.Errorf("live manifest: sha256 %q: want 64 hex digits", m.SHA256)
	}
	return m.Extras.check("live manifest")
}

// Where the system is put together. The file systems are mounted beneath liveDir; what is started is at liveRoot.
const (
	liveDir  = "/live"
	liveRoot = "/mnt"
)

// Live brings a system into memory and makes it this server's; no disk is touched. When it returns nil the system is mounted,
// and Switch starts it. Any error was reported, and printed.
func Live(ctx context.Context, cfg Config, log *slog.Logger) error {
	return reported(ctx, cfg, log, (*session).live)
}

func (s *session) live(ctx context.Context) error {
	var m LiveManifest
	b, err := s.fetch(ctx, s.cfg.Live, 1<<20)
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		return fmt.Errorf("live manifest %s: %w", s.cfg.Live, err)
	}
	if err := errors.Join(m.check(), fits(m.Size)); err != nil {
		return err
	}
	s.log.Info("brings a system into memory", "filesystem", m.FileSystem, "bytes", m.Size)
	if err := s.report(ctx, schema.InstallReport{State: schema.InstallRunning, Text: "installer runs; brings " + m.FileSystem + " into memory"}); err != nil {
		return err
	}
	if err := mountTmpfs(liveDir); err != nil {
		return err
	}
	file := filepath.Join(liveDir, "root.squashfs")
	if err := s.bring(ctx, m, file); err != nil {
		return err
	}
	if err := overlayOn(file); err != nil {
		return err
	}
	root, err := os.OpenRoot(liveRoot)
	if err != nil {
		return err
	}
	defer root.Close()
	// The file system's own table is of the disk that it was made for.
	if err := put(root, "etc/fstab", []byte("# the root file system is in memory\n"), 0o644, 0o755); err != nil {
		return err
	}
	if err := s.dress(ctx, root, s.cfg.Live, m.Extras); err != nil {
		return err
	}
	s.log.Info("the system is in memory")
	return s.report(ctx, schema.InstallReport{State: schema.InstallRunning, Text: fmt.Sprintf("%s, %s, is in memory; starts it", m.FileSystem, size(m.Size))})
}

// fits refuses a file system that would leave too little memory for what runs on it.
func fits(bytes int64) error {
	var i unix.Sysinfo_t
	if err := unix.Sysinfo(&i); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	if all := int64(i.Totalram) * int64(i.Unit); bytes > all/2 {
		return fmt.Errorf("the file system has %s and this server's memory %s: it may have half of it at most", size(bytes), size(all))
	}
	return nil
}

// bring fetches the file system, and compares the whole of it with the manifest before anything of it is looked at.
func (s *session) bring(ctx context.Context, m LiveManifest, file string) (err error) {
	url, err := beside(s.cfg.Live, m.FileSystem)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	stream := s.open(ctx, url)
	defer stream.Close()
	h := sha256.New()
	for at := int64(0); at < m.Size; {
		n, err := io.CopyN(io.MultiWriter(f, h), stream, min(chunk, m.Size-at))
		at += n
		if err != nil {
			return fmt.Errorf("file system %s: it ends or breaks off at byte %d of %d: %w", m.FileSystem, at, m.Size, err)
		}
		s.progress(ctx, "fetching", at, m.Size)
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != m.SHA256 {
		return fmt.Errorf("file system %s: SHA-256 is %s, the manifest says %s: it was changed on its way, or the manifest is another's", m.FileSystem, got, m.SHA256)
	}
	return nil
}

// overlayOn mounts the file system at liveRoot, with memory over it that takes all writes.
func overlayOn(file string) error {
	lower, over := filepath.Join(liveDir, "lower"), filepath.Join(liveDir, "over")
	device, err := loop(file)
	if err != nil {
		return fmt.Errorf("loop device: %w (the installer's kernel needs the modules loop, squashfs and overlay)", err)
	}
	if err := os.MkdirAll(lower, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(device, lower, "squashfs", unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("mount the file system: %w (it must be a squashfs, compressed in a way that the kernel knows)", err)
	}
	if err := mountTmpfs(over); err != nil {
		return err
	}
	upper, work := filepath.Join(over, "upper"), filepath.Join(over, "work")
	for _, dir := range []string{upper, work} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("root", liveRoot, "overlay", 0, "lowerdir="+lower+",upperdir="+upper+",workdir="+work); err != nil {
		return fmt.Errorf("mount memory over the file system: %w", err)
	}
	return nil
}

func mountTmpfs(at string) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, "mode=0755,size=75%"); err != nil {
		return fmt.Errorf("memory at %s: %w", at, err)
	}
	return nil
}

// loop makes a block device of a file, which is gone when nothing of it is mounted any more (loop(4)).
func loop(file string) (string, error) {
	backing, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer backing.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer control.Close()
	n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		return "", err
	}
	name := fmt.Sprintf("/dev/loop%d", n)
	device, err := os.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return "", err
	}
	defer device.Close()
	if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_SET_FD, int(backing.Fd())); err != nil {
		return "", err
	}
	return name, nil
}

// Switch makes the system that Live has put together the running one: its init takes this process's place. It returns only
// with an error.
func Switch() error {
	const init = "/sbin/init"
	if _, err := os.Lstat(liveRoot + init); err != nil {
		return fmt.Errorf("the system has no init: %w", err)
	}
	for _, dir := range []string{"/proc", "/sys", "/dev", "/run"} {
		at := liveRoot + dir
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(dir, at, "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("move %s: %w", dir, err)
		}
	}
	// What the kernel unpacked is not reached any more, and would fill memory for ever.
	if err := errors.Join(os.RemoveAll("/modules"), os.Remove("/init")); err != nil {
		return err
	}
	if err := os.Chdir(liveRoot); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := errors.Join(unix.Chroot("."), os.Chdir("/")); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	return unix.Exec(init, []string{init}, []string{"TERM=linux"})
}
