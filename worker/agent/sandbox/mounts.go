package sandbox

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// system is what a job sees of the server's own system, read-only: programs, libraries, configuration, /sys. Not what is
// kept on it.
var system = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/etc", "/sys"}

// services are folders of sockets and files in /run that programs of accelerators and of names need.
var services = []string{"/run/systemd/resolve", "/run/nvidia-persistenced", "/run/nvidia-topologyd"}

// secrets are folders of /etc that no job has any business with.
var secrets = []string{"/etc/gpupool"}

// enter makes the job's root and goes into it. Nothing of the server's own root can be reached afterwards.
//
// The root is entered before it is filled: then a link in an image leads to a place in the image, and not on the server. The
// server's own root is meanwhile at a name that nobody can know.
func (b Box) enter() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mounts of its own: %w", err)
	}
	b, err := b.resolve()
	if err != nil {
		return err
	}
	root := filepath.Join(b.Dir, "root")
	if err := b.mountRoot(root); err != nil {
		return fmt.Errorf("its root: %w", err)
	}
	old := make([]byte, 16)
	if _, err := rand.Read(old); err != nil {
		return err
	}
	m := maker{old: "/." + hex.EncodeToString(old)}
	if err := pivot(root, m.old); err != nil {
		return err
	}
	m.fill(b)
	if m.err != nil {
		return m.err
	}
	if err := unix.Unmount(m.old, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leaving the server's root: %w", err)
	}
	if err := os.Remove(m.old); err != nil {
		return err
	}
	if len(b.Root) > 0 {
		return nil
	}
	return unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID, "")
}

// fill makes what the job finds in its root.
func (m *maker) fill(b Box) {
	if len(b.Root) == 0 {
		for _, path := range system {
			m.system(path)
		}
	}
	m.dir("/run", "/dev", "/proc", "/sys", "/etc", "/"+workDir, "/"+tmpDir)
	if len(b.Root) == 0 {
		m.dir("/var")
		m.link("/run", "/var/run")
		m.link("/"+tmpDir, "/var/tmp")
		for _, path := range services {
			m.ifThere(path, path, unix.MS_RDONLY)
		}
		for _, path := range append(secrets, b.Hide...) {
			m.hide(path)
		}
	} else {
		m.bind("/sys", "/sys", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV)
		m.mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=1m")
		for _, file := range []string{"/etc/resolv.conf", "/etc/hosts"} {
			m.file(file, file)
		}
	}
	m.bind(filepath.Join(b.Dir, workDir), "/"+workDir, unix.MS_NOSUID|unix.MS_NODEV)
	m.bind(filepath.Join(b.Dir, tmpDir), "/"+tmpDir, unix.MS_NOSUID|unix.MS_NODEV)
	for _, path := range b.Libraries {
		m.file(path, filepath.Join(LibraryDir, filepath.Base(path)))
	}
	for i, mt := range b.Mounts {
		m.asked(mt, b.Mounts[:i])
	}
	m.account(b)
	m.devices(b)
	m.mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	m.cgroup()
}

// LibraryDir is where a job with a root of its own finds the libraries of Box.Libraries. NVIDIA's images look there.
const LibraryDir = "/usr/local/nvidia/lib64"

// resolve names the folders of the server by paths without links: those would lead elsewhere from within another root.
func (b Box) resolve() (Box, error) {
	var err error
	if b.Dir, err = filepath.EvalSymlinks(b.Dir); err != nil {
		return b, err
	}
	libraries := b.Libraries
	b.Libraries = nil
	for _, l := range libraries {
		// The name stays, whatever it leads to.
		if real, err := filepath.EvalSymlinks(l); err == nil {
			if err := os.MkdirAll(filepath.Join(b.Dir, "libraries"), 0o755); err != nil {
				return b, err
			}
			at := filepath.Join(b.Dir, "libraries", filepath.Base(l))
			if err := os.WriteFile(at, nil, 0o644); err != nil {
				return b, err
			}
			if err := unix.Mount(real, at, "", unix.MS_BIND, ""); err != nil {
				return b, fmt.Errorf("library %s: %w", l, err)
			}
			b.Libraries = append(b.Libraries, at)
		}
	}
	return b, nil
}

// scratch is how much a job may write into an image's own files, where it has no limit of memory, which they count as.
const scratch = 1 << 30

