package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// lockName is the lock's file in the server's folder. The file stays; the lock on it is the kernel's
// and goes with the process that holds it, so there is no stale lock to clean after a kill.
const lockName = "temporal.lock"

// LockedError says that another process has the folder open.
type LockedError struct {
	Dir string
	PID int // 0 where the holder didn't write it yet
}

func (e *LockedError) Error() string {
	who := "another process"
	if e.PID > 0 {
		who = "process " + strconv.Itoa(e.PID)
	}
	return fmt.Sprintf("embedded temporal: folder %s is in use by %s (hint: one gpupool per data folder; stop that one, or give this one another data_dir)", e.Dir, who)
}

// folderLock is an exclusive advisory lock (flock(2)) on a file of the folder. SQLite's own locks
// don't do: two servers on one file pass them and then overwrite each other's shard.
type folderLock struct{ f *os.File }

func lockFolder(dir string) (*folderLock, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("embedded temporal: open lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, &LockedError{Dir: dir, PID: holder(f)}
		}
		return nil, fmt.Errorf("embedded temporal: lock %s: %w", f.Name(), err)
	}
	// The process id is for the words of LockedError only.
	if err := errors.Join(f.Truncate(0), writeAt(f, strconv.Itoa(os.Getpid())+"\n")); err != nil {
		return nil, errors.Join(fmt.Errorf("embedded temporal: write lock: %w", err), f.Close())
	}
	return &folderLock{f: f}, nil
}

func writeAt(f *os.File, s string) error {
	_, err := f.WriteAt([]byte(s), 0)
	return err
}

func holder(f *os.File) int {
	b := make([]byte, 32)
	n, _ := f.ReadAt(b, 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil {
		return 0
	}
	return pid
}

// release closes the file, which drops the lock.
func (l *folderLock) release() error { return l.f.Close() }