// mountRoot mounts an empty root, or an image's files with what the job writes over them laid apart.
func (b Box) mountRoot(root string) error {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	if len(b.Root) == 0 {
		return unix.Mount("tmpfs", root, "tmpfs", unix.MS_NOSUID, "mode=0755,size=1m")
	}
	layers := filepath.Join(b.Dir, "layers")
	if err := os.MkdirAll(layers, 0o755); err != nil {
		return err
	}
	size := int64(scratch)
	if b.Limits.MemoryBytes > 0 {
		size = b.Limits.MemoryBytes
	}
	if err := unix.Mount("tmpfs", layers, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size="+strconv.FormatInt(size, 10)); err != nil {
		return err
	}
	for _, sub := range []string{"image", "upper", "work"} {
		if err := os.Mkdir(filepath.Join(layers, sub), 0o755); err != nil {
			return err
		}
	}
	image := filepath.Join(layers, "image")
	for _, r := range b.Root {
		if err := unix.Mount(r.Source, image, r.Type, r.Flags, r.Data); err != nil {
			return fmt.Errorf("its image: %w", err)
		}
	}
	return unix.Mount("overlay", root, "overlay", unix.MS_NOSUID|unix.MS_NODEV, "lowerdir="+image+",upperdir="+filepath.Join(layers, "upper")+",workdir="+filepath.Join(layers, "work"))
}

// pivot makes root the root, and leaves the old one at old in it.
func pivot(root, old string) error {
	put := filepath.Join(root, old)
	if err := os.Mkdir(put, 0o700); err != nil {
		return err
	}
	if err := unix.PivotRoot(root, put); err != nil {
		return fmt.Errorf("its root: %w", err)
	}
	return os.Chdir("/")
}

// maker makes mounts in the root that was entered, until the first fails. Sources are paths of the server.
type maker struct {
	old string // where the server's root is
	err error
}

// server is where a path of the server is now.
func (m *maker) server(path string) string { return filepath.Join(m.old, path) }

func (m *maker) do(err error, format string, args ...any) {
	if err != nil && m.err == nil {
		m.err = fmt.Errorf(format+": %w", append(args, err)...)
	}
}

func (m *maker) dir(paths ...string) {
	for _, p := range paths {
		m.do(os.MkdirAll(p, 0o755), "folder %s", p)
	}
}

func (m *maker) link(to, at string) { m.do(os.Symlink(to, at), "link %s", at) }

func (m *maker) mount(source, target, kind string, flags uintptr, data string) {
	if m.err == nil {
		m.do(unix.Mount(source, target, kind, flags, data), "mount %s", target)
	}
}

// bind shows source at target. The flags of a bind mount hold from its second mount on (mount(2)).
func (m *maker) bind(source, target string, flags uintptr) {
	m.mount(m.server(source), target, "", unix.MS_BIND, "")
	m.mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|flags, "")
}

// file shows a file of the server, where it is there, in a root that has a place for it or can be given one.
func (m *maker) file(source, target string) {
	if st, err := os.Stat(m.server(source)); err != nil || !st.Mode().IsRegular() {
		return
	}
	if _, err := os.Stat(target); errors.Is(err, fs.ErrNotExist) {
		m.dir(filepath.Dir(target))
		f, err := os.OpenFile(target, os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			m.do(err, "file %s", target)
			return
		}
		m.do(f.Close(), "file %s", target)
	}
	m.bind(source, target, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV)
}

func (m *maker) ifThere(source, target string, flags uintptr) {
	if st, err := os.Stat(m.server(source)); err == nil && st.IsDir() {
		m.dir(target)
		m.bind(source, target, flags|unix.MS_NOSUID|unix.MS_NODEV)
	}
}

// system shows a folder of the system, or the link that stands for it.
func (m *maker) system(path string) {
	st, err := os.Lstat(m.server(path))
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		m.do(err, "folder %s", path)
	case st.Mode()&fs.ModeSymlink != 0:
		to, err := os.Readlink(m.server(path))
		m.do(err, "link %s", path)
		m.link(to, path)
	default:
		m.dir(path)
		m.bind(path, path, unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV)
	}
}

// asked shows a folder that the job asked for.
func (m *maker) asked(mt Mount, before []Mount) {
	if err := mt.Check(before); err != nil {
		m.do(err, "mount")
		return
	}
	// Through no link: whoever may write above it could have it lead elsewhere.
	base, err := unix.Open(m.old, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		m.do(err, "mount %s", mt.Target)
		return
	}
	defer unix.Close(base)
	fd, err := unix.Openat2(base, strings.TrimPrefix(mt.Source, "/"), &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS})
	if errors.Is(err, unix.ELOOP) {
		err = errors.New("there is a link in it")
	}
	if err != nil {
		m.do(err, "mount %s: folder %s", mt.Target, mt.Source)
		return
	}
	defer unix.Close(fd)
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV)
	if mt.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	m.dir(mt.Target)
	m.bind("/proc/self/fd/"+strconv.Itoa(fd), mt.Target, flags) // of the server's /proc, which knows us too
}

// own are the places in its root that are a sandbox's to fill.
var own = append([]string{"/proc", "/dev", "/run", "/var", "/" + workDir, "/" + tmpDir}, system...)

// Check reports why a mount can't be had beside those before it. A target lies in no other: a link in there would lead
// out of the sandbox while it is made.
func (mt Mount) Check(before []Mount) error {
	for _, p := range []struct{ name, path string }{{"source", mt.Source}, {"target", mt.Target}} {
		if !filepath.IsAbs(p.path) || filepath.Clean(p.path) != p.path || p.path == "/" || strings.ContainsRune(p.path, 0) {
			return fmt.Errorf("%s %q is not an absolute path without . and .. below the root", p.name, p.path)
		}
	}
	taken := own
	for _, b := range before {
		taken = append(taken[:len(taken):len(taken)], b.Target)
	}
	for _, t := range taken {
		if within(mt.Target, t) || within(t, mt.Target) {
			return fmt.Errorf("target %q and %q lie in each other: take a path of its own, such as /data", mt.Target, t)
		}
	}
	return nil
}

func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// hide lays an empty folder over one that the job would see.
func (m *maker) hide(path string) {
	if st, err := os.Stat(path); err == nil && st.IsDir() {
		m.mount("tmpfs", path, "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=4k")
	}
}

// account gives the job's user a name, which many programs ask for.
func (m *maker) account(b Box) {
	for file, line := range map[string]string{
		"/etc/passwd": fmt.Sprintf("job:x:%d:%d::/%s:/bin/sh\n", b.User, b.User, workDir),
		"/etc/group":  fmt.Sprintf("job:x:%d:\n", b.User),
	} {
		old, err := os.ReadFile(file)
		if err != nil && len(b.Root) == 0 {
			continue // a system without accounts
		}
		if len(old) > 0 && !strings.HasSuffix(string(old), "\n") {
			old = append(old, '\n')
		}
		path := filepath.Join(b.Dir, filepath.Base(file))
		m.do(os.WriteFile(m.server(path), append(old, line...), 0o644), "%s", file)
		m.file(path, file)
	}
}

// common are the devices that every program may use.
var common = []string{"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"}

// devices makes /dev: the common devices, and those that the job was given. It has no right to make others.
func (m *maker) devices(b Box) {
	m.mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=0755,size=1m")
	m.dir("/dev/pts", "/dev/shm", "/dev/mqueue")
	m.mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
	size := ""
	if b.Limits.MemoryBytes > 0 {
		size = ",size=" + strconv.FormatInt(b.Limits.MemoryBytes, 10) // it counts as the job's memory in any case
	}
	m.mount("tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"+size)
	m.mount("mqueue", "/dev/mqueue", "mqueue", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	m.link("pts/ptmx", "/dev/ptmx")
	m.link("/proc/self/fd", "/dev/fd")
	for i, name := range []string{"stdin", "stdout", "stderr"} {
		m.link("/proc/self/fd/"+strconv.Itoa(i), "/dev/"+name)
	}
	for _, path := range common {
		m.node(path, 0o666, 0)
	}
	for _, path := range b.Devices {
		m.node(path, 0o600, b.User)
	}
	m.mount("", "/dev", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NOEXEC, "")
}

// node makes a device node as the server has it, for one user.
func (m *maker) node(path string, mode uint32, user int) {
	if m.err != nil {
		return
	}
	var st unix.Stat_t
	if err := unix.Stat(m.server(path), &st); err != nil {
		m.do(err, "device %s", path)
		return
	}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFCHR && kind != unix.S_IFBLK {
		m.do(errors.New("is no device"), "device %s", path)
		return
	}
	m.dir(filepath.Dir(path))
	if err := unix.Mknod(path, kind|mode, int(st.Rdev)); err != nil && !errors.Is(err, unix.EEXIST) {
		m.do(err, "device %s", path)
		return
	}
	m.do(os.Chmod(path, fs.FileMode(mode)), "device %s", path)
	m.do(os.Chown(path, user, user), "device %s", path)
}

// cgroup shows the job its own limits, where the server has version 2 alone: programs size themselves by them.
func (m *maker) cgroup() {
	var st unix.Statfs_t
	if err := unix.Statfs(m.server("/sys/fs/cgroup"), &st); err == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
		m.mount("cgroup", "/sys/fs/cgroup", "cgroup2", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	}
}
